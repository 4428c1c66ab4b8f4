"""The plan of a micro-batch: ranges, backlogs and slices from offsets and a view of the metadata. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pulsar_on_spark.datasource.options import TopicSelection
from pulsar_on_spark.datasource.scan import ScanPiece
from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.metadata.state import DurableView, View
from pulsar_on_spark.model.ids import EARLIEST, Position, TopicId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.chain.slices import SegmentSlice
from pulsar_on_spark.topic.managed_ledger.chain.steps import count_waiting
from pulsar_on_spark.topic.managed_ledger.chain.tail_view import TailView
from pulsar_on_spark.topic.managed_ledger.cursor.left_out import LeftOut, acknowledged_rows
from pulsar_on_spark.topic.managed_ledger.subscription.offsets import ALL, SlotRange, StreamOffset, TopicOffset
from pulsar_on_spark.topic.managed_ledger.subscription.slots import SLOTTED


def existing_parts(view: View, selection: TopicSelection) -> list[TopicPart]:
    """Return the existing partitions and unpartitioned topics of the selection, in order, each once."""
    if selection.pattern is not None:
        found = catalog.matching_topics(view, selection.pattern)
    else:
        named = (view.get(TopicRecord, name.full) for name in catalog.names(selection.names))
        found = [topic for topic in named if topic is not None]
    return list(dict.fromkeys(part for topic in found for part in catalog.parts(view, topic)))


def part_of(view: View, name: str, topic_id: TopicId) -> TopicPart | None:
    """Return the topic or partition with this name and id; None if it was deleted, or created again with another id."""
    record = view.get(TopicRecord, name)
    if record is None or record.topic_id != topic_id:
        return None
    return TopicPart(name, topic_id, TopicName.parse(name).partition_index if record.partition_of else -1)


def vanished(view: DurableView, committed: StreamOffset, parts: Sequence[TopicPart]) -> list[str]:
    """Return the reasons, as clauses for errors, why topics of the committed offset are not in `parts`."""
    _, changes = committed.reconcile_topics({part.name: TopicId(part.topic_id) for part in parts})
    reasons = []
    for name in changes.vanished:
        record = view.get(TopicRecord, name)
        if record is None:
            reasons.append(f"topic {name} was deleted under this query")
        elif record.topic_id != committed.topics[name].topic_id:
            reasons.append(f"topic {name} was deleted and created again under this query")
        else:
            reasons.append(f"topic {name} is in the query's checkpoint, but the query's options no longer select it")
    return reasons


def unread(part: TopicPart, position: Position) -> TopicOffset:
    """Return the offset of a topic that the query has not read yet: all its slots begin at `position`."""
    return TopicOffset(TopicId(part.topic_id), (SlotRange(ALL, 0, position, position),))


def whole_topics(committed: StreamOffset, parts: Sequence[TopicPart]) -> dict[str, TopicOffset]:
    """Return the starts of the next batch of a query without a subscription, as empty ranges, by full name.

    For a topic in the committed offset, the batch starts where the committed range ends. For a new topic, it starts at
    the topic's earliest message.
    """
    offset, _ = committed.reconcile_topics({part.name: TopicId(part.topic_id) for part in parts})
    return {
        name: TopicOffset(
            topic.topic_id, tuple(SlotRange(r.slots, r.epoch, r.end, r.end, r.holes) for r in topic.ranges)
        )
        for name, topic in offset.topics.items()
    }


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a batch, which has at least one entry all the same.

    Attributes:
        rows: Maximum number of messages; None for no limit.
        bytes: Maximum number of key and value bytes; None for no limit.
    """

    rows: int | None
    bytes: int | None

    @property
    def is_unlimited(self) -> bool:
        """True if a batch takes the whole backlog."""
        return self.rows is None and self.bytes is None


@dataclass(frozen=True, slots=True)
class Backlog:
    """The unread messages of a topic between two positions.

    Attributes:
        part: The topic or partition.
        start: The position of the first unread entry.
        end: The position after the last entry.
        rows: Number of messages between `start` and `end`.
        slices: The slices from `start` to `enough`; empty if the budget is unlimited.
        enough: The position up to which there are at least as many messages or bytes as the budget allows; otherwise
            `end`.
    """

    part: TopicPart
    start: Position
    end: Position
    rows: int
    slices: tuple[SegmentSlice, ...]
    enough: Position


def backlogs(
    view: View,
    parts: Sequence[TopicPart],
    reading: Mapping[str, TopicOffset],
    targets: Mapping[str, Position] | None,
    budget: Budget,
) -> list[Backlog]:
    """Return the backlog of each topic that is read, from the position of its slowest slot on.

    Args:
        view: The metadata.
        parts: The topics and partitions.
        reading: The ranges to read, by full name; a topic without ranges is not read.
        targets: The ends of an AvailableNow query by full name, where an absent topic is not read; None for another
            query.
        budget: The limits of a batch.
    """
    backlogs_ = []
    for part in parts:
        ranges = reading[part.name].ranges
        if ranges:
            start = min(range_.start for range_ in ranges)
            end = chain.read_limit(view, part.topic_id)
            if targets is not None:
                end = min(end, targets.get(part.name, EARLIEST))
            end = max(start, end)
            ahead = count_waiting(view, part.topic_id, start, end, budget.rows, budget.bytes)
            slices = () if budget.is_unlimited else _plan(view, part, start, ahead.enough).slices
            backlogs_.append(Backlog(part, start, end, ahead.rows, slices, ahead.enough))
    return backlogs_


