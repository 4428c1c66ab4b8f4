"""The cursors and backlogs of subscriptions, as the commands `status` and `subscriptions list` show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pulsar_on_spark.model.ids import Position


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    """A subscription on one topic: its cursor and its backlog.

    `consumers` are the ids of Spark's consumers, or `broker <incarnation>` if a broker owns the subscription.
    `mark_delete` is the next entry that the slowest slot reads. A broker's cursor is taken from its last row in the
    cursors table. The backlog counts unacknowledged messages, and their key and value bytes. If there are 64 slots,
    each counts as having one 64th of the messages in a range.
    """

    topic: str
    name: str
    type: str
    consumers: tuple[str, ...]
    mark_delete: Position
    backlog_messages: int
    backlog_bytes: int


@dataclass(frozen=True, slots=True)
class TopicSubscription:
    """A subscription on a topic: one cursor for each partition that has it."""

    topic: str
    name: str
    type: str
    consumers: tuple[str, ...]
    backlog_messages: int
    backlog_bytes: int
    cursors: tuple[SubscriptionStatus, ...]

    @classmethod
    def of(cls, topic: str, name: str, parts: Sequence[SubscriptionStatus]) -> TopicSubscription:
        """Combine one or more cursors, one for each partition, into the subscription of a topic."""
        return cls(
            topic=topic,
            name=name,
            type=parts[0].type,
            consumers=tuple(sorted({consumer for part in parts for consumer in part.consumers})),
            backlog_messages=sum(part.backlog_messages for part in parts),
            backlog_bytes=sum(part.backlog_bytes for part in parts),
            cursors=tuple(parts),
        )
