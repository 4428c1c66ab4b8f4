"""Subscriptions: create, list, delete and move them; on a partitioned topic, those of all its partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import APIRouter, Body, HTTPException, Path

from pulsar_on_spark.broker.runtime.access import authorize
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.topics.subscription_moves import clear, expire, seek, skip
from pulsar_on_spark.broker.topics.topic import BrokerTopic
from pulsar_on_spark.broker.web.admin.ids import CursorPlace
from pulsar_on_spark.broker.web.admin.namespaces import Properties
from pulsar_on_spark.broker.web.requests import (
    NAMESPACE,
    TOPIC,
    BrokerServices,
    Client,
    Force,
    NamedNamespace,
    StoredTopic,
    SubscriptionName,
    own_parts,
    parts,
    refused,
    single,
)
from pulsar_on_spark.metadata.records import SubscriptionRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import ConsumerBusyError, SubscriptionNotFoundError
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.security.operations import NamespaceOperation, Operation, Resource, TopicOperation
from pulsar_on_spark.security.principal import Principal
from pulsar_on_spark.topic.catalog import tenants
from pulsar_on_spark.topic.managed_ledger.subscription.subscriptions import set_subscription_properties

router = APIRouter(tags=["subscriptions"])

MISSING: Final = refused(404, "There is no such topic or subscription.")
_BUSY: Final = refused(412, "It has consumers, or Spark owns it.")
_AT_ONCE: Final = 64
"""Maximum number of partitions whose subscriptions are created concurrently."""
_NO_NAMESPACE: Final = refused(404, "There is no such namespace.")
_NOT_REPLICATED: Final = "A root is one cluster: its subscriptions are not replicated."
_ONE: Final = f"{TOPIC}/subscription/{{subscription}}"
_Located = tuple[TopicRecord, SubscriptionRecord]
"""A subscription, with its topic or partition."""
Seconds = Annotated[int, Path(ge=0, le=2**53)]
TimeMs = Annotated[int, Path(ge=0, le=2**53)]
Messages = Annotated[int, Path(ge=0, le=2**31 - 1)]


@router.get(f"{TOPIC}/subscriptions", responses=refused(404, "There is no such topic."))
async def subscriptions(services: BrokerServices, name: StoredTopic) -> list[str]:
    """List the names of the durable subscriptions of a topic."""
    view = await services.views.view()
    return sorted({record.name for part in parts(view, name) for record in view.all(SubscriptionRecord, part.topic_id)})


@router.put(
    _ONE,
    status_code=204,
    responses=refused(404, "There is no such topic.") | refused(409, "It exists.") | refused(501, _NOT_REPLICATED),
)
async def create(
    services: BrokerServices,
    name: StoredTopic,
    subscription: SubscriptionName,
    body: Annotated[CursorPlace | None, Body()] = None,
    replicated: bool = False,
) -> None:
    """Create a subscription at a message id, by default at the end.

    On a partitioned topic, only the ids of the earliest and latest position are meaningful: other ids belong to one
    partition.
    """
    if replicated:
        raise HTTPException(501, _NOT_REPLICATED)
    view = await services.views.view()
    wanted = own_parts(services, view, name)
    if any(_record(view, part, subscription) is not None for part in wanted):
        raise HTTPException(409, f"Subscription {subscription!r} on {name} exists already: choose another name.")
    limit = asyncio.Semaphore(_AT_ONCE)

    async def make(part: TopicRecord) -> None:
        async with limit:
            topic = await _loaded(services, part)
            start = topic.chain.end if body is None else topic.chain.clamp_position(body.position(topic.chain.end))
            await topic.subscriptions.create_subscription(
                subscription, start, None if body is None else body.properties
            )

    await asyncio.gather(*(make(part) for part in wanted))  # they share commits


@router.delete(_ONE, status_code=204, responses=MISSING | _BUSY)
async def delete(
    services: BrokerServices, name: StoredTopic, subscription: SubscriptionName, force: Force = False
) -> None:
    """Delete a subscription; with `force`, even one with consumers or one that Spark owns."""
    view = await services.views.view()
    for part in _having(services, view, name, subscription):
        topic = await _loaded(services, part)
        try:
            taken = await topic.subscriptions.acquire_subscription(
                subscription, _require(view, part, subscription).type
            )
        except ConsumerBusyError:
            if not force:
                raise
            await asyncio.to_thread(services.root.delete_subscription, part.name, subscription, force=True)
        else:
            await topic.subscriptions.unsubscribe(taken, force=force)


@router.post(f"{_ONE}/skip_all", status_code=204, responses=MISSING | _BUSY)
async def skip_all(services: BrokerServices, name: StoredTopic, subscription: SubscriptionName) -> None:
    """Acknowledge the whole backlog of a subscription."""
    view = await services.views.view()
    for part in _having(services, view, name, subscription):
        await clear(await _loaded(services, part), _require(view, part, subscription))


@router.post(f"{_ONE}/skip/{{messages}}", status_code=204, responses=MISSING | _BUSY)
async def skip_some(
    services: BrokerServices, name: StoredTopic, subscription: SubscriptionName, messages: Messages
) -> None:
    """Acknowledge the first n messages of a subscription's backlog.

    Each message of a batch counts; in Pulsar, the batch counts as one.
    """
    view = await services.views.view()
    part = single(view, name, "Skipping")
    record = _require(view, part, subscription)
    await skip(await _loaded(services, part), record, services.reader, messages)


@router.post(f"{_ONE}/resetcursor/{{timestamp_ms}}", status_code=204, responses=MISSING | _BUSY)
async def reset_to_time(
    services: BrokerServices, name: StoredTopic, subscription: SubscriptionName, timestamp_ms: TimeMs
) -> None:
    """Reset the cursor to the first message published at `timestamp_ms` or later, and disconnect the consumers."""
    view = await services.views.view()
    for part in _having(services, view, name, subscription):
        topic = await _loaded(services, part)
        position = await services.reader.position_at(topic.part, topic.chain, timestamp_ms)
        await seek(topic, _require(view, part, subscription), position)


@router.post(f"{_ONE}/resetcursor", status_code=204, responses=MISSING | _BUSY)
async def reset_to_id(
    services: BrokerServices, name: StoredTopic, subscription: SubscriptionName, body: CursorPlace
) -> None:
    """Reset a subscription to a message id, or to the position after the message if it is excluded."""
    view = await services.views.view()
    part = single(view, name, "A message id")
    record, topic = _require(view, part, subscription), await _loaded(services, part)
    await seek(topic, record, body.position(topic.chain.end))


@router.post(f"{_ONE}/expireMessages/{{seconds}}", status_code=204, responses=MISSING | _BUSY)
async def expire_older(
    services: BrokerServices, name: StoredTopic, subscription: SubscriptionName, seconds: Seconds
) -> None:
    """Acknowledge the messages of a subscription that were published more than `seconds` ago."""
    view = await services.views.view()
    for part in _having(services, view, name, subscription):
        await _expire(services, part, _require(view, part, subscription), seconds)


@router.post(f"{_ONE}/expireMessages", status_code=204, responses=MISSING | _BUSY)
async def expire_to_id(
    services: BrokerServices, name: StoredTopic, subscription: SubscriptionName, body: CursorPlace
) -> None:
    """Acknowledge all messages of a subscription up to a message id, with that message unless it is excluded."""
    view = await services.views.view()
    part = single(view, name, "A message id")
    record, topic = _require(view, part, subscription), await _loaded(services, part)
    behind = body.model_copy(update={"is_excluded": not body.is_excluded}).position(topic.chain.end)
    await expire(topic, record, behind)


@router.post(f"{TOPIC}/all_subscription/expireMessages/{{seconds}}", status_code=204, responses=MISSING | _BUSY)
async def expire_all(services: BrokerServices, client: Client, name: StoredTopic, seconds: Seconds) -> None:
    """Acknowledge the messages published more than `seconds` ago, for all subscriptions of a topic."""
    view = await services.views.view()
    located = [(part, record) for part in parts(view, name) for record in view.all(SubscriptionRecord, part.topic_id)]
    for part, record in _allowed(services, client, TopicOperation.EXPIRE_MESSAGES, located):
        await _expire(services, part, record, seconds)


@router.get(f"{_ONE}/properties", responses=MISSING)
async def properties(services: BrokerServices, name: StoredTopic, subscription: SubscriptionName) -> dict[str, str]:
    """Return the subscription's properties."""
    view = await services.views.view()
    part = _having(services, view, name, subscription)[0]
    return dict(_require(view, part, subscription).properties)


