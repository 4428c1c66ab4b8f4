"""A topic's chain of ledgers: where it ends, what lies between two positions, and how far to go in one step.

Pure functions of a metadata view. A position is the next entry to read. A range is planned from the metadata alone and
resolves to (file, batches), so the same range gives the same messages however often segments were merged meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pulsar_on_spark.metadata.records import FileRecord, IncarnationRecord, LedgerRecord, SegmentRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import DataLossError, MetadataError
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position

_UNLIMITED = 1e18
"""More than anything here; unlike infinity it can be divided."""


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """Entries [first, end) of one segment of a topic; `partition` is -1 for a topic that is no partition."""

    topic: str
    topic_id: str
    partition: int
    segment: SegmentRecord
    file: FileRecord
    first: int
    end: int

    @property
    def start_position(self) -> Position:
        """The first entry of the slice."""
        return Position(LedgerId(self.segment.ledger_id), EntryId(self.first))

    @property
    def rows(self) -> int:
        """Exact number of messages in the slice."""
        if self.first == self.segment.first_entry and self.end == _end(self.segment):
            return self.segment.rows
        return sum(rows for _, rows in entry_runs(self))

    @property
    def bytes(self) -> int:
        """Key and value bytes in the slice: the segment's, in proportion to its messages."""
        return self.segment.bytes * self.rows // max(self.segment.rows, 1)

    def batches(self) -> list[SliceBatch]:
        """The batches of the file that hold the slice, in order."""
        found = []
        first = self.segment.first_entry
        for number, entries in enumerate(self.segment.batch_entries, self.segment.first_batch):
            if first < self.end and first + entries > self.first:
                found.append(SliceBatch(number, first, first + entries))
            first += entries
        return found

    def part(self, first: int, end: int) -> SegmentSlice:
        """The entries of the slice that are in [first, end)."""
        return replace(self, first=max(first, self.first), end=min(end, self.end))


@dataclass(frozen=True, slots=True)
class SliceBatch:
    """A batch of a file and its entries [first, end), which may reach beyond the slice."""

    number: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Loss:
    """A part of a range that can't be read any more, in words."""

    topic: str
    reason: str


def is_open(view: View, ledger: LedgerRecord) -> bool:
    """Whether entries may still be acknowledged in the ledger: no reader passes it."""
    if ledger.incarnation is None or ledger.closed:
        return False
    owner = view.get(IncarnationRecord, ledger.incarnation)
    return owner is None or owner.state != "CLOSED"


def read_limit(view: View, topic_id: str) -> Position:
    """The position that no reader passes: the chain's end, or the end of what is sealed of its first open ledger."""
    for ledger in view.all(LedgerRecord, topic_id):
        if is_open(view, ledger):
            sealed = [s for s in view.all(SegmentRecord, topic_id) if s.ledger_id == ledger.ledger_id]
            return Position(LedgerId(ledger.ledger_id), EntryId(_end(sealed[-1]) if sealed else 0))
    last = view.newest(SegmentRecord, topic_id)
    return EARLIEST if last is None else Position(LedgerId(last.ledger_id), EntryId(_end(last)))


@dataclass(frozen=True, slots=True)
class RangePlan:
    """What a range [start, end) of a topic consists of: slices in chain order, and what of it is lost."""

    slices: tuple[SegmentSlice, ...]
    losses: tuple[Loss, ...]

    @property
    def rows(self) -> int:
        """Exact number of messages."""
        return sum(slice_.rows for slice_ in self.slices)

    @property
    def bytes(self) -> int:
        """Key and value bytes."""
        return sum(slice_.bytes for slice_ in self.slices)


def plan_range(view: View, topic: str, topic_id: str, partition: int, start: Position, end: Position) -> RangePlan:
    """Find the entries of [start, end). Entry ids of a ledger are dense, so a hole is a loss, never a skip."""
    if start >= end:
        return RangePlan((), ())
    found: list[SegmentSlice] = []
    lost: list[Loss] = []
    position = start
    start_seen = False
    for segment in view.since(SegmentRecord, topic_id, f"{topic_id}/{start.ledger:020d}/{start.entry:020d}"):
        ledger = segment.ledger_id
        if ledger > end.ledger or (ledger == end.ledger and segment.first_entry >= end.entry):
            break
        if ledger < start.ledger:
            continue
        first = max(segment.first_entry, start.entry) if ledger == start.ledger else segment.first_entry
        stop = min(_end(segment), end.entry) if ledger == end.ledger else _end(segment)
        begins_at = position.entry if ledger == position.ledger else 0
        if first > begins_at and (position != EARLIEST):
            lost.append(Loss(topic, f"entries {position} to {ledger}:{first} are gone"))
        elif ledger > start.ledger and not start_seen and start != EARLIEST:
            # Nothing of the start's ledger is left that would show whether it ended at the start.
            lost.append(Loss(topic, f"what followed {position} in its ledger is gone"))
        start_seen = True
        position = Position(LedgerId(ledger), EntryId(max(stop, first)))
        if first < stop:
            file = view.get(FileRecord, segment.file_id)
            if file is None:
                raise MetadataError(
                    f"Segment {segment.record_id} of {topic} names file {segment.file_id}, unknown here."
                )
            found.append(SegmentSlice(topic, topic_id, partition, segment, file, first, stop))
    if position < end and end.entry > 0:
        lost.append(Loss(topic, f"entries {position} to {end} are gone"))
    return RangePlan(tuple(found), tuple(lost))


