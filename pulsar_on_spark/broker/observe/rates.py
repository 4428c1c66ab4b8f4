"""Rates computed from counters that only grow. No clock, no IO: the caller passes the time of each sample.

A rate is the growth since a sample that is one to two periods old, so it changes with every sample, and a burst
disappears after two periods. Anything younger than a period is measured since its first sample.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MIN_SPAN_S: Final = 1.0
"""A shorter time than this counts as this: one message in the first millisecond is not a thousand a second."""


class Counters(NamedTuple):
    """Counters since the start."""

    messages: int
    bytes: int


class Rates(NamedTuple):
    """Rates per second."""

    messages: float
    bytes: float


class RateMeter:
    """The rates of one thing that is counted.

    Args:
        now_s: The sampler's clock, seconds that only grow.
        counted: Its counters now.
        period_s: How old a sample becomes before another takes its place.
    """

    __slots__ = ("_before", "_latest", "_period_s")

    def __init__(self, now_s: float, counted: Counters, period_s: float) -> None:
        self._period_s = period_s
        self._before = self._latest = (now_s, counted)

    def sample(self, now_s: float, counted: Counters) -> None:
        """Look at the counters: more often than once in a period changes nothing."""
        if now_s - self._latest[0] >= self._period_s:
            self._before, self._latest = self._latest, (now_s, counted)

    def rates(self, now_s: float, counted: Counters) -> Rates:
        """The rates now."""
        since_s, before = self._before
        span_s = max(now_s - since_s, MIN_SPAN_S)
        return Rates((counted.messages - before.messages) / span_s, (counted.bytes - before.bytes) / span_s)
