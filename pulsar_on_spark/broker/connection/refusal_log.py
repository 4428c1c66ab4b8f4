"""The log of one connection's refused requests: a client may send thousands a second. Decisions only."""

from __future__ import annotations

from typing import Final

LINES: Final = 10
"""Refusals of one connection that are logged one by one in each interval; the others are counted."""
INTERVAL_S: Final = 60.0
"""Length of an interval, in seconds."""


class RefusalLog:
    """The refusals of a connection in the current interval, which begins with its first one."""

    def __init__(self) -> None:
        self._ends_s = float("-inf")
        self._noted = 0

    def note(self, now_s: float) -> bool:
        """Count a refusal; True if it is to be logged.

        Args:
            now_s: The time of a clock that only grows, in seconds.
        """
        if now_s >= self._ends_s:
            self._ends_s, self._noted = now_s + INTERVAL_S, 0
        self._noted += 1
        return self._noted <= LINES

    def take_unlogged(self, now_s: float) -> int:
        """Return how many refusals of an interval that is over were not logged, once; 0 while it lasts."""
        if now_s < self._ends_s:
            return 0
        unlogged, self._noted = max(0, self._noted - LINES), 0
        return unlogged
