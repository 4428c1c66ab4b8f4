"""The common base of Shared and Key_Shared: a pool of consumers with individual acknowledgements.

An entry is in one of these places, and moves so:

    not read ──> [delayed] ──> out at one consumer ──> acknowledged
        └──> waiting (replay) ──┘ └──> waiting again, when it is returned or its consumer leaves

Each has a *group*, a number by which the subclass chooses its consumers: the slot of its key for Key_Shared, the
consumer that has the message's other chunks, or 0, for Shared.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence

from pulsar_on_spark.broker.dispatch.consumer import Consumer, Place
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
    """A dispatcher that tracks delivered and waiting entries, limited by unacked limits and look-ahead."""

    def __init__(self, cursor: Cursor, limits: DispatchLimits) -> None:
        super().__init__(cursor, limits)
        self._available: dict[ConsumerId, Consumer] = {}
        """A cache of the consumers that can take a message, as there may be a thousand, served a message at a time."""
        self._replay = Replay()
        self._is_replay = False
        """True if the running read is one of waiting entries."""
        self._delayed = DelayedEntries(limits.max_delayed_entries)
        self._ticked_ms = 0
        self._read_before: Place = (0, 0)
        """Entries before this position were read, and may be delivered or waiting."""
        self._redeliveries: dict[Place, int] = {}
        self._unacked = 0
        self._is_blocked = False
        self._lines_are_old = False
        self._given_back: set[int] = set()
        """Groups of entries that began to wait during a read of waiting ones, which may have to wait for them."""

    # -- what a subclass decides -----------------------------------------------------------------------------------

    _in_order = False
    """True if no entry may be delivered while an earlier one of its group waits."""

    @abstractmethod
    def _group_of(self, info: EntryInfo) -> int:
        """Return the group of an entry."""

    @abstractmethod
    def _line_of(self, group: int) -> Line:
        """Return the line in which entries of a group wait."""

    @abstractmethod
    def _choose(self, info: EntryInfo, group: int) -> Consumer | None:
        """Choose the consumer of an entry; None if it must wait. At least one consumer is available."""

    def _group_again(self, group: int) -> int:
        """Return the group of an entry that a consumer returned; the same one if groups are permanent."""
        return group

    def _begin_offer(self) -> None:
        """Prepare for an offer."""

    def _went_out(self, consumer: Consumer, group: int) -> None:
        """Note that an entry was delivered to a consumer."""

    def _came_back(self, consumer: Consumer, group: int) -> None:
        """Note that a consumer no longer has an entry: it is acknowledged, or will wait."""

    # -- consumers -------------------------------------------------------------------------------------------------

    @property
    def due_ms(self) -> int | None:
        """The time of the next due entries, not before the next tick."""
        due_ms = self._delayed.due_ms
        return None if due_ms is None else max(due_ms, self._ticked_ms + self._limits.delayed_delivery_tick_time_millis)

    def add_consumer(self, info: ConsumerInfo, now_ms: int) -> list[ActiveConsumerChanged]:
        """Add a consumer."""
        self._consumers[info.id] = Consumer(info)
        self._lines_are_old = True
        return []

    def remove_consumer(self, consumer: ConsumerId, now_ms: int) -> list[ActiveConsumerChanged]:
        """Remove a consumer; its entries wait again, without counting as redelivered."""
        gone = self._consumers.pop(consumer, None)
        if gone is None:
            return []
        self._lines_are_old = True
        for place in list(gone.pending):
            self._give_back(gone, place)
        self._available.pop(consumer, None)
        if not self._consumers:
            self.restart_reading()
        return []

    def flow(self, consumer: ConsumerId, permits: int) -> None:
        """Add permits to a consumer."""
        super().flow(consumer, permits)
        self._note(consumer)

    def set_writable(self, consumer: ConsumerId, is_writable: bool) -> None:
        """Note whether the consumer's connection has room."""
        super().set_writable(consumer, is_writable)
        self._note(consumer)

    def ack(self, consumer: ConsumerId, acks: Iterable[Ack], *, cumulative: bool = False) -> bool:
        """Acknowledge entries or messages."""
        if cumulative:
            return False
        asking = self._consumers.get(consumer)
        return ack_each(acks, lambda ack: self._ack(asking, ack))

    def redeliver(
        self, consumer: ConsumerId, entries: Iterable[tuple[LedgerId, EntryId]] | None, epoch: int | None = None
    ) -> None:
        """Return entries of a consumer for redelivery; entries that it does not have are ignored."""
        asking = self._consumers.get(consumer)
        if asking is None:
            return
        if epoch is not None:
            asking.epoch = epoch
        for place in list(asking.pending if entries is None else entries):
            if place in asking.pending and self._give_back(asking, place):
                self._redeliveries[place] = self._redeliveries.get(place, 0) + 1

    # -- delivering ------------------------------------------------------------------------------------------------

    def wanted(self) -> Wanted | None:
        """Return the entries to read: waiting ones first, then new ones."""
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
            places = self._replay.take_positions([ANYONE, *self._available], self._entries_for(permits))
            if places:
                self._is_replay = True
                self._given_back.clear()
                limit = self._limits.dispatcher_max_read_size_bytes
                self._reading = Wanted(_ranges(places), len(places), limit)
                return self._reading
        self._is_replay = False
        look_ahead = self._look_ahead - len(self._replay)
        return self._read_on(permits, look_ahead) if look_ahead > 0 else None

    @property
    def has_more(self) -> bool:
        """True if there may be entries to read."""
        return len(self._replay) > 0 or super().has_more

    def offer(self, wanted: Wanted, entries: Sequence[EntryInfo], now_ms: int) -> list[Delivery]:
        """Assign read entries to consumers."""
        if not self._take_answer(wanted, entries):
            return []
        self._ticked_ms = min(self._ticked_ms, now_ms)  # a clock that was set back must not delay the next tick
        self._begin_offer()
        deliveries: list[Delivery] = []
        last: Place | None = None
        for info in entries:
            if not self._available or self._is_blocked:
                break
            place = info.ledger, info.entry
            group = self._settle(info, place, now_ms)
            if group is not None:
                consumer = None if self._in_order and self._has_to_wait(group) else self._choose(info, group)
                if consumer is not None:
                    deliveries.append(self._deliver(consumer, info, group))
                elif self._is_replay:
                    self._replay.regroup(place, group)
                else:
                    self._wait(place, group)
            last = place
        if self._is_replay:
            self._replay.put_back(self._line_of)
        elif last is not None:
            self._next = after(last)
            self._read_before = max(self._read_before, (last[0], last[1] + 1))
        return deliveries

    def handle_due(self, now_ms: int) -> list[ActiveConsumerChanged]:
        """Handle due times."""
        due_ms = self.due_ms
        if due_ms is None or now_ms < due_ms:
            return []
        self._ticked_ms = now_ms
        for place, group in self._delayed.take_due(now_ms):
            if not self._cursor.is_acked(LedgerId(place[0]), EntryId(place[1])):
                self._wait(place, self._group_again(group))
        unread = self._delayed.take_unread(now_ms)
        if unread is not None:
            self._next = min(self._next, Position(LedgerId(unread[0]), EntryId(unread[1])))
            if not self._is_replay:
                self._reading = None
        return []

    def restart_reading(self) -> None:
        """Restart at the mark-delete position."""
        self._next, self._read_before = self._cursor.mark_delete, (0, 0)
        self._reading = None
        self._replay.clear()
        self._delayed.clear()
        self._redeliveries.clear()
        for consumer in self._consumers.values():
            for place in list(consumer.pending):
                self._release(consumer, place)
        assert self._unacked == 0, "unacked messages without a consumer"

    def forget_acked(self) -> None:
        """Forget entries that others acknowledged in the cursor."""
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
        """Return statistics for operators."""
        consumers = tuple(
            ConsumerStats(found.info.id, found.permits, found.unacked, self._obstacle(found))
            for found in self._consumers.values()
        )
        blocked = None
        if self._is_blocked:
            blocked = f"{self._unacked} unacked messages: it continues when half of its limit is acknowledged"
        return DispatcherStats(consumers, self._unacked, len(self._replay), len(self._delayed), blocked)

    # --------------------------------------------------------------------------------------------------------------

    @property
    def _look_ahead(self) -> int:
        """Return the number of entries that may wait while new ones are read."""
        limits = self._limits
        each = limits.key_shared_look_ahead_per_consumer * len(self._consumers)
        return min(each, limits.key_shared_look_ahead_per_subscription)

    def _obstacle(self, consumer: Consumer) -> str | None:
        if consumer.obstacle is None and len(self._replay) >= self._look_ahead:
            return f"{len(self._replay)} entries wait for other consumers: new ones are read after these are delivered"
        return consumer.obstacle

    def _has_to_wait(self, group: int) -> bool:
        """True if earlier entries of the group of a just-read entry may be waiting.

        Waiting entries are read in order, except for those that began to wait during the read. (An entry that is not
        delivered within an offer blocks the rest of its group: no consumer becomes available meanwhile.)
        """
        return group in self._given_back if self._is_replay else self._replay.waiting(group) > 0

    def _settle(self, info: EntryInfo, place: Place, now_ms: int) -> int | None:
        """Return the group of an entry to deliver; None if it is acknowledged, delivered or not due."""
        if self._cursor.is_acked(info.ledger, info.entry):
            self._replay.remove(place)
            return None
        if info.is_marker:
            self._cursor.acknowledge(info.ledger, info.entry)
            return None
        if self._is_replay:
            return self._group_of(info) if place in self._replay else None
        if place < self._read_before and self._is_out(place):
            return None
        group = self._group_of(info)
        if info.deliver_at_ms is not None and info.deliver_at_ms > now_ms:
            self._delayed.add(info.deliver_at_ms, place, group)
            return None
        return group

    def _is_out(self, place: Place) -> bool:
        return place in self._replay or any(place in consumer.pending for consumer in self._consumers.values())

    def _deliver(self, consumer: Consumer, info: EntryInfo, group: int) -> Delivery:
        ledger, entry, messages = info.ledger, info.entry, info.messages
        place = ledger, entry
        if self._is_replay:
            self._replay.remove(place)
        ack_set = self._cursor.ack_set(ledger, entry)
        permits = ack_set.bit_count() if ack_set else messages
        consumer.permits -= permits
        consumer.pending[place] = (messages, permits, group)
        self._count(consumer, permits)
        self._went_out(consumer, group)
        redeliveries = self._redeliveries.get(place, 0) if self._redeliveries else 0
        return Delivery(consumer.info.id, ledger, entry, redeliveries, ack_set, permits, consumer.epoch)

    def _ack(self, asking: Consumer | None, ack: Ack) -> bool:
        place = ack.ledger, ack.entry
        holder = asking if asking is not None and place in asking.pending else self._holder(place)
        if holder is None:
            changed = self._cursor.acknowledge(*ack)
        else:
            messages, unacked, group = holder.pending[place]
            changed = self._cursor.acknowledge(ack.ledger, ack.entry, ack.ack_set, messages)
        if self._cursor.is_acked(ack.ledger, ack.entry):
            if holder is not None:
                self._release(holder, place)
            self._replay.remove(place)
            self._redeliveries.pop(place, None)
        elif changed and holder is not None:
            left = self._cursor.ack_set(ack.ledger, ack.entry).bit_count()
            holder.pending[place] = (messages, left, group)
            self._count(holder, left - unacked)
        return changed

    def _holder(self, place: Place) -> Consumer | None:
        """Return the consumer that has an entry; another may acknowledge it late, after it returned the entry."""
        return next((consumer for consumer in self._consumers.values() if place in consumer.pending), None)

    def _give_back(self, consumer: Consumer, place: Place) -> bool:
        """Return an entry of a consumer to the waiting ones, unless it is acknowledged."""
        group = self._release(consumer, place)
        if self._cursor.is_acked(LedgerId(place[0]), EntryId(place[1])):
            return False
        self._wait(place, self._group_again(group))
        return True

    def _wait(self, place: Place, group: int) -> None:
        self._replay.add(place, group, self._line_of(group))
        self._given_back.add(group)

    def _release(self, consumer: Consumer, place: Place) -> int:
        """Remove an entry from a consumer, and return its group."""
        _, unacked, group = consumer.pending.pop(place)
        self._count(consumer, -unacked)
        self._came_back(consumer, group)
        return group

    def _note(self, consumer: ConsumerId) -> None:
        """Update the set of available consumers for one that changed."""
        found = self._consumers.get(consumer)
        if found is not None and found.is_available:
            self._available[consumer] = found
        else:
            self._available.pop(consumer, None)

    def apply_limits(self, limits: DispatchLimits) -> None:
        """Apply new limits, which may block or unblock consumers."""
        super().apply_limits(limits)
        for consumer in self._consumers.values():
            self._count(consumer, 0)

    def _count(self, consumer: Consumer, messages: int) -> None:
        """Add to the number of unacknowledged messages, or subtract."""
        consumer.unacked += messages
        self._unacked += messages
        limits = self._limits
        consumer.is_blocked = _is_over(consumer.unacked, limits.max_unacked_messages_per_consumer, consumer.is_blocked)
        self._is_blocked = _is_over(self._unacked, limits.max_unacked_messages_per_subscription, self._is_blocked)
        self._note(consumer.info.id)


def _is_over(unacked: int, limit: int, was_over: bool) -> bool:
    """Hysteresis: block at the limit, and unblock at half of it."""
    return limit > 0 and unacked >= (limit // 2 + 1 if was_over else limit)


def _ranges(places: Sequence[Place]) -> tuple[EntryRange, ...]:
    """Join sorted positions to ranges."""
    ranges: list[EntryRange] = []
    first = end = ledger = -1
    for place_ledger, entry in places:
        if (place_ledger, entry) != (ledger, end):
            if end >= 0:
                ranges.append(EntryRange(LedgerId(ledger), first, end))
            ledger, first = place_ledger, entry
        end = entry + 1
    ranges.append(EntryRange(LedgerId(ledger), first, end))
    return tuple(ranges)
