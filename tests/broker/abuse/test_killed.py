"""A broker is killed again and again under load; its clients reconnect, note what they saw, and a judge reads it."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path

import pulsar
import pytest

from pulsar_on_spark.metadata.records import SubscriptionRecord
from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandAck,
    CommandFlow,
    CommandSubscribe,
    MessageIdData,
)
from pulsar_on_spark.testing.history import (
    ANY,
    BY_KEY,
    ORDERED,
    Acknowledged,
    History,
    Message,
    Order,
    Received,
    Restarted,
    Sent,
    violations,
)
from pulsar_on_spark.testing.pulsar_entries import read_entry
from pulsar_on_spark.testing.restarting_broker import RestartingBroker
from pulsar_on_spark.topic.root import Root
from tests.broker.clients.conftest import new_client
from tests.broker.clients.raw import answer_and_entry, command, connect
from tests.broker.clients.test_durable import stored

TOPIC = "orders"
KEYS = 7
CONFIRMED = "confirmed"
SUBSCRIPTIONS: dict[str, Order] = {
    "exclusive": ORDERED,
    "failover": ORDERED,
    "shared": ANY,
    "batches": ANY,
    "keys": BY_KEY,
    CONFIRMED: ORDERED,
}
CONSUMERS = [
    ("exclusive", pulsar.ConsumerType.Exclusive),
    ("failover", pulsar.ConsumerType.Failover),
    ("failover", pulsar.ConsumerType.Failover),
    ("shared", pulsar.ConsumerType.Shared),
    ("shared", pulsar.ConsumerType.Shared),
    ("batches", pulsar.ConsumerType.Shared),
    ("keys", pulsar.ConsumerType.KeyShared),
    ("keys", pulsar.ConsumerType.KeyShared),
]
PAUSE_S = 0.005
"""Between two sends of a producer: the load is that of slow machines, too."""
END_S = 120


def value_of(message: Message) -> bytes:
    return f"{message.producer} {message.number} {message.key}".encode()


def message_of(value: bytes) -> Message:
    producer, number, key = value.decode().split(" ")
    return Message(producer, int(number), key)


def produce(client: pulsar.Client, name: str, history: History, ended: threading.Event) -> None:
    """Send until told to stop, a number at a time; returns when all have their outcome."""
    # Batches would mix keys; those of Key_Shared are told apart by entry.
    producer = client.create_producer(
        TOPIC, name, send_timeout_millis=0, block_if_queue_full=True, batching_enabled=name == "batched"
    )
    for number in itertools.count(1):
        if ended.is_set():
            break
        message = Message(name, number, f"k{number % KEYS}" if name == "keyed" else "")
        history.note(Sent(message, stored=False))
        producer.send_async(
            value_of(message),
            lambda result, _, sent=message: history.note(Sent(sent, stored=result == pulsar.Result.Ok)),
            partition_key=message.key or None,
            sequence_id=number,
        )
        time.sleep(PAUSE_S)
    producer.flush()
    producer.close()


def consume(client: pulsar.Client, subscription: str, type_: pulsar.ConsumerType, history: History) -> pulsar.Consumer:
    """Note and acknowledge what comes, in the client's own thread."""

    def on_message(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        history.note(Received(subscription, message_of(message.data())))
        consumer.acknowledge(message)

    return client.subscribe(
        TOPIC,
        subscription,
        type_,
        initial_position=pulsar.InitialPosition.Earliest,
        message_listener=on_message,
        batch_index_ack_enabled=subscription == "batches",
    )


async def confirm(url: str, history: History) -> None:
    """An Exclusive consumer that waits for the receipt of each acknowledgement, which the Python client cannot."""
    subscribe = CommandSubscribe(
        topic=TOPIC,
        subscription=CONFIRMED,
        subType=CommandSubscribe.Exclusive,
        initialPosition=CommandSubscribe.Earliest,
        consumer_id=1,
        request_id=1,
    )
    while True:
        try:
            await _confirm(url, subscribe, history)
        except (OSError, EOFError):
            await asyncio.sleep(0.1)  # the broker is gone: the next one is on its way


async def _confirm(url: str, subscribe: CommandSubscribe, history: History) -> None:
    reader, writer = await connect(url)
    asked: dict[int, list[Message]] = {}
    requests = itertools.count(2)
    writer.write(command("SUBSCRIBE", subscribe=subscribe))
    while True:
        said, entry = await answer_and_entry(reader)
        match said.type:
            case BaseCommand.SUCCESS:
                writer.write(command("FLOW", flow=CommandFlow(consumer_id=1, messagePermits=1_000_000)))
            case BaseCommand.MESSAGE:
                messages = [message_of(each.value or b"") for each in read_entry(entry)]
                for message in messages:
                    history.note(Received(CONFIRMED, message))
                asked[request := next(requests)] = messages
                where = MessageIdData(
                    ledgerId=said.message.message_id.ledgerId, entryId=said.message.message_id.entryId
                )
                ack = CommandAck(consumer_id=1, ack_type=CommandAck.Individual, message_id=[where], request_id=request)
                writer.write(command("ACK", ack=ack))
            case BaseCommand.ACK_RESPONSE:
                for message in asked.pop(said.ackResponse.request_id):
                    if not said.ackResponse.HasField("error"):
                        history.note(Acknowledged(CONFIRMED, message))
            case BaseCommand.ERROR | BaseCommand.CLOSE_CONSUMER:
                # The one before is still being missed, or the topic not there yet.
                writer.close()
                raise EOFError(said)
            case _:
                pass


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + END_S
    while not is_so():
        assert time.monotonic() < until_s, f"{what} did not happen in {END_S} s"
        time.sleep(0.05)


def killed(root: Path, kills: int, deduplicated: bool) -> None:
    """Kill a broker so many times under three producers and nine consumers, and read what they noted."""
    history = History()
    with ExitStack() as at_end:
        broker = at_end.enter_context(RestartingBroker(root, {"broker_deduplication_enabled": deduplicated}))
        clients = [new_client(broker.url) for _ in range(3)]
        for client in clients:
            at_end.callback(client.shutdown)  # close would wait for what never comes
        all_read, enough = threading.Event(), threading.Event()
        at_end.callback(all_read.set)
        at_end.callback(enough.set)
        for subscription, type_ in CONSUMERS:
            consume(clients[0 if type_ == pulsar.ConsumerType.Exclusive else 1], subscription, type_, history)
        confirming = threading.Thread(target=asyncio.run, args=(until(all_read, confirm(broker.url, history)),))
        confirming.start()
        wait_until(lambda: CONFIRMED in subscriptions_of(root), "the confirming consumer's subscription")
        producing = [
            threading.Thread(target=produce, args=(clients[2], name, history, enough), daemon=True)
            for name in ("plain", "batched", "keyed")
        ]
        for thread in producing:
            thread.start()
        for _ in range(kills):
            wait_for_progress(history, random.randrange(20, 300))
            broker.kill()
            history.note(Restarted())
        wait_for_progress(history, 1)
        enough.set()
        for thread in producing:
            thread.join(END_S)
        settle(lambda: all(history.is_all_received(name) for name in SUBSCRIPTIONS))
        all_read.set()
        confirming.join(END_S)
        for client in clients:
            client.close()
        assert broker.stop() == 0
    kept = [message_of(value or b"") for value in stored(root, TOPIC)]
    events = history.events()
    found = violations(events, SUBSCRIPTIONS, kept, deduplicated)
    assert not found, f"{len(found)} violations, {found[:10]}"
    assert sum(isinstance(event, Acknowledged) for event in events) > kills


def wait_for_progress(history: History, messages: int) -> None:
    wanted = history.stored_count() + messages
    wait_until(lambda: history.stored_count() >= wanted, f"{messages} more messages")


def subscriptions_of(root: Path) -> set[str]:
    return {record.name for record in Root.open(root).store.view().all(SubscriptionRecord)}


async def until(ended: threading.Event, work: Coroutine[object, object, None]) -> None:
    async with asyncio.TaskGroup() as group:  # which tells of errors
        task = group.create_task(work)
        group.create_task(asyncio.to_thread(ended.wait)).add_done_callback(lambda _: task.cancel())


def settle(is_so: Callable[[], bool]) -> None:
    """Wait, too; what is missing in the end is for the judge to name."""
    until_s = time.monotonic() + END_S
    while not is_so() and time.monotonic() < until_s:
        time.sleep(0.05)


def test_a_broker_that_is_killed_under_load(tmp_path: Path) -> None:
    killed(tmp_path / "root", kills=2, deduplicated=True)


@pytest.mark.soak
@pytest.mark.parametrize("deduplicated", [False, True])
def test_a_broker_that_is_killed_fifty_times_under_load(tmp_path: Path, deduplicated: bool) -> None:
    killed(tmp_path / "root", kills=50, deduplicated=deduplicated)
