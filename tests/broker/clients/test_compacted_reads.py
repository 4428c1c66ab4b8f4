"""Official clients that read compacted: newest messages only, and never a wait for one that is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

import httpx
import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition, MessageId

from pulsar_on_spark.metadata.records import SegmentRecord
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.commands import CommandSubscribe, ServerError
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.policies.policies import Policies, RetentionPolicies
from pulsar_on_spark.topic.maintenance.compaction.compact import compact
from pulsar_on_spark.topic.maintenance.retention.trim import trim_some
from tests.broker.clients.conftest import WAIT_MS, new_client
from tests.broker.clients.raw import answer_of, command, connect
from tests.kit import messages
from tests.kit.running_broker import RunningBroker
from tests.kit.waiting import wait_until

Pair = tuple[str, bytes]


def send(
    client: pulsar.Client, topic: str, pairs: Sequence[tuple[str | None, bytes]], batch: int = 1
) -> list[MessageId]:
    """Keys and values; an empty value is a tombstone."""
    producer = client.create_producer(
        topic, batching_enabled=batch > 1, batching_max_messages=max(batch, 2), batching_max_publish_delay_ms=10_000
    )
    ids: list[MessageId] = []
    for key, value in pairs:
        producer.send_async(value, lambda _result, id_: ids.append(id_), partition_key=key)
    producer.flush()
    producer.close()
    return ids


def rest(reader: pulsar.Reader) -> list[Pair]:
    found = []
    while reader.has_message_available():
        message = reader.read_next(WAIT_MS)
        found.append((message.partition_key(), message.data()))
    return found


def reader_of(client: pulsar.Client, topic: str, start: MessageId = MessageId.earliest) -> pulsar.Reader:
    return client.create_reader(topic, start, is_read_compacted=True)


def compacted(broker: RunningBroker, topic: str, last: MessageId) -> None:
    """Compact the topic up to this message at least, straight on the root."""
    reach = Position(last.ledger_id(), last.entry_id() + 1)  # type: ignore[arg-type]
    (done,) = compact(Root.shared(broker.root), topic, reach=reach)
    assert done.outcome == "compacted"


@pytest.mark.parametrize("batch", [1, 4])
def test_a_reader_gets_the_newest_of_each_key_then_the_log(
    broker: RunningBroker, client: pulsar.Client, topic: str, batch: int
) -> None:
    pairs = [(f"k{number % 3}", b"%d" % number) for number in range(10)]
    ids = send(client, topic, [*pairs, ("k0", b"")], batch)
    compacted(broker, topic, ids[-1])
    assert rest(reader_of(client, topic)) == [("k1", b"7"), ("k2", b"8")]
    assert rest(client.create_reader(topic, MessageId.earliest)) == [*pairs, ("k0", b"")]

    send(client, topic, [("k1", b"new"), ("k1", b"newer")], batch)
    assert rest(reader_of(client, topic)) == [("k1", b"7"), ("k2", b"8"), ("k1", b"new"), ("k1", b"newer")]


@pytest.mark.parametrize("batch", [1, 5])
def test_ids_stay_and_a_reader_starts_inside(
    broker: RunningBroker, client: pulsar.Client, topic: str, batch: int
) -> None:
    ids = send(client, topic, [(f"k{number % 7}", b"%d" % number) for number in range(20)], batch)
    compacted(broker, topic, ids[-1])
    left = list(range(13, 20))
    reader = reader_of(client, topic)
    found = [reader.read_next(WAIT_MS) for _ in left]
    assert [(int(each.data()), each.message_id()) for each in found] == [(n, ids[n]) for n in left]
    for at in (0, 12, 15, 19):
        after = [int(value) for _, value in rest(reader_of(client, topic, ids[at]))]
        assert after == [n for n in left if n > at], at
    assert rest(reader_of(client, topic, MessageId.latest)) == []


@pytest.mark.parametrize("batch", [1, 3])
def test_a_reader_does_not_wait_for_a_last_message_that_was_compacted_out(
    broker: RunningBroker, client: pulsar.Client, topic: str, batch: int
) -> None:
    """apache/pulsar#11211: has_message_available said yes, and nothing came."""
    ids = send(client, topic, [("a", b"1"), ("b", b"2"), ("c", b"3"), ("b", b""), ("c", b"")], batch)
    compacted(broker, topic, ids[-1])
    reader = reader_of(client, topic)
    assert rest(reader) == [("a", b"1")]
    assert not reader.has_message_available()
    assert reader_of(client, topic).has_message_available()

    last = send(client, topic, [("a", b"")])
    assert rest(reader) == [("a", b"")]
    compacted(broker, topic, last[-1])
    assert not reader_of(client, topic).has_message_available()
    assert not reader.has_message_available()


