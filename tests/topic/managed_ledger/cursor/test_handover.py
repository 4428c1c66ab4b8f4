"""A subscription goes from Spark to a broker and back: nothing is lost, and what is acknowledged stays so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_on_spark.metadata.cursors import WHOLE, CursorRow
from pulsar_on_spark.metadata.records import SlotOwner, SubscriptionRecord
from pulsar_on_spark.model.errors import CorruptCursorError, InvalidArgumentError
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from pulsar_on_spark.topic.entries.cutting import slots_of_entries
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain, LedgerExtent
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import Cursor
from pulsar_on_spark.topic.managed_ledger.cursor.handover import (
    KeyedEntry,
    broker_cursor,
    give_to_spark,
    holes_left_out,
    keyed_holes,
    shared_holes,
    take_from_spark,
    unacked_rows,
)
from pulsar_on_spark.topic.managed_ledger.cursor.holes import AckHoles
from pulsar_on_spark.topic.managed_ledger.cursor.record import decode_holes
from pulsar_on_spark.topic.managed_ledger.subscription.positions import current_positions
from pulsar_on_spark.topic.managed_ledger.subscription.slots import SLOTTED

TOPIC_ID = "0123456789abcdef" * 2
CHAIN = LedgerChain([LedgerExtent(LedgerId(2), 900, True), LedgerExtent(LedgerId(5), 700, False)])
PLACES = st.one_of(
    st.builds(lambda entry: at(2, entry), st.integers(0, 900)),
    st.builds(lambda entry: at(5, entry), st.integers(0, 700)),
)


def at(ledger: int, entry: int) -> Position:
    return Position(LedgerId(ledger), EntryId(entry))


def subscription(type_: str = "Shared") -> SubscriptionRecord:
    return SubscriptionRecord(
        topic_id=TOPIC_ID, name="s", type=type_, face=None, start_ledger=2, start_entry=0, start_epoch=1,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip


def row(slot: int, epoch: int, position: Position) -> CursorRow:
    return CursorRow(TOPIC_ID, "s", slot, epoch, 1, position.ledger, position.entry)


def unread(positions: Mapping[int, Position]) -> set[tuple[int, int]]:
    """By asking for each entry: those of a slot that are at or behind its position."""
    found = set()
    for ledger in (2, 5):
        slots = slots_of_entries(LedgerId(ledger), 0, CHAIN.readable_end(ledger)).tolist()
        found |= {(ledger, entry) for entry, slot in enumerate(slots) if at(ledger, entry) >= positions[slot]}
    return found


def remaining(cursor: Cursor) -> set[tuple[int, int]]:
    ranges = cursor.deliverable(at(0, 0), 10_000).ranges
    return {(found.ledger, entry) for found in ranges for entry in range(found.first, found.end)}


@given(st.dictionaries(st.sampled_from(SLOTTED), PLACES, max_size=20), PLACES)
@settings(max_examples=40)
def test_entries_read_by_shared_slots_are_acknowledged_for_the_broker(
    some: dict[int, Position], rest: Position
) -> None:
    positions = {slot: some.get(slot, rest) for slot in SLOTTED}
    rows = [row(slot, 1, position) for slot, position in positions.items()]
    record, start = take_from_spark(subscription(), rows, shared_holes(positions, CHAIN), "broker-1")
    assert (record.face, start.epoch, start.mark_delete) == ("broker", 2, min(positions.values()))
    cursor = Cursor(CHAIN, start)
    assert remaining(cursor) == unread(positions)
    assert cursor.backlog_entries == len(unread(positions))


def test_an_entry_with_messages_of_several_key_slots_is_acknowledged_in_part() -> None:
    positions = dict.fromkeys(SLOTTED, at(2, 5)) | {7: at(2, 0), 8: at(2, 3)}
    entries = [
        KeyedEntry(LedgerId(2), 0, (1, 7, 7, 1)),
        KeyedEntry(LedgerId(2), 1, (1, 2)),
        KeyedEntry(LedgerId(2), 2, (8,)),
        KeyedEntry(LedgerId(2), 3, (8, 1)),
        KeyedEntry(LedgerId(2), 5, (1, 2)),
    ]
    holes = keyed_holes(positions, entries)
    assert [holes.is_acked(2, entry) for entry in range(6)] == [False, True, True, False, False, False]
    assert [holes.ack_set(2, entry) for entry in (0, 3, 5)] == [0b0110, 0b01, None]


def test_the_broker_gives_back_every_slot_at_its_mark_delete_position_with_its_holes() -> None:
    record, start = take_from_spark(subscription(), [], AckHoles(), "broker-1")
    cursor = Cursor(CHAIN, start)
    cursor.acknowledge_through(LedgerId(2), EntryId(9))
    cursor.acknowledge(LedgerId(2), EntryId(20))
    cursor.acknowledge(LedgerId(2), EntryId(30), 0b01, 2)
    cursor.take_change(12)
    spark_rows = [row(slot, 1, at(2, 0)) for slot in SLOTTED]
    rows = [*spark_rows, cursor.snapshot().to_row()]
    assert set(current_positions(record, rows).values()) == {at(2, 10)}  # also while the broker has it

    given_back = give_to_spark(record, broker_cursor(record, rows, []))
    assert (given_back.face, given_back.owners[0].consumer, given_back.owners[0].epoch) == (None, None, 3)
    assert set(current_positions(given_back, rows).values()) == {at(2, 10)}
    left_out = holes_left_out(given_back, rows)
    assert left_out is not None
    assert left_out.rank == (2, 12)
    keep = unacked_rows(
        decode_holes(left_out.ack_holes or b""), LedgerId(2),
        np.array([19, 20, 20, 21, 30, 30, 31]), np.array([-1, 0, 1, -1, 0, 1, -1], np.int32),
    )  # fmt: skip
    assert keep.tolist() == [True, False, False, True, True, False, True]

    # A slot that Spark has moved since counts, a late row of the broker does not; the next broker keeps the holes.
    taken = given_back.model_copy(
        update={"face": "spark", "owners": tuple(
            SlotOwner(consumer="c", epoch=4, start_ledger=2, start_entry=10, slots=(slot,)) for slot in SLOTTED
        )}
    )  # fmt: skip
    moved = [*rows, row(0, 4, at(2, 25)), CursorRow(TOPIC_ID, "s", WHOLE, 2, 11, 5, 0)]
    positions = current_positions(taken, moved)
    assert (positions[0], positions[1]) == (at(2, 25), at(2, 10))
    record, start = take_from_spark(taken, moved, AckHoles(), "broker-2")
    assert (start.epoch, start.mark_delete) == (5, at(2, 10))
    cursor = Cursor(CHAIN, start)
    assert cursor.is_acked(LedgerId(2), EntryId(20))
    assert cursor.ack_set(LedgerId(2), EntryId(30)) == 0b01


def test_a_broker_that_died_is_replayed_from_its_record_rows_and_journal() -> None:
    old = row(WHOLE, 1, at(5, 600))  # of an epoch before: says nothing now
    record, start = take_from_spark(subscription("Exclusive"), [row(0, 1, at(2, 7))], AckHoles(), "broker-1")
    assert broker_cursor(record, [old], []).mark_delete == at(2, 7)
    cursor = Cursor(CHAIN, start)
    first = cursor.take_change(3)
    cursor.acknowledge(LedgerId(2), EntryId(7))
    cursor.acknowledge(LedgerId(2), EntryId(9))
    second = cursor.take_change(4)
    assert first is not None
    assert second is not None
    found = broker_cursor(record, [old], [second, first])
    assert (found.rank, found.mark_delete) == ((2, 4), at(2, 8))
    assert Cursor(CHAIN, found.begun(3)).is_acked(LedgerId(2), EntryId(9))
    with pytest.raises(CorruptCursorError, match="no snapshot"):
        broker_cursor(record, [], [first, replace(second, epoch=3)])


def test_holes_from_before_a_reset_hide_nothing() -> None:
    holes = AckHoles()
    holes.add(2, 20)
    _, start = take_from_spark(subscription(), [], holes, "broker-1")
    late = start.to_row()
    assert holes_left_out(subscription(), [late]) == late
    reset = subscription().model_copy(update={"start_epoch": 3, "start_entry": 5})
    assert holes_left_out(reset, [late]) is None


def test_only_the_owner_can_release_a_subscription() -> None:
    record, start = take_from_spark(subscription(), [], AckHoles(), "broker-1")
    with pytest.raises(InvalidArgumentError, match="owned by a broker already"):
        take_from_spark(record, [], AckHoles(), "broker-2")
    with pytest.raises(InvalidArgumentError, match="not owned by a broker"):
        give_to_spark(subscription(), start)
    with pytest.raises(InvalidArgumentError, match="read its record again"):
        give_to_spark(record, start.begun(9))
    with pytest.raises(InvalidArgumentError, match="not owned by a broker"):
        broker_cursor(subscription(), [], [])


@given(st.sets(st.integers(0, 30)), st.dictionaries(st.integers(0, 30), st.integers(1, 7)), st.integers(0, 30))
def test_rows_are_kept_as_each_message_alone_would_be(whole: set[int], partial: dict[int, int], first: int) -> None:
    holes = AckHoles()
    for entry in whole:
        holes.add(2, entry)
    for entry, bits in partial.items():
        holes.narrow(2, entry, bits)
    rows = [(entry, index) for entry in range(first, 31) for index in range(3)]
    keep = unacked_rows(
        holes, LedgerId(2), np.array([e for e, _ in rows], np.int64), np.array([i for _, i in rows], np.int32)
    )
    expected = [e not in whole and bool(partial.get(e, 7) >> i & 1) for e, i in rows]
    assert keep.tolist() == expected
