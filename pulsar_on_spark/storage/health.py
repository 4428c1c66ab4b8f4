"""The health of a storage path: the one value that placement, repair, status and metrics decide by. Pure.

    condition     found by a look at the path                            its copies
    -----------   ----------------------------------------------------   -------------------------------
    well          it is there                                            are there
    full          it is there; its last write found no room              are there
    failing       it is there; its last write failed                     are there
    wiped         a directory is there that is not this path             may be good: on another disk
    unreachable   its disk is away, or does not answer                   may be good

Lost are only copies that are there and bad, and those that are gone from a path that is there: see `loss`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from pulsar_on_spark.model.ids import PathId

PathState: TypeAlias = Literal["writable", "read-only", "draining", "lost", "retired"]
"""A path's state in the metadata: see `topic.maintenance.repair.storage_paths`."""


class Condition(StrEnum):
    """The condition of a storage path."""

    WELL = "well"
    FULL = "full"
    FAILING = "failing"
    WIPED = "wiped"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class PathHealth:
    """A storage path: its state in the metadata, and its condition when it was examined.

    It is a `Place` for `placement.preferred`.

    Attributes:
        path_id: Its id.
        label: Its rack.
        state: Its state in the metadata.
        is_checked: False while a path that came back was not read in full: its copies do not count yet.
        is_overdue: True if it is away for longer than repair waits: its copies are replaced.
        condition: Its condition.
        reason: The reason of the condition; empty if it is well.
        total_bytes: The size of its file system; None while it cannot be reached.
        free_bytes: Free space there; None while it cannot be reached.
    """

    path_id: PathId
    label: str = ""
    state: PathState = "writable"
    is_checked: bool = True
    is_overdue: bool = False
    condition: Condition = Condition.WELL
    reason: str = ""
    total_bytes: int | None = None
    free_bytes: int | None = None

    @property
    def weight(self) -> int:
        """The path's share of new files."""
        return self.free_bytes or 1

    @property
    def is_well(self) -> bool:
        """True if nothing is known to be wrong with it."""
        return self.condition is Condition.WELL

    @property
    def is_there(self) -> bool:
        """True if it can be reached and is the path that the metadata mean."""
        return self.condition not in (Condition.WIPED, Condition.UNREACHABLE)

    @property
    def is_writable(self) -> bool:
        """True if new copies go there."""
        return self.is_there and self.state == "writable"

    @property
    def is_readable(self) -> bool:
        """True if copies are read from it."""
        return self.is_there and self.state not in ("lost", "retired")

    @property
    def is_away(self) -> bool:
        """True if it cannot be reached and was not given up: its copies may be good."""
        return not self.is_there and self.state not in ("lost", "retired")

    @property
    def holds_copies(self) -> bool:
        """True if copies on it are there, and stay."""
        return self.is_there and keeps_copies(self.state)


def keeps_copies(state: PathState) -> bool:
    """Return True for a path whose copies stay on it, according to the metadata."""
    return state in ("writable", "read-only")
