"""Retention: the segments of a topic that may be deleted, and the reason why each other one is kept. Pure.

The front of the chain may be deleted, segment by segment, up to the first one that must stay:

    its ledger is open, or not sealed to its end    the ledger's last segment stays: it shows where the ledger continues
    a reader may need it (`holders.py`)             stays
    retention 0/0, or it was truncated              trimmed
    retention by time and size                      trimmed if its age or the size kept after it is above either limit

A ledger is trimmed with its last segment, and an empty one with those before it. The floor is the end of the last
trimmed segment, never the begin of an empty ledger after it: a reader of all messages is there, and has lost nothing.
Where nothing would be left of a chain, an empty ledger with a larger id takes its end's place: ids only grow.
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
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS: Final = 253_402_300_799_000
"""The year 9999: clients may publish with any 64 bits."""


@dataclass(frozen=True, slots=True)
class Trim:
    """The entries to trim.

    Attributes:
        before: The end of the last segment that goes; EARLIEST if none goes.
        segments: In the order of the chain.
        ledgers: Those of which nothing is left.
        takes_all: Whether nothing is left of the chain.
    """

    before: Position = EARLIEST
    segments: tuple[SegmentRecord, ...] = ()
    ledgers: tuple[LedgerRecord, ...] = ()
    takes_all: bool = False


@dataclass(frozen=True, slots=True)
class KeptSegment:
    """A segment that stays, and why; `reason` is a sentence."""

    segment: SegmentRecord
    reason: str


def is_limited(retention: RetentionPolicies) -> bool:
    """True if retention ever deletes anything."""
    return retention.retention_time_in_minutes >= 0 or retention.retention_size_in_mb >= 0


def truncated_before(view: View, topic_id: str) -> Position:
    """Return the end of the truncated entries that still exist; EARLIEST if there are none."""
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
        retention: What holds for it.
        holding: The readers that may need entries (`holders`).
        now: The trimmer's clock.
        keeps_end: Keep the chain's last ledger: the topic is terminated at its end.
        most: Segments that go at once; the rest goes next time.
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
    kept: list[KeptSegment] = []
    first: SegmentRecord | None = None
    for part in _parts(view, topic_id, keeps_end=keeps_end):
        for segment in part.segments:
            reason = judge.why_kept(part, segment)
            if reason is not None:
                first = first or segment
            elif first is None:
                reason = "Kept until the next pass of housekeeping, which trims it."
            else:
                reason = f"Kept because what is before it is kept, from entry {first.ledger_id}:{first.first_entry} on."
            kept.append(KeptSegment(segment, reason))
        if not part.is_finished:
            first = first or (part.segments[-1] if part.segments else None)
    return kept


@dataclass(frozen=True, slots=True)
class _LedgerPart:
    """A ledger with its sealed segments; `ended_at` is when the next one began, None for the last."""

    ledger: LedgerRecord
    segments: tuple[SegmentRecord, ...]
    is_finished: bool
    ended_at: datetime | None


class _Judge:
    """Judges segments in the order of the chain."""

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
        """Return the reason to keep a segment; None if it may be deleted with all segments before it."""
        self._behind -= segment.bytes
        if not part.is_finished and segment is part.segments[-1]:
            return "Kept for its ledger, which is open, not sealed to its end, or that of a terminated topic."
        if self._slowest is not None and _end(segment) > self._slowest.position:
            return f"Kept for {self._slowest.reason}."
        if _end(segment) <= self._truncated:
            return None
        minutes, size_mb = self._retention.retention_time_in_minutes, self._retention.retention_size_in_mb
        if minutes == 0 or size_mb == 0:
            return None
        if 0 <= size_mb * _MIB <= self._behind:
            return None
        if minutes >= 0 and self._now - _written_at(part, segment) > timedelta(minutes=minutes):
            return None
        if minutes < 0 and size_mb < 0:
            return "Kept by retention, which is without limit."
        limits = [f"{minutes} minutes"] * (minutes >= 0) + [f"{size_mb} MiB"] * (size_mb >= 0)
        return f"Kept by retention: {' or '.join(limits)}."


def _parts(view: View, topic_id: str, *, keeps_end: bool) -> list[_LedgerPart]:
    ledgers = view.all(LedgerRecord, topic_id)
    kept = ledgers[-1] if ledgers and keeps_end else None
    segments = {
        ledger_id: tuple(own)
        for ledger_id, own in groupby(view.all(SegmentRecord, topic_id), key=lambda segment: segment.ledger_id)
    }
    ends = [*(ledger.created_at for ledger in ledgers[1:]), None][: len(ledgers)]
    return [
        _LedgerPart(
            ledger,
            segments.get(ledger.ledger_id, ()),
            ledger is not kept and _is_finished(view, ledger),
            ended_at,
        )
        for ledger, ended_at in zip(ledgers, ends, strict=True)
    ]


def _is_finished(view: View, ledger: LedgerRecord) -> bool:
    """True if all of a ledger is sealed; an attached one always is, and Spark continues in another if it is gone."""
    if ledger.incarnation is None:
        return True
    return not is_open(view, ledger) and ledger.entries == readable_end(view, ledger.topic_id, ledger.ledger_id)


def _written_at(part: _LedgerPart, segment: SegmentRecord) -> datetime:
    """Return when the newest entry was written: by its producer's clock, but within the life of its ledger."""
    published = _EPOCH + timedelta(milliseconds=min(max(segment.publish_max_ms, 0), _LAST_MS))
    written = max(published, part.ledger.created_at)
    return written if part.ended_at is None else min(written, max(part.ended_at, part.ledger.created_at))


def _end(segment: SegmentRecord) -> Position:
    return Position(LedgerId(segment.ledger_id), EntryId(segment.first_entry + segment.entries))
