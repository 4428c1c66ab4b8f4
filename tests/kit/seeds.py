"""Seeds of simulated runs: the same in each run of the tests, so that no change fails by a case that it did not make.

`make seeds` runs the same tests under fresh ones; a seed that fails is mended before anything else.
"""

from __future__ import annotations

import os
import secrets
from typing import Final

_FIRST: Final = 20_131_225
_VARIABLE: Final = "PULSARPY_TEST_SEEDS"


def first_seed() -> int:
    """Return the seed from which a test counts, and print it: a fresh one with `PULSARPY_TEST_SEEDS=fresh`."""
    first = secrets.randbelow(1 << 40) if os.environ.get(_VARIABLE) == "fresh" else _FIRST
    print(f"from seed {first} on")
    return first
