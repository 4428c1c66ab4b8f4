"""How much of each topic the next micro-batch reads under `maxMessagesPerTrigger` and `maxBytesPerTrigger`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pulsar_on_spark.datasource.stream_plan import Backlog
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.topic.chain import RangePlan, advance


@dataclass(frozen=True, slots=True)
class Budget:
    """Most messages and bytes of a batch, None for no limit. Soft: a batch has at least one entry."""

    rows: int | None
    bytes: int | None


def admit(backlogs: Sequence[Backlog], budget: Budget, passed_over: Mapping[str, int]) -> dict[str, Position]:
    """Where the batch ends in each topic: a share in proportion to what waits there, never splitting an entry.

    A topic whose share is smaller than its next entry gets nothing, unless it is the first of the batch. First is
    whoever was passed over most often, then whoever has most waiting: so none starves.

    Args:
        backlogs: What waits.
        budget: The limits.
        passed_over: How many batches in a row a topic had messages and got none.
    """
    if budget.rows is None and budget.bytes is None:
        return {backlog.part.name: backlog.end for backlog in backlogs}
    ends = {backlog.part.name: backlog.start for backlog in backlogs}
    waiting = {backlog.part.name: (backlog, backlog.plan.rows) for backlog in backlogs if backlog.start < backlog.end}
    total = sum(rows for _, rows in waiting.values())
    order = sorted(waiting, key=lambda name: (-passed_over.get(name, 0), -waiting[name][1], name))
    rows_left, bytes_left = budget.rows, budget.bytes
    for place, name in enumerate(order):
        backlog, waiting_rows = waiting[name]
        rows = None if rows_left is None else min(_share(budget.rows, waiting_rows, total), rows_left)
        size = None if bytes_left is None else min(_share(budget.bytes, waiting_rows, total), bytes_left)
        reached = advance(backlog.plan.slices, backlog.start, backlog.end, rows, size, at_least_one=place == 0)
        ends[name] = reached
        taken_rows, taken_bytes = _before(backlog.plan, reached)
        rows_left = None if rows_left is None else max(rows_left - taken_rows, 0)
        bytes_left = None if bytes_left is None else max(bytes_left - taken_bytes, 0)
    return ends


def count_passed_over(
    backlogs: Sequence[Backlog], ends: Mapping[str, Position], passed_over: Mapping[str, int]
) -> dict[str, int]:
    """`passed_over` for the next batch, after one that ends at `ends`."""
    return {
        backlog.part.name: passed_over.get(backlog.part.name, 0) + 1
        for backlog in backlogs
        if ends[backlog.part.name] == backlog.start < backlog.end
    }


def _share(whole: int | None, rows: int, total: int) -> int:
    """A topic's part of a limit, rounded up."""
    return -(-(whole or 0) * rows // max(total, 1))


def _before(plan: RangePlan, end: Position) -> tuple[int, int]:
    """(messages, bytes) of the plan's entries before `end`."""
    rows = size = 0
    for slice_ in plan.slices:
        ledger = slice_.segment.ledger_id
        if (ledger, slice_.first) >= (end.ledger, end.entry):
            break
        part = slice_ if ledger < end.ledger else slice_.part(slice_.first, end.entry)
        rows += part.rows
        size += part.bytes
    return rows, size
