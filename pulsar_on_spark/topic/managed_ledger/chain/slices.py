"""Slices: parts of segments to read, with their entries, their messages, and the file batches that contain them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from pulsar_on_spark.ledger.journal.frame_reader import JournalPlace
from pulsar_on_spark.metadata.records import FileRecord, SegmentRecord
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from pulsar_on_spark.topic.entries.row_count import RowCount

_NO_FILE: Final = FileRecord(file_id="", write_id="", copies=(), length=0, batches=0)
"""The file of a slice whose messages are only counted."""


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """Entries [first, end) of one segment of a topic.

    Attributes:
        topic: The topic's full name.
        topic_id: The topic's id.
        partition: The topic's partition index; -1 if it is not a partition.
        segment: The segment.
        file: The sealed file, or the frames of a journal, with the segment's entries.
        first: The first entry.
        end: The id after the last entry.
        by_broker: True if a broker wrote the segment, so that some rows may not be messages for readers.
    """

    topic: str
    topic_id: str
    partition: int
    segment: SegmentRecord
    file: FileRecord | JournalPlace
    first: int
    end: int
    by_broker: bool = False

    @property
    def start_position(self) -> Position:
        """The position of the slice's first entry."""
        return Position(LedgerId(self.segment.ledger_id), EntryId(self.first))

    @property
    def entries_in_words(self) -> str:
        """The entries in words, such as "entries 5:0 to 5:9", for errors and the log."""
        first, last = self.start_position, self.end - 1
        return f"entry {first}" if last == first.entry else f"entries {first} to {first.ledger}:{last}"

    @property
    def rows(self) -> int:
        """Exact number of messages in the slice."""
        if self.first == self.segment.first_entry and self.end == segment_end(self.segment):
            return self.segment.rows
        return sum(rows for _, rows in self.entry_runs())

    @property
    def bytes(self) -> int:
        """Key and value bytes in the slice, estimated as its share of the segment's messages."""
        return self.segment.bytes * self.rows // max(self.segment.rows, 1)

    def batches(self) -> list[SliceBatch]:
        """Return the batches of the file that contain the slice, in order."""
        segment = self.segment
        batch_starts = segment.places or ((number, 0) for number in count(segment.first_batch))
        counted: RowCount | None = None
        slice_batches = []
        first = segment.first_entry
        for entries, (number, first_row) in zip(segment.batch_entries, batch_starts, strict=False):
            end = first + entries
            if first < self.end and end > self.first:
                rows = None
                if segment.places or first < self.first or end > self.end:
                    counted = counted or RowCount(segment)
                    before = counted.until(first)
                    begin, stop = (counted.until(entry) for entry in (max(first, self.first), min(end, self.end)))
                    rows = (first_row + begin - before, first_row + stop - before)
                slice_batches.append(SliceBatch(number, first, end, rows))
            first = end
        return slice_batches

    def entry_runs(self) -> Iterator[tuple[int, int]]:
        """Yield runs (number of entries, number of their messages) of the slice, in entry order."""
        return entry_runs(self.segment, self.first, self.end)

    def part(self, first: int, end: int) -> SegmentSlice:
        """Return the part of the slice with the entries in [first, end), which must overlap the slice."""
        return replace(self, first=max(first, self.first), end=min(end, self.end))


@dataclass(frozen=True, slots=True)
class SliceBatch:
    """A record batch of a file that contains entries of a slice.

    `number` is the batch's index in the file. [`first`, `end`) are the segment's entries in the batch, even if the
    slice has only some of them. `rows` are the slice's rows [begin, end) in the batch; None for all rows.
    """

    number: int
    first: int
    end: int
    rows: tuple[int, int] | None = None


def entry_runs(segment: SegmentRecord, first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield runs (number of entries, number of their messages) of a segment's entries in [first, end), in order."""
    entry = segment.first_entry
    for entries, rows in segment.entry_rows:
        count = min(entry + entries, end) - max(entry, first)
        if count > 0:
            yield count, count * rows
        entry += entries


def clipped(segment: SegmentRecord, end: int) -> SegmentRecord:
    """Return the segment without its entries from `end` on. The file still contains the rows of these entries."""
    if segment_end(segment) <= end:
        return segment
    part = SegmentSlice("", segment.topic_id, -1, segment, _NO_FILE, segment.first_entry, end)
    batches = part.batches()
    first_rows = segment.places or tuple((segment.first_batch + index, 0) for index in range(len(batches)))
    return segment.model_copy(
        update={
            "entries": end - segment.first_entry,
            "rows": part.rows,
            "bytes": part.bytes,
            "batch_entries": tuple(min(batch.end, end) - batch.first for batch in batches),
            "places": first_rows[: len(batches)],
            "entry_rows": tuple((entries, rows // entries) for entries, rows in part.entry_runs()),
        }
    )


def segment_end(segment: SegmentRecord) -> int:
    """Return the id after the segment's last entry."""
    return segment.first_entry + segment.entries
