"""Recovery on real files: what a dead writer acknowledged is kept, whatever one copy has suffered."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvloop

from pulsar_on_spark.ledger.journal import recover as recover_module
from pulsar_on_spark.ledger.journal.groups import JournalLimits
from pulsar_on_spark.ledger.journal.journal import Journal
from pulsar_on_spark.ledger.journal.log import LogRecord, LogState
from pulsar_on_spark.ledger.journal.messages import LogCommitUnknown
from pulsar_on_spark.ledger.journal.recover import recover
from pulsar_on_spark.ledger.journal.register import LogRegister
from pulsar_on_spark.model.errors import JournalUndecidedError, StorageError
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.storage import local_disk
from pulsar_on_spark.storage.files import OS_FILES, OsFiles, PartialReadError
from pulsar_on_spark.storage.identity import IDENTITY_NAME
from pulsar_on_spark.testing.failing_files import FailingFiles
from pulsar_on_spark.testing.recording_files import Crash, RecordingFiles
from tests.ledger.journal.journal_runs import QUORUM, Entry, Listener, Place, add, entries_in


def write(
    place: Place, counts: Sequence[int] = (30,), limits: JournalLimits | None = None, quorum: Quorum = QUORUM
) -> list[Entry]:
    """Run a writer that acknowledges some entries and then disappears, its files left open.

    It waits for the fragment ahead after each of `counts`: so full files are rolled as often as `counts` has further
    elements, however long a commit of the record takes.
    """

    async def run() -> list[Entry]:
        listener = Listener()
        journal = place.journal(listener, quorum, limits or JournalLimits(idle_lac_s=10))
        await journal.open()
        added = []
        for part, count in enumerate(counts):
            for _ in range(count):
                number = len(added)
                added.append(add(journal, 1 + number % 3, number // 3, os.urandom(300)))
                if number % 4 == 0:
                    await listener.wait(lambda: listener.acked == added)
            await listener.wait(lambda: listener.acked == added)
            await prepared(place, listener, fragments=part + 2)
        await abandoned(journal, listener)
        return added

    return asyncio.run(run())


async def prepared(place: Place, listener: Listener, fragments: int = 2) -> None:
    """The record names this number of fragments; the last one is the fragment ahead."""

    def named() -> int:
        record = place.register.read().record
        assert record is not None
        return len(record.fragments)

    await listener.wait_until(lambda: named() >= fragments)


async def abandoned(journal: Journal, listener: Listener) -> None:
    """The journal is left when all its paths have what an ack quorum of them has."""
    await listener.wait_until(lambda: not journal._shell._ensemble.backlog_bytes)
    journal.abandon_log()


def file_of(place: Place, path: int, file: str = "1"):
    (directory,) = [d for d in (place.paths[path].directory / "journal" / "broker-1").iterdir() if d.name == file]
    (found,) = directory.iterdir()
    return found


def test_a_dead_writers_log_is_closed_with_all_acknowledged_entries(tmp_path):
    place = Place(tmp_path)
    added = write(place)
    record = place.recover()
    assert record.state is LogState.CLOSED
    assert sorted(entries_in(place.log(record))) == sorted(added)
    assert {path.name for path in tmp_path.glob("p*/journal/broker-1/[12]/*")} == {"frames.fenced"}
    assert place.recover() == record


def test_a_fence_outlasts_any_crash(tmp_path):
    base = tmp_path / "base"
    place = Place(base)
    write(place)
    before = tmp_path / "before"
    shutil.copytree(base, before)
    files = RecordingFiles(tmp_path / "steps")
    place.recover(files=files)
    recording = files.recording(before)
    assert [step.action for step in recording.steps].count("rename") == 6, "two files on three paths"
    for crash in Crash:
        recording.materialise(len(recording.steps), crash, base, tmp_path / "after")
        names = [path.name for path in (tmp_path / "after").glob("p*/journal/broker-1/[12]/*")]
        assert names == ["frames.fenced"] * 6, crash


def test_nothing_is_fenced_over_a_network(tmp_path, monkeypatch):
    """The writer is on another host then, and may see the fence too late."""
    place = Place(tmp_path)
    write(place)
    with monkeypatch.context() as patch:
        patch.setitem(local_disk._REFUSED, local_disk.file_system_type(tmp_path), "a network")
        with pytest.raises(JournalUndecidedError, match="is on a network, where a journal's writer may not see"):
            place.recover()
    assert list(tmp_path.glob("p*/journal/broker-1/*/frames.fenced")) == []
    assert place.recover().state is LogState.CLOSED


def test_copies_that_cannot_be_read_to_their_end_are_no_answer(tmp_path):
    """An IO error says nothing of the frames behind it: with another path away, the log's end is unknown."""
    place = Place(tmp_path)
    added = write(place)
    identity = place.paths[2].directory / IDENTITY_NAME
    identity.rename(identity.with_suffix(".away"))
    bad = tuple(place.paths[path].directory / "journal" for path in (0, 1))
    with pytest.raises(JournalUndecidedError, match=os.strerror(errno.EIO)):
        place.recover(files=FailingFiles(bad, "read_into", 0, errno.EIO))
    record = place.recover()
    assert sorted(entries_in(place.log(record))) == sorted(added)


