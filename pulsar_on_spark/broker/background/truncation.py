"""Truncating a topic of a broker: what is in it is passed over, and goes, whatever its retention says."""

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
    """Acknowledge all that is in a topic now in every subscription, and have it trimmed.

    The topic is unloaded for that, which closes its ledger. What is sealed by then goes at once, and the rest with the
    first pass of trimming after the sealing process has come to it; cut off in between, it can be done again.

    Args:
        root: The root.
        views: Its metadata.
        topics: The broker's topics.
        name: A topic without partitions, or a partition.

    Raises:
        ServerRefusalError: the topic is not stored, or has partitions.
        ConsumerBusyError: a query of Spark reads it under a subscription; nothing was done.
        PulsarpyError: as `Topics.get` and `TopicSubscriptions.take`.
    """
    topic = await topics.get(name)
    if not isinstance(topic, BrokerTopic):
        raise ServerRefusalError(
            ServerError.NotAllowedError, f"Topic {name} is not stored: there is nothing to truncate."
        )
    await topic.settle()
    end = topic.chain.end
    view = await views.view()
    records = view.all(SubscriptionRecord, topic.topic_id)
    for record in records:  # all are had before any is moved
        await topic.subscriptions.take(record.name, record.type)
    for record in records:
        await subscription_moves.expire(topic, record, end)
    await asyncio.to_thread(truncate, root.store, name, end)
    await topics.unload(name)
    await asyncio.to_thread(trim_some, root.store, [name.full])
