"""`/metrics` for Prometheus, under Pulsar's names and labels, so that dashboards for Pulsar work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Request
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pulsar_on_spark.broker.services.broker_health import BrokerHealth
from pulsar_on_spark.broker.services.gather import gather
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.services.store_families import store_families
from pulsar_on_spark.broker.services.topic_families import topic_families
from pulsar_on_spark.broker.web.metrics_page import MetricsPages
from pulsar_on_spark.broker.web.paced_response import PacedResponse
from pulsar_on_spark.broker.web.requests import BrokerServices, CurrentHealth

router = APIRouter()


async def _pages(request: Request) -> MetricsPages:
    return cast(MetricsPages, request.app.state.metrics_pages)


@router.get("/metrics")
async def metrics(
    services: BrokerServices, broker_health: CurrentHealth, pages: Annotated[MetricsPages, Depends(_pages)]
) -> PacedResponse:
    """Return the broker's metrics in Prometheus' text format."""
    return await pages.respond(partial(_render, services, broker_health))


async def _render(services: Services, broker_health: BrokerHealth) -> bytes:
    """Return the page of metrics: the numbers are read on the event loop, and formatted in a thread."""
    settings = services.settings
    topics = await gather(
        services.topics,
        services.overview.meters,
        services.topics.compactions.counts,
        by_consumer=settings.expose_consumer_level_metrics_in_prometheus,
    )
    store = list(store_families(services, broker_health))
    state = services.stored.state
    by_topic = settings.expose_topic_level_metrics_in_prometheus

    def text() -> bytes:
        families = topic_families(settings.cluster_name, topics, state, by_topic)
        return b"".join((generate_latest(_registry(store)), *(family.encode() for family in families)))

    return await asyncio.to_thread(text)


def _registry(metrics: list[Metric]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(metrics))
    return registry


class _Collected(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics
