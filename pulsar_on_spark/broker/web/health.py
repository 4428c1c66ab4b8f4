"""Probes of load balancers, operators and test containers: readiness, health and version."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from pulsar_on_spark.broker.web.requests import BrokerServices, CurrentHealth

router = APIRouter(default_response_class=PlainTextResponse)

PROBES: Final = ("/status.html", "/admin/v2/brokers/ready")
"""Paths of readiness probes, which are served whatever `Host` says, and even above the connection limits."""


@router.get(PROBES[0])
@router.get(PROBES[1])
async def ready() -> str:
    """Report readiness: the path is served from the broker's start until it drains."""
    return "ok"


@router.get("/admin/v2/brokers/health")
async def health(broker_health: CurrentHealth, services: BrokerServices, response: Response) -> str:
    """Check that a message can be stored and read within ten seconds; if not, respond with 503 and the reason.

    The outcome is cached for a second. A TLS certificate that expires soon is not a failure: a header warns of it.

    Raises:
        ServerRefusalError: the check failed.
    """
    await broker_health.health.require()
    if services.tls is not None and (warning := services.tls.warning) is not None:
        response.headers["X-Pulsarpy-Warning"] = warning
    return "ok"


@router.get("/admin/v2/brokers/version")
async def broker_version() -> str:
    """Return the version of this project, not of Pulsar."""
    return version("pulsar-on-spark")
