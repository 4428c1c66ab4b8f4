"""The state of a lease as an observer sees it."""

from __future__ import annotations

from enum import Enum


class LeaseState(Enum):
    """State of another consumer's lease, as far as an observer knows it."""

    UNKNOWN = "seen for less than one lease period"
    ALIVE = "seen for a lease period or longer, and renewed within the last one"
    EXPIRED = "not renewed for a lease period, or released"
