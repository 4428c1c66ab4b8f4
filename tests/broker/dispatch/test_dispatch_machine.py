"""All dispatchers against plain models, while consumers connect, leave, acknowledge, return entries, stall and seek."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from pulsar_on_spark.broker.dispatch.dispatcher import Dispatcher
from pulsar_on_spark.broker.dispatch.key_shared import KeySharedDispatcher
from pulsar_on_spark.broker.dispatch.limits import DispatchLimits
from pulsar_on_spark.broker.dispatch.shared import SharedDispatcher
from pulsar_on_spark.broker.dispatch.single_active import SingleActiveDispatcher
from pulsar_on_spark.broker.dispatch.values import (
    Ack,
    ActiveConsumerChanged,
    Chunk,
    ConsumerId,
    ConsumerInfo,
    Delivery,
    EntryInfo,
    KeySharedPolicy,
    Wanted,
)
from pulsar_on_spark.model.errors import ConsumerBusyError
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from tests.broker.dispatch.topic_model import EntryPosition, Topic

LIMITS = DispatchLimits(
    dispatcher_max_read_batch_size=5,
    dispatcher_max_round_robin_batch_size=3,
    max_unacked_messages_per_consumer=12,
    max_unacked_messages_per_subscription=20,
    key_shared_look_ahead_per_consumer=6,
    key_shared_look_ahead_per_subscription=10,
    max_delayed_entries=4,
)
KEYS = [b"a", b"b", b"c", b"d", b"e"]
MAX_ENTRIES = 60


class Consumers(RuleBasedStateMachine):
    """The common state machine; `out` models the unacknowledged entries of each consumer, if they are tracked."""

    is_pool = True

    def make(self) -> Dispatcher:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.topic = Topic()
        self.dispatcher = self.make()
        self.now_ms = 1_000_000
        self.count = 0
        self.permits: dict[int, int] = {}
        self.writable: dict[int, bool] = {}
        self.full: set[int] = set()
        self.full_pool = False
        self.out: dict[EntryPosition, int] = {}
        self.given_back: dict[EntryPosition, int] = defaultdict(int)
        self.reading: Wanted | None = None
        self.unacked: dict[EntryPosition, set[int]] = {}
        self.epoch = 1
        self.chunked = 0

    # -- the topic -------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.topic.infos) < MAX_ENTRIES)
    @rule(
        count=st.integers(1, 6),
        messages=st.sampled_from([1, 1, 1, 3, 7]),
        key=st.sampled_from(KEYS),
        delay_ms=st.sampled_from([None, None, None, -5, 1_500, 4_000, 9_000]),
        is_marker=st.sampled_from([False] * 9 + [True]),
    )
    def publish(self, count: int, messages: int, key: bytes, delay_ms: int | None, is_marker: bool) -> None:
        deliver_at_ms = None if delay_ms is None else self.now_ms + delay_ms
        for position in self.topic.publish(
            count, messages=messages, key=key, deliver_at_ms=deliver_at_ms, is_marker=is_marker
        ):
            if not is_marker:
                self.unacked[position] = set(range(messages))

    @precondition(lambda self: len(self.topic.infos) < MAX_ENTRIES)
    @rule(total=st.integers(2, 4), key=st.sampled_from(KEYS))
    def publish_chunks(self, total: int, key: bytes) -> None:
        """Publish the chunks of two messages in turn."""
        self.chunked += 2
        for number in range(total):
            for uuid in (self.chunked, self.chunked + 1):
                (position,) = self.topic.publish(key=key, chunk=Chunk(f"producer-{uuid}", number, total))
                self.unacked[position] = {0}

    @precondition(lambda self: len(self.topic.ledgers) < 4)
    @rule()
    def next_ledger(self) -> None:
        self.topic.next_ledger()

    @precondition(lambda self: self.unacked)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        """Acknowledge everything up to an entry in the cursor, as expiry does."""
        ledger, entry = data.draw(st.sampled_from(sorted(self.unacked)[:3]))
        self.topic.cursor.acknowledge_through(LedgerId(ledger), EntryId(entry))
        self.dispatcher.forget_acked()
        for position in [position for position in self.unacked if position <= (ledger, entry)]:
            self.acked(position)

    def acked(self, position: EntryPosition) -> None:
        self.unacked.pop(position, None)
        self.out.pop(position, None)
        self.given_back.pop(position, None)
        self.note_limits()

    # -- consumers -------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.permits) < 4)
    @rule(name=st.sampled_from("abc"), priority=st.sampled_from([0, 0, 1]), permits=st.integers(0, 8))
    def come(self, name: str, priority: int, permits: int) -> None:
        self.count += 1
        info = ConsumerInfo(ConsumerId(self.count), name, priority)
        if not self.admits():
            with pytest.raises(ConsumerBusyError):
                self.dispatcher.add_consumer(info, self.now_ms)
            return
        effects = self.dispatcher.add_consumer(info, self.now_ms)
        self.dispatcher.flow(info.id, permits)
        self.permits[self.count], self.writable[self.count] = permits, True
        self.came(info, effects)

    def admits(self) -> bool:
        return True

    def came(self, info: ConsumerInfo, effects: list[ActiveConsumerChanged]) -> None:
        assert effects == []

    @precondition(lambda self: self.permits)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        self.leave(self.some_consumer(data))

    def leave(self, consumer: int) -> None:
        effects = self.dispatcher.remove_consumer(ConsumerId(consumer), self.now_ms)
        del self.permits[consumer], self.writable[consumer]
        self.full.discard(consumer)
        self.out = {position: holder for position, holder in self.out.items() if holder != consumer}
        if not self.permits:
            self.given_back.clear()
        self.note_limits()
        self.went(consumer, effects)

    def went(self, consumer: int, effects: list[ActiveConsumerChanged]) -> None:
        assert effects == []

    @precondition(lambda self: self.permits)
    @rule(data=st.data(), permits=st.integers(1, 15))
    def flow(self, data: st.DataObject, permits: int) -> None:
        consumer = self.some_consumer(data)
        self.dispatcher.flow(ConsumerId(consumer), permits)
        self.permits[consumer] += permits

    @precondition(lambda self: self.permits)
    @rule(data=st.data(), is_writable=st.booleans())
    def set_writable(self, data: st.DataObject, is_writable: bool) -> None:
        consumer = self.some_consumer(data)
        self.dispatcher.set_writable(ConsumerId(consumer), is_writable)
        self.writable[consumer] = is_writable

    def some_consumer(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.permits)))

    # -- acknowledging ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.unacked and self.permits)
    @rule(data=st.data(), late=st.sampled_from([False, False, True]))
    def acknowledge(self, data: st.DataObject, late: bool) -> None:
        """Acknowledge entries that the consumer has; if `late`, any entries."""
        consumer = self.some_consumer(data)
        candidates = sorted(self.unacked if late else self.held_by(consumer))
        if not candidates:
            return
        some = data.draw(st.lists(st.sampled_from(candidates), min_size=1, max_size=5, unique=True))
        acks = [Ack(LedgerId(ledger), EntryId(entry)) for ledger, entry in some]
        assert self.dispatcher.ack(ConsumerId(consumer), acks)
        for position in some:
            self.acked(position)

    def held_by(self, consumer: int) -> list[EntryPosition]:
        return [position for position, holder in self.out.items() if holder == consumer]

    @precondition(lambda self: self.unacked and self.permits)
    @rule(data=st.data(), says_size=st.booleans())
    def acknowledge_messages(self, data: st.DataObject, says_size: bool) -> None:
        consumer = self.some_consumer(data)
        position = data.draw(st.sampled_from(sorted(self.unacked)))
        size = self.topic.infos[position].messages
        indexes = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
        word = sum(1 << index for index in range(size) if index not in indexes)
        acked = Ack.of(LedgerId(position[0]), EntryId(position[1]), [word], size if says_size else 0)
        changed = self.dispatcher.ack(ConsumerId(consumer), [acked])
        assert changed == bool(indexes & self.unacked[position])
        self.unacked[position] -= indexes
        if not self.unacked[position]:
            self.acked(position)
        self.note_limits()

    # -- reading ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.reading is None)
    @rule()
    def begin_read(self) -> None:
        may_have_more = self.dispatcher.has_more
        self.reading = self.dispatcher.wanted()
        assert may_have_more or self.reading is None
        if self.reading is not None:
            assert any(self.may_get(consumer) for consumer in self.permits)

    @precondition(lambda self: self.reading is not None)
    @rule(data=st.data())
    def end_read(self, data: st.DataObject) -> None:
        """Offer all read entries, the first of them, or none."""
        assert self.reading is not None
        entries = self.topic.read(self.reading)
        most = data.draw(st.sampled_from([len(entries)] * 3 + [0, 1, 2]))
        self.offer(entries[:most])

    def offer(self, entries: list[EntryInfo]) -> list[Delivery]:
        assert self.reading is not None
        wanted, self.reading = self.reading, None
        deliveries = self.dispatcher.offer(wanted, entries, self.now_ms)
        for info in entries:
            if info.is_marker and self.topic.cursor.is_acked(info.ledger, info.entry):
                self.unacked.pop((info.ledger, info.entry), None)
        for delivery in deliveries:
            self.delivered(delivery)
        return deliveries

    def delivered(self, delivery: Delivery) -> None:
        position = (delivery.ledger, delivery.entry)
        consumer = delivery.consumer
        info = self.topic.infos[position]
        left = self.unacked[position]
        assert self.writable[consumer] or not self.is_pool
        assert self.permits[consumer] > 0, "no permits"
        assert delivery.permits == len(left)
        assert delivery.ack_set == (sum(1 << x for x in left) if len(left) < info.messages else 0)
        self.permits[consumer] -= delivery.permits

    def may_get(self, consumer: int) -> bool:
        return self.permits[consumer] > 0 and self.writable[consumer] and consumer not in self.full

    def note_limits(self) -> None:
        """Hook: block consumers at the limit, and unblock them at half of it."""

    # -- time and seeking ------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([10, 400, 1_000, 3_000]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        due_ms = self.dispatcher.due_ms
        if due_ms is not None and due_ms <= self.now_ms:
            self.ticked(self.dispatcher.handle_due(self.now_ms))

    def ticked(self, effects: list[ActiveConsumerChanged]) -> None:
        assert effects == []

    @precondition(lambda self: self.topic.infos)
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        """All consumers are disconnected, then the cursor is reset."""
        for consumer in list(self.permits):
            self.leave(consumer)
        ledger, entry = data.draw(st.sampled_from(sorted(self.topic.infos)))
        self.epoch += 1
        self.topic.cursor.reset_position(Position(LedgerId(ledger), EntryId(entry)), self.epoch)
        self.dispatcher.restart_reading()
        self.unacked = {
            position: set(range(info.messages))
            for position, info in self.topic.infos.items()
            if position >= (ledger, entry) and not info.is_marker
        }
        self.sought()

    def sought(self) -> None:
        """Hook: called after a seek."""

    # -- everything arrives ----------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Check that all entries are delivered and acknowledged once all consumers read and acknowledge."""
        if not self.permits:
            self.come("z", 0, 1)
        for _ in range(300):
            for consumer in self.permits:
                self.dispatcher.set_writable(ConsumerId(consumer), True)
                self.writable[consumer] = True
                if self.permits[consumer] < 100:
                    self.dispatcher.flow(ConsumerId(consumer), 100)
                    self.permits[consumer] += 100
            self.reading = self.reading or self.dispatcher.wanted()
            if self.reading is not None:
                self.offer(self.topic.read(self.reading))
                continue
            self.check_nothing_deliverable()
            if not self.topic.cursor.backlog_entries:
                break
            self.acknowledge_all()
            self.time_passes(2_000)
        assert not self.unacked, f"not delivered: {sorted(self.unacked)}"
        assert self.topic.cursor.backlog_entries == 0

    def check_nothing_deliverable(self) -> None:
        """Hook: check that no deliverable entry is left when no read is wanted."""

    def acknowledge_all(self) -> None:
        for position in sorted(self.out):
            holder = self.out[position]
            self.dispatcher.ack(ConsumerId(holder), [Ack(LedgerId(position[0]), EntryId(position[1]))])
            self.acked(position)


