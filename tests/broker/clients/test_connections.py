"""Connections of a broker: keep-alive, limits, invalid data, and the broker's shutdown."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pulsar
import pytest
from google.protobuf.message import Message

from pulsar_on_spark.metadata.records import IncarnationRecord, TopicRecord
from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandAddPartitionToTxn,
    CommandAddSubscriptionToTxn,
    CommandConsumerStats,
    CommandEndTxn,
    CommandFlow,
    CommandNewTxn,
    CommandPartitionedTopicMetadata,
    CommandPing,
    CommandPong,
    CommandProducer,
    CommandSubscribe,
    CommandTcClientConnectRequest,
    ServerError,
)
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.managed_ledger.incarnation.dead_brokers import recover_incarnation
from tests.broker.clients.raw import answer, answer_of, command, connect
from tests.kit.running_broker import RunningBroker

LIMIT_S = 60


def test_silence_is_asked_about_and_then_hung_up_on(tmp_path: Path) -> None:
    async def be_silent() -> None:
        reader, _writer = await connect(broker.url)
        assert (await answer(reader)).type == BaseCommand.PING
        assert await reader.read() == b""

    async def be_lively() -> None:
        reader, writer = await connect(broker.url)
        for _ in range(5):
            assert (await answer(reader)).type == BaseCommand.PING
            writer.write(command("PONG", pong=CommandPong()))

    async def scene() -> None:
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            group.create_task(be_silent())
            group.create_task(be_lively())

    with RunningBroker(tmp_path / "root", {"keep_alive_interval_seconds": 1}) as broker:
        asyncio.run(scene())


def test_a_connection_beyond_the_limit_is_turned_away(tmp_path: Path) -> None:
    async def scene() -> None:
        first = await connect(broker.url)
        host, _, port = broker.url.removeprefix("pulsar://").partition(":")
        reader, _ = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(LIMIT_S):
            said = (await answer(reader)).error
            assert (said.request_id, said.error) == (2**64 - 1, ServerError.NotAllowedError)
            assert await reader.read() == b""
        first[1].close()

    with RunningBroker(tmp_path / "root", {"broker_max_connections": 1}) as broker:
        asyncio.run(scene())


@pytest.mark.parametrize("nonsense", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x06\0\0\0\x02\xff\xff", b"\xff" * 64])
def test_nonsense_ends_its_own_connection_only(broker: RunningBroker, nonsense: bytes) -> None:
    async def scene() -> None:
        other, other_writer = await connect(broker.url)
        for reader, writer in (await connect(broker.url), await plain()):
            writer.write(nonsense)
            async with asyncio.timeout(LIMIT_S):
                assert await reader.read() == b""
        other_writer.write(command("PING", ping=CommandPing()))
        async with asyncio.timeout(LIMIT_S):
            assert (await answer(other)).type == BaseCommand.PONG

    async def plain() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = broker.url.removeprefix("pulsar://").partition(":")
        return await asyncio.open_connection(host, int(port))

    asyncio.run(scene())


def test_a_closed_connection_makes_room_for_the_next(broker: RunningBroker, topic: str) -> None:
    """An Exclusive subscription and a producer's name are held by a client that no longer answers."""

    async def scene() -> None:
        wanted = CommandSubscribe(
            topic=topic, subscription="s", subType=CommandSubscribe.Exclusive, consumer_id=1, request_id=1
        )
        named = CommandProducer(
            topic=topic, producer_id=1, request_id=2, producer_name="me", user_provided_producer_name=True
        )
        frames = command("SUBSCRIBE", subscribe=wanted), command("PRODUCER", producer=named)
        types = (BaseCommand.SUCCESS, BaseCommand.PRODUCER_SUCCESS)
        _gone, gone_writer = await connect(broker.url)
        for frame, type_ in zip(frames, types, strict=True):
            gone_writer.write(frame)
            assert (await answer(_gone)).type == type_
        for frame, type_ in zip(frames, types, strict=True):
            reader, writer = await connect(broker.url)
            writer.write(frame)
            async with asyncio.timeout(LIMIT_S):
                assert (await answer(reader)).type == type_

    asyncio.run(scene())