@dataclass(frozen=True, slots=True)
class Waiting:
    """What lies between two positions, counted without planning it.

    Attributes:
        rows: Exact number of messages.
        bytes: Key and value bytes.
        enough: A position by which the limits that were asked for are reached, or the range's end.
    """

    rows: int
    bytes: int
    enough: Position


def waiting(
    view: View,
    topic_id: str,
    start: Position,
    end: Position,
    max_rows: int | None = None,
    max_bytes: int | None = None,
) -> Waiting:
    """Count the entries of [start, end): cheap also for a long backlog of small segments."""
    rows = size = 0
    enough = end
    if start >= end:
        return Waiting(0, 0, end)
    for segment in view.since(SegmentRecord, topic_id, f"{topic_id}/{start.ledger:020d}/{start.entry:020d}"):
        ledger, first, stop = segment.ledger_id, segment.first_entry, _end(segment)
        if (ledger, first) >= (end.ledger, end.entry):
            break
        if (ledger, stop) <= (start.ledger, start.entry):
            continue
        segment_rows = segment.rows
        if (ledger, first) < (start.ledger, start.entry) or (ledger, stop) > (end.ledger, end.entry):
            after = start.entry if ledger == start.ledger else 0
            before = end.entry if ledger == end.ledger else stop
            segment_rows = sum(rows for _, rows in _runs(segment, after, before))
        rows += segment_rows
        size += segment.bytes * segment_rows // max(segment.rows, 1)
        reached = (max_rows is not None and rows >= max_rows) or (max_bytes is not None and size >= max_bytes)
        if reached and enough == end:
            enough = min(Position(LedgerId(ledger), EntryId(stop)), end)
    return Waiting(rows, size, enough)


def require_ledger(view: View, topic: str, topic_id: str, position: Position) -> None:
    """Make sure that a position lies in the topic: its ledger is in the chain, its entry at or before the ledger's end.

    Raises:
        DataLossError: the ledger is unknown or trimmed, or the entry is past its end.
    """
    if position == EARLIEST:
        return
    ledger = view.get(LedgerRecord, f"{topic_id}/{position.ledger:020d}")
    if ledger is None:
        raise DataLossError(
            f"Position {position} of {topic} lies outside the topic: ledger {position.ledger} is not there."
        )
    sealed = [s for s in view.all(SegmentRecord, topic_id) if s.ledger_id == position.ledger]
    if not is_open(view, ledger) and position.entry > (_end(sealed[-1]) if sealed else 0):
        raise DataLossError(
            f"Position {position} of {topic} lies outside the topic: ledger {position.ledger} ends before it."
        )


def entry_runs(slice_: SegmentSlice) -> Iterator[tuple[int, int]]:
    """Runs (entries, messages in all of them) of the slice, in entry order."""
    return _runs(slice_.segment, slice_.first, slice_.end)


def advance(
    found: Sequence[SegmentSlice],
    start: Position,
    end: Position,
    max_rows: int | None,
    max_bytes: int | None,
    *,
    at_least_one: bool,
) -> Position:
    """How far to read in one step under limits that never split an entry: entries as long as they fit.

    Args:
        found: the slices of [start, end), in order.
        start: where the step starts.
        end: where the slices end.
        max_rows: most messages, None for no limit.
        max_bytes: most key and value bytes, None for no limit.
        at_least_one: take the first entry even if it alone is above a limit.
    """
    rows_left = _UNLIMITED if max_rows is None else float(max_rows)
    bytes_left = _UNLIMITED if max_bytes is None else float(max_bytes)
    position = start
    for slice_ in found:
        ledger = LedgerId(slice_.segment.ledger_id)
        bytes_per_row = slice_.segment.bytes / max(slice_.segment.rows, 1)
        entry = slice_.first
        for entries, rows in entry_runs(slice_):
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


def _runs(segment: SegmentRecord, first: int, end: int) -> Iterator[tuple[int, int]]:
    entry = segment.first_entry
    for count, rows in segment.entry_rows:
        taken = min(entry + count, end) - max(entry, first)
        if taken > 0:
            yield taken, taken * rows
        entry += count


def _end(segment: SegmentRecord) -> int:
    return segment.first_entry + segment.entries
