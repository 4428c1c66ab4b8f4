"""What a consumer asks for when it subscribes, and where that begins."""

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
    """What a consumer asks for.

    Attributes:
        name: The subscription.
        type: Its type.
        is_durable: False for readers: the cursor is in memory, and gone with the last consumer.
        start: Where a new subscription starts.
        properties: Kept with a new durable subscription.
        key_shared: How Key_Shared consumers divide the keys.
        read_compacted: Whether the compacted ledger is read in place of the log up to its horizon.
    """

    name: str
    type: SubscriptionType
    is_durable: bool = True
    start: InitialPosition = "latest"
    properties: Mapping[str, str] = field(default_factory=dict)
    key_shared: KeySharedPolicy = field(default_factory=KeySharedPolicy)
    read_compacted: bool = False


def memory_cursor(part: TopicPart, chain: LedgerChain, request: SubscribeRequest) -> MemoryCursor:
    """The cursor of a subscription that is not durable."""
    start = request.start
    if start == "earliest":
        at = chain.start
    elif start == "latest":
        at = chain.end
    else:
        assert isinstance(start, Position)
        at = chain.clamp(start)
    begin = CursorRecord("snapshot", TopicId(part.topic_id), request.name, 1, NO_RECORD, at)
    return MemoryCursor(Cursor(chain, begin))
