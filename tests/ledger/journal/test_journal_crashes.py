"""A journal run, its roll and ensemble change, and its recovery, crashed at every step of the files under them.

The record is kept by a register in memory that notes at which step of the files each commit came: what it says at a
crash is exact, and a crash costs milliseconds.
"""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pulsar_on_spark.ledger.journal.groups import JournalLimits
from pulsar_on_spark.ledger.journal.journal import Journal
from pulsar_on_spark.ledger.journal.log import LogRecord, LogState
from pulsar_on_spark.ledger.journal.messages import CommitLog, LogCommitted, LogConflict, LogRead
from pulsar_on_spark.ledger.journal.recover import recover
from pulsar_on_spark.model.errors import JournalUndecidedError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.local_path import LocalPath
from pulsar_on_spark.testing.recording_files import Crash, Recording, RecordingFiles
from tests.ledger.journal.journal_runs import CLUSTER, NAME, QUORUM, Entry, Listener, add, entries_in
from tests.ledger.journal.journal_runs import Place as RealPlace


@dataclass
class FailingRecorder(RecordingFiles):
    """Records; from some fdatasync of files on one path on, they fail."""

    bad: Path = Path()
    left: int = 3

    def fdatasync(self, fd: int) -> None:
        if self._open_files[fd][1].is_relative_to(self.bad):
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.EIO, "no more")
        super().fdatasync(fd)


class NoDataSync(FailingRecorder):
    """Forgets to sync bytes."""

    def fdatasync(self, fd: int) -> None:
        pass


class NoDirectorySync(FailingRecorder):
    """Forgets to sync names."""

    def fsync_directory(self, path: Path) -> None:
        pass


@dataclass
class MemoryRegister:
    """Compare-and-set in memory; `history` holds (step of the files, record, version) of each commit."""

    files: RecordingFiles | None = None
    record: LogRecord | None = None
    version: int = 0
    incarnation = NAME
    history: list[tuple[int, LogRecord, int]] = field(default_factory=list)

    def commit(self, commit: CommitLog):
        if commit.expected_version != self.version:
            return LogConflict(self.record, self.version)
        self.record, self.version = commit.record, self.version + 1
        if self.files is not None:
            self.history.append((len(self.files.recording().steps), self.record, self.version))
        return LogCommitted(self.version)

    def read(self):
        return LogRead(self.record, self.version)


class Files(RealPlace):
    """Storage paths only."""

    def __init__(self, base: Path) -> None:
        self.paths = {PathId(n): LocalPath(PathId(n), base / f"p{n}", CLUSTER) for n in range(4)}
        self.register = MemoryRegister()


@dataclass
class Run:
    """A run's history: all entries in order, and the number of acknowledged ones at each step of the files."""

    recording: Recording
    register: MemoryRegister
    entries: list[Entry]
    acks: list[tuple[int, int]]

    def acked(self, steps: int) -> int:
        return max((count for step, count in self.acks if step <= steps), default=0)


def run(base: Path, files: RecordingFiles) -> Run:
    """Write, roll, change the ensemble, write on; the writer is gone then, and its log is recovered."""
    base.mkdir()
    place = Files(base)
    for path in place.paths.values():
        path.create(files)
    register = MemoryRegister(files)
    acks: list[tuple[int, int]] = []

    class Noting(Listener):
        def on_entries_acknowledged(self, contexts):
            super().on_entries_acknowledged(contexts)
            acks.append((len(files.recording().steps), len(self.acked)))

    async def write() -> list[Entry]:
        listener = Noting()
        journal = Journal(
            register,
            list(place.paths.values()),
            QUORUM,
            listener,
            on_ended=listener.on_ended,
            mark_failed=lambda failures: None,
            limits=JournalLimits(roll_bytes=1500, idle_lac_s=0.003),
            files=files,
        )
        await journal.open()
        entries = []
        for number in range(9):
            await asyncio.sleep(0.02)  # the next fragment is prepared, an idle frame written
            for part in range(2):
                entries.append(add(journal, 1, 2 * number + part, b"%d" % number * 40))
            await listener.wait(lambda: len(listener.acked) == len(entries))
        entries.append(add(journal, 1, 18, b"perhaps"))
        await asyncio.sleep(0.0005)
        journal._shell.end_log("the process is gone")
        await asyncio.sleep(0.1)
        return entries

    entries = asyncio.run(write())
    recover(register, lambda: place.paths, list(place.paths), files=files, silent_after_s=5)
    return Run(files.recording(), register, entries, acks)


def crashed(ran: Run, base: Path, after: Path, steps: int, crash: Crash) -> None:
    """Recover from what the crash left; the log holds a prefix of the entries with all acknowledged ones."""
    ran.recording.materialise(steps, crash, base, after)
    known = [(record, version) for step, record, version in ran.register.history if step <= steps]
    if not known:
        assert ran.acked(steps) == 0
        return
    place = Files(after)
    place.register.record, place.register.version = known[-1]
    record = recover(place.register, lambda: place.paths, list(place.paths), silent_after_s=5)
    assert record.state is LogState.CLOSED
    if known[-1][0].state is LogState.CLOSED:
        assert record == known[-1][0]
    stored = entries_in(place.log(record))
    assert stored == ran.entries[: len(stored)]
    assert len(stored) >= ran.acked(steps)


@pytest.mark.long
def test_every_crash_keeps_acknowledged_entries(tmp_path, memory_path):
    base = tmp_path / "base"
    ran = run(base, FailingRecorder(tmp_path / "log", bad=base / "p1"))
    records = [record for _, record, _ in ran.register.history]
    assert len(records[-1].fragments) > 3
    assert {copy.path for copy in records[0].fragments[0].copies} == {0, 1, 2}
    assert 1 not in {copy.path for copy in records[-1].fragments[-1].copies}
    first = ran.register.history[0][0]
    assert len(ran.recording.steps) > first + 80
    for steps in range(first, len(ran.recording.steps) + 1):
        changes_bytes = steps > 0 and ran.recording.steps[steps - 1].action in ("write", "fdatasync", "rename")
        for crash in Crash if changes_bytes else (Crash.DROP_ALL,):
            crashed(ran, base, memory_path / "after", steps, crash)


@pytest.mark.parametrize("forgetful", [NoDataSync, NoDirectorySync])
def test_a_missing_sync_would_be_noticed(tmp_path, forgetful):
    base = tmp_path / "base"
    ran = run(base, forgetful(tmp_path / "log", bad=base / "p9"))
    last_ack = ran.acks[-1][0]
    with pytest.raises((JournalUndecidedError, AssertionError)):
        crashed(ran, base, tmp_path / "after", last_ack, Crash.DROP_ALL)