@router.put(f"{_ONE}/properties", status_code=204, responses=MISSING)
async def set_properties(
    services: BrokerServices, name: StoredTopic, subscription: SubscriptionName, body: Properties
) -> None:
    """Replace the subscription's properties."""
    parts_ = _having(services, await services.views.view(), name, subscription)
    await asyncio.to_thread(set_subscription_properties, services.root.store, subscription, parts_, body)


# -- of all topics of a namespace --------------------------------------------------------------------------------------


@router.post(f"{NAMESPACE}/clearBacklog", status_code=204, responses=_NO_NAMESPACE | _BUSY)
async def clear_namespace(services: BrokerServices, client: Client, namespace: NamedNamespace) -> None:
    """Acknowledge the whole backlog of all subscriptions of a namespace."""
    located = await _of_namespace(services, namespace)
    for part, record in _allowed(services, client, NamespaceOperation.CLEAR_BACKLOG, located):
        await clear(await _loaded(services, part), record)


@router.post(f"{NAMESPACE}/clearBacklog/{{subscription}}", status_code=204, responses=_NO_NAMESPACE | _BUSY)
async def clear_namespace_of(
    services: BrokerServices, namespace: NamedNamespace, subscription: SubscriptionName
) -> None:
    """Acknowledge the whole backlog of all subscriptions of this name in a namespace."""
    for part, record in await _of_namespace(services, namespace):
        if record.name == subscription:
            await clear(await _loaded(services, part), record)


