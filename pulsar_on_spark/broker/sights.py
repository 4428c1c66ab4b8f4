"""What subscriptions of a topic may see of it: its log, or a compaction of its beginning and the log behind that."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pulsar_on_spark.broker.reading.compacted import (
    Compacted,
    CompactedEntries,
    SubscribedEntries,
    newest_compaction,
)
from pulsar_on_spark.broker.reading.reader import EntryReader
from pulsar_on_spark.topic.catalog import TopicPart
from pulsar_on_spark.topic.cursor.chain import LedgerChain


class Sights:
    """Makes what subscriptions read.

    Args:
        part: The topic.
        reader: Reads its log.
    """

    def __init__(self, part: TopicPart, reader: EntryReader) -> None:
        self._part = part
        self._reader = reader

    def of(self, chain: LedgerChain, compacted: Compacted | None) -> tuple[SubscribedEntries, LedgerChain]:
        """What reads the topic with this compaction, and the chain that goes with it; the log alone for None."""
        if compacted is None:
            return self._reader, chain
        return CompactedEntries(self._reader, compacted), compacted.over(chain)

    async def newest(self, known: Sequence[Compacted]) -> Compacted | None:
        """The newest compaction; its index is taken from those that are known, if it is among them.

        Raises:
            PulsarpyError: as `newest_compaction`.
        """
        return await asyncio.to_thread(newest_compaction, self._reader.root, self._part, known)
