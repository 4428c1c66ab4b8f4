"""Producers and consumers of all subscription types, which reconnect by themselves and note what they see."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from threading import Event

import pulsar

from pulsar_on_spark.protocol.commands import BaseCommand, CommandAck, CommandSubscribe, MessageIdData
from tests.broker.clients.raw import answer_and_entry, command, consuming
from tests.broker.cluster.disturbed.topics import (
    KEYS,
    LARGE,
    MAX_MESSAGE_BYTES,
    ORDERS,
    PARTITIONS,
    SPREAD,
    SUBSCRIPTIONS,
    WHOLE,
    message_of,
    value_of,
)
from tests.kit.client_programs import ClientProgram
from tests.kit.history import (
    BY_KEY,
    ORDERED,
    Acknowledged,
    Discarded,
    Expired,
    History,
    Message,
    Order,
    Received,
    Sent,
)
from tests.kit.pulsar_entries import read_entry

CONFIRMED = {
    "confirmed": (CommandSubscribe.Exclusive, CommandAck.Individual),
    "confirmed up to": (CommandSubscribe.Failover, CommandAck.Cumulative),
    "confirmed one by one": (CommandSubscribe.Shared, CommandAck.Individual),
}
"""Subscriptions of which each acknowledgement's receipt is waited for; a Shared one's are of a batch's indexes."""
CONSUMERS = [
    (ORDERS, "exclusive", pulsar.ConsumerType.Exclusive),
    (ORDERS, "failover", pulsar.ConsumerType.Failover),
    (ORDERS, "failover", pulsar.ConsumerType.Failover),
    (ORDERS, "shared", pulsar.ConsumerType.Shared),
    (ORDERS, "shared", pulsar.ConsumerType.Shared),
    (ORDERS, "batches", pulsar.ConsumerType.Shared),
    (ORDERS, "keys", pulsar.ConsumerType.KeyShared),
    (ORDERS, "keys", pulsar.ConsumerType.KeyShared),
    (SPREAD, "each partition", pulsar.ConsumerType.Exclusive),
    (LARGE, WHOLE, pulsar.ConsumerType.Exclusive),
]
PRODUCERS = {"plain": ORDERS, "batched": ORDERS, "keyed": ORDERS, "spread": SPREAD, "chunked": LARGE}
SUBSCRIPTIONS_OF_PROGRAM: Mapping[str, Order] = {"failover": ORDERED, "keys": BY_KEY}
PRODUCERS_OF_PROGRAM = 2
GRANT = 4
"""Messages that a producer of a program may send in 50 ms."""
PADDING = b"." * (2 * MAX_MESSAGE_BYTES)
"""Makes three chunks of a message."""
PAUSE_S = 0.005
"""Between two sends of a producer: the load is that of slow machines, too. Chunked ones are rarer."""
MAX_BEHIND = 2_000
"""Messages that producers send ahead of their receipts, and of the slowest subscription: the kills come too fast for
consumers that begin again with a growing backlog each time."""
DROPPED: Mapping[type[Discarded | Expired], re.Pattern[str]] = {
    Discarded: re.compile(r"Received a chunk whose chunk id is invalid \(uuid: chunked-(\d+) "),
    Expired: re.compile(r"Removing expired chunk messages: uuid: chunked-(\d+),"),
}
"""Log lines of `pulsar-client`: it drops a message whose first chunk is redelivered (`raw_chunks`), and acknowledges
what it has of a message whose chunks have not all come in one to two minutes."""


def produce(client: pulsar.Client, name: str, history: History, ended: Event) -> None:
    """Send until told to stop, a number at a time; returns when all have their outcome."""
    is_chunked = name == "chunked"
    outcomes: list[pulsar.Result] = []

    def on_outcome(sent: Message, result: pulsar.Result) -> None:
        outcomes.append(result)
        history.note(Sent(sent, stored=result == pulsar.Result.Ok))

    # Batches would mix keys; Key_Shared distinguishes them by entry.
    producer = client.create_producer(
        PRODUCERS[name],
        name,
        send_timeout_millis=0,
        # The C++ client blocks for good where chunks fill its queue while it is not connected.
        max_pending_messages=100_000,
        max_pending_messages_across_partitions=PARTITIONS * 100_000,
        block_if_queue_full=True,
        batching_enabled=name == "batched",
        chunking_enabled=is_chunked,
    )
    for number in itertools.count(1):
        while not ended.is_set() and (
            number - len(outcomes) > MAX_BEHIND or history.behind(SUBSCRIPTIONS[PRODUCERS[name]]) > MAX_BEHIND
        ):
            time.sleep(PAUSE_S)
        if ended.is_set():
            break
        message = Message(name, number, f"k{number % KEYS}" if name in ("keyed", "spread") else "")
        history.note(Sent(message, stored=False))
        producer.send_async(
            value_of(message) + (b" " + PADDING if is_chunked else b""),
            lambda result, _, sent=message: on_outcome(sent, result),
            partition_key=message.key or None,
            sequence_id=number,
        )
        time.sleep(PAUSE_S * (20 if is_chunked else 1))
    producer.flush()
    producer.close()


