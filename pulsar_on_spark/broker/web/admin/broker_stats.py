"""The load of the broker that receives the request."""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Request

from pulsar_on_spark.broker.observe.load_report import LoadReporter
from pulsar_on_spark.broker.web.requests import BrokerServices

router = APIRouter(prefix="/admin/v2/broker-stats", tags=["brokers"])


async def _reporter(request: Request) -> LoadReporter:
    return cast(LoadReporter, request.app.state.load_reporter)


@router.get("/load-report")
async def load_report(services: BrokerServices, reporter: Annotated[LoadReporter, Depends(_reporter)]) -> Any:
    """Return the load of this broker: its use of the host, and the rates of its topics and bundles."""
    cache = services.reader.cache
    report = reporter.report(
        services.ownership.broker,
        services.ownership.owned(await services.views.view()),
        list(services.topics),
        services.overview.meters,
        (cache.size_bytes, cache.max_bytes),
    )
    return report.model_dump(mode="json", by_alias=True)
