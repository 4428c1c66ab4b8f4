"""Two brokers of one root, with official clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pulsar
import pytest

from tests.kit.running_broker import RunningBroker
from tests.kit.waiting import wait_until

TOPICS = 16


@pytest.fixture
def brokers(memory_path: Path) -> Iterator[tuple[RunningBroker, RunningBroker]]:
    root = memory_path / "root"
    with RunningBroker(root) as one, RunningBroker(root) as two:
        yield one, two


def url_of(broker: RunningBroker, topic: str) -> str:
    found = httpx.get(f"{broker.web_url}/lookup/v2/topic/persistent/public/default/{topic}").json()
    return str(found["brokerUrl"])


def test_both_brokers_name_the_same_owner_of_each_topic_and_both_own_some(
    brokers: tuple[RunningBroker, RunningBroker],
) -> None:
    one, two = brokers
    owners = {f"t-{number}": url_of(one, f"t-{number}") for number in range(64)}
    assert {topic: url_of(two, topic) for topic in owners} == owners
    assert set(owners.values()) == {one.url, two.url}


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


def test_a_broker_that_stops_gives_its_topics_to_the_other_one(brokers: tuple[RunningBroker, RunningBroker]) -> None:
    one, two = brokers
    client = pulsar.Client(f"{one.url},{two.url.removeprefix('pulsar://')}")
    producers = [client.create_producer(f"t-{number}") for number in range(TOPICS)]
    consumers = [client.subscribe(f"t-{number}", "s") for number in range(TOPICS)]
    for producer in producers:
        producer.send(b"before")
    assert two.stop() == 0
    for producer in producers:
        producer.send(b"after")
    for consumer in consumers:
        assert [consumer.receive(20_000).data() for _ in range(2)] == [b"before", b"after"]
    client.close()
