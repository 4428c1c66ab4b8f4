"""Limits for the work of one pass of audit and repair."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class RepairLimits:
    """Limits for one pass.

    Attributes:
        max_seconds: Time after which a pass starts no further work; the next pass continues. None for no limit.
        bytes_per_second: The maximum rate of reading and writing copies. None for no limit.
        scrub_within: Time within which every copy is read in full once, if passes run often enough.
        scrub_cold_within: The same for copies on cold paths, whose stores may charge for each byte that is read.
        replace_after: Time for which a path must be unreachable before its copies are replaced on other paths.
    """

    max_seconds: float | None = None
    bytes_per_second: float | None = None
    scrub_within: timedelta = timedelta(days=7)
    scrub_cold_within: timedelta = timedelta(days=90)
    replace_after: timedelta = timedelta(minutes=10)

    def is_overdue(self, failed_at: datetime, now: datetime) -> bool:
        """Return True if the copies on a path that could not be reached since `failed_at` are to be replaced.

        A time that is later than `now` by more than `replace_after` is from a wrong clock, and counts as overdue: to
        replace copies early does no harm.
        """
        return not -self.replace_after <= now - failed_at < self.replace_after


BESIDE_A_BROKER = RepairLimits(max_seconds=120.0, bytes_per_second=50e6)
"""Limits for housekeeping that shares disks with clients."""
