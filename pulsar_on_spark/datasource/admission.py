"""How much of each topic the next micro-batch reads under `maxMessagesPerTrigger` and `maxBytesPerTrigger`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.topic.chain import RangePlan, advance

Backlog = tuple[str, RangePlan, Position, Position]
"""(topic, what lies between start and end, start, end)."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Most messages and bytes of a batch, None for no limit. Soft: a batch has at least one entry."""

    rows: int | None
    bytes: int | None


def admit(backlogs: Sequence[Backlog], budget: Budget) -> dict[str, Position]:
    """The end of each topic's share: in proportion to what waits there, never splitting an entry."""
    if budget.rows is None and budget.bytes is None:
        return {name: end for name, _, _, end in backlogs}
    waiting = [backlog for backlog in backlogs if backlog[2] < backlog[3]]
    total = sum(plan.rows for _, plan, _, _ in waiting)
    ends = {name: start for name, _, start, _ in backlogs}
    # Largest backlog first, so that no topic starves: what is left behind grows until it is the largest.
    waiting.sort(key=lambda backlog: (-backlog[1].rows, backlog[0]))
    rows_left, bytes_left = budget.rows, budget.bytes
    for position, (name, plan, start, end) in enumerate(waiting):
        rows = None if rows_left is None else min(_share(budget.rows, plan.rows, total), rows_left)
        size = None if bytes_left is None else min(_share(budget.bytes, plan.rows, total), bytes_left)
        reached = advance(plan.slices, start, end, rows, size, at_least_one=position == 0)
        ends[name] = reached
        taken_rows, taken_bytes = _between(plan, start, reached)
        rows_left = None if rows_left is None else max(rows_left - taken_rows, 0)
        bytes_left = None if bytes_left is None else max(bytes_left - taken_bytes, 0)
    return ends


def _share(whole: int | None, rows: int, total: int) -> int:
    """A topic's part of a limit, rounded up."""
    return -(-(whole or 0) * rows // max(total, 1))


def _between(plan: RangePlan, start: Position, end: Position) -> tuple[int, int]:
    """(messages, bytes) of the plan's entries in [start, end)."""
    rows = size = 0
    for slice_ in plan.slices:
        ledger = slice_.segment.ledger_id
        if ledger > end.ledger:
            break
        part = slice_ if ledger < end.ledger else slice_.part(slice_.first, max(end.entry, slice_.first))
        rows += part.rows
        size += part.bytes
    return rows, size