def test_a_closed_log_is_left_unchanged(tmp_path):
    place = Place(tmp_path)

    async def run() -> None:
        journal = place.journal(Listener())
        await journal.open()
        await journal.close()

    asyncio.run(run())
    before = place.register.read()
    assert place.recover() == before.record
    assert place.register.read() == before


def test_a_log_without_a_record_cannot_be_recovered(tmp_path):
    with pytest.raises(JournalUndecidedError, match="broker-1 is not recovered: there is no record of this log"):
        Place(tmp_path).recover()


def test_metadata_that_take_no_commit_are_named(tmp_path):
    class Full(LogRegister):
        def commit(self, commit):
            return LogCommitUnknown("no space left on device.")

    place = Place(tmp_path)
    write(place)
    with pytest.raises(JournalUndecidedError, match=r"20 commits of the record failed; last error: no space left"):
        recover(Full(place.store, place.register.incarnation), lambda: place.paths, list(place.paths))


def test_two_recoveries_at_once_agree(tmp_path):
    place = Place(tmp_path)
    added = write(place)
    results: list[LogRecord | JournalUndecidedError] = []

    def work() -> None:
        try:
            results.append(Place(tmp_path).recover())
        except JournalUndecidedError as error:
            results.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    record = place.recover()
    assert {result for result in results if isinstance(result, LogRecord)} <= {record}
    assert sorted(entries_in(place.log(record))) == sorted(added)


