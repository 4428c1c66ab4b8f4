"""Fast failures of reads from cold paths that did not answer, so that their consumers do not occupy the threads."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from pulsar_on_spark.model.errors import CopiesUnreachableError
from pulsar_on_spark.model.ids import FileId, PathId
from pulsar_on_spark.storage.loss import unreachable

PAUSE_S: Final = 5.0
"""Seconds after a failed read in which reads of the path, or of the file, fail at once; then one read tries again."""
AT_ONCE_S: Final = 1.0
"""A read that fails within these seconds does not pause other reads of its file. It occupies a thread only briefly, and
a bad sector, for example, does not affect other parts of the file."""
MAX_FILES: Final = 1_000
"""Maximum number of files that are remembered as unreadable."""


class Breaker:
    """A circuit breaker for cold paths that did not answer, and for files whose reads took long to fail. Thread-safe.

    Args:
        answers: Returns True if a storage path can be reached.
        clock: Returns monotonic seconds.
    """

    def __init__(self, answers: Callable[[PathId], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._answers = answers
        self._clock = clock
        self._paths: dict[PathId, float] = {}
        """Times when paths that did not answer are tried again; infinite while a read tries one."""
        self._files: dict[FileId, float] = {}
        """Times when unreadable files are tried again, the oldest failure first; infinite while a read tries one."""
        self._lock = threading.Lock()

    @contextmanager
    def reading(self, file_id: FileId, paths: Collection[PathId], what: str) -> Iterator[None]:
        """Guard a block that reads a file from its copies on these paths; an error of the block is raised.

        Args:
            file_id: The file.
            paths: The cold paths that have a copy; empty to read without a check.
            what: The data, for the error.

        Raises:
            CopiesUnreachableError: the block is not run, because no path answered, or the file could not be read, less
                than `PAUSE_S` ago.
        """
        if not paths:
            yield
            return
        self._enter(file_id, paths, what)
        began_s = self._clock()
        away: Collection[PathId] = ()
        is_readable = True
        try:
            yield
        except CopiesUnreachableError:
            is_at_once = self._clock() - began_s < AT_ONCE_S
            # One unreadable file says nothing of the others on its path.
            away = [path_id for path_id in paths if not self._answers(path_id)]
            is_readable = is_at_once or len(away) == len(paths)
            raise
        finally:
            self._note(file_id, paths, away, is_readable=is_readable)

    def _enter(self, file_id: FileId, paths: Collection[PathId], what: str) -> None:
        with self._lock:
            now_s = self._clock()
            if now_s < self._files.get(file_id, 0.0):
                raise unreachable(what, "It could not be read a moment ago.")
            broken = [path_id for path_id in paths if path_id in self._paths]
            if len(broken) == len(paths):
                if all(now_s < self._paths[path_id] for path_id in broken):
                    causes = " ".join(f"[path {path_id}] It did not answer a moment ago." for path_id in broken)
                    raise unreachable(what, causes)
                self._paths.update(dict.fromkeys(broken, math.inf))
            if file_id in self._files:
                self._files[file_id] = math.inf

    def _note(self, file_id: FileId, paths: Collection[PathId], away: Collection[PathId], *, is_readable: bool) -> None:
        with self._lock:
            try_at_s = self._clock() + PAUSE_S
            for path_id in paths:
                self._paths.pop(path_id, None)
            self._paths.update(dict.fromkeys(away, try_at_s))
            self._files.pop(file_id, None)
            if not is_readable:
                self._files[file_id] = try_at_s
                if len(self._files) > MAX_FILES:
                    self._files.pop(next(iter(self._files)))
