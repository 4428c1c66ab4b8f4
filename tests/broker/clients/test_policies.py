"""Effects of policies on official clients; the policies are set on the root, as jobs and the command line do."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx
import pulsar
import pytest
from pydantic.alias_generators import to_camel

from pulsar_on_spark.metadata.records import DedupRecord, LedgerRecord, SubscriptionRecord, TopicRecord, TrimRecord
from pulsar_on_spark.model.ids import EARLIEST
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import tenants
from pulsar_on_spark.topic.catalog.policies.change import set_namespace_policies, set_topic_policies
from pulsar_on_spark.topic.data_path.consumer import SubscriptionConsumer
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions
from pulsar_on_spark.topic.managed_ledger.subscription.offsets import StreamOffset
from tests.kit import messages
from tests.kit.running_broker import RunningBroker
from tests.kit.waiting import wait_until

from .conftest import WAIT_MS, new_client
from .test_metrics import CLUSTER, scrape
from .test_metrics import value as sample

OFTEN = {
    "message_expiry_check_interval_in_minutes": 0.005,
    "subscription_expiry_check_interval_in_minutes": 0.005,
    "backlog_quota_check_interval_in_seconds": 0.3,
    "broker_delete_inactive_topics_frequency_seconds": 0.3,
    "managed_ledger_max_entries_per_ledger": 10,
    "managed_ledger_min_ledger_rollover_time_minutes": 0,
}
BROKER_RATE: Final = "broker_publisher_throttling_max_"
SILENT = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
_namespaces = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker that looks after its topics all the time."""
    with RunningBroker(tmp_path_factory.mktemp("policies") / "root", OFTEN) as running:
        yield running


@pytest.fixture(scope="module")
def root(broker: RunningBroker) -> Root:
    return Root.open(broker.root)


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[pulsar.Client]:
    made = new_client(broker.url)
    yield made
    made.close()


@pytest.fixture
def topic(root: Root) -> str:
    """A topic that is there, in a namespace of its own."""
    namespace = f"public/ns{next(_namespaces)}"
    tenants.create_namespace(root.store, namespace)
    return root.create_topic(f"{namespace}/t").name


def fails(attempt: Callable[[], Any], error: str) -> Callable[[], bool]:
    """True if an attempt fails with this error of the client; closes a created object."""

    def try_it() -> bool:
        try:
            attempt().close()
        except pulsar.PulsarException as refused:
            return error in str(refused)
        return False

    return try_it


def succeeds(attempt: Callable[[], Any]) -> Callable[[], bool]:
    def try_it() -> bool:
        try:
            attempt().close()
        except pulsar.PulsarException:
            return False
        return True

    return try_it


def set_on(root: Root, topic: str, **policies: Any) -> None:
    set_topic_policies(root, TopicName.parse(topic), policies)


def on_namespace(root: Root, topic: str, **policies: Any) -> None:
    set_namespace_policies(root, TopicName.parse(topic).namespace, policies)


def topic_id(root: Root, topic: str) -> str:
    record = root.store.view().get(TopicRecord, topic)
    assert record is not None
    return record.topic_id