@pytest.mark.parametrize("run_in_loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_live_writer_is_fenced_and_acknowledges_nothing_more(tmp_path, run_in_loop):
    place = Place(tmp_path)

    async def run() -> tuple[Listener, LogRecord]:
        listener = Listener()
        journal = place.journal(listener)
        await journal.open()
        loop = asyncio.get_running_loop()
        recovery = loop.run_in_executor(None, lambda: Place(tmp_path).recover())
        number = 0
        while not any(word.startswith("ended") for word in listener.said):
            if journal.can_add:
                add(journal, 1, number, b"%d" % number)
                number += 1
            await asyncio.sleep(0)
        assert not journal.can_add
        assert len(listener.acked) + len(listener.lost) == number
        return listener, await recovery

    listener, record = run_in_loop(run())
    assert listener.said[-1] == "ended: incarnation broker-1 was taken over"
    stored = entries_in(place.log(record))
    assert stored[: len(listener.acked)] == listener.acked
    assert set(stored[len(listener.acked) :]) <= set(listener.lost)
    assert place.failures == []


@pytest.mark.parametrize("quorum", ["3/3/2", "1/1/1"])
def test_recovery_goes_over_rolls_and_prepared_fragments(tmp_path, quorum):
    place = Place(tmp_path)
    added = write(place, (60, 60, 60), JournalLimits(roll_bytes=5000), Quorum.parse(quorum))
    record = place.recover()
    assert len(record.fragments) > 2
    assert sorted(entries_in(place.log(record))) == sorted(added)


# -- one copy ----------------------------------------------------------------------------------------------------------


def harm_flip(path, rng):
    data = bytearray(path.read_bytes())
    bit = rng.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def harm_cut(path, rng):
    os.truncate(path, rng.randrange(path.stat().st_size))


def harm_delete(path, rng):
    path.unlink()


def harm_delete_all(path, rng):
    shutil.rmtree(path.parent.parent.parent)


def harm_disk(path, rng):
    directory = path.parents[3]
    shutil.rmtree(directory)
    directory.mkdir()


def harm_swap(path, rng):
    identity = path.parents[3] / IDENTITY_NAME
    identity.write_text(identity.read_text().replace('"path_id": ', '"path_id": 7'))


def harm_foreign(path, rng):
    path.write_bytes(rng.randbytes(5000))


HARMS = [harm_flip, harm_cut, harm_delete, harm_delete_all, harm_disk, harm_swap, harm_foreign]


@pytest.mark.parametrize("harm", HARMS)
def test_one_damaged_copy_loses_nothing(tmp_path, harm):
    rng = random.Random(1)
    place = Place(tmp_path / "place")
    added = write(place)
    for attempt in range(6 if harm in (harm_flip, harm_cut) else 1):
        base = tmp_path / f"harmed{attempt}"
        shutil.copytree(tmp_path / "place", base)
        harmed = Place(base)
        harm(file_of(harmed, attempt % 3), rng)
        record = harmed.recover()
        assert sorted(read_any(harmed, record)) == sorted(added)


def read_any(place: Place, record: LogRecord) -> list[Entry]:
    """The entries of a closed log whose copies may be harmed: of each frame the first good one."""
    frames = {}
    for fragment in record.fragments:
        for copy in fragment.copies:
            try:
                place.paths[copy.path].check()
                found = place.frames(copy)
            except (StorageError, OSError):
                continue
            for frame in found:
                frames.setdefault(frame.header.number, frame)
    return entries_in([frames[number] for number in range(record.last_frame + 1)])


# -- all copies --------------------------------------------------------------------------------------------------------


def test_a_last_frame_that_is_bad_in_every_copy_that_answers_is_refused_while_one_is_away(tmp_path):
    place = Place(tmp_path)
    write(place)
    for path in (0, 1):
        file = file_of(place, path)
        os.truncate(file, file.stat().st_size - 8)
    away = place.paths[2].directory
    away.rename(away.with_name("away"))
    with pytest.raises(
        JournalUndecidedError, match=r"it cannot be decided whether frame .* storage path 2 .* has no puls"
    ):
        place.recover()
    assert place.register.read().record.state is LogState.IN_RECOVERY
    away.with_name("away").rename(away)
    assert len(entries_in(place.log(place.recover()))) == 30


@pytest.mark.parametrize("quorum", ["3/3/2", "1/1/1"])
def test_a_whole_last_frame_that_is_damaged_in_all_copies_is_refused(tmp_path, quorum):
    """It was acknowledged; its intact header says that it was there."""
    place = Place(tmp_path, paths=3)
    write(place, quorum=Quorum.parse(quorum))
    for path in range(3 if quorum == "3/3/2" else 1):
        file = file_of(place, path)
        data = bytearray(file.read_bytes())
        data[-40] ^= 1
        file.write_bytes(data)
    with pytest.raises(JournalUndecidedError, match="cannot be decided"):
        place.recover()


@pytest.mark.parametrize("quorum", ["3/3/2", "1/1/1"])
def test_a_last_header_that_is_damaged_in_all_copies_is_refused_and_one_that_was_not_written_is_the_end(
    tmp_path, quorum
):
    place = Place(tmp_path / "place", paths=3)
    added = write(place, quorum=Quorum.parse(quorum))
    for name, harm in (("flipped", lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:]), ("hole", lambda _: None)):
        base = tmp_path / name
        shutil.copytree(tmp_path / "place", base)
        harmed = Place(base, paths=3)
        for path in range(3 if quorum == "3/3/2" else 1):
            file = file_of(harmed, path)
            at = harmed.offsets(file)[-1]
            data = file.read_bytes()
            file.write_bytes(data[:at] + (harm(data[at:]) or bytes(len(data) - at)))
        if name == "flipped":
            with pytest.raises(JournalUndecidedError, match="cannot be decided"):
                harmed.recover()
        else:
            kept = entries_in(harmed.log(harmed.recover()))
            assert len(added) - 4 <= len(kept) < len(added)


