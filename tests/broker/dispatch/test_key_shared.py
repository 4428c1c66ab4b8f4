"""Key_Shared: which consumer has which keys, and the stalls that users of Pulsar have reported."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import pyarrow as pa
import pytest

from pulsar_on_spark.broker.dispatch.key_shared import KeySharedDispatcher
from pulsar_on_spark.broker.dispatch.keys import AutoSplit, StickyRanges, sticky_key_hash
from pulsar_on_spark.broker.dispatch.limits import DispatchLimits
from pulsar_on_spark.broker.dispatch.values import ConsumerId, ConsumerInfo, KeySharedPolicy
from pulsar_on_spark.model.errors import ConsumerAssignError
from pulsar_on_spark.model.hashing import murmur3_32
from tests.broker.dispatch.topic_model import Topic, ack, join, nack, positions, pump

LIMITS = DispatchLimits()
KEYS = [b"key-%d" % number for number in range(300)]


def spread(dispatcher: KeySharedDispatcher, topic: Topic, times: int = 2) -> dict[bytes, set[int]]:
    """Publish each key several times; return the consumers that got it."""
    for _ in range(times):
        for key in KEYS:
            topic.publish(key=key)
    got: dict[bytes, set[int]] = defaultdict(set)
    for delivery in pump(dispatcher, topic):
        key = topic.infos[delivery.ledger, delivery.entry].key
        assert key is not None
        got[key].add(delivery.consumer)
    return got


def owner_among(key: bytes, *consumers: int) -> int | None:
    split = AutoSplit()
    for number in consumers:
        split.add(ConsumerInfo(ConsumerId(number), f"c{number}"))
    return split.consumer(split.slot(key))


def test_a_key_has_one_consumer_and_consumers_have_even_shares() -> None:
    topic = Topic()
    dispatcher = KeySharedDispatcher(topic.cursor, LIMITS, KeySharedPolicy())
    for number in range(1, 5):
        join(dispatcher, number, 10_000)
    got = spread(dispatcher, topic)
    assert all(len(consumers) == 1 for consumers in got.values())
    shares = Counter(consumer for (consumer,) in got.values())
    assert len(shares) == 4
    assert min(shares.values()) > 300 / 4 / 2


def test_few_keys_move_when_a_consumer_joins_or_leaves() -> None:
    split = AutoSplit()
    for number in range(1, 9):
        split.add(ConsumerInfo(ConsumerId(number), f"c{number}"))
    slots = range(1, 65)
    before = {slot: split.consumer(slot) for slot in slots}
    assert Counter(Counter(before.values()).values()) == {8: 8}
    split.add(ConsumerInfo(ConsumerId(9), "c9"))
    during = {slot: split.consumer(slot) for slot in slots}
    assert all(during[slot] in (before[slot], 9) for slot in slots)
    split.remove(ConsumerId(9))
    after = {slot: split.consumer(slot) for slot in slots}
    assert all(after[slot] == during[slot] for slot in slots if during[slot] != 9)


def test_two_consumers_with_one_name_have_a_share_each() -> None:
    split = AutoSplit()
    split.add(ConsumerInfo(ConsumerId(1), "same"))
    split.add(ConsumerInfo(ConsumerId(2), "same"))
    assert Counter(split.consumer(slot) for slot in range(1, 65)) == {1: 32, 2: 32}
    split.remove(ConsumerId(1))
    split.add(ConsumerInfo(ConsumerId(3), "same"))
    assert Counter(split.consumer(slot) for slot in range(1, 65)) == {2: 32, 3: 32}


def test_the_hash_of_a_key_equals_that_of_a_column() -> None:
    keys = [bytes(range(size)) for size in range(40)]
    assert [sticky_key_hash(key) for key in keys] == murmur3_32(pa.array(keys, pa.binary())).tolist()


def test_keys_that_moved_wait_until_their_old_consumer_has_acknowledged() -> None:
    topic = Topic()
    dispatcher = KeySharedDispatcher(topic.cursor, LIMITS, KeySharedPolicy())
    join(dispatcher, 1, 10_000, name="old")
    first = {key: topic.publish(key=key)[0] for key in KEYS}
    pump(dispatcher, topic)
    join(dispatcher, 2, 10_000)
    second = {key: topic.publish(key=key)[0] for key in KEYS}
    stayed = positions(pump(dispatcher, topic), 1)
    moved = [key for key in KEYS if second[key] not in stayed]
    assert 0 < len(moved) < len(KEYS)
    assert dispatcher.stats().waiting == len(moved)
    assert "'old' holds" in str(dispatcher.stats().consumers[1].blocked)
    for key in KEYS:
        ack(dispatcher, 1, first[key])
    assert sorted(positions(pump(dispatcher, topic), 2)) == sorted(second[key] for key in moved)
    assert dispatcher.stats().consumers[1].blocked is None


def test_a_stalled_key_shared_consumer_blocks_only_its_own_keys() -> None:
    """apache/pulsar#8115, #10167, #21199: consumers stop while one of them holds a message and others come and go."""
    topic = Topic()
    dispatcher = KeySharedDispatcher(topic.cursor, LIMITS, KeySharedPolicy())
    join(dispatcher, 1, 100_000)
    (held,) = topic.publish(key=b"held")
    pump(dispatcher, topic)  # and never acknowledged
    present = [1]
    for number in range(2, 30):
        join(dispatcher, number, 100_000)
        present.append(number)
        if number % 3 == 0:
            dispatcher.remove_consumer(ConsumerId(present.pop(1)), 0)
        published = {topic.publish(key=key)[0] for key in KEYS}
        while deliveries := pump(dispatcher, topic):
            for delivery in deliveries:
                ack(dispatcher, delivery.consumer, (delivery.ledger, delivery.entry))
                published.discard((delivery.ledger, delivery.entry))
        slot = sticky_key_hash(b"held") % 64
        assert {sticky_key_hash(topic.infos[position].key or b"") % 64 for position in published} <= {slot}
    ack(dispatcher, 1, held)
    while deliveries := pump(dispatcher, topic):
        for delivery in deliveries:
            ack(dispatcher, delivery.consumer, (delivery.ledger, delivery.entry))
    assert topic.cursor.backlog_entries == 0