class Pool(Consumers):
    """Shared and Key_Shared: no entry is at two consumers, and no consumer exceeds its limits."""

    def note_limits(self) -> None:
        held: dict[int, int] = defaultdict(int)
        for position, consumer in self.out.items():
            held[consumer] += len(self.unacked[position])
        for consumer in self.permits:
            if held[consumer] >= LIMITS.max_unacked_messages_per_consumer:
                self.full.add(consumer)
            elif held[consumer] <= LIMITS.max_unacked_messages_per_consumer // 2:
                self.full.discard(consumer)
        total = sum(held.values())
        if total >= LIMITS.max_unacked_messages_per_subscription:
            self.full_pool = True
        elif total <= LIMITS.max_unacked_messages_per_subscription // 2:
            self.full_pool = False

    def delivered(self, delivery: Delivery) -> None:
        position = (delivery.ledger, delivery.entry)
        info = self.topic.infos[position]
        assert position not in self.out, "it is out already"
        assert delivery.consumer not in self.full
        assert not self.full_pool
        assert info.deliver_at_ms is None or info.deliver_at_ms <= self.now_ms, "too early"
        assert delivery.redelivery_count == self.given_back[position]
        super().delivered(delivery)
        self.out[position] = delivery.consumer
        self.note_limits()

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        """Return entries; the consumer may not have some of them."""
        consumer = data.draw(st.sampled_from(sorted(self.permits)))
        some = data.draw(st.lists(st.sampled_from(sorted(self.topic.infos)), min_size=1, max_size=8, unique=True))
        self.dispatcher.redeliver(ConsumerId(consumer), [(LedgerId(x), EntryId(y)) for x, y in some])
        self.came_back(consumer, some)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def give_all_back(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(sorted(self.permits)))
        self.dispatcher.redeliver(ConsumerId(consumer), None)
        self.came_back(consumer, list(self.out))

    def came_back(self, consumer: int, returned: list[EntryPosition]) -> None:
        for position in returned:
            if self.out.get(position) == consumer:
                del self.out[position]
                self.given_back[position] += 1
        self.note_limits()

    @invariant()
    def counts_agree(self) -> None:
        stats = self.dispatcher.stats()
        held: dict[int, int] = defaultdict(int)
        for position, consumer in self.out.items():
            held[consumer] += len(self.unacked[position])
        assert {consumer.id: (consumer.permits, consumer.unacked) for consumer in stats.consumers} == {
            consumer: (permits, held[consumer]) for consumer, permits in self.permits.items()
        }
        assert stats.unacked == sum(held.values())
        assert stats.delayed <= LIMITS.max_delayed_entries
        assert stats.waiting <= len(self.unacked.keys() - self.out.keys()), "no acknowledged entry waits"
        assert (stats.blocked is not None) == self.full_pool
        for consumer in stats.consumers:
            if not self.may_get(consumer.id):
                assert consumer.blocked is not None

    def eligible(self) -> list[EntryPosition]:
        return [
            position
            for position in self.unacked
            if position not in self.out and (self.topic.infos[position].deliver_at_ms or 0) <= self.now_ms - 1_000
        ]


