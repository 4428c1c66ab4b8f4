"""Limits of failed authentications, so that credentials cannot be guessed fast. Decisions only."""

from __future__ import annotations

from typing import Final

FREE_FAILURES: Final = 20
"""Failures of one address in `WINDOW_S` that are answered at once."""
WINDOW_S: Final = 60.0
DELAY_S: Final = 1.0
"""Wait of each further answer."""
MAX_WAITING: Final = 100
"""Answers of all addresses that wait at the same time; further ones are refused at once, without an answer."""
MAX_HOSTS: Final = 10_000
"""Hosts that are counted at the same time; above it, the ones that began longest ago are forgotten."""


class FailureCounts:
    """The failed authentications of each host."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[float, int]] = {}
        """Begin of the window, and failures in it; in the order of the begins."""

    def note(self, host: str, now_s: float) -> int:
        """Count a failure and return the number of them in the host's window of time.

        Args:
            host: The host.
            now_s: The time of a clock that only grows, in seconds.
        """
        begun_s, failures = self._of.get(host, (now_s, 0))
        if now_s - begun_s >= WINDOW_S:
            begun_s, failures = now_s, 0
        if not failures:
            self._of.pop(host, None)
            if len(self._of) >= MAX_HOSTS:
                del self._of[next(iter(self._of))]
        self._of[host] = (begun_s, failures + 1)
        return failures + 1
