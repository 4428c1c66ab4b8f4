"""The boundary between a topic's history table and the topic itself, so that a reader gets each message once.

A reader reads the metadata first and a version of the table afterwards. The messages before the boundary come from the
table, and all later messages from the topic. The table may be ahead of the metadata that were read, because a build was
completed in between, or died between its two commits. So the boundary is the position that is stored in the table's
version.
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
        ContradictionError: the table's generation is lower than the metadata's, so the table lacks rows.
    """
    if table.generation < main.generation:
        raise ContradictionError(f"the table has generation {table.generation}, the metadata {main.generation}")
    return table.to
