"""The versions of a topic's schema in the metadata: numbered from 0, never changed, committed under the topic's key.

A partition has the schema of its partitioned topic. A deletion is a version of its own: afterwards the topic has no
schema, and the next one need not be compatible with earlier ones. Deleted versions are kept for messages that were
written with them, unless they are deleted for good. No version number is ever used again.

A non-persistent topic has no record and no id: its versions are stored under its name, are kept while the topic is
unused, and are deleted with its namespace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import NamespaceRecord, SchemaRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import (
    CommitConflictError,
    IncompatibleSchemaError,
    InvalidArgumentError,
    SchemaNotFoundError,
    TopicNotFoundError,
)
from pulsar_on_spark.model.names import NON_PERSISTENT, TopicName, check_new_properties
from pulsar_on_spark.topic.catalog.catalog import require_topic
from pulsar_on_spark.topic.entries.schemas.compatibility import Strategy, check_consumer, check_producer
from pulsar_on_spark.topic.entries.schemas.schema import AVRO_BASED, SchemaOwner, TopicSchema

ATTEMPTS: Final = 30
"""Maximum number of comparisons of one new schema; it is compared again if the topic's schema changed meanwhile."""
MAX_VERSIONS: Final = 1_000
MAX_VERSIONS_LETTERS: Final = 16 << 20
"""Maximum number of characters in all versions of a topic's schema together, including deleted ones."""


def versions(view: View, name: TopicName) -> list[SchemaRecord]:
    """Return all versions of a topic's schema that are not deleted, sorted by number.

    Raises:
        TopicNotFoundError: there is no such topic.
    """
    stored = _stored(view, name)
    deleted = max((index for index, record in enumerate(stored) if record.is_deletion), default=-1)
    return stored[deleted + 1 :]


def readable(view: View, name: TopicName) -> list[SchemaRecord]:
    """Return all versions that stored messages may have, also deleted ones, sorted by number (errors as `versions`)."""
    return [record for record in _stored(view, name) if not record.is_deletion]


def latest(view: View, topic: TopicRecord) -> SchemaRecord | None:
    """Return the newest version of a topic's schema; None if the topic has no schema."""
    owner = topic if topic.partition_of is None else view.get(TopicRecord, topic.partition_of)
    return None if owner is None else _latest(view, owner.topic_id)


def find(view: View, name: TopicName, version: int | None) -> SchemaRecord | None:
    """Return a version, even a deleted one, or the latest version for None (errors as `versions`).

    Return None if the version does not exist, or if the latest one is wanted and the topic has no schema.
    """
    topic_id = _owner(view, name).topic_id
    if version is None:
        return _latest(view, topic_id)
    wanted = SchemaRecord(name="", topic_id=topic_id, version=version, type="", data="").record_id
    record = view.get(SchemaRecord, wanted)
    return None if record is None or record.is_deletion else record


def find_same(view: View, name: TopicName, schema: TopicSchema) -> SchemaRecord | None:
    """Return the version that equals a well-formed schema; None if there is none (errors as `versions`)."""
    return _same(versions(view, name), schema)


def may_follow(view: View, name: TopicName, schema: TopicSchema, strategy: Strategy) -> bool:
    """Return True if a well-formed schema equals a version, or could become a new version (errors as `versions`)."""
    existing = versions(view, name)
    if _same(existing, schema) is not None:
        return True
    try:
        check_producer(name.full, schema, _by_number(existing), strategy)
    except IncompatibleSchemaError:
        return False
    return True


class Rules(NamedTuple):
    """The policies that a new schema must obey.

    Attributes:
        strategy: The required compatibility with earlier schemas.
        may_update: False to refuse any new schema if the topic has one.
    """

    strategy: Strategy = Strategy.FULL
    may_update: bool = True


