"""The files on one path: each is closed by the thread that writes it, however its path comes to its end."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pulsar_on_spark.ledger.journal.copies import PathThread, create_copy
from pulsar_on_spark.ledger.journal.ensemble import Ensemble
from pulsar_on_spark.ledger.journal.log import Copy
from pulsar_on_spark.ledger.journal.messages import CopyAcked, CopyEvent, CopyFailed, FileCreated
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.files import OsFiles
from tests.kit.open_files import open_files_under
from tests.ledger.journal.journal_runs import NAME, Place

FIRST, SECOND = Copy(PathId(0), "1"), Copy(PathId(0), "2")


class Bytes:
    """A frame."""

    buffers = (b"frame",)


class BadBytes:
    """A frame by whose fault the thread fails."""

    @property
    def buffers(self):
        raise ValueError("a defect")


@dataclass(frozen=True)
class StuckFiles(OsFiles):
    """Files on which one kind of step reports that it was reached, and waits."""

    action: str
    reached: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def _wait(self, action: str) -> None:
        if action == self.action:
            self.reached.set()
            assert self.go_on.wait(30)

    def fdatasync(self, fd: int) -> None:
        self._wait("fdatasync")
        OsFiles.fdatasync(self, fd)

    def create(self, path: Path) -> int:
        self._wait("create")
        return OsFiles.create(self, path)


def test_a_given_up_path_closes_the_files_that_it_has_not_begun(tmp_path):
    path = Place(tmp_path, paths=1).paths[PathId(0)]
    files = StuckFiles("fdatasync")
    thread = PathThread(path, NAME, lambda report: None, files)
    thread.begin_file(FIRST, create_copy(path, NAME, FIRST), 0, b"header")
    thread.append(FIRST, 0, [Bytes()], 5, sync=True)
    assert files.reached.wait(30)
    thread.begin_file(SECOND, create_copy(path, NAME, SECOND), 1, b"header")
    thread.append(SECOND, 1, [Bytes()], 5, sync=True)
    thread.abandon()
    files.go_on.set()
    thread._thread.join(30)
    assert open_files_under(path.directory) == []
    assert (path.directory / "journal" / NAME / "2" / "frames.open").read_bytes() == b"", "nothing more is written"


def test_a_failed_thread_closes_later_files(tmp_path):
    path = Place(tmp_path, paths=1).paths[PathId(0)]
    reports: queue.SimpleQueue[CopyEvent] = queue.SimpleQueue()
    thread = PathThread(path, NAME, reports.put)
    thread.begin_file(FIRST, create_copy(path, NAME, FIRST), 0, b"header")
    thread.append(FIRST, 0, [BadBytes()], 5, sync=True)
    assert isinstance(reports.get(timeout=30), CopyFailed)
    thread.begin_file(SECOND, create_copy(path, NAME, SECOND), 1, b"header")
    thread.stop()
    thread._thread.join(30)
    assert open_files_under(path.directory) == []


@pytest.mark.parametrize("reported_first", [False, True])
def test_a_file_that_is_made_as_all_ends_is_closed(tmp_path, reported_first):
    path = Place(tmp_path, paths=1).paths[PathId(0)]
    files = StuckFiles("create")
    reports: queue.SimpleQueue[CopyEvent] = queue.SimpleQueue()
    ensemble = Ensemble({path.path_id: path}, NAME, reports.put, files)
    ensemble.create(FIRST)
    (making,) = [each for each in threading.enumerate() if each.name == "journal-create-0"]
    assert files.reached.wait(30)
    if reported_first:
        files.go_on.set()
        making.join(30)
    ensemble.shut_down()
    files.go_on.set()
    making.join(30)
    assert reports.empty() != reported_first, "an ensemble that has shut down gets no report"
    assert open_files_under(path.directory) == []
    if reported_first:
        assert not ensemble.take_in(reports.get()), "the file is closed"


def test_a_path_that_returns_in_another_folder_is_written_there(tmp_path):
    """Given up by its operator, moved, and added again, while its files were well."""
    path = Place(tmp_path, paths=1).paths[PathId(0)]
    reports: queue.SimpleQueue[CopyEvent] = queue.SimpleQueue()
    ensemble = Ensemble({path.path_id: path}, NAME, reports.put)

    def write(copy: Copy) -> None:
        ensemble.create(copy)
        created = reports.get(timeout=30)
        assert created == FileCreated(copy)
        assert ensemble.take_in(created)
        ensemble.begin_file(copy, 0, b"header")
        ensemble.append(copy, 0, [Bytes()], 5, sync=True)
        acked = reports.get(timeout=30)
        assert acked == CopyAcked(copy, 0)
        assert ensemble.take_in(acked)
        ensemble.release_files([copy])

    write(FIRST)
    path.directory.rename(tmp_path / "elsewhere")
    ensemble.know(replace(path, directory=tmp_path / "elsewhere"))
    write(SECOND)
    ensemble.shut_down()
    assert (tmp_path / "elsewhere" / "journal" / NAME / "2" / "frames.open").read_bytes() == b"headerframe"
