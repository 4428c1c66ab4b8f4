"""The seam between this package and the operating system: every durable step is one method of `FileOps`.

`OsFiles` is the real one. `pulsar_on_spark.testing.recording_files` records the steps instead, so that a test can
rebuild what a disk may hold after a crash at each of them. All methods raise `OSError` and retry nothing: after a
failed fsync the kernel has marked the pages clean, so a second one would report success for data that is gone.
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
    """What durable files are made of. Implementations are picklable and may be called from several threads."""

    def create(self, path: Path) -> int:
        """Make a new file for appending and return its descriptor; `FileExistsError` if the name is taken."""

    def open(self, path: Path) -> int:
        """Open a file for reading and return its descriptor."""

    def write(self, fd: int, data: bytes) -> None:
        """Append all of `data`."""

    def write_buffers(self, fd: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        """Append up to 1,024 buffers, one behind the other; fewer bytes than given is an error, too."""

    def read_into(self, fd: int, offset: int, target: memoryview) -> int:
        """Fill `target` from `offset` on; returns the bytes read, fewer than asked only at the file's end."""

    def size(self, fd: int) -> int:
        """The file's length in bytes."""

    def identity(self, file: int | Path) -> tuple[int, int]:
        """Device and inode of an open file, or of what has this name; `FileNotFoundError` if nothing has it."""

    def fdatasync(self, fd: int) -> None:
        """Return when the file's bytes and length are durable."""

    def forget(self, fd: int, end: int) -> None:
        """Let the operating system drop what it keeps in memory of the bytes up to `end`; advice, the file stays."""

    def close(self, fd: int) -> None:
        """Give the descriptor back."""

    def rename(self, source: Path, target: Path) -> None:
        """Move a file within its directory, replacing `target`; durable after `fsync_directory`."""

    def fsync_directory(self, path: Path) -> None:
        """Return when the names in the directory are durable."""

    def mkdir(self, path: Path) -> None:
        """Make one directory; `FileExistsError` if the name is taken."""

    def unlink(self, path: Path) -> None:
        """Remove a file's name; durable after `fsync_directory`."""


@dataclass(frozen=True, slots=True)
class OsFiles:
    """The operating system's files; new files get the permissions of their folder."""

    def create(self, path: Path) -> int:
        """See `FileOps`."""
        return permissions.opener(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)

    def open(self, path: Path) -> int:
        """See `FileOps`."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def write(self, fd: int, data: bytes) -> None:
        """See `FileOps`."""
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    def write_buffers(self, fd: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        """See `FileOps`. A short write is no call to go on, but how a full or failing disk begins to say so."""
        wanted = sum(map(len, buffers))
        written = os.writev(fd, buffers)
        if written != wanted:
            os.write(fd, b"".join(buffers)[written:])  # its error is the disk's own word
            raise OSError(errno.EIO, f"only {written} of {wanted} bytes were written")

    def read_into(self, fd: int, offset: int, target: memoryview) -> int:
        """See `FileOps`."""
        done = 0
        while done < len(target):
            count = os.preadv(fd, [target[done:]], offset + done)
            if count == 0:
                break
            done += count
        return done

    def size(self, fd: int) -> int:
        """See `FileOps`."""
        return os.fstat(fd).st_size

    def identity(self, file: int | Path) -> tuple[int, int]:
        """See `FileOps`."""
        found = os.stat(file)
        return found.st_dev, found.st_ino

    def fdatasync(self, fd: int) -> None:
        """See `FileOps`."""
        os.fdatasync(fd)

    def forget(self, fd: int, end: int) -> None:
        """See `FileOps`."""
        os.posix_fadvise(fd, 0, end, os.POSIX_FADV_DONTNEED)

    def close(self, fd: int) -> None:
        """See `FileOps`."""
        os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """See `FileOps`."""
        os.rename(source, target)

    def fsync_directory(self, path: Path) -> None:
        """See `FileOps`."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def mkdir(self, path: Path) -> None:
        """See `FileOps`."""
        permissions.make_folder(path)

    def unlink(self, path: Path) -> None:
        """See `FileOps`."""
        os.unlink(path)


OS_FILES = OsFiles()
"""The default wherever a `FileOps` is taken."""

TMP_INFIX = ".tmp-"
"""Between a file's final name and a random suffix, while the file is being written."""


def tmp_name(path: Path) -> Path:
    """A fresh name beside `path` to write under before the rename."""
    return path.with_name(f"{path.name}{TMP_INFIX}{secrets.token_hex(4)}")


def read_file(files: FileOps, path: Path) -> bytes:
    """The whole of a small file."""
    fd = files.open(path)
    try:
        content = bytearray(files.size(fd))
        count = files.read_into(fd, 0, memoryview(content))
    finally:
        files.close(fd)
    return bytes(content[:count])


def write_file(files: FileOps, path: Path, content: bytes) -> None:
    """Write a small file durably: after a crash `path` is absent, or as it was before, or whole."""
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
    """Make a new file whose bytes are durable; its name is so only after `fsync_directory`."""
    fd = files.create(path)
    try:
        files.write(fd, content)
        files.fdatasync(fd)
    finally:
        files.close(fd)


def make_directory(files: FileOps, path: Path) -> None:
    """Make a directory and its missing parents, and make their names durable.

    The parent is synced even if the directory is there already: whoever made it may not have come that far.
    """
    if not path.parent.is_dir():
        make_directory(files, path.parent)
    with suppress(FileExistsError):
        files.mkdir(path)
    files.fsync_directory(path.parent)
