"""Topics that are not stored, with an official client."""

from __future__ import annotations

import asyncio
import re
import time

import httpx
import pulsar
import pytest

from pulsar_on_spark.protocol.commands import CommandCloseConsumer, CommandSubscribe
from tests.broker.clients.conftest import WAIT_MS
from tests.broker.clients.raw import answer_of, command, connect
from tests.kit.running_broker import RunningBroker

Type = pulsar.ConsumerType


@pytest.mark.parametrize("type_", [Type.Exclusive, Type.Failover, Type.Shared, Type.KeyShared])
def test_a_message_goes_to_the_connected_consumers(
    client: pulsar.Client, topic: str, type_: pulsar.ConsumerType
) -> None:
    name = f"non-persistent://public/default/{topic}"
    producer = client.create_producer(name)
    producer.send(b"to no consumer")
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


def test_a_regular_expression_finds_a_non_persistent_topic_and_nothing_is_stored(
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


def test_only_the_slow_consumer_loses_messages(client: pulsar.Client, admin: httpx.Client, topic: str) -> None:
    name = f"non-persistent://public/default/{topic}"
    slow = client.subscribe(name, "slow", receiver_queue_size=10)
    quick = client.subscribe(name, "quick")
    producer = client.create_producer(name)
    for number in range(100):
        producer.send(b"%d" % number)
    assert [quick.receive(WAIT_MS).data() for _ in range(100)] == [b"%d" % number for number in range(100)]
    found = admin.get(f"/non-persistent/public/default/{topic}/stats").json()
    assert found["subscriptions"]["slow"]["msgDropRate"] == found["msgDropRate"] > 0
    assert found["subscriptions"]["quick"]["msgDropRate"] == 0
    assert [slow.receive(WAIT_MS).data() for _ in range(10)] == [b"%d" % number for number in range(10)]
    producer.send(b"it has room again")
    assert slow.receive(WAIT_MS).data() == b"it has room again"


def test_failover_consumers_are_notified_which_one_is_active(
    broker: RunningBroker, admin: httpx.Client, topic: str
) -> None:
    name = f"non-persistent://public/default/{topic}"

    async def scenario() -> None:
        reader, writer = await connect(broker.url)

        def subscribe(number: int, called: str, priority: int) -> None:
            wanted = CommandSubscribe(topic=name, subscription="s", subType=CommandSubscribe.Failover)
            wanted.priority_level = priority
            wanted.consumer_id = wanted.request_id = number
            wanted.consumer_name = called
            writer.write(command("SUBSCRIBE", subscribe=wanted))

        async def told() -> tuple[int, bool]:
            found = (await answer_of(reader, "ACTIVE_CONSUMER_CHANGE")).active_consumer_change
            return found.consumer_id, found.is_active

        subscribe(1, "b", 1)
        assert await told() == (1, True)
        subscribe(2, "c", 2)
        assert await told() == (2, False)
        subscribe(3, "a", 0)
        assert sorted([await told() for _ in range(3)]) == [(1, False), (2, False), (3, True)]
        stats = await asyncio.to_thread(admin.get, f"/non-persistent/public/default/{topic}/stats")
        assert stats.json()["subscriptions"]["s"]["activeConsumerName"] == "a"
        writer.write(command("CLOSE_CONSUMER", close_consumer=CommandCloseConsumer(consumer_id=3, request_id=4)))
        assert sorted([await told() for _ in range(2)]) == [(1, True), (2, False)]
        writer.close()

    asyncio.run(asyncio.wait_for(scenario(), WAIT_MS / 1000))


def test_a_namespace_slows_producers_down(client: pulsar.Client, admin: httpx.Client, topic: str) -> None:
    assert admin.put(f"/namespaces/public/{topic}", json={}).status_code == 204
    assert admin.post(f"/namespaces/public/{topic}/publishRate", json={"publishThrottlingRateInMsg": 20}).is_success
    producer = client.create_producer(f"non-persistent://public/{topic}/t")
    began_s = time.monotonic()
    for number in range(60):
        producer.send(b"%d" % number)
    assert time.monotonic() - began_s > 1.5, "20 at once, 40 at 20 a second"


def test_a_consumer_that_replaces_a_dead_one_gets_messages(
    broker: RunningBroker, client: pulsar.Client, topic: str
) -> None:
    name = f"non-persistent://public/default/{topic}"

    async def scenario() -> None:
        reader, writer = await connect(broker.url)  # it answers no PING
        wanted = CommandSubscribe(topic=name, subscription="s", subType=CommandSubscribe.Exclusive)
        wanted.consumer_id = wanted.request_id = 1
        writer.write(command("SUBSCRIBE", subscribe=wanted))
        await answer_of(reader, "SUCCESS")
        consumer = await asyncio.to_thread(client.subscribe, name, "s")
        await asyncio.to_thread(client.create_producer(name).send, b"v")
        assert (await asyncio.to_thread(consumer.receive, WAIT_MS)).data() == b"v"
        writer.close()

    asyncio.run(asyncio.wait_for(scenario(), WAIT_MS / 1000))
