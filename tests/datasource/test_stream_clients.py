"""A subscription used by an official client and a Spark query in turn: each continues at the exact message."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pulsar
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pulsar_on_spark.metadata.records import SubscriptionRecord
from pulsar_on_spark.root import Root
from tests.kit import messages
from tests.kit.running_broker import RunningBroker
from tests.kit.waiting import wait_until

WAIT_S = 180
SHARED = pulsar.ConsumerType.Shared


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with RunningBroker(tmp_path / "root") as running:
        yield running


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[pulsar.Client]:
    made = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield made
    made.close()


def send(client: pulsar.Client, numbers: range) -> None:
    producer = client.create_producer("in", batching_enabled=True, batching_max_messages=7)
    for number in numbers:
        producer.send_async(b"%04d" % number, lambda result, _: None)
    producer.flush()
    producer.close()


def receive(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    return [consumer.receive(timeout_millis=WAIT_S * 1000) for _ in range(count)]


def subscribe(client: pulsar.Client) -> pulsar.Consumer:
    return client.subscribe(
        "in",
        "both",
        consumer_type=SHARED,
        initial_position=pulsar.InitialPosition.Earliest,
        batch_index_ack_enabled=True,
    )


def publish_until(stop: threading.Event, client: pulsar.Client, sent: list[bytes]) -> None:
    producer = client.create_producer("in", batching_enabled=True, batching_max_messages=7)
    while not stop.is_set():
        sent.append(b"%06d" % len(sent))
        producer.send_async(sent[-1], lambda result, _: None)
        stop.wait(0.003)
    producer.flush()
    producer.close()


def face(root: Root) -> str | None:
    (topic,) = [each for each in root.topics() if each.name.endswith("/in")]
    found = root.store.view().get(SubscriptionRecord, f"{topic.topic_id}/both")
    return "no owner yet" if found is None else found.face


def read_by_spark(spark: SparkSession, root: Root, checkpoint: Path) -> None:
    """All that is there, into the topic `out`."""
    frame = spark.readStream.format("pulsarpy").option("topic", "in").option("subscription", "both")
    loaded = frame.option("subscriptionType", "Shared").load(str(root.path))
    writer = loaded.select("value").writeStream.format("pulsarpy").option("path", str(root.path)).option("topic", "out")
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination(WAIT_S)
    assert not query.isActive


@pytest.mark.long
def test_a_subscription_goes_from_a_client_to_spark_and_back(
    spark: SparkSession, broker: RunningBroker, client: pulsar.Client, tmp_path: Path
) -> None:
    send(client, range(100))
    root = Root.open(broker.root)
    consumer = subscribe(client)
    acked = [message for number, message in enumerate(receive(consumer, 100)) if number % 3 == 1]
    for message in acked:
        consumer.acknowledge(message)
    by_client = {message.data() for message in acked}

    with pytest.raises(StreamingQueryException, match=r"'both' on topic .*/in' is held by Pulsar clients"):
        read_by_spark(spark, root, tmp_path / "refused")

    consumer.close()
    wait_until(lambda: face(root) is None, "the subscription is given back")
    read_by_spark(spark, root, tmp_path / "checkpoint")
    by_spark = messages.values(root, "out")
    assert sorted(by_spark) == sorted({b"%04d" % number for number in range(100)} - by_client)  # type: ignore[type-var]
    wait_until(lambda: face(root) is None, "the query gives it back")

    send(client, range(100, 120))
    consumer = subscribe(client)
    again = receive(consumer, 20)
    assert sorted(message.data() for message in again) == [b"%04d" % number for number in range(100, 120)]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(timeout_millis=500)
    for message in again[:5]:
        consumer.acknowledge(message)
    # The broker is killed with these in its journal, or not yet; the query then takes the subscription itself.
    wait_until(lambda: root.subscriptions()[0].backlog_messages == 15, "the acknowledgements are in the cursors table")
    broker.kill()
    # As after a power cut; that a lease must run out first is shown in `test_stream_handover.py`.
    shutil.rmtree(root.path / "leases")
    read_by_spark(spark, root, tmp_path / "checkpoint")
    assert (
        sorted(messages.values(root, "out")[len(by_spark) :])
        == sorted(  # type: ignore[type-var]
            message.data() for message in again[5:]
        )
    )


@pytest.mark.long
def test_a_subscription_moves_between_clients_and_spark_under_load(
    spark: SparkSession, broker: RunningBroker, client: pulsar.Client, tmp_path: Path
) -> None:
    root, stop, sent, by_client = Root.open(broker.root), threading.Event(), list[bytes](), list[bytes]()

    def take(consumer: pulsar.Consumer, count: int) -> None:
        for message in receive(consumer, count):
            consumer.acknowledge(message)
            by_client.append(message.data())

    publishing = threading.Thread(target=publish_until, args=(stop, client, sent))
    publishing.start()
    try:
        for _ in range(2):
            consumer = subscribe(client)
            take(consumer, 30)
            consumer.close()
            wait_until(lambda: face(root) is None, "the client's subscription is given back")
            read_by_spark(spark, root, tmp_path / "checkpoint")
            wait_until(lambda: face(root) is None, "the query gives it back")
    finally:
        stop.set()
        publishing.join()
    by_spark = [each for each in messages.values(root, "out") if each is not None]
    left = len(sent) - len(by_client) - len(by_spark)
    consumer = subscribe(client)
    take(consumer, left // 2)

    def backlogs() -> tuple[int, int]:
        of_broker = httpx.get(f"{broker.web_url}/admin/v2/persistent/public/default/in/stats").json()
        return of_broker["subscriptions"]["both"]["msgBacklog"], root.subscriptions()[0].backlog_messages

    wait_until(lambda: backlogs() == (left - left // 2,) * 2, "both sides know what is left")
    take(consumer, left - left // 2)
    assert sorted(by_client + by_spark) == sent, "each at one of them, and once"
