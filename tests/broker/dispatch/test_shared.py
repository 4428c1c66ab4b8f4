"""Shared: turns, priorities, limits, chunks, partly acknowledged batches, delayed delivery."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from pulsar_on_spark.broker.dispatch import shared
from pulsar_on_spark.broker.dispatch.dispatcher import Dispatcher
from pulsar_on_spark.broker.dispatch.key_shared import KeySharedDispatcher
from pulsar_on_spark.broker.dispatch.limits import DispatchLimits
from pulsar_on_spark.broker.dispatch.shared import SharedDispatcher
from pulsar_on_spark.broker.dispatch.single_active import SingleActiveDispatcher
from pulsar_on_spark.broker.dispatch.values import Ack, Chunk, ConsumerId, KeySharedPolicy
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import EntryId, LedgerId
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import Cursor
from tests.broker.dispatch.topic_model import Topic, ack, join, nack, positions, pump

LIMITS = DispatchLimits()
AT_ONCE = replace(LIMITS, active_consumer_failover_delay_time_millis=0)


def test_entries_go_round_in_turns_of_twenty_messages() -> None:
    topic = Topic()
    topic.publish(60)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    for number in (1, 2, 3):
        join(dispatcher, number, 100)
    got = [delivery.consumer for delivery in pump(dispatcher, topic)]
    assert got == [1] * 20 + [2] * 20 + [3] * 20


def test_single_messages_go_round_the_consumers() -> None:
    topic = Topic()
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    for number in (1, 2, 3):
        join(dispatcher, number, 100)
    got = []
    for _ in range(6):
        topic.publish()
        got += [delivery.consumer for delivery in pump(dispatcher, topic)]
    assert got == [1, 2, 3, 1, 2, 3]


def test_the_lowest_priority_number_gets_all_messages_while_it_has_permits() -> None:
    topic = Topic()
    topic.publish(50)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    join(dispatcher, 1, 100, priority=1)
    join(dispatcher, 2, 15)
    join(dispatcher, 3, 15)
    assert Counter(delivery.consumer for delivery in pump(dispatcher, topic)) == {1: 20, 2: 15, 3: 15}


def test_a_batch_may_take_permits_below_zero_once() -> None:
    topic = Topic()
    topic.publish(3, messages=10)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    consumer = join(dispatcher, 1, 1)
    assert positions(pump(dispatcher, topic)) == [(1, 0)]
    assert dispatcher.stats().consumers[0].permits == -9
    dispatcher.flow(consumer, 9)
    assert pump(dispatcher, topic) == []
    assert "no permits" in str(dispatcher.stats().consumers[0].blocked)
    dispatcher.flow(consumer, 1)
    assert positions(pump(dispatcher, topic)) == [(1, 1)]


def test_a_partly_acknowledged_batch_takes_permits_for_its_remaining_messages() -> None:
    topic = Topic()
    topic.publish(1, messages=5)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    consumer = join(dispatcher, 1, 100)
    pump(dispatcher, topic)
    dispatcher.ack(consumer, [Ack.of(LedgerId(1), EntryId(0), [0b10110])])
    assert dispatcher.stats().unacked == 3
    nack(dispatcher, consumer, (1, 0))
    assert dispatcher.stats().unacked == 0
    (delivery,) = pump(dispatcher, topic)
    assert (delivery.ack_set, delivery.permits, delivery.redelivery_count) == (0b10110, 3, 1)
    assert dispatcher.stats().consumers[0].permits == 100 - 5 - 3


def test_an_ack_without_a_set_is_one_of_the_whole_batch() -> None:
    topic = Topic()
    topic.publish(1, messages=5)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    consumer = join(dispatcher, 1, 10)
    pump(dispatcher, topic)
    assert dispatcher.ack(consumer, [Ack.of(LedgerId(1), EntryId(0), (), 5)])
    assert topic.cursor.is_acked(LedgerId(1), EntryId(0))
    assert dispatcher.stats().unacked == 0


@pytest.mark.parametrize("size", [1, 63, 64, 65, 128, 1000])
def test_the_last_message_of_a_batch_counts_without_a_batch_size_in_the_ack(size: int) -> None:
    """Java's BitSet omits zero words at the end: an ack of message 64 of 65 is one word of ones."""
    topic = Topic()
    topic.publish(1, messages=size)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    consumer = join(dispatcher, 1, 1)
    unacked = (1 << size - 1) - 1
    words = [unacked >> at & (1 << 64) - 1 for at in range(0, unacked.bit_length(), 64)] or [0]
    late = Ack.of(LedgerId(1), EntryId(0), words)
    pump(dispatcher, topic)
    assert dispatcher.ack(consumer, [late])
    assert dispatcher.stats().unacked == size - 1
    assert topic.cursor.ack_set(LedgerId(1), EntryId(0)) == unacked


