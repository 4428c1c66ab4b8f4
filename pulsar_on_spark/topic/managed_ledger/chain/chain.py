"""A topic's chain of ledgers: its end, and the entries between two positions.

Pure functions of a metadata view. A position is the next entry to read. A range of positions is planned from the
metadata alone, and resolved to batches of files when it is read. So the same range always has the same messages, even
if segments are merged in between.
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
    """Lost entries in a range: the topic's full name, the reason in words, and the position of the first lost entry."""

    topic: str
    reason: str
    position: Position


def is_open(view: View, ledger: LedgerRecord) -> bool:
    """Return True if entries may still be acknowledged in the ledger, so that no reader may pass it."""
    if ledger.incarnation is None or ledger.closed:
        return False
    owner = view.get(IncarnationRecord, ledger.incarnation)
    return owner is None or owner.state != "CLOSED"


def read_limit(view: View, topic_id: str) -> Position:
    """Return the position up to which readers may read: the readable end of the first unfinished ledger of a broker.

    A broker's ledger is unfinished if it is open, or if some of its entries are not readable in this view. In a view
    without journals (any view but a `TailView`), unsealed entries are not readable. Without an unfinished ledger, the
    limit is the end of the topic's last segment or, without segments, of its trimmed entries.
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
    """Return the position after a topic's trimmed entries, which were deleted on purpose; EARLIEST without any."""
    trim = view.get(TrimRecord, topic_id)
    return EARLIEST if trim is None else Position(LedgerId(trim.trimmed_ledger), EntryId(trim.trimmed_entry))


def readable_end(view: View, topic_id: str, ledger_id: int) -> int:
    """Return the id after a ledger's last readable entry; 0 if there is none, for example because all were trimmed."""
    last = view.before(SegmentRecord, topic_id, f"{topic_id}/{ledger_id + 1:020d}")
    return segment_end(last) if last is not None and last.ledger_id == ledger_id else 0


def ledger_end(view: View, ledger: LedgerRecord) -> int | None:
    """Return the number of entries of a broker's closed ledger; None if it is unknown in this view."""
    if ledger.entries is None and isinstance(view, TailView):
        return view.end_by_force(ledger.topic_id, ledger.ledger_id)
    return ledger.entries


@dataclass(frozen=True, slots=True)
class RangePlan:
    """The contents of a range [start, end) of a topic: slices in chain order, and the losses in the range."""

    slices: tuple[SegmentSlice, ...]
    losses: tuple[Loss, ...]

    @property
    def rows(self) -> int:
        """Exact number of messages in the range."""
        return sum(slice_.rows for slice_ in self.slices)

    @property
    def bytes(self) -> int:
        """Key and value bytes in the range, estimated for parts of segments."""
        return sum(slice_.bytes for slice_ in self.slices)

    def require_complete(self, remedy: str) -> None:
        """Check that nothing in the range is lost.

        Args:
            remedy: The end of the error's sentence, which says how to continue without the lost messages.

        Raises:
            DataLossError: entries in the range are lost.
        """
        if self.losses:
            first = self.losses[0]
            raise DataLossError(
                f"Messages of {first.topic} are lost: {first.reason}; {remedy}.", position=first.position
            )


def plan_range(view: View, topic: str, topic_id: str, partition: int, start: Position, end: Position) -> RangePlan:
    """Return the slices of the entries in [start, end).

    Entry ids of a ledger are dense, so missing ids are losses. The arguments are those of `walk_range`.
    """
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
    """Yield the slices and losses of `plan_range` in the order of the chain; each is computed when it is requested.

    A range from `EARLIEST` starts after the trimmed entries, which are then no loss.

    Args:
        view: The view on which the range is planned.
        topic: The topic's full name.
        topic_id: The topic's id.
        partition: The topic's partition index; -1 if it is not a partition.
        start: The position of the first entry.
        end: The position after the last entry.
    """
    trimmed = trimmed_before(view, topic_id)
    if start < min(trimmed, end):
        if start > EARLIEST or end < trimmed:
            yield Loss(topic, f"entries {start} to {trimmed} were trimmed by retention", start)
        start = trimmed
    if start >= end:
        return
    position = start
    # The beginning of a ledger is equivalent to the end of the ledger before it.
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
            yield Loss(topic, f"entries {position} to {ledger}:{first} are gone", position)
        elif ledger > start.ledger and not start_seen:
            # The ledger of the start position is gone, so it is unknown if it had entries from that position on.
            yield Loss(topic, f"the entries from {position} on in its ledger are gone", position)
        start_seen = True
        position = Position(LedgerId(ledger), EntryId(max(stop, first)))
        if first < stop:
            file, by_broker = _place(view, topic, segment)
            yield SegmentSlice(topic, topic_id, partition, segment, file, first, stop, by_broker)
    if position < end and end.entry > 0:
        yield Loss(topic, f"entries {position} to {end} are gone", position)
        return
    yield from _given_up_losses(topic, given_up, end)


