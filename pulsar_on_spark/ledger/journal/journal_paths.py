"""Functions for journal files on storage paths of both kinds: directories on a disk, and object stores."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from pulsar_on_spark.ledger.journal.copies import FrameBytes, NewFile, PathThread, PathWriter, create_copy
from pulsar_on_spark.ledger.journal.copy_protocol import FenceAnswer, FenceFirst, ReadAnswer, ReadFrames
from pulsar_on_spark.ledger.journal.copy_reader import CopyFile
from pulsar_on_spark.ledger.journal.files import (
    JOURNAL,
    fenced_name,
    file_directory,
    incarnation_directory,
    open_journal_file,
    open_name,
)
from pulsar_on_spark.ledger.journal.frame_header import ScanPosition
from pulsar_on_spark.ledger.journal.journal_bytes import FileBytes, JournalBytes
from pulsar_on_spark.ledger.journal.log import Copy, FrameNumber
from pulsar_on_spark.ledger.journal.messages import CopyAcked, CopyFailed
from pulsar_on_spark.ledger.journal.object_copy_reader import ObjectCopyFile
from pulsar_on_spark.ledger.journal.object_file import ObjectBytes, ObjectFile
from pulsar_on_spark.ledger.journal.object_format import head_bytes, incarnation_prefix
from pulsar_on_spark.ledger.journal.object_protocol import CommitPolicy
from pulsar_on_spark.ledger.journal.object_writer import ObjectPathThread, create_objects
from pulsar_on_spark.ledger.journal.places import JournalPath
from pulsar_on_spark.model.ids import IncarnationId, JournalFileId
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.storage.local_disk import require_local
from pulsar_on_spark.storage.local_path import LocalPath
from pulsar_on_spark.storage.object_path import ObjectPath
from pulsar_on_spark.storage.segment_objects import translated


class PlacedBytes(FrameBytes, Protocol):
    """A frame at a known position in a copy. Its bytes are read, and verified again, on each access."""

    @property
    def position(self) -> ScanPosition:
        """The frame's position in the copy."""


class RecoveredCopy(Protocol):
    """A copy that a recovery fences and reads; see `CopyFile`."""

    problem: str

    @property
    def placed(self) -> Mapping[FrameNumber, PlacedBytes]:
        """The frames that were read so far, by number."""

    def answer(self, request: FenceFirst | ReadFrames) -> FenceAnswer | ReadAnswer:
        """Serve a request and return its answer."""

    def close(self) -> None:
        """Close the file, and drop its cached bytes."""


def require_fit(path: JournalPath) -> None:
    """Check that a path may hold journals.

    Raises:
        StoragePathError: the path is on a network file system.
    """
    if isinstance(path, LocalPath):
        require_local(path.directory)


def create_file(path: JournalPath, incarnation: IncarnationId, copy: Copy, files: FileOps = OS_FILES) -> NewFile:
    """Check the path's identity, and create a journal file durably.

    Raises:
        StoragePathError: the directory or object store belongs to another path, or cannot be reached.
        FileExistsError: the file exists.
        OSError: the file cannot be made.
    """
    if isinstance(path, LocalPath):
        return create_copy(path, incarnation, copy, files)
    return create_objects(path, incarnation, copy)


def path_writer(
    path: JournalPath,
    incarnation: IncarnationId,
    report: Callable[[CopyAcked | CopyFailed], None],
    files: FileOps,
    policy: CommitPolicy,
) -> PathWriter:
    """Return a writer of journal files on a path, with a thread of its own."""
    if isinstance(path, LocalPath):
        return PathThread(path, incarnation, report, files)
    return ObjectPathThread(path, incarnation, report, policy)


def open_bytes(path: JournalPath, incarnation: IncarnationId, file: JournalFileId, files: FileOps) -> JournalBytes:
    """Open a journal file for reading.

    Raises:
        StoragePathError: the path cannot be reached, or its directory or object store belongs to another path.
        FileNotFoundError: the file is missing although the path is intact.
        OSError: the file cannot be opened.
    """
    if isinstance(path, ObjectPath):
        return ObjectBytes(ObjectFile(path, incarnation, file))
    path.check(files)
    try:
        return FileBytes(open_journal_file(file_directory(path.directory, incarnation, file), files), files)
    except FileNotFoundError:
        path.check(files)  # raises if its disk has just gone away: the file may still exist then
        raise


