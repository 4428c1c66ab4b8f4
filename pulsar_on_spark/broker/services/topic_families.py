"""Pulsar's metrics of topics, subscriptions and the broker, from the numbers that `gather` returned. No IO.

The metrics are listed by topic and subscription, or as sums of each namespace (Pulsar's
`exposeTopicLevelMetricsInPrometheus`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

from pulsar_on_spark.broker.observe.rates import Rates
from pulsar_on_spark.broker.observe.stored import StorageState
from pulsar_on_spark.broker.runtime import entry_samples
from pulsar_on_spark.broker.services.exposition import family, labels
from pulsar_on_spark.broker.services.gather import ConsumerNumbers, SubscriptionNumbers, TopicNumbers
from pulsar_on_spark.broker.topics.compaction import CompactionCounts

_OfTopic = Callable[[TopicNumbers], float]
_OfSubscription = Callable[[SubscriptionNumbers], float]
_OfConsumer = Callable[[ConsumerNumbers], float]
_OfCompactions = Callable[[CompactionCounts], float]
_Kind = Literal["gauge", "counter"]


def _sum(number: _OfSubscription) -> _OfTopic:
    return lambda topic: sum(number(each) for each in topic.subscriptions)


_SUMS: Final[tuple[tuple[str, str, _OfTopic], ...]] = (
    ("subscriptions_count", "Subscriptions", lambda it: len(it.subscriptions)),
    ("producers_count", "Producers", lambda it: it.producers),
    ("consumers_count", "Consumers", _sum(lambda each: each.consumers)),
    ("rate_in", "Messages published a second", lambda it: it.rates.messages),
    ("rate_out", "Messages delivered a second", _sum(lambda each: each.rates.messages)),
    ("throughput_in", "Bytes published a second", lambda it: it.rates.bytes),
    ("throughput_out", "Bytes delivered a second", _sum(lambda each: each.rates.bytes)),
    ("msg_backlog", "Unacknowledged entries of all subscriptions", _sum(lambda each: each.backlog)),
)
"""Metrics of a topic or a namespace as `pulsar_...`, and summed up for the broker as `pulsar_broker_...`."""
_OF_MANY: Final[tuple[tuple[str, _Kind, str, _OfTopic], ...]] = (
    *((f"pulsar_{name}", "gauge", text, number) for name, text, number in _SUMS),
    ("pulsarpy_topic_waiting_entries", "gauge", "Entries that wait for the journal", lambda it: it.waiting),
    (
        "pulsarpy_topic_producers_refused",
        "gauge",
        "1 while a backlog quota refuses producers",
        lambda it: int(it.are_producers_refused),
    ),
    ("pulsar_in_messages_total", "counter", "Published messages", lambda it: it.messages_in),
    ("pulsar_in_bytes_total", "counter", "Bytes of published entries", lambda it: it.bytes_in),
)
"""Metrics of a topic or a namespace, whose values are the sums of its topics."""
_OF_ONE: Final[tuple[tuple[str, _Kind, str, _OfTopic], ...]] = (
    ("pulsar_average_msg_size", "gauge", "Mean bytes of a message", lambda it: it.bytes_in / max(it.messages_in, 1)),
    ("pulsar_storage_backlog_quota_limit", "gauge", "Bytes of backlog; -1 for no limit", lambda it: it.quota_bytes),
    ("pulsar_storage_backlog_quota_limit_time", "gauge", "Seconds of backlog; -1 for no limit", lambda it: it.quota_s),
)
"""Metrics of topics only."""
_OF_SUBSCRIPTION: Final[tuple[tuple[str, _Kind, str, _OfSubscription], ...]] = (
    ("pulsar_subscription_back_log", "gauge", "Unacknowledged entries", lambda it: it.backlog),
    (
        "pulsar_subscription_back_log_no_delayed",
        "gauge",
        "Unacknowledged entries that are not delayed",
        lambda it: max(it.backlog - it.delayed, 0),
    ),
    ("pulsar_subscription_delayed", "gauge", "Entries with delayed delivery", lambda it: it.delayed),
    ("pulsar_subscription_unacked_messages", "gauge", "Delivered, unacknowledged messages", lambda it: it.unacked),
    (
        "pulsar_subscription_blocked_on_unacked_messages",
        "gauge",
        "1 while delivery pauses because too many messages are unacknowledged",
        lambda it: int(it.is_blocked_on_unacked),
    ),
    ("pulsar_subscription_consumers_count", "gauge", "Consumers", lambda it: it.consumers),
    ("pulsar_subscription_msg_rate_out", "gauge", "Messages delivered a second", lambda it: it.rates.messages),
    ("pulsar_subscription_msg_throughput_out", "gauge", "Bytes delivered a second", lambda it: it.rates.bytes),
    (
        "pulsarpy_subscription_read_failing",
        "gauge",
        "1 while its entries cannot be read; reading is retried",
        lambda it: int(it.is_failing),
    ),
    ("pulsar_out_messages_total", "counter", "Delivered messages", lambda it: it.messages_out),
    ("pulsar_out_bytes_total", "counter", "Bytes of delivered entries", lambda it: it.bytes_out),
    (
        "pulsarpy_subscription_entries_lost_total",
        "counter",
        "Entries skipped because no copy is left",
        lambda it: it.entries_lost,
    ),
)

_OF_CONSUMER: Final[tuple[tuple[str, str, _OfConsumer], ...]] = (
    ("pulsar_consumer_unacked_messages", "Delivered, unacknowledged messages", lambda it: it.unacked),
    (
        "pulsar_consumer_blocked_on_unacked_messages",
        "1 while it gets nothing because too many messages are unacknowledged",
        lambda it: int(it.is_blocked_on_unacked),
    ),
    ("pulsar_consumer_available_permits", "Messages that it can take now", lambda it: it.permits),
    ("pulsar_consumer_msg_rate_out", "Messages delivered to it a second", lambda it: it.rates.messages),
    ("pulsar_consumer_msg_throughput_out", "Bytes delivered to it a second", lambda it: it.rates.bytes),
)
_OF_COMPACTIONS: Final[tuple[tuple[str, str, _OfCompactions], ...]] = (
    ("pulsar_compaction_succeed_count", "Successful compactions", lambda it: it.succeeded),
    ("pulsar_compaction_failed_count", "Failed compactions", lambda it: it.failed),
    ("pulsar_compaction_duration_time_in_mills", "Duration of the last compaction", lambda it: it.duration_ms),
)


def topic_families(cluster: str, topics: Sequence[TopicNumbers], stored: StorageState, by_topic: bool) -> Iterator[str]:
    """Yield all families of topics' metrics, each in Prometheus' text format.

    Args:
        cluster: The cluster's name.
        topics: The numbers of the loaded topics.
        stored: The state of storage.
        by_topic: True to list topics and subscriptions; False for sums by namespace.
    """
    of_broker = labels(cluster=cluster)
    topics = [_with_resting(each, stored.backlogs.get(each.topic_id, {})) for each in topics]
    yield from _of_broker(of_broker, topics, stored)
    of_namespace = {name: labels(cluster=cluster, namespace=name) for name in {each.namespace for each in topics}}

    def by_namespace(number: _OfTopic) -> Iterable[tuple[str, float]]:
        sums: defaultdict[str, float] = defaultdict(int)
        for each in topics:
            sums[of_namespace[each.namespace]] += number(each)
        return sums.items()

    yield family("pulsar_topics_count", "gauge", "Loaded topics", by_namespace(lambda _: 1))
    sizes: tuple[tuple[str, _Kind, str, _OfTopic], ...] = (
        (
            "pulsar_storage_size",
            "gauge",
            "Key and value bytes in segments, times their copies",
            lambda it: stored.physical.get(it.topic_id, 0),
        ),
        (
            "pulsar_storage_logical_size",
            "gauge",
            "Key and value bytes in segments",
            lambda it: stored.logical.get(it.topic_id, 0),
        ),
        (
            "pulsar_storage_offloaded_size",
            "gauge",
            "Key and value bytes in offloaded segments",
            lambda it: stored.offloaded.get(it.topic_id, 0),
        ),
    )
    if not by_topic:
        yield from (family(name, kind, text, by_namespace(number)) for name, kind, text, number in (*_OF_MANY, *sizes))
        return
    named = [(f"{of_namespace[each.namespace]},{labels(topic=each.name)}", each) for each in topics]
    for name, kind, text, number in (*_OF_MANY, *_OF_ONE, *sizes):
        yield family(name, kind, text, ((of, number(each)) for of, each in named))
    measured = [(of, each.samples) for of, each in named if each.samples is not None]
    for index, name in enumerate(entry_samples.names()):
        text = "Histogram of sampled entries"
        yield family(name, "gauge", text, ((of, samples[index]) for of, samples in measured))
    subscriptions = [
        (f"{of},{labels(subscription=each.name)}", each) for of, topic in named for each in topic.subscriptions
    ]
    for name, kind, text, of_subscription in _OF_SUBSCRIPTION:
        yield family(name, kind, text, ((of, of_subscription(each)) for of, each in subscriptions))
    consumers = [
        (f"{of},{labels(consumer_name=each.name, consumer_id=str(each.id))}", each)
        for of, subscription in subscriptions
        for each in subscription.each_consumer
    ]
    for name, text, of_consumer in _OF_CONSUMER:
        yield family(name, "gauge", text, ((of, of_consumer(each)) for of, each in consumers))
    yield from _of_compactions(named, stored)


def _with_resting(topic: TopicNumbers, backlogs: Mapping[str, int]) -> TopicNumbers:
    """Return a topic's numbers with its subscriptions that no broker owns added.

    Args:
        topic: The numbers of the topic.
        backlogs: Number of unacknowledged entries of each subscription that no broker owns, by name.
    """
    here = {each.name for each in topic.subscriptions}
    resting = [
        SubscriptionNumbers(name, 0, backlog, 0, 0, False, False, 0, 0, 0, Rates(0, 0), [])
        for name, backlog in backlogs.items()
        if name not in here
    ]
    return topic._replace(subscriptions=[*topic.subscriptions, *resting]) if resting else topic


def _of_compactions(named: Sequence[tuple[str, TopicNumbers]], stored: StorageState) -> Iterator[str]:
    """Yield the families of compaction, only for topics that were compacted, as in Pulsar."""
    run = [(of, each.compactions) for of, each in named if each.compactions is not None]
    for name, text, number in _OF_COMPACTIONS:
        yield family(name, "gauge", text, ((of, number(counts)) for of, counts in run))
    left = [(of, stored.compacted[each.topic_id]) for of, each in named if each.topic_id in stored.compacted]
    for index, (name, text) in enumerate(
        (
            ("pulsar_compaction_compacted_entries_count", "Entries of the compacted ledger"),
            ("pulsar_compaction_compacted_entries_size", "Key and value bytes of the compacted ledger"),
        )
    ):
        yield family(name, "gauge", text, ((of, numbers[index]) for of, numbers in left))


def _of_broker(of_broker: str, topics: Sequence[TopicNumbers], stored: StorageState) -> Iterator[str]:
    numbers: list[tuple[str, str, float]] = [
        (f"pulsar_broker_{name}", text, sum(map(number, topics))) for name, text, number in _SUMS
    ]
    numbers += [
        ("pulsar_broker_topics_count", "Loaded topics", len(topics)),
        ("pulsar_broker_storage_size", "Bytes of all copies of segment files", stored.file_bytes),
        ("pulsar_broker_storage_logical_size", "Key and value bytes in segments", sum(stored.logical.values())),
    ]
    for name, text, value in numbers:
        yield family(name, "gauge", text, [(of_broker, value)])
