"""The versions of a topic's schema in the metadata: numbered from 0, never changed, committed under the topic's key.

A partition has the schema of its partitioned topic. A deletion is a version of its own: afterwards the topic has no
schema, and the next one need not be compatible with any. Deleted versions are kept for messages that were written with
them, unless they are deleted for good; no number is ever used again.

A non-persistent topic has no record and no id: its versions belong to its name, stay while the topic is unused, and are
deleted with its namespace.
"""

from __future__ import annotations

from typing import Final

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import NamespaceRecord, SchemaRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import (
    IncompatibleSchemaError,
    InvalidArgumentError,
    SchemaNotFoundError,
    TopicNotFoundError,
)
from pulsar_on_spark.model.names import NON_PERSISTENT, TopicName, check_new_properties
from pulsar_on_spark.topic.catalog.catalog import require_topic
from pulsar_on_spark.topic.entries.schemas.compatibility import Strategy, check_consumer, check_producer
from pulsar_on_spark.topic.entries.schemas.schema import SchemaOwner, TopicSchema

MAX_VERSIONS: Final = 1_000
MAX_VERSIONS_LETTERS: Final = 16 << 20
"""Limit of all versions of a topic's schema together, the deleted ones included."""


def versions(view: View, name: TopicName) -> list[SchemaRecord]:
    """All versions of a topic's schema that are not deleted, by number.

    Raises:
        TopicNotFoundError: there is no such topic.
    """
    stored = _stored(view, name)
    deleted = max((index for index, each in enumerate(stored) if each.is_deletion), default=-1)
    return stored[deleted + 1 :]


def readable(view: View, name: TopicName) -> list[SchemaRecord]:
    """All versions that messages may have been written with, by number (errors as `versions`)."""
    return [each for each in _stored(view, name) if not each.is_deletion]


def latest(view: View, topic: TopicRecord) -> SchemaRecord | None:
    """The newest version; None if there is none."""
    owner = topic if topic.partition_of is None else view.get(TopicRecord, topic.partition_of)
    return None if owner is None else _latest(view, owner.topic_id)


def find(view: View, name: TopicName, version: int | None) -> SchemaRecord | None:
    """Find a version, deleted or not, or the latest if `version` is None; None without one (errors as `versions`)."""
    topic_id = _owner(view, name).topic_id
    if version is None:
        return _latest(view, topic_id)
    wanted = SchemaRecord(name="", topic_id=topic_id, version=version, type="", data="").record_id
    found = view.get(SchemaRecord, wanted)
    return None if found is None or found.is_deletion else found


def find_same(view: View, name: TopicName, schema: TopicSchema) -> SchemaRecord | None:
    """The version that is this well-formed schema; None if there is none (errors as `versions`)."""
    known = reversed(versions(view, name))
    return next((each for each in known if schema.is_same_as(TopicSchema.of_record(each))), None)


def may_follow(view: View, name: TopicName, schema: TopicSchema, strategy: Strategy) -> bool:
    """True if a well-formed schema is a version, or could become one (errors as `versions`)."""
    known = _by_number(versions(view, name))
    if any(schema.is_same_as(each) for each in known.values()):
        return True
    try:
        check_producer(name.full, schema, known, strategy)
    except IncompatibleSchemaError:
        return False
    return True


def add_schema(
    store: MetadataStore,
    name: TopicName,
    schema: TopicSchema,
    strategy: Strategy = Strategy.FULL,
    *,
    may_update: bool = True,
) -> SchemaRecord:
    """Register a schema; one that is there already changes nothing.

    Args:
        store: The root's metadata.
        name: The topic, or a partition of it.
        schema: What its values are made of.
        strategy: The required compatibility with earlier schemas.
        may_update: Whether any may follow others at all.

    Returns:
        Its version.

    Raises:
        TopicNotFoundError: there is no such topic, or no namespace of one that is not stored.
        InvalidArgumentError: the schema is malformed.
        IncompatibleSchemaError: it may not follow those that are there.
    """
    schema.check()

    def decide(view: View) -> Change | None:
        if find_same(view, name, schema) is not None:
            return None
        check_new_properties(f"The schema of {name}", schema.properties)
        _check_room(view, name, schema)
        topic, known = _owner(view, name), versions(view, name)
        if not name.is_persistent and view.get(NamespaceRecord, name.namespace) is None:
            raise TopicNotFoundError(
                f"Topic {name} can have no schema, its namespace is not there: create that with "
                "`pulsarpy namespaces create`."
            )
        if known and not may_update:
            raise IncompatibleSchemaError(
                f"Topic {topic.name} takes no new schema from its clients (is_allow_auto_update_schema is off): use "
                "one of its versions, or register the schema first."
            )
        check_producer(topic.name, schema, _by_number(known), strategy)
        record = schema.to_record(topic, _next_version(view, name))
        return Change(puts=[record], keys=_keys(name, topic))

    added = find_same(store.commit(decide), name, schema)
    assert added is not None, "just added"
    return added


