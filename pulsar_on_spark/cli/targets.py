"""What administrative commands are about: a root, or the broker that serves one. Both do the same.

`--url`, else the root (its argument, `--root` or `PULSARPY_ROOT`), else `PULSARPY_URL`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Protocol

import typer

from pulsar_on_spark.cli.arguments import root_path
from pulsar_on_spark.cli.http_admin import HttpAdmin, namespace_path, topic_path
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic import catalog, tenants
from pulsar_on_spark.topic.policies import change
from pulsar_on_spark.topic.policies.effective import namespace_policies, topic_policies
from pulsar_on_spark.topic.policies.policies import FIELDS
from pulsar_on_spark.topic.root import ROOT_VARIABLE, Root
from pulsar_on_spark.topic.schemas import registry
from pulsar_on_spark.topic.schemas.schema import TopicSchema
from pulsar_on_spark.topic.status import TopicSubscription
from pulsar_on_spark.topic.subscription.subscriptions import SubscriptionStatus

URL_VARIABLE: Final = "PULSARPY_URL"
UrlOption = Annotated[
    str | None,
    typer.Option("--url", help=f"A broker's HTTP URL, instead of a root [{URL_VARIABLE}].", show_default=False),
]


class Target(Protocol):
    """What can be administered. Errors are those of `topic`, or `RequestRefusedError`."""

    def tenants(self) -> list[str]:
        """Names of all tenants."""

    def create_tenant(self, tenant: str, admin_roles: Sequence[str]) -> None:
        """Create a tenant."""

    def delete_tenant(self, tenant: str, *, force: bool) -> None:
        """Delete a tenant."""

    def namespaces(self, tenant: str) -> list[str]:
        """Names of a tenant's namespaces."""

    def create_namespace(self, namespace: str) -> None:
        """Create a namespace."""

    def delete_namespace(self, namespace: str, *, force: bool) -> None:
        """Delete a namespace."""

    def policies(self, of: str) -> dict[str, Any]:
        """The policies that a namespace or a topic sets, by field of `Policies`."""

    def set_policy(self, of: str, field: str, value: Any) -> None:
        """Set a policy of a namespace or a topic; None has it unset."""

    def topics(self) -> list[tuple[str, int | None]]:
        """All topics by name, each with the number of its partitions; None for none."""

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Let a partitioned topic grow."""

    def delete_topic(self, topic: str, *, force: bool) -> None:
        """Delete a topic with its partitions."""

    def subscriptions(self) -> Sequence[TopicSubscription]:
        """All durable subscriptions, each with its cursors and its backlog."""

    def delete_subscription(self, topic: str, name: str, *, force: bool) -> None:
        """Delete a subscription of a topic and its partitions."""

    def schemas(self, topic: str) -> list[Mapping[str, Any]]:
        """All versions of a topic's schema."""

    def add_schema(self, topic: str, type_: str, text: str) -> int:
        """Register a schema; returns its version."""


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
        if is_namespace(of):
            change.set_namespace_policies(self.root, of, {field: value})
        else:
            change.set_topic_policies(self.root, TopicName.parse(of), {field: value})

    def topics(self) -> list[tuple[str, int | None]]:
        """See `Target`."""
        return [(each.name, each.partitions) for each in self.root.topics()]

    def add_partitions(self, topic: str, partitions: int) -> None:
        """See `Target`."""
        self.root.add_partitions(topic, partitions)

    def delete_topic(self, topic: str, *, force: bool) -> None:
        """See `Target`."""
        self.root.delete_topic(topic, force=force)

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


