"""Positions of a subscription's slots: the one that counts, from its record and its cursor rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pulsar_on_spark.metadata.cursors import WHOLE, CursorRow
from pulsar_on_spark.metadata.records import SlotOwner, SubscriptionRecord
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from pulsar_on_spark.topic.managed_ledger.subscription.offsets import TopicOffset
from pulsar_on_spark.topic.managed_ledger.subscription.slots import slots_of


def owners_by_slot(record: SubscriptionRecord) -> dict[int, SlotOwner]:
    """The owner entry of each slot that was ever taken."""
    return {slot: owner for owner in record.owners for slot in owner.slots}


def current_positions(record: SubscriptionRecord, rows: Iterable[CursorRow]) -> dict[int, Position]:
    """The next entry to read in each slot: all before it is acknowledged.

    Args:
        record: The subscription, read before the rows.
        rows: Rows of this subscription on this topic, of any slots, in any order; a broker's row is for all slots.
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
    """The next entry to read in one slot, from its owner in the record and its rows.

    The row with the largest (epoch, n) counts, if it is not older than the epoch that the slot has in the record; else
    the position at which that epoch began, or the subscription's start.
    """
    if owner is None or owner.epoch < record.start_epoch:
        since, start = record.start_epoch, _position(record.start_ledger, record.start_entry)
    else:
        since, start = owner.epoch, start_of(owner)
    newest = max((row for row in rows if row.epoch >= since), key=lambda row: row.rank, default=None)
    return start if newest is None else _position(newest.ledger, newest.entry)


def mark_delete(record: SubscriptionRecord, rows: Sequence[CursorRow]) -> Position:
    """The position before which every slot is acknowledged; nothing from it on may be trimmed."""
    return min(current_positions(record, rows).values())


def cursor_moves(
    record: SubscriptionRecord,
    cursor: Mapping[int, Position],
    held: Mapping[int, int],
    committed: TopicOffset,
    n: int,
) -> tuple[CursorRow, ...]:
    """The cursor rows to append now that Spark has committed a batch; none where nothing moves.

    Only slots whose batch was read under the epoch that this process owns move, and only forward.

    Args:
        record: The subscription.
        cursor: `current_positions`, or the last position that this process wrote.
        held: Slot -> epoch that this process holds.
        committed: What the committed batch read of the topic.
        n: This process's counter, larger at each call: of rows of one epoch the largest n counts.
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
