"""Disks that fail, fill up or hang under a journal: the path is given up, nothing is tried on it again."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pulsar_on_spark.ledger.journal.groups import JournalLimits
from pulsar_on_spark.ledger.journal.messages import CopyFailed, LogCommitUnknown
from pulsar_on_spark.ledger.journal.register import LogRegister
from pulsar_on_spark.model.errors import JournalUnavailableError, MetadataError, NotEnoughCopiesError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.files import OsFiles
from pulsar_on_spark.testing.failing_files import FailingFiles
from tests.ledger.journal.journal_runs import Listener, Place, add, entries_in


async def add_some(journal, listener, count, ledger=1):
    """Add entries one at a time, so that each is a frame."""
    start = len(listener.acked)
    for number in range(start, start + count):
        add(journal, ledger, number, b"%d" % number)
        await listener.wait(lambda number=number: len(listener.acked) > number)


def paths_of(record):
    return [[copy.path for copy in fragment.copies] for fragment in record.fragments]


@pytest.mark.parametrize("action", ["write", "fdatasync"])
@pytest.mark.parametrize("error_number", [errno.EIO, errno.ENOSPC])
def test_a_path_that_fails_is_replaced_marked_and_left_alone(tmp_path, action, error_number):
    bad = tmp_path / "p1" / "journal"
    files = FailingFiles((bad,), action, 5, error_number)
    place = Place(tmp_path, files=files)

    async def run():
        listener = Listener()
        journal = place.journal(listener)
        await journal.open()
        while not place.failures:  # under load the bad path may be far behind the others
            await add_some(journal, listener, 20)
        after_failure = [call for call, _ in files.calls]
        await add_some(journal, listener, 20)
        assert [call for call, _ in files.calls] == after_failure
        await journal.close()
        assert set(listener.said) == {"room"}
        return listener.acked

    acked = asyncio.run(run())
    tried = [call for call, _ in files.calls]
    assert tried.count(action) == 6
    assert tried[-1] == "close"
    record = place.register.read().record
    assert paths_of(record)[0] == [0, 1, 2]
    assert all(paths == [0, 3, 2] for paths in paths_of(record)[1:])
    assert len(record.fragments) == 2
    assert entries_in(place.log(record)) == acked
    ((path, reason),) = {(failure.path_id, failure.reason) for failure in place.failures}
    assert path == 1
    assert os.strerror(error_number) in reason


def test_another_file_under_the_name_is_no_permission(tmp_path):
    """A disk that was put back from a copy: the name is there, with the same bytes, and is not the writer's file."""
    place = Place(tmp_path, paths=3)

    async def run():
        listener = Listener()
        journal = place.journal(listener, limits=JournalLimits(idle_lac_s=10))
        await journal.open()
        await add_some(journal, listener, 3)
        for path in place.paths.values():
            name = path.directory / "journal" / "broker-1" / "1" / "frames.open"
            name.rename(name.with_name("moved"))
            shutil.copyfile(name.with_name("moved"), name)
        add(journal, 1, 3, b"3")
        await listener.wait_until(lambda: not journal.can_add or len(listener.acked) > 3)
        assert len(listener.acked) == 3
        journal.abandon_log()

    asyncio.run(run())


def test_a_path_is_replaced_by_one_with_its_label_if_possible(tmp_path):
    """Paths 0 and 3 are in one rack, 1 and 4 in another."""
    place = Place(tmp_path, paths=5, files=FailingFiles((tmp_path / "p1" / "journal",), "fdatasync", 5, errno.EIO))
    place.paths = {path_id: replace(path, label="abcab"[path_id]) for path_id, path in place.paths.items()}

    async def run():
        listener = Listener()
        journal = place.journal(listener)
        await journal.open()
        await add_some(journal, listener, 20)
        await journal.close()

    asyncio.run(run())
    assert paths_of(place.register.read().record)[-1] == [0, 4, 2]