def _check_room(view: View, name: TopicName, schema: TopicSchema) -> None:
    """Refuse more versions than every process shall hold in memory."""
    stored = _stored(view, name)
    letters = len(schema.data) + sum(len(each.data) for each in stored)
    if len(stored) >= MAX_VERSIONS or letters > MAX_VERSIONS_LETTERS:
        raise InvalidArgumentError(
            f"Topic {name} has {len(stored)} versions of its schema, at most {MAX_VERSIONS} of {MAX_VERSIONS_LETTERS} "
            "letters together are kept: delete its schema for good, or use one of them."
        )


def delete_schema(store: MetadataStore, name: TopicName, *, force: bool = False) -> int:
    """Delete a topic's schema.

    Args:
        store: The root's metadata.
        name: The topic, or a partition of it.
        force: For good: messages that were written with it are read without it.

    Returns:
        The version of that error's format.

    Raises:
        TopicNotFoundError: there is no such topic.
        SchemaNotFoundError: it has no schema.
    """
    version = -1

    def decide(view: View) -> Change:
        nonlocal version
        topic, stored, version = _owner(view, name), _stored(view, name), _next_version(view, name)
        if not (readable(view, name) if force else versions(view, name)):
            raise SchemaNotFoundError(f"Topic {topic.name} has no schema: there is nothing to delete.")
        deletion = TopicSchema("", "").to_record(topic, version).model_copy(update={"is_deletion": True})
        return Change(puts=[deletion], deletes=stored if force else [], keys=_keys(name, topic))

    store.commit(decide)
    return version


def check_reader(view: View, name: TopicName, schema: TopicSchema, strategy: Strategy = Strategy.FULL) -> None:
    """Refuse a consumer's schema that cannot read the topic's; a topic without a schema accepts all consumers.

    Raises:
        TopicNotFoundError: there is no such topic.
        InvalidArgumentError: the schema is malformed.
        IncompatibleSchemaError: it cannot read them.
    """
    schema.check()
    check_consumer(_owner(view, name).name, schema, _by_number(versions(view, name)), strategy)


def of_unstored_topics(view: View, namespace: str) -> list[SchemaRecord]:
    """The schema versions of a namespace's non-persistent topics, including deletions, which are deleted with it."""
    prefix = f"{NON_PERSISTENT}://{namespace}/"
    return [each for each in view.all(SchemaRecord) if each.name.startswith(prefix)]


def _owner(view: View, name: TopicName) -> SchemaOwner:
    """Find the owner of a topic's versions: the partitioned topic for a partition."""
    if not name.is_persistent:
        full = name.partitioned_base.full
        return SchemaOwner(full, full)
    topic = require_topic(view, name)
    owner = topic if topic.partition_of is None else require_topic(view, TopicName.parse(topic.partition_of))
    return SchemaOwner(owner.name, owner.topic_id)


def _keys(name: TopicName, owner: SchemaOwner) -> dict[str, int | None]:
    """Under which versions are committed: a namespace is not deleted while a topic that is not stored gets one."""
    topic: dict[str, int | None] = {keys.topic(owner.name): None}
    return topic if name.is_persistent else topic | {keys.namespace(name.namespace): None}


def _latest(view: View, topic_id: str) -> SchemaRecord | None:
    found = view.newest(SchemaRecord, topic_id)
    return None if found is None or found.is_deletion else found


def _stored(view: View, name: TopicName) -> list[SchemaRecord]:
    """All versions, deletions too, by number."""
    return view.all(SchemaRecord, _owner(view, name).topic_id)


def _next_version(view: View, name: TopicName) -> int:
    stored = _stored(view, name)
    return stored[-1].version + 1 if stored else 0


def _by_number(records: list[SchemaRecord]) -> dict[int, TopicSchema]:
    return {record.version: TopicSchema.of_record(record) for record in records}
