"""A cache of the entries that were acknowledged last, bounded by bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import count, repeat

from pulsar_on_spark.model.ids import EntryId, LedgerId

ENTRY_OVERHEAD_BYTES = 300
"""Memory of an entry besides its bytes: key, slots in a table and a queue, the header of a bytes object."""


class EntryCache:
    """The newest entries by ledger and id; the oldest are evicted above the limit. Each operation is O(1).

    Args:
        max_bytes: Limit of the entries' bytes and overhead; 0 caches nothing.
    """

    __slots__ = ("_entries", "_order", "max_bytes", "size_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._entries: dict[tuple[int, int], bytes] = {}
        self._order: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, ledger: LedgerId, first: EntryId, entries: Iterable[bytes]) -> None:
        """Cache entries with following ids, except those that are cached already.

        A ledger belongs to one topic, so the keys need no topic.
        """
        cached = self._entries
        for key, data in zip(zip(repeat(ledger), count(first)), entries, strict=False):
            if key not in cached:
                cached[key] = data
                self._order.append(key)
                self.size_bytes += len(data) + ENTRY_OVERHEAD_BYTES
        while self.size_bytes > self.max_bytes:
            oldest = self._entries.pop(self._order.popleft())
            self.size_bytes -= len(oldest) + ENTRY_OVERHEAD_BYTES

    def get(self, ledger: LedgerId, entry: EntryId) -> bytes | None:
        """Return an entry's bytes; None if the entry is not cached."""
        return self._entries.get((ledger, entry))
