"""The schema registry for clients: conversion to Pulsar's protobuf form, and checks of producers and consumers.

The registry itself is `topic.entries.schemas`, shared with Spark.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
from pulsar_on_spark.topic.catalog.policies.effective import effective_policies
from pulsar_on_spark.topic.entries.schemas.avro import SHORT_LETTERS
from pulsar_on_spark.topic.entries.schemas.compatibility import Strategy
from pulsar_on_spark.topic.entries.schemas.schema import SCHEMA_TYPES, TopicSchema

NO_VERSION: Final = b""
"""The version sent to a client without a schema."""
MAX_WAITING_LETTERS: Final = 64 << 20
"""Limit of the total length of the schemas that wait to be parsed or compared, in characters."""
_T = TypeVar("_T")
_VERSION: Final = struct.Struct(">q")
_LENGTH: Final = struct.Struct(">i")


class ClientSchemas:
    """The schema registry for a broker's clients. Call all methods in its event loop.

    Args:
        store: The root's metadata.
        views: The views of the root's metadata.
        settings: The broker's settings, which give the default compatibility strategy and permission to register.
    """

    def __init__(self, store: MetadataStore, views: Views, settings: BrokerSettings) -> None:
        self._store = store
        self._views = views
        self._defaults = default_policies(settings)
        self._parsing = ThreadPoolExecutor(1, "schemas")
        self._waiting = 0

    async def of_producer(self, name: TopicName, given: Schema | None) -> bytes:
        """Return the version of a producer's schema as clients get it, registering a new schema.

        Args:
            name: The topic.
            given: The schema that the producer sent; None for none, which returns NO_VERSION.

        Raises:
            IncompatibleSchemaError: the schema is incompatible with the existing ones, or the producer has none and
                `is_schema_validation_enforced` requires one.
            InvalidArgumentError: the schema is malformed.
            TopicNotFoundError, MetadataError: the topic was deleted, or the metadata cannot be read or written.
        """
        schema = of_wire(given)
        if schema is not None:
            return await self._registered(name, schema)
        view = await self._views.view()
        is_enforced = effective_policies(view, name, self._defaults).schema_validation_enforced
        if is_enforced and registry.find(view, name, None) is not None:
            raise IncompatibleSchemaError(
                f"Topic {name} has a schema and refuses producers without one (is_schema_validation_enforced): "
                "give the producer its schema."
            )
        return NO_VERSION

    async def of_consumer(self, name: TopicName, given: Schema | None, *, is_idle: bool) -> None:
        """Check a consumer's schema; if an idle topic has no schema yet, register it (errors as `of_producer`).

        Args:
            name: The topic.
            given: The schema that the consumer sent; None or AUTO_CONSUME to accept any.
            is_idle: True if the topic has no entries, no producers, and no consumers except with AUTO_CONSUME.
        """
        schema = of_wire(given)
        if schema is None:
            return
        view = await self._views.view()
        if registry.find(view, name, None) is not None:
            if await self._same(view, name, schema) is None:
                strategy = self._strategy(view, name)
                await self._in_turn(len(schema.data), lambda: registry.check_reader(view, name, schema, strategy))
        elif is_idle:
            await self._registered(name, schema)
        else:
            raise IncompatibleSchemaError(
                f"Topic {name} is in use without a schema, so the consumer's schema cannot be checked: subscribe "
                "without a schema, or register one first."
            )

    async def find(self, name: TopicName, version: bytes) -> tuple[Schema, bytes]:
        """Return a schema in Pulsar's form, and its version as clients use it (errors as `find_version`).

        Args:
            name: The topic.
            version: The version; NO_VERSION for the latest.
        """
        record = await self.find_version(name, None if version == NO_VERSION else _number(version))
        return to_wire(record), version_bytes(record.version)

    async def find_version(self, name: TopicName, version: int | None) -> SchemaRecord:
        """Return the schema of a version that is not deleted.

        Args:
            name: The topic.
            version: The version's number; None for the latest.

        Raises:
            ServerRefusalError: there is no such version; clients expect the code TopicNotFound.
            TopicNotFoundError, MetadataError: as `of_producer`.
        """
        known = registry.versions(await self._views.view(), name)
        record = next((each for each in reversed(known) if version in (None, each.version)), None)
        if record is None:
            raise _not_found(name, "no schema" if version is None else f"no schema version {version}")
        return record

    async def same(self, name: TopicName, schema: TopicSchema) -> SchemaRecord:
        """Return the record of a registered schema (errors as `find_version`; InvalidArgumentError: malformed)."""
        record = await self._same(await self._views.view(), name, schema)
        if record is None:
            raise _not_found(name, "no such schema")
        return record

    async def versions(self, name: TopicName) -> list[SchemaRecord]:
        """Return all versions of a topic's schema that are not deleted, sorted by number (errors as `find_version`)."""
        return registry.versions(await self._views.view(), name)

    async def may_follow(self, name: TopicName, schema: TopicSchema) -> bool:
        """Return True if `add` would accept a schema (errors as `find_version`; InvalidArgumentError: malformed)."""
        view = await self._views.view()
        strategy = self._strategy(view, name)

        def follows() -> bool:
            schema.check()
            return registry.may_follow(view, name, schema, strategy)

        return await self._in_turn(len(schema.data), follows)

    async def add(self, name: TopicName, schema: TopicSchema) -> SchemaRecord:
        """Register a schema for an operator, even if clients may not register any; return its record.

        Raises the errors of `of_producer`.
        """
        return await self._add(name, schema, lambda view: registry.Rules(self._strategy(view, name)))

    async def delete(self, name: TopicName, *, force: bool) -> int:
        """Delete a topic's schema; return the version number of the deletion (errors as `registry.delete_schema`)."""
        return await asyncio.to_thread(registry.delete_schema, self._store, name, force=force)

    async def strategy(self, name: TopicName) -> Strategy:
        """Return the compatibility strategy of a topic (errors as `find_version`)."""
        return self._strategy(await self._views.view(), name)

    def _strategy(self, view: View, name: TopicName) -> Strategy:
        return effective_policies(view, name, self._defaults).schema_compatibility_strategy

    async def _registered(self, name: TopicName, schema: TopicSchema) -> bytes:
        view = await self._views.view()
        record = await self._same(view, name, schema)
        if record is None:
            record = await self._add(name, schema, lambda view: self._rules(view, name))
        return version_bytes(record.version)

    def _rules(self, view: View, name: TopicName) -> registry.Rules:
        policies = effective_policies(view, name, self._defaults)
        return registry.Rules(policies.schema_compatibility_strategy, policies.is_allow_auto_update_schema)

    async def _add(
        self, name: TopicName, schema: TopicSchema, rules_of: Callable[[View], registry.Rules]
    ) -> SchemaRecord:
        """Register a schema and return its record (errors as `registry.add_schema` and `_in_turn`).

        Args:
            name: The topic.
            schema: The schema.
            rules_of: Returns the rules that a view gives for new schemas of the topic.
        """

        def judge(view: View) -> registry.Judged:
            schema.check()
            return registry.judge(view, name, schema, rules_of(view))

        for _ in range(registry.ATTEMPTS):
            judged = await self._in_turn(len(schema.data), partial(judge, await self._views.view()))
            added = await asyncio.to_thread(registry.register, self._store, name, judged, rules_of)
            if added is not None:
                return added
        raise registry.changed_meanwhile(name)

    async def _same(self, view: View, name: TopicName, schema: TopicSchema) -> SchemaRecord | None:
        """Return the record of a registered schema; None if it is not registered (other errors as `same`)."""

        def find() -> SchemaRecord | None:
            schema.check()
            return registry.find_same(view, name, schema)

        return await self._parsed(view, name, schema, find)

    async def _parsed(self, view: View, name: TopicName, schema: TopicSchema, work: Callable[[], _T]) -> _T:
        """Return the result of `work`, which parses schemas; long schemas wait for a turn (errors as `_in_turn`)."""
        known = [record.data for record in registry.versions(view, name)]
        if len(schema.data) + sum(map(len, known)) <= SHORT_LETTERS:
            return work()
        return await self._in_turn(len(schema.data), work)

    async def _in_turn(self, letters: int, work: Callable[[], _T]) -> _T:
        """Return the result of `work` on a schema, which runs in the thread for long schemas, as it may take seconds.

        Args:
            letters: Length of the schema in characters, which counts towards `MAX_WAITING_LETTERS`.
            work: The function to run; one runs at a time.

        Raises:
            ServerRefusalError: too many schemas wait; the client retries.
        """
        if self._waiting + letters > MAX_WAITING_LETTERS:
            raise ServerRefusalError(
                ServerError.TooManyRequests, "Too many long schemas are being checked: try again later."
            )
        self._waiting += letters
        try:
            return await asyncio.get_running_loop().run_in_executor(self._parsing, work)
        finally:
            self._waiting -= letters


