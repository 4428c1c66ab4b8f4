"""Entries that a topic's policies do not allow."""

from __future__ import annotations

import pytest

from pulsar_on_spark.broker.topics.topic_policies import publish_refusal
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.topic.catalog.policies.policies import DelayedDelivery, Policies
from tests.kit.pulsar_entries import ClientMessage, single_entry

NOW_MS = 1_753_500_000_000


def entry(size: int, delay_ms: int = 0) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=NOW_MS)
    if delay_ms:
        metadata.deliver_at_time = NOW_MS + delay_ms
    return single_entry(ClientMessage(b"x" * size), metadata=metadata)


@pytest.mark.parametrize(
    ("largest", "longest_ms", "is_active", "sent", "why"),
    [
        (0, 0, True, entry(10_000, 10**9), None),
        (1_000, 0, True, entry(500), None),
        (1_000, 0, True, entry(1_000), "maxMessageSize"),  # what is around the value counts
        (0, 60_000, True, entry(1, 60_000), None),
        (0, 60_000, True, entry(1), None),
        (0, 60_000, True, entry(1, 60_001), "maxDeliveryDelayInMillis"),
        (0, 60_000, False, entry(1, 60_001), None),  # the time is not heeded
    ],
)
def test_entries_are_bounded(largest: int, longest_ms: int, is_active: bool, sent: bytes, why: str | None) -> None:
    delayed = DelayedDelivery(active=is_active, max_delivery_delay_in_millis=longest_ms)
    refusal = publish_refusal(Policies(max_message_size=largest, delayed_delivery=delayed), sent, NOW_MS)
    assert refusal is None if why is None else refusal is not None and why in refusal
