"""All routers, in matching order: a path with a variable segment comes after paths with fixed names as this segment."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter

from pulsar_on_spark.broker.web import health, lookups, metrics, schemas
from pulsar_on_spark.broker.web.admin import (
    broker_stats,
    brokers,
    bundles,
    clusters,
    compaction,
    isolation,
    messages,
    namespaces,
    not_there,
    offload,
    permissions,
    policies,
    stats,
    storage,
    subscriptions,
    tenants,
    topics,
)

ROUTERS: Final[tuple[APIRouter, ...]] = (
    lookups.router,
    health.router,
    metrics.router,
    schemas.router,
    clusters.router,
    isolation.router,
    brokers.router,
    broker_stats.router,
    tenants.router,
    permissions.router,
    policies.router,
    namespaces.router,
    bundles.router,
    topics.router,
    compaction.router,
    offload.router,
    subscriptions.router,
    messages.router,
    stats.router,
    storage.router,
    not_there.router,
)
