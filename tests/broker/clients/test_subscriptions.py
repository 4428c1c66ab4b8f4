"""Official consumers of every subscription type, while they come, go, stall, give back and die."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pulsar
import pytest
from pulsar import BatchingType, ConsumerType, InitialPosition, KeySharedMode

from pulsar_on_spark.model.ids import EARLIEST
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.managed_ledger.subscription.subscriptions import create_subscriptions
from tests.broker.clients.conftest import new_client
from tests.kit import messages
from tests.kit.running_broker import RunningBroker
from tests.kit.waiting import wait_until

WAIT_S = 60
"""Most that anything may take on a busy machine."""
QUIET_MS = 1_500
"""If nothing has come for so long, nothing comes."""


def subscribe(client: pulsar.Client, topic: str, type_: ConsumerType, **said: object) -> pulsar.Consumer:
    said.setdefault("initial_position", InitialPosition.Earliest)
    return client.subscribe(topic, "sub", consumer_type=type_, **said)


def receive(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    return [consumer.receive(timeout_millis=WAIT_S * 1000) for _ in range(count)]


def nothing_comes(consumer: pulsar.Consumer) -> bool:
    try:
        consumer.receive(timeout_millis=QUIET_MS)
    except pulsar.Timeout:
        return True
    return False


def number(message: pulsar.Message) -> int:
    return int(message.data())


def send(producer: pulsar.Producer, numbers: Iterable[int], **said: object) -> None:
    for each in numbers:
        producer.send_async(b"%d" % each, lambda result, _: None, **said)
    producer.flush()


class Worker:
    """A consumer in a thread of its own, that acknowledges most, gives some back, and may be stopped at any time."""

    def __init__(self, record: Record, consumer: pulsar.Consumer, seed: int) -> None:
        self._record = record
        self._consumer = consumer
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                message = self._consumer.receive(timeout_millis=100)
            except pulsar.Timeout:
                continue
            self._record.received(message)
            if self._random.random() < 0.05:
                self._consumer.negative_acknowledge(message)
            else:
                self._consumer.acknowledge(message)
                self._record.acknowledged(message)

    def leave(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)
        self._consumer.close()


class Record:
    """The messages that all workers received."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.order: dict[str, list[int]] = defaultdict(list)
        """By key, in the order in which they first came to anybody."""
        self.acked: Counter[int] = Counter()
        self._seen: set[int] = set()

    def received(self, message: pulsar.Message) -> None:
        with self._lock:
            found = number(message)
            if found not in self._seen:
                self._seen.add(found)
                self.order[message.partition_key()].append(found)

    def acknowledged(self, message: pulsar.Message) -> None:
        with self._lock:
            self.acked[number(message)] += 1


@pytest.mark.parametrize("type_", [ConsumerType.Shared, ConsumerType.KeyShared])
@pytest.mark.parametrize("batched", [False, True])
def test_all_messages_arrive_while_consumers_connect_and_close(
    client: pulsar.Client, topic: str, type_: ConsumerType, batched: bool
) -> None:
    count, keys = 3_000, 40
    record = Record()
    generator = random.Random(7)
    queue_size = 50

    def come(seed: int) -> Worker:
        consumer = subscribe(client, topic, type_, receiver_queue_size=queue_size, negative_ack_redelivery_delay_ms=100)
        return Worker(record, consumer, seed)

    workers = [come(0)]
    producer = client.create_producer(
        topic, batching_enabled=batched, batching_type=BatchingType.KeyBased, batching_max_messages=10
    )
    for each in range(count):
        producer.send_async(b"%d" % each, lambda result, _: None, partition_key=f"key-{each % keys}")
        if each % 250 == 249:
            producer.flush()
            if len(workers) < 4 and generator.random() < 0.7:
                workers.append(come(each))
            else:
                workers.pop(generator.randrange(len(workers) - 1)).leave()
    producer.flush()
    wait_until(lambda: len(record.acked) == count, f"only {len(record.acked)} of {count} came")
    for worker in workers:
        worker.leave()
    if type_ == ConsumerType.KeyShared:
        for key, found in record.order.items():
            assert found == sorted(found), f"{key} out of order"
    rest = subscribe(client, topic, type_)
    assert nothing_comes(rest), "what is acknowledged came again"
    rest.close()