def of_wire(schema: Schema | None) -> TopicSchema | None:
    """Convert a client's schema to the registry's form; None for no schema and for AUTO_CONSUME.

    NONE is a schema like any other: clients that use it to declare bytes request its version later.

    Raises:
        InvalidArgumentError: the schema's bytes are not text, or not a valid KEY_VALUE schema.
    """
    if schema is None or schema.type == Schema.AutoConsume:
        return None
    type_ = SCHEMA_TYPES[schema.type]
    properties = {pair.key: pair.value for pair in cast(Iterable[KeyValue], schema.properties)}
    try:
        data = _key_value_text(schema.schema_data) if type_ == "KEY_VALUE" else schema.schema_data.decode()
    except (UnicodeDecodeError, struct.error) as error:
        raise InvalidArgumentError(
            f"The {type_} schema cannot be read ({error}): use a schema of an official client."
        ) from error
    return TopicSchema(type_, data, properties)


def to_wire(record: SchemaRecord) -> Schema:
    """Convert a stored schema to Pulsar's protobuf form."""
    data = _key_value_bytes(record.data) if record.type == "KEY_VALUE" else record.data.encode()
    return Schema(
        name=TopicName.parse_any(record.name).local,
        schema_data=data,
        type=Schema.Type.Name(SCHEMA_TYPES.index(record.type)),
        properties=[{"key": key, "value": value} for key, value in record.properties.items()],
    )


def version_bytes(number: int) -> bytes:
    """Convert a version number to the 8 bytes that clients use."""
    return _VERSION.pack(number)


def _not_found(name: TopicName, what: str) -> ServerRefusalError:
    return ServerRefusalError(ServerError.TopicNotFound, f"Topic {name} has {what}: register it first.")


def _number(version: bytes) -> int:
    if len(version) != _VERSION.size:
        raise InvalidArgumentError(
            f"Schema version {version.hex()!r} does not have 8 bytes: use one that the broker sent."
        )
    return int(_VERSION.unpack(version)[0])


def _key_value_text(data: bytes) -> str:
    """Return the schemas of key and value as JSON, from Pulsar's `KeyValueSchemaInfo`: length and bytes of each."""
    parts, at = [], 0
    for _ in range(2):
        length = max(_LENGTH.unpack_from(data, at)[0], 0)
        at += _LENGTH.size
        parts.append(data[at : at + length].decode())
        at += length
    if at != len(data):
        raise struct.error(f"the two schemas end at byte {at} of {len(data)}")
    return json.dumps({"key": parts[0], "value": parts[1]})


def _key_value_bytes(text: str) -> bytes:
    texts = json.loads(text)
    parts = [texts[name].encode() for name in ("key", "value")]
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)
