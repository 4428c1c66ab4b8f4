"""An interruption of a step: before one of its changes to the disk, its process ends, or another one takes a step."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_CHANGES = ("mkdir", "link", "rename", "replace", "fsync", "fdatasync", "unlink", "rmdir", "pwrite", "writev")


class Killed(BaseException):
    """The process ends here."""


def die() -> None:
    """End the process."""
    raise Killed


@contextmanager
def interrupted(at: int, meanwhile: Callable[[], None]) -> Iterator[None]:
    """Call `meanwhile` before a change to the disk by this thread, and the threads that it starts.

    Once it has raised `Killed`, each further change raises it, too, because a process that was killed cleans nothing
    up. No step is taken under a lock that it may wait for.

    Args:
        at: The number of changes before it.
        meanwhile: Called once, if there are more changes.
    """
    with pytest.MonkeyPatch.context() as patch:
        _Interruption(at, meanwhile).install(patch)
        yield


class _Interruption:
    def __init__(self, at: int, meanwhile: Callable[[], None]) -> None:
        self._left = at
        self._meanwhile: Callable[[], None] | None = meanwhile
        self._is_dead = False
        self._locks: set[int] = set()
        self._main = threading.current_thread()
        self._threads = {self._main}

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in _CHANGES:
            patch.setattr(os, name, self._counted(getattr(os, name)))
        start, flock = threading.Thread.start, fcntl.flock

        def start_as_ours(thread: threading.Thread) -> None:
            if threading.current_thread() in self._threads:
                self._threads.add(thread)
            start(thread)

        def noted_flock(file: Any, operation: int) -> None:
            flock(file, operation)
            if threading.current_thread() is self._main:
                descriptor = file if isinstance(file, int) else file.fileno()
                (self._locks.discard if operation & fcntl.LOCK_UN else self._locks.add)(descriptor)

        patch.setattr(threading.Thread, "start", start_as_ours)
        patch.setattr(fcntl, "flock", noted_flock)

    def _counted(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if threading.current_thread() in self._threads:
                self._before_a_change()
            return change(*arguments, **named)

        return call

    def _before_a_change(self) -> None:
        if self._is_dead:
            raise Killed
        self._left -= 1
        if self._left >= 0 or self._meanwhile is None:
            return
        if self._meanwhile is not die and (self._locks or threading.current_thread() is not self._main):
            return
        meanwhile, self._meanwhile = self._meanwhile, None
        try:
            meanwhile()
        except Killed:
            self._is_dead = True
            raise
