"""Reads are answered from memory or by the reading process, within their limits, whatever happens to that process."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pulsar_on_spark.broker.reading.cache import EntryCache
from pulsar_on_spark.broker.reading.extents import chain_shape
from pulsar_on_spark.broker.reading.reader import EntryReader
from pulsar_on_spark.model.errors import DataLossError, StorageError
from pulsar_on_spark.model.ids import EntryId, LedgerId, MessageId, Position, TopicId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.entries.cutting import MAX_MESSAGE_BYTES
from pulsar_on_spark.topic.entries.rows import StoredEntry
from pulsar_on_spark.topic.maintenance.retention import trim
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain, LedgerExtent
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import EntryRange
from tests.kit import messages
from tests.kit.fork_server import stop_fork_server
from tests.kit.pulsar_entries import ClientMessage, batch_entry, read_entry, single_entry
from tests.kit.running_incarnation import RunningIncarnation

MIB = 1 << 20


@asynccontextmanager
async def reading(
    root: Root, cache_bytes: int = 0, max_message_size_bytes: int = MAX_MESSAGE_BYTES
) -> AsyncIterator[EntryReader]:
    reader = EntryReader(root, EntryCache(cache_bytes), max_message_size_bytes=max_message_size_bytes)
    reader.start()
    try:
        yield reader
    finally:
        await reader.close()


def part_of(root: Root, topic: str = "clicks") -> TopicPart:
    (part,) = messages.target(root, topic).parts
    return part


def whole_chain(root: Root, topic: str = "clicks") -> LedgerChain:
    return LedgerChain(chain_shape(root.store.view(), TopicId(part_of(root, topic).topic_id)).extents)


async def everything(
    reader: EntryReader, part: TopicPart, ledger: LedgerId, end: int, max_entries: int = 100, max_bytes: int = MIB
) -> list[StoredEntry]:
    """All entries of a ledger, in reads within limits."""
    found: list[StoredEntry] = []
    while len(found) < end:
        got = await reader.read(part, [EntryRange(ledger, len(found), end)], max_entries, max_bytes)
        assert 0 < len(got) <= max_entries
        assert len(got) == 1 or sum(len(entry.data) for entry in got) <= max_bytes
        found += got
    assert [entry.entry_id for entry in found] == list(range(end))
    return found


def test_a_backlog_in_memory_in_slabs_and_in_files(root: Root) -> None:
    values = [random.Random(number).randbytes(1_500) for number in range(8_000)]
    messages.write(root, "clicks", values)
    part, chain = part_of(root), whole_chain(root)
    ledger, end = chain.end.ledger, chain.end.entry

    async def scenario() -> None:
        async with reading(root, cache_bytes=MIB) as reader:
            for max_entries, max_bytes in ((7, MIB), (1_000, 300_000), (1_000, 1)):
                found = await everything(reader, part, ledger, end, max_entries, max_bytes)
                assert [message.value for entry in found for message in read_entry(entry.data)] == values
            reader.cache.add(ledger, EntryId(3), [b"in the cache"])
            (entry,) = await reader.read(part, [EntryRange(ledger, 3, 4)], 10, MIB)
            assert entry.data == b"in the cache"

    asyncio.run(scenario())


def test_many_topics_at_once_share_few_slabs(root: Root) -> None:
    names = [f"t{number}" for number in range(20)]
    for name in names:
        root.create_topic(name)
        messages.write(root, name, [f"{name} {number}".encode() * 20 for number in range(2_000)])

    async def scenario() -> None:
        async with reading(root) as reader:

            async def read(name: str) -> None:
                chain = whole_chain(root, name)
                found = await everything(reader, part_of(root, name), chain.end.ledger, chain.end.entry, 1)
                values = [message.value for entry in found for message in read_entry(entry.data)]
                assert values == [f"{name} {number}".encode() * 20 for number in range(2_000)]

            await asyncio.gather(*(read(name) for name in [*names, *names[:5]]))

    asyncio.run(scenario())


def test_a_small_limit_of_messages_does_not_make_reads_small(root: Root) -> None:
    """A loaded topic reads its backlog after the consumers of other topics: many small reads would take minutes."""
    with RunningIncarnation(root) as broker:
        broker.send("clicks", [b"." * 900] * 200)
        ledger = broker.acknowledged_ids[0].ledger

        async def scenario() -> None:
            async with reading(root, max_message_size_bytes=1_000) as reader:
                await reader.read(part_of(root), [EntryRange(ledger, 0, 1)], 1, MIB)
                found = reader.read_in_memory(part_of(root), [EntryRange(ledger, 0, 200)], 200, MIB)
                assert len(found) == 200

        asyncio.run(scenario())


def test_an_entry_that_is_larger_than_a_slab(root: Root) -> None:
    large = random.Random(1).randbytes(6 * MIB)
    with RunningIncarnation(root) as broker:
        broker.send("clicks", [b"before", large, large, large, b"after"])
        ledger = broker.acknowledged_ids[0].ledger

        async def scenario() -> None:
            async with reading(root) as reader:
                found = await everything(reader, part_of(root), ledger, 5)
                values = [read_entry(entry.data)[0].value for entry in found]
                assert values == [b"before", large, large, large, b"after"]
                assert sum(fetched.number < 0 for fetched in reader._ahead._recent) == 1, "memory is bounded"

        asyncio.run(scenario())


@pytest.mark.long
def test_a_reading_process_that_is_killed_is_replaced(root: Root) -> None:
    values = [random.Random(number).randbytes(1_500) for number in range(20_000)]
    messages.write(root, "clicks", values)
    chain = whole_chain(root)

    async def scenario() -> None:
        async with reading(root) as reader:
            killed = 0

            async def kill() -> None:
                nonlocal killed
                pid = reader.pid
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)
                    killed += 1

            found: list[StoredEntry] = []
            while len(found) < chain.end.entry:
                if len(found) >= (killed + 1) * chain.end.entry // 4 and killed < 2:
                    await kill()
                found += await reader.read(
                    part_of(root), [EntryRange(chain.end.ledger, len(found), chain.end.entry)], 10, MIB
                )
            assert killed == 2
            assert [message.value for entry in found for message in read_entry(entry.data)] == values

    asyncio.run(scenario())


def test_a_signal_to_all_leaves_the_end_of_the_reading_process_to_the_broker(root: Root) -> None:
    stop_fork_server()  # an earlier one may have been started by other code, which blocks no signals
    messages.write(root, "clicks", [b"x"])
    chain = whole_chain(root)

    async def scenario() -> None:
        async with reading(root) as reader:
            pid = reader.pid
            assert pid is not None
            for _ in range(2):  # once before it has begun, and once when it has
                os.kill(pid, signal.SIGTERM)
                os.kill(pid, signal.SIGINT)
                await reader.read(part_of(root), [EntryRange(chain.end.ledger, 0, chain.end.entry)], 10, MIB)
            assert reader.pid == pid

    asyncio.run(scenario())


def test_a_read_of_lost_entries_fails_and_other_reads_continue(root: Root) -> None:
    messages.write(root, "clicks", [b"x"])
    root.create_topic("other")
    messages.write(root, "other", [b"y"])

    async def scenario() -> None:
        async with reading(root) as reader:
            lost = asyncio.create_task(reader.read(part_of(root), [EntryRange(LedgerId(1), 0, 5)], 10, MIB))
            (entry,) = await lost  # what there is comes first
            lost = asyncio.create_task(reader.read(part_of(root), [EntryRange(LedgerId(1), 1, 5)], 10, MIB))
            chain = whole_chain(root, "other")
            (entry,) = await everything(reader, part_of(root, "other"), chain.end.ledger, 1)
            assert read_entry(entry.data)[0].value == b"y"
            with pytest.raises(DataLossError, match="clicks"):
                await lost

    asyncio.run(scenario())


def test_waiting_reads_fail_when_the_reader_closes(root: Root) -> None:
    messages.write(root, "clicks", [b"x"])

    async def scenario() -> None:
        async with reading(root) as reader:
            waiting = asyncio.create_task(reader.read(part_of(root), [EntryRange(LedgerId(1), 0, 1)], 10, MIB))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        with pytest.raises((StorageError, asyncio.CancelledError)):
            await waiting

    asyncio.run(scenario())


def test_a_cancelled_read_leaves_its_slab_to_others(root: Root) -> None:
    messages.write(root, "clicks", [b"x" * 100] * 3_000)
    chain = whole_chain(root)

    async def scenario() -> None:
        async with reading(root) as reader:
            for entry in range(chain.end.entry):
                task = asyncio.create_task(
                    reader.read(part_of(root), [EntryRange(chain.end.ledger, entry, entry + 1)], 10, MIB)
                )
                for _ in range(entry):
                    await asyncio.sleep(0.001)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await everything(reader, part_of(root), chain.end.ledger, chain.end.entry, 1)
            assert all(not fetched.pins for fetched in reader._ahead._recent)

    asyncio.run(scenario())


def test_the_last_message(root: Root) -> None:
    async def last(reader: EntryReader) -> MessageId | None:
        return await reader.last_message_id(part_of(root), whole_chain(root))

    def unbatched(entry: int, ledger: int) -> MessageId:
        return MessageId(LedgerId(ledger), EntryId(entry))

    with RunningIncarnation(root) as broker:
        marker = single_entry(ClientMessage(), metadata=MessageMetadata(marker_type=10))

        async def scenario() -> None:
            async with reading(root) as reader:
                assert await last(reader) is None
                await asyncio.to_thread(messages.write, root, "clicks", [b"x"] * 1_500)
                assert await last(reader) == MessageId(LedgerId(1), EntryId(1), -1, 499)
                await asyncio.to_thread(broker.send_entries, "clicks", [marker, marker])
                own = broker.acknowledged_ids[0].ledger
                ended, _ = chain_shape(root.store.view(), TopicId(part_of(root).topic_id)).extents
                for sent, count, expected in (
                    ([], 2, MessageId(LedgerId(1), EntryId(1), -1, 499)),
                    ([single_entry(ClientMessage(b"y"))], 3, unbatched(2, own)),
                    ([batch_entry([ClientMessage(b"z")] * 7), marker], 5, MessageId(own, EntryId(3), -1, 6)),
                ):
                    await asyncio.to_thread(broker.send_entries, "clicks", sent)
                    chain = LedgerChain([ended, LedgerExtent(own, count, ended=False)])
                    assert await reader.last_message_id(part_of(root), chain) == expected

        asyncio.run(scenario())


def test_a_last_message_that_was_just_trimmed_is_not_a_loss(root: Root) -> None:
    """The chain follows a trim a moment later."""
    messages.write(root, "clicks", [b"x"] * 3)
    chain, name = whole_chain(root), TopicName.parse("clicks")

    async def scenario() -> None:
        async with reading(root) as reader:
            part = part_of(root)
            trim.truncate(root.store, name, chain.end)
            trim.trim_some(root.store, [name.full])
            assert await reader.last_message_id(part, chain) is None
            messages.write(root, "clicks", [b"y"])
            now = whole_chain(root).end
            lacking = LedgerChain([LedgerExtent(now.ledger, now.entry + 1, ended=False)])
            with pytest.raises(DataLossError, match="clicks"):
                await reader.last_message_id(part, lacking)
            last = await reader.last_message_id(part, whole_chain(root))
            assert last is not None
            assert (last.ledger, last.entry) == (now.ledger, now.entry - 1)

    asyncio.run(scenario())


def test_a_position_by_time(root: Root) -> None:
    messages.write(root, "clicks", [b"x"] * 3_000)
    chain = whole_chain(root)

    async def scenario() -> None:
        async with reading(root) as reader:
            assert await reader.position_at(part_of(root), chain, 0) == Position(LedgerId(1), EntryId(0))
            assert await reader.position_at(part_of(root), chain, 1 << 60) == chain.end

    asyncio.run(scenario())
