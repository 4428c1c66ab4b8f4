"""One subscription of a loaded topic: its consumers, its cursor, its dispatcher.

Consumers' commands, growth of the topic and time drive the dispatcher; `Deliveries` reads and sends what it wants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from pulsar_on_spark.broker.dispatch.dispatcher import Dispatcher
from pulsar_on_spark.broker.dispatch.key_shared import KeySharedDispatcher
from pulsar_on_spark.broker.dispatch.limits import DispatchLimits
from pulsar_on_spark.broker.dispatch.shared import SharedDispatcher
from pulsar_on_spark.broker.dispatch.single_active import SingleActiveDispatcher
from pulsar_on_spark.broker.dispatch.values import (
    Ack,
    ActiveConsumerChanged,
    ConsumerId,
    DispatcherStats,
    KeySharedPolicy,
)
from pulsar_on_spark.broker.reading.compacted import Compacted, SubscribedEntries
from pulsar_on_spark.broker.runtime.peer import knows_end_of_topic
from pulsar_on_spark.broker.subscriptions.consumer import Consumer, KeptCursor
from pulsar_on_spark.broker.subscriptions.delivering import Deliveries
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import ConsumerBusyError
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from pulsar_on_spark.protocol import replies
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain
from pulsar_on_spark.topic.managed_ledger.subscription.ownership import SubscriptionType


class Subscription:
    """A subscription and who is connected to it. Methods belong to the broker's event loop.

    Args:
        part: The topic.
        name: Its name.
        type_: Its type; with no consumer it may become another.
        kept: Its cursor.
        entries: Reads its entries.
        chain: The topic's ledgers as it sees them: its cursor's.
        limits: What bounds its dispatching.
        key_shared: How its Key_Shared consumers divide the keys.

    Attributes:
        chain: See above.
        deliveries: Reads and delivers.
        reads_compacted: Whether it reads compacted, where the topic is.
        is_renewed: Not set while it goes over to another compaction: what it sees of the topic may lag behind.
    """

    def __init__(
        self,
        part: TopicPart,
        name: str,
        type_: SubscriptionType,
        kept: KeptCursor,
        entries: SubscribedEntries,
        chain: LedgerChain,
        limits: DispatchLimits,
        key_shared: KeySharedPolicy,
    ) -> None:
        self.part = part
        self.name = name
        self.type = type_
        self.kept = kept
        self.key_shared = key_shared
        self.chain = chain
        self.reads_compacted = False
        self.is_renewed = asyncio.Event()
        self.is_renewed.set()
        self._limits = limits
        self._dispatcher = self._make_dispatcher()
        self._consumers: dict[ConsumerId, Consumer] = {}
        self.deliveries = Deliveries(
            part, name, kept, entries, self._dispatcher, self._consumers, limits, self._note_change
        )
        self._last_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_ended = False

    @property
    def consumers(self) -> list[Consumer]:
        """Who is connected, in the order of their coming."""
        return list(self._consumers.values())

    @property
    def entries(self) -> SubscribedEntries:
        """Reads its entries."""
        return self.deliveries.entries

    @property
    def compacted(self) -> Compacted | None:
        """The compaction that it reads in place of the log's beginning; None if it reads the log alone."""
        return self.deliveries.compacted

    @property
    def messages_out(self) -> int:
        """Messages that were delivered."""
        return self.deliveries.messages

    @property
    def bytes_out(self) -> int:
        """Bytes of their entries."""
        return self.deliveries.size_bytes

    @property
    def entries_lost(self) -> int:
        """Entries that were passed over because no copy gives them (`auto_skip_non_recoverable_data`)."""
        return self.deliveries.entries_lost

    @property
    def problem(self) -> str | None:
        """Why the last read failed; None if it did not. It is tried again and again."""
        return self.deliveries.problem

    @property
    def stats(self) -> DispatcherStats:
        """How dispatching stands; its consumers' ids are those of `consumers`."""
        return self._dispatcher.stats()

    def limit(self, limits: DispatchLimits) -> None:
        """Let other limits hold from now on."""
        self._limits = self.deliveries.limits = limits
        self._dispatcher.limit(limits)
        self._moved()

    # -- consumers -----------------------------------------------------------------------------------------------------

    def become(self, type_: SubscriptionType, key_shared: KeySharedPolicy) -> None:
        """Go on as another type, or with keys divided in another way; what was out comes again.

        Raises:
            ConsumerBusyError: consumers of the other kind are connected.
        """
        if type_ == self.type and (type_ != "Key_Shared" or key_shared == self.key_shared):
            return
        if self._consumers:
            asked = type_ if type_ != self.type else f"Key_Shared with {key_shared}"
            raise ConsumerBusyError(
                f"Subscription {self.name!r} on {self.part.name} has {self.type} consumers and cannot be {asked}: "
                f"subscribe in the same way, or close them first."
            )
        self.type, self.key_shared = type_, key_shared
        self._dispatcher = self.deliveries.dispatcher = self._make_dispatcher()

    def add(self, consumer: Consumer) -> None:
        """A consumer subscribed.

        Raises:
            ConsumerBusyError: the subscription is Exclusive and has its consumer.
            ConsumerAssignError: its hash ranges are not acceptable.
        """
        self._last_id += 1
        consumer.id = ConsumerId(self._last_id)
        effects = self._dispatcher.add_consumer(consumer.info, current_ms())
        self._consumers[consumer.id] = consumer
        self._tell(effects)
        self._moved()

    def remove(self, consumer: Consumer) -> bool:
        """A consumer went, what it had goes to others; False if it was not here any more."""
        if self._consumers.get(consumer.id) is not consumer:
            return False
        del self._consumers[consumer.id]
        self._tell(self._dispatcher.remove_consumer(consumer.id, current_ms()))
        self._moved()
        return True

    def disconnect_all(self, *, for_seek: bool = False) -> None:
        """Send all consumers away: their clients look the topic up and subscribe again."""
        for consumer in self.consumers:
            consumer.is_closed, consumer.left_for_seek = True, for_seek
            consumer.peer.write(replies.close_consumer(consumer.consumer_id))
            self.remove(consumer)

    def flow(self, consumer: Consumer, permits: int) -> None:
        """FLOW."""
        self._dispatcher.flow(consumer.id, permits)
        self.deliveries.wake()

    def writable_again(self, consumer: Consumer) -> None:
        """The consumer's connection takes data again."""
        self._dispatcher.set_writable(consumer.id, True)
        self.deliveries.wake()

    def ack(self, consumer: Consumer, acks: Iterable[Ack], *, cumulative: bool = False) -> None:
        """ACK; `durable` waits for it.

        Raises:
            InvalidArgumentError: the topic has no such entry yet; all others are acknowledged.
        """
        try:
            self._dispatcher.ack(consumer.id, acks, cumulative=cumulative)
        finally:
            self._moved()

    def skip(self, acks: Iterable[Ack] = (), through: Position | None = None) -> None:
        """Acknowledge what an operator or a policy passes over, whoever has it: nobody gets it any more.

        Args:
            acks: Entries, or messages of them.
            through: An entry: it and all before it are acknowledged, too.

        Raises:
            InvalidArgumentError: the topic has no such entry; those before it are acknowledged.
        """
        try:
            if through is not None:
                self.kept.cursor.acknowledge_through(through.ledger, through.entry)
            for ack in acks:
                self.kept.cursor.acknowledge(*ack)
        finally:
            self._dispatcher.forget_acked()
            self._moved()

    async def durable(self) -> None:
        """Wait until what is acknowledged now is durable.

        Raises:
            PulsarpyError: it never will be: the subscription, or the broker's journal, was lost.
        """
        await self.kept.durable()

    def redeliver(
        self, consumer: Consumer, entries: Iterable[tuple[LedgerId, EntryId]] | None, epoch: int | None
    ) -> None:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES: of what it has, these entries, or all of it if None."""
        self._dispatcher.redeliver(consumer.id, entries, epoch)
        self._moved()

    # -- the topic -----------------------------------------------------------------------------------------------------

    def entries_grew(self) -> None:
        """More entries are readable."""
        self.deliveries.wake()

    def see(self, entries: SubscribedEntries, chain: LedgerChain, compacted: Compacted | None) -> None:
        """Go on with another sight of the topic: what it reads in place of the log, and the chain that goes with it."""
        self.deliveries.entries, self.deliveries.compacted = entries, compacted
        self.chain_changed(chain)

    def chain_changed(self, chain: LedgerChain) -> None:
        """Ledgers came, ended or were trimmed: this chain counts from now on."""
        self.chain = chain
        if self.kept.cursor.follow(chain):
            self._dispatcher.forget_acked()
        self._moved()

    def reached_end(self) -> None:
        """The topic was terminated, and its last message is readable: consumers are told once they have it all."""
        self._is_ended = True
        self._moved()

    def was_reset(self) -> None:
        """The cursor was reset, with no consumer connected."""
        self._dispatcher.reset()
        self._moved()

    async def close(self) -> None:
        """Deliver nothing any more; consumers are gone or sent away before."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self.deliveries.close()

    # ------------------------------------------------------------------------------------------------------------------

    def _make_dispatcher(self) -> Dispatcher:
        cursor, limits = self.kept.cursor, self._limits
        if self.type == "Shared":
            return SharedDispatcher(cursor, limits)
        if self.type == "Key_Shared":
            return KeySharedDispatcher(cursor, limits, self.key_shared)
        is_failover = self.type == "Failover"
        return SingleActiveDispatcher(cursor, limits, is_failover=is_failover, partition=self.part.partition)

    def _moved(self) -> None:
        """After whatever may have acknowledged something, made something deliverable, or set a time."""
        self.deliveries.wake()
        self._note_change()

    def _note_change(self) -> None:
        """After whatever may have acknowledged something, or set a time."""
        if self.kept.cursor.unrecorded:
            self.kept.changed()
        if self._is_ended:
            asyncio.get_running_loop().call_soon(self._tell_end)  # behind the answer to who has just subscribed
        due_ms = self._dispatcher.due_ms
        if due_ms is None:
            return
        loop = asyncio.get_running_loop()
        at_s = loop.time() + max(due_ms - current_ms(), 0) / 1000
        if self._timer is not None:
            if self._timer.when() <= at_s:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._tell(self._dispatcher.tick(current_ms()))
        self._moved()

    def _tell_end(self) -> None:
        """As in Pulsar: when nothing is left that is not acknowledged."""
        if self.kept.cursor.backlog_entries:
            return
        for consumer in self.consumers:
            if not consumer.knows_end and knows_end_of_topic(consumer.peer):
                consumer.knows_end = True
                consumer.peer.write(replies.reached_end_of_topic(consumer.consumer_id))

    def _tell(self, effects: Iterable[ActiveConsumerChanged]) -> None:
        for changed in effects:
            consumer = self._consumers.get(changed.consumer)
            if consumer is not None:
                consumer.tell_active(is_active=changed.is_active)
