"""Subscriptions and their owners."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from pulsar_on_spark.metadata.records.record import Record


class SlotOwner(BaseModel):
    """Slots of a subscription that one consumer owns under one epoch; they are free if `consumer` is None.

    If a broker owns the subscription, `consumer` is its incarnation. (`start_ledger`, `start_entry`) is the position at
    which the epoch began. It counts until a cursor row of this or a later epoch exists. So owner, epoch and position
    change in one commit, and a late row of an earlier owner never counts.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    consumer: str | None
    epoch: int
    start_ledger: int
    start_entry: int
    slots: tuple[int, ...]


class SubscriptionRecord(Record):
    """A subscription on one topic (one partition), and its owners.

    `face` is "broker" if a broker owns the whole subscription, None if its last owner has released it, and "spark"
    otherwise. Exclusive and Failover subscriptions have only slot 0, and Shared and Key_Shared subscriptions have
    64 slots. (`start_ledger`, `start_entry`) is the position at creation or at the last reset. A reset also sets
    `start_epoch`: cursor rows of an older epoch do not count. `holes_since_epoch` is the oldest epoch in whose rows ack
    holes still count; None means `start_epoch`. `expires_after_s` is the time in seconds without a consumer after which
    the subscription is deleted; None if it never expires. Clients and operators set the `properties`.
    """

    kind: ClassVar[str] = "subscription"
    topic_id: str
    name: str
    type: Literal["Exclusive", "Failover", "Shared", "Key_Shared"]
    face: Literal["spark", "broker"] | None = "spark"
    owners: tuple[SlotOwner, ...] = ()
    start_ledger: int
    start_entry: int
    start_epoch: int
    holes_since_epoch: int | None = None
    expires_after_s: float | None = None
    properties: dict[str, str] = Field(default_factory=dict)
    created_at: datetime

    @property
    def record_id(self) -> str:
        """Topic id and name."""
        return f"{self.topic_id}/{self.name}"
