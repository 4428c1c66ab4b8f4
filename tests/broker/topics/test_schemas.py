"""Schemas between the wire and the registry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import TypeVar

import pytest

from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError, code_of
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.broker.topics.schemas import NO_VERSION, ClientSchemas, of_wire, to_wire, version_bytes
from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.model.errors import IncompatibleSchemaError, InvalidArgumentError, TopicNotFoundError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.commands import Schema, ServerError
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.entries.schemas.schema import SCHEMA_TYPES, TopicSchema

T = TopicName.parse("t")
AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}).encode()
LATER = AVRO.replace(b"}]", b'}, {"name": "b", "type": "int", "default": 1}]')
# Key schema STRING (no bytes), value schema of 300 bytes: its length is not UTF-8.
KEY_VALUE = b"\x00\x00\x00\x00" + b"\x00\x00\x01\xc8" + AVRO.ljust(456)
TYPES = [{"key": "key.schema.type", "value": "STRING"}, {"key": "value.schema.type", "value": "AVRO"}]

_T = TypeVar("_T")


def schema(type_: str = "Avro", data: bytes = AVRO, **more: object) -> Schema:
    return Schema(name="t", type=type_, schema_data=data, **more)  # type: ignore[arg-type]


@pytest.fixture
def root(tmp_path: Path) -> Root:
    made = Root.create(tmp_path / "root")
    made.create_topic("t")
    return made


def run(work: Coroutine[object, object, _T]) -> _T:
    return asyncio.run(work)


def schemas(root: Root, **settings: object) -> ClientSchemas:
    return ClientSchemas(root.store, Views(root), BrokerSettings.model_validate(settings))


def test_schema_types_are_at_their_protocol_numbers() -> None:
    wire = [name.replace("_", "").upper() for name in map(Schema.Type.Name, range(len(SCHEMA_TYPES)))]
    ours = [name.replace("_", "") for name in SCHEMA_TYPES]
    assert [name.replace("BOOL", "BOOLEAN") for name in wire] == ours


@pytest.mark.parametrize(
    "given",
    [
        schema(properties=[{"key": "k", "value": "v"}]),
        schema("String", b""),
        schema("KeyValue", KEY_VALUE, properties=TYPES),
        schema("ProtobufNative", b'{"rootMessageTypeName": "M"}'),
    ],
    ids=lambda given: str(given.type),
)
def test_a_stored_schema_is_returned_unchanged(root: Root, given: Schema) -> None:
    async def there_and_back() -> tuple[bytes, tuple[Schema, bytes]]:
        core = schemas(root)
        return await core.of_producer(T, given), await core.find(T, NO_VERSION)

    version, found = run(there_and_back())
    assert version == version_bytes(0) == bytes(8)
    assert found == (given, version)


def test_invalid_schemas_are_refused() -> None:
    assert [of_wire(each) for each in (None, schema("AutoConsume", b""))] == [None, None]


def test_a_declared_schema_of_bytes_has_a_version(root: Root) -> None:
    async def declared() -> None:
        core, declared = schemas(root), schema("NONE", b"")
        assert await core.of_producer(T, declared) == version_bytes(0)
        assert await core.find(T, version_bytes(0)) == (declared, version_bytes(0))
        await core.of_consumer(T, declared, is_idle=False)
        assert await core.of_producer(T, None) == NO_VERSION
        with pytest.raises(IncompatibleSchemaError, match="its type is NONE, not AVRO"):
            await core.of_producer(T, schema())

    run(declared())


def test_a_deleted_version_is_not_found(root: Root) -> None:
    async def deleted() -> None:
        core = schemas(root)
        await core.of_producer(T, schema())
        await core.delete(T, force=False)
        for version in (NO_VERSION, version_bytes(0), version_bytes(1)):
            with pytest.raises(ServerRefusalError, match="has no schema") as caught:
                await core.find(T, version)
            assert code_of(caught.value) == ServerError.TopicNotFound
        assert await core.of_producer(T, schema()) == version_bytes(2)
        assert (await core.find(T, NO_VERSION))[1] == version_bytes(2)
        with pytest.raises(ServerRefusalError, match="no schema version 0"):
            await core.find(T, version_bytes(0))

    run(deleted())


@pytest.mark.parametrize(
    "given",
    [schema(data=b"\xff"), schema("KeyValue", b"\0\0"), schema("KeyValue", KEY_VALUE[:-1])],
    ids=["text", "short", "cut"],
)
def test_bytes_that_are_not_a_schema_are_refused(given: Schema) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        of_wire(given)


def test_versions_grow_and_are_found_by_their_bytes(root: Root) -> None:
    async def evolve() -> None:
        core = schemas(root)
        with pytest.raises(ServerRefusalError, match="has no schema:") as caught:
            await core.find(T, NO_VERSION)
        assert code_of(caught.value) == ServerError.TopicNotFound, "Java and C++ rely on it"
        assert [await core.of_producer(T, schema(data=data)) for data in (AVRO, LATER, AVRO)] == [
            version_bytes(number) for number in (0, 1, 0)
        ]
        assert (await core.find(T, version_bytes(0)))[0].schema_data == AVRO
        assert (await core.find(T, NO_VERSION))[0].schema_data == LATER
        with pytest.raises(ServerRefusalError, match="no schema version 9"):
            await core.find(T, version_bytes(9))
        with pytest.raises(InvalidArgumentError, match="does not have 8 bytes"):
            await core.find(T, b"1")
        with pytest.raises(IncompatibleSchemaError):
            await core.of_producer(T, schema("String", b""))

    run(evolve())


def test_producers_without_a_schema_are_refused_if_a_policy_enforces_schemas(root: Root) -> None:
    async def enforced() -> None:
        core = schemas(root, is_schema_validation_enforced=True)
        assert await core.of_producer(T, None) == NO_VERSION, "the topic has none"
        await core.of_producer(T, schema())
        with pytest.raises(IncompatibleSchemaError, match="is_schema_validation_enforced"):
            await core.of_producer(T, None)
        assert await schemas(root).of_producer(T, None) == NO_VERSION

    run(enforced())


def test_consumers(root: Root) -> None:
    async def consumers() -> None:
        core = schemas(root, schema_compatibility_strategy="BACKWARD")
        await core.of_consumer(T, None, is_idle=False)
        await core.of_consumer(T, schema("AutoConsume", b""), is_idle=False)
        with pytest.raises(IncompatibleSchemaError, match="in use without a schema"):
            await core.of_consumer(T, schema(), is_idle=False)
        await core.of_consumer(T, schema(), is_idle=True)
        assert (await core.find(T, NO_VERSION))[1] == version_bytes(0)
        await core.of_consumer(T, schema(data=LATER), is_idle=True)
        assert (await core.find(T, NO_VERSION))[1] == version_bytes(0), "a consumer's schema is checked, not added"
        with pytest.raises(IncompatibleSchemaError):
            await core.of_consumer(T, schema("String", b""), is_idle=True)

    run(consumers())


def test_topics_that_are_not_stored_have_schemas_by_their_name(root: Root) -> None:
    async def volatile() -> None:
        core, name = schemas(root), TopicName.parse_any("non-persistent://public/default/t")
        with pytest.raises(ServerRefusalError, match="has no schema"):
            await core.find(name, NO_VERSION)
        assert await core.of_producer(name, schema()) == version_bytes(0)
        assert await core.of_producer(name.partition(1), schema(data=LATER)) == version_bytes(1)
        await core.of_consumer(name, schema(), is_idle=False)
        found, version = await core.find(name, NO_VERSION)
        assert (found.name, found.schema_data, version) == ("t", LATER, version_bytes(1))
        assert await core.versions(T) == [], "those of the stored topic of that name are others"
        assert await core.delete(name, force=True) == 2
        assert await core.of_producer(name, schema("String", b"")) == version_bytes(3)
        with pytest.raises(TopicNotFoundError, match="its namespace does not exist"):
            await core.of_producer(TopicName.parse_any("non-persistent://public/nowhere/t"), schema())

    run(volatile())


def test_a_schema_that_spark_declared_is_what_clients_get(root: Root) -> None:
    declared = root.declare_schema("t", AVRO.decode(), "AVRO")
    found, _ = run(schemas(root).find(T, NO_VERSION))
    assert found == to_wire(declared)
    assert (found.name, found.type, found.schema_data) == ("t", Schema.Avro, AVRO)
    assert run(schemas(root).of_producer(T, schema())) == version_bytes(0)
    assert of_wire(found) == TopicSchema.of_record(declared)
    assert root.store.view().get(TopicRecord, T.full) is not None
