"""One subscription of a loaded topic: its consumers, its dispatcher, and the loop that reads and delivers.

    consumers' commands, growth, time ──> Dispatcher ──wanted──> EntryReader ──offer──> MESSAGE frames to connections

One task reads for all consumers, one read at a time, only as much as they have asked for; what a client leaves unread
in its connection stops its deliveries. So the memory of a subscription is that of one read and of its dispatcher.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from pulsar_on_spark.broker.consumer import Consumer, KeptCursor
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
    Delivery,
    DispatcherStats,
    EntryInfo,
    KeySharedPolicy,
    Wanted,
)
from pulsar_on_spark.broker.peer import knows_end_of_topic
from pulsar_on_spark.broker.reading.compacted import Compacted, SubscribedEntries
from pulsar_on_spark.broker.reading.entry_look import look_at
from pulsar_on_spark.broker.reading.losses import LOSSES, lost_range
from pulsar_on_spark.broker.throttle import Throttle
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import ConsumerBusyError, PulsarpyError
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from pulsar_on_spark.protocol import replies
from pulsar_on_spark.topic.catalog import TopicPart
from pulsar_on_spark.topic.cursor.chain import LedgerChain
from pulsar_on_spark.topic.cursor.holes import ack_set_words
from pulsar_on_spark.topic.entry.rows import StoredEntry
from pulsar_on_spark.topic.subscription.ownership import SubscriptionType

log = logging.getLogger(__name__)

RETRY_S: Final = (1.0, 60.0)
"""How long after a failed read the next is tried, doubled from first to last: looking for what is lost costs."""
RATE_WAIT_S: Final = 1.0
"""How soon a subscription that is throttled looks again, as other limits may hold then."""
SKIP_AFTER_FAILURES: Final = 2
"""What cannot be read is passed over at the third attempt, some seconds later: a path may be away for a moment."""
ACTIVE_CONSUMER_PROTOCOL: Final = 12
"""The first protocol version whose clients know ACTIVE_CONSUMER_CHANGE."""


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
        compacted: The compaction that it reads in place of the log's beginning; None if it reads the log alone.
        reads_compacted: Whether it reads compacted, where the topic is; then `on_failed_read` is called after each read
            that failed: what it reads may have been replaced.
        is_renewed: Not set while it goes over to another compaction: what it sees of the topic may lag behind.
        messages_out: Messages that were delivered.
        bytes_out: Bytes of their entries.
        rate: How fast it may deliver.
        shared_rate: How fast it may together with the topic's other subscriptions.
        entries_lost: Entries that were passed over because no copy gives them.
        problem: Why the last read failed; None if it did not. It is tried again and again, and nothing is passed over
            unless `auto_skip_non_recoverable_data` says so.
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
        self.messages_out = 0
        self.bytes_out = 0
        self.problem: str | None = None
        self.entries_lost = 0
        self.entries = entries
        self.chain = chain
        self.compacted: Compacted | None = None
        self.reads_compacted = False
        self.on_failed_read: Callable[[], None] = _nothing
        self.is_renewed = asyncio.Event()
        self.is_renewed.set()
        self.rate = Throttle()
        self.shared_rate = self.rate
        self._limits = limits
        self._dispatcher = self._make_dispatcher()
        self._consumers: dict[ConsumerId, Consumer] = {}
        self._last_id = 0
        self._wake = asyncio.Event()
        self._delivering: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_ended = False

    @property
    def consumers(self) -> list[Consumer]:
        """Who is connected, in the order of their coming."""
        return list(self._consumers.values())

    @property
    def stats(self) -> DispatcherStats:
        """How dispatching stands; its consumers' ids are those of `consumers`."""
        return self._dispatcher.stats()

    def limit(self, limits: DispatchLimits) -> None:
        """Let other limits hold from now on."""
        self._limits = limits
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
        self._dispatcher = self._make_dispatcher()

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
        if self._delivering is None:
            self._delivering = asyncio.create_task(self._deliver(), name=f"deliver {self.part.name} {self.name}")
        self._moved()

    def remove(self, consumer: Consumer) -> bool:
        """A consumer went, what it had goes to others; False if it was not here any more."""
        if self._consumers.get(consumer.id) is not consumer:
            return False
        del self._consumers[consumer.id]
        self._tell(self._dispatcher.remove_consumer(consumer.id, current_ms()))
        self._moved()
        return True

    def disconnect_all(self) -> None:
        """Send all consumers away: their clients look the topic up and subscribe again."""
        for consumer in self.consumers:
            consumer.is_closed = True
            consumer.peer.write(replies.close_consumer(consumer.consumer_id))
            self.remove(consumer)

    def flow(self, consumer: Consumer, permits: int) -> None:
        """FLOW."""
        self._dispatcher.flow(consumer.id, permits)
        self._wake.set()

    def writable_again(self, consumer: Consumer) -> None:
        """The consumer's connection takes data again."""
        self._dispatcher.set_writable(consumer.id, True)
        self._wake.set()

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
        if self._consumers:
            self._wake.set()

    def see(self, entries: SubscribedEntries, chain: LedgerChain, compacted: Compacted | None) -> None:
        """Go on with another sight of the topic: what it reads in place of the log, and the chain that goes with it."""
        self.entries, self.compacted = entries, compacted
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
        if self._delivering is not None:
            self._delivering.cancel()
            await asyncio.gather(self._delivering, return_exceptions=True)
            self._delivering = None

    # -- delivering ----------------------------------------------------------------------------------------------------

    async def _deliver(self) -> None:
        """Read and deliver for as long as there are consumers, or will be."""
        pause_s, last_pause_s = RETRY_S
        failures = 0
        while True:
            await self._wake.wait()
            while (wanted := self._wanted()) is not None:
                try:
                    entries = await self.entries.read(self.part, wanted.ranges, wanted.max_entries, wanted.max_bytes)
                    self._offer(wanted, entries)
                except Exception as error:
                    # Whatever it is, the other subscriptions go on; this one tries again.
                    expected = isinstance(error, PulsarpyError)
                    log.warning("Subscription %r on %s: %s", self.name, self.part.name, error, exc_info=not expected)
                    self.problem = str(error)
                    self._dispatcher.offer(wanted, (), current_ms())
                    self.on_failed_read()
                    failures += 1
                    if failures > SKIP_AFTER_FAILURES and await self._passed_over(wanted, error):
                        continue
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, last_pause_s)
                else:
                    pause_s, failures, self.problem = RETRY_S[0], 0, None
                    await asyncio.sleep(0)

    async def _passed_over(self, wanted: Wanted, error: Exception) -> bool:
        """Acknowledge what is lost for good, where that is wanted (`auto_skip_non_recoverable_data`)."""
        if not self._limits.auto_skip_non_recoverable_data or not isinstance(error, LOSSES):
            return False
        asked = wanted.ranges[0]
        first = Position(asked.ledger, EntryId(asked.first))
        try:
            end = await self.entries.lost_until(self.part, first, asked.end, error)
        except PulsarpyError as other:
            log.warning("Subscription %r on %s: %s", self.name, self.part.name, other)
            return False
        log.error(
            "Subscription %r on %s passes over entries %s, which are lost: %s",
            self.name,
            self.part.name,
            lost_range(first, end),
            error,
        )
        self.entries_lost += end - first.entry
        self.skip(Ack(first.ledger, EntryId(entry)) for entry in range(first.entry, end))
        return True

    def _wanted(self) -> Wanted | None:
        """What to read now; where the rate does not allow more, the loop is woken when it does."""
        self._wake.clear()  # whatever woke it so far is answered now
        self._note_slow()
        loop = asyncio.get_running_loop()
        wait_s = max(self.rate.wait_s(loop.time()), self.shared_rate.wait_s(loop.time()))
        if wait_s > 0:
            loop.call_later(min(wait_s, RATE_WAIT_S), self._wake.set)
            return None
        return self._dispatcher.wanted()

    def _note_slow(self) -> None:
        """Who shares a connection with others, its client's a thousand topics may be, is held up by what they got."""
        for id_, consumer in self._consumers.items():
            if not consumer.peer.is_writable:
                self._dispatcher.set_writable(id_, False)

    def _offer(self, wanted: Wanted, entries: Sequence[StoredEntry]) -> None:
        self._note_slow()
        infos = [_info(entry, self._limits.delayed_delivery_enabled) for entry in entries]
        if self.compacted is not None:
            self._leave_out(entries, infos)
        deliveries = self._dispatcher.offer(wanted, infos, current_ms())
        frames: dict[ConsumerId, list[bytes]] = {}
        left = iter(entries)
        messages, size = self.messages_out, self.bytes_out
        for delivery in deliveries:
            entry = next(x for x in left if x.entry_id == delivery.entry and x.ledger_id == delivery.ledger)
            consumer = self._consumers[delivery.consumer]
            head = self._head(consumer, delivery, len(entry.data))
            frames.setdefault(delivery.consumer, []).extend((head, entry.data))
            consumer.messages_out += delivery.permits
            consumer.bytes_out += len(entry.data)
            self.messages_out += delivery.permits
            self.bytes_out += len(entry.data)
        if deliveries:
            now_s, given = asyncio.get_running_loop().time(), (self.messages_out - messages, self.bytes_out - size)
            self.rate.take(now_s, *given)
            if self.shared_rate is not self.rate:
                self.shared_rate.take(now_s, *given)
        for id_, parts in frames.items():
            self._consumers[id_].peer.write(b"".join(parts))
        self._moved()

    def _leave_out(self, entries: Sequence[StoredEntry], infos: Sequence[EntryInfo]) -> None:
        """Acknowledge what compaction took out of batches: not every client passes over it, but all over acked ones."""
        for stored, info in zip(entries, infos, strict=True):
            if stored.ack_set:
                self.kept.cursor.acknowledge(stored.ledger_id, stored.entry_id, stored.ack_set, info.messages)

    def _head(self, consumer: Consumer, delivery: Delivery, size_bytes: int) -> bytes:
        return replies.message_head(
            consumer.consumer_id,
            delivery.ledger,
            delivery.entry,
            self.part.partition,
            delivery.redelivery_count,
            ack_set_words(delivery.ack_set),
            delivery.epoch,
            size_bytes,
        )

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
        if self.kept.cursor.unrecorded:
            self.kept.changed()
        self._wake.set()
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
            if consumer is not None and consumer.peer.protocol_version >= ACTIVE_CONSUMER_PROTOCOL:
                consumer.peer.write(replies.active_consumer_change(consumer.consumer_id, changed.is_active))


def _nothing() -> None:
    """Nobody wants to know."""


def _info(stored: StoredEntry, heeds_times: bool) -> EntryInfo:
    look = look_at(stored.data)
    chunk = Chunk(*look.chunk) if look.chunk is not None and look.chunk[2] > 1 else None
    return EntryInfo(
        stored.ledger_id,
        stored.entry_id,
        look.messages,
        len(stored.data),
        look.key,
        look.deliver_at_ms if heeds_times else None,
        look.is_marker,
        chunk,
    )
