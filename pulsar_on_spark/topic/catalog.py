"""The catalog of a root: topics, their partitions and declared schemas; creating, listing, deleting them."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import (
    FileRecord,
    LedgerRecord,
    NamespaceRecord,
    Record,
    SchemaRecord,
    SegmentRecord,
    SubscriptionRecord,
    TenantRecord,
    TopicRecord,
)
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import (
    IncompatibleSchemaError,
    InvalidArgumentError,
    TopicExistsError,
    TopicNotFoundError,
)
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.avro_schemas import arrow_of_avro

MAX_PARTITIONS = 10_000


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """What a topic's values are made of: an Avro record schema, as both of Pulsar's structured types have it.

    Attributes:
        type: How values are encoded, JSON or AVRO.
        data: The Avro schema, JSON text.
    """

    type: str
    data: str

    @classmethod
    def parse(cls, type_: str, data: str) -> TopicSchema:
        """Check a schema that somebody gives.

        Raises:
            InvalidArgumentError: the type is another, or the text is no Avro record schema.
        """
        if type_.upper() not in ("JSON", "AVRO"):
            raise InvalidArgumentError(f"Schema type {type_!r} is not known: give JSON or AVRO.")
        try:
            fastavro.parse_schema(json.loads(data))
        except (ValueError, TypeError, SchemaParseException, UnknownType) as error:
            raise InvalidArgumentError(
                f"The schema is not the JSON text of an Avro record schema ({error}): correct it."
            ) from error
        arrow_of_avro(data)
        return cls(type_.upper(), data)

    def declares(self, record: SchemaRecord) -> bool:
        """Whether the stored schema is this one, however it is written."""
        return bool((self.type, json.loads(self.data)) == (record.type, json.loads(record.data)))


@dataclass(frozen=True, slots=True)
class TopicPart:
    """What is read and written: a topic without partitions (`partition` -1), or one partition of a topic."""

    name: str
    topic_id: str
    partition: int


def check_new_topic(name: TopicName, partitions: int | None) -> None:
    """Refuse what `create_topic` would refuse of any root.

    Raises:
        InvalidArgumentError: the number of partitions is out of range, or the name is one of a partition.
    """
    if partitions is not None and not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidArgumentError(
            f"Topic {name.full} cannot have {partitions} partitions: give 1 to {MAX_PARTITIONS}."
        )
    if name.partition_index >= 0:
        raise InvalidArgumentError(
            f"Topic {name.full} is named like a partition: create {name.partitioned_base.full} with partitions."
        )


def create_topic(
    store: MetadataStore,
    name: TopicName,
    partitions: int | None,
    *,
    exist_ok: bool = False,
    schema: TopicSchema | None = None,
) -> TopicRecord:
    """Create a topic, its namespace and tenant where they are missing.

    Args:
        store: the root's metadata.
        name: the topic.
        partitions: None for a topic without partitions, else 1 to 10,000.
        exist_ok: give the existing topic back, whatever its partitions.
        schema: what its values are made of, if that is declared.

    Raises:
        TopicExistsError: the topic exists.
        InvalidArgumentError: the number of partitions is out of range, or the name is one of a partition.
    """
    check_new_topic(name, partitions)

    def decide(view: View) -> Change | None:
        if view.get(TopicRecord, name.full) is not None:
            if exist_ok:
                return None
            raise TopicExistsError(f"Topic {name.full} exists already: choose another name, or delete it first.")
        topic = _topic(name, partitions, None)
        puts: list[Record] = [topic]
        if schema is not None:
            puts.append(_schema(topic, schema, 0))
        puts += [_topic(name.partition(index), None, name) for index in range(partitions or 0)]
        moved: dict[str, int | None] = {keys.namespace(name.namespace): None}
        moved |= {keys.topic(record.name): None for record in puts if isinstance(record, TopicRecord)}
        if view.get(NamespaceRecord, name.namespace) is None:
            puts.append(NamespaceRecord(namespace=name.namespace))
            moved[keys.tenant(name.tenant)] = None
            if view.get(TenantRecord, name.tenant) is None:
                puts.append(TenantRecord(tenant=name.tenant))
        return Change(puts=puts, keys=moved)

    created = store.commit(decide).get(TopicRecord, name.full)
    if created is None:
        raise TopicNotFoundError(f"Topic {name.full} was deleted while it was created: create it again.")
    return created


def add_partitions(store: MetadataStore, name: TopicName, partitions: int) -> None:
    """Let a partitioned topic grow to `partitions` partitions.

    Raises:
        TopicNotFoundError: there is no such topic.
        InvalidArgumentError: it has no partitions, or not fewer than asked for.
    """

    def decide(view: View) -> Change | None:
        topic = require_topic(view, name)
        if topic.partitions is None:
            raise InvalidArgumentError(f"Topic {name.full} has no partitions: create a partitioned topic instead.")
        if not topic.partitions < partitions <= MAX_PARTITIONS:
            raise InvalidArgumentError(
                f"Topic {name.full} has {topic.partitions} partitions: give a larger number, up to {MAX_PARTITIONS}."
            )
        added = [_topic(name.partition(index), None, name) for index in range(topic.partitions, partitions)]
        moved: dict[str, int | None] = {keys.topic(record.name): None for record in added}
        return Change(
            puts=[topic.model_copy(update={"partitions": partitions}), *added],
            keys={keys.topic(name.full): None, **moved},
        )

    store.commit(decide)


def delete_topic(store: MetadataStore, name: TopicName, *, force: bool = False) -> None:
    """Delete a topic with its partitions, data, schemas and subscriptions; its files become garbage.

    Raises:
        TopicNotFoundError: there is no such topic.
        InvalidArgumentError: it is a partition of a topic, or it has subscriptions and `force` is not given.
    """

    def decide(view: View) -> Change | None:
        topic = require_topic(view, name)
        if topic.partition_of is not None:
            raise InvalidArgumentError(f"Topic {name.full} is a partition: delete {topic.partition_of} as a whole.")
        doomed = [topic, *_partition_records(view, topic)]
        deletes: list[Record] = [*doomed, *view.all(SchemaRecord, topic.topic_id)]
        moved: dict[str, int | None] = {keys.namespace(name.namespace): None}
        for record in doomed:
            subscriptions = view.all(SubscriptionRecord, record.topic_id)
            if subscriptions and not force:
                raise InvalidArgumentError(
                    f"Topic {record.name} has the subscription {subscriptions[0].name!r}: delete its subscriptions "
                    "first, or force the deletion."
                )
            moved[keys.topic(record.name)] = None
            moved |= {keys.subscription(record.topic_id, found.name): None for found in subscriptions}
            deletes += [
                *subscriptions,
                *view.all(LedgerRecord, record.topic_id),
                *view.all(SegmentRecord, record.topic_id),
            ]
        return Change(deletes=deletes, keys=moved)

    store.commit(decide)


def declare_schema(store: MetadataStore, name: TopicName, schema: TopicSchema) -> SchemaRecord:
    """Declare what a topic's values are made of; declaring the same again changes nothing.

    Raises:
        TopicNotFoundError: there is no such topic.
        IncompatibleSchemaError: the topic has another schema: replacing one is still to come.
    """
    name = name.partitioned_base

    def decide(view: View) -> Change | None:
        topic = require_topic(view, name)
        known = latest_schema(view, topic)
        if known is None:
            return Change(puts=[_schema(topic, schema, 0)], keys={keys.topic(name.full): None})
        if not schema.declares(known):
            raise IncompatibleSchemaError(
                f"Topic {name.full} has another schema already ({known.type}, version {known.version}), and schemas "
                "cannot be replaced yet: declare it on a new topic."
            )
        return None

    view = store.commit(decide)
    declared = latest_schema(view, require_topic(view, name))
    assert declared is not None, "just declared"
    return declared


def require_topic(view: View, name: TopicName) -> TopicRecord:
    """The topic's record.

    Raises:
        TopicNotFoundError: there is no such topic.
    """
    found = view.get(TopicRecord, name.full)
    if found is None:
        raise TopicNotFoundError(
            f"Topic {name.full} does not exist: create it with `pulsarpy topics create`, or write to it."
        )
    return found


def parts(view: View, topic: TopicRecord) -> list[TopicPart]:
    """The topic's partitions in order, or the topic itself if it has none."""
    if topic.partitions is None:
        return [
            TopicPart(
                topic.name, topic.topic_id, TopicName.parse(topic.name).partition_index if topic.partition_of else -1
            )
        ]
    records = _partition_records(view, topic)
    return [TopicPart(record.name, record.topic_id, index) for index, record in enumerate(records)]


