"""The health of a storage path: the one value on which placement, repair, status and metrics base decisions. Pure.

    condition     result of examining the path                           its copies
    -----------   ----------------------------------------------------   -------------------------------
    well          it can be reached                                      can be read
    full          it can be reached; its last write found no space       can be read
    failing       it can be reached; its last write failed               can be read
    wiped         its directory or URL does not have its identity        may be good: on another disk
    unreachable   its disk or store is not mounted or does not answer    may be good
    elsewhere     it is on a disk of another host                        may be good

A copy counts as lost only if it is damaged, or if it is missing from a path that can be reached; see `loss`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from pulsar_on_spark.model.ids import PathId

PathRole: TypeAlias = Literal["both", "journal", "segments", "cold", "history"]
"""The kinds of files that a path is for. A cold path gets only segment files that were offloaded, a history path only
history tables."""
APART: Final = ("cold", "history")
"""Roles of paths whose files count for no quorum. Copies of a root share such paths, so each path has a `claim`."""
PathState: TypeAlias = Literal["writable", "read-only", "draining", "lost", "retired"]
"""A path's state in the metadata: see `topic.maintenance.repair.storage_paths`."""


class Condition(StrEnum):
    """The condition of a storage path, which the table of this module explains."""

    WELL = "well"
    FULL = "full"
    FAILING = "failing"
    WIPED = "wiped"
    UNREACHABLE = "unreachable"
    ELSEWHERE = "elsewhere"


class Hold(StrEnum):
    """The owner of a storage path by the path's claim: this root, another copy of the root, or unknown now."""

    OURS = "ours"
    FOREIGN = "foreign"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class PathHealth:
    """A storage path: its state in the metadata, and its condition when it was examined.

    It satisfies the protocol `placement.Place`.

    Attributes:
        path_id: The path's id.
        label: The label of the path's rack; "" without a label.
        role: The kinds of files that the path is for.
        state: The path's state in the metadata.
        is_checked: False for a path that was away and was not read in full since, so that its copies do not count.
        hold: The owner of a path with a role of `APART`; `OURS` until the path's claim is read. A path of another
            owner is only read from.
        is_overdue: True if the path has been away for longer than repair waits, so that its copies are replaced.
        condition: The path's condition.
        reason: The reason for the condition; empty if the path is well.
        total_bytes: Size of the path's file system; None while the path cannot be reached.
        free_bytes: Free space on the path's file system; None while the path cannot be reached.
    """

    path_id: PathId
    label: str = ""
    role: PathRole = "both"
    state: PathState = "writable"
    is_checked: bool = True
    hold: Hold = Hold.OURS
    is_overdue: bool = False
    condition: Condition = Condition.WELL
    reason: str = ""
    total_bytes: int | None = None
    free_bytes: int | None = None

    @property
    def weight(self) -> int:
        """The path's share of new files: its free bytes, or 1 if these are unknown."""
        return self.free_bytes or 1

    @property
    def is_well(self) -> bool:
        """True if the path has no problem: its condition is `WELL`."""
        return self.condition is Condition.WELL

    @property
    def is_there(self) -> bool:
        """True if the path can be reached and has the identity that the metadata name."""
        return self.condition not in (Condition.WIPED, Condition.UNREACHABLE, Condition.ELSEWHERE)

    @property
    def is_writable(self) -> bool:
        """True if new copies are written to the path."""
        return self.is_there and self.state == "writable" and self.hold is Hold.OURS

    @property
    def is_readable(self) -> bool:
        """True if copies are read from the path."""
        return self.is_there and self.state not in ("lost", "retired")

    @property
    def is_judged(self) -> bool:
        """True if a missing or damaged copy counts as such, because the path can be read and this root owns it."""
        return self.is_readable and self.hold is Hold.OURS

    @property
    def is_away(self) -> bool:
        """True if the path cannot be reached and was not given up, so that its copies may be good."""
        return not self.is_there and self.state not in ("lost", "retired")

    @property
    def is_cold(self) -> bool:
        """True if the path is for offloaded files."""
        return self.role == "cold"

    @property
    def holds_copies(self) -> bool:
        """True if the path can be reached and keeps its copies, which are not being moved to other paths."""
        return self.is_there and keeps_copies(self.state)


def keeps_copies(state: PathState) -> bool:
    """Return True if copies stay on a path that has this state in the metadata."""
    return state in ("writable", "read-only")
