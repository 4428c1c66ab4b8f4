"""The inputs and outputs of dispatchers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, NewType

from pulsar_on_spark.model.ids import EntryId, LedgerId
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import EntryRange
from pulsar_on_spark.topic.managed_ledger.cursor.holes import ack_set_bits

ConsumerId = NewType("ConsumerId", int)
"""The broker's id of a consumer, above 0 and never reused in a subscription. It is not the client's consumer_id."""

HashRange = tuple[int, int]
"""First and last hash of a Key_Shared STICKY consumer, both included, from 0 to 65,535."""


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """The options of a consumer.

    Attributes:
        id: The consumer's id in the subscription.
        name: The consumer's name, which need not be unique.
        priority: The priority level; consumers with the lowest number come first.
        epoch: The client's `consumer_epoch`; None if the client does not send one.
        ranges: The hash ranges that the client sent, for the key-shared mode STICKY or for a reader of a part of the
            keys; else empty.
    """

    id: ConsumerId
    name: str
    priority: int = 0
    epoch: int | None = None
    ranges: tuple[HashRange, ...] = ()


@dataclass(frozen=True, slots=True)
class KeySharedPolicy:
    """The division of keys (`keySharedMeta`), which must be the same for all consumers of a subscription.

    Attributes:
        mode: The key-shared mode.
        allow_out_of_order: True to deliver a key to its new consumer before the previous one has acknowledged.
    """

    mode: Literal["AUTO_SPLIT", "STICKY"] = "AUTO_SPLIT"
    allow_out_of_order: bool = False


class Chunk(NamedTuple):
    """The part of a chunked message that one entry has.

    Attributes:
        uuid: The id of the chunked message.
        number: Number of the chunk, from 0.
        total: Number of chunks of the message.
    """

    uuid: str
    number: int
    total: int


class EntryInfo(NamedTuple):
    """The properties of an entry that a dispatcher needs.

    Attributes:
        ledger: The entry's ledger.
        entry: The entry's id.
        messages: Number of messages in the entry; 1 if it is not a batch.
        size_bytes: Size of the entry, in bytes.
        key: The sticky key: the ordering key, else the partition key, else `<producer>-<sequence id>` (Pulsar's
            `Commands.resolveStickyKey`). None counts as an empty key.
        deliver_at_ms: Earliest delivery time to consumers of Shared and Key_Shared, in milliseconds since 1970; None to
            deliver at once.
        is_marker: True if the entry is a marker and not a message: the dispatcher acknowledges it.
        chunk: The chunk of a message that the entry has; None if the entry has whole messages.
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
    """A request to read entries. The caller must pass the same object to `offer`, even if the read failed.

    Attributes:
        ranges: The entries to read.
        max_entries: Maximum number of entries of the read.
        max_bytes: Maximum size of the read in bytes; a larger entry is read alone.
    """

    ranges: tuple[EntryRange, ...]
    max_entries: int
    max_bytes: int


class Delivery(NamedTuple):
    """The delivery of an entry to a consumer.

    Attributes:
        consumer: The consumer.
        ledger: The entry's ledger.
        entry: The entry's id.
        redelivery_count: Number of redeliveries of the entry; 0 on Exclusive and Failover, as in Pulsar.
        ack_set: Bits of the entry's unacknowledged messages; 0 if all are unacknowledged.
        permits: Number of permits that the delivery uses.
        epoch: The consumer's `consumer_epoch`; None if the client does not send one.
    """

    consumer: ConsumerId
    ledger: LedgerId
    entry: EntryId
    redelivery_count: int
    ack_set: int
    permits: int
    epoch: int | None


class Ack(NamedTuple):
    """The acknowledgement of an entry, or of some of its messages (see `Cursor.acknowledge`).

    Attributes:
        ledger: The entry's ledger.
        entry: The entry's id.
        ack_set: Bits of the messages that stay unacknowledged; 0 to acknowledge the whole entry.
        batch_size: Number of messages in the entry; used only with an ack set.
    """

    ledger: LedgerId
    entry: EntryId
    ack_set: int = 0
    batch_size: int = 1

    @classmethod
    def of(cls, ledger: LedgerId, entry: EntryId, words: Sequence[int], batch_size: int = 0) -> Ack:
        """Create an acknowledgement from a message id of a client.

        Args:
            ledger: The message id's ledger.
            entry: The message id's entry.
            words: The message id's `ack_set`; if empty, the whole entry is acknowledged.
            batch_size: The message id's `batch_size`; 0 if the client does not send it. The size is then assumed to be
                64 messages above those of the ack set: with too small a size, an ack set of ones would acknowledge
                nothing.

        Raises:
            InvalidArgumentError: the batch size is above `MAX_BATCH_MESSAGES`.
        """
        if not words:
            return cls(ledger, entry)
        size = batch_size if batch_size > 0 else 64 * (len(words) + 1)
        return cls(ledger, entry, ack_set_bits(words, size), size)


class ActiveConsumerChanged(NamedTuple):
    """A notice to send to a Failover consumer.

    Attributes:
        consumer: The consumer that gets the notice.
        is_active: True if this consumer is the active one.
    """

    consumer: ConsumerId
    is_active: bool


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """The statistics of a consumer.

    Attributes:
        id: The consumer's id.
        permits: Number of messages that the consumer may get; negative if its last batch was larger than its permits.
        unacked: Number of unacknowledged messages; None if they are not tracked (Exclusive, Failover).
        blocked: The reason why the consumer gets no entries now; None if it may get some.
    """

    id: ConsumerId
    permits: int
    unacked: int | None
    blocked: str | None


@dataclass(frozen=True, slots=True)
class DispatcherStats:
    """The statistics of a subscription's dispatcher.

    Attributes:
        consumers: The statistics of the connected consumers.
        unacked: Number of unacknowledged messages; 0 on Exclusive and Failover, where they are not tracked.
        waiting: Number of entries in the replay queue: redeliveries, or entries of a blocked key.
        delayed: Number of indexed delayed entries; entries that are due later may not be indexed.
        blocked: The reason why the whole subscription is blocked; None if it is not.
        active: The id of the active consumer on Exclusive and Failover; None if there is none.
    """

    consumers: tuple[ConsumerStats, ...]
    unacked: int = 0
    waiting: int = 0
    delayed: int = 0
    blocked: str | None = None
    active: ConsumerId | None = None
