"""The decisions of a build of a topic's history. Pure.

The table and the root's metadata cannot be changed in one commit. A build first commits to the table, as generation
n + 1, and then to the metadata. A build that dies in between leaves the table one generation ahead of the metadata, and
the next build commits the metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from pulsar_on_spark.model.ids import EARLIEST, Position

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of the history of a topic or partition, as the metadata or the table record it.

    Attributes:
        generation: Number of steps of builds that have appended messages.
        to: The position before which the messages are in the table.
        rows: Number of messages that builds have added.
        bytes: Size in bytes of the files that builds have added.
    """

    generation: int
    to: Position
    rows: int
    bytes: int


NOT_BUILT = Progress(0, EARLIEST, 0, 0)
"""The progress of a topic or partition whose history is not built yet."""


class ContradictionError(Exception):
    """Error of a history table that contradicts the metadata, because one was replaced, or restored from a copy."""


@dataclass(frozen=True, slots=True)
class UpToDate:
    """The step of a build that has nothing to append."""


@dataclass(frozen=True, slots=True)
class Complete:
    """The step that commits the table's progress to the metadata, after a build died between its two commits."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class Append:
    """The step that appends the messages of [start, end) to the table, and then commits the progress to the metadata.

    The new generation is the generation of `after` plus one.
    """

    after: Progress
    start: Position
    end: Position


Step: TypeAlias = UpToDate | Complete | Append


def next_step(main: Progress, table: Progress, trimmed: Position, sealed: Position) -> Step:
    """Return the next step of a build.

    Args:
        main: The progress in the metadata.
        table: The progress in the table.
        trimmed: The position before which the topic's entries were deleted.
        sealed: The position up to which the step may append.

    Raises:
        ContradictionError: the metadata are ahead of the table, or more than one generation behind the table.
    """
    if table.generation == main.generation + 1:
        return Complete(table)
    if table.generation != main.generation:
        raise ContradictionError(f"the table has generation {table.generation}, the metadata {main.generation}")
    start = start_behind(main.to, trimmed)
    return Append(main, start, sealed) if max(start, trimmed) < sealed else UpToDate()


def start_behind(to: Position, trimmed: Position) -> Position:
    """Return the position from which to read a topic behind its history: `to`, or EARLIEST if `to` was trimmed."""
    return to if to > trimmed else EARLIEST


def grouped(items: Iterable[_T], size: Callable[[_T], int], limit: int) -> Iterator[list[_T]]:
    """Yield groups of adjacent items. A group ends with the item at which its total size reaches `limit`."""
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
