"""The system's clock in Pulsar's units. Pure code receives the time as an argument; only shells read the clock."""

from __future__ import annotations

import time


def current_ms() -> int:
    """Return the milliseconds since 1970, as in publish times."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return the milliseconds of a monotonic clock, for durations."""
    return time.monotonic_ns() // 1_000_000
