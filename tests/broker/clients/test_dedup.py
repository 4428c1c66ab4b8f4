"""Deduplication with an official client: what is stored once is not stored again, over kills too."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx
import pulsar
import pytest

from tests.broker.clients.conftest import WAIT_MS, new_client
from tests.broker.clients.test_durable import stored
from tests.kit.running_broker import RunningBroker

ON = {"broker_deduplication_enabled": "true"}


def send(client: pulsar.Client, numbers: range) -> list[pulsar.MessageId]:
    producer = client.create_producer("orders", producer_name="me", batching_enabled=False)
    ids = [producer.send(b"%d" % number, sequence_id=number) for number in numbers]
    producer.close()
    return ids


@pytest.mark.long
def test_a_message_sent_again_is_not_stored_again(tmp_path: Path) -> None:
    """Over a kill and over an orderly end; by a client that continues, and by applications that start over."""
    root, count = tmp_path / "root", 5_000

    def send_all(client: pulsar.Client, heard: int) -> None:
        """Send all of an application's messages, until it has this number of receipts."""
        receipts = Receipts()
        producer = client.create_producer("many", "me", max_pending_messages=2 * count, batching_enabled=False)
        for number in range(1, count + 1):
            producer.send_async(b"%d" % number, receipts, sequence_id=number)
        receipts.wait_for(heard)
        assert receipts.results[:heard] == [pulsar.Result.Ok] * heard

    broker = RunningBroker(root, ON)
    client = new_client(broker.url)
    # From 1 on: the Python client takes a sequence id of 0 for none.
    first = send(client, range(1, 10))
    again = send(client, range(5, 15))
    assert len({(each.ledger_id(), each.entry_id()) for each in first + again[5:]}) == 14
    assert [each.entry_id() for each in again[:5]] == [-1] * 5
    # Of what is sent again some was stored and acknowledged, some only stored, some neither.
    send_all(client, count // 4)
    broker.kill()
    client.shutdown()
    with RunningBroker(root, ON) as broker:
        client = new_client(broker.url)
        producer = client.create_producer("orders", producer_name="me")
        assert producer.last_sequence_id() == 14
        producer.close()
        send(client, range(1, 20))
        send_all(client, count)
        client.close()
    assert stored(root, "orders") == [b"%d" % number for number in range(1, 20)]
    assert stored(root, "many") == [b"%d" % number for number in range(1, count + 1)]
    with RunningBroker(root, ON) as broker:
        client = new_client(broker.url)
        send(client, range(15, 25))
        client.close()
    assert stored(root, "orders") == [b"%d" % number for number in range(1, 25)]


def test_a_batch_that_is_stored_in_part_fails_alone(client: pulsar.Client, admin: httpx.Client, topic: str) -> None:
    """As from an application that started over, with batches cut elsewhere: nothing is stored twice or lost."""
    path = f"/persistent/public/default/{topic}"
    admin.put(path).raise_for_status()
    admin.post(f"{path}/deduplicationEnabled", json=True).raise_for_status()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, "me", batching_enabled=False)
    for number in range(1, 9):
        producer.send(b"%d" % number, sequence_id=number)
    producer.close()
    receipts = Receipts()
    producer = client.create_producer(
        topic, "me", batching_enabled=True, batching_max_publish_delay_ms=WAIT_MS, send_timeout_millis=WAIT_MS
    )
    for number in range(5, 13):
        producer.send_async(b"%d" % number, receipts, sequence_id=number)
    with pytest.raises(pulsar.ChecksumError):
        producer.flush()
    receipts.wait_for(8)
    assert receipts.results == [pulsar.Result.ChecksumError] * 8, "the error on which this client gives up one batch"
    for number in range(5, 14):  # each in a batch of its own
        producer.send_async(b"%d" % number, receipts, sequence_id=number)
        producer.flush()
    receipts.wait_for(17)
    assert receipts.results[8:] == [pulsar.Result.Ok] * 9
    assert [consumer.receive(WAIT_MS).data() for _ in range(13)] == [b"%d" % number for number in range(1, 14)]


class Receipts:
    """Collector of the outcomes of asynchronous sends."""

    def __init__(self) -> None:
        self.results: list[pulsar.Result] = []
        self._changed = threading.Condition()

    def __call__(self, result: pulsar.Result, _: object) -> None:
        with self._changed:
            self.results.append(result)
            self._changed.notify()

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.results) >= count, 60)
