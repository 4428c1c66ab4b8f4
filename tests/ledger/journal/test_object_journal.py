"""A journal on real object stores, one folder each: written, read while it grows, fenced, recovered, and deleted."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from pulsar_on_spark.ledger.journal import object_file
from pulsar_on_spark.ledger.journal.frames import Frame, FrameHead
from pulsar_on_spark.ledger.journal.groups import JournalLimits
from pulsar_on_spark.ledger.journal.journal import Journal
from pulsar_on_spark.ledger.journal.journal_paths import (
    clear_incarnation,
    create_file,
    delete_file,
    journal_incarnations,
    journal_sizes,
)
from pulsar_on_spark.ledger.journal.log import Copy, LogRecord, LogState
from pulsar_on_spark.ledger.journal.log_reader import LogReader
from pulsar_on_spark.ledger.journal.messages import LogRead
from pulsar_on_spark.ledger.journal.object_file import ObjectBytes, ObjectFile
from pulsar_on_spark.ledger.journal.object_format import ObjectHead, parse_head
from pulsar_on_spark.ledger.journal.object_protocol import CommitPolicy
from pulsar_on_spark.ledger.journal.places import JournalPath
from pulsar_on_spark.ledger.journal.recover import recover
from pulsar_on_spark.ledger.journal.register import LogRegister
from pulsar_on_spark.ledger.journal.register_thread import RegisterSilent, RegisterThread
from pulsar_on_spark.metadata.records import RootRecord
from pulsar_on_spark.metadata.store import MetadataStore
from pulsar_on_spark.model.errors import (
    CorruptJournalError,
    JournalFencedError,
    JournalGoneError,
    JournalUndecidedError,
    MetadataError,
    StoragePathError,
)
from pulsar_on_spark.model.ids import IncarnationId, JournalFileId, PathId
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.storage.local_path import LocalPath
from pulsar_on_spark.storage.object_path import ObjectPath
from pulsar_on_spark.storage.objects.local import LocalObjects
from pulsar_on_spark.storage.storage_path import PathFailure
from tests.ledger.journal.journal_runs import CLUSTER, NAME, Entry, Listener, add, entries_in

F = TypeVar("F", bound=FrameHead)
ONE = Quorum(1, 1, 1)
THREE = Quorum(3, 3, 2)
LIMITS = JournalLimits(object_commits=CommitPolicy(interval_s=0.005), idle_lac_s=10)


class Stores:
    """Metadata in a folder, and storage paths on object stores, of which some may be disks instead."""

    def __init__(self, base: Path, stores: int = 1, disks: int = 0) -> None:
        root = base / "root"
        record = RootRecord(format_version=1, cluster_id=CLUSTER, quorum="1/1/1")
        self.store = MetadataStore(root) if MetadataStore.exists(root) else MetadataStore.create(root, [record])
        self.paths: dict[PathId, JournalPath] = {}
        for number in range(stores + disks):
            path_id, place = PathId(number), base / f"p{number}"
            is_store = number < stores
            path = ObjectPath(path_id, place, CLUSTER) if is_store else LocalPath(path_id, place, CLUSTER)
            place.mkdir(exist_ok=True)
            path.create()
            self.paths[path_id] = path
        self.register = LogRegister(self.store, NAME)

    def journal(
        self,
        listener: Listener,
        quorum: Quorum = ONE,
        limits: JournalLimits = LIMITS,
        mark_failed: Callable[[Sequence[PathFailure]], None] = lambda _: None,
    ) -> Journal:
        return Journal(
            self.register,
            list(self.paths.values()),
            quorum,
            listener,
            on_ended=listener.on_ended,
            mark_failed=mark_failed,
            limits=limits,
        )

    def recover(self, give_up: Sequence[int] = ()) -> LogRecord:
        register = LogRegister(self.store, NAME)
        lost = [PathId(path) for path in give_up]
        return recover(register, lambda: self.paths, list(self.paths), give_up=lost, silent_after_s=20)

    def file(self, name: str = "1", path: int = 0) -> ObjectFile:
        found = self.paths[PathId(path)]
        assert isinstance(found, ObjectPath)
        return ObjectFile(found, NAME, JournalFileId(name))

    def key(self, number: int, name: str = "1", path: int = 0) -> Path:
        """The file of an object, in the folder of its store."""
        place = self.paths[PathId(path)].place
        assert isinstance(place, Path)
        return place / "journal" / NAME / name / f"{number:010d}"

    def frames(self, record: LogRecord) -> list[Frame]:
        """All frames of a log that can be read now, each verified."""
        reader = LogReader(NAME, lambda: self.paths, Frame)
        with closing(reader):
            reader.main_read(record, 0)
            return list(_all(reader))

    def entries(self, record: LogRecord) -> list[Entry]:
        return sorted(entries_in(self.frames(record)))

    @property
    def record(self) -> LogRecord:
        record = self.register.read().record
        assert record is not None
        return record


def _all(reader: LogReader[F]) -> Iterator[F]:
    reader.open_files()
    while (frame := reader.next()) is not None:
        yield frame


def _has_sent(journal: Journal, frame: int) -> bool:
    return journal._shell.next_frame > frame


async def fill(journal: Journal, listener: Listener, count: int = 40, done: int = 0) -> list[Entry]:
    """Add entries in several groups, and wait until they are acknowledged."""
    added: list[Entry] = []
    for number in range(done, done + count):
        added.append(add(journal, 1 + number % 3, number // 3, os.urandom(300)))
        if number % 7 == 0:
            await listener.wait(lambda: len(listener.acked) == done + len(added))
    await listener.wait(lambda: len(listener.acked) == done + len(added))
    return added


def written(
    stores: Stores, quorum: Quorum = ONE, *, count: int = 40, limits: JournalLimits = LIMITS, files: int = 0
) -> list[Entry]:
    """Write as a writer that disappears; return the entries, all acknowledged.

    There are `count` entries, and more if they are needed for a log of `files` files.
    """

    async def run() -> list[Entry]:
        listener = Listener()
        journal = stores.journal(listener, quorum, limits)
        await journal.open()
        added = await fill(journal, listener, count)
        while len(stores.record.fragments) < files:
            added += await fill(journal, listener, 14, len(added))
        await listener.wait_until(lambda: not journal._shell._ensemble.backlog_bytes)
        journal.abandon_log()
        return added

    return asyncio.run(run())


def kinds(stores: Stores, name: str = "1", path: int = 0) -> list[str]:
    file = stores.file(name, path)
    heads = [file.read_head(number) for number in sorted(file.sizes())]
    return [head.kind.name for head in heads if head is not None]


# -- a writer and its recovery -----------------------------------------------------------------------------------------


def test_a_closed_journal_holds_what_was_added(tmp_path: Path) -> None:
    stores = Stores(tmp_path)

    async def run() -> list[Entry]:
        listener = Listener()
        journal = stores.journal(listener)
        await journal.open()
        added = await fill(journal, listener)
        await journal.close()
        return added

    added = asyncio.run(run())

    assert stores.record.state is LogState.CLOSED
    assert stores.entries(stores.record) == sorted(added)
    assert set(kinds(stores)) == {"BIRTH", "DATA"}, "an end that is clean needs no fence"


@pytest.mark.parametrize(
    ("stores", "disks", "quorum"), [(1, 0, ONE), (3, 0, THREE), (2, 2, THREE)], ids=["1/1/1", "3/3/2", "mixed"]
)
def test_a_dead_writers_journal_is_recovered_with_all_that_it_acknowledged(
    tmp_path: Path, stores: int, disks: int, quorum: Quorum
) -> None:
    place = Stores(tmp_path, stores, disks)
    added = written(place, quorum)

    record = place.recover()

    assert record.state is LogState.CLOSED
    assert place.entries(record) == sorted(added)
    assert place.recover() == record


def test_a_file_is_full_after_so_many_bytes_and_the_next_one_takes_over(tmp_path: Path) -> None:
    stores = Stores(tmp_path)

    async def run() -> list[Entry]:
        listener = Listener()
        journal = stores.journal(listener, limits=replace(LIMITS, roll_bytes=3_000))
        await journal.open()
        added: list[Entry] = []
        while len(stores.record.fragments) < 4:
            added += await fill(journal, listener, 14, len(added))
        await journal.close()
        return added

    added = asyncio.run(run())

    assert len(stores.record.fragments) >= 3
    assert stores.entries(stores.record) == sorted(added)


def test_a_writer_that_comes_back_after_a_recovery_is_fenced(tmp_path: Path) -> None:
    stores = Stores(tmp_path)

    async def run() -> tuple[list[Entry], LogRecord]:
        listener = Listener()
        journal = stores.journal(listener)
        await journal.open()
        added = await fill(journal, listener)
        record = await asyncio.to_thread(stores.recover)
        add(journal, 9, 0, b"too late")
        await listener.wait(lambda: listener.said[-1:] and listener.said[-1].startswith("ended"))
        assert len(listener.lost) == 1
        with pytest.raises(JournalFencedError, match="was taken over"):
            await journal.close()
        return added, record

    added, record = asyncio.run(run())

    assert kinds(stores)[-1] == "FENCE"
    assert stores.entries(record) == sorted(added)


def test_a_fence_stays_when_the_file_is_deleted_and_stops_who_comes_late(tmp_path: Path) -> None:
    stores = Stores(tmp_path)
    written(stores)
    stores.recover()
    number = len(kinds(stores)) - 1

    assert delete_file(stores.paths[PathId(0)], NAME, JournalFileId("1")) == number
    assert kinds(stores) == ["FENCE"]
    assert list(stores.file().sizes()) == [number]
    assert delete_file(stores.paths[PathId(0)], NAME, JournalFileId("1")) == 0


def test_a_file_is_deleted_from_its_birth_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = Stores(tmp_path)
    written(stores)
    deleted: list[str] = []
    path = stores.paths[PathId(0)]
    assert isinstance(path, ObjectPath)
    monkeypatch.setattr(type(path.objects), "delete", lambda _, key: deleted.append(key))

    delete_file(path, NAME, JournalFileId("1"))

    assert deleted[0].endswith("/0000000000")
    assert len(deleted) == len(kinds(stores))


def test_a_file_never_has_a_second_writer(tmp_path: Path) -> None:
    path = Stores(tmp_path).paths[PathId(0)]
    create_file(path, NAME, Copy(PathId(0), "7"))
    with pytest.raises(FileExistsError):
        create_file(path, NAME, Copy(PathId(0), "7"))


def test_files_of_removed_logs_are_found_and_cleared(tmp_path: Path) -> None:
    stores = Stores(tmp_path)
    path = stores.paths[PathId(0)]
    written(stores)
    stores.recover()
    fences = [file for _, file, _ in journal_sizes(path) if kinds(stores, file)[-1] == "FENCE"]

    assert journal_incarnations(path) == [NAME]
    assert clear_incarnation(path, NAME) > 5
    assert {file for _, file, _ in journal_sizes(path)} == set(fences)
    assert clear_incarnation(path, IncarnationId("another")) == 0


def test_a_recovery_does_not_wait_for_a_store_that_it_does_not_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zone may take the broker and a store away at the same time."""
    stores = Stores(tmp_path, 3)
    added = written(stores, THREE)
    is_over, away = threading.Event(), stores.paths[PathId(2)]
    assert isinstance(away, ObjectPath)
    create = type(away.objects).create

    def create_unless_away(objects: LocalObjects, key: str, content: bytes) -> object:
        if objects.folder == away.place:
            is_over.wait(120)
        return create(objects, key, content)

    monkeypatch.setattr(type(away.objects), "create", create_unless_away)
    began_s = time.monotonic()
    try:
        record = recover(stores.register, lambda: stores.paths, list(stores.paths), silent_after_s=120)
        assert time.monotonic() - began_s < 60, "it has waited for the store"
        assert {copy.path for copy in record.fragments[-1].copies} == {PathId(0), PathId(1)}
        assert stores.entries(record) == sorted(added)
    finally:
        is_over.set()


