"""Tenants and namespaces of a root: creating, listing, deleting them, and what they and topics are labelled with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import NamespaceRecord, PermissionsRecord, TenantRecord, TopicRecord
from pulsar_on_spark.metadata.state import RecentView, View
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import (
    CommitConflictError,
    InvalidArgumentError,
    NamespaceExistsError,
    NamespaceNotFoundError,
)
from pulsar_on_spark.model.names import (
    TopicName,
    check_namespace,
    check_new_name,
    check_new_properties,
    check_tenant,
)
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.policies.change import new_policies
from pulsar_on_spark.topic.catalog.policies.effective import policy_topic
from pulsar_on_spark.topic.catalog.registry import of_unstored_topics

_DELETED_TOGETHER: Final = 100
"""Topics that one commit of a forced deletion deletes."""
_ROUNDS: Final = 10_000
"""Limit of a forced deletion's commits, above those for any real namespace. It ends with an error if clients create
topics faster than they are deleted."""


def tenants(view: RecentView) -> list[TenantRecord]:
    """All tenants, by name."""
    return view.all(TenantRecord)


def namespaces(view: RecentView, tenant: str | None = None) -> list[NamespaceRecord]:
    """All namespaces, or those of a tenant, by name."""
    return [each for each in view.all(NamespaceRecord) if tenant is None or _tenant_of(each.namespace) == tenant]


def require_tenant(view: RecentView, tenant: str) -> TenantRecord:
    """The tenant's record.

    Raises:
        NamespaceNotFoundError: there is no such tenant.
    """
    found = view.get(TenantRecord, tenant)
    if found is None:
        raise NamespaceNotFoundError(
            f"Tenant {tenant} does not exist: create it with `pulsarpy tenants create`.",
            as_pulsar="Tenant does not exist",
        )
    return found


def require_namespace(view: RecentView, namespace: str) -> NamespaceRecord:
    """The namespace's record.

    Raises:
        NamespaceNotFoundError: there is no such namespace, or not even its tenant.
    """
    found = view.get(NamespaceRecord, namespace)
    if found is None:
        require_tenant(view, namespace.partition("/")[0])
        raise NamespaceNotFoundError(
            f"Namespace {namespace} does not exist: create it with `pulsarpy namespaces create`.",
            as_pulsar="Namespace does not exist",
        )
    return found


def create_tenant(
    store: MetadataStore,
    tenant: str,
    admin_roles: Sequence[str] = (),
    allowed_clusters: Sequence[str] = (),
    *,
    most: int = 0,
) -> None:
    """Create a tenant; roles and clusters are stored as given.

    Args:
        store: the root's metadata.
        tenant: its name.
        admin_roles: its roles.
        allowed_clusters: its clusters.
        most: limit of tenants; 0 for no limit.

    Raises:
        InvalidArgumentError: the name is not acceptable, or there are too many tenants.
        NamespaceExistsError: the tenant exists.
    """
    check_new_name("Tenant name", check_tenant(tenant))
    new = TenantRecord(tenant=tenant, admin_roles=tuple(admin_roles), allowed_clusters=tuple(allowed_clusters))

    def decide(view: View) -> Change:
        if view.get(TenantRecord, tenant) is not None:
            raise NamespaceExistsError(f"Tenant {tenant} exists already: choose another name.")
        if 0 < most <= (there := len(tenants(view))):
            raise InvalidArgumentError(f"There are {there} of at most {most} tenants (max_tenants): delete one first.")
        return Change(puts=[new], keys={keys.tenant(tenant): None})

    store.commit(decide)


def update_tenant(
    store: MetadataStore, tenant: str, admin_roles: Sequence[str], allowed_clusters: Sequence[str]
) -> None:
    """Change a tenant's roles and clusters.

    Raises:
        NamespaceNotFoundError: there is no such tenant.
    """

    def decide(view: View) -> Change:
        changed = {"admin_roles": tuple(admin_roles), "allowed_clusters": tuple(allowed_clusters)}
        return Change(puts=[require_tenant(view, tenant).model_copy(update=changed)], keys={keys.tenant(tenant): None})

    store.commit(decide)


def delete_tenant(store: MetadataStore, tenant: str, *, force: bool = False) -> None:
    """Delete a tenant; with `force` also one that has namespaces, with all that is in them.

    Raises:
        NamespaceNotFoundError: there is no such tenant.
        NamespaceExistsError: it has namespaces, and `force` is not given.
        CommitConflictError: namespaces are created as fast as they are deleted.
    """

    def decide(view: View) -> Change | None:
        record = require_tenant(view, tenant)
        held = namespaces(view, tenant)
        if held and not force:
            raise NamespaceExistsError(
                f"Tenant {tenant} has the namespace {held[0].namespace}: delete its namespaces first, or force the "
                "deletion."
            )
        return None if held else Change(deletes=[record], keys={keys.tenant(tenant): None})

    for _ in range(_ROUNDS):
        view = store.commit(decide)
        if view.get(TenantRecord, tenant) is None:
            return
        for each in namespaces(view, tenant):
            _delete_namespace_if_there(store, each.namespace)
    raise CommitConflictError(f"Tenant {tenant} gets new namespaces while it is deleted: stop what creates them.")


def create_namespace(
    store: MetadataStore,
    namespace: str,
    *,
    policies: Mapping[str, Any] = MappingProxyType({}),
    properties: Mapping[str, str] = MappingProxyType({}),
    permissions: PermissionsRecord | None = None,
    most: int = 0,
) -> None:
    """Create a namespace of a tenant that is there.

    Args:
        store: the root's metadata.
        namespace: `tenant/namespace`.
        policies: the namespace's policies, as in `set_namespace_policies`.
        properties: the tenant's labels.
        permissions: its permissions, checked; None for none.
        most: limit of its tenant's namespaces; 0 for no limit.

    Raises:
        InvalidArgumentError: the name, or a policy, is not acceptable, or the tenant has too many namespaces.
        NamespaceNotFoundError: there is no such tenant.
        NamespaceExistsError: the namespace exists.
    """
    check_new_name("Namespace name", check_namespace(namespace))
    check_new_properties(f"Namespace {namespace}", properties)
    tenant = _tenant_of(namespace)

    def decide(view: View) -> Change:
        require_tenant(view, tenant)
        if view.get(NamespaceRecord, namespace) is not None:
            raise NamespaceExistsError(f"Namespace {namespace} exists already: choose another name.")
        if 0 < most <= (there := len(namespaces(view, tenant))):
            raise InvalidArgumentError(
                f"Tenant {tenant} has {there} of at most {most} namespaces (max_namespaces_per_tenant): delete one "
                "first."
            )
        kept = new_policies(view, namespace, policies)
        new = NamespaceRecord(namespace=namespace, policies=kept, properties=dict(properties))
        moved: dict[str, int | None] = {keys.tenant(tenant): None, keys.namespace(namespace): None}
        if permissions is None:
            return Change(puts=[new], keys=moved)
        return Change(puts=[new, permissions], keys=moved | {keys.permissions(namespace): None})

    store.commit(decide)


def delete_namespace(store: MetadataStore, namespace: str, *, force: bool = False) -> None:
    """Delete a namespace; with `force` also one with topics, their data and subscriptions.

    A forced deletion that is interrupted has deleted some of the topics; the next one continues.

    Raises:
        InvalidArgumentError: the name is not one of a namespace.
        NamespaceNotFoundError: there is no such namespace.
        NamespaceExistsError: it has topics, and `force` is not given.
        CommitConflictError: topics are created as fast as they are deleted.
    """
    require_namespace(store.view(), check_namespace(namespace))
    for _ in range(_ROUNDS):
        if not _delete_some(store, namespace, force=force):
            return
    raise CommitConflictError(f"Namespace {namespace} gets new topics while it is deleted: stop what writes to it.")


def _delete_namespace_if_there(store: MetadataStore, namespace: str) -> None:
    try:
        delete_namespace(store, namespace, force=True)
    except NamespaceNotFoundError:
        return


def _delete_some(store: MetadataStore, namespace: str, *, force: bool) -> bool:
    """Delete a namespace with its last topics, or some of its topics; returns whether there are more."""
    is_more = False

    def decide(view: View) -> Change | None:
        nonlocal is_more
        record = view.get(NamespaceRecord, namespace)
        if record is None:
            is_more = False
            return None
        held = topics_of(view, namespace)
        if held and not force:
            raise NamespaceExistsError(
                f"Namespace {namespace} has the topic {held[0].name}: delete its topics first, or force the deletion."
            )
        some = held[:_DELETED_TOGETHER]
        is_more = len(some) < len(held)
        change = catalog.deletion(view, some, force=True)
        moved = {**change.keys, keys.namespace(namespace): None}
        if is_more:
            return Change(puts=change.puts, deletes=change.deletes, keys=moved)
        permissions = view.get(PermissionsRecord, namespace)
        last = [record, *of_unstored_topics(view, namespace), *([] if permissions is None else [permissions])]
        # A grant that is under way sees the deletion: it must not outlive the namespace.
        moved |= {keys.tenant(_tenant_of(namespace)): None, keys.permissions(namespace): None}
        return Change(deletes=[*change.deletes, *last], keys=moved)

    store.commit(decide)
    return is_more


def topics_of(view: RecentView, namespace: str) -> list[TopicRecord]:
    """The topics of a namespace, partitions left out, by name."""
    prefix = f"persistent://{namespace}/"
    return [topic for topic in catalog.topics(view) if topic.name.startswith(prefix)]


def set_namespace_properties(store: MetadataStore, namespace: str, changes: Mapping[str, str | None]) -> None:
    """Set properties of a namespace; None removes one.

    Raises:
        NamespaceNotFoundError: there is no such namespace.
        InvalidArgumentError: it would have too many.
    """

    def decide(view: View) -> Change:
        record = require_namespace(view, namespace)
        merged = _merged(f"Namespace {namespace}", record.properties, changes)
        return Change(puts=[record.model_copy(update={"properties": merged})], keys={keys.namespace(namespace): None})

    store.commit(decide)


def set_topic_properties(store: MetadataStore, name: TopicName, changes: Mapping[str, str | None]) -> None:
    """Set properties of a topic, of a partition those of its partitioned topic; None removes one.

    Raises:
        TopicNotFoundError: there is no such topic.
        InvalidArgumentError: it would have too many.
    """

    def decide(view: View) -> Change:
        record = policy_topic(view, name) or catalog.require_topic(view, name)
        merged = _merged(f"Topic {record.name}", record.properties, changes)
        return Change(puts=[record.model_copy(update={"properties": merged})], keys={keys.topic(record.name): None})

    store.commit(decide)


def _merged(of: str, properties: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """The properties with some changed; refused where there would be too many, unless some only go."""
    merged = {name: value for name, value in {**properties, **changes}.items() if value is not None}
    if any(value is not None for value in changes.values()):
        check_new_properties(of, merged)
    return merged


def _tenant_of(namespace: str) -> str:
    return namespace.partition("/")[0]