def cut_off(view: View, parts: Sequence[TopicPart], reading: Mapping[str, TopicOffset]) -> list[str]:
    """Return clauses for errors, one for each topic that now ends before the position up to which the query has read.

    Such a topic has lost messages. A topic that was read up to the beginning of a ledger is left out, because it may
    end with an earlier ledger. A topic whose journal this process cannot read is left out, too, because its end is
    unknown.
    """
    hidden = view.hidden if isinstance(view, TailView) else frozenset()
    reasons = []
    for part in parts:
        if part.topic_id in hidden:
            continue
        end = chain.read_limit(view, part.topic_id)
        furthest = max((range_.start for range_ in reading[part.name].ranges), default=EARLIEST)
        if furthest.entry > 0 and EARLIEST < end < furthest:
            reasons.append(f"topic {part.name} ends at {end}, and this query has read it up to {furthest}")
    return reasons


def furthest(topic: TopicOffset) -> Position:
    """Return the end of the batch in a topic: the highest end of its ranges; EARLIEST if all its ranges are empty."""
    return max((range_.end for range_ in topic.ranges if range_.start < range_.end), default=EARLIEST)


def read_up_to(reading: Mapping[str, TopicOffset], ends: Mapping[str, Position]) -> dict[str, TopicOffset]:
    """Return the ranges with new ends: each ends at its topic's position in `ends`, but not before its start."""
    return {
        name: TopicOffset(
            topic.topic_id,
            tuple(
                SlotRange(r.slots, r.epoch, r.start, max(r.start, ends.get(name, r.start)), r.holes)
                for r in topic.ranges
            ),
        )
        for name, topic in reading.items()
    }


def batch_pieces(
    view: View, part: TopicPart, ranges: Sequence[SlotRange], left_out: LeftOut | None = None
) -> tuple[list[ScanPiece], list[chain.Loss]]:
    """Return the pieces of one topic for tasks, and its losses, in order.

    Args:
        view: The metadata.
        part: The topic or partition.
        ranges: The ranges of its slots; where they overlap, a piece has the slots of all of them.
        left_out: The acknowledged entries to skip; None for none.
    """
    pieces: list[ScanPiece] = []
    losses: list[chain.Loss] = []
    for start, end, slots in _intervals(ranges):
        plan = _plan(view, part, start, end)
        pieces += (ScanPiece(slice_, slots, b"" if left_out is None else left_out.of(slice_)) for slice_ in plan.slices)
        losses += plan.losses
    return pieces, losses


def named_rows(ranges: Sequence[SlotRange]) -> set[tuple[int, int]]:
    """Return the ranks (epoch, n) of the cursor rows that the ranges of one topic name; at most one rank."""
    return {range_.holes for range_ in ranges if range_.holes is not None}


def behind(ranges: Sequence[SlotRange], left_out: LeftOut) -> list[SlotRange]:
    """Return the ranges of a batch without the entries before the mark-delete position of a later cursor row.

    If `left_out` is the cursor row with which the batch was planned, the ranges are returned unchanged.
    """
    if left_out.rank in named_rows(ranges):
        return list(ranges)
    return [replace(r, start=min(max(r.start, left_out.mark_delete), r.end)) for r in ranges]


def _intervals(ranges: Sequence[SlotRange]) -> list[tuple[Position, Position, frozenset[int] | None]]:
    """Return the intervals (start, end, slots) in order, without overlaps; slots are None for the whole topic."""
    if any(range_.slots == ALL for range_ in ranges):
        return [(range_.start, range_.end, None) for range_ in ranges]
    bounds = sorted({bound for range_ in ranges for bound in (range_.start, range_.end)})
    intervals: list[tuple[Position, Position, frozenset[int] | None]] = []
    for start, end in pairwise(bounds):
        slots = frozenset(
            slot for range_ in ranges if range_.start <= start and end <= range_.end for slot in range_.numbers
        )
        if slots:
            intervals.append((start, end, slots))
    return intervals


def progress(view: View, offset: StreamOffset, left_out: Mapping[str, LeftOut] | None = None) -> dict[str, object]:
    """Return the topics' ends, and the backlog after an offset in messages and bytes, for Spark's progress report.

    Each of a topic's 64 slots counts as one 64th of the topic's messages.

    Args:
        view: The metadata.
        offset: The end offset of the last planned batch.
        left_out: The acknowledged entries, which are not part of the backlog, by full topic name; None for none.
    """
    acked = left_out or {}
    messages = size = 0.0
    ends: dict[str, list[int]] = {}
    for name, topic in sorted(offset.topics.items()):
        part = part_of(view, name, topic.topic_id)
        if part is None:
            continue
        end = chain.read_limit(view, part.topic_id)
        ends[name] = [end.ledger, end.entry]
        for position, share in _shares(topic.ranges).items():
            ahead = count_waiting(view, part.topic_id, position, end)
            rows, size_bytes = ahead.rows, ahead.bytes
            holes = acked.get(name)
            if holes is not None and position < holes.end:
                acked_rows, acked_bytes = acknowledged_rows(_plan(view, part, position, holes.end).slices, holes.holes)
                rows, size_bytes = rows - acked_rows, size_bytes - acked_bytes
            messages += rows * share
            size += size_bytes * share
    return {"backlogBytes": round(size), "backlogMessages": round(messages), "topics": ends}


def _shares(ranges: Sequence[SlotRange]) -> dict[Position, float]:
    """Return the share of the topic's slots (0 to 1) whose ranges end at a position, by position."""
    shares: dict[Position, float] = {}
    for range_ in ranges:
        share = 1.0 if range_.slots == ALL else len(range_.numbers) / len(SLOTTED)
        shares[range_.end] = shares.get(range_.end, 0.0) + share
    return shares


def _plan(view: View, part: TopicPart, start: Position, end: Position) -> chain.RangePlan:
    return chain.plan_range(view, part.name, part.topic_id, part.partition, start, end)
