"""Collection of loaded topics' numbers for metrics, a few topics at a time so that clients are served in between."""

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
"""Number of topics that are read in one turn of the event loop, which takes about a millisecond."""


class ConsumerNumbers(NamedTuple):
    """The numbers of a consumer.

    Attributes:
        id: The broker's id of the consumer, which is unique in the subscription, unlike clients' ids.
        name: The consumer's name.
        permits: Number of messages that it may still get.
        unacked: Number of messages that were delivered to it and are not acknowledged; 0 if they are not tracked.
        is_blocked_on_unacked: True if it gets nothing because too many messages are unacknowledged.
        rates: The rates of deliveries to it.
    """

    id: int
    name: str
    permits: int
    unacked: int
    is_blocked_on_unacked: bool
    rates: Rates


class SubscriptionNumbers(NamedTuple):
    """The numbers of a subscription in this broker.

    Attributes:
        name: The subscription.
        consumers: Number of connected consumers.
        backlog: Number of unacknowledged entries.
        delayed: Number of entries that wait for their delivery time.
        unacked: Number of messages that were delivered and are not acknowledged.
        is_blocked_on_unacked: True if deliveries pause because too many messages are unacknowledged.
        is_failing: True if the last read of entries failed.
        messages_out: Number of delivered messages.
        bytes_out: Bytes of delivered entries.
        entries_lost: Number of entries that were skipped because no copy is readable.
        rates: The rates of deliveries.
        each_consumer: The numbers of each consumer; empty unless consumers are listed.
    """

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
    """The numbers of a topic that is loaded in this broker.

    Attributes:
        topic_id: The topic's id.
        namespace: The topic's namespace, `tenant/namespace`.
        name: The topic's full name.
        producers: Number of connected producers.
        waiting: Number of entries that wait for room in the journal.
        messages_in: Number of published messages.
        bytes_in: Bytes of published entries.
        rates: The rates of publishing.
        are_producers_refused: True if no producer is admitted, for another reason than the topic's termination.
        quota_bytes: Limit of the backlog in bytes; -1 for no limit.
        quota_s: Limit of the backlog's age in seconds; -1 for no limit.
        samples: The values of `entry_samples.values`; None before the first sampled entry.
        compactions: The counts of compactions; None before the first compaction.
        subscriptions: The numbers of each subscription.
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
    """Return the numbers of all topics, read `TOPICS_AT_ONCE` in each turn of the event loop.

    Args:
        topics: The loaded topics.
        meters: The rates of the loaded topics.
        compactions: Returns the counts of a topic's compactions; None if the topic was never compacted.
        by_consumer: True to list each consumer.
    """
    numbers = []
    for number, topic in enumerate(topics, 1):
        numbers.append(_of_topic(topic, meters, compactions(topic.name), by_consumer))
        if number % TOPICS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return numbers


def _of_topic(
    topic: BrokerTopic, meters: Meters, compactions: CompactionCounts | None, by_consumer: bool
) -> TopicNumbers:
    subscriptions = []
    for subscription in topic.subscriptions.all:
        stats = subscription.stats
        subscriptions.append(
            SubscriptionNumbers(
                subscription.name,
                len(subscription.consumers),
                subscription.kept.cursor.backlog_entries,
                stats.delayed,
                stats.unacked,
                # Without unacknowledged messages, it only waits for a change of its active consumer (Failover).
                stats.blocked is not None and stats.unacked > 0,
                subscription.problem is not None,
                subscription.messages_out,
                subscription.bytes_out,
                subscription.entries_lost,
                meters.rates(subscription),
                _consumers(subscription, meters) if by_consumer else [],
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
    stats = {each.id: each for each in subscription.stats.consumers}
    return [
        ConsumerNumbers(
            each.id,
            each.name,
            stats[each.id].permits,
            stats[each.id].unacked or 0,
            stats[each.id].blocked is not None and bool(stats[each.id].unacked),
            meters.rates(each),
        )
        for each in subscription.consumers
    ]