def receive_all(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        message = consumer.receive(WAIT_MS)
        consumer.acknowledge(message)
        found.append(message.data())
    return found


def test_limits_reach_a_loaded_topic(root: Root, client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    on_namespace(root, topic, max_producers_per_topic=1, max_consumers_per_subscription=1)
    wait_until(fails(lambda: client.create_producer(topic), "ProducerBusy"))
    wait_until(fails(lambda: client.subscribe(topic, "s", pulsar.ConsumerType.Shared), "ConsumerBusy"))
    set_on(root, topic, max_producers_per_topic=5, max_consumers_per_subscription=2)
    wait_until(succeeds(lambda: client.create_producer(topic)))
    wait_until(succeeds(lambda: client.subscribe(topic, "s", pulsar.ConsumerType.Shared)))
    first.close()
    consumer.close()


def test_subscription_types(root: Root, client: pulsar.Client, topic: str) -> None:
    set_on(root, topic, subscription_types_enabled=["Shared"])
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(topic, "s", pulsar.ConsumerType.Exclusive)
    client.subscribe(topic, "s", pulsar.ConsumerType.Shared).close()


def test_limits_of_a_namespace_apply_to_non_persistent_topics(root: Root, client: pulsar.Client, topic: str) -> None:
    on_namespace(
        root,
        topic,
        max_producers_per_topic=1,
        max_consumers_per_topic=2,
        max_consumers_per_subscription=1,
        max_subscriptions_per_topic=2,
        subscription_types_enabled=["Shared"],
    )
    volatile = topic.replace("persistent://", "non-persistent://")

    def subscribe(name: str, type_: pulsar.ConsumerType = pulsar.ConsumerType.Shared) -> pulsar.Consumer:
        return client.subscribe(volatile, name, type_)

    kept = [client.create_producer(volatile), subscribe("a"), subscribe("b")]
    assert fails(lambda: client.create_producer(volatile), "ProducerBusy")()
    with pytest.raises(pulsar.PulsarException):
        subscribe("c", pulsar.ConsumerType.Exclusive)
    assert fails(lambda: subscribe("c"), "ConsumerBusy")()  # three consumers
    on_namespace(root, topic, max_producers_per_topic=2, max_consumers_per_topic=9)
    wait_until(succeeds(lambda: client.create_producer(volatile)))
    assert fails(lambda: subscribe("a"), "ConsumerBusy")()  # two of one subscription
    assert fails(lambda: subscribe("c"), "ConsumerBusy")()  # three subscriptions
    on_namespace(root, topic, max_consumers_per_subscription=2, max_subscriptions_per_topic=3)
    wait_until(succeeds(lambda: subscribe("a")))
    assert succeeds(lambda: subscribe("c"))()
    for each in kept:
        each.close()


def test_no_topic_is_created_automatically_if_a_policy_forbids_it(
    broker: RunningBroker, root: Root, topic: str
) -> None:
    on_namespace(
        root,
        topic,
        auto_topic_creation={"allowAutoTopicCreation": False},
        auto_subscription_creation={"allowAutoSubscriptionCreation": False},
    )
    impatient = pulsar.Client(broker.url, operation_timeout_seconds=2, logger=SILENT)
    with pytest.raises(pulsar.PulsarException):
        impatient.create_producer(f"{topic}-other")
    with pytest.raises(pulsar.PulsarException):
        impatient.subscribe(topic, "s")
    impatient.close()
    view = root.store.view()
    assert view.get(TopicRecord, f"{topic}-other") is None
    assert view.all(SubscriptionRecord, topic_id(root, topic)) == []


def test_topics_are_created_as_the_namespace_says(root: Root, client: pulsar.Client, topic: str) -> None:
    creation = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
    on_namespace(root, topic, auto_topic_creation=creation)
    assert len(client.get_topic_partitions(f"{topic}-other")) == 3


def test_unacknowledged_messages_are_limited(root: Root, client: pulsar.Client, topic: str) -> None:
    set_on(root, topic, max_unacked_messages_per_consumer=3)
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    for number in range(6):
        producer.send(str(number).encode())
    held = [consumer.receive(WAIT_MS) for _ in range(3)]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(500)
    set_on(root, topic, max_unacked_messages_per_consumer=100)
    held += [consumer.receive(WAIT_MS) for _ in range(3)]
    assert sorted(message.data() for message in held) == [str(number).encode() for number in range(6)]


def test_deduplication_is_switched_on_and_off(root: Root, client: pulsar.Client, topic: str) -> None:
    def send_twice() -> None:
        producer = client.create_producer(topic, producer_name="p")
        for sequence_id in (7, 7):
            producer.send(b"v", sequence_id=sequence_id)
        producer.close()

    def saved() -> bool:
        return root.store.view().get(DedupRecord, topic_id(root, topic)) is not None

    consumer = client.subscribe(topic, "s")
    send_twice()
    assert receive_all(consumer, 2) == [b"v"] * 2
    set_on(root, topic, deduplication=True)
    wait_until(saved)
    send_twice()
    set_on(root, topic, deduplication=None)
    wait_until(lambda: not saved())
    send_twice()
    assert receive_all(consumer, 3) == [b"v"] * 3
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)


def test_delayed_delivery_is_switched_off(root: Root, client: pulsar.Client, topic: str) -> None:
    set_on(root, topic, delayed_delivery={"active": False})
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    producer.send(b"v", deliver_at=int(time.time() * 1000) + 3_600_000)
    assert receive_all(consumer, 1) == [b"v"]


def test_messages_expire_by_ttl(root: Root, client: pulsar.Client, topic: str) -> None:
    """Of subscriptions with consumers and of those without."""
    client.subscribe(topic, "left").close()
    producer = client.create_producer(topic)
    for number in range(3):
        producer.send(str(number).encode())
    set_on(root, topic, message_ttl=1)
    wait_until(lambda: all(each.backlog_messages == 0 for each in statuses(root, topic)))
    set_on(root, topic, message_ttl=None)
    time.sleep(1.5)  # until the broker has seen it: a message of now must not expire
    producer.send(b"young")
    consumer = client.subscribe(topic, "left")
    assert receive_all(consumer, 1) == [b"young"]


def statuses(root: Root, topic: str) -> list[Any]:
    return [each for each in root.subscriptions() if each.topic == topic]


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ("producer_request_hold", "ProducerBlockedQuotaExceeded"),
        ("producer_exception", "ProducerBlockedQuotaExceeded"),
    ],
)
def test_producers_meet_a_backlog_quota(
    broker: RunningBroker, root: Root, client: pulsar.Client, topic: str, policy: str, error: str
) -> None:
    labels = CLUSTER | {"namespace": TopicName.parse(topic).namespace, "topic": topic}
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for _ in range(3):
        producer.send(b"x" * 100)
    producer.close()
    set_on(root, topic, backlog_quota_size={"limitSize": 200, "policy": policy})
    wait_until(fails(lambda: client.create_producer(topic), error))
    assert sample(scrape(broker), "pulsarpy_topic_producers_refused", labels) == 1
    assert receive_all(consumer, 3) == [b"x" * 100] * 3
    wait_until(succeeds(lambda: client.create_producer(topic)))
    assert sample(scrape(broker), "pulsarpy_topic_producers_refused", labels) == 0


