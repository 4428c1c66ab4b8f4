"""Contents and backlogs of topics, in messages, including unsealed entries in journals; counted in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pulsar_on_spark.metadata.cursors import Cursors
from pulsar_on_spark.metadata.records import SegmentRecord, SubscriptionRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.ids import EARLIEST, Position
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.data_path.tail import Tail
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.chain.slices import SegmentSlice
from pulsar_on_spark.topic.managed_ledger.cursor.holes import AckHoles
from pulsar_on_spark.topic.managed_ledger.cursor.left_out import acknowledged_rows, left_out
from pulsar_on_spark.topic.managed_ledger.cursor.record import decode_holes
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions

IDLE_S: Final = 30.0
"""Idle time after which journal files are closed, in seconds."""


@dataclass(frozen=True, slots=True)
class CursorPosition:
    """The position of a cursor.

    Attributes:
        mark_delete: The first entry that is not acknowledged; everything before it is acknowledged.
        ack_holes: The acknowledged messages after `mark_delete`, encoded as in cursor records.
    """

    mark_delete: Position
    ack_holes: bytes


@dataclass(frozen=True, slots=True)
class Backlog:
    """The part of a topic that a subscription has not acknowledged.

    Attributes:
        messages: Number of unacknowledged messages.
        bytes: Key and value bytes of the unacknowledged messages.
        mark_delete: The first entry that is not acknowledged.
        entries: Number of entries from `mark_delete` on that are not completely acknowledged.
        holes: Acknowledged messages after `mark_delete`; empty for a Spark subscription, which has a position per slot.
        oldest_publish_ms: Earliest publish time in the oldest segment of the backlog, in milliseconds since 1970; 0 if
            it is unknown or there is no such segment.
    """

    messages: int
    bytes: int
    mark_delete: Position
    entries: int
    holes: AckHoles
    oldest_publish_ms: int = 0


@dataclass(frozen=True, slots=True)
class Contents:
    """A snapshot of a topic's contents.

    Attributes:
        view: The metadata, with the journals' contents.
        messages: Number of stored messages.
        bytes: Key and value bytes of the stored messages.
        backlogs: The backlog of each durable subscription, by name.
    """

    view: View
    messages: int
    bytes: int
    backlogs: Mapping[str, Backlog]


class BacklogCounter:
    """Snapshots of a root's topics, taken one at a time; each reuses the journal data that earlier snapshots read.

    Journal files are closed when they are idle, because an open file that was deleted takes space on a full disk, and
    prevents the unmounting of a retired storage path.

    Args:
        root: The open root.
    """

    def __init__(self, root: RootHandle) -> None:
        self._root = root
        self._tail = Tail(root, fail_on_data_loss=False)
        self._turn = asyncio.Lock()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Close the journals' files; a later snapshot opens them again."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        async with self._turn:
            await asyncio.to_thread(self._tail.close)

    async def read_contents(
        self,
        parts: Sequence[TopicPart],
        ends: Mapping[str, Position],
        positions: Mapping[tuple[str, str], CursorPosition],
    ) -> dict[str, Contents]:
        """Return the contents of topics, by topic id.

        Args:
            parts: The topics.
            ends: The readable ends of loaded topics, by topic id.
            positions: The positions of this broker's cursors, by topic id and subscription; they are newer than those
                in the cursors table.

        Raises:
            MetadataError, StorageError: the root cannot be read.
        """
        async with self._turn:
            try:
                return await asyncio.to_thread(self._read_contents, parts, ends, positions)
            finally:
                self._close_later()

    def _close_later(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = asyncio.get_running_loop().call_later(IDLE_S, self._close_idle)

    def _close_idle(self) -> None:
        self._closing = asyncio.create_task(self.close())

    def _read_contents(
        self,
        parts: Sequence[TopicPart],
        ends: Mapping[str, Position],
        positions: Mapping[tuple[str, str], CursorPosition],
    ) -> dict[str, Contents]:
        view = self._tail.read_view(parts)
        if any(chain.read_limit(view, topic_id) < end for topic_id, end in ends.items()):
            view = self._tail.read_view(parts, reach=ends)
        cursors = self._root.store.cursors()
        return {part.topic_id: contents(view, cursors, part, positions) for part in parts}


def contents(
    view: View, cursors: Cursors, part: TopicPart, positions: Mapping[tuple[str, str], CursorPosition]
) -> Contents:
    """Return the contents of a topic: its stored messages, and the backlog of each durable subscription.

    Args:
        view: The metadata, with the journals' contents.
        cursors: The rows of the cursors table.
        part: The topic.
        positions: The positions of this broker's cursors, by topic id and subscription.
    """
    segments = view.all(SegmentRecord, part.topic_id)
    backlogs = {}
    for record in view.all(SubscriptionRecord, part.topic_id):
        live = positions.get((part.topic_id, record.name))
        backlog = backlog_of(view, cursors, part, record) if live is None else _of_position(view, part, live)
        backlogs[record.name] = backlog
    return Contents(
        view, sum(segment.rows for segment in segments), sum(segment.bytes for segment in segments), backlogs
    )


def _of_position(view: View, part: TopicPart, live: CursorPosition) -> Backlog:
    holes = decode_holes(live.ack_holes)
    slices = _slices(view, part, live.mark_delete)
    acked_rows, acked_bytes = acknowledged_rows(slices, holes)
    return Backlog(
        messages=sum(slice_.rows for slice_ in slices) - acked_rows,
        bytes=sum(slice_.bytes for slice_ in slices) - acked_bytes,
        mark_delete=live.mark_delete,
        entries=_entries(slices, holes),
        holes=holes,
        oldest_publish_ms=_oldest_ms(view, part, live.mark_delete),
    )


def backlog_of(view: View, cursors: Cursors, part: TopicPart, record: SubscriptionRecord) -> Backlog:
    """Return the backlog of a subscription, by its rows in the cursors table.

    Args:
        view: The metadata, with the journals' contents.
        cursors: The rows of the cursors table.
        part: The topic.
        record: The subscription.
    """
    status = subscriptions.status(view, cursors, part, record)
    left = left_out(record, cursors.of(record.topic_id, record.name))
    holes = AckHoles() if left is None else left.holes
    return Backlog(
        messages=status.backlog_messages,
        bytes=status.backlog_bytes,
        mark_delete=status.mark_delete,
        entries=_entries(_slices(view, part, status.mark_delete), holes),
        holes=holes,
        oldest_publish_ms=_oldest_ms(view, part, status.mark_delete),
    )


def _slices(view: View, part: TopicPart, start: Position) -> Sequence[SegmentSlice]:
    end = chain.read_limit(view, part.topic_id)
    return chain.plan_range(view, part.name, part.topic_id, part.partition, start, end).slices


def _entries(slices: Sequence[SegmentSlice], holes: AckHoles) -> int:
    """Return the number of entries of the slices that are not completely acknowledged."""
    return sum(
        slice_.end - slice_.first - holes.within(slice_.segment.ledger_id, slice_.first, slice_.end).count
        for slice_ in slices
    )


def _oldest_ms(view: View, part: TopicPart, start: Position) -> int:
    end = chain.read_limit(view, part.topic_id)
    for piece in chain.walk_range(view, part.name, part.topic_id, part.partition, max(start, EARLIEST), end):
        if isinstance(piece, SegmentSlice):
            return piece.segment.publish_min_ms
    return 0
