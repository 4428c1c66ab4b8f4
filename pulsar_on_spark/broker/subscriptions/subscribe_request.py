"""The options of a consumer that subscribes, and the cursor of a non-durable subscription."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pulsar_on_spark.broker.cursors.decisions import InitialPosition
from pulsar_on_spark.broker.dispatch.values import KeySharedPolicy
from pulsar_on_spark.broker.subscriptions.consumer import MemoryCursor
from pulsar_on_spark.model.ids import Position, TopicId
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import Cursor
from pulsar_on_spark.topic.managed_ledger.cursor.record import NO_RECORD, CursorRecord
from pulsar_on_spark.topic.managed_ledger.subscription.ownership import SubscriptionType


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """The options of a SUBSCRIBE command.

    Attributes:
        name: The subscription.
        type: The subscription's type.
        is_durable: False for readers, whose cursor is in memory and lost with the last consumer.
        start: The start position of a new subscription.
        properties: Stored with a new durable subscription.
        key_shared: How Key_Shared consumers divide the keys.
        read_compacted: True to read the compacted ledger in place of the log up to its horizon.
    """

    name: str
    type: SubscriptionType
    is_durable: bool = True
    start: InitialPosition = "latest"
    properties: Mapping[str, str] = field(default_factory=dict)
    key_shared: KeySharedPolicy = field(default_factory=KeySharedPolicy)
    read_compacted: bool = False


def memory_cursor(part: TopicPart, chain: LedgerChain, request: SubscribeRequest) -> MemoryCursor:
    """Create the cursor of a non-durable subscription, at the requested start or the nearest position in the chain."""
    start = request.start
    if start == "earliest":
        at = chain.start
    elif start == "latest":
        at = chain.end
    else:
        assert isinstance(start, Position)
        at = chain.clamp_position(start)
    begin = CursorRecord("snapshot", TopicId(part.topic_id), request.name, 1, NO_RECORD, at)
    return MemoryCursor(Cursor(chain, begin))
