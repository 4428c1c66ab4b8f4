"""Holders of a topic's entries: the subscriptions, compaction, deduplication and history that may need them. Pure.

    holder                               entries are kept from
    -----------------------------------  -----------------------------------------------------------------------------
    subscription, last read by a broker  its cursor row: rows are durable, and never move back within an epoch
    subscription, last read by Spark     its position of ten minutes ago, at least two passes with progress ago
    topic compaction                     its horizon: later entries are not compacted yet
    deduplication                        its snapshot's position: a starting broker replays the entries after it
    history, if a policy enables it      its end, unless no build has advanced it for a week

For Spark, earlier positions count, because its checkpoints are not synced: a power cut may undo the last batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pulsar_on_spark.metadata.cursors import WHOLE, Cursors
from pulsar_on_spark.metadata.records import (
    CursorMark,
    DedupRecord,
    HistoryMark,
    HistoryRecord,
    SegmentRecord,
    SubscriptionRecord,
    TrimRecord,
)
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position
from pulsar_on_spark.topic.catalog.policies.policies import Policies
from pulsar_on_spark.topic.managed_ledger.chain.compaction_record import trim_limit
from pulsar_on_spark.topic.managed_ledger.chain.slices import segment_end
from pulsar_on_spark.topic.managed_ledger.chain.steps import count_waiting
from pulsar_on_spark.topic.managed_ledger.subscription.positions import mark_delete

SPARK_KEEPS: Final = timedelta(minutes=10)
"""Time for which entries of a Spark query's committed batches are kept: the query's checkpoint is not synced, so that a
power cut may undo the last batches."""
MARK_EVERY: Final = timedelta(minutes=5)
"""Minimum time between two marks (`CursorMark`) of a cursor, so that few marks are kept."""
HISTORY_WAITS: Final = timedelta(days=7)
"""Time for which entries are kept for a history that no build advances, so that builds that always fail do not fill a
disk. The time begins when a trimmer first sees entries to build, however old these entries are."""
HISTORY_SKIPS: Final = timedelta(days=6)
"""Time after which housekeeping builds a history without the messages that it cannot read: a day before `HISTORY_WAITS`
ends, after which these messages and all later ones may be trimmed."""
_MARK_HISTORY_EVERY: Final = timedelta(hours=1)
"""Minimum time between two marks of a history that advances, so that a busy topic does not cost a commit each time."""
_MARKS_BEHIND: Final = 2
"""Minimum number of marks after a mark that counts: since then, batches were committed between that many passes."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A reader that may need the entries from a position on. `reason` completes the sentence "Kept for ..."."""

    position: Position
    reason: str


def holders(view: View, cursors: Cursors, topic_id: str, policies: Policies, now: datetime) -> list[Holder]:
    """Return all holders of a topic's entries.

    Args:
        view: The metadata.
        cursors: Cursor rows, durable and read after the view.
        topic_id: The topic, or partition.
        policies: The policies in force for the topic.
        now: The time on the trimmer's clock.
    """
    marks = marked(view, cursors, topic_id, now)
    holders_ = []
    for record in view.all(SubscriptionRecord, topic_id):
        position = mark_delete(record, cursors.of(topic_id, record.name))
        if not _is_sparks(record, cursors):
            holders_.append(Holder(position, f"subscription {record.name!r}, which has not acknowledged it"))
            continue
        settled = _settled([mark for mark in marks if mark.subscription == record.name], position, now)
        reason = "which has not acknowledged it" if settled == position else "for which Spark may read it again"
        holders_.append(Holder(settled, f"subscription {record.name!r}, {reason}"))
    compacted = trim_limit(view, topic_id) or (EARLIEST if policies.compaction_threshold else None)
    if compacted is not None:
        holders_.append(Holder(compacted, "topic compaction, which has not read it yet"))
    dedup = view.get(DedupRecord, topic_id)
    if dedup is not None:
        position_ = Position(LedgerId(dedup.ledger), EntryId(dedup.entry))
        holders_.append(Holder(position_, "deduplication, which replays it when a broker starts"))
    waiting = history_mark(view, topic_id, policies, now)
    if waiting is not None and now - waiting.seen_at < HISTORY_WAITS:
        holders_.append(Holder(_built(view, topic_id), "its history, which is not built so far"))
    return holders_


