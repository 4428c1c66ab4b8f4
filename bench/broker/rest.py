"""A pause until the CPUs are idle, so that deferred work of one measure does not count for the next."""

from __future__ import annotations

from typing import Final

import psutil

_REST_PERCENT: Final = 15.0
_REST_S: Final = 2.0
_MAX_WAITS: Final = 60


def rest() -> None:
    """Wait for the CPUs, two minutes at most: other work may keep them busy, which the load average shows."""
    for _ in range(_MAX_WAITS):
        if psutil.cpu_percent(_REST_S) < _REST_PERCENT:
            return