def test_stalled_key_shared_the_holder_that_goes_frees_its_keys_in_order() -> None:
    """apache/pulsar#10284, #23999: keys that stay blocked after their consumer has gone."""
    topic = Topic()
    dispatcher = KeySharedDispatcher(topic.cursor, LIMITS, KeySharedPolicy())
    join(dispatcher, 1, 10_000)
    topic.publish(5, key=b"k")
    pump(dispatcher, topic)
    for number in (2, 3, 4):
        join(dispatcher, number, 10_000)
    topic.publish(5, key=b"k")
    pump(dispatcher, topic)
    dispatcher.remove_consumer(ConsumerId(1), 0)
    deliveries = pump(dispatcher, topic)
    assert positions(deliveries) == [(1, entry) for entry in range(10)]
    assert len({delivery.consumer for delivery in deliveries}) == 1


def test_stalled_key_shared_a_consumer_without_permits_holds_up_others_only_at_the_look_ahead_limit() -> None:
    """apache/pulsar#14902."""
    limits = replace(LIMITS, key_shared_look_ahead_per_consumer=50, key_shared_look_ahead_per_subscription=80)
    topic = Topic()
    dispatcher = KeySharedDispatcher(topic.cursor, limits, KeySharedPolicy())
    join(dispatcher, 1, 0)
    join(dispatcher, 2, 10_000)
    for _ in range(2):
        for key in KEYS:
            topic.publish(key=key)
    fast = positions(pump(dispatcher, topic), 2)
    assert fast
    assert dispatcher.stats().waiting == 80
    assert "80 entries wait for other consumers" in str(dispatcher.stats().consumers[1].blocked)
    dispatcher.flow(ConsumerId(1), 10_000)
    slow = pump(dispatcher, topic)
    assert sorted([*fast, *positions(slow)]) == sorted(topic.infos)


def test_a_returned_entry_precedes_new_ones_of_its_key() -> None:
    topic = Topic()
    dispatcher = KeySharedDispatcher(topic.cursor, LIMITS, KeySharedPolicy())
    join(dispatcher, 1, 10_000)
    topic.publish(3, key=b"k")
    pump(dispatcher, topic)
    topic.publish(1, key=b"k")
    nack(dispatcher, 1, (1, 1))
    deliveries = pump(dispatcher, topic)
    assert positions(deliveries) == [(1, 1), (1, 3)]
    assert [delivery.redelivery_count for delivery in deliveries] == [1, 0]


def test_an_entry_returned_while_later_ones_of_its_key_are_reread_comes_first() -> None:
    topic = Topic()
    dispatcher = KeySharedDispatcher(topic.cursor, LIMITS, KeySharedPolicy())
    join(dispatcher, 1, 10_000)
    topic.publish(3, key=b"k")
    pump(dispatcher, topic)
    nack(dispatcher, 1, (1, 1), (1, 2))
    wanted = dispatcher.wanted()
    assert wanted is not None
    nack(dispatcher, 1, (1, 0))
    assert dispatcher.offer(wanted, topic.read(wanted), 0) == []
    assert positions(pump(dispatcher, topic)) == [(1, 0), (1, 1), (1, 2)]


def test_a_new_entry_does_not_overtake_entries_whose_consumer_gets_permits_during_its_read() -> None:
    topic = Topic()
    dispatcher = KeySharedDispatcher(topic.cursor, LIMITS, KeySharedPolicy())
    join(dispatcher, 1, 10_000)
    join(dispatcher, 2, 0)
    topic.publish(200, key=next(key for key in KEYS if owner_among(key, 1, 2) == 2))
    wanted = dispatcher.wanted()
    assert wanted is not None
    assert dispatcher.offer(wanted, topic.read(wanted), 0) == []
    wanted = dispatcher.wanted()
    assert wanted is not None
    dispatcher.flow(ConsumerId(2), 1_000)
    assert dispatcher.offer(wanted, topic.read(wanted), 0) == []
    assert positions(pump(dispatcher, topic), 2) == sorted(topic.infos)


