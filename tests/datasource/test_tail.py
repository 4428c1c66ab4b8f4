"""Batch reads and streams over entries that a broker has acknowledged and that are not sealed yet."""

from __future__ import annotations

import gc
import json
import os
import pickle
import time
from collections.abc import Callable, Iterator

import pytest

from pulsar_on_spark.datasource.source import PulsarDataSource
from pulsar_on_spark.ledger.journal.groups import JournalLimits
from pulsar_on_spark.model.errors import UnreadableMessageError
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.managed_ledger.sealing.closed_journals import seal_closed
from pulsar_on_spark.topic.managed_ledger.sealing.sealer import Sealer
from pulsar_on_spark.topic.managed_ledger.sealing.trim import Trimmer
from tests.kit.messages import write
from tests.kit.micro_batches import Checkpoint, MicroBatchQuery, Point
from tests.kit.pulsar_entries import ClientMessage, batch_entry, single_entry
from tests.kit.running_incarnation import RunningIncarnation

SMALL_FILES = JournalLimits(roll_bytes=20_000)
EARLIEST = {"startingOffsets": "earliest"}


@pytest.fixture
def root(root_with_topic: Root) -> Root:
    return root_with_topic


@pytest.fixture
def broker(root: Root) -> Iterator[RunningIncarnation]:
    with RunningIncarnation(root, limits=SMALL_FILES, lease_duration_s=0.6) as running:
        yield running


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


def query(root: Root, kept: Checkpoint, *, available_now: bool = False, **options: str) -> MicroBatchQuery:
    return MicroBatchQuery(root.path, kept, {"topic": "t", **options}, available_now=available_now)


def batch_rows(root: Root, **options: str) -> list[dict[str, object]]:
    given = {name.lower(): value for name, value in {"path": str(root.path), "topic": "t", **options}.items()}
    source = PulsarDataSource(given)
    reader = source.reader(source.schema())
    tasks = pickle.loads(pickle.dumps(reader.partitions()))
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


def batch_values(root: Root, **options: str) -> list[object]:
    return [row["value"] for row in batch_rows(root, **options)]


def soon(find: Callable[[], object], expected: object) -> None:
    """Wait until the reader sees the last entry: the idle frame that proves it acknowledged follows in milliseconds."""
    end_s = time.monotonic() + 5
    while (found := find()) != expected and time.monotonic() < end_s:
        time.sleep(0.01)
    assert found == expected


def test_a_batch_read_sees_acknowledged_messages(root: Root, broker: RunningIncarnation):
    write(root, "t", numbered(0, 5))
    broker.send("t", numbered(5, 200), batch=9)
    soon(lambda: batch_values(root), numbered(0, 205))
    rows = batch_rows(
        root, columns="__entryId,__ledgerId,__batchIndex,__messageIdStr,value", startingOffsets="earliest"
    )
    assert len({row["__messageIdStr"] for row in rows}) == 205
    assert [row["__batchIndex"] for row in rows[5:14]] == list(range(9))
    assert batch_values(root, minPartitions="4", maxRecordsPerPartition="20") == numbered(0, 205)


def test_batch_reads_leave_no_file_open(root: Root, broker: RunningIncarnation):
    broker.send("t", numbered(0, 200))
    soon(lambda: batch_values(root), numbered(0, 200))
    open_files = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        assert batch_values(root) == numbered(0, 200)
    gc.collect()
    # The broker of this process opens and closes files, too; a leak would be twenty or more.
    assert len(os.listdir("/proc/self/fd")) < open_files + 10


def test_every_range_is_the_same_from_the_journal_and_from_segments(root: Root, broker: RunningIncarnation):
    broker.send("t", numbered(0, 100), batch=3)
    broker.stop()
    ids = batch_rows(root, columns="__ledgerId,__entryId,__messageIdStr,value")
    ledger = ids[0]["__ledgerId"]
    ranges = [(0, 33), (5, 5), (10, 29)]

    def found(first: int, last: int) -> list[dict[str, object]]:
        offsets = {
            name: json.dumps({"t": f"{ledger}:{entry}:-1"})
            for name, entry in (("startingOffsets", first), ("endingOffsets", last))
        }
        return batch_rows(root, columns="__messageIdStr,value,__publishTime,__producerName", **offsets)

    from_journal = [found(*each) for each in ranges]
    assert [len(rows) for rows in from_journal] == [100, 3, 60]
    at_time = batch_values(root, startingTime="1753500000000"), batch_values(root, endingTime="1753500000000")
    seal_closed(root, pytest.fail, grace_s=0)
    seal_closed(root, pytest.fail, grace_s=0)
    assert [found(*each) for each in ranges] == from_journal
    assert at_time == (numbered(0, 100), [])


def test_a_stream_follows_a_broker(root: Root, broker: RunningIncarnation):
    kept = Checkpoint()
    run = query(root, kept, **EARLIEST)
    for first in range(0, 1_000, 100):
        broker.send("t", numbered(first, 100), batch=7)
        run.run()
    soon(lambda: run.run_all() >= 0 and kept.values, numbered(0, 1_000))


def test_latest_is_after_acknowledged_messages(root: Root, broker: RunningIncarnation):
    broker.send("t", numbered(0, 10))
    soon(lambda: len(batch_values(root)), 10)
    kept = Checkpoint()
    run = query(root, kept)
    assert not run.run()
    broker.send("t", numbered(10, 10))
    soon(lambda: run.run_all() >= 0 and kept.values, numbered(10, 10))


