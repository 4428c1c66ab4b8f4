"""The boundary between a topic's history table and the topic itself, so that a reader gets each message once.

A reader reads the metadata first and the table afterwards. The messages before the position in the metadata come from
the table, all later ones from the topic. If a build was completed in between, or died between its two commits, the
table has messages behind that position, too: the reader must leave them out.
"""

from __future__ import annotations

from dataclasses import dataclass

from pulsar_on_spark.history_table.plan import ContradictionError, Progress
from pulsar_on_spark.model.ids import Position


@dataclass(frozen=True, slots=True)
class Boundary:
    """The boundary of one topic or partition.

    Attributes:
        to: The position from which on the topic is read.
        below: The position from which on rows of the table are left out; None if the table has no such rows.
    """

    to: Position
    below: Position | None


def boundary_of(main: Progress, table: Progress) -> Boundary:
    """Return the boundary.

    Args:
        main: The progress in the metadata, which were read first.
        table: The progress in the table.

    Raises:
        ContradictionError: the table lacks rows that the metadata name.
    """
    if table.generation < main.generation:
        raise ContradictionError(f"the table has generation {table.generation}, the metadata {main.generation}")
    return Boundary(main.to, None if table.generation == main.generation else main.to)