@dataclass(frozen=True)
class Judged:
    """A schema that was compared with a topic's versions, outside of any commit.

    Attributes:
        owner: The owner of the versions.
        newest: The newest version or deletion at the time of the comparison; None if there was none. A later one shows
            a change since then.
        rules: The rules of the comparison.
        record: The version that equals the schema, or else a new version.
        is_new: True if `record` is a new version.
    """

    owner: SchemaOwner
    newest: SchemaRecord | None
    rules: Rules
    record: SchemaRecord
    is_new: bool


def judge(view: View, name: TopicName, schema: TopicSchema, rules: Rules) -> Judged:
    """Compare a well-formed schema with a topic's versions, which may take seconds (errors as `add_schema`)."""
    owner, existing = _owner(view, name), versions(view, name)
    newest = view.newest(SchemaRecord, owner.topic_id)
    same = _same(existing, schema)
    if same is not None:
        return Judged(owner, newest, rules, same, is_new=False)
    check_new_properties(f"The schema of {name}", schema.properties)
    _check_room(view, name, schema)
    if existing and not rules.may_update:
        raise IncompatibleSchemaError(
            f"Topic {owner.name} takes no new schema from its clients (is_allow_auto_update_schema is off): use "
            "one of its versions, or register the schema first."
        )
    check_producer(owner.name, schema, _by_number(existing), rules.strategy)
    return Judged(owner, newest, rules, schema.to_record(owner, _next_version(view, name)), is_new=True)


def register(
    store: MetadataStore, name: TopicName, judged: Judged, rules_of: Callable[[View], Rules]
) -> SchemaRecord | None:
    """Commit a schema that `judge` has compared, and return the record of its version.

    Return None if the topic's versions or rules have changed, so that the caller must call `judge` again. Schemas are
    not compared here, because a commit delays all other commits of the process.

    Raises:
        TopicNotFoundError: there is no such topic; for a non-persistent topic, no such namespace.
    """
    is_unchanged = False

    def decide(view: View) -> Change | None:
        nonlocal is_unchanged
        owner = _owner(view, name)
        newest = view.newest(SchemaRecord, owner.topic_id)
        is_unchanged = (owner, newest, rules_of(view)) == (judged.owner, judged.newest, judged.rules)
        if not (is_unchanged and judged.is_new):
            return None
        if not name.is_persistent and view.get(NamespaceRecord, name.namespace) is None:
            raise TopicNotFoundError(
                f"Topic {name} can have no schema, because its namespace does not exist: create the namespace with "
                "`pulsarpy namespaces create`."
            )
        return Change(puts=[judged.record], keys=_keys(name, owner))

    store.commit(decide)
    return judged.record if is_unchanged else None


def changed_meanwhile(name: TopicName) -> CommitConflictError:
    """Return the error for a topic whose schema changed during `ATTEMPTS` comparisons."""
    return CommitConflictError(
        f"The schema of {name} changed during each of {ATTEMPTS} comparisons with the new one: try again."
    )


def add_schema(
    store: MetadataStore,
    name: TopicName,
    schema: TopicSchema,
    strategy: Strategy = Strategy.FULL,
    *,
    may_update: bool = True,
) -> SchemaRecord:
    """Register a schema; nothing changes if it equals an existing version.

    Args:
        store: The root's metadata.
        name: The topic, or a partition of it.
        schema: The schema of the topic's values.
        strategy: The required compatibility with earlier schemas.
        may_update: False to refuse any new schema if the topic has one.

    Returns:
        The record of the schema's version.

    Raises:
        TopicNotFoundError: there is no such topic; for a non-persistent topic, no such namespace.
        InvalidArgumentError: the schema is malformed, or the topic has too many versions.
        IncompatibleSchemaError: the schema is not compatible with the existing versions, or `may_update` is False.
        CommitConflictError: other writers changed the topic's schema during each of `ATTEMPTS` attempts.
    """
    schema.check()
    rules = Rules(strategy, may_update)
    for _ in range(ATTEMPTS):
        added = register(store, name, judge(store.view(), name, schema, rules), lambda _: rules)
        if added is not None:
            return added
    raise changed_meanwhile(name)


