"""The entries between two positions of a topic, and the length of one step."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.metadata.records import (
    FileRecord,
    IncarnationRecord,
    LedgerRecord,
    Record,
    SegmentRecord,
    TrimRecord,
)
from pulsar_on_spark.metadata.state import State, View, encode
from pulsar_on_spark.model.errors import DataLossError
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.chain.slices import SliceBatch
from pulsar_on_spark.topic.managed_ledger.chain.steps import advance

TOPIC = "persistent://public/default/t"
T = "t" * 32


def at(ledger: int, entry: int) -> Position:
    return Position(LedgerId(ledger), EntryId(entry))


def segment(ledger: int, first: int, batches: tuple[int, ...], rows_each: int = 2) -> SegmentRecord:
    entries = sum(batches)
    return SegmentRecord(
        topic_id=T,
        ledger_id=ledger,
        first_entry=first,
        entries=entries,
        rows=entries * rows_each,
        bytes=entries * rows_each * 10,
        file_id=f"f{ledger}-{first}",
        first_batch=5,
        batch_entries=batches,
        entry_rows=((entries, rows_each),),
        entry_offset=first,
        publish_min_ms=0,
        publish_max_ms=0,
    )


def view_of(*segments: SegmentRecord, ledgers: tuple[LedgerRecord, ...] = (), others: tuple[Record, ...] = ()) -> View:
    known = {one.ledger_id for one in ledgers}
    attached = tuple(ledger(one) for one in sorted({s.ledger_id for s in segments}) if one not in known)
    files = [FileRecord(file_id=s.file_id, write_id="w", copies=(0,), length=1, batches=9) for s in segments]
    state = State()
    rows: Iterator[tuple[Record, bool]] = ((each, False) for each in (*segments, *ledgers, *attached, *files, *others))
    state.apply(encode(rows, 1, "token", ("key",)))
    return View(state, 1)


def ledger(number: int, incarnation: str | None = None, entries: int | None = None) -> LedgerRecord:
    return LedgerRecord(
        topic_id=T,
        ledger_id=number,
        incarnation=incarnation,
        closed=entries is not None,
        entries=entries,
        created_at=datetime.now(UTC),
    )


def plan(view: View, start: Position, end: Position) -> chain.RangePlan:
    return chain.plan_range(view, TOPIC, T, -1, start, end)


def step(
    view: View, start: Position, max_rows: int | None, max_bytes: int | None, *, at_least_one: bool = True
) -> Position:
    limit = chain.read_limit(view, T)
    slices = plan(view, start, limit).slices
    return advance(slices, start, limit, max_rows, max_bytes, at_least_one=at_least_one)


TWO_LEDGERS = (segment(3, 0, (2, 3)), segment(3, 5, (4,)), segment(7, 0, (1, 1)))


def test_a_range_over_segments_and_ledgers() -> None:
    view = view_of(*TWO_LEDGERS)
    found = plan(view, at(3, 4), at(7, 1))
    assert [(s.segment.ledger_id, s.first, s.end) for s in found.slices] == [(3, 4, 5), (3, 5, 9), (7, 0, 1)]
    assert (found.rows, found.bytes, found.losses) == (12, 120, ())
    assert chain.read_limit(view, T) == at(7, 2)
    whole = plan(view, EARLIEST, chain.read_limit(view, T))
    assert (whole.rows, whole.losses) == (22, ())


@given(st.data())
def test_adjacent_ranges_add_up(data: st.DataObject) -> None:
    """However a chain is cut, each entry is in exactly one range, and rows and slices say the same."""
    numbers = count(1)
    segments = []
    for _ in range(data.draw(st.integers(1, 3))):
        number, first = next(numbers), 0
        for _ in range(data.draw(st.integers(1, 4))):
            segments.append(
                segment(number, first, tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))))
            )
            first += segments[-1].entries
    view = view_of(*segments)
    entries = [(s.ledger_id, e) for s in segments for e in range(s.first_entry, s.first_entry + s.entries)]
    cuts = sorted(data.draw(st.sets(st.sampled_from(entries))))
    edges = [EARLIEST, *(at(*cut) for cut in cuts), chain.read_limit(view, T)]
    plans = [plan(view, start, end) for start, end in pairwise(edges)]
    found = [(s.segment.ledger_id, e) for p in plans for s in p.slices for e in range(s.first, s.end)]
    assert found == entries
    assert not any(p.losses for p in plans)
    assert sum(p.rows for p in plans) == 2 * len(entries)


def test_a_range_that_starts_at_the_end_of_a_ledger() -> None:
    found = plan(view_of(*TWO_LEDGERS), at(3, 9), at(7, 2))
    assert [(s.segment.ledger_id, s.first, s.end) for s in found.slices] == [(7, 0, 2)]
    assert found.losses == ()


def test_a_slice_knows_its_batches() -> None:
    (one,) = plan(view_of(segment(3, 10, (2, 3, 4))), at(3, 11), at(3, 15)).slices
    assert one.batches() == [SliceBatch(5, 10, 12, (2, 4)), SliceBatch(6, 12, 15)]
    assert (one.rows, one.start_position) == (8, at(3, 11))
    assert one.part(14, 99).batches() == [SliceBatch(6, 12, 15, (4, 6))]


def test_a_slice_of_shared_batches_knows_its_rows() -> None:
    runs = ((2, 1), (1, 5), (3, 2), (3, 4))
    shared = segment(3, 10, (2, 3, 4)).model_copy(
        update={"places": ((7, 100), (9, 0), (12, 30)), "entry_rows": runs, "rows": 25}
    )
    (one,) = plan(view_of(shared), at(3, 11), at(3, 18)).slices
    assert one.batches() == [
        SliceBatch(7, 10, 12, (101, 102)),
        SliceBatch(9, 12, 15, (0, 9)),
        SliceBatch(12, 15, 19, (30, 40)),
    ]
    assert one.rows == 20
    assert one.part(13, 14).batches() == [SliceBatch(9, 12, 15, (5, 7))]


@pytest.mark.parametrize(
    ("segments", "start", "end"),
    [
        ((segment(3, 0, (5,)), segment(3, 7, (2,))), EARLIEST, at(3, 9)),  # a hole
        ((segment(3, 4, (5,)),), at(3, 0), at(3, 9)),  # its beginning is gone
        ((segment(3, 4, (5,)),), EARLIEST, at(3, 9)),
        ((segment(3, 0, (5,)),), EARLIEST, at(3, 9)),  # its end is gone
        ((segment(7, 0, (5,)),), at(3, 2), at(7, 5)),  # the start's ledger is gone
        ((segment(7, 2, (5,)),), at(3, 2), at(7, 5)),
        ((), at(3, 0), at(3, 5)),
    ],
)
def test_missing_entries_are_a_loss_and_never_a_skip(
    segments: tuple[SegmentRecord, ...], start: Position, end: Position
) -> None:
    assert plan(view_of(*segments), start, end).losses


def test_trimmed_entries_are_no_loss_for_a_reader_from_the_earliest() -> None:
    trimmed = TrimRecord(topic_id=T, trimmed_ledger=3, trimmed_entry=4)
    kept = segment(3, 4, (5,))
    found = plan(view_of(kept, others=(trimmed,)), EARLIEST, at(3, 9))
    assert [(s.first, s.end) for s in found.slices] == [(4, 9)]
    assert found.losses == ()
    assert plan(view_of(segment(3, 6, (3,)), others=(trimmed,)), EARLIEST, at(3, 9)).losses, "these two are not trimmed"
    assert plan(view_of(segment(7, 0, (5,)), others=(trimmed,)), EARLIEST, at(7, 5)).losses == ()
    assert plan(view_of(kept, others=(trimmed,)), EARLIEST, at(3, 2)).losses, "the range had something once"


def test_the_begin_of_an_empty_ledger_is_the_end_of_the_ledger_before() -> None:
    """A reader may have seen it open, and it was closed without an entry, and trimmed."""
    closed = ledger(5, "broker-1", entries=0)
    ended = IncarnationRecord(incarnation="broker-1", state="CLOSED")
    for view in (view_of(*TWO_LEDGERS, ledgers=(closed,), others=(ended,)), view_of(*TWO_LEDGERS)):
        found = plan(view, at(5, 0), at(7, 2))
        assert [(s.segment.ledger_id, s.first, s.end) for s in found.slices] == [(7, 0, 2)]
        assert found.losses == ()
    assert plan(view_of(*TWO_LEDGERS), at(5, 1), at(7, 2)).losses, "of this one an entry was read"


def test_no_reader_passes_an_open_ledger() -> None:
    opened = ledger(5, "broker-1")
    segments = (segment(3, 0, (2,)), segment(5, 0, (4,)), segment(9, 0, (1,)))
    running = IncarnationRecord(incarnation="broker-1", state="OPEN")
    ended = IncarnationRecord(incarnation="broker-1", state="CLOSED")
    closed, longer = ledger(5, "broker-1", entries=4), ledger(5, "broker-1", entries=6)

    assert chain.read_limit(view_of(*segments, ledgers=(opened,), others=(running,)), T) == at(5, 4)
    assert chain.read_limit(view_of(*segments, ledgers=(opened,)), T) == at(5, 4)
    assert chain.read_limit(view_of(segments[0], segments[2], ledgers=(opened,)), T) == at(5, 0)
    assert chain.read_limit(view_of(*segments, ledgers=(closed,), others=(running,)), T) == at(9, 1)
    # A reader that does not read the journal does not skip the entries that only it has.
    assert chain.read_limit(view_of(*segments, ledgers=(opened,), others=(ended,)), T) == at(5, 4)
    assert chain.read_limit(view_of(*segments, ledgers=(longer,), others=(ended,)), T) == at(5, 4)
    assert chain.read_limit(view_of(), T) == EARLIEST


def test_positions_must_lie_in_the_topic() -> None:
    view = view_of(*TWO_LEDGERS)
    for inside in (EARLIEST, at(3, 0), at(3, 9), at(7, 2)):
        chain.require_ledger(view, TOPIC, T, inside)
    for outside in (at(3, 10), at(4, 0), at(7, 3), at(99, 0)):
        with pytest.raises(DataLossError, match="outside the topic"):
            chain.require_ledger(view, TOPIC, T, outside)


@pytest.mark.parametrize(
    ("max_rows", "max_bytes", "end"),
    [
        (None, None, at(7, 2)),
        (1, None, at(3, 1)),  # at least one entry
        (2, None, at(3, 1)),
        (3, None, at(3, 1)),
        (4, None, at(3, 2)),
        (18, None, at(3, 9)),
        (19, None, at(3, 9)),
        (20, None, at(7, 1)),
        (None, 1, at(3, 1)),
        (None, 40, at(3, 2)),
        (10, 40, at(3, 2)),
        (1_000, 1_000_000, at(7, 2)),
    ],
)
def test_how_far_a_step_goes(max_rows: int | None, max_bytes: int | None, end: Position) -> None:
    view = view_of(*TWO_LEDGERS)
    assert step(view, EARLIEST, max_rows, max_bytes) == end


def test_a_step_may_be_empty() -> None:
    view = view_of(*TWO_LEDGERS)
    assert step(view, at(3, 4), 1, None, at_least_one=False) == at(3, 4)
    assert step(view, at(3, 4), 3, None, at_least_one=False) == at(3, 5)


@given(st.integers(1, 40), st.integers(1, 400))
def test_steps_reach_the_end_and_never_exceed_a_limit(max_rows: int, max_bytes: int) -> None:
    view = view_of(*TWO_LEDGERS)
    position, limit, steps = EARLIEST, chain.read_limit(view, T), 0
    while position < limit:
        ahead = plan(view, position, limit)
        assert not ahead.losses
        reached = step(view, position, max_rows, max_bytes)
        assert position < reached <= limit
        taken = plan(view, position, reached)
        entries = sum(s.end - s.first for s in taken.slices)
        assert entries == 1 or (taken.rows <= max_rows and taken.bytes <= max_bytes)
        position, steps = reached, steps + 1
    assert steps <= 11
