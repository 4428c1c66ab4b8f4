"""Topics that are not stored, with an official client."""

from __future__ import annotations

import re

import pulsar
import pytest

from pulsar_on_spark.testing.running_broker import RunningBroker

Type = pulsar.ConsumerType


@pytest.mark.parametrize("type_", [Type.Exclusive, Type.Failover, Type.Shared, Type.KeyShared])
def test_a_message_goes_to_who_is_there(client: pulsar.Client, topic: str, type_: pulsar.ConsumerType) -> None:
    name = f"non-persistent://public/default/{topic}"
    producer = client.create_producer(name)
    producer.send(b"to nobody")
    consumer = client.subscribe(name, "s", consumer_type=type_)
    other = client.subscribe(name, "t")
    for number in range(20):
        producer.send(b"%d" % number, partition_key=f"{number % 3}")
    for each in (consumer, other):
        for number in range(20):
            message = each.receive(30_000)
            assert message.data() == b"%d" % number
            each.acknowledge(message)


def test_shared_consumers_share(client: pulsar.Client, topic: str) -> None:
    name = f"non-persistent://public/default/{topic}"
    consumers = [client.subscribe(name, "s", consumer_type=Type.Shared) for _ in range(2)]
    producer = client.create_producer(name)
    for number in range(10):
        producer.send(b"%d" % number)
    assert all(len([each.receive(30_000) for _ in range(5)]) == 5 for each in consumers)


def test_a_regular_expression_finds_it_and_nothing_is_stored(
    broker: RunningBroker, client: pulsar.Client, topic: str
) -> None:
    name = f"non-persistent://public/default/{topic}"
    producer = client.create_producer(name)

    consumer = client.subscribe(
        re.compile(f"non-persistent://public/default/{topic}.*"),
        "s",
        regex_subscription_mode=pulsar.RegexSubscriptionMode.NonPersistentOnly,
    )
    producer.send(b"v")
    assert consumer.receive(30_000).topic_name() == name
    with pytest.raises(pulsar.PulsarException):
        consumer.seek(pulsar.MessageId.earliest)
