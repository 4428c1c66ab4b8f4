"""The division of a micro-batch among topics under `maxMessagesPerTrigger` and `maxBytesPerTrigger`. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pulsar_on_spark.datasource.stream_plan import Backlog, Budget
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.topic.managed_ledger.chain.slices import SegmentSlice
from pulsar_on_spark.topic.managed_ledger.chain.steps import advance


def admit(backlogs: Sequence[Backlog], budget: Budget, passed_over: Mapping[str, int]) -> dict[str, Position]:
    """Return the end of the batch in each topic, by full name.

    The topics' shares are in proportion to their backlogs. Entries are never split. A topic whose share is smaller than
    its next entry gets no share, unless it is the first topic of the batch. The first topic is the one with the highest
    `passed_over` or, among equals, the largest backlog. So each topic gets a share at some time.

    Args:
        backlogs: The topics' backlogs.
        budget: The limits of the batch.
        passed_over: By full name, the number of consecutive batches in which a topic had messages but got no share; a
            topic that is absent has 0.
    """
    if budget.is_unlimited:
        return {backlog.part.name: backlog.end for backlog in backlogs}
    ends = {backlog.part.name: backlog.start for backlog in backlogs}
    waiting = [backlog for backlog in backlogs if backlog.start < backlog.end]
    total = sum(backlog.rows for backlog in waiting)
    waiting.sort(key=lambda backlog: (-passed_over.get(backlog.part.name, 0), -backlog.rows, backlog.part.name))
    rows_left, bytes_left = budget.rows, budget.bytes
    for index, backlog in enumerate(waiting):
        rows = None if rows_left is None else min(_share(budget.rows, backlog.rows, total), rows_left)
        size = None if bytes_left is None else min(_share(budget.bytes, backlog.rows, total), bytes_left)
        reached = advance(backlog.slices, backlog.start, backlog.enough, rows, size, at_least_one=index == 0)
        ends[backlog.part.name] = reached
        taken_rows, taken_bytes = _before(backlog.slices, reached)
        rows_left = None if rows_left is None else max(rows_left - taken_rows, 0)
        bytes_left = None if bytes_left is None else max(bytes_left - taken_bytes, 0)
    return ends


def count_passed_over(
    backlogs: Sequence[Backlog], ends: Mapping[str, Position], passed_over: Mapping[str, int]
) -> dict[str, int]:
    """Return the argument `passed_over` of `admit` for the batch after the batch that ends at `ends`."""
    return {
        backlog.part.name: passed_over.get(backlog.part.name, 0) + 1
        for backlog in backlogs
        if ends[backlog.part.name] == backlog.start < backlog.end
    }


def _share(whole: int | None, rows: int, total: int) -> int:
    """Return the share of the limit `whole` for a topic with `rows` of `total` messages, rounded up; 0 for None."""
    return -(-(whole or 0) * rows // max(total, 1))


def _before(slices: Sequence[SegmentSlice], end: Position) -> tuple[int, int]:
    """Return (messages, bytes): the numbers of messages and of key and value bytes in the slices before `end`."""
    rows = size = 0
    for slice_ in slices:
        ledger = slice_.segment.ledger_id
        if (ledger, slice_.first) >= (end.ledger, end.entry):
            break
        part = slice_ if ledger < end.ledger else slice_.part(slice_.first, end.entry)
        rows += part.rows
        size += part.bytes
    return rows, size
