"""Administration of a root without a broker.

Modules that read topics are imported where they are used, so that other commands start without these imports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from pulsar_on_spark.cli.arguments import is_namespace
from pulsar_on_spark.cli.target import Target
from pulsar_on_spark.model.names import TopicName, check_namespace
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import catalog, permissions, registry, tenants
from pulsar_on_spark.topic.entries.schemas.schema import TopicSchema

if TYPE_CHECKING:
    from pulsar_on_spark.broker.observe.models import Stats
    from pulsar_on_spark.topic.entries.rows import StoredEntry
    from pulsar_on_spark.topic.maintenance.retention.trim import TrimmedTopics
    from pulsar_on_spark.topic.managed_ledger.subscription.subscription_status import TopicSubscription


class RootTarget(Target):
    """Target of commands that use a root directly. A broker that serves the root sees their changes within seconds."""

    def __init__(self, root: Root) -> None:
        self.root = root

    @override
    def tenants(self) -> list[str]:
        return [record.tenant for record in tenants.tenants(self.root.store.view(durable=True))]

    @override
    def create_tenant(self, tenant: str, admin_roles: Sequence[str]) -> None:
        tenants.create_tenant(self.root.store, tenant, admin_roles)

    @override
    def update_tenant(self, tenant: str, admin_roles: Sequence[str]) -> None:
        known = tenants.require_tenant(self.root.store.view(), tenant)
        tenants.update_tenant(self.root.store, tenant, admin_roles, known.allowed_clusters)

    @override
    def delete_tenant(self, tenant: str, *, force: bool) -> None:
        tenants.delete_tenant(self.root.store, tenant, force=force)

    @override
    def namespaces(self, tenant: str) -> list[str]:
        view = self.root.store.view(durable=True)
        tenants.require_tenant(view, tenant)
        return [record.namespace for record in tenants.namespaces(view, tenant)]

    @override
    def create_namespace(self, namespace: str) -> None:
        tenants.create_namespace(self.root.store, namespace)

    @override
    def delete_namespace(self, namespace: str, *, force: bool) -> None:
        tenants.delete_namespace(self.root.store, namespace, force=force)

    @override
    def policies(self, of: str) -> dict[str, Any]:
        from pulsar_on_spark.topic.catalog.policies.effective import namespace_policies, topic_policies

        view = self.root.store.view(durable=True)
        if is_namespace(of):
            tenants.require_namespace(view, of)
            values = namespace_policies(view, of)
        else:
            name = TopicName.parse(of)
            catalog.require_topic(view, name)
            values = topic_policies(view, name)
        return {field: _plain(value) for field, value in values.items()}

    @override
    def set_policy(self, of: str, field: str, value: Any) -> None:
        from pulsar_on_spark.topic.catalog.policies import change

        if is_namespace(of):
            change.set_namespace_policies(self.root, of, {field: value})
        else:
            change.set_topic_policies(self.root, TopicName.parse(of), {field: value})

    def retention_preview(self, of: str, value: Any) -> TrimmedTopics:
        """Return the topics and messages that housekeeping would trim if the retention of `of` were `value`.

        `of` is a namespace or a topic, and `value` is in the form of the admin API, or None for a removed policy.
        """
        from pulsar_on_spark.topic.maintenance.retention.preview import retention_preview

        return retention_preview(self.root.store, of if is_namespace(of) else TopicName.parse(of), value)

    @override
    def permissions(self, of: str) -> Mapping[str, Sequence[str]]:
        return permissions.permissions_of(self.root.store.view(durable=True), _parsed(of))

    @override
    def grant_permission(self, of: str, role: str, actions: Sequence[str]) -> None:
        permissions.grant_permission(self.root.store, _parsed(of), role, actions)

    @override
    def revoke_permission(self, of: str, role: str) -> None:
        permissions.revoke_permission(self.root.store, _parsed(of), role)

    @override
    def subscription_permissions(self, namespace: str) -> Mapping[str, Sequence[str]]:
        return permissions.subscription_permissions(self.root.store.view(durable=True), check_namespace(namespace))

    @override
    def grant_subscription_permission(self, namespace: str, subscription: str, roles: Sequence[str]) -> None:
        permissions.grant_subscription_permission(self.root.store, check_namespace(namespace), subscription, roles)

    @override
    def revoke_subscription_permission(self, namespace: str, subscription: str, role: str) -> None:
        permissions.revoke_subscription_permission(self.root.store, check_namespace(namespace), subscription, role)

    @override
    def topics(self, namespace: str | None = None) -> list[tuple[str, int | None]]:
        if namespace is not None:
            tenants.require_namespace(self.root.store.view(durable=True), check_namespace(namespace))
        return [
            (topic.name, topic.partitions)
            for topic in self.root.topics()
            if namespace in (None, TopicName.parse(topic.name).namespace)
        ]

    @override
    def create_topic(self, topic: str, partitions: int | None, schema: str | None, schema_type: str) -> None:
        self.root.create_topic(topic, partitions, schema=schema, schema_type=schema_type)

    @override
    def add_partitions(self, topic: str, partitions: int) -> None:
        self.root.add_partitions(topic, partitions)

    @override
    def delete_topic(self, topic: str, *, force: bool) -> None:
        self.root.delete_topic(topic, force=force)

    @override
    def stats(self, topic: str) -> Mapping[str, Any]:
        """Return the stats without fields that only a broker has."""
        from pulsar_on_spark.broker.observe import of_root

        return _as_json(of_root.stats_of_root(self.root, TopicName.parse(topic)))

    @override
    def internal_stats(self, topic: str) -> Mapping[str, Any]:
        from pulsar_on_spark.broker.observe import of_root

        return _as_json(of_root.internal_stats_of_root(self.root, TopicName.parse(topic)))

    @override
    def peek(self, topic: str, name: str, entries: int) -> list[dict[str, Any]]:
        from pulsar_on_spark.broker.observe import of_root

        return [_peeked(entry) for entry in of_root.peek_of_root(self.root, TopicName.parse(topic), name, entries)]

    @override
    def subscriptions(self) -> Sequence[TopicSubscription]:
        return self.root.subscriptions()

    @override
    def delete_subscription(self, topic: str, name: str, *, force: bool) -> None:
        self.root.delete_subscription(topic, name, force=force)

    @override
    def schemas(self, topic: str) -> list[Mapping[str, Any]]:
        records = registry.versions(self.root.store.view(durable=True), TopicName.parse(topic))
        return [
            {"version": record.version, "type": record.type, "data": record.data, "properties": record.properties}
            for record in records
        ]

    @override
    def add_schema(self, topic: str, type_: str, text: str) -> int:
        schema = TopicSchema(type_.upper(), text)
        schema.check()
        return registry.add_schema(self.root.store, TopicName.parse(topic), schema).version


def _parsed(of: str) -> str | TopicName:
    """Return a checked name of a namespace, or the parsed name of a topic."""
    return check_namespace(of) if is_namespace(of) else TopicName.parse_any(of)


def _as_json(stats: Stats) -> dict[str, Any]:
    return stats.model_dump(mode="json", by_alias=True, exclude_none=True)


def _peeked(entry: StoredEntry) -> dict[str, Any]:
    """Return an entry in the form of `BrokerTarget.peek`, whose fields a broker sends as headers."""
    from pulsar_on_spark.broker.observe.topic_stats import iso
    from pulsar_on_spark.protocol.messages import as_text
    from pulsar_on_spark.protocol.opened_entry import open_entry

    metadata, payload = open_entry(entry.data)
    return {
        "id": f"{entry.ledger_id}:{entry.entry_id}",
        "published": iso(metadata.publish_time / 1000) if metadata.publish_time else None,
        "producer": as_text(metadata.producer_name) or None,
        "key": as_text(metadata.partition_key) if metadata.HasField("partition_key") else None,
        "properties": {as_text(pair.key): as_text(pair.value) for pair in metadata.properties},
        "messages": metadata.num_messages_in_batch,
        "payload": payload,
    }


def _plain(value: object) -> object:
    from pydantic import TypeAdapter

    plain: object = TypeAdapter(Any).dump_python(value, mode="json", by_alias=True)
    return sorted(plain, key=str) if isinstance(value, frozenset) and isinstance(plain, list) else plain
