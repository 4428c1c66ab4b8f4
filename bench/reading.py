"""The speed at which a broker reads a backlog, and the effect on its event loop.

    python -m bench.reading [messages]

Messages of 1 KiB that compress like real JSON, one copy of the data. Entries are read 1 MiB at a time, as by a
dispatcher, and dropped; the page cache is warm. CPU seconds count the broker's side (the loop's process) and the
reading process separately. A ticker of 1 ms runs in the loop (uvloop): its delay is the cost of reading for tailing
consumers. The cases "in a thread" read without a separate process.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import uvloop

from bench.payload import value_batches
from pulsar_on_spark.broker.reading.cache import EntryCache
from pulsar_on_spark.broker.reading.catch_up import CatchUp
from pulsar_on_spark.broker.reading.extents import chain_shape
from pulsar_on_spark.broker.reading.jobs import EntrySource
from pulsar_on_spark.broker.reading.reader import EntryReader
from pulsar_on_spark.model.ids import TopicId
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.protocol.compression import Codec
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.entries.cutting import MAX_MESSAGE_BYTES
from pulsar_on_spark.topic.entries.rows import StoredEntry
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import EntryRange
from pulsar_on_spark.topic.managed_ledger.sealing.sealer import Sealer
from tests.kit import messages
from tests.kit.pulsar_entries import ClientMessage, batch_entry, single_entry
from tests.kit.running_incarnation import RunningIncarnation

BATCH_MESSAGES = 100
READ_BYTES = 1 << 20
ROUNDS = 3
TICK_S = 0.001

CASES = {
    "sealed, batches of 100": "batched",
    "sealed, batches of 100, LZ4": "lz4",
    "sealed, single messages": "single",
    "written by Spark": "spark",
    "in the journal, batches of 100": "journal",
}
"""The topics that are read, by the name of the case."""

Read = Callable[[TopicPart, EntryRange], AsyncIterator[list[StoredEntry]]]


@dataclass(frozen=True, slots=True)
class Measured:
    """Results of one case.

    Attributes:
        wall_s: Duration of all rounds in seconds.
        loop_cpu_s: CPU seconds of the event loop's process for all rounds.
        reading_cpu_s: CPU seconds of the reading process for all rounds.
        lateness_ms: Delays of the ticks in milliseconds: median, 99th percentile, maximum.
    """

    wall_s: float
    loop_cpu_s: float
    reading_cpu_s: float
    lateness_ms: tuple[float, float, float]


def fill(root: Root, count: int) -> None:
    """Create the topics, and fill each with `count` messages."""
    values = [value for batch in value_batches(count) for value in batch.column("value").to_pylist()]
    groups = [values[first : first + BATCH_MESSAGES] for first in range(0, count, BATCH_MESSAGES)]
    for topic in CASES.values():
        root.create_topic(topic)
    broker = RunningIncarnation(root)
    for topic, codec in (("batched", Codec.NONE), ("lz4", Codec.LZ4)):
        entries = [batch_entry([ClientMessage(value) for value in group], codec) for group in groups]
        broker.send_entries(topic, entries, [BATCH_MESSAGES] * len(entries))
    broker.send_entries("single", [single_entry(ClientMessage(value)) for value in values])
    broker.stop()
    with closing(Sealer(root, broker.incarnation.id, is_live=False)) as sealer:
        while sealer.seal(tail=True).entries:
            pass
    messages.write(root, "spark", values)
    broker = RunningIncarnation(root)
    broker.send("journal", values, batch=BATCH_MESSAGES)
    broker.stop()


async def tick(late_s: list[float]) -> None:
    """Append the delays of ticks in seconds to `late_s` until the task is cancelled."""
    while True:
        due_s = time.perf_counter() + TICK_S
        await asyncio.sleep(TICK_S)
        late_s.append(time.perf_counter() - due_s)


async def measure(root: Root, topic: str, read: Read, reading_pid: int | None) -> Measured:
    """Read a topic several times, and return the results.

    Args:
        root: The root.
        topic: The topic.
        read: Reads a range of entries.
        reading_pid: The id of the reading process; None if this process reads.
    """
    (part,) = messages.target(root, topic).parts
    shape = chain_shape(root.store.view(), TopicId(part.topic_id))
    process = None if reading_pid is None else psutil.Process(reading_pid)

    def reading_cpu_s() -> float:
        return 0.0 if process is None else sum(process.cpu_times()[:2])

    late_s: list[float] = []
    ticking = asyncio.create_task(tick(late_s))
    wall_s, loop_s, reading_s = time.perf_counter(), time.process_time(), reading_cpu_s()
    for _ in range(ROUNDS):
        for extent in shape.extents:
            found = 0
            async for entries in read(part, EntryRange(extent.ledger, extent.first, extent.end)):
                found += len(entries)
                await asyncio.sleep(0)
            assert found == extent.end - extent.first
    spent = time.perf_counter() - wall_s, time.process_time() - loop_s, reading_cpu_s() - reading_s
    ticking.cancel()
    return Measured(*spent, tuple(np.percentile(np.array(late_s) * 1000, (50, 99, 100)).tolist()))


def in_process(reader: EntryReader) -> Read:
    """Return a function that reads entries by the broker's reading process."""

    async def read(part: TopicPart, wanted: EntryRange) -> AsyncIterator[list[StoredEntry]]:
        at = wanted.first
        while at < wanted.end:
            entries = await reader.read(part, [EntryRange(wanted.ledger, at, wanted.end)], 1 << 30, READ_BYTES)
            at += len(entries)
            yield entries

    return read


