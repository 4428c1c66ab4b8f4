"""The age of a subscription's oldest unacknowledged message, as far as the metadata show. Pure."""

from __future__ import annotations

from typing import Final

from pulsar_on_spark.metadata.records import LedgerRecord, SegmentRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.topic.managed_ledger.chain.chain import readable_end

NOTHING_MS: Final = 2**62
"""Publish time later than that of any message, for a backlog without messages."""


def oldest_publish_ms(view: View, topic_id: str, start: Position) -> int | None:
    """Return the earliest publish time, in ms since 1970, that the oldest message from a position on may have.

    It is the earliest publish time in the segment with the position, which may be that of an acknowledged message. It
    is None if only journals have the message, and NOTHING_MS if there is no message.
    """
    for segment in view.since(SegmentRecord, topic_id, f"{topic_id}/{start.ledger:020d}/{start.entry:020d}"):
        if (segment.ledger_id, segment.first_entry + segment.entries) > (start.ledger, start.entry):
            return segment.publish_min_ms
    last = view.newest(LedgerRecord, topic_id)
    if last is None or last.incarnation is None or last.entries == readable_end(view, topic_id, last.ledger_id):
        return NOTHING_MS
    return None
