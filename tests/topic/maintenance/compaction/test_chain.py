"""The chain that compacted readers see, against plain lists; and cursors that go along it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position, TopicId
from pulsar_on_spark.topic.maintenance.compaction.chain import CompactedChain
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain, LedgerExtent
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import Cursor
from pulsar_on_spark.topic.managed_ledger.cursor.record import NO_RECORD, CursorRecord

Place = tuple[int, int]


def position(place: Place) -> Position:
    return Position(LedgerId(place[0]), EntryId(place[1]))


@st.composite
def chains(draw: st.DrawFn) -> tuple[CompactedChain, list[Place], Place]:
    """A chain, the entries that are there, in order, and its end."""
    sizes = draw(st.lists(st.integers(0, 6), min_size=1, max_size=4))
    ledgers = [3 * number + 2 for number in range(len(sizes))]
    everything = [(ledger, entry) for ledger, size in zip(ledgers, sizes, strict=True) for entry in range(size)]
    at = draw(st.integers(0, len(everything)))
    horizon = everything[at] if at < len(everything) else (ledgers[-1], sizes[-1])
    below = [place for place in everything if place < horizon]
    kept = draw(st.sets(st.sampled_from(below))) if below else set()
    index: dict[LedgerId, BitMap64] = {}
    for ledger, entry in sorted(kept):
        index.setdefault(LedgerId(ledger), BitMap64()).add(entry)
    trimmed = draw(st.integers(0, len([ledger for ledger in ledgers[:-1] if ledger < horizon[0]])))
    extents = [
        LedgerExtent(LedgerId(ledger), size, ended=ledger != ledgers[-1])
        for ledger, size in list(zip(ledgers, sizes, strict=True))[trimmed:]
    ]
    there = sorted(kept) + [place for place in everything if place >= horizon]
    return CompactedChain(LedgerChain(extents), position(horizon), index), there, (ledgers[-1], sizes[-1])


PLACES = st.tuples(st.integers(0, 13), st.integers(0, 7))


@given(chains(), PLACES)
def test_places_are_those_of_a_list(made: tuple[CompactedChain, list[Place], Place], place: Place) -> None:
    chain, there, end = made
    place = min(place, end)
    assert chain.end == position(end)
    following = [each for each in there if each >= place]
    assert chain.normalize_position(*place) == (following[0] if following else end)
    assert chain.clamp_position(position(place)) == position(following[0] if following else end)
    assert chain.start == position(there[0] if there else end)
    before = [each for each in there if each < place]
    assert chain.entry_before(position(place)) == (position(before[-1]) if before else None)
    assert chain.entries_from(*place) == len(following)
    runs = [(place[0], entry) for first, stop in chain.runs(*place) for entry in range(first, stop)]
    assert runs == [each for each in following if each[0] == place[0]]
    assert all(chain.holds_entry(*each) for each in there)


@given(chains(), st.data())
def test_a_cursor_delivers_the_remaining_messages_and_reaches_the_end(
    made: tuple[CompactedChain, list[Place], Place], data: st.DataObject
) -> None:
    chain, there, end = made
    cursor = Cursor(chain, CursorRecord("snapshot", TopicId("t"), "s", 1, NO_RECORD, EARLIEST))
    left = list(there)
    at = EARLIEST
    delivered: list[Place] = []
    while True:
        found = cursor.deliverable(at, data.draw(st.integers(1, 4)))
        if not found.ranges:
            break
        delivered += [(each.ledger, entry) for each in found.ranges for entry in range(each.first, each.end)]
        at = found.next
    assert delivered == there
    for place in data.draw(st.permutations(there)):
        if data.draw(st.booleans()):
            cursor.acknowledge(LedgerId(place[0]), EntryId(place[1]))
            left = [each for each in left if each != place]
        else:
            cursor.acknowledge_through(LedgerId(place[0]), EntryId(place[1]))
            left = [each for each in left if each > place]
        assert cursor.backlog_entries == len(left)
        assert cursor.mark_delete == position(left[0] if left else end)
        again = cursor.deliverable(EARLIEST, 100)
        assert [(x.ledger, entry) for x in again.ranges for entry in range(x.first, x.end)] == left