# -- what is lost or damaged -------------------------------------------------------------------------------------------


def test_a_journal_without_its_birth_is_undecided(tmp_path: Path) -> None:
    stores = Stores(tmp_path)
    written(stores)
    stores.key(0).unlink()
    with pytest.raises(JournalUndecidedError, match=r"Journal file .*/journal/broker-1/1 is not there"):
        stores.recover()


def test_an_object_that_somebody_deleted_never_shortens_the_log(tmp_path: Path) -> None:
    stores = Stores(tmp_path)
    written(stores)
    stores.key(2).unlink()
    with pytest.raises(JournalUndecidedError):
        stores.recover()
    assert stores.recover(give_up=[0]).given_up == (PathId(0),)


def test_the_other_copies_serve_for_an_object_that_is_damaged(tmp_path: Path) -> None:
    stores = Stores(tmp_path, 3)
    added = written(stores, THREE)
    for number in range(1, len(kinds(stores))):
        content = bytearray(stores.key(number).read_bytes())
        content[-1] ^= 1
        stores.key(number).unlink()
        stores.key(number).write_bytes(content)

    assert stores.entries(stores.recover()) == sorted(added)


def test_a_store_that_was_emptied_is_never_an_empty_journal(tmp_path: Path) -> None:
    stores = Stores(tmp_path)
    written(stores)
    place = stores.paths[PathId(0)].place
    assert isinstance(place, Path)
    place.rename(tmp_path / "away")
    with pytest.raises(JournalUndecidedError):
        stores.recover()
    (tmp_path / "away").rename(place)
    assert stores.recover().state is LogState.CLOSED


