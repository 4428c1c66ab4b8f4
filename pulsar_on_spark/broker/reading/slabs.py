"""Slabs of shared memory, in which the reading process passes entries to the broker.

    [ends of the entries, u32 each] [entry][entry]...

Only one side uses a slab at a time: a message through the pipe hands it to the other side. An entry is copied when a
consumer gets it, so read-ahead costs the event loop nothing.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from pulsar_on_spark.topic.entries.rows import StoredEntry

MAX_ENTRIES = 8_192
"""Maximum number of entries in a slab."""
_END_BYTES = 4
_DATA_AT = _END_BYTES * MAX_ENTRIES


class Run(NamedTuple):
    """Consecutive entries of a ledger, [first, end)."""

    ledger: int
    first: int
    end: int


def slab_bytes(entries_bytes: int) -> int:
    """Return the size in bytes of a slab that can hold `entries_bytes` of entries."""
    return _DATA_AT + entries_bytes


class SlabWriter:
    """A writer that fills a slab entry by entry; `size_bytes` is the size of the entries so far."""

    def __init__(self, slab: memoryview) -> None:
        self._slab = slab
        self._data = slab[_DATA_AT:]
        self._ends = array("I")
        self._runs: list[Run] = []
        self.size_bytes = 0
        self.ack_sets: dict[tuple[int, int], int] = {}
        """Bits of the remaining messages of compacted entries, by ledger and entry."""

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, entry: StoredEntry) -> bool:
        """Append an entry and return True; return False if the slab has no room for it."""
        end = self.size_bytes + len(entry.data)
        if end > len(self._data) or len(self._ends) == MAX_ENTRIES:
            return False
        self._data[self.size_bytes : end] = entry.data
        self.size_bytes = end
        self._ends.append(end)
        if entry.ack_set:
            self.ack_sets[entry.ledger_id, entry.entry_id] = entry.ack_set
        last = self._runs[-1] if self._runs else None
        if last is not None and (last.ledger, last.end) == (entry.ledger_id, entry.entry_id):
            self._runs[-1] = last._replace(end=last.end + 1)
        else:
            self._runs.append(Run(entry.ledger_id, entry.entry_id, entry.entry_id + 1))
        return True

    def finish(self) -> tuple[Run, ...]:
        """Write the ends of the entries into the slab, and return its runs in the order in which they were added."""
        ends = self._ends.tobytes()
        self._slab[: len(ends)] = ends
        return tuple(self._runs)


class Slab:
    """The entries of a filled slab.

    Args:
        slab: The memory.
        runs: The entries, in the order in which they were written.
        next_: Ledger and id of the next entry of the source; None for the entry after the last run.
        ack_sets: `StoredEntry.ack_set` of compacted entries, by ledger and entry; None for none.
    """

    __slots__ = ("_data", "_ends", "_runs", "_starts", "ack_sets", "next")

    def __init__(
        self,
        slab: memoryview,
        runs: tuple[Run, ...],
        next_: tuple[int, int] | None = None,
        ack_sets: Mapping[tuple[int, int], int] | None = None,
    ) -> None:
        self.ack_sets = ack_sets or {}
        count = sum(run.end - run.first for run in runs)
        self._ends = array("I", (0,))
        self._ends.frombytes(slab[: _END_BYTES * count])
        self._data = slab[_DATA_AT:]
        self._runs: list[tuple[Run, int]] = []
        at = 0
        for run in runs:
            self._runs.append((run, at))
            at += run.end - run.first
        self._runs.sort()
        self._starts = [run[:2] for run, _ in self._runs]
        self.next = next_ or (runs[-1].ledger, runs[-1].end)
        """Ledger and id of the entry after the slab's last entry."""

    def copy_entries(self, ledger: int, first: int, end: int, max_bytes: int) -> list[bytes]:
        """Return the bytes of each entry from `first` up to `end` (exclusive); none if `first` is not in the slab.

        Ends at the end of a run, and at `max_bytes`; the first entry is returned even if it is larger.
        """
        number_and_rest = self._number(ledger, first)
        if number_and_rest is None:
            return []
        number, left = number_and_rest
        last = number + min(end - first, left)
        fitting = bisect_right(self._ends, self._ends[number] + max_bytes, number, last + 1) - 1
        bounds = self._ends[number : max(fitting, number + 1) + 1].tolist()
        data = self._data
        return [bytes(data[start:stop]) for start, stop in pairwise(bounds)]

    def is_past_half(self, ledger: int, entry: int) -> bool:
        """Return True if the entry lies in the second half of the slab's bytes."""
        number_and_rest = self._number(ledger, entry)
        return number_and_rest is not None and 2 * self._ends[number_and_rest[0]] >= self._ends[-1]

    def _number(self, ledger: int, entry: int) -> tuple[int, int] | None:
        """Return an entry's index in the slab, and the number of entries in its run from this index on.

        None if the entry is not in the slab.
        """
        index = bisect_right(self._starts, (ledger, entry)) - 1
        if index < 0:
            return None
        run, at = self._runs[index]
        if run.ledger != ledger or entry >= run.end:
            return None
        return at + entry - run.first, run.end - entry
