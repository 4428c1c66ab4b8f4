"""The boundary between a topic's history table and the topic itself, so that a reader gets each message once.

A reader reads the metadata first and a version of the table afterwards. The messages before the boundary come from the
table, all later ones from the topic. The table may be ahead of the metadata, because a build was completed in between
or died between its two commits, so the boundary is the table's own position, which is in each version of it.
"""

from __future__ import annotations

from pulsar_on_spark.history_table.plan import ContradictionError, Progress
from pulsar_on_spark.model.ids import Position


def boundary_of(main: Progress, table: Progress) -> Position:
    """Return the position from which on a topic or partition is read from the topic itself.

    Args:
        main: The progress in the metadata, which were read first.
        table: The progress in the version of the table that is read.

    Raises:
        ContradictionError: the table lacks rows that the metadata name.
    """
    if table.generation < main.generation:
        raise ContradictionError(f"the table has generation {table.generation}, the metadata {main.generation}")
    return table.to