# -- readers -----------------------------------------------------------------------------------------------------------


def test_a_reader_follows_a_growing_journal(tmp_path: Path) -> None:
    stores = Stores(tmp_path)

    async def run() -> None:
        listener = Listener()
        journal = stores.journal(listener, limits=replace(LIMITS, idle_lac_s=0.001))
        await journal.open()
        reader = LogReader(NAME, lambda: stores.paths, FrameHead)
        frames: list[int] = []
        done = 0

        def read() -> None:
            reader.main_read(stores.record, 0)
            reader.open_files()
            while (head := reader.next()) is not None:
                frames.append(head.header.number)

        with closing(reader):
            for _ in range(5):
                done += len(await fill(journal, listener, 20, done))
                await asyncio.to_thread(read)
            acknowledged = journal._shell._core.lac
            # The idle frame tells that the last entries are acknowledged.
            await listener.wait_until(lambda: read() is None and reader.walk.lac >= acknowledged)
        assert frames == list(range(len(frames)))
        await journal.close()

    asyncio.run(run())


def test_a_reader_of_a_file_that_is_being_deleted_is_told_so(tmp_path: Path) -> None:
    stores = Stores(tmp_path)
    written(stores)
    source = ObjectBytes(stores.file())
    size = source.size()
    target = memoryview(bytearray(size))
    assert source.read_into(0, target) == size
    delete_file(stores.paths[PathId(0)], NAME, JournalFileId("1"))

    with pytest.raises(JournalGoneError, match="was deleted"):
        source.size()
    source.close()
    with pytest.raises(JournalGoneError, match="was deleted"):
        source.read_into(0, target)
    with pytest.raises(FileNotFoundError):
        ObjectBytes(stores.file())


