"""A topic's chain of ledgers: its end, and the entries between two positions.

Pure functions of a metadata view. A position is the next entry to read. A range is planned from the metadata alone and
resolved to (file, batches), so the same range gives the same messages however often segments are merged meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from pulsar_on_spark.ledger.journal.frame_reader import JournalPlace
from pulsar_on_spark.metadata.records import FileRecord, IncarnationRecord, LedgerRecord, SegmentRecord, TrimRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import DataLossError, MetadataError
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position
from pulsar_on_spark.topic.managed_ledger.chain.slices import SegmentSlice, segment_end
from pulsar_on_spark.topic.managed_ledger.chain.tail_view import TailView, UnsealedSegment


@dataclass(frozen=True, slots=True)
class Loss:
    """A lost part of a range: its topic, and the reason in words."""

    topic: str
    reason: str


def is_open(view: View, ledger: LedgerRecord) -> bool:
    """Return True if entries may still be acknowledged in the ledger, so that no reader may pass it."""
    if ledger.incarnation is None or ledger.closed:
        return False
    owner = view.get(IncarnationRecord, ledger.incarnation)
    return owner is None or owner.state != "CLOSED"


def read_limit(view: View, topic_id: str) -> Position:
    """Return the limit for readers: the chain's end, or the readable end of its first unfinished ledger.

    A ledger is unfinished if it is open, or if some of its entries are not readable in this view: a view without
    journals (any view but a `TailView`) ends before the first unsealed entry.
    """
    for ledger in view.all(LedgerRecord, topic_id):
        if ledger.incarnation is not None:
            readable = readable_end(view, topic_id, ledger.ledger_id)
            if is_open(view, ledger) or readable != ledger_end(view, ledger):
                return Position(LedgerId(ledger.ledger_id), EntryId(readable))
    last = view.newest(SegmentRecord, topic_id)
    if last is None:
        return trimmed_before(view, topic_id)
    return Position(LedgerId(last.ledger_id), EntryId(segment_end(last)))


def trimmed_before(view: View, topic_id: str) -> Position:
    """Return the end of a topic's trimmed entries: all entries before it are missing on purpose."""
    trim = view.get(TrimRecord, topic_id)
    return EARLIEST if trim is None else Position(LedgerId(trim.trimmed_ledger), EntryId(trim.trimmed_entry))


def readable_end(view: View, topic_id: str, ledger_id: int) -> int:
    """Return the number after a ledger's last readable entry: 0 if there is none, or if all were trimmed."""
    last = view.before(SegmentRecord, topic_id, f"{topic_id}/{ledger_id + 1:020d}")
    return segment_end(last) if last is not None and last.ledger_id == ledger_id else 0


def ledger_end(view: View, ledger: LedgerRecord) -> int | None:
    """Return the number of entries of a broker's closed ledger; None if the view cannot determine it."""
    if ledger.entries is None and isinstance(view, TailView):
        return view.end_by_force(ledger.topic_id, ledger.ledger_id)
    return ledger.entries


@dataclass(frozen=True, slots=True)
class RangePlan:
    """The contents of a range [start, end) of a topic: slices in chain order, and its losses."""

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
    slices: list[SegmentSlice] = []
    lost: list[Loss] = []
    for piece in walk_range(view, topic, topic_id, partition, start, end):
        if isinstance(piece, Loss):
            lost.append(piece)
        else:
            slices.append(piece)
    return RangePlan(tuple(slices), tuple(lost))


