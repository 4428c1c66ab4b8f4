"""Namespace isolation policies: stored and returned, but without effect."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final, Literal

from fastapi import APIRouter, HTTPException
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.web.requests import BrokerServices, Text, refused
from pulsar_on_spark.topic.catalog.isolation import (
    delete_isolation_policy,
    isolation_policies,
    set_isolation_policy,
)

router = APIRouter(prefix="/admin/v2/clusters/{cluster}/namespaceIsolationPolicies", tags=["clusters"])

_MISSING: Final = refused(404, "There is no such cluster or policy.")
_NO_EFFECT: Final = "Isolation policies are stored, but have no effect: any broker may serve any namespace."
_Word = Annotated[str, Field(min_length=1, max_length=1024)]
_Words = Annotated[list[_Word], Field(max_length=1000)]
_Some = Annotated[_Words, Field(min_length=1)]


class FailoverPolicy(BaseModel):
    """The condition under which secondary brokers serve the namespaces, too."""

    model_config = ConfigDict(extra="forbid")

    policy_type: Literal["min_available"]
    parameters: Annotated[dict[_Word, _Word], Field(max_length=100)]


class IsolationPolicy(BaseModel):
    """An isolation policy: regular expressions of namespaces, and of their primary and secondary brokers."""

    model_config = ConfigDict(extra="forbid")

    namespaces: _Some
    primary: _Some
    secondary: _Words = []
    auto_failover_policy: FailoverPolicy
    unload_scope: Literal["all_matching", "none", "changed"] | None = None


@router.get("", responses=_MISSING)
async def policies(services: BrokerServices, cluster: Text) -> dict[str, JsonValue]:
    """Return all policies by name."""
    _require(services, cluster)
    return {name: dict(policy) for name, policy in isolation_policies(await services.views.view()).items()}


@router.get("/brokers", responses=refused(501, _NO_EFFECT))
@router.get("/brokers/{broker}", responses=refused(501, _NO_EFFECT))
async def brokers_of_policies() -> None:
    """Refuse to list the policies of brokers: no policy has an effect."""
    raise HTTPException(501, _NO_EFFECT)


@router.get("/{policy}", responses=_MISSING)
async def policy_data(services: BrokerServices, cluster: Text, policy: Text) -> dict[str, JsonValue]:
    """Return a policy."""
    _require(services, cluster)
    stored = isolation_policies(await services.views.view()).get(policy)
    if stored is None:
        raise HTTPException(404, f"Isolation policy {policy} does not exist: create it first.")
    return dict(stored)


@router.post("/{policy}", status_code=204, responses=_MISSING)
async def set_policy(services: BrokerServices, cluster: Text, policy: Text, body: IsolationPolicy) -> None:
    """Store a policy, replacing one of the same name."""
    _require(services, cluster)
    stored = body.model_dump(exclude_none=True)
    await asyncio.to_thread(set_isolation_policy, services.root.store, policy, stored)


@router.delete("/{policy}", status_code=204, responses=_MISSING)
async def delete_policy(services: BrokerServices, cluster: Text, policy: Text) -> None:
    """Delete a policy; nothing happens if it is missing, as in Pulsar."""
    _require(services, cluster)
    await asyncio.to_thread(delete_isolation_policy, services.root.store, policy)


def _require(services: Services, cluster: str) -> None:
    own = services.settings.cluster_name
    if cluster != own:
        raise HTTPException(404, f"Cluster {cluster} does not exist: the only one is {own}.")
