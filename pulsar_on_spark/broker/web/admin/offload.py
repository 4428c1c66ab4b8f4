"""Offloading to cold storage paths: the thresholds and the lag of namespaces."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Body, Path, Response
from fastapi.responses import JSONResponse
from pydantic import JsonValue
from starlette.convertors import register_url_convertor

from pulsar_on_spark.broker.web.requests import NAMESPACE, BrokerServices, NamedNamespace, NamesConvertor, refused
from pulsar_on_spark.topic.catalog import tenants
from pulsar_on_spark.topic.catalog.policies.change import set_namespace_policies, set_offload_fields
from pulsar_on_spark.topic.catalog.policies.effective import namespace_policies
from pulsar_on_spark.topic.catalog.policies.policies import OffloadPolicies

router = APIRouter(tags=["offload"])

_FIELDS: Final = {
    "offloadThreshold": "managedLedgerOffloadThresholdInBytes",
    "offloadThresholdInSeconds": "managedLedgerOffloadThresholdInSeconds",
    "offloadDeletionLagMs": "managedLedgerOffloadDeletionLagInMillis",
}
"""Fields of offload policies with paths of their own, which Pulsar had before it had offload policies."""


class _OffloadFields(NamesConvertor):
    regex = "|".join(_FIELDS)


register_url_convertor("offload_field", _OffloadFields())
_FIELD_OF_NAMESPACE: Final = f"{NAMESPACE}/{{field:offload_field}}"
_Field = Annotated[str, Path(json_schema_extra={"enum": list(_FIELDS)})]
_MISSING: Final = refused(404, "There is no such namespace.")
_BAD: Final = refused(412, "The value is not acceptable.")


@router.get(_FIELD_OF_NAMESPACE, responses=_MISSING)
async def namespace_field(services: BrokerServices, namespace: NamedNamespace, field: _Field) -> Response:
    """Return a threshold, -1 if it is not set, or the deletion lag."""
    view = await services.views.view()
    tenants.require_namespace(view, namespace)
    policies = namespace_policies(view, namespace).get("offload_policies") or OffloadPolicies()
    value = policies.model_dump(by_alias=True).get(_FIELDS[field])
    if value is None and field == "offloadDeletionLagMs":
        return Response(status_code=204)
    return JSONResponse(-1 if value is None else value)


@router.put(_FIELD_OF_NAMESPACE, status_code=204, responses=_MISSING | _BAD)
@router.post(_FIELD_OF_NAMESPACE, status_code=204, responses=_MISSING | _BAD)
async def set_namespace_field(
    services: BrokerServices, namespace: NamedNamespace, field: _Field, value: Annotated[JsonValue, Body()]
) -> None:
    """Set a threshold or the deletion lag."""
    tenants.require_namespace(await services.views.view(), namespace)
    await asyncio.to_thread(set_offload_fields, services.root, namespace, {_FIELDS[field]: value})


@router.delete(_FIELD_OF_NAMESPACE, status_code=204, responses=_MISSING)
async def unset_namespace_field(services: BrokerServices, namespace: NamedNamespace, field: _Field) -> None:
    """Unset a threshold or the deletion lag."""
    tenants.require_namespace(await services.views.view(), namespace)
    await asyncio.to_thread(set_offload_fields, services.root, namespace, {_FIELDS[field]: None})


@router.delete(f"{NAMESPACE}/removeOffloadPolicies", status_code=204, responses=_MISSING)
async def remove_namespace_policies(services: BrokerServices, namespace: NamedNamespace) -> None:
    """Unset all offload policies of a namespace."""
    tenants.require_namespace(await services.views.view(), namespace)
    await asyncio.to_thread(set_namespace_policies, services.root, namespace, {"offload_policies": None})
