"""Entries that are not in memory keep their ids and messages, in journals and segments, and while files move."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from pulsar_on_spark.broker.reading.catch_up import CatchUp
from pulsar_on_spark.broker.reading.entry_look import look_at
from pulsar_on_spark.broker.reading.extents import chain_shape
from pulsar_on_spark.broker.reading.jobs import EntrySource, InLaneError, Lane
from pulsar_on_spark.broker.reading.losses import LOSSES
from pulsar_on_spark.ledger.journal.groups import JournalLimits
from pulsar_on_spark.metadata.records import CompactionRecord, FileRecord
from pulsar_on_spark.model.errors import CopiesUnreachableError, CorruptJournalError, CorruptSegmentError, DataLossError
from pulsar_on_spark.model.ids import EntryId, LedgerId, PathId, Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.compression import Codec
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.reports import ReportKind, read_reports
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.data_path import tail
from pulsar_on_spark.topic.entries.rows import StoredEntry
from pulsar_on_spark.topic.maintenance.compaction.compact import compact
from pulsar_on_spark.topic.maintenance.files import merge
from pulsar_on_spark.topic.maintenance.files.collect import Ages, collect
from pulsar_on_spark.topic.maintenance.offload.offloading import OffloadRequest, offload
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from pulsar_on_spark.topic.managed_ledger.chain.chain import readable_end
from pulsar_on_spark.topic.managed_ledger.chain.compaction_record import horizon_of
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import EntryRange
from pulsar_on_spark.topic.managed_ledger.sealing.sealer import Sealer
from pulsar_on_spark.topic.managed_ledger.sealing.trim import Trimmer
from tests.kit import messages
from tests.kit.pulsar_entries import ClientMessage, batch_entry, read_entry, single_entry
from tests.kit.running_incarnation import RunningIncarnation

SMALL_FILES = JournalLimits(group_bytes=4_000, roll_bytes=20_000)
MAX_MESSAGE_BYTES = 5 << 20


@pytest.fixture
def broker(root: Root) -> Iterator[RunningIncarnation]:
    with RunningIncarnation(root, limits=SMALL_FILES) as running:
        yield running


@pytest.fixture
def catch_up(root: Root) -> Iterator[CatchUp]:
    with closing(CatchUp(root, MAX_MESSAGE_BYTES)) as made:
        yield made


def log_of(root: Root) -> EntrySource:
    return EntrySource(part_of(root))


def part_of(root: Root, topic: str = "clicks") -> TopicPart:
    (part,) = messages.target(root, topic).parts
    return part


def entries_of_a_client(count: int, seed: int = 1) -> list[bytes]:
    """Batches of each codec, single messages with keys, chunks, encrypted ones, markers and garbage."""
    chance = random.Random(seed)
    encrypted = MessageMetadata()
    encrypted.encryption_keys.add(key="k", value=b"v")
    made = []
    for number in range(count):
        many = [ClientMessage(chance.randbytes(chance.randrange(400)), key=b"k") for _ in range(chance.randrange(1, 9))]
        made.append(
            chance.choice(
                [
                    batch_entry(many, chance.choice(list(Codec))),
                    single_entry(ClientMessage(b"%d" % number, key=b"key")),
                    single_entry(ClientMessage(chance.randbytes(300)), metadata=encrypted),
                    single_entry(many[0], metadata=MessageMetadata(uuid="u", chunk_id=0, num_chunks_from_msg=2)),
                    single_entry(ClientMessage(), metadata=MessageMetadata(marker_type=10)),
                    chance.randbytes(50),
                ]
            )
        )
    return made


def same(found: Sequence[StoredEntry], ledger: LedgerId, first: int, sent: Sequence[bytes]) -> bool:
    """True if entries are equal for a client: a codec may compress the same messages to other bytes."""
    assert [(entry.ledger_id, entry.entry_id) for entry in found] == [
        (ledger, first + number) for number in range(len(sent))
    ]
    return all(
        entry.data == data or read_entry(entry.data) == read_entry(data)
        for entry, data in zip(found, sent, strict=True)
    )


def seal(root: Root, broker: RunningIncarnation) -> None:
    """Seal all acknowledged entries, once a later frame proves that they are acknowledged."""
    end_s = time.monotonic() + 60
    last = broker.acknowledged_ids[-1]
    topic_id = part_of(root).topic_id
    with closing(Sealer(root, broker.incarnation.id, is_live=True)) as sealer:
        while readable_end(root.store.view(), topic_id, last.ledger) <= last.entry:
            assert time.monotonic() < end_s
            sealer.seal(tail=True)


def trim(root: Root, broker: RunningIncarnation) -> None:
    trimmer = Trimmer(root, broker.incarnation.id, grace_s=0)
    assert any(trimmer.trim().deleted_files for _ in range(2)), "files that have ended are deleted"


def send(broker: RunningIncarnation, entries: Sequence[bytes]) -> LedgerId:
    """Send entries in several frames, so that they are in several files; return their ledger."""
    for first in range(0, len(entries), 20):
        broker.send_entries("clicks", entries[first : first + 20])
    return broker.acknowledged_ids[0].ledger


def test_entries_in_the_journal_are_read_as_received(root: Root, broker: RunningIncarnation, catch_up: CatchUp) -> None:
    sent = entries_of_a_client(300)
    ledger = send(broker, sent)
    found = list(catch_up.read(log_of(root), [EntryRange(ledger, 0, 300)]))
    assert [entry.data for entry in found] == sent
    assert [entry.data for entry in catch_up.read(log_of(root), [EntryRange(ledger, 7, 9)])][:2] == sent[7:9]


def test_sealed_entries_are_rebuilt(root: Root, broker: RunningIncarnation, catch_up: CatchUp) -> None:
    sent = entries_of_a_client(300)
    ledger = send(broker, sent)
    seal(root, broker)
    broker.send_entries("clicks", [single_entry(ClientMessage(b"after"))])
    trim(root, broker)
    for first, end in ((0, 300), (5, 6), (290, 301), (299, 301)):
        found = list(islice(catch_up.read(log_of(root), [EntryRange(ledger, first, end)]), end - first))
        assert same(found, ledger, first, [*sent, single_entry(ClientMessage(b"after"))][first:end])


def test_reading_continues_after_the_ranges_to_the_known_end_of_their_ledger(
    root: Root, broker: RunningIncarnation, catch_up: CatchUp
) -> None:
    broker.send("clicks", [b"%d" % number for number in range(40)])
    seal(root, broker)
    broker.send("clicks", [b"%d" % number for number in range(40, 60)])
    ledger = broker.acknowledged_ids[0].ledger

    def read(*ranges: tuple[int, int]) -> list[int]:
        wanted = [EntryRange(ledger, first, end) for first, end in ranges]
        return [entry.entry_id for entry in catch_up.read(log_of(root), wanted)]

    assert read((3, 5), (9, 10)) == [3, 4, *range(9, 40)]
    assert read((59, 60)) == [59]  # it is waited for, as a frame that proves it may be on its way
    assert read((39, 41)) == list(range(39, 60))


def test_a_reader_without_journals_reports_where_they_begin(root: Root, broker: RunningIncarnation) -> None:
    broker.send("clicks", [b"%d" % number for number in range(10)])
    seal(root, broker)
    broker.send("clicks", [b"x"])
    ledger = broker.acknowledged_ids[0].ledger
    sealed_only = CatchUp(root, MAX_MESSAGE_BYTES, Lane.SEALED)
    entries = sealed_only.read(log_of(root), [EntryRange(ledger, 8, 11)])
    assert [next(entries).entry_id, next(entries).entry_id] == [8, 9]
    with pytest.raises(InLaneError) as raised:
        next(entries)
    assert raised.value.lane is Lane.JOURNALS


def test_entries_of_spark_become_batches(root: Root, catch_up: CatchUp) -> None:
    values = [random.Random(number).randbytes(1_000) for number in range(600)]
    messages.write(root, "clicks", values)
    (extent,) = chain_shape(root.store.view(), part_of(root).topic_id).extents
    found = list(catch_up.read(log_of(root), [EntryRange(extent.ledger, 0, extent.end)]))
    assert [entry.entry_id for entry in found] == list(range(extent.end))
    assert [message.value for entry in found for message in read_entry(entry.data)] == values
    looks = [look_at(entry.data) for entry in found]
    assert all(look.is_batch for look in looks)
    assert sum(look.messages for look in looks) == 600


def test_segments_that_are_merged_under_a_read(root: Root, catch_up: CatchUp) -> None:
    for number in range(6):
        messages.write(root, "clicks", [b"%d" % number] * 2)
    (extent,) = chain_shape(root.store.view(), part_of(root).topic_id).extents
    entries = catch_up.read(log_of(root), [EntryRange(extent.ledger, 0, extent.end)])
    found = [next(entries)]
    merge.merge(root)
    assert collect(root, Ages(keep_replaced_s=-1)).deleted_files
    found += entries
    assert [message.value for entry in found for message in read_entry(entry.data)] == [
        b"%d" % number for number in range(6) for _ in range(2)
    ]
    assert not read_reports(root.path), "a file that was merged away is not a bad copy"


def test_journal_files_that_are_sealed_and_deleted_under_a_read(
    root: Root, broker: RunningIncarnation, catch_up: CatchUp
) -> None:
    sent = entries_of_a_client(400)
    ledger = send(broker, sent)
    entries = catch_up.read(log_of(root), [EntryRange(ledger, 0, 400)])
    found = [next(entries)]
    seal(root, broker)
    trim(root, broker)
    found += entries
    assert same(found, ledger, 0, sent)
    assert found[-1].data != sent[-1] or len(found) == 400


def damage(root: Root, copies: int) -> None:
    """Flip a byte of each batch in this number of copies of the one segment file."""
    view = root.store.view()
    (file,) = view.all(FileRecord)
    for path_id in file.copies[:copies]:
        path = root.journal_paths(view)[PathId(path_id)].segment_file(file.names[path_id])
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


def test_a_bad_copy_is_reported_once_and_another_copy_read(root: Root, catch_up: CatchUp) -> None:
    values = [b"%d" % number * 50 for number in range(500)]
    messages.write(root, "clicks", values)
    damage(root, copies=2)
    (extent,) = chain_shape(root.store.view(), part_of(root).topic_id).extents
    for _ in range(3):
        found = list(catch_up.read(log_of(root), [EntryRange(extent.ledger, 0, extent.end)]))
        assert [message.value for entry in found for message in read_entry(entry.data)] == values
    assert {report.kind for report in read_reports(root.path)} <= {ReportKind.BAD_COPY}


def test_a_read_without_a_good_copy_fails_and_never_skips(root: Root, catch_up: CatchUp) -> None:
    messages.write(root, "clicks", [b"%d" % number * 50 for number in range(500)])
    damage(root, copies=3)
    with pytest.raises(CorruptSegmentError, match="no good copy left"):
        list(catch_up.read(log_of(root), [EntryRange(LedgerId(1), 0, 1)]))


@pytest.mark.parametrize("sealed", [True, False])
def test_unreachable_entries_are_not_skipped_as_lost(
    root: Root, broker: RunningIncarnation, catch_up: CatchUp, monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    monkeypatch.setattr(tail, "REACH_S", 0.3)
    if sealed:
        messages.write(root, "clicks", [b"x"])
        ledger = LedgerId(1)
    else:
        broker.send_entries("clicks", [single_entry(ClientMessage(b"x"))])
        ledger = broker.acknowledged_ids[0].ledger
        broker.stop()
    (root.path / "storage").rename(root.path / "away")
    try:
        with pytest.raises(CopiesUnreachableError) as error:
            list(catch_up.read(log_of(root), [EntryRange(ledger, 0, 1)]))
        assert not isinstance(error.value, LOSSES)
    finally:
        (root.path / "away").rename(root.path / "storage")
    assert next(catch_up.read(log_of(root), [EntryRange(ledger, 0, 1)])).entry_id == 0


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_damage_in_a_journal(root: Root, catch_up: CatchUp, copies: int) -> None:
    sent = [single_entry(ClientMessage(b"%d" % number * 300)) for number in range(20)]
    with RunningIncarnation(root) as broker:
        broker.send_entries("clicks", sent)
        ledger = broker.acknowledged_ids[0].ledger
        files = sorted(root.path.glob(f"storage/*/journal/{broker.incarnation.id}/*/frames.open"))
        deadline_s = time.monotonic() + 30
        while len(damaged := [file for file in files if sent[3] in file.read_bytes()]) < 3:
            assert time.monotonic() < deadline_s, "the third copy comes, too"
            time.sleep(0.01)
        for file in damaged[:copies]:
            content = file.read_bytes()
            at = content.index(sent[3]) + 100
            file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        entries = catch_up.read(log_of(root), [EntryRange(ledger, 3, 5)])
        if copies < 3:
            assert [next(entries).data, next(entries).data] == sent[3:5]
        else:
            with pytest.raises(CorruptJournalError):
                next(entries)


def test_entries_without_any_copy_are_an_error(root: Root, catch_up: CatchUp) -> None:
    messages.write(root, "clicks", [b"x"])
    with pytest.raises(DataLossError, match="clicks"):
        list(catch_up.read(log_of(root), [EntryRange(LedgerId(1), 0, 2)]))


@pytest.mark.parametrize("sealed", [True, False])
def test_the_first_entry_that_was_published_at_a_time_or_later(
    root: Root, broker: RunningIncarnation, catch_up: CatchUp, sealed: bool
) -> None:
    times = [1_000 + 10 * (number // 3) for number in range(120)]
    entries = [
        single_entry(ClientMessage(b"x"), metadata=MessageMetadata(publish_time=published)) for published in times
    ]
    broker.send_entries("clicks", entries)
    ledger = broker.acknowledged_ids[0].ledger
    if sealed:
        seal(root, broker)
    start, end = Position(ledger, EntryId(0)), Position(ledger, EntryId(120))
    for at in (0, 1_000, 1_001, 1_010, 1_185, 1_190, 1_390, 1_391, 9_999):
        expected = next((entry for entry, published in enumerate(times) if published >= at), 120)
        assert catch_up.position_at(log_of(root), start, end, at) == Position(ledger, EntryId(expected)), at


def test_a_position_by_time_in_a_journal_that_is_sealed_and_offloaded_meanwhile(
    root: Root, broker: RunningIncarnation, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that began in the middle of a journal begins again at its first entry, in the lane of cold paths."""
    made = [single_entry(ClientMessage(b"x"), metadata=MessageMetadata(publish_time=1_000 + at)) for at in range(10)]
    broker.send_entries("clicks", made)
    ledger = broker.acknowledged_ids[0].ledger
    start, end = Position(ledger, EntryId(0)), Position(ledger, EntryId(10))
    storage_paths.add(root, memory_path / "cold", role="cold")
    first_raw = CatchUp._first_raw

    def meanwhile(*arguments: Any) -> Position | None:
        seal(root, broker)
        offload(root, OffloadRequest(TopicName.parse("clicks")))
        offload(root, now=lambda: datetime.now(UTC) + timedelta(hours=5))
        return first_raw(*arguments)

    monkeypatch.setattr(CatchUp, "_first_raw", meanwhile)
    with closing(CatchUp(root, MAX_MESSAGE_BYTES, Lane.JOURNALS)) as reader, pytest.raises(InLaneError) as raised:
        reader.position_at(log_of(root), start, end, 1_002)
    assert (raised.value.lane, raised.value.start) == (Lane.COLD, start)
    found = CatchUp(root, MAX_MESSAGE_BYTES, Lane.COLD).position_at(log_of(root), start, end, 1_002)
    assert found == Position(ledger, EntryId(2))


