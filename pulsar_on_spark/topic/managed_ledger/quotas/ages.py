"""The publish time of a subscription's oldest unacknowledged message, estimated from the metadata alone. Pure."""

from __future__ import annotations

from typing import Final

from pulsar_on_spark.metadata.records import LedgerRecord, SegmentRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.topic.managed_ledger.chain.chain import readable_end

NOTHING_MS: Final = 2**62
"""The publish time, in ms since 1970, that stands for a backlog without messages; every real one is earlier."""


def oldest_publish_ms(view: View, topic_id: str, start: Position) -> int | None:
    """Return a lower bound of the publish times of the messages from a position on, in ms since 1970.

    It is the earliest publish time in the segment with the first of these messages, so an acknowledged message of that
    segment may lower it. It is None if the messages are only in journals, and NOTHING_MS if there are no messages.
    """
    for segment in view.since(SegmentRecord, topic_id, f"{topic_id}/{start.ledger:020d}/{start.entry:020d}"):
        if (segment.ledger_id, segment.first_entry + segment.entries) > (start.ledger, start.entry):
            return segment.publish_min_ms
    last = view.newest(LedgerRecord, topic_id)
    if last is None or last.incarnation is None or last.entries == readable_end(view, topic_id, last.ledger_id):
        return NOTHING_MS
    return None
