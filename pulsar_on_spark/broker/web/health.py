"""Whether the broker serves: what load balancers, operators and test containers ask."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from pulsar_on_spark.broker.health import check
from pulsar_on_spark.broker.web.requests import BrokerServices

router = APIRouter(default_response_class=PlainTextResponse)


@router.get("/status.html")
@router.get("/admin/v2/brokers/ready")
async def ready() -> str:
    """It is served after the broker has started and until it drains."""
    return "ok"


@router.get("/admin/v2/brokers/health")
async def health(services: BrokerServices) -> str:
    """Whether a message can be stored and read, within ten seconds; 503 and the reason if not.

    Raises:
        ServerRefusalError: it cannot.
    """
    await check(services)
    return "ok"


@router.get("/admin/v2/brokers/version")
async def broker_version() -> str:
    """Of this project, not of Pulsar."""
    return version("pulsar-on-spark")
