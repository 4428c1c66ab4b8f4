"""Topics as official clients find them: partitions, patterns, several at once, without storage."""

from __future__ import annotations

import asyncio
import re

import httpx
import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition, RegexSubscriptionMode

from pulsar_on_spark.broker.handlers.consuming import CLOSE_AGAIN_S
from pulsar_on_spark.metadata.records import NamespaceRecord, TenantRecord, TopicRecord
from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandFlow,
    CommandGetOrCreateSchema,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
    CommandSubscribe,
    CommandUnsubscribe,
    Schema,
    ServerError,
)
from pulsar_on_spark.root import Root
from tests.broker.clients.conftest import WAIT_MS
from tests.broker.clients.raw import answer, answer_of, command, connect
from tests.kit.running_broker import RunningBroker


def receive(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    return [consumer.receive(WAIT_MS) for _ in range(count)]


@pytest.mark.parametrize("type_", [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared])
def test_all_partitions_of_a_topic_are_consumed(
    broker: RunningBroker, client: pulsar.Client, topic: str, type_: ConsumerType
) -> None:
    Root.open(broker.root).create_topic(topic, partitions=3)
    consumer = client.subscribe(topic, "sub", type_)
    producer = client.create_producer(topic, batching_enabled=True)
    for number in range(60):
        producer.send_async(b"%d" % number, lambda _result, _id: None, partition_key=f"key-{number % 10}")
    producer.flush()
    messages = receive(consumer, 60)
    assert sorted(int(message.data()) for message in messages) == list(range(60))
    assert {message.message_id().partition() for message in messages} == {0, 1, 2}
    for number in range(10):
        mine = [int(each.data()) for each in messages if each.partition_key() == f"key-{number}"]
        assert mine == sorted(mine)
    for message in messages:
        consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "sub", type_)
    with pytest.raises(pulsar.Timeout):
        again.receive(1_000)


def test_several_topics_are_consumed_by_one_consumer(client: pulsar.Client, topic: str) -> None:
    topics = [f"persistent://public/default/{topic}-{number}" for number in range(3)]
    consumer = client.subscribe(topics, "sub")
    for number, name in enumerate(topics):
        client.create_producer(name).send(b"%d" % number)
    assert sorted(message.data() for message in receive(consumer, 3)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("mode", [RegexSubscriptionMode.AllTopics, RegexSubscriptionMode.PersistentOnly])
def test_a_pattern_finds_the_existing_topics(
    broker: RunningBroker, client: pulsar.Client, topic: str, mode: RegexSubscriptionMode
) -> None:
    """New ones are looked for once a minute: this client ignores its option (pulsar-client-python #171)."""
    Root.open(broker.root).create_topic(f"{topic}-parts", partitions=2)
    client.create_producer(f"{topic}-plain").send(b"plain")
    client.create_producer(f"other-{topic}").send(b"not mine")
    consumer = client.subscribe(
        re.compile(f"persistent://public/default/{topic}-.*"),
        "sub",
        initial_position=InitialPosition.Earliest,
        regex_subscription_mode=mode,
    )
    producer = client.create_producer(f"{topic}-parts")
    for number in range(4):
        producer.send(b"part", partition_key=str(number))
    assert sorted(message.data() for message in receive(consumer, 5)) == [*[b"part"] * 4, b"plain"]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(1_000)


def test_a_non_persistent_topic_reaches_connected_consumers(client: pulsar.Client, topic: str) -> None:
    name = f"non-persistent://public/default/{topic}"
    producer = client.create_producer(name)
    producer.send(b"without a consumer")
    exclusive = client.subscribe(name, "exclusive")
    shared = [client.subscribe(name, "shared", ConsumerType.Shared) for _ in range(2)]
    for number in range(10):
        producer.send(b"%d" % number)
    assert [message.data() for message in receive(exclusive, 10)] == [b"%d" % number for number in range(10)]
    heard = []
    for consumer in shared:
        for message in receive(consumer, 5):
            heard.append(message.data())
            consumer.acknowledge(message)
    assert sorted(heard) == [b"%d" % number for number in range(10)]


def test_a_retried_message_is_redelivered_and_its_dead_letter_names_its_origin(
    client: pulsar.Client, topic: str
) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(1, f"{topic}-dead", initial_subscription_name="first")
    consumer = client.subscribe(
        topic, "sub", ConsumerType.Shared, negative_ack_redelivery_delay_ms=50, dead_letter_policy=policy
    )
    sent = client.create_producer(topic).send(b"poison", properties={"a": "b"}, partition_key="k")
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(WAIT_MS))
    dead = client.subscribe(f"{topic}-dead", "first").receive(WAIT_MS)
    assert dead.data() == b"poison"
    assert dead.partition_key() == "k"
    assert dead.properties()["a"] == "b"
    assert dead.properties()["REAL_TOPIC"].endswith(topic)
    assert f"{sent.ledger_id()},{sent.entry_id()}" in dead.properties()["ORIGIN_MESSAGE_ID"]


