"""Pulsar's families of topics, subscriptions and the broker, out of gathered numbers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from pulsar_on_spark.broker.metrics.gather import SubscriptionNumbers, TopicNumbers
from pulsar_on_spark.broker.metrics.stored import StoredLook

_TOPIC: Final = ("cluster", "namespace", "topic")
_SUBSCRIPTION: Final = (*_TOPIC, "subscription")

_OfTopic = Callable[[TopicNumbers], float]
_OfSubscription = Callable[[SubscriptionNumbers], float]


def _sum(number: _OfSubscription) -> _OfTopic:
    return lambda topic: sum(number(each) for each in topic.subscriptions)


_GAUGES: Final[tuple[tuple[str, str, _OfTopic], ...]] = (
    ("subscriptions_count", "Open subscriptions", lambda it: len(it.subscriptions)),
    ("producers_count", "Producers", lambda it: it.producers),
    ("consumers_count", "Consumers", _sum(lambda each: each.consumers)),
    ("rate_in", "Messages published a second", lambda it: it.rates.messages),
    ("rate_out", "Messages delivered a second", _sum(lambda each: each.rates.messages)),
    ("throughput_in", "Bytes published a second", lambda it: it.rates.bytes),
    ("throughput_out", "Bytes delivered a second", _sum(lambda each: each.rates.bytes)),
    ("msg_backlog", "Entries not acknowledged, of all open subscriptions", _sum(lambda each: each.backlog)),
)
"""Of a topic as `pulsar_...`, and all of them together as `pulsar_broker_...`."""
_TOPIC_GAUGES: Final[tuple[tuple[str, str, _OfTopic], ...]] = (
    ("pulsar_average_msg_size", "Mean bytes of a message", lambda it: it.bytes_in / max(it.messages_in, 1)),
    ("pulsarpy_topic_waiting_entries", "Entries that the journal has not taken yet", lambda it: it.waiting),
)
_TOPIC_COUNTERS: Final[tuple[tuple[str, str, _OfTopic], ...]] = (
    ("pulsar_in_messages", "Messages that were published", lambda it: it.messages_in),
    ("pulsar_in_bytes", "Bytes of their entries", lambda it: it.bytes_in),
)
_SUBSCRIPTION_GAUGES: Final[tuple[tuple[str, str, _OfSubscription], ...]] = (
    ("pulsar_subscription_back_log", "Entries that are not acknowledged", lambda it: it.backlog),
    ("pulsar_subscription_delayed", "Entries that wait for their time", lambda it: it.delayed),
    ("pulsar_subscription_unacked_messages", "Messages that are at consumers", lambda it: it.unacked),
    (
        "pulsar_subscription_blocked_on_unacked_messages",
        "1 while it stands still because too many messages are at consumers",
        lambda it: it.is_blocked,
    ),
    ("pulsar_subscription_consumers_count", "Consumers", lambda it: it.consumers),
    ("pulsar_subscription_msg_rate_out", "Messages delivered a second", lambda it: it.rates.messages),
    ("pulsar_subscription_msg_throughput_out", "Bytes delivered a second", lambda it: it.rates.bytes),
    (
        "pulsarpy_subscription_read_failing",
        "1 while its entries cannot be read, which is tried again and again",
        lambda it: it.is_failing,
    ),
)
_SUBSCRIPTION_COUNTERS: Final[tuple[tuple[str, str, _OfSubscription], ...]] = (
    ("pulsar_out_messages", "Messages that were delivered", lambda it: it.messages_out),
    ("pulsar_out_bytes", "Bytes of their entries", lambda it: it.bytes_out),
    ("pulsarpy_subscription_entries_lost", "Entries passed over because no copy is left", lambda it: it.entries_lost),
)


def topic_families(cluster: str, topics: Sequence[TopicNumbers], stored: StoredLook) -> Iterator[Metric]:
    """All families of topics.

    Args:
        cluster: The cluster's name.
        topics: The loaded ones.
        stored: What is stored of them.
    """
    yield from _of_broker(cluster, topics, stored)
    named = [((cluster, each.namespace, each.name), each) for each in topics]
    for name, text, number in (*((f"pulsar_{name}", text, number) for name, text, number in _GAUGES), *_TOPIC_GAUGES):
        yield _filled(GaugeMetricFamily(name, text, labels=_TOPIC), ((key, number(each)) for key, each in named))
    for name, text, number in _TOPIC_COUNTERS:
        yield _filled(CounterMetricFamily(name, text, labels=_TOPIC), ((key, number(each)) for key, each in named))
    for name, text, sizes in (
        ("pulsar_storage_size", "Key and value bytes in segments, times their copies", stored.physical),
        ("pulsar_storage_logical_size", "Key and value bytes in segments", stored.logical),
    ):
        gauge = GaugeMetricFamily(name, text, labels=_TOPIC)
        yield _filled(gauge, ((key, sizes.get(each.topic_id, 0)) for key, each in named))
    found = [((*key, each.name), each) for key, topic in named for each in topic.subscriptions]
    for name, text, said in _SUBSCRIPTION_GAUGES:
        yield _filled(GaugeMetricFamily(name, text, labels=_SUBSCRIPTION), ((key, said(each)) for key, each in found))
    for name, text, said in _SUBSCRIPTION_COUNTERS:
        yield _filled(CounterMetricFamily(name, text, labels=_SUBSCRIPTION), ((key, said(each)) for key, each in found))


def _of_broker(cluster: str, topics: Sequence[TopicNumbers], stored: StoredLook) -> Iterator[Metric]:
    numbers: list[tuple[str, str, float]] = [
        (f"pulsar_broker_{name}", text, sum(map(number, topics))) for name, text, number in _GAUGES
    ]
    numbers += [
        ("pulsar_broker_topics_count", "Loaded topics", len(topics)),
        ("pulsar_broker_storage_size", "Bytes of all copies of segment files", stored.file_bytes),
        ("pulsar_broker_storage_logical_size", "Key and value bytes in segments", sum(stored.logical.values())),
    ]
    for name, text, value in numbers:
        yield _filled(GaugeMetricFamily(name, text, labels=_TOPIC[:1]), [((cluster,), value)])


_Family = TypeVar("_Family", GaugeMetricFamily, CounterMetricFamily)


def _filled(family: _Family, samples: Iterable[tuple[Sequence[str], float]]) -> _Family:
    for labels, value in samples:
        family.add_metric(labels, value)
    return family