def _check_room(view: View, name: TopicName, schema: TopicSchema) -> None:
    """Refuse a new version above the limits, because every process holds all versions in memory."""
    stored = _stored(view, name)
    letters = len(schema.data) + sum(len(record.data) for record in stored)
    if len(stored) >= MAX_VERSIONS or letters > MAX_VERSIONS_LETTERS:
        raise InvalidArgumentError(
            f"Topic {name} has {len(stored)} versions of its schema, and may have at most {MAX_VERSIONS} with "
            f"{MAX_VERSIONS_LETTERS} characters together: delete its schema for good, or use an existing version."
        )


def delete_schema(store: MetadataStore, name: TopicName, *, force: bool = False) -> int:
    """Delete a topic's schema.

    Args:
        store: The root's metadata.
        name: The topic, or a partition of it.
        force: True to delete all its versions for good: messages that were written with them are then read without a
            schema.

    Returns:
        The number of the version that records the deletion.

    Raises:
        TopicNotFoundError: there is no such topic.
        SchemaNotFoundError: the topic has no schema.
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
    """Refuse a consumer's schema that cannot read the topic's messages; a topic without a schema accepts any.

    Raises:
        TopicNotFoundError: there is no such topic.
        InvalidArgumentError: the schema is malformed.
        IncompatibleSchemaError: the schema cannot read the topic's messages.
    """
    schema.check()
    check_consumer(_owner(view, name).name, schema, _by_number(versions(view, name)), strategy)


def of_unstored_topics(view: View, namespace: str) -> list[SchemaRecord]:
    """Return the schema versions, including deletions, of a namespace's non-persistent topics."""
    prefix = f"{NON_PERSISTENT}://{namespace}/"
    return [record for record in view.all(SchemaRecord) if record.name.startswith(prefix)]


def _owner(view: View, name: TopicName) -> SchemaOwner:
    """Find the owner of a topic's versions: the partitioned topic for a partition."""
    if not name.is_persistent:
        full = name.partitioned_base.full
        return SchemaOwner(full, full)
    topic = require_topic(view, name)
    owner = topic if topic.partition_of is None else require_topic(view, TopicName.parse(topic.partition_of))
    return SchemaOwner(owner.name, owner.topic_id)


def _keys(name: TopicName, owner: SchemaOwner) -> dict[str, int | None]:
    """Return the compare-and-set keys of a commit of schema versions, each to get its next version (None).

    A non-persistent topic has no record of its own. The namespace's key makes the commit conflict with a concurrent
    deletion of the namespace.
    """
    topic: dict[str, int | None] = {keys.topic(owner.name): None}
    return topic if name.is_persistent else topic | {keys.namespace(name.namespace): None}


def _latest(view: View, topic_id: str) -> SchemaRecord | None:
    """Return the newest version of the topic with this id; None if it has no schema."""
    record = view.newest(SchemaRecord, topic_id)
    return None if record is None or record.is_deletion else record


def _stored(view: View, name: TopicName) -> list[SchemaRecord]:
    """Return all versions, including deletions, sorted by number."""
    return view.all(SchemaRecord, _owner(view, name).topic_id)


def _next_version(view: View, name: TopicName) -> int:
    stored = _stored(view, name)
    return stored[-1].version + 1 if stored else 0


def _same(existing: list[SchemaRecord], schema: TopicSchema) -> SchemaRecord | None:
    """Return the newest version that equals a well-formed schema; None if there is none."""
    alike = [record for record in reversed(existing) if record.type == schema.type]
    identical = next((record for record in alike if schema.type in AVRO_BASED and record.data == schema.data), None)
    if identical is not None or not alike:
        return identical
    identity = schema.identity()
    return next((record for record in alike if TopicSchema.of_record(record).identity() == identity), None)


def _by_number(records: list[SchemaRecord]) -> dict[int, TopicSchema]:
    return {record.version: TopicSchema.of_record(record) for record in records}
