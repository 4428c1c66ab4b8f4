"""Reads of cold paths that hang or are away: they delay no other read, fail fast, and succeed once the path answers."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pulsar_on_spark.broker.reading.breaker import AT_ONCE_S, MAX_FILES, PAUSE_S, Breaker
from pulsar_on_spark.broker.reading.cache import EntryCache
from pulsar_on_spark.broker.reading.catch_up import CatchUp
from pulsar_on_spark.broker.reading.extents import chain_shape
from pulsar_on_spark.broker.reading.jobs import EntrySource, Lane
from pulsar_on_spark.broker.reading.reader import EntryReader
from pulsar_on_spark.metadata.records import FileRecord, SegmentRecord
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import CopiesUnreachableError, CorruptSegmentError
from pulsar_on_spark.model.ids import EntryId, FileId, PathId, Position, TopicId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.entries.rows import StoredEntry
from pulsar_on_spark.topic.maintenance.offload.offloading import OffloadRequest, offload
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain, LedgerExtent
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import EntryRange
from tests.kit import messages
from tests.kit.hanging_path import HangingPath
from tests.kit.pulsar_entries import ClientMessage, read_entry, single_entry
from tests.kit.running_incarnation import RunningIncarnation

MIB = 1 << 20
OFFLOADED = 8
SOON_S = 3.0
"""It takes milliseconds, but other tests run beside this one, and the reading process gives way to them."""
LIMIT_S = 20.0


@pytest.fixture
def cold(memory_path: Path, root: Root) -> Path:
    """The cold path of a root with two other topics on disks, and eight files of `clicks` on the cold path only.

    One more file of `clicks` is on disks, and one on disks and on the cold path.
    """
    for number in range(OFFLOADED):
        messages.write(root, "clicks", [b"%d" % number])
    for topic in ("first", "other"):
        root.create_topic(topic)
        messages.write(root, topic, [b"hot"] * 10)
    storage_paths.add(root, memory_path / "cold", "archive", role="cold")
    request = OffloadRequest(TopicName.parse("clicks"))
    offload(root, request)
    offload(root, now=lambda: datetime.now(UTC) + timedelta(hours=5))
    messages.write(root, "clicks", [b"both"])
    offload(root, request)
    messages.write(root, "clicks", [b"hot"])
    copies = [len(file.copies) for file in root.store.view().all(FileRecord) if file.is_cold]
    assert sorted(copies) == [1] * OFFLOADED + [4]
    return memory_path / "cold"


@asynccontextmanager
async def reading(root: Root) -> AsyncIterator[EntryReader]:
    reader = EntryReader(root, EntryCache(0))
    reader.start()
    try:
        assert await read(reader, root, "first", 0) == b"hot"  # the process has started
        yield reader
    finally:
        await reader.close()


def part_of(root: Root, topic: str) -> TopicPart:
    (part,) = messages.target(root, topic).parts
    return part


def chain_of(root: Root, topic: str) -> LedgerChain:
    return LedgerChain(chain_shape(root.store.view(), TopicId(part_of(root, topic).topic_id)).extents)


async def read(reader: EntryReader, root: Root, topic: str, entry: int) -> bytes:
    """The value of an entry of a topic with one message an entry, or with one entry."""
    ledger = chain_of(root, topic).end.ledger
    (found,) = await reader.read(part_of(root, topic), [EntryRange(ledger, entry, entry + 1)], 1, MIB)
    value = read_entry(found.data)[0].value
    assert isinstance(value, bytes)
    return value


async def seconds(work: Coroutine[Any, Any, object]) -> float:
    """Do it; return how long it took."""
    began_s = time.monotonic()
    await asyncio.wait_for(work, LIMIT_S)
    return time.monotonic() - began_s


async def is_served(reader: EntryReader, root: Root) -> None:
    """Messages with a copy on disks are read at once, those of another topic and those of the same one."""
    other, clicks = chain_of(root, "other"), part_of(root, "clicks")
    assert await seconds(read(reader, root, "other", 0)) < SOON_S
    assert await seconds(read(reader, root, "clicks", OFFLOADED)) < SOON_S
    assert await seconds(read(reader, root, "clicks", OFFLOADED + 1)) < SOON_S
    assert await seconds(reader.position_at(part_of(root, "other"), other, 0)) < SOON_S
    assert await seconds(reader.position_at(clicks, chain_of(root, "clicks"), current_ms() + 60_000)) < SOON_S


def test_a_path_that_hangs_holds_up_only_reads_of_its_files(root: Root, cold: Path) -> None:
    async def scenario() -> None:
        async with reading(root) as reader:
            hanging = HangingPath(cold).__enter__()
            waiting = [asyncio.create_task(read(reader, root, "clicks", entry)) for entry in range(OFFLOADED)]
            seeking = asyncio.create_task(reader.position_at(part_of(root, "clicks"), chain_of(root, "clicks"), 0))
            await asyncio.sleep(0.5)
            await is_served(reader, root)
            assert not any(task.done() for task in (*waiting, seeking))
            while not all(task.done() for task in (*waiting, seeking)):
                hanging.answer()
                await asyncio.sleep(0.02)
            await asyncio.gather(*waiting, seeking, return_exceptions=True)
            assert [await again(reader, root, entry) for entry in range(OFFLOADED)] == [
                b"%d" % entry for entry in range(OFFLOADED)
            ]
            assert await reader.position_at(part_of(root, "clicks"), chain_of(root, "clicks"), 0) == Position(
                chain_of(root, "clicks").end.ledger, EntryId(0)
            )

    asyncio.run(scenario())


async def again(reader: EntryReader, root: Root, entry: int) -> bytes:
    """Read it, again if that fails, as a subscription does."""
    until_s = time.monotonic() + LIMIT_S
    while True:
        try:
            return await read(reader, root, "clicks", entry)
        except CopiesUnreachableError:
            assert time.monotonic() < until_s
            await asyncio.sleep(0.2)


def test_a_seek_goes_through_cold_segments_disks_and_journals(root: Root, cold: Path) -> None:
    part = part_of(root, "clicks")
    times = [segment.publish_max_ms for segment in root.store.view().all(SegmentRecord, part.topic_id)]
    spark_ledger = chain_of(root, "clicks").end.ledger
    with RunningIncarnation(root) as broker:
        late_ms = current_ms() + 1_000
        broker.send_entries(
            "clicks", [single_entry(ClientMessage(b"x"), metadata=MessageMetadata(publish_time=late_ms))]
        )
        journal_ledger = broker.acknowledged_ids[0].ledger
        chain = LedgerChain([*chain_of(root, "clicks")._extents[:1], LedgerExtent(journal_ledger, 1, ended=False)])

        async def scenario() -> None:
            async with reading(root) as reader:
                for publish_ms in times:
                    found = await reader.position_at(part, chain, publish_ms)
                    assert found == Position(spark_ledger, EntryId(bisect_left(times, publish_ms)))
                found = await reader.position_at(part, chain, times[-1] + 1)
                assert found == Position(journal_ledger, EntryId(0))
                assert await reader.position_at(part, chain, late_ms + 1) == chain.end

        asyncio.run(scenario())


# -- the breaker -------------------------------------------------------------------------------------------------------


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def breaker(clock: Clock, *away: int) -> Breaker:
    return Breaker(lambda path_id: path_id not in away, clock)


def passes(
    breaker: Breaker, *paths: int, file: str = "f", error: Exception | None = None, slow: Clock | None = None
) -> bool:
    """Read something; return False if that failed without a try. With a clock, it takes long."""
    tried = False
    try:
        with breaker.reading(FileId(file), [PathId(path) for path in paths], "It"):
            tried = True
            if slow is not None:
                slow.now_s += AT_ONCE_S
            if error is not None:
                raise error
    except (CopiesUnreachableError, CorruptSegmentError):
        pass
    return tried


FAILS = CopiesUnreachableError("no answer")


def test_after_a_failure_one_read_tries_the_path_after_a_pause() -> None:
    clock = Clock()
    broken = breaker(clock, 3)
    assert passes(broken, 3)
    assert passes(broken, 3, error=FAILS)
    assert not passes(broken, 3)
    assert not passes(broken, 3, file="g")
    assert passes(broken, 4)
    assert passes(broken, 3, 4)
    assert passes(broken)
    assert passes(broken, 3, error=FAILS)
    clock.now_s += PAUSE_S
    with broken.reading(FileId("f"), [PathId(3)], "It"):
        assert not passes(broken, 3)  # while a read tries it
    assert passes(broken, 3, error=FAILS)
    clock.now_s += PAUSE_S
    assert passes(broken, 3, error=FAILS)
    assert not passes(broken, 3)
    clock.now_s += PAUSE_S
    assert passes(broken, 3, error=CorruptSegmentError("bad, so the path answers"))
    assert passes(broken, 3)


def test_an_unreadable_file_on_a_path_that_answers_says_nothing_of_other_files() -> None:
    clock = Clock()
    well = breaker(clock)
    assert passes(well, 3, error=FAILS, slow=clock)
    assert not passes(well, 3)
    assert passes(well, 3, file="g")
    clock.now_s += PAUSE_S
    with well.reading(FileId("f"), [PathId(3)], "It"):
        assert not passes(well, 3)
        assert passes(well, 3, file="g")
    assert passes(well, 3)
    half = breaker(clock, 4)
    assert passes(half, 3, 4, error=FAILS, slow=clock)
    assert not passes(half, 3, 4)
    assert passes(half, 3, file="g")
    assert not passes(half, 4, file="g")


def test_a_part_that_fails_at_once_says_nothing_of_the_other_parts_of_its_file() -> None:
    clock = Clock()
    well = breaker(clock)
    assert passes(well, 3, error=FAILS)
    assert passes(well, 3)
    assert passes(well, 3, error=FAILS, slow=clock)
    clock.now_s += PAUSE_S
    assert passes(well, 3, error=FAILS)
    assert passes(well, 3), "the trial of a file that was slow before"


def test_the_trial_of_a_path_by_an_unreadable_file_opens_the_path_to_others() -> None:
    clock, away = Clock(), {PathId(3)}
    broken = Breaker(lambda path_id: path_id not in away, clock)
    assert passes(broken, 3, error=FAILS)
    away.clear()
    clock.now_s += PAUSE_S
    assert passes(broken, 3, error=FAILS, slow=clock)
    assert not passes(broken, 3)
    assert passes(broken, 3, file="g")


def test_unreadable_files_are_remembered_up_to_a_limit() -> None:
    clock = Clock()
    well = breaker(clock)
    for number in range(MAX_FILES + 1):
        assert passes(well, 3, file=str(number), error=FAILS, slow=clock)
        clock.now_s -= AT_ONCE_S
    assert passes(well, 3, file="0")
    assert not passes(well, 3, file="1")


def test_an_error_names_the_data_and_the_path() -> None:
    broken = breaker(Clock(), 3)
    passes(broken, 3, error=FAILS)
    with pytest.raises(CopiesUnreachableError, match=r"^Segment file f cannot be read now.*\[path 3\] "):
        broken.reading(FileId("f"), [PathId(3)], "Segment file f").__enter__()


def test_one_unreadable_cold_file_delays_no_reader_of_another(root: Root, cold: Path) -> None:
    part, chain = part_of(root, "clicks"), chain_of(root, "clicks")
    bad = root.store.view().all(SegmentRecord, part.topic_id)[0].file_id
    (path,) = (cold / "segments").glob(f"*/{bad}*.arrow")
    path.unlink()
    path.symlink_to(path.name)
    reader = CatchUp(RootHandle.open(root.path), MIB, Lane.COLD)

    def first_of(entry: int) -> StoredEntry:
        with closing(reader.read(EntrySource(part), [EntryRange(chain.end.ledger, entry, entry + 1)])) as entries:
            return next(entries)

    for _ in range(2):
        with pytest.raises(CopiesUnreachableError, match="Too many levels of symbolic links"):
            first_of(0)
        assert read_entry(first_of(1).data)[0].value == b"1"
