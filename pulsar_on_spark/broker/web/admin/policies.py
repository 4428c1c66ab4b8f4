"""Policies of namespaces and topics, under the names and fields of the table `FIELDS`.

GET returns the value set on the namespace or topic. If none is set, it answers 204, or the value of `_UNSET_THERE`.
With `applied=true` it returns the effective value; it always does so for policies that Pulsar's clients cannot read as
"not set" (`_NEVER_UNSET`). POST and PUT both set a policy, because Pulsar uses either. Policies that the broker does
not enforce are refused: see `not_there.py`.
"""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Body, HTTPException, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import JsonValue
from starlette.convertors import register_url_convertor

from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.topics.topic_policies import default_policies
from pulsar_on_spark.broker.web.admin.policy_json import QUOTAS, quota_map, value_json
from pulsar_on_spark.broker.web.requests import (
    NAMESPACE,
    TOPIC,
    BrokerServices,
    NamedNamespace,
    NamesConvertor,
    StoredTopic,
    refused,
)
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import catalog, tenants
from pulsar_on_spark.topic.catalog.policies.change import set_namespace_policies, set_topic_policies
from pulsar_on_spark.topic.catalog.policies.effective import effective_policies, namespace_policies, topic_policies
from pulsar_on_spark.topic.catalog.policies.policies import FIELDS, PersistencePolicies, Policies

router = APIRouter()

QuotaType = Literal["destination_storage", "message_age"]
Applied = Annotated[bool, Query(description="Return the effective value, wherever it is set.")]
_NEVER_UNSET: Final = ("schema_validation_enforced", "is_allow_auto_update_schema", "encryption_required")
"""Policies whose getters in Java return `boolean`, which cannot be null: GET always returns the effective value."""
_UNSET_THERE: Final[dict[str, JsonValue]] = {
    "schema_compatibility_strategy": "UNDEFINED",
    "subscription_types_enabled": [],
}
"""Pulsar's responses for policies that a namespace does not set: its Go client fails on an empty response."""
_MISSING: Final = refused(404, "There is no such namespace or topic.")
_BAD: Final = refused(412, "The value is not acceptable.")


async def _of_namespace(services: Services, namespace: str, applied: bool) -> dict[str, Any]:
    view = await services.views.view()
    tenants.require_namespace(view, namespace)
    there = namespace_policies(view, namespace)
    return _effective(services, default_policies(services.settings).model_copy(update=there)) if applied else there


async def _of_topic(services: Services, name: TopicName, applied: bool) -> dict[str, Any]:
    view = await services.views.view()
    catalog.require_topic(view, name)
    if not applied:
        return topic_policies(view, name)
    return _effective(services, effective_policies(view, name, default_policies(services.settings)))


def _effective(services: Services, policies: Policies) -> dict[str, Any]:
    effective = dict(policies)
    own = services.journals.first.incarnation.quorum
    effective["persistence"] = effective["persistence"] or PersistencePolicies.of(own)
    return effective


async def _set_namespace(services: Services, namespace: str, field: str, value: JsonValue) -> None:
    tenants.require_namespace(await services.views.view(), namespace)
    await asyncio.to_thread(set_namespace_policies, services.root, namespace, {field: value})


async def _set_topic(services: Services, name: TopicName, field: str, value: JsonValue) -> None:
    largest = services.settings.max_message_size
    if field == "max_message_size" and isinstance(value, int) and value > largest:
        raise HTTPException(412, f"The broker accepts messages of at most {largest} bytes: set a smaller size.")
    await asyncio.to_thread(set_topic_policies, services.root, name, {field: value})


def _answer(value: object) -> Response:
    return Response(status_code=204) if value is None else JSONResponse(value_json(value))


# -- one policy at a path ----------------------------------------------------------------------------------------------

_NAMESPACE_FIELDS: Final = {
    policy.namespace: field for field, policy in FIELDS.items() if policy.namespace not in (None, "backlogQuota")
}
_TOPIC_FIELDS: Final = {
    policy.topic: field for field, policy in FIELDS.items() if policy.topic not in (None, "backlogQuota")
}


# One route serves all names: creating a route per policy would take a good part of a broker's start time.


class _NamespacePolicies(NamesConvertor):
    regex = "|".join(re.escape(str(name)) for name in _NAMESPACE_FIELDS)


class _TopicPolicies(NamesConvertor):
    regex = "|".join(re.escape(str(name)) for name in _TOPIC_FIELDS)


register_url_convertor("namespace_policy", _NamespacePolicies())
register_url_convertor("topic_policy", _TopicPolicies())
_NAMESPACE_POLICY: Final = f"{NAMESPACE}/{{policy:namespace_policy}}"
_TOPIC_POLICY: Final = f"{TOPIC}/{{policy:topic_policy}}"
NamespacePolicy = Annotated[str, Path(json_schema_extra={"enum": list(_NAMESPACE_FIELDS)})]
TopicPolicy = Annotated[str, Path(json_schema_extra={"enum": list(_TOPIC_FIELDS)})]
Value = Annotated[JsonValue, Body()]
_UNSET: Final[dict[int | str, dict[str, Any]]] = {204: {"description": "It is not set."}}
_OF_NAMESPACE: Final = "namespace policies"
_OF_TOPIC: Final = "topic policies"


@router.get(_NAMESPACE_POLICY, tags=[_OF_NAMESPACE], responses=_MISSING | _UNSET)
async def namespace_policy(
    services: BrokerServices, namespace: NamedNamespace, policy: NamespacePolicy, applied: Applied = False
) -> Response:
    """Return a policy's value on the namespace; with `applied`, the effective value for topics that do not set it."""
    field = _NAMESPACE_FIELDS[policy]
    value = (await _of_namespace(services, namespace, applied or field in _NEVER_UNSET)).get(field)
    return _answer(_UNSET_THERE.get(field) if value is None else value)


