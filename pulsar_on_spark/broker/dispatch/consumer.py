"""The dispatcher's state of a consumer."""

from __future__ import annotations

from pulsar_on_spark.broker.dispatch.values import ConsumerInfo

EntryPosition = tuple[int, int]
"""Ledger and entry id. A plain tuple, because a dispatcher may have several 100,000 of them."""

PendingAck = tuple[int, int, int]
"""State of an unacknowledged entry: number of messages, number of unacknowledged messages, and the entry's group for
dispatch (see `pool.py`). A plain tuple, because there may be 200,000 of them."""


class Consumer:
    """A consumer's permits, and on Shared and Key_Shared its unacknowledged entries.

    Attributes:
        info: The consumer's options.
        permits: Number of messages that the consumer may still get; a batch may take it below zero.
        epoch: The client's `consumer_epoch`; None if the client does not send one.
        is_writable: True if the consumer's connection has room for more data.
        pending: The consumer's unacknowledged entries, by ledger and entry id.
        unacked: Number of unacknowledged messages in `pending`.
        is_blocked: True if the consumer gets no entries because it has too many unacknowledged messages.
    """

    __slots__ = ("epoch", "info", "is_blocked", "is_writable", "pending", "permits", "unacked")

    def __init__(self, info: ConsumerInfo) -> None:
        self.info = info
        self.permits = 0
        self.epoch = info.epoch
        self.is_writable = True
        self.pending: dict[EntryPosition, PendingAck] = {}
        self.unacked = 0
        self.is_blocked = False

    @property
    def is_available(self) -> bool:
        """True if the consumer may get an entry: it has permits, its connection has room, and it is not blocked."""
        return self.permits > 0 and self.is_writable and not self.is_blocked

    @property
    def obstacle(self) -> str | None:
        """The reason, for operators, why the consumer may not get an entry; None if it may."""
        if self.is_blocked:
            return f"{self.unacked} unacked messages: it gets no entries until they are down to half of the limit"
        if self.permits <= 0:
            return "no permits: the client has not asked for more messages"
        if not self.is_writable:
            return "its connection is full: the client does not read the data that was sent"
        return None
