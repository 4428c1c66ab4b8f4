"""Exclusive and Failover: the active consumer, the entries that a rewind repeats, the notices to clients."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsar_on_spark.broker.dispatch.keys import HASHES, sticky_key_hash
from pulsar_on_spark.broker.dispatch.limits import DispatchLimits
from pulsar_on_spark.broker.dispatch.single_active import SingleActiveDispatcher
from pulsar_on_spark.broker.dispatch.values import ActiveConsumerChanged, ConsumerId, ConsumerInfo, Wanted
from pulsar_on_spark.model.errors import ConsumerAssignError, ConsumerBusyError
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from tests.broker.dispatch.topic_model import Topic, ack, join, positions, pump

LIMITS = DispatchLimits()
AT_ONCE = replace(LIMITS, active_consumer_failover_delay_time_millis=0)


def failover(topic: Topic, partition: int = 0, limits: DispatchLimits = LIMITS) -> SingleActiveDispatcher:
    return SingleActiveDispatcher(topic.cursor, limits, is_failover=True, partition=partition)


def test_an_exclusive_subscription_has_one_consumer() -> None:
    topic = Topic()
    dispatcher = SingleActiveDispatcher(topic.cursor, LIMITS, is_failover=False)
    first = join(dispatcher, 1, 10)
    with pytest.raises(ConsumerBusyError, match="has the consumer 'c1'"):
        join(dispatcher, 2)
    dispatcher.remove_consumer(first, 0)
    topic.publish(2)
    join(dispatcher, 3, 10)
    assert positions(pump(dispatcher, topic), 3) == [(1, 0), (1, 1)]


@pytest.mark.parametrize("partition", range(7))
def test_the_partitions_of_a_topic_spread_over_the_consumers_of_the_first_priority(partition: int) -> None:
    dispatcher = failover(Topic(), partition, AT_ONCE)
    join(dispatcher, 1, name="c", priority=0)
    join(dispatcher, 2, name="a", priority=0)
    join(dispatcher, 3, name="a", priority=1)
    join(dispatcher, 4, name="b", priority=0)
    assert dispatcher.active == [2, 4, 1][partition % 3]


def test_topics_without_partitions_spread_over_the_consumers_of_the_first_priority() -> None:
    """Places on a ring of hashes decide: a consumer that leaves gives its topics to the others, which keep theirs."""

    def active(names: str) -> list[str]:
        found = []
        for number in range(60):
            name = f"persistent://public/default/t{number}"
            dispatcher = SingleActiveDispatcher(Topic().cursor, AT_ONCE, is_failover=True, topic=name)
            for consumer, each in enumerate(names):
                join(dispatcher, consumer, name=each, priority=1 if each == "z" else 0)
            found.append(names[dispatcher.active or 0])
        return found

    before, after = active("abcz"), active("zca")
    assert set(before) == {*"abc"}
    assert min(map(before.count, "abc")) >= 10
    assert all(now == then for then, now in zip(before, after, strict=True) if then != "b")


def test_a_topic_is_placed_as_by_pulsar() -> None:
    """By a slow ring of all places, as in Pulsar's source."""
    names = ["a", "b", "c", "d"]
    ring = {sticky_key_hash(f"{name}{number}".encode()): name for name in names for number in range(100)}
    for number in range(50):
        topic = f"persistent://public/default/t{number}"
        at = sticky_key_hash(topic.encode())
        expected = ring[min((place for place in ring if place >= at), default=min(ring))]
        dispatcher = SingleActiveDispatcher(Topic().cursor, AT_ONCE, is_failover=True, topic=topic)
        for consumer, name in enumerate(names):
            join(dispatcher, consumer, name=name)
        assert names[dispatcher.active or 0] == expected


def test_in_the_first_partition_the_first_by_priority_and_name_is_active() -> None:
    dispatcher = failover(Topic(), limits=AT_ONCE)
    join(dispatcher, 1, name="b", priority=1)
    assert dispatcher.active == 1
    join(dispatcher, 2, name="a", priority=1)
    assert dispatcher.active == 2
    join(dispatcher, 3, name="z", priority=0)
    assert dispatcher.active == 3
    dispatcher.remove_consumer(ConsumerId(3), 0)
    assert dispatcher.active == 2


