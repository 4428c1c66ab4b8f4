"""Entries of a journal become rows of segments once, whatever fails, is killed or runs at the same time."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from errno import EIO
from pathlib import Path
from typing import Any

import pytest

from pulsar_on_spark.ledger.journal import codec_scan, log_reader
from pulsar_on_spark.ledger.journal.frames import Frame
from pulsar_on_spark.ledger.journal.log import LogState
from pulsar_on_spark.ledger.journal.log_reader import LogReader
from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.ledger.segments.segment_reader import read_batches
from pulsar_on_spark.metadata.records import FileRecord, LedgerRecord, SealRecord, SegmentRecord
from pulsar_on_spark.model.errors import CorruptJournalError, JournalFencedError, JournalUndecidedError
from pulsar_on_spark.model.ids import EARLIEST, LedgerId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.compression import Codec
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.files import OsFiles
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.catalog import delete_topic
from pulsar_on_spark.topic.data_path.reading import rows_of
from pulsar_on_spark.topic.entries.rebuild import rebuild_entries
from pulsar_on_spark.topic.maintenance.files.collect import collect
from pulsar_on_spark.topic.maintenance.files.merge import merge
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.chain.slices import SegmentSlice
from pulsar_on_spark.topic.managed_ledger.sealing import journal_entries, sealed_rows, sealer
from pulsar_on_spark.topic.managed_ledger.sealing.journal_entries import JournalEntries
from pulsar_on_spark.topic.managed_ledger.sealing.journal_frames import JournalFrames, JournalLag
from pulsar_on_spark.topic.managed_ledger.sealing.sealer import Sealer
from tests.kit import messages
from tests.kit.cached_bytes import cached_bytes, can_forget
from tests.kit.journal_logs import PUBLISHED_MS, LogOnDisk, WriterAsFast
from tests.kit.pulsar_entries import ClientMessage, batch_entry, read_entry, single_entry


@pytest.fixture
def log(root: Root) -> LogOnDisk:
    return log_in(root)


def log_in(root: Root) -> LogOnDisk:
    made = LogOnDisk(root)
    made.open_ledgers(["a", "b"])
    return made


def sealed_entries(root: Root, ledger: LedgerId) -> list[bytes]:
    """The entries of a ledger as a client would get them, rebuilt from its segments."""
    view = root.store.view()
    (record,) = [found for found in view.all(LedgerRecord) if found.ledger_id == ledger]
    segments = view.all(SegmentRecord, record.topic_id)
    found: list[tuple[int, bytes]] = []
    for segment in (segment for segment in segments if segment.ledger_id == ledger):
        file = view.get(FileRecord, segment.file_id)
        assert file is not None
        slice_ = SegmentSlice(
            "", segment.topic_id, -1, segment, file, segment.first_entry, segment.first_entry + segment.entries
        )
        places = slice_.batches()
        read = read_batches(
            file,
            lambda: root.storage_paths(view),
            [where.number for where in places],
            SEGMENT_SCHEMA.names,
            lambda *bad: pytest.fail(str(bad)),
        )
        for where, stored in zip(places, read, strict=True):
            batch = rows_of(where, stored)
            assert set(batch.column("ledger_id").to_pylist()) == {ledger}
            rebuilt = rebuild_entries(batch, ledger, segment.entry_offset)
            found += [(entry.entry_id, entry.data) for entry in rebuilt]
        assert len(found) == segment.first_entry + segment.entries
    assert [entry for entry, _ in found] == list(range(len(found)))
    return [data for _, data in found]


def entry(number: int) -> bytes:
    return single_entry(ClientMessage(f"value {number}".encode(), key=b"k"))


def mixed_entries(count: int, seed: int = 0) -> list[bytes]:
    """Batches of each codec, single messages, what stays whole, and garbage."""
    chance = random.Random(seed)
    made = []
    for number in range(count):
        many = [ClientMessage(chance.randbytes(chance.randrange(40)), key=b"k") for _ in range(chance.randrange(1, 30))]
        made.append(
            chance.choice(
                [
                    lambda many=many: batch_entry(many, chance.choice(list(Codec))),
                    lambda number=number: entry(number),
                    lambda: chance.randbytes(50),
                    lambda: single_entry(ClientMessage(b"marker"), metadata=MessageMetadata(marker_type=10)),
                ]
            )()
        )
    return made


def seal(log: LogOnDisk, *, live: bool = True) -> sealer.SealReport:
    return Sealer(log.root, log.incarnation, is_live=live).seal(tail=True)


def test_a_hole_between_chunks_is_not_closed(log: LogOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file counts the entries of a ledger from its first one, and may be made of many chunks of frames."""
    monkeypatch.setattr(sealer, "MAX_CHUNK_BYTES", 1)
    log.append({"a": [entry(0)]})
    log.entries[log.ledger("a")].append(b"never written")
    log.append({"a": [entry(2)]})
    log.close()
    with pytest.raises(CorruptJournalError, match=r"has entry .*:2 where .*:1 must follow"):
        seal(log, live=False)
    assert log.root.store.view().all(SegmentRecord) == []