@router.put(_NAMESPACE_POLICY, status_code=204, tags=[_OF_NAMESPACE], responses=_MISSING | _BAD)
@router.post(_NAMESPACE_POLICY, status_code=204, tags=[_OF_NAMESPACE], responses=_MISSING | _BAD)
async def set_namespace_policy(
    services: BrokerServices, namespace: NamedNamespace, policy: NamespacePolicy, value: Value
) -> None:
    """Set a policy of a namespace."""
    await _set_namespace(services, namespace, _NAMESPACE_FIELDS[policy], value)


@router.delete(_NAMESPACE_POLICY, status_code=204, tags=[_OF_NAMESPACE], responses=_MISSING)
async def unset_namespace_policy(services: BrokerServices, namespace: NamedNamespace, policy: NamespacePolicy) -> None:
    """Remove a policy from a namespace."""
    await _set_namespace(services, namespace, _NAMESPACE_FIELDS[policy], None)


@router.get(_TOPIC_POLICY, tags=[_OF_TOPIC], responses=_MISSING | _UNSET)
async def topic_policy(
    services: BrokerServices, name: StoredTopic, policy: TopicPolicy, applied: Applied = False
) -> Response:
    """Return a policy's value on the topic; with `applied`, the effective value."""
    field = _TOPIC_FIELDS[policy]
    return _answer((await _of_topic(services, name, applied or field in _NEVER_UNSET)).get(field))


@router.put(_TOPIC_POLICY, status_code=204, tags=[_OF_TOPIC], responses=_MISSING | _BAD)
@router.post(_TOPIC_POLICY, status_code=204, tags=[_OF_TOPIC], responses=_MISSING | _BAD)
async def set_topic_policy(
    request: Request, services: BrokerServices, name: StoredTopic, policy: TopicPolicy, value: Value = None
) -> None:
    """Set a policy of a topic."""
    given = request.query_params.get(policy) if value is None else value  # Java clients send a topic's TTL in the query
    if given is None:
        raise HTTPException(400, f"The request has no value for {policy}: give one as its body.")
    await _set_topic(services, name, _TOPIC_FIELDS[policy], given)


@router.delete(_TOPIC_POLICY, status_code=204, tags=[_OF_TOPIC], responses=_MISSING)
async def unset_topic_policy(services: BrokerServices, name: StoredTopic, policy: TopicPolicy) -> None:
    """Remove a policy from a topic."""
    await _set_topic(services, name, _TOPIC_FIELDS[policy], None)


# -- quotas: two policies at one path ----------------------------------------------------------------------------------

_Type = Annotated[QuotaType, Query(alias="backlogQuotaType")]


@router.get(f"{NAMESPACE}/backlogQuotaMap", tags=[_OF_NAMESPACE], responses=_MISSING)
async def namespace_quotas(
    services: BrokerServices, namespace: NamedNamespace, applied: Applied = False
) -> dict[str, Any]:
    """Return the namespace's backlog quotas by type."""
    return quota_map(await _of_namespace(services, namespace, applied))


@router.post(f"{NAMESPACE}/backlogQuota", status_code=204, tags=[_OF_NAMESPACE], responses=_MISSING | _BAD)
async def set_namespace_quota(
    services: BrokerServices,
    namespace: NamedNamespace,
    quota: Annotated[JsonValue, Body()],
    type_: _Type = "destination_storage",
) -> None:
    """Set a backlog quota of a namespace."""
    await _set_namespace(services, namespace, QUOTAS[type_], _of_type(quota, type_))


@router.delete(f"{NAMESPACE}/backlogQuota", status_code=204, tags=[_OF_NAMESPACE], responses=_MISSING)
async def unset_namespace_quota(
    services: BrokerServices, namespace: NamedNamespace, type_: _Type = "destination_storage"
) -> None:
    """Remove a backlog quota from a namespace."""
    await _set_namespace(services, namespace, QUOTAS[type_], None)


@router.get(f"{TOPIC}/backlogQuotaMap", tags=[_OF_TOPIC], responses=_MISSING)
async def topic_quotas(services: BrokerServices, name: StoredTopic, applied: Applied = False) -> dict[str, Any]:
    """Return the topic's backlog quotas by type."""
    return quota_map(await _of_topic(services, name, applied))


@router.post(f"{TOPIC}/backlogQuota", status_code=204, tags=[_OF_TOPIC], responses=_MISSING | _BAD)
async def set_topic_quota(
    services: BrokerServices,
    name: StoredTopic,
    quota: Annotated[JsonValue, Body()],
    type_: _Type = "destination_storage",
) -> None:
    """Set a backlog quota of a topic."""
    await _set_topic(services, name, QUOTAS[type_], _of_type(quota, type_))


@router.delete(f"{TOPIC}/backlogQuota", status_code=204, tags=[_OF_TOPIC], responses=_MISSING)
async def unset_topic_quota(services: BrokerServices, name: StoredTopic, type_: _Type = "destination_storage") -> None:
    """Remove a backlog quota from a topic."""
    await _set_topic(services, name, QUOTAS[type_], None)


def _of_type(quota: JsonValue, type_: QuotaType) -> JsonValue:
    """Return a quota without null fields, and with the size that clients before Pulsar 2.9 send as `limit`."""
    if not isinstance(quota, dict):
        return quota
    fields: dict[str, JsonValue] = {name: value for name, value in quota.items() if value is not None}
    size = fields.pop("limit", None)
    if type_ == "destination_storage" and size is not None:
        fields.setdefault("limitSize", size)
    return fields
