"""The catalog of a root: topics, their partitions and declared schemas; creating, listing, deleting them."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import (
    CompactionRecord,
    DedupRecord,
    FileRecord,
    HistoryRecord,
    HistoryTableRecord,
    LedgerRecord,
    NamespaceRecord,
    PermissionsRecord,
    Record,
    SchemaRecord,
    SegmentRecord,
    SubscriptionRecord,
    TenantRecord,
    TopicRecord,
    TrimRecord,
)
from pulsar_on_spark.metadata.state import RecentView, View
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import (
    InvalidArgumentError,
    TopicExistsError,
    TopicNotFoundError,
    TopicTerminatedError,
)
from pulsar_on_spark.model.ids import EARLIEST
from pulsar_on_spark.model.names import TopicName, check_new_name, check_new_properties
from pulsar_on_spark.topic.catalog.topic_limits import NO_LIMITS, TopicLimits, check_topic_limit
from pulsar_on_spark.topic.entries.schemas.schema import SchemaOwner, TopicSchema


@dataclass(frozen=True, slots=True)
class TopicPart:
    """Unit of reading and writing: a topic without partitions (`partition` -1), or one partition of a topic."""

    name: str
    topic_id: str
    partition: int


def check_new_topic(name: TopicName, partitions: int | None, limits: TopicLimits = NO_LIMITS) -> None:
    """Check the arguments of `create_topic` that can be checked without a root.

    `partitions` is None for a topic without partitions.

    Raises:
        InvalidArgumentError: the number of partitions is out of range, or the name is the name of a partition.
    """
    if partitions is not None and not 1 <= partitions <= limits.partitions:
        raise InvalidArgumentError(
            f"Topic {name.full} cannot have {partitions} partitions: give 1 to {limits.partitions}."
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
    properties: Mapping[str, str] | None = None,
    limits: TopicLimits = NO_LIMITS,
) -> TopicRecord:
    """Create a topic, and its namespace and tenant if they are missing.

    Args:
        store: The root's metadata.
        name: The topic.
        partitions: None for a topic without partitions, else 1 to 10,000.
        exist_ok: True to return an existing topic, whatever its number of partitions, instead of raising an error.
        schema: The declared schema of the topic's values; None for none.
        properties: The topic's properties; None for none.
        limits: The limits of partitions and topics.

    Returns:
        The record of the new or existing topic.

    Raises:
        TopicExistsError: the topic exists.
        TopicNotFoundError: the topic was deleted while it was created.
        InvalidArgumentError: the number of partitions is out of range, the name is a partition's or too long, there are
            too many properties, or the namespace has reached its limit of topics.
    """
    check_new_topic(name, partitions, limits)
    check_new_properties(f"Topic {name.full}", properties or {})

    def decide(view: View) -> Change | None:
        if view.get(TopicRecord, name.full) is not None:
            if exist_ok:
                return None
            raise TopicExistsError(f"Topic {name.full} exists already: choose another name, or delete it first.")
        check_topic_limit(view, name, partitions or 1, limits)
        return _creation(view, {name: partitions}, schema, properties or {})

    created = store.commit(decide).get(TopicRecord, name.full)
    if created is None:
        raise TopicNotFoundError(f"Topic {name.full} was deleted while it was created: create it again.")
    return created


def creation_of_missing(
    view: View, wanted: Mapping[TopicName, int | None], limits: TopicLimits = NO_LIMITS
) -> tuple[Change | None, dict[TopicName, InvalidArgumentError]]:
    """Make the change that creates missing topics.

    Args:
        view: The metadata.
        wanted: The topics that must exist, each with its number of partitions, or None for a topic without partitions.
        limits: The limits of partitions and topics.

    Returns:
        The change, or None if no topic is to be created; and the errors of the topics that cannot be created.
    """
    allowed: dict[TopicName, int | None] = {}
    refused: dict[TopicName, InvalidArgumentError] = {}
    added: Counter[str] = Counter()
    for name, partitions in wanted.items():
        if view.get(TopicRecord, name.full) is not None:
            continue
        try:
            check_new_topic(name, partitions, limits)
            check_new_name("Topic name", name.full)
            check_topic_limit(view, name, added[name.namespace] + (partitions or 1), limits)
        except InvalidArgumentError as error:
            refused[name] = error
        else:
            allowed[name] = partitions
            added[name.namespace] += partitions or 1
    return _creation(view, allowed) if allowed else None, refused


def _creation(
    view: View,
    new: Mapping[TopicName, int | None],
    schema: TopicSchema | None = None,
    properties: Mapping[str, str] = MappingProxyType({}),
) -> Change:
    """Make the change that creates topics of any namespaces, each with this schema (None for none) and properties."""
    puts: list[Record] = []
    moved: dict[str, int | None] = {}
    for name, partitions in new.items():
        check_new_name("Topic name", name.full)
        topics = [_topic(name, partitions, None, properties)]
        if schema is not None:
            puts.append(schema.to_record(SchemaOwner(topics[0].name, topics[0].topic_id), 0))
        topics += [_topic(name.partition(index), None, name) for index in range(partitions or 0)]
        puts += topics
        moved |= {keys.topic(record.name): None for record in topics}
    namespaces = {name.namespace: name.tenant for name in new}
    moved |= {keys.namespace(namespace): None for namespace in namespaces}
    missing = {found: tenant for found, tenant in namespaces.items() if view.get(NamespaceRecord, found) is None}
    puts += [NamespaceRecord(namespace=namespace) for namespace in missing]
    moved |= {keys.tenant(tenant): None for tenant in missing.values()}
    puts += [
        TenantRecord(tenant=tenant)
        for tenant in dict.fromkeys(missing.values())
        if view.get(TenantRecord, tenant) is None
    ]
    return Change(puts=puts, keys=moved)


def add_partitions(store: MetadataStore, name: TopicName, partitions: int, limits: TopicLimits = NO_LIMITS) -> None:
    """Add partitions to a partitioned topic, until it has `partitions` of them.

    The new partitions get the subscriptions of partition 0, each at the partition's first entry. So a message that is
    published to a new partition is delivered later even if the consumers do not know of the partition yet.

    Raises:
        TopicNotFoundError: there is no such topic.
        InvalidArgumentError: the topic is not partitioned, it has at least `partitions` partitions already, or
            `partitions` is above the limit, or its namespace would have too many topics.
    """

    def decide(view: View) -> Change | None:
        topic = require_topic(view, name)
        if topic.partitions is None:
            raise InvalidArgumentError(f"Topic {name.full} has no partitions: create a partitioned topic instead.")
        if not topic.partitions < partitions <= limits.partitions:
            raise InvalidArgumentError(
                f"Topic {name.full} has {topic.partitions} partitions: give a larger number, up to {limits.partitions}."
            )
        check_topic_limit(view, name.partition(topic.partitions), partitions - topic.partitions, limits)
        added = [_topic(name.partition(index), None, name) for index in range(topic.partitions, partitions)]
        first = require_topic(view, name.partition(0))
        copied = [
            _anew(subscription, record)
            for record in added
            for subscription in view.all(SubscriptionRecord, first.topic_id)
        ]
        moved: dict[str, int | None] = {keys.topic(record.name): None for record in (topic, first, *added)}
        moved |= {keys.subscription(record.topic_id, record.name): None for record in copied}
        return Change(
            puts=[topic.model_copy(update={"partitions": partitions}), *added, *copied],
            keys=moved | {keys.namespace(name.namespace): None},
        )

    store.commit(decide)


def _anew(subscription: SubscriptionRecord, topic: TopicRecord) -> SubscriptionRecord:
    """Copy a subscription to a new topic: its position is the topic's first entry, and it has no owners."""
    return SubscriptionRecord(
        topic_id=topic.topic_id,
        name=subscription.name,
        type=subscription.type,
        start_ledger=EARLIEST.ledger,
        start_entry=EARLIEST.entry,
        start_epoch=1,
        expires_after_s=subscription.expires_after_s,
        properties=subscription.properties,
        created_at=topic.created_at,
    )


