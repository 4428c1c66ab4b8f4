"""The versions of a topic's schema in the metadata: numbered from 0, never changed, committed under the topic's key.

A partition has the schema of its partitioned topic.
"""

from __future__ import annotations

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import SchemaRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import IncompatibleSchemaError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import require_topic
from pulsar_on_spark.topic.schemas.compatibility import Strategy, check_consumer, check_producer
from pulsar_on_spark.topic.schemas.schema import TopicSchema


def versions(view: View, name: TopicName) -> list[SchemaRecord]:
    """All versions of a topic's schema, by number.

    Raises:
        TopicNotFoundError: there is no such topic.
    """
    return view.all(SchemaRecord, _owner(view, name).topic_id)


def latest(view: View, topic: TopicRecord) -> SchemaRecord | None:
    """The newest version; None if there is none."""
    owner = topic if topic.partition_of is None else view.get(TopicRecord, topic.partition_of)
    return None if owner is None else view.newest(SchemaRecord, owner.topic_id)


def find(view: View, name: TopicName, version: int | None) -> SchemaRecord | None:
    """One version, the latest if `version` is None; None if there is none (errors as `versions`)."""
    if version is None:
        return latest(view, require_topic(view, name))
    topic_id = _owner(view, name).topic_id
    return view.get(SchemaRecord, SchemaRecord(name="", topic_id=topic_id, version=version, type="", data="").record_id)


def find_same(view: View, name: TopicName, schema: TopicSchema) -> SchemaRecord | None:
    """The version that is this well-formed schema; None if there is none (errors as `versions`)."""
    known = reversed(versions(view, name))
    return next((each for each in known if schema.is_same_as(TopicSchema.of_record(each))), None)


def may_follow(view: View, name: TopicName, schema: TopicSchema, strategy: Strategy) -> bool:
    """Whether a well-formed schema is a version, or could become one (errors as `versions`)."""
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
        strategy: What is asked of a schema that follows others.
        may_update: Whether any may follow others at all.

    Returns:
        Its version.

    Raises:
        TopicNotFoundError: there is no such topic.
        InvalidArgumentError: the schema is malformed.
        IncompatibleSchemaError: it may not follow those that are there.
    """
    schema.check()

    def decide(view: View) -> Change | None:
        if find_same(view, name, schema) is not None:
            return None
        topic, known = _owner(view, name), versions(view, name)
        if known and not may_update:
            raise IncompatibleSchemaError(
                f"Topic {topic.name} takes no new schema from its clients (is_allow_auto_update_schema is off): use "
                "one of its versions, or register the schema first."
            )
        check_producer(topic.name, schema, _by_number(known), strategy)
        record = schema.record(topic, known[-1].version + 1 if known else 0)
        return Change(puts=[record], keys={keys.topic(topic.name): None})

    added = find_same(store.commit(decide), name, schema)
    assert added is not None, "just added"
    return added


def check_reader(view: View, name: TopicName, schema: TopicSchema, strategy: Strategy = Strategy.FULL) -> None:
    """Refuse a consumer's schema where it cannot read the topic's; a topic without a schema refuses nobody.

    Raises:
        TopicNotFoundError: there is no such topic.
        InvalidArgumentError: the schema is malformed.
        IncompatibleSchemaError: it cannot read them.
    """
    schema.check()
    check_consumer(_owner(view, name).name, schema, _by_number(versions(view, name)), strategy)


def _owner(view: View, name: TopicName) -> TopicRecord:
    """Whose the versions are: of a partition the partitioned topic."""
    topic = require_topic(view, name)
    return topic if topic.partition_of is None else require_topic(view, TopicName.parse(topic.partition_of))


def _by_number(records: list[SchemaRecord]) -> dict[int, TopicSchema]:
    return {record.version: TopicSchema.of_record(record) for record in records}
