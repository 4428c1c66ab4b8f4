"""Families of topics as text: a Prometheus parser reads the gathered numbers, by topic or by namespace."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from pulsar_on_spark.broker.observe.rates import Rates
from pulsar_on_spark.broker.observe.stored import StorageState
from pulsar_on_spark.broker.runtime import entry_samples
from pulsar_on_spark.broker.runtime.entry_samples import EntrySamples
from pulsar_on_spark.broker.services.gather import ConsumerNumbers, SubscriptionNumbers, TopicNumbers
from pulsar_on_spark.broker.services.topic_families import topic_families
from pulsar_on_spark.broker.topics.compaction import CompactionCounts

STORED = StorageState(logical={"id-a": 9}, compacted={"id-a": (3, 33)}, backlogs={"id-b": {"rests": 4, "open": 9}})
NASTY = 'quote " back \\ line \n end'


def subscription(name: str, backlog: int, *consumers: ConsumerNumbers) -> SubscriptionNumbers:
    return SubscriptionNumbers(name, 1, backlog, 2, 0, False, True, 7, 70, 0, Rates(1.5, 15.0), list(consumers))


def topic(
    name: str,
    *subscriptions: SubscriptionNumbers,
    samples: list[float] | None = None,
    compactions: CompactionCounts | None = None,
) -> TopicNumbers:
    return TopicNumbers(
        f"id-{name}",
        "public/default",
        f"persistent://public/default/{name}",
        1,
        0,
        10,
        1000,
        Rates(2.0, 200.0),
        False,
        -1,
        60,
        samples,
        compactions,
        list(subscriptions),
    )


def read(topics: list[TopicNumbers], *, by_topic: bool) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = "".join(topic_families("c", topics, STORED, by_topic))
    families = list(text_string_to_metric_families(text))
    assert len({each.name for each in families}) == len(families)
    return {(s.name, frozenset(s.labels.items())): s.value for each in families for s in each.samples}


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset({"cluster": "c", **labels}.items())


def test_metrics_for_each_topic() -> None:
    found = read([topic("a", subscription(NASTY, 5)), topic("b", subscription("open", 3))], by_topic=True)
    a = {"namespace": "public/default", "topic": "persistent://public/default/a"}
    assert found[key("pulsar_in_messages_total", **a)] == 10
    assert found[key("pulsar_rate_in", **a)] == 2.0
    assert found[key("pulsar_storage_logical_size", **a)] == 9
    assert found[key("pulsar_storage_backlog_quota_limit_time", **a)] == 60
    assert found[key("pulsar_subscription_back_log", **a, subscription=NASTY)] == 5
    assert found[key("pulsar_subscription_back_log_no_delayed", **a, subscription=NASTY)] == 3
    assert found[key("pulsarpy_subscription_read_failing", **a, subscription=NASTY)] == 1
    b = a | {"topic": "persistent://public/default/b"}
    assert found[key("pulsar_subscription_back_log", **b, subscription="open")] == 3, "not what its record says"
    assert found[key("pulsar_subscription_back_log", **b, subscription="rests")] == 4
    assert found[key("pulsar_subscription_consumers_count", **b, subscription="rests")] == 0
    assert found[key("pulsar_broker_msg_backlog")] == 5 + 3 + 4
    assert found[key("pulsar_topics_count", namespace="public/default")] == 2


def test_metrics_of_consumers_and_compactions() -> None:
    of_consumer = ConsumerNumbers(2, NASTY, 10, 5, True, Rates(0.5, 50.0))
    counts = CompactionCounts(succeeded=4, failed=1, duration_ms=250)
    found = read([topic("a", subscription("s", 5, of_consumer), compactions=counts), topic("b")], by_topic=True)
    a = {"namespace": "public/default", "topic": "persistent://public/default/a"}
    consumer = a | {"subscription": "s", "consumer_name": NASTY, "consumer_id": "2"}
    said = {name: value for (name, labels), value in found.items() if labels == key("", **consumer)[1]}
    assert said == {
        "pulsar_consumer_unacked_messages": 5,
        "pulsar_consumer_blocked_on_unacked_messages": 1,
        "pulsar_consumer_available_permits": 10,
        "pulsar_consumer_msg_rate_out": 0.5,
        "pulsar_consumer_msg_throughput_out": 50.0,
    }
    compaction = {key_: value for key_, value in found.items() if "_compaction_" in key_[0]}
    assert compaction == {
        key("pulsar_compaction_succeed_count", **a): 4,
        key("pulsar_compaction_failed_count", **a): 1,
        key("pulsar_compaction_duration_time_in_mills", **a): 250,
        key("pulsar_compaction_compacted_entries_count", **a): 3,
        key("pulsar_compaction_compacted_entries_size", **a): 33,
    }


def test_namespaces() -> None:
    found = read([topic("a", subscription("s", 5)), topic("b", subscription("open", 4))], by_topic=False)
    assert not [name for name, labels in found if any(label in ("topic", "subscription") for label, _ in labels)]
    assert found[key("pulsar_msg_backlog", namespace="public/default")] == 9 + 4
    assert found[key("pulsar_in_messages_total", namespace="public/default")] == 20
    assert found[key("pulsar_storage_logical_size", namespace="public/default")] == 9


def test_sampled_entries_are_in_pulsars_buckets() -> None:
    samples = EntrySamples()
    for seconds, size in ((0.0005, 128), (0.004, 129), (3.0, 2 << 20)):
        samples.observe(seconds, size)
    found = read([topic("a", samples=entry_samples.values(samples)), topic("b")], by_topic=True)
    of = {"namespace": "public/default", "topic": "persistent://public/default/a"}
    counted = {name: value for (name, labels), value in found.items() if value and labels == key("", **of)[1]}
    buckets = {name: value for name, value in counted.items() if "_le_" in name}
    assert buckets == {
        "pulsar_storage_write_latency_le_0_5": 1,
        "pulsar_storage_write_latency_le_5": 1,
        "pulsar_storage_write_latency_le_overflow": 1,
        "pulsar_entry_size_le_128": 1,
        "pulsar_entry_size_le_512": 1,
        "pulsar_entry_size_le_overflow": 1,
    }
    assert counted["pulsar_entry_size_count"] == counted["pulsar_storage_write_latency_count"] == 3
    assert counted["pulsar_storage_write_latency_sum"] == 3004.5
