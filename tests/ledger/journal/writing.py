"""Journal writers as processes, to be killed and stopped. Run as a script, it forks one for each line of its input.

A writer adds entries one after the other, entry `s` going to ledger `1 + s % LEDGERS` with bytes that follow from `s`
and the incarnation, so that a log must hold a prefix of them without a gap; it appends the count of acknowledged
ones to a file as the journal reports it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pulsar_on_spark.ledger.journal.frames import Frame
from pulsar_on_spark.ledger.journal.groups import JournalLimits
from pulsar_on_spark.ledger.journal.journal import Journal
from pulsar_on_spark.ledger.journal.register import LogRegister
from pulsar_on_spark.model.ids import EntryId, IncarnationId, LedgerId
from pulsar_on_spark.model.quorum import Quorum
from tests.ledger.journal.journal_runs import QUORUM, Place, entries_in

LEDGERS = 3
WINDOW = 300
FENCED = 7
"""Exit code of a writer whose journal has ended."""


def payload(incarnation: str, number: int) -> bytes:
    """10 to 3,000 bytes."""
    digest = hashlib.blake2b(f"{incarnation}/{number}".encode()).digest()
    size = 10 + int.from_bytes(digest[:2], "little") % 2990
    return (digest * (size // 64 + 1))[:size]


class Writer:
    """See above; also an `EntrySink`."""

    def __init__(self, base: Path, incarnation: str, acks: Path, roll_bytes: int, quorum: Quorum = QUORUM) -> None:
        self.incarnation = incarnation
        place = Place(base)
        self.journal = Journal(
            LogRegister(place.store, IncarnationId(incarnation)),
            list(place.paths.values()),
            quorum,
            self,
            on_ended=self._ended,
            mark_failed=lambda failures: None,
            limits=JournalLimits(roll_bytes=roll_bytes, idle_lac_s=0.002),
        )
        self.acks = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.added = self.acked = 0
        self.has_ended = False
        self.changed = asyncio.Event()

    def on_entries_acknowledged(self, contexts: Sequence[object]) -> None:
        assert not self.has_ended
        assert list(contexts) == list(range(self.acked, self.acked + len(contexts)))
        self.acked += len(contexts)
        os.write(self.acks, b"%d\n" % self.acked)
        self.changed.set()

    def on_entries_unknown(self, contexts: Sequence[object]) -> None:
        pass

    def on_journal_room(self) -> None:
        self.changed.set()

    def _ended(self, reason: str) -> None:
        self.has_ended = True
        self.changed.set()

    async def run(self) -> None:
        """Until the journal has ended."""
        await self.journal.open()
        chance = random.Random(self.incarnation)
        while not self.has_ended:
            burst = chance.choice((1, 3, 50, WINDOW))
            while burst and self.journal.can_add and self.added - self.acked < WINDOW:
                self.add()
                burst -= 1
            if burst == 0 and chance.random() < 0.5:
                await asyncio.sleep(0)
                continue
            self.changed.clear()
            await self.changed.wait()
            if chance.random() < 0.02:
                await asyncio.sleep(0.004)  # idle, so that there are LAC frames

    async def run_to(self, count: int) -> None:
        """Append `count` entries, one at a time, and close; or fewer, without a close."""
        await self.journal.open()
        while self.acked < count:
            if not self.journal._shell.is_well:
                return
            self.changed.clear()
            if self.added == self.acked and self.journal.can_add:
                self.add()
            with suppress(TimeoutError):  # a journal with too few paths left reports nothing
                async with asyncio.timeout(0.05):
                    await self.changed.wait()
        await self.journal.close()

    def add(self) -> None:
        number = self.added
        self.added += 1
        ledger, entry = LedgerId(1 + number % LEDGERS), EntryId(number // LEDGERS)
        self.journal.add_entries(ledger, entry, 1, 1, [payload(self.incarnation, number)], number)


def check(incarnation: str, log: Sequence[Frame], acked: int) -> int:
    """The log holds exactly the first entries, at least the acknowledged ones; returns how many."""
    stored = {(ledger, entry): found for ledger, entry, found in entries_in(log)}
    assert len(stored) >= acked, f"{acked} entries were acknowledged, {len(stored)} are stored"
    for number in range(len(stored)):
        assert stored[1 + number % LEDGERS, number // LEDGERS] == payload(incarnation, number)
    return len(stored)


@dataclass
class Process:
    """A writer that runs."""

    pid: int
    acks: Path

    def acked(self) -> int:
        """The number of entries that it has acknowledged so far."""
        lines = self.acks.read_bytes().split(b"\n")[:-1] if self.acks.exists() else []
        return int(lines[-1]) if lines else 0

    def wait_for(self, acked: int) -> None:
        deadline = time.monotonic() + 30
        while self.acked() < acked:
            assert time.monotonic() < deadline, f"the writer hangs at {self.acked()}"
            time.sleep(0.002)

    def stop(self) -> None:
        """SIGSTOP, and wait until all its threads are stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        tasks = Path(f"/proc/{self.pid}/task")
        for _ in range(2000):
            states = {(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks.iterdir()}
            if states == {"T"}:
                return
            time.sleep(0.001)
        raise AssertionError(f"the writer does not stop: {states}")


class Forks:
    """A process that forks writers: starting a new interpreter each time would take a second."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.ledger.journal.writing"],
            cwd=Path(__file__).parents[3],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _line(self, command: str) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(f"{command}\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())

    def start(self, base: Path, incarnation: str, roll_bytes: int = 150_000, quorum: Quorum = QUORUM) -> Process:
        """A writer with this incarnation's log."""
        acks = base / f"acks-{incarnation}"
        return Process(self._line(f"run {base} {incarnation} {acks} {roll_bytes} {quorum}"), acks)

    def wait(self, process: Process) -> int:
        """Wait for its end; return its exit code, or minus the signal."""
        return self._line(f"wait {process.pid}")

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        assert self._server.wait(10) == 0


@contextmanager
def forks() -> Iterator[Forks]:
    """A fork server, ended afterwards."""
    made = Forks()
    try:
        yield made
    finally:
        made.close()


def main() -> None:
    import pandas as pd  # noqa: F401 - Arrow does it with its first array: here it is done for all writers

    children: set[int] = set()
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "wait":
            pid = int(arguments[0])
            _, status = os.waitpid(pid, 0)
            children.discard(pid)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        base, incarnation, acks, roll_bytes, quorum = arguments
        pid = os.fork()
        if pid:
            children.add(pid)
            print(pid, flush=True)
            continue
        code = 1
        try:
            asyncio.run(Writer(Path(base), incarnation, Path(acks), int(roll_bytes), Quorum.parse(quorum)).run())
            code = FENCED
        finally:
            os._exit(code)
    for pid in children:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