class SharedMachine(Pool):
    def make(self) -> Dispatcher:
        return SharedDispatcher(self.topic.cursor, LIMITS)

    @precondition(lambda self: self.reading is None)
    @rule()
    def available_consumers_get_entries(self) -> None:
        """No stall: while a consumer is available, eligible entries are delivered."""
        for _ in range(200):
            wanted = self.dispatcher.wanted()
            if wanted is None:
                break
            self.reading = wanted
            self.offer(self.topic.read(wanted))
        else:
            raise AssertionError("reading does not end")
        self.check_nothing_deliverable()

    def check_nothing_deliverable(self) -> None:
        able = [self.may_get(x) for x in self.permits]
        if self.full_pool or not any(able):
            return
        waiting = self.eligible()
        if not all(able):  # chunks may wait for the consumer that has the message's other chunks
            waiting = [position for position in waiting if self.topic.infos[position].chunk is None]
        assert not waiting or self.look_ahead_is_full(), "a deliverable entry waits"

    def look_ahead_is_full(self) -> bool:
        return self.dispatcher.stats().waiting >= LIMITS.key_shared_look_ahead_per_consumer * len(self.permits)


class KeySharedMachine(Pool):
    def make(self) -> Dispatcher:
        return KeySharedDispatcher(self.topic.cursor, LIMITS, KeySharedPolicy())

    def delivered(self, delivery: Delivery) -> None:
        """Earlier entries of the key are acknowledged or at the same consumer; only delayed entries are overtaken."""
        position = (delivery.ledger, delivery.entry)
        key = self.topic.infos[position].key
        for other, holder in self.out.items():
            assert self.topic.infos[other].key != key or holder == delivery.consumer, "two consumers have a key"
        for other in self.unacked:
            info = self.topic.infos[other]
            if other < position and info.key == key and info.deliver_at_ms is None:
                assert self.out.get(other) == delivery.consumer, "a key out of order"
        super().delivered(delivery)

    @precondition(lambda self: self.reading is None)
    @rule()
    def available_consumers_get_entries(self) -> None:
        """No stall: a key is delivered if its consumer is available and no entry of it is unacknowledged."""
        for _ in range(200):
            wanted = self.dispatcher.wanted()
            if wanted is None:
                break
            self.reading = wanted
            self.offer(self.topic.read(wanted))
        else:
            raise AssertionError("reading does not end")
        if self.full_pool or not all(map(self.may_get, self.permits)) or not self.permits:
            return
        self.only_held_keys_wait()

    def check_nothing_deliverable(self) -> None:
        if not (self.full_pool or self.full):
            self.only_held_keys_wait()

    def only_held_keys_wait(self) -> None:
        held = {self.topic.infos[position].key for position in self.out}
        waiting = self.dispatcher.stats().waiting
        unread = waiting >= min(
            LIMITS.key_shared_look_ahead_per_consumer * len(self.permits), LIMITS.key_shared_look_ahead_per_subscription
        )
        free = [position for position in self.eligible() if self.topic.infos[position].key not in held]
        assert unread or not free, "a deliverable key waits"
        assert not unread or held, "all keys wait without a cause"


