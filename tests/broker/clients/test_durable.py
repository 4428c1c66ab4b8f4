"""A message with a receipt survives any end of the broker."""

from __future__ import annotations

import threading
from pathlib import Path

import pulsar

from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.data_path.tail import Tail
from tests.kit import messages
from tests.kit.forked_pulsarpy import run_pulsarpy
from tests.kit.running_broker import RunningBroker
from tests.kit.waiting import wait_until


def stored(root: Path | str, topic: str) -> list[bytes | None]:
    opened = Root.open(root)
    parts = catalog.parts(opened.store.view(), catalog.require_topic(opened.store.view(), TopicName.parse(topic)))
    seen = Tail(opened).read_view(parts, settle=True)
    return [message.value for message in messages.read(opened, topic, view=seen)]


def expect_stored(root: Path | str, topic: str, values: list[bytes]) -> None:
    """Check what Spark reads of a topic whose broker is running: some milliseconds pass from a receipt to that."""
    wait_until(lambda: stored(root, topic) == values, lambda: f"{stored(root, topic)} are {values}")


def client_of(broker: RunningBroker) -> pulsar.Client:
    return pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def test_a_restart_keeps_messages_cursors_and_topics(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with RunningBroker(root) as broker:
        client = client_of(broker)
        producer = client.create_producer("orders", batching_enabled=True, batching_max_messages=10)
        results: list[pulsar.Result] = []
        for number in range(100):
            producer.send_async(b"async %d" % number, lambda result, _: results.append(result))
        producer.flush()
        assert results == [pulsar.Result.Ok] * 100
        ids = [producer.send(b"sync %d" % number) for number in range(3)]
        assert [(each.ledger_id(), each.entry_id()) for each in ids] == [(ids[0].ledger_id(), 10 + n) for n in range(3)]
        client.close()
        for example in (
            f'pulsar.Client("{broker.url}")',
            f'format("pulsarpy").option("topic", "orders").load("{root}")',
        ):
            assert example in broker.said
        assert broker.stop() == 0
    sent = [b"async %d" % number for number in range(100)] + [b"sync %d" % number for number in range(3)]
    assert stored(root, "orders") == sent
    with RunningBroker(root, command="broker") as broker:
        client = client_of(broker)
        client.create_producer("orders").send(b"again")
        client.close()
    assert stored(root, "orders") == [*sent, b"again"]


def test_a_kill_keeps_messages_with_a_receipt(tmp_path: Path) -> None:
    root = tmp_path / "root"
    broker = RunningBroker(root)
    client = client_of(broker)
    producer = client.create_producer("orders", block_if_queue_full=True, send_timeout_millis=0)
    received: list[bytes] = []
    enough = threading.Event()

    def on_receipt(value: bytes, result: pulsar.Result) -> None:
        if result == pulsar.Result.Ok:
            received.append(value)
        if len(received) >= 500:
            enough.set()

    values = [b"%d" % number for number in range(3_000)]
    for value in values:
        producer.send_async(value, lambda result, _, value=value: on_receipt(value, result))
    assert enough.wait(60)
    broker.kill()
    acknowledged = list(received)
    with RunningBroker(root) as again:
        assert "is recovered" in again.said
        assert again.stop() == 0
    found = stored(root, "orders")
    assert found[: len(acknowledged)] == acknowledged
    assert found == values[: len(found)]
    client.shutdown()


def test_a_port_in_use_is_one_sentence(broker: RunningBroker, tmp_path: Path) -> None:
    port = broker.url.rpartition(":")[2]
    done = run_pulsarpy("standalone", tmp_path / "other", "--broker-port", port, "--web-port", "0")
    assert done.returncode == 1
    assert f"Port {port} of 127.0.0.1 cannot be bound" in " ".join(done.stderr.split())
    assert len(done.stderr.strip().splitlines()) == 1