def consume(
    client: pulsar.Client, topic: str, subscription: str, type_: pulsar.ConsumerType, history: History
) -> pulsar.Consumer:
    """Note and acknowledge what comes, in the client's own thread."""

    def on_message(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        history.note(Received(subscription, message_of(message.data())))
        consumer.acknowledge(message)

    return client.subscribe(
        topic,
        subscription,
        type_,
        initial_position=pulsar.InitialPosition.Earliest,
        message_listener=on_message,
        batch_index_ack_enabled=subscription == "batches",
    )


async def confirm(url_of: Callable[[str], str], subscription: str, history: History) -> None:
    """A consumer that waits for the receipt of each acknowledgement, which the Python client cannot."""
    while True:
        try:
            await _confirm(await asyncio.to_thread(url_of, ORDERS), subscription, history)
        except (OSError, EOFError):
            # The broker is gone, the consumer before is still being missed, or the topic is not there yet.
            await asyncio.sleep(0.1)


async def _confirm(url: str, subscription: str, history: History) -> None:
    type_, ack_type = CONFIRMED[subscription]
    reader, writer = await consuming(url, ORDERS, subscription, type_)
    asked: dict[int, list[Message]] = {}
    requests = itertools.count(2)
    while True:
        said, entry = await answer_and_entry(reader)
        match said.type:
            case BaseCommand.MESSAGE:
                messages = [message_of(each.value or b"") for each in read_entry(entry)]
                given = indexes(said.message.ack_set, len(messages))
                for index in given:
                    history.note(Received(subscription, messages[index]))
                is_by_index = type_ == CommandSubscribe.Shared and len(messages) > 1
                for acked in [[index] for index in given] if is_by_index else [given]:
                    asked[request := next(requests)] = [messages[index] for index in acked]
                    where = MessageIdData(
                        ledgerId=said.message.message_id.ledgerId,
                        entryId=said.message.message_id.entryId,
                        ack_set=all_but(acked[0], len(messages)) if is_by_index else (),
                    )
                    ack = CommandAck(consumer_id=1, ack_type=ack_type, message_id=[where], request_id=request)
                    if not writer.is_closing():
                        writer.write(command("ACK", ack=ack))
            case BaseCommand.ACK_RESPONSE:
                for message in asked.pop(said.ackResponse.request_id):
                    if not said.ackResponse.HasField("error"):
                        history.note(Acknowledged(subscription, message))
            case BaseCommand.ERROR | BaseCommand.CLOSE_CONSUMER:
                writer.close()
                raise EOFError(said)
            case _:
                pass


def indexes(ack_set: Sequence[int], count: int) -> list[int]:
    """The messages of a batch that a delivery is about: those whose bits are set, or all."""
    return [index for index in range(count) if not ack_set or ack_set[index // 64] >> index % 64 & 1]


def all_but(index: int, count: int) -> list[int]:
    """The words, as signed numbers, of a batch in which one message is acknowledged."""
    bits = ((1 << count) - 1) & ~(1 << index)
    words = bits.to_bytes(-(-count // 64) * 8, "little")
    return [int.from_bytes(words[at : at + 8], "little", signed=True) for at in range(0, len(words), 8)]


def note_line(history: History, word: str, rest: str) -> None:
    """Note what a program says."""
    if word == "received":
        subscription, _, value = rest.partition(" ")
        history.note(Received(subscription, message_of(value.encode())))
    else:
        history.note(Sent(message_of(rest.encode()), stored=word == "stored"))


def grant(programs: Sequence[ClientProgram], history: History, subscriptions: Iterable[str], ended: Event) -> None:
    """Let programs send until told to stop, and wait for their receipts."""
    while not ended.wait(0.05):
        unstored = sum(PRODUCERS_OF_PROGRAM * program.granted for program in programs) - history.stored_count()
        if max(unstored, history.behind(subscriptions)) <= MAX_BEHIND:
            for program in programs:
                program.grant(GRANT)
    for program in programs:
        program.end_sending()


def text_of(log: Path) -> str:
    """Read a log of a client, which may show bytes that are no text."""
    return log.read_text(errors="backslashreplace")


def note_dropped(log: Path, history: History, noted: set[Discarded | Expired]) -> None:
    """Note what the client that reads the large messages says to have dropped."""
    text = text_of(log)
    said = {
        kind(WHOLE, Message("chunked", int(number))) for kind, line in DROPPED.items() for number in line.findall(text)
    }
    for event in said - noted:
        history.note(event)
    noted |= said