def test_a_consumer_that_is_killed_leaves_its_messages_to_the_others(
    broker: RunningBroker, client: pulsar.Client, topic: str
) -> None:
    script = (
        "import pulsar, sys, time\n"
        "consumer = pulsar.Client(sys.argv[1]).subscribe(sys.argv[2], 'sub', pulsar.ConsumerType.Shared,"
        " initial_position=pulsar.InitialPosition.Earliest)\n"
        "print('got', consumer.receive().data(), flush=True)\n"
        "time.sleep(600)\n"
    )
    producer = client.create_producer(topic)
    send(producer, range(20))
    process = subprocess.Popen(
        [sys.executable, "-c", script, broker.url, topic], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        assert any(line.startswith(b"got") for line in process.stdout), "the client says more than this"
        other = subscribe(client, topic, ConsumerType.Shared)
        assert nothing_comes(other)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    received = receive(other, 20)
    assert sorted(map(number, received)) == list(range(20))
    assert {message.redelivery_count() for message in received} == {0}, "as with Pulsar 4.2.4, it does not count"
    other.close()


def test_shared_consumers_take_turns_and_a_stalled_one_blocks_no_other(client: pulsar.Client, topic: str) -> None:
    stuck = subscribe(client, topic, ConsumerType.Shared, receiver_queue_size=10)
    busy = subscribe(client, topic, ConsumerType.Shared)
    producer = client.create_producer(topic)
    send(producer, range(500))
    found = {number(message) for message in receive(busy, 490)}
    assert nothing_comes(busy)
    found |= {number(message) for message in receive(stuck, 10)}
    assert found == set(range(500))
    stuck.close()
    busy.close()


def test_an_exclusive_subscription_refuses_a_second_consumer_and_passes_to_the_next(
    client: pulsar.Client, topic: str
) -> None:
    first = subscribe(client, topic, ConsumerType.Exclusive)
    with pytest.raises(pulsar.ConsumerBusy):
        subscribe(client, topic, ConsumerType.Exclusive)
    with pytest.raises(pulsar.ConsumerBusy):
        subscribe(client, topic, ConsumerType.Shared)
    send(client.create_producer(topic), range(10))
    received = receive(first, 10)
    first.acknowledge_cumulative(received[3])
    first.acknowledge(received[6])
    first.close()
    second = subscribe(client, topic, ConsumerType.Shared)
    assert sorted(map(number, receive(second, 5))) == [4, 5, 7, 8, 9]
    second.close()


def test_messages_that_an_exclusive_consumer_returns_are_redelivered_in_order(
    client: pulsar.Client, topic: str
) -> None:
    consumer = subscribe(client, topic, ConsumerType.Exclusive)
    send(client.create_producer(topic, batching_enabled=False), range(20))
    received = receive(consumer, 20)
    consumer.acknowledge_cumulative(received[9])
    consumer.redeliver_unacknowledged_messages()
    assert list(map(number, receive(consumer, 10))) == list(range(10, 20))
    consumer.close()


def test_a_failover_consumer_takes_over_where_the_active_one_stopped(
    broker: RunningBroker, client: pulsar.Client, topic: str
) -> None:
    Root.open(broker.root).create_topic(topic, partitions=1)
    topic = f"persistent://public/default/{topic}-partition-0"  # of its consumers the first by name is active
    active = subscribe(client, topic, ConsumerType.Failover, consumer_name="a")
    standby = subscribe(client, topic, ConsumerType.Failover, consumer_name="b")
    producer = client.create_producer(topic, batching_enabled=False)
    send(producer, range(50))
    received = receive(active, 50)
    assert nothing_comes(standby)
    for message in received[:30]:
        active.acknowledge(message)
    active.close()
    send(producer, range(50, 60))
    received = receive(standby, 30)
    assert list(map(number, received)) == list(range(30, 60))
    assert {message.redelivery_count() for message in received} == {0}
    standby.close()


def test_the_partitions_of_a_topic_spread_over_failover_consumers(
    broker: RunningBroker, client: pulsar.Client, topic: str
) -> None:
    Root.open(broker.root).create_topic(topic, partitions=4)
    name = f"persistent://public/default/{topic}"
    parts = [f"{name}-partition-{partition}" for partition in range(4)]
    consumers = {
        part: [subscribe(client, part, ConsumerType.Failover, consumer_name=each) for each in "ab"] for part in parts
    }
    for partition, part in enumerate(parts):
        send(client.create_producer(part), [partition])
        active, standby = consumers[part][partition % 2], consumers[part][1 - partition % 2]
        assert list(map(number, receive(active, 1))) == [partition]
        with pytest.raises(pulsar.Timeout):
            standby.receive(timeout_millis=200)
    for pair in consumers.values():
        for consumer in pair:
            consumer.close()


def test_key_shared_sticky_ranges(client: pulsar.Client, topic: str) -> None:
    def sticky(*ranges: tuple[int, int]) -> pulsar.Consumer:
        policy = pulsar.ConsumerKeySharedPolicy(key_shared_mode=KeySharedMode.Sticky, sticky_ranges=list(ranges))
        return subscribe(client, topic, ConsumerType.KeyShared, key_shared_policy=policy)

    low, high = sticky((0, 30_000)), sticky((30_001, 65_535))
    with pytest.raises(pulsar.PulsarException):
        sticky((20_000, 40_000))
    producer = client.create_producer(topic, batching_enabled=False)
    for each in range(200):
        producer.send_async(b"%d" % each, lambda result, _: None, partition_key=f"k{each}")
    producer.flush()
    found: dict[pulsar.Consumer, list[int]] = {low: [], high: []}
    until_s = time.monotonic() + WAIT_S
    while sum(map(len, found.values())) < 200:
        assert time.monotonic() < until_s, found
        for consumer, mine in found.items():
            with suppress(pulsar.Timeout):
                while True:
                    mine.append(number(consumer.receive(timeout_millis=50)))
    for consumer, mine in found.items():
        assert nothing_comes(consumer)
        assert mine == sorted(mine)
        assert len(mine) > 50
        consumer.close()
    assert sorted(found[low] + found[high]) == list(range(200))


def test_a_key_has_one_consumer_for_messages_of_spark_and_clients(
    broker: RunningBroker, client: pulsar.Client, topic: str
) -> None:
    """An entry that Spark wrote has messages of many keys; all of them belong to its consumer."""
    keys = [f"key-{each}" for each in range(500)]
    root = Root.open(broker.root)
    root.create_topic(topic)
    for _ in range(2):
        messages.write(root, topic, [b"spark"] * len(keys), [key.encode() for key in keys])
    consumers = [subscribe(client, topic, ConsumerType.KeyShared) for _ in range(3)]
    producer = client.create_producer(topic, batching_enabled=False)
    for key in keys:
        producer.send_async(b"client", lambda result, _: None, partition_key=key)
    producer.flush()
    got: dict[str, Counter[int]] = defaultdict(Counter)
    deadline_s = time.monotonic() + WAIT_S
    while sum(map(Counter.total, got.values())) < 3 * len(keys):
        assert time.monotonic() < deadline_s, f"only {sum(map(Counter.total, got.values()))} came"
        for each, consumer in enumerate(consumers):
            try:
                while True:
                    message = consumer.receive(timeout_millis=50)
                    got[message.partition_key()][each] += 1
                    consumer.acknowledge(message)
            except pulsar.Timeout:
                continue
    assert got.keys() == set(keys)
    assert {len(found) for found in got.values()} == {1}
    assert len({each for found in got.values() for each in found}) == 3
    for consumer in consumers:
        consumer.close()


def test_delayed_messages_are_delivered_when_due_and_not_before(client: pulsar.Client, topic: str) -> None:
    consumer = subscribe(client, topic, ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    due_s = time.time() + 2.5
    producer.send(b"1", deliver_at=int(due_s * 1000))
    producer.send(b"2")
    assert number(receive(consumer, 1)[0]) == 2
    assert number(receive(consumer, 1)[0]) == 1
    assert time.time() >= due_s - 0.001
    consumer.close()


def test_single_messages_of_a_batch_are_acknowledged(client: pulsar.Client, topic: str) -> None:
    def come() -> pulsar.Consumer:
        return subscribe(client, topic, ConsumerType.Shared, batch_index_ack_enabled=True)

    consumer = come()
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=100, batching_max_publish_delay_ms=5_000
    )
    send(producer, range(100))
    received = receive(consumer, 100)
    assert len({message.message_id().entry_id() for message in received}) == 1
    for message in received:
        if number(message) % 3:
            consumer.acknowledge(message)
    consumer.close()
    again = come()
    assert [number(message) for message in receive(again, 34)] == list(range(0, 100, 3))
    again.close()


def test_chunks_of_a_large_message_go_to_one_shared_consumer(client: pulsar.Client, topic: str) -> None:
    consumers = [subscribe(client, topic, ConsumerType.Shared) for _ in range(2)]
    producers = [client.create_producer(topic, chunking_enabled=True, batching_enabled=False) for _ in range(2)]
    large = [bytes([each]) * 12_000_000 for each in range(4)]
    for each, data in enumerate(large):
        producers[each % 2].send_async(data, lambda result, _: None)
    found = []
    deadline_s = time.monotonic() + WAIT_S
    while len(found) < len(large):
        assert time.monotonic() < deadline_s
        for consumer in consumers:
            try:
                message = consumer.receive(timeout_millis=100)
            except pulsar.Timeout:
                continue
            found.append(message.data())
            consumer.acknowledge(message)
    assert sorted(found) == large
    for consumer in consumers:
        consumer.close()


def test_redeliveries_are_counted_up_to_the_dead_letter_topic(client: pulsar.Client, topic: str) -> None:
    consumer = subscribe(
        client,
        topic,
        ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=50,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2, f"{topic}-dead", initial_subscription_name="morgue"),
    )
    client.create_producer(topic).send(b"7")
    counts = []
    for _ in range(3):
        (message,) = receive(consumer, 1)
        counts.append(message.redelivery_count())
        consumer.negative_acknowledge(message)
    assert counts == [0, 1, 2]
    assert nothing_comes(consumer)
    dead = client.subscribe(f"{topic}-dead", "morgue")
    assert number(receive(dead, 1)[0]) == 7
    dead.close()
    consumer.close()


