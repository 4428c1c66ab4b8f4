"""The size of a reader's next step, and of its backlog, computed from the metadata alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pulsar_on_spark.metadata.records import SegmentRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from pulsar_on_spark.topic.managed_ledger.chain.slices import SegmentSlice, entry_runs, segment_end

_UNLIMITED = 1e18
"""More rows and bytes than any topic has; unlike infinity, it can be divided."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The messages between two positions, counted without planning a read.

    Attributes:
        rows: Exact number of messages.
        bytes: Key and value bytes, estimated for parts of segments.
        enough: The end of the segment in which a limit is first reached; the end of the range if no limit is reached.
    """

    rows: int
    bytes: int
    enough: Position


def count_waiting(
    view: View,
    topic_id: str,
    start: Position,
    end: Position,
    max_rows: int | None = None,
    max_bytes: int | None = None,
) -> Waiting:
    """Count the messages and bytes of a topic in [start, end) from the records of its segments.

    `Waiting.enough` is where `max_rows` or `max_bytes` is first reached; None is no limit.
    """
    rows = size = 0
    enough = end
    for part in _parts(view, topic_id, start, end):
        rows += part.rows
        size += part.bytes
        reached = (max_rows is not None and rows >= max_rows) or (max_bytes is not None and size >= max_bytes)
        if reached and enough == end:
            enough = part.end
    return Waiting(rows, size, enough)


def end_of_bytes(view: View, topic_id: str, start: Position, end: Position, max_bytes: int) -> Position:
    """Return the end of the segment in which the bytes from `start` on reach `max_bytes`; `end` if they do not.

    Unlike `count_waiting`, this reads no record of a later segment, so its cost does not grow with the backlog.
    """
    size = 0
    for part in _parts(view, topic_id, start, end):
        size += part.bytes
        if size >= max_bytes:
            return part.end
    return end


class _Part(NamedTuple):
    """The part of a segment that is in a range: its messages, its bytes, and its end."""

    rows: int
    bytes: int
    end: Position


def _parts(view: View, topic_id: str, start: Position, end: Position) -> Iterator[_Part]:
    """Iterate over the parts of a topic's segments in [start, end); a record is read when the iterator reaches it."""
    if start >= end:
        return
    for segment in view.since(SegmentRecord, topic_id, f"{topic_id}/{start.ledger:020d}/{start.entry:020d}"):
        ledger, first, stop = segment.ledger_id, segment.first_entry, segment_end(segment)
        if (ledger, first) >= (end.ledger, end.entry):
            break
        if (ledger, stop) <= (start.ledger, start.entry):
            continue
        rows = segment.rows
        if (ledger, first) < (start.ledger, start.entry) or (ledger, stop) > (end.ledger, end.entry):
            after = start.entry if ledger == start.ledger else 0
            before = end.entry if ledger == end.ledger else stop
            rows = sum(count for _, count in entry_runs(segment, after, before))
        size = segment.bytes * rows // max(segment.rows, 1)
        yield _Part(rows, size, min(Position(LedgerId(ledger), EntryId(stop)), end))


def advance(
    found: Sequence[SegmentSlice],
    start: Position,
    end: Position,
    max_rows: int | None,
    max_bytes: int | None,
    *,
    at_least_one: bool,
) -> Position:
    """Return the end of the longest step of reading that obeys the limits without splitting an entry.

    Args:
        found: The slices of [start, end), in order.
        start: The start of the step.
        end: The end of the slices.
        max_rows: The maximum number of messages; None for no limit.
        max_bytes: The maximum of key and value bytes; None for no limit.
        at_least_one: True to include the first entry even if it alone exceeds a limit.
    """
    rows_left = _UNLIMITED if max_rows is None else float(max_rows)
    bytes_left = _UNLIMITED if max_bytes is None else float(max_bytes)
    position = start
    for slice_ in found:
        ledger = LedgerId(slice_.segment.ledger_id)
        bytes_per_row = slice_.segment.bytes / max(slice_.segment.rows, 1)
        entry = slice_.first
        for entries, rows in slice_.entry_runs():
            rows_each = rows / entries
            bytes_each = max(rows_each * bytes_per_row, 1e-9)
            fitting = int(min(rows_left // rows_each, bytes_left // bytes_each, entries))
            if fitting < entries:
                if fitting == 0 and (position > start or not at_least_one):
                    return position
                return Position(ledger, EntryId(entry + max(fitting, 1)))
            entry += entries
            rows_left -= rows
            bytes_left -= entries * bytes_each
            position = Position(ledger, EntryId(entry))
    return end
