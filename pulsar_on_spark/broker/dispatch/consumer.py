"""The dispatcher's state of a consumer."""

from __future__ import annotations

from pulsar_on_spark.broker.dispatch.values import ConsumerInfo

EntryPosition = tuple[int, int]
"""Ledger and entry id. A plain tuple, because a dispatcher may have several 100,000 of them."""

PendingAck = tuple[int, int, int]
"""State of an unacknowledged entry: number of messages, number of unacknowledged messages, and its group (`pool.py`). A
plain tuple, because there may be 200,000 of them."""


class Consumer:
    """A consumer's permits, and on Shared and Key_Shared its unacknowledged entries.

    Attributes:
        info: Its options.
        permits: Messages that it may still get. One entry may take them below zero.
        epoch: Its consumer epoch.
        is_writable: True if its connection has room.
        pending: Its unacknowledged entries.
        unacked: Number of unacknowledged messages in `pending`.
        is_blocked: True if it gets no more entries because of its limit of unacknowledged messages.
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
        """True if it may get an entry."""
        return self.permits > 0 and self.is_writable and not self.is_blocked

    @property
    def obstacle(self) -> str | None:
        """The reason why it may not get an entry, for operators; None if it may."""
        if self.is_blocked:
            return f"{self.unacked} unacked messages: it gets more after half of them are acknowledged"
        if self.permits <= 0:
            return "no permits: the client asked for no more messages"
        if not self.is_writable:
            return "its connection takes no data: the client does not read"
        return None
