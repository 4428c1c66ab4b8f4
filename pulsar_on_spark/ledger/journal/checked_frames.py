"""Cache of the checksums of verified frames, so that a reader of one ledger need not read a whole frame again."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from pulsar_on_spark.ledger.journal.log import FrameNumber

FileKey: TypeAlias = tuple[str, str, tuple[int, int]]
"""Key of a file: incarnation, path and file name, device and inode."""
Crcs: TypeAlias = npt.NDArray[np.uint32]

MAX_CRCS: Final = 1 << 20
"""Limit of cached checksums.

Above it, those of the least recently used file are dropped: its frames are read in full again.
"""


class CheckedFrames:
    """The `part_crcs` of each frame whose own checksum was verified. Thread-safe.

    With these checksums, one topic's entries are read and verified without reading the rest of the frame.
    """

    def __init__(self, max_crcs: int = MAX_CRCS) -> None:
        self._max_crcs = max_crcs
        self._files: OrderedDict[FileKey, dict[FrameNumber, Crcs]] = OrderedDict()
        self._count = 0
        self._lock = Lock()

    def get(self, file: FileKey, number: FrameNumber) -> Crcs | None:
        """Return the checksums of the frame's parts (`part_crcs`).

        None if it was not verified, or has left the cache.
        """
        with self._lock:
            frames = self._files.get(file)
            if frames is None:
                return None
            self._files.move_to_end(file)
            return frames.get(number)

    def add(self, file: FileKey, number: FrameNumber, crcs: Crcs) -> None:
        """Add the checksums of a verified frame's parts (`part_crcs`)."""
        with self._lock:
            frames = self._files.setdefault(file, {})
            self._files.move_to_end(file)
            self._count += len(crcs) - len(frames.get(number, ()))
            frames[number] = crcs
            while self._count > self._max_crcs:
                _, forgotten = self._files.popitem(last=False)
                self._count -= sum(map(len, forgotten.values()))
