"""Crashes of a broker at each step of its work on a cursor: the next owner finds the confirmed acknowledgements.

A step is a commit to main, an append to the cursors table, or a record in the journal; the crash comes before or after
it. The next owner finds no acknowledgement that was not made.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pulsar_on_spark.broker.cursors.keeper import CursorKeeper
from pulsar_on_spark.broker.cursors.open_cursor import OpenCursor
from pulsar_on_spark.broker.runtime.commits import GroupedCommits
from pulsar_on_spark.metadata.store import MetadataStore
from pulsar_on_spark.model.errors import StorageError
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, MessageId, Position
from pulsar_on_spark.root import Root
from tests.kit.cursor_broker import CursorBroker

LEASE_S = 0.2
BATCH = 4
ENTRIES = 30

Messages = frozenset[tuple[int, int, int]]
"""(ledger, entry, batch index)."""


class _EndedError(StorageError):
    """The process has crashed."""


@dataclass
class _End:
    """The crash of a process, before or after its n-th step; never by default."""

    at: int = 0
    is_done: bool = False
    steps: int = 0
    is_over: bool = False
    is_armed: bool = False

    def step(self, do: Callable[[], Any]) -> Any:
        if self.is_over:
            raise _EndedError("over")
        if not self.is_armed:
            return do()
        self.steps += 1
        ends = self.steps == self.at
        self.is_over = ends and not self.is_done
        if self.is_over:
            raise _EndedError("before the step")
        done = do()
        self.is_over = ends
        if ends:
            raise _EndedError("after the step")
        return done


class _Store:
    """A store whose process may crash at a commit."""

    def __init__(self, store: MetadataStore, end: _End) -> None:
        self._store = store
        self._end = end

    def commit(self, decide: Any) -> Any:
        return self._end.step(lambda: self._store.commit(decide))

    def append_cursors(self, rows: Any) -> None:
        self._end.step(lambda: self._store.append_cursors(rows))

    def __getattr__(self, name: str) -> Any:
        if self._end.is_over:
            raise _EndedError("over")
        return getattr(self._store, name)


@dataclass
class World:
    """The state of a cursor as its process knows it: messages that must be acknowledged, and messages that may be.

    If the outcome of a reset is unknown, `otherwise` are the acknowledged messages after a successful reset.
    """

    must: Messages = frozenset()
    may: Messages = frozenset()
    otherwise: Messages | None = None

    def allows(self, acked: Messages) -> bool:
        return self.must <= acked <= self.may or acked == self.otherwise


@dataclass
class Life:
    """The steps of one broker with one cursor."""

    broker: CursorBroker
    sent: list[MessageId]
    world: World = field(default_factory=World)

    async def run(self) -> None:
        cursor = await self.broker.open("t")
        await self.ack(cursor, self.messages([0, 1, 5, 9]))
        await self.broker.keeper.save_cursors()
        await self.ack(cursor, self.messages([2, 12]) | self.messages([20], indexes=[1, 3]))
        await self.broker.keeper.release_subscriptions([cursor])
        cursor = await self.broker.open("t")
        await self.ack(cursor, self.messages([3, 14]) | self.messages([20], indexes=[0]))
        await self.reset(cursor, 2)
        await self.ack(cursor, self.messages([4, 25]))
        await self.broker.keeper.save_cursors()
        await self.ack(cursor, self.messages([7]))
        await self.broker.keeper.release_subscriptions([cursor])

    async def ack(self, cursor: OpenCursor, acked: Messages) -> None:
        self.world.may |= acked
        for ledger, entry in sorted({(ledger, entry) for ledger, entry, _ in acked}):
            unacked = sum(1 << index for index in range(BATCH) if (ledger, entry, index) not in acked)
            cursor.cursor.acknowledge(LedgerId(ledger), EntryId(entry), unacked, BATCH)
        cursor.record_changes()
        await cursor.wait_durable()
        self.world.must |= acked

    async def reset(self, cursor: OpenCursor, entry: int) -> None:
        before = self.messages(range(entry))
        self.world.otherwise = before
        await self.broker.keeper.reset_cursor(cursor, Position(self.sent[entry].ledger, self.sent[entry].entry))
        self.world = World(before, before)

    def messages(self, entries: Any, indexes: Any = range(BATCH)) -> Messages:
        return frozenset((self.sent[e].ledger, self.sent[e].entry, index) for e in entries for index in indexes)

    def acked(self, cursor: OpenCursor) -> Messages:
        left: set[tuple[int, int, int]] = set()
        for range_ in cursor.cursor.deliverable(EARLIEST, 1_000_000).ranges:
            for entry in range(range_.first, range_.end):
                bits = cursor.cursor.ack_set(range_.ledger, EntryId(entry)) or (1 << BATCH) - 1
                left |= {(range_.ledger, entry, index) for index in range(BATCH) if bits >> index & 1}
        return self.messages(range(ENTRIES)) - left


async def start(root: Root, end: _End) -> CursorBroker:
    """Start a broker whose process may crash at a step of its keeper."""
    broker = await CursorBroker.start(root, lease_duration_s=LEASE_S)
    own = Root.open(root.path)
    own.store = _Store(own.store, end)  # type: ignore[assignment]
    broker.keeper = CursorKeeper(own, broker.incarnation, GroupedCommits(own.store), snapshot_every_s=60)
    append = broker.incarnation.append_cursor
    broker.incarnation.append_cursor = lambda *given: end.step(lambda: append(*given))  # type: ignore[method-assign]
    return broker


async def live(broker: CursorBroker, end: _End, life: Awaitable[None]) -> None:
    """Run a life until it is complete or crashes; after a crash, cancel what still waits."""
    end.is_armed = True
    work = asyncio.ensure_future(life)
    while not work.done():
        await asyncio.wait([work], timeout=0.05)
        if end.is_over:
            work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    end.is_over = True
    broker.kill()
    if not work.cancelled() and work.exception() is not None:
        assert isinstance(work.exception(), _EndedError), work.exception()


async def with_entries(directory: Path) -> tuple[Root, list[MessageId]]:
    root = Root.create(directory)
    root.create_topic("t")
    broker = await CursorBroker.start(root, lease_duration_s=LEASE_S)
    sent = await broker.send("t", [b"x"] * (ENTRIES * BATCH), batch=BATCH)
    await broker.stop()
    return root, sent


async def acked_after_takeover(root: Root, life: Life) -> Messages:
    broker = await CursorBroker.start(root, lease_duration_s=LEASE_S)
    acked = life.acked(await broker.open("t"))
    await broker.stop()
    return acked


async def life_crashes_at(directory: Path, at: int, is_done: bool) -> int:
    """Run a life that crashes at a step; return its number of steps."""
    root, sent = await with_entries(directory)
    end = _End(at, is_done)
    broker = await start(root, end)
    life = Life(broker, sent)
    await live(broker, end, life.run())
    acked = await acked_after_takeover(root, life)
    assert life.world.allows(acked), (at, is_done, sorted(life.world.must - acked), sorted(acked - life.world.may))
    return end.steps


async def takeover_crashes_at(directory: Path, at: int, is_done: bool) -> int:
    """Kill a broker with acknowledgements only in its journal; crash its successor at a step of the takeover."""
    root, sent = await with_entries(directory)
    first = await CursorBroker.start(root, lease_duration_s=LEASE_S)
    life = Life(first, sent)
    cursor = await first.open("t")
    await life.ack(cursor, life.messages([0, 3, 4]))
    await first.keeper.save_cursors()
    await life.ack(cursor, life.messages([8, 17]) | life.messages([20], indexes=[1, 3]))
    first.kill()
    end = _End(at, is_done)
    life.broker = await start(root, end)

    async def take() -> None:
        cursor = await life.broker.open("t")
        await life.ack(cursor, life.messages([1, 19]) | life.messages([20], indexes=[0]))

    await live(life.broker, end, take())
    acked = await acked_after_takeover(root, life)
    assert life.world.allows(acked), (at, is_done, sorted(life.world.must - acked), sorted(acked - life.world.may))
    return end.steps


@pytest.mark.parametrize(("way", "first"), [(life_crashes_at, 1), (takeover_crashes_at, 2)])
def test_the_next_broker_finds_confirmed_acknowledgements_after_a_crash_at_some_steps(
    memory_path: Path, way: Callable[[Path, int, bool], Awaitable[int]], first: int
) -> None:
    """The crash comes at every second step, alternately before and after it."""

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # errors of crashed brokers
        steps = await way(memory_path / "whole", 0, False)
        assert steps >= 5
        ends = [way(memory_path / str(at), at, at % 4 < 2) for at in range(first, steps + 1, 2)]
        await asyncio.gather(*ends)

    asyncio.run(run())


@pytest.mark.long
@pytest.mark.parametrize("way", [life_crashes_at, takeover_crashes_at])
def test_the_next_broker_finds_confirmed_acknowledgements_after_a_crash_at_any_step(
    memory_path: Path, way: Callable[[Path, int, bool], Awaitable[int]]
) -> None:
    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # errors of crashed brokers
        assert await way(memory_path / "whole", 0, False) >= 5

        async def is_reached(at: int, is_done: bool) -> bool:
            return await way(memory_path / f"{at}-{is_done}", at, is_done) == at

        # A broker that waits for a lease to expire retries, so the number of steps differs between lives.
        for first in itertools.count(1, 3):
            ends = [is_reached(at, is_done) for at in range(first, first + 3) for is_done in (False, True)]
            if not any(await asyncio.gather(*ends)):
                break

    asyncio.run(run())
