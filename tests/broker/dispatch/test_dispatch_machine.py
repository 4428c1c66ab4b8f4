"""All dispatchers against plain models, while consumers come, go, acknowledge, give back, stall and seek."""

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
from tests.broker.dispatch.topic_model import Place, Topic

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
        self.out: dict[Place, int] = {}
        self.given_back: dict[Place, int] = defaultdict(int)
        self.reading: Wanted | None = None
        self.unacked: dict[Place, set[int]] = {}
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
        for place in self.topic.publish(
            count, messages=messages, key=key, deliver_at_ms=deliver_at_ms, is_marker=is_marker
        ):
            if not is_marker:
                self.unacked[place] = set(range(messages))

    @precondition(lambda self: len(self.topic.infos) < MAX_ENTRIES)
    @rule(total=st.integers(2, 4), key=st.sampled_from(KEYS))
    def publish_chunks(self, total: int, key: bytes) -> None:
        """Of two producers at once."""
        self.chunked += 2
        for number in range(total):
            for uuid in (self.chunked, self.chunked + 1):
                (place,) = self.topic.publish(key=key, chunk=Chunk(f"producer-{uuid}", number, total))
                self.unacked[place] = {0}

    @precondition(lambda self: len(self.topic.ledgers) < 4)
    @rule()
    def next_ledger(self) -> None:
        self.topic.next_ledger()

    @precondition(lambda self: self.unacked)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        """Somebody else acknowledges everything up to an entry."""
        ledger, entry = data.draw(st.sampled_from(sorted(self.unacked)[:3]))
        self.topic.cursor.acknowledge_through(LedgerId(ledger), EntryId(entry))
        self.dispatcher.forget_acked()
        for place in [place for place in self.unacked if place <= (ledger, entry)]:
            self.acked(place)

    def acked(self, place: Place) -> None:
        self.unacked.pop(place, None)
        self.out.pop(place, None)
        self.given_back.pop(place, None)
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
        self.out = {place: holder for place, holder in self.out.items() if holder != consumer}
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
        """Mostly what a consumer has; sometimes what it had."""
        consumer = self.some_consumer(data)
        found = sorted(self.unacked if late else self.held_by(consumer))
        if not found:
            return
        some = data.draw(st.lists(st.sampled_from(found), min_size=1, max_size=5, unique=True))
        acks = [Ack(LedgerId(ledger), EntryId(entry)) for ledger, entry in some]
        assert self.dispatcher.ack(ConsumerId(consumer), acks)
        for place in some:
            self.acked(place)

    def held_by(self, consumer: int) -> list[Place]:
        return [place for place, holder in self.out.items() if holder == consumer]

    @precondition(lambda self: self.unacked and self.permits)
    @rule(data=st.data(), says_size=st.booleans())
    def acknowledge_messages(self, data: st.DataObject, says_size: bool) -> None:
        consumer = self.some_consumer(data)
        place = data.draw(st.sampled_from(sorted(self.unacked)))
        size = self.topic.infos[place].messages
        indexes = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
        word = sum(1 << index for index in range(size) if index not in indexes)
        acked = Ack.of(LedgerId(place[0]), EntryId(place[1]), [word], size if says_size else 0)
        changed = self.dispatcher.ack(ConsumerId(consumer), [acked])
        assert changed == bool(indexes & self.unacked[place])
        self.unacked[place] -= indexes
        if not self.unacked[place]:
            self.acked(place)
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
        """All of it, a part of it, or nothing."""
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
        place = (delivery.ledger, delivery.entry)
        consumer = delivery.consumer
        info = self.topic.infos[place]
        left = self.unacked[place]
        assert self.writable[consumer] or not self.is_pool
        assert self.permits[consumer] > 0, "no permits"
        assert delivery.permits == len(left)
        assert delivery.ack_set == (sum(1 << x for x in left) if len(left) < info.messages else 0)
        self.permits[consumer] -= delivery.permits

    def may_get(self, consumer: int) -> bool:
        return self.permits[consumer] > 0 and self.writable[consumer] and consumer not in self.full

    def note_limits(self) -> None:
        """Blocked from the limit on, until half of it is reached."""

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
            place: set(range(info.messages))
            for place, info in self.topic.infos.items()
            if place >= (ledger, entry) and not info.is_marker
        }
        self.sought()

    def sought(self) -> None:
        """Hook for machines whose consumers are served one at a time: after a seek."""

    # -- everything arrives ----------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Whatever happened: with consumers that take all and acknowledge, all is delivered and acknowledged."""
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
            self.stands_still()
            if not self.topic.cursor.backlog_entries:
                break
            self.acknowledge_all()
            self.time_passes(2_000)
        assert not self.unacked, f"not delivered: {sorted(self.unacked)}"
        assert self.topic.cursor.backlog_entries == 0

    def stands_still(self) -> None:
        """Nothing is wanted although all take everything: why it may be so."""

    def acknowledge_all(self) -> None:
        for place in sorted(self.out):
            holder = self.out[place]
            self.dispatcher.ack(ConsumerId(holder), [Ack(LedgerId(place[0]), EntryId(place[1]))])
            self.acked(place)