def delete_topic(
    store: MetadataStore,
    name: TopicName,
    *,
    force: bool = False,
    check: Callable[[View], None] = lambda view: None,
) -> None:
    """Delete a topic with its partitions, data, schemas and subscriptions; its files become garbage.

    Args:
        store: The root's metadata.
        name: The topic.
        force: True to delete the topic even if it has subscriptions.
        check: Called with the view on which the deletion is decided; raises if the topic must not be deleted.

    Raises:
        TopicNotFoundError: there is no such topic.
        InvalidArgumentError: the name is a partition's, or the topic has subscriptions and `force` is False.
    """

    def decide(view: View) -> Change:
        topic = require_topic(view, name)
        if topic.partition_of is not None:
            raise InvalidArgumentError(f"Topic {name.full} is a partition: delete {topic.partition_of} as a whole.")
        check(view)
        return deletion(view, [topic], force=force)

    store.commit(decide)


def deletion(view: View, topics: Sequence[TopicRecord], *, force: bool) -> Change:
    """Make the change that deletes topics of one namespace with all their partitions, and the permissions on them.

    Raises:
        InvalidArgumentError: a topic has subscriptions and `force` is False.
    """
    doomed = [record for topic in topics for record in (topic, *_partition_records(view, topic))]
    deletes: list[Record] = [*doomed, *(found for topic in topics for found in view.all(SchemaRecord, topic.topic_id))]
    namespaces = {TopicName.parse(topic.name).namespace for topic in topics}
    moved: dict[str, int | None] = {keys.namespace(namespace): None for namespace in namespaces}
    puts = _revocations(view, namespaces, {topic.name for topic in topics})
    moved |= {keys.permissions(record.namespace): None for record in puts}
    for record in doomed:
        subscriptions = view.all(SubscriptionRecord, record.topic_id)
        if subscriptions and not force:
            raise InvalidArgumentError(
                f"Topic {record.name} has the subscription {subscriptions[0].name!r}: delete its subscriptions "
                "first, or force the deletion."
            )
        moved[keys.topic(record.name)] = None
        moved |= {keys.subscription(record.topic_id, found.name): None for found in subscriptions}
        ledgers = view.all(LedgerRecord, record.topic_id)
        # A commit under these keys conflicts with a sealer that is about to add segments: one of the two decides again.
        moved |= {keys.incarnation_seal(ledger.incarnation): None for ledger in ledgers if ledger.incarnation}
        deletes += [
            *subscriptions,
            *ledgers,
            *view.all(SegmentRecord, record.topic_id),
            *view.all(DedupRecord, record.topic_id),
            *view.all(TrimRecord, record.topic_id),
            *view.all(CompactionRecord, record.topic_id),
            *view.all(HistoryRecord, record.topic_id),
            *view.all(HistoryTableRecord, record.topic_id),
        ]
    return Change(puts=puts, deletes=deletes, keys=moved)


