"""Retention: the segments of a topic that may be deleted, and the reason why each other segment is kept. Pure.

The front of the chain may be deleted, segment by segment, up to the first segment that must be kept. The first rule
that applies to a segment decides:

    last of a ledger that is open or not sealed to its end   kept, because new segments follow it
    a reader may need it (`holders.py`)                      kept
    retention 0/0, or the topic was truncated after it       trimmed
    its age is above the limit of retention by time          trimmed
    the size of later segments reaches the limit by size     trimmed

A ledger is trimmed with its last segment, and an empty ledger with the ledgers before it. The trim floor is the end of
the last trimmed segment, never the beginning of an empty ledger after it: a reader that has read everything is at that
end, and has lost nothing. If a chain would become empty, it gets an empty ledger with a larger id, because ids only
grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Final

from pulsar_on_spark.metadata.records import LedgerRecord, SegmentRecord, TrimRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position
from pulsar_on_spark.topic.catalog.policies.policies import RetentionPolicies
from pulsar_on_spark.topic.maintenance.retention.holders import Holder
from pulsar_on_spark.topic.managed_ledger.chain.chain import is_open, readable_end

_MIB: Final = 1 << 20
_MOST_MINUTES: Final = 2**31 - 1
"""Longer retentions count as this one, of 4,000 years, because Python has no durations of 2**63 minutes."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS: Final = 253_402_300_799_000
"""The end of the year 9999, to which publish times are clamped: a client may send any 64 bits."""


@dataclass(frozen=True, slots=True)
class Trim:
    """The entries to trim.

    Attributes:
        before: The position after the last segment to trim; EARLIEST if there is none.
        segments: The segments to trim, in the order of the chain.
        ledgers: The ledgers that are trimmed completely.
        takes_all: True if the whole chain is trimmed.
        unbuilt: Number of messages in these segments that the topic's history lacks; 0 if no policy enables a history.
    """

    before: Position = EARLIEST
    segments: tuple[SegmentRecord, ...] = ()
    ledgers: tuple[LedgerRecord, ...] = ()
    takes_all: bool = False
    unbuilt: int = 0


@dataclass(frozen=True, slots=True)
class KeptSegment:
    """A segment that is not deleted, and the reason as a sentence."""

    segment: SegmentRecord
    reason: str


def is_limited(retention: RetentionPolicies) -> bool:
    """Return True if the retention has a limit, so that it can delete entries."""
    return retention.retention_time_in_minutes >= 0 or retention.retention_size_in_mb >= 0


def truncated_before(view: View, topic_id: str) -> Position:
    """Return the end of the truncated entries that are not trimmed yet; EARLIEST if there are none."""
    trim = view.get(TrimRecord, topic_id)
    if trim is None or (trim.truncated_ledger, trim.truncated_entry) <= (trim.trimmed_ledger, trim.trimmed_entry):
        return EARLIEST
    return Position(LedgerId(trim.truncated_ledger), EntryId(trim.truncated_entry))


def decide_trim(
    view: View,
    topic_id: str,
    retention: RetentionPolicies,
    holding: Sequence[Holder],
    now: datetime,
    *,
    keeps_end: bool = False,
    most: int = 1_000,
) -> Trim:
    """Decide which entries to trim now.

    Args:
        view: The metadata.
        topic_id: The topic, or partition.
        retention: The retention in force for the topic.
        holding: The readers that may need entries (`holders`).
        now: The time on the trimmer's clock.
        keeps_end: True to keep the chain's last ledger, because the topic is terminated at its end.
        most: Maximum number of segments to trim in one commit; the next call continues.
    """
    truncated = truncated_before(view, topic_id)
    if not is_limited(retention) and truncated == EARLIEST:
        return Trim()
    judge = _Judge(view, topic_id, retention, holding, now, truncated)
    segments: list[SegmentRecord] = []
    ledgers: list[LedgerRecord] = []
    before = EARLIEST
    parts = _parts(view, topic_id, keeps_end=keeps_end)
    for number, part in enumerate(parts):
        for segment in part.segments:
            if len(segments) == most or judge.why_kept(part, segment) is not None:
                return Trim(before, tuple(segments), tuple(ledgers))
            segments.append(segment)
            before = _end(segment)
        is_last = number == len(parts) - 1
        if not part.is_finished or (is_last and not part.segments):
            break
        ledgers.append(part.ledger)
    return Trim(before, tuple(segments), tuple(ledgers), takes_all=bool(segments) and len(ledgers) == len(parts))


