"""The broker's memory stays within its bounds, whatever clients do: clients of raw sockets, as rude as it gets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest

from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandFlow,
    CommandProducer,
    CommandSend,
    CommandSubscribe,
)
from pulsar_on_spark.protocol.frames import frame_of
from tests.broker.clients.raw import answer, command, connect
from tests.kit.pulsar_entries import ClientMessage, single_entry
from tests.kit.running_broker import RunningBroker

MIB = 1 << 20
SETTINGS = {"managed_ledger_cache_size_mb": 32, "max_message_publish_buffer_size_mb": 32}
"""Beside these 64 MiB the journal has up to 64 MiB on its way, and the allocator keeps what it had at the peak."""
GROWTH_BYTES = 256 * MIB
PRODUCERS = 1_000
CONNECTING = asyncio.Semaphore(50)
"""Of one address, a broker refuses the hundredth client that takes a second to connect."""
ENTRY = single_entry(ClientMessage(b"x" * 32_000))


async def produce(url: str, topic: str, count: int, sent: Callable[[], None]) -> None:
    """Send without waiting for receipts, which are read all the same; until `count` of these are there."""
    async with CONNECTING:
        reader, writer = await connect(url)
    asked = CommandProducer(topic=topic, producer_id=1, request_id=1)
    writer.write(command("PRODUCER", producer=asked))
    assert (await answer(reader)).type == BaseCommand.PRODUCER_SUCCESS

    async def send() -> None:
        for number in range(count):
            send = CommandSend(producer_id=1, sequence_id=number, num_messages=1)
            head = BaseCommand(type=BaseCommand.SEND, send=send).SerializeToString()
            writer.write(frame_of(head, len(ENTRY)) + ENTRY)
            await writer.drain()

    sending = asyncio.create_task(send())
    receipts = 0
    while receipts < count:
        if (await answer(reader)).type == BaseCommand.SEND_RECEIPT:
            receipts += 1
            sent()
    await sending
    writer.close()


async def watched(pid: int, work: Coroutine[Any, Any, None]) -> int:
    """The most that the process's memory grew meanwhile."""
    process = psutil.Process(pid)
    before = peak = process.memory_info().rss
    task = asyncio.create_task(work)
    while not task.done():
        peak = max(peak, process.memory_info().rss)
        await asyncio.wait((task,), timeout=0.05)
    task.result()
    return peak - before


@pytest.mark.long
def test_a_thousand_fast_producers(tmp_path: Path) -> None:
    receipts = 0

    def count() -> None:
        nonlocal receipts
        receipts += 1

    async def all_of_them() -> None:
        async with asyncio.timeout(240), asyncio.TaskGroup() as group:
            for number in range(PRODUCERS):
                group.create_task(produce(broker.url, f"t{number % 10}", 12, count))

    with RunningBroker(tmp_path / "root", SETTINGS) as broker:
        grown = asyncio.run(watched(broker.pid, all_of_them()))
    assert receipts == PRODUCERS * 12  # 384 MB went through
    assert grown < GROWTH_BYTES, f"memory grew by {grown / MIB:.0f} MiB"


@pytest.mark.long
def test_consumers_that_do_not_read(tmp_path: Path) -> None:
    async def scene() -> None:
        writers = []
        for type_ in (CommandSubscribe.Exclusive, CommandSubscribe.Shared):
            reader, writer = await connect(broker.url)
            wanted = CommandSubscribe(topic="t", subscription=f"s{type_}", subType=type_, consumer_id=1, request_id=1)
            writer.write(command("SUBSCRIBE", subscribe=wanted))
            assert (await answer(reader)).type == BaseCommand.SUCCESS
            writer.write(command("FLOW", flow=CommandFlow(consumer_id=1, messagePermits=1_000_000)))
            writers.append(writer)
        async with asyncio.timeout(240):
            await produce(broker.url, "t", 12_000, lambda: None)  # 384 MB, none of it read
        for writer in writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    with RunningBroker(tmp_path / "root", SETTINGS) as broker:
        grown = asyncio.run(watched(broker.pid, scene()))
    assert grown < GROWTH_BYTES, f"memory grew by {grown / MIB:.0f} MiB"


def test_a_client_that_sends_before_it_reads_is_read(tmp_path: Path) -> None:
    """Clients with producers and consumers on one connection do so; if the broker waited too, none would go on."""
    entries = 1_000

    async def scene() -> None:
        reader, writer = await connect(broker.url)
        wanted = CommandSubscribe(
            topic="t", subscription="s", subType=CommandSubscribe.Shared, consumer_id=1, request_id=1
        )
        writer.write(command("SUBSCRIBE", subscribe=wanted))
        assert (await answer(reader)).type == BaseCommand.SUCCESS
        writer.write(command("PRODUCER", producer=CommandProducer(topic="u", producer_id=1, request_id=2)))
        assert (await answer(reader)).type == BaseCommand.PRODUCER_SUCCESS
        writer.write(command("FLOW", flow=CommandFlow(consumer_id=1, messagePermits=entries)))
        await produce(broker.url, "t", entries, lambda: None)  # 32 MB: more than buffers on the way take
        for number in range(entries):
            head = BaseCommand(
                type=BaseCommand.SEND, send=CommandSend(producer_id=1, sequence_id=number, num_messages=1)
            )
            writer.write(frame_of(head.SerializeToString(), len(ENTRY)) + ENTRY)
            await writer.drain()
        found = [(await answer(reader)).type for _ in range(2 * entries)]
        assert found.count(BaseCommand.MESSAGE) == found.count(BaseCommand.SEND_RECEIPT) == entries
        writer.close()

    async def in_time() -> None:
        async with asyncio.timeout(60):
            await scene()

    with RunningBroker(tmp_path / "root", SETTINGS) as broker:
        asyncio.run(in_time())