def test_subscriptions_are_created_first_if_consumers_may_not_create_them(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "root", {"allow_auto_subscription_creation": False}) as broker:
        client = new_client(broker.url)
        producer = client.create_producer("orders")
        send(producer, range(3))
        impatient = pulsar.Client(broker.url, operation_timeout_seconds=1)
        with pytest.raises(pulsar.Timeout):  # its client takes SubscriptionNotFound for something that passes
            impatient.subscribe("orders", "sub")
        impatient.close()
        reader = client.create_reader("orders", pulsar.MessageId.earliest)
        assert number(reader.read_next(timeout_millis=WAIT_S * 1000)) == 0
        root = Root.open(broker.root)
        view = root.store.view()
        (part,) = catalog.parts(view, catalog.require_topic(view, TopicName.parse("orders")))
        create_subscriptions(root.store, "sub", "Shared", {part: EARLIEST})
        assert sorted(map(number, receive(client.subscribe("orders", "sub"), 3))) == [0, 1, 2]
        client.close()


def test_a_subscription_changes_its_type_when_its_consumers_are_gone(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    send(producer, range(40))
    expected = list(range(40))
    types = [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared, ConsumerType.Failover]
    for type_ in types:
        consumer = subscribe(client, topic, type_)
        received = receive(consumer, len(expected))
        assert sorted(map(number, received)) == expected
        for message in received:
            if number(message) in expected[:10]:
                consumer.acknowledge(message)
        consumer.close()
        expected = expected[10:]
    assert expected == []
