"""Sending or receiving at a rate: when the next message is due."""

from __future__ import annotations

import math
import time


class Pace:
    """A number of messages a second, from now on.

    Args:
        rate: Messages a second; 0 for as many as go.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._begun_s = time.perf_counter()

    def due_s(self, done: int) -> float:
        """Return the time, by `time.perf_counter`, at which the message after this many is due: now, without a rate."""
        return self._begun_s + done / self._rate if self._rate else time.perf_counter()

    def wait(self, done: int, end_s: float = math.inf) -> None:
        """Return when the message after this many is due, at the latest at this end."""
        while (ahead_s := min(self.due_s(done), end_s) - time.perf_counter()) > 0:
            time.sleep(ahead_s)
