"""The inputs and outputs of dispatchers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, NewType

from pulsar_on_spark.model.ids import EntryId, LedgerId
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import EntryRange
from pulsar_on_spark.topic.managed_ledger.cursor.holes import ack_set_bits

ConsumerId = NewType("ConsumerId", int)
"""An id above 0 that the shell assigns and never reuses in a subscription. Not the client's consumer_id."""

HashRange = tuple[int, int]
"""First and last hash of a Key_Shared STICKY consumer, both included, from 0 to 65,535."""


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """The options of a consumer.

    Attributes:
        id: Its id in the subscription.
        name: Its name, which need not be unique.
        priority: Its priority level: the lowest number comes first.
        epoch: Its `consumer_epoch`; None if the client does not send one.
        ranges: Its hash ranges; only with the key-shared mode STICKY.
    """

    id: ConsumerId
    name: str
    priority: int = 0
    epoch: int | None = None
    ranges: tuple[HashRange, ...] = ()


@dataclass(frozen=True, slots=True)
class KeySharedPolicy:
    """The division of keys (`keySharedMeta`), which all consumers of a subscription must share."""

    mode: Literal["AUTO_SPLIT", "STICKY"] = "AUTO_SPLIT"
    allow_out_of_order: bool = False


class Chunk(NamedTuple):
    """The position of an entry in a chunked message."""

    uuid: str
    number: int
    total: int


class EntryInfo(NamedTuple):
    """The properties of an entry that a dispatcher needs.

    Attributes:
        ledger: Its ledger.
        entry: Its id.
        messages: Messages in it, 1 if it is not a batch.
        size_bytes: Bytes of it.
        key: Its sticky key: the ordering key, else the partition key, else `<producer>-<sequence id>` (Pulsar's
            `Commands.resolveStickyKey`).
        deliver_at_ms: Earliest delivery time to consumers of Shared and Key_Shared.
        is_marker: True if it is not a message: the dispatcher acknowledges it.
        chunk: Set if the message has more than one chunk.
    """

    ledger: LedgerId
    entry: EntryId
    messages: int = 1
    size_bytes: int = 0
    key: bytes | None = None
    deliver_at_ms: int | None = None
    is_marker: bool = False
    chunk: Chunk | None = None


class Wanted(NamedTuple):
    """A request to read entries; `offer` must be called with the same object, even if the read failed."""

    ranges: tuple[EntryRange, ...]
    max_entries: int
    max_bytes: int


class Delivery(NamedTuple):
    """The delivery of an entry to a consumer.

    Attributes:
        consumer: The consumer.
        ledger: The entry's ledger.
        entry: Its id.
        redelivery_count: Number of its redeliveries; 0 on Exclusive and Failover, as in Pulsar.
        ack_set: Bits of its unacknowledged messages; 0 if all are unacknowledged.
        permits: Number of permits that it uses.
        epoch: The consumer's epoch.
    """

    consumer: ConsumerId
    ledger: LedgerId
    entry: EntryId
    redelivery_count: int
    ack_set: int
    permits: int
    epoch: int | None


class Ack(NamedTuple):
    """An acknowledged entry, or messages of it (see `Cursor.acknowledge`)."""

    ledger: LedgerId
    entry: EntryId
    ack_set: int = 0
    batch_size: int = 1

    @classmethod
    def of(cls, ledger: LedgerId, entry: EntryId, words: Sequence[int], batch_size: int = 0) -> Ack:
        """Create an acknowledgement from a message id of a client.

        Args:
            ledger: Its ledger.
            entry: Its entry.
            words: Its `ack_set`; if empty, the whole entry is acknowledged.
            batch_size: Its `batch_size`; 0 if the client does not send it. Then the size is assumed to be one word more
                than the ack set: if the size were too small, an ack set of ones would acknowledge nothing.

        Raises:
            InvalidArgumentError: the batch size is above `MAX_BATCH_MESSAGES`.
        """
        if not words:
            return cls(ledger, entry)
        size = batch_size if batch_size > 0 else 64 * (len(words) + 1)
        return cls(ledger, entry, ack_set_bits(words, size), size)


class ActiveConsumerChanged(NamedTuple):
    """Effect: notify a Failover consumer of its state, active or not."""

    consumer: ConsumerId
    is_active: bool


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """The statistics of a consumer.

    Attributes:
        id: Its id.
        permits: Messages that it may get; negative if its last batch was larger than its permits.
        unacked: Number of its unacknowledged messages; None if they are not tracked (Exclusive, Failover).
        blocked: The reason why it gets no entries now; None if it is ready.
    """

    id: ConsumerId
    permits: int
    unacked: int | None
    blocked: str | None


@dataclass(frozen=True, slots=True)
class DispatcherStats:
    """The statistics of a subscription's dispatcher.

    Attributes:
        consumers: Its consumers.
        unacked: Number of unacknowledged messages; 0 on Exclusive and Failover, where they are not tracked.
        waiting: Entries that were read before and wait for a consumer: redeliveries, or entries of a blocked key.
        delayed: Indexed delayed entries; more may lie beyond the limit of the index.
        blocked: The reason why the whole subscription is blocked; None if it is not.
        active: The active consumer, on Exclusive and Failover.
    """

    consumers: tuple[ConsumerStats, ...]
    unacked: int = 0
    waiting: int = 0
    delayed: int = 0
    blocked: str | None = None
    active: ConsumerId | None = None
