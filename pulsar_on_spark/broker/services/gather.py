"""Reads the numbers of loaded topics on the event loop, a few at a time to serve clients in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from pulsar_on_spark.broker.observe.meters import Meters
from pulsar_on_spark.broker.observe.rates import Rates
from pulsar_on_spark.broker.runtime import entry_samples
from pulsar_on_spark.broker.subscriptions.subscription import Subscription
from pulsar_on_spark.broker.topics.compaction import CompactionCounts
from pulsar_on_spark.broker.topics.topic import BrokerTopic
from pulsar_on_spark.model.names import TopicName

TOPICS_AT_ONCE: Final = 50
"""Topics that are read in one turn, which takes about a millisecond."""


class ConsumerNumbers(NamedTuple):
    """A consumer. Its id is the broker's, because clients of the same name may use the same numbers."""

    id: int
    name: str
    permits: int
    unacked: int
    is_blocked_on_unacked: bool
    rates: Rates


class SubscriptionNumbers(NamedTuple):
    """A subscription that is open in this broker; `each_consumer` is empty unless consumers are listed."""

    name: str
    consumers: int
    backlog: int
    delayed: int
    unacked: int
    is_blocked_on_unacked: bool
    is_failing: bool
    messages_out: int
    bytes_out: int
    entries_lost: int
    rates: Rates
    each_consumer: list[ConsumerNumbers]


class TopicNumbers(NamedTuple):
    """A topic that is loaded in this broker.

    `waiting` counts its entries that wait for room in the journal. Quotas are -1 for no limit. `samples` and
    `compactions` are None before the first one.
    """

    topic_id: str
    namespace: str
    name: str
    producers: int
    waiting: int
    messages_in: int
    bytes_in: int
    rates: Rates
    are_producers_refused: bool
    quota_bytes: int
    quota_s: int
    samples: list[float] | None
    compactions: CompactionCounts | None
    subscriptions: list[SubscriptionNumbers]


async def gather(
    topics: Iterable[BrokerTopic],
    meters: Meters,
    compactions: Callable[[TopicName], CompactionCounts | None],
    *,
    by_consumer: bool,
) -> list[TopicNumbers]:
    """Return the numbers of all topics, each read when its turn comes.

    Args:
        topics: The loaded topics.
        meters: Their rates.
        compactions: The number of compactions of a topic.
        by_consumer: Whether to list each consumer.
    """
    found = []
    for number, topic in enumerate(topics, 1):
        found.append(_of_topic(topic, meters, compactions(topic.name), by_consumer))
        if number % TOPICS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return found


def _of_topic(
    topic: BrokerTopic, meters: Meters, compactions: CompactionCounts | None, by_consumer: bool
) -> TopicNumbers:
    subscriptions = []
    for each in topic.subscriptions.all:
        stats = each.stats
        subscriptions.append(
            SubscriptionNumbers(
                each.name,
                len(each.consumers),
                each.kept.cursor.backlog_entries,
                stats.delayed,
                stats.unacked,
                # Blocked without unacknowledged messages is idle: a Failover subscription changes its active consumer.
                stats.blocked is not None and stats.unacked > 0,
                each.problem is not None,
                each.messages_out,
                each.bytes_out,
                each.entries_lost,
                meters.rates(each),
                _consumers(each, meters) if by_consumer else [],
            )
        )
    return TopicNumbers(
        topic.topic_id,
        topic.name.namespace,
        topic.name.full,
        len(topic.producers.connected),
        len(topic.waiting),
        topic.published.messages,
        topic.published.bytes,
        meters.rates(topic.published),
        topic.producers.are_refused and topic.terminated is None,
        topic.policies.backlog_quota_size.limit_size,
        topic.policies.backlog_quota_age.limit_time,
        None if topic.published.samples is None else entry_samples.values(topic.published.samples),
        compactions,
        subscriptions,
    )


def _consumers(subscription: Subscription, meters: Meters) -> list[ConsumerNumbers]:
    said = {each.id: each for each in subscription.stats.consumers}
    return [
        ConsumerNumbers(
            each.id,
            each.name,
            said[each.id].permits,
            said[each.id].unacked or 0,
            said[each.id].blocked is not None and bool(said[each.id].unacked),
            meters.rates(each),
        )
        for each in subscription.consumers
    ]