def test_without_a_spare_the_ensemble_shrinks_to_the_ack_quorum_and_then_starves(tmp_path):
    place = Place(tmp_path, paths=3)

    async def run():
        listener = Listener()
        journal = place.journal(listener)
        await journal.open()
        await add_some(journal, listener, 5)
        place.paths[PathId(0)].directory.rename(tmp_path / "away0")
        await add_some(journal, listener, 5)
        assert paths_of(place.register.read().record)[1] == [1, 2]
        place.paths[PathId(1)].directory.rename(tmp_path / "away1")
        add(journal, 1, 10, b"10")
        await listener.wait_until(lambda: not journal.can_add)
        with pytest.raises(JournalUnavailableError):
            add(journal, 1, 11, b"11")
        assert len(listener.acked) == 10
        (tmp_path / "away1").rename(place.paths[PathId(1)].directory)
        listener.said.clear()
        journal.offer_spare(place.paths[PathId(1)])
        await listener.wait(lambda: "room" in listener.said)
        await listener.wait(lambda: len(listener.acked) == 11)
        (tmp_path / "away0").rename(place.paths[PathId(0)].directory)
        await add_some(journal, listener, 5)
        await journal.close()
        return listener.acked

    acked = asyncio.run(run())
    record = place.register.read().record
    assert [sorted(paths) for paths in paths_of(record)] == [[0, 1, 2], [1, 2], [1, 2]]
    assert entries_in(place.log(record)) == acked


def test_too_few_paths_at_the_start_are_an_error(tmp_path):
    place = Place(tmp_path, paths=2)
    place.paths[PathId(1)].directory.rename(tmp_path / "away")

    async def run():
        listener = Listener()
        with pytest.raises(NotEnoughCopiesError, match=r"broker-1 is not open, because .* fewer paths"):
            await place.journal(listener).open()

    asyncio.run(run())


@dataclass(frozen=True, slots=True)
class HangingFiles(OsFiles):
    """Under one directory, fdatasync hangs while `gate` is closed."""

    directory: Path = Path()
    gate: threading.Event = field(default_factory=threading.Event)
    hanging: dict[int, bool] = field(default_factory=dict)

    def create(self, path):
        fd = OsFiles.create(self, path)
        self.hanging[fd] = path.is_relative_to(self.directory)
        return fd

    def fdatasync(self, fd):
        if self.hanging[fd]:
            self.gate.wait()
        OsFiles.fdatasync(self, fd)