def walk_range(
    view: View, topic: str, topic_id: str, partition: int, start: Position, end: Position
) -> Iterator[SegmentSlice | Loss]:
    """Plan like `plan_range`, piece by piece in the order of the chain: only the consumed pieces cost time.

    A range that starts at `EARLIEST` starts after the trimmed entries.
    """
    trimmed = trimmed_before(view, topic_id)
    if start < min(trimmed, end):
        if start > EARLIEST or end < trimmed:
            yield Loss(topic, f"entries {start} to {trimmed} were trimmed by retention")
        start = trimmed
    if start >= end:
        return
    position = start
    # A reader at the beginning of a ledger is as far as a reader at the end of the ledger before.
    start_seen = start == trimmed or start.entry == 0
    given_up = _given_up(view, topic_id, start, end)
    for segment in view.since(SegmentRecord, topic_id, f"{topic_id}/{start.ledger:020d}/{start.entry:020d}"):
        ledger = segment.ledger_id
        if ledger > end.ledger or (ledger == end.ledger and segment.first_entry >= end.entry):
            break
        if ledger < start.ledger:
            continue
        first = max(segment.first_entry, start.entry) if ledger == start.ledger else segment.first_entry
        stop = min(segment_end(segment), end.entry) if ledger == end.ledger else segment_end(segment)
        begins_at = position.entry if ledger == position.ledger else 0
        has_hole = first > begins_at
        at = Position(LedgerId(ledger), EntryId(first))
        yield from _given_up_losses(topic, given_up, at, said=LedgerId(ledger) if has_hole else None)
        if has_hole:
            yield Loss(topic, f"entries {position} to {ledger}:{first} are gone")
        elif ledger > start.ledger and not start_seen:
            # The ledger of the start is gone, so it is unknown if that ledger ended at the start.
            yield Loss(topic, f"what followed {position} in its ledger is gone")
        start_seen = True
        position = Position(LedgerId(ledger), EntryId(max(stop, first)))
        if first < stop:
            file, by_broker = _place(view, topic, segment)
            yield SegmentSlice(topic, topic_id, partition, segment, file, first, stop, by_broker)
    if position < end and end.entry > 0:
        yield Loss(topic, f"entries {position} to {end} are gone")
        return
    yield from _given_up_losses(topic, given_up, end)


def _given_up(view: View, topic_id: str, start: Position, end: Position) -> deque[Position]:
    """Return the starts of entries in [start, end) that are lost because an operator gave up their frames or paths."""
    positions = (
        Position(LedgerId(ledger.ledger_id), EntryId(first))
        for ledger in view.all(LedgerRecord, topic_id)
        for first in (*(lost.first for lost in ledger.lost), *_cut_off(view, ledger))
    )
    return deque(sorted(position for position in positions if start <= position < end))


def _cut_off(view: View, ledger: LedgerRecord) -> tuple[int, ...]:
    """Return the end, perhaps too low, of a ledger without close row whose log was closed without some paths."""
    owner = None if ledger.incarnation is None else view.get(IncarnationRecord, ledger.incarnation)
    if owner is None or ledger.entries is not None or not owner.given_up_paths:
        return ()
    end = ledger_end(view, ledger)
    return () if end is None else (end,)


def _given_up_losses(topic: str, lost: deque[Position], end: Position, said: LedgerId | None = None) -> Iterator[Loss]:
    """Yield and remove the losses in `lost` that begin before `end`; the caller reports a hole in ledger `said`."""
    while lost and lost[0] < end:
        position = lost.popleft()
        if position.ledger != said:
            yield Loss(
                topic, f"entries from {position} on were in journal frames or on storage paths that were given up"
            )


def require_ledger(view: View, topic: str, topic_id: str, position: Position) -> None:
    """Check that a position is in the topic: its ledger is in the chain, its entry at or before the ledger's end.

    Raises:
        DataLossError: the ledger is unknown or trimmed, or the entry is past its end.
    """
    trimmed = trimmed_before(view, topic_id)
    if position in (EARLIEST, trimmed):
        return
    if position < trimmed:
        raise DataLossError(
            f"Position {position} of {topic} was trimmed by retention: what is before {trimmed} is gone."
        )
    ledger = view.get(LedgerRecord, f"{topic_id}/{position.ledger:020d}")
    if ledger is None:
        raise DataLossError(
            f"Position {position} of {topic} lies outside the topic: ledger {position.ledger} is not there."
        )
    if not is_open(view, ledger) and position.entry > readable_end(view, topic_id, position.ledger):
        raise DataLossError(
            f"Position {position} of {topic} lies outside the topic: ledger {position.ledger} ends before it."
        )


def _place(view: View, topic: str, segment: SegmentRecord) -> tuple[FileRecord | JournalPlace, bool]:
    """Describe the file or journal that holds a segment, and if a broker wrote it."""
    if isinstance(segment, UnsealedSegment):
        return segment.frames, True
    file = view.get(FileRecord, segment.file_id)
    if file is None:
        raise MetadataError(f"Segment {segment.record_id} of {topic} names file {segment.file_id}, unknown here.")
    ledger = view.get(LedgerRecord, f"{segment.topic_id}/{segment.ledger_id:020d}")
    return file, ledger is not None and ledger.incarnation is not None
