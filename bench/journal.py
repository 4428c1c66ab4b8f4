"""The journal in process: the upper bound of a broker's acknowledgements, and its latency. `python -m bench.journal`.

Every entry is durable (fdatasync) on the ack quorum before it counts. All storage paths are on one disk, so three
copies cost three times the writes. Entries of 128 messages have 128 KiB. Each row runs for some seconds; nothing is
pinned, and the load average is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.appending import append_alone
from pulsar_on_spark.ledger.journal.groups import JournalLimits
from pulsar_on_spark.ledger.journal.journal import Journal
from pulsar_on_spark.ledger.journal.recover import recover
from pulsar_on_spark.ledger.journal.register import LogRegister
from pulsar_on_spark.metadata.records import RootRecord
from pulsar_on_spark.metadata.store import MetadataStore
from pulsar_on_spark.model.ids import EntryId, IncarnationId, LedgerId, PathId
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.storage.local_path import LocalPath

MESSAGE_BYTES = 1024
BURST = 64
"""Entries that arrive in one turn of the event loop."""
SWITCH_INTERVAL_S = 0.0001
"""Python's switch interval in seconds, as in a broker: a thread's longest wait for the interpreter's lock."""
CLUSTER = "bench"
FRAME_BYTES = 480
"""Bytes of a frame with one entry, without the payload."""
DISKS = ((1, 1), (3, 2))
"""Pairs of the number of copies and the number of copies that must be durable."""


@dataclass(frozen=True, slots=True)
class Load:
    """A load on a journal.

    Attributes:
        name: Name in the table.
        quorum: The journal's quorum, as `ensemble/write/ack`.
        messages: Number of messages in each entry.
        ledgers: Number of ledgers, which get entries in turn.
        window: Maximum number of unacknowledged entries.
        rate: Entries a second; None for the maximum that the window allows.
    """

    name: str
    quorum: str
    messages: int = 1
    ledgers: int = 1
    window: int = 1
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """The results of a load.

    Attributes:
        name: The load's name.
        messages_per_s: Acknowledged messages a second.
        mb_per_s: Acknowledged payload, in 10^6 bytes a second.
        p50_ms: Median time from append to acknowledgement.
        p99_ms: The same, 99th percentile.
        p999_ms: The same, 99.9th percentile.
        written_ratio: Bytes in journal files for each payload byte.
        cpu_s_per_million: CPU seconds of the process for a million messages.
        entries_per_frame: Mean number of entries that share a frame and its fdatasync.
    """

    name: str
    messages_per_s: float
    mb_per_s: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    written_ratio: float
    cpu_s_per_million: float
    entries_per_frame: float


LOADS = (
    Load("1 copy, one at a time", "1/1/1"),
    Load("3 copies, one at a time", "3/3/2"),
    Load("1 copy, single messages", "1/1/1", window=4000),
    Load("3 copies, single messages", "3/3/2", window=4000),
    Load("3 copies, single messages, 100 k/s offered", "3/3/2", window=50_000, rate=100_000),
    Load("3 copies, single messages, 100 ledgers", "3/3/2", ledgers=100, window=4000),
    Load("3 copies, single messages, 5,000 ledgers", "3/3/2", ledgers=5000, window=4000),
    Load("1 copy, entries of 128", "1/1/1", messages=128, window=64),
    Load("3 copies, entries of 128", "3/3/2", messages=128, window=64),
)


