"""The number of rows before an entry of a segment, computed from the segment's record instead of a column."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from pulsar_on_spark.metadata.records import SegmentRecord


class RowCount:
    """Counter of the rows of a segment that precede an entry."""

    def __init__(self, segment: SegmentRecord) -> None:
        self._first = segment.first_entry
        runs = segment.entry_rows
        self._rows = [rows for _, rows in runs]
        self._entries = list(accumulate((entries for entries, _ in runs), initial=0))
        self._ends = list(accumulate((entries * rows for entries, rows in runs), initial=0))

    def until(self, entry: int) -> int:
        """Return the number of rows of all entries before `entry`."""
        at = entry - self._first
        run = min(bisect_right(self._entries, at), len(self._rows)) - 1
        return self._ends[run] + (at - self._entries[run]) * self._rows[run]
