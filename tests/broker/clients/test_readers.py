"""Readers, and consumers that go to another place: by id, by time, from either end, inside batches."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pulsar
import pytest
from pulsar import InitialPosition, MessageId

from tests.broker.clients.conftest import WAIT_MS, new_client
from tests.kit.running_broker import RunningBroker


def send(client: pulsar.Client, topic: str, values: Iterable[int], batch: int = 1) -> list[MessageId]:
    """Send messages one after the other, or `batch` of them in an entry."""
    producer = client.create_producer(
        topic, batching_enabled=batch > 1, batching_max_messages=max(batch, 2), batching_max_publish_delay_ms=10_000
    )
    ids: list[MessageId] = []
    for value in values:
        producer.send_async(b"%d" % value, lambda _result, id_: ids.append(id_))
    producer.flush()
    producer.close()
    return ids


def rest(reader: pulsar.Reader) -> list[int]:
    found = []
    while reader.has_message_available():
        found.append(int(reader.read_next(WAIT_MS).data()))
    return found


def receive(consumer: pulsar.Consumer, count: int) -> list[int]:
    return [int(consumer.receive(WAIT_MS).data()) for _ in range(count)]


@pytest.mark.parametrize("batch", [1, 5])
def test_a_reader_starts_at_either_end_or_at_an_id(client: pulsar.Client, topic: str, batch: int) -> None:
    ids = send(client, topic, range(20), batch)
    reader = client.create_reader(topic, MessageId.earliest)
    assert rest(reader) == list(range(20))
    latest = client.create_reader(topic, MessageId.latest)
    assert not latest.has_message_available()
    for at in (0, 7, 18):
        assert rest(client.create_reader(topic, ids[at])) == list(range(at + 1, 20))
        assert rest(client.create_reader(topic, ids[at], start_message_id_inclusive=True)) == list(range(at, 20))
    assert rest(client.create_reader(topic, ids[19])) == []
    send(client, topic, range(20, 25), batch)
    assert rest(latest) == rest(reader) == list(range(20, 25))


def test_a_reader_of_the_end_may_include_the_last_message(client: pulsar.Client, topic: str) -> None:
    send(client, topic, range(10), batch=5)
    reader = client.create_reader(topic, MessageId.latest, start_message_id_inclusive=True)
    assert rest(reader) == [9]


def test_a_reader_of_an_empty_topic_has_no_message(client: pulsar.Client, topic: str) -> None:
    for start in (MessageId.earliest, MessageId.latest):
        reader = client.create_reader(topic, start)
        assert not reader.has_message_available()
        with pytest.raises(pulsar.Timeout):
            reader.read_next(200)
    consumer = client.subscribe(topic, "sub")
    last = consumer.get_last_message_id()
    assert (last.ledger_id(), last.entry_id()) == (-1, -1)


@pytest.mark.parametrize("batch", [1, 5])
def test_the_last_id_is_that_of_the_last_message(client: pulsar.Client, topic: str, batch: int) -> None:
    consumer = client.subscribe(topic, "sub")
    ids = send(client, topic, range(10), batch)
    last = consumer.get_last_message_id()
    assert (last.ledger_id(), last.entry_id(), last.batch_index()) == (
        ids[-1].ledger_id(),
        ids[-1].entry_id(),
        ids[-1].batch_index(),
    )


@pytest.mark.parametrize("batch", [1, 5])
def test_a_consumer_seeks_by_id(client: pulsar.Client, topic: str, batch: int) -> None:
    consumer = client.subscribe(topic, "sub", initial_position=InitialPosition.Earliest)
    ids = send(client, topic, range(20), batch)
    assert receive(consumer, 20) == list(range(20))
    consumer.seek(ids[7])
    assert receive(consumer, 12) == list(range(8, 20))
    consumer.seek(MessageId.earliest)
    assert receive(consumer, 20) == list(range(20))
    consumer.seek(MessageId.latest)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(500)
    send(client, topic, [20])
    assert receive(consumer, 1) == [20]


def test_acknowledged_messages_are_redelivered_after_a_seek_but_not_after_a_restart(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "sub", initial_position=InitialPosition.Earliest)
    ids = send(client, topic, range(10))
    for _ in range(10):
        consumer.acknowledge(consumer.receive(WAIT_MS))
    consumer.seek(ids[3])
    assert receive(consumer, 6) == list(range(4, 10))
    consumer.close()
    again = client.subscribe(topic, "sub")
    assert receive(again, 7) == list(range(3, 10)), "the client skips the message itself, and only until it is closed"


@pytest.mark.parametrize("is_reader", [False, True])
def test_seeking_by_time_finds_the_first_message_that_is_not_older(
    client: pulsar.Client, topic: str, is_reader: bool
) -> None:
    send(client, topic, range(5))
    time.sleep(0.05)
    between_ms = int(time.time() * 1000)
    time.sleep(0.05)
    send(client, topic, range(5, 10), batch=5)
    if is_reader:
        reader = client.create_reader(topic, MessageId.earliest)
        reader.seek(between_ms)
        assert rest(reader) == list(range(5, 10))
        reader.seek(0)
        assert rest(reader) == list(range(10))
        reader.seek(between_ms + 3_600_000)
        assert rest(reader) == []
    else:
        consumer = client.subscribe(topic, "sub", initial_position=InitialPosition.Earliest)
        receive(consumer, 10)
        consumer.seek(between_ms)
        assert receive(consumer, 5) == list(range(5, 10))


def test_a_reader_follows_a_topic_over_a_restart_of_the_broker(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("restart") / "root"
    with RunningBroker(root) as broker:
        port = broker.url.rpartition(":")[2]
        client = new_client(broker.url)
        reader = client.create_reader("orders", MessageId.earliest)
        consumer = client.subscribe("orders", "sub", initial_position=InitialPosition.Earliest)
        producer = client.create_producer("orders", send_timeout_millis=WAIT_MS)
        for value in range(5):
            producer.send(b"%d" % value)
        assert rest(reader) == list(range(5))
        for _ in range(3):
            consumer.acknowledge(consumer.receive(WAIT_MS))
        broker.kill()
    with RunningBroker(root, {"broker_service_port": port}):
        for value in range(5, 10):
            producer.send(b"%d" % value)
        assert [int(reader.read_next(WAIT_MS).data()) for _ in range(5)] == list(range(5, 10))
        found = receive(consumer, 1)
        while found[-1] != 9:
            found += receive(consumer, 1)
        # Acknowledgements of the last second may be forgotten, and the client may have had messages already.
        assert set(range(3, 10)) <= set(found)
        assert found[-5:] == list(range(5, 10))
        client.close()


def test_readers_leave_no_subscription(client: pulsar.Client, topic: str) -> None:
    send(client, topic, range(3))
    for _ in range(3):
        reader = client.create_reader(topic, MessageId.earliest, reader_name="same")
        assert rest(reader) == [0, 1, 2]
        reader.close()


def test_a_table_view_holds_the_last_value_of_each_key(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    for number in range(10):
        producer.send(b"%d" % number, partition_key=f"key-{number % 3}")
    view = client.create_table_view(topic)
    assert {key: view.get(key) for key in ("key-0", "key-1", "key-2")} == {
        "key-0": b"9",
        "key-1": b"7",
        "key-2": b"8",
    }
    # It is closed with the client: to close a reader with a listener, as a view has, may crash the process
    # (pulsar-client-cpp, issue 453), as it did once here.