class Client:
    """Source of a load, which records the latencies of its entries."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._payload = os.urandom(MESSAGE_BYTES * load.messages)
        self._next = [0] * load.ledgers
        self._added = 0
        self._acked = 0
        self._changed = asyncio.Event()
        self.latencies: list[np.ndarray] = []
        self.groups = 0
        self.journal: Journal | None = None

    def on_entries_acknowledged(self, contexts: Sequence[object]) -> None:
        """Record the latencies of acknowledged entries, and append more entries."""
        self.latencies.append(time.perf_counter_ns() - np.array(contexts, np.int64))
        self.groups += 1
        self._acked += len(contexts)
        self._changed.set()

    def on_entries_unknown(self, contexts: Sequence[object]) -> None:
        """Fail: the benchmark expects no loss."""
        raise AssertionError("the journal ended with unacknowledged entries")

    def on_journal_room(self) -> None:
        """Append more entries."""
        self._changed.set()

    def on_ended(self, reason: str) -> None:
        """Fail: the journal was taken over, or cut off from its record."""
        raise AssertionError(reason)

    async def run(self, journal: Journal, seconds: float) -> float:
        """Append entries for `seconds`, wait until all are acknowledged, and return the whole duration in seconds."""
        load, start = self._load, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            allowed = load.window - (self._added - self._acked)
            if load.rate is not None:
                allowed = min(allowed, int(elapsed * load.rate) - self._added)
            self._add(journal, min(allowed, BURST))
            if allowed > BURST and journal.can_add:
                await asyncio.sleep(0)
            elif load.rate is not None:
                await asyncio.sleep(0.0005)
            else:
                self._changed.clear()
                await self._changed.wait()
        while self._acked < self._added:
            self._changed.clear()
            await self._changed.wait()
        return time.perf_counter() - start

    def _add(self, journal: Journal, count: int) -> None:
        ledgers, payload, messages = self._load.ledgers, self._payload, self._load.messages
        for _ in range(count):
            if not journal.can_add:
                break
            ledger = self._added % ledgers
            entry = self._next[ledger]
            self._next[ledger] = entry + 1
            self._added += 1
            now = time.perf_counter_ns()
            journal.add_entries(LedgerId(ledger + 1), EntryId(entry), messages, 1_700_000_000_000, [payload], now)


@contextmanager
def place(base: Path) -> Iterator[tuple[MetadataStore, dict[PathId, LocalPath]]]:
    """Yield the metadata and the three storage paths of a new root below `base`, which is deleted at the end."""
    directory = Path(tempfile.mkdtemp(prefix="journal-", dir=base))
    try:
        root = RootRecord(format_version=1, cluster_id=CLUSTER, quorum="3/3/2")
        store = MetadataStore.create(directory / "root", [root])
        paths = {PathId(n): LocalPath(PathId(n), directory / f"p{n}", CLUSTER) for n in range(3)}
        for path in paths.values():
            path.create()
        yield store, paths
    finally:
        shutil.rmtree(directory)


def stored_bytes(paths: dict[PathId, LocalPath]) -> int:
    """Return the total size of all journal files in bytes."""
    return sum(file.stat().st_size for path in paths.values() for file in path.directory.glob("journal/*/*/frames.*"))


def journal_of(store: MetadataStore, paths: dict[PathId, LocalPath], load: Load, client: Client) -> Journal:
    """Return a journal that is not open yet."""
    register = LogRegister(store, IncarnationId("bench"))
    return Journal(
        register,
        list(paths.values()),
        Quorum.parse(load.quorum),
        client,
        on_ended=client.on_ended,
        mark_failed=lambda failures: None,
    )


def measured(load: Load, base: Path, seconds: float) -> Figures:
    """Run one load for `seconds` on a new root below `base`, and return its results."""

    async def work() -> tuple[Client, float, float]:
        client = Client(load)
        journal = journal_of(store, paths, load, client)
        await journal.open()
        await asyncio.sleep(0.3)  # the next fragment is prepared
        cpu = time.process_time()
        took = await client.run(journal, seconds)
        cpu = time.process_time() - cpu
        await journal.close()
        return client, took, cpu

    with place(base) as (store, paths):
        client, took, cpu = asyncio.run(work())
        written = stored_bytes(paths)
    times_ms = np.concatenate(client.latencies) / 1e6
    messages = len(times_ms) * load.messages
    p50, p99, p999 = np.percentile(times_ms, [50, 99, 99.9])
    return Figures(
        name=load.name,
        messages_per_s=messages / took,
        mb_per_s=messages * MESSAGE_BYTES / took / 1e6,
        p50_ms=float(p50),
        p99_ms=float(p99),
        p999_ms=float(p999),
        written_ratio=written / (messages * MESSAGE_BYTES),
        cpu_s_per_million=cpu / messages * 1e6,
        entries_per_frame=len(times_ms) / client.groups,
    )


def disk_ms(base: Path, copies: int, ack: int, seconds: float) -> tuple[float, float]:
    """Return the median and the 99th percentile in milliseconds of writes by disk and threads alone, one at a time."""
    p50, p99 = np.percentile(append_alone([base] * copies, ack, MESSAGE_BYTES + FRAME_BYTES, seconds), [50, 99])
    return float(p50), float(p99)


def recovery_seconds(base: Path, size_bytes: int) -> float:
    """Return the seconds of the recovery of a dead writer's journal of this size, with its files in the page cache."""
    load = Load("recovery", "3/3/2", messages=16, window=512)

    async def write() -> None:
        client = Client(load)
        limits = JournalLimits(roll_bytes=2 * size_bytes)
        register = LogRegister(store, IncarnationId("bench"))
        journal = Journal(
            register,
            list(paths.values()),
            Quorum(3, 3, 2),
            client,
            on_ended=client.on_ended,
            mark_failed=lambda failures: None,
            limits=limits,
        )
        await journal.open()
        while stored_bytes(paths) < 3 * size_bytes:
            await client.run(journal, 0.2)

    with place(base) as (store, paths):
        asyncio.run(write())
        start = time.perf_counter()
        recover(LogRegister(store, IncarnationId("bench")), lambda: paths, list(paths))
        return time.perf_counter() - start


def main() -> None:
    """Measure all loads, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each load")
    parser.add_argument("--only", default="", help="loads whose name has this text")
    parser.add_argument("--recovery-mib", type=int, default=1024, help="size of the journal to recover; 0: none")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    given = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    table = Table(box=None, title=f"The journal in process, load average {os.getloadavg()[0]:.1f}")
    for heading in ("load", "msgs/s", "MB/s", "p50 ms", "p99", "p99.9", "written", "CPU s/M", "entries/frame"):
        table.add_column(heading, justify="left" if heading == "load" else "right")
    figures = [measured(load, given.directory, given.seconds) for load in LOADS if given.only in load.name]
    for one in figures:
        table.add_row(
            *(one.name, f"{one.messages_per_s:,.0f}", f"{one.mb_per_s:.0f}"),
            *(f"{one.p50_ms:.2f}", f"{one.p99_ms:.2f}", f"{one.p999_ms:.2f}"),
            *(f"{one.written_ratio:.2f}", f"{one.cpu_s_per_million:.2f}", f"{one.entries_per_frame:.1f}"),
        )
    console = Console()
    console.print(table)
    disks = {
        f"{copies} copies, ack {ack}": disk_ms(given.directory, copies, ack, given.seconds) for copies, ack in DISKS
    }
    for name, (p50, p99) in disks.items():
        console.print(f"disk and threads alone, one at a time, {name}: p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    seconds = recovery_seconds(given.directory, given.recovery_mib << 20) if given.recovery_mib else None
    if seconds is not None:
        console.print(f"recovery of {given.recovery_mib} MiB, 3 copies: {seconds:.2f} s")
    if given.json is not None:
        loads = [asdict(one) for one in figures]
        content = {"load_average": os.getloadavg()[0], "loads": loads, "disks_ms": disks, "recovery_s": seconds}
        given.json.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
