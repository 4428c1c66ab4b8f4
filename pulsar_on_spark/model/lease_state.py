"""The state of another consumer's lease, as an observer knows it."""

from __future__ import annotations

from enum import Enum


class LeaseState(Enum):
    """The state of another consumer's lease, as an observer knows it; the values explain it."""

    UNKNOWN = "observed for less than one lease period"
    ALIVE = "observed for at least one lease period, and renewed within the last one"
    EXPIRED = "not renewed for a lease period, or released"