@router.post(f"{NAMESPACE}/unsubscribe/{{subscription}}", status_code=204, responses=_NO_NAMESPACE | _BUSY)
async def unsubscribe(services: BrokerServices, namespace: NamedNamespace, subscription: SubscriptionName) -> None:
    """Delete all subscriptions of this name in a namespace; 412 if one has consumers."""
    for part, record in await _of_namespace(services, namespace):
        if record.name == subscription:
            topic = await _loaded(services, part)
            await topic.subscriptions.unsubscribe(
                await topic.subscriptions.acquire_subscription(record.name, record.type), force=False
            )


# ----------------------------------------------------------------------------------------------------------------------


def _allowed(
    services: Services, client: Principal, operation: Operation, located: Sequence[_Located]
) -> Sequence[_Located]:
    """Return subscriptions that the path does not name, after checking the client's right to an operation on each.

    Raises:
        NotAuthorizedError: one of them is reserved for other roles.
    """
    for part, record in located:
        authorize(services.access, client, operation, Resource.of_topic(TopicName.parse(part.name), record.name))
    return located


async def _of_namespace(services: Services, namespace: str) -> list[_Located]:
    """Return a namespace's subscriptions on topics that this broker serves, without system topics, as in Pulsar."""
    view = await services.views.view()
    tenants.require_namespace(view, namespace)
    names = (TopicName.parse(record.name) for record in tenants.topics_of(view, namespace))
    topics = (part for name in names if not name.is_system for part in own_parts(services, view, name))
    return [(part, record) for part in topics for record in view.all(SubscriptionRecord, part.topic_id)]


async def _loaded(services: Services, part: TopicRecord) -> BrokerTopic:
    """Return the topic or partition, loaded, after all acknowledged entries are readable."""
    topic = await services.topics.get(TopicName.parse(part.name))
    assert isinstance(topic, BrokerTopic), "it is stored"
    await topic.wait_until_readable()
    return topic


async def _expire(services: Services, part: TopicRecord, record: SubscriptionRecord, seconds: int) -> None:
    topic = await _loaded(services, part)
    before_ms = current_ms() - seconds * 1000
    behind: Position = await services.reader.position_at(topic.part, topic.chain, max(before_ms, 0))
    await expire(topic, record, behind)


def _record(view: View, part: TopicRecord, name: str) -> SubscriptionRecord | None:
    return view.get(SubscriptionRecord, f"{part.topic_id}/{name}")


def _require(view: View, part: TopicRecord, name: str) -> SubscriptionRecord:
    record = _record(view, part, name)
    if record is None:
        raise SubscriptionNotFoundError(f"Subscription {name!r} on {part.name} does not exist: check both names.")
    return record


def _having(services: Services, view: View, name: TopicName, subscription: str) -> list[TopicRecord]:
    """Return the partitions of a topic that have the subscription and that this broker serves, or the topic itself.

    Raises:
        SubscriptionNotFoundError: no such partition, or the topic, has the subscription.
        TopicNotFoundError: there is no such topic.
    """
    having = [part for part in own_parts(services, view, name) if _record(view, part, subscription) is not None]
    if not having:
        raise SubscriptionNotFoundError(f"Subscription {subscription!r} on {name} does not exist: check both names.")
    return having