def recovered_copy(
    path: JournalPath, incarnation: IncarnationId, copy: Copy, progress: Callable[[int], None], files: FileOps
) -> RecoveredCopy:
    """Return a copy for a recovery; `progress` is called with the number of bytes scanned since the last call."""
    if isinstance(path, LocalPath):
        return CopyFile(path, incarnation, copy, progress, files)
    return ObjectCopyFile(path, incarnation, copy, progress)


def file_name(path: JournalPath, incarnation: IncarnationId, file: JournalFileId) -> str:
    """Return the name by which errors refer to a journal file."""
    if isinstance(path, LocalPath):
        return f"Journal file {file_directory(path.directory, incarnation, file)}"
    return ObjectFile(path, incarnation, file).name


def delete_file(path: JournalPath, incarnation: IncarnationId, file: JournalFileId, files: FileOps = OS_FILES) -> int:
    """Delete a journal file that no reader needs. Return the number of deleted files or objects.

    Raises:
        StorageError, OSError: the path cannot be reached, or the file cannot be deleted now.
    """
    path.check(files)
    if isinstance(path, ObjectPath):
        return ObjectFile(path, incarnation, file).delete()
    directory = file_directory(path.directory, incarnation, file)
    count = 0
    for name in (open_name(directory), fenced_name(directory)):
        with suppress(FileNotFoundError):
            files.unlink(name)
            count += 1
    with suppress(FileNotFoundError):
        files.fsync_directory(directory)
    with suppress(OSError):  # an empty directory that stays, or reappears, has no effect
        directory.rmdir()
    return count


def journal_incarnations(path: JournalPath) -> list[IncarnationId]:
    """List the incarnations with journal files on a path, ignoring the fences of deleted files on an object store.

    Raises:
        StorageError, OSError: the path cannot be reached or listed.
    """
    path.check()
    if isinstance(path, LocalPath):
        return [IncarnationId(name) for name in os.listdir(path.directory / JOURNAL)]
    return list(dict.fromkeys(each.incarnation for each in _objects_of(path) if not each.is_fence))


def clear_incarnation(path: JournalPath, incarnation: IncarnationId) -> int:
    """Delete all files of an incarnation whose log was removed, except fences on an object store.

    Returns:
        The number of deleted objects; on a disk 1, for the incarnation's directory.

    Raises:
        InvalidArgumentError: the id is not a legal name (`legal_name`).
        StorageError, OSError: a file or object cannot be deleted now.
    """
    if isinstance(path, LocalPath):
        shutil.rmtree(incarnation_directory(path.directory, incarnation))
        return 1
    objects = _objects_of(path, incarnation_prefix(incarnation))
    files = dict.fromkeys(each.file for each in objects if not each.is_fence)
    return sum(ObjectFile(path, incarnation, file).delete() for file in files)


def journal_sizes(path: JournalPath) -> Iterator[tuple[IncarnationId, JournalFileId, int]]:
    """Yield incarnation, file and size in bytes of each journal file or object on a path, except files just deleted.

    Raises:
        StorageError: the path cannot be listed now.
    """
    if isinstance(path, ObjectPath):
        for each in _objects_of(path):
            yield each.incarnation, each.file, each.size_bytes
        return
    for folder, _, names in os.walk(path.directory / JOURNAL):
        for name in names:
            with suppress(FileNotFoundError):
                file = Path(folder) / name
                yield IncarnationId(file.parts[-3]), JournalFileId(file.parts[-2]), file.stat().st_size


class _Object(NamedTuple):
    incarnation: IncarnationId
    file: JournalFileId
    size_bytes: int

    @property
    def is_fence(self) -> bool:
        """True if the object has only a head."""
        return self.size_bytes == head_bytes(self.incarnation, self.file)


def _objects_of(path: ObjectPath, prefix: str = JOURNAL) -> Iterator[_Object]:
    with translated():
        for listed in path.objects.list_after(prefix):
            _, *parts = listed.key.split("/")
            if len(parts) == 3:
                yield _Object(IncarnationId(parts[0]), JournalFileId(parts[1]), listed.size)
