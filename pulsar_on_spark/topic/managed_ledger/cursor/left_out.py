"""Entries that Spark's readers skip, because a broker's clients acknowledged them individually before the handover.

When a broker releases a subscription, every slot begins at the mark-delete position. The acknowledgements beyond it are
ack holes in the broker's last cursor row. A query's end offset names that row by its (epoch, n), so that a replayed
batch skips the same entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pulsar_on_spark.metadata.cursors import WHOLE, CursorRow
from pulsar_on_spark.metadata.records import SubscriptionRecord
from pulsar_on_spark.model.errors import MetadataError
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position
from pulsar_on_spark.topic.managed_ledger.chain.slices import SegmentSlice
from pulsar_on_spark.topic.managed_ledger.cursor.handover import broker_cursor, holes_left_out
from pulsar_on_spark.topic.managed_ledger.cursor.holes import AckHoles
from pulsar_on_spark.topic.managed_ledger.cursor.record import decode_holes, encode_holes

Rank = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The acknowledgements of a cursor row.

    Attributes:
        rank: (epoch, n) of the row.
        mark_delete: The position before which all entries are acknowledged.
        holes: The acknowledgements beyond that position.
    """

    rank: Rank
    mark_delete: Position
    holes: AckHoles

    @property
    def end(self) -> Position:
        """The position after the last entry that has an acknowledged message; EARLIEST without holes."""
        ledgers = self.holes.ledgers
        if not ledgers:
            return EARLIEST
        whole, partial = self.holes.whole(ledgers[-1]), self.holes.partial(ledgers[-1])
        last = max([*partial, *([whole.max()] if whole else [])])
        return Position(LedgerId(ledgers[-1]), EntryId(last + 1))

    def of(self, slice_: SegmentSlice) -> bytes:
        """Return the ack holes within a slice, encoded for a task; empty for none."""
        holes = self.holes.within(slice_.segment.ledger_id, slice_.first, slice_.end)
        return encode_holes(holes)


def left_out(record: SubscriptionRecord, rows: Iterable[CursorRow]) -> LeftOut | None:
    """Return the acknowledgements that a reader of the subscription skips; None if there are none to skip.

    While a broker owns the subscription, these are the acknowledgements in its cursor rows, without those that are only
    in its journal.
    """
    if record.face == "broker":
        at = broker_cursor(record, rows, ())
        return LeftOut(at.rank, at.mark_delete, decode_holes(at.ack_holes))
    row = holes_left_out(record, rows)
    return None if row is None else of_row(row)


def acknowledged_for(topic: str, named: Rank | None, epoch: int, rows: Iterable[CursorRow]) -> LeftOut | None:
    """Return the acknowledgements that a batch skips, from a broker's newest row; None if it skips none.

    The newest row is the row that the batch's offset names or a later one, with further acknowledgements of a broker's
    clients.

    Args:
        topic: The topic's full name, for the error.
        named: (epoch, n) of the row that the offset names; None if the offset names no row.
        epoch: The epoch under which the batch was planned: the highest epoch of its slots.
        rows: The subscription's cursor rows.

    Raises:
        MetadataError: the row that the offset names is missing, and there is no later one.
    """
    row = max((row for row in rows if row.slot == WHOLE), key=lambda row: row.rank, default=None)
    if named is not None and (row is None or row.rank < named):
        raise MetadataError(
            f"The cursor row {named} of {topic}, which the checkpoint names, is not in the cursors table: restore the "
            "table, or start the query with a new checkpointLocation."
        )
    return of_row(row) if row is not None and (named is not None or row.epoch > epoch) else None


def acknowledged_rows(slices: Sequence[SegmentSlice], holes: AckHoles) -> tuple[int, int]:
    """Return the number of messages in the slices that the ack holes acknowledge, and their approximate bytes."""
    rows = size = 0
    for slice_ in slices:
        slice_holes = holes.within(slice_.segment.ledger_id, slice_.first, slice_.end)
        if not slice_holes:
            continue
        runs = np.array(slice_.segment.entry_rows, np.int64).reshape(-1, 2)
        of_entry = np.repeat(runs[:, 1], runs[:, 0])
        whole = slice_holes.whole(slice_.segment.ledger_id)
        entries = np.array(list(whole or ()), np.int64) - slice_.segment.first_entry
        acked = int(of_entry[entries].sum())
        for entry, unacked in slice_holes.partial(slice_.segment.ledger_id).items():
            acked += max(int(of_entry[entry - slice_.segment.first_entry]) - unacked.bit_count(), 0)
        rows += acked
        size += slice_.segment.bytes * acked // max(slice_.segment.rows, 1)
    return rows, size


def of_row(row: CursorRow) -> LeftOut:
    """Return the acknowledgements in a row of the cursors table: a position, and the holes beyond it."""
    at = Position(LedgerId(row.ledger), EntryId(row.entry))
    return LeftOut(row.rank, at, decode_holes(row.ack_holes or b""))
