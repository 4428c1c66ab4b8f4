"""Compaction of real topics: beside writers, sealing, merging, trimming, kills and other compactors."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime

import pytest

from pulsar_on_spark.ledger.segments.segment_reader import verify_file
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import CompactionRecord, FileRecord, LedgerRecord, SegmentRecord
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import NotEnoughCopiesError, TopicNotFoundError
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, MessageId, PathId, Position, WriteId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.policies.change import set_topic_policies
from pulsar_on_spark.topic.catalog.policies.policies import RetentionPolicies
from pulsar_on_spark.topic.data_path.tail import Tail
from pulsar_on_spark.topic.maintenance.compaction import compact as compact_module
from pulsar_on_spark.topic.maintenance.compaction.compact import Compaction, CompactionReport, compact
from pulsar_on_spark.topic.maintenance.compaction.reading import read_index
from pulsar_on_spark.topic.maintenance.files.collect import Ages, collect
from pulsar_on_spark.topic.maintenance.files.merge import merge
from pulsar_on_spark.topic.maintenance.retention.trim import trim_topics, truncate
from pulsar_on_spark.topic.managed_ledger.chain.chain import read_limit
from pulsar_on_spark.topic.managed_ledger.chain.compaction_record import (
    horizon_of,
    log_start,
    trim_limit,
    waiting_bytes,
)
from pulsar_on_spark.topic.managed_ledger.sealing.sealer import Sealer
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions
from tests.kit import messages
from tests.kit.pulsar_entries import ClientMessage, batch_entry, single_entry
from tests.kit.running_incarnation import RunningIncarnation

NAME = TopicName.parse("t")
RETAIN_NOTHING = RetentionPolicies(retention_time_in_minutes=0, retention_size_in_mb=0)
SOON = Ages(abort_after_s=3600.0, keep_replaced_s=0.0, keep_verdicts_s=3600.0)


@pytest.fixture
def broker(root: Root) -> Iterator[RunningIncarnation]:
    root.create_topic("t")
    with RunningIncarnation(root) as running:
        yield running


def part_of(root: Root) -> TopicPart:
    (part,) = messages.target(root, "t").parts
    return part


def log(root: Root, reach: Position = EARLIEST) -> list[messages.Message]:
    """All messages that are readable, in order; those below `reach` are known to be."""
    part = part_of(root)
    with closing(Tail(root)) as tail:  # the copy that is looked at first may be behind
        return messages.read(root, "t", view=tail.read_view([part], reach={part.topic_id: reach}))


def newest(found: list[messages.Message]) -> dict[MessageId, bytes]:
    """Return the survivors of messages: id and value of the newest of each key."""
    last: dict[object, messages.Message] = {}
    for message in found:
        columns = dict(message.columns)
        if columns["key"] is not None:
            last[columns["key"]] = message
    return {message.id: message.value for message in last.values() if message.value}


def compacted(root: Root) -> dict[MessageId, bytes | None]:
    """Return the messages of the compacted ledger, by id."""
    return {message.id: message.value for message in messages.read_compacted(root, "t")}


def record_of(root: Root) -> CompactionRecord:
    found = root.store.view().get(CompactionRecord, part_of(root).topic_id)
    assert found is not None
    return found


def in_order(ids: list[MessageId]) -> bool:
    return ids == sorted(ids, key=lambda x: (x.ledger, x.entry, x.batch_index or 0))


def some_messages(rng: random.Random, count: int) -> list[ClientMessage]:
    return [
        ClientMessage(
            rng.choice([None, b"", b"value %d" % rng.randrange(10**6)]),
            rng.choice([None, b"key %d" % rng.randrange(9)]),
        )
        for _ in range(count)
    ]


def some_work(root: Root, broker: RunningIncarnation, rng: random.Random) -> None:
    made = some_messages(rng, rng.randrange(1, 12))
    match rng.choice(["spark", "spark", "singles", "batches", "close", "seal", "merge"]):
        case "spark":
            messages.write(root, "t", [m.value for m in made], [m.key for m in made])
        case "singles":
            broker.send_entries("t", [single_entry(m) for m in made])
        case "batches":
            groups = [made[first : first + 3] for first in range(0, len(made), 3)]
            broker.send_entries("t", [batch_entry(group) for group in groups], [len(group) for group in groups])
        case "close":
            broker.close_ledger("t")
        case "seal":
            sealer = Sealer(root, broker.incarnation.id, is_live=True)
            sealer.seal(tail=True)
            sealer.close()
        case "merge":
            merge(root)


@pytest.mark.parametrize("seed", range(2))
def test_beside_writers_sealing_merging_and_trimming(root: Root, broker: RunningIncarnation, seed: int) -> None:
    """The compacted messages equal those in a dict of all messages up to the horizon, in ids and order."""
    rng = random.Random(seed)
    kept: list[messages.Message] = []
    """Messages that were trimmed: only the compacted ledger has them."""
    for _ in range(8):
        for _ in range(rng.randrange(1, 5)):
            some_work(root, broker, rng)
        (done,) = compact(root, "t", Compaction(keys_bytes=rng.choice([300, 1 << 20])))
        everything = [*kept, *log(root, done.horizon)]
        below = [m for m in everything if (m.id.ledger, m.id.entry) < (done.horizon.ledger, done.horizon.entry)]
        assert compacted(root) == newest(below)
        assert in_order(list(compacted(root)))
        if done.outcome == "compacted":
            assert (done.messages, done.read_messages >= done.messages) == (len(compacted(root)), True)
        if rng.random() < 0.4:
            collect(root, SOON)
        if rng.random() < 0.5:
            kept += trim(root)


def trim(root: Root) -> list[messages.Message]:
    """Trim the first ledgers, as far as they may be; returns what they had."""
    view = root.store.view()
    topic_id = part_of(root).topic_id
    limit = trim_limit(view, topic_id)
    assert limit is not None
    before = {message.id: message for message in log(root)}
    doomed = []
    for ledger in view.all(LedgerRecord, topic_id):
        has_ended = ledger.closed or (ledger.incarnation is None and ledger is not view.newest(LedgerRecord, topic_id))
        segments = [each for each in view.all(SegmentRecord, topic_id) if each.ledger_id == ledger.ledger_id]
        is_sealed = ledger.incarnation is None or sum(each.entries for each in segments) == ledger.entries
        ends_below = all(
            (each.ledger_id, each.first_entry + each.entries) <= (limit.ledger, limit.entry) for each in segments
        )
        if not (has_ended and is_sealed and ends_below):
            break
        doomed += [ledger, *segments]
    if doomed:
        root.store.commit(lambda _: Change(deletes=doomed, keys={keys.topic(part_of(root).name): None}))
    left = {message.id for message in log(root)}
    return [message for message in before.values() if message.id not in left]


def test_the_horizon_is_after_the_acknowledged_entries(root: Root, broker: RunningIncarnation) -> None:
    broker.send_entries("t", [single_entry(ClientMessage(b"1", b"a")), single_entry(ClientMessage(b"2", b"a"))])
    last = broker.acknowledged_ids[-1]
    (done,) = compact(root, "t", reach=Position(last.ledger, last.entry + 1))  # type: ignore[arg-type]
    assert done.horizon == Position(last.ledger, last.entry + 1)  # type: ignore[arg-type]
    assert list(compacted(root).values()) == [b"2"]
    assert compact(root, "t")[0].outcome == "unchanged"


def test_messages_without_keys_are_kept_if_wanted(root: Root) -> None:
    root.create_topic("t")
    messages.write(root, "t", [b"1", b"2", None, b"3"], [None, b"a", b"a", None])
    assert compact(root, "t", Compaction(retain_null_key=True))[0].messages == 2
    assert list(compacted(root).values()) == [b"1", b"3"]


def test_a_compaction_may_leave_no_messages(root: Root) -> None:
    root.create_topic("t")
    assert compact(root, "t")[0].outcome == "unchanged"
    messages.write(root, "t", [b"1", None], [b"a", b"a"])
    (done,) = compact(root, "t")
    assert (done.outcome, done.messages, done.files, record_of(root).files) == ("compacted", 0, 0, ())
    assert compacted(root) == {}
    messages.write(root, "t", [b"2"], [b"a"])
    compact(root, "t")
    assert list(compacted(root).values()) == [b"2"]


def test_each_partition_is_compacted_by_itself(root: Root) -> None:
    root.create_topic("parts", 3)
    rows = [b"%d" % number for number in range(60)]
    messages.write(root, "parts", rows, [b"k%d" % (number % 7) for number in range(60)])
    done = compact(root, "parts")
    assert [each.outcome for each in done] == ["compacted"] * 3
    assert sum(each.messages for each in done) == 7
    assert {message.value for message in messages.read_compacted(root, "parts")} == set(rows[-7:])


def test_copies_are_good_and_the_index_names_the_remaining_entries(root: Root) -> None:
    root.create_topic("t")
    for number in range(3):
        messages.write(root, "t", [b"%d" % number] * 5, [b"k%d" % row for row in range(5)])
    compact(root, "t")
    view = root.store.view()
    paths = root.storage_paths(view)
    record = record_of(root)
    (named,) = record.files
    file = view.get(FileRecord, named.file_id)
    assert file is not None
    assert len(file.copies) == 3
    for path in file.copies:
        verify_file(file, paths[PathId(path)])
    index = read_index(view, part_of(root), record, lambda: paths, lambda *bad: pytest.fail(str(bad)))
    assert {(ledger, entry) for ledger, entries in index.items() for entry in entries} == {
        (message.ledger, message.entry) for message in compacted(root)
    }


def test_the_backlog_of_a_compaction(root: Root) -> None:
    root.create_topic("t")
    topic_id = part_of(root).topic_id
    messages.write(root, "t", [b"12345"] * 10, [b"k"] * 10)
    assert waiting_bytes(root.store.view(), topic_id) == 60
    compact(root, "t")
    assert waiting_bytes(root.store.view(), topic_id) == 0
    messages.write(root, "t", [b"1"], [b"k"])
    assert waiting_bytes(root.store.view(), topic_id) == 2
    assert log_start(root.store.view(), topic_id, record_of(root)) == horizon_of(record_of(root))


# -- others at the same time -------------------------------------------------------------------------------------------


def test_one_of_two_compactors_wins(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    root.create_topic("t")
    messages.write(root, "t", [b"1", b"2"], [b"a", b"a"])
    other: list[CompactionReport] = []

    def compact_first(*given: object) -> bool:
        monkeypatch.undo()
        messages.write(root, "t", [b"3"], [b"b"])
        other.extend(compact(Root(root.path), "t"))
        return commit(*given)  # type: ignore[arg-type]

    commit = compact_module._commit
    monkeypatch.setattr(compact_module, "_commit", compact_first)
    (done,) = compact(root, "t")

    assert (done.outcome, other[0].outcome) == ("overtaken", "compacted")
    assert list(compacted(root).values()) == [b"2", b"3"]
    assert collect(root, SOON).deleted_files == 0, "the loser has deleted its file"


def test_many_compactors_and_a_writer(root: Root) -> None:
    root.create_topic("t")
    messages.write(root, "t", [b"0"], [b"k"])
    errors: list[BaseException] = []

    def run() -> None:
        own = Root(root.path)
        try:
            for _ in range(4):
                compact(own, "t")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1, 8):
        messages.write(root, "t", [b"%d" % number], [b"k"])
    for thread in threads:
        thread.join()
    assert not errors
    compact(root, "t")
    assert list(compacted(root).values()) == [b"7"]


def test_messages_truncated_during_a_compaction_do_not_return(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    root.create_topic("t")
    messages.write(root, "t", [b"1"], [b"a"])
    commit = compact_module._commit

    def truncate_first(*given: object) -> bool:
        truncate(root.store, NAME, read_limit(root.store.view(), part_of(root).topic_id))
        return commit(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(compact_module, "_commit", truncate_first)
    (done,) = compact(root, "t")
    assert done.outcome == "overtaken"
    assert compacted(root) == {}


def test_truncated_messages_that_still_exist_are_not_compacted(root: Root, broker: RunningIncarnation) -> None:
    """A subscription holds it, or it waits to be sealed: no compaction may keep it for good."""
    broker.send_entries("t", [single_entry(ClientMessage(b"1", b"a"))])
    broker.close_ledger("t")
    end = Position(LedgerId(broker.acknowledged_ids[0].ledger), EntryId(1))
    part = part_of(root)
    with closing(Tail(root)) as tail:  # the copy that is looked at first may be behind
        assert read_limit(tail.read_view([part], reach={part.topic_id: end}), part.topic_id) == end
    truncate(root.store, NAME, end)
    assert compact(root, "t", reach=end)[0].outcome == "unchanged"
    messages.write(root, "t", [b"2"], [b"b"])
    compact(root, "t", reach=end)
    assert list(compacted(root).values()) == [b"2"]


def test_a_trim_during_a_first_compaction(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first compaction does not hold the log: later ones continue behind what was trimmed."""
    root.create_topic("t")
    set_topic_policies(root, NAME, {"retention": RETAIN_NOTHING})
    messages.write(root, "t", [b"1"], [b"a"])
    commit = compact_module._commit

    def trim_first(*given: object) -> bool:
        monkeypatch.undo()
        messages.write(root, "t", [b"2"], [b"b"])
        part = part_of(root)
        end = read_limit(root.store.view(), part.topic_id)
        subscriptions.create_subscriptions(root.store, "s", "Exclusive", {part: end})
        messages.write(root, "t", [b"3"], [b"c"])
        assert trim_topics(root).segments == 2, "what the subscription waits for stays, in the same ledger"
        return commit(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(compact_module, "_commit", trim_first)
    compact(root, "t")
    assert compact(root, "t")[0].outcome == "compacted"
    assert list(compacted(root).values()) == [b"1", b"3"]


def test_a_topic_that_is_deleted_meanwhile(
    root: Root, monkeypatch: pytest.MonkeyPatch, stored_files: Callable[[Root], list[str]]
) -> None:
    root.create_topic("t")
    messages.write(root, "t", [b"1"], [b"a"])
    compact(root, "t")
    messages.write(root, "t", [b"2"], [b"a"])
    commit = compact_module._commit

    def delete_first(*given: object) -> bool:
        root.delete_topic("t")
        return commit(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(compact_module, "_commit", delete_first)
    with pytest.raises(TopicNotFoundError):
        compact(root, "t")
    collect(root, SOON)
    collect(root, SOON)
    assert stored_files(root) == []


# -- kills and failures ------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("is_committed", [False, True])
def test_killed_at_the_commit(root: Root, monkeypatch: pytest.MonkeyPatch, is_committed: bool) -> None:
    root.create_topic("t")
    messages.write(root, "t", [b"1", b"2"], [b"a", b"b"])
    compact(root, "t")
    before = compacted(root)
    messages.write(root, "t", [b"3"], [b"a"])
    real = MetadataStore.commit

    def killed(store: MetadataStore, decide: Callable[..., Change | None]) -> object:
        if is_committed:
            real(store, decide)
        raise Killed

    monkeypatch.setattr(MetadataStore, "commit", killed)
    with pytest.raises(Killed):
        compact(root, "t")
    monkeypatch.undo()

    again = Root(root.path)
    assert list(compacted(again).values()) == ([b"2", b"3"] if is_committed else list(before.values()))
    collect(again, SOON, clock=datetime.now(UTC).timestamp() + 7200)
    assert list(compacted(again).values()) == ([b"2", b"3"] if is_committed else list(before.values()))
    compact(again, "t")
    assert list(compacted(again).values()) == [b"2", b"3"]


def test_given_up_by_garbage_collection(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compactor that slept for a day finds its files given up, and everything as it was."""
    root.create_topic("t")
    messages.write(root, "t", [b"1"], [b"a"])
    commit = compact_module._commit

    def late(root: Root, part: TopicPart, source: object, write_id: WriteId, ledger: object) -> bool:
        collect(root, Ages(abort_after_s=0.0))
        return commit(root, part, source, write_id, ledger)  # type: ignore[arg-type]

    monkeypatch.setattr(compact_module, "_commit", late)
    with pytest.raises(Exception, match="garbage collection aborted it"):
        compact(root, "t")
    monkeypatch.undo()
    compact(root, "t")
    assert list(compacted(root).values()) == [b"1"]


def test_too_few_storage_paths(root: Root, stored_files: Callable[[Root], list[str]]) -> None:
    root.create_topic("t")
    messages.write(root, "t", [b"1"], [b"a"])
    before = stored_files(root)
    for path_id in (0, 1):
        (root.path / "storage" / str(path_id)).rename(root.path / f"away{path_id}")
    with pytest.raises(NotEnoughCopiesError):
        compact(root, "t")
    for path_id in (0, 1):
        (root.path / f"away{path_id}").rename(root.path / "storage" / str(path_id))
    assert stored_files(root) == before
    compact(root, "t")
    assert list(compacted(root).values()) == [b"1"]


COMPACT_FOR_EVER = """
import sys
from pulsar_on_spark.topic.maintenance.compaction.compact import compact
from pulsar_on_spark.root import Root
root = Root.open(sys.argv[1])
print("ready", flush=True)
while True:
    compact(root, "t")
"""


def killed_again_and_again(root: Root, start_python: Callable[..., subprocess.Popen[str]], kills: int) -> None:
    """After each kill the compacted ledger is what it was, or the next one, and in good order."""
    rng = random.Random(kills)
    root.create_topic("t")
    expected: dict[bytes, bytes] = {}
    for number in range(kills):
        compactor = start_python(COMPACT_FOR_EVER, root.path)
        assert compactor.stdout is not None
        assert compactor.stdout.readline() == "ready\n"
        deadline = time.monotonic() + rng.random() * 0.5
        while time.monotonic() < deadline:
            keys_written = [b"%d" % rng.randrange(50) for _ in range(20)]
            messages.write(root, "t", [b"%d" % number] * 20, keys_written)
            expected |= dict.fromkeys(keys_written, b"%d" % number)
        compactor.kill()
        compactor.communicate()
        record = root.store.view().get(CompactionRecord, part_of(root).topic_id)
        if record is not None:
            horizon = horizon_of(record)
            below = [m for m in log(root) if (m.id.ledger, m.id.entry) < (horizon.ledger, horizon.entry)]
            assert compacted(root) == newest(below)
    compact(root, "t")
    assert {dict(m.columns)["key"]: m.value for m in messages.read_compacted(root, "t")} == expected


@pytest.mark.long
def test_killed_at_any_moment(root: Root, start_python: Callable[..., subprocess.Popen[str]]) -> None:
    killed_again_and_again(root, start_python, 2)


@pytest.mark.soak
def test_killed_at_any_moment_many_times(root: Root, start_python: Callable[..., subprocess.Popen[str]]) -> None:
    killed_again_and_again(root, start_python, 60)