class Pool(Consumers):
    """Shared, and what Key_Shared adds below: no entry is at two consumers, no consumer exceeds its limits."""

    def note_limits(self) -> None:
        held: dict[int, int] = defaultdict(int)
        for place, consumer in self.out.items():
            held[consumer] += len(self.unacked[place])
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
        place = (delivery.ledger, delivery.entry)
        info = self.topic.infos[place]
        assert place not in self.out, "it is out already"
        assert delivery.consumer not in self.full
        assert not self.full_pool
        assert info.deliver_at_ms is None or info.deliver_at_ms <= self.now_ms, "too early"
        assert delivery.redelivery_count == self.given_back[place]
        super().delivered(delivery)
        self.out[place] = delivery.consumer
        self.note_limits()

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        """Negative acknowledgements, of which some may be stale."""
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

    def came_back(self, consumer: int, found: list[Place]) -> None:
        for place in found:
            if self.out.get(place) == consumer:
                del self.out[place]
                self.given_back[place] += 1
        self.note_limits()

    @invariant()
    def counts_agree(self) -> None:
        stats = self.dispatcher.stats()
        held: dict[int, int] = defaultdict(int)
        for place, consumer in self.out.items():
            held[consumer] += len(self.unacked[place])
        assert {found.id: (found.permits, found.unacked) for found in stats.consumers} == {
            consumer: (permits, held[consumer]) for consumer, permits in self.permits.items()
        }
        assert stats.unacked == sum(held.values())
        assert stats.delayed <= LIMITS.max_delayed_entries
        assert stats.waiting <= len(self.unacked.keys() - self.out.keys()), "no acknowledged entry waits"
        assert (stats.blocked is not None) == self.full_pool
        for found in stats.consumers:
            if not self.may_get(found.id):
                assert found.blocked is not None

    def eligible(self) -> list[Place]:
        return [
            place
            for place in self.unacked
            if place not in self.out and (self.topic.infos[place].deliver_at_ms or 0) <= self.now_ms - 1_000
        ]


class SharedMachine(Pool):
    def make(self) -> Dispatcher:
        return SharedDispatcher(self.topic.cursor, LIMITS)

    @precondition(lambda self: self.reading is None)
    @rule()
    def whoever_can_take_gets(self) -> None:
        """No stall: as long as a consumer may get something, what is eligible goes out."""
        for _ in range(200):
            wanted = self.dispatcher.wanted()
            if wanted is None:
                break
            self.reading = wanted
            self.offer(self.topic.read(wanted))
        else:
            raise AssertionError("it wants and wants")
        self.stands_still()

    def stands_still(self) -> None:
        able = [self.may_get(x) for x in self.permits]
        if self.full_pool or not any(able):
            return
        waiting = self.eligible()
        if not all(able):  # chunks may wait for the consumer that has the others of their message
            waiting = [place for place in waiting if self.topic.infos[place].chunk is None]
        assert not waiting or self.look_ahead_is_full(), "a deliverable entry waits"

    def look_ahead_is_full(self) -> bool:
        return self.dispatcher.stats().waiting >= LIMITS.key_shared_look_ahead_per_consumer * len(self.permits)


class KeySharedMachine(Pool):
    def make(self) -> Dispatcher:
        return KeySharedDispatcher(self.topic.cursor, LIMITS, KeySharedPolicy())

    def delivered(self, delivery: Delivery) -> None:
        """All of a key before it is acknowledged or at the same consumer; delayed entries are overtaken."""
        place = (delivery.ledger, delivery.entry)
        key = self.topic.infos[place].key
        for other, holder in self.out.items():
            assert self.topic.infos[other].key != key or holder == delivery.consumer, "two consumers have a key"
        for other in self.unacked:
            info = self.topic.infos[other]
            if other < place and info.key == key and info.deliver_at_ms is None:
                assert self.out.get(other) == delivery.consumer, "a key out of order"
        super().delivered(delivery)

    @precondition(lambda self: self.reading is None)
    @rule()
    def whoever_can_take_gets(self) -> None:
        """No stall: a key of which nothing is out, and whose consumer may get something, goes out."""
        for _ in range(200):
            wanted = self.dispatcher.wanted()
            if wanted is None:
                break
            self.reading = wanted
            self.offer(self.topic.read(wanted))
        else:
            raise AssertionError("it wants and wants")
        if self.full_pool or not all(map(self.may_get, self.permits)) or not self.permits:
            return
        self.only_held_keys_wait()

    def stands_still(self) -> None:
        if not (self.full_pool or self.full):
            self.only_held_keys_wait()

    def only_held_keys_wait(self) -> None:
        held = {self.topic.infos[place].key for place in self.out}
        waiting = self.dispatcher.stats().waiting
        unread = waiting >= min(
            LIMITS.key_shared_look_ahead_per_consumer * len(self.permits), LIMITS.key_shared_look_ahead_per_subscription
        )
        free = [place for place in self.eligible() if self.topic.infos[place].key not in held]
        assert unread or not free, "a deliverable key waits"
        assert not unread or held, "all keys wait without a cause"


