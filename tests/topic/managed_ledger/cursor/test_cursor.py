"""The cursor against a plain model: a set of acknowledged (ledger, entry, batch index)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position, TopicId
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain, LedgerExtent
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import Cursor, EntryRange
from pulsar_on_spark.topic.managed_ledger.cursor.record import NO_RECORD, CursorRecord, decode, encode, replay_records

TOPIC = TopicId("0123456789abcdef" * 2)
MAX_ENTRIES = 40
MAX_LEDGERS = 8
BATCH_SIZES = st.sampled_from([1, 1, 2, 3, 70])

Message = tuple[int, int, int]


def at(ledger: int, entry: int) -> Position:
    return Position(LedgerId(ledger), EntryId(entry))


def extent(ledger: int, end: int, ended: bool = True, first: int = 0) -> LedgerExtent:
    return LedgerExtent(LedgerId(ledger), end, ended, first)


def begin(position: Position = EARLIEST, epoch: int = 1) -> CursorRecord:
    return CursorRecord("snapshot", TOPIC, "s", epoch, NO_RECORD, position)


def ack(cursor: Cursor, *ids: tuple[int, int]) -> list[bool]:
    return [cursor.acknowledge(LedgerId(ledger), EntryId(entry)) for ledger, entry in ids]


@dataclass
class Ledger:
    id: int
    sizes: list[int] = field(default_factory=list)
    first: int = 0
    ended: bool = False


class CursorMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledgers = [Ledger(3)]
        self.acked: set[Message] = set()
        self.durable: set[Message] = set()
        self.journal: list[tuple[tuple[int, int], bytes]] = []
        self.row: CursorRecord | None = None
        self.frame = -1
        self.epoch = 1

    # -- the model -------------------------------------------------------------------------------------------------

    def visible(self) -> list[Ledger]:
        found = []
        for ledger in self.ledgers:
            found.append(ledger)
            if not ledger.ended:
                break
        return found

    def entries(self) -> list[tuple[int, int, int]]:
        return [(x.id, entry, x.sizes[entry]) for x in self.visible() for entry in range(x.first, len(x.sizes))]

    def left(self, ledger: int, entry: int, size: int) -> int:
        return sum(1 << index for index in range(size) if (ledger, entry, index) not in self.acked)

    def unacked(self) -> list[tuple[int, int]]:
        return [(ledger, entry) for ledger, entry, size in self.entries() if self.left(ledger, entry, size)]

    def end(self) -> tuple[int, int]:
        last = self.visible()[-1]
        return (last.id, len(last.sizes))

    def before(self, ledger: int, entry: int) -> set[Message]:
        earlier = [found for found in self.entries() if found[:2] < (ledger, entry)]
        return {(ledger, entry, index) for ledger, entry, size in earlier for index in range(size)}

    def take(self, messages: set[Message]) -> bool:
        grows = not messages <= self.acked
        self.acked |= messages
        return grows

    def chain(self) -> LedgerChain:
        return LedgerChain(extent(x.id, len(x.sizes), x.ended, x.first) for x in self.ledgers)

    def some(self, data: st.DataObject) -> tuple[int, int, int]:
        return data.draw(st.sampled_from(self.entries()))

    @initialize(sizes=st.lists(BATCH_SIZES, min_size=4, max_size=8))
    def start(self, sizes: list[int]) -> None:
        self.ledgers[0].sizes = sizes
        self.cursor = Cursor(self.chain(), begin())
        self.shared = self.chain()
        self.cursor.apply_chain(self.shared)
        self.record()  # an owner's first record exists before anything is acknowledged to clients

    # -- what the topic does ---------------------------------------------------------------------------------------

    @precondition(lambda self: not self.visible()[-1].ended and len(self.entries()) < MAX_ENTRIES)
    @rule(sizes=st.lists(BATCH_SIZES, min_size=1, max_size=5))
    def publish(self, sizes: list[int]) -> None:
        last = self.visible()[-1]
        last.sizes += sizes
        self.shared.grow_ledger(LedgerId(last.id), len(last.sizes))

    @precondition(lambda self: len(self.ledgers) < MAX_LEDGERS)
    @rule(behind=st.lists(BATCH_SIZES, max_size=4))
    def attach_behind(self, behind: list[int]) -> None:
        """A ledger after the last one: behind an open one it stays invisible."""
        if self.ledgers[-1] is not self.visible()[-1]:
            self.ledgers[-1].ended = True
        self.ledgers.append(Ledger(self.ledgers[-1].id + 2, behind))
        self.follow()

    @precondition(lambda self: not self.visible()[-1].ended and len(self.ledgers) < MAX_LEDGERS)
    @rule()
    def close(self) -> None:
        self.visible()[-1].ended = True
        self.follow()

    @precondition(lambda self: self.entries())
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        """Up to an entry, which stays: retention and TTL take acknowledged and other entries alike."""
        ledger, entry, _ = data.draw(st.sampled_from(self.entries()[:4]))
        self.ledgers = [x for x in self.ledgers if x.id >= ledger]
        self.ledgers[0].first = max(entry, self.ledgers[0].first)
        self.follow()

    def follow(self) -> None:
        self.shared = self.chain()
        self.cursor.apply_chain(self.shared)

    # -- what clients do -------------------------------------------------------------------------------------------

    @precondition(lambda self: self.entries())
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        for ledger, entry, size in data.draw(st.lists(st.sampled_from(self.entries()), min_size=1, max_size=4)):
            grows = self.take({(ledger, entry, index) for index in range(size)})
            assert ack(self.cursor, (ledger, entry)) == [grows]

    @precondition(lambda self: self.entries())
    @rule(data=st.data(), stray=st.booleans())
    def acknowledge_messages(self, data: st.DataObject, stray: bool) -> None:
        ledger, entry, size = self.some(data)
        indexes = data.draw(st.sets(st.integers(0, size - 1)))
        ack_set = (1 << size) - 1 & ~sum(1 << index for index in indexes)
        if ack_set:
            ack_set |= stray << size  # a bit beyond the batch changes nothing
            grows = self.take({(ledger, entry, index) for index in indexes})
            assert self.cursor.acknowledge(LedgerId(ledger), EntryId(entry), ack_set, size) == grows

    @precondition(lambda self: self.entries())
    @rule(data=st.data())
    def acknowledge_through(self, data: st.DataObject) -> None:
        ledger, entry, size = self.some(data)
        index = data.draw(st.integers(0, size - 1))
        ack_set = (1 << size) - (1 << index + 1)
        messages = {(ledger, entry, i) for i in range(index + 1)}
        grows = self.take(self.before(ledger, entry) | messages)
        assert self.cursor.acknowledge_through(LedgerId(ledger), EntryId(entry), ack_set, size) == grows

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        places = [(ledger, entry) for ledger, entry, _ in self.entries()]
        ledger, entry = data.draw(st.sampled_from([*places, self.end(), (0, 0), (2**60, 5)]))
        size = next((size for *place, size in self.entries() if place == [ledger, entry]), 1)
        index = data.draw(st.integers(0, size - 1))
        self.epoch += 1
        ack_set = (1 << size) - (1 << index) if index else 0
        self.cursor.reset_position(at(ledger, entry), self.epoch, ack_set, size)
        self.acked = self.before(ledger, entry) | {(ledger, entry, i) for i in range(index)}

    # -- records ---------------------------------------------------------------------------------------------------

    @rule()
    def record(self) -> None:
        self.frame += 1
        change = self.cursor.take_change(self.frame)
        if change is not None:
            assert change.n == self.frame
            self.journal.append((change.rank, encode(change)))
        self.durable = set(self.acked)
        assert self.cursor.take_change(self.frame + 1) is None

    @rule(trim=st.booleans())
    def snapshot(self, trim: bool) -> None:
        """To the cursors table; the journal's files may go when all in them is covered."""
        self.record()
        snapshot = self.cursor.snapshot()
        self.row = CursorRecord.from_row(snapshot.to_row())
        assert self.row == snapshot
        if trim:
            self.journal = [found for found in self.journal if found[0] > snapshot.rank]

    @rule(order=st.randoms(use_true_random=False), hand_over=st.booleans(), record=st.booleans())
    def crash(self, order: object, hand_over: bool, record: bool) -> None:
        """Lose what is in no record; the next owner begins a new epoch."""
        if record:
            self.record()
        records = [decode(data) for _, data in self.journal] * 2 + [self.row] * (self.row is not None)
        order.shuffle(records)  # type: ignore[attr-defined]
        start = replay_records(records)
        if hand_over:
            self.epoch += 1
            start = start.begun(self.epoch)
        self.shared = self.chain()
        self.cursor = Cursor(self.shared, start)
        self.acked = set(self.durable)
        if hand_over:
            self.record()

    # -- promises --------------------------------------------------------------------------------------------------

    @invariant()
    def says_what_the_model_says(self) -> None:
        unacked = self.unacked()
        assert self.cursor.mark_delete == at(*(unacked[0] if unacked else self.end()))
        assert self.cursor.backlog_entries == len(unacked)
        for ledger, entry, size in self.entries():
            left = self.left(ledger, entry, size)
            assert self.cursor.is_acked(LedgerId(ledger), EntryId(entry)) == (left == 0)
            partly = left if left != (1 << size) - 1 else 0
            assert self.cursor.ack_set(LedgerId(ledger), EntryId(entry)) == partly

    @rule(data=st.data(), max_entries=st.integers(1, 6))
    def deliver(self, data: st.DataObject, max_entries: int) -> None:
        start = data.draw(st.sampled_from([(0, 0), self.end(), *(found[:2] for found in self.entries())]))
        expected = [place for place in self.unacked() if place >= start]
        delivered: list[tuple[int, int]] = []
        position = at(*start)
        while True:
            found = self.cursor.deliverable(position, max_entries)
            batch = [(r.ledger, entry) for r in found.ranges for entry in range(r.first, r.end)]
            assert len(batch) <= max_entries
            assert all(r.first < r.end for r in found.ranges)
            delivered += batch
            if not batch:
                break
            position = found.next
        assert delivered == expected
        assert found.next == at(*self.end()) or not self.entries()