def test_the_oldest_of_a_backlog_is_evicted(root: Root, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic)
    for number in range(10):
        producer.send(str(number).encode() * 100)
    quota = {"limitSize": 700, "policy": "consumer_backlog_eviction"}
    set_on(root, topic, backlog_quota_size=quota)
    wait_until(lambda: statuses(root, topic)[0].backlog_messages < 7)
    consumer = client.subscribe(topic, "s")
    left = receive_all(consumer, 1)
    while left[-1] != b"9" * 100:
        left += receive_all(consumer, 1)
    assert left == [str(number).encode() * 100 for number in range(10 - len(left), 10)]
    assert 4 <= len(left) < 7, "what a quota allows is kept, but for a tenth and what is beside the values"


def test_a_topic_continues_in_new_ledgers(root: Root, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    sent = [str(number).encode() for number in range(36)]

    def ledgers() -> list[LedgerRecord]:
        return root.store.view().all(LedgerRecord, topic_id(root, topic))

    for batch in range(3):
        for value in sent[batch * 12 : batch * 12 + 12]:
            producer.send(value)
        # A ledger that is there is used once the one before it is closed: what comes meanwhile still goes to that one.
        ended = [True] * (batch + 1)
        wait_until(lambda ended=ended: [each.closed for each in ledgers()] == [*ended, False], ledgers)
    assert receive_all(consumer, 36) == sent


def test_inactive_topics_are_deleted_by_policy(root: Root, client: pulsar.Client, topic: str) -> None:
    other = root.create_topic(f"{topic}-other").name
    busy = root.create_topic(f"{topic}-busy", 2).name
    messages.write(root, topic, [b"unread"])
    messages.write(root, other, [b"unread"])
    producer = client.create_producer(busy)
    on_namespace(root, topic, inactive_topic_policies=deleted_after_a_second("delete_when_no_subscriptions"))
    set_on(root, other, inactive_topic_policies={"deleteWhileInactive": False})
    wait_until(lambda: root.store.view().get(TopicRecord, topic) is None)
    producer.send(b"still there")
    assert messages.values(root, other) == [b"unread"]
    producer.close()
    wait_until(lambda: root.store.view().get(TopicRecord, busy) is None)


def test_an_inactive_topic_waits_for_its_subscriptions(root: Root, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"v")
    producer.close()
    consumer.close()
    set_on(root, topic, inactive_topic_policies=deleted_after_a_second("delete_when_subscriptions_caught_up"))
    time.sleep(2.5)  # longer than an unused topic stays
    consumer = client.subscribe(topic, "s")
    assert receive_all(consumer, 1) == [b"v"]
    consumer.close()


def deleted_after_a_second(mode: str) -> dict[str, Any]:
    return {"deleteWhileInactive": True, "maxInactiveDurationSeconds": 1, "inactiveTopicDeleteMode": mode}


def test_producers_are_slowed_down(root: Root, client: pulsar.Client, topic: str) -> None:
    set_on(root, topic, publish_rate={"publishThrottlingRateInMsg": 20})
    producer = client.create_producer(topic)
    time.sleep(1.5)  # until the broker has seen it
    began_s = time.monotonic()
    for number in range(60):
        producer.send(str(number).encode())
    assert time.monotonic() - began_s > 1.5, "20 at once, 40 at 20 a second"
    set_on(root, topic, publish_rate=None)


def test_producers_of_all_topics_together_are_slowed_down(tmp_path: Path) -> None:
    """By the broker's own rate, as it is started with it and as it is changed."""
    with ExitStack() as ends:
        broker = ends.enter_context(RunningBroker(tmp_path / "root", {f"{BROKER_RATE}message_rate": 20}))
        clients = [new_client(broker.url) for _ in range(2)]
        for each in clients:
            ends.callback(each.close)
        topics = ("public/default/a", "non-persistent://public/default/b")
        producers = [each.create_producer(topic) for each, topic in zip(clients, topics, strict=True)]
        assert seconds_to_send(producers, 30, b"v") > 1.5, "20 at once, 40 at 20 a second"
        for name, value in (("message_rate", 0), ("byte_rate", 20_000)):
            name = to_camel(f"{BROKER_RATE}{name}")
            httpx.post(f"{broker.web_url}/admin/v2/brokers/configuration/{name}/{value}").raise_for_status()
        assert seconds_to_send(producers, 30, os.urandom(1000)) > 1.5, "20 kB at once, 40 kB at 20 kB a second"


def seconds_to_send(producers: list[pulsar.Producer], each: int, content: bytes) -> float:
    began_s = time.monotonic()
    for _ in range(each):
        for producer in producers:
            producer.send(content)
    return time.monotonic() - began_s


@pytest.mark.parametrize("policy", ["dispatch_rate", "subscription_dispatch_rate"])
def test_consumers_are_slowed_down(root: Root, client: pulsar.Client, topic: str, policy: str) -> None:
    set_on(root, topic, **{policy: {"dispatchThrottlingRateInMsg": 20}})
    consumer = client.subscribe(topic, "s", receiver_queue_size=10)
    producer = client.create_producer(topic)
    began_s = time.monotonic()
    for number in range(60):
        producer.send(str(number).encode())
    assert receive_all(consumer, 60) == [str(number).encode() for number in range(60)]
    assert time.monotonic() - began_s > 1.5, "20 at once, 40 at 20 a second"


@pytest.mark.parametrize("policy", ["dispatch_rate", "subscription_dispatch_rate"])
def test_a_relative_dispatch_rate_follows_the_publish_rate(
    root: Root, client: pulsar.Client, topic: str, policy: str
) -> None:
    slow = {"dispatchThrottlingRateInMsg": 1, "ratePeriodInSecond": 3600}
    set_on(root, topic, **{policy: slow | {"relativeToPublishRate": True}})
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for number in range(60):
        producer.send(str(number).encode())
    assert receive_all(consumer, 60) == [str(number).encode() for number in range(60)], "one an hour, and these"


def test_a_consumer_that_subscribes_too_often_is_refused(root: Root, client: pulsar.Client, topic: str) -> None:
    set_on(root, topic, subscribe_rate={"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 3600})
    impatient = client
    wait_until(fails(lambda: impatient.subscribe(topic, "s", pulsar.ConsumerType.Shared, consumer_name="c"), "TooMany"))
    client.subscribe(topic, "s", pulsar.ConsumerType.Shared, consumer_name="d").close()


def test_a_topic_is_truncated(broker: RunningBroker, root: Root, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "left").close()
    producer = client.create_producer(topic)
    for number in range(3):
        producer.send(str(number).encode())
    url = f"{broker.web_url}/admin/v2/{topic.replace('://', '/')}/truncate"
    assert httpx.delete(url, timeout=WAIT_MS / 1000).status_code == 204
    trim = root.store.view().get(TrimRecord, topic_id(root, topic))
    assert trim is not None
    assert trim.truncated_entry == 3, "it goes once it is sealed"
    wait_until(lambda: statuses(root, topic)[0].backlog_messages == 0)
    producer.send(b"new")
    assert receive_all(client.subscribe(topic, "left"), 1) == [b"new"]


def test_a_topic_that_spark_reads_is_not_truncated_in_part(
    broker: RunningBroker, root: Root, client: pulsar.Client, topic: str
) -> None:
    client.subscribe(topic, "a").close()
    client.create_producer(topic).send(b"kept")
    parts = messages.target(root, topic).parts
    subscriptions.create_subscriptions(root.store, "b", "Exclusive", dict.fromkeys(parts, EARLIEST))
    query = SubscriptionConsumer(root, "b", "Exclusive", "query", lease_s=3)
    query.decide_turn(root.store.view(durable=True), parts, StreamOffset("query", {}))
    url = f"{broker.web_url}/admin/v2/{topic.replace('://', '/')}/truncate"
    assert httpx.delete(url, timeout=WAIT_MS / 1000).status_code == 412
    query.stop((), None)
    assert receive_all(client.subscribe(topic, "a"), 1) == [b"kept"]


def test_consumers_and_subscriptions_of_a_topic_are_limited(root: Root, client: pulsar.Client, topic: str) -> None:
    def subscribe(name: str) -> pulsar.Consumer:
        return client.subscribe(topic, name, pulsar.ConsumerType.Shared)

    names = itertools.count()
    one, two = subscribe("a"), subscribe("b")
    set_on(root, topic, max_consumers_per_topic=2)
    wait_until(fails(lambda: subscribe("a"), "ConsumerBusy"))
    two.close()
    wait_until(succeeds(lambda: subscribe("a")))
    one.close()
    set_on(root, topic, max_consumers_per_topic=None, max_subscriptions_per_topic=2)
    wait_until(fails(lambda: subscribe(f"new-{next(names)}"), "ConsumerBusy"))
    wait_until(lambda: not any(each.consumers for each in statuses(root, topic)))  # those without an owner count, too
    wait_until(fails(lambda: subscribe(f"new-{next(names)}"), "ConsumerBusy"))
    assert not succeeds(lambda: subscribe(f"new-{next(names)}"))()
    wait_until(succeeds(lambda: subscribe("b")))
    set_on(root, topic, max_subscriptions_per_topic=100)
    wait_until(succeeds(lambda: subscribe(f"new-{next(names)}")))


def test_producers_meet_a_quota_of_age(root: Root, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s").close()
    messages.write(root, topic, [b"old"])
    set_on(root, topic, backlog_quota_age={"limitTime": 1, "policy": "producer_exception"})
    wait_until(fails(lambda: client.create_producer(topic), "ProducerBlockedQuotaExceeded"))
    assert receive_all(client.subscribe(topic, "s"), 1) == [b"old"]
    wait_until(succeeds(lambda: client.create_producer(topic)))


def test_messages_that_are_too_large_for_their_topic_are_refused(root: Root, client: pulsar.Client, topic: str) -> None:
    set_on(root, topic, max_message_size=1_000)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    with pytest.raises(pulsar.ChecksumError):  # on which this client gives up one message, and no more
        producer.send(b"x" * 2_000)
    producer.send(b"y" * 500)
    assert receive_all(consumer, 1) == [b"y" * 500]
