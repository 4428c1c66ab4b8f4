"""Exclusive and Failover: one consumer at a time gets everything, in order.

Nothing is remembered of what it has: giving back, and a change of the active consumer, begin again at the mark-delete
position, and entries that were acknowledged one by one are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pulsar_on_spark.broker.dispatch.consumer import Consumer
from pulsar_on_spark.broker.dispatch.dispatcher import Dispatcher, ack_each, after
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
from pulsar_on_spark.model.errors import ConsumerBusyError
from pulsar_on_spark.model.ids import EntryId, LedgerId
from pulsar_on_spark.topic.cursor.cursor import Cursor


class SingleActiveDispatcher(Dispatcher):
    """Gives all to the active consumer.

    Of the Failover consumers with the lowest priority number, by name, the one at the partition's index is active, so
    that the partitions of a topic spread over them. While a change is due nobody gets anything.

    Args:
        cursor: The subscription's cursor.
        limits: What bounds reads, and the delay of a change.
        is_failover: False for Exclusive: one consumer, no delay, no notices.
        partition: The topic's partition index, -1 if it is not partitioned.
    """

    def __init__(self, cursor: Cursor, limits: DispatchLimits, *, is_failover: bool, partition: int = -1) -> None:
        super().__init__(cursor, limits)
        self._is_failover = is_failover
        self._partition = partition
        self._active: Consumer | None = None
        self._change_at_ms: int | None = None
        self._untold: list[ConsumerId] = []
        """Who was elected when it came, and is told what became of it when the delay is over."""

    @property
    def due_ms(self) -> int | None:
        """When the elected consumer becomes the active one."""
        return self._change_at_ms

    @property
    def active(self) -> ConsumerId | None:
        """The consumer that gets the entries."""
        return None if self._active is None else self._active.info.id

    # -- consumers -------------------------------------------------------------------------------------------------

    def add_consumer(self, info: ConsumerInfo, now_ms: int) -> list[ActiveConsumerChanged]:
        """See `Dispatcher`."""
        if self._consumers and not self._is_failover:
            holder = next(iter(self._consumers.values())).info.name
            raise ConsumerBusyError(
                f"The subscription is Exclusive and consumer {holder!r} has it: close it, or use another name."
            )
        self._consumers[info.id] = Consumer(info)
        if self._elected().info.id != info.id:
            return self._elect(now_ms) or self._notices(info.id)
        self._untold.append(info.id)
        return self._elect(now_ms)

    def remove_consumer(self, consumer: ConsumerId, now_ms: int) -> list[ActiveConsumerChanged]:
        """See `Dispatcher`."""
        gone = self._consumers.pop(consumer, None)
        if gone is None:
            return []
        if gone is self._active:
            self._active, self._reading = None, None
        if not self._consumers:
            self._change_at_ms = None
            return []
        return self._elect(now_ms)

    def ack(self, consumer: ConsumerId, acks: Iterable[Ack], *, cumulative: bool = False) -> bool:
        """See `Dispatcher`."""
        acknowledge = self._cursor.acknowledge_through if cumulative else self._cursor.acknowledge
        return ack_each(acks, lambda ack: acknowledge(*ack))

    def redeliver(
        self, consumer: ConsumerId, entries: Iterable[tuple[LedgerId, EntryId]] | None, epoch: int | None = None
    ) -> None:
        """See `Dispatcher`; of one that is not active nothing is out."""
        asking = self._consumers.get(consumer)
        if asking is None:
            return
        if epoch is not None:
            asking.epoch = epoch
        if asking is self._active:
            self.reset()

    # -- delivering ------------------------------------------------------------------------------------------------

    def wanted(self) -> Wanted | None:
        """See `Dispatcher`."""
        active = self._active
        if self._reading is not None or active is None or self._change_at_ms is not None or not active.is_available:
            return None
        return self._read_on(active.permits, self._limits.dispatcher_max_read_batch_size)

    def offer(self, wanted: Wanted, entries: Sequence[EntryInfo], now_ms: int) -> list[Delivery]:
        """See `Dispatcher`."""
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
            ack_set = cursor.ack_set(ledger, entry)
            permits = ack_set.bit_count() if ack_set else info.messages
            active.permits -= permits
            deliveries.append(Delivery(active.info.id, ledger, entry, 0, ack_set, permits, active.epoch))
        if last is not None:
            self._next = after(last)
        return deliveries

    def tick(self, now_ms: int) -> list[ActiveConsumerChanged]:
        """See `Dispatcher`."""
        if self._change_at_ms is None:
            return []
        asked_ms = self._change_at_ms - self._limits.active_consumer_failover_delay_time_millis
        if asked_ms <= now_ms < self._change_at_ms:
            return []  # before, the clock was set back: nobody waits for it to come again
        self._change_at_ms = None
        elected = self._elected()
        if elected is not self._active:
            return self._activate(elected)
        untold, self._untold = self._untold, []
        return self._notices(*(each for each in untold if each in self._consumers and each != self.active))

    def reset(self) -> None:
        """See `Dispatcher`."""
        self._next = self._cursor.mark_delete
        self._reading = None

    def forget_acked(self) -> None:
        """See `Dispatcher`; nothing is remembered."""

    def stats(self) -> DispatcherStats:
        """See `Dispatcher`."""
        consumers = tuple(
            ConsumerStats(found.info.id, found.info.name, found.permits, None, self._obstacle(found))
            for found in self._consumers.values()
        )
        waits = self._change_at_ms is not None
        blocked = "another consumer becomes the active one" if waits else None
        return DispatcherStats(consumers, blocked=blocked, active=self.active)

    # --------------------------------------------------------------------------------------------------------------

    def _obstacle(self, consumer: Consumer) -> str | None:
        if consumer is not self._active:
            return "it is not the active consumer"
        return consumer.obstacle

    def _elected(self) -> Consumer:
        ranked = sorted(self._consumers.values(), key=lambda x: (x.info.priority, x.info.name, x.info.id))
        first = [consumer for consumer in ranked if consumer.info.priority == ranked[0].info.priority]
        return first[self._partition % len(first) if self._partition >= 0 else 0]

    def _elect(self, now_ms: int) -> list[ActiveConsumerChanged]:
        """After consumers came or went: change the active one if need be, at once or after the delay."""
        elected = self._elected()
        if elected is self._active or self._change_at_ms is not None:
            return []
        delay_ms = self._limits.active_consumer_failover_delay_time_millis if self._is_failover else 0
        if delay_ms == 0:
            return self._activate(elected)
        self._change_at_ms = now_ms + delay_ms
        self._reading = None
        return []

    def _activate(self, consumer: Consumer) -> list[ActiveConsumerChanged]:
        self._active = consumer
        self._untold.clear()
        self.reset()
        return self._notices(*self._consumers)

    def _notices(self, *consumers: ConsumerId) -> list[ActiveConsumerChanged]:
        if not self._is_failover:
            return []
        return [ActiveConsumerChanged(consumer, consumer == self.active) for consumer in consumers]
