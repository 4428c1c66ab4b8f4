"""Topics that are terminated, unloaded or deleted while clients and Spark use them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import httpx
import pulsar
import pytest

from pulsar_on_spark.metadata.records import LedgerRecord, TopicRecord
from pulsar_on_spark.model.errors import TopicTerminatedError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandAck,
    CommandCloseProducer,
    CommandFlow,
    CommandPing,
    CommandProducer,
    CommandSubscribe,
    ProducerAccessMode,
    ServerError,
)
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import catalog
from tests.kit import messages
from tests.kit.running_broker import RunningBroker
from tests.kit.waiting import wait_until

from .conftest import WAIT_MS, new_client
from .raw import answer, answer_of, command, connect

LIMIT_S = 60


def path(topic: str, *more: str) -> str:
    return "/".join(("/persistent/public/default", topic, *more))


def terminate(admin: httpx.Client, topic: str) -> tuple[int, int]:
    answered = admin.post(path(topic, "terminate"))
    assert answered.status_code == 200, answered.text
    return answered.json()["ledgerId"], answered.json()["entryId"]


def record(root: Root, topic: str) -> TopicRecord:
    return catalog.require_topic(root.store.view(), TopicName.parse(topic))


class Sending:
    """A producer that sends numbers without waiting until it is refused, and what became of each."""

    def __init__(self, producer: pulsar.Producer) -> None:
        self.acknowledged: dict[int, pulsar.MessageId] = {}
        self.refused: set[pulsar.Result] = set()
        self.has_begun = threading.Event()
        self._producer = producer
        self._left = threading.Semaphore(500)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set() and not self.refused:
            self._left.acquire(timeout=LIMIT_S)
            self._producer.send_async(b"%d" % number, callback=self._done(number))
            number += 1

    def _done(self, number: int):
        def done(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            if result == pulsar.Result.Ok:
                self.acknowledged[number] = message_id
                self.has_begun.set()
            else:
                self.refused.add(result)
            self._left.release()

        return done

    def end(self) -> None:
        """Send no more, and wait until all has its outcome."""
        self._stop.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        self._producer.flush()

    def wait_for_refusal(self) -> None:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "it is still taken"


def drain(consumer: pulsar.Consumer, count: int) -> list[int]:
    found = []
    for _ in range(count):
        message = consumer.receive(WAIT_MS)
        consumer.acknowledge(message)
        found.append(int(message.data()))
    return found


def test_a_topic_that_is_terminated_under_load_ends_with_the_last_receipt(
    broker: RunningBroker, admin: httpx.Client, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    sending = Sending(client.create_producer(topic, batching_enabled=False))
    assert sending.has_begun.wait(LIMIT_S)
    ledger, entry = terminate(admin, topic)
    sending.wait_for_refusal()
    assert sending.refused == {pulsar.Result.TopicTerminated}
    last = max(sending.acknowledged)
    assert sorted(sending.acknowledged) == list(range(last + 1))
    last_id = sending.acknowledged[last]
    assert (last_id.ledger_id(), last_id.entry_id()) == (ledger, entry)
    assert drain(consumer, last + 1) == list(range(last + 1))
    with pytest.raises(pulsar.Timeout):
        consumer.receive(500)
    with pytest.raises(pulsar.PulsarException, match="TopicTerminated"):
        client.create_producer(topic)
    assert terminate(admin, topic) == (ledger, entry), "the end stays where it is"
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert int(reader.read_next(WAIT_MS).data()) == 0


def test_waiting_producers_are_notified_of_the_termination(
    broker: RunningBroker, admin: httpx.Client, client: pulsar.Client, topic: str
) -> None:
    client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    waiting = CommandProducer(
        topic=topic, producer_id=1, request_id=1, producer_access_mode=ProducerAccessMode.WaitForExclusive
    )

    async def scene() -> None:
        reader, writer = await connect(broker.url)
        writer.write(command("PRODUCER", producer=waiting))
        assert not (await answer_of(reader, "PRODUCER_SUCCESS")).producer_success.producer_ready
        await asyncio.to_thread(terminate, admin, topic)
        refused = (await answer_of(reader, "ERROR")).error
        assert (refused.request_id, refused.error) == (1, ServerError.TopicTerminatedError)
        writer.close()

    asyncio.run(asyncio.wait_for(scene(), LIMIT_S))


def test_a_terminated_topic_ends_with_sparks_last_write_and_refuses_spark_too(
    broker: RunningBroker, admin: httpx.Client, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"0")
    root = Root.open(broker.root)
    messages.write(root, topic, [b"1", b"2"])  # behind the broker's open ledger
    ledger, _ = terminate(admin, topic)
    found = record(root, topic)
    assert found.terminated is not None
    # Had the broker seen them already, an empty ledger of its own would be behind them.
    attached = [each for each in root.store.view().all(LedgerRecord, found.topic_id) if each.incarnation is None]
    assert [each.ledger_id for each in attached] == [ledger]
    with pytest.raises(TopicTerminatedError, match="takes no messages"):
        messages.write(root, topic, [b"3"])
    assert drain(consumer, 3) == [0, 1, 2]


@pytest.mark.parametrize("version", ["Pulsar-Java-v4.2.4", "Pulsar-Go-0.19.0", "Pulsar-CPP-v4.2.0"])
def test_consumers_are_notified_of_the_end_after_the_last_message(
    broker: RunningBroker, admin: httpx.Client, client: pulsar.Client, topic: str, version: str
) -> None:
    client.create_producer(topic).send(b"only")

    async def scene() -> None:
        reader, writer = await connect(broker.url, version)
        wanted = CommandSubscribe(
            topic=topic,
            subscription="s",
            subType=CommandSubscribe.Exclusive,
            consumer_id=7,
            request_id=1,
            initialPosition=CommandSubscribe.Earliest,
        )
        writer.write(command("SUBSCRIBE", subscribe=wanted))
        await answer_of(reader, "SUCCESS")
        writer.write(command("FLOW", flow=CommandFlow(consumer_id=7, messagePermits=10)))
        message = (await answer_of(reader, "MESSAGE")).message
        await asyncio.to_thread(terminate, admin, topic)
        writer.write(command("PING", ping=CommandPing()))
        seen = await _until_pong(reader)
        assert BaseCommand.REACHED_END_OF_TOPIC not in seen, "one message is not acknowledged"
        done = CommandAck(consumer_id=7, ack_type=CommandAck.Individual, message_id=[message.message_id])
        writer.write(command("ACK", ack=done))
        await _hears_of_the_end(reader, writer, version)
        again, other = await connect(broker.url, version)
        other.write(command("SUBSCRIBE", subscribe=_late(topic)))
        await answer_of(again, "SUCCESS")
        await _hears_of_the_end(again, other, version)
        writer.close()
        other.close()

    asyncio.run(asyncio.wait_for(scene(), LIMIT_S))


def _late(topic: str) -> CommandSubscribe:
    return CommandSubscribe(
        topic=topic, subscription="late", subType=CommandSubscribe.Exclusive, consumer_id=1, request_id=1
    )


async def _hears_of_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: str) -> None:
    if not version.startswith("Pulsar-CPP"):
        await answer_of(reader, "REACHED_END_OF_TOPIC")
        return
    for _ in range(3):
        writer.write(command("PING", ping=CommandPing()))
        assert BaseCommand.REACHED_END_OF_TOPIC not in await _until_pong(reader)


async def _until_pong(reader: asyncio.StreamReader) -> list[int]:
    """The types of all that comes before the answer to a PING."""
    seen: list[int] = []
    while (found := await answer(reader)).type != BaseCommand.PONG:
        seen.append(found.type)
    return seen


def open_admin(broker: RunningBroker) -> httpx.Client:
    return httpx.Client(base_url=f"{broker.web_url}/admin/v2", timeout=LIMIT_S)


async def exclusive(broker: RunningBroker, epoch: int | None) -> BaseCommand:
    """The answer to an exclusive producer that comes back with a topic epoch; it is gone then."""
    reader, writer = await connect(broker.url)
    wanted = CommandProducer(
        topic="exclusive",
        producer_id=1,
        request_id=1,
        producer_access_mode=ProducerAccessMode.Exclusive,
        topic_epoch=epoch,
    )
    writer.write(command("PRODUCER", producer=wanted))
    found = await answer(reader)
    if found.type == BaseCommand.PRODUCER_SUCCESS:
        writer.write(command("CLOSE_PRODUCER", close_producer=CommandCloseProducer(producer_id=1, request_id=2)))
        await answer_of(reader, "SUCCESS")
    writer.close()
    return found


def test_a_termination_and_the_epochs_of_exclusive_producers_outlive_a_kill(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "root") as first, open_admin(first) as admin:
        client = new_client(first.url)
        client.create_producer("t").send(b"0")
        end = terminate(admin, "t")
        epochs = [asyncio.run(exclusive(first, None)).producer_success.topic_epoch for _ in range(2)]
        assert epochs == [0, 1]
        first.kill()
        client.close()
    with RunningBroker(tmp_path / "root") as second, open_admin(second) as admin:
        client = new_client(second.url)
        assert terminate(admin, "t") == end
        with pytest.raises(pulsar.PulsarException, match="TopicTerminated"):
            client.create_producer("t")
        consumer = client.subscribe("t", "s", initial_position=pulsar.InitialPosition.Earliest)
        assert drain(consumer, 1) == [0]
        fenced = asyncio.run(exclusive(second, epochs[0]))
        assert fenced.error.error == ServerError.ProducerFenced, "another producer was exclusive in between"
        assert asyncio.run(exclusive(second, epochs[1])).producer_success.topic_epoch == epochs[1], "no producer did"
        assert asyncio.run(exclusive(second, None)).producer_success.topic_epoch == 2
        client.close()


def test_a_topic_that_is_unloaded_repeatedly_neither_loses_nor_doubles_messages(
    broker: RunningBroker, admin: httpx.Client, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    sending = Sending(client.create_producer(topic, batching_enabled=False))
    assert sending.has_begun.wait(LIMIT_S)
    for _ in range(3):
        before = len(sending.acknowledged)
        assert admin.put(path(topic, "unload")).status_code == 204
        wait_until(lambda before=before: len(sending.acknowledged) > before + 100)
    sending.end()
    assert not sending.refused
    count = len(sending.acknowledged)
    seen = drain_until(consumer, count - 1)
    assert list(dict.fromkeys(seen)) == list(range(count)), "in order, none is missing"
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    stored = []
    while reader.has_message_available():
        stored.append(int(reader.read_next(WAIT_MS).data()))
    assert stored == list(range(count))


def drain_until(consumer: pulsar.Consumer, last: int) -> list[int]:
    """Consumers that are sent away get what they did not acknowledge again: that is no double of the topic."""
    found = []
    while not found or found[-1] != last:
        message = consumer.receive(WAIT_MS)
        consumer.acknowledge(message)
        found.append(int(message.data()))
    return found


def test_clients_of_a_deleted_topic_continue_with_a_new_one(
    broker: RunningBroker, admin: httpx.Client, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    producer.send(b"of the old topic")
    before = record(Root.open(broker.root), topic).topic_id
    refused = admin.delete(path(topic))
    assert refused.status_code == 412
    assert "has producers" in refused.json()["reason"]
    assert admin.delete(path(topic), params={"force": "true"}).status_code == 204
    producer.send(b"of the new topic")
    after = record(Root.open(broker.root), topic).topic_id
    assert after != before
    fresh = client.subscribe(topic, "fresh", initial_position=pulsar.InitialPosition.Earliest)
    assert fresh.receive(WAIT_MS).data() == b"of the new topic"
    consumer.close()


def test_a_topic_deleted_by_the_command_line_is_gone_for_connected_clients_too(
    broker: RunningBroker, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    producer.send(b"of the old topic")
    root = Root.open(broker.root)
    before = record(root, topic).topic_id
    catalog.delete_topic(root.store, TopicName.parse(topic), force=True)

    def is_new() -> bool:
        producer.send(b"more")
        found = root.store.view().get(TopicRecord, TopicName.parse(topic).full)
        return found is not None and found.topic_id != before

    wait_until(is_new)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert reader.read_next(WAIT_MS).data() == b"more"