def test_a_change_of_the_active_consumer_is_delayed_announced_and_rewinds_to_mark_delete() -> None:
    topic = Topic()
    topic.publish(4)
    dispatcher = failover(topic)
    assert dispatcher.add_consumer(ConsumerInfo(ConsumerId(1), "b"), 0) == []
    dispatcher.flow(ConsumerId(1), 100)
    assert pump(dispatcher, topic) == []
    assert dispatcher.due_ms == 1_000
    assert dispatcher.handle_due(999) == []
    assert dispatcher.handle_due(1_000) == [ActiveConsumerChanged(ConsumerId(1), True)]
    assert positions(pump(dispatcher, topic), 1) == [(1, entry) for entry in range(4)]

    assert dispatcher.add_consumer(ConsumerInfo(ConsumerId(2), "c"), 5_000) == [
        ActiveConsumerChanged(ConsumerId(2), False)
    ]
    assert dispatcher.due_ms is None
    assert dispatcher.add_consumer(ConsumerInfo(ConsumerId(3), "a"), 6_000) == []
    dispatcher.flow(ConsumerId(3), 100)
    topic.publish(1)
    assert pump(dispatcher, topic) == []
    assert "another consumer is about to become active" in str(dispatcher.stats().blocked)
    ack(dispatcher, 1, (1, 0), (1, 2))  # late acknowledgements still count
    assert dispatcher.handle_due(7_000) == [
        ActiveConsumerChanged(ConsumerId(1), False),
        ActiveConsumerChanged(ConsumerId(2), False),
        ActiveConsumerChanged(ConsumerId(3), True),
    ]
    assert positions(pump(dispatcher, topic), 3) == [(1, 1), (1, 3), (1, 4)]


def test_a_change_does_not_wait_for_a_clock_that_was_set_back() -> None:
    dispatcher = failover(Topic())
    join(dispatcher, 1, 10, 5_000_000)
    assert dispatcher.handle_due(5_000_500) == []
    assert dispatcher.handle_due(1_000) == [ActiveConsumerChanged(ConsumerId(1), True)]


def test_a_consumer_that_leaves_within_the_delay_changes_and_repeats_nothing() -> None:
    topic = Topic()
    topic.publish(3)
    dispatcher = failover(topic)
    join(dispatcher, 1, 100, name="b")
    dispatcher.handle_due(1_000)
    pump(dispatcher, topic)
    join(dispatcher, 2, 100, 2_000, name="a")
    dispatcher.remove_consumer(ConsumerId(2), 2_500)
    topic.publish(1)
    assert dispatcher.handle_due(3_000) == []
    assert positions(pump(dispatcher, topic)) == [(1, 3)]


def test_a_consumer_that_loses_its_election_within_the_delay_is_notified() -> None:
    """The partition goes to the second consumer by name: first to `c`, then, when `a` comes, to `b` again."""
    dispatcher = SingleActiveDispatcher(Topic().cursor, LIMITS, is_failover=True, partition=1)
    join(dispatcher, 1, 10, name="b")
    dispatcher.handle_due(1_000)
    assert dispatcher.add_consumer(ConsumerInfo(ConsumerId(2), "c"), 2_000) == []
    assert dispatcher.add_consumer(ConsumerInfo(ConsumerId(3), "a"), 2_500) == [
        ActiveConsumerChanged(ConsumerId(3), False)
    ]
    assert dispatcher.handle_due(3_000) == [ActiveConsumerChanged(ConsumerId(2), False)]
    assert dispatcher.active == 1


