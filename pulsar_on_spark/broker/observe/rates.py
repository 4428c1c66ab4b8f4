"""Rates of growing counters. No clock, no IO: the caller passes the time.

A rate is the growth of a counter since a sample that is one to two periods old, divided by the time since this sample.
After two periods a burst has no effect on the rate. The rate of a younger counter is measured since its first sample.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MIN_SPAN_S: Final = 1.0
"""Minimum time by which growth is divided, in seconds: one message in the first millisecond is not 1,000 a second."""


class Counters(NamedTuple):
    """The messages and bytes counted since an object was created."""

    messages: int
    bytes: int


class Rates(NamedTuple):
    """The messages and bytes per second."""

    messages: float
    bytes: float


class RateMeter:
    """The meter of the rates of one pair of counters.

    Args:
        now_s: The current time, in seconds of a monotonic clock.
        counted: The current counters.
        period_s: Minimum seconds between two recorded samples.
    """

    __slots__ = ("_before", "_latest", "_period_s")

    def __init__(self, now_s: float, counted: Counters, period_s: float) -> None:
        self._period_s = period_s
        self._before = self._latest = (now_s, counted)

    def sample(self, now_s: float, counted: Counters) -> None:
        """Record the counters as a sample (arguments as `RateMeter`); do nothing within `period_s` of the last one."""
        if now_s - self._latest[0] >= self._period_s:
            self._before, self._latest = self._latest, (now_s, counted)

    def rates(self, now_s: float, counted: Counters) -> Rates:
        """Return the current rates, from the current counters and an earlier sample (arguments as `RateMeter`)."""
        since_s, before = self._before
        span_s = max(now_s - since_s, MIN_SPAN_S)
        return Rates((counted.messages - before.messages) / span_s, (counted.bytes - before.bytes) / span_s)
