"""Clusters: only one exists, the broker's own."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, HTTPException

from pulsar_on_spark.broker.web.requests import BrokerServices, Text, refused

router = APIRouter(prefix="/admin/v2/clusters", tags=["clusters"])

_ONE: Final = "A root is one cluster and knows no others: geo-replication is not supported."


@router.get("")
async def clusters(services: BrokerServices) -> list[str]:
    """List the name of the one cluster; test containers poll this path to wait for a broker."""
    return [services.settings.cluster_name]


@router.get("/{cluster}", responses=refused(404, "There is no such cluster."))
async def cluster_data(services: BrokerServices, cluster: Text) -> dict[str, str]:
    """Return the URLs of the cluster's broker, under Pulsar's names of the fields."""
    _require(services, cluster)
    urls = services.listeners.default
    return {
        "serviceUrl": urls.web_url,
        "serviceUrlTls": urls.web_url_tls,
        "brokerServiceUrl": urls.service_url,
        "brokerServiceUrlTls": urls.service_url_tls,
    }


@router.put("/{cluster}", status_code=204, responses=refused(409, "It exists.") | refused(501, _ONE))
async def create_cluster(services: BrokerServices, cluster: Text) -> None:
    """Refuse a new cluster: 409 for the broker's own, 501 for others."""
    if cluster == services.settings.cluster_name:
        raise HTTPException(409, f"Cluster {cluster} exists already.")
    raise HTTPException(501, _ONE)


@router.post("/{cluster}", status_code=204, responses=refused(501, _ONE))
@router.delete("/{cluster}", status_code=204, responses=refused(501, _ONE))
async def change_cluster(cluster: Text) -> None:
    """Refuse the change: a cluster's data follows from the broker's settings."""
    raise HTTPException(501, _ONE)


def _require(services: BrokerServices, cluster: str) -> None:
    if cluster != services.settings.cluster_name:
        raise HTTPException(404, f"Cluster {cluster} does not exist: the only one is {services.settings.cluster_name}.")
