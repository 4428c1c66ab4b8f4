"""The check of whether a failed storage path may be written to again."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.files import OS_FILES, write_synced
from pulsar_on_spark.storage.storage_path import StoragePath

ROOM_BYTES: Final = 512 * 1024 * 1024
"""Free bytes from which a full path is healthy again, a journal file's size: with less it would fail again at once."""
_ROOM_PARTS: Final = 10
"""On a disk that is smaller than ten such files, a tenth of it is enough."""
_FULL: Final = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
ANSWER_WITHIN_S: Final = 1.0
FIRST_PAUSE_S: Final = 5.0
LONGEST_PAUSE_S: Final = 60.0


def illness_of(path: StoragePath, reason: str) -> str | None:
    """The reason why the path is the wrong one, takes no durable file or is still full; None if it is healthy.

    Args:
        path: The path.
        reason: The reason of its failure. Free space is checked only if the path was full.
    """
    probe = path.directory / f".probe-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        path.check()
        write_synced(OS_FILES, probe, b"\0" * 65_536)
        usage = shutil.disk_usage(path.directory)
    except OSError as error:
        return f"{error.strerror} at {path.directory}"
    except PulsarpyError as error:
        return str(error)
    finally:
        with suppress(OSError):
            probe.unlink()
    needed_bytes = min(ROOM_BYTES, usage.total // _ROOM_PARTS)
    if any(full in reason for full in _FULL) and usage.free < needed_bytes:
        return f"less than {needed_bytes / 2**20:.0f} MiB are free at {path.directory}, and a journal file needs that"
    return None


@dataclass(slots=True)
class _Pause:
    length_s: float
    until_s: float


class Trials:
    """Retries of failed storage paths, for one caller that calls repeatedly.

    A path that seems healthy and fails again is retried with growing pauses: 5 s, 10 s, up to a minute. A disk that
    hangs delays the caller once, for a moment: it is checked in a thread of its own.

    Args:
        clock: Seconds that only grow.
        wait_s: Time in which a path must answer.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, wait_s: float = ANSWER_WITHIN_S) -> None:
        self._clock = clock
        self._wait_s = wait_s
        self._pauses: dict[PathId, _Pause] = {}
        self._looks: dict[PathId, Future[str | None]] = {}

    def may_try(self, path: PathId) -> bool:
        """True if the pause since the path's last trial is over."""
        pause = self._pauses.get(path)
        return pause is None or self._clock() >= pause.until_s

    def tried(self, path: PathId) -> None:
        """Record a trial; a path that needed none for a minute after its pause starts with the shortest pause."""
        now_s = self._clock()
        pause = self._pauses.get(path)
        is_again = pause is not None and now_s < pause.until_s + LONGEST_PAUSE_S
        length_s = min(2 * pause.length_s, LONGEST_PAUSE_S) if pause is not None and is_again else FIRST_PAUSE_S
        self._pauses[path] = _Pause(length_s, now_s + length_s)

    def illness_of(self, path: StoragePath, reason: str) -> str | None:
        """Check as `illness_of` does, with a time limit: a path that does not answer is ill."""
        look, wait_s = self._looks.get(path.path_id), 0.0
        if look is None:
            look, wait_s = self._looks.setdefault(path.path_id, Future()), self._wait_s
            threading.Thread(
                target=_look, args=(path, reason, look), name=f"probe-path-{path.path_id}", daemon=True
            ).start()
        try:
            found = look.result(timeout=wait_s)
        except TimeoutError:
            return f"{path.directory} does not answer"
        del self._looks[path.path_id]
        return found


def _look(path: StoragePath, reason: str, look: Future[str | None]) -> None:
    try:
        look.set_result(illness_of(path, reason))
    except BaseException as error:
        look.set_exception(error)
