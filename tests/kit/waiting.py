"""Waiting for a condition instead of for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

Holds = Callable[[], object]
What = str | Callable[[], object]
LIMIT_S = 180.0
"""Longer than anything takes on a busy machine: only a test that fails waits so long."""
_PAUSES_S = (0.005, 0.05)
"""The first, and the longest that they grow to: a condition may cost more than a look."""


def wait_until(holds: Holds, what: What = "", *, limit_s: float = LIMIT_S) -> None:
    """Block until a condition holds.

    Args:
        holds: Returns something true once it holds.
        what: Names the condition in the error, or returns what there is instead.
        limit_s: The longest wait.

    Raises:
        AssertionError: it did not hold in time.
    """
    for pause_s in _pauses(what, limit_s):
        if holds():
            return
        time.sleep(pause_s)


async def until(holds: Holds, what: What = "", *, limit_s: float = LIMIT_S) -> None:
    """Do the same as `wait_until` beside the other tasks of an event loop."""
    for pause_s in _pauses(what, limit_s):
        if holds():
            return
        await asyncio.sleep(pause_s)


def _pauses(what: What, limit_s: float) -> Iterator[float]:
    until_s = time.monotonic() + limit_s
    pause_s, longest_s = _PAUSES_S
    while time.monotonic() < until_s:
        yield pause_s
        pause_s = min(2 * pause_s, longest_s)
    raise AssertionError(f"not within {limit_s:g} s: {what() if callable(what) else what}")