def test_the_bodies_one_after_another_are_the_file(tmp_path: Path) -> None:
    stores = Stores(tmp_path, 1, 1)
    written(stores, Quorum(2, 2, 2))
    record = stores.record
    copies = {copy.path: copy for copy in record.fragments[0].copies}
    source = ObjectBytes(stores.file(copies[PathId(0)].file))
    target = memoryview(bytearray(source.size()))
    source.read_into(0, target)
    disk = stores.paths[PathId(1)].place
    assert isinstance(disk, Path)
    (local,) = (disk / "journal" / NAME / copies[PathId(1)].file).iterdir()

    assert bytes(target) == local.read_bytes()


def test_a_frame_in_the_middle_is_found_without_reading_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = Stores(tmp_path)
    written(stores, count=60)
    with closing(LogReader(NAME, lambda: stores.paths, Frame)) as reader:
        reader.main_read(stores.record, 0)
        numbers = [frame.header.number for frame in _all(reader)]
    assert len(numbers) > 8
    read: list[int] = []
    read_object = ObjectFile.read

    def noted(file: ObjectFile, number: int) -> tuple[ObjectHead, memoryview] | None:
        read.append(number)
        return read_object(file, number)

    monkeypatch.setattr(ObjectFile, "read", noted)
    with closing(LogReader(NAME, lambda: stores.paths, Frame, begin=numbers[-2])) as reader:
        reader.main_read(stores.record, numbers[-2])
        assert [frame.header.number for frame in _all(reader)] == numbers[-2:]
    last = len(kinds(stores)) - 1
    assert set(read) <= {0, 1, *range(last - 3, last + 2)}, "0 and 1 are the birth and the file's header"