def test_an_ack_of_an_undelivered_entry_is_refused_and_others_count() -> None:
    topic = Topic()
    topic.publish(2)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    consumer = join(dispatcher, 1, 10)
    pump(dispatcher, topic)
    with pytest.raises(InvalidArgumentError, match="Entry 1:7 does not exist"):
        ack(dispatcher, consumer, (1, 7), (1, 0), (1, 1))
    assert topic.cursor.backlog_entries == 0
    assert dispatcher.stats().unacked == 0


def test_an_ack_from_the_entrys_former_consumer_counts() -> None:
    topic = Topic()
    topic.publish(1)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    join(dispatcher, 1, 10)
    pump(dispatcher, topic)
    join(dispatcher, 2, 10)
    dispatcher.set_writable(ConsumerId(1), False)
    nack(dispatcher, 1, (1, 0))
    assert positions(pump(dispatcher, topic), 2) == [(1, 0)]
    assert ack(dispatcher, 1, (1, 0))
    assert dispatcher.stats().unacked == 0


def test_cumulative_acks_are_ignored() -> None:
    topic = Topic()
    topic.publish(3)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    join(dispatcher, 1, 10)
    pump(dispatcher, topic)
    assert not ack(dispatcher, 1, (1, 2), cumulative=True)
    assert topic.cursor.backlog_entries == 3


def test_entries_of_a_closed_consumer_come_first_and_are_not_redeliveries() -> None:
    topic = Topic()
    topic.publish(4)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    join(dispatcher, 1, 4)
    pump(dispatcher, topic)
    topic.publish(2)
    join(dispatcher, 2, 10)
    dispatcher.remove_consumer(ConsumerId(1), 0)
    deliveries = pump(dispatcher, topic)
    assert positions(deliveries) == [(1, entry) for entry in range(6)]
    assert {delivery.redelivery_count for delivery in deliveries} == {0}


def test_redeliveries_are_counted_until_the_entry_is_acknowledged() -> None:
    topic = Topic()
    topic.publish(1)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    consumer = join(dispatcher, 1, 10)
    for count in range(3):
        assert [delivery.redelivery_count for delivery in pump(dispatcher, topic)] == [count]
        dispatcher.redeliver(consumer, None)
    dispatcher.redeliver(consumer, None)  # it has nothing
    assert [delivery.redelivery_count for delivery in pump(dispatcher, topic)] == [3]


def test_acknowledged_entries_are_forgotten() -> None:
    topic = Topic()
    topic.publish(300)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    consumer = join(dispatcher, 1, 1_000)
    pump(dispatcher, topic)
    dispatcher.redeliver(consumer, None)
    pump(dispatcher, topic)
    nack(dispatcher, 1, *((1, entry) for entry in range(0, 300, 2)))
    for entry in range(100):
        ack(dispatcher, 1, (1, entry))
    assert sorted(dispatcher._redeliveries) == [(1, entry) for entry in range(100, 300)]
    topic.cursor.acknowledge_through(LedgerId(1), EntryId(199))
    dispatcher.forget_acked()
    stats = dispatcher.stats()
    assert (stats.unacked, stats.waiting) == (50, 50)
    assert sorted(dispatcher._redeliveries) == [(1, entry) for entry in range(200, 300)]


def test_fifty_thousand_unacked_messages_block_a_consumer_until_half_are_acknowledged() -> None:
    limits = replace(LIMITS, max_unacked_messages_per_consumer=50_000)
    topic = Topic()
    topic.publish(60, messages=1_000)
    dispatcher = SharedDispatcher(topic.cursor, limits)
    join(dispatcher, 1, 1_000_000)
    assert len(pump(dispatcher, topic)) == 50
    assert "50000 unacked messages" in str(dispatcher.stats().consumers[0].blocked)
    for entry in range(24):
        ack(dispatcher, 1, (1, entry))
        assert pump(dispatcher, topic) == []
    ack(dispatcher, 1, (1, 24))
    assert positions(pump(dispatcher, topic)) == [(1, entry) for entry in range(50, 60)]


