"""The system's clock in Pulsar's units. Pure functions receive the time as an argument and never read a clock."""

from __future__ import annotations

import time


def current_ms() -> int:
    """Return the current time in milliseconds since 1970 (UTC), as in publish times."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return the milliseconds of a monotonic clock, for durations."""
    return time.monotonic_ns() // 1_000_000