@pytest.mark.parametrize("examples", [50, pytest.param(300, marks=pytest.mark.long)])
def test_a_cursor_agrees_with_its_model(examples: int) -> None:
    run_state_machine_as_test(CursorMachine, settings=settings(max_examples=examples, stateful_step_count=40))


def test_mark_delete_steps_over_acknowledged_runs_ledger_ends_and_empty_ledgers() -> None:
    chain = LedgerChain([extent(1, 3), extent(2, 0), extent(4, 2), extent(7, 1, ended=False)])
    cursor = Cursor(chain, begin())
    assert cursor.mark_delete == at(1, 0)
    assert ack(cursor, (1, 1), (4, 0), (4, 1), (1, 2), (1, 1)) == [True, True, True, True, False]
    assert (cursor.mark_delete, cursor.backlog_entries) == (at(1, 0), 2)
    assert ack(cursor, (1, 0)) == [True]
    assert (cursor.mark_delete, cursor.backlog_entries) == (at(7, 0), 1)
    assert ack(cursor, (7, 0), (1, 2)) == [True, False]
    chain.grow_ledger(LedgerId(7), 2)
    assert (cursor.mark_delete, cursor.backlog_entries) == (at(7, 1), 1)


def test_the_last_message_of_a_batch_acknowledges_the_entry_also_from_another_record() -> None:
    chain = LedgerChain([extent(1, 3, ended=False)])
    cursor = Cursor(chain, begin())
    first = cursor.take_change(0)
    cursor.acknowledge(LedgerId(1), EntryId(1), 0b101, 3)
    half = cursor.take_change(1)
    cursor.acknowledge(LedgerId(1), EntryId(1), 0b010, 3)
    assert cursor.is_acked(LedgerId(1), EntryId(1))
    rest = cursor.take_change(2)
    assert first is not None
    assert half is not None
    assert rest is not None
    again = Cursor(chain, replay_records([first, rest]))
    assert again.is_acked(LedgerId(1), EntryId(1))  # a change does not need the one before it
    again = Cursor(chain, replay_records([half, first]))
    assert again.ack_set(LedgerId(1), EntryId(1)) == 0b101


