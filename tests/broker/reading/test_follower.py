"""A topic's chain shows what is acknowledged and attached, in its order, and soon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from pulsar_on_spark.broker.reading import extents
from pulsar_on_spark.broker.reading.follower import ChainFollower
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import LedgerRecord, SegmentRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.ids import LedgerId, TopicId
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain, LedgerExtent
from pulsar_on_spark.topic.managed_ledger.incarnation.dead_brokers import recover_incarnation
from tests.kit import messages
from tests.kit.running_incarnation import RunningIncarnation

PATIENCE_S = 60.0


class Heard:
    """A listener that records its callbacks."""

    def __init__(self) -> None:
        self.chain = LedgerChain()
        self.told = 0
        self.ended: list[LedgerId] = []

    def on_chain_grew(self, chain: LedgerChain) -> None:
        assert chain is self.chain, "what grew is the chain that is known"
        self.told += 1

    def on_chain_changed(self, chain: LedgerChain, ended: Sequence[LedgerId]) -> None:
        self.chain = chain
        self.told += 1
        self.ended += ended


class Following:
    """A topic that is followed, by a broker that sends to it."""

    def __init__(self, root: Root, broker: RunningIncarnation, follower: ChainFollower) -> None:
        self.root, self.broker, self.follower = root, broker, follower
        self.heard = Heard()
        self.topic_id = TopicId(broker.part("clicks").topic_id)

    @property
    def chain(self) -> LedgerChain:
        return self.heard.chain

    async def follow(self, view: View | None = None) -> None:
        self.heard.chain = await self.follower.follow_topic(
            self.broker.part("clicks"), self.heard, view or self.root.store.view()
        )

    async def send(self, count: int) -> bool:
        """Send messages as a broker's topic does; return True if they are readable at once."""
        await asyncio.to_thread(self.broker.send, "clicks", [b"x"] * count)
        last = self.broker.acknowledged_ids[-1]
        return self.follower.grow_ledger(self.topic_id, last.ledger, last.entry + 1)

    async def attach(self, count: int = 1) -> None:
        """Write as Spark does."""
        await asyncio.to_thread(messages.write, self.root, "clicks", [b"s"] * count)

    async def until(self, condition: Callable[[], bool]) -> float:
        """Wait, and return the seconds that it took."""
        start_s = time.monotonic()
        while not condition():
            assert time.monotonic() - start_s < PATIENCE_S, (self.chain.end, self.entries())
            await asyncio.sleep(0.01)
        return time.monotonic() - start_s

    def entries(self) -> int:
        return self.chain.entries_from(0, 0)


@asynccontextmanager
async def following(root: Root, *, started: bool = True) -> AsyncIterator[Following]:
    broker = await asyncio.to_thread(RunningIncarnation, root)
    follower = ChainFollower(root, [broker.incarnation])
    if started:
        follower.start()
    try:
        yield Following(root, broker, follower)
    finally:
        await follower.stop()
        await asyncio.to_thread(broker.__exit__, None, None, None)


def test_acknowledged_entries_are_readable_at_once_except_for_the_first_of_a_ledger(root: Root) -> None:
    async def scenario() -> None:
        async with following(root, started=False) as topic:
            await topic.follow()
            assert not await topic.send(3), "the ledger is new"
            await topic.follower.refresh()
            assert topic.entries() == 3
            told = topic.heard.told
            assert await topic.send(4)
            assert topic.entries() == 7
            assert topic.heard.told == told, "who acknowledges knows it"

    asyncio.run(scenario())


def test_settle_waits_for_acknowledged_entries(root: Root) -> None:
    async def scenario() -> None:
        async with following(root) as topic:
            await topic.follow()
            for count, entries in ((3, 3), (7, 10)):
                await topic.send(count)
                await topic.follower.wait_until_readable(topic.topic_id)
                assert topic.entries() == entries
            await topic.attach()
            await topic.send(5)
            await topic.follower.wait_until_readable(topic.topic_id)
            assert topic.entries() >= 15
            topic.follower.unfollow_topic(topic.topic_id)
            await topic.follower.wait_until_readable(topic.topic_id)

    asyncio.run(scenario())


def test_ledgers_attached_by_spark_are_seen(root: Root) -> None:
    async def scenario() -> None:
        async with following(root) as topic:
            await topic.follow()
            for number in range(1, 4):
                await topic.attach()
                await topic.until(lambda number=number: topic.entries() == number)
            assert topic.heard.told == 3
            assert topic.heard.ended == []

    asyncio.run(scenario())


def test_changes_between_an_older_view_and_following_are_in_the_chain(root: Root) -> None:
    async def scenario() -> None:
        async with following(root, started=False) as topic:
            older = root.store.view()
            await topic.attach(2)
            await topic.follower.refresh()  # other topics' changes are applied; this one has no follower yet
            await topic.follow(older)
            await topic.follower.refresh()
            assert topic.entries() == 1

    asyncio.run(scenario())


