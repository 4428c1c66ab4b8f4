"""Namespace isolation policies: which brokers may serve which namespaces."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, HTTPException
from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator

from pulsar_on_spark.broker.cluster.isolation import Isolation, check_patterns, isolations
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.web.requests import BrokerServices, Text, refused
from pulsar_on_spark.metadata.records import BrokerRecord
from pulsar_on_spark.topic.catalog.brokers import registered_brokers
from pulsar_on_spark.topic.catalog.isolation import (
    delete_isolation_policy,
    isolation_policies,
    set_isolation_policy,
)

router = APIRouter(prefix="/admin/v2/clusters/{cluster}/namespaceIsolationPolicies", tags=["clusters"])

_MISSING: Final = refused(404, "There is no such cluster or policy.")
_Word = Annotated[str, Field(min_length=1, max_length=1024)]
_Words = Annotated[list[_Word], Field(max_length=1000)]
_Some = Annotated[_Words, Field(min_length=1)]


class FailoverPolicy(BaseModel):
    """The condition under which secondary brokers serve the namespaces, too."""

    model_config = ConfigDict(extra="forbid")

    policy_type: Literal["min_available"]
    parameters: Annotated[dict[_Word, _Word], Field(max_length=100)]

    @field_validator("parameters")
    @classmethod
    def _have_a_limit(cls, parameters: dict[str, str]) -> dict[str, str]:
        if not parameters.get("min_limit", "").isdecimal():
            raise ValueError("they need min_limit, the number of primary brokers below which secondary ones serve, too")
        return parameters


class IsolationPolicy(BaseModel):
    """An isolation policy: regular expressions of namespaces, and of their primary and secondary brokers.

    `unload_scope` is stored and has no effect; None if the client does not send it.
    """

    model_config = ConfigDict(extra="forbid")

    namespaces: _Some
    primary: _Some
    secondary: _Words = []
    auto_failover_policy: FailoverPolicy
    unload_scope: Literal["all_matching", "none", "changed"] | None = None


@router.get("", responses=_MISSING)
async def policies(services: BrokerServices, cluster: Text) -> dict[str, JsonValue]:
    """Return all isolation policies by name."""
    _require(services, cluster)
    return {name: dict(policy) for name, policy in isolation_policies(await services.views.view()).items()}


@router.get("/brokers", responses=_MISSING)
async def isolated_brokers(services: BrokerServices, cluster: Text) -> list[dict[str, Any]]:
    """Return the role of each registered broker in each isolation policy that names the broker."""
    _require(services, cluster)
    view = await services.views.view()
    policies = isolations(view)
    return [entry for broker in registered_brokers(view) for entry in _of_broker(broker, policies)]


@router.get("/brokers/{broker}", responses=_MISSING)
async def isolated_broker(services: BrokerServices, cluster: Text, broker: Text) -> dict[str, Any]:
    """Return the role of a broker in the first isolation policy that names the broker."""
    _require(services, cluster)
    view = await services.views.view()
    record = next((each for each in registered_brokers(view) if each.broker == broker), None)
    if record is None:
        raise HTTPException(404, f"Broker {broker} is not running: see brokers/{cluster}.")
    return _of_broker(record, isolations(view))[0]


@router.get("/{policy}", responses=_MISSING)
async def policy_data(services: BrokerServices, cluster: Text, policy: Text) -> dict[str, JsonValue]:
    """Return the named isolation policy, with the fields of Pulsar's JSON."""
    _require(services, cluster)
    stored = isolation_policies(await services.views.view()).get(policy)
    if stored is None:
        raise HTTPException(404, f"Isolation policy {policy} does not exist: create it first.")
    return dict(stored)


@router.post("/{policy}", status_code=204, responses=_MISSING)
async def set_policy(services: BrokerServices, cluster: Text, policy: Text, body: IsolationPolicy) -> None:
    """Store an isolation policy, replacing an existing policy of this name."""
    _require(services, cluster)
    check_patterns([*body.namespaces, *body.primary, *body.secondary])
    stored = body.model_dump(exclude_none=True)
    await asyncio.to_thread(set_isolation_policy, services.root.store, policy, stored)


@router.delete("/{policy}", status_code=204, responses=_MISSING)
async def delete_policy(services: BrokerServices, cluster: Text, policy: Text) -> None:
    """Delete an isolation policy; as in Pulsar, nothing happens if there is none of this name."""
    _require(services, cluster)
    await asyncio.to_thread(delete_isolation_policy, services.root.store, policy)


def _of_broker(broker: BrokerRecord, policies: Sequence[Isolation]) -> list[dict[str, Any]]:
    """Return a broker's role in each policy that names it, as Pulsar's `BrokerNamespaceIsolationData`.

    If no policy names the broker, the only item has no policy.
    """
    named = [
        {
            "brokerName": broker.broker,
            "policyName": policy.name,
            "isPrimary": policy.is_primary(broker),
            "namespaceRegex": list(policy.namespaces),
        }
        for policy in policies
        if policy.is_primary(broker) or policy.is_secondary(broker)
    ]
    return named or [{"brokerName": broker.broker, "isPrimary": False}]


def _require(services: Services, cluster: str) -> None:
    own = services.settings.cluster_name
    if cluster != own:
        raise HTTPException(404, f"Cluster {cluster} does not exist: the only one is {own}.")