def test_delivery_waits_at_an_open_ledger_until_it_closes() -> None:
    shape = [extent(1, 2, ended=False), extent(2, 5)]
    cursor = Cursor(LedgerChain(shape), begin())
    found = cursor.deliverable(EARLIEST, 100)
    assert (found.ranges, found.next) == ((EntryRange(LedgerId(1), 0, 2),), at(1, 2))
    with pytest.raises(InvalidArgumentError, match="does not exist"):
        ack(cursor, (2, 0))
    cursor.apply_chain(LedgerChain([replace(shape[0], ended=True), shape[1]]))
    assert cursor.deliverable(found.next, 100).ranges == (EntryRange(LedgerId(2), 0, 5),)


def test_a_trimmed_ledger_in_front_moves_the_cursor_and_is_recorded() -> None:
    cursor = Cursor(LedgerChain([extent(1, 3), extent(2, 4)]), begin())
    cursor.take_change(0)
    ack(cursor, (2, 1))
    assert cursor.apply_chain(LedgerChain([extent(2, 4, first=1)]))
    change = cursor.take_change(1)
    assert change is not None
    assert (change.mark_delete, cursor.mark_delete, cursor.backlog_entries) == (at(2, 2), at(2, 2), 2)
    assert not cursor.apply_chain(LedgerChain([extent(2, 4, first=1)]))
    assert not cursor.unrecorded


