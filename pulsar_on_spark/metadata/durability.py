"""What makes files durable, and the root's lock: the few system calls that delta-rs leaves out."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_held = threading.local()


def fsync_path(path: Path) -> None:
    """Make a file's content, or a directory's names, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    with lock_file.open("a") as handle:
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
