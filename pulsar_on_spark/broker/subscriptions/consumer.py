"""A client's consumer on a subscription, and a cursor for those that keep nothing."""

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
"""The first protocol version whose clients know ACTIVE_CONSUMER_CHANGE."""


class Consumer:
    """A consumer as its client made it.

    Attributes:
        peer: Its connection.
        consumer_id: The client's number for it.
        name: Its name.
        priority: Its priority level.
        epoch: Its `consumer_epoch`, None if its client knows none.
        ranges: Its hash ranges, for Key_Shared STICKY.
        takes_any_schema: Whether it asked for whatever schema is there.
        id: Its id in the subscription.
        is_closed: Whether the broker sent it away; its client subscribes again.
        left_for_seek: True if it was disconnected for a seek.
        messages_out: Messages that were delivered to it.
        bytes_out: Bytes of their entries.
        connected_at: Seconds since 1970.
        metadata: Properties from its client, for stats.
        flowed_ms: Time of its last request for messages (FLOW), milliseconds since 1970; 0 for never.
        knows_end: Whether it was told that it has all messages of a terminated topic.
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
        self.messages_out = 0
        self.bytes_out = 0
        self.connected_at = time.time()
        self.metadata = metadata or {}
        self.flowed_ms = 0
        self.knows_end = False

    @property
    def info(self) -> ConsumerInfo:
        """What a dispatcher knows of it."""
        return ConsumerInfo(self.id, self.name, self.priority, self.epoch, self.ranges)

    def tell_active(self, *, is_active: bool) -> None:
        """Tell a Failover consumer whether it is the active one, if its client knows that."""
        if self.peer.protocol_version >= ACTIVE_CONSUMER_PROTOCOL:
            self.peer.write(replies.active_consumer_change(self.consumer_id, is_active))


class KeptCursor(Protocol):
    """A subscription's cursor and what keeps it: `OpenCursor`, or nothing at all.

    Attributes:
        cursor: What is acknowledged.
        lost: Why it counts no more; None as long as it does.
    """

    cursor: Cursor
    lost: PulsarpyError | None

    def changed(self) -> None:
        """Something was acknowledged."""

    async def durable(self) -> None:
        """Wait until what is acknowledged now is as durable as it gets (errors: it never will be)."""


class MemoryCursor:
    """The cursor of a non-durable subscription: a reader remembers itself where it stands."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.lost: PulsarpyError | None = None

    def changed(self) -> None:
        """See `KeptCursor`."""

    async def durable(self) -> None:
        """See `KeptCursor`."""

    def reset(self, position: Position) -> None:
        """Seek."""
        self.cursor.reset(position, self.cursor.epoch + 1)