def test_two_hundred_thousand_unacked_messages_block_the_subscription() -> None:
    topic = Topic()
    topic.publish(300, messages=1_000)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    for number in range(1, 7):
        join(dispatcher, number, 1_000_000)
    assert len(pump(dispatcher, topic)) == 200
    assert "200000 unacked messages" in str(dispatcher.stats().blocked)
    dispatcher.remove_consumer(ConsumerId(1), 0)
    assert dispatcher.stats().blocked is not None
    for number in (2, 3, 4):
        dispatcher.remove_consumer(ConsumerId(number), 0)
    assert dispatcher.stats().blocked is None
    assert pump(dispatcher, topic)


def test_the_chunks_of_a_message_go_to_one_consumer() -> None:
    topic = Topic()
    limits = replace(LIMITS, dispatcher_max_round_robin_batch_size=1)
    dispatcher = SharedDispatcher(topic.cursor, limits)
    for number in (1, 2):
        join(dispatcher, number, 100)
    for number in range(3):
        for uuid in ("p-1", "p-2", "p-3"):
            topic.publish(chunk=Chunk(uuid, number, 3))
    deliveries = pump(dispatcher, topic)
    by_uuid: dict[str, set[int]] = {}
    for delivery in deliveries:
        chunk = topic.infos[delivery.ledger, delivery.entry].chunk
        assert chunk is not None
        by_uuid.setdefault(chunk.uuid, set()).add(delivery.consumer)
    assert [len(consumers) for consumers in by_uuid.values()] == [1, 1, 1]
    assert set.union(*by_uuid.values()) == {1, 2}


def test_a_chunk_waits_for_the_consumer_that_has_the_others_while_others_get_the_rest() -> None:
    topic = Topic()
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    join(dispatcher, 1, 1)
    topic.publish(chunk=Chunk("p-1", 0, 2))
    pump(dispatcher, topic)
    join(dispatcher, 2, 10)
    topic.publish(chunk=Chunk("p-1", 1, 2))
    topic.publish(2)
    assert positions(pump(dispatcher, topic), 2) == [(1, 2), (1, 3)]
    assert dispatcher.stats().waiting == 1
    dispatcher.flow(ConsumerId(1), 1)
    assert positions(pump(dispatcher, topic), 1) == [(1, 1)]


def test_returned_chunks_follow_the_first_one_to_another_consumer() -> None:
    topic = Topic()
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    join(dispatcher, 1, 3)
    for number in range(3):
        topic.publish(chunk=Chunk("p-1", number, 3))
    pump(dispatcher, topic)
    join(dispatcher, 2, 1)
    dispatcher.redeliver(ConsumerId(1), None)
    assert positions(pump(dispatcher, topic), 2) == [(1, 0)]
    dispatcher.flow(ConsumerId(1), 10)
    assert pump(dispatcher, topic) == []
    assert dispatcher.stats().waiting == 2
    dispatcher.flow(ConsumerId(1), -10)
    dispatcher.flow(ConsumerId(2), 10)
    assert positions(pump(dispatcher, topic), 2) == [(1, 1), (1, 2)]


def test_chunks_of_a_closed_consumer_restart_at_another() -> None:
    topic = Topic()
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    join(dispatcher, 1, 1)
    topic.publish(chunk=Chunk("p-1", 0, 2))
    pump(dispatcher, topic)
    join(dispatcher, 2, 10)
    topic.publish(chunk=Chunk("p-1", 1, 2))
    assert pump(dispatcher, topic) == []
    dispatcher.remove_consumer(ConsumerId(1), 0)
    assert positions(pump(dispatcher, topic), 2) == [(1, 0), (1, 1)]


def test_a_delayed_entry_is_never_early_and_is_delivered_with_the_next_tick() -> None:
    topic = Topic()
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    join(dispatcher, 1, 100)
    topic.publish(deliver_at_ms=5_500)
    topic.publish(deliver_at_ms=5_200)
    topic.publish()
    assert positions(pump(dispatcher, topic, 5_000)) == [(1, 2)]
    assert (dispatcher.stats().delayed, dispatcher.due_ms) == (2, 5_200)
    dispatcher.handle_due(5_199)
    assert pump(dispatcher, topic, 5_199) == []
    dispatcher.handle_due(5_200)
    assert positions(pump(dispatcher, topic, 5_200)) == [(1, 1)]
    assert dispatcher.due_ms == 6_200
    dispatcher.handle_due(6_200)
    assert positions(pump(dispatcher, topic, 6_200)) == [(1, 0)]
    assert dispatcher.due_ms is None


