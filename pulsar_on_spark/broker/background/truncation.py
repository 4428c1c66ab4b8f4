"""Truncation of a topic: all its messages are acknowledged and deleted, regardless of retention."""

from __future__ import annotations

import asyncio

from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.broker.topics import subscription_moves
from pulsar_on_spark.broker.topics.topic import BrokerTopic
from pulsar_on_spark.broker.topics.topics import Topics
from pulsar_on_spark.metadata.records import SubscriptionRecord
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.commands import ServerError
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.retention.trim import trim_some, truncate


async def truncate_topic(root: RootHandle, views: Views, topics: Topics, name: TopicName) -> None:
    """Acknowledge all messages of a topic in every subscription, and trim them.

    The topic is unloaded, which closes its ledger. Sealed segments are deleted at once. Unsealed entries are deleted by
    the first trimming after they are sealed. An interrupted truncation can be repeated.

    Args:
        root: The open root.
        views: The views of the root's metadata.
        topics: The broker's topics.
        name: A topic without partitions, or a partition.

    Raises:
        ServerRefusalError: the topic is not persistent, or has partitions.
        ConsumerBusyError: a Spark query owns one of the topic's subscriptions; nothing was changed.
        PulsarpyError: as `Topics.get` and `TopicSubscriptions.acquire_subscription`.
    """
    topic = await topics.get(name)
    if not isinstance(topic, BrokerTopic):
        raise ServerRefusalError(
            ServerError.NotAllowedError, f"Topic {name} is not persistent: there is nothing to truncate."
        )
    await topic.wait_until_readable()
    end = topic.chain.end
    view = await views.view()
    records = view.all(SubscriptionRecord, topic.topic_id)
    for record in records:  # acquire all before moving any
        await topic.subscriptions.acquire_subscription(record.name, record.type)
    for record in records:
        await subscription_moves.expire(topic, record, end)
    await asyncio.to_thread(truncate, root.store, name, end)
    await topics.unload(name)
    await asyncio.to_thread(trim_some, root.store, [name.full])
