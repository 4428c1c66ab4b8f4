"""Fast failures of reads from cold paths that did not answer, so that their consumers do not occupy the threads."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from pulsar_on_spark.model.errors import CopiesUnreachableError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.loss import unreachable

PAUSE_S: Final = 5.0
"""Time after a failed read in which reads of the path fail at once; then one read tries the path again."""


class Breaker:
    """The paths that did not answer. Thread-safe.

    Args:
        clock: Returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._try_at_s: dict[PathId, float] = {}
        """When a path that did not answer is tried again; infinite while a read tries it."""
        self._lock = threading.Lock()

    @contextmanager
    def reading(self, paths: Collection[PathId], what: str) -> Iterator[None]:
        """Read something, in the block, of which each of these paths has a copy; an error of the block is raised.

        Args:
            paths: The paths; none to read without a check.
            what: The data, for the error.

        Raises:
            CopiesUnreachableError: none of the paths has answered lately.
        """
        self._enter(paths, what)
        try:
            yield
        except CopiesUnreachableError:
            with self._lock:
                self._try_at_s.update(dict.fromkeys(paths, self._clock() + PAUSE_S))
            raise
        except BaseException:
            self._forget(paths)
            raise
        self._forget(paths)

    def _enter(self, paths: Collection[PathId], what: str) -> None:
        with self._lock:
            broken = [path_id for path_id in paths if path_id in self._try_at_s]
            if broken and len(broken) == len(paths):
                if all(self._clock() < self._try_at_s[path_id] for path_id in broken):
                    causes = " ".join(f"[path {path_id}] It did not answer a moment ago." for path_id in broken)
                    raise unreachable(what, causes)
                self._try_at_s.update(dict.fromkeys(broken, math.inf))

    def _forget(self, paths: Collection[PathId]) -> None:
        with self._lock:
            for path_id in paths:
                self._try_at_s.pop(path_id, None)
