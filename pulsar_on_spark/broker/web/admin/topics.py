"""Topics and their partitions: create, list, delete, terminate, unload, truncate and trim them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Body, HTTPException, Query
from pydantic import BaseModel, Field

from pulsar_on_spark.broker.background.truncation import truncate_topic
from pulsar_on_spark.broker.topics.topic_lists import Mode, list_topics
from pulsar_on_spark.broker.topics.topic_policies import default_policies, topic_limits
from pulsar_on_spark.broker.web.admin.ids import MessageIdJson
from pulsar_on_spark.broker.web.admin.namespaces import Properties
from pulsar_on_spark.broker.web.requests import (
    TOPIC,
    BrokerServices,
    Domain,
    Force,
    NamedNamespace,
    NamedTopic,
    StoredTopic,
    own_parts,
    parts,
    refused,
)
from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import catalog, tenants
from pulsar_on_spark.topic.catalog.topic_limits import MAX_PARTITIONS
from pulsar_on_spark.topic.maintenance.retention.trim import trim_some

router = APIRouter(tags=["topics"])

MISSING: Final = refused(404, "There is no such topic.")
_EXISTS: Final = refused(409, "It exists.")
_TOPICS: Final = "/admin/v2/{domain:domain}/{tenant}/{namespace}"
Partitions = Annotated[int, Field(ge=1, le=MAX_PARTITIONS)]


class PartitionedTopicBody(BaseModel):
    """The number of partitions of a new topic and its properties, None for none, as newer clients send them."""

    partitions: Partitions
    properties: Properties | None = None


# -- lists -------------------------------------------------------------------------------------------------------------


@router.get(_TOPICS, responses=refused(404, "There is no such namespace."))
async def topics(services: BrokerServices, domain: Domain, namespace: NamedNamespace) -> list[str]:
    """List the full names of a namespace's topics, each partition by itself."""
    tenants.require_namespace(await services.views.view(), namespace)
    mode: Mode = "PERSISTENT" if domain == "persistent" else "NON_PERSISTENT"
    return list_topics(await services.topics.names(), namespace, mode).topics


@router.get(f"{_TOPICS}/partitioned", responses=refused(404, "There is no such namespace."))
async def partitioned_topics(services: BrokerServices, domain: Domain, namespace: NamedNamespace) -> list[str]:
    """List the full names of a namespace's partitioned topics."""
    view = await services.views.view()
    tenants.require_namespace(view, namespace)
    if domain != "persistent":
        return []
    return [record.name for record in tenants.topics_of(view, namespace) if record.partitions is not None]


# -- create and delete -------------------------------------------------------------------------------------------------


@router.put(TOPIC, status_code=204, responses=_EXISTS | refused(404, "There is no such namespace."))
async def create(
    services: BrokerServices, name: StoredTopic, body: Annotated[Properties | None, Body()] = None
) -> None:
    """Create a topic without partitions, with the properties of the body, if any."""
    await _create(services, name, None, body)


@router.delete(TOPIC, status_code=204, responses=MISSING | refused(412, "It is in use."))
async def delete(services: BrokerServices, name: NamedTopic, force: Force = False) -> None:
    """Delete a topic without partitions, and its data; with `force`, even one with clients and subscriptions.

    A non-persistent topic exists only while it has clients: `force` disconnects them.
    """
    if name.is_persistent:
        record = catalog.require_topic(await services.views.view(), name)
        if record.partitions is not None:
            raise HTTPException(405, f"Topic {name} has {record.partitions} partitions: delete it at .../partitions.")
    await services.topics.delete(name, force=force)


@router.put(f"{TOPIC}/partitions", status_code=204, responses=_EXISTS)
async def create_partitioned(
    services: BrokerServices, name: StoredTopic, body: Annotated[Partitions | PartitionedTopicBody, Body()]
) -> None:
    """Create a partitioned topic; the body is the number of partitions, or an object that also has properties."""
    wanted = PartitionedTopicBody(partitions=body) if isinstance(body, int) else body
    await _create(services, name, wanted.partitions, wanted.properties)


@router.post(
    f"{TOPIC}/partitions", status_code=204, responses=MISSING | refused(412, "It has that many partitions already.")
)
async def add_partitions(services: BrokerServices, name: StoredTopic, body: Annotated[Partitions, Body()]) -> None:
    """Raise a topic's number of partitions to the number in the body."""
    limits = topic_limits(services.settings)
    await asyncio.to_thread(catalog.add_partitions, services.root.store, name, body, limits)


