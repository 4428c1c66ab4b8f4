"""A subscription of a loaded topic: its consumers, its cursor, its dispatcher.

Consumers' commands, new entries and timers drive the dispatcher; `Deliveries` reads and sends the entries it wants.
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
    """A subscription with its connected consumers. Call all methods in the broker's event loop.

    Args:
        part: The topic.
        name: Its name.
        type_: Its type; it may change while no consumer is connected.
        kept: Its cursor, with the cursor's storage.
        entries: The reader of the topic's entries.
        chain: The chain of ledgers in its view of the topic, which its cursor uses too.
        limits: The limits of dispatching.
        key_shared: The division of keys among its consumers, if the type is Key_Shared.

    Attributes:
        chain: The chain of ledgers in its view of the topic.
        deliveries: Its delivery loop.
        reads_compacted: True if it reads compactions of the topic.
        is_renewed: An event, cleared while it switches to another compaction, when its view of the topic may lag.
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
        """The connected consumers, in the order in which they subscribed."""
        return list(self._consumers.values())

    @property
    def entries(self) -> SubscribedEntries:
        """The reader of the topic's entries, in the subscription's view of the topic."""
        return self.deliveries.entries

    @property
    def compacted(self) -> Compacted | None:
        """The compaction that is read in place of the log's beginning; None if only the log is read."""
        return self.deliveries.compacted

    @property
    def messages_out(self) -> int:
        """The number of messages delivered since the subscription was loaded."""
        return self.deliveries.messages

    @property
    def bytes_out(self) -> int:
        """The bytes of the entries delivered since the subscription was loaded."""
        return self.deliveries.size_bytes

    @property
    def entries_lost(self) -> int:
        """The number of entries skipped because no copy is readable (`auto_skip_non_recoverable_data`)."""
        return self.deliveries.entries_lost

    @property
    def problem(self) -> str | None:
        """The error of the last read, which is retried; None if it succeeded."""
        return self.deliveries.problem

    @property
    def stats(self) -> DispatcherStats:
        """The dispatcher's current counts; `ConsumerStats.id` is the `id` of one of `consumers`."""
        return self._dispatcher.stats()

    def apply_limits(self, limits: DispatchLimits) -> None:
        """Apply new limits of dispatching, which may block or unblock consumers."""
        self._limits = self.deliveries.limits = limits
        self._dispatcher.apply_limits(limits)
        self._moved()

    # -- consumers -----------------------------------------------------------------------------------------------------

    def change_type(self, type_: SubscriptionType, key_shared: KeySharedPolicy) -> None:
        """Change the type or the division of keys; unacknowledged deliveries are delivered again.

        Raises:
            ConsumerBusyError: consumers of the old type, or with the old division of keys, are connected.
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
        """Add a consumer.

        Raises:
            ConsumerBusyError: the subscription is Exclusive and has a consumer.
            ConsumerAssignError: its hash ranges are invalid or overlap another consumer's.
        """
        self._last_id += 1
        consumer.id = ConsumerId(self._last_id)
        effects = self._dispatcher.add_consumer(consumer.info, current_ms())
        self._consumers[consumer.id] = consumer
        self._notify_consumers(effects)
        self._moved()

    def remove(self, consumer: Consumer) -> bool:
        """Remove a consumer and redeliver its unacknowledged messages; return False if it was removed already."""
        if self._consumers.get(consumer.id) is not consumer:
            return False
        del self._consumers[consumer.id]
        self._notify_consumers(self._dispatcher.remove_consumer(consumer.id, current_ms()))
        self._moved()
        return True

    def disconnect_all(self, *, for_seek: bool = False) -> None:
        """Disconnect all consumers: their clients look the topic up and subscribe again.

        Args:
            for_seek: True if the consumers are disconnected for a seek.
        """
        for consumer in self.consumers:
            consumer.send_close(for_seek=for_seek)
            self.remove(consumer)

    def flow(self, consumer: Consumer, permits: int) -> None:
        """Add permits to a consumer (FLOW), each for one message."""
        self._dispatcher.flow(consumer.id, permits)
        self.deliveries.wake()

    def writable_again(self, consumer: Consumer) -> None:
        """Resume deliveries to a consumer whose connection has room again."""
        self._dispatcher.set_writable(consumer.id, True)
        self.deliveries.wake()

    def ack(self, consumer: Consumer, acks: Iterable[Ack], *, cumulative: bool = False) -> None:
        """Acknowledge messages for a consumer (ACK); `wait_durable` waits until the acknowledgement is stored.

        Raises:
            InvalidArgumentError: an entry does not exist yet; all others are acknowledged.
        """
        try:
            self._dispatcher.ack(consumer.id, acks, cumulative=cumulative)
        finally:
            self._moved()

    def skip(self, acks: Iterable[Ack] = (), through: Position | None = None) -> None:
        """Acknowledge messages for an operator or a policy, even if a consumer has them: they are not delivered again.

        Args:
            acks: The entries, or messages of entries, to acknowledge.
            through: The last of the entries to acknowledge from the topic's beginning on; None for none.

        Raises:
            InvalidArgumentError: an entry does not exist; entries before it are acknowledged.
        """
        try:
            if through is not None:
                self.kept.cursor.acknowledge_through(through.ledger, through.entry)
            for ack in acks:
                self.kept.cursor.acknowledge(*ack)
        finally:
            self._dispatcher.forget_acked()
            self._moved()

    async def wait_durable(self) -> None:
        """Wait until all acknowledgements so far are durable.

        Raises:
            PulsarpyError: they cannot become durable, because the subscription or the broker's journal was lost.
        """
        await self.kept.wait_durable()

    def redeliver(
        self, consumer: Consumer, entries: Iterable[tuple[LedgerId, EntryId]] | None, epoch: int | None
    ) -> None:
        """Deliver unacknowledged entries of a consumer again.

        Args:
            consumer: The consumer.
            entries: Ledger and id of each entry; None for all of the consumer.
            epoch: The consumer's new epoch; None to keep the epoch.
        """
        self._dispatcher.redeliver(consumer.id, entries, epoch)
        self._moved()

    # -- the topic -----------------------------------------------------------------------------------------------------

    def on_entries_grew(self) -> None:
        """Deliver entries that became readable."""
        self.deliveries.wake()

    def switch_view(self, entries: SubscribedEntries, chain: LedgerChain, compacted: Compacted | None) -> None:
        """Switch to another view of the topic.

        Args:
            entries: The reader of the view's entries.
            chain: The chain of the view's ledgers.
            compacted: The compaction that the view has in place of the log's beginning; None for the log alone.
        """
        self.deliveries.entries, self.deliveries.compacted = entries, compacted
        self.on_chain_changed(chain)

    def on_chain_changed(self, chain: LedgerChain) -> None:
        """Use a new chain: ledgers were added, closed or trimmed."""
        self.chain = chain
        if self.kept.cursor.apply_chain(chain):
            self._dispatcher.forget_acked()
        self._moved()

    def on_topic_ended(self) -> None:
        """Note the end of a terminated topic: consumers are notified once everything is acknowledged."""
        self._is_ended = True
        self._moved()

    def on_cursor_reset(self) -> None:
        """Restart the dispatcher after the cursor was reset; no consumer is connected."""
        self._dispatcher.restart_reading()
        self._moved()

    async def close(self) -> None:
        """Stop deliveries; call it after the last consumer is removed."""
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
        name, partition = self.part.name, self.part.partition
        return SingleActiveDispatcher(cursor, limits, is_failover=is_failover, topic=name, partition=partition)

    def _moved(self) -> None:
        """Schedule deliveries, the storing of the cursor, and timers, after a change of the dispatcher or cursor."""
        self.deliveries.wake()
        self._note_change()

    def _note_change(self) -> None:
        """Schedule the storing of the cursor, and timers, after acknowledgements or a change of the due time."""
        if self.kept.cursor.unrecorded:
            self.kept.record_changes()
        if self._is_ended:
            asyncio.get_running_loop().call_soon(self._notify_end)  # after the answer to a new consumer's SUBSCRIBE
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
        self._notify_consumers(self._dispatcher.handle_due(current_ms()))
        self._moved()

    def _notify_end(self) -> None:
        """Notify consumers of the topic's end once everything is acknowledged, as Pulsar does."""
        if self.kept.cursor.backlog_entries:
            return
        for consumer in self.consumers:
            if not consumer.knows_end and knows_end_of_topic(consumer.peer):
                consumer.knows_end = True
                consumer.peer.write(replies.reached_end_of_topic(consumer.consumer_id))

    def _notify_consumers(self, effects: Iterable[ActiveConsumerChanged]) -> None:
        for changed in effects:
            consumer = self._consumers.get(changed.consumer)
            if consumer is not None:
                consumer.send_active_change(is_active=changed.is_active)
