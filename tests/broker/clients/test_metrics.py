"""Metrics of a broker that official clients use, as Prometheus scrapes them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

import httpx
import pulsar
from prometheus_client.parser import text_string_to_metric_families

from pulsar_on_spark.root import Root
from tests.kit import messages
from tests.kit.running_broker import RunningBroker

from .conftest import WAIT_MS

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
CLUSTER: Final = {"cluster": "standalone"}
JOURNAL: Final = CLUSTER | {"quorum": "3/2"}
"""The broker's own."""


def scrape(broker: RunningBroker) -> Samples:
    answer = httpx.get(f"{broker.web_url}/metrics", timeout=WAIT_MS / 1000).raise_for_status()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, labels: Mapping[str, str] = CLUSTER) -> float:
    return samples[name, frozenset(labels.items())]


def scraped_when(broker: RunningBroker, holds: Callable[[Samples], bool]) -> Samples:
    end_s = time.monotonic() + WAIT_MS / 1000
    while not holds(samples := scrape(broker)):
        assert time.monotonic() < end_s, samples
        time.sleep(0.1)
    return samples


def test_metrics_count_messages_and_acknowledgements(broker: RunningBroker, client: pulsar.Client, topic: str) -> None:
    by_consumer = f"{broker.web_url}/admin/v2/brokers/configuration/exposeConsumerLevelMetricsInPrometheus"
    httpx.post(f"{by_consumer}/true").raise_for_status()
    before = scrape(broker)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=10)
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    for number in range(10):
        producer.send_async(b"%03d" % number, callback=lambda *_: None)
    producer.flush()
    first, *_ = [consumer.receive(WAIT_MS) for _ in range(10)]
    consumer.acknowledge(first)

    samples = scrape(broker)
    full = f"persistent://public/default/{topic}"
    found = {name: value for (name, labels), value in samples.items() if ("topic", full) in labels}
    assert found["pulsar_in_messages_total"] == found["pulsar_out_messages_total"] == 10
    assert found["pulsar_in_bytes_total"] == found["pulsar_out_bytes_total"] > 10 * 3
    assert found["pulsar_average_msg_size"] == found["pulsar_in_bytes_total"] / 10
    assert found["pulsar_msg_backlog"] == found["pulsar_subscription_back_log"] >= 1
    assert found["pulsar_rate_in"] > 0
    assert found["pulsar_entry_size_count"] == found["pulsar_storage_write_latency_count"] >= 1
    assert found["pulsar_subscription_msg_throughput_out"] == found["pulsar_throughput_out"] > 0
    assert found["pulsar_consumer_unacked_messages"] in (9, 10)  # the client gathers acknowledgements
    assert found["pulsar_consumer_available_permits"] > 0
    httpx.delete(by_consumer).raise_for_status()
    assert not [name for name, _ in scrape(broker) if name.startswith("pulsar_consumer_")]
    counts = ("pulsar_producers_count", "pulsar_consumers_count", "pulsar_subscription_consumers_count")
    assert [found[name] for name in counts] == [1, 1, 1]

    def grew(name: str, labels: Mapping[str, str] = CLUSTER) -> float:
        return value(samples, name, labels) - before.get((name, frozenset(labels.items())), 0)

    groups = grew("pulsarpy_journal_groups_total", JOURNAL)
    assert grew("pulsarpy_journal_records_total", JOURNAL) >= groups >= 1
    assert grew("pulsarpy_journal_bytes_total", JOURNAL) >= found["pulsar_in_bytes_total"]
    assert grew("pulsarpy_journal_write_seconds_count", JOURNAL) == groups
    assert grew("pulsarpy_publish_latency_seconds_count") >= 1
    assert grew("pulsarpy_topic_load_seconds_count") == 1
    assert grew("pulsarpy_metadata_commit_seconds_count", CLUSTER | {"table": "main"}) >= 1
    assert grew("pulsarpy_cache_hits_total") + grew("pulsarpy_cache_misses_total") >= found["pulsar_msg_backlog"]
    assert value(samples, "pulsar_active_connections") >= 1
    assert value(samples, "pulsarpy_journal_takes_entries", JOURNAL) == 1
    synced = [each for (name, _), each in samples.items() if name == "pulsarpy_journal_sync_seconds_count"]
    assert synced
    assert min(synced) >= 1


def test_a_subscription_without_consumers_has_its_backlog_in_metrics(
    broker: RunningBroker, client: pulsar.Client, topic: str
) -> None:
    full = CLUSTER | {"namespace": "public/default", "topic": f"persistent://public/default/{topic}"}
    client.subscribe(topic, "s").close()
    for _ in range(3):
        messages.write(Root.open(broker.root), topic, [b"a", b"b"])
    producer = client.create_producer(topic)  # else the topic is unused, and is unloaded
    samples = scraped_when(broker, lambda found: found.get(("pulsar_msg_backlog", frozenset(full.items()))) == 3)
    assert value(samples, "pulsar_subscription_back_log", full | {"subscription": "s"}) == 3
    assert value(samples, "pulsar_subscription_consumers_count", full | {"subscription": "s"}) == 0
    assert value(samples, "pulsar_subscriptions_count", full) == 1
    producer.close()


def test_the_end_of_a_topic_is_no_alarm(
    broker: RunningBroker, client: pulsar.Client, admin: httpx.Client, topic: str
) -> None:
    client.create_producer(topic).send(b"last")
    admin.post(f"/persistent/public/default/{topic}/terminate").raise_for_status()
    full = CLUSTER | {"namespace": "public/default", "topic": f"persistent://public/default/{topic}"}
    assert value(scrape(broker), "pulsarpy_topic_producers_refused", full) == 0


def test_metrics_include_the_store_and_its_processes(broker: RunningBroker) -> None:
    samples = scraped_when(broker, lambda found: value(found, "pulsarpy_stored_look_age_seconds") >= 0)
    writable = [
        each
        for (name, labels), each in samples.items()
        if name == "pulsarpy_path_state" and ("state", "writable") in labels
    ]
    assert writable
    assert set(writable) == {1}
    free = [each for (name, _), each in samples.items() if name == "pulsarpy_path_free_bytes"]
    assert len(free) == len(writable)
    assert value(samples, "pulsarpy_segment_copies_missing") == 0
    assert value(samples, "pulsarpy_root_size_bytes") > value(samples, "pulsarpy_root_free_bytes") > 0
    audited_s = value(samples, "pulsarpy_audit_time_seconds")
    assert audited_s == 0 or 0 <= time.time() - audited_s < 3_600
    assert value(samples, "pulsarpy_open_incarnations") >= 1
    for process, quorum in (("broker", ""), ("sealer", "3/2"), ("reader", "")):
        labels = CLUSTER | {"process": process, "quorum": quorum}
        assert value(samples, "pulsarpy_process_resident_memory_bytes", labels) > 1e6
    assert value(samples, "process_resident_memory_bytes", {}) > 1e6


def test_requests_at_once_share_a_page(broker: RunningBroker) -> None:
    async def scene() -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=WAIT_MS / 1000) as client:
            return await asyncio.gather(*(client.get(f"{broker.web_url}/metrics") for _ in range(30)))

    scrape(broker)  # the next page comes a second later
    began_s = time.monotonic()
    found = asyncio.run(scene())
    pages_begun = 2 + int(time.monotonic() - began_s)  # a busy machine takes longer than a second for the requests
    assert {each.status_code for each in found} == {200}
    assert len({each.text for each in found}) <= pages_begun < len(found)