class FailoverMachine(Consumers):
    """Delivery in order; a redelivery or a change of the active consumer restarts at the mark-delete position."""

    is_pool = False
    is_failover = True

    def make(self) -> Dispatcher:
        self.position: EntryPosition = (0, 0)
        self.active: int | None = None
        self.known: dict[int, tuple[int, str, int]] = {}
        self.unnotified: set[int] = set()
        self.change_at_ms: int | None = None
        return SingleActiveDispatcher(self.topic.cursor, LIMITS, is_failover=self.is_failover, partition=1)

    def elected(self) -> int:
        """Return the second consumer by name of those with the lowest priority number; if it is only one, that one."""
        best = sorted(candidate for candidate in self.known.values() if candidate[0] == min(self.known.values())[0])
        return best[1 % len(best)][2]

    def elect(self) -> None:
        if not self.known:
            self.change_at_ms = None
        elif self.elected() != self.active and self.change_at_ms is None:
            if self.is_failover:
                self.change_at_ms = self.now_ms + LIMITS.active_consumer_failover_delay_time_millis
            else:
                self.active, self.position = self.elected(), (0, 0)

    def came(self, info: ConsumerInfo, effects: list[ActiveConsumerChanged]) -> None:
        self.known[info.id] = (info.priority, info.name, info.id)
        notified = self.is_failover and self.elected() != info.id
        assert effects == [ActiveConsumerChanged(info.id, False)] * notified
        if self.elected() == info.id:
            self.unnotified.add(info.id)
        self.elect()

    def went(self, consumer: int, effects: list[ActiveConsumerChanged]) -> None:
        assert effects == []
        del self.known[consumer]
        if consumer == self.active:
            self.active = None
        self.elect()

    def ticked(self, effects: list[ActiveConsumerChanged]) -> None:
        assert self.change_at_ms is not None
        assert self.change_at_ms <= self.now_ms
        self.change_at_ms = None
        notified = self.unnotified - {self.active}  # consumers that lost the election within the delay
        if self.elected() != self.active:
            self.active, self.position = self.elected(), (0, 0)
            notified = set(self.known)
        self.unnotified.clear()
        assert dict(effects) == {consumer: consumer == self.active for consumer in notified & self.known.keys()}

    def held_by(self, consumer: int) -> list[EntryPosition]:
        return [position for position in self.unacked if position < self.position]

    def may_get(self, consumer: int) -> bool:
        return consumer == self.active and self.change_at_ms is None and super().may_get(consumer)

    def delivered(self, delivery: Delivery) -> None:
        position = (delivery.ledger, delivery.entry)
        assert delivery.consumer == self.active
        assert self.change_at_ms is None, "while the active consumer changes"
        assert position == min(x for x in self.unacked if x >= self.position), "out of order"
        assert delivery.redelivery_count == 0
        super().delivered(delivery)
        self.position = (position[0], position[1] + 1)

    @precondition(lambda self: self.unacked and self.permits)
    @rule(data=st.data())
    def acknowledge_through(self, data: st.DataObject) -> None:
        ledger, entry = data.draw(st.sampled_from(sorted(self.unacked)[:5]))
        ack = Ack(LedgerId(ledger), EntryId(entry))
        assert self.dispatcher.ack(ConsumerId(self.some_consumer(data)), [ack], cumulative=True)
        for position in [position for position in self.unacked if position <= (ledger, entry)]:
            self.acked(position)

    @precondition(lambda self: self.permits)
    @rule(data=st.data(), everything=st.booleans())
    def give_back(self, data: st.DataObject, everything: bool) -> None:
        consumer = self.some_consumer(data)
        self.dispatcher.redeliver(ConsumerId(consumer), None if everything else [], self.count)
        if consumer == self.active:
            self.position = (0, 0)

    @precondition(lambda self: self.reading is None)
    @rule()
    def the_active_consumer_gets_entries(self) -> None:
        for _ in range(200):
            wanted = self.dispatcher.wanted()
            if wanted is None:
                break
            self.reading = wanted
            self.offer(self.topic.read(wanted))
        else:
            raise AssertionError("reading does not end")
        if self.active is not None and self.may_get(self.active):
            assert all(position < self.position for position in self.unacked)

    def sought(self) -> None:
        self.position = (0, 0)

    @invariant()
    def blocked_consumers_have_a_reason(self) -> None:
        for consumer in self.dispatcher.stats().consumers:
            assert consumer.permits == self.permits[consumer.id]
            assert self.change_at_ms is not None or (consumer.blocked is None) == self.may_get(consumer.id)

    def check_nothing_deliverable(self) -> None:
        assert self.active is None or self.change_at_ms is not None or not any(x >= self.position for x in self.unacked)

    def acknowledge_all(self) -> None:
        for position in sorted(self.held_by(0)):
            self.dispatcher.ack(ConsumerId(1), [Ack(LedgerId(position[0]), EntryId(position[1]))])
            self.acked(position)


class ExclusiveMachine(FailoverMachine):
    is_failover = False

    def admits(self) -> bool:
        return not self.permits


def test_wanted_is_none_while_a_read_is_running() -> None:
    topic = Topic()
    topic.publish(3)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    dispatcher.add_consumer(ConsumerInfo(ConsumerId(1), "a"), 0)
    dispatcher.flow(ConsumerId(1), 1)
    assert dispatcher.wanted() is not None
    assert dispatcher.wanted() is None


@pytest.mark.parametrize("examples", [75, pytest.param(500, marks=pytest.mark.long)])
@pytest.mark.parametrize("machine", [SharedMachine, KeySharedMachine, FailoverMachine, ExclusiveMachine])
def test_dispatchers_agree_with_their_models(machine: type[RuleBasedStateMachine], examples: int) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=40, deadline=None))
