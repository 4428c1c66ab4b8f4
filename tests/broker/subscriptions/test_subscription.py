"""A subscription's loop and its life without storage; with it, official clients test both (`clients/`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from pulsar_on_spark.broker.cursors.keeper import CursorKeeper
from pulsar_on_spark.broker.dispatch.limits import DispatchLimits
from pulsar_on_spark.broker.dispatch.values import Ack, KeySharedPolicy
from pulsar_on_spark.broker.reading.reader import EntryReader
from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.broker.subscriptions import delivering
from pulsar_on_spark.broker.subscriptions.consumer import Consumer, MemoryCursor
from pulsar_on_spark.broker.subscriptions.subscribe_request import SubscribeRequest
from pulsar_on_spark.broker.subscriptions.subscription import Subscription
from pulsar_on_spark.broker.subscriptions.subscription_limits import SubscriptionLimits
from pulsar_on_spark.broker.subscriptions.topic_subscriptions import TopicSubscriptions
from pulsar_on_spark.model.errors import ConsumerBusyError, DataLossError
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.entries.rows import StoredEntry
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import EntryRange
from tests.broker.dispatch.topic_model import Topic
from tests.kit.pulsar_entries import ClientMessage, single_entry
from tests.kit.waiting import until

PART = TopicPart("persistent://public/default/t", "0123456789abcdef" * 2, -1)


class ClientSide:
    """A connection that keeps what is written to it."""

    address = "client:1"
    client_version = "test"
    protocol_version = 21
    is_closed = False
    is_writable = True

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def pending_changed(self, entries: int) -> None:
        raise AssertionError("it publishes nothing")

    def hold_for(self, seconds: float) -> None:
        raise AssertionError("it publishes nothing")

    async def is_alive(self) -> bool:
        return True

    def close(self) -> None:
        self.is_closed = True


class Entries:
    """A reader that returns entries, or fails a given number of times."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.reads = 0

    def read_in_memory(
        self, part: TopicPart, ranges: Sequence[EntryRange], max_entries: int, max_bytes: int
    ) -> list[StoredEntry]:
        return []

    async def read(
        self, part: TopicPart, ranges: Sequence[EntryRange], max_entries: int, max_bytes: int
    ) -> list[StoredEntry]:
        return self._read(ranges)

    def _read(self, ranges: Sequence[EntryRange]) -> list[StoredEntry]:
        self.reads += 1
        if self.reads <= self.failures:
            raise DataLossError("Entry 1:0 is gone.")
        return [
            StoredEntry(x.ledger, EntryId(entry), single_entry(ClientMessage(b"%d" % entry)))
            for x in ranges
            for entry in range(x.first, x.end)
        ]


class InMemory(Entries):
    """A reader that has all entries in memory."""

    def read_in_memory(
        self, part: TopicPart, ranges: Sequence[EntryRange], max_entries: int, max_bytes: int
    ) -> list[StoredEntry]:
        return self._read(ranges)

    async def read(
        self, part: TopicPart, ranges: Sequence[EntryRange], max_entries: int, max_bytes: int
    ) -> list[StoredEntry]:
        raise AssertionError("nothing has to be read")


class FakeTopic:
    def __init__(self, chain: LedgerChain) -> None:
        self.part = PART
        self.chain = chain
        self.keeps_entries = False


def consumer(number: int = 1, peer: ClientSide | None = None) -> Consumer:
    return Consumer(peer or ClientSide(), number, f"c{number}")


def subscription(topic: Topic, entries: Entries) -> Subscription:
    kept = MemoryCursor(topic.cursor)
    reader = cast(EntryReader, entries)
    return Subscription(PART, "s", "Exclusive", kept, reader, topic.chain, DispatchLimits(), KeySharedPolicy())


def subscriptions(topic: FakeTopic, limits: SubscriptionLimits | None = None) -> TopicSubscriptions:
    """The subscriptions of a topic without storage: non-durable ones only."""
    return TopicSubscriptions(
        topic, cast(CursorKeeper, None), cast(EntryReader, Entries()), limits or SubscriptionLimits()
    )


def test_a_failed_read_is_logged_and_retried_without_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivering, "RETRY_S", (0.2, 0.4))

    async def scenario() -> None:
        topic = Topic()
        topic.publish(3)
        entries = Entries(failures=2)
        made, mine = subscription(topic, entries), consumer()
        made.add(mine)
        made.flow(mine, 10)
        await until(lambda: made.problem)
        assert made.problem == "Entry 1:0 is gone."
        await until(lambda: mine.messages_out == 3)
        assert not made.problem
        assert entries.reads == 3
        await made.close()

    asyncio.run(scenario())


def test_cached_entries_are_delivered_in_turns_of_the_event_loop() -> None:
    async def scenario() -> None:
        topic = Topic()
        topic.publish(250)
        entries = InMemory()
        made, mine = subscription(topic, entries), consumer()
        made.add(mine)
        made.flow(mine, 1_000)
        await until(lambda: mine.messages_out == 250)
        assert (entries.reads, len(cast(Any, mine.peer).written)) == (3, 3), "a hundred entries a turn"
        assert len(asyncio.all_tasks()) == 1, "this one"
        made.flow(mine, 1_000)
        made.ack(mine, [Ack(LedgerId(1), EntryId(0))])
        for _ in range(5):
            await asyncio.sleep(0)
        assert entries.reads == 3
        await made.close()

    asyncio.run(scenario())


