"""A topic's chain for readers of its compacted ledger, without the entries that compaction removed.

Before the horizon, the chain has the entries of the compacted ledger's index, even if they are trimmed from the log.
From the horizon on, it has the entries of the log. Cursors skip removed entries like trimmed ones, so backlogs, ends
and mark-delete positions are exact. No cursor record depends on the compaction: a consumer that later reads the log
gets all unacknowledged messages.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate

from pyroaring import BitMap64
from typing_extensions import override

from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position
from pulsar_on_spark.topic.maintenance.compaction.reading import Index
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain
from pulsar_on_spark.topic.managed_ledger.cursor.holes import gap_from, next_from

_END = 1 << 62


class CompactedChain(LedgerChain):
    """The chain of a compacted topic. New entries of a ledger are added to the chain of the log.

    Args:
        log: The topic's chain.
        horizon: The first position that is not compacted.
        index: The remaining entries before the horizon.
    """

    __slots__ = ("_counts", "_horizon", "_kept", "_kept_ledgers", "_log")

    def __init__(self, log: LedgerChain, horizon: Position, index: Index) -> None:
        super().__init__()
        self._log = log
        self._horizon = (int(horizon.ledger), int(horizon.entry))
        self._kept: dict[int, BitMap64] = {int(ledger): index[ledger] for ledger in sorted(index)}
        self._kept_ledgers = list(self._kept)
        self._counts = list(accumulate((len(entries) for entries in self._kept.values()), initial=0))

    @property
    @override
    def end(self) -> Position:
        return max(self._log.end, Position(LedgerId(self._horizon[0]), EntryId(self._horizon[1])))

    @property
    @override
    def ends(self) -> dict[int, int]:
        """Return the ends of the log's ledgers."""
        return self._log.ends

    @override
    def grow_ledger(self, ledger: LedgerId, end: int) -> None:
        self._log.grow_ledger(ledger, end)

    @override
    def holds_entry(self, ledger: int, entry: int) -> bool:
        """Return True even for an entry that compaction removed: a consumer that got it before may acknowledge it."""
        return (ledger, entry) < self._horizon or self._log.holds_entry(ledger, entry)

    @override
    def readable_end(self, ledger: int) -> int:
        entries = self._kept.get(ledger)
        return max(self._log.readable_end(ledger), entries.max() + 1 if entries else 0)

    @override
    def is_at_end(self, ledger: int, entry: int) -> bool:
        return (ledger, entry) >= self._horizon and self._log.is_at_end(ledger, entry)

    @override
    def runs(self, ledger: int, first: int) -> Iterator[tuple[int, int]]:
        entries = self._kept.get(ledger)
        at = first
        while entries is not None and (at := next_from(entries, at, _END)) < _END:
            stop = gap_from(entries, at)
            yield at, stop
            at = stop
        if ledger >= self._horizon[0]:
            yield from self._log.runs(ledger, max(first, self._horizon[1]) if ledger == self._horizon[0] else first)

    @override
    def normalize_position(self, ledger: int, entry: int) -> tuple[int, int]:
        if (ledger, entry) >= self._horizon:
            return self._log.normalize_position(ledger, entry)
        for kept_ledger in self._kept_ledgers[bisect_left(self._kept_ledgers, ledger) :]:
            entry_kept = next_from(self._kept[kept_ledger], entry if kept_ledger == ledger else 0, _END)
            if entry_kept < _END:
                return kept_ledger, entry_kept
        return self._log.normalize_position(*self._horizon)

    @override
    def clamp_position(self, position: Position) -> Position:
        ledger, entry = self.normalize_position(position.ledger, position.entry)
        return min(Position(LedgerId(ledger), EntryId(entry)), self.end)

    @property
    @override
    def start(self) -> Position:
        return self.clamp_position(EARLIEST)

    @override
    def entry_before(self, position: Position) -> Position | None:
        before = self._log.entry_before(position)
        if before is not None and (before.ledger, before.entry) >= self._horizon:
            return before
        limit = min((int(position.ledger), int(position.entry)), self._horizon)
        for kept_ledger in reversed(self._kept_ledgers[: bisect_right(self._kept_ledgers, limit[0])]):
            entries = self._kept[kept_ledger]
            count = len(entries) if kept_ledger < limit[0] else entries.rank(limit[1] - 1) if limit[1] else 0
            if count:
                return Position(LedgerId(kept_ledger), EntryId(entries[count - 1]))
        return None

    @override
    def entries_from(self, ledger: int, entry: int) -> int:
        if (ledger, entry) >= self._horizon:
            return self._log.entries_from(ledger, entry)
        at = bisect_left(self._kept_ledgers, ledger)
        count = self._counts[-1] - self._counts[at]
        if entry and at < len(self._kept_ledgers) and self._kept_ledgers[at] == ledger:
            count -= self._kept[ledger].rank(entry - 1)
        return count + self._log.entries_from(*self._horizon)