def test_a_path_that_hangs_is_given_up_after_a_bounded_time(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    files = HangingFiles(tmp_path / "p2")
    files.gate.set()
    place = Place(tmp_path, files=files)

    async def run():
        listener = Listener()
        journal = place.journal(listener, limits=JournalLimits(slow_path_s=1.0))
        await journal.open()
        await add_some(journal, listener, 5)
        files.gate.clear()
        await add_some(journal, listener, 5)  # two of three are enough
        assert len(place.register.read().record.fragments) <= 2
        await asyncio.sleep(2.0)
        await add_some(journal, listener, 5)
        await journal.close()
        return listener.acked

    acked = asyncio.run(run())
    files.gate.set()
    record = place.register.read().record
    assert paths_of(record)[-1] == [0, 1, 3]
    assert entries_in(place.log(record)) == acked
    assert "stops using storage path 2" in caplog.text
    assert "it has made no progress for 1.0 s" in caplog.text


def test_the_backlog_of_a_slow_path_is_bounded(tmp_path):
    files = HangingFiles(tmp_path / "p2")
    files.gate.set()
    place = Place(tmp_path, files=files)

    async def run():
        listener = Listener()
        journal = place.journal(listener, limits=JournalLimits(waiting_bytes=100_000, roll_bytes=30_000))
        await journal.open()
        files.gate.clear()
        number = 0
        while journal.can_add and number < 1000:
            add(journal, 1, number, b"x" * 1000)
            number += 1
            await listener.wait(lambda number=number: len(listener.acked) == number)
        assert 60 < number < 100
        listener.said.clear()
        files.gate.set()
        await listener.wait(lambda: "room" in listener.said)
        await journal.close()
        return listener.acked

    acked = asyncio.run(run())
    assert entries_in(place.log(place.register.read().record)) == acked


@dataclass(frozen=True, slots=True)
class SlowFiles(OsFiles):
    """Under some directories, 10 kB take so long to write."""

    delays_s: dict[Path, float] = field(default_factory=dict)
    by_fd: dict[int, float] = field(default_factory=dict)

    def create(self, path):
        fd = OsFiles.create(self, path)
        self.by_fd[fd] = max((s for directory, s in self.delays_s.items() if path.is_relative_to(directory)), default=0)
        return fd

    def write_buffers(self, fd, buffers):
        time.sleep(self.by_fd[fd] * sum(map(len, buffers)) / 10_000)
        OsFiles.write_buffers(self, fd, buffers)


def flood(tmp_path, delays_s, until, seconds):
    """Groups of 20 kB as fast as they are taken, until the last fragment is on the paths `until`, or for so long."""
    files = SlowFiles({tmp_path / f"p{path}": delay_s for path, delay_s in delays_s.items()})
    place = Place(tmp_path, files=files)

    async def run():
        listener = Listener()
        limits = JournalLimits(waiting_bytes=400_000, group_bytes=20_000, roll_bytes=200_000, slow_path_s=2.0)
        journal = place.journal(listener, limits=limits)
        await journal.open()
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end and [copy.path for copy in journal._shell._core.copies] != until:
            while journal.can_add:
                add(journal, 1, number, b"x" * 10_000)
                number += 1
            await asyncio.sleep(0.001)
        await journal.close()
        if until is not None:
            await listener.wait_until(lambda: place.failures)
        return listener.acked

    acked = asyncio.run(run())
    record = place.register.read().record
    assert entries_in(place.log(record)) == acked
    return place, record


def test_a_path_that_moves_and_holds_all_others_back_is_given_up(tmp_path):
    place, record = flood(tmp_path, {2: 0.01}, [0, 1, 3], 60)

    assert paths_of(record)[0] == [0, 1, 2]
    assert paths_of(record)[-1] == [0, 1, 3]
    ((path, reason),) = {(failure.path_id, failure.reason) for failure in place.failures}
    assert (path, reason) == (2, "it is 200000 bytes or more behind, and the other paths had to wait for 2.0 s")


def test_paths_that_are_all_slow_are_kept(tmp_path):
    place, record = flood(tmp_path, dict.fromkeys(range(4), 0.01), None, 5)

    assert {tuple(paths) for paths in paths_of(record)} == {(0, 1, 2)}
    assert place.failures == []


def has_ended_fragment(place):
    """The record says where the second fragment begins: no path gets frames of the first."""
    fragments = place.register.read().record.fragments
    return len(fragments) > 1 and fragments[1].first is not None


def test_a_path_behind_when_its_file_is_trimmed_stays_well(tmp_path):
    files = HangingFiles(tmp_path / "p2")
    files.gate.set()
    place = Place(tmp_path, files=files)

    async def run():
        listener = Listener()
        journal = place.journal(listener, limits=JournalLimits(roll_bytes=2000, slow_path_s=120))
        await journal.open()
        await add_some(journal, listener, 1)
        files.gate.clear()
        while not has_ended_fragment(place):  # on a slow disk the fragment ahead comes late
            await add_some(journal, listener, 20)
        first, second = place.register.read().record.fragments[:2]
        for copy in first.copies:
            shutil.rmtree(place.file(copy))
        journal.forget_trimmed_frames(second.first)
        files.gate.set()
        await add_some(journal, listener, 60)
        await listener.wait_until(lambda: not journal._shell._ensemble.backlog_bytes)
        await asyncio.sleep(0.4)
        await journal.close()

    asyncio.run(run())
    assert place.failures == []
    assert {tuple(paths) for paths in paths_of(place.register.read().record)} == {(0, 1, 2)}


def test_a_late_answer_of_a_path_that_was_given_up_and_returned_is_ignored(tmp_path):
    files = HangingFiles(tmp_path / "p2")
    files.gate.set()
    place = Place(tmp_path, paths=3, files=files)

    async def run():
        listener = Listener()
        journal = place.journal(listener, limits=JournalLimits(slow_path_s=1.0))
        await journal.open()
        await add_some(journal, listener, 5)
        files.gate.clear()
        await add_some(journal, listener, 5)
        await listener.wait_until(lambda: len(paths_of(place.register.read().record)[-1]) == 2)
        (copy,) = [copy for copy in place.register.read().record.fragments[0].copies if copy.path == 2]
        journal.offer_spare(place.paths[PathId(2)])
        await listener.wait_until(lambda: len(paths_of(place.register.read().record)[-1]) == 3)
        journal._shell._inbox.post(CopyFailed(copy, "it fails at last"))
        files.gate.set()
        await add_some(journal, listener, 5)
        await asyncio.sleep(0.4)
        await journal.close()
        return listener.acked

    acked = asyncio.run(run())
    record = place.register.read().record
    assert sorted(paths_of(record)[-1]) == [0, 1, 2]
    assert {failure.path_id for failure in place.failures} == {2}
    assert len({failure.reason for failure in place.failures}) == 1
    assert entries_in(place.log(record)) == acked


def test_a_file_without_its_name_does_not_count(tmp_path):
    """The path is well and the log not taken over: somebody deleted the file under the writer."""
    place = Place(tmp_path)

    async def run():
        listener = Listener()
        journal = place.journal(listener)
        await journal.open()
        await add_some(journal, listener, 3)
        (tmp_path / "p0" / "journal" / "broker-1" / "1" / "frames.open").unlink()
        await add_some(journal, listener, 3)
        await asyncio.sleep(0.4)
        await journal.close()
        return listener.acked

    acked = asyncio.run(run())
    record = place.register.read().record
    assert paths_of(record)[-1] == [3, 1, 2]
    assert len(acked) == 6
    assert [failure.path_id for failure in place.failures] == [0]


class RefusingRegister(LogRegister):
    """A metadata store that can be read, and takes no commit after the first few."""

    takes: int = 1

    def commit(self, commit):
        if self.takes == 0:
            return LogCommitUnknown()
        self.takes -= 1
        return LogRegister.commit(self, commit)


class SilentRegister(RefusingRegister):
    """As that, and while it takes no commit it cannot be read either."""

    def read(self):
        if self.takes == 0:
            raise MetadataError("The table cannot be read: no such device.")
        return LogRegister.read(self)


def test_unreadable_metadata_end_only_a_journal_that_needs_them(tmp_path):
    place = Place(tmp_path)
    place.register = SilentRegister(place.store, place.register.incarnation)

    async def run():
        listener = Listener()
        limits = JournalLimits(roll_bytes=2000, metadata_wait_s=0.2)
        journal = place.journal(listener, limits=limits)
        await journal.open()
        await add_some(journal, listener, 30)
        await asyncio.sleep(0.6)
        await add_some(journal, listener, 30)
        assert listener.said == ["room"]
        (tmp_path / "p1" / "journal" / "broker-1" / "1" / "frames.open").unlink()
        add(journal, 1, 60, b"60")
        await listener.wait(lambda: len(listener.said) > 1)
        return listener

    listener = asyncio.run(run())
    assert listener.said[1:] == [
        "ended: its record could not be read for 0.2 s; last error: The table cannot be read: no such device."
    ]
    assert len(listener.acked) >= 60
    # The other two paths may have taken it before the third was missed.
    assert listener.acked[60:] + listener.lost == [(1, 60, b"60")]


def test_refused_commits_of_the_next_fragment_are_retried_seldom(tmp_path):
    place = Place(tmp_path)
    place.register = RefusingRegister(place.store, place.register.incarnation)

    async def run():
        listener = Listener()
        journal = place.journal(listener, limits=JournalLimits(roll_bytes=2000))
        await journal.open()
        reads = 0
        read = place.register.read

        def counted():
            nonlocal reads
            reads += 1
            return read()

        place.register.read = counted
        await add_some(journal, listener, 30)
        await asyncio.sleep(0.5)
        assert reads < 8
        place.register.takes = 100
        await asyncio.sleep(1.2)
        await add_some(journal, listener, 30)
        await journal.close()
        assert set(listener.said) == {"room"}
        return listener.acked

    acked = asyncio.run(run())
    record = place.register.read().record
    assert len(record.fragments) > 1
    assert entries_in(place.log(record)) == acked
