"""Administering a root without its broker.

What looks into topics is imported where it is used: other commands need not wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pulsar_on_spark.cli.arguments import is_namespace
from pulsar_on_spark.model.names import TopicName, check_namespace
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import catalog, registry, tenants
from pulsar_on_spark.topic.entries.schemas.schema import TopicSchema

if TYPE_CHECKING:
    from pulsar_on_spark.broker.observe.models import Stats
    from pulsar_on_spark.topic.entries.rows import StoredEntry
    from pulsar_on_spark.topic.maintenance.retention.trim import TrimmedTopics
    from pulsar_on_spark.topic.maintenance.status import TopicSubscription


class RootTarget:
    """See `Target`: straight in the root's metadata; a broker that serves it sees the change within seconds."""

    def __init__(self, root: Root) -> None:
        self.root = root

    def tenants(self) -> list[str]:
        """See `Target`."""
        return [each.tenant for each in tenants.tenants(self.root.store.view(durable=True))]

    def create_tenant(self, tenant: str, admin_roles: Sequence[str]) -> None:
        """See `Target`."""
        tenants.create_tenant(self.root.store, tenant, admin_roles)

    def delete_tenant(self, tenant: str, *, force: bool) -> None:
        """See `Target`."""
        tenants.delete_tenant(self.root.store, tenant, force=force)

    def namespaces(self, tenant: str) -> list[str]:
        """See `Target`."""
        view = self.root.store.view(durable=True)
        tenants.require_tenant(view, tenant)
        return [each.namespace for each in tenants.namespaces(view, tenant)]

    def create_namespace(self, namespace: str) -> None:
        """See `Target`."""
        tenants.create_namespace(self.root.store, namespace)

    def delete_namespace(self, namespace: str, *, force: bool) -> None:
        """See `Target`."""
        tenants.delete_namespace(self.root.store, namespace, force=force)

    def policies(self, of: str) -> dict[str, Any]:
        """See `Target`."""
        from pulsar_on_spark.topic.catalog.policies.effective import namespace_policies, topic_policies

        view = self.root.store.view(durable=True)
        if is_namespace(of):
            tenants.require_namespace(view, of)
            found = namespace_policies(view, of)
        else:
            name = TopicName.parse(of)
            catalog.require_topic(view, name)
            found = topic_policies(view, name)
        return {field: _plain(value) for field, value in found.items()}

    def set_policy(self, of: str, field: str, value: Any) -> None:
        """See `Target`."""
        from pulsar_on_spark.topic.catalog.policies import change

        if is_namespace(of):
            change.set_namespace_policies(self.root, of, {field: value})
        else:
            change.set_topic_policies(self.root, TopicName.parse(of), {field: value})

    def retention_preview(self, of: str, value: Any) -> TrimmedTopics:
        """What housekeeping would trim because of another retention."""
        from pulsar_on_spark.topic.maintenance.retention.preview import retention_preview

        return retention_preview(self.root.store, of if is_namespace(of) else TopicName.parse(of), value)

    def topics(self, namespace: str | None = None) -> list[tuple[str, int | None]]:
        """See `Target`."""
        if namespace is not None:
            tenants.require_namespace(self.root.store.view(durable=True), check_namespace(namespace))
        return [
            (each.name, each.partitions)
            for each in self.root.topics()
            if namespace in (None, TopicName.parse(each.name).namespace)
        ]

    def create_topic(self, topic: str, partitions: int | None, schema: str | None, schema_type: str) -> None:
        """See `Target`."""
        self.root.create_topic(topic, partitions, schema=schema, schema_type=schema_type)

    def add_partitions(self, topic: str, partitions: int) -> None:
        """See `Target`."""
        self.root.add_partitions(topic, partitions)

    def delete_topic(self, topic: str, *, force: bool) -> None:
        """See `Target`."""
        self.root.delete_topic(topic, force=force)

    def stats(self, topic: str) -> Mapping[str, Any]:
        """See `Target`; what only a broker knows is left at nothing."""
        from pulsar_on_spark.broker.observe import of_root

        return _as_json(of_root.stats_of_root(self.root, TopicName.parse(topic)))

    def internal_stats(self, topic: str) -> Mapping[str, Any]:
        """See `Target`."""
        from pulsar_on_spark.broker.observe import of_root

        return _as_json(of_root.internal_stats_of_root(self.root, TopicName.parse(topic)))

    def peek(self, topic: str, name: str, entries: int) -> list[dict[str, Any]]:
        """See `Target`."""
        from pulsar_on_spark.broker.observe import of_root

        return [_peeked(each) for each in of_root.peek_of_root(self.root, TopicName.parse(topic), name, entries)]

    def subscriptions(self) -> Sequence[TopicSubscription]:
        """See `Target`."""
        return self.root.subscriptions()

    def delete_subscription(self, topic: str, name: str, *, force: bool) -> None:
        """See `Target`."""
        self.root.delete_subscription(topic, name, force=force)

    def schemas(self, topic: str) -> list[Mapping[str, Any]]:
        """See `Target`."""
        found = registry.versions(self.root.store.view(durable=True), TopicName.parse(topic))
        return [{"version": x.version, "type": x.type, "data": x.data, "properties": x.properties} for x in found]

    def add_schema(self, topic: str, type_: str, text: str) -> int:
        """See `Target`."""
        schema = TopicSchema(type_.upper(), text)
        schema.check()
        return registry.add_schema(self.root.store, TopicName.parse(topic), schema).version


def _as_json(stats: Stats) -> dict[str, Any]:
    return stats.model_dump(mode="json", by_alias=True, exclude_none=True)


def _peeked(entry: StoredEntry) -> dict[str, Any]:
    """An entry as its broker's headers would tell it."""
    from pulsar_on_spark.broker.observe.topic_stats import iso
    from pulsar_on_spark.protocol.opened_entry import open_entry

    said, payload = open_entry(entry.data)
    return {
        "id": f"{entry.ledger_id}:{entry.entry_id}",
        "published": iso(said.publish_time / 1000) if said.publish_time else None,
        "producer": said.producer_name or None,
        "key": str(said.partition_key) if said.HasField("partition_key") else None,
        "properties": {each.key: each.value for each in said.properties},
        "messages": said.num_messages_in_batch,
        "payload": payload,
    }


def _plain(value: object) -> object:
    from pydantic import TypeAdapter

    plain: object = TypeAdapter(Any).dump_python(value, mode="json", by_alias=True)
    return sorted(plain, key=str) if isinstance(value, frozenset) and isinstance(plain, list) else plain
