"""What every dispatcher has: consumers and their permits, a read position, and one read under way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

from pulsar_on_spark.broker.dispatch.consumer import Consumer, Place
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
"""How much the last read counts in the mean number of messages of an entry, by which the next read is sized."""


class Dispatcher(ABC):
    """Who gets what of one subscription. Times are the shell's clock in milliseconds, the one of `deliver_at_ms`.

    After whatever may have changed something (consumers, flow, acks, growth, an offer) the shell asks `wanted()`,
    reads, and gives the entries to `offer`; there is one read at a time. It ticks when `due_ms` has come.

    Args:
        cursor: The subscription's cursor. The dispatcher acknowledges in it; the owner records it, resets it and lets
            it follow the chain, and then calls `reset` or `forget_acked`.
        limits: What bounds reads and memory.
    """

    def __init__(self, cursor: Cursor, limits: DispatchLimits) -> None:
        self._cursor = cursor
        self._limits = limits
        self._consumers: dict[ConsumerId, Consumer] = {}
        self._next = cursor.mark_delete
        """The next entry that was not read yet."""
        self._reading: Wanted | None = None
        self._messages_per_entry = 1.0

    @property
    @abstractmethod
    def due_ms(self) -> int | None:
        """When `tick` has something to do."""

    def limit(self, limits: DispatchLimits) -> None:
        """Let other limits hold from now on."""
        self._limits = limits

    # -- consumers -------------------------------------------------------------------------------------------------

    @abstractmethod
    def add_consumer(self, info: ConsumerInfo, now_ms: int) -> list[ActiveConsumerChanged]:
        """A consumer subscribed.

        Raises:
            ConsumerBusyError: the subscription is Exclusive and has its consumer.
            ConsumerAssignError: its hash ranges overlap another's, or there are none (Key_Shared STICKY).
        """

    @abstractmethod
    def remove_consumer(self, consumer: ConsumerId, now_ms: int) -> list[ActiveConsumerChanged]:
        """A consumer went: what it had and did not acknowledge goes to others. An unknown one is no error."""

    def flow(self, consumer: ConsumerId, permits: int) -> None:
        """A consumer may get so many messages more (FLOW)."""
        found = self._consumers.get(consumer)
        if found is not None:
            found.permits += permits

    def set_writable(self, consumer: ConsumerId, is_writable: bool) -> None:
        """Whether the consumer's connection takes data; it gets nothing while it does not."""
        found = self._consumers.get(consumer)
        if found is not None:
            found.is_writable = is_writable

    @abstractmethod
    def ack(self, consumer: ConsumerId, acks: Iterable[Ack], *, cumulative: bool = False) -> bool:
        """A consumer acknowledged entries or messages.

        Args:
            consumer: Who; an unknown one's acks count too, they may come late.
            acks: What. Acks of what is acknowledged change nothing.
            cumulative: Everything before as well; ignored on Shared and Key_Shared, where Pulsar has none.

        Returns:
            Whether the cursor changed.

        Raises:
            InvalidArgumentError: the topic has no such entry yet; all other acks are taken nevertheless.
        """

    @abstractmethod
    def redeliver(
        self, consumer: ConsumerId, entries: Iterable[tuple[LedgerId, EntryId]] | None, epoch: int | None = None
    ) -> None:
        """A consumer wants what it did not acknowledge again (REDELIVER_UNACKNOWLEDGED_MESSAGES).

        Args:
            consumer: Who.
            entries: What of it, on Shared and Key_Shared; all of it if None. Exclusive and Failover always begin again
                at the mark-delete position.
            epoch: The consumer's new epoch, by which the client tells what was sent before.
        """

    # -- delivering ------------------------------------------------------------------------------------------------

    @abstractmethod
    def wanted(self) -> Wanted | None:
        """What to read now; None if there is nothing to read, nobody to take it, or a read under way."""

    @property
    def has_more(self) -> bool:
        """Whether there may be something to read: as long as not, `wanted` is None whatever consumers do."""
        return not self._cursor.is_at_end(self._next)

    @abstractmethod
    def offer(self, wanted: Wanted, entries: Sequence[EntryInfo], now_ms: int) -> list[Delivery]:
        """What was read, and to whom it goes. What nobody can take now is wanted again later.

        Args:
            wanted: What this answers. The answer is dropped if a reset or a rewind came in between.
            entries: All of it, or what of it was read from its beginning on; none if the read failed.
            now_ms: The time.

        Raises:
            InvalidArgumentError: these entries were not asked for.
        """

    @abstractmethod
    def tick(self, now_ms: int) -> list[ActiveConsumerChanged]:
        """Time has passed: delayed entries become due, another consumer becomes the active one."""

    @abstractmethod
    def reset(self) -> None:
        """The cursor was reset: begin at its mark-delete position, with nothing out."""

    @abstractmethod
    def forget_acked(self) -> None:
        """Others acknowledged entries in the cursor (expiry, trimming, an administrator): do not remember them."""

    @abstractmethod
    def stats(self) -> DispatcherStats:
        """For the operator: how it stands, and why who is blocked."""

    # --------------------------------------------------------------------------------------------------------------

    def _read_on(self, permits: int, most: int) -> Wanted | None:
        """The next entries that were not read yet, as many as the permits are likely to need."""
        if self._cursor.is_at_end(self._next):
            return None
        count = min(self._entries_for(permits), most)
        found = self._cursor.deliverable(self._next, count)
        if not found.ranges:
            self._next = found.next
            return None
        self._reading = Wanted(found.ranges, count, self._limits.dispatcher_max_read_size_bytes)
        return self._reading

    def _entries_for(self, permits: int) -> int:
        wanted = max(int(permits / self._messages_per_entry), 1)
        return min(wanted, self._limits.dispatcher_max_read_batch_size)

    def _take_answer(self, wanted: Wanted, entries: Sequence[EntryInfo]) -> bool:
        """Whether the answer counts."""
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


def after(place: Place) -> Position:
    """The position behind an entry."""
    return Position(LedgerId(place[0]), EntryId(place[1] + 1))


def ack_each(acks: Iterable[Ack], acknowledge: Callable[[Ack], bool]) -> bool:
    """Acknowledge each, also behind one that is refused; whether anything was not acknowledged before.

    Raises:
        InvalidArgumentError: one was refused, the last of them if there are several.
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
