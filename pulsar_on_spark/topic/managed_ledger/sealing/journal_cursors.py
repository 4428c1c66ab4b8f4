"""Cursor records in a journal's frames. A frame must be kept until the cursors table covers all of its records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from pulsar_on_spark.ledger.journal.frames import Frame
from pulsar_on_spark.ledger.journal.log import FrameKind, FrameNumber
from pulsar_on_spark.metadata.cursors import CursorRow, Cursors
from pulsar_on_spark.metadata.records import SubscriptionRecord
from pulsar_on_spark.metadata.state import DurableView
from pulsar_on_spark.metadata.store import MetadataStore
from pulsar_on_spark.model.ids import TopicId
from pulsar_on_spark.topic.managed_ledger.cursor.handover import broker_cursor
from pulsar_on_spark.topic.managed_ledger.cursor.record import CursorRecord, decode

CursorKey: TypeAlias = tuple[TopicId, str]
"""The key of a cursor: (topic id, subscription)."""
Rank: TypeAlias = tuple[int, int]
"""The rank of a cursor record: (epoch, n); the largest of a cursor is the newest."""


@dataclass(slots=True)
class CursorsInFrames:
    """The rank of each subscription's newest cursor record in each of the frames [begin, end), added in order.

    If a frame is added that does not follow the last one, all earlier frames are dropped.
    """

    begin: FrameNumber = 0
    end: FrameNumber = 0
    _ranks: dict[FrameNumber, dict[CursorKey, Rank]] = field(default_factory=dict)

    def pass_over(self, begin: FrameNumber, end: FrameNumber) -> None:
        """Add the lost frames [begin, end) as frames without records, so that trimming does not wait for them."""
        if begin != self.end:
            self.begin, self._ranks = begin, {}
        self.end = end

    def add_frames(self, frames: Iterable[Frame]) -> None:
        """Add frames; if a frame does not follow the previous one, all earlier frames are dropped.

        Raises:
            CorruptJournalError, CorruptCursorError, FormatVersionError: a record cannot be read.
        """
        for frame in frames:
            if frame.header.number != self.end:
                self.begin, self._ranks = frame.header.number, {}
            self.end = frame.header.number + 1
            if frame.header.kind is FrameKind.CURSOR:
                ranks = self._ranks.setdefault(frame.header.number, {})
                for record in cursor_records(frame):
                    ranks[record.cursor_key] = max(record.rank, ranks.get(record.cursor_key, record.rank))

    def newest_within(self, begin: FrameNumber, end: FrameNumber) -> Mapping[CursorKey, Rank] | None:
        """Return the rank of each subscription's newest record in frames [begin, end); None if frames are missing."""
        if begin < self.begin or end > self.end:
            return None
        newest: dict[CursorKey, Rank] = {}
        for number, ranks in self._ranks.items():
            if begin <= number < end:
                for key, rank in ranks.items():
                    newest[key] = max(rank, newest.get(key, rank))
        return newest

    def forget_frames(self, before: FrameNumber) -> None:
        """Drop frames below `before`."""
        self.begin = max(self.begin, min(before, self.end))
        for number in [number for number in self._ranks if number < before]:
            del self._ranks[number]


def cursor_records(frame: Frame) -> list[CursorRecord]:
    """Return the cursor records of a CURSOR frame; errors are those of `CursorsInFrames.add_frames`."""
    return [decode(record) for _, record in frame.cursor_records()]


def not_snapshotted(store: MetadataStore, ranks: Mapping[CursorKey, Rank]) -> list[CursorKey]:
    """Return the subscriptions whose cursor records at these ranks are not covered by durable metadata.

    A record is covered if the cursors table has a row of the same or a higher rank, which includes its contents. It is
    also covered if it no longer counts, because the subscription was deleted, reset, or acquired by another owner under
    a later epoch. Only durable views of both tables count.

    Raises:
        MetadataError: the tables cannot be read.
    """
    return [key for key, _, _ in _uncovered(store, ranks)]


def _uncovered(
    store: MetadataStore, ranks: Mapping[CursorKey, Rank]
) -> list[tuple[CursorKey, SubscriptionRecord, list[CursorRow]]]:
    """Return the keys of `not_snapshotted`, each with the subscription's record and its cursor rows."""
    if not ranks:
        return []
    # Read in this order, because a subscription's record is in the main table before any of its rows.
    return _uncovered_by(store.view(durable=True), store.cursors(durable=True), ranks)


def _uncovered_by(
    view: DurableView, cursors: Cursors, ranks: Mapping[CursorKey, Rank]
) -> list[tuple[CursorKey, SubscriptionRecord, list[CursorRow]]]:
    uncovered = []
    for (topic_id, name), rank in ranks.items():
        record = view.get(SubscriptionRecord, f"{topic_id}/{name}")
        if record is None:
            continue
        rows = list(cursors.of(topic_id, name))
        epochs = (record.start_epoch, *(owner.epoch for owner in record.owners))
        if max(epochs) <= rank[0] and not any(row.rank >= rank for row in rows):
            uncovered.append(((topic_id, name), record, rows))
    return uncovered


def snapshot_cursors(store: MetadataStore, frames: Iterable[Frame]) -> None:
    """Append the cursors that result from all records in a CLOSED log's frames to the cursors table.

    Any process may call this, any number of times: of a cursor's rows, the largest (epoch, n) counts. Cursors that the
    table covers already are left out. The frames may be in any order.

    Raises:
        CorruptJournalError, FormatVersionError: a frame or a record cannot be read.
        CorruptCursorError: a record is damaged, or a cursor's newest epoch has changes but no snapshot.
        MetadataError: the table cannot be read or written.
    """
    by_cursor: dict[CursorKey, list[CursorRecord]] = defaultdict(list)
    for frame in frames:
        if frame.header.kind is FrameKind.CURSOR:
            for record in cursor_records(frame):
                by_cursor[record.cursor_key].append(record)
    ranks = {key: max(record.rank for record in by_cursor[key]) for key in by_cursor}
    stands = (broker_cursor(record, rows, by_cursor[key]) for key, record, rows in _uncovered(store, ranks))
    store.append_cursors([record_.to_row() for record_ in stands])