def test_objects_that_are_read_one_after_another_are_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = Stores(tmp_path)
    written(stores, count=1000, limits=replace(LIMITS, object_commits=CommitPolicy(interval_s=0)))
    source = ObjectBytes(stores.file())
    size = source.size()
    assert len(source._ends) > 2 * object_file.AHEAD
    whole = memoryview(bytearray(size))
    assert source.read_into(0, whole) == size
    lock, running, most = threading.Lock(), 0, 0
    read_object = ObjectFile.read

    def slow(file: ObjectFile, number: int) -> tuple[ObjectHead, memoryview] | None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return read_object(file, number)

    monkeypatch.setattr(ObjectFile, "read", slow)
    source = ObjectBytes(stores.file())
    assert source.size() == size
    parts = [memoryview(bytearray(min(700, size - at))) for at in range(0, size, 700)]
    for number, part in enumerate(parts):
        assert source.read_into(700 * number, part) == len(part)
    assert b"".join(parts) == whole
    assert object_file.AHEAD // 2 < most <= object_file.AHEAD + 1

    most = 0
    source = ObjectBytes(stores.file())
    source.size()
    for number in range(len(source._ends) - 1, 2, -2):
        source.read_into(source._ends[number - 1], memoryview(bytearray(1)))
    assert most == 1, "reads in another order get nothing ahead"


def test_a_reader_that_is_far_behind_lists_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = Stores(tmp_path)
    written(stores, count=100, limits=replace(LIMITS, object_commits=CommitPolicy(interval_s=0)))
    names = sorted(stores.key(1).parent.iterdir())
    hidden = [name.rename(tmp_path / name.name) for name in names[3:]]
    source = ObjectBytes(stores.file())
    source.size()
    assert len(source._ends) == 3
    for name in hidden:
        name.rename(stores.key(1).parent / name.name)
    looks = 0
    read_object = ObjectFile.read

    def counted(file: ObjectFile, number: int) -> tuple[ObjectHead, memoryview] | None:
        nonlocal looks
        looks += 1
        return read_object(file, number)

    monkeypatch.setattr(ObjectFile, "read", counted)
    source.size()
    assert looks == 2
    assert len(source._ends) == len(names)


def test_an_object_of_another_writer_is_no_data(tmp_path: Path) -> None:
    stores = Stores(tmp_path)
    written(stores)
    head, size, _ = parse_head(stores.key(2).read_bytes(), "o")
    body = stores.key(2).read_bytes()[-size:]
    stores.key(2).unlink()
    stores.key(2).write_bytes(replace(head, token="00" * 16).encode(body))
    source = ObjectBytes(stores.file())
    with pytest.raises(CorruptJournalError, match="was not written by its file's writer"):
        source.read_into(0, memoryview(bytearray(source.size())))


