"""Administration through a broker's admin API, of a broker of this project or of Apache Pulsar."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from pulsar_on_spark.cli.arguments import is_namespace
from pulsar_on_spark.cli.http_admin import HttpAdmin, RequestRefusedError, namespace_path, topic_path
from pulsar_on_spark.cli.target import Target
from pulsar_on_spark.model.errors import InvalidArgumentError, SubscriptionNotFoundError
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from pulsar_on_spark.model.names import TopicName, check_namespace

if TYPE_CHECKING:
    from pulsar_on_spark.topic.maintenance.status import StorageStatus
    from pulsar_on_spark.topic.managed_ledger.subscription.subscription_status import (
        SubscriptionStatus,
        TopicSubscription,
    )


class BrokerTarget(Target):
    """Target of commands that use a broker's admin API (errors as `HttpAdmin.request`)."""

    def __init__(self, admin: HttpAdmin) -> None:
        self.admin = admin

    def storage(self) -> StorageStatus | None:
        """Return the storage paths, copies and journals; None for a broker of Apache Pulsar, which lacks them."""
        from pydantic import TypeAdapter

        from pulsar_on_spark.topic.maintenance.status import StorageStatus

        try:
            status = self.admin.get("storage")
        except RequestRefusedError as error:
            if error.status != 404:
                raise
            return None
        return TypeAdapter(StorageStatus).validate_python(status)

    @override
    def tenants(self) -> list[str]:
        return list(self.admin.get("tenants"))

    @override
    def create_tenant(self, tenant: str, admin_roles: Sequence[str]) -> None:
        self.admin.change("PUT", "tenants", tenant, body={"adminRoles": list(admin_roles)})

    @override
    def update_tenant(self, tenant: str, admin_roles: Sequence[str]) -> None:
        known = self.admin.get("tenants", tenant)
        self.admin.change("POST", "tenants", tenant, body=known | {"adminRoles": list(admin_roles)})

    @override
    def delete_tenant(self, tenant: str, *, force: bool) -> None:
        self.admin.change("DELETE", "tenants", tenant, force=force)

    @override
    def namespaces(self, tenant: str) -> list[str]:
        return list(self.admin.get("namespaces", tenant))

    @override
    def create_namespace(self, namespace: str) -> None:
        self.admin.change("PUT", *namespace_path(namespace))

    @override
    def delete_namespace(self, namespace: str, *, force: bool) -> None:
        self.admin.change("DELETE", *namespace_path(namespace), force=force)

    @override
    def policies(self, of: str) -> dict[str, Any]:
        from pulsar_on_spark.topic.catalog.policies.policies import FIELDS

        values = {}
        for field in FIELDS:
            path = _policy_path(of, field)
            if path is None:
                continue
            if field in _QUOTAS:
                value = self.admin.get(*path[:-1], "backlogQuotaMap").get(_QUOTAS[field])
            else:
                value = self.admin.get(*path)
            if value is not None and value != _ANSWERS_IF_UNSET.get(field):
                values[field] = value
        return values

    @override
    def set_policy(self, of: str, field: str, value: Any) -> None:
        path = _policy_path(of, field)
        if path is None:
            what = "namespaces" if is_namespace(of) else "topics"
            raise InvalidArgumentError(f"Policy {field!r} cannot be set on {what}: set another policy.")
        params = {"backlogQuotaType": _QUOTAS[field]} if field in _QUOTAS else {}
        if value is None:
            self.admin.change("DELETE", *path, **params)
        else:
            self.admin.change("POST", *path, body=value, **params)

    @override
    def permissions(self, of: str) -> Mapping[str, Sequence[str]]:
        actions: Mapping[str, Sequence[str]] = self.admin.get(*_path(of), "permissions")
        return actions

    @override
    def grant_permission(self, of: str, role: str, actions: Sequence[str]) -> None:
        self.admin.change("POST", *_path(of), "permissions", role, body=list(actions))

    @override
    def revoke_permission(self, of: str, role: str) -> None:
        self.admin.change("DELETE", *_path(of), "permissions", role)

    @override
    def subscription_permissions(self, namespace: str) -> Mapping[str, Sequence[str]]:
        roles: Mapping[str, Sequence[str]] = self.admin.get(*namespace_path(namespace), "permissions", "subscription")
        return roles

    @override
    def grant_subscription_permission(self, namespace: str, subscription: str, roles: Sequence[str]) -> None:
        path = (*namespace_path(namespace), "permissions", "subscription", subscription)
        self.admin.change("POST", *path, body=list(roles))

    @override
    def revoke_subscription_permission(self, namespace: str, subscription: str, role: str) -> None:
        self.admin.change("DELETE", *namespace_path(namespace), "permissions", subscription, role)

    @override
    def topics(self, namespace: str | None = None) -> list[tuple[str, int | None]]:
        topics: list[tuple[str, int | None]] = []
        if namespace is None:
            wanted = [name_of_namespace for tenant in self.tenants() for name_of_namespace in self.namespaces(tenant)]
        else:
            wanted = [check_namespace(namespace)]
        for path in [("persistent", *name_of_namespace.split("/")) for name_of_namespace in wanted]:
            partitioned = dict.fromkeys(self.admin.get(*path, "partitioned"), 0)
            for name in map(TopicName.parse, self.admin.get(*path)):
                if name.partitioned_base.full in partitioned:
                    partitioned[name.partitioned_base.full] += 1
                else:
                    topics.append((name.full, None))
            topics += partitioned.items()
        return sorted(topics)

    @override
    def create_topic(self, topic: str, partitions: int | None, schema: str | None, schema_type: str) -> None:
        if partitions is None:
            self.admin.change("PUT", *topic_path(topic))
        else:
            self.admin.change("PUT", *topic_path(topic), "partitions", body=partitions)
        if schema is not None:
            self.add_schema(topic, schema_type, schema)

    @override
    def add_partitions(self, topic: str, partitions: int) -> None:
        self.admin.change("POST", *topic_path(topic), "partitions", body=partitions)

    @override
    def delete_topic(self, topic: str, *, force: bool) -> None:
        is_partitioned = self.admin.is_partitioned(topic)
        self.admin.change("DELETE", *topic_path(topic), *(("partitions",) if is_partitioned else ()), force=force)

    @override
    def stats(self, topic: str) -> Mapping[str, Any]:
        return self._stats(topic, "stats")

    @override
    def internal_stats(self, topic: str) -> Mapping[str, Any]:
        return self._stats(topic, "internalStats")

    def _stats(self, topic: str, kind: str) -> Mapping[str, Any]:
        path = topic_path(topic)
        stats: Mapping[str, Any] = self.admin.get(
            *path, f"partitioned-{kind}" if self.admin.is_partitioned(topic) else kind
        )
        return stats

    @override
    def peek(self, topic: str, name: str, entries: int) -> list[dict[str, Any]]:
        return list(self._peeked(topic_path(topic), name, entries))

    def _peeked(self, path: tuple[str, ...], name: str, entries: int) -> Iterator[dict[str, Any]]:
        if name not in self.admin.get(*path, "subscriptions"):  # a broker would show the topic from its start
            raise SubscriptionNotFoundError(f"Subscription {name!r} on {path[-1]} does not exist: check both names.")
        for number in range(1, entries + 1):
            try:
                answer = self.admin.request("GET", (*path, "subscription", name, "position", str(number)), {})
            except RequestRefusedError as error:
                if error.status == 404:
                    return
                raise
            headers = answer.headers
            yield {
                "id": headers["x-pulsar-message-id"],
                "published": headers.get("x-pulsar-publish-time"),
                "producer": headers.get("x-pulsar-producer-name"),
                "key": headers.get("x-pulsar-partition-key"),
                "properties": json.loads(headers.get("x-pulsar-property", "{}")),
                "messages": int(headers.get("x-pulsar-num-batch-message", "1")),
                "payload": answer.content,
            }

    @override
    def subscriptions(self) -> Sequence[TopicSubscription]:
        return [
            subscription
            for topic, partitions in self.topics()
            for subscription in self._subscriptions(topic, partitions)
        ]

    def _subscriptions(self, topic: str, partitions: int | None) -> Iterator[TopicSubscription]:
        from pulsar_on_spark.topic.managed_ledger.subscription.subscription_status import TopicSubscription

        path = topic_path(topic)
        if partitions is None:
            stats = {topic: self.admin.get(*path, "stats")}
            internal = {topic: self.admin.get(*path, "internalStats")}
        else:
            stats = self.admin.get(*path, "partitioned-stats")["partitions"]
            internal = self.admin.get(*path, "partitioned-internalStats")["partitions"]
        cursors: dict[str, list[SubscriptionStatus]] = defaultdict(list)
        for part, of_part in stats.items():
            for name, cursor in internal[part]["cursors"].items():
                if name in of_part["subscriptions"]:  # absent if it was created between the two requests
                    cursors[name].append(_status(part, name, of_part["subscriptions"][name], cursor))
        for name, of_name in sorted(cursors.items()):
            yield TopicSubscription.of(topic, name, of_name)

    @override
    def delete_subscription(self, topic: str, name: str, *, force: bool) -> None:
        self.admin.change("DELETE", *topic_path(topic), "subscription", name, force=force)

    @override
    def schemas(self, topic: str) -> list[Mapping[str, Any]]:
        return list(self.admin.get("schemas", *topic_path(topic)[1:], "schemas")["getSchemaResponses"])

    @override
    def add_schema(self, topic: str, type_: str, text: str) -> int:
        body = {"type": type_.upper(), "schema": text, "properties": {}}
        return int(
            self.admin.change("POST", "schemas", *topic_path(topic)[1:], "schema", body=body)["version"]["version"]
        )