def _revocations(view: View, namespaces: Iterable[str], topics: Collection[str]) -> list[PermissionsRecord]:
    """Return the records of the namespaces that have permissions on the topics, without these permissions."""
    found = filter(None, (view.get(PermissionsRecord, namespace) for namespace in namespaces))
    return [left for record in found if (left := record.without_topics(topics)) is not record]


def require_topic(view: RecentView, name: TopicName) -> TopicRecord:
    """Return the topic's record.

    Raises:
        TopicNotFoundError: there is no such topic.
    """
    record = view.get(TopicRecord, name.full)
    if record is None:
        raise TopicNotFoundError(
            f"Topic {name.full} does not exist: create it with `pulsarpy topics create`, or write to it."
        )
    return record


def require_not_terminated(topic: TopicRecord) -> None:
    """Refuse to write to a terminated topic.

    Raises:
        TopicTerminatedError: the topic was terminated.
    """
    if topic.terminated is not None:
        raise TopicTerminatedError(
            f"Topic {topic.name} was terminated and takes no messages: write to another topic, or delete this one "
            "first."
        )


def parts(view: RecentView, topic: TopicRecord) -> list[TopicPart]:
    """Return the topic's partitions in order; for a topic without partitions, a list of only the topic itself."""
    if topic.partitions is None:
        return [
            TopicPart(
                topic.name, topic.topic_id, TopicName.parse(topic.name).partition_index if topic.partition_of else -1
            )
        ]
    records = _partition_records(view, topic)
    return [TopicPart(record.name, record.topic_id, index) for index, record in enumerate(records)]


def topics(view: RecentView) -> list[TopicRecord]:
    """Return all topics, sorted by name; their partitions are left out."""
    return [topic for topic in view.all(TopicRecord) if topic.partition_of is None]


def matching_topics(view: RecentView, pattern: str) -> list[TopicRecord]:
    """Return the topics whose full name matches a regular expression as a whole.

    The pattern may omit `persistent://`. A pattern without a namespace is applied to `public/default`, as in Pulsar's
    clients.

    Raises:
        InvalidArgumentError: the pattern is not a regular expression.
    """
    bare = pattern.removeprefix("persistent://")
    if "/" not in bare:
        bare = f"public/default/(?:{bare})"
    try:
        compiled = re.compile(bare)
    except re.error as error:
        raise InvalidArgumentError(
            f"Option topicsPattern {pattern!r} is not a regular expression ({error}): correct it."
        ) from error
    return [topic for topic in topics(view) if compiled.fullmatch(topic.name.removeprefix("persistent://"))]


def named_files(view: View) -> set[str]:
    """Return the ids of all files that segments or compacted ledgers of any topic are in."""
    compacted = (file.file_id for record in view.all(CompactionRecord) for file in record.files)
    return {*(segment.file_id for segment in view.all(SegmentRecord)), *compacted}


def live_files(view: View) -> dict[str, FileRecord]:
    """Return the records of the files in `named_files`, by id."""
    named = named_files(view)
    return {file.file_id: file for file in view.all(FileRecord) if file.file_id in named}


def _partition_records(view: RecentView, topic: TopicRecord) -> list[TopicRecord]:
    name = TopicName.parse(topic.name)
    records = [view.get(TopicRecord, name.partition(index).full) for index in range(topic.partitions or 0)]
    return [record for record in records if record is not None]


def _topic(
    name: TopicName,
    partitions: int | None,
    partition_of: TopicName | None,
    properties: Mapping[str, str] = MappingProxyType({}),
) -> TopicRecord:
    return TopicRecord(
        name=name.full,
        topic_id=uuid.uuid4().hex,
        partitions=partitions,
        partition_of=partition_of.full if partition_of else None,
        properties=dict(properties),
        created_at=datetime.now(UTC),
    )


def names(given: Iterable[str]) -> list[TopicName]:
    """Parse names of topics; keep their order, and drop repeated names."""
    return list(dict.fromkeys(TopicName.parse(text.strip()) for text in given))