def marked(view: View, cursors: Cursors, topic_id: str, now: datetime) -> tuple[CursorMark, ...]:
    """Return the cursor marks to store: old marks that may still count, and a new mark for each moved Spark cursor."""
    trim = view.get(TrimRecord, topic_id)
    old = () if trim is None else trim.marks
    kept: list[CursorMark] = []
    for record in view.all(SubscriptionRecord, topic_id):
        if not _is_sparks(record, cursors):
            continue
        position = mark_delete(record, cursors.of(topic_id, record.name))
        own = [mark for mark in old if mark.subscription == record.name and _at(mark) <= position]
        if not own or (_at(own[-1]) < position and now - own[-1].seen_at >= MARK_EVERY):
            own.append(CursorMark(subscription=record.name, ledger=position.ledger, entry=position.entry, seen_at=now))
        kept += own[max(_last_settled(own, now), 0) :]
    return tuple(kept)


def history_mark(view: View, topic_id: str, policies: Policies, now: datetime) -> HistoryMark | None:
    """Return the mark to store: the history's end, and the time since which later entries have waited for a build.

    A mark of less than an hour ago is returned unchanged. The result is None if no policy enables the history, or if
    the history includes all sealed entries.
    """
    trim = view.get(TrimRecord, topic_id)
    old = None if trim is None else trim.history
    if not policies.history.enabled:
        return None
    if old is not None and now - old.seen_at < _MARK_HISTORY_EVERY:
        return old
    built, last = _built(view, topic_id), view.all(SegmentRecord, topic_id)[-1:]
    if all(_end(each) <= built for each in last):
        return None
    if old is not None and _at(old) == built:
        return old
    return HistoryMark(ledger=built.ledger, entry=built.entry, seen_at=now)


def is_history_overdue(view: View, topic_id: str, policies: Policies, now: datetime) -> bool:
    """Return True if no build has advanced a history for `HISTORY_SKIPS`, although entries wait for a build."""
    waiting = history_mark(view, topic_id, policies, now)
    return waiting is not None and now - waiting.seen_at >= HISTORY_SKIPS


def count_unbuilt(view: View, topic_id: str, policies: Policies, before: Position) -> int:
    """Return the number of messages before a position that the history lacks; 0 if no policy enables the history."""
    return count_waiting(view, topic_id, _built(view, topic_id), before).rows if policies.history.enabled else 0


def _built(view: View, topic_id: str) -> Position:
    record = view.get(HistoryRecord, topic_id)
    return EARLIEST if record is None else Position(LedgerId(record.to_ledger), EntryId(record.to_entry))


def _end(segment: SegmentRecord) -> Position:
    return Position(LedgerId(segment.ledger_id), EntryId(segment_end(segment)))


def _settled(own: Sequence[CursorMark], position: Position, now: datetime) -> Position:
    """Return the position from which a Spark query, whose cursor is at `position`, may need entries."""
    index = _last_settled(own, now)
    return EARLIEST if index < 0 else min(_at(own[index]), position)


def _last_settled(own: Sequence[CursorMark], now: datetime) -> int:
    """Return the index of the newest mark that is old enough to count; -1 if there is none."""
    for index in range(len(own) - 1 - _MARKS_BEHIND, -1, -1):
        if now - own[index].seen_at >= SPARK_KEEPS:
            return index
    return -1


def _is_sparks(record: SubscriptionRecord, cursors: Cursors) -> bool:
    if record.face == "broker":
        return False
    newest = max(cursors.of(record.topic_id, record.name), key=lambda row: row.rank, default=None)
    if newest is None:
        return any(owner.consumer is not None for owner in record.owners)
    return newest.slot != WHOLE


def _at(mark: CursorMark | HistoryMark) -> Position:
    return Position(LedgerId(mark.ledger), EntryId(mark.entry))
