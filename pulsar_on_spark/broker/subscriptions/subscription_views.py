"""The subscriptions' views of their topic: the log alone, or a compaction of its beginning and the log after it.

A subscription keeps its compaction until that compaction is deleted, or until the log is trimmed beyond the
compaction's horizon. Then it switches to the newest one (`broker/reading/compacted.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, Protocol

from pulsar_on_spark.broker.reading.compacted import (
    Compacted,
    CompactedEntries,
    SubscribedEntries,
    is_outlived,
    newest_compaction,
)
from pulsar_on_spark.broker.reading.reader import EntryReader
from pulsar_on_spark.broker.subscriptions.subscription import Subscription
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain

log = logging.getLogger(__name__)

RENEW_AGAIN_S: Final = 1.0
"""Delay before reading the newest compaction is retried, in seconds."""


class SeenTopic(Protocol):
    """The part of a topic that views need.

    Attributes:
        part: The topic in the catalog.
        chain: Its current chain of ledgers.
    """

    part: TopicPart
    chain: LedgerChain


class SubscriptionViews:
    """The views that the subscriptions of one topic have of it. Call all methods in the broker's event loop.

    Args:
        topic: The topic.
        reader: The reader of the topic's log.
        open_: The topic's loaded subscriptions by name, which share the indexes of compactions.
    """

    def __init__(self, topic: SeenTopic, reader: EntryReader, open_: Mapping[str, Subscription]) -> None:
        self._topic = topic
        self._reader = reader
        self._open = open_
        self._is_stopped = False

    def stop(self) -> None:
        """Stop renewing views."""
        self._is_stopped = True

    def of(self, compacted: Compacted | None) -> tuple[SubscribedEntries, LedgerChain]:
        """Return the reader and the chain of a view of the topic with this compaction, or of the log alone for None."""
        if compacted is None:
            return self._reader, self._topic.chain
        return CompactedEntries(self._reader, compacted), compacted.over(self._topic.chain)

    async def newest(self, read_compacted: bool) -> Compacted | None:
        """Return the topic's newest compaction; None if there is none or `read_compacted` is false.

        Raises:
            PulsarpyError: as `newest_compaction`.
        """
        if not read_compacted:
            return None
        known = [subscription.compacted for subscription in self._open.values() if subscription.compacted is not None]
        return await asyncio.to_thread(newest_compaction, self._reader.root, self._topic.part, known)

    async def show(self, subscription: Subscription, read_compacted: bool) -> None:
        """Switch a subscription to the newest compaction, or to the log alone (errors as `newest`)."""
        compacted = await self.newest(read_compacted)
        subscription.reads_compacted = read_compacted
        subscription.switch_view(*self.of(compacted), compacted)

    def update_subscription(self, subscription: Subscription) -> bool:
        """Update a subscription to the topic's current chain and return True.

        Return False, without a change, if its compaction is outdated, so that the caller must call `renew_view`.
        """
        compacted, chain = subscription.compacted, self._topic.chain
        if subscription.reads_compacted and is_outlived(compacted, subscription.kept.cursor.mark_delete, chain):
            return False
        subscription.on_chain_changed(chain if compacted is None else compacted.over(chain))
        return True

    async def renew_view(self, subscription: Subscription, lock: asyncio.Lock) -> None:
        """Switch a subscription to the newest compaction, after the old one was deleted or the log trimmed beyond it.

        Retries until it succeeds or the subscription is closed, then sets `is_renewed`.

        Args:
            subscription: The subscription, with `is_renewed` cleared.
            lock: Held while the view is switched.
        """
        try:
            while self._open.get(subscription.name) is subscription and not self._is_stopped:
                try:
                    async with lock:
                        await self.show(subscription, subscription.reads_compacted)
                    return
                except Exception as error:
                    log.warning(
                        "Subscription %r on %s: %s",
                        subscription.name,
                        self._topic.part.name,
                        error,
                        exc_info=None if isinstance(error, PulsarpyError | OSError) else error,
                        extra={"subscription": subscription.name, "topic": self._topic.part.name},
                    )
                    await asyncio.sleep(RENEW_AGAIN_S)
        finally:
            subscription.is_renewed.set()
