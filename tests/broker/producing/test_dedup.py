"""Deduplication while clients send again, the journal acknowledges late, and the broker crashes at any step."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from pulsar_on_spark.broker.producing.dedup import (
    NO_SEQUENCE_ID,
    Deduplication,
    DedupLimits,
    DedupSnapshot,
    Sender,
    Source,
    Verdict,
    position_number,
    position_of,
)
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position

NEW, DUPLICATE, UNDECIDED, OVERLAPPING = Verdict


def at(entry: int, ledger: int = 7) -> Position:
    return Position(LedgerId(ledger), EntryId(entry))


def fresh(**limits: int) -> Deduplication:
    return Deduplication(DedupSnapshot(EARLIEST), 0, DedupLimits(**limits))


def store(core: Deduplication, producer: Sender, highest: int, entry: int = 0) -> None:
    core.note_pushed(producer, highest)
    core.note_persisted(producer, highest, at(entry + 1))


def test_the_table_of_verdicts() -> None:
    core = fresh()
    core.producer_connected("p")
    assert core.check("p", 0, 0) is NEW
    store(core, "p", 4)
    core.note_pushed("p", 9)
    assert core.last_sequence_id("p") == 4
    assert core.check("p", 10, 10) is NEW
    assert core.check("p", 5, 5) is UNDECIDED, "its outcome is not known"
    assert core.check("p", 4, 4) is DUPLICATE
    assert core.check("p", 3, 8) is UNDECIDED
    core.note_persisted("p", 9, at(2))
    assert core.check("p", 5, 5) is DUPLICATE
    assert core.check("p", 8, 12) is OVERLAPPING, "10 to 12 would be lost, or 8 and 9 stored twice"
    assert core.check("other", 5, 5) is NEW


def test_an_entry_that_the_journal_refused_is_not_pushed() -> None:
    core = fresh()
    assert core.check("p", 0, 3) is NEW
    assert core.check("p", 0, 3) is NEW


def test_a_producers_last_sequence_id_is_a_persisted_one() -> None:
    core = fresh()
    assert core.last_sequence_id("p") == NO_SEQUENCE_ID
    core.note_pushed("p", 3)
    assert core.last_sequence_id("p") == NO_SEQUENCE_ID
    assert core.snapshot().sequence_ids == {}


def test_chunks_are_checked_and_the_last_one_is_recorded() -> None:
    core = fresh()
    for entry in range(2):
        assert core.check("p", 5, 5) is NEW, "all chunks have one sequence id"
        core.note_passed(at(entry + 1))
    core.note_pushed("p", 5)
    assert core.check("p", 5, 5) is UNDECIDED
    core.note_persisted("p", 5, at(3))
    assert core.check("p", 5, 5) is DUPLICATE, "also the first chunk of a message that is stored as a whole"
    assert core.snapshot() == DedupSnapshot(at(3), {"p": 5})


def test_a_snapshot_and_later_entries_restore_the_same_state_in_any_order() -> None:
    core = fresh()
    for entry in range(10):
        store(core, f"p{entry % 3}", entry, entry)
    half = DedupSnapshot(at(4), {"p0": 3, "p1": 1, "p2": 2})
    restored = Deduplication(half, 0)
    for entry in reversed(range(4, 10)):
        restored.replay(f"p{entry % 3}", entry, at(entry + 1))
    assert restored.snapshot() == core.snapshot()


def test_an_inactive_producer_is_forgotten_and_a_connected_one_is_not() -> None:
    core = fresh(inactivity_ms=100)
    for name in ("gone", "there"):
        core.producer_connected(name)
        store(core, name, 1)
    core.producer_left("gone", 1_000)
    core.forget_inactive(1_099)
    assert core.last_sequence_id("gone") == 1
    core.forget_inactive(1_100)
    assert core.last_sequence_id("gone") == NO_SEQUENCE_ID
    assert core.last_sequence_id("there") == 1


def test_a_successor_that_connects_before_the_old_producer_leaves_keeps_the_name_connected() -> None:
    core = fresh(inactivity_ms=1)
    core.producer_connected("p")
    store(core, "p", 1)
    core.producer_connected("p")
    core.producer_left("p", 0)
    core.forget_inactive(1_000)
    assert core.last_sequence_id("p") == 1


def test_restored_producers_count_as_inactive_from_the_restore_on() -> None:
    core = Deduplication(DedupSnapshot(at(3), {"p": 1}), 5_000, DedupLimits(inactivity_ms=100))
    core.replay("q", 2, at(4))
    core.forget_inactive(5_099)
    assert core.snapshot().sequence_ids == {"p": 1, "q": 2}
    core.forget_inactive(5_100)
    assert core.snapshot().sequence_ids == {}


def test_beyond_the_limit_the_longest_away_are_forgotten_but_none_in_flight() -> None:
    core = fresh(max_producers=2)
    for name in "abcd":
        core.producer_connected(name)
        store(core, name, 1)
    core.note_pushed("a", 2)
    for number, name in enumerate("abcd"):
        core.producer_left(name, number)
    assert set(core.snapshot().sequence_ids) == {"a", "d"}
    with pytest.raises(InvalidArgumentError, match="at least one"):
        DedupLimits(max_producers=0)


def test_producers_that_left_with_messages_in_flight_are_remembered_above_the_limit() -> None:
    core = fresh(max_producers=1)
    for number, name in enumerate("ab"):
        core.producer_connected(name)
        core.note_pushed(name, 1)
        core.producer_left(name, number)
    assert [core.check(name, 1, 1) for name in "ab"] == [UNDECIDED, UNDECIDED]


def test_when_a_snapshot_is_due() -> None:
    core = fresh(snapshot_entries=3, snapshot_interval_ms=1_000, snapshot_pause_ms=100)
    assert not core.is_snapshot_due(10_000), "nothing was stored"
    store(core, "p", 0)
    assert not core.is_snapshot_due(999)
    assert core.is_snapshot_due(1_000)
    core.note_passed(at(2))
    core.note_passed(at(3))
    assert core.is_snapshot_due(100)
    assert not core.is_snapshot_due(99), "a snapshot is a commit"
    core.snapshot_begun(100)
    assert not core.is_snapshot_due(10_000)
    store(core, "p", 1)
    core.save_every(200)
    assert not core.is_snapshot_due(299)
    assert core.is_snapshot_due(300)
    core.save_every(0)
    assert not core.is_snapshot_due(1_000_000), "not by time"


def test_position_numbers_have_the_order_of_the_positions() -> None:
    positions = [(0, 0), (0, 2**63 - 1), (1, 0), (7, 1), (7, 2), (2**63 - 1, 0)]
    numbers = [position_number(*position) for position in positions]
    assert numbers == sorted(set(numbers))
    assert [position_of(number) for number in numbers] == positions


def test_a_source_and_a_producer_of_one_name_are_independent() -> None:
    core = fresh()
    store(core, "peer", 9)
    assert core.check(Source("peer"), 0, 0) is NEW
    store(core, Source("peer"), position_number(7, 1))
    assert core.snapshot().sequence_ids == {"peer": 9, Source("peer"): position_number(7, 1)}


def test_sources_are_forgotten_only_above_the_limit_and_after_names() -> None:
    core = fresh(max_producers=2, inactivity_ms=100)
    store(core, Source("east"), 1)
    core.forget_inactive(1_000)
    for name in "abc":
        store(core, name, 1)
    assert set(core.snapshot().sequence_ids) == {Source("east"), "c"}
    store(core, Source("west"), 1)
    store(core, Source("north"), 1)
    assert set(core.snapshot().sequence_ids) == {Source("west"), Source("north")}, "they are bounded all the same"


def test_replicated_entries_keep_their_producers_name_active() -> None:
    core = fresh(inactivity_ms=100)
    store(core, "p", 1)
    core.note_relayed("p", 1_000)
    core.forget_inactive(1_099)
    assert core.last_sequence_id("p") == 1
    core.forget_inactive(1_100)
    assert core.last_sequence_id("p") == NO_SEQUENCE_ID


def test_a_relayed_entry_of_a_connected_producer_does_not_make_its_name_inactive() -> None:
    core = fresh(inactivity_ms=100)
    core.producer_connected("p")
    store(core, "p", 1)
    core.note_relayed("p", 1_000)
    core.forget_inactive(10_000)
    assert core.last_sequence_id("p") == 1


# -- clients, a journal, crashes ---------------------------------------------------------------------------------------

Message = tuple[str, int, int]
"""Identity of a sent message: producer, number of times that its name was forgotten before, and sequence id."""


@dataclass
class Operation:
    """A SEND: a batch, or one chunk of a message."""

    messages: list[Message]
    chunk: int = 0
    chunks: int = 1

    @property
    def first(self) -> int:
        return self.messages[0][2]

    @property
    def last(self) -> int:
        return self.messages[-1][2]

    @property
    def is_last_chunk(self) -> bool:
        return self.chunk == self.chunks - 1


@dataclass
class Client:
    """An official client: it sends entries without a receipt again, in order and in the same batches."""

    name: str
    life: int = 0
    following: int = 0
    is_connected: bool = False
    pending: list[Operation] = field(default_factory=list)
    sent: int = 0


class DedupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.limits = DedupLimits(max_producers=2, inactivity_ms=50)
        self.core = Deduplication(DedupSnapshot(EARLIEST), 0, self.limits)
        self.clients = [Client(name) for name in "pqr"]
        self.durable: list[Operation] = []
        self.journal: list[Operation] = []
        """The operations that the journal accepted, in order; those in `durable` are acknowledged."""
        self.stored_snapshot = DedupSnapshot(EARLIEST)
        self.begun: DedupSnapshot | None = None
        self.made: set[Message] = set()

    # The topic is one ledger: entry n is `journal[n]`.

    def messages_of(self, operations: list[Operation]) -> set[Message]:
        return {message for operation in operations if operation.is_last_chunk for message in operation.messages}

    def connected_client(self, data: st.DataObject) -> Client:
        """Return a client; connect it if it is not connected."""
        client = data.draw(st.sampled_from(self.clients))
        if not client.is_connected:
            last = self.core.last_sequence_id(client.name)
            if not client.pending and last < client.following - 1:
                client.life, client.following = client.life + 1, last + 1  # its name was forgotten: it starts over
            self.core.producer_connected(client.name)
            client.is_connected, client.sent = True, 0
        return client

    @rule(data=st.data(), sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3), chunks=st.integers(1, 3))
    def send(self, data: st.DataObject, sizes: list[int], chunks: int) -> None:
        client = self.connected_client(data)
        for size in sizes:
            made = [(client.name, client.life, client.following + number) for number in range(size)]
            client.following += size
            self.made.update(made)
            count = chunks if size == 1 else 1
            client.pending += [Operation(made, chunk, count) for chunk in range(count)]

    @rule(data=st.data(), is_taken=st.sampled_from([True, True, True, False]), times=st.integers(1, 3))
    def arrive(self, data: st.DataObject, is_taken: bool, times: int) -> None:
        client = self.connected_client(data)
        for _ in range(times):
            if client.is_connected and client.sent < len(client.pending):
                self.arrives(client, client.pending[client.sent], is_taken)

    def arrives(self, client: Client, operation: Operation, is_taken: bool) -> None:
        verdict = self.core.check(client.name, operation.first, operation.last)
        assert verdict is not OVERLAPPING, "a retry has the same bounds"
        if verdict is UNDECIDED or (verdict is NEW and not is_taken):
            self.leave(client)
        elif verdict is DUPLICATE:
            assert set(operation.messages) <= self.messages_of(self.durable), "it would be lost"
            client.pending.pop(client.sent)
        else:
            if operation.is_last_chunk:
                self.core.note_pushed(client.name, operation.last)
            self.journal.append(operation)
            client.sent += 1

    @precondition(lambda self: len(self.durable) < len(self.journal))
    @rule(is_heard=st.booleans(), times=st.integers(1, 3))
    def acknowledge(self, is_heard: bool, times: int) -> None:
        for _ in range(min(times, len(self.journal) - len(self.durable))):
            self.acknowledge_next(is_heard)

    def acknowledge_next(self, is_heard: bool) -> None:
        operation = self.journal[len(self.durable)]
        self.durable.append(operation)
        following = at(len(self.durable))
        name = operation.messages[0][0]
        if operation.is_last_chunk:
            self.core.note_persisted(name, operation.last, following)
        else:
            self.core.note_passed(following)
        (client,) = (client for client in self.clients if client.name == name)
        if client.is_connected and client.sent and client.pending[0] is operation:
            if is_heard:
                client.pending.pop(0)
                client.sent -= 1
            else:
                self.leave(client)

    @precondition(lambda self: any(client.is_connected for client in self.clients))
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        self.leave(data.draw(st.sampled_from([client for client in self.clients if client.is_connected])))

    def leave(self, client: Client) -> None:
        """Disconnect a client; above the limit of absent ones, first those reconnect that have something to send."""
        others = [other for other in self.clients if other is not client]
        if not any(other.is_connected for other in others):
            for other in others:
                self.reconnect(other)
        self.core.producer_left(client.name, self.now)
        client.is_connected, client.sent = False, 0

    @rule(passed_ms=st.integers(1, 60))
    def time_passes(self, passed_ms: int) -> None:
        """Let time pass; clients with something to send reconnect."""
        self.now += passed_ms
        for client in self.clients:
            self.reconnect(client)
        self.core.forget_inactive(self.now)

    def reconnect(self, client: Client) -> None:
        """Connect a client that has something to send."""
        if client.pending and not client.is_connected:
            self.core.producer_connected(client.name)
            client.is_connected = True

    @rule(ends=st.sampled_from(["stored", "stored", "failed", "later"]))
    def snapshot(self, ends: str) -> None:
        if ends == "later" and self.begun is not None:
            self.stored_snapshot = self.begun
        self.begun = self.core.snapshot()
        assert self.begun.position >= self.stored_snapshot.position
        self.core.snapshot_begun(self.now)
        if ends == "stored":
            self.stored_snapshot = self.begun

    @rule(kept=st.integers(0, 3))
    def crash(self, kept: int) -> None:
        """Crash; the first `kept` unacknowledged entries are durable, and recovery finds them."""
        del self.journal[len(self.durable) + kept :]
        self.durable = list(self.journal)
        self.begun = None
        self.core = Deduplication(self.stored_snapshot, self.now, self.limits)
        for client in self.clients:
            client.is_connected, client.sent = bool(client.pending), 0
            if client.pending:  # else it might be forgotten above the limit
                self.core.producer_connected(client.name)
        position = self.stored_snapshot.position
        for entry, operation in enumerate(self.durable):
            if at(entry) >= position and operation.is_last_chunk:
                self.core.replay(operation.messages[0][0], operation.last, at(entry + 1))

    @rule(data=st.data(), size=st.integers(1, 4))
    def application_starts_again(self, data: st.DataObject, size: int) -> None:
        """Repeat earlier sequence ids in other batches, as an application does that sets its own ids."""
        client = self.connected_client(data)
        if client.pending or not client.following:
            return
        first = data.draw(st.integers(0, client.following - 1))
        sent = {(client.name, client.life, first + number) for number in range(size)}
        stored = self.messages_of(self.durable)
        in_flight = self.messages_of(self.journal[len(self.durable) :])
        match self.core.check(client.name, first, first + size - 1):
            case Verdict.DUPLICATE:
                assert sent <= stored
            case Verdict.NEW:
                assert not sent & (stored | in_flight)
            case Verdict.OVERLAPPING:
                assert sent & stored
                assert sent - stored
            case Verdict.UNDECIDED:
                assert sent & in_flight

    @invariant()
    def nothing_is_stored_twice(self) -> None:
        times: defaultdict[Message, int] = defaultdict(int)
        for operation in self.journal:
            for message in operation.messages if operation.is_last_chunk else ():
                times[message] += 1
        assert all(count == 1 for count in times.values())

    @invariant()
    def nothing_is_lost(self) -> None:
        there = self.messages_of(self.journal)
        for client in self.clients:
            there |= {message for operation in client.pending for message in operation.messages}
        assert self.made <= there


@pytest.mark.parametrize("examples", [50, pytest.param(300, marks=pytest.mark.long)])
def test_no_message_is_lost_or_stored_twice_in_any_order_of_steps(examples: int) -> None:
    run_state_machine_as_test(DedupMachine, settings=settings(max_examples=examples, stateful_step_count=40))
