"""The common base of Shared and Key_Shared: a pool of consumers with individual acknowledgements.

An entry is in one of these states:

    not read ──> [delayed] ──> out at one consumer ──> acknowledged
        └──> waiting (replay) ──┘ └──> waiting again, when it is returned or its consumer leaves

Each entry has a *group*, a number by which the subclass chooses its consumer. For Key_Shared it is the slot of the key;
for Shared, the consumer that has the message's other chunks, or 0.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence

from pulsar_on_spark.broker.dispatch.consumer import Consumer, EntryPosition
from pulsar_on_spark.broker.dispatch.delayed import DelayedEntries
from pulsar_on_spark.broker.dispatch.dispatcher import Dispatcher, ack_each, after
from pulsar_on_spark.broker.dispatch.limits import DispatchLimits
from pulsar_on_spark.broker.dispatch.replay import ANYONE, Line, Replay
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
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import Cursor, EntryRange


class PoolDispatcher(Dispatcher):
    """A dispatcher that tracks delivered and waiting entries, and limits unacknowledged messages and look-ahead."""

    def __init__(self, cursor: Cursor, limits: DispatchLimits) -> None:
        super().__init__(cursor, limits)
        self._available: dict[ConsumerId, Consumer] = {}
        """The consumers that may get an entry. A cache, because there may be a thousand consumers."""
        self._replay = Replay()
        self._is_replay = False
        """True if the running read is of entries in the replay queue."""
        self._delayed = DelayedEntries(limits.max_delayed_entries)
        self._ticked_ms = 0
        self._read_before: EntryPosition = (0, 0)
        """Position before which all entries were read since reading restarted, and may be delivered or waiting."""
        self._redeliveries: dict[EntryPosition, int] = {}
        self._unacked = 0
        self._is_blocked = False
        self._lines_are_old = False
        self._returned_groups: set[int] = set()
        """Groups with entries that began to wait while the replay queue was read. The read entries may include later
        ones of these groups."""

    # -- decisions of a subclass -----------------------------------------------------------------------------------

    _in_order = False
    """True if no entry may be delivered while an earlier one of its group waits."""

    @abstractmethod
    def _group_of(self, info: EntryInfo) -> int:
        """Return the number of an entry's group."""

    @abstractmethod
    def _line_of(self, group: int) -> Line:
        """Return the line of the replay queue in which entries of a group wait."""

    @abstractmethod
    def _choose(self, info: EntryInfo, group: int) -> Consumer | None:
        """Return the consumer that gets an entry; None if the entry must wait. At least one consumer is available."""

    def _group_of_returned(self, group: int) -> int:
        """Return the group in which an entry waits after its consumer returned it or its delivery time came.

        This is the entry's former group, unless a subclass changes it.
        """
        return group

    def _begin_offer(self) -> None:
        """Prepare for the entries of one offer."""

    def _note_delivered(self, consumer: Consumer, group: int) -> None:
        """Note that an entry was delivered to a consumer."""

    def _note_returned(self, consumer: Consumer, group: int) -> None:
        """Note that a consumer no longer has an entry of a group, which was acknowledged or waits again."""

    # -- consumers -------------------------------------------------------------------------------------------------

    @property
    def due_ms(self) -> int | None:
        """The time of the next delivery of delayed entries, in milliseconds since 1970; None if no entry is delayed."""
        due_ms = self._delayed.due_ms
        return None if due_ms is None else max(due_ms, self._ticked_ms + self._limits.delayed_delivery_tick_time_millis)

    def add_consumer(self, info: ConsumerInfo, now_ms: int) -> list[ActiveConsumerChanged]:
        """Add a consumer; return no notices."""
        self._consumers[info.id] = Consumer(info)
        self._lines_are_old = True
        return []

    def remove_consumer(self, consumer: ConsumerId, now_ms: int) -> list[ActiveConsumerChanged]:
        """Remove a consumer, and return no notices. Its entries wait again, without counting as redelivered."""
        gone = self._consumers.pop(consumer, None)
        if gone is None:
            return []
        self._lines_are_old = True
        for position in list(gone.pending):
            self._return_entry(gone, position)
        self._available.pop(consumer, None)
        if not self._consumers:
            self.restart_reading()
        return []

    def flow(self, consumer: ConsumerId, permits: int) -> None:
        """Add permits to a consumer, each for one message."""
        super().flow(consumer, permits)
        self._update_available(consumer)

    def set_writable(self, consumer: ConsumerId, is_writable: bool) -> None:
        """Set if a consumer's connection has room for more data."""
        super().set_writable(consumer, is_writable)
        self._update_available(consumer)

    def ack(self, consumer: ConsumerId, acks: Iterable[Ack], *, cumulative: bool = False) -> bool:
        """Acknowledge entries or messages; return True if the cursor changed. Cumulative acks are ignored."""
        if cumulative:
            return False
        asking = self._consumers.get(consumer)
        return ack_each(acks, lambda ack: self._ack(asking, ack))

    def redeliver(
        self, consumer: ConsumerId, entries: Iterable[tuple[LedgerId, EntryId]] | None, epoch: int | None = None
    ) -> None:
        """Make entries of a consumer wait for redelivery, or all its entries for None (see `Dispatcher.redeliver`)."""
        asking = self._consumers.get(consumer)
        if asking is None:
            return
        if epoch is not None:
            asking.epoch = epoch
        for position in list(asking.pending if entries is None else entries):
            if position in asking.pending and self._return_entry(asking, position):
                self._redeliveries[position] = self._redeliveries.get(position, 0) + 1

    # -- delivering ------------------------------------------------------------------------------------------------

    def wanted(self) -> Wanted | None:
        """Return the request to read entries, of the replay queue first and then new ones; None as in `Dispatcher`."""
        if self._reading is not None or self._is_blocked or not self._available:
            return None
        if self._lines_are_old:
            self._replay.line_up(self._line_of)
            self._lines_are_old = False
        permits = 0
        for consumer in self._available.values():
            permits += consumer.permits
            if permits > self._limits.dispatcher_max_read_batch_size * self._messages_per_entry:
                break
        if len(self._replay):
            positions = self._replay.take_positions([ANYONE, *self._available], self._entries_for(permits))
            if positions:
                self._is_replay = True
                self._returned_groups.clear()
                limit = self._limits.dispatcher_max_read_size_bytes
                self._reading = Wanted(_ranges(positions), len(positions), limit)
                return self._reading
        self._is_replay = False
        look_ahead = self._look_ahead - len(self._replay)
        return self._read_on(permits, look_ahead) if look_ahead > 0 else None

    @property
    def has_more(self) -> bool:
        """True if there may be entries to read."""
        return len(self._replay) > 0 or super().has_more

    def offer(self, wanted: Wanted, entries: Sequence[EntryInfo], now_ms: int) -> list[Delivery]:
        """Assign read entries to consumers, and return the deliveries to send (arguments as `Dispatcher.offer`)."""
        if not self._take_answer(wanted, entries):
            return []
        self._ticked_ms = min(self._ticked_ms, now_ms)  # a clock that was set back must not delay the next tick
        self._begin_offer()
        deliveries: list[Delivery] = []
        last: EntryPosition | None = None
        for info in entries:
            if not self._available or self._is_blocked:
                break
            position = info.ledger, info.entry
            group = self._settle(info, position, now_ms)
            if group is not None:
                consumer = None if self._in_order and self._has_to_wait(group) else self._choose(info, group)
                if consumer is not None:
                    deliveries.append(self._deliver(consumer, info, group))
                elif self._is_replay:
                    self._replay.regroup(position, group)
                else:
                    self._wait(position, group)
            last = position
        if self._is_replay:
            self._replay.put_back(self._line_of)
        elif last is not None:
            self._next = after(last)
            self._read_before = max(self._read_before, (last[0], last[1] + 1))
        return deliveries

    def handle_due(self, now_ms: int) -> list[ActiveConsumerChanged]:
        """Move the delayed entries that are due to the replay queue; return no notices."""
        due_ms = self.due_ms
        if due_ms is None or now_ms < due_ms:
            return []
        self._ticked_ms = now_ms
        for position, group in self._delayed.take_due(now_ms):
            if not self._cursor.is_acked(LedgerId(position[0]), EntryId(position[1])):
                self._wait(position, self._group_of_returned(group))
        unread = self._delayed.take_unread(now_ms)
        if unread is not None:
            self._next = min(self._next, Position(LedgerId(unread[0]), EntryId(unread[1])))
            if not self._is_replay:
                self._reading = None
        return []

    def restart_reading(self) -> None:
        """Restart reading at the mark-delete position, and forget delivered, waiting and delayed entries."""
        self._next, self._read_before = self._cursor.mark_delete, (0, 0)
        self._reading = None
        self._replay.clear()
        self._delayed.clear()
        self._redeliveries.clear()
        for consumer in self._consumers.values():
            for position in list(consumer.pending):
                self._release(consumer, position)
        assert self._unacked == 0, "unacked messages without a consumer"

    def forget_acked(self) -> None:
        """Forget entries that the cursor's owner acknowledged."""
        is_acked = self._cursor.is_acked
        for consumer in self._consumers.values():
            for ledger, entry in list(consumer.pending):
                if is_acked(LedgerId(ledger), EntryId(entry)):
                    self._release(consumer, (ledger, entry))
        for ledger, entry in list(self._redeliveries):
            if is_acked(LedgerId(ledger), EntryId(entry)):
                del self._redeliveries[ledger, entry]
        self._replay.remove_if(lambda ledger, entry: is_acked(LedgerId(ledger), EntryId(entry)))

    def stats(self) -> DispatcherStats:
        """Return the counts of the subscription and its consumers, with the reason why one gets no entries."""
        consumers = tuple(
            ConsumerStats(consumer.info.id, consumer.permits, consumer.unacked, self._obstacle(consumer))
            for consumer in self._consumers.values()
        )
        blocked = None
        if self._is_blocked:
            blocked = f"{self._unacked} unacked messages: deliveries pause until they are down to half of the limit"
        return DispatcherStats(consumers, self._unacked, len(self._replay), len(self._delayed), blocked)

    # --------------------------------------------------------------------------------------------------------------

    @property
    def _look_ahead(self) -> int:
        """The number of entries that may wait in the replay queue while new entries are read."""
        limits = self._limits
        per_consumer = limits.key_shared_look_ahead_per_consumer * len(self._consumers)
        return min(per_consumer, limits.key_shared_look_ahead_per_subscription)

    def _obstacle(self, consumer: Consumer) -> str | None:
        if consumer.obstacle is None and len(self._replay) >= self._look_ahead:
            return (
                f"{len(self._replay)} entries wait for other consumers: new entries are read after these are delivered"
            )
        return consumer.obstacle

    def _has_to_wait(self, group: int) -> bool:
        """Return True if an entry must wait, because earlier entries of its group may be waiting.

        A read of the replay queue has the entries in order, except for those that began to wait during the read. Within
        one offer, an entry that is not delivered blocks the rest of its group, as no consumer becomes available.
        """
        return group in self._returned_groups if self._is_replay else self._replay.waiting(group) > 0

    def _settle(self, info: EntryInfo, position: EntryPosition, now_ms: int) -> int | None:
        """Return the number of the group of a read entry that can be delivered now.

        None if the entry is acknowledged, a marker, already delivered or waiting, or not due yet.
        """
        if self._cursor.is_acked(info.ledger, info.entry):
            self._replay.remove(position)
            return None
        if info.is_marker:
            self._cursor.acknowledge(info.ledger, info.entry)
            return None
        if self._is_replay:
            return self._group_of(info) if position in self._replay else None
        if position < self._read_before and self._is_out(position):
            return None
        group = self._group_of(info)
        if info.deliver_at_ms is not None and info.deliver_at_ms > now_ms:
            self._delayed.add(info.deliver_at_ms, position, group)
            return None
        return group

    def _is_out(self, position: EntryPosition) -> bool:
        return position in self._replay or any(position in consumer.pending for consumer in self._consumers.values())

    def _deliver(self, consumer: Consumer, info: EntryInfo, group: int) -> Delivery:
        ledger, entry, messages = info.ledger, info.entry, info.messages
        position = ledger, entry
        if self._is_replay:
            self._replay.remove(position)
        ack_set = self._cursor.ack_set(ledger, entry)
        permits = ack_set.bit_count() if ack_set else messages
        consumer.permits -= permits
        consumer.pending[position] = (messages, permits, group)
        self._count(consumer, permits)
        self._note_delivered(consumer, group)
        redeliveries = self._redeliveries.get(position, 0) if self._redeliveries else 0
        return Delivery(consumer.info.id, ledger, entry, redeliveries, ack_set, permits, consumer.epoch)

    def _ack(self, asking: Consumer | None, ack: Ack) -> bool:
        position = ack.ledger, ack.entry
        holder = asking if asking is not None and position in asking.pending else self._holder(position)
        if holder is None:
            changed = self._cursor.acknowledge(*ack)
        else:
            messages, unacked, group = holder.pending[position]
            changed = self._cursor.acknowledge(ack.ledger, ack.entry, ack.ack_set, messages)
        if self._cursor.is_acked(ack.ledger, ack.entry):
            if holder is not None:
                self._release(holder, position)
            self._replay.remove(position)
            self._redeliveries.pop(position, None)
        elif changed and holder is not None:
            left = self._cursor.ack_set(ack.ledger, ack.entry).bit_count()
            holder.pending[position] = (messages, left, group)
            self._count(holder, left - unacked)
        return changed

    def _holder(self, position: EntryPosition) -> Consumer | None:
        """Return the consumer that has an unacknowledged entry; None if no consumer has it.

        An ack may come from another consumer, which returned the entry before.
        """
        return next((consumer for consumer in self._consumers.values() if position in consumer.pending), None)

    def _return_entry(self, consumer: Consumer, position: EntryPosition) -> bool:
        """Move an entry from a consumer to the replay queue; return False if the entry is acknowledged instead."""
        group = self._release(consumer, position)
        if self._cursor.is_acked(LedgerId(position[0]), EntryId(position[1])):
            return False
        self._wait(position, self._group_of_returned(group))
        return True

    def _wait(self, position: EntryPosition, group: int) -> None:
        self._replay.add(position, group, self._line_of(group))
        self._returned_groups.add(group)

    def _release(self, consumer: Consumer, position: EntryPosition) -> int:
        """Remove an entry from a consumer, and return the entry's group."""
        _, unacked, group = consumer.pending.pop(position)
        self._count(consumer, -unacked)
        self._note_returned(consumer, group)
        return group

    def _update_available(self, consumer: ConsumerId) -> None:
        """Add a consumer to the available consumers or remove it, after its state has changed."""
        state = self._consumers.get(consumer)
        if state is not None and state.is_available:
            self._available[consumer] = state
        else:
            self._available.pop(consumer, None)

    def apply_limits(self, limits: DispatchLimits) -> None:
        """Apply new limits, which may block or unblock consumers."""
        super().apply_limits(limits)
        for consumer in self._consumers.values():
            self._count(consumer, 0)

    def _count(self, consumer: Consumer, messages: int) -> None:
        """Change the unacknowledged messages of a consumer and the subscription by `messages`; apply both limits."""
        consumer.unacked += messages
        self._unacked += messages
        limits = self._limits
        consumer.is_blocked = _is_over(consumer.unacked, limits.max_unacked_messages_per_consumer, consumer.is_blocked)
        self._is_blocked = _is_over(self._unacked, limits.max_unacked_messages_per_subscription, self._is_blocked)
        self._update_available(consumer.info.id)


def _is_over(unacked: int, limit: int, was_over: bool) -> bool:
    """Return True if unacknowledged messages block: from the limit on, until they are at most half of the limit.

    A limit of 0 never blocks.
    """
    return limit > 0 and unacked >= (limit // 2 + 1 if was_over else limit)


def _ranges(positions: Sequence[EntryPosition]) -> tuple[EntryRange, ...]:
    """Join sorted positions into ranges of consecutive entries; there must be at least one position."""
    ranges: list[EntryRange] = []
    first = end = ledger = -1
    for next_ledger, entry in positions:
        if (next_ledger, entry) != (ledger, end):
            if end >= 0:
                ranges.append(EntryRange(LedgerId(ledger), first, end))
            ledger, first = next_ledger, entry
        end = entry + 1
    ranges.append(EntryRange(LedgerId(ledger), first, end))
    return tuple(ranges)
