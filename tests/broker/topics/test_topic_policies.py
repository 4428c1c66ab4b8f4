"""Entries that a topic's policies do not allow."""

from __future__ import annotations

import pytest

from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.broker.topics.topic_policies import default_policies, publish_refusal
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.topic.catalog.policies.policies import DelayedDelivery, Policies, PublishRate
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


def test_entries_without_keys_are_refused_where_encryption_is_required() -> None:
    plain = entry(10)
    metadata = MessageMetadata()
    metadata.encryption_keys.add(key="k", value=b"v")
    encrypted = single_entry(ClientMessage(b"x"), metadata=metadata)
    required = Policies(encryption_required=True)
    assert publish_refusal(required, encrypted, NOW_MS) is None
    for sent in (plain, b"", b"no entry"):
        refusal = publish_refusal(required, sent, NOW_MS)
        assert refusal is not None
        assert "must be encrypted" in refusal
        assert publish_refusal(Policies(), sent, NOW_MS) is None


def test_the_settings_of_the_publish_rate_are_the_default_of_the_policy() -> None:
    given = BrokerSettings(max_publish_rate_per_topic_in_messages=10)
    assert default_policies(given).publish_rate == PublishRate(publish_throttling_rate_in_msg=10)
    assert default_policies(BrokerSettings()).publish_rate == PublishRate()
