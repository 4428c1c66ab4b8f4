"""Entries in memory, bounded by bytes: those that were acknowledged or read last."""

from __future__ import annotations

from collections import deque

from pulsar_on_spark.model.ids import EntryId, LedgerId

ENTRY_OVERHEAD_BYTES = 300
"""What an entry costs besides its bytes: key, places in a table and a queue, the head of a bytes object."""


class EntryCache:
    """The newest entries by ledger and id; the oldest ones go when there are too many bytes. Each step is O(1).

    Args:
        max_bytes: Most bytes of entries together with what keeping them costs; 0 keeps nothing.
    """

    __slots__ = ("_entries", "_order", "max_bytes", "size_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._entries: dict[tuple[int, int], bytes] = {}
        self._order: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, ledger: LedgerId, entry: EntryId, data: bytes) -> None:
        """Keep an entry; what is known stays as it is. A ledger belongs to one topic, so nobody need name that."""
        key = (ledger, entry)
        if key in self._entries:
            return
        self._entries[key] = data
        self._order.append(key)
        self.size_bytes += len(data) + ENTRY_OVERHEAD_BYTES
        while self.size_bytes > self.max_bytes:
            oldest = self._entries.pop(self._order.popleft())
            self.size_bytes -= len(oldest) + ENTRY_OVERHEAD_BYTES

    def get(self, ledger: LedgerId, entry: EntryId) -> bytes | None:
        """The entry's bytes, if they are here."""
        return self._entries.get((ledger, entry))
