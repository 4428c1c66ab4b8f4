"""The delivery loop of a subscription: read entries and send them to consumers.

    wake ──> a turn: which entries does the dispatcher want?
                 ├── in memory ──> offer ──> MESSAGE frames to connections ──> the next turn
                 └── else a task reads them off the event loop and offers them; retries with back-off if that fails

A subscription runs one read at a time, limited to the permits of all its consumers, and a client that does not read
its connection gets no deliveries. So its memory is bounded by one read and its dispatcher. The loop sleeps while
nothing is deliverable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from pulsar_on_spark.broker.dispatch.dispatcher import Dispatcher
from pulsar_on_spark.broker.dispatch.limits import DispatchLimits
from pulsar_on_spark.broker.dispatch.values import Chunk, ConsumerId, Delivery, EntryInfo, Wanted
from pulsar_on_spark.broker.reading.compacted import Compacted, SubscribedEntries
from pulsar_on_spark.broker.reading.entry_look import look_at
from pulsar_on_spark.broker.reading.losses import LOSSES, lost_range
from pulsar_on_spark.broker.runtime.throttle import Throttle
from pulsar_on_spark.broker.subscriptions.consumer import Consumer, KeptCursor
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.model.ids import EntryId, Position
from pulsar_on_spark.protocol import replies
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.entries.rows import StoredEntry
from pulsar_on_spark.topic.managed_ledger.cursor.holes import ack_set_words

log = logging.getLogger(__name__)

RETRY_S: Final = (1.0, 60.0)
"""First and longest delay before a failed read is retried, in seconds. The delay doubles with each failure, because
searching for copies is costly."""
RATE_WAIT_S: Final = 1.0
"""Longest wait of a throttled subscription before it checks its rate again, in seconds: the rate may change meanwhile.
"""
_MOST_DOUBLINGS: Final = 10
SKIP_AFTER_FAILURES: Final = 2
"""Failed attempts, some seconds in all, before lost entries are skipped: a storage path may be gone for a moment."""


class Deliveries:
    """The delivery loop of one subscription. Call all methods in the broker's event loop.

    Args:
        part: The topic.
        name: The subscription.
        kept: The subscription's cursor.
        entries: The reader of the topic's entries.
        dispatcher: Decides which entries to read and which consumer gets each.
        consumers: The connected consumers by their ids in the subscription, which the caller updates.
        limits: The limits of dispatching.
        moved: Called after a delivery, which may have acknowledged entries or set the dispatcher's timer.

    Attributes:
        entries: The reader of the topic's entries; replaced when the subscription switches to another view.
        compacted: The compaction that is read in place of the log's beginning; None if only the log is read.
        dispatcher: The dispatcher; replaced if the subscription changes its type.
        limits: The limits of dispatching.
        on_failed_read: Called after each failed read: the files that were read may have been replaced.
        messages: Number of delivered messages.
        size_bytes: Bytes of the delivered entries.
        rate: The subscription's dispatch rate.
        shared_rate: The dispatch rate of all subscriptions of the topic together.
        entries_lost: Number of entries that were skipped because no copy is readable.
        problem: The error of the last read; None if it succeeded.
    """

    def __init__(
        self,
        part: TopicPart,
        name: str,
        kept: KeptCursor,
        entries: SubscribedEntries,
        dispatcher: Dispatcher,
        consumers: Mapping[ConsumerId, Consumer],
        limits: DispatchLimits,
        moved: Callable[[], None],
    ) -> None:
        self.entries = entries
        self.compacted: Compacted | None = None
        self.dispatcher = dispatcher
        self.limits = limits
        self.on_failed_read: Callable[[], None] = _nothing
        self.messages = 0
        self.size_bytes = 0
        self.rate = Throttle()
        self.shared_rate = self.rate
        self.entries_lost = 0
        self.problem: str | None = None
        self._part = part
        self._name = name
        self._kept = kept
        self._consumers = consumers
        self._moved = moved
        self._loop = asyncio.get_running_loop()
        self._is_due = False
        self._reading: asyncio.Task[None] | None = None
        self._failures = 0
        self._held: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """Schedule a turn: entries may be deliverable. Repeated calls before the turn have no further effect."""
        if not self._is_due and self._consumers and self.dispatcher.has_more:
            self._is_due = True
            self._loop.call_soon(self._turn)

    async def close(self) -> None:
        """Stop reading; call it after the last consumer is removed."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    # -- reading -------------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Deliver entries that are in memory, up to one read: other subscriptions get a turn before the next."""
        self._is_due = False
        if self._reading is not None or (wanted := self._wanted()) is None:
            return
        try:
            entries = self.entries.read_in_memory(self._part, wanted.ranges, wanted.max_entries, wanted.max_bytes)
            if entries:
                self._offer(wanted, entries)
        except Exception as error:
            self._reading = asyncio.create_task(self._after(self._failed(wanted, error)))
        else:
            if entries:
                self.wake()
            else:
                self._reading = asyncio.create_task(self._after(self._read(wanted)))

    async def _after(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a read, and schedule the next turn whether it succeeds or fails."""
        try:
            await work
        finally:
            self._reading = None
            self.wake()

    async def _read(self, wanted: Wanted) -> None:
        """Read entries that are not in memory, and deliver them."""
        try:
            entries = await self.entries.read(self._part, wanted.ranges, wanted.max_entries, wanted.max_bytes)
            self._note_slow()
            self._offer(wanted, entries)
        except Exception as error:
            await self._failed(wanted, error)

    async def _failed(self, wanted: Wanted, error: Exception) -> None:
        """Log a failed read and wait before the retry, longer each time; other subscriptions are not affected."""
        expected = isinstance(error, PulsarpyError)
        log.warning(
            "Subscription %r on %s: %s",
            self._name,
            self._part.name,
            error,
            exc_info=None if expected else error,
            extra={"subscription": self._name, "topic": self._part.name},
        )
        self.problem = str(error)
        self.dispatcher.offer(wanted, (), current_ms())
        self.on_failed_read()
        self._failures += 1
        if self._failures <= SKIP_AFTER_FAILURES or not await self._skip_lost(wanted, error):
            first_s, last_s = RETRY_S
            await asyncio.sleep(min(first_s * 2 ** min(self._failures - 1, _MOST_DOUBLINGS), last_s))

    async def _skip_lost(self, wanted: Wanted, error: Exception) -> bool:
        """Acknowledge lost entries, and return True, if an operator gave them up or a setting allows to skip any.

        The setting is `auto_skip_non_recoverable_data`.
        """
        if not isinstance(error, LOSSES):
            return False
        asked = wanted.ranges[0]
        first = Position(asked.ledger, EntryId(asked.first))
        try:
            end = await self.entries.given_up_until(self._part, first)
            if end is None and self.limits.auto_skip_non_recoverable_data:
                end = await self.entries.lost_until(self._part, first, asked.end, error)
        except PulsarpyError as other:
            log.warning(
                "Subscription %r on %s: %s",
                self._name,
                self._part.name,
                other,
                extra={"subscription": self._name, "topic": self._part.name},
            )
            return False
        if end is None:
            return False
        end = min(end, asked.end)
        log.error(
            "Subscription %r on %s skips entries %s, which are lost: %s",
            self._name,
            self._part.name,
            lost_range(first, end),
            error,
            extra={"subscription": self._name, "topic": self._part.name},
        )
        self.entries_lost += end - first.entry
        for entry in range(first.entry, end):
            self._kept.cursor.acknowledge(first.ledger, EntryId(entry))
        self.dispatcher.forget_acked()
        self._moved()
        return True

    def _wanted(self) -> Wanted | None:
        """Return the entries to read now; None if there are none, or if the rate allows none until a later turn."""
        self._note_slow()
        if not (self.rate.is_unlimited and self.shared_rate.is_unlimited):
            now_s = self._loop.time()
            wait_s = max(self.rate.wait_s(now_s), self.shared_rate.wait_s(now_s))
            if wait_s > 0:
                if self._held is None:
                    self._held = self._loop.call_later(min(wait_s, RATE_WAIT_S), self._held_long_enough)
                return None
        return self.dispatcher.wanted()

    def _held_long_enough(self) -> None:
        self._held = None
        self.wake()

    def _note_slow(self) -> None:
        """Mark consumers whose connections are full: a client's other topics may have filled a shared connection."""
        for id_, consumer in self._consumers.items():
            if not consumer.peer.is_writable:
                self.dispatcher.set_writable(id_, False)

    # -- delivering ----------------------------------------------------------------------------------------------------

    def _offer(self, wanted: Wanted, entries: Sequence[StoredEntry]) -> None:
        infos = [_info(entry, self.limits.delayed_delivery_enabled) for entry in entries]
        if self.compacted is not None:
            self._acknowledge_removed(entries, infos)
        deliveries = self.dispatcher.offer(wanted, infos, current_ms())
        if deliveries:
            self._deliver(deliveries, entries)
        self._failures, self.problem = 0, None
        self._moved()

    def _deliver(self, deliveries: Sequence[Delivery], entries: Sequence[StoredEntry]) -> None:
        """Send the deliveries, which are in the order of the entries."""
        frames: dict[ConsumerId, list[bytes]] = {}
        left = iter(entries)
        messages = size_bytes = 0
        for delivery in deliveries:
            entry = next(left)
            while entry.entry_id != delivery.entry or entry.ledger_id != delivery.ledger:
                entry = next(left)
            consumer, entry_bytes = self._consumers[delivery.consumer], len(entry.data)
            head = replies.message_head(
                consumer.consumer_id,
                delivery.ledger,
                delivery.entry,
                self._part.partition,
                delivery.redelivery_count,
                ack_set_words(delivery.ack_set),
                delivery.epoch,
                entry_bytes,
            )
            frames.setdefault(delivery.consumer, []).extend((head, entry.data))
            consumer.messages_out += delivery.permits
            consumer.bytes_out += entry_bytes
            messages += delivery.permits
            size_bytes += entry_bytes
        self.messages += messages
        self.size_bytes += size_bytes
        now_s = self._loop.time()
        self.rate.spend_tokens(now_s, messages, size_bytes)
        if self.shared_rate is not self.rate:
            self.shared_rate.spend_tokens(now_s, messages, size_bytes)
        for id_, parts in frames.items():
            self._consumers[id_].peer.write(b"".join(parts))

    def _acknowledge_removed(self, entries: Sequence[StoredEntry], infos: Sequence[EntryInfo]) -> None:
        """Acknowledge messages that compaction removed from batches: not all clients skip these by themselves."""
        for stored, info in zip(entries, infos, strict=True):
            if stored.ack_set:
                self._kept.cursor.acknowledge(stored.ledger_id, stored.entry_id, stored.ack_set, info.messages)


def _nothing() -> None:
    """Do nothing: the default of `on_failed_read`."""


def _info(stored: StoredEntry, delays_enabled: bool) -> EntryInfo:
    look = look_at(stored.data)
    chunk = Chunk(*look.chunk) if look.chunk is not None and look.chunk[2] > 1 else None
    return EntryInfo(
        stored.ledger_id,
        stored.entry_id,
        look.messages,
        len(stored.data),
        look.key,
        look.deliver_at_ms if delays_enabled else None,
        look.is_marker,
        chunk,
    )