def test_a_promised_message_is_delivered_although_the_topic_is_compacted_again(
    broker: RunningBroker, client: pulsar.Client, topic: str
) -> None:
    first = send(client, topic, [("a", b"1"), ("b", b"1")])
    compacted(broker, topic, first[-1])
    reader = reader_of(client, topic)
    assert reader.read_next(WAIT_MS).data() == b"1"
    more = send(client, topic, [("c", b"1")])
    assert reader.has_message_available()  # up to message c
    more = send(client, topic, [("c", b""), ("b", b"")])
    compacted(broker, topic, more[-1])
    assert rest(reader) == [("b", b"1"), ("c", b"1"), ("c", b""), ("b", b"")]
    assert rest(reader_of(client, topic)) == [("a", b"1")]


def test_trimmed_messages_are_read_out_of_the_compacted_ledger(
    broker: RunningBroker, client: pulsar.Client, topic: str
) -> None:
    root = Root.shared(broker.root)
    root.create_topic(topic)
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", b"2")):
        messages.write(root, topic, [value], [key])
    open_before = reader_of(client, topic)
    assert open_before.read_next(WAIT_MS).data() == b"1"
    assert compact(root, topic)[0].outcome == "compacted"
    send(client, topic, [("d", b"1")])  # in a ledger of the broker's: the one before has ended
    trim(root, topic)

    left = [("b", b"1"), ("a", b"2"), ("d", b"1")]
    assert rest(reader_of(client, topic)) == left
    assert rest(open_before) == left
    consumer = client.subscribe(topic, "late", is_read_compacted=True, initial_position=InitialPosition.Earliest)
    found = [consumer.receive(WAIT_MS) for _ in left]
    assert [(each.partition_key(), each.data()) for each in found] == left
    consumer.acknowledge_cumulative(found[-1])
    consumer.seek(MessageId.earliest)
    assert [consumer.receive(WAIT_MS).partition_key() for _ in left] == ["b", "a", "d"]


def part_id(root: Root, topic: str) -> str:
    view = root.store.view()
    (part,) = catalog.parts(view, catalog.require_topic(view, TopicName.parse(topic)))
    return part.topic_id


def trim(root: Root, topic: str) -> None:
    """Trim the topic's first ledger, which has ended."""
    policies = Policies(retention=RetentionPolicies(retention_time_in_minutes=0, retention_size_in_mb=0))
    first = root.store.view().oldest(SegmentRecord, part_id(root, topic))
    assert first is not None

    def is_trimmed() -> bool:
        trim_some(root.store, [TopicName.parse(topic).full], policies)
        oldest = root.store.view().oldest(SegmentRecord, part_id(root, topic))
        return oldest is None or oldest.ledger_id > first.ledger_id

    wait_until(is_trimmed)


@pytest.mark.parametrize("type_", [ConsumerType.Exclusive, ConsumerType.Failover])
def test_a_consumer_resumes_after_its_last_acknowledgement(
    broker: RunningBroker, client: pulsar.Client, topic: str, type_: ConsumerType
) -> None:
    ids = send(client, topic, [(f"k{number % 4}", b"%d" % number) for number in range(12)], 3)
    compacted(broker, topic, ids[-1])

    def subscribed() -> pulsar.Consumer:
        return client.subscribe(
            topic,
            "s",
            consumer_type=type_,
            is_read_compacted=True,
            initial_position=InitialPosition.Earliest,
            batch_index_ack_enabled=True,
        )

    consumer = subscribed()
    found = [consumer.receive(WAIT_MS) for _ in range(4)]
    assert [each.data() for each in found] == [b"8", b"9", b"10", b"11"]
    for each in found[:2]:
        consumer.acknowledge(each)
    consumer.close()
    more = send(client, topic, [("k0", b"12")])
    consumer = subscribed()
    assert [consumer.receive(WAIT_MS).data() for _ in range(3)] == [b"10", b"11", b"12"]
    consumer.acknowledge_cumulative(more[-1])
    consumer.close()
    wait_until(lambda: _backlog(broker, topic) == 0)


