"""The progress of a topic's history in the metadata, and the end of the topic's readable messages. Pure functions."""

from __future__ import annotations

from pulsar_on_spark.history_table.plan import NOT_BUILT, Progress
from pulsar_on_spark.metadata.records import HistoryRecord, SegmentRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.chain.slices import segment_end


def recorded_progress(view: View, topic_id: str) -> Progress:
    """Return the progress of the history of a topic or partition in the metadata; `NOT_BUILT` if it has none."""
    record = view.get(HistoryRecord, topic_id)
    if record is None:
        return NOT_BUILT
    to = Position(LedgerId(record.to_ledger), EntryId(record.to_entry))
    return Progress(record.generation, to, record.rows, record.bytes)


def end_of_messages(view: View, topic_id: str, before: Position | None = None) -> Position:
    """Return the position after the last entry that readers of this view may read; `EARLIEST` if there is no entry.

    Unlike the position of `chain.read_limit`, this position is always in the ledger of that entry.

    Args:
        view: The metadata.
        topic_id: The id of the topic or partition.
        before: The position from which on entries do not count; None to count all.
    """
    limit = chain.read_limit(view, topic_id) if before is None else before
    last = view.before(SegmentRecord, topic_id, f"{topic_id}/{limit.ledger:020d}/{limit.entry:020d}")
    if last is None:
        return EARLIEST
    end = segment_end(last) if last.ledger_id < limit.ledger else min(segment_end(last), limit.entry)
    return Position(LedgerId(last.ledger_id), EntryId(end))
