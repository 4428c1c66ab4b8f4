"""Permissions of roles on namespaces, topics and subscriptions: granting, revoking and listing them.

A namespace's `PermissionsRecord` stores them. A topic's permissions may be granted before the topic is created; they
are revoked when it is deleted (`catalog.deletion`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, get_args

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import PermissionsRecord
from pulsar_on_spark.metadata.records.permissions import RoleActions, SubscriptionAuthMode
from pulsar_on_spark.metadata.state import RecentView, View
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.names import TopicName, check_new_name, check_subscription_name
from pulsar_on_spark.security.operations import ACTIONS
from pulsar_on_spark.topic.catalog.tenants import require_namespace

MAX_GRANTS: Final = 2_000
"""Maximum number of a namespace's grants: the sum of the roles on itself, on each topic and on each subscription."""
Place = str | TopicName
"""A namespace (`tenant/namespace`), or a topic."""


def permissions_of(view: RecentView, place: Place) -> RoleActions:
    """Return the actions of each role on a namespace or topic.

    For a topic, they include those on its namespace and, for a partition, on its partitioned topic.

    Raises:
        NamespaceNotFoundError: there is no such namespace.
    """
    record = _record(view, _namespace_of(place))
    actions_of = {role: set(actions) for role, actions in record.namespace_auth.items()}
    if isinstance(place, TopicName):
        for name in dict.fromkeys((place.full, place.partitioned_base.full)):
            for role, actions in record.topic_auth.get(name, {}).items():
                actions_of.setdefault(role, set()).update(actions)
    return {role: _in_order(actions) for role, actions in sorted(actions_of.items())}


def subscription_permissions(view: RecentView, namespace: str) -> dict[str, tuple[str, ...]]:
    """Return the roles that may use each restricted subscription, by subscription name (errors as `permissions_of`)."""
    return dict(_record(view, namespace).subscription_auth)


def subscription_auth_mode(view: RecentView, namespace: str) -> SubscriptionAuthMode:
    """Return the namespace's rule for names of subscriptions, "None" or "Prefix" (errors as `permissions_of`)."""
    return _record(view, namespace).subscription_auth_mode


def grant_permission(store: MetadataStore, place: Place, role: str, actions: Collection[str]) -> None:
    """Grant a role these actions on a namespace or a topic; they replace its earlier actions there.

    Raises:
        NamespaceNotFoundError: there is no such namespace.
        InvalidArgumentError: the role or an action is not acceptable, or the namespace has too many permissions.
    """
    _check_role(role)
    if unknown := sorted(set(actions) - set(ACTIONS)):
        raise InvalidArgumentError(f"Action {unknown[0]!r} does not exist: give some of {', '.join(ACTIONS)}.")
    granted_actions = {role: _in_order(actions)}

    def granted(record: PermissionsRecord) -> PermissionsRecord:
        if not isinstance(place, TopicName):
            return record.model_copy(update={"namespace_auth": record.namespace_auth | granted_actions})
        of_topic = record.topic_auth.get(place.full, {}) | granted_actions
        return record.model_copy(update={"topic_auth": record.topic_auth | {place.full: of_topic}})

    if isinstance(place, TopicName):
        check_new_name("Topic name", place.full)
    _change(store, _namespace_of(place), granted)


def revoke_permission(store: MetadataStore, place: Place, role: str) -> None:
    """Revoke all actions of a role on a namespace or a topic. On a namespace, nothing happens if the role has none.

    Raises:
        NamespaceNotFoundError: there is no such namespace.
        InvalidArgumentError: the role has no permission on the topic itself.
    """

    def revoked(record: PermissionsRecord) -> PermissionsRecord:
        if not isinstance(place, TopicName):
            return record.model_copy(update={"namespace_auth": _without(record.namespace_auth, role)})
        of_topic = record.topic_auth.get(place.full, {})
        if role not in of_topic:
            raise InvalidArgumentError(
                f"Role {role!r} has no permission on {place} itself: revoke the one on its namespace or on its "
                "partitioned topic.",
                as_pulsar="Permissions are not set at the topic level",
            )
        others = {name: roles for name, roles in record.topic_auth.items() if name != place.full}
        remaining = _without(of_topic, role)
        return record.model_copy(update={"topic_auth": others | ({place.full: remaining} if remaining else {})})

    _change(store, _namespace_of(place), revoked)


def revoke_all_of_topic(store: MetadataStore, name: TopicName) -> None:
    """Revoke all permissions on a non-persistent topic, which is deleted when its last client leaves."""

    def decide(view: View) -> Change | None:
        record = view.get(PermissionsRecord, name.namespace)
        remaining = None if record is None else record.without_topics({name.full})
        return None if remaining is None or remaining is record else _put(remaining)

    store.commit(decide)


