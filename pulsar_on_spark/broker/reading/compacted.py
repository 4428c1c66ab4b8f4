"""The view of a subscription that reads compacted: the compacted ledger up to its horizon, then the log.

A subscription keeps its first compaction even if the topic is compacted again. So a message stays readable after its
id was returned as the last message id. The subscription switches to a newer compaction only if its own is deleted, or
if the log after its horizon is trimmed; see `broker/subscriptions/topic_subscriptions.py`.
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
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.present_copies import report_present
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.entries.rows import StoredEntry
from pulsar_on_spark.topic.maintenance.compaction.chain import CompactedChain
from pulsar_on_spark.topic.maintenance.compaction.reading import Index, read_index
from pulsar_on_spark.topic.managed_ledger.chain.compaction_record import horizon_of
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import EntryRange


class SubscribedEntries(Reads, Protocol):
    """The interface of a subscription's reader: `EntryReader` for the log, or `CompactedEntries`."""

    async def last_message_id(self, part: TopicPart, chain: LedgerChain) -> MessageId | None:
        """Return the id of the last message that clients see; None if there is none."""

    async def position_at(self, part: TopicPart, chain: LedgerChain, publish_ms: int) -> Position:
        """Return the position of the first entry published at `publish_ms` or later, as `EntryReader.position_at`."""

    async def lost_until(self, part: TopicPart, first: Position, end: int, error: PulsarpyError) -> int:
        """Report a loss, and return the entry id after the lost entries (arguments as `EntryReader.lost_until`)."""

    async def given_up_until(self, part: TopicPart, first: Position) -> int | None:
        """Return the entry id after entries that an operator gave up, as `EntryReader.given_up_until`."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """A compaction of a topic that subscriptions read.

    Attributes:
        record: The compaction's record in the metadata.
        index: The index of the compacted ledger: the entries that it has.
    """

    record: CompactionRecord
    index: Index

    @property
    def horizon(self) -> Position:
        """The first position that is read from the log; earlier ones are read from the compacted ledger."""
        return horizon_of(self.record)

    def over(self, chain: LedgerChain) -> CompactedChain:
        """Return the topic's chain with the compacted ledger in place of the log up to the horizon."""
        return CompactedChain(chain, self.horizon, self.index)


class CompactedEntries:
    """A reader of a compacted topic. Call all methods in the broker's event loop.

    Args:
        reader: The reader of the topic's ledgers, which also reads the compacted ledger.
        compacted: The subscription's compaction, which is read up to its horizon.
    """

    def __init__(self, reader: EntryReader, compacted: Compacted) -> None:
        self.compacted = compacted
        self._reader = reader

    def read_in_memory(
        self, part: TopicPart, ranges: Sequence[EntryRange], max_entries: int, max_bytes: int
    ) -> list[StoredEntry]:
        """Return entries from memory as `EntryReader.read_in_memory`; none if the first entry is not in memory."""
        return self._reader.read_in_memory_from(*self._first_of(part, ranges), max_entries, max_bytes)

    async def read(
        self, part: TopicPart, ranges: Sequence[EntryRange], max_entries: int, max_bytes: int
    ) -> list[StoredEntry]:
        """Read entries as `EntryReader.read`, at most up to the horizon (errors as `read_from`)."""
        return await self._reader.read_from(*self._first_of(part, ranges), max_entries, max_bytes)

    async def last_message_id(self, part: TopicPart, chain: LedgerChain) -> MessageId | None:
        """Return the id of the last message, of the compacted ledger if the log after it is empty; None without one."""
        last = await self._reader.last_message_id(part, chain, self)
        if last is None or (last.ledger, last.entry) >= self._horizon:
            return last
        index = self.compacted.record.last_batch_index
        return last if index < 0 else MessageId(last.ledger, last.entry, last.partition, index)

    async def position_at(self, part: TopicPart, chain: LedgerChain, publish_ms: int) -> Position:
        """Return the position of the first entry published at `publish_ms` or later, as `EntryReader.position_at`."""
        return await self._reader.position_in(self._source(part), chain, publish_ms)

    async def lost_until(self, part: TopicPart, first: Position, end: int, error: PulsarpyError) -> int:
        """Report a loss as `EntryReader.lost_until`.

        In the compacted ledger only the unreadable entry is lost, and no report is written.
        """
        if (first.ledger, first.entry) < self._horizon:
            return first.entry + 1
        return await self._reader.lost_until(part, first, end, error)

    async def given_up_until(self, part: TopicPart, first: Position) -> int | None:
        """Return the entry id after entries that an operator gave up; None in the compacted ledger."""
        if (first.ledger, first.entry) < self._horizon:
            return None
        return await self._reader.given_up_until(part, first)

    @property
    def _horizon(self) -> tuple[int, int]:
        horizon = self.compacted.horizon
        return int(horizon.ledger), int(horizon.entry)

    def _first_of(self, part: TopicPart, ranges: Sequence[EntryRange]) -> tuple[EntrySource, Sequence[EntryRange]]:
        """Return the source of the first entry, and the ranges or parts of ranges that are in the same source."""
        below = [range_ for range_ in ranges if (range_.ledger, range_.first) < self._horizon]
        if not below:
            return EntrySource(part), ranges
        last = below[-1]
        if last.ledger == self._horizon[0]:
            below[-1] = EntryRange(last.ledger, last.first, min(last.end, self._horizon[1]))
        return self._source(part), below

    def _source(self, part: TopicPart) -> EntrySource:
        return EntrySource(part, self.compacted.record)


def is_outlived(compacted: Compacted | None, next_: Position, log_chain: LedgerChain) -> bool:
    """Return True if the log was trimmed beyond the first entry that a subscription still reads from it.

    The trimmed messages are then in a newer compacted ledger.

    Args:
        compacted: The subscription's compaction; None if it reads the log alone.
        next_: The position of the first entry that the subscription has not acknowledged.
        log_chain: The topic's current chain.
    """
    read_on = next_ if compacted is None else max(next_, compacted.horizon)
    return read_on < log_chain.start


def newest_compaction(root: RootHandle, part: TopicPart, known: Sequence[Compacted] = ()) -> Compacted | None:
    """Return the topic's current compaction; None if there is none. Blocks: call it in a thread.

    Args:
        root: The open root.
        part: The topic.
        known: Compactions whose index was read before; one of them is returned if it is the current one.

    Raises:
        CorruptSegmentError: no good copy of the index is left.
        MetadataError, StorageError: the root cannot be read.
    """
    view = root.store.view(durable=True)
    record = view.get(CompactionRecord, part.topic_id)
    if record is None:
        return None
    for compacted in known:
        if compacted.record.compaction_id == record.compaction_id:
            return compacted
    report = partial(report_present, lambda: root)
    return Compacted(record, read_index(view, part, record, root.current_storage_paths, report))
