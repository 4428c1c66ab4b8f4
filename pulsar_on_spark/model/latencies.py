"""Histogram of durations, cheap enough to be updated on every operation."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Final

BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds of the buckets in seconds, which include Pulsar's for write latencies. The last bucket has no bound."""


class Latencies:
    """Durations since the process began, as a Prometheus histogram.

    Only one thread at a time may observe; a concurrent reader may miss the latest observation.
    """

    __slots__ = ("_counts", "sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the duration of the `with` block, unless it raises an error."""
        began_s = perf_counter()
        yield
        self.observe(perf_counter() - began_s)

    @property
    def count(self) -> int:
        """Number of durations so far."""
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """List (upper bound in seconds as text, number of durations up to it), ascending; the last bound is `+Inf`."""
        bounds, total = [], 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self._counts, strict=True):
            total += count
            bounds.append((bound, float(total)))
        return bounds
