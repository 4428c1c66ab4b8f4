"""A client's consumer on a subscription, and the in-memory cursor of non-durable subscriptions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, Protocol

from pulsar_on_spark.broker.dispatch.values import ConsumerId, ConsumerInfo, HashRange
from pulsar_on_spark.broker.runtime.peer import Peer
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.protocol import replies
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import Cursor

ACTIVE_CONSUMER_PROTOCOL: Final = 12
"""The first protocol version with ACTIVE_CONSUMER_CHANGE."""


class Consumer:
    """A client's consumer on a subscription.

    Attributes:
        peer: The client's connection.
        consumer_id: The client's id of the consumer, unique in the connection.
        name: Its name.
        priority: Its priority level; consumers with the lowest number come first.
        epoch: Its `consumer_epoch`; None if its client does not send one.
        ranges: Its hash ranges, for Key_Shared STICKY or a reader of a part of the keys; else empty.
        takes_any_schema: True if it accepts every schema of the topic (AUTO_CONSUME).
        id: The broker's id of the consumer, unique in the subscription; 0 before it is added to one.
        is_closed: True if the broker disconnected it; its client subscribes again.
        left_for_seek: True if it was disconnected for a seek.
        is_closed_again: True if CLOSE_CONSUMER is about to be sent again, because the client has sent FLOW since.
        messages_out: Number of messages delivered to it.
        bytes_out: Bytes of the entries delivered to it.
        connected_at: Time of its SUBSCRIBE, in seconds since 1970.
        metadata: Properties from its client, for stats; None in the constructor for none.
        flowed_ms: Time of its last FLOW, in milliseconds since 1970; 0 for never.
        knows_end: True if its client was notified of the end of a terminated topic.
    """

    __slots__ = (
        "__weakref__",
        "bytes_out",
        "connected_at",
        "consumer_id",
        "epoch",
        "flowed_ms",
        "id",
        "is_closed",
        "is_closed_again",
        "knows_end",
        "left_for_seek",
        "messages_out",
        "metadata",
        "name",
        "peer",
        "priority",
        "ranges",
        "takes_any_schema",
    )

    def __init__(
        self,
        peer: Peer,
        consumer_id: int,
        name: str,
        *,
        priority: int = 0,
        epoch: int | None = None,
        ranges: tuple[HashRange, ...] = (),
        takes_any_schema: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.peer = peer
        self.consumer_id = consumer_id
        self.name = name
        self.priority = priority
        self.epoch = epoch
        self.ranges = ranges
        self.takes_any_schema = takes_any_schema
        self.id = ConsumerId(0)
        self.is_closed = False
        self.left_for_seek = False
        self.is_closed_again = False
        self.messages_out = 0
        self.bytes_out = 0
        self.connected_at = time.time()
        self.metadata = metadata or {}
        self.flowed_ms = 0
        self.knows_end = False

    @property
    def info(self) -> ConsumerInfo:
        """The consumer in the form that dispatchers use."""
        return ConsumerInfo(self.id, self.name, self.priority, self.epoch, self.ranges)

    def send_close(self, *, for_seek: bool = False) -> None:
        """Send CLOSE_CONSUMER, so that the client subscribes again; the caller removes it from its subscription.

        Args:
            for_seek: True if the consumer is disconnected for a seek.
        """
        self.is_closed, self.left_for_seek = True, for_seek
        self.peer.write(replies.close_consumer(self.consumer_id))

    def send_active_change(self, *, is_active: bool) -> None:
        """Notify a Failover consumer that it is active or not, if its client's protocol version has the command."""
        if self.peer.protocol_version >= ACTIVE_CONSUMER_PROTOCOL:
            self.peer.write(replies.active_consumer_change(self.consumer_id, is_active))


class KeptCursor(Protocol):
    """A subscription's cursor and its storage: `OpenCursor` if it is durable, else `MemoryCursor`.

    Attributes:
        cursor: The acknowledged messages.
        lost: The reason why this broker no longer owns the subscription; None while it does.
    """

    cursor: Cursor
    lost: PulsarpyError | None

    def record_changes(self) -> None:
        """Store the cursor soon: messages were acknowledged."""

    async def wait_durable(self) -> None:
        """Wait until the current state of the cursor is stored.

        Raises:
            PulsarpyError: the subscription or the broker's journal was lost before the cursor was stored.
        """


class MemoryCursor:
    """The cursor of a non-durable subscription, kept in memory only: a reader's client remembers its own position."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.lost: PulsarpyError | None = None

    def record_changes(self) -> None:
        """Do nothing: the cursor is not stored."""

    async def wait_durable(self) -> None:
        """Return at once: the cursor is not stored."""

    def reset_position(self, position: Position) -> None:
        """Move the cursor to the next entry to read, and discard all acknowledgements."""
        self.cursor.reset_position(position, self.cursor.epoch + 1)