def test_a_ledger_attached_after_an_open_one_becomes_visible_after_it(root: Root) -> None:
    async def scenario() -> None:
        async with following(root) as topic:
            await topic.follow()
            await topic.send(2)
            await topic.until(lambda: topic.entries() == 2)
            first = topic.chain.end.ledger
            await topic.attach()
            await topic.until(lambda: topic.entries() == 3)
            assert first in topic.heard.ended
            await topic.send(5)
            await topic.until(lambda: topic.entries() == 8)
            own = topic.chain.end.ledger
            assert topic.chain.readable_end(first) == 2
            attached = next(ledger for ledger in topic.chain._ledgers if first < ledger < own)
            assert topic.chain.readable_end(attached) == 1

    asyncio.run(scenario())


def test_entries_after_an_unended_ledger_wait(root: Root) -> None:
    """The broker has switched ledgers, and the old one's close is not known yet."""

    async def scenario() -> None:
        async with following(root, started=False) as topic:
            await topic.follow()
            await topic.send(2)
            await topic.follower.refresh()
            assert topic.entries() == 2
            await topic.attach()
            own = await topic.until(lambda: topic.broker.incarnation.ledgers[topic.topic_id].ledger_id > 2)
            assert own < PATIENCE_S
            assert not await topic.send(1), "what Spark attached comes first, and is not seen yet"
            assert topic.entries() == 2
            await topic.until(lambda: not topic.broker.incarnation._retired)
            await topic.follower.refresh()
            assert topic.entries() == 4

    asyncio.run(scenario())


def test_a_topic_is_loaded_with_its_chain(root: Root) -> None:
    async def scenario() -> None:
        async with following(root) as topic:
            await topic.attach()
            await topic.send(3)
            await topic.follow()
            assert topic.entries() == 4, "the broker knows what it acknowledged"
            topic.follower.unfollow_topic(topic.topic_id)
            await topic.send(2)
            await topic.follow()
            assert topic.entries() == 6
            assert await topic.send(1)

    asyncio.run(scenario())


def test_ledgers_that_had_ended_are_not_read_again(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    extent_of = extents._extent

    def counted(view: View, ledger: LedgerRecord, *, is_last: bool) -> LedgerExtent:
        looked.append(ledger.ledger_id)
        return extent_of(view, ledger, is_last=is_last)

    async def scenario() -> None:
        async with following(root, started=False) as topic:
            for _ in range(5):
                await topic.send(1)
                await asyncio.to_thread(topic.broker.close_ledger, "clicks")
            await topic.follow()
            monkeypatch.setattr(extents, "_extent", counted)
            await topic.send(1)
            await topic.follower.refresh()
            assert topic.entries() == 6
            assert looked == [topic.chain.end.ledger]

    asyncio.run(scenario())


def test_a_chain_that_is_trimmed_at_its_front(root: Root) -> None:
    """Trim as retention commits it."""

    async def scenario() -> None:
        async with following(root, started=False) as topic:
            await topic.attach()
            await topic.send(2)
            await topic.attach()
            await topic.follow()
            first = topic.chain.start.ledger
            view = root.store.view()
            gone = [
                *(each for each in view.all(LedgerRecord, topic.topic_id) if each.ledger_id == first),
                *(each for each in view.all(SegmentRecord, topic.topic_id) if each.ledger_id == first),
            ]
            root.store.commit(lambda _: Change(deletes=gone, keys={keys.topic(topic.broker.part("clicks").name): None}))
            await topic.follower.refresh()
            assert topic.chain.start.ledger > first
            assert topic.entries() == 2

    asyncio.run(scenario())


def test_an_older_view_changes_nothing(root: Root) -> None:
    async def scenario() -> None:
        async with following(root, started=False) as topic:
            await topic.follow()
            await topic.attach()
            scan = topic.follower._scan
            followed = topic.follower._topics[topic.topic_id]
            older = scan([followed], None)
            await topic.attach()
            await topic.send(1)
            await topic.follower.refresh()
            assert topic.entries() == 3
            topic.follower._install(followed, *older.chains[topic.topic_id], older.revision)
            assert topic.entries() == 3

    asyncio.run(scenario())


def test_ledgers_of_a_broker_that_was_killed(root: Root) -> None:
    async def scenario() -> None:
        with RunningIncarnation(root) as dead:
            await asyncio.to_thread(dead.send, "clicks", [b"x"] * 7)
            await asyncio.to_thread(dead.kill)
            async with following(root) as topic:
                await topic.follow()
                assert topic.entries() == 0, "the number of acknowledged entries is not known yet"
                await asyncio.to_thread(recover_incarnation, root, dead.incarnation.id)
                await topic.until(lambda: topic.entries() == 7)
                assert topic.heard.ended == [topic.chain.end.ledger]
                await topic.send(1)
                await topic.until(lambda: topic.entries() == 8)

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(2))
def test_entries_are_complete_and_in_order_under_any_interleaving(root: Root, seed: int) -> None:
    import random

    chance = random.Random(seed)

    async def scenario() -> None:
        async with following(root) as topic:
            await topic.follow()
            count = 0
            for _ in range(12):
                before = topic.chain.end
                if chance.random() < 0.4:
                    await topic.attach()
                    count += 1
                else:
                    sent = chance.randrange(1, 4)
                    await topic.send(sent)
                    count += sent
                if chance.random() < 0.3:
                    await asyncio.to_thread(topic.broker.close_ledger, "clicks")
                assert topic.chain.end >= before
                assert topic.entries() <= count
            await asyncio.to_thread(topic.broker.close_ledger, "clicks")
            await topic.until(lambda: topic.entries() == count)

    asyncio.run(scenario())
