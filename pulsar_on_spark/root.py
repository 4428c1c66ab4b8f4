"""The Python API for users: a root, and operations on its topics, subscriptions and storage paths.

Modules that only some methods need are imported when such a method is first called, so that opening a root is fast.
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
    from pulsar_on_spark.history_table.build import Built
    from pulsar_on_spark.topic.maintenance.files.collect import Ages
    from pulsar_on_spark.topic.maintenance.maintain import MaintainReport
    from pulsar_on_spark.topic.maintenance.repair.limits import RepairLimits
    from pulsar_on_spark.topic.maintenance.repair.repairing import RepairReport
    from pulsar_on_spark.topic.maintenance.status import RootStatus
    from pulsar_on_spark.topic.managed_ledger.incarnation.recover_dead import RecoveredIncarnation
    from pulsar_on_spark.topic.managed_ledger.subscription.subscription_status import TopicSubscription


class Root(RootHandle):
    """An open root, with the operations of the Python API."""

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
            name: Short (`clicks`, `tenant/namespace/clicks`) or full (`persistent://...`) name.
            partitions: Number of partitions, 1 to 10,000; None for a topic without partitions.
            schema: Schema of the values: DDL (`id BIGINT, city STRING`), the `schema` of a DataFrame or its JSON, or an
                Avro record schema.
            schema_type: Encoding of the values, "JSON" or "AVRO".
            if_exists: "ignore" to return an existing topic, whatever its partitions and schema are; "error" to raise.

        Returns:
            The topic's record.

        Raises:
            TopicExistsError: the topic exists, and `if_exists` is "error".
            InvalidArgumentError: an argument is not valid.
        """
        if if_exists not in ("error", "ignore"):
            raise InvalidArgumentError(f"Argument if_exists is {if_exists!r}: give 'error' or 'ignore'.")
        declared = None if schema is None else TopicSchema.parse(schema_type, schema)
        exist_ok = if_exists == "ignore"
        return catalog.create_topic(self.store, TopicName.parse(name), partitions, exist_ok=exist_ok, schema=declared)

    def topics(self) -> list[TopicRecord]:
        """Return the records of all topics, sorted by name. Partitions are not listed separately."""
        return catalog.topics(self.store.view(durable=True))

    def add_partitions(self, name: str, partitions: int) -> None:
        """Increase a topic's number of partitions to `partitions` (errors as `catalog.add_partitions`)."""
        catalog.add_partitions(self.store, TopicName.parse(name), partitions)

    def declare_schema(self, name: str, schema: str | SparkSchema, schema_type: str = "JSON") -> SchemaRecord:
        """Register a schema as the topic's first or next version, and return its record.

        The arguments are as in `create_topic`.

        Raises:
            TopicNotFoundError: the topic does not exist.
            InvalidArgumentError: the schema is not valid.
            IncompatibleSchemaError: the schema is not compatible with the topic's schemas.
        """
        return registry.add_schema(self.store, TopicName.parse(name), TopicSchema.parse(schema_type, schema))

    def delete_topic(self, name: str, *, force: bool = False) -> None:
        """Delete a topic with its partitions and data; with `force`, even if it has subscriptions.

        Raises:
            TopicNotFoundError: the topic does not exist.
            InvalidArgumentError: the topic has subscriptions and `force` is false, or the name is a partition's name.
        """
        catalog.delete_topic(self.store, TopicName.parse(name), force=force)

    def subscriptions(self) -> tuple[TopicSubscription, ...]:
        """Return the subscriptions of all topics, with their cursors and backlogs."""
        from pulsar_on_spark.topic.maintenance.status import topic_subscriptions, view_with_journals

        return topic_subscriptions(self, view_with_journals(self, self.store.view(durable=True)))

    def delete_subscription(self, topic: str, name: str, *, force: bool = False) -> None:
        """Delete a subscription on a topic and its partitions.

        If a consumer's lease may still be valid, this waits for up to one lease period for its renewal.

        Raises:
            TopicNotFoundError: the topic does not exist.
            SubscriptionNotFoundError: the topic has no such subscription.
            ConsumerBusyError: a consumer is reading the subscription, and `force` is false.
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
        """Return the status of storage paths, topics, subscriptions and copies (see `maintenance.status.status`).

        With `verify`, every copy of every file is read in full first.
        """
        from pulsar_on_spark.topic.maintenance.status import status

        return status(self, verify=verify, progress=progress)

    def recover(
        self, incarnation: str | None = None, give_up: Collection[int] = ()
    ) -> tuple[RecoveredIncarnation, ...]:
        """Recover the journals of dead brokers now (errors as `incarnation.recover_dead`).

        Args:
            incarnation: The id of the only incarnation of a broker to recover; None for all.
            give_up: The ids of storage paths that are lost for good; needs `incarnation`. A path is given up only if
                the journal cannot be recovered otherwise, and acknowledged entries on none of the other paths are lost.

        Returns:
            The outcome of each incarnation that is not closed, or of the given one.
        """
        from pulsar_on_spark.topic.managed_ledger.incarnation.recover_dead import recover_dead

        chosen = None if incarnation is None else IncarnationId(incarnation)
        return recover_dead(self, chosen, [PathId(path) for path in give_up])

    def repair(self, limits: RepairLimits | None = None, progress: Progress = silent) -> RepairReport:
        """Restore missing, bad and misplaced copies of files, and return a report (see `repairing.repair`).

        `limits` is None for the default limits.
        """
        from pulsar_on_spark.topic.maintenance.repair.repairing import repair

        return repair(self, limits, progress)

    def build_history(self, topic: str, *, fail_on_data_loss: bool = True) -> list[Built]:
        """Append a topic's sealed messages to its history table, each once (errors as `history_table.build.build`).

        With `fail_on_data_loss` false, lost and unreadable messages are left out permanently. Returns the result of
        each partition, or of the topic without partitions.
        """
        from pulsar_on_spark.history_table.build import BuildOptions, build

        return build(self, TopicName.parse(topic), BuildOptions(fail_on_data_loss=fail_on_data_loss))

    def delete_history(self, topic: str) -> None:
        """Delete a topic's history table, even rows that the topic itself no longer has (see `delete_history`)."""
        from pulsar_on_spark.history_table.deletion import delete_history

        delete_history(self, TopicName.parse(topic))

    def maintain(self, ages: Ages | None = None, progress: Progress = silent) -> MaintainReport:
        """Build the histories of topics, run a pass of housekeeping, and return a report.

        `ages` has the ages at which files are deleted; None for the defaults. See `maintain_with_histories`.
        """
        from pulsar_on_spark.history_table.upkeep import maintain_with_histories
        from pulsar_on_spark.topic.maintenance.files.collect import DEFAULT_AGES

        return maintain_with_histories(self, ages or DEFAULT_AGES, progress)
