"""Histograms of a topic's write latencies and entry sizes, in the buckets of Pulsar's metrics.

The publish path samples one entry at a time, so a topic's share of the samples is its share of the entries. A topic
without a sample has no `EntrySamples`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

WRITE_LATENCY_BUCKETS: Final = (
    ("0_5", 0.0005),
    ("1", 0.001),
    ("5", 0.005),
    ("10", 0.01),
    ("20", 0.02),
    ("50", 0.05),
    ("100", 0.1),
    ("200", 0.2),
    ("1000", 1.0),
)
"""Each bucket's name in Pulsar, which is in milliseconds, and its upper bound in seconds."""
ENTRY_SIZE_BUCKETS: Final = (
    ("128", 128),
    ("512", 512),
    ("1_kb", 1 << 10),
    ("2_kb", 2 << 10),
    ("4_kb", 4 << 10),
    ("16_kb", 16 << 10),
    ("100_kb", 100 << 10),
    ("1_mb", 1 << 20),
)
"""Each bucket's name in Pulsar, and its upper bound in bytes."""
_LATENCY_BOUNDS: Final = [bound for _, bound in WRITE_LATENCY_BUCKETS]
_SIZE_BOUNDS: Final = [bound for _, bound in ENTRY_SIZE_BUCKETS]


class EntrySamples:
    """The samples of one topic since it was loaded. Buckets are not cumulative, as in Pulsar."""

    __slots__ = ("latencies", "latency_sum_s", "size_sum", "sizes")

    def __init__(self) -> None:
        self.latencies = [0] * (len(_LATENCY_BOUNDS) + 1)
        self.sizes = [0] * (len(_SIZE_BOUNDS) + 1)
        self.latency_sum_s = 0.0
        self.size_sum = 0

    def observe(self, seconds: float, size_bytes: int) -> None:
        """Count an entry in the bucket of its size and in that of `seconds`, its time from arrival to durability."""
        self.latencies[bisect_left(_LATENCY_BOUNDS, seconds)] += 1
        self.sizes[bisect_left(_SIZE_BOUNDS, size_bytes)] += 1
        self.latency_sum_s += seconds
        self.size_sum += size_bytes


def names() -> Iterator[str]:
    """Yield the names of Pulsar's metrics of write latency and entry size, in the order of `values`."""
    for prefix, buckets in (
        ("pulsar_storage_write_latency", [name for name, _ in WRITE_LATENCY_BUCKETS]),
        ("pulsar_entry_size", [name for name, _ in ENTRY_SIZE_BUCKETS]),
    ):
        yield from (f"{prefix}_le_{name}" for name in buckets)
        yield from (f"{prefix}_{name}" for name in ("le_overflow", "sum", "count"))


def values(samples: EntrySamples) -> list[float]:
    """Return the values of a topic's metrics in the order of `names`: counts, and sums in milliseconds and bytes."""
    count = sum(samples.sizes)
    return [*samples.latencies, samples.latency_sum_s * 1000, count, *samples.sizes, samples.size_sum, count]
