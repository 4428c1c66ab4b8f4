"""Tenants. Authorization uses their administrators' roles; their clusters are only stored and returned."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Body, HTTPException
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.web.requests import BrokerServices, Force, Roles, Text, refused
from pulsar_on_spark.topic.catalog import tenants as registry

router = APIRouter(prefix="/admin/v2/tenants", tags=["tenants"])

_MISSING = refused(404, "There is no such tenant.")
_NO_CLUSTER = refused(412, "There is no such cluster, or the name is invalid.")
Clusters = Annotated[list[Annotated[str, Field(max_length=256)]], Field(max_length=1000)]


class TenantInfo(BaseModel):
    """The administrators' roles of a tenant, None for none, and its clusters, None for the broker's cluster."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    admin_roles: Roles | None = None
    allowed_clusters: Clusters | None = None


@router.get("")
async def tenants(services: BrokerServices) -> list[str]:
    """List all tenants, sorted by name."""
    return [record.tenant for record in registry.tenants(await services.views.view())]


@router.get("/{tenant}", responses=_MISSING)
async def tenant_info(services: BrokerServices, tenant: Text) -> TenantInfo:
    """Return a tenant's roles and clusters."""
    record = registry.require_tenant(await services.views.view(), tenant)
    clusters = record.allowed_clusters or (services.settings.cluster_name,)
    return TenantInfo(admin_roles=list(record.admin_roles), allowed_clusters=list(clusters))


@router.put("/{tenant}", status_code=204, responses=refused(409, "It exists.") | _NO_CLUSTER)
async def create(services: BrokerServices, tenant: Text, body: Annotated[TenantInfo | None, Body()] = None) -> None:
    """Create a tenant with the roles and clusters of the body, if any."""
    info = body or TenantInfo()
    _check_clusters(services, info)
    roles, clusters = info.admin_roles or (), info.allowed_clusters or ()
    most = services.settings.max_tenants
    await asyncio.to_thread(registry.create_tenant, services.root.store, tenant, roles, clusters, most=most)
    await services.views.view()  # authorization uses the view that was read last: it must have the new roles


@router.post("/{tenant}", status_code=204, responses=_MISSING | _NO_CLUSTER)
async def update(services: BrokerServices, tenant: Text, body: TenantInfo) -> None:
    """Change a tenant's roles and clusters."""
    _check_clusters(services, body)
    await asyncio.to_thread(
        registry.update_tenant, services.root.store, tenant, body.admin_roles or (), body.allowed_clusters or ()
    )
    await services.views.view()


@router.delete("/{tenant}", status_code=204, responses=_MISSING | refused(409, "It has namespaces."))
async def delete(services: BrokerServices, tenant: Text, force: Force = False) -> None:
    """Delete a tenant; with `force`, its namespaces and everything in them too."""
    await asyncio.to_thread(registry.delete_tenant, services.root.store, tenant, force=force)
    await services.topics.unload_deleted()


def _check_clusters(services: Services, info: TenantInfo) -> None:
    own = services.settings.cluster_name
    unknown = [cluster for cluster in info.allowed_clusters or () if cluster != own]
    if unknown:
        raise HTTPException(412, f"Cluster {unknown[0]} does not exist: the only one is {own}.")
