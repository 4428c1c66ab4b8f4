"""Journal files leave the operating system's memory when they are behind, and stay readable."""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from pathlib import Path

import pytest

from pulsar_on_spark.ledger.journal.files import create_journal_file, fenced_name, file_directory, open_name
from pulsar_on_spark.ledger.journal.frames import FrameHead
from pulsar_on_spark.ledger.journal.log_reader import LogReader
from pulsar_on_spark.ledger.journal.page_cache import STEP_BYTES, PageCache
from pulsar_on_spark.model.ids import IncarnationId, JournalFileId
from pulsar_on_spark.storage.files import OS_FILES
from tests.kit.cached_bytes import cached_bytes, can_forget
from tests.ledger.journal.journal_runs import Listener, Place, add

MIB = 1 << 20


class Written:
    """Journal files on one path, written as their thread does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cache = PageCache(OS_FILES, kept_bytes=4 * MIB, step_bytes=2 * MIB)
        self.fds: dict[str, int] = {}

    def directory(self, name: str) -> Path:
        return file_directory(self.path, IncarnationId("i"), JournalFileId(name))

    def write(self, name: str, mib: int) -> None:
        if name not in self.fds:
            self.fds[name] = create_journal_file(self.path, IncarnationId("i"), JournalFileId(name))
        for _ in range(mib):
            OS_FILES.write(self.fds[name], os.urandom(MIB))
            OS_FILES.fdatasync(self.fds[name])
            self.cache.wrote(self.directory(name), MIB)

    def cached(self, name: str) -> int:
        return cached_bytes(open_name(self.directory(name)))


@pytest.fixture
def written(tmp_path: Path) -> Written:
    if not can_forget(tmp_path):
        pytest.skip("this file system keeps all in memory")
    return Written(tmp_path)


def test_the_newest_bytes_stay(written: Written) -> None:
    written.write("a", 5)
    assert written.cached("a") == 5 * MIB
    written.write("a", 20)
    assert 4 * MIB <= written.cached("a") <= 7 * MIB


def test_an_ended_file_leaves_the_cache_as_the_next_one_grows(written: Written) -> None:
    written.write("a", 5)
    written.write("b", 3)
    assert written.cached("a") <= 3 * MIB
    written.write("b", 5)
    assert written.cached("a") <= MIB
    assert 4 * MIB <= written.cached("b") <= 7 * MIB


def test_files_that_are_fenced_or_gone_are_no_hindrance(written: Written) -> None:
    written.write("a", 5)
    written.write("b", 5)
    open_name(written.directory("a")).unlink()
    os.rename(open_name(written.directory("b")), fenced_name(written.directory("b")))
    content = fenced_name(written.directory("b")).read_bytes()
    written.write("c", 12)
    assert cached_bytes(fenced_name(written.directory("b"))) <= MIB
    assert fenced_name(written.directory("b")).read_bytes() == content
    assert 4 * MIB <= written.cached("c") <= 7 * MIB


@pytest.mark.parametrize("name", ["broker-1", "broker-2", "broker-3"])
def test_only_the_copy_that_readers_read_first_stays(tmp_path: Path, name: str) -> None:
    if not can_forget(tmp_path):
        pytest.skip("this file system keeps all in memory")
    incarnation = IncarnationId(name)
    place = Place(tmp_path, paths=3, incarnation=incarnation)

    async def run() -> None:
        listener = Listener()
        journal = place.journal(listener)
        await journal.open()
        for number in range(40):
            add(journal, 1, number, os.urandom(MIB))
            await listener.wait(lambda written=number + 1: len(listener.acked) == written)
        await journal.close()

    asyncio.run(run())
    record = place.register.read().record
    with closing(LogReader(incarnation, lambda: place.paths, FrameHead)) as reader:
        reader.main_read(record, 0)
        reader.open_files()
        reader.main_read(record, 0)
        assert reader.next() is not None
        read_first, _ = reader.source
    cached = {copy: cached_bytes(open_name(place.file(copy))) for copy in record.fragments[0].copies}
    # The kernel may take pages at any time; it took half a MiB in one run.
    assert cached.pop(read_first) >= 36 * MIB
    assert max(cached.values()) <= STEP_BYTES + MIB
