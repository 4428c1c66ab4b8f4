"""`/metrics` for Prometheus, under Pulsar's names and labels, so that its dashboards work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pulsar_on_spark.broker.metrics.gather import TopicNumbers, gather
from pulsar_on_spark.broker.metrics.store_families import store_families
from pulsar_on_spark.broker.metrics.topic_families import topic_families
from pulsar_on_spark.broker.services import Services
from pulsar_on_spark.broker.web.requests import BrokerServices

router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request, services: BrokerServices) -> Response:
    """The broker's metrics in Prometheus' text form, or in OpenMetrics' if that is asked for."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    topics = await gather(services.topics, services.overview.meters)
    store = list(store_families(services))
    return Response(await asyncio.to_thread(_text, encode, services, topics, store), media_type=content_type)


def _text(
    encode: Callable[[CollectorRegistry], bytes],
    services: Services,
    topics: Sequence[TopicNumbers],
    store: Sequence[Metric],
) -> bytes:
    look = services.vitals.stored.look
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected([*topic_families(services.settings.cluster_name, topics, look), *store]))
    return encode(registry)


class _Collected(Collector):
    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found