def test_every_entry_once_with_its_id(log: LogOnDisk) -> None:
    made = mixed_entries(300)
    for start in range(0, 300, 20):
        log.append({"a": made[start : start + 10], "b": made[start + 10 : start + 20]})
    log.idle()
    report = seal(log)
    assert (report.entries, report.ledgers, report.lost) == (300, 2, False)
    for ledger, entries in log.entries.items():
        rebuilt = sealed_entries(log.root, ledger)
        assert len(rebuilt) == len(entries)
        for found, given in zip(rebuilt, entries, strict=True):
            # A codec need not give the same bytes again; the messages are the same.
            assert found == given or read_entry(found) == read_entry(given)


def test_ledgers_of_a_pass_share_a_file(log: LogOnDisk) -> None:
    for number in range(6):
        log.append({"a": [entry(number)], "b": [entry(number), entry(-number)]})
    log.idle()
    seal(log)
    view = log.root.store.view()
    segments = view.all(SegmentRecord)
    assert len(view.all(FileRecord)) == 1
    assert sorted((segment.ledger_id, segment.entries) for segment in segments) == [(1, 6), (2, 12)]
    assert {segment.entry_offset for segment in segments} == {0}
    assert len(view.all(FileRecord)[0].copies) == 3


def test_sealed_frames_leave_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_in(Root.create(tmp_path / "root"))
    if not can_forget(log.root.path):
        pytest.skip("this file system keeps all in memory")
    monkeypatch.setattr(log_reader, "STEP_BYTES", 1 << 20)
    for number in range(8):
        log.append({"a": [single_entry(ClientMessage(random.Random(number).randbytes(1 << 20)))]})
    log.close()
    copies = list(log.root.path.glob("storage/*/journal/*/*/frames.*"))
    assert min(map(cached_bytes, copies)) >= 8 << 20
    assert seal(log, live=False).entries == 8
    assert min(map(cached_bytes, copies)) <= 2 << 20


def test_frames_above_the_lac_are_not_sealed(log: LogOnDisk) -> None:
    log.append({"a": [entry(0)]})
    log.append({"a": [entry(1)]})
    assert seal(log).entries == 1
    assert seal(log).entries == 0, "nothing says that frame 1 was acknowledged"
    log.append({"a": [entry(2)]})
    assert seal(log).entries == 1
    log.close()
    assert seal(log, live=False).entries == 1, "the closed end does"
    assert len(sealed_entries(log.root, log.ledger("a"))) == 3


def test_frames_longer_than_a_chunk(log: LogOnDisk) -> None:
    """Only the next frame shows that such a frame is acknowledged, and a chunk ends before it."""
    made = [random.Random(number).randbytes(sealer.CHUNK_BYTES + number) for number in range(3)]
    for each in made:
        log.append({"a": [each]})
    log.idle()
    assert seal(log).entries == 3
    assert sealed_entries(log.root, log.ledger("a")) == made