@pytest.mark.parametrize(("seek", "lands"), [(at(1, 1), at(1, 1)), (EARLIEST, at(1, 0)), (at(9, 9), at(2, 4))])
def test_a_seek_forgets_all_acknowledgements_and_begins_a_new_epoch(seek: Position, lands: Position) -> None:
    cursor = Cursor(LedgerChain([extent(1, 3), extent(2, 4)]), begin())
    first = cursor.take_change(5)
    ack(cursor, *product((1,), range(3)), (2, 3))
    before = cursor.take_change(6)
    cursor.reset_position(seek, 2)
    change = cursor.take_change(6)  # in the same frame: the epoch ranks it
    assert first is not None
    assert before is not None
    assert change is not None
    assert (change.kind, change.rank, change.mark_delete) == ("snapshot", (2, 6), lands)
    assert replay_records([change, before, first]).mark_delete == lands
    assert not cursor.is_acked(LedgerId(2), EntryId(3)) or lands == at(2, 4)


def test_impossible_acknowledgements_are_refused_and_change_nothing() -> None:
    cursor = Cursor(LedgerChain([extent(1, 3, ended=False)]), begin(epoch=4))
    change = cursor.take_change(7)
    assert change is not None
    for ledger, entry in ((1, 3), (2, 0), (2**62, 0)):
        with pytest.raises(InvalidArgumentError, match="does not exist"):
            ack(cursor, (ledger, entry))
        with pytest.raises(InvalidArgumentError, match="does not exist"):
            cursor.acknowledge_through(LedgerId(ledger), EntryId(entry))
    for batch_size in (0, -1, 2**21):
        with pytest.raises(InvalidArgumentError, match="batch"):
            cursor.acknowledge(LedgerId(1), EntryId(1), 1, batch_size)
        with pytest.raises(InvalidArgumentError, match="batch"):
            cursor.acknowledge_through(LedgerId(1), EntryId(1), 1, batch_size)
        with pytest.raises(InvalidArgumentError, match="batch"):
            cursor.reset_position(at(1, 1), 5, 1, batch_size)
    with pytest.raises(InvalidArgumentError, match="Epoch 4"):
        cursor.reset_position(at(1, 1), 4)
    assert not cursor.unrecorded
    assert (cursor.mark_delete, cursor.backlog_entries, cursor.epoch) == (at(1, 0), 3, 4)
    ack(cursor, (1, 0))
    with pytest.raises(InvalidArgumentError, match="does not follow frame 7"):
        cursor.take_change(7)
    with pytest.raises(InvalidArgumentError, match="change"):
        Cursor(LedgerChain(), replace(change, kind="change"))


def test_a_long_run_is_passed_when_its_first_entry_is_acknowledged() -> None:
    cursor = Cursor(LedgerChain([extent(1, 100_002, ended=False)]), begin())
    for entry in range(1, 100_001):
        cursor.acknowledge(LedgerId(1), EntryId(entry))
    assert (cursor.mark_delete, cursor.backlog_entries) == (at(1, 0), 2)
    assert cursor.deliverable(EARLIEST, 9).ranges == (
        EntryRange(LedgerId(1), 0, 1),
        EntryRange(LedgerId(1), 100_001, 100_002),
    )
    assert ack(cursor, (1, 0)) == [True]
    assert (cursor.mark_delete, cursor.backlog_entries) == (at(1, 100_001), 1)