def test_damage_before_the_end_of_all_copies_is_refused(tmp_path):
    """Frames behind the bad one show that it was there: never "no such entry"."""
    place = Place(tmp_path)
    write(place)
    for path in range(3):
        file = file_of(place, path)
        frames = place.offsets(file)
        data = bytearray(file.read_bytes())
        data[frames[-2]] ^= 1
        file.write_bytes(data)
    with pytest.raises(JournalUndecidedError, match="cannot be decided"):
        place.recover()


def test_recovery_with_too_few_paths_names_the_missing_ones(tmp_path):
    place = Place(tmp_path)
    write(place)
    for path in (0, 1):
        place.paths[path].directory.rename(tmp_path / f"away{path}")
    with pytest.raises(JournalUndecidedError, match=r"too few copies.*storage path 0.*storage path 1.*try again"):
        place.recover()


def test_write_back_needs_an_ack_quorum_of_paths(tmp_path):
    place = Place(tmp_path)
    added = write(place)
    with pytest.raises(JournalUndecidedError, match="fewer paths can be written to"):
        place.recover(writable=[3])
    record = place.recover(writable=[3, 0])
    assert sorted(entries_in(place.log(record))) == sorted(added)


# -- paths that are given up -------------------------------------------------------------------------------------------


def test_after_a_power_cut_and_the_loss_of_a_disk_an_operator_can_have_the_log_closed(tmp_path):
    """The last frame was being written: path 1 has half of it, path 2 nothing, and path 0 is lost."""
    place = Place(tmp_path)
    added = write(place)
    half, none = file_of(place, 1), file_of(place, 2)
    os.truncate(half, half.stat().st_size - 8)
    os.truncate(none, place.offsets(none)[-1])
    harm_disk(file_of(place, 0), random.Random(1))
    with pytest.raises(JournalUndecidedError, match=r"storage path 0.*give up those that are lost for good"):
        place.recover()
    with pytest.raises(JournalUndecidedError, match="cannot be decided"):
        place.recover(give_up=[3])

    record = place.recover(give_up=[0])

    kept = sorted(read_any(place, record))
    assert set(kept) < set(added)
    assert len(added) - len(kept) in (1, 2, 3, 4), "the last group"
    assert record.given_up == (0,)
    assert place.register.read().record == record
    assert place.recover() == record


@pytest.mark.parametrize("quorum", ["3/3/2", "1/1/1"])
def test_a_last_frame_with_holes_in_every_copy_is_cut_off_on_request(tmp_path, quorum):
    place = Place(tmp_path, paths=3)
    added = write(place, quorum=Quorum.parse(quorum))
    copies = range(3 if quorum == "3/3/2" else 1)
    for path in copies:
        file = file_of(place, path)
        data = bytearray(file.read_bytes())
        data[-200:-40] = bytes(160)
        file.write_bytes(data)
    with pytest.raises(JournalUndecidedError, match="cannot be decided"):
        place.recover()

    record = place.recover(give_up=copies)

    kept = entries_in(place.log(record))
    assert 0 < len(kept) < len(added)
    assert set(kept) < set(added)
    assert record.given_up == tuple(copies)