def why_kept(
    view: View,
    topic_id: str,
    retention: RetentionPolicies,
    holding: Sequence[Holder],
    now: datetime,
    *,
    keeps_end: bool = False,
) -> list[KeptSegment]:
    """Return the reason to keep each sealed segment of a topic, in chain order (arguments as `decide_trim`)."""
    judge = _Judge(view, topic_id, retention, holding, now, truncated_before(view, topic_id))
    segments_kept: list[KeptSegment] = []
    first: SegmentRecord | None = None
    for part in _parts(view, topic_id, keeps_end=keeps_end):
        for segment in part.segments:
            reason = judge.why_kept(part, segment)
            if reason is not None:
                first = first or segment
            elif first is None:
                reason = "Kept until the next pass of housekeeping, which trims it."
            else:
                reason = f"Kept because an earlier segment, from entry {first.ledger_id}:{first.first_entry}, is kept."
            segments_kept.append(KeptSegment(segment, reason))
        if not part.is_finished:
            first = first or (part.segments[-1] if part.segments else None)
    return segments_kept


@dataclass(frozen=True, slots=True)
class _LedgerPart:
    """A ledger with its sealed segments.

    `ended_at` is the time when the next ledger was created; None for the last one.
    """

    ledger: LedgerRecord
    segments: tuple[SegmentRecord, ...]
    is_finished: bool
    ended_at: datetime | None


class _Judge:
    """The retention rules for one topic; the caller calls `why_kept` for the segments in the order of the chain."""

    def __init__(
        self,
        view: View,
        topic_id: str,
        retention: RetentionPolicies,
        holding: Sequence[Holder],
        now: datetime,
        truncated: Position,
    ) -> None:
        self._slowest = min(holding, key=lambda holder: holder.position, default=None)
        self._retention = retention
        self._now = now
        self._truncated = truncated
        limit_mb = retention.retention_size_in_mb
        self._behind = sum(segment.bytes for segment in view.all(SegmentRecord, topic_id)) if limit_mb > 0 else 0

    def why_kept(self, part: _LedgerPart, segment: SegmentRecord) -> str | None:
        """Return the reason to keep a segment; None if it may be deleted together with all segments before it."""
        self._behind -= segment.bytes
        if not part.is_finished and segment is part.segments[-1]:
            return "Kept because its ledger is open, not completely sealed, or the last one of a terminated topic."
        if self._slowest is not None and _end(segment) > self._slowest.position:
            return f"Kept for {self._slowest.reason}."
        if _end(segment) <= self._truncated:
            return None
        minutes, size_mb = self._retention.retention_time_in_minutes, self._retention.retention_size_in_mb
        if minutes == 0 or size_mb == 0:
            return None
        if 0 <= size_mb * _MIB <= self._behind:
            return None
        if minutes >= 0 and self._now - _written_at(part, segment) > timedelta(minutes=min(minutes, _MOST_MINUTES)):
            return None
        if minutes < 0 and size_mb < 0:
            return "Kept by retention, which has no limit."
        limits = [f"{minutes} minutes"] * (minutes >= 0) + [f"{size_mb} MiB"] * (size_mb >= 0)
        return f"Kept by retention: {' or '.join(limits)}."


def _parts(view: View, topic_id: str, *, keeps_end: bool) -> list[_LedgerPart]:
    ledgers = view.all(LedgerRecord, topic_id)
    terminated_end = ledgers[-1] if ledgers and keeps_end else None
    segments = {
        ledger_id: tuple(segments_)
        for ledger_id, segments_ in groupby(view.all(SegmentRecord, topic_id), key=lambda segment: segment.ledger_id)
    }
    ends = [*(ledger.created_at for ledger in ledgers[1:]), None][: len(ledgers)]
    return [
        _LedgerPart(
            ledger,
            segments.get(ledger.ledger_id, ()),
            ledger is not terminated_end and _is_finished(view, ledger),
            ended_at,
        )
        for ledger, ended_at in zip(ledgers, ends, strict=True)
    ]


def _is_finished(view: View, ledger: LedgerRecord) -> bool:
    """Return True if a ledger is completely sealed.

    An attached ledger always is: if it is trimmed, Spark adds another ledger.
    """
    if ledger.incarnation is None:
        return True
    return not is_open(view, ledger) and ledger.entries == readable_end(view, ledger.topic_id, ledger.ledger_id)


def _written_at(part: _LedgerPart, segment: SegmentRecord) -> datetime:
    """Return a segment's newest publish time, within its ledger's lifetime because a producer's clock may be wrong."""
    published = _EPOCH + timedelta(milliseconds=min(max(segment.publish_max_ms, 0), _LAST_MS))
    written = max(published, part.ledger.created_at)
    return written if part.ended_at is None else min(written, max(part.ended_at, part.ledger.created_at))


def _end(segment: SegmentRecord) -> Position:
    return Position(LedgerId(segment.ledger_id), EntryId(segment.first_entry + segment.entries))
