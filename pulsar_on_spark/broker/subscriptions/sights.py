"""What subscriptions see of their topic: its log, or a compaction of its beginning and the log behind that.

A subscription keeps the compaction that it began with until that was replaced, or the log was trimmed behind its
horizon: then it goes over to the newest one (`broker/reading/compacted.py`).
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
"""How long after the newest compaction could not be read it is tried again."""


class SeenTopic(Protocol):
    """What is seen.

    Attributes:
        part: Where it is in the catalog.
        chain: Its ledgers as they are now.
    """

    part: TopicPart
    chain: LedgerChain


class Sights:
    """What the subscriptions of one topic see of it. Methods belong to the broker's event loop.

    Args:
        topic: The topic.
        reader: Reads its log.
        open_: Its subscriptions that are open here; they share the indexes of compactions.
    """

    def __init__(self, topic: SeenTopic, reader: EntryReader, open_: Mapping[str, Subscription]) -> None:
        self._topic = topic
        self._reader = reader
        self._open = open_
        self._is_stopped = False

    def stop(self) -> None:
        """Renew nothing any more."""
        self._is_stopped = True

    def of(self, compacted: Compacted | None) -> tuple[SubscribedEntries, LedgerChain]:
        """What reads the topic with this compaction, and the chain that goes with it; the log alone for None."""
        if compacted is None:
            return self._reader, self._topic.chain
        return CompactedEntries(self._reader, compacted), compacted.over(self._topic.chain)

    async def newest(self, read_compacted: bool) -> Compacted | None:
        """The newest compaction; None if there is none, or the log alone is to be read.

        Raises:
            PulsarpyError: as `newest_compaction`.
        """
        if not read_compacted:
            return None
        known = [each.compacted for each in self._open.values() if each.compacted is not None]
        return await asyncio.to_thread(newest_compaction, self._reader.root, self._topic.part, known)

    async def show(self, subscription: Subscription, read_compacted: bool) -> None:
        """Let a subscription read the newest compaction, if there is one; or the log alone (errors as `newest`)."""
        compacted = await self.newest(read_compacted)
        subscription.reads_compacted = read_compacted
        subscription.see(*self.of(compacted), compacted)

    def follow(self, subscription: Subscription) -> bool:
        """Let a subscription see the topic's chain as it is now; False if it has to be `renew`ed first."""
        compacted, chain = subscription.compacted, self._topic.chain
        if subscription.reads_compacted and is_outlived(compacted, subscription.kept.cursor.mark_delete, chain):
            return False
        subscription.chain_changed(chain if compacted is None else compacted.over(chain))
        return True

    async def renew(self, subscription: Subscription, lock: asyncio.Lock) -> None:
        """What the subscription reads was replaced, or trimmed behind its horizon: go on with what is there now.

        Args:
            subscription: Which, its `is_renewed` not set; it is tried again and again as long as it is open.
            lock: Held while it is shown something else.
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
                        exc_info=not isinstance(error, PulsarpyError | OSError),
                        extra={"subscription": subscription.name, "topic": self._topic.part.name},
                    )
                    await asyncio.sleep(RENEW_AGAIN_S)
        finally:
            subscription.is_renewed.set()