def grant_subscription_permission(
    store: MetadataStore, namespace: str, subscription: str, roles: Sequence[str]
) -> None:
    """Restrict all subscriptions with this name to these roles, which also need the action `consume`.

    Raises:
        NamespaceNotFoundError: there is no such namespace.
        InvalidArgumentError: there are no roles, a role is not acceptable, or the namespace has too many permissions.
    """
    check_new_name("Subscription name", check_subscription_name(subscription))
    if not roles:
        raise InvalidArgumentError(f"Subscription {subscription!r} is granted to no role: give one or more roles.")
    for role in roles:
        _check_role(role)
    granted_roles = {subscription: tuple(dict.fromkeys(roles))}
    _change(
        store,
        namespace,
        lambda record: record.model_copy(update={"subscription_auth": record.subscription_auth | granted_roles}),
    )


def revoke_subscription_permission(store: MetadataStore, namespace: str, subscription: str, role: str) -> None:
    """Revoke a role's grant on all subscriptions with this name.

    After the last grant is revoked, every role with the action `consume` may use them.

    Raises:
        NamespaceNotFoundError: there is no such namespace.
        InvalidArgumentError: the subscriptions are granted to no role.
    """

    def revoked(record: PermissionsRecord) -> PermissionsRecord:
        roles = record.subscription_auth.get(subscription, ())
        if not roles:
            raise InvalidArgumentError(
                f"Subscription {subscription!r} of {namespace} is granted to no role, and thus open to every role with "
                "the action consume: check its name."
            )
        remaining = tuple(name_of_role for name_of_role in roles if name_of_role != role)
        others = {name: of_name for name, of_name in record.subscription_auth.items() if name != subscription}
        return record.model_copy(
            update={"subscription_auth": others | ({subscription: remaining} if remaining else {})}
        )

    _change(store, namespace, revoked)


def set_subscription_auth_mode(store: MetadataStore, namespace: str, mode: str) -> None:
    """Set the rule for names of subscriptions: `Prefix` if they must begin with the consumer's role, or `None`.

    Raises:
        NamespaceNotFoundError: there is no such namespace.
        InvalidArgumentError: there is no such rule.
    """
    if mode not in get_args(SubscriptionAuthMode):
        raise InvalidArgumentError(f"Subscription auth mode {mode!r} does not exist: give None or Prefix.")
    _change(store, namespace, lambda record: record.model_copy(update={"subscription_auth_mode": mode}))


def checked_permissions(record: PermissionsRecord) -> PermissionsRecord:
    """Check the permissions of a new namespace, and return them.

    Raises:
        InvalidArgumentError: a role or a topic is not acceptable, or there are too many permissions.
    """
    for places in (record.namespace_auth, *record.topic_auth.values(), *record.subscription_auth.values()):
        for role in places:
            _check_role(role)
    for name in record.topic_auth:
        parsed = TopicName.parse_any(check_new_name("Topic name", name))
        if (parsed.namespace, parsed.full) != (record.namespace, name):
            raise InvalidArgumentError(
                f"Topic {name!r} is not the full name of a topic in {record.namespace}: correct it."
            )
    for name in record.subscription_auth:
        check_new_name("Subscription name", check_subscription_name(name))
    _check_number(record, MAX_GRANTS)
    return record


# ----------------------------------------------------------------------------------------------------------------------


def _change(store: MetadataStore, namespace: str, changed: Callable[[PermissionsRecord], PermissionsRecord]) -> None:
    def decide(view: View) -> Change | None:
        before = _record(view, namespace)
        after = changed(before)
        _check_number(after, max(before.grants, MAX_GRANTS))
        return None if after == before else _put(after)

    store.commit(decide)


def _check_number(record: PermissionsRecord, limit: int) -> None:
    if record.grants > limit:
        raise InvalidArgumentError(
            f"Namespace {record.namespace} would have {record.grants} grants to roles on itself, its topics and "
            f"subscriptions, and may have {MAX_GRANTS}: revoke some, or grant on the namespace instead."
        )


def _put(record: PermissionsRecord) -> Change:
    return Change(puts=[record], keys={keys.permissions(record.namespace): None})


def _record(view: RecentView, namespace: str) -> PermissionsRecord:
    require_namespace(view, namespace)
    return view.get(PermissionsRecord, namespace) or PermissionsRecord(namespace=namespace)


def _namespace_of(place: Place) -> str:
    return place.namespace if isinstance(place, TopicName) else place


def _check_role(role: str) -> None:
    if not role:
        raise InvalidArgumentError("A role is empty: give the role of a client.")
    check_new_name("Role", role)


def _without(granted: RoleActions, role: str) -> RoleActions:
    return {name: actions for name, actions in granted.items() if name != role}


def _in_order(actions: Collection[str]) -> tuple[str, ...]:
    return tuple(action for action in ACTIONS if action in actions)