@pytest.mark.parametrize(
    "limit", [{"maxMessagesPerTrigger": "20"}, {"maxBytesPerTrigger": "2000"}, {"minPartitions": "3"}]
)
def test_limits_hold_over_both_kinds(root: Root, broker: RunningIncarnation, limit: dict[str, str]):
    broker.send("t", numbered(0, 60), batch=3)
    broker.close_ledger("t")
    write(root, "t", numbered(60, 30))
    broker.send("t", numbered(90, 90), batch=3)
    soon(lambda: len(batch_values(root)), 180)
    kept = Checkpoint()
    query(root, kept, available_now=True, **EARLIEST, **limit).run_all()
    assert kept.values == numbered(0, 180)
    if "maxMessagesPerTrigger" in limit:
        sizes = [len(kept.sink[number]) for number in sorted(kept.sink)]
        assert all(size <= 20 or size == 30 for size in sizes), "30 rows are one entry of a Spark write"


@pytest.mark.parametrize("point", list(Point))
def test_a_batch_that_was_cut_off_is_the_same_from_segments(root: Root, broker: RunningIncarnation, point: Point):
    kept = Checkpoint()
    broker.send("t", numbered(0, 300), batch=4)
    soon(lambda: len(batch_values(root)), 300)
    first = query(root, kept, includeMetadata="true", **EARLIEST)
    first.run(stop_at=point)
    before = kept.sink.get(0)
    sealer = Sealer(root, broker.incarnation.id, is_live=True)
    sealer.seal(tail=True)
    Trimmer(root, broker.incarnation.id, sealer.cursors, grace_s=0).trim()
    broker.send("t", numbered(300, 50))
    again = query(root, kept, includeMetadata="true", **EARLIEST)
    again.run()
    if before is not None:
        assert kept.sink[0] == before
    soon(lambda: again.run_all() >= 0 and kept.values, numbered(0, 350))


@pytest.mark.parametrize("type_", ["Exclusive", "Shared", "Key_Shared"])
def test_subscriptions(root: Root, broker: RunningIncarnation, type_: str):
    options = {"subscription": "s", "subscriptionType": type_, "subscriptionInitialPosition": "Earliest"}
    kept = Checkpoint()
    run = query(root, kept, **options)
    for first in range(0, 300, 50):
        broker.send("t", numbered(first, 50), batch=5)
        run.run()
    soon(lambda: run.run_all() >= 0 and sorted(kept.values), numbered(0, 300))  # type: ignore[type-var]
    run.stop()
    (found,) = root.subscriptions()
    assert found.backlog_messages == 0
    broker.send("t", numbered(300, 7))
    soon(lambda: root.subscriptions()[0].backlog_messages, 7)


def test_a_dead_broker_does_not_hold_up_spark(root: Root, broker: RunningIncarnation):
    """D5: what Spark writes behind the open ledger of a killed broker becomes visible without any broker."""
    broker.send("t", numbered(0, 50))
    soon(lambda: len(batch_values(root)), 50)
    kept = Checkpoint()
    run = query(root, kept, **EARLIEST)
    run.run()
    broker.kill()
    write(root, "t", numbered(50, 10))
    soon(lambda: run.run_all() >= 0 and kept.values, numbered(0, 60))
    assert batch_values(root) == numbered(0, 60)


def test_a_batch_read_alone_recovers_a_dead_broker(root: Root, broker: RunningIncarnation):
    broker.send("t", numbered(0, 50))
    broker.kill()
    write(root, "t", numbered(50, 10))
    time.sleep(0.7)  # so that the lease looks stale; it is then watched
    assert batch_values(root) == numbered(0, 60)


def test_markers_and_compacted_messages_are_hidden(root: Root, broker: RunningIncarnation):
    entries = [
        single_entry(ClientMessage(b"marker"), metadata=MessageMetadata(marker_type=10)),
        single_entry(ClientMessage(b"one")),
        batch_entry([ClientMessage(b"two"), ClientMessage(b"", compacted_out=True), ClientMessage(None, key=b"k")]),
        single_entry(ClientMessage(b"marker"), metadata=MessageMetadata(marker_type=20)),
    ]
    broker.send_entries("t", entries, [1, 1, 3, 1])
    soon(lambda: batch_values(root), [b"one", b"two", None])
    broker.stop()
    assert batch_values(root) == [b"one", b"two", None]
    seal_closed(root, pytest.fail, grace_s=0)
    assert batch_values(root) == [b"one", b"two", None]
    assert len(batch_rows(root, columns="__topic")) == 3


def test_unreadable_messages_are_an_error_and_not_null(root: Root, broker: RunningIncarnation):
    encrypted = MessageMetadata()
    encrypted.encryption_keys.add(key="k", value=b"secret")
    broker.send_entries("t", [single_entry(ClientMessage(b"a")), single_entry(ClientMessage(b"b"), metadata=encrypted)])
    broker.stop()
    for _ in range(2):
        with pytest.raises(UnreadableMessageError, match=r"Message \d+:1 of .* it is encrypted. It is not lost"):
            batch_values(root)
        assert batch_values(root, failOnDataLoss="false") == [b"a"]
        seal_closed(root, pytest.fail, grace_s=0)


def test_progress_counts_unsealed_messages(root: Root, broker: RunningIncarnation):
    broker.send("t", numbered(0, 90), batch=3)
    soon(lambda: len(batch_values(root)), 90)
    kept = Checkpoint()
    run = query(root, kept, maxMessagesPerTrigger="30", **EARLIEST)
    run.run()
    found = run.reader.reportLatestOffset()
    assert found is not None
    assert found["backlogMessages"] == 60
