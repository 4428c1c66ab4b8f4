"""A pause until the CPUs are idle, so that deferred work of a measure does not slow the next one."""

from __future__ import annotations

from typing import Final

import psutil

_REST_PERCENT: Final = 15.0
_REST_S: Final = 2.0
_MAX_WAITS: Final = 60


def rest() -> None:
    """Wait until the CPUs are idle, for at most two minutes: other work may keep them busy."""
    for _ in range(_MAX_WAITS):
        if psutil.cpu_percent(_REST_S) < _REST_PERCENT:
            return
