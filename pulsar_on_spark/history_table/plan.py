"""The decisions of a build of a topic's history. Pure.

The table and the root's metadata cannot be changed in one commit. A build first commits to the table, as generation
n + 1, and then to the metadata. So the table may be one generation ahead, and the next build completes the metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from pulsar_on_spark.model.ids import EARLIEST, Position

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a topic's history, as the metadata or the table say.

    Attributes:
        generation: Number of builds.
        to: The position before which the messages are in the table.
        rows: Number of messages that builds have added.
        bytes: Size of the files that builds have added.
    """

    generation: int
    to: Position
    rows: int
    bytes: int


NOT_BUILT = Progress(0, EARLIEST, 0, 0)
"""The progress of a topic without history."""


class ContradictionError(Exception):
    """The table and the metadata contradict each other: one of them was replaced, or restored from a copy."""


@dataclass(frozen=True, slots=True)
class UpToDate:
    """There is nothing to do."""


@dataclass(frozen=True, slots=True)
class Complete:
    """Commit the table's progress to the metadata: a build died between its two commits."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class Append:
    """Append the messages of [start, end) to the table as the generation after `after`, then commit the metadata."""

    after: Progress
    start: Position
    end: Position


Step: TypeAlias = UpToDate | Complete | Append


def next_step(main: Progress, table: Progress, trimmed: Position, sealed: Position) -> Step:
    """Decide the next step of a build.

    Args:
        main: The progress in the metadata.
        table: The progress in the table.
        trimmed: The position before which the topic's entries were deleted.
        sealed: The end of the topic's sealed entries.

    Raises:
        ContradictionError: the metadata are ahead of the table, or more than one generation behind it.
    """
    if table.generation == main.generation + 1:
        return Complete(table)
    if table.generation != main.generation:
        raise ContradictionError(f"the table has generation {table.generation}, the metadata {main.generation}")
    start = start_behind(main.to, trimmed)
    return Append(main, start, sealed) if max(start, trimmed) < sealed else UpToDate()


def start_behind(to: Position, trimmed: Position) -> Position:
    """Return where to read a topic behind its history: at `to`, or at its first entry if this was trimmed."""
    return to if to > trimmed else EARLIEST


def grouped(items: Iterable[_T], size: Callable[[_T], int], limit: int) -> Iterator[list[_T]]:
    """Group adjacent items so that the sizes of a group's items add up to `limit`, or more by the last item's size."""
    group: list[_T] = []
    total = 0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= limit:
            yield group
            group, total = [], 0
    if group:
        yield group
