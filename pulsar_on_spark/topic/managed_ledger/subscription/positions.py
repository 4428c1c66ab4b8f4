"""The current position of each slot of a subscription, computed from its record and its cursor rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pulsar_on_spark.metadata.cursors import WHOLE, CursorRow
from pulsar_on_spark.metadata.records import SlotOwner, SubscriptionRecord
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from pulsar_on_spark.topic.managed_ledger.subscription.offsets import TopicOffset
from pulsar_on_spark.topic.managed_ledger.subscription.slots import slots_of


def owners_by_slot(record: SubscriptionRecord) -> dict[int, SlotOwner]:
    """Return, by slot, the entry of the record's `owners` that has the slot; slots that were never taken are absent."""
    return {slot: owner for owner in record.owners for slot in owner.slots}


def current_positions(record: SubscriptionRecord, rows: Iterable[CursorRow]) -> dict[int, Position]:
    """Return the next entry to read in each slot; all entries before it are acknowledged.

    Args:
        record: The subscription, read before the rows.
        rows: The cursor rows of this subscription on this topic, in any order; a broker's row counts for all slots.
    """
    owners = owners_by_slot(record)
    by_slot: dict[int, list[CursorRow]] = {}
    for row in rows:
        by_slot.setdefault(row.slot, []).append(row)
    whole = by_slot.get(WHOLE, [])
    return {
        slot: current_position(record, owners.get(slot), [*by_slot.get(slot, ()), *whole])
        for slot in slots_of(record.type)
    }


def current_position(record: SubscriptionRecord, owner: SlotOwner | None, rows: Iterable[CursorRow]) -> Position:
    """Return the next entry to read in one slot, from its owner in the record (None for none) and its cursor rows.

    The row with the largest (epoch, n) counts, unless its epoch is lower than the slot's epoch in the record. Without
    such a row, the slot is at the position at which its epoch began or, if it was never taken, at the subscription's
    start.
    """
    if owner is None or owner.epoch < record.start_epoch:
        since, start = record.start_epoch, _position(record.start_ledger, record.start_entry)
    else:
        since, start = owner.epoch, start_of(owner)
    newest = max((row for row in rows if row.epoch >= since), key=lambda row: row.rank, default=None)
    return start if newest is None else _position(newest.ledger, newest.entry)


def mark_delete(record: SubscriptionRecord, rows: Sequence[CursorRow]) -> Position:
    """Return the position of a subscription's slowest slot. Entries from that position on may not be trimmed."""
    return min(current_positions(record, rows).values())


def cursor_moves(
    record: SubscriptionRecord,
    cursor: Mapping[int, Position],
    held: Mapping[int, int],
    committed: TopicOffset,
    n: int,
) -> tuple[CursorRow, ...]:
    """Return the cursor rows to append after Spark has committed a batch, one for each slot that moves.

    A slot only moves forward, and only if its batch was read under the epoch under which this process owns the slot.

    Args:
        record: The subscription.
        cursor: By slot, the position of `current_positions`, or the last position that this process wrote.
        held: The epoch of each slot that this process owns.
        committed: The ranges that the committed batch read of the topic.
        n: A number that the caller increases with each call. Of the rows of one epoch, the largest n counts.
    """
    rows = []
    for slot, epoch in sorted(held.items()):
        done = committed.at(slot)
        if done is not None and done.epoch == epoch and done.end > cursor[slot]:
            rows.append(CursorRow(record.topic_id, record.name, slot, epoch, n, done.end.ledger, done.end.entry))
    return tuple(rows)


def start_of(owner: SlotOwner) -> Position:
    """Return the position at which the owner's epoch began."""
    return _position(owner.start_ledger, owner.start_entry)


def _position(ledger: int, entry: int) -> Position:
    return Position(LedgerId(ledger), EntryId(entry))