def _given_up(view: View, topic_id: str, start: Position, end: Position) -> deque[Position]:
    """Return the positions in [start, end) at which lost entries begin, because an operator gave up frames or paths."""
    positions = (
        Position(LedgerId(ledger.ledger_id), EntryId(first))
        for ledger in view.all(LedgerRecord, topic_id)
        for first in (*(lost.first for lost in ledger.lost), *_cut_off(view, ledger))
    )
    return deque(sorted(position for position in positions if start <= position < end))


def _cut_off(view: View, ledger: LedgerRecord) -> tuple[int, ...]:
    """Return the known end of a ledger without a close row if its log was closed without some paths.

    Else an empty tuple. Entries after this end may be lost.
    """
    owner = None if ledger.incarnation is None else view.get(IncarnationRecord, ledger.incarnation)
    if owner is None or ledger.entries is not None or not owner.given_up_paths:
        return ()
    end = ledger_end(view, ledger)
    return () if end is None else (end,)


def _given_up_losses(topic: str, lost: deque[Position], end: Position, said: LedgerId | None = None) -> Iterator[Loss]:
    """Yield a loss for each position in `lost` before `end`, and remove these positions from `lost`.

    Positions in ledger `said` are removed without a loss, because the caller reports a loss in that ledger; None for
    none.
    """
    while lost and lost[0] < end:
        position = lost.popleft()
        if position.ledger != said:
            reason = f"entries from {position} on were in journal frames or on storage paths that were given up"
            yield Loss(topic, reason, position)


def require_ledger(view: View, topic: str, topic_id: str, position: Position) -> None:
    """Check that a position is in the topic: its ledger is in the chain, and its entry is not after the ledger's end.

    Raises:
        DataLossError: the position is trimmed, its ledger is unknown, or its entry is after the ledger's end.
    """
    trimmed = trimmed_before(view, topic_id)
    if position in (EARLIEST, trimmed):
        return
    if position < trimmed:
        raise DataLossError(
            f"Position {position} of {topic} was trimmed by retention, and entries before {trimmed} are gone: read "
            f"from {trimmed} or from the earliest message."
        )
    ledger = view.get(LedgerRecord, f"{topic_id}/{position.ledger:020d}")
    if ledger is None:
        raise DataLossError(
            f"Position {position} of {topic} is outside the topic, because ledger {position.ledger} does not exist: "
            "give the position of a message of this topic."
        )
    if not is_open(view, ledger) and position.entry > readable_end(view, topic_id, position.ledger):
        raise DataLossError(
            f"Position {position} of {topic} is outside the topic, because ledger {position.ledger} ends before it: "
            "give the position of a message of this topic."
        )


def _place(view: View, topic: str, segment: SegmentRecord) -> tuple[FileRecord | JournalPlace, bool]:
    """Return the file, or the journal frames, with a segment's entries, and True if a broker wrote the segment."""
    if isinstance(segment, UnsealedSegment):
        return segment.frames, True
    file = view.get(FileRecord, segment.file_id)
    if file is None:
        raise MetadataError(
            f"Segment {segment.record_id} of {topic} names file {segment.file_id}, which has no record: restore the "
            "metadata of this root."
        )
    ledger = view.get(LedgerRecord, f"{segment.topic_id}/{segment.ledger_id:020d}")
    return file, ledger is not None and ledger.incarnation is not None