class BrokerTarget:
    """See `Target`: through a broker's admin API."""

    def __init__(self, admin: HttpAdmin) -> None:
        self.admin = admin

    def tenants(self) -> list[str]:
        """See `Target`."""
        return list(self.admin.get("tenants"))

    def create_tenant(self, tenant: str, admin_roles: Sequence[str]) -> None:
        """See `Target`."""
        self.admin.change("PUT", "tenants", tenant, body={"adminRoles": list(admin_roles)})

    def delete_tenant(self, tenant: str, *, force: bool) -> None:
        """See `Target`."""
        self.admin.change("DELETE", "tenants", tenant, force=force)

    def namespaces(self, tenant: str) -> list[str]:
        """See `Target`."""
        return list(self.admin.get("namespaces", tenant))

    def create_namespace(self, namespace: str) -> None:
        """See `Target`."""
        self.admin.change("PUT", *namespace_path(namespace))

    def delete_namespace(self, namespace: str, *, force: bool) -> None:
        """See `Target`."""
        self.admin.change("DELETE", *namespace_path(namespace), force=force)

    def policies(self, of: str) -> dict[str, Any]:
        """See `Target`."""
        found = {}
        for field in FIELDS:
            path = _policy_path(of, field)
            if path is None:
                continue
            if field in _QUOTAS:
                value = self.admin.get(*path[:-1], "backlogQuotaMap").get(_QUOTAS[field])
            else:
                value = self.admin.get(*path)
            if value is not None and _SAID_WHERE_UNSET.get(field) is not value:
                found[field] = value
        return found

    def set_policy(self, of: str, field: str, value: Any) -> None:
        """See `Target`."""
        path = _policy_path(of, field)
        if path is None:
            what = "namespaces" if is_namespace(of) else "topics"
            raise InvalidArgumentError(f"Policy {field!r} cannot be set on {what}: give another.")
        params = {"backlogQuotaType": _QUOTAS[field]} if field in _QUOTAS else {}
        if value is None:
            self.admin.change("DELETE", *path, **params)
        else:
            self.admin.change("POST", *path, body=value, **params)

    def topics(self) -> list[tuple[str, int | None]]:
        """See `Target`."""
        found: list[tuple[str, int | None]] = []
        for namespace in [each for tenant in self.tenants() for each in self.namespaces(tenant)]:
            path = ("persistent", *namespace.split("/"))
            partitioned = dict.fromkeys(self.admin.get(*path, "partitioned"), 0)
            for name in map(TopicName.parse, self.admin.get(*path)):
                if name.partitioned_base.full in partitioned:
                    partitioned[name.partitioned_base.full] += 1
                else:
                    found.append((name.full, None))
            found += partitioned.items()
        return sorted(found)

    def create_topic(self, topic: str, partitions: int | None) -> None:
        """Create a topic."""
        if partitions is None:
            self.admin.change("PUT", *topic_path(topic))
        else:
            self.admin.change("PUT", *topic_path(topic), "partitions", body=partitions)

    def add_partitions(self, topic: str, partitions: int) -> None:
        """See `Target`."""
        self.admin.change("POST", *topic_path(topic), "partitions", body=partitions)

    def delete_topic(self, topic: str, *, force: bool) -> None:
        """See `Target`."""
        path = topic_path(topic)
        is_partitioned = bool(self.admin.get(*path, "partitions")["partitions"])
        self.admin.change("DELETE", *path, *(("partitions",) if is_partitioned else ()), force=force)

    def subscriptions(self) -> Sequence[TopicSubscription]:
        """See `Target`."""
        return [found for topic, partitions in self.topics() for found in self._subscriptions(topic, partitions)]

    def _subscriptions(self, topic: str, partitions: int | None) -> Iterator[TopicSubscription]:
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
                if name in of_part["subscriptions"]:  # else it came between the two
                    cursors[name].append(_status(part, name, of_part["subscriptions"][name], cursor))
        for name, of_name in sorted(cursors.items()):
            yield TopicSubscription.of(topic, name, of_name)

    def delete_subscription(self, topic: str, name: str, *, force: bool) -> None:
        """See `Target`."""
        self.admin.change("DELETE", *topic_path(topic), "subscription", name, force=force)

    def schemas(self, topic: str) -> list[Mapping[str, Any]]:
        """See `Target`."""
        return list(self.admin.get("schemas", *topic_path(topic)[1:], "schemas")["getSchemaResponses"])

    def add_schema(self, topic: str, type_: str, text: str) -> int:
        """See `Target`."""
        body = {"type": type_.upper(), "schema": text, "properties": {}}
        return int(
            self.admin.change("POST", "schemas", *topic_path(topic)[1:], "schema", body=body)["version"]["version"]
        )


_QUOTAS: Final = {"backlog_quota_size": "destination_storage", "backlog_quota_age": "message_age"}
_SAID_WHERE_UNSET: Final = {"schema_validation_enforced": False, "is_allow_auto_update_schema": True}
"""What Pulsar's API answers for the policies that it does not tell from unset ones; that is no news."""


def _status(topic: str, name: str, stats: Mapping[str, Any], cursor: Mapping[str, Any]) -> SubscriptionStatus:
    ledger, _, entry = cursor["markDeletePosition"].rpartition(":")
    owner = [stats["owner"]] if "owner" in stats else []
    return SubscriptionStatus(
        topic=topic,
        name=name,
        type=stats["type"],
        consumers=tuple(sorted({*owner, *(each["consumerName"] for each in stats["consumers"])})),
        mark_delete=Position(LedgerId(int(ledger)), EntryId(int(entry) + 1)),
        backlog_messages=stats["msgBacklog"],
        backlog_bytes=stats["backlogSize"],
    )


def is_namespace(of: str) -> bool:
    """Whether a name is `tenant/namespace` rather than a topic's."""
    return of.count("/") == 1


def open_target(argument: str | None, option: str | None, url: str | None) -> RootTarget | BrokerTarget:
    """What a command is about: what is given with the command, else in the environment, there a root first.

    Raises:
        InvalidArgumentError: neither a root nor a URL is given, or both are.
        PulsarpyError: the root cannot be opened.
    """
    # Typer takes the option from the environment where it is not given.
    root_is_given = argument is not None or option not in (None, os.environ.get(ROOT_VARIABLE))
    if url is not None and root_is_given:
        raise InvalidArgumentError("Both a root and --url are given: give the one that the command is about.")
    if url is None and argument is None and option is None:
        url = os.environ.get(URL_VARIABLE)
        if url is None:
            raise InvalidArgumentError(
                f"Neither a root nor a broker is given: add --root or --url, or set {ROOT_VARIABLE} or {URL_VARIABLE}."
            )
    if url is not None:
        return BrokerTarget(HttpAdmin(url))
    return RootTarget(Root.open(root_path(argument, option)))


def open_broker(url: str | None) -> HttpAdmin:
    """The broker of a command that only a broker can do.

    Raises:
        InvalidArgumentError: no URL is given.
    """
    given = url or os.environ.get(URL_VARIABLE)
    if given is None:
        raise InvalidArgumentError(f"This takes a broker: add its HTTP URL as --url, or set {URL_VARIABLE}.")
    return HttpAdmin(given)


def _policy_path(of: str, field: str) -> tuple[str, ...] | None:
    if field not in FIELDS:
        raise InvalidArgumentError(f"Policy {field!r} is not known: give one of {', '.join(FIELDS)}.")
    policy = FIELDS[field]
    segment = policy.namespace if is_namespace(of) else policy.topic
    base: tuple[str, ...] = namespace_path(of) if is_namespace(of) else topic_path(of)
    return None if segment is None else (*base, segment)


def _plain(value: object) -> object:
    from pydantic import TypeAdapter

    plain: object = TypeAdapter(Any).dump_python(value, mode="json", by_alias=True)
    return sorted(plain, key=str) if isinstance(value, frozenset) and isinstance(plain, list) else plain
