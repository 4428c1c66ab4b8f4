"""What goes into a dispatcher and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, NewType

from pulsar_on_spark.model.ids import EntryId, LedgerId
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import EntryRange
from pulsar_on_spark.topic.managed_ledger.cursor.holes import ack_set_bits

ConsumerId = NewType("ConsumerId", int)
"""Above 0 and unique in the subscription for good; the shell counts them. Not the client's consumer_id."""

HashRange = tuple[int, int]
"""First and last hash that a consumer of Key_Shared STICKY takes, both included, from 0 to 65,535."""


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """What a consumer said when it subscribed.

    Attributes:
        id: Its id here.
        name: Its name; two may have the same.
        priority: Its priority level: the lowest number comes first.
        epoch: Its `consumer_epoch`; None where the client knows none.
        ranges: Its hash ranges; only with the key-shared mode STICKY.
    """

    id: ConsumerId
    name: str
    priority: int = 0
    epoch: int | None = None
    ranges: tuple[HashRange, ...] = ()


@dataclass(frozen=True, slots=True)
class KeySharedPolicy:
    """How Key_Shared consumers divide the keys (`keySharedMeta`): all consumers of a subscription must say the same."""

    mode: Literal["AUTO_SPLIT", "STICKY"] = "AUTO_SPLIT"
    allow_out_of_order: bool = False


class Chunk(NamedTuple):
    """Which part of a chunked message an entry is."""

    uuid: str
    number: int
    total: int


class EntryInfo(NamedTuple):
    """What a dispatcher looks at of an entry that was read.

    Attributes:
        ledger: Its ledger.
        entry: Its id.
        messages: Messages in it, 1 if it is not a batch.
        size_bytes: Bytes of it.
        key: Its sticky key: the ordering key, else the partition key, else `<producer>-<sequence id>` (Pulsar's
            `Commands.resolveStickyKey`).
        deliver_at_ms: Not before this time to consumers of Shared and Key_Shared.
        is_marker: No message for consumers: it is acknowledged here.
        chunk: Set where the message has more than one chunk.
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
    """What to read for a dispatcher now; `offer` is the answer to this very object, also if nothing could be read."""

    ranges: tuple[EntryRange, ...]
    max_entries: int
    max_bytes: int


class Delivery(NamedTuple):
    """An entry that goes to a consumer.

    Attributes:
        consumer: To whom.
        ledger: The entry's ledger.
        entry: Its id.
        redelivery_count: How often it was given back unacknowledged; 0 on Exclusive and Failover, as in Pulsar.
        ack_set: Bits of its messages that are unacked, 0 for all of them.
        permits: Messages that it costs.
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
        """Out of a message id of a client.

        Args:
            ledger: Its ledger.
            entry: Its entry.
            words: Its `ack_set`; without any the whole entry is acknowledged.
            batch_size: Its `batch_size`; 0 where the client does not say it. Then one word more than it gave stands
                for it: with fewer messages than there are, an ack set of ones would say that nothing is acknowledged.

        Raises:
            InvalidArgumentError: the batch size is above `MAX_BATCH_MESSAGES`.
        """
        if not words:
            return cls(ledger, entry)
        size = batch_size if batch_size > 0 else 64 * (len(words) + 1)
        return cls(ledger, entry, ack_set_bits(words, size), size)


class ActiveConsumerChanged(NamedTuple):
    """Effect: tell a Failover consumer whether it is the active one."""

    consumer: ConsumerId
    is_active: bool


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """How a consumer stands.

    Attributes:
        id: Its id.
        permits: Messages that it may get; negative where its last batch was larger than its permits.
        unacked: Messages at it that are not acknowledged; None where nobody counts them (Exclusive, Failover).
        blocked: Why it gets nothing now, in words; None if it would get what comes.
    """

    id: ConsumerId
    permits: int
    unacked: int | None
    blocked: str | None


@dataclass(frozen=True, slots=True)
class DispatcherStats:
    """How a subscription's dispatching stands.

    Attributes:
        consumers: Its consumers.
        unacked: Messages that are out and not acknowledged; 0 on Exclusive and Failover, where nobody counts them.
        waiting: Entries that were read before and wait for a consumer: given back, or of a key whose turn it is not.
        delayed: Entries that are known to wait for their time. More may lie beyond the limit of the index.
        blocked: Why the subscription as a whole stands still, in words; None if it does not.
        active: The one consumer that gets everything, on Exclusive and Failover.
    """

    consumers: tuple[ConsumerStats, ...]
    unacked: int = 0
    waiting: int = 0
    delayed: int = 0
    blocked: str | None = None
    active: ConsumerId | None = None
