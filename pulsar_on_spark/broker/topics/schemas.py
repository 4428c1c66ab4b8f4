"""Schemas as clients bring and take them: Pulsar's protobuf form, and what producers and consumers may have.

The registry is `topic.entries.schemas`, shared with Spark.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar, cast

from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.broker.topics.topic_policies import default_policies
from pulsar_on_spark.metadata.records import SchemaRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import MetadataStore
from pulsar_on_spark.model.errors import IncompatibleSchemaError, InvalidArgumentError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.commands import KeyValue, Schema, ServerError
from pulsar_on_spark.topic.catalog import registry
from pulsar_on_spark.topic.catalog.policies.effective import effective
from pulsar_on_spark.topic.entries.schemas.avro import SHORT_LETTERS
from pulsar_on_spark.topic.entries.schemas.compatibility import Strategy
from pulsar_on_spark.topic.entries.schemas.schema import SCHEMA_TYPES, TopicSchema

NO_VERSION: Final = b""
"""What a client without a schema is told."""
MAX_WAITING: Final = 64
"""Long schemas that wait to be parsed: each may have 1 MiB."""
_T = TypeVar("_T")
_VERSION: Final = struct.Struct(">q")
_LENGTH: Final = struct.Struct(">i")


class ClientSchemas:
    """The registry as a broker's clients use it. Methods belong to its event loop.

    Args:
        store: The root's metadata.
        views: The same for the event loop.
        settings: The strategy, and whether clients may register schemas, where no policy says so.
    """

    def __init__(self, store: MetadataStore, views: Views, settings: BrokerSettings) -> None:
        self._store = store
        self._views = views
        self._defaults = default_policies(settings)
        self._parsing = ThreadPoolExecutor(1, "schemas")
        self._waiting = 0

    async def of_producer(self, name: TopicName, given: Schema | None) -> bytes:
        """The version of a producer's schema, registered if it is new; NO_VERSION without a schema.

        Raises:
            IncompatibleSchemaError: it may not follow those that are there, or there is one and this producer has none
                where `is_schema_validation_enforced` is on.
            InvalidArgumentError: it is malformed.
            TopicNotFoundError, MetadataError: the topic is gone, or the metadata cannot be read or written.
        """
        schema = of_wire(given)
        if schema is not None:
            return await self._registered(name, schema)
        view = await self._views.view()
        is_enforced = effective(view, name, self._defaults).schema_validation_enforced
        if is_enforced and registry.find(view, name, None) is not None:
            raise IncompatibleSchemaError(
                f"Topic {name} has a schema, and producers without one are refused (is_schema_validation_enforced): "
                "give the producer its schema."
            )
        return NO_VERSION

    async def of_consumer(self, name: TopicName, given: Schema | None, *, is_idle: bool) -> None:
        """Check a consumer's schema; the first one of an idle topic is registered (errors as `of_producer`).

        Args:
            name: The topic.
            given: The schema; AUTO_CONSUME takes whatever is there.
            is_idle: The topic has no entries, no producers, and no consumers but those with AUTO_CONSUME.
        """
        schema = of_wire(given)
        if schema is None:
            return
        view = await self._views.view()
        if registry.find(view, name, None) is not None:
            strategy = self._strategy(view, name)
            await self._parsed(view, name, schema, lambda: registry.check_reader(view, name, schema, strategy))
        elif is_idle:
            await self._registered(name, schema)
        else:
            raise IncompatibleSchemaError(
                f"Topic {name} is in use without a schema, so that none can be checked: subscribe without one, or "
                "register one first."
            )

    async def find(self, name: TopicName, version: bytes) -> tuple[Schema, bytes]:
        """GET_SCHEMA: a version, or the latest for NO_VERSION, and its number (errors as `record`)."""
        found = await self.record(name, None if version == NO_VERSION else _number(version))
        return to_wire(found), version_bytes(found.version)

    async def record(self, name: TopicName, version: int | None) -> SchemaRecord:
        """A version that is not deleted, the latest for None.

        Raises:
            ServerRefusalError: there is none: TopicNotFound, which clients rely on.
            TopicNotFoundError, MetadataError: as `of_producer`.
        """
        known = registry.versions(await self._views.view(), name)
        found = next((each for each in reversed(known) if version in (None, each.version)), None)
        if found is None:
            raise _none(name, "no schema" if version is None else f"no schema version {version}")
        return found

    async def same(self, name: TopicName, schema: TopicSchema) -> SchemaRecord:
        """The version that is this schema (errors as `record`, and InvalidArgumentError if it is malformed)."""
        found = await self._same(await self._views.view(), name, schema)
        if found is None:
            raise _none(name, "no such schema")
        return found

    async def versions(self, name: TopicName) -> list[SchemaRecord]:
        """All versions that are not deleted, by number (errors as `record`)."""
        return registry.versions(await self._views.view(), name)

    async def may_follow(self, name: TopicName, schema: TopicSchema) -> bool:
        """Whether `add` would take a schema (errors as `record`, and InvalidArgumentError if it is malformed)."""
        view = await self._views.view()
        strategy = self._strategy(view, name)

        def follows() -> bool:
            schema.check()
            return registry.may_follow(view, name, schema, strategy)

        return await self._parsed(view, name, schema, follows)

    async def add(self, name: TopicName, schema: TopicSchema) -> SchemaRecord:
        """Register a schema as an operator does: also where clients may not (errors as `of_producer`)."""
        strategy = await self.strategy(name)
        return await asyncio.to_thread(registry.add_schema, self._store, name, schema, strategy)

    async def delete(self, name: TopicName, *, force: bool) -> int:
        """See `registry.delete_schema`."""
        return await asyncio.to_thread(registry.delete_schema, self._store, name, force=force)

    async def strategy(self, name: TopicName) -> Strategy:
        """What is asked of a topic's schema that follows others (errors as `record`)."""
        return self._strategy(await self._views.view(), name)

    def _strategy(self, view: View, name: TopicName) -> Strategy:
        return effective(view, name, self._defaults).schema_compatibility_strategy

    async def _registered(self, name: TopicName, schema: TopicSchema) -> bytes:
        view = await self._views.view()
        found = await self._same(view, name, schema)
        if found is None:
            policies = effective(view, name, self._defaults)
            strategy, may_update = policies.schema_compatibility_strategy, policies.is_allow_auto_update_schema
            found = await asyncio.to_thread(
                registry.add_schema, self._store, name, schema, strategy, may_update=may_update
            )
        return version_bytes(found.version)

    async def _same(self, view: View, name: TopicName, schema: TopicSchema) -> SchemaRecord | None:
        """The version that is this schema (errors as `same`, but for none)."""

        def find() -> SchemaRecord | None:
            schema.check()
            return registry.find_same(view, name, schema)

        return await self._parsed(view, name, schema, find)

    async def _parsed(self, view: View, name: TopicName, schema: TopicSchema, work: Callable[[], _T]) -> _T:
        """Run work that parses schemas: for long ones in a thread, as other clients would wait for a third of a second.

        Raises:
            ServerRefusalError: too many long schemas wait to be parsed; the client retries.
        """
        known = [each.data for each in registry.versions(view, name)]
        if len(schema.data) + sum(map(len, known)) <= SHORT_LETTERS:
            return work()
        if self._waiting >= MAX_WAITING:
            raise ServerRefusalError(
                ServerError.TooManyRequests, f"{MAX_WAITING} long schemas are being looked at: try again later."
            )
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._parsing, work)
        finally:
            self._waiting -= 1