def test_readable_frames_of_a_given_up_path_are_kept(tmp_path):
    place = Place(tmp_path)
    added = write(place)
    assert sorted(entries_in(place.log(place.recover(give_up=[0, 1])))) == sorted(added)


@dataclass(frozen=True, slots=True)
class _BadByte(OsFiles):
    """Reads of one file end before a byte, as Linux shows it for a bad sector, and fail if they begin there."""

    file: Path = Path()
    bad_at: int = 0
    opened: set[int] = field(default_factory=set)
    failures: list[int] = field(default_factory=list)

    def open(self, path: Path) -> int:
        fd = OsFiles.open(self, path)
        (self.opened.add if path.parent == self.file.parent else self.opened.discard)(fd)
        return fd

    def read_into(self, fd: int, offset: int, target: memoryview) -> int:
        good = self.bad_at - offset
        if fd not in self.opened or good < 0 or good >= len(target):
            return OsFiles.read_into(self, fd, offset, target)
        self.failures.append(offset)
        error = OSError(errno.EIO, os.strerror(errno.EIO))
        if good == 0:
            raise error
        raise PartialReadError(error, OsFiles.read_into(self, fd, offset, target[:good]))


def test_frames_of_a_given_up_path_before_a_bad_sector_are_kept(tmp_path):
    """Path 2 is lost, and path 1 was cut off: only path 0 has the frames between there and its bad sector."""
    place = Place(tmp_path, paths=4)
    added = write(place, (400,))
    files = [file_of(place, path) for path in range(2)]
    frames = place.offsets(files[0])
    cut, bad = len(frames) // 3, 2 * len(frames) // 3
    os.truncate(files[1], frames[cut])
    harm_disk(file_of(place, 2), random.Random(1))
    disk = _BadByte(file=files[0], bad_at=frames[bad] + 10)
    with pytest.raises(JournalUndecidedError, match="cannot be read"):
        place.recover([1, 3], disk)

    record = place.recover([1, 3], disk, give_up=[0, 2])

    assert record.last_frame == bad - 1
    kept = read_any(place, record)
    assert len(kept) == len(set(kept)) > len(added) // 2
    assert set(kept) < set(added)
    assert len(disk.failures) < 20, "a disk may take seconds for each"


# -- slow paths --------------------------------------------------------------------------------------------------------


class _SlowPaths:
    """The operating system, with path 0 healthy, and two slow paths.

    Each of the first reads of path 2 lasts one tick of the recovery's clock, once path 0 has opened the files that it
    fences. Path 1 makes its first rename only when path 0 is read from again: when path 2 has fenced, too, and every
    path was asked for frames.
    """

    def __init__(self, place: Place, slow_reads: int) -> None:
        self._directories = {path.directory: number for number, path in place.paths.items()}
        self._slow_reads = slow_reads
        self._opened: dict[int, int] = {}
        self._is_fenced = threading.Event()
        self._is_asked = threading.Event()
        self._reading = threading.Semaphore(0)
        self._ticked = threading.Semaphore(0)

    def __getattr__(self, name: str):
        return getattr(OS_FILES, name)

    def tick(self) -> bool:
        """Wait for a slow read and let it end; False if there are no more."""
        if self._slow_reads == 0:
            return False
        assert self._reading.acquire(timeout=60)
        self._slow_reads -= 1
        self._ticked.release()
        return True

    def rename(self, source: Path, target: Path) -> None:
        if self._path_of(source) == 1:
            assert self._is_asked.wait(60)
        OS_FILES.rename(source, target)

    def open(self, path: Path) -> int:
        fd = OS_FILES.open(path)
        self._opened[fd] = self._path_of(path)
        if list(self._opened.values()).count(0) == 2:
            self._is_fenced.set()
        return fd

    def read_into(self, fd: int, offset: int, target: memoryview) -> int:
        path = self._opened.get(fd)
        if path == 2 and self._slow_reads > 0:
            assert self._is_fenced.wait(60)
            self._reading.release()
            assert self._ticked.acquire(timeout=60)
        if path == 0 and self._slow_reads == 0:
            self._is_asked.set()
        return OS_FILES.read_into(fd, offset, target)

    def _path_of(self, file: Path) -> int:
        return next((number for directory, number in self._directories.items() if file.is_relative_to(directory)), -1)


