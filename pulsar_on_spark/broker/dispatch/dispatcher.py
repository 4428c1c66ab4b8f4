"""The base of all dispatchers: consumers and their permits, the read position, and at most one running read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

from pulsar_on_spark.broker.dispatch.consumer import Consumer, EntryPosition
from pulsar_on_spark.broker.dispatch.limits import DispatchLimits
from pulsar_on_spark.broker.dispatch.values import (
    Ack,
    ActiveConsumerChanged,
    ConsumerId,
    ConsumerInfo,
    Delivery,
    DispatcherStats,
    EntryInfo,
    Wanted,
)
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import Cursor

_NEWEST_WEIGHT = 0.2
"""Weight of the last read in the moving average of messages per entry, which sizes the next read."""


class Dispatcher(ABC):
    """The dispatcher of one subscription. All times are milliseconds since 1970 on the caller's clock.

    After each change (consumers, flow, acks, new entries, an offer) the caller calls `wanted()`, reads the entries, and
    passes them to `offer`, one read at a time. The caller calls `handle_due` when `due_ms` has come.

    Args:
        cursor: The subscription's cursor, which the dispatcher changes by acknowledgements. The cursor's owner persists
            it, resets it and updates its chain, and then calls `restart_reading` or `forget_acked`.
        limits: The limits of reads and memory.
    """

    def __init__(self, cursor: Cursor, limits: DispatchLimits) -> None:
        self._cursor = cursor
        self._limits = limits
        self._consumers: dict[ConsumerId, Consumer] = {}
        self._next = cursor.mark_delete
        """The next entry to read."""
        self._reading: Wanted | None = None
        self._messages_per_entry = 1.0

    @property
    @abstractmethod
    def due_ms(self) -> int | None:
        """The time at which to call `handle_due`, in milliseconds since 1970; None if nothing will be due."""

    def apply_limits(self, limits: DispatchLimits) -> None:
        """Apply new limits."""
        self._limits = limits

    # -- consumers -------------------------------------------------------------------------------------------------

    @abstractmethod
    def add_consumer(self, info: ConsumerInfo, now_ms: int) -> list[ActiveConsumerChanged]:
        """Add a consumer, and return the notices to send to Failover consumers; none for other subscription types.

        Args:
            info: The consumer.
            now_ms: The current time, in milliseconds since 1970.

        Raises:
            ConsumerBusyError: the subscription is Exclusive and has a consumer.
            ConsumerAssignError: the consumer's hash ranges are missing, invalid or overlap another consumer's
                (Key_Shared STICKY).
        """

    @abstractmethod
    def remove_consumer(self, consumer: ConsumerId, now_ms: int) -> list[ActiveConsumerChanged]:
        """Remove a consumer, if it was added, and return the notices to send to the remaining Failover consumers.

        The removed consumer's unacknowledged messages go to other consumers.
        """

    def flow(self, consumer: ConsumerId, permits: int) -> None:
        """Add permits to a consumer (FLOW), each for one message."""
        state = self._consumers.get(consumer)
        if state is not None:
            state.permits += permits

    def set_writable(self, consumer: ConsumerId, is_writable: bool) -> None:
        """Set if a consumer's connection has room for more data; while it has none, the consumer gets no entries."""
        state = self._consumers.get(consumer)
        if state is not None:
            state.is_writable = is_writable

    @abstractmethod
    def ack(self, consumer: ConsumerId, acks: Iterable[Ack], *, cumulative: bool = False) -> bool:
        """Acknowledge entries or messages for a consumer.

        Args:
            consumer: The consumer. Late acks of a consumer that was removed also count.
            acks: The entries or messages. Repeated acks have no effect.
            cumulative: True to acknowledge all earlier messages as well. Shared and Key_Shared ignore cumulative acks,
                as in Pulsar.

        Returns:
            True if the cursor changed.

        Raises:
            InvalidArgumentError: an entry does not exist yet; all other acks are applied.
        """

    @abstractmethod
    def redeliver(
        self, consumer: ConsumerId, entries: Iterable[tuple[LedgerId, EntryId]] | None, epoch: int | None = None
    ) -> None:
        """Deliver unacknowledged entries of a consumer again (REDELIVER_UNACKNOWLEDGED_MESSAGES).

        Args:
            consumer: The consumer.
            entries: The entries, on Shared and Key_Shared; None for all that the consumer has. Exclusive and Failover
                always restart at the mark-delete position.
            epoch: The consumer's new epoch, by which the client recognises earlier deliveries; None to keep the epoch.
        """

    # -- delivering ------------------------------------------------------------------------------------------------

    @abstractmethod
    def wanted(self) -> Wanted | None:
        """Return the request for the next read; None if no entry is left, no consumer can get any, or a read runs."""

    @property
    def has_more(self) -> bool:
        """True if there may be entries to read; while it is False, `wanted` returns None."""
        return not self._cursor.is_at_end(self._next)

    @abstractmethod
    def offer(self, wanted: Wanted, entries: Sequence[EntryInfo], now_ms: int) -> list[Delivery]:
        """Assign read entries to consumers, and return the deliveries to send, in the order of the entries.

        Entries that no consumer can get now are requested again later.

        Args:
            wanted: The object that `wanted` returned. The entries are dropped if reading was restarted since then.
            entries: All requested entries, or the first of them; none if the read failed.
            now_ms: The current time, in milliseconds since 1970.

        Raises:
            InvalidArgumentError: the entries do not match the request.
        """

    @abstractmethod
    def handle_due(self, now_ms: int) -> list[ActiveConsumerChanged]:
        """Let `wanted` return delayed entries that are due, or activate an elected consumer whose delay has ended.

        Returns:
            The notices to send to Failover consumers.
        """

    @abstractmethod
    def restart_reading(self) -> None:
        """Restart at the mark-delete position after the cursor was reset, and forget which entries were delivered."""

    @abstractmethod
    def forget_acked(self) -> None:
        """Forget entries that the cursor's owner acknowledged (by expiry, trimming or an administrator)."""

    @abstractmethod
    def stats(self) -> DispatcherStats:
        """Return statistics for operators, with the reasons of blocked consumers."""

    # --------------------------------------------------------------------------------------------------------------

    def _read_on(self, permits: int, most: int) -> Wanted | None:
        """Return the request to read the next entries: at most `most`, as the permits are likely to allow.

        None if there are no entries to read before the topic's end.
        """
        if self._cursor.is_at_end(self._next):
            return None
        count = min(self._entries_for(permits), most)
        deliverable = self._cursor.deliverable(self._next, count)
        if not deliverable.ranges:
            self._next = deliverable.next
            return None
        self._reading = Wanted(deliverable.ranges, count, self._limits.dispatcher_max_read_size_bytes)
        return self._reading

    def _entries_for(self, permits: int) -> int:
        wanted = max(int(permits / self._messages_per_entry), 1)
        return min(wanted, self._limits.dispatcher_max_read_batch_size)

    def _take_answer(self, wanted: Wanted, entries: Sequence[EntryInfo]) -> bool:
        """End the running read and return True; return False if reading was restarted and `entries` must be dropped."""
        if wanted is not self._reading:
            return False
        messages, left = 0, iter(entries)
        for ledger, first, end in wanted.ranges:
            for entry, info in zip(range(first, end), left, strict=False):
                if info.entry != entry or info.ledger != ledger:
                    raise InvalidArgumentError(
                        f"Entry {info.ledger}:{info.entry} was read where {ledger}:{entry} was wanted: answer in order."
                    )
                messages += info.messages
        self._reading = None
        if entries:
            mean = messages / len(entries)
            self._messages_per_entry += _NEWEST_WEIGHT * (max(mean, 1.0) - self._messages_per_entry)
        return True


def after(position: EntryPosition) -> Position:
    """Return the position of the entry after an entry (ledger, entry), in the same ledger."""
    return Position(LedgerId(position[0]), EntryId(position[1] + 1))


def ack_each(acks: Iterable[Ack], acknowledge: Callable[[Ack], bool]) -> bool:
    """Apply all acknowledgements, even after a refused one, and return True if any of them changed the cursor.

    Args:
        acks: The acknowledgements.
        acknowledge: Applies one acknowledgement; returns True if it changed the cursor.

    Raises:
        InvalidArgumentError: an ack was refused; the last error if there are several.
    """
    changed, refused = False, None
    for ack in acks:
        try:
            changed |= acknowledge(ack)
        except InvalidArgumentError as error:
            refused = error
    if refused is not None:
        raise refused
    return changed
