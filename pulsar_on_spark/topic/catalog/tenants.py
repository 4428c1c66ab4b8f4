"""Tenants and namespaces of a root: creating, listing, deleting them; and the properties of namespaces and topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import (
    BundlesRecord,
    NamespaceRecord,
    PermissionsRecord,
    Record,
    TenantRecord,
    TopicRecord,
)
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
from pulsar_on_spark.topic.catalog.bundles import new_record
from pulsar_on_spark.topic.catalog.policies.change import new_policies
from pulsar_on_spark.topic.catalog.policies.effective import policy_topic
from pulsar_on_spark.topic.catalog.registry import of_unstored_topics

_DELETED_TOGETHER: Final = 100
"""Maximum number of topics that one commit of a forced deletion deletes."""
_ROUNDS: Final = 10_000
"""Maximum number of commits of a forced deletion, more than any real namespace needs. The deletion fails if clients
create topics faster than it deletes them."""


def tenants(view: RecentView) -> list[TenantRecord]:
    """Return all tenants, sorted by name."""
    return view.all(TenantRecord)


def namespaces(view: RecentView, tenant: str | None = None) -> list[NamespaceRecord]:
    """Return all namespaces, or those of a tenant, sorted by name. `tenant` is None for all."""
    return [record for record in view.all(NamespaceRecord) if tenant is None or _tenant_of(record.namespace) == tenant]


def require_tenant(view: RecentView, tenant: str) -> TenantRecord:
    """Return the tenant's record.

    Raises:
        NamespaceNotFoundError: there is no such tenant.
    """
    record = view.get(TenantRecord, tenant)
    if record is None:
        raise NamespaceNotFoundError(
            f"Tenant {tenant} does not exist: create it with `pulsarpy tenants create`.",
            as_pulsar="Tenant does not exist",
        )
    return record


def require_namespace(view: RecentView, namespace: str) -> NamespaceRecord:
    """Return the namespace's record.

    Raises:
        NamespaceNotFoundError: there is no such namespace or tenant.
    """
    record = view.get(NamespaceRecord, namespace)
    if record is None:
        require_tenant(view, namespace.partition("/")[0])
        raise NamespaceNotFoundError(
            f"Namespace {namespace} does not exist: create it with `pulsarpy namespaces create`.",
            as_pulsar="Namespace does not exist",
        )
    return record


def create_tenant(
    store: MetadataStore,
    tenant: str,
    admin_roles: Sequence[str] = (),
    allowed_clusters: Sequence[str] = (),
    *,
    most: int = 0,
) -> None:
    """Create a tenant. Its clusters are stored unchecked.

    Args:
        store: The root's metadata.
        tenant: The tenant's name.
        admin_roles: The roles that may administer the tenant.
        allowed_clusters: The clusters of the tenant.
        most: The limit of tenants; 0 for no limit.

    Raises:
        InvalidArgumentError: the name or a role is not acceptable, or there are too many tenants.
        NamespaceExistsError: the tenant exists.
    """
    check_new_name("Tenant name", check_tenant(tenant))
    _check_roles(admin_roles)
    new = TenantRecord(tenant=tenant, admin_roles=tuple(admin_roles), allowed_clusters=tuple(allowed_clusters))

    def decide(view: View) -> Change:
        if view.get(TenantRecord, tenant) is not None:
            raise NamespaceExistsError(f"Tenant {tenant} exists already: choose another name.")
        if 0 < most <= (existing := len(tenants(view))):
            raise InvalidArgumentError(
                f"There are {existing} of at most {most} tenants (max_tenants): delete one first."
            )
        return Change(puts=[new], keys={keys.tenant(tenant): None})

    store.commit(decide)


def update_tenant(
    store: MetadataStore, tenant: str, admin_roles: Sequence[str], allowed_clusters: Sequence[str]
) -> None:
    """Change a tenant's roles and clusters.

    Raises:
        InvalidArgumentError: a role is not acceptable.
        NamespaceNotFoundError: there is no such tenant.
    """
    _check_roles(admin_roles)

    def decide(view: View) -> Change:
        changed = {"admin_roles": tuple(admin_roles), "allowed_clusters": tuple(allowed_clusters)}
        return Change(puts=[require_tenant(view, tenant).model_copy(update=changed)], keys={keys.tenant(tenant): None})

    store.commit(decide)


def delete_tenant(store: MetadataStore, tenant: str, *, force: bool = False) -> None:
    """Delete a tenant; with `force`, delete its namespaces and all topics in them, too.

    Raises:
        NamespaceNotFoundError: there is no such tenant.
        NamespaceExistsError: the tenant has namespaces, and `force` is False.
        CommitConflictError: namespaces are created as fast as they are deleted.
    """

    def decide(view: View) -> Change | None:
        record = require_tenant(view, tenant)
        remaining = namespaces(view, tenant)
        if remaining and not force:
            raise NamespaceExistsError(
                f"Tenant {tenant} has the namespace {remaining[0].namespace}: delete its namespaces first, or force "
                "the deletion."
            )
        return None if remaining else Change(deletes=[record], keys={keys.tenant(tenant): None})

    for _ in range(_ROUNDS):
        view = store.commit(decide)
        if view.get(TenantRecord, tenant) is None:
            return
        for namespace in namespaces(view, tenant):
            _delete_namespace_if_there(store, namespace.namespace)
    raise CommitConflictError(
        f"Tenant {tenant} gets new namespaces while it is deleted: stop the clients that create them."
    )


def create_namespace(
    store: MetadataStore,
    namespace: str,
    *,
    policies: Mapping[str, Any] = MappingProxyType({}),
    properties: Mapping[str, str] = MappingProxyType({}),
    permissions: PermissionsRecord | None = None,
    boundaries: Sequence[int] | None = None,
    most: int = 0,
) -> None:
    """Create a namespace of an existing tenant.

    Args:
        store: The root's metadata.
        namespace: `tenant/namespace`.
        policies: The namespace's policies, as in `set_namespace_policies`.
        properties: The namespace's properties.
        permissions: The namespace's permissions, which the caller has checked; None for none.
        boundaries: The boundaries of the namespace's bundles; None for the default number.
        most: The limit of the tenant's namespaces; 0 for no limit.

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
        if 0 < most <= (existing := len(namespaces(view, tenant))):
            raise InvalidArgumentError(
                f"Tenant {tenant} has {existing} of at most {most} namespaces (max_namespaces_per_tenant): delete one "
                "first."
            )
        policies_json = new_policies(view, namespace, policies)
        new = NamespaceRecord(namespace=namespace, policies=policies_json, properties=dict(properties))
        moved: dict[str, int | None] = {keys.tenant(tenant): None, keys.namespace(namespace): None}
        beside: list[Record] = []
        if permissions is not None:
            beside.append(permissions)
            moved[keys.permissions(namespace)] = None
        stale = view.get(BundlesRecord, namespace)
        if boundaries is not None:
            beside.append(new_record(namespace, boundaries))
        if boundaries is not None or stale is not None:
            moved[keys.bundles(namespace)] = None
        deletes = [stale] if stale is not None and boundaries is None else []
        return Change(puts=[new, *beside], deletes=deletes, keys=moved)

    store.commit(decide)


