"""An index of delayed entries in bounded memory.

The index holds the entries that are due soonest. Above the limit, the half that is due later is dropped, and the first
due time in this half becomes the *horizon*. Entries that are due at or after the horizon are not indexed; only the
lowest of their positions is kept. At the time of the horizon all indexed entries are due, and reading restarts at the
kept position: delivered and acknowledged entries are skipped, due entries are delivered, and later ones are indexed
again. No entry is lost, and each pass delivers at least half of the index.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from pulsar_on_spark.broker.dispatch.consumer import EntryPosition

Due = tuple[int, int, int, int]
"""Delivery time in milliseconds since 1970, ledger, entry, and the entry's group for dispatch (see `pool.py`)."""


class DelayedEntries:
    """The delayed entries of a subscription that are not due yet.

    Args:
        max_entries: Maximum number of indexed entries.
    """

    __slots__ = ("_heap", "_horizon_ms", "_max_entries", "_unread")

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._heap: list[Due] = []
        self._horizon_ms: int | None = None
        self._unread: EntryPosition | None = None
        """The lowest position of an entry that is due at or after the horizon; None without a horizon."""

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def due_ms(self) -> int | None:
        """The time of the next due entry or of the horizon, in milliseconds since 1970; None if no entry is delayed."""
        return self._heap[0][0] if self._heap else self._horizon_ms

    def add(self, due_ms: int, position: EntryPosition, group: int) -> None:
        """Add an entry that was read before its delivery time.

        Args:
            due_ms: The delivery time, in milliseconds since 1970.
            position: The entry.
            group: The entry's group for dispatch (see `pool.py`).
        """
        if self._horizon_ms is not None and due_ms >= self._horizon_ms:
            assert self._unread is not None, "the horizon has a position"
            assert self._unread <= position, "reading goes forward"
            return
        heappush(self._heap, (due_ms, *position, group))
        if len(self._heap) > self._max_entries:
            self._forget_half()

    def take_due(self, now_ms: int) -> list[tuple[EntryPosition, int]]:
        """Remove the entries that are due, and return (position, group) of each in the order of delivery times.

        Args:
            now_ms: The current time, in milliseconds since 1970.
        """
        due = []
        while self._heap and self._heap[0][0] <= now_ms:
            _, ledger, entry, group = heappop(self._heap)
            due.append(((ledger, entry), group))
        return due

    def take_unread(self, now_ms: int) -> EntryPosition | None:
        """Return the position at which reading restarts, and remove the horizon; None if the horizon has not come.

        Call `take_due` before this.
        """
        if self._horizon_ms is None or now_ms < self._horizon_ms:
            return None
        assert not self._heap, "take due entries first"
        position, self._unread, self._horizon_ms = self._unread, None, None
        return position

    def clear(self) -> None:
        """Remove all entries."""
        self._heap.clear()
        self._horizon_ms = self._unread = None

    def _forget_half(self) -> None:
        self._heap.sort()
        horizon_ms = self._heap[len(self._heap) // 2][0]
        kept = [due for due in self._heap if due[0] < horizon_ms]
        first = min(due[1:3] for due in self._heap[len(kept) :])
        self._heap, self._horizon_ms = kept, horizon_ms
        self._unread = first if self._unread is None else min(first, self._unread)
        heapify(self._heap)
