"""A limit on the log lines about one connection's refused requests, which may be thousands per second. No IO."""

from __future__ import annotations

from typing import Final

LINES: Final = 10
"""Number of refusals of one connection that are logged in an interval, one line each; further ones are only counted."""
INTERVAL_S: Final = 60.0
"""Length of an interval, in seconds."""


class RefusalLog:
    """The refusals of a connection in the current interval, which begins with the first refusal."""

    def __init__(self) -> None:
        self._ends_s = float("-inf")
        self._count = 0

    def count_refusal(self, now_s: float) -> bool:
        """Count a refusal; return True if the caller must log it.

        Args:
            now_s: The current time of a monotonic clock, in seconds.
        """
        if now_s >= self._ends_s:
            self._ends_s, self._count = now_s + INTERVAL_S, 0
        self._count += 1
        return self._count <= LINES

    def take_unlogged(self, now_s: float) -> int:
        """Return the number of unlogged refusals of the last interval, and reset it; 0 while the interval lasts.

        Args:
            now_s: The current time of a monotonic clock, in seconds.
        """
        if now_s < self._ends_s:
            return 0
        unlogged, self._count = max(0, self._count - LINES), 0
        return unlogged
