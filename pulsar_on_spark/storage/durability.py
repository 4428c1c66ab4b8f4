"""Durable files and folders, and the root's lock."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pulsar_on_spark.model.errors import MetadataError
from pulsar_on_spark.storage.permissions import adopt, opener

LOCK_WAIT_S = 60.0
"""The longest wait for the root's lock, in seconds: holders keep it only while they copy or write metadata."""
SYNC_WAIT_S = 1.0
"""The longest wait for another process that syncs a table, in seconds, because that process may be suspended."""
_held = threading.local()


class UnsyncedError(OSError):
    """The disk refused the kernel's write: its outcome is unknown, and a second fsync would report success falsely."""


class LockHeldError(MetadataError):
    """Another process holds the root's lock, or repairs a table: try again."""


def fsync_path(path: Path) -> None:
    """Make a file's content or a directory's names durable, and correct the permissions of a file.

    Raises:
        UnsyncedError: fsync itself failed.
        OSError: the file could not be opened, or its permissions could not be set; its content may not be durable.
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
    """Return the id of the machine's current boot. While it stays the same, there was no power cut.

    Raises:
        MetadataError: this process has no access to the id's file in /proc.
        OSError: the id cannot be read now.
    """
    try:
        return _BOOT_ID.read_text().strip()
    except FileNotFoundError as error:
        raise MetadataError(
            f"{_BOOT_ID} is missing, but commits need it to detect a power cut: give this process the whole of "
            "/proc (in a systemd service, remove ProcSubset=pid)."
        ) from error


@contextmanager
def locked(lock_file: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold flock on `lock_file`, so that only one process at a time creates, repairs or cleans up logs.

    A thread that holds the lock may acquire it again.

    Args:
        lock_file: The file to lock; created if it is missing.
        wait: True to wait for the lock; False to yield False at once while another process or thread holds it.

    Yields:
        True while this thread holds the lock; False if another holds it and `wait` is false.

    Raises:
        LockHeldError: another process or thread has held the lock for `LOCK_WAIT_S`.
    """
    held_paths: set[Path] = _held.__dict__.setdefault("paths", set())
    if lock_file in held_paths:
        yield True
        return
    with open(lock_file, "a", opener=opener) as handle:
        if not _taken(handle.fileno(), LOCK_WAIT_S if wait else 0):
            if wait:
                raise LockHeldError(
                    f"Another process has held {lock_file} for {LOCK_WAIT_S:.0f} s: wait until its backup, repair or "
                    "housekeeping is done, or end it (`fuser` names it), and try again."
                )
            yield False
            return
        held_paths.add(lock_file)
        try:
            yield True
        finally:
            held_paths.discard(lock_file)
            fcntl.flock(handle, fcntl.LOCK_UN)  # closing does not suffice: a forked child may have it open, too


def _taken(descriptor: int, wait_s: float) -> bool:
    """Return True when flock is acquired, or False if another process holds it for `wait_s` seconds."""
    deadline_s = time.monotonic() + wait_s
    pause_s = 0.000_5
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                return False
        else:
            return True
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.02)


@contextmanager
def syncing(log: Path) -> Iterator[None]:
    """Keep other processes from syncing a table's log in the context, which syncs the log and marks a failure.

    The kernel reports an fsync error only once. Without the lock, another process could sync without an error and
    report its commits before the failure is marked. The wait for the lock ends after `SYNC_WAIT_S`, because a suspended
    process may hold it.
    """
    descriptor = os.open(log, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _taken(descriptor, SYNC_WAIT_S)
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


@contextmanager
def unheld(directory: Path) -> Iterator[bool]:
    """Keep programs of format 1 from opening a table.

    Yields:
        True while the table is locked; False if such a program has it open, with a shared lock.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield _taken(descriptor, 0)
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
