"""Two brokers of one root, with official clients."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pulsar
import pytest

from pulsar_on_spark.broker.background.housekeeping import FIRST_AFTER_S
from pulsar_on_spark.broker.runtime.journals import LEASE_S
from pulsar_on_spark.metadata.records import BundleOwner, BundlesRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.managed_ledger.sealing.seals import closed_incarnations, sealed_log
from tests.kit.running_broker import RunningBroker
from tests.kit.waiting import wait_until

TOPICS = 16


@pytest.fixture
def brokers(memory_path: Path) -> Iterator[tuple[RunningBroker, RunningBroker]]:
    root = memory_path / "root"
    with RunningBroker(root) as one, RunningBroker(root) as two:
        yield one, two


def owners_of(root: Path | str) -> list[BundleOwner]:
    record = Root.open(root).store.view().get(BundlesRecord, "public/default")
    assert record is not None
    return list(record.owners)


def all_closed_journals_are_sealed(view: View) -> bool:
    closed = [found for each in closed_incarnations(view) if (found := sealed_log(view, each)) is not None]
    return bool(closed) and all(found.is_sealed for found in closed)


def url_of(broker: RunningBroker, topic: str) -> str:
    found = httpx.get(f"{broker.web_url}/lookup/v2/topic/persistent/public/default/{topic}", timeout=30).json()
    return str(found["brokerUrl"])


def test_both_brokers_name_the_same_owner_of_each_topic_and_both_own_some(
    brokers: tuple[RunningBroker, RunningBroker],
) -> None:
    one, two = brokers
    owners = {f"t-{number}": url_of(one, f"t-{number}") for number in range(64)}
    assert {topic: url_of(two, topic) for topic in owners} == owners
    assert set(owners.values()) == {one.url, two.url}


def test_both_brokers_are_healthy_and_check_a_topic_of_their_own(brokers: tuple[RunningBroker, RunningBroker]) -> None:
    for broker in brokers:
        answer = httpx.get(f"{broker.web_url}/admin/v2/brokers/health", timeout=30)
        assert (answer.status_code, answer.text) == (200, "ok")
        name = broker.web_url.removeprefix("http://")
        for asked in brokers:
            lookup = f"{asked.web_url}/lookup/v2/topic/persistent/pulsar/{name}/healthcheck"
            assert httpx.get(lookup, timeout=30).json()["brokerUrl"] == broker.url


def test_clients_reach_the_topics_of_each_broker_through_the_other(
    brokers: tuple[RunningBroker, RunningBroker],
) -> None:
    one, two = brokers
    sender, receiver = pulsar.Client(one.url), pulsar.Client(two.url)
    for number in range(TOPICS):
        consumer = receiver.subscribe(f"t-{number}", "s")
        producer = sender.create_producer(f"t-{number}")
        producer.send(b"%d" % number)
        assert consumer.receive(20_000).data() == b"%d" % number
    sender.close()
    receiver.close()


@pytest.mark.long
def test_a_lookup_waits_rather_than_name_a_broker_that_does_not_renew_its_lease(
    brokers: tuple[RunningBroker, RunningBroker],
) -> None:
    """A client that gets the URL of a broker that hangs connects to it, and waits for the end of its handshake."""
    one, two = brokers
    topic = next(topic for number in range(64) if url_of(one, topic := f"t-{number}") == two.url)
    os.kill(two.pid, signal.SIGSTOP)
    try:
        time.sleep(LEASE_S * 2 / 3 - 0.2)  # its lease is late, and has not run out: the last renewal is 4 to 6 s old
        assert url_of(one, topic) == one.url
    finally:
        os.kill(two.pid, signal.SIGCONT)


@pytest.mark.long
def test_the_topics_of_a_killed_broker_are_served_by_the_other(
    brokers: tuple[RunningBroker, RunningBroker],
) -> None:
    one, two = brokers
    client = pulsar.Client(f"{one.url},{two.url.removeprefix('pulsar://')}")
    producers = [client.create_producer(f"t-{number}") for number in range(TOPICS)]
    consumers = [client.subscribe(f"t-{number}", "s") for number in range(TOPICS)]
    for producer in producers:
        producer.send(b"before")
    two.kill()
    wait_until(lambda: all(url_of(one, f"t-{number}") == one.url for number in range(TOPICS)), lambda: one.said)
    for producer in producers:
        producer.send(b"after")
    for consumer in consumers:
        assert [consumer.receive(20_000).data() for _ in range(2)] == [b"before", b"after"]
    client.close()
    store = Root.open(one.root).store
    wait_until(lambda: all_closed_journals_are_sealed(store.view()), lambda: one.said, limit_s=FIRST_AFTER_S / 2)


@pytest.mark.long
def test_a_broker_that_stops_gives_its_topics_to_the_other_one(brokers: tuple[RunningBroker, RunningBroker]) -> None:
    one, two = brokers
    client = pulsar.Client(f"{one.url},{two.url.removeprefix('pulsar://')}")
    producers = [client.create_producer(f"t-{number}") for number in range(TOPICS)]
    consumers = [client.subscribe(f"t-{number}", "s") for number in range(TOPICS)]
    for producer in producers:
        producer.send(b"before")
    before = owners_of(two.root)
    assert two.stop() == 0
    given = [(was, now) for was, now in zip(before, owners_of(two.root), strict=True) if was != now]
    assert len(given) == len(before) // 2, "they are given, and not only freed by the end of the journal"
    assert all(now.epoch > was.epoch for was, now in given)
    for producer in producers:
        producer.send(b"after")
    for consumer in consumers:
        assert [consumer.receive(20_000).data() for _ in range(2)] == [b"before", b"after"]
    client.close()


def test_a_non_persistent_topic_has_one_broker_after_its_namespace_was_created_again(
    brokers: tuple[RunningBroker, RunningBroker],
) -> None:
    one, two = brokers
    with httpx.Client(base_url=f"{two.web_url}/admin/v2", timeout=60) as admin:
        assert admin.put("/namespaces/public/again").is_success
        names = [f"non-persistent://public/again/n{number}" for number in range(8)]
        sender, receiver = pulsar.Client(one.url), pulsar.Client(two.url)
        producers = [sender.create_producer(name) for name in names]
        assert admin.delete("/namespaces/public/again", params={"force": True}).is_success
        assert admin.put("/namespaces/public/again").is_success
    consumers = [receiver.subscribe(name, "s") for name in names]

    def arrives(producer: pulsar.Producer, consumer: pulsar.Consumer) -> bool:
        producer.send(b"x")
        try:
            return bool(consumer.receive(200).data() == b"x")
        except pulsar.Timeout:
            return False

    for producer, consumer in zip(producers, consumers, strict=True):
        wait_until(partial(arrives, producer, consumer), "producer and consumer are at the same broker")
    sender.close()
    receiver.close()


@pytest.mark.long
def test_no_broker_takes_over_after_all_were_paused(brokers: tuple[RunningBroker, RunningBroker]) -> None:
    """As after a suspended machine: each has heard nothing of the other, and both live."""
    one, two = brokers
    wait_until(lambda: len(owners_of(one.root)) > 0 if url_of(one, "t") else False, "a bundle has an owner")
    before = owners_of(one.root)
    for broker in brokers:
        os.kill(broker.pid, signal.SIGSTOP)
    time.sleep(1.5 * LEASE_S)
    for broker in brokers:
        os.kill(broker.pid, signal.SIGCONT)
    time.sleep(1.5 * LEASE_S)
    assert owners_of(one.root) == before
    assert url_of(one, "t") == url_of(two, "t")
    for broker in brokers:
        assert "taken over" not in broker.said