def delete_namespace(store: MetadataStore, namespace: str, *, force: bool = False) -> None:
    """Delete a namespace; with `force`, delete its topics with their data and subscriptions, too.

    A forced deletion that is interrupted leaves some of the topics; the next deletion continues with them.

    Raises:
        InvalidArgumentError: the name is not a valid name of a namespace.
        NamespaceNotFoundError: there is no such namespace.
        NamespaceExistsError: the namespace has topics, and `force` is False.
        CommitConflictError: topics are created as fast as they are deleted.
    """
    require_namespace(store.view(), check_namespace(namespace))
    for _ in range(_ROUNDS):
        if not _delete_some(store, namespace, force=force):
            return
    raise CommitConflictError(
        f"Namespace {namespace} gets new topics while it is deleted: stop the clients that create them."
    )


def _delete_namespace_if_there(store: MetadataStore, namespace: str) -> None:
    try:
        delete_namespace(store, namespace, force=True)
    except NamespaceNotFoundError:
        return


def _delete_some(store: MetadataStore, namespace: str, *, force: bool) -> bool:
    """Delete up to `_DELETED_TOGETHER` topics, and the namespace with the last one. Return True if topics remain."""
    is_more = False

    def decide(view: View) -> Change | None:
        nonlocal is_more
        record = view.get(NamespaceRecord, namespace)
        if record is None:
            is_more = False
            return None
        remaining = topics_of(view, namespace)
        if remaining and not force:
            raise NamespaceExistsError(
                f"Namespace {namespace} has the topic {remaining[0].name}: delete its topics first, or force the "
                "deletion."
            )
        some = remaining[:_DELETED_TOGETHER]
        is_more = len(some) < len(remaining)
        change = catalog.deletion(view, some, force=True)
        moved = {**change.keys, keys.namespace(namespace): None}
        if is_more:
            return Change(puts=change.puts, deletes=change.deletes, keys=moved)
        beside = (view.get(PermissionsRecord, namespace), view.get(BundlesRecord, namespace))
        last = [record, *of_unstored_topics(view, namespace), *(each for each in beside if each is not None)]
        # Concurrent commits of these keys conflict: neither permissions nor bundles must outlive their namespace.
        moved |= dict.fromkeys((keys.permissions(namespace), keys.bundles(namespace)))
        moved[keys.tenant(_tenant_of(namespace))] = None
        return Change(deletes=[*change.deletes, *last], keys=moved)

    store.commit(decide)
    return is_more


