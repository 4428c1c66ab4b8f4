"""Whether the broker serves: what load balancers, operators and test containers ask."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from pulsar_on_spark.broker.web.requests import BrokerServices

router = APIRouter(default_response_class=PlainTextResponse)

PROBES: Final = ("/status.html", "/admin/v2/brokers/ready")
"""Probes of supervisors and load balancers: answered for every host, and above the connection limits."""


@router.get(PROBES[0])
@router.get(PROBES[1])
async def ready() -> str:
    """It is served after the broker has started and until it drains."""
    return "ok"


@router.get("/admin/v2/brokers/health")
async def health(services: BrokerServices) -> str:
    """Check that a message can be stored and read within ten seconds; 503 and the reason if not.

    An outcome is reused for a second.

    Raises:
        ServerRefusalError: it cannot.
    """
    await services.vitals.health.require(services)
    return "ok"


@router.get("/admin/v2/brokers/version")
async def broker_version() -> str:
    """Of this project, not of Pulsar."""
    return version("pulsar-on-spark")
