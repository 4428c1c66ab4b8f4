"""Namespaces and their properties. For policies see `policies.py`, for bundles `bundles.py`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, HTTPException, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from pulsar_on_spark.broker.runtime.access import authorize
from pulsar_on_spark.broker.web.admin.bundles import bundles_json, given_boundaries
from pulsar_on_spark.broker.web.admin.permissions import permissions_json, split_permissions
from pulsar_on_spark.broker.web.admin.policy_json import given_fields, policies_json
from pulsar_on_spark.broker.web.requests import (
    NAMESPACE,
    BrokerServices,
    Client,
    Force,
    NamedNamespace,
    Text,
    refused,
)
from pulsar_on_spark.broker.web.route_rules import OF_SUPER_USERS
from pulsar_on_spark.metadata.records import PermissionsRecord
from pulsar_on_spark.security.operations import CLUSTER, SuperUserOperation
from pulsar_on_spark.topic.catalog import tenants as registry
from pulsar_on_spark.topic.catalog.policies.policies import FIELDS

router = APIRouter(tags=["namespaces"])

MISSING: Final = refused(404, "There is no such namespace.")
Properties = Annotated[dict[str, str], Field(max_length=1000)]


class NamespaceBody(BaseModel):
    """Pulsar's `Policies`: every key except `properties`, None for none, is the name of a policy."""

    model_config = ConfigDict(extra="allow")

    properties: Properties | None = None


@router.get("/admin/v2/namespaces/{tenant}", responses=refused(404, "There is no such tenant."))
async def namespaces(services: BrokerServices, tenant: Text) -> list[str]:
    """List the namespaces of a tenant, sorted by name."""
    view = await services.views.view()
    registry.require_tenant(view, tenant)
    return [record.namespace for record in registry.namespaces(view, tenant)]


@router.get(NAMESPACE, responses=MISSING)
async def policies(services: BrokerServices, namespace: NamedNamespace) -> dict[str, Any]:
    """Return the policies that are set on the namespace, under the names of Pulsar's `Policies`."""
    view = await services.views.view()
    record = registry.require_namespace(view, namespace)
    return {
        "bundles": bundles_json(services.ownership.bundles(view, namespace)),
        "replication_clusters": [services.settings.cluster_name],
        "properties": record.properties,
        "deleted": False,
        **policies_json(record.policies, services.settings.cluster_name),
        **permissions_json(view.get(PermissionsRecord, namespace)),
    }


@router.put(
    NAMESPACE,
    status_code=204,
    responses=refused(409, "It exists.") | refused(501, "One of the policies is not supported."),
)
async def create(
    services: BrokerServices,
    client: Client,
    namespace: NamedNamespace,
    body: Annotated[NamespaceBody | None, Body()] = None,
) -> None:
    """Create a namespace of an existing tenant, with all policies of the body (Pulsar's `Policies`) or not at all.

    Raises:
        NotAuthorizedError: the body has a policy that only super users may set.
    """
    body = body or NamespaceBody()
    policies, permissions = dict(body.model_extra or {}), None
    if services.settings.authorization_enabled:
        policies, permissions = split_permissions(namespace, policies)
    boundaries = given_boundaries(policies.pop("bundles", None))
    fields, unsupported = given_fields(policies, services.settings.cluster_name)
    if unsupported:
        names = ", ".join(sorted(unsupported))
        raise HTTPException(501, f"Policies of namespace {namespace} are not supported: leave out {names}.")
    if any(FIELDS[field].namespace in OF_SUPER_USERS for field in fields):
        authorize(services.access, client, SuperUserOperation.ADMINISTER, CLUSTER)
    await asyncio.to_thread(
        registry.create_namespace,
        services.root.store,
        namespace,
        policies=fields,
        properties=body.properties or {},
        permissions=permissions,
        boundaries=boundaries,
        most=services.settings.max_namespaces_per_tenant,
    )
    await services.views.view()  # authorization uses the view that was read last: it must have the namespace


@router.delete(NAMESPACE, status_code=204, responses=MISSING | refused(409, "It has topics."))
async def delete(services: BrokerServices, namespace: NamedNamespace, force: Force = False) -> None:
    """Delete a namespace; with `force`, its topics, their data and subscriptions too."""
    registry.require_namespace(await services.views.view(), namespace)
    if force:
        await services.topics.unload_some(lambda name: name.namespace == namespace)
    await asyncio.to_thread(registry.delete_namespace, services.root.store, namespace, force=force)
    await services.topics.unload_deleted()


# -- properties --------------------------------------------------------------------------------------------------------


@router.get(f"{NAMESPACE}/properties", responses=MISSING)
async def properties(services: BrokerServices, namespace: NamedNamespace) -> dict[str, str]:
    """Return the namespace's properties."""
    return dict(registry.require_namespace(await services.views.view(), namespace).properties)


@router.put(f"{NAMESPACE}/properties", status_code=204, responses=MISSING)
async def set_properties(services: BrokerServices, namespace: NamedNamespace, body: Properties) -> None:
    """Set properties of a namespace; its other properties keep their values."""
    await asyncio.to_thread(registry.set_namespace_properties, services.root.store, namespace, body)


@router.delete(f"{NAMESPACE}/properties", status_code=204, responses=MISSING)
async def clear_properties(services: BrokerServices, namespace: NamedNamespace) -> None:
    """Remove all properties of a namespace."""
    known = registry.require_namespace(await services.views.view(), namespace).properties
    gone = dict.fromkeys(known)
    await asyncio.to_thread(registry.set_namespace_properties, services.root.store, namespace, gone)


@router.get(f"{NAMESPACE}/property/{{key}}", responses=MISSING)
async def property_(services: BrokerServices, namespace: NamedNamespace, key: Text) -> Response:
    """Return one property of a namespace as plain text; 204 if it is not set."""
    return _text(registry.require_namespace(await services.views.view(), namespace).properties.get(key))


@router.put(f"{NAMESPACE}/property/{{key}}/{{value}}", status_code=204, responses=MISSING)
async def set_property(services: BrokerServices, namespace: NamedNamespace, key: Text, value: Text) -> None:
    """Set one property of a namespace."""
    await asyncio.to_thread(registry.set_namespace_properties, services.root.store, namespace, {key: value})


@router.delete(f"{NAMESPACE}/property/{{key}}", responses=MISSING)
async def remove_property(services: BrokerServices, namespace: NamedNamespace, key: Text) -> Response:
    """Remove one property of a namespace and return its old value; 204 if it was not set."""
    was = registry.require_namespace(await services.views.view(), namespace).properties.get(key)
    await asyncio.to_thread(registry.set_namespace_properties, services.root.store, namespace, {key: None})
    return _text(was)


def _text(value: str | None) -> Response:
    return Response(status_code=204) if value is None else PlainTextResponse(value)
