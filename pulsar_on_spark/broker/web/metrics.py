"""`/metrics` for Prometheus, under Pulsar's names and labels, so that dashboards for Pulsar work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pulsar_on_spark.broker.services.exposition import CONTENT_TYPE
from pulsar_on_spark.broker.services.gather import gather
from pulsar_on_spark.broker.services.store_families import store_families
from pulsar_on_spark.broker.services.topic_families import topic_families
from pulsar_on_spark.broker.web.requests import BrokerServices, CurrentHealth

router = APIRouter()


@router.get("/metrics")
async def metrics(services: BrokerServices, broker_health: CurrentHealth) -> StreamingResponse:
    """Stream the broker's metrics in Prometheus' text format; a thread renders one family at a time."""
    settings = services.settings
    topics = await gather(
        services.topics,
        services.overview.meters,
        services.topics.compactions.counts,
        by_consumer=settings.expose_consumer_level_metrics_in_prometheus,
    )
    store = list(store_families(services, broker_health))
    state = services.stored.state

    def families() -> Iterator[bytes]:
        yield generate_latest(_registry(store))
        for each in topic_families(
            settings.cluster_name, topics, state, settings.expose_topic_level_metrics_in_prometheus
        ):
            if each:
                yield each.encode()

    return StreamingResponse(families(), media_type=CONTENT_TYPE)


def _registry(found: list[Metric]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(found))
    return registry


class _Collected(Collector):
    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found