def test_delayed_entries_do_not_wait_for_a_clock_that_was_set_back() -> None:
    topic = Topic()
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    join(dispatcher, 1, 100)
    topic.publish(deliver_at_ms=5_000_000)
    pump(dispatcher, topic, 4_000_000)
    dispatcher.handle_due(5_000_000)
    topic.publish(deliver_at_ms=1_002_000)
    assert positions(pump(dispatcher, topic, 1_000_000)) == [(1, 0)]
    assert dispatcher.due_ms == 1_002_000


def test_delayed_entries_beyond_the_limit_are_found_again_by_reading() -> None:
    """The memory of delayed messages is bounded, and no message is lost. (Pulsar's users complain of this memory.)"""
    limits = replace(LIMITS, max_delayed_entries=10)
    topic = Topic()
    dispatcher = SharedDispatcher(topic.cursor, limits)
    join(dispatcher, 1, 10_000)
    due = {}
    for number in range(500):
        deliver_at_ms = 10_000 + number * 7_919 % 60_000
        (position,) = topic.publish(deliver_at_ms=deliver_at_ms)
        due[position] = deliver_at_ms
    got: dict[tuple[int, int], int] = {}
    for now_ms in range(0, 72_000, 500):
        dispatcher.handle_due(now_ms)
        for position in positions(pump(dispatcher, topic, now_ms)):
            assert position not in got
            got[position] = now_ms
        assert dispatcher.stats().delayed <= 10
    assert got.keys() == due.keys()
    assert all(due[position] <= at_ms <= due[position] + 1_500 for position, at_ms in got.items())


def test_forgotten_delayed_entries_are_found_also_if_others_are_being_read_when_they_are_due() -> None:
    limits = replace(LIMITS, max_delayed_entries=2)
    topic = Topic()
    dispatcher = SharedDispatcher(topic.cursor, limits)
    join(dispatcher, 1, 100)
    topic.publish(5, deliver_at_ms=5_000)
    assert pump(dispatcher, topic) == []
    topic.publish(1)
    wanted = dispatcher.wanted()
    assert wanted is not None
    dispatcher.handle_due(5_000)
    late = dispatcher.offer(wanted, topic.read(wanted), 5_000)
    assert sorted(positions([*late, *pump(dispatcher, topic, 5_000)])) == sorted(topic.infos)


def test_only_entries_with_permits_are_read() -> None:
    topic = Topic()
    topic.publish(1_000, messages=10)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    join(dispatcher, 1, 10_000)
    pump(dispatcher, topic)
    topic.publish(1_000, messages=10)
    dispatcher.flow(ConsumerId(1), 30)
    wanted = dispatcher.wanted()
    assert wanted is not None
    assert wanted.max_entries == 3


def test_entries_that_were_not_wanted_are_refused() -> None:
    topic = Topic()
    topic.publish(3)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    join(dispatcher, 1, 10)
    wanted = dispatcher.wanted()
    assert wanted is not None
    with pytest.raises(InvalidArgumentError, match="answer in order"):
        dispatcher.offer(wanted, topic.read(wanted)[1:], 0)


def test_a_higher_limit_frees_a_consumer_that_is_blocked() -> None:
    topic = Topic()
    topic.publish(3)
    dispatcher = SharedDispatcher(topic.cursor, replace(LIMITS, max_unacked_messages_per_consumer=2))
    join(dispatcher, 1, 10)
    assert positions(pump(dispatcher, topic)) == [(1, 0), (1, 1)]
    dispatcher.apply_limits(replace(LIMITS, max_unacked_messages_per_consumer=4))  # two messages are unacknowledged
    assert positions(pump(dispatcher, topic)) == [(1, 2)]
    dispatcher.apply_limits(replace(LIMITS, max_unacked_messages_per_consumer=2))
    topic.publish()
    assert pump(dispatcher, topic) == []


def test_entries_returned_with_an_epoch_are_redelivered_under_it() -> None:
    topic = Topic()
    topic.publish(2)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    consumer = join(dispatcher, 1, 10)
    pump(dispatcher, topic)
    dispatcher.redeliver(consumer, None, epoch=3)
    assert [delivery.epoch for delivery in pump(dispatcher, topic)] == [3, 3]