def in_thread(root: Root) -> Read:
    """Return a function that reads and decodes entries in a thread of this process."""

    async def read(part: TopicPart, wanted: EntryRange) -> AsyncIterator[list[StoredEntry]]:
        with (
            closing(CatchUp(root, MAX_MESSAGE_BYTES)) as catch_up,
            closing(catch_up.read(EntrySource(part), [wanted])) as entries,
        ):
            while found := await asyncio.to_thread(_some, entries):
                yield found

    return read


def _some(entries: Iterator[StoredEntry]) -> list[StoredEntry]:
    found, size_bytes = [], 0
    for entry in entries:
        found.append(entry)
        size_bytes += len(entry.data)
        if size_bytes >= READ_BYTES:
            break
    return found


async def run(root: Root, count: int) -> None:
    """Measure all cases, in a thread and in a process, and print a table."""
    reader = EntryReader(root, EntryCache(0))
    reader.start()
    await asyncio.sleep(3)
    late_s: list[float] = []
    ticking = asyncio.create_task(tick(late_s))
    await asyncio.sleep(3)
    ticking.cancel()
    p50, p99, worst = np.percentile(np.array(late_s) * 1000, (50, 99, 100))
    print(f"idle: ticks late by {p50:.2f} ms (p50), {p99:.2f} ms (p99), {worst:.1f} ms (max)\n")
    print("| backlog | read in | messages/s | CPU s a million: loop | reading | tick p50 ms | p99 | max |")
    print("|---|---|---|---|---|---|---|---|")
    for name, topic in CASES.items():
        for where, read, pid in (
            ("a thread", in_thread(root), None),
            ("a process", in_process(reader), reader.pid),
        ):
            found = await measure(root, topic, read, pid)
            done = ROUNDS * count
            p50, p99, worst = found.lateness_ms
            cpu = f"{1e6 * found.loop_cpu_s / done:.1f} | {1e6 * found.reading_cpu_s / done:.1f}"
            print(f"| {name} | {where} | {done / found.wall_s:,.0f} | {cpu} | {p50:.2f} | {p99:.1f} | {worst:.0f} |")
    await reader.close()


def main() -> None:
    """Fill a new root, measure all cases, and print a table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    directory = Path(tempfile.mkdtemp(prefix="bench-reading-"))
    try:
        root = Root.create(directory / "root", quorum=Quorum(1, 1, 1))
        fill(root, count)
        uvloop.run(run(root, count))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
