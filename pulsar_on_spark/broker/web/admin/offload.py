"""Offloading to cold storage paths: start an offload, report its state, and set a namespace's thresholds and lag."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Body, HTTPException, Path, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, JsonValue
from starlette.convertors import register_url_convertor

from pulsar_on_spark.broker.background.offload import first_hot
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.web.admin.ids import CursorPlace, MessageIdJson
from pulsar_on_spark.broker.web.requests import (
    NAMESPACE,
    TOPIC,
    BrokerServices,
    NamedNamespace,
    NamesConvertor,
    StoredTopic,
    refused,
)
from pulsar_on_spark.model.errors import TopicBusyError, TopicNotFoundError
from pulsar_on_spark.model.ids import EntryId, LedgerId, MessageId, Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import catalog, tenants
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
_END: Final = Position(LedgerId(2**63 - 1), EntryId(2**63 - 1))


class _OffloadFields(NamesConvertor):
    regex = "|".join(_FIELDS)


register_url_convertor("offload_field", _OffloadFields())
_FIELD_OF_NAMESPACE: Final = f"{NAMESPACE}/{{field:offload_field}}"
_Field = Annotated[str, Path(json_schema_extra={"enum": list(_FIELDS)})]
_MISSING: Final = refused(404, "There is no such namespace.")
_BAD: Final = refused(412, "The value is not acceptable.")


@router.get(_FIELD_OF_NAMESPACE, responses=_MISSING)
async def namespace_field(services: BrokerServices, namespace: NamedNamespace, field: _Field) -> Response:
    """Return an offload threshold (-1 if it is not set), or the deletion lag (204 if it is not set)."""
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
    """Set an offload threshold, or the deletion lag."""
    tenants.require_namespace(await services.views.view(), namespace)
    await asyncio.to_thread(set_offload_fields, services.root, namespace, {_FIELDS[field]: value})


@router.delete(_FIELD_OF_NAMESPACE, status_code=204, responses=_MISSING)
async def unset_namespace_field(services: BrokerServices, namespace: NamedNamespace, field: _Field) -> None:
    """Unset an offload threshold, or the deletion lag."""
    tenants.require_namespace(await services.views.view(), namespace)
    await asyncio.to_thread(set_offload_fields, services.root, namespace, {_FIELDS[field]: None})


@router.delete(f"{NAMESPACE}/removeOffloadPolicies", status_code=204, responses=_MISSING)
async def remove_namespace_policies(services: BrokerServices, namespace: NamedNamespace) -> None:
    """Unset all offload policies of a namespace."""
    tenants.require_namespace(await services.views.view(), namespace)
    await asyncio.to_thread(set_namespace_policies, services.root, namespace, {"offload_policies": None})


# -- topics ------------------------------------------------------------------------------------------------------------

_NO_TOPIC: Final = refused(404, "There is no such topic, or it is partitioned.")


class OffloadJson(BaseModel):
    """The state of an offload (Pulsar's `OffloadProcessStatus`).

    `last_error` is "" unless the offload has failed. `first_unoffloaded` is (-1, -1) unless it has succeeded.
    """

    status: Literal["NOT_RUN", "RUNNING", "SUCCESS", "ERROR"]
    last_error: str = Field(alias="lastError")
    first_unoffloaded: MessageIdJson = Field(alias="firstUnoffloadedMessage")


@router.put(f"{TOPIC}/offload", status_code=204, responses=_NO_TOPIC | refused(409, "An offload is running already."))
async def offload(services: BrokerServices, name: StoredTopic, before: CursorPlace) -> None:
    """Offload the sealed segments before a message in the background."""
    await _require_single(services, name)
    try:
        services.offloads.run(name, before.position(_END))
    except TopicBusyError as error:
        raise HTTPException(409, str(error)) from error


@router.get(f"{TOPIC}/offload", responses=_NO_TOPIC)
async def status(services: BrokerServices, name: StoredTopic) -> OffloadJson:
    """Return the state of the topic's last offload by this broker; after a success, also the first message left."""
    await _require_single(services, name)
    last = services.offloads.status(name)
    first = None
    if last.status == "SUCCESS":
        first = await asyncio.to_thread(lambda: first_hot(services.root.store.view(), name))
    id_ = MessageIdJson(ledger_id=-1, entry_id=-1)
    if first is not None:
        id_ = MessageIdJson.of(MessageId(first.ledger, first.entry, name.partition_index))
    return OffloadJson(status=last.status, lastError=last.last_error, firstUnoffloadedMessage=id_)


async def _require_single(services: Services, name: TopicName) -> None:
    """Require a topic without partitions, or a partition: ids belong to one partition, and Pulsar answers 404, too."""
    if catalog.require_topic(await services.views.view(), name).partitions is not None:
        raise TopicNotFoundError(f"Topic {name} is partitioned: name a partition.")
