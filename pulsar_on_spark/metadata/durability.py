"""What makes files durable, and the root's lock: the few system calls that delta-rs leaves out."""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pulsar_on_spark.metadata.permissions import adopt, opener
from pulsar_on_spark.model.errors import MetadataError

_held = threading.local()


class UnsyncedError(OSError):
    """The disk refused the kernel's write: its outcome is unknown, and a second fsync would report success falsely."""


class LockHeldError(MetadataError):
    """Another process holds the root's lock, or repairs a table: try again."""


def fsync_path(path: Path) -> None:
    """Make a file's content, or a directory's names, durable; a file of delta-rs gets its permissions, too.

    Raises:
        UnsyncedError: fsync itself failed.
        OSError: the file could not be opened, or not get its permissions; nothing is said about its content.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        adopt(descriptor, path)
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise UnsyncedError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """The id of the machine's current boot: within one boot there was no power cut.

    Raises:
        OSError: the kernel does not say.
    """
    return _BOOT_ID.read_text().strip()


@contextmanager
def locked(lock_file: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold flock on `lock_file`: creation, repair and the clean-up of logs exclude each other between processes.

    A thread that holds it may take it again.

    Args:
        lock_file: created where it is missing.
        wait: False yields False at once where somebody else holds the lock.
    """
    held: set[Path] = _held.__dict__.setdefault("paths", set())
    if lock_file in held:
        yield True
        return
    with open(lock_file, "a", opener=opener) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        held.add(lock_file)
        try:
            yield True
        finally:
            held.discard(lock_file)


class TableHold:
    """A hold that shows other processes that a table is in use."""

    def __init__(self, directory: Path) -> None:
        """Hold a table.

        Raises:
            LockHeldError: it is being repaired.
            OSError: it cannot be opened.
        """
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LockHeldError(f"{directory} is being repaired") from error


@contextmanager
def unheld(directory: Path) -> Iterator[bool]:
    """Keep other processes from opening a table meanwhile; yields False if a process has it open."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
