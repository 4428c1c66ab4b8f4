"""The handover of a subscription's cursor between Spark (slots with positions) and a broker (ack holes).

    from Spark   the slowest slot's position becomes the mark-delete position; entries that other slots have read beyond
                 it become ack holes (`shared_holes`, `keyed_holes`). `take_from_spark`: commit the record, and only
                 then write records or rows under its epoch.
    to Spark     every slot begins at the mark-delete position, and readers skip the ack holes of the broker's last row
                 (`holes_left_out`, `unacked_rows`). `give_to_spark`: append that row, then commit the record.

An owner writes cursor rows only under an epoch that it has committed in the subscription's record. Otherwise two
processes could use one epoch, and a row of the loser could hide messages after a seek back by the winner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pulsar_on_spark.metadata.cursors import WHOLE, CursorRow
from pulsar_on_spark.metadata.records import SlotOwner, SubscriptionRecord
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position, TopicId
from pulsar_on_spark.topic.entries.cutting import slots_of_entries
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain
from pulsar_on_spark.topic.managed_ledger.cursor.holes import AckHoles
from pulsar_on_spark.topic.managed_ledger.cursor.record import (
    NO_RECORD,
    CursorRecord,
    decode_holes,
    encode_holes,
    replay_records,
)
from pulsar_on_spark.topic.managed_ledger.subscription.ownership import holes_since, next_epoch
from pulsar_on_spark.topic.managed_ledger.subscription.positions import current_positions
from pulsar_on_spark.topic.managed_ledger.subscription.slots import slots_of

_BLOCK = 1 << 20
"""Number of entries whose key slots are computed in one step."""


@dataclass(frozen=True, slots=True)
class KeyedEntry:
    """An entry and the key slot of each of its messages, in batch order."""

    ledger: LedgerId
    entry: int
    slots: tuple[int, ...]


def shared_holes(positions: Mapping[int, Position], chain: LedgerChain) -> AckHoles:
    """Return, as ack holes, the entries of a Shared subscription that its slots have read beyond the slowest slot.

    Args:
        positions: The position of each slot.
        chain: The topic's ledgers.
    """
    holes = AckHoles()
    start, end = min(positions.values()), max(positions.values())
    of_slot = [positions[slot] for slot in sorted(positions)]
    ledger, entry = chain.normalize_position(start.ledger, start.entry)
    while (ledger, entry) < (end.ledger, end.entry):
        stop = min(_end_in(end, ledger, chain.readable_end(ledger)), entry + _BLOCK)
        if stop > entry:
            read_to = np.array([_end_in(position, ledger, stop) for position in of_slot], np.int64)
            entries = np.arange(entry, stop, dtype=np.int64)
            slots = slots_of_entries(LedgerId(ledger), entry, stop - entry)
            holes.add_many(ledger, entries[entries < read_to[slots]])
        before, (ledger, entry) = (ledger, entry), chain.normalize_position(ledger, max(stop, entry))
        if (ledger, entry) == before:
            break
    return holes


def keyed_holes(positions: Mapping[int, Position], entries: Iterable[KeyedEntry]) -> AckHoles:
    """Return, as ack holes, the messages of a Key_Shared subscription that its slots have read beyond the slowest slot.

    Args:
        positions: The position of each slot.
        entries: The entries between the lowest and the highest position, each with the slots of its messages.
    """
    holes = AckHoles()
    for entry in entries:
        position = (entry.ledger, entry.entry)
        unacked = 0
        for index, slot in enumerate(entry.slots):
            if (positions[slot].ledger, positions[slot].entry) <= position:
                unacked |= 1 << index
        if unacked != (1 << len(entry.slots)) - 1:
            holes.narrow(entry.ledger, entry.entry, unacked)
    return holes


def take_from_spark(
    record: SubscriptionRecord, rows: Iterable[CursorRow], beyond: AckHoles, incarnation: str
) -> tuple[SubscriptionRecord, CursorRecord]:
    """Make a broker the owner: return the record to commit, and the snapshot from which the broker's cursor continues.

    Args:
        record: The subscription. The caller has checked that no live consumer of Spark owns a slot.
        rows: The subscription's cursor rows, read after the record.
        beyond: The messages that slots have read beyond the mark-delete position; empty for Exclusive and Failover.
        incarnation: The broker incarnation that acquires the subscription.

    Raises:
        InvalidArgumentError: a broker owns the subscription already.
    """
    if record.face == "broker":
        raise InvalidArgumentError(
            f"Subscription {record.name!r} is owned by a broker already: let that broker release it, or recover the "
            "broker if it is dead."
        )
    row_list = list(rows)
    mark_delete = min(current_positions(record, row_list).values())
    holes = AckHoles()
    left_out = holes_left_out(record, row_list)
    if left_out is not None:
        holes.join(decode_holes(left_out.ack_holes or b""))
    holes.join(beyond)
    holes.drop_before(mark_delete.ledger, mark_delete.entry)
    epoch = next_epoch(record)
    start = CursorRecord(
        "snapshot", TopicId(record.topic_id), record.name, epoch, NO_RECORD, mark_delete, encode_holes(holes)
    )
    return _owned(record, incarnation, epoch, mark_delete), start


def broker_cursor(
    record: SubscriptionRecord, rows: Iterable[CursorRow], journal: Iterable[CursorRecord]
) -> CursorRecord:
    """Return the cursor of a subscription that a live or dead broker owns.

    Args:
        record: The subscription.
        rows: The subscription's cursor rows, read after the record.
        journal: The subscription's cursor records in the broker's journal, at least those after its newest row.

    Raises:
        InvalidArgumentError: no broker owns the subscription.
        CorruptCursorError: ack holes are damaged, or a change has a later epoch than every snapshot.
    """
    if record.face != "broker" or len(record.owners) != 1:
        raise InvalidArgumentError(
            f"Subscription {record.name!r} is not owned by a broker and has no broker cursor: read the positions of "
            "its slots instead."
        )
    owner = record.owners[0]
    begun_at = Position(LedgerId(owner.start_ledger), EntryId(owner.start_entry))
    whole = [row for row in rows if row.slot == WHOLE]
    # If the owner ended before its first record, it has no row of its own, and the holes are in a former owner's row.
    before = holes_left_out(record, [row for row in whole if row.epoch < owner.epoch])
    holes = AckHoles() if before is None else decode_holes(before.ack_holes or b"")
    holes.drop_before(begun_at.ledger, begun_at.entry)
    begun = CursorRecord(
        "snapshot", TopicId(record.topic_id), record.name, owner.epoch, NO_RECORD, begun_at, encode_holes(holes)
    )
    return replay_records([begun, *map(CursorRecord.from_row, whole), *journal])


def give_to_spark(record: SubscriptionRecord, last: CursorRecord) -> SubscriptionRecord:
    """Return the record that releases a broker's subscription to Spark.

    Commit it once the row `last.to_row()` is durable.

    Args:
        record: The subscription, which a broker owns.
        last: The subscription's cursor (`broker_cursor`).

    Raises:
        InvalidArgumentError: no broker owns the subscription, or the owner's epoch is not the epoch of `last`.
    """
    if record.face != "broker" or record.owners[0].epoch != last.epoch:
        raise InvalidArgumentError(
            f"Subscription {record.name!r} is not owned by a broker under epoch {last.epoch}: read its record again."
        )
    return _owned(record, None, next_epoch(record), last.mark_delete)


def holes_left_out(record: SubscriptionRecord, rows: Iterable[CursorRow]) -> CursorRow | None:
    """Return the last row that a broker wrote, whose ack holes Spark's readers skip.

    Return None if the row has no ack holes, or if the subscription was reset after it. The end offset of a query names
    the row by its (epoch, n).
    """
    whole = (row for row in rows if row.slot == WHOLE and row.epoch >= holes_since(record))
    newest = max(whole, key=lambda row: row.rank, default=None)
    return newest if newest is not None and newest.ack_holes else None


def unacked_rows(
    holes: AckHoles, ledger: LedgerId, entries: npt.NDArray[np.int64], batch_indexes: npt.NDArray[np.int32]
) -> npt.NDArray[np.bool_]:
    """Return a flag for each row: True if its message is not acknowledged, so that a reader must return it.

    Args:
        holes: The ack holes.
        ledger: The ledger of all rows.
        entries: The entry id of each row, ascending.
        batch_indexes: The batch index of each row; -1 if the message was not in a batch.
    """
    keep = np.ones(len(entries), np.bool_)
    whole = holes.whole(ledger)
    if whole is not None and len(entries):
        runs = list(holes.unacked_runs(ledger, int(entries[0]), int(entries[-1]) + 1))
        keep[:] = False
        for first, end in runs:
            keep[np.searchsorted(entries, first) : np.searchsorted(entries, end)] = True
    for entry, unacked in holes.partial(ledger).items():
        for row in range(int(np.searchsorted(entries, entry)), int(np.searchsorted(entries, entry + 1))):
            keep[row] = bool(unacked >> max(int(batch_indexes[row]), 0) & 1)
    return keep


def _owned(record: SubscriptionRecord, owner: str | None, epoch: int, start: Position) -> SubscriptionRecord:
    slots = tuple(slots_of(record.type))
    owned = SlotOwner(consumer=owner, epoch=epoch, start_ledger=start.ledger, start_entry=start.entry, slots=slots)
    return record.model_copy(update={"face": None if owner is None else "broker", "owners": (owned,)})


def _end_in(position: Position, ledger: int, stop: int) -> int:
    """Return the end of the entries in [0, stop) of a ledger that are before the position."""
    if position.ledger == ledger:
        return min(int(position.entry), stop)
    return stop if position.ledger > ledger else 0
