"""The ledgers of a topic and their readable entries as plain numbers, for cursors that move from ledger to ledger.

All cursors of a topic share one `LedgerChain`. Entries that become readable in the last ledger change that object. If a
ledger is opened, closed, attached or trimmed, a new object replaces it in every cursor (`Cursor.apply_chain`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position


@dataclass(frozen=True, slots=True)
class LedgerExtent:
    """The existing entries [first, end) of a ledger.

    Attributes:
        ledger: The ledger.
        end: The id after the last readable entry.
        ended: True if no entries can be added: a broker's ledger that is closed, or an attached ledger that is not the
            chain's last.
        first: The first entry that is not trimmed.
    """

    ledger: LedgerId
    end: int
    ended: bool
    first: int = 0

    def __post_init__(self) -> None:
        if not (self.ledger > 0 and 0 <= self.first <= self.end):
            raise InvalidArgumentError(
                f"Ledger {self.ledger} cannot have the entries [{self.first}, {self.end}): give a positive ledger id, "
                "and an end that is not before the first entry."
            )


class LedgerChain:
    """The ledgers of a topic, in the order of their ids, up to the first that may still get entries (the visible ones).

    Args:
        extents: The ledgers, by ascending id. Those after the first ledger that has not ended are ignored.

    Raises:
        InvalidArgumentError: the ids do not ascend.
    """

    __slots__ = ("_before", "_ends", "_extents", "_index", "_ledgers")

    def __init__(self, extents: Iterable[LedgerExtent] = ()) -> None:
        visible: list[LedgerExtent] = []
        for extent in extents:
            if visible and extent.ledger <= visible[-1].ledger:
                raise InvalidArgumentError(
                    f"Ledger {extent.ledger} follows {visible[-1].ledger}: give ledgers in the order of their ids."
                )
            visible.append(extent)
            if not extent.ended:
                break
        self._extents = visible
        self._ledgers = [int(extent.ledger) for extent in visible]
        self._ends = [extent.end for extent in visible]
        self._index = {ledger: index for index, ledger in enumerate(self._ledgers)}
        self._before = list(accumulate((extent.end - extent.first for extent in visible), initial=0))

    @property
    def end(self) -> Position:
        """The position after the last readable entry, which no cursor passes; EARLIEST without ledgers."""
        return Position(LedgerId(self._ledgers[-1]), EntryId(self._ends[-1])) if self._ledgers else EARLIEST

    def grow_ledger(self, ledger: LedgerId, end: int) -> None:
        """Make the entries before `end` readable in the last visible ledger; an `end` below the current one is ignored.

        Raises:
            InvalidArgumentError: the ledger is not the last visible one, or it has ended before `end`.
        """
        if not self._ledgers or ledger != self._ledgers[-1] or (self._extents[-1].ended and end > self._ends[-1]):
            raise InvalidArgumentError(
                f"Ledger {ledger} cannot grow to {end} entries: only the topic's last ledger grows, until it has ended."
            )
        self._ends[-1] = max(end, self._ends[-1])

    def holds_entry(self, ledger: int, entry: int) -> bool:
        """Return True if the entry exists and may be read."""
        index = self._index.get(ledger)
        return index is not None and self._extents[index].first <= entry < self._ends[index]

    def readable_end(self, ledger: int) -> int:
        """Return the id after the last readable entry of a visible ledger; 0 for any other ledger."""
        index = self._index.get(ledger)
        return 0 if index is None else self._ends[index]

    @property
    def ends(self) -> dict[int, int]:
        """The id after the last readable entry of each visible ledger, by ledger id."""
        return dict(zip(self._ledgers, self._ends, strict=True))

    def is_at_end(self, ledger: int, entry: int) -> bool:
        """Return True if no entry is readable from a position on.

        The result is False, too, if only empty ledgers follow the position's ledger.
        """
        return not self._ledgers or (ledger, entry) >= (self._ledgers[-1], self._ends[-1])

    def runs(self, ledger: int, first: int) -> Iterator[tuple[int, int]]:
        """Yield the one run [from, to) of a ledger's readable entries from `first` on; nothing if there are none."""
        stop = self.readable_end(ledger)
        if first < stop:
            yield first, stop

    def normalize_position(self, ledger: int, entry: int) -> tuple[int, int]:
        """Return the position of the first entry, from (ledger, entry) on, that exists or is the next to be written.

        Trimmed entries, empty ledgers and the ends of ledgers with a successor are skipped. A position behind the last
        visible ledger's end is returned unchanged.
        """
        index = self._index.get(ledger)
        if index is None:
            index = bisect_right(self._ledgers, ledger)
            if index == len(self._ledgers):
                return ledger, entry
            entry = self._extents[index].first
        last = len(self._ledgers) - 1
        entry = max(entry, self._extents[index].first)
        while entry >= self._ends[index] and index < last:
            index += 1
            entry = self._extents[index].first
        return self._ledgers[index], entry

    def clamp_position(self, position: Position) -> Position:
        """Return the nearest position that a cursor can have: normalized, and at most the chain's end.

        The result is EARLIEST if the chain has no ledgers.
        """
        ledger, entry = self.normalize_position(position.ledger, position.entry)
        return min(Position(LedgerId(ledger), EntryId(entry)), self.end) if self._ledgers else EARLIEST

    @property
    def start(self) -> Position:
        """The position of the first entry or, without entries, of the next to be written; EARLIEST without ledgers."""
        if not self._ledgers:
            return EARLIEST
        ledger, entry = self.normalize_position(self._ledgers[0], 0)
        return Position(LedgerId(ledger), EntryId(entry))

    def entry_before(self, position: Position) -> Position | None:
        """Return the last readable entry before a position; None if there is none."""
        for index in range(bisect_right(self._ledgers, position.ledger) - 1, -1, -1):
            ledger, end = self._ledgers[index], self._ends[index]
            if ledger == position.ledger:
                end = min(end, position.entry)
            if end > self._extents[index].first:
                return Position(LedgerId(ledger), EntryId(end - 1))
        return None

    def entries_from(self, ledger: int, entry: int) -> int:
        """Return the number of readable entries from the position (ledger, entry) on.

        0 behind the last visible ledger.
        """
        ledger, entry = self.normalize_position(ledger, entry)
        index = self._index.get(ledger)
        if index is None:
            return 0
        behind = self._before[-2] - self._extents[-1].first + self._ends[-1]
        return max(behind - self._before[index] - entry + self._extents[index].first, 0)
