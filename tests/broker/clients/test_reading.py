"""Clients read what is not in the broker's memory: Spark's rows, backlogs in journals, and sealed ones."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pulsar
import pyarrow as pa
import pytest

from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.data_path.attach import attach
from pulsar_on_spark.topic.managed_ledger.sealing.closed_journals import seal_closed
from tests.kit import messages
from tests.kit.running_broker import RunningBroker

from .conftest import WAIT_MS, new_client


def receive(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    return [consumer.receive(WAIT_MS) for _ in range(count)]


def place(message: pulsar.Message) -> tuple[int, int, int]:
    found = message.message_id()
    return found.ledger_id(), found.entry_id(), found.batch_index()


def test_rows_of_spark_are_delivered_soon_and_in_the_order_of_the_topic(
    broker: RunningBroker, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer(topic)
    root, sent = Root.open(broker.root), [b"first"]
    producer.send(b"first")
    receive(consumer, 1)  # the broker's ledger is open: what Spark writes now is behind it
    received = []
    for number in range(3):
        messages.write(root, topic, [b"spark %d %d" % (number, row) for row in range(3)])
        producer.send(b"client %d" % number)
        sent += [*(b"spark %d %d" % (number, row) for row in range(3)), b"client %d" % number]
        received += receive(consumer, 4)  # each time, and not only when the broker closes an idle ledger
    assert sorted([b"first", *(message.data() for message in received)]) == sorted(sent)
    places = [place(message) for message in received]
    assert places == sorted(places), "in the order of their ids"
    for writer in (b"spark", b"client"):
        values = [message.data() for message in received if message.data().startswith(writer)]
        assert values == sorted(values)


def test_delayed_rows_of_spark_are_delivered_when_due(broker: RunningBroker, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    root = Root.open(broker.root)
    due_ms = time.time_ns() // 1_000_000 + 4_000
    rows = messages.make_rows([b"at once", b"later", b"at once, too"])
    column = rows.schema.get_field_index("deliver_at_time")
    rows = rows.set_column(column, rows.schema.field(column), pa.array([None, due_ms, None], rows.schema.types[column]))
    write_id = messages.new_write_id()
    attach(root.store, write_id, [messages.stage(root, {topic: rows}, write_id)], None)
    received = [(message.data(), time.time_ns() // 1_000_000) for message in receive(consumer, 3)]
    assert [data for data, _ in received] == [b"at once", b"at once, too", b"later"]
    assert received[-1][1] >= due_ms - 1_000, "not before its time, as exactly as Pulsar's"


def test_a_backlog_of_a_broker_that_is_gone(tmp_path: Path) -> None:
    """Out of its journal, and once that is sealed."""
    path = tmp_path / "root"
    chance = random.Random(1)
    values = [b"%d " % number + chance.randbytes(chance.randrange(2_000)) for number in range(6_000)]
    broker = RunningBroker(path)
    client = new_client(broker.url)
    compressed = client.create_producer(
        "t",
        batching_enabled=True,
        batching_max_messages=50,
        block_if_queue_full=True,
        compression_type=pulsar.CompressionType.LZ4,
    )
    for value in values[:-10]:
        compressed.send_async(value, lambda *_: None)
    compressed.flush()
    single = client.create_producer("t")
    ids = [single.send(value) for value in values[-10:]]
    client.close()
    broker.kill()
    read_again(path, values, ids)
    assert seal_closed(Root.open(path), pytest.fail).sealed_entries > 0
    read_again(path, values, ids)


def read_again(path: Path, values: list[bytes], ids: list[pulsar.MessageId]) -> None:
    """All of it through a broker that has room for little of it in memory, also from a point in time on."""
    with RunningBroker(path, {"managed_ledger_cache_size_mb": 1}) as broker:
        client = new_client(broker.url)
        reader = client.create_reader("t", pulsar.MessageId.earliest)
        read = [reader.read_next(WAIT_MS) for _ in values]
        assert [message.data() for message in read] == values
        assert [place(message) for message in read[-10:]] == [
            (each.ledger_id(), each.entry_id(), each.batch_index()) for each in ids
        ]
        assert not reader.has_message_available()
        consumer = client.subscribe("t", f"s of {broker.pid}", initial_position=pulsar.InitialPosition.Earliest)
        consumer.seek(read[3_000].publish_timestamp())
        (first,) = receive(consumer, 1)
        assert first.publish_timestamp() >= read[3_000].publish_timestamp()
        assert place(first) <= place(read[3_000])
        client.close()