def _backlog(broker: RunningBroker, topic: str) -> int:
    found = Root.shared(broker.root).subscriptions()
    (mine,) = [each for each in found if each.topic.endswith(f"/{topic}")]
    return mine.backlog_messages


@pytest.mark.parametrize(
    ("name", "type_"),
    [("{}", CommandSubscribe.Shared), ("non-persistent://public/default/{}", CommandSubscribe.Failover)],
)
def test_shared_consumers_and_topics_that_are_not_stored_are_refused(
    broker: RunningBroker, topic: str, name: str, type_: CommandSubscribe.SubType.ValueType
) -> None:
    """Clients refuse them, too: here the broker is asked."""

    async def asked() -> int:
        reader, writer = await connect(broker.url)
        wanted = CommandSubscribe(
            topic=name.format(topic), subscription="s", subType=type_, consumer_id=1, request_id=1, read_compacted=True
        )
        writer.write(command("SUBSCRIBE", subscribe=wanted))
        answered = await answer_of(reader, "ERROR")
        writer.close()
        return answered.error.error

    assert asyncio.run(asked()) == ServerError.NotAllowedError


def test_a_seek_by_time_finds_its_place_among_the_remaining_messages(
    broker: RunningBroker, client: pulsar.Client, topic: str
) -> None:
    send(client, topic, [("a", b"1"), ("b", b"1")])
    time.sleep(0.01)
    middle_ms = int(time.time() * 1000)
    ids = send(client, topic, [("c", b"1"), ("a", b"2")])
    compacted(broker, topic, ids[-1])
    consumer = client.subscribe(topic, "s", is_read_compacted=True)
    consumer.seek(middle_ms)
    assert [consumer.receive(WAIT_MS).partition_key() for _ in range(2)] == ["c", "a"]
    consumer.seek(0)
    assert [consumer.receive(WAIT_MS).partition_key() for _ in range(3)] == ["b", "c", "a"]


# -- who compacts ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker that compacts what has a threshold twice a second."""
    settings = {"broker_service_compaction_monitor_interval_in_seconds": 0.5}
    with RunningBroker(tmp_path_factory.mktemp("eager") / "root", settings) as running:
        yield running


def test_an_operator_compacts_a_topic(
    broker: RunningBroker, client: pulsar.Client, admin: httpx.Client, topic: str
) -> None:
    path = f"/persistent/public/default/{topic}/compaction"
    assert admin.put(path).status_code == 404
    send(client, topic, [("a", b"%d" % number) for number in range(50)])
    assert admin.get(path).json() == {"status": "NOT_RUN", "lastError": ""}
    assert admin.put(path).status_code == 204
    assert admin.put(path).status_code == 409
    wait_until(lambda: admin.get(path).json()["status"] != "RUNNING")
    assert admin.get(path).json() == {"status": "SUCCESS", "lastError": ""}
    assert rest(reader_of(client, topic)) == [("a", b"49")], "all that was acknowledged before is compacted"


def test_a_threshold_starts_compactions(eager: RunningBroker, topic: str) -> None:
    client = new_client(eager.url)
    send(client, topic, [("a", b"%d" % number) for number in range(50)])
    path = f"{eager.web_url}/admin/v2/persistent/public/default/{topic}/compactionThreshold"
    httpx.post(path, json=100, timeout=WAIT_MS / 1000).raise_for_status()
    messages.write(Root.shared(eager.root), topic, [b"%d" % number for number in range(50, 100)], [b"a"] * 50)
    wait_until(lambda: len(rest(reader_of(client, topic))) < 100)
    client.close()
