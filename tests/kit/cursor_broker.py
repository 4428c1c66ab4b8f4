"""The part of a broker that keeps cursors, with a journal and without a network: for tests of subscriptions' ways.

It runs in the caller's event loop, several of them beside each other, and can end as SIGKILL does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing

from pulsar_on_spark.broker.cursors.decisions import InitialPosition
from pulsar_on_spark.broker.cursors.keeper import CursorKeeper
from pulsar_on_spark.broker.cursors.open_cursor import OpenCursor
from pulsar_on_spark.broker.reading.extents import chain_shape
from pulsar_on_spark.broker.runtime.commits import GroupedCommits
from pulsar_on_spark.model.ids import MessageId, Position, TopicId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.data_path.tail import Tail
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain
from pulsar_on_spark.topic.managed_ledger.incarnation.incarnation import Incarnation
from pulsar_on_spark.topic.managed_ledger.incarnation.open_ledger import Appended, settle_entries
from pulsar_on_spark.topic.managed_ledger.subscription.ownership import SubscriptionType
from tests.kit.pulsar_entries import ClientMessage, batch_entry, single_entry

_PUBLISH_TIME_MS = 1_753_500_000_000


class CursorBroker:
    """A broker incarnation and its cursors; made by `start`.

    Attributes:
        incarnation: The incarnation.
        keeper: Its cursors.
        lost: Cursors that the keeper lost.
        over: Why the incarnation has ended by itself.
    """

    incarnation: Incarnation
    keeper: CursorKeeper

    def __init__(self, root: Root) -> None:
        self.root = root
        self.lost: list[OpenCursor] = []
        self.over: str | None = None
        self._acknowledged: list[MessageId] = []
        self._news = asyncio.Event()

    @classmethod
    async def start(cls, root: Root, *, lease_duration_s: float = 10.0, snapshot_every_s: float = 60.0) -> CursorBroker:
        """Start; cursors go to the table every `snapshot_every_s`, by default only on request."""
        made = cls(root)
        made.incarnation = await Incarnation.start(root, made, on_ended=made._ended, lease_duration_s=lease_duration_s)
        commits = GroupedCommits(root.store)
        made.keeper = CursorKeeper(root, made.incarnation, commits, made.lost.append, snapshot_every_s=snapshot_every_s)
        return made

    async def stop(self) -> None:
        """End cleanly."""
        await self.keeper.stop()
        await self.incarnation.stop()

    def kill(self) -> None:
        """End as SIGKILL does, as far as files and metadata can tell."""
        self.incarnation._lease._stopping.set()
        for task in (self.incarnation._polling, self.incarnation._keeping, self.keeper._saving, *self.keeper._tasks):
            if task is not None:
                task.cancel()
        if self.keeper._recorder._timer is not None:
            self.keeper._recorder._timer.cancel()

    def part(self, topic: str) -> TopicPart:
        """The topic, which has no partitions."""
        view = self.root.store.view()
        (part,) = catalog.parts(view, catalog.require_topic(view, TopicName.parse(topic)))
        return part

    def chain(self, topic: str) -> LedgerChain:
        """Return the topic's ledgers now, with all acknowledged entries."""
        part = self.part(topic)
        with closing(Tail(self.root)) as tail:
            chain = LedgerChain(chain_shape(tail.read_view([part]), TopicId(part.topic_id)).extents)
        # The broker itself knows of its last entries before a reader of its journal does.
        mine = self.incarnation.ledgers.get(TopicId(part.topic_id))
        if mine is not None and chain.end.ledger == mine.ledger_id:
            chain.grow_ledger(mine.ledger_id, mine.next - mine.outstanding)
        return chain

    async def send(
        self, topic: str, values: Sequence[bytes], *, keys: Sequence[bytes] | None = None, batch: int = 1
    ) -> list[MessageId]:
        """Publish messages, `batch` of them in an entry, and wait until all are acknowledged; the entries' ids."""
        part = self.part(topic)
        for error in (await self.incarnation.open_ledgers([part])).values():
            raise error
        before = len(self._acknowledged)
        of_value: Sequence[bytes | None] = keys or [None] * len(values)
        made = [ClientMessage(value, key) for value, key in zip(values, of_value, strict=True)]
        groups = [made[first : first + batch] for first in range(0, len(made), batch)]
        for group in groups:
            entry = batch_entry(group) if batch > 1 else single_entry(group[0])
            self.incarnation.append(TopicId(part.topic_id), len(group), _PUBLISH_TIME_MS, [entry])
        while len(self._acknowledged) < before + len(groups):
            self._news.clear()
            await self._news.wait()
        return self._acknowledged[before:]

    async def open(
        self,
        topic: str,
        type_: SubscriptionType = "Shared",
        start: Position | None = None,
        *,
        name: str = "s",
        latest: bool = False,
    ) -> OpenCursor:
        """Have a subscription of the topic, a new one from its first message on unless something else is said."""
        chain = await asyncio.to_thread(self.chain, topic)
        initial: InitialPosition = start or ("latest" if latest else "earliest")
        return await self.keeper.acquire_subscription(self.part(topic), name, type_, initial, chain)

    # -- the sink of entries -------------------------------------------------------------------------------------------

    def on_entries_acknowledged(self, entries: Sequence[Appended[object]]) -> None:
        """See `EntrySink`."""
        settle_entries(entries)
        self._acknowledged += (MessageId(entry.ledger.ledger_id, entry.first) for entry in entries)
        self._news.set()

    def on_entries_unknown(self, entries: Sequence[Appended[object]]) -> None:
        """See `EntrySink`."""
        settle_entries(entries)

    def on_journal_room(self) -> None:
        """See `EntrySink`."""

    def _ended(self, reason: str) -> None:
        self.over = reason
        self.keeper.on_incarnation_ended(reason)
