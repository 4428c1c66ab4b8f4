"""Schemas with the official client: registered, evolved, refused."""

from __future__ import annotations

import httpx
import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String, StringSchema

from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.commands import BaseCommand, CommandProducer, CommandSubscribe, Schema
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import registry
from tests.kit.running_broker import RunningBroker

from .conftest import WAIT_MS
from .test_wire import connected

Kind = type[AvroSchema] | type[JsonSchema]


def old() -> type[Record]:
    class Order(Record):  # type: ignore[misc]
        item = String(required=True)

    return Order  # type: ignore[no-any-return]


def new() -> type[Record]:
    class Order(Record):  # type: ignore[misc]
        count = Integer(default=1, required_default=True)
        item = String(required=True)

    return Order  # type: ignore[no-any-return]


def other() -> type[Record]:
    class Order(Record):  # type: ignore[misc]
        item = Integer(required=True)

    return Order  # type: ignore[no-any-return]


def versions(broker: RunningBroker, topic: str) -> list[int]:
    return [each.version for each in registry.versions(Root.open(broker.root).store.view(), TopicName.parse(topic))]


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_a_schema_evolves_and_each_message_is_read_as_it_was_written(
    broker: RunningBroker, client: pulsar.Client, topic: str, kind: Kind
) -> None:
    before, after = old(), new()
    consumer = client.subscribe(topic, "s", schema=kind(before))
    assert versions(broker, topic) == [0], "the first consumer of an idle topic registers its schema"
    client.create_producer(topic, schema=kind(before)).send(before(item="a"))
    client.create_producer(topic, schema=kind(after)).send(after(item="b", count=7))
    assert versions(broker, topic) == [0, 1]
    client.create_producer(topic, schema=kind(before)).send(before(item="c"))
    assert versions(broker, topic) == [0, 1]
    found = [consumer.receive(WAIT_MS) for _ in range(3)]
    assert [each.schema_version() for each in found] == ["\0" * 7 + chr(number) for number in (0, 1, 0)]
    assert [each.value().item for each in found] == ["a", "b", "c"]

    reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=kind(after))
    values = [reader.read_next(WAIT_MS).value() for _ in range(3)]
    assert [(each.item, each.count) for each in values][1] == ("b", 7)
    if kind is AvroSchema:  # GET_SCHEMA: the client resolves by the version that each message names
        assert [each.count for each in values] == [1, 7, 1]


def test_an_incompatible_schema_is_refused(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, schema=AvroSchema(old()))
    for refused in (AvroSchema(other()), JsonSchema(old()), StringSchema()):
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(topic, schema=refused)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "s", schema=AvroSchema(other()))
    client.subscribe(topic, "bytes")
    client.create_producer(topic).send(b"without a schema")


def test_a_topic_in_use_without_a_schema_takes_no_typed_consumer(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic).send(b"x")
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "s", schema=StringSchema())


def test_an_auto_consume_consumer_does_not_prevent_a_first_schema(
    broker: RunningBroker, client: pulsar.Client, topic: str
) -> None:
    subscribe = CommandSubscribe(
        topic=topic,
        subscription="any",
        subType=CommandSubscribe.Exclusive,
        consumer_id=2,
        request_id=2,
        schema=Schema(name="any", schema_data=b"", type=Schema.AutoConsume),
    )
    client.subscribe(topic, "bytes").close()  # the broker has its subscription for a while still
    with connected(broker) as wire:
        assert wire.ask(BaseCommand(type=BaseCommand.SUBSCRIBE, subscribe=subscribe)).type == BaseCommand.SUCCESS
        client.subscribe(topic, "s", schema=AvroSchema(old()))
    assert versions(broker, topic) == [0]


def test_partitions_share_the_schema_of_their_topic(broker: RunningBroker, client: pulsar.Client, topic: str) -> None:
    Root.open(broker.root).create_topic(topic, 2)
    client.create_producer(topic, schema=AvroSchema(old()))
    assert versions(broker, f"{topic}-partition-1") == versions(broker, topic) == [0]


def test_a_topic_that_is_not_stored_has_a_schema(
    broker: RunningBroker, client: pulsar.Client, admin: httpx.Client, topic: str
) -> None:
    name = f"non-persistent://public/default/{topic}"
    before, after = old(), new()
    consumer = client.subscribe(name, "s", schema=AvroSchema(before))
    early, late = (client.create_producer(name, schema=AvroSchema(each)) for each in (before, after))
    for refused in (AvroSchema(other()), JsonSchema(old()), StringSchema()):
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(name, schema=refused)
        with pytest.raises(pulsar.IncompatibleSchema):
            client.subscribe(name, "t", schema=refused)
    early.send(before(item="a"))
    late.send(after(item="b", count=7))
    found = [consumer.receive(WAIT_MS) for _ in range(2)]
    assert [each.schema_version() for each in found] == ["\0" * 7 + chr(number) for number in (0, 1)]
    assert [each.value().item for each in found] == ["a", "b"]
    assert admin.get(f"/schemas/public/default/{topic}/schema").json()["version"] == 1
    for each in (consumer, early, late):
        each.close()

    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(name, schema=AvroSchema(other()))
    assert admin.delete(f"/schemas/public/default/{topic}/schema").json()["version"] == 2
    client.create_producer(name, schema=AvroSchema(other()))
    assert admin.get(f"/schemas/public/default/{topic}/schema").json()["version"] == 3
    stored = Root.open(broker.root).store.view().get(TopicRecord, f"persistent://public/default/{topic}")
    assert stored is None, "asking for a schema makes no topic"


def test_a_topic_that_is_not_stored_is_in_use_without_a_schema(client: pulsar.Client, topic: str) -> None:
    name = f"non-persistent://public/default/{topic}"
    producer = client.create_producer(name)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(name, "s", schema=StringSchema())
    producer.close()
    client.subscribe(name, "s", schema=StringSchema())


def test_a_schema_goes_with_a_topic_that_is_deleted_and_with_its_namespace(
    broker: RunningBroker, client: pulsar.Client, admin: httpx.Client, topic: str
) -> None:
    assert admin.put(f"/namespaces/public/{topic}", json={}).status_code == 204
    name = f"non-persistent://public/{topic}/t"
    text = b'{"type": "record", "name": "Order", "fields": [{"name": "item", "type": "string"}]}'
    producer = CommandProducer(
        topic=name, producer_id=1, request_id=1, schema=Schema(name="t", schema_data=text, type=Schema.Avro)
    )
    with connected(broker) as wire:  # an official producer would come back, and bring its schema
        made = wire.ask(BaseCommand(type=BaseCommand.PRODUCER, producer=producer))
        assert made.type == BaseCommand.PRODUCER_SUCCESS
        assert admin.delete(f"/non-persistent/public/{topic}/t?force=true").status_code == 204
    client.create_producer(name, schema=AvroSchema(other())).close()
    assert admin.delete(f"/namespaces/public/{topic}").status_code == 204
    assert admin.put(f"/namespaces/public/{topic}", json={}).status_code == 204
    client.create_producer(name, schema=StringSchema())
    assert admin.get(f"/schemas/public/{topic}/t/schema").json()["version"] == 0