def test_a_position_by_time_after_a_compacted_ledger_may_be_in_a_journal(
    root: Root, broker: RunningIncarnation, catch_up: CatchUp
) -> None:
    def send(published: range) -> None:
        made = [(ClientMessage(b"x", key=b"k"), MessageMetadata(publish_time=at)) for at in published]
        broker.send_entries("clicks", [single_entry(message, metadata=metadata) for message, metadata in made])

    send(range(1_000, 1_005))
    ledger = broker.acknowledged_ids[0].ledger
    compact(root, "clicks", reach=Position(ledger, EntryId(5)))
    send(range(1_005, 1_010))
    broker.close_ledger("clicks")
    messages.write(root, "clicks", [b"y"])
    part = part_of(root)
    compacted = root.store.view().get(CompactionRecord, part.topic_id)
    assert compacted is not None
    assert horizon_of(compacted) == Position(ledger, EntryId(5))
    end = Position(chain_shape(root.store.view(), part.topic_id).extents[-1].ledger, EntryId(1))
    found = catch_up.position_at(EntrySource(part, compacted), Position(ledger, EntryId(0)), end, 1_007)
    assert found == Position(ledger, EntryId(7))


def test_a_position_by_time_is_found_in_entries_of_spark_and_later_ones(
    root: Root, broker: RunningIncarnation, catch_up: CatchUp
) -> None:
    messages.write(root, "clicks", [b"x"] * 3_000)
    broker.send("clicks", [b"y"])
    (attached, own) = chain_shape(root.store.view(), part_of(root).topic_id).extents
    start, end = Position(attached.ledger, EntryId(0)), Position(own.ledger, EntryId(1))
    assert catch_up.position_at(log_of(root), start, end, 0) == start
    # The sender's clock of `send` is behind the one that `write` has: it is found where it is, in the chain's order.
    assert catch_up.position_at(log_of(root), Position(own.ledger, EntryId(0)), end, 1) == Position(
        own.ledger, EntryId(0)
    )
    assert catch_up.position_at(log_of(root), start, end, 1 << 60) == end