@dataclass(frozen=True, slots=True)
class _StuckReads(OsFiles):
    """Reads under one directory wait for `gate`; notes descriptors that are closed while they are read from."""

    directory: Path = Path()
    gate: threading.Event = field(default_factory=threading.Event)
    held: set[int] = field(default_factory=set)
    reading: set[int] = field(default_factory=set)
    closed_while_reading: list[int] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)

    def open(self, path: Path) -> int:
        fd = OsFiles.open(self, path)
        if path.is_relative_to(self.directory):
            self.held.add(fd)
        return fd

    def read_into(self, fd: int, offset: int, target: memoryview) -> int:
        self.reading.add(fd)
        if fd in self.held:
            assert self.gate.wait(30)
        count = OsFiles.read_into(self, fd, offset, target)
        self.reading.discard(fd)
        return count

    def close(self, fd: int) -> None:
        if fd in self.reading:
            self.closed_while_reading.append(fd)
        self.closed.append(fd)
        OsFiles.close(self, fd)


def test_a_file_is_closed_by_its_reader_even_if_late(tmp_path):
    """A descriptor closed under a hanging read would soon be another file's."""
    place = Place(tmp_path)
    added = write(place)
    files = _StuckReads(directory=place.paths[1].directory)

    record = recover(place.register, lambda: place.paths, list(place.paths), files=files, silent_after_s=0.5)

    assert sorted(entries_in(place.log(record))) == sorted(added)
    assert files.reading & files.held
    assert not files.closed_while_reading
    files.gate.set()
    deadline = time.monotonic() + 30
    while not files.held <= set(files.closed):
        assert time.monotonic() < deadline, "the reader closes its file when the disk answers at last"
        time.sleep(0.01)
    assert not files.closed_while_reading


def test_a_late_fence_answer_is_not_taken_for_a_read_answer(memory_path, monkeypatch):
    """Path 1 fences so late that it counts as silent, but before it has read; path 2 needs as long, and moves.

    Only slow reads of path 2 move the recovery's clock: a busy machine makes no other path silent.
    """
    place = Place(memory_path, paths=3)

    async def run() -> list[Entry]:
        listener = Listener()
        journal = place.journal(listener, limits=JournalLimits(idle_lac_s=10))
        await journal.open()
        added = []
        for number in range(130):
            added.append(add(journal, 1, number, os.urandom(100_000)))
            if number % 10 == 9:
                await listener.wait(lambda: listener.acked == added)
        await prepared(place, listener)
        await abandoned(journal, listener)
        return added

    added = asyncio.run(run())
    with file_of(place, 2).open("ab") as file:
        file.write(bytes(100))  # so that the end cannot be decided without path 1
    slow = _SlowPaths(place, slow_reads=14)
    monkeypatch.setattr(recover_module, "TICK_S", 0.05)
    real_tick = recover_module._Recovering._tick
    monkeypatch.setattr(recover_module._Recovering, "_tick", lambda each: slow.tick() and real_tick(each))
    results: list[LogRecord] = []

    def work() -> None:
        results.append(recover(place.register, lambda: place.paths, list(place.paths), files=slow, silent_after_s=0.4))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    (record,) = results
    assert sorted(entries_in(place.log(record))) == sorted(added)
