"""Durations and sizes with units, in the notation of `pulsar-admin`."""

from __future__ import annotations

import re
from typing import Final

from pulsar_on_spark.model.errors import InvalidArgumentError

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdwy])", re.IGNORECASE)
_SIZE: Final = re.compile(r"(\d+)\s*([kmgt])?b?", re.IGNORECASE)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
_BYTES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def duration_s(text: str, what: str) -> float:
    """Return the seconds of a duration such as `90m`; the units are s, m, h, d, w and y.

    Args:
        text: The duration.
        what: The name of the option or argument, with which the error begins.

    Raises:
        InvalidArgumentError: the text is not a duration.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidArgumentError(f"{what} is {text!r}: give a duration such as 30s, 90m, 24h, 7d or 2w.")
    return float(match[1]) * _SECONDS[match[2].lower()]


def is_duration(text: str) -> bool:
    """Return True if `duration_s` can parse the text."""
    return _DURATION.fullmatch(text.strip()) is not None


def size_bytes(text: str, what: str) -> int:
    """Return the bytes of a size such as `10G`, with powers of 1,024 (arguments and errors as `duration_s`)."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidArgumentError(f"{what} is {text!r}: give a size such as 512M, 10G or 2T.")
    return int(match[1]) * _BYTES[(match[2] or "").lower()]