@router.delete(f"{TOPIC}/partitions", status_code=204, responses=MISSING | refused(412, "It is in use."))
async def delete_partitioned(services: BrokerServices, name: StoredTopic, force: Force = False) -> None:
    """Delete a topic with all its partitions."""
    record = catalog.require_topic(await services.views.view(), name)
    if record.partitions is None:
        raise HTTPException(405, f"Topic {name} has no partitions: delete it as a topic.")
    await services.topics.delete(name, force=force)


@router.post(f"{TOPIC}/createMissedPartitions", status_code=204, responses=MISSING)
async def create_missed_partitions(services: BrokerServices, name: StoredTopic) -> None:
    """Check only that the topic exists: its partitions were created with it."""
    catalog.require_topic(await services.views.view(), name)


async def _create(
    services: BrokerServices, name: TopicName, partitions: int | None, properties: Properties | None
) -> None:
    """Create a topic in an existing namespace: a mistyped name must not create another namespace.

    Args:
        services: The broker's parts.
        name: The topic.
        partitions: The number of partitions; None for a topic without partitions.
        properties: The topic's properties; None for none.
    """
    tenants.require_namespace(await services.views.view(), name.namespace)
    limits = topic_limits(services.settings)
    await asyncio.to_thread(
        catalog.create_topic, services.root.store, name, partitions, properties=properties, limits=limits
    )


# -- properties --------------------------------------------------------------------------------------------------------


@router.get(f"{TOPIC}/properties", responses=MISSING)
async def properties(services: BrokerServices, name: StoredTopic) -> dict[str, str]:
    """Return the topic's properties; a partition has those of its partitioned topic."""
    view = await services.views.view()
    record = catalog.require_topic(view, name)
    base = view.get(TopicRecord, record.partition_of) if record.partition_of else record
    return dict((base or record).properties)


@router.put(f"{TOPIC}/properties", status_code=204, responses=MISSING)
async def set_properties(services: BrokerServices, name: StoredTopic, body: Properties) -> None:
    """Set properties of a topic; its other properties keep their values."""
    await asyncio.to_thread(tenants.set_topic_properties, services.root.store, name, body)


@router.delete(f"{TOPIC}/properties", status_code=204, responses=MISSING)
async def remove_property(
    services: BrokerServices, name: StoredTopic, key: Annotated[str, Query(max_length=1024)]
) -> None:
    """Remove one property of a topic."""
    await asyncio.to_thread(tenants.set_topic_properties, services.root.store, name, {key: None})


# -- life --------------------------------------------------------------------------------------------------------------


@router.post(f"{TOPIC}/terminate", responses=MISSING | refused(405, "It is partitioned."))
async def terminate(services: BrokerServices, name: StoredTopic) -> MessageIdJson:
    """Terminate a topic, so that it accepts no more messages, and return the id of its last message."""
    return MessageIdJson.of(await services.topics.terminate(name))


@router.post(f"{TOPIC}/terminate/partitions", responses=MISSING)
async def terminate_partitions(services: BrokerServices, name: StoredTopic) -> dict[str, MessageIdJson]:
    """Terminate all partitions of a topic, and return the id of the last message of each, by partition number."""
    record = catalog.require_topic(await services.views.view(), name)
    if record.partitions is None:
        raise HTTPException(405, f"Topic {name} has no partitions: terminate it as a topic.")
    own = [TopicName.parse(part.name) for part in own_parts(services, await services.views.view(), name)]
    ends = [(part, await services.topics.terminate(part)) for part in own]
    return {str(part.partition_index): MessageIdJson.of(end) for part, end in ends}


@router.put(f"{TOPIC}/unload", status_code=204, responses=MISSING)
async def unload(services: BrokerServices, name: NamedTopic) -> None:
    """Unload a topic; its clients look it up again."""
    await services.topics.unload(name)


@router.delete(f"{TOPIC}/truncate", status_code=204, responses=MISSING)
async def truncate(services: BrokerServices, name: StoredTopic) -> None:
    """Delete all messages, regardless of retention, after acknowledging them in all subscriptions."""
    for part in own_parts(services, await services.views.view(), name):
        await truncate_topic(services.root, services.views, services.topics, TopicName.parse(part.name))


@router.post(f"{TOPIC}/trim", status_code=204, responses=MISSING)
async def trim(services: BrokerServices, name: StoredTopic) -> None:
    """Delete the segments that retention no longer requires, without waiting for the next trim."""
    names = [part.name for part in parts(await services.views.view(), name)]
    await asyncio.to_thread(trim_some, services.root.store, names, default_policies(services.settings))
