"""A consumer as its dispatcher sees it."""

from __future__ import annotations

from pulsar_on_spark.broker.dispatch.values import ConsumerInfo

Place = tuple[int, int]
"""Ledger and entry."""

PendingAck = tuple[int, int, int]
"""Of an entry at a consumer: its messages, those of them that are not acknowledged, and its group (`pool.py`). A plain
tuple: there may be 200,000 of them."""


class Consumer:
    """Permits, and on Shared and Key_Shared what it has and has not acknowledged.

    Attributes:
        info: What it said when it subscribed.
        permits: Messages that it may still get. One entry may take them below zero.
        epoch: Its consumer epoch.
        is_writable: Whether its connection takes data now.
        pending: What it has.
        unacked: Messages in `pending` that are not acknowledged.
        is_blocked: Whether it has so many that it gets no more for now.
    """

    __slots__ = ("epoch", "info", "is_blocked", "is_writable", "pending", "permits", "unacked")

    def __init__(self, info: ConsumerInfo) -> None:
        self.info = info
        self.permits = 0
        self.epoch = info.epoch
        self.is_writable = True
        self.pending: dict[Place, PendingAck] = {}
        self.unacked = 0
        self.is_blocked = False

    @property
    def is_available(self) -> bool:
        """Whether it may be given an entry."""
        return self.permits > 0 and self.is_writable and not self.is_blocked

    @property
    def obstacle(self) -> str | None:
        """Why it may not, in words."""
        if self.is_blocked:
            return f"{self.unacked} unacked messages: it gets more when half of its limit is acknowledged"
        if self.permits <= 0:
            return "no permits: the client asked for no more messages"
        if not self.is_writable:
            return "its connection takes no data: the client does not read"
        return None