def of_wire(schema: Schema | None) -> TopicSchema | None:
    """A client's schema; None for none and for AUTO_CONSUME.

    NONE is a schema like any other: clients that declare bytes by it ask for its version later.

    Raises:
        InvalidArgumentError: its bytes are no text, or not those of a KEY_VALUE schema.
    """
    if schema is None or schema.type == Schema.AutoConsume:
        return None
    type_ = SCHEMA_TYPES[schema.type]
    properties = {each.key: each.value for each in cast(Iterable[KeyValue], schema.properties)}
    try:
        data = _key_value_text(schema.schema_data) if type_ == "KEY_VALUE" else schema.schema_data.decode()
    except (UnicodeDecodeError, struct.error) as error:
        raise InvalidArgumentError(
            f"The {type_} schema cannot be read ({error}): take an official client's."
        ) from error
    return TopicSchema(type_, data, properties)


def to_wire(record: SchemaRecord) -> Schema:
    """A stored schema for a client."""
    data = _key_value_bytes(record.data) if record.type == "KEY_VALUE" else record.data.encode()
    return Schema(
        name=TopicName.parse_any(record.name).local,
        schema_data=data,
        type=Schema.Type.Name(SCHEMA_TYPES.index(record.type)),
        properties=[{"key": key, "value": value} for key, value in record.properties.items()],
    )


def version_bytes(number: int) -> bytes:
    """A version as clients have it."""
    return _VERSION.pack(number)


def _none(name: TopicName, what: str) -> ServerRefusalError:
    return ServerRefusalError(ServerError.TopicNotFound, f"Topic {name} has {what}: register it first.")


def _number(version: bytes) -> int:
    if len(version) != _VERSION.size:
        raise InvalidArgumentError(
            f"Schema version {version.hex()!r} does not have 8 bytes: give one that was received."
        )
    return int(_VERSION.unpack(version)[0])


def _key_value_text(data: bytes) -> str:
    """Wire form: length and bytes of the key's schema, then of the value's (Pulsar's `KeyValueSchemaInfo`)."""
    parts, at = [], 0
    for _ in range(2):
        length = max(_LENGTH.unpack_from(data, at)[0], 0)
        at += _LENGTH.size
        parts.append(data[at : at + length].decode())
        at += length
    if at != len(data):
        raise struct.error(f"{len(data)} bytes, {at} expected")
    return json.dumps({"key": parts[0], "value": parts[1]})


def _key_value_bytes(text: str) -> bytes:
    texts = json.loads(text)
    parts = [texts[name].encode() for name in ("key", "value")]
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)