@pytest.mark.parametrize("kind", [Frame, FrameHead])
def test_another_copy_serves_from_the_middle_on_if_the_first_object_is_damaged(
    tmp_path: Path, kind: type[FrameHead]
) -> None:
    """The search finds the frame's object without the first one, which has the file's header."""
    stores = Stores(tmp_path, 3)
    written(stores, THREE)
    numbers = [frame.header.number for frame in stores.frames(stores.record)]
    middle = numbers[len(numbers) // 2]
    for path in range(2):  # the reader may begin with any copy
        content = bytearray(stores.key(1, path=path).read_bytes())
        content[-1] ^= 1
        stores.key(1, path=path).write_bytes(content)

    with closing(LogReader(NAME, lambda: stores.paths, kind, begin=middle)) as reader:
        reader.main_read(stores.record, middle)
        assert [frame.header.number for frame in _all(reader)] == numbers[numbers.index(middle) :]


# -- the writer's threads ----------------------------------------------------------------------------------------------


def test_several_objects_are_on_their_way_and_count_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first object is held: later ones are created, and nothing is acknowledged."""
    stores = Stores(tmp_path)
    path = stores.paths[PathId(0)]
    assert isinstance(path, ObjectPath)
    held, create = threading.Event(), type(path.objects).create

    def held_create(objects: object, key: str, content: bytes) -> object:
        if key.endswith("/1/0000000001"):
            assert held.wait(30)
        return create(objects, key, content)  # type: ignore[arg-type]

    monkeypatch.setattr(type(path.objects), "create", held_create)

    async def run() -> None:
        listener = Listener()
        journal = stores.journal(listener)
        await journal.open()
        for number in range(4):
            add(journal, 1, number, b"v")
            await listener.wait_until(partial(_has_sent, journal, number))
        await listener.wait_until(stores.key(4).exists)
        assert listener.acked == []
        held.set()
        await listener.wait(lambda: len(listener.acked) == 4)
        await journal.close()

    asyncio.run(run())


def test_a_store_that_fails_for_a_while_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = Stores(tmp_path)
    path = stores.paths[PathId(0)]
    assert isinstance(path, ObjectPath)
    failures, create = [3], type(path.objects).create

    def failing(objects: object, key: str, content: bytes) -> object:
        if key.endswith("/1/0000000002") and failures[0]:
            failures[0] -= 1
            raise StoragePathError("the store is busy")
        return create(objects, key, content)  # type: ignore[arg-type]

    monkeypatch.setattr(type(path.objects), "create", failing)

    added = written(stores)

    assert failures == [0]
    assert stores.entries(stores.recover()) == sorted(added)


def test_a_path_comes_back_after_an_outage_of_store_and_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record cannot be read for longer than the journal waits for it; the path is marked nevertheless."""
    stores = Stores(tmp_path)
    path = stores.paths[PathId(0)]
    assert isinstance(path, ObjectPath)
    is_away, silent, failed = threading.Event(), threading.Event(), threading.Event()
    create, read = type(path.objects).create, LogRegister.read

    def create_unless_away(objects: object, key: str, content: bytes) -> object:
        if is_away.is_set() and key.startswith("journal/"):
            raise StoragePathError("the store is away")
        return create(objects, key, content)  # type: ignore[arg-type]

    def read_unless_away(register: LogRegister) -> LogRead:
        if is_away.is_set():
            raise MetadataError("the metadata are away")
        return read(register)

    def noted(thread: RegisterThread) -> LogRead | RegisterSilent:
        report = read_in_time(thread)
        if isinstance(report, RegisterSilent):
            silent.set()
        return report

    read_in_time = RegisterThread._read
    monkeypatch.setattr(type(path.objects), "create", create_unless_away)
    monkeypatch.setattr(LogRegister, "read", read_unless_away)
    monkeypatch.setattr(RegisterThread, "_read", noted)

    async def run() -> None:
        listener = Listener()
        limits = replace(LIMITS, slow_path_s=0.5, metadata_wait_s=0.2)
        journal = stores.journal(listener, limits=limits, mark_failed=lambda _: failed.set())
        await journal.open()
        is_away.set()
        add(journal, 1, 0, b"v")
        assert await asyncio.to_thread(silent.wait, 30)
        is_away.clear()
        assert await asyncio.to_thread(failed.wait, 30), "an operator, or the broker, may offer it again"
        journal.offer_spare(path)
        await listener.wait(lambda: len(listener.acked) == 1)
        await journal.close()

    asyncio.run(run())
