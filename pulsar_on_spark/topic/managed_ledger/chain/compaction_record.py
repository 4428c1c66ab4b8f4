"""The positions that separate a topic's compacted ledger from its log. Pure functions of a metadata view."""

from __future__ import annotations

from pulsar_on_spark.metadata.records import CompactionRecord, SegmentRecord, TrimRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.chain.steps import count_waiting


def horizon_of(record: CompactionRecord | None) -> Position:
    """Return the first position that is not compacted.

    EARLIEST if `record` is None, because there was no compaction.
    """
    if record is None:
        return EARLIEST
    return Position(LedgerId(record.horizon_ledger), EntryId(record.horizon_entry))


def trim_limit(view: View, topic_id: str) -> Position | None:
    """Return the position from which on no entry may be trimmed; None if the topic is not compacted.

    Entries before the position are in the compacted ledger. Entries from it on are only in the log. Pulsar protects
    these by the cursor `__compaction`.
    """
    record = view.get(CompactionRecord, topic_id)
    return None if record is None else horizon_of(record)


def log_start(view: View, topic_id: str, record: CompactionRecord | None) -> Position:
    """Return the position in the log after all compacted, trimmed and truncated entries.

    `record` is the topic's compaction record; None if it was never compacted.

    If no segment of that position's ledger is left, the first entry of the next ledger with segments is returned.
    """
    trim = view.get(TrimRecord, topic_id)
    at = horizon_of(record)
    if trim is not None:
        at = max(at, chain.trimmed_before(view, topic_id), truncated_before(trim))
    for segment in view.since(SegmentRecord, topic_id, f"{topic_id}/{at.ledger:020d}/{at.entry:020d}"):
        if segment.ledger_id == at.ledger:
            return at
        if segment.ledger_id > at.ledger:
            return Position(LedgerId(segment.ledger_id), EntryId(segment.first_entry))
    return at


def truncated_before(trim: TrimRecord) -> Position:
    """Return the position after the truncated entries, trimmed or not, which no compaction may restore."""
    return Position(LedgerId(trim.truncated_ledger), EntryId(trim.truncated_entry))


def waiting_bytes(view: View, topic_id: str) -> int:
    """Return the key and value bytes in the log that are not compacted yet, to compare with a compaction threshold."""
    start = log_start(view, topic_id, view.get(CompactionRecord, topic_id))
    return count_waiting(view, topic_id, start, chain.read_limit(view, topic_id)).bytes
