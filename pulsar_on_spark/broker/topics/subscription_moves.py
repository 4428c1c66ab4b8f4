"""Moves of cursors on behalf of operators and policies: skip messages, or reset a subscription to a position.

Each function acquires the subscription first, which fails while Spark or another broker owns it. The move is durable
on return.
"""

from __future__ import annotations

from typing import Final

from pulsar_on_spark.broker.dispatch.values import Ack
from pulsar_on_spark.broker.reading.entry_look import look_at
from pulsar_on_spark.broker.reading.reader import EntryReader
from pulsar_on_spark.broker.topics.topic import BrokerTopic
from pulsar_on_spark.metadata.records import SubscriptionRecord
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.topic.entries.rows import StoredEntry
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import Cursor
from pulsar_on_spark.topic.managed_ledger.cursor.holes import batch_mask

_READ_ENTRIES: Final = 1_000
_READ_BYTES: Final = 4 << 20


async def seek(topic: BrokerTopic, record: SubscriptionRecord, position: Position) -> None:
    """Reset a subscription to a position, and disconnect its consumers (errors as `acquire_subscription`).

    Args:
        topic: The topic.
        record: The subscription.
        position: The next entry that it reads.
    """
    subscription = await topic.subscriptions.acquire_subscription(record.name, record.type)
    await topic.subscriptions.seek(subscription, position)


async def clear(topic: BrokerTopic, record: SubscriptionRecord) -> None:
    """Acknowledge the whole backlog of a subscription (errors as `acquire_subscription`)."""
    await expire(topic, record, topic.chain.end)


async def expire(topic: BrokerTopic, record: SubscriptionRecord, behind: Position) -> None:
    """Acknowledge all entries of a subscription before a position (errors as `acquire_subscription`)."""
    subscription = await topic.subscriptions.acquire_subscription(record.name, record.type)
    last = topic.chain.entry_before(behind)
    if last is not None:
        subscription.skip(through=last)
        await subscription.wait_durable()


async def skip(topic: BrokerTopic, record: SubscriptionRecord, reader: EntryReader, messages: int) -> None:
    """Acknowledge the first messages of a subscription's backlog, of the last batch only a part if necessary.

    Args:
        topic: The topic.
        record: The subscription.
        reader: The reader of the entries, whose messages are counted.
        messages: Number of messages; all if there are fewer.

    Raises:
        PulsarpyError: as `TopicSubscriptions.acquire_subscription` and `EntryReader.read`.
    """
    while messages > 0:
        cursor = (await topic.subscriptions.acquire_subscription(record.name, record.type)).kept.cursor
        backlog = cursor.deliverable(cursor.mark_delete, _READ_ENTRIES)
        if not backlog.ranges:
            break
        entries = await reader.read(topic.part, backlog.ranges, _READ_ENTRIES, _READ_BYTES)
        # Reading took time: the subscription may have been released, and moved by others.
        subscription = await topic.subscriptions.acquire_subscription(record.name, record.type)
        cursor, acks = subscription.kept.cursor, []
        for entry in entries:
            if messages > 0 and not cursor.is_acked(entry.ledger_id, entry.entry_id):
                ack, skipped = _ack(cursor, entry, messages)
                acks.append(ack)
                messages -= skipped
        subscription.skip(acks)
        await subscription.wait_durable()


def _ack(cursor: Cursor, entry: StoredEntry, messages: int) -> tuple[Ack, int]:
    """Return an acknowledgement of at most `messages` messages of an entry, and the number of these messages."""
    look = look_at(entry.data)
    if look.is_marker:
        return Ack(entry.ledger_id, entry.entry_id), 0
    unacked = cursor.ack_set(entry.ledger_id, entry.entry_id) or batch_mask(look.messages)
    count = min(unacked.bit_count(), messages)
    for _ in range(count):
        unacked &= unacked - 1  # the lowest one
    return Ack(entry.ledger_id, entry.entry_id, unacked, look.messages), count
