"""How long something takes, counted in buckets: cheap enough to be kept where it happens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Final

BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds of the buckets, in seconds; those of Pulsar's write latencies are among them. Above is one more."""


class Latencies:
    """Durations since the process began, as Prometheus' histograms have them.

    One thread at a time observes; whoever reads meanwhile may miss the last one.
    """

    __slots__ = ("_counts", "sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Something took so long."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Observe how long the block takes, if it does not fail."""
        began_s = perf_counter()
        yield
        self.observe(perf_counter() - began_s)

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, observations up to it), the last bound being `+Inf`."""
        found, total = [], 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self._counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found
