"""Checks of storage paths: `examine` determines a path's condition, `try_out` also writes to the path.

`examine` reads the path's identity and the size of its file system. `try_out` is for a path that failed: it also writes
and syncs a file.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Final

from pulsar_on_spark.model.errors import StoragePathError, WrongPathError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.health import Condition, PathHealth
from pulsar_on_spark.storage.local_path import LocalPath
from pulsar_on_spark.storage.storage_path import StoragePath

ROOM_BYTES: Final = 512 * 1024 * 1024
"""Free bytes at which a full path is well again: the size of a journal file, which must fit on the path."""
_ROOM_PARTS: Final = 10
"""Divisor: on a disk smaller than ten journal files, a tenth of the disk is enough."""
_FULL: Final = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
ANSWER_WITHIN_S: Final = 1.0
FIRST_PAUSE_S: Final = 5.0
LONGEST_PAUSE_S: Final = 60.0


def examine(path: StoragePath, mark: str = "") -> PathHealth:
    """Return the health of a path: elsewhere, wiped or unreachable now; else full or failing by its mark; else well.

    Args:
        path: The path.
        mark: The reason with which a write or an audit marked the path as failed; empty for a path without a mark.
    """
    if isinstance(path, LocalPath) and path.is_elsewhere:
        return _away(path, f"it is on the host {path.host}", Condition.ELSEWHERE)
    try:
        path.check()
        space = path.space()
    except WrongPathError as error:
        return _away(path, str(error), Condition.WIPED)
    except StoragePathError as error:
        return _away(path, str(error))
    condition = Condition.FULL if _is_full(mark) else Condition.FAILING if mark else Condition.WELL
    return PathHealth(
        path_id=path.path_id,
        label=path.label,
        condition=condition,
        reason=mark,
        total_bytes=None if space is None else space.total,
        free_bytes=None if space is None else space.free,
    )


def try_out(path: StoragePath, mark: str) -> PathHealth:
    """Write to a path that failed, and return its health: well if a file was made durable and the path is not full.

    Args:
        path: The path.
        mark: The reason for the failure. Free space is checked only if the path was full.
    """
    health = examine(path)
    if not health.is_there:
        return health
    try:
        path.try_write()
        space = path.space()
    except OSError as error:
        condition = Condition.FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else Condition.FAILING
        return replace(health, condition=condition, reason=f"{error.strerror} at {path.place}")
    except StoragePathError as error:
        return replace(health, condition=Condition.FAILING, reason=str(error))
    if space is None or not _is_full(mark):
        return health
    needed_bytes = min(ROOM_BYTES, space.total // _ROOM_PARTS)
    if space.free < needed_bytes:
        reason = f"less than {needed_bytes / 2**20:.0f} MiB are free at {path.place}, and a journal file needs that"
        return replace(health, condition=Condition.FULL, reason=reason)
    return health


def _away(path: StoragePath, reason: str, condition: Condition = Condition.UNREACHABLE) -> PathHealth:
    return PathHealth(path_id=path.path_id, label=path.label, condition=condition, reason=reason)


def _is_full(mark: str) -> bool:
    return any(full in mark for full in _FULL)


@dataclass(slots=True)
class _Pause:
    length_s: float
    until_s: float


class Trials:
    """Retries of failed storage paths, for one caller that retries periodically.

    A path that seems well and fails again is retried with growing pauses: 5 s, 10 s, up to a minute. A disk that hangs
    delays the caller only once, and for at most `wait_s`, because it is checked in a thread of its own.

    Args:
        clock: Returns monotonic seconds.
        wait_s: Seconds within which a path must answer.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, wait_s: float = ANSWER_WITHIN_S) -> None:
        self._clock = clock
        self._wait_s = wait_s
        self._pauses: dict[PathId, _Pause] = {}
        self._looks: dict[PathId, Future[PathHealth]] = {}

    def may_try(self, path: PathId) -> bool:
        """Return True if the pause after the path's last trial is over."""
        pause = self._pauses.get(path)
        return pause is None or self._clock() >= pause.until_s

    def record_trial(self, path: PathId) -> None:
        """Record a trial, and begin a pause: twice the last pause, or the shortest if the last ended a minute ago."""
        now_s = self._clock()
        pause = self._pauses.get(path)
        is_again = pause is not None and now_s < pause.until_s + LONGEST_PAUSE_S
        length_s = min(2 * pause.length_s, LONGEST_PAUSE_S) if pause is not None and is_again else FIRST_PAUSE_S
        self._pauses[path] = _Pause(length_s, now_s + length_s)

    def try_out(self, path: StoragePath, mark: str) -> PathHealth:
        """Return the health as the function `try_out`, in bounded time: a path that does not answer is unreachable."""
        look, wait_s = self._looks.get(path.path_id), 0.0
        if look is None:
            look, wait_s = self._looks.setdefault(path.path_id, Future()), self._wait_s
            threading.Thread(
                target=_look, args=(path, mark, look), name=f"probe-path-{path.path_id}", daemon=True
            ).start()
        try:
            found = look.result(timeout=wait_s)
        except TimeoutError:
            return _away(path, f"{path.place} does not answer")
        del self._looks[path.path_id]
        return found


def _look(path: StoragePath, mark: str, look: Future[PathHealth]) -> None:
    try:
        look.set_result(try_out(path, mark))
    except BaseException as error:
        look.set_exception(error)
