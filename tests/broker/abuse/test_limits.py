"""Limits of clients' requests: each limit refuses one request, and other clients do not notice."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pulsar
import pytest
from google.protobuf.message import Message

from pulsar_on_spark.broker.connection.registry import MAX_SLOW_HANDSHAKES_PER_ADDRESS
from pulsar_on_spark.broker.handlers.acknowledging import IDS_AT_ONCE
from pulsar_on_spark.broker.topics.creation_rate import MAX_PER_CLIENT_S
from pulsar_on_spark.metadata.records import SubscriptionRecord, TopicRecord
from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandAck,
    CommandCloseConsumer,
    CommandFlow,
    CommandLookupTopic,
    CommandProducer,
    CommandSend,
    CommandSubscribe,
    IntRange,
    KeySharedMeta,
    KeySharedMode,
    KeyValue,
    MessageIdData,
    ServerError,
)
from pulsar_on_spark.protocol.entry_frame import MAX_MESSAGES_IN_ENTRY
from pulsar_on_spark.protocol.frames import frame_of
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.maintenance.status import view_with_journals
from tests.broker.clients.conftest import WAIT_MS, new_client
from tests.broker.clients.raw import answer, answer_of, command, connect
from tests.kit import messages
from tests.kit.pulsar_entries import ClientMessage, batch_bomb, single_entry
from tests.kit.running_broker import RunningBroker

LIMIT_S = 60
Scene = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with RunningBroker(tmp_path_factory.mktemp("limits") / "root") as running:
        yield running


def play(broker: RunningBroker, scene: Scene, client_version: str = "raw") -> None:
    async def connected() -> None:
        reader, writer = await connect(broker.url, client_version)
        await scene(reader, writer)
        writer.close()

    asyncio.run(asyncio.wait_for(connected(), LIMIT_S))


def send(sequence_id: int, messages: int, entry: bytes) -> bytes:
    body = CommandSend(producer_id=1, sequence_id=sequence_id, num_messages=messages)
    serialized = BaseCommand(type=BaseCommand.SEND, send=body).SerializeToString()
    return frame_of(serialized, len(entry)) + entry


@pytest.mark.parametrize(
    ("client_version", "error"),
    [("raw", ServerError.NotAllowedError), ("Pulsar-CPP-v4.0.0", ServerError.ChecksumError)],
)
def test_a_batch_of_too_many_messages_is_refused_alone(
    broker: RunningBroker, client_version: str, error: ServerError
) -> None:
    async def scene(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wanted = CommandProducer(topic="too-many", producer_id=1, request_id=1)
        writer.write(command("PRODUCER", producer=wanted))
        await answer_of(reader, "PRODUCER_SUCCESS")
        good = single_entry(ClientMessage(b"good"))
        writer.write(send(0, 1, good) + send(1, MAX_MESSAGES_IN_ENTRY + 1, batch_bomb(10)) + send(2, 1, good))
        said = [await answer(reader) for _ in range(3)]
        assert [each.type for each in said] == [
            BaseCommand.SEND_RECEIPT,
            BaseCommand.SEND_ERROR,
            BaseCommand.SEND_RECEIPT,
        ]
        assert (said[1].send_error.sequence_id, said[1].send_error.error) == (1, error)
        assert said[1].send_error.message == (
            "The batch has 100001 messages, at most 100000 fit: send smaller batches."
        )

    play(broker, scene, client_version)


# -- before CONNECTED --------------------------------------------------------------------------------------------------


async def plain(broker: RunningBroker) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = broker.url.removeprefix("pulsar://").partition(":")
    return await asyncio.open_connection(host, int(port))


async def is_hung_up_on(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


ACKS = b"\x08\x01\x10\x00" + b"\x1a\x04\x08\x01\x10\x01" * 20_000


@pytest.mark.parametrize(
    "first",
    [
        (5 << 20).to_bytes(4, "big") + (100).to_bytes(4, "big"),
        frame_of(b"\x08\x0a\x52" + bytes((0x84, 0xA9, 0x07)) + ACKS),
        command("PING", ping={}),
    ],
    ids=["a large frame", "another command", "a ping"],
)
def test_a_client_may_only_send_connect_before_it_is_connected(broker: RunningBroker, first: bytes) -> None:
    async def scene() -> None:
        reader, writer = await plain(broker)
        writer.write(first)
        assert await is_hung_up_on(reader)

    asyncio.run(asyncio.wait_for(scene(), LIMIT_S))


def test_a_client_that_does_not_connect_in_time_is_disconnected(tmp_path: Path) -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write((1_000).to_bytes(4, "big") + (900).to_bytes(4, "big"))
        while True:
            writer.write(b"\x08")
            await writer.drain()
            await asyncio.sleep(0.05)

    async def scene() -> None:
        known, known_writer = await connect(broker.url)
        silent, dripping = await plain(broker), await plain(broker)
        dripped = asyncio.create_task(drip(dripping[1]))
        assert await is_hung_up_on(silent[0])
        assert await is_hung_up_on(dripping[0])
        dripped.cancel()
        known_writer.write(command("PING", ping={}))
        assert (await answer(known)).type == BaseCommand.PONG

    with RunningBroker(tmp_path / "root", {"connection_handshake_timeout_seconds": 2}) as broker:
        asyncio.run(asyncio.wait_for(scene(), LIMIT_S))
    assert "its handshake took longer than 2 s" in broker.said


def test_unconnected_clients_of_one_address_are_limited(broker: RunningBroker) -> None:
    async def scene() -> None:
        held = [await plain(broker) for _ in range(MAX_SLOW_HANDSHAKES_PER_ADDRESS)]
        reader, _ = await plain(broker)
        refused = (await answer(reader)).error
        assert (refused.error, refused.message) == (
            ServerError.ServiceNotReady,
            "100 clients from 127.0.0.1 are being connected: try again.",
        )
        assert await is_hung_up_on(reader)
        for _, writer in held:
            writer.close()
            await writer.wait_closed()
        while True:
            try:
                _, writer = await connect(broker.url)
            except (AssertionError, asyncio.IncompleteReadError, ConnectionError):
                continue
            writer.close()
            return

    asyncio.run(asyncio.wait_for(scene(), LIMIT_S))


# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "is_refused"), [(50_000, False), (50_001, True), (180_000, True)], ids=["most", "more", "megabytes"]
)
def test_message_ids_of_an_acknowledgement_are_limited(broker: RunningBroker, ids: int, is_refused: bool) -> None:
    async def scene() -> None:
        reader, writer = await connect(broker.url)
        message_ids = [MessageIdData(ledgerId=1, entryId=1)] * ids
        writer.write(
            command("ACK", ack=CommandAck(consumer_id=1, ack_type=CommandAck.Individual, message_id=message_ids))
        )
        writer.write(command("PING", ping={}))
        if is_refused:
            assert await is_hung_up_on(reader)
        else:
            assert (await answer(reader)).type == BaseCommand.PONG
        writer.close()

    asyncio.run(asyncio.wait_for(scene(), LIMIT_S))


def test_a_long_acknowledgement_is_applied_before_its_clients_next_command(broker: RunningBroker) -> None:
    count, kept = 2 * IDS_AT_ONCE + 500, 7

    async def subscribe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wanted = CommandSubscribe(
            topic="long",
            subscription="s",
            subType=CommandSubscribe.Shared,
            consumer_id=1,
            request_id=1,
            initialPosition=CommandSubscribe.Earliest,
        )
        writer.write(command("SUBSCRIBE", subscribe=wanted))
        while (await answer_of(reader, "SUCCESS")).success.request_id != wanted.request_id:
            pass
        writer.write(command("FLOW", flow=CommandFlow(consumer_id=1, messagePermits=2 * count)))

    async def scene(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(command("PRODUCER", producer=CommandProducer(topic="long", producer_id=1, request_id=1)))
        await answer_of(reader, "PRODUCER_SUCCESS")
        await subscribe(reader, writer)
        writer.write(b"".join(send(number, 1, single_entry(ClientMessage(b"x"))) for number in range(count)))
        ids = [(await answer_of(reader, "MESSAGE")).message.message_id for _ in range(count)]
        acked = CommandAck(consumer_id=1, ack_type=CommandAck.Individual, message_id=ids[: count - kept], request_id=5)
        close = CommandCloseConsumer(consumer_id=1, request_id=6)
        writer.write(command("ACK", ack=acked) + command("CLOSE_CONSUMER", close_consumer=close))
        response = (await answer_of(reader, "ACK_RESPONSE")).ackResponse
        assert (response.request_id, response.HasField("error")) == (5, False)
        await subscribe(reader, writer)
        again = [(await answer_of(reader, "MESSAGE")).message.message_id for _ in range(kept)]
        assert again == ids[count - kept :]

    play(broker, scene)


# -- names -------------------------------------------------------------------------------------------------------------

LONG = "n" * 1_025
MANY = [KeyValue(key=str(number), value="v") for number in range(65)]


def subscribing(**changed: object) -> CommandSubscribe:
    given = {"topic": "names", "subscription": "s", "subType": CommandSubscribe.Shared, "consumer_id": 1}
    return CommandSubscribe(request_id=1, **(given | changed))


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        ("PRODUCER", CommandProducer(topic=LONG, producer_id=1, request_id=1), "Topic name"),
        ("PRODUCER", CommandProducer(topic=f"non-persistent://public/default/{LONG}", producer_id=1, request_id=1), ""),
        ("PRODUCER", CommandProducer(topic="names", producer_id=1, request_id=1, producer_name=LONG), "Producer name"),
        ("PRODUCER", CommandProducer(topic="names", producer_id=1, request_id=1, metadata=MANY), "65 properties"),
        ("SUBSCRIBE", subscribing(subscription=LONG), "Subscription name"),
        ("SUBSCRIBE", subscribing(subscription=LONG, durable=False), "Subscription name"),
        ("SUBSCRIBE", subscribing(consumer_name=LONG), "Consumer name"),
        ("SUBSCRIBE", subscribing(subscription_properties=MANY), "65 properties"),
        ("SUBSCRIBE", subscribing(metadata=[KeyValue(key="k", value="v" * 16_384)]), "16385 bytes"),
        ("SUBSCRIBE", subscribing(subscription="a\u202eb"), "bidirectional marks"),
        ("LOOKUP", CommandLookupTopic(topic="a/" * 50_000, request_id=1), ""),
    ],
    ids=itertools.count(),
)
def test_names_and_properties_are_bounded(broker: RunningBroker, kind: str, body: Message, why: str) -> None:
    field = {"PRODUCER": "producer", "SUBSCRIBE": "subscribe", "LOOKUP": "lookupTopic"}[kind]

    async def scene(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(command(kind, **{field: body}))
        said = await answer(reader)
        refused = said.lookupTopicResponse if kind == "LOOKUP" else said.error
        assert refused.request_id == 1
        assert why in refused.message
        assert 0 < len(refused.message) <= 4_096
        writer.write(command("PING", ping={}))
        assert (await answer(reader)).type == BaseCommand.PONG

    play(broker, scene)
    view = Root.open(broker.root).store.view()
    assert all(len(topic.name) < 1_100 for topic in view.all(TopicRecord))
    assert all(len(each.name) < 1_100 and not each.properties for each in view.all(SubscriptionRecord))


def test_topics_are_created_only_so_fast(broker: RunningBroker) -> None:
    """Five thousand took a second, and stayed in the metadata for good."""
    count = 3 * MAX_PER_CLIENT_S * 10

    async def scene(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = (CommandProducer(topic=f"flood-{n}", producer_id=n, request_id=n) for n in range(count))
        writer.write(b"".join(command("PRODUCER", producer=each) for each in asked))
        refused = await answer_of(reader, "ERROR")
        assert refused.error.error == ServerError.TooManyRequests

    play(broker, scene)
    topics = [topic for topic in Root.open(broker.root).store.view().all(TopicRecord) if "/flood-" in topic.name]
    assert len(topics) < 2 * count // 3


@pytest.mark.parametrize(("count", "error"), [(1_000, None), (1_001, ServerError.ConsumerAssignError)])
def test_hash_ranges_of_a_consumer_are_limited(broker: RunningBroker, count: int, error: ServerError | None) -> None:
    ranges = [IntRange(start=2 * number, end=2 * number) for number in range(count)]
    meta = KeySharedMeta(keySharedMode=KeySharedMode.STICKY, hashRanges=ranges)
    body = subscribing(topic="ranges", subType=CommandSubscribe.Key_Shared, keySharedMeta=meta)

    async def scene(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(command("SUBSCRIBE", subscribe=body))
        said = await answer(reader)
        assert (said.error.error if said.type == BaseCommand.ERROR else None) == error

    play(broker, scene)


def test_subscriptions_are_created_only_so_fast(broker: RunningBroker) -> None:
    """Each stays in the metadata until it is deleted."""
    count = 15 * MAX_PER_CLIENT_S

    async def scene(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(count):
            wanted = subscribing(topic="many", subscription=f"s{number}", consumer_id=number)
            writer.write(command("SUBSCRIBE", subscribe=wanted))
        refused = await answer_of(reader, "ERROR")
        assert refused.error.error == ServerError.TooManyRequests

    play(broker, scene)


# -- official clients --------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_large_batches_of_official_clients_are_delivered_and_read_from_the_journal(broker: RunningBroker) -> None:
    count = 20_000
    client = new_client(broker.url)
    consumer = client.subscribe("large", "s", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer(
        "large",
        batching_enabled=True,
        batching_max_messages=count,
        batching_max_allowed_size_in_bytes=5 << 20,
        batching_max_publish_delay_ms=60_000,
        max_pending_messages=count,
        compression_type=pulsar.CompressionType.ZSTD,
    )
    for _ in range(count):
        producer.send_async(b"x", lambda *_: None)
    producer.flush()
    found = [consumer.receive(WAIT_MS) for _ in range(count)]
    client.close()
    assert {each.message_id().entry_id() for each in found} == {0}, "one batch"
    root = Root.open(broker.root)
    assert [
        each.value
        for each in messages.read(root, "large", view=view_with_journals(root, root.store.view(durable=True)))
    ] == [b"x"] * count