def test_above_the_limit_the_oldest_chunked_message_is_not_bound_to_its_consumer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared, "MAX_CHUNKED_MESSAGES", 2)
    topic = Topic()
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    join(dispatcher, 1, 3)
    for uuid in ("p-1", "p-2", "p-3"):
        topic.publish(chunk=Chunk(uuid, 0, 2))
    pump(dispatcher, topic)
    join(dispatcher, 2, 10)
    for uuid in ("p-1", "p-2", "p-3"):
        topic.publish(chunk=Chunk(uuid, 1, 2))
    assert positions(pump(dispatcher, topic), 2) == [(1, 3)]


@pytest.mark.parametrize(
    "make",
    [
        lambda cursor: SharedDispatcher(cursor, LIMITS),
        lambda cursor: KeySharedDispatcher(cursor, LIMITS, KeySharedPolicy()),
        lambda cursor: SingleActiveDispatcher(cursor, AT_ONCE, is_failover=True),
    ],
    ids=["Shared", "Key_Shared", "Failover"],
)
def test_permits_of_a_closed_consumer_change_nothing(make: Callable[[Cursor], Dispatcher]) -> None:
    topic = Topic()
    topic.publish(2)
    dispatcher = make(topic.cursor)
    gone = join(dispatcher, 1, 10)
    dispatcher.remove_consumer(gone, 0)
    before = dispatcher.stats()
    dispatcher.flow(gone, 10)
    dispatcher.set_writable(gone, False)
    dispatcher.redeliver(gone, None, epoch=3)
    assert dispatcher.remove_consumer(gone, 0) == []
    assert dispatcher.stats() == before
    join(dispatcher, 2, 10)
    assert positions(pump(dispatcher, topic), 2) == [(1, 0), (1, 1)]


def test_a_seek_delivers_again_what_consumers_hold() -> None:
    topic = Topic()
    topic.publish(2)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    join(dispatcher, 1, 10)
    assert positions(pump(dispatcher, topic)) == [(1, 0), (1, 1)]
    dispatcher.restart_reading()
    assert dispatcher.stats().unacked == 0
    assert positions(pump(dispatcher, topic)) == [(1, 0), (1, 1)]


def test_markers_are_acknowledged_and_not_delivered() -> None:
    topic = Topic()
    topic.publish(1, is_marker=True)
    topic.publish(1)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    join(dispatcher, 1, 10)
    assert positions(pump(dispatcher, topic)) == [(1, 1)]
    assert topic.unacked() == [(1, 1)]


def test_an_entry_that_expired_at_its_consumer_does_not_come_back() -> None:
    topic = Topic()
    topic.publish(2)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    join(dispatcher, 1, 10)
    pump(dispatcher, topic)
    topic.cursor.acknowledge(LedgerId(1), EntryId(0))
    dispatcher.remove_consumer(ConsumerId(1), 0)
    join(dispatcher, 2, 10)
    assert positions(pump(dispatcher, topic)) == [(1, 1)]


def test_a_delayed_entry_that_expires_before_its_time_is_not_delivered() -> None:
    topic = Topic()
    topic.publish(2, deliver_at_ms=1_000)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    join(dispatcher, 1, 10)
    assert pump(dispatcher, topic) == []
    topic.cursor.acknowledge(LedgerId(1), EntryId(0))
    dispatcher.handle_due(10_000)
    assert positions(pump(dispatcher, topic, 10_000)) == [(1, 1)]


def test_a_waiting_entry_that_expires_is_not_read_again() -> None:
    topic = Topic()
    topic.publish(2)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    join(dispatcher, 1, 10)
    pump(dispatcher, topic)
    dispatcher.set_writable(ConsumerId(1), False)
    nack(dispatcher, 1, (1, 0), (1, 1))
    topic.cursor.acknowledge(LedgerId(1), EntryId(0))
    dispatcher.forget_acked()
    dispatcher.set_writable(ConsumerId(1), True)
    assert positions(pump(dispatcher, topic)) == [(1, 1)]


def test_a_consumer_that_comes_during_the_read_of_waiting_entries_gets_none_twice() -> None:
    topic = Topic()
    topic.publish(2)
    dispatcher = SharedDispatcher(topic.cursor, LIMITS)
    join(dispatcher, 1, 10)
    pump(dispatcher, topic)
    nack(dispatcher, 1, (1, 0), (1, 1))
    wanted = dispatcher.wanted()
    assert wanted is not None
    join(dispatcher, 2, 10)
    assert sorted(positions(dispatcher.offer(wanted, topic.read(wanted), 0))) == [(1, 0), (1, 1)]
    assert pump(dispatcher, topic) == []
