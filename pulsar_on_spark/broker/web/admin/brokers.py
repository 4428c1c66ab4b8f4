"""Brokers: the list of them, their settings, and the bundles that they own."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fastapi import APIRouter, HTTPException, Response
from pydantic.alias_generators import to_camel

from pulsar_on_spark.broker.services import settings_changes
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.services.settings_changes import DYNAMIC, changed_values
from pulsar_on_spark.broker.services.settings_follower import adopt_settings
from pulsar_on_spark.broker.web.requests import BrokerServices, Text, refused
from pulsar_on_spark.topic.catalog.brokers import leader, registered_brokers

router = APIRouter(prefix="/admin/v2/brokers", tags=["brokers"])

_NAMES: Final = {to_camel(name): name for name in DYNAMIC}
_NOT_DYNAMIC: Final = refused(412, "The setting cannot be changed while the broker runs, or the value is invalid.")


@router.get("")
async def all_brokers(services: BrokerServices) -> list[str]:
    """List the ids (`host:port`) of the root's registered brokers."""
    return [record.broker for record in registered_brokers(await services.views.view())]


@router.get("/leaderBroker")
async def leader_broker(services: BrokerServices) -> dict[str, str]:
    """Return id and URL of the leader: the broker that does the work of the whole root, such as maintenance."""
    found = leader(registered_brokers(await services.views.view())) or services.ownership.broker
    urls = found.default_listener
    return {"brokerId": found.broker, "serviceUrl": urls.web_url or urls.web_url_tls}


@router.get("/configuration")
async def dynamic_names() -> list[str]:
    """List the names of the settings that can be changed while the broker runs."""
    return sorted(_NAMES)


@router.get("/configuration/values")
async def dynamic_values(services: BrokerServices) -> dict[str, str]:
    """Return the values of the dynamic settings that were changed, by name."""
    changed = changed_values(await services.views.view())
    return {to_camel(name): value for name, value in changed.items()}


@router.get("/configuration/runtime")
async def settings(services: BrokerServices) -> dict[str, str]:
    """Return the values in force of all settings, by name."""
    return {to_camel(name): _text(value) for name, value in services.settings.model_dump(mode="json").items()}


@router.post("/configuration/{name}/{value:path}", response_class=Response, responses=_NOT_DYNAMIC)
async def change_setting(services: BrokerServices, name: Text, value: Text) -> None:
    """Change a setting of all brokers of the root, including brokers that are started later."""
    await _change(services, name, value)


@router.delete("/configuration/{name}", response_class=Response, responses=_NOT_DYNAMIC)
async def reset_setting(services: BrokerServices, name: Text) -> None:
    """Reset a setting of all brokers to the values that they were started with."""
    await _change(services, name, None)


@router.get("/internal-configuration")
async def internal_configuration() -> dict[str, str]:
    """Return the locations of metadata and ledgers, relative to the root: the root's own path stays private."""
    return {
        "metadataStoreUrl": "delta:metadata",
        "configurationMetadataStoreUrl": "delta:metadata",
        "ledgersRootPath": "storage",
        "bookkeeperMetadataServiceUri": "",
        "stateStorageServiceUrl": "",
    }


@router.get("/{cluster}", responses=refused(404, "There is no such cluster."))
async def brokers_of(services: BrokerServices, cluster: Text) -> list[str]:
    """List the ids (`host:port`) of the brokers of a cluster."""
    if cluster != services.settings.cluster_name:
        raise HTTPException(404, f"Cluster {cluster} does not exist: the only one is {services.settings.cluster_name}.")
    return await all_brokers(services)


@router.get("/{cluster}/{broker}/ownedNamespaces", responses=refused(404, "There is no such broker."))
async def owned_namespaces(services: BrokerServices, cluster: Text, broker: Text) -> dict[str, dict[str, Any]]:
    """Return the bundles that a broker owns, by name."""
    view = await services.views.view()
    record = next((each for each in registered_brokers(view) if each.broker == broker), None)
    if record is None or cluster != services.settings.cluster_name:
        raise HTTPException(404, f"Broker {broker} of cluster {cluster} does not exist: list the brokers first.")
    owned = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
    return {str(bundle): owned for bundle in services.ownership.owned(view, incarnation=record.incarnation)}


async def _change(services: Services, name: str, value: str | None) -> None:
    await asyncio.to_thread(settings_changes.change, services.root.store, services.given, _NAMES.get(name, name), value)
    # Read the view again: of two concurrent changes, the later one wins here as it does in the metadata.
    await services.views.view()
    adopt_settings(services)
    await services.watch.scan_metadata()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