def test_closed_files_only(log: LogOnDisk) -> None:
    log.append({"a": [entry(0)]})
    log.roll()
    log.append({"a": [entry(1)]})
    log.idle()
    one = Sealer(log.root, log.incarnation, is_live=True)
    assert one.lag().bytes > 0
    assert one.seal(tail=False).entries == 1
    behind = one.lag().bytes
    assert behind > 0
    assert one.seal(tail=False).entries == 0
    assert one.seal(tail=True).entries == 1
    assert 0 < one.lag().bytes < behind, "the last frame is not acknowledged for sure"


def test_paths_that_are_added_under_a_sealer(log: LogOnDisk) -> None:
    one = Sealer(log.root, log.incarnation, is_live=True)
    log.append({"a": [entry(0)]})
    log.idle()
    assert one.seal(tail=True).entries == 1
    for number in range(3):
        storage_paths.add(log.root, log.root.path.parent / f"new{number}")
    for old in range(3):
        storage_paths.drain(log.root, old)
    log.roll()
    log.append({"a": [entry(1)]})
    log.idle()
    assert {copy.path for copy in log.record.fragments[-1].copies} == {3, 4, 5}
    assert one.lag().unknown_files == 0
    assert one.seal(tail=True).entries == 1


def test_a_file_of_unknown_size_counts_as_lag(log: LogOnDisk) -> None:
    log.append({"a": [entry(0)]})
    log.roll()
    log.append({"a": [entry(1)]})
    log.idle()
    one = Sealer(log.root, log.incarnation, is_live=True)
    storage = log.root.path / "storage"
    storage.joinpath("0").rename(storage / "away0")
    assert one.lag().bytes > 0, "other copies tell"
    for path in ("1", "2"):
        storage.joinpath(path).rename(storage / f"away{path}")
    assert one.lag() == JournalLag(0, unknown_files=2)
    for path in ("0", "1", "2"):
        storage.joinpath(f"away{path}").rename(storage / path)
    assert one.lag().unknown_files == 0
    assert one.seal(tail=True).entries == 2


def test_a_sealer_continues_at_its_last_commit(log: LogOnDisk) -> None:
    one = Sealer(log.root, log.incarnation, is_live=True)
    for number in range(30):
        log.append({"a": [entry(number)], "b": [entry(number)]})
        if number % 7 == 0:
            log.roll()
        one.seal(tail=True)
    log.close()
    with pytest.raises(JournalFencedError):
        one.seal(tail=True)
    seal(log, live=False)
    for ledger, entries in log.entries.items():
        assert sealed_entries(log.root, ledger) == entries