def topics(view: View) -> list[TopicRecord]:
    """All topics, partitions left out, by name."""
    return [topic for topic in view.all(TopicRecord) if topic.partition_of is None]


def matching(view: View, pattern: str) -> list[TopicRecord]:
    """Topics whose full name, with or without `persistent://`, matches the whole regular expression.

    A pattern without a namespace is one for `public/default`, as in Pulsar's clients.

    Raises:
        InvalidArgumentError: the pattern is no regular expression.
    """
    bare = pattern.removeprefix("persistent://")
    if "/" not in bare:
        bare = f"public/default/(?:{bare})"
    try:
        compiled = re.compile(bare)
    except re.error as error:
        raise InvalidArgumentError(f"Option topicsPattern {pattern!r} is not a regular expression: {error}.") from error
    return [topic for topic in topics(view) if compiled.fullmatch(topic.name.removeprefix("persistent://"))]


def latest_schema(view: View, topic: TopicRecord) -> SchemaRecord | None:
    """The newest declared schema of a topic (of the partitioned topic, for a partition)."""
    owner = view.get(TopicRecord, topic.partition_of) if topic.partition_of else topic
    return None if owner is None else view.newest(SchemaRecord, owner.topic_id)


def live_files(view: View) -> dict[str, FileRecord]:
    """Files that a live segment record names."""
    named = {segment.file_id for segment in view.all(SegmentRecord)}
    return {file.file_id: file for file in view.all(FileRecord) if file.file_id in named}


def _partition_records(view: View, topic: TopicRecord) -> list[TopicRecord]:
    name = TopicName.parse(topic.name)
    found = [view.get(TopicRecord, name.partition(index).full) for index in range(topic.partitions or 0)]
    return [record for record in found if record is not None]


def _topic(name: TopicName, partitions: int | None, partition_of: TopicName | None) -> TopicRecord:
    return TopicRecord(
        name=name.full,
        topic_id=uuid.uuid4().hex,
        partitions=partitions,
        partition_of=partition_of.full if partition_of else None,
        created_at=datetime.now(UTC),
    )


def _schema(topic: TopicRecord, schema: TopicSchema, version: int) -> SchemaRecord:
    return SchemaRecord(name=topic.name, topic_id=topic.topic_id, version=version, type=schema.type, data=schema.data)


def names(given: Iterable[str]) -> list[TopicName]:
    """Parse names, in order, without repetitions."""
    return list(dict.fromkeys(TopicName.parse(text.strip()) for text in given))
