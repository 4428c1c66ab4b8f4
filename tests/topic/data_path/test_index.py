"""Unsealed segments tile what is readable behind what is sealed, however frames, files and limits fall."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.ledger.journal.frame_header import ChainPoint, ScanPosition
from pulsar_on_spark.ledger.journal.frame_reader import JournalPlace
from pulsar_on_spark.ledger.journal.log import Copy, Fragment, LogRecord, LogState
from pulsar_on_spark.ledger.journal.log_index import CHUNK_FRAMES, GapError, LogIndex
from pulsar_on_spark.metadata.records import FileRecord, LedgerRecord, SegmentRecord
from pulsar_on_spark.metadata.state import State, View, encode
from pulsar_on_spark.model.ids import EARLIEST, EntryId, IncarnationId, LedgerId, PathId, Position
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.chain.steps import count_waiting
from pulsar_on_spark.topic.managed_ledger.chain.tail_view import TailView, TopicTail, UnsealedSegment
from pulsar_on_spark.topic.managed_ledger.chain.unsealed import IndexedRun, unsealed_segment

Index: TypeAlias = LogIndex[IndexedRun, UnsealedSegment]
T = "t" * 32
LEDGER = 7


def files(*firsts: int) -> LogRecord:
    """A log whose fragments begin at these frames."""
    fragments = tuple(Fragment(first, (Copy(PathId(0), str(first)), Copy(PathId(1), str(first)))) for first in firsts)
    return LogRecord(LogState.OPEN, 2, 1, fragments)


def run(frame: int, first: int, entries: int, rows: int = 1) -> IndexedRun:
    position = ScanPosition(100 * frame, ChainPoint(frame, frame))
    return IndexedRun(frame, first, first + entries, 10 * entries, ((entries, rows),), Copy(PathId(0), "0"), position)


def index_of(*runs: IndexedRun) -> Index:
    index: Index = LogIndex()
    assert index.select_ledgers([LEDGER])
    for each in runs:
        index.add(LEDGER, each)
    return index


def tail_of(
    index: Index, sealed: int, record: LogRecord, limit: int, *, entries: int | None = None, strict: bool = True
) -> tuple[UnsealedSegment, ...]:
    def make(first: int, fragment: Fragment | None, runs: list[IndexedRun]) -> UnsealedSegment:
        return unsealed_segment(IncarnationId("i"), T, LEDGER, first, fragment, runs)

    found, end = index.readable(LEDGER, sealed, record, limit, make, entries=entries, strict=strict)
    assert end == (found[-1].first_entry + found[-1].entries if found else sealed)
    return found


def frames_of(segment: UnsealedSegment) -> list[tuple[int, int]]:
    """(frame, entries of it) of each batch."""
    return list(zip(segment.frames.frames, segment.batch_entries, strict=True))


@given(st.data())
def test_segments_tile_the_readable_entries(data: st.DataObject) -> None:
    runs: list[IndexedRun] = []
    frame = entry = 0
    for _ in range(data.draw(st.integers(1, 12))):
        frame += data.draw(st.integers(1, CHUNK_FRAMES))
        entries = data.draw(st.integers(1, 5))
        runs.append(run(frame, entry, entries, data.draw(st.integers(1, 3))))
        entry += entries
    index = index_of(*runs)
    firsts = sorted({0, *data.draw(st.lists(st.integers(1, frame + 1), max_size=4))})
    for sealed in sorted(data.draw(st.lists(st.integers(0, entry), min_size=1, max_size=3))):
        limit = data.draw(st.integers(-1, frame))
        record = files(*firsts)
        found = tail_of(index, sealed, record, limit)
        end = max([each.end for each in runs if each.frame <= limit], default=0)
        assert [e for one in found for e in range(one.first_entry, one.first_entry + one.entries)] == list(
            range(sealed, end)
        )
        assert sum(one.rows for one in found) == sum(
            each.entry_rows[0][1] for each in runs for e in range(each.first, each.end) if sealed <= e < end
        )
        for one in found:
            fragments = {chain_of(record, number) for number in one.frames.frames}
            assert len(fragments) == 1, "one set of files"
            assert one.frames.copies == fragments.pop()
            assert sum(one.batch_entries) == one.entries


def chain_of(record: LogRecord, frame: int) -> tuple[Copy, ...]:
    return [fragment.copies for fragment in record.fragments if (fragment.first or 0) <= frame][-1]


def test_a_gap_is_an_error_and_later_entries_are_kept_apart() -> None:
    index = index_of(run(0, 0, 3), run(4, 5, 2))
    with pytest.raises(GapError, match="entries 7:3 to 7:4"):
        tail_of(index, 0, files(0), 9)
    assert [frames_of(each) for each in tail_of(index, 5, files(0), 9)] == [[(4, 2)]]
    gone = tail_of(index, 0, files(0), 9, strict=False)
    assert [frames_of(each) for each in gone] == [[(0, 3)], [(4, 2)]]
    with pytest.raises(GapError, match="entries 7:0 to 7:1"):
        tail_of(index_of(run(0, 2, 3)), 0, files(0), 9)


def test_a_closed_ledger_without_its_last_entries_has_a_gap() -> None:
    index = index_of(run(0, 0, 3), run(1, 3, 2))
    assert len(tail_of(index, 0, files(0), 9, entries=5)) == 1
    with pytest.raises(GapError, match="entries 7:5 to 7:5"):
        tail_of(index, 0, files(0), 9, entries=6)
    with pytest.raises(GapError, match="entries 7:3 to 7:4"):
        tail_of(index, 0, files(0), 0, entries=5)


def test_stretches_are_reused_while_nothing_changes() -> None:
    index = index_of(run(0, 0, 3), run(CHUNK_FRAMES, 3, 2), run(CHUNK_FRAMES + 1, 5, 1))
    before = tail_of(index, 0, files(0), CHUNK_FRAMES)
    after = tail_of(index, 0, files(0), CHUNK_FRAMES + 1)
    assert before[0] is after[0]
    assert [frames_of(each) for each in after[1:]] == [[(CHUNK_FRAMES, 2), (CHUNK_FRAMES + 1, 1)]]


def test_a_ledger_that_is_wanted_late_is_not_missed() -> None:
    index: Index = LogIndex()
    assert index.select_ledgers([1])
    assert not index.is_wanted(2)
    assert index.select_ledgers([1, 3])
    assert not index.select_ledgers([1, 2])


# -- the view ----------------------------------------------------------------------------------------------------------


def sealed(ledger: int, first: int, entries: int) -> SegmentRecord:
    return SegmentRecord(
        topic_id=T, ledger_id=ledger, first_entry=first, entries=entries, rows=entries, bytes=entries,
        file_id=f"f{ledger}-{first}", first_batch=0, batch_entries=(entries,), entry_rows=((entries, 1),),
        entry_offset=0, publish_min_ms=0, publish_max_ms=0,
    )  # fmt: skip


def test_readers_of_a_view_with_a_tail() -> None:
    """Attached ledger 3, ledger 7 half sealed and closed by force, attached ledger 9."""
    segments = [sealed(3, 0, 4), sealed(7, 0, 2), sealed(9, 0, 5)]
    others = [FileRecord(file_id=each.file_id, write_id="w", copies=(0,), length=1, batches=1) for each in segments]
    now = datetime.now(UTC)
    ledgers = [
        LedgerRecord(topic_id=T, ledger_id=n, incarnation="i" * (n == 7) or None, created_at=now) for n in (3, 7, 9)
    ]
    state = State()
    state.apply(encode(((each, False) for each in (*segments, *others, *ledgers)), 1, "token", ("key",)))
    base = View(state, 1)
    unsealed = tail_of(index_of(run(0, 0, 2), run(1, 2, 3)), 2, files(0), 9)

    assert chain.read_limit(base, T) == Position(LedgerId(7), EntryId(2))
    opened = TailView.over(base, {T: TopicTail(unsealed)})
    assert chain.read_limit(opened, T) == Position(LedgerId(7), EntryId(5))
    assert chain.readable_end(opened, T, 7) == 5
    assert opened.all(SegmentRecord) == base.all(SegmentRecord), "only of a topic"
    for first in range(6):
        start = Position(LedgerId(7), EntryId(first))
        plan = chain.plan_range(opened, "t", T, -1, start, Position(LedgerId(7), EntryId(5)))
        assert not plan.losses
        assert plan.rows == 5 - first
        assert all(slice_.by_broker for slice_ in plan.slices)
        assert isinstance(plan.slices[-1].file, JournalPlace) if first < 5 else not plan.slices
    whole = chain.plan_range(opened, "t", T, -1, EARLIEST, Position(LedgerId(9), EntryId(5)))
    assert [(s.segment.ledger_id, s.first, s.end) for s in whole.slices] == [(3, 0, 4), (7, 0, 2), (7, 2, 5), (9, 0, 5)]
    assert count_waiting(opened, T, EARLIEST, Position(LedgerId(9), EntryId(5))).rows == 14
