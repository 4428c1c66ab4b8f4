"""Permissions of roles on namespaces, topics and subscriptions. Without authorization they cannot be changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Depends, HTTPException
from pydantic import BaseModel, Field, JsonValue, ValidationError

from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.web.requests import (
    NAMESPACE,
    TOPIC,
    BrokerServices,
    NamedNamespace,
    NamedTopic,
    Roles,
    SubscriptionName,
    Text,
    refused,
)
from pulsar_on_spark.metadata.records import PermissionsRecord
from pulsar_on_spark.security.operations import ACTIONS, Action
from pulsar_on_spark.topic.catalog import permissions

router = APIRouter(tags=["permissions"])

_MISSING: Final = refused(404, "There is no such namespace.")
_BAD: Final = refused(412, "The role is not acceptable, or there are too many permissions.")
_OFF: Final = refused(501, "Authorization is not enabled.")
Actions = Annotated[list[Action], Field(max_length=len(ACTIONS))]


async def _enabled(services: BrokerServices) -> None:
    """Require that the broker authorizes clients: a permission that has no effect is not stored."""
    if not services.settings.authorization_enabled:
        raise HTTPException(501, "Permissions cannot be changed without authorization: set authorization_enabled.")


_CHANGES: Final[dict[str, Any]] = {
    "status_code": 204,
    "responses": _MISSING | _BAD | _OFF,
    "dependencies": [Depends(_enabled)],
}


class AuthPolicies(BaseModel):
    """Pulsar's `AuthPolicies`: all permissions of a namespace, as they are part of its `Policies`."""

    namespace_auth: dict[str, Actions] = {}
    destination_auth: dict[str, dict[str, Actions]] = {}
    subscription_auth_roles: dict[str, Roles] = {}


