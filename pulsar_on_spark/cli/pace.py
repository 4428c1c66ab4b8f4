"""The pace of sending or receiving messages, which determines the time at which the next message is due."""

from __future__ import annotations

import math
import time


class Pace:
    """A pace in messages a second, which begins now.

    Args:
        rate: Messages a second; 0 for no limit.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._begun_s = time.perf_counter()

    def due_s(self, done: int) -> float:
        """Return the time at which message number `done`, counted from 0, is due; the current time without a limit.

        The time is in seconds of `time.perf_counter`.
        """
        return self._begun_s + done / self._rate if self._rate else time.perf_counter()

    def wait(self, done: int, end_s: float = math.inf) -> None:
        """Wait until message number `done` is due, or until `end_s` (by `time.perf_counter`) if that is earlier."""
        while (ahead_s := min(self.due_s(done), end_s) - time.perf_counter()) > 0:
            time.sleep(ahead_s)
