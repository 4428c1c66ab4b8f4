"""Exclusive and Failover: one consumer at a time gets all entries in order.

Delivered entries are not tracked: a redelivery, or a change of the active consumer, restarts reading at the mark-delete
position and skips individually acknowledged entries. An Exclusive consumer with hash ranges, such as a reader of a part
of the keys, gets the entries of these ranges; the others stay unacknowledged, as in Pulsar.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pulsar_on_spark.broker.dispatch.active_consumer import ActiveConsumer
from pulsar_on_spark.broker.dispatch.consumer import Consumer
from pulsar_on_spark.broker.dispatch.dispatcher import Dispatcher, ack_each, after
from pulsar_on_spark.broker.dispatch.keys import StickyRanges
from pulsar_on_spark.broker.dispatch.limits import DispatchLimits
from pulsar_on_spark.broker.dispatch.values import (
    Ack,
    ActiveConsumerChanged,
    ConsumerId,
    ConsumerInfo,
    ConsumerStats,
    Delivery,
    DispatcherStats,
    EntryInfo,
    Wanted,
)
from pulsar_on_spark.model.ids import EntryId, LedgerId
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import Cursor


class SingleActiveDispatcher(Dispatcher):
    """The dispatcher of Exclusive and Failover; deliveries pause while a change of the active consumer is pending.

    Args:
        cursor: The subscription's cursor.
        limits: The limits of reads, and the delay before another consumer becomes active.
        is_failover: True for Failover, False for Exclusive.
        topic: The topic's full name.
        partition: The topic's partition index, -1 if it is not partitioned.
    """

    def __init__(
        self, cursor: Cursor, limits: DispatchLimits, *, is_failover: bool, topic: str = "", partition: int = -1
    ) -> None:
        super().__init__(cursor, limits)
        self._is_failover = is_failover
        self._keys: StickyRanges | None = None
        """The hash ranges of an Exclusive consumer; None if it gets all entries."""
        self._election = ActiveConsumer(is_failover=is_failover, topic=topic, partition=partition)
        self._active: Consumer | None = None

    @property
    def due_ms(self) -> int | None:
        """The time at which the elected consumer becomes active, in milliseconds since 1970; None without a change."""
        return self._election.change_at_ms

    @property
    def active(self) -> ConsumerId | None:
        """The id of the active consumer, which gets all entries; None if there is none."""
        return self._election.id

    # -- consumers -------------------------------------------------------------------------------------------------

    def add_consumer(self, info: ConsumerInfo, now_ms: int) -> list[ActiveConsumerChanged]:
        """Add a consumer, and return the notices to send (errors as `Dispatcher.add_consumer`)."""
        keys = StickyRanges() if info.ranges and not self._is_failover else None
        if keys is not None:
            keys.add(info)
        notices = self._election.add(info, now_ms, self._delay_ms)
        self._keys = keys
        self._consumers[info.id] = Consumer(info)
        self._follow_election()
        return notices

    def remove_consumer(self, consumer: ConsumerId, now_ms: int) -> list[ActiveConsumerChanged]:
        """Remove a consumer; return the notices to send. A new active consumer begins at the mark-delete position."""
        notices = self._election.remove(consumer, now_ms, self._delay_ms)
        self._consumers.pop(consumer, None)
        self._follow_election()
        return notices

    def ack(self, consumer: ConsumerId, acks: Iterable[Ack], *, cumulative: bool = False) -> bool:
        """Acknowledge entries or messages, of any consumer; return True if the cursor changed."""
        acknowledge = self._cursor.acknowledge_through if cumulative else self._cursor.acknowledge
        return ack_each(acks, lambda ack: acknowledge(*ack))

    def redeliver(
        self, consumer: ConsumerId, entries: Iterable[tuple[LedgerId, EntryId]] | None, epoch: int | None = None
    ) -> None:
        """Restart reading at the mark-delete position, if the consumer is the active one; `entries` are ignored.

        The consumer gets the new epoch, unless it is None.
        """
        asking = self._consumers.get(consumer)
        if asking is None:
            return
        if epoch is not None:
            asking.epoch = epoch
        if asking is self._active:
            self.restart_reading()

    # -- delivering ------------------------------------------------------------------------------------------------

    def wanted(self) -> Wanted | None:
        """Return the request for the next read; None if the active consumer can get no entry, or a read runs."""
        active = self._active
        if self._reading is not None or active is None or self.due_ms is not None or not active.is_available:
            return None
        return self._read_on(active.permits, self._limits.dispatcher_max_read_batch_size)

    def offer(self, wanted: Wanted, entries: Sequence[EntryInfo], now_ms: int) -> list[Delivery]:
        """Assign read entries to the active consumer, and return the deliveries to send (as `Dispatcher.offer`)."""
        active, cursor = self._active, self._cursor
        if not self._take_answer(wanted, entries) or active is None:
            return []
        deliveries: list[Delivery] = []
        last = None
        for info in entries:
            if not active.is_available:
                break
            ledger, entry = last = info.ledger, info.entry
            if cursor.is_acked(ledger, entry):
                continue
            if info.is_marker:
                cursor.acknowledge(ledger, entry)
                continue
            if self._keys is not None and self._keys.consumer(self._keys.slot(info.key or b"")) is None:
                continue
            ack_set = cursor.ack_set(ledger, entry)
            permits = ack_set.bit_count() if ack_set else info.messages
            active.permits -= permits
            deliveries.append(Delivery(active.info.id, ledger, entry, 0, ack_set, permits, active.epoch))
        if last is not None:
            self._next = after(last)
        return deliveries

    def handle_due(self, now_ms: int) -> list[ActiveConsumerChanged]:
        """Activate the elected consumer if its delay has ended, and return the notices to send."""
        notices = self._election.tick(now_ms, self._delay_ms)
        self._follow_election()
        return notices

    def restart_reading(self) -> None:
        """Restart reading at the mark-delete position; entries of a running read are dropped."""
        self._next = self._cursor.mark_delete
        self._reading = None

    def forget_acked(self) -> None:
        """Do nothing: delivered entries are not tracked."""

    def stats(self) -> DispatcherStats:
        """Return the consumers' counts and the active consumer, with the reasons why consumers get no entries."""
        consumers = tuple(
            ConsumerStats(consumer.info.id, consumer.permits, None, self._obstacle(consumer))
            for consumer in self._consumers.values()
        )
        waits = self.due_ms is not None
        blocked = "another consumer is about to become active" if waits else None
        return DispatcherStats(consumers, blocked=blocked, active=self.active)

    # --------------------------------------------------------------------------------------------------------------

    def _obstacle(self, consumer: Consumer) -> str | None:
        if consumer is not self._active:
            return "it is not the active consumer"
        return consumer.obstacle

    @property
    def _delay_ms(self) -> int:
        return self._limits.active_consumer_failover_delay_time_millis

    def _follow_election(self) -> None:
        """Restart reading for a new active consumer; drop a running read while a change of the consumer is pending."""
        active = None if self._election.id is None else self._consumers[self._election.id]
        if active is not self._active:
            self._active = active
            self.restart_reading()
        elif self.due_ms is not None:
            self._reading = None
