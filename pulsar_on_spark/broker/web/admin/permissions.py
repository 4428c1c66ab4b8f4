"""Permissions: always empty, as in Pulsar without authorization; changes are refused."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Depends, HTTPException, Request, Response

from pulsar_on_spark.broker.web.requests import (
    NAMESPACE,
    TOPIC,
    BrokerServices,
    NamedNamespace,
    NamedTopic,
    administers,
    refused,
)
from pulsar_on_spark.topic.catalog import tenants

router = APIRouter(tags=["permissions"], dependencies=[Depends(administers)])

_MISSING: Final = refused(404, "There is no such namespace.")
_NOT_ENABLED: Final = "Authorization is not enabled."


@router.get(f"{NAMESPACE}/permissions", responses=_MISSING)
@router.get(f"{NAMESPACE}/permissions/subscription", responses=_MISSING)
async def of_namespace(services: BrokerServices, namespace: NamedNamespace) -> dict[str, list[str]]:
    """Return no permissions; 404 if the namespace does not exist."""
    tenants.require_namespace(await services.views.view(), namespace)
    return {}


@router.get(f"{TOPIC}/permissions", responses=_MISSING)
async def of_topic(services: BrokerServices, name: NamedTopic) -> dict[str, list[str]]:
    """Return no permissions; 404 if the topic's namespace does not exist."""
    tenants.require_namespace(await services.views.view(), name.namespace)
    return {}


async def _change(request: Request) -> Response:
    raise HTTPException(501, _NOT_ENABLED)


for _path in (NAMESPACE, TOPIC):
    router.add_route(f"{_path}/permissions/{{rest:path}}", _change, methods=["POST", "DELETE"], include_in_schema=False)
