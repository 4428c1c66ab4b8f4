"""Folding, the removal of superseded rows from a metadata table. Pure: it selects the rows to rewrite and to keep.

A fold rewrites the rows with A < seq <= S, where S is the version that was read minus 64. It drops a row only if the
snapshot has a newer row of the same record key. Appended rows have a seq near the table's version, which is above S. If
a late append falls into the range, one of the two commits fails, and its writer decides again.

The file with the oldest rows is the base, and a fold that rewrites it is a full fold (A < 0). To keep folds cheap, the
base is rewritten only when the rows after it have grown to a quarter of its rows. Only a full fold may also drop
obsolete rows; docs/adr/0001 names these rows, and explains why no reader can return them again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from pulsar_on_spark.metadata.keys import FOLD

FOLD_KEY = FOLD
LAG = 64
"""Number of the newest versions whose rows a fold does not rewrite."""
WORTH_FILES = 64
"""Minimum number of files in the range for a fold to be worth its cost."""
_TIER_RATIO = 4

Forgettable = Callable[[pa.Table], pa.Array]
"""Function that gets the newest row of each record key, and returns a mask of the rows that a full fold drops."""


class FoldableFile(Protocol):
    """The attributes of a data file that `plan` uses."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        ...

    @property
    def min_seq(self) -> int:
        """Smallest `seq` of the rows."""
        ...

    @property
    def max_seq(self) -> int:
        """Largest `seq` of the rows."""
        ...


@dataclass(frozen=True, slots=True)
class Order:
    """The columns of a row's record key and of its rank; of the rows with one key, the largest rank counts."""

    key: tuple[str, ...]
    rank: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FoldPlan:
    """Plan to rewrite the rows with above < seq <= up_to."""

    above: int
    up_to: int

    @property
    def full(self) -> bool:
        """True if the fold starts at the table's first row."""
        return self.above < 0


def plan(files: Sequence[FoldableFile], version: int) -> FoldPlan | None:
    """Choose the rows to fold in a table of this version; None if a fold is not worth its cost."""
    up_to = version - LAG
    reach = sorted((file for file in files if file.max_seq <= up_to), key=lambda file: (file.min_seq, -file.rows))
    if len(reach) < WORTH_FILES:
        return None
    base, rest = reach[0], reach[1:]
    small_rest = sum(file.rows for file in rest) * _TIER_RATIO < base.rows
    overlapped = any(file.min_seq <= base.max_seq for file in rest)
    return FoldPlan(base.max_seq if small_rest and not overlapped else -1, up_to)


def newest(rows: pa.Table, order: Order) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return a mask of the rows that count: for each record key, the row with the largest rank."""
    # Imported here, as below: commands on a root need no folds, and start faster without it.
    import pyarrow.compute as pc

    keys = np.zeros(rows.num_rows, dtype=np.int64)
    for name in order.key:
        encoded = rows.column(name).combine_chunks().dictionary_encode()
        keys = keys * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
    ranked = pa.table({"_key": keys, **{name: rows.column(name) for name in order.rank}})
    sorting = [("_key", "ascending"), *((name, "ascending") for name in order.rank)]
    order_of_rows = pc.sort_indices(ranked, sort_keys=sorting).to_numpy()
    mask = np.zeros(rows.num_rows, dtype=np.bool_)
    if len(order_of_rows):
        last_of_key = np.append(keys[order_of_rows][1:] != keys[order_of_rows][:-1], True)
        mask[order_of_rows[last_of_key]] = True
    return mask


def fold(rows: pa.Table, range_: FoldPlan, order: Order, forgettable: Forgettable | None = None) -> pa.Table:
    """Return the rows of the range to keep.

    Args:
        rows: every row of the snapshot with seq > range_.above (earlier rows cannot supersede later ones).
        range_: the range to rewrite.
        order: the record key and the rank.
        forgettable: selects further rows that a full fold drops; None to drop none.

    Returns:
        The kept rows, all with range_.above < seq <= range_.up_to.
    """
    import pyarrow.compute as pc

    rows = rows.combine_chunks()
    seq = rows.column("seq").to_numpy()
    kept = rows.filter(pa.array(newest(rows, order) & (seq > range_.above) & (seq <= range_.up_to)))
    if range_.full and forgettable is not None:
        kept = kept.filter(pc.invert(forgettable(kept)))
    return kept


def old_tombstones(kinds: Collection[str], before: pa.Scalar) -> Forgettable:
    """Return a function that selects the tombstones of certain kinds that were committed before a time."""
    import pyarrow.compute as pc

    def mask(rows: pa.Table) -> pa.Array:
        old = pc.and_(rows.column("deleted"), pc.less(rows.column("committed_at"), before))
        return pc.and_(old, pc.is_in(rows.column("kind"), pa.array(sorted(kinds), pa.string())))

    return mask


def ownerless_cursors(subscriptions: Collection[tuple[str, str]]) -> Forgettable:
    """Return a function that selects the cursor rows of other subscriptions than these, given as (topic id, name)."""

    def mask(rows: pa.Table) -> pa.Array:
        owners = zip(rows.column("topic_id").to_pylist(), rows.column("subscription").to_pylist(), strict=True)
        return pa.array([owner not in subscriptions for owner in owners], pa.bool_())

    return mask
