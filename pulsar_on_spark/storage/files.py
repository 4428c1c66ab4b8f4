"""The interface between this package and the operating system: every durable step is one method of `FileOps`.

`OsFiles` calls the operating system. `pulsar_on_spark.testing.recording_files` records the steps, too, so that a test
can rebuild the possible states of a disk after a crash at each step. All methods raise `OSError` and never retry: after
a failed fsync the kernel has marked the pages clean, so a second fsync would report success for data that is gone.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pulsar_on_spark.storage import permissions


class FileOps(Protocol):
    """Operations of the operating system for durable files. Implementations are picklable and thread-safe."""

    def create(self, path: Path) -> int:
        """Make a new file for appending and return its descriptor; `FileExistsError` if the name is taken."""

    def open(self, path: Path) -> int:
        """Open a file for reading and return its descriptor."""

    def write(self, fd: int, data: bytes) -> None:
        """Append all of `data`."""

    def write_buffers(self, fd: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        """Append up to 1,024 buffers one after another; a short write is an error."""

    def read_into(self, fd: int, offset: int, target: memoryview) -> int:
        """Fill `target` from `offset`; returns the number of bytes read, lower than its size only at the file's end.

        Raises:
            PartialReadError: only the first bytes can be read, as before a bad sector.
            OSError: nothing can be read.
        """

    def size(self, fd: int) -> int:
        """Return the file's length in bytes."""

    def identity(self, file: int | Path) -> tuple[int, int]:
        """Return device and inode of an open file or of a path; `FileNotFoundError` if the path does not exist."""

    def fdatasync(self, fd: int) -> None:
        """Return when the file's bytes and length are durable."""

    def drop_cached_bytes(self, fd: int, end: int) -> None:
        """Advise the operating system to drop its cache of the bytes up to `end`; the file is not changed."""

    def close(self, fd: int) -> None:
        """Close the descriptor."""

    def rename(self, source: Path, target: Path) -> None:
        """Move a file within its directory, replacing `target`; durable after `fsync_directory`."""

    def fsync_directory(self, path: Path) -> None:
        """Return when the names in the directory are durable."""

    def mkdir(self, path: Path) -> None:
        """Make one directory; `FileExistsError` if the name is taken."""

    def unlink(self, path: Path) -> None:
        """Remove a file's name; durable after `fsync_directory`."""


class PartialReadError(OSError):
    """The first `done` bytes were read, and the file cannot be read further."""

    def __init__(self, error: OSError, done: int) -> None:
        super().__init__(error.errno, error.strerror)
        self.done = done


@dataclass(frozen=True, slots=True)
class OsFiles:
    """The operating system's files; new files get the permissions of their folder."""

    def create(self, path: Path) -> int:
        """Open a new file with `O_EXCL` and `O_APPEND`, and return its descriptor."""
        return permissions.opener(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)

    def open(self, path: Path) -> int:
        """Open a file with `O_RDONLY`, and return its descriptor."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def write(self, fd: int, data: bytes) -> None:
        """Repeat the system's `write` until all data are written."""
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    def write_buffers(self, fd: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        """Call the system's `writev` once; after a short write, write the rest only to get the disk's error."""
        wanted = sum(map(len, buffers))
        written = os.writev(fd, buffers)
        if written != wanted:
            os.write(fd, b"".join(buffers)[written:])  # raises the disk's error
            raise OSError(errno.EIO, f"only {written} of {wanted} bytes were written")

    def read_into(self, fd: int, offset: int, target: memoryview) -> int:
        """Repeat the system's `preadv` until `target` is full or the file ends; returns the number of bytes read.

        Raises:
            PartialReadError: only the first bytes can be read, as before a bad sector.
            OSError: nothing can be read.
        """
        done = 0
        while done < len(target):
            try:
                count = os.preadv(fd, [target[done:]], offset + done)
            except OSError as error:
                if done:
                    raise PartialReadError(error, done) from error
                raise
            if count == 0:
                break
            done += count
        return done

    def size(self, fd: int) -> int:
        """Return the file's length in bytes by the system's `fstat`."""
        return os.fstat(fd).st_size

    def identity(self, file: int | Path) -> tuple[int, int]:
        """Return device and inode by the system's `stat`."""
        status = os.stat(file)
        return status.st_dev, status.st_ino

    def fdatasync(self, fd: int) -> None:
        """Call the system's `fdatasync`."""
        os.fdatasync(fd)

    def drop_cached_bytes(self, fd: int, end: int) -> None:
        """Call the system's `posix_fadvise` with `POSIX_FADV_DONTNEED`."""
        os.posix_fadvise(fd, 0, end, os.POSIX_FADV_DONTNEED)

    def close(self, fd: int) -> None:
        """Call the system's `close`."""
        os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Call the system's `rename`."""
        os.rename(source, target)

    def fsync_directory(self, path: Path) -> None:
        """Open the directory and call the system's `fsync`."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def mkdir(self, path: Path) -> None:
        """Call the system's `mkdir`."""
        permissions.make_folder(path)

    def unlink(self, path: Path) -> None:
        """Call the system's `unlink`."""
        os.unlink(path)


OS_FILES = OsFiles()
"""The default `FileOps`."""

TMP_INFIX = ".tmp-"
"""Infix between a file's final name and a random suffix, while the file is being written."""


def tmp_name(path: Path) -> Path:
    """Return a new temporary name beside `path`, for writing before the rename."""
    return path.with_name(f"{path.name}{TMP_INFIX}{secrets.token_hex(4)}")


def read_file(files: FileOps, path: Path) -> bytes:
    """Return the content of a small file (raises `OSError`)."""
    fd = files.open(path)
    try:
        content = bytearray(files.size(fd))
        count = files.read_into(fd, 0, memoryview(content))
    finally:
        files.close(fd)
    return bytes(content[:count])


def write_file(files: FileOps, path: Path, content: bytes) -> None:
    """Write a small file durably: after a crash `path` is absent, unchanged or complete."""
    tmp = tmp_name(path)
    try:
        write_synced(files, tmp, content)
        files.rename(tmp, path)
    except OSError:
        with suppress(OSError):
            files.unlink(tmp)
        raise
    files.fsync_directory(path.parent)


def write_synced(files: FileOps, path: Path, content: bytes) -> None:
    """Make a new file with durable content; its name is durable only after `fsync_directory`."""
    fd = files.create(path)
    try:
        files.write(fd, content)
        files.fdatasync(fd)
    finally:
        files.close(fd)


def make_directory(files: FileOps, path: Path) -> None:
    """Make a directory and its missing parents, and make their names durable.

    The parent is synced even if the directory exists, because the process that made it may have crashed before that.
    """
    if not path.parent.is_dir():
        make_directory(files, path.parent)
    with suppress(FileExistsError):
        files.mkdir(path)
    files.fsync_directory(path.parent)