@pytest.mark.soak
def test_messages_without_acknowledgement_in_time_are_redelivered(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub", ConsumerType.Shared, unacked_messages_timeout_ms=10_000)
    client.create_producer(topic).send(b"slow")
    assert consumer.receive(WAIT_MS).redelivery_count() == 0
    again = consumer.receive(WAIT_MS)
    assert (again.data(), again.redelivery_count()) == (b"slow", 1)
    consumer.acknowledge(again)


def test_unsubscribing_deletes_the_cursor(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub", initial_position=InitialPosition.Earliest)
    client.create_producer(topic).send(b"one")
    consumer.acknowledge(consumer.receive(WAIT_MS))
    consumer.unsubscribe()
    again = client.subscribe(topic, "sub", initial_position=InitialPosition.Earliest)
    assert again.receive(WAIT_MS).data() == b"one"


def test_a_subscription_that_others_use_is_not_deleted(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "sub", ConsumerType.Shared, receiver_queue_size=1) for _ in range(2)]
    with pytest.raises(pulsar.PulsarException, match="MetadataError"):
        consumers[0].unsubscribe()
    producer = client.create_producer(topic)
    for value in (b"one", b"two"):
        producer.send(value)
    assert {each.receive(WAIT_MS).data() for each in consumers} == {b"one", b"two"}, "both are there as before"
    consumers[1].close()
    consumers[0].unsubscribe()


def test_a_subscription_that_others_use_is_deleted_by_force(
    broker: RunningBroker, admin: httpx.Client, topic: str
) -> None:
    name = f"persistent://public/default/{topic}"

    async def scenario() -> None:
        reader, writer = await connect(broker.url)
        for number in (1, 2):
            wanted = CommandSubscribe(topic=name, subscription="sub", subType=CommandSubscribe.Shared)
            wanted.consumer_id = wanted.request_id = number
            writer.write(command("SUBSCRIBE", subscribe=wanted))
            assert (await answer_of(reader, "SUCCESS")).success.request_id == number
        writer.write(command("UNSUBSCRIBE", unsubscribe=CommandUnsubscribe(consumer_id=1, request_id=3)))
        assert (await answer_of(reader, "ERROR")).error.error == ServerError.MetadataError
        writer.write(command("UNSUBSCRIBE", unsubscribe=CommandUnsubscribe(consumer_id=1, request_id=4, force=True)))
        assert (await answer_of(reader, "CLOSE_CONSUMER")).close_consumer.consumer_id == 2
        assert (await answer_of(reader, "SUCCESS")).success.request_id == 4
        writer.close()

    asyncio.run(asyncio.wait_for(scenario(), WAIT_MS / 1000))
    assert admin.get(f"/persistent/public/default/{topic}/subscriptions").json() == []


def test_a_client_that_missed_its_disconnection_is_told_again(
    broker: RunningBroker, admin: httpx.Client, topic: str
) -> None:
    """Go's client drops a CLOSE_CONSUMER that comes just after SUBSCRIBE has succeeded, and then sends FLOW."""
    wanted = CommandSubscribe(topic=topic, subscription="sub", consumer_id=1, subType=CommandSubscribe.Shared)

    async def scenario() -> None:
        reader, writer = await connect(broker.url)
        for request_id, does_subscribe in ((1, False), (2, True)):
            wanted.request_id = request_id
            writer.write(command("SUBSCRIBE", subscribe=wanted))
            await answer_of(reader, "SUCCESS")
            unloaded = await asyncio.to_thread(admin.put, f"/persistent/public/default/{topic}/unload")
            assert unloaded.is_success
            await answer_of(reader, "CLOSE_CONSUMER")
            writer.write(command("FLOW", flow=CommandFlow(consumer_id=1, messagePermits=1)))
            if not does_subscribe:
                assert (await answer_of(reader, "CLOSE_CONSUMER")).close_consumer.consumer_id == 1
        wanted.request_id = 3
        writer.write(command("SUBSCRIBE", subscribe=wanted))
        await answer_of(reader, "SUCCESS")
        await asyncio.sleep(2 * CLOSE_AGAIN_S)
        writer.write(command("PING", ping={}))
        assert (await answer(reader)).type == BaseCommand.PONG
        writer.close()

    asyncio.run(asyncio.wait_for(scenario(), WAIT_MS / 1000))


@pytest.mark.parametrize("kind", ["persistent", "non-persistent"])
def test_a_mistyped_namespace_is_not_made(broker: RunningBroker, client: pulsar.Client, kind: str) -> None:
    for name in ("publik/default/t", "public/defualt/t"):
        with pytest.raises(pulsar.PulsarException, match="NotFound"):
            client.create_producer(f"{kind}://{name}")
        with pytest.raises(pulsar.PulsarException, match="NotFound"):
            client.subscribe(f"{kind}://{name}", "sub")
    view = Root.open(broker.root).store.view()
    assert view.get(TenantRecord, "publik") is None
    assert view.get(NamespaceRecord, "public/defualt") is None


def test_lookups_and_metadata_requests_create_no_topic(broker: RunningBroker, topic: str) -> None:
    name = f"persistent://public/default/{topic}"
    schema = Schema(name="s", schema_data=b"", type=Schema.String)

    async def scene() -> None:
        reader, writer = await connect(broker.url)
        async with asyncio.timeout(WAIT_MS / 1000):
            writer.write(command("PARTITIONED_METADATA", partitionMetadata=asked(request_id=1, topic=name)))
            said = (await answer_of(reader, "PARTITIONED_METADATA_RESPONSE")).partitionMetadataResponse
            assert (said.response, said.partitions) == (CommandPartitionedTopicMetadataResponse.Success, 0)
            unmade = asked(request_id=2, topic=name, metadata_auto_creation_enabled=False)
            writer.write(command("PARTITIONED_METADATA", partitionMetadata=unmade))
            said = (await answer_of(reader, "PARTITIONED_METADATA_RESPONSE")).partitionMetadataResponse
            assert said.error == ServerError.TopicNotFound
            wanted = CommandGetOrCreateSchema(request_id=3, topic=name, schema=schema)
            writer.write(command("GET_OR_CREATE_SCHEMA", getOrCreateSchema=wanted))
            refused = (await answer_of(reader, "GET_OR_CREATE_SCHEMA_RESPONSE")).getOrCreateSchemaResponse
            assert refused.error_code == ServerError.TopicNotFound
        writer.close()

    asked = CommandPartitionedTopicMetadata
    asyncio.run(scene())
    assert Root.open(broker.root).store.view().get(TopicRecord, name) is None


def test_an_unknown_listener_name_is_refused(broker: RunningBroker) -> None:
    async def scene() -> CommandLookupTopicResponse:
        reader, writer = await connect(broker.url)
        wanted = CommandLookupTopic(topic="t", request_id=1, advertised_listener_name="outside")
        writer.write(command("LOOKUP", lookupTopic=wanted))
        answer = (await answer_of(reader, "LOOKUP_RESPONSE")).lookupTopicResponse
        writer.close()
        return answer

    answer = asyncio.run(scene())
    assert (answer.response, answer.error) == (CommandLookupTopicResponse.Failed, ServerError.ServiceNotReady)
    assert "no advertised listener 'outside'" in answer.message