_QUOTAS: Final = {"backlog_quota_size": "destination_storage", "backlog_quota_age": "message_age"}
_ANSWERS_IF_UNSET: Final[dict[str, object]] = {
    "schema_validation_enforced": False,
    "encryption_required": False,
    "is_allow_auto_update_schema": True,
    "schema_compatibility_strategy": "UNDEFINED",
    "subscription_types_enabled": [],
}
"""Values that Pulsar's API returns for policies that are not set. A policy with its value here is not shown."""


def _status(topic: str, name: str, stats: Mapping[str, Any], cursor: Mapping[str, Any]) -> SubscriptionStatus:
    from pulsar_on_spark.topic.managed_ledger.subscription.subscription_status import SubscriptionStatus

    ledger, _, entry = cursor["markDeletePosition"].rpartition(":")
    owner = [stats["owner"]] if "owner" in stats else []
    return SubscriptionStatus(
        topic=topic,
        name=name,
        type=stats["type"],
        consumers=tuple(sorted({*owner, *(consumer["consumerName"] for consumer in stats["consumers"])})),
        mark_delete=Position(LedgerId(int(ledger)), EntryId(int(entry) + 1)),
        backlog_messages=stats["msgBacklog"],
        backlog_bytes=stats["backlogSize"],
    )


def _policy_path(of: str, field: str) -> tuple[str, ...] | None:
    """Return the admin API's path of a policy of a namespace or topic; None if it has no such policy."""
    from pulsar_on_spark.topic.catalog.policies.policies import FIELDS

    if field not in FIELDS:
        raise InvalidArgumentError(f"Policy {field!r} is not known: give one of {', '.join(FIELDS)}.")
    policy = FIELDS[field]
    segment = policy.namespace if is_namespace(of) else policy.topic
    return None if segment is None else (*_path(of), segment)


def _path(of: str) -> tuple[str, ...]:
    """Return the admin API's path of a namespace or a topic (errors as `namespace_path` and `topic_path`)."""
    return namespace_path(of) if is_namespace(of) else topic_path(of)