def topics_of(view: RecentView, namespace: str) -> list[TopicRecord]:
    """Return the topics of a namespace, sorted by name; their partitions are left out."""
    prefix = f"persistent://{namespace}/"
    return [topic for topic in catalog.topics(view) if topic.name.startswith(prefix)]


def set_namespace_properties(store: MetadataStore, namespace: str, changes: Mapping[str, str | None]) -> None:
    """Set properties of a namespace. `changes` has the new values by name; None removes a property.

    Raises:
        NamespaceNotFoundError: there is no such namespace.
        InvalidArgumentError: the namespace would have too many properties.
    """

    def decide(view: View) -> Change:
        record = require_namespace(view, namespace)
        merged = _merged(f"Namespace {namespace}", record.properties, changes)
        return Change(puts=[record.model_copy(update={"properties": merged})], keys={keys.namespace(namespace): None})

    store.commit(decide)


def set_topic_properties(store: MetadataStore, name: TopicName, changes: Mapping[str, str | None]) -> None:
    """Set properties of a topic, or of a partition's partitioned topic.

    `changes` has the new values by name; None removes a property.

    Raises:
        TopicNotFoundError: there is no such topic.
        InvalidArgumentError: the topic would have too many properties.
    """

    def decide(view: View) -> Change:
        record = policy_topic(view, name) or catalog.require_topic(view, name)
        merged = _merged(f"Topic {record.name}", record.properties, changes)
        return Change(puts=[record.model_copy(update={"properties": merged})], keys={keys.topic(record.name): None})

    store.commit(decide)


def _merged(of: str, properties: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the properties with the changes applied.

    Raise `InvalidArgumentError` for too many, unless the change only removes some.
    """
    merged = {name: value for name, value in {**properties, **changes}.items() if value is not None}
    if any(value is not None for value in changes.values()):
        check_new_properties(of, merged)
    return merged


def _tenant_of(namespace: str) -> str:
    return namespace.partition("/")[0]


def _check_roles(roles: Sequence[str]) -> None:
    for role in roles:
        check_new_name("Role", role)
