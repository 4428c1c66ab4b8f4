"""Folding: the only compaction of a metadata table. Pure: which rows to rewrite, and which of them to keep.

A fold takes S = version read - 64 and rewrites the rows with A < seq <= S by an overwrite with that predicate. It drops
a row only where a newer row of its record key is in the snapshot. Appends have a seq near the table's version, so they
fall above S; if one lags so far that it falls inside, Delta fails one of the two, which decides anew.

Two tiers keep it cheap: the base is rewritten only when the rows above it have grown to a quarter of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_on_spark.metadata.keys import FOLD

FOLD_KEY = FOLD
LAG = 64
"""Versions that a fold leaves alone."""
WORTH_FILES = 64
"""Files within reach of a fold that make one worth its cost."""
_TIER_RATIO = 4


class FoldableFile(Protocol):
    """What the plan needs to know of a data file."""

    @property
    def rows(self) -> int: ...
    @property
    def min_seq(self) -> int: ...
    @property
    def max_seq(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Order:
    """How rows of one record key are told apart: equal `key` columns, the largest `rank` counts.

    `forget` are kinds whose tombstones a full fold drops at a certain age (see the ADR on tombstones).
    """

    key: tuple[str, ...]
    rank: tuple[str, ...]
    forget: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FoldPlan:
    """Rewrite rows with above < seq <= up_to."""

    above: int
    up_to: int

    @property
    def predicate(self) -> str:
        """The overwrite's predicate."""
        return f"seq > {self.above} AND seq <= {self.up_to}"

    @property
    def full(self) -> bool:
        """Whether the fold covers the table from its first row."""
        return self.above < 0


def plan(files: Sequence[FoldableFile], version: int) -> FoldPlan | None:
    """The range to fold now, or None where it isn't worth it."""
    up_to = version - LAG
    reach = sorted((file for file in files if file.max_seq <= up_to), key=lambda file: (file.min_seq, -file.rows))
    if len(reach) < WORTH_FILES:
        return None
    base, rest = reach[0], reach[1:]
    small_rest = sum(file.rows for file in rest) * _TIER_RATIO < base.rows
    overlapped = any(file.min_seq <= base.max_seq for file in rest)
    return FoldPlan(base.max_seq if small_rest and not overlapped else -1, up_to)


def fold(rows: pa.Table, range_: FoldPlan, order: Order, forget_before: pa.Scalar | None) -> pa.Table:
    """The rows of the range that stay.

    Args:
        rows: the whole snapshot.
        range_: what is rewritten.
        order: the record key and the rank.
        forget_before: tombstones of `order.forget` kinds committed before this time are dropped by a full fold; None
            keeps all.

    Returns:
        The kept rows, in the order of seq, all with range_.above < seq <= range_.up_to.
    """
    position = pa.array(np.arange(rows.num_rows, dtype=np.int64))
    ranked = rows.select([*order.key, *order.rank]).append_column("_position", position)
    ranked = ranked.sort_by([(name, "ascending") for name in (*order.key, *order.rank)])
    same_as_next = None
    for name in order.key:
        column = ranked.column(name).combine_chunks()
        equal = pc.equal(column.slice(0, max(len(column) - 1, 0)), column.slice(1))
        same_as_next = equal if same_as_next is None else pc.and_(same_as_next, equal)
    newest = pa.concat_arrays([pc.invert(same_as_next), pa.array([True] * min(1, rows.num_rows), pa.bool_())])
    kept = rows.take(ranked.column("_position").filter(newest))
    seq = kept.column("seq")
    inside = pc.and_(pc.greater(seq, range_.above), pc.less_equal(seq, range_.up_to))
    if range_.full and order.forget and forget_before is not None:
        old = pc.and_(kept.column("deleted"), pc.less(kept.column("committed_at"), forget_before))
        forgotten = pc.and_(old, pc.is_in(kept.column("kind"), pa.array(order.forget)))
        inside = pc.and_(inside, pc.invert(forgotten))
    return kept.filter(inside).sort_by("seq")