class FailoverMachine(Consumers):
    """In order from where it stood; after giving back or a change of the active consumer from the mark-delete on."""

    is_pool = False
    is_failover = True

    def make(self) -> Dispatcher:
        self.position: Place = (0, 0)
        self.active: int | None = None
        self.known: dict[int, tuple[int, str, int]] = {}
        self.untold: set[int] = set()
        self.change_at_ms: int | None = None
        return SingleActiveDispatcher(self.topic.cursor, LIMITS, is_failover=self.is_failover, partition=1)

    def elected(self) -> int:
        """Among those of the lowest priority number, by name, the second or, of one, the first."""
        best = sorted(found for found in self.known.values() if found[0] == min(self.known.values())[0])
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
        told = self.is_failover and self.elected() != info.id
        assert effects == [ActiveConsumerChanged(info.id, False)] * told
        if self.elected() == info.id:
            self.untold.add(info.id)
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
        told = self.untold - {self.active}  # who was passed over before the delay had ended
        if self.elected() != self.active:
            self.active, self.position = self.elected(), (0, 0)
            told = set(self.known)
        self.untold.clear()
        assert dict(effects) == {consumer: consumer == self.active for consumer in told & self.known.keys()}

    def held_by(self, consumer: int) -> list[Place]:
        return [place for place in self.unacked if place < self.position]

    def may_get(self, consumer: int) -> bool:
        return consumer == self.active and self.change_at_ms is None and super().may_get(consumer)

    def delivered(self, delivery: Delivery) -> None:
        place = (delivery.ledger, delivery.entry)
        assert delivery.consumer == self.active
        assert self.change_at_ms is None, "while the active consumer changes"
        assert place == min(x for x in self.unacked if x >= self.position), "out of order"
        assert delivery.redelivery_count == 0
        super().delivered(delivery)
        self.position = (place[0], place[1] + 1)

    @precondition(lambda self: self.unacked and self.permits)
    @rule(data=st.data())
    def acknowledge_through(self, data: st.DataObject) -> None:
        ledger, entry = data.draw(st.sampled_from(sorted(self.unacked)[:5]))
        ack = Ack(LedgerId(ledger), EntryId(entry))
        assert self.dispatcher.ack(ConsumerId(self.some_consumer(data)), [ack], cumulative=True)
        for place in [place for place in self.unacked if place <= (ledger, entry)]:
            self.acked(place)

    @precondition(lambda self: self.permits)
    @rule(data=st.data(), everything=st.booleans())
    def give_back(self, data: st.DataObject, everything: bool) -> None:
        consumer = self.some_consumer(data)
        self.dispatcher.redeliver(ConsumerId(consumer), None if everything else [], self.count)
        if consumer == self.active:
            self.position = (0, 0)

    @precondition(lambda self: self.reading is None)
    @rule()
    def the_active_one_gets(self) -> None:
        for _ in range(200):
            wanted = self.dispatcher.wanted()
            if wanted is None:
                break
            self.reading = wanted
            self.offer(self.topic.read(wanted))
        else:
            raise AssertionError("it wants and wants")
        if self.active is not None and self.may_get(self.active):
            assert all(place < self.position for place in self.unacked)

    def sought(self) -> None:
        self.position = (0, 0)

    @invariant()
    def is_told_why(self) -> None:
        for found in self.dispatcher.stats().consumers:
            assert found.permits == self.permits[found.id]
            assert self.change_at_ms is not None or (found.blocked is None) == self.may_get(found.id)

    def stands_still(self) -> None:
        assert self.active is None or self.change_at_ms is not None or not any(x >= self.position for x in self.unacked)

    def acknowledge_all(self) -> None:
        for place in sorted(self.held_by(0)):
            self.dispatcher.ack(ConsumerId(1), [Ack(LedgerId(place[0]), EntryId(place[1]))])
            self.acked(place)


class ExclusiveMachine(FailoverMachine):
    is_failover = False

    def admits(self) -> bool:
        return not self.permits


def test_wanted_is_none_while_a_read_is_under_way() -> None:
    topic = Topic()
    topic.publish(3)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    dispatcher.add_consumer(ConsumerInfo(ConsumerId(1), "a"), 0)
    dispatcher.flow(ConsumerId(1), 1)
    assert dispatcher.wanted() is not None
    assert dispatcher.wanted() is None


@pytest.mark.parametrize("examples", [75, pytest.param(500, marks=pytest.mark.long)])
@pytest.mark.parametrize("machine", [SharedMachine, KeySharedMachine, FailoverMachine, ExclusiveMachine])
def test_dispatch_keeps_its_promises(machine: type[RuleBasedStateMachine], examples: int) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=40, deadline=None))
