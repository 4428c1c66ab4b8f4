"""What a subscription that reads compacted sees: the compacted ledger up to its horizon, then the log.

A subscription keeps the compaction that it began with, also when the topic is compacted again: what was once told to
be its last message stays there to be read. It goes over to a newer one only where its own is gone, or the log behind
its horizon was trimmed; see `broker/subscriptions/topic_subscriptions.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from pulsar_on_spark.broker.reading.jobs import EntrySource
from pulsar_on_spark.broker.reading.reader import EntryReader, Reads
from pulsar_on_spark.metadata.records import CompactionRecord
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.model.ids import MessageId, Position
from pulsar_on_spark.storage.reports import report_bad_copy
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.entries.rows import StoredEntry
from pulsar_on_spark.topic.maintenance.compaction.chain import CompactedChain
from pulsar_on_spark.topic.maintenance.compaction.reading import Index, read_index
from pulsar_on_spark.topic.managed_ledger.chain.compaction_record import horizon_of
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import EntryRange


class SubscribedEntries(Reads, Protocol):
    """What a subscription reads: `EntryReader`, or `CompactedEntries`."""

    async def last_message_id(self, part: TopicPart, chain: LedgerChain) -> MessageId | None:
        """See `EntryReader`."""

    async def position_at(self, part: TopicPart, chain: LedgerChain, publish_ms: int) -> Position:
        """See `EntryReader`."""

    async def lost_until(self, part: TopicPart, first: Position, end: int, error: PulsarpyError) -> int:
        """See `EntryReader`."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """A compaction and the index of its ledger."""

    record: CompactionRecord
    index: Index

    @property
    def horizon(self) -> Position:
        """From here on the log counts."""
        return horizon_of(self.record)

    def over(self, chain: LedgerChain) -> CompactedChain:
        """The topic's chain as readers of the compacted ledger see it."""
        return CompactedChain(chain, self.horizon, self.index)


class CompactedEntries:
    """Reads a compacted topic. Methods belong to the broker's event loop.

    Args:
        reader: Reads entries.
        compacted: The compaction.
    """

    def __init__(self, reader: EntryReader, compacted: Compacted) -> None:
        self.compacted = compacted
        self._reader = reader

    def here(
        self, part: TopicPart, ranges: Sequence[EntryRange], max_entries: int, max_bytes: int
    ) -> list[StoredEntry]:
        """See `EntryReader`."""
        return self._reader.here_from(*self._first_of(part, ranges), max_entries, max_bytes)

    async def read(
        self, part: TopicPart, ranges: Sequence[EntryRange], max_entries: int, max_bytes: int
    ) -> list[StoredEntry]:
        """See `EntryReader`; a read ends at the horizon at the latest (errors as `read_from`)."""
        return await self._reader.read_from(*self._first_of(part, ranges), max_entries, max_bytes)

    async def last_message_id(self, part: TopicPart, chain: LedgerChain) -> MessageId | None:
        """See `EntryReader`; where the horizon reaches the end it is the last message that is left."""
        last = await self._reader.last_message_id(part, chain, self)
        if last is None or (last.ledger, last.entry) >= self._horizon:
            return last
        index = self.compacted.record.last_batch_index
        return last if index < 0 else MessageId(last.ledger, last.entry, last.partition, index)

    async def position_at(self, part: TopicPart, chain: LedgerChain, publish_ms: int) -> Position:
        """See `EntryReader`."""
        return await self._reader.position_in(self._source(part), chain, publish_ms)

    async def lost_until(self, part: TopicPart, first: Position, end: int, error: PulsarpyError) -> int:
        """See `EntryReader`; in the compacted ledger it is one entry at a time."""
        if (first.ledger, first.entry) < self._horizon:
            return first.entry + 1
        return await self._reader.lost_until(part, first, end, error)

    @property
    def _horizon(self) -> tuple[int, int]:
        horizon = self.compacted.horizon
        return int(horizon.ledger), int(horizon.entry)

    def _first_of(self, part: TopicPart, ranges: Sequence[EntryRange]) -> tuple[EntrySource, Sequence[EntryRange]]:
        """Where the first entry is, and what of the ranges is there, too."""
        below = [each for each in ranges if (each.ledger, each.first) < self._horizon]
        if not below:
            return EntrySource(part), ranges
        last = below[-1]
        if last.ledger == self._horizon[0]:
            below[-1] = EntryRange(last.ledger, last.first, min(last.end, self._horizon[1]))
        return self._source(part), below

    def _source(self, part: TopicPart) -> EntrySource:
        return EntrySource(part, self.compacted.record)


def is_outlived(compacted: Compacted | None, next_: Position, log_chain: LedgerChain) -> bool:
    """Whether the log was trimmed behind what a subscription has read, or reads out of its compacted ledger.

    What is trimmed is in a newer compacted ledger then.

    Args:
        compacted: What it reads; None if it reads the log alone.
        next_: The first entry that it has not acknowledged.
        log_chain: The topic's chain as it is now.
    """
    read_on = next_ if compacted is None else max(next_, compacted.horizon)
    return read_on < log_chain.start


def newest_compaction(root: RootHandle, part: TopicPart, known: Sequence[Compacted] = ()) -> Compacted | None:
    """The topic's compaction as it is now; None if there is none. Blocks: off the loop.

    Args:
        root: The root.
        part: The topic.
        known: Those that were read before: the newest is given back if it is one of them.

    Raises:
        CorruptSegmentError: no good copy of the index is left.
        MetadataError, StorageError: the root cannot be read.
    """
    view = root.store.view(durable=True)
    record = view.get(CompactionRecord, part.topic_id)
    if record is None:
        return None
    for each in known:
        if each.record.compaction_id == record.compaction_id:
            return each
    report = partial(report_bad_copy, root.path)
    return Compacted(record, read_index(view, part, record, root.storage_paths(view), report))
