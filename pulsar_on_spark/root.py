"""The users' Python API: a root, with what its owner does to topics, subscriptions and storage.

Its methods load what they need at their first call, so that a process that only opens a root stays light.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

from pulsar_on_spark.metadata.records import SchemaRecord, TopicRecord
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import IncarnationId, PathId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import catalog, registry
from pulsar_on_spark.topic.catalog.progress import Progress, silent
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.entries.schemas.schema import TopicSchema
from pulsar_on_spark.topic.entries.values.spark_schemas import SparkSchema

if TYPE_CHECKING:
    from pulsar_on_spark.topic.maintenance.files.collect import Ages
    from pulsar_on_spark.topic.maintenance.maintain import MaintainReport
    from pulsar_on_spark.topic.maintenance.repair.limits import RepairLimits
    from pulsar_on_spark.topic.maintenance.repair.repairing import RepairReport
    from pulsar_on_spark.topic.maintenance.status import RootStatus
    from pulsar_on_spark.topic.managed_ledger.incarnation.recover_dead import RecoveredIncarnation
    from pulsar_on_spark.topic.managed_ledger.subscription.subscription_status import TopicSubscription


class Root(RootHandle):
    """An open root, with all that its users do."""

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        schema: str | SparkSchema | None = None,
        schema_type: str = "JSON",
        if_exists: Literal["error", "ignore"] = "error",
    ) -> TopicRecord:
        """Create a topic.

        Args:
            name: short (`clicks`, `tenant/namespace/clicks`) or full (`persistent://...`).
            partitions: 1 to 10,000; None for a topic without partitions.
            schema: what values are made of: DDL (`id BIGINT, city STRING`), a frame's `schema`, the JSON of one, or
                an Avro record schema.
            schema_type: how values are encoded, JSON or AVRO.
            if_exists: "ignore" gives the existing topic back, whatever its partitions and schema.

        Raises:
            TopicExistsError: the topic exists.
            InvalidArgumentError: the name, the number of partitions or the schema is not acceptable.
        """
        if if_exists not in ("error", "ignore"):
            raise InvalidArgumentError(f"Argument if_exists is {if_exists!r}: give 'error' or 'ignore'.")
        declared = None if schema is None else TopicSchema.parse(schema_type, schema)
        exist_ok = if_exists == "ignore"
        return catalog.create_topic(self.store, TopicName.parse(name), partitions, exist_ok=exist_ok, schema=declared)

    def topics(self) -> list[TopicRecord]:
        """All topics, by name; partitions are not listed on their own."""
        return catalog.topics(self.store.view(durable=True))

    def add_partitions(self, name: str, partitions: int) -> None:
        """Let a partitioned topic grow to `partitions` (see `catalog.add_partitions` for the errors)."""
        catalog.add_partitions(self.store, TopicName.parse(name), partitions)

    def declare_schema(self, name: str, schema: str | SparkSchema, schema_type: str = "JSON") -> SchemaRecord:
        """Register a topic's schema, also one that follows others; arguments are those of `create_topic`.

        Raises:
            TopicNotFoundError, InvalidArgumentError: there is no such topic, or the schema is not acceptable.
            IncompatibleSchemaError: it may not follow those that are there.
        """
        return registry.add_schema(self.store, TopicName.parse(name), TopicSchema.parse(schema_type, schema))

    def delete_topic(self, name: str, *, force: bool = False) -> None:
        """Delete a topic with its partitions and data; with `force` also one that has subscriptions.

        Raises:
            TopicNotFoundError: there is no such topic.
            InvalidArgumentError: it has subscriptions and `force` is not given, or it is a partition.
        """
        catalog.delete_topic(self.store, TopicName.parse(name), force=force)

    def subscriptions(self) -> tuple[TopicSubscription, ...]:
        """The subscriptions of all topics, with cursors and backlog."""
        from pulsar_on_spark.topic.maintenance.status import topic_subscriptions, view_with_journals

        return topic_subscriptions(self, view_with_journals(self, self.store.view(durable=True)))

    def delete_subscription(self, topic: str, name: str, *, force: bool = False) -> None:
        """Delete a subscription on a topic and its partitions.

        A consumer whose lease may still run is waited for: one lease period tells whether it is alive.

        Raises:
            TopicNotFoundError, SubscriptionNotFoundError: there is no such topic or subscription.
            ConsumerBusyError: a consumer is reading it, and `force` is not given.
        """
        from pulsar_on_spark.topic.catalog.leases import LeaseWatcher
        from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions

        view = self.store.view()
        parts = catalog.parts(view, catalog.require_topic(view, TopicName.parse(topic)))
        watcher = LeaseWatcher(self.consumer_leases(name))
        brokers = LeaseWatcher(self.broker_leases())
        subscriptions.delete_subscription(self.store, name, parts, watcher, brokers, force=force)

    def __repr__(self) -> str:
        return f"Root({str(self.place)!r}, quorum={self.quorum})"

    def status(self, *, verify: bool = False, progress: Progress = silent) -> RootStatus:
        """Storage paths, topics, subscriptions, missing and bad copies (see `status.status`)."""
        from pulsar_on_spark.topic.maintenance.status import status

        return status(self, verify=verify, progress=progress)

    def recover(
        self, incarnation: str | None = None, give_up: Collection[int] = ()
    ) -> tuple[RecoveredIncarnation, ...]:
        """Recover the journals of brokers that are dead, now (see `repair.recover_dead`)."""
        from pulsar_on_spark.topic.managed_ledger.incarnation.recover_dead import recover_dead

        chosen = None if incarnation is None else IncarnationId(incarnation)
        return recover_dead(self, chosen, [PathId(path) for path in give_up])

    def repair(self, limits: RepairLimits | None = None, progress: Progress = silent) -> RepairReport:
        """Find bad and missing copies and restore them (see `repairing.repair`)."""
        from pulsar_on_spark.topic.maintenance.repair.repairing import repair

        return repair(self, limits, progress)

    def maintain(self, ages: Ages | None = None, progress: Progress = silent) -> MaintainReport:
        """Run a pass of housekeeping (see `maintain.maintain`)."""
        from pulsar_on_spark.topic.maintenance import maintain
        from pulsar_on_spark.topic.maintenance.files import collect

        return maintain.maintain(self, ages or collect.DEFAULT_AGES, progress)
