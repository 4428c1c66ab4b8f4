"""Rate limits: a token bucket that may be overdrawn. Pure, for any clock in seconds.

Messages are counted after they have passed, because the size of a read or a batch is not known before. The next
messages wait until the debt is paid, so the average stays within the rate for any sizes.
"""

from __future__ import annotations

from typing import Final

MAX_DEBT_S: Final = 15.0
"""Limit of a debt, in seconds: a client whose connection is not read for longer considers it dead."""


class Throttle:
    """A limit on messages (or other events, such as creations) and bytes in a period; -1 or 0 for no limit.

    The bucket starts full, with one period's tokens.
    """

    def __init__(self, messages: int = -1, size_bytes: int = -1, period_s: float = 1.0) -> None:
        self.is_unlimited = True
        """True if there is no limit."""
        self._limits = (0.0, 0.0)
        self._period_s = period_s
        self._at_s: float | None = None
        self._left = [0.0, 0.0]
        self._given_s = 0.0
        """Start of the period in which `give` allows more than the limit."""
        self.set_rate(messages, size_bytes, period_s)

    def set_rate(self, messages: int, size_bytes: int, period_s: float = 1.0) -> None:
        """Apply new limits of messages and bytes per period, -1 or 0 for no limit; a change cancels debts."""
        limits = (float(max(messages, 0)), float(max(size_bytes, 0)))
        if (limits, period_s) != (self._limits, self._period_s):
            self._limits, self._period_s = limits, period_s
            self.is_unlimited = not any(limits)
            self._left = list(limits)

    def spend_tokens(self, now_s: float, messages: int, size_bytes: int) -> float:
        """Spend tokens on messages that have passed, and return the seconds that the next messages must wait.

        Args:
            now_s: The current time, in seconds on the caller's clock.
            messages: Number of messages.
            size_bytes: Bytes of the messages.
        """
        if self.is_unlimited:
            return 0.0
        self._fill(now_s)
        for kind, taken in enumerate((messages, size_bytes)):
            self._left[kind] = max(self._left[kind] - taken, -self._limits[kind] * MAX_DEBT_S / self._period_s)
        return self._wait_s()

    def give(self, now_s: float, messages: int, size_bytes: int) -> None:
        """Add tokens for messages and bytes, even beyond the limits; unused ones expire at the end of the period."""
        if self.is_unlimited:
            return
        self._fill(now_s)
        if now_s - self._given_s >= self._period_s:
            self._given_s = now_s
            self._left = [min(left, limit) for left, limit in zip(self._left, self._limits, strict=True)]
        for kind, given in enumerate((messages, size_bytes)):
            self._left[kind] += given

    def wait_s(self, now_s: float) -> float:
        """Return the seconds that the next messages must wait from `now_s` on; 0 if they may pass."""
        if self.is_unlimited:
            return 0.0
        self._fill(now_s)
        return self._wait_s()

    def _wait_s(self) -> float:
        both = zip(self._left, self._limits, strict=True)
        return max(0.0, *(-left * self._period_s / limit for left, limit in both if limit))

    def _fill(self, now_s: float) -> None:
        passed_s = 0.0 if self._at_s is None else max(now_s - self._at_s, 0.0)
        self._at_s = now_s
        for kind, limit in enumerate(self._limits):
            filled = min(self._left[kind] + limit * passed_s / self._period_s, limit)
            self._left[kind] = max(self._left[kind], filled)
