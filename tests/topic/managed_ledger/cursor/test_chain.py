"""Steps along a chain of ledgers."""

from __future__ import annotations

import pytest

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain, LedgerExtent


def chain() -> LedgerChain:
    """Trimmed in front, an empty ledger, an open one, and an attached one that waits behind it."""
    return LedgerChain(
        LedgerExtent(LedgerId(ledger), end, ended, first)
        for ledger, end, ended, first in ((3, 10, True, 4), (5, 0, True, 0), (8, 2, False, 0), (9, 7, True, 0))
    )


@pytest.mark.parametrize(
    ("place", "settled"),
    [
        ((0, 0), (3, 4)),  # earliest
        ((3, 2), (3, 4)),  # trimmed
        ((3, 9), (3, 9)),
        ((3, 10), (8, 0)),  # over the end and the empty ledger
        ((4, 7), (8, 0)),  # a ledger that is gone
        ((5, 0), (8, 0)),
        ((8, 2), (8, 2)),  # what comes next
        ((9, 3), (9, 3)),  # behind the open ledger: as it is
    ],
)
def test_equal_places_have_one_form(place: tuple[int, int], settled: tuple[int, int]) -> None:
    assert chain().normalize_position(*place) == settled


def test_the_visible_end_is_that_of_the_open_ledger_and_grows_with_it() -> None:
    found = chain()
    assert found.end == Position(LedgerId(8), EntryId(2))
    assert [found.entries_from(*place) for place in ((0, 0), (3, 9), (8, 1), (8, 2), (9, 0))] == [8, 3, 1, 0, 0]
    assert [found.holds_entry(*place) for place in ((3, 3), (3, 4), (8, 1), (8, 2), (9, 0))] == [0, 1, 1, 0, 0]
    found.grow_ledger(LedgerId(8), 5)
    found.grow_ledger(LedgerId(8), 4)
    assert (found.end.entry, found.entries_from(8, 1), found.readable_end(8), found.readable_end(9)) == (5, 4, 5, 0)
    for place in ((9, 9), (99, 0)):
        assert found.clamp_position(Position(LedgerId(place[0]), EntryId(place[1]))) == found.end


def test_an_empty_chain_leaves_every_place_unchanged() -> None:
    empty = LedgerChain()
    assert (empty.end, empty.normalize_position(4, 2), empty.entries_from(0, 0)) == (EARLIEST, (4, 2), 0)
    assert empty.clamp_position(Position(LedgerId(4), EntryId(2))) == EARLIEST


def test_impossible_values_are_refused() -> None:
    for ledger, end in ((3, 11), (9, 8)):
        with pytest.raises(InvalidArgumentError, match="only the topic's last ledger grows"):
            chain().grow_ledger(LedgerId(ledger), end)
    with pytest.raises(InvalidArgumentError, match="order of their ids"):
        LedgerChain([LedgerExtent(LedgerId(2), 1, True), LedgerExtent(LedgerId(2), 1, True)])
    with pytest.raises(InvalidArgumentError, match="cannot have the entries"):
        LedgerExtent(LedgerId(2), 1, True, first=2)


@pytest.mark.parametrize(
    ("place", "before"),
    [
        ((0, 0), None),
        ((3, 4), None),
        ((3, 5), (3, 4)),
        ((3, 99), (3, 9)),
        ((4, 0), (3, 9)),
        ((8, 0), (3, 9)),
        ((8, 2), (8, 1)),
        ((9, 3), (8, 1)),
    ],
)
def test_the_last_entry_before_a_place(place: tuple[int, int], before: tuple[int, int] | None) -> None:
    found = chain().entry_before(Position(LedgerId(place[0]), EntryId(place[1])))
    assert (found and (found.ledger, found.entry)) == before


def test_a_chain_starts_at_its_first_present_or_future_entry() -> None:
    assert chain().start == Position(LedgerId(3), EntryId(4))
    assert LedgerChain().start == EARLIEST
    assert LedgerChain([LedgerExtent(LedgerId(2), 0, ended=False)]).start == Position(LedgerId(2), EntryId(0))
