"""Producers of an official client: names, access modes, partitions, refusals."""

from __future__ import annotations

import concurrent.futures
import time

import pulsar
import pytest

from pulsar_on_spark.root import Root
from tests.broker.clients.conftest import new_client
from tests.kit.running_broker import RunningBroker

Mode = pulsar.ProducerAccessMode


def test_a_name_is_given_once(broker: RunningBroker, client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, producer_name="me")
    with pytest.raises(pulsar.ProducerBusy):
        new_client(broker.url).create_producer(topic, producer_name="me")
    first.close()
    again = new_client(broker.url).create_producer(topic, producer_name="me")
    assert again.producer_name() == "me"
    generated = {client.create_producer(topic).producer_name() for _ in range(3)}
    assert len(generated) == 3


def test_an_exclusive_producer_is_alone(broker: RunningBroker, client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, access_mode=Mode.Exclusive)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=Mode.Exclusive)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    first.send(b"mine")
    first.close()
    client.create_producer(topic).send(b"everybody's")


def test_a_waiting_producer_gets_its_turn(broker: RunningBroker, client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, access_mode=Mode.Exclusive)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.create_producer, topic, access_mode=Mode.WaitForExclusive)
        time.sleep(0.2)
        assert not waiting.done()
        first.close()
        waiting.result(timeout=30).send(b"at last")


def test_a_fenced_producer_cannot_send(broker: RunningBroker, client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, access_mode=Mode.Exclusive)
    first.send(b"mine")
    other = new_client(broker.url)
    second = other.create_producer(topic, access_mode=Mode.ExclusiveWithFencing)
    second.send(b"no, mine")
    with pytest.raises(pulsar.PulsarException):
        first.send(b"mine still?")
    second.send(b"mine")
    other.close()


def test_partitions_get_messages_by_key(broker: RunningBroker, client: pulsar.Client, topic: str) -> None:
    Root.open(broker.root).create_topic(topic, partitions=3)
    assert len(client.get_topic_partitions(topic)) == 3
    producer = client.create_producer(topic)
    ids = [producer.send(b"v", partition_key=f"key {number}") for number in range(20)]
    assert {each.partition() for each in ids} == {0, 1, 2}
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(f"{topic}-partition-7")


def test_many_topics_are_created_at_once(broker: RunningBroker, client: pulsar.Client, topic: str) -> None:
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        producers = list(pool.map(lambda number: client.create_producer(f"{topic}-{number}"), range(64)))
        ids = list(pool.map(lambda producer: producer.send(b"v"), producers))
    assert len({each.ledger_id() for each in ids}) == 64


def test_a_large_message_is_sent_whole_or_in_chunks(client: pulsar.Client, topic: str) -> None:
    value = bytes(range(256)) * (20 * 1024)
    assert len(value) == 5 * 1024 * 1024
    with pytest.raises(pulsar.MessageTooBig):
        client.create_producer(topic).send(value + b"!")
    client.create_producer(topic).send(value[: -64 * 1024])
    chunked = client.create_producer(topic, chunking_enabled=True)
    chunked.send(value * 2)