def test_many_files_and_chunks(log: LogOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks follow each other in one file, files in one pass; a ledger has one segment in each, and they tile."""
    monkeypatch.setattr(sealer, "MAX_CHUNK_BYTES", 2_000)
    monkeypatch.setattr(sealed_rows, "MAX_FILE_BYTES", 12_000)
    for number in range(60):
        log.append({"a": [entry(number)] * 3, "b": [entry(number)]} if number % 3 else {"a": [entry(number)]})
        if number % 13 == 5:
            log.roll()
    log.close()
    seal(log, live=False)
    view = log.root.store.view()
    assert len(view.all(FileRecord)) > 2
    segments = view.all(SegmentRecord)
    assert max(Counter((segment.file_id, segment.ledger_id) for segment in segments).values()) == 1
    assert max(len(segment.places) for segment in segments) > 1, "a segment continues from chunk to chunk"
    for ledger, entries in log.entries.items():
        assert sealed_entries(log.root, ledger) == entries


@pytest.mark.parametrize("seed", range(6))
def test_frames_of_all_sizes_in_chunks_of_all_sizes(log: LogOnDisk, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Entries stay in the window that was read if they are in order in it; else they are copied together."""
    chance = random.Random(seed)
    monkeypatch.setattr(sealer, "CHUNK_BYTES", chance.choice([1, 3_000, 20_000]))
    monkeypatch.setattr(sealer, "MAX_CHUNK_BYTES", 20_000)
    monkeypatch.setattr(sealer, "_MORE_BYTES", chance.choice([0, 2_000]))
    monkeypatch.setattr(journal_entries, "GROUP_BYTES", chance.choice([1, 5_000, 50_000]))
    monkeypatch.setattr(journal_entries, "RECORD_BATCH_BYTES", chance.choice([1, 5_000]))
    monkeypatch.setattr(codec_scan, "WINDOW_BYTES", chance.choice([64, 4_000]))
    own = Sealer(log.root, log.incarnation, is_live=True)
    sealed = 0
    for _ in range(5):
        for _ in range(chance.randrange(1, 12)):
            topics = chance.choice([["a"], ["a"], ["b"], ["b", "a"]])
            sizes = [chance.choice([0, 20, 300, 9_000]) for _ in range(chance.randrange(1, 6))]
            log.append({topic: [chance.randbytes(size) for size in sizes] for topic in topics})
            if chance.random() < 0.2:
                log.idle()
            if chance.random() < 0.1:
                log.roll()
        log.idle()
        own.seal(tail=chance.random() < 0.7)
    own.seal(tail=True)
    for ledger, entries in log.entries.items():
        sealed += len(entries)
        assert sealed_entries(log.root, ledger) == entries
    assert sealed == sum(segment.entries for segment in log.root.store.view().all(SegmentRecord))


def test_an_acknowledged_frame_is_read_beyond_the_end_of_a_pass(log: LogOnDisk) -> None:
    """Another copy, which was longer when the pass used it first, has shown that it is acknowledged."""
    reader = LogReader(log.incarnation, log.root.current_journal_paths, Frame)
    log.append({"a": [entry(0)]})
    reader.main_read(log.record, 0)
    reader.begin_pass()
    assert reader.next() is not None
    for number in range(1, 4):
        log.append({"a": [entry(number)]})
    assert reader.next() is None
    reader.walk.lac = 2
    assert [frame.header.number for frame in iter(reader.next, None)] == [1, 2]
    assert not reader.walk.is_stuck
    reader.close()


@pytest.mark.parametrize("lag", [1, 3, 8])
def test_a_chunk_whose_frames_are_acknowledged_late_is_sealed_at_once(
    log: LogOnDisk, monkeypatch: pytest.MonkeyPatch, lag: int
) -> None:
    """Many frames may be in flight when a frame is written, so it names one far behind as acknowledged."""
    monkeypatch.setattr(sealer, "CHUNK_BYTES", 5_000)
    monkeypatch.setattr(sealer, "MAX_CHUNK_BYTES", 5_000)
    monkeypatch.setattr(LogOnDisk, "last_frame", property(lambda log: max(-1, log._at.next_number - 1 - lag)))
    for number in range(60):
        log.append({"a": [random.Random(number).randbytes(500)]})
    chunks: list[int] = []
    add = sealed_rows.SealedFileBuilder.add

    def counted(builder: sealed_rows.SealedFileBuilder, entries: JournalEntries, *rest: Any) -> None:
        chunks.append(int(entries.counts.sum()))
        add(builder, entries, *rest)

    monkeypatch.setattr(sealed_rows.SealedFileBuilder, "add", counted)
    assert seal(log).entries == 60 - 1 - lag
    assert min(chunks[:-1]) >= 5, "no chunk was cut short"
    assert sealed_entries(log.root, log.ledger("a")) == log.entries[log.ledger("a")][: 60 - 1 - lag]


def test_a_frame_is_read_although_those_that_are_read_ahead_cannot_be(
    log: LogOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes that are read at once are those of later frames, too."""
    monkeypatch.setattr(codec_scan, "WINDOW_BYTES", 1)
    for _ in range(3):
        log.append({"a": [bytes(10_000)]})
    log.idle()
    readable = 25_000

    @dataclass(frozen=True)
    class BadDisk(OsFiles):
        def read_into(self, fd: int, offset: int, target: memoryview) -> int:
            if offset + len(target) > readable:
                raise OSError(EIO, "bad sector")
            return super().read_into(fd, offset, target)

    frames = JournalFrames(log.incarnation, log.root.current_journal_paths, 0, BadDisk())
    frames.read_ahead(1 << 20)
    for number in range(2):
        frame = frames.read(log.record)
        assert frame is not None
        assert frame.header.number == number
    frames.close()


def test_publish_times_and_counts(log: LogOnDisk) -> None:
    times = MessageMetadata(publish_time=5_000)
    log.append({"a": [batch_entry([ClientMessage(b"xy", key=b"k")] * 4, metadata=times), b"garbage"], "b": [b"?"]})
    log.close()
    seal(log, live=False)
    segments = log.root.store.view().all(SegmentRecord)
    first, second = sorted(segments, key=lambda segment: segment.rows, reverse=True)
    assert (first.rows, first.entry_rows, first.bytes) == (5, ((1, 4), (1, 1)), 4 * 3 + 7)
    assert (first.publish_min_ms, first.publish_max_ms) == (5_000, 5_000)
    assert (second.publish_min_ms, second.publish_max_ms) == (PUBLISHED_MS, PUBLISHED_MS), "what the broker noted"


def test_a_bad_copy_is_replaced_by_a_good_one(log: LogOnDisk) -> None:
    for number in range(20):
        log.append({"a": [entry(number)]})
    log.close()
    files = sorted(log.root.path.glob("storage/*/journal/*/*/frames.*"))
    files[0].write_bytes(files[0].read_bytes()[:-700])
    damaged = bytearray(files[1].read_bytes())
    damaged[2_000] ^= 1
    files[1].write_bytes(damaged)
    seal(log, live=False)
    assert sealed_entries(log.root, log.ledger("a")) == log.entries[log.ledger("a")]


def test_no_good_copy_stops_the_pass(log: LogOnDisk) -> None:
    for number in range(20):
        log.append({"a": [entry(number)]})
    log.close()
    for file in log.root.path.glob("storage/*/journal/*/*/frames.*"):
        file.write_bytes(file.read_bytes()[:-300])
    with pytest.raises(JournalUndecidedError, match=r"Frame 1\d of incarnation"):
        seal(log, live=False)
    assert log.root.store.view().all(SegmentRecord) == []


def test_a_fenced_incarnations_sealer_commits_nothing(log: LogOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had decided what to seal, and read it, before the takeover."""
    log.append({"a": [entry(0)]})
    log.idle()
    finish = sealed_rows.SealedFileBuilder.finish

    def finish_late(builder: sealed_rows.SealedFileBuilder) -> object:
        done = finish(builder)
        log.take_over()
        return done

    monkeypatch.setattr(sealed_rows.SealedFileBuilder, "finish", finish_late)
    assert seal(log).lost
    with pytest.raises(JournalFencedError):
        seal(log)
    view = log.root.store.view()
    assert view.all(SegmentRecord) == []
    assert view.all(SealRecord) == []
    assert list(log.root.path.glob("storage/*/segments/*/*")) == [], "its file is gone again"
    assert seal(log, live=False).entries == 0, "a log in recovery is not sealed"


def test_a_log_that_is_closed_under_a_pass(log: LogOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a live sealer has read are right for the closed log, too, but it may no longer commit them."""
    log.append({"a": [entry(0)]})
    log.idle()
    monkeypatch.setattr(sealer, "entries_of", _then(sealer.entries_of, log.close))
    assert seal(log).lost
    monkeypatch.undo()
    assert log.record.state is LogState.CLOSED
    seal(log, live=False)
    assert sealed_entries(log.root, log.ledger("a")) == [entry(0)]


def test_the_slower_of_two_sealers_leaves_no_file(log: LogOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        log.append({"a": [entry(number)], "b": [entry(number)]})
    log.close()
    first = Sealer(log.root, log.incarnation, is_live=False)
    second = Sealer(Root.open(log.root.path), log.incarnation, is_live=False)
    monkeypatch.setattr(sealer, "entries_of", _then(sealer.entries_of, lambda: second.seal(tail=True)))
    assert first.seal(tail=True).lost
    monkeypatch.undo()
    assert not first.seal(tail=True).lost
    view = log.root.store.view()
    assert len(view.all(FileRecord)) == 1
    assert len(list(log.root.path.glob("storage/*/segments/*/*"))) == 3
    for ledger, entries in log.entries.items():
        assert sealed_entries(log.root, ledger) == entries


def _then(function, after):  # type: ignore[no-untyped-def]
    """The function, with something that happens once behind its first call."""
    calls = Counter[str]()

    def both(*arguments):  # type: ignore[no-untyped-def]
        result = function(*arguments)
        calls["all"] += 1
        if calls["all"] == 1:
            after()
        return result

    return both


def test_a_deleted_topic_s_entries_are_passed_over(log: LogOnDisk) -> None:
    log.append({"a": [entry(0)], "b": [entry(0)]})
    log.idle()
    log.idle()
    delete_topic(log.root.store, TopicName.parse("a"))
    assert seal(log).entries == 1
    assert [segment.ledger_id for segment in log.root.store.view().all(SegmentRecord)] == [log.ledger("b")]


def test_a_topic_that_is_deleted_under_a_pass(log: LogOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append({"a": [entry(0)]})
    log.idle()
    delete = lambda: delete_topic(log.root.store, TopicName.parse("a"))  # noqa: E731
    one = Sealer(log.root, log.incarnation, is_live=True)
    one._known([log.ledger("a")])
    monkeypatch.setattr(sealer, "entries_of", _then(sealer.entries_of, delete))
    assert not one.seal(tail=True).lost
    view = log.root.store.view()
    assert view.all(SegmentRecord) == []
    assert view.all(FileRecord) == []
    assert list(log.root.path.glob("storage/*/segments/*/*")) == []
    (seal_record,) = view.all(SealRecord)
    assert seal_record.sealed_before == 1, "nothing keeps the frames"


def test_sealed_ledgers_merge_and_stay_through_collection(log: LogOnDisk) -> None:
    one = Sealer(log.root, log.incarnation, is_live=True)
    for number in range(6):
        log.append({"a": [entry(number)], "b": [entry(number)]})
        one.seal(tail=True)
    assert merge(log.root).merged_segments == 10
    collect(log.root)
    log.append({"a": [entry(6)], "b": [entry(6)]})
    log.idle()
    one.seal(tail=True)
    for ledger, entries in log.entries.items():
        assert sealed_entries(log.root, ledger) == entries


def test_readers_see_the_messages(log: LogOnDisk) -> None:
    log.append({"a": [batch_entry([ClientMessage(b"1"), ClientMessage(b"2")], Codec.LZ4), entry(3)]})
    log.close()
    seal(log, live=False)
    topic = catalog.require_topic(log.root.store.view(), TopicName.parse("a"))
    assert chain.read_limit(log.root.store.view(), topic.topic_id) > EARLIEST
    assert messages.values(log.root, "a") == [b"1", b"2", b"value 3"]


def test_a_pass_does_not_follow_a_writer_that_is_as_fast(
    root: Root, log: LogOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append({"a": [entry(0)]})
    log.idle()
    writer = WriterAsFast(monkeypatch, log, entry)
    sealer = Sealer(root, log.incarnation, is_live=True)
    sealer.seal(tail=True)
    assert len(sealed_entries(root, log.ledger("a"))) >= 1
    assert writer.written < 10
    while writer.written < WriterAsFast.MOST:
        sealer.seal(tail=True)
    sealer.seal(tail=True)
    assert sealed_entries(root, log.ledger("a")) == log.entries[log.ledger("a")][:-1], "the last one is not proved"
    sealer.close()
