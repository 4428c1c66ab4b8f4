from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pulsar_on_spark.datasource.options import TopicSelection
from pulsar_on_spark.datasource.stream_plan import (
    Budget,
    backlogs,
    batch_pieces,
    cut_off,
    existing_parts,
    part_of,
    progress,
    unread,
)
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position, TopicId
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.chain.steps import count_waiting
from pulsar_on_spark.topic.managed_ledger.subscription.offsets import SlotRange, StreamOffset, TopicOffset
from tests.kit.messages import write

ENTRIES = 12
ALL = Budget(None, None)
NAME = "persistent://public/default/t"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    made = Root.create(tmp_path_factory.mktemp("plan") / "root")
    made.create_topic("t")
    made.create_topic("p", 2)
    made.create_topic("several")
    for _ in range(ENTRIES):
        write(made, "t", [b"0123456789"] * 5)
    for rows in (2_500, 1, 1_001):
        write(made, "several", [b"0123456789"] * rows)  # entries of 1,000 and what is left
    return made


def at(entry: int) -> Position:
    return Position(LedgerId(1), EntryId(entry)) if entry else EARLIEST


bounds = st.tuples(st.integers(0, ENTRIES), st.integers(0, ENTRIES)).map(sorted)
slot_bounds = st.dictionaries(st.integers(0, 63), bounds, max_size=8)


@given(slot_bounds)
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_slots_get_exactly_their_entries(root: Root, given_bounds: dict[int, list[int]]):
    view = root.store.view()
    (part,) = existing_parts(view, TopicSelection(("t",)))
    ranges = [SlotRange((slot,), 1, at(start), at(end)) for slot, (start, end) in given_bounds.items()]
    pieces, losses = batch_pieces(view, part, ranges)
    assert not losses
    places = [(entry, piece.slots) for piece in pieces for entry in range(piece.slice.first, piece.slice.end)]
    assert len({entry for entry, _ in places}) == len(places)
    assert [entry for entry, _ in places] == sorted(entry for entry, _ in places)
    found = {(entry, slot) for entry, slots in places for slot in slots or ()}
    assert found == {(entry, slot) for slot, (start, end) in given_bounds.items() for entry in range(start, end)}


@pytest.mark.parametrize(
    ("start", "is_cut_off"),
    [
        (Position(LedgerId(1), EntryId(ENTRIES)), False),
        (Position(LedgerId(1), EntryId(ENTRIES + 1)), True),
        (Position(LedgerId(2), EntryId(0)), False),  # seen while the ledger was open; it was closed without an entry
        (Position(LedgerId(2), EntryId(1)), True),
    ],
)
def test_a_topic_is_cut_off_where_an_entry_that_was_read_is_gone(root: Root, start: Position, *, is_cut_off: bool):
    view = root.store.view()
    parts = existing_parts(view, TopicSelection(("t",)))
    reading = {NAME: TopicOffset(TopicId(parts[0].topic_id), (SlotRange("all", 0, start, start),))}
    assert bool(cut_off(view, parts, reading)) == is_cut_off


def test_a_whole_topic_is_read_without_a_filter(root: Root):
    view = root.store.view()
    (part,) = existing_parts(view, TopicSelection(("t",)))
    (found,), _ = batch_pieces(view, part, [SlotRange("all", 0, at(3), at(4))])
    assert (found.slice.first, found.slice.end, found.slots) == (3, 4, None)


def test_parts_are_those_that_exist_now(root: Root):
    view = root.store.view()
    assert [part.name for part in existing_parts(view, TopicSelection(("t", "nothing")))] == [NAME]
    partitions = existing_parts(view, TopicSelection(pattern="p"))
    assert [part.partition for part in partitions] == [0, 1]
    for part in partitions:
        assert part_of(view, part.name, TopicId(part.topic_id)) == part
    assert part_of(view, NAME, TopicId("0" * 32)) is None
    assert part_of(view, "persistent://public/default/nothing", TopicId("0" * 32)) is None


def test_targets_bound_a_backlog(root: Root):
    view = root.store.view()
    (part,) = existing_parts(view, TopicSelection(("t",)))
    reading = {NAME: unread(part, at(2))}
    assert [found.end for found in backlogs(view, [part], reading, None, ALL)] == [at(ENTRIES)]
    assert [found.end for found in backlogs(view, [part], reading, {NAME: at(5)}, ALL)] == [at(5)]
    assert [found.end for found in backlogs(view, [part], reading, {NAME: at(1)}, ALL)] == [at(2)]  # never backwards
    assert [found.end for found in backlogs(view, [part], reading, {}, ALL)] == [at(2)]
    assert backlogs(view, [part], {NAME: TopicOffset(TopicId(part.topic_id))}, None, ALL) == []


@given(bounds, st.one_of(st.none(), st.integers(1, 70)), st.one_of(st.none(), st.integers(1, 700)))
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_a_backlog_is_counted_completely_and_planned_for_one_batch(
    root: Root, given_bounds: list[int], rows: int | None, size: int | None
):
    view = root.store.view()
    (part,) = existing_parts(view, TopicSelection(("t",)))
    start, end = given_bounds
    (found,) = backlogs(view, [part], {NAME: unread(part, at(start))}, {NAME: at(end)}, Budget(rows, size))
    assert found.rows == 5 * (end - start)
    if rows is None and size is None:
        assert found.enough == at(end)
        assert not found.slices
    else:
        planned = sum(slice_.rows for slice_ in found.slices)
        least = min(rows or found.rows, -(-(size or 10 * found.rows) // 10), found.rows)
        assert least <= planned <= least + 5
        assert planned == found.rows or found.enough < at(end)


@given(st.tuples(st.integers(0, 6), st.integers(0, 6)).map(sorted))
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_counting_a_range_equals_planning_it(root: Root, given_bounds: list[int]):
    view = root.store.view()
    (part,) = existing_parts(view, TopicSelection(("several",)))
    ledger = chain.read_limit(view, part.topic_id).ledger
    start, end = (Position(ledger, EntryId(entry)) for entry in given_bounds)
    plan = chain.plan_range(view, part.name, part.topic_id, part.partition, start, end)
    counted = count_waiting(view, part.topic_id, start, end)
    assert (counted.rows, counted.bytes) == (plan.rows, plan.bytes)


def test_progress_counts_a_slots_share(root: Root):
    view = root.store.view()
    (part,) = existing_parts(view, TopicSelection(("t",)))
    half, quarter = tuple(range(32)), tuple(range(32, 48))
    ranges = (SlotRange(half, 1, at(0), at(2)), SlotRange(quarter, 1, at(0), at(4)))
    found = progress(view, StreamOffset("c", {NAME: TopicOffset(TopicId(part.topic_id), ranges)}))
    assert found == {"backlogMessages": 25 + 10, "backlogBytes": 250 + 100, "topics": {NAME: [1, ENTRIES]}}


def test_a_topic_that_is_named_with_its_partition_is_read_once(root: Root):
    parts = existing_parts(root.store.view(), TopicSelection(("p", "p-partition-0", "t", "t")))
    assert [part.name.rpartition("/")[2] for part in parts] == ["p-partition-0", "p-partition-1", "t"]