def test_out_of_order_delivery_does_not_wait_for_pending_keys() -> None:
    topic = Topic()
    dispatcher = KeySharedDispatcher(topic.cursor, LIMITS, KeySharedPolicy(allow_out_of_order=True))
    join(dispatcher, 1, 10_000)
    for key in KEYS:
        topic.publish(key=key)
    pump(dispatcher, topic)
    join(dispatcher, 2, 10_000)
    for key in KEYS:
        topic.publish(key=key)
    assert len(pump(dispatcher, topic)) == len(KEYS)
    assert dispatcher.stats().waiting == 0


def test_out_of_order_an_acknowledged_or_returned_entry_holds_no_key() -> None:
    topic = Topic()
    dispatcher = KeySharedDispatcher(topic.cursor, LIMITS, KeySharedPolicy(allow_out_of_order=True))
    join(dispatcher, 1, 10_000)
    for _ in range(2):
        topic.publish(key=b"k")
    first, second = positions(pump(dispatcher, topic))
    nack(dispatcher, 1, first)
    assert ack(dispatcher, 1, second)
    assert positions(pump(dispatcher, topic)) == [first]
    assert ack(dispatcher, 1, first)
    assert dispatcher.stats().unacked == 0


def test_sticky_consumers_get_their_ranges_and_unassigned_keys_wait() -> None:
    topic = Topic()
    dispatcher = KeySharedDispatcher(topic.cursor, LIMITS, KeySharedPolicy("STICKY"))
    join(dispatcher, 1, 10_000, ranges=((0, 9_999), (20_000, 29_999)))
    join(dispatcher, 2, 10_000, ranges=((10_000, 19_999),))
    got = spread(dispatcher, topic, 1)
    for key, consumers in got.items():
        hash_ = sticky_key_hash(key) % 65_536
        assert consumers == ({2} if 10_000 <= hash_ <= 19_999 else {1})
        assert hash_ < 30_000
    rest = len(KEYS) - len(got)
    assert dispatcher.stats().waiting == rest
    join(dispatcher, 3, 10_000, ranges=((30_000, 65_535),))
    assert len(positions(pump(dispatcher, topic), 3)) == rest


@pytest.mark.parametrize("ranges", [((5, 5),), ((0, 0), (9, 12)), ((10, 10),), ((0, 65_535),)])
def test_sticky_ranges_that_overlap_are_refused(ranges: tuple[tuple[int, int], ...]) -> None:
    split = StickyRanges()
    split.add(ConsumerInfo(ConsumerId(1), "a", ranges=((5, 10),)))
    with pytest.raises(ConsumerAssignError, match="overlaps 5 to 10"):
        split.add(ConsumerInfo(ConsumerId(2), "b", ranges=ranges))
    split.remove(ConsumerId(1))
    split.add(ConsumerInfo(ConsumerId(2), "b", ranges=ranges))


def test_a_hash_below_between_and_above_the_ranges_has_no_consumer() -> None:
    split = StickyRanges()
    split.add(ConsumerInfo(ConsumerId(1), "a", ranges=((5, 10), (20, 30))))
    assert [split.consumer(slot) for slot in (4, 5, 10, 11, 20, 31)] == [None, 1, 1, None, 1, None]


@pytest.mark.parametrize("ranges", [(), ((-1, 5),), ((5, 4),), ((0, 65_536),), ((1, 5), (5, 6))])
def test_missing_and_invalid_sticky_ranges_are_refused(ranges: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ConsumerAssignError):
        StickyRanges().add(ConsumerInfo(ConsumerId(1), "a", ranges=ranges))


def test_the_counted_backlog_equals_the_entries() -> None:
    """apache/pulsar#5202, #15948, #18159: unacked counts and backlogs that drift below zero."""
    topic = Topic()
    dispatcher = KeySharedDispatcher(topic.cursor, LIMITS, KeySharedPolicy())
    for number in (1, 2, 3):
        join(dispatcher, number, 100_000)
    for key in KEYS:
        topic.publish(key=key, messages=3)
    for turn in range(4):
        for delivery in pump(dispatcher, topic):
            position = (delivery.ledger, delivery.entry)
            for consumer in (delivery.consumer, 1, delivery.consumer):  # twice, and by a consumer that does not have it
                if (delivery.entry + turn) % 3 == 0:
                    ack(dispatcher, consumer, position)
                elif (delivery.entry + turn) % 3 == 1:
                    nack(dispatcher, consumer, position, position)
        unacked = topic.unacked()
        assert topic.cursor.backlog_entries == len(unacked)
        stats = dispatcher.stats()
        assert stats.unacked == sum(consumer.unacked or 0 for consumer in stats.consumers)
        assert stats.unacked == 3 * (len(unacked) - stats.waiting)
    for position in topic.unacked():
        ack(dispatcher, 2, position)
    assert (dispatcher.stats().unacked, dispatcher.stats().waiting, topic.cursor.backlog_entries) == (0, 0, 0)
