"""Packing rows into the batches of a segment file: small segments share a batch with neighbours (docs/adr/0008).

A batch has a fixed cost: 18 columns, each of which is compressed, checked and written by itself. So thousands of small
batches, one for each small segment, would cost more than their rows. Large segments have batches of their own, so a
reader decodes at most about `SHARED_BATCH_BYTES` of other segments' rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

SHARED_BATCH_BYTES = 512 * 1024
"""Key, value and raw bytes at which a segment's rows get a batch of their own, and a shared batch is written."""


@dataclass(slots=True)
class SegmentPlaces:
    """The positions of a segment's rows in the batches of its file; in each batch, the rows are adjacent."""

    _numbers: list[int] = field(default_factory=list)
    _first_rows: list[int] = field(default_factory=list)
    _entries: list[int] = field(default_factory=list)
    _is_own: bool = True

    def add(self, number: int, first_row: int, entries: int, *, is_own: bool) -> None:
        """Record that the segment's next `entries` entries begin at row `first_row` of batch `number`.

        `is_own` is True if the batch has no other segment's rows.
        """
        if self._numbers and self._numbers[-1] == number:
            self._entries[-1] += entries
            return
        self._is_own &= is_own and (not self._numbers or self._numbers[-1] + 1 == number)
        self._numbers.append(number)
        self._first_rows.append(first_row)
        self._entries.append(entries)

    def fields(self) -> dict[str, Any]:
        """Return the fields `first_batch`, `batch_entries` and `places` of the `SegmentRecord`."""
        places = () if self._is_own else tuple(zip(self._numbers, self._first_rows, strict=True))
        return {"first_batch": self._numbers[0], "batch_entries": tuple(self._entries), "places": places}


class OwnedRows(NamedTuple):
    """Adjacent rows of a batch that belong to one segment and form whole entries."""

    owner: SegmentPlaces
    entries: int
    rows: int
    size_bytes: int


class BatchPacker:
    """Writer of rows in the order of their addition; it records in which batches the rows of each segment are.

    Args:
        write: Appends a batch in `SEGMENT_SCHEMA` to the file and returns the batch's number.
    """

    def __init__(self, write: Callable[[pa.RecordBatch], int]) -> None:
        self._write = write
        self._held: list[pa.RecordBatch] = []
        self._runs: list[OwnedRows] = []
        self._owners: set[int] = set()
        self._held_bytes = 0

    def add(self, batch: pa.RecordBatch, runs: Iterable[OwnedRows]) -> None:
        """Add a batch that consists of `runs`, each of rows of one segment. Add each segment's entries in order."""
        row = held_from = 0
        for run in runs:
            is_large = run.size_bytes >= SHARED_BATCH_BYTES
            comes_again = bool(self._runs) and run.owner is not self._runs[-1].owner and id(run.owner) in self._owners
            if is_large or comes_again or self._held_bytes >= SHARED_BATCH_BYTES:
                self._hold(batch, held_from, row)
                self.flush()
                held_from = row
            self._runs.append(run)
            self._owners.add(id(run.owner))
            self._held_bytes += run.size_bytes
            row += run.rows
        self._hold(batch, held_from, row)
        if self._held_bytes >= SHARED_BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the buffered rows."""
        if not self._held:
            return
        number = self._write(self._held[0] if len(self._held) == 1 else pa.concat_batches(self._held))
        is_own = all(run.owner is self._runs[0].owner for run in self._runs)
        first_row = 0
        for run in self._runs:
            run.owner.add(number, first_row, run.entries, is_own=is_own)
            first_row += run.rows
        self._held, self._runs, self._held_bytes = [], [], 0
        self._owners.clear()

    def _hold(self, batch: pa.RecordBatch, first: int, end: int) -> None:
        if first < end:
            self._held.append(batch.slice(first, end - first))