def test_a_failure_in_memory_is_tried_again_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivering, "RETRY_S", (0.01, 0.02))

    async def scenario() -> None:
        topic = Topic()
        topic.publish(3)
        made, mine = subscription(topic, InMemory(failures=2)), consumer()
        made.add(mine)
        made.flow(mine, 10)
        await until(lambda: mine.messages_out == 3)
        assert made.problem is None
        await made.close()

    asyncio.run(scenario())


def test_a_client_that_does_not_read_stops_all_deliveries_on_its_connection() -> None:
    class Slow(ClientSide):
        def write(self, data: bytes) -> None:
            super().write(data)
            self.is_writable = False

    async def scenario() -> None:
        topic = Topic()
        topic.publish(150)
        peer = Slow()
        both = [(subscription(topic, Entries()), consumer(peer=peer)) for _ in range(2)]
        for made, mine in both:
            made.add(mine)
            made.flow(mine, 1_000)
        await until(lambda: peer.written)
        for _ in range(20):
            await asyncio.sleep(0)
        assert sorted(mine.messages_out for _, mine in both) == [0, 100]  # one read of one of them
        while sum(mine.messages_out for _, mine in both) < 300:
            writes = len(peer.written)
            peer.is_writable = True
            for made, mine in both:
                made.writable_again(mine)
            await until(lambda: len(peer.written) > writes)  # noqa: B023
        assert len(peer.written) == 4
        for made, _ in both:
            await made.close()

    asyncio.run(scenario())


def test_a_non_durable_subscription_lives_through_a_seek_and_goes_with_its_last_consumer() -> None:
    async def scenario() -> None:
        model = Topic()
        model.publish(10)
        topic = FakeTopic(model.chain)
        all_ = subscriptions(topic)
        request = SubscribeRequest("reader", "Exclusive", is_durable=False, start="latest")
        first = consumer(1)
        made = await all_.subscribe(first, request)
        made.flow(first, 100)
        assert topic.keeps_entries
        await all_.seek(made, Position(LedgerId(1), EntryId(4)))
        assert first.is_closed
        assert cast(Any, first.peer).written, "it was notified"
        assert topic.keeps_entries, "its client is about to come back"
        all_.remove_consumer(made, first)  # its client's own goodbye comes late
        await asyncio.sleep(0.05)
        second = consumer(2)
        assert await all_.subscribe(second, request) is made
        made.flow(second, 100)
        await until(lambda: second.messages_out == 6)
        all_.remove_consumer(made, second)
        await until(lambda: all_.is_empty)
        assert not topic.keeps_entries

    asyncio.run(scenario())


def test_a_consumer_of_another_type_is_refused_while_others_are_connected() -> None:
    async def scenario() -> None:
        all_ = subscriptions(FakeTopic(Topic().chain))
        mine = consumer()
        made = await all_.subscribe(mine, SubscribeRequest("s", "Shared", is_durable=False))
        with pytest.raises(ConsumerBusyError, match="has Shared consumers and cannot be Failover"):
            await all_.subscribe(consumer(2), SubscribeRequest("s", "Failover", is_durable=False))
        with pytest.raises(ServerRefusalError, match="not durable"):
            await all_.subscribe(consumer(2), SubscribeRequest("s", "Shared"))
        await all_.seek(made, Position(LedgerId(1), EntryId(0)))
        await all_.subscribe(consumer(3), SubscribeRequest("s", "Key_Shared", is_durable=False))
        policy = KeySharedPolicy("AUTO_SPLIT", allow_out_of_order=True)
        with pytest.raises(ConsumerBusyError, match="allow_out_of_order=True"):
            await all_.subscribe(consumer(4), SubscribeRequest("s", "Key_Shared", is_durable=False, key_shared=policy))

    asyncio.run(scenario())


def test_limits_of_consumers() -> None:
    async def scenario() -> None:
        all_ = subscriptions(FakeTopic(Topic().chain), SubscriptionLimits(consumers=3, consumers_each=2))
        request = SubscribeRequest("s", "Shared", is_durable=False)
        for number in (1, 2):
            await all_.subscribe(consumer(number), request)
        with pytest.raises(ServerRefusalError, match="has 2 consumers on subscription 's', its limit"):
            await all_.subscribe(consumer(3), request)
        other = SubscribeRequest("other", "Shared", is_durable=False)
        await all_.subscribe(consumer(3), other)
        with pytest.raises(ServerRefusalError, match="has 3 consumers, its limit"):
            await all_.subscribe(consumer(4), other)

    asyncio.run(scenario())


def test_a_consumer_whose_connection_is_gone_is_not_connected() -> None:
    async def scenario() -> None:
        all_ = subscriptions(FakeTopic(Topic().chain))
        peer = ClientSide()
        peer.close()
        with pytest.raises(ServerRefusalError, match="was closed"):
            await all_.subscribe(consumer(1, peer), SubscribeRequest("s", "Shared", is_durable=False))
        await until(lambda: all_.is_empty)

    asyncio.run(scenario())