def test_a_redelivery_restarts_at_mark_delete_under_the_new_epoch() -> None:
    topic = Topic()
    topic.publish(5)
    dispatcher = SingleActiveDispatcher(topic.cursor, LIMITS, is_failover=False)
    consumer = join(dispatcher, 1, 100, epoch=0)
    assert {delivery.epoch for delivery in pump(dispatcher, topic)} == {0}
    ack(dispatcher, 1, (1, 1), cumulative=True)
    ack(dispatcher, 1, (1, 3))
    dispatcher.redeliver(consumer, None, 1)
    deliveries = pump(dispatcher, topic)
    assert positions(deliveries) == [(1, 2), (1, 4)]
    assert [(delivery.epoch, delivery.redelivery_count) for delivery in deliveries] == [(1, 0)] * 2


def test_entries_read_before_a_rewind_are_dropped() -> None:
    topic = Topic()
    topic.publish(5)
    dispatcher = SingleActiveDispatcher(topic.cursor, LIMITS, is_failover=False)
    consumer = join(dispatcher, 1, 2)
    pump(dispatcher, topic)
    dispatcher.flow(consumer, 10)
    wanted = dispatcher.wanted()
    assert wanted is not None
    dispatcher.redeliver(consumer, None)
    assert dispatcher.offer(wanted, topic.read(wanted), 0) == []
    assert positions(pump(dispatcher, topic)) == [(1, entry) for entry in range(5)]


def test_exclusive_consumers_with_hash_ranges_get_their_keys() -> None:
    """Readers of parts of the keys: together they get each entry once."""
    keys = [b"key-%d" % number for number in range(40)]
    found: list[tuple[int, int]] = []
    for ranges in (((0, 20_000), (50_000, 65_535)), ((20_001, 49_999),)):
        topic = Topic()
        for key in keys:
            topic.publish(1, key=key)
        dispatcher = SingleActiveDispatcher(topic.cursor, LIMITS, is_failover=False)
        dispatcher.add_consumer(ConsumerInfo(ConsumerId(1), "c1", ranges=ranges), 0)
        dispatcher.flow(ConsumerId(1), 100)
        got = positions(pump(dispatcher, topic))
        assert 0 < len(got) < len(keys)
        assert all(any(a <= sticky_key_hash(keys[entry]) % HASHES <= b for a, b in ranges) for _, entry in got)
        assert topic.cursor.mark_delete == Position(LedgerId(1), EntryId(0)), "the others are not acknowledged"
        found += got
    assert sorted(found) == [(1, entry) for entry in range(len(keys))]


def test_bad_hash_ranges_of_an_exclusive_consumer_are_refused() -> None:
    dispatcher = SingleActiveDispatcher(Topic().cursor, LIMITS, is_failover=False)
    with pytest.raises(ConsumerAssignError, match="within 0 to 65535"):
        dispatcher.add_consumer(ConsumerInfo(ConsumerId(1), "c1", ranges=((5, 70_000),)), 0)
    join(dispatcher, 2)
    assert dispatcher.active == 2


def test_delayed_entries_are_not_held_back() -> None:
    topic = Topic()
    topic.publish(2, deliver_at_ms=10**15)
    dispatcher = SingleActiveDispatcher(topic.cursor, LIMITS, is_failover=False)
    join(dispatcher, 1, 10)
    assert len(pump(dispatcher, topic)) == 2


def begun_read(topic: Topic) -> tuple[SingleActiveDispatcher, Wanted]:
    """Return the dispatcher of a consumer, and the read that it asks for."""
    dispatcher = SingleActiveDispatcher(topic.cursor, LIMITS, is_failover=False)
    join(dispatcher, 1, 10)
    wanted = dispatcher.wanted()
    assert wanted is not None
    return dispatcher, wanted


def test_an_entry_that_expires_during_its_read_is_not_delivered() -> None:
    topic = Topic()
    topic.publish(2)
    dispatcher, wanted = begun_read(topic)
    topic.cursor.acknowledge(LedgerId(1), EntryId(0))
    assert positions(dispatcher.offer(wanted, topic.read(wanted), 0)) == [(1, 1)]


def test_a_read_without_entries_is_repeated() -> None:
    topic = Topic()
    topic.publish(1)
    dispatcher, wanted = begun_read(topic)
    assert dispatcher.offer(wanted, [], 0) == []
    assert positions(pump(dispatcher, topic)) == [(1, 0)]