def split_permissions(
    namespace: str, policies: Mapping[str, JsonValue]
) -> tuple[dict[str, JsonValue], PermissionsRecord | None]:
    """Return a new namespace's policies other than permissions, and the permissions; None if the body has none.

    Args:
        namespace: The namespace, `tenant/namespace`.
        policies: The body in the shape of Pulsar's `Policies`.

    Raises:
        InvalidArgumentError: the permissions are not acceptable.
        HTTPException: 400, the permissions are malformed.
    """
    others = dict(policies)
    granted, mode = others.pop("auth_policies", None), others.pop("subscription_auth_mode", None)
    if granted is None and mode is None:
        return others, None
    try:
        given = AuthPolicies.model_validate(granted or {})
        record = PermissionsRecord.model_validate(
            {
                "namespace": namespace,
                "namespace_auth": given.namespace_auth,
                "topic_auth": given.destination_auth,
                "subscription_auth": given.subscription_auth_roles,
                "subscription_auth_mode": mode or "None",
            }
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise HTTPException(
            400, f"The permissions of namespace {namespace} are malformed ({where}: {first['msg']}): correct them."
        ) from error
    return others, permissions.checked_permissions(record)


def permissions_json(record: PermissionsRecord | None) -> dict[str, Any]:
    """Return a namespace's permissions in the shape of Pulsar's `Policies`; empty for None, no permissions."""
    if record is None:
        return {}
    granted = {
        "namespace_auth": record.namespace_auth,
        "destination_auth": record.topic_auth,
        "subscription_auth_roles": record.subscription_auth,
    }
    return {"auth_policies": granted, "subscription_auth_mode": record.subscription_auth_mode}


# -- of a namespace ----------------------------------------------------------------------------------------------------


@router.get(f"{NAMESPACE}/permissions", responses=_MISSING)
async def of_namespace(services: BrokerServices, namespace: NamedNamespace) -> dict[str, tuple[str, ...]]:
    """Return the actions that each role may do on the namespace, by role."""
    return permissions.permissions_of(await services.views.view(), namespace)


@router.post(f"{NAMESPACE}/permissions/{{role}}", **_CHANGES)
async def grant(services: BrokerServices, namespace: NamedNamespace, role: Text, body: Actions) -> None:
    """Give a role the actions of the body on all topics of the namespace, replacing the actions that it has."""
    await _change(services, permissions.grant_permission, namespace, role, body)


@router.delete(f"{NAMESPACE}/permissions/{{role}}", **_CHANGES)
async def revoke(services: BrokerServices, namespace: NamedNamespace, role: Text) -> None:
    """Remove all actions that a role may do on the namespace."""
    await _change(services, permissions.revoke_permission, namespace, role)


# -- of the subscriptions of a namespace -------------------------------------------------------------------------------


@router.get(f"{NAMESPACE}/permissions/subscription", responses=_MISSING)
async def of_subscriptions(services: BrokerServices, namespace: NamedNamespace) -> dict[str, tuple[str, ...]]:
    """Return, by subscription name, the only roles that may use it; any role may use a subscription not listed."""
    return permissions.subscription_permissions(await services.views.view(), namespace)


@router.post(f"{NAMESPACE}/permissions/subscription/{{subscription}}", **_CHANGES)
async def grant_subscription(
    services: BrokerServices, namespace: NamedNamespace, subscription: SubscriptionName, body: Roles
) -> None:
    """Let only the roles of the body use the subscriptions of this name, replacing the roles set before."""
    await _change(services, permissions.grant_subscription_permission, namespace, subscription, body)


@router.delete(f"{NAMESPACE}/permissions/{{subscription}}/{{role}}", **_CHANGES)
async def revoke_subscription(
    services: BrokerServices, namespace: NamedNamespace, subscription: SubscriptionName, role: Text
) -> None:
    """Stop a role from using the subscriptions of this name; once no role is left, any role may use them."""
    await _change(services, permissions.revoke_subscription_permission, namespace, subscription, role)


@router.get(f"{NAMESPACE}/subscriptionAuthMode", responses=_MISSING)
async def subscription_auth_mode(services: BrokerServices, namespace: NamedNamespace) -> str:
    """Return the rule for names of subscriptions: "None" (any name), or "Prefix" (they begin with the role)."""
    return permissions.subscription_auth_mode(await services.views.view(), namespace)


@router.post(f"{NAMESPACE}/subscriptionAuthMode", **_CHANGES)
async def set_subscription_auth_mode(
    services: BrokerServices, namespace: NamedNamespace, body: Annotated[str, Body(max_length=16)]
) -> None:
    """Set the rule for names of subscriptions: "None" (any name), or "Prefix" (they begin with the role)."""
    await _change(services, permissions.set_subscription_auth_mode, namespace, body)


# -- of a topic --------------------------------------------------------------------------------------------------------


@router.get(f"{TOPIC}/permissions", responses=_MISSING)
async def of_topic(services: BrokerServices, name: NamedTopic) -> dict[str, tuple[str, ...]]:
    """Return the actions that each role may do on the topic, also by grants on its namespace or partitioned topic."""
    return permissions.permissions_of(await services.views.view(), name)


@router.post(f"{TOPIC}/permissions/{{role}}", **_CHANGES)
async def grant_on_topic(services: BrokerServices, name: NamedTopic, role: Text, body: Actions) -> None:
    """Give a role the actions of the body on the topic and its partitions, replacing its former actions on them."""
    await _change(services, permissions.grant_permission, name, role, body)


@router.delete(f"{TOPIC}/permissions/{{role}}", **_CHANGES)
async def revoke_on_topic(services: BrokerServices, name: NamedTopic, role: Text) -> None:
    """Remove all actions that a role may do on the topic; 412 if it has none on the topic itself."""
    await _change(services, permissions.revoke_permission, name, role)


async def _change(services: Services, change: Callable[..., None], *given: object) -> None:
    """Change permissions by a function of the store and `given`; then read the metadata, for new requests."""
    await asyncio.to_thread(change, services.root.store, *given)
    await services.views.view()
