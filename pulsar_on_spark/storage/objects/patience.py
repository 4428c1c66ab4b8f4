"""The pauses between attempts at an object store."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0


def pauses() -> Iterator[float]:
    """Yield growing pauses in seconds, drawn at random, so that clients do not retry in step."""
    longest_s = FIRST_PAUSE_S
    while True:
        yield random.uniform(longest_s / 2, longest_s)
        longest_s = min(LONGEST_PAUSE_S, 2 * longest_s)