def test_transactions_are_refused_and_leave_no_topic(broker: RunningBroker) -> None:
    async def scene() -> None:
        reader, writer = await connect(broker.url)
        name = "persistent://pulsar/system/transaction_coordinator_assign"
        asked = CommandPartitionedTopicMetadata(topic=name, request_id=1)
        writer.write(command("PARTITIONED_METADATA", partitionMetadata=asked))
        async with asyncio.timeout(LIMIT_S):
            assert (await answer(reader)).partitionMetadataResponse.partitions == 0
            connecting = CommandTcClientConnectRequest(request_id=2, tc_id=0)
            writer.write(command("TC_CLIENT_CONNECT_REQUEST", tcClientConnectRequest=connecting))
            assert (await answer(reader)).error.error == ServerError.NotAllowedError

    asyncio.run(scene())
    names = [topic.name for topic in Root.open(broker.root).store.view().all(TopicRecord)]
    assert not [name for name in names if "/system/" in name]


def test_a_broker_that_was_taken_over_exits(tmp_path: Path) -> None:
    running = RunningBroker(tmp_path / "root")
    root = Root.open(tmp_path / "root")
    (record,) = root.store.view().all(IncarnationRecord)
    recover_incarnation(root, IncarnationId(record.incarnation))
    until_s = time.monotonic() + LIMIT_S
    assert running.wait() == 1
    assert time.monotonic() < until_s
    assert "was taken over): start it again." in running.said


@pytest.mark.parametrize(
    ("type_", "field", "body"),
    [
        ("NEW_TXN", "newTxn", CommandNewTxn(request_id=3)),
        ("ADD_PARTITION_TO_TXN", "addPartitionToTxn", CommandAddPartitionToTxn(request_id=3)),
        ("ADD_SUBSCRIPTION_TO_TXN", "addSubscriptionToTxn", CommandAddSubscriptionToTxn(request_id=3)),
        ("END_TXN", "endTxn", CommandEndTxn(request_id=3)),
    ],
)
def test_each_request_of_a_transaction_is_refused_by_its_own_answer(
    broker: RunningBroker, type_: str, field: str, body: Message
) -> None:
    async def scene() -> None:
        reader, writer = await connect(broker.url)
        writer.write(command(type_, **{field: body}))
        refused = getattr(await answer_of(reader, f"{type_}_RESPONSE"), f"{field}Response")
        assert (refused.request_id, refused.error) == (3, ServerError.NotAllowedError)
        assert "Transactions are not supported" in refused.message
        writer.close()

    asyncio.run(asyncio.wait_for(scene(), LIMIT_S))


def test_a_client_may_ask_about_its_consumer(broker: RunningBroker, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    for number in range(3):
        producer.send(b"%d" % number)

    async def scene() -> None:
        reader, writer = await connect(broker.url)
        wanted = CommandSubscribe(
            topic=topic,
            subscription="s",
            subType=CommandSubscribe.Shared,
            consumer_id=7,
            consumer_name="asking",
            request_id=1,
            initialPosition=CommandSubscribe.Earliest,
        )
        writer.write(command("SUBSCRIBE", subscribe=wanted))
        await answer_of(reader, "SUCCESS")
        writer.write(command("FLOW", flow=CommandFlow(consumer_id=7, messagePermits=2)))
        for _ in range(2):
            await answer_of(reader, "MESSAGE")
        for number, consumer_id in ((2, 7), (3, 8)):
            asked = CommandConsumerStats(request_id=number, consumer_id=consumer_id)
            writer.write(command("CONSUMER_STATS", consumerStats=asked))
        found, other = [(await answer_of(reader, "CONSUMER_STATS_RESPONSE")).consumerStatsResponse for _ in range(2)]
        assert (found.request_id, found.consumerName, found.type) == (2, "asking", "Shared")
        assert (found.availablePermits, found.unackedMessages, found.msgBacklog) == (0, 2, 3)
        assert (other.request_id, other.error_code) == (3, ServerError.ConsumerNotFound)
        writer.close()

    asyncio.run(asyncio.wait_for(scene(), LIMIT_S))
