"""Entries for consumers: from memory if possible, else read off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from pulsar_on_spark.broker.reading.ahead import ReadAhead
from pulsar_on_spark.broker.reading.cache import EntryCache
from pulsar_on_spark.broker.reading.entry_look import look_at
from pulsar_on_spark.broker.reading.jobs import Deferred, EntrySource, FindJob, FoundAt, Lane
from pulsar_on_spark.broker.reading.losses import LOSSES, given_up_until, lost_entries
from pulsar_on_spark.broker.reading.process import ReadingProcess
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.model.ids import EARLIEST, EntryId, MessageId, Position
from pulsar_on_spark.storage.objects.meter import Counts
from pulsar_on_spark.storage.reports import write_report
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.entries.cutting import MAX_MESSAGE_BYTES
from pulsar_on_spark.topic.entries.rows import StoredEntry
from pulsar_on_spark.topic.managed_ledger.chain.chain import trimmed_before
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import EntryRange


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """The limits of one read; the first entry is returned even if it is larger.

    Attributes:
        entries: Maximum number of entries.
        bytes: Maximum number of bytes of entries.
    """

    entries: int
    bytes: int


MAX_MARKERS = 1_000
"""Maximum number of markers at a topic's end that are skipped to find its last message."""


class Reads(Protocol):
    """The reading interface of `EntryReader` and of views of compacted topics."""

    def read_in_memory(
        self, part: TopicPart, ranges: Sequence[EntryRange], max_entries: int, max_bytes: int
    ) -> list[StoredEntry]:
        """Return entries of the ranges from memory, in order; none if the first entry is not in memory."""

    async def read(
        self, part: TopicPart, ranges: Sequence[EntryRange], max_entries: int, max_bytes: int
    ) -> list[StoredEntry]:
        """Return entries of the ranges in order: at least one, not necessarily all."""


class EntryReader:
    """A reader of entries of any topics. Call all methods in one event loop.

    Args:
        root: The open root.
        cache: The cache of the newest acknowledged entries, to which the publish path adds them.
        max_message_size_bytes: The broker's `maxMessageSize`.
    """

    def __init__(self, root: RootHandle, cache: EntryCache, *, max_message_size_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.root = root
        self.cache = cache
        self.hits = self.misses = 0
        """Numbers of entries that were in memory, and of entries that had to be read."""
        self._process = ReadingProcess(root.place, max_message_size_bytes)
        self._ahead = ReadAhead(self._process)

    @property
    def pid(self) -> int | None:
        """The id of the process that reads entries that are not in memory; None while none runs."""
        return self._process.pid

    @property
    def requests(self) -> Counts:
        """The numbers of requests by kind that the reading process has sent to object stores."""
        return self._process.requests

    def start(self) -> None:
        """Start the process that reads entries that are not in memory."""
        self._process.start()

    async def close(self) -> None:
        """Stop the reading process; running reads fail."""
        await self._ahead.close()
        await self._process.stop()

    def read_in_memory(
        self, part: TopicPart, ranges: Sequence[EntryRange], max_entries: int, max_bytes: int
    ) -> list[StoredEntry]:
        """Return entries as `read`, but from memory only: none if the first entry is not in memory."""
        return self.read_in_memory_from(EntrySource(part), ranges, max_entries, max_bytes)

    def read_in_memory_from(
        self, source: EntrySource, ranges: Sequence[EntryRange], max_entries: int, max_bytes: int
    ) -> list[StoredEntry]:
        """Return entries as `read_in_memory`, from a topic's log or a compacted ledger."""
        entries = self._in_memory(source, ranges, ReadLimits(max_entries, max_bytes))
        if entries:
            self.hits += len(entries)
            self._ahead.taken(source, entries[-1].ledger_id, entries[-1].entry_id)
        return entries

    async def read(
        self, part: TopicPart, ranges: Sequence[EntryRange], max_entries: int, max_bytes: int
    ) -> list[StoredEntry]:
        """Return entries of the ranges in order: at least one, not necessarily all.

        Args:
            part: The topic.
            ranges: The entries, which must be readable according to the topic's chain.
            max_entries: Maximum number of entries.
            max_bytes: Maximum number of bytes; the first entry is returned even if it is larger.

        Raises:
            DataLossError: the first entry is in no segment and in no journal file.
            CorruptSegmentError, CorruptJournalError: no good copy of the first entry is left.
            UnbuildableEntryError: the first entry cannot be rebuilt within `maxMessageSize`.
            MetadataError, StorageError: the root cannot be read.
        """
        return await self.read_from(EntrySource(part), ranges, max_entries, max_bytes)

    async def read_from(
        self, source: EntrySource, ranges: Sequence[EntryRange], max_entries: int, max_bytes: int
    ) -> list[StoredEntry]:
        """Return entries as `read`, from a topic's log or a compacted ledger.

        Raises:
            SegmentGoneError, MetadataError: the compacted ledger was replaced a while ago, and is deleted.
        """
        if entries := self.read_in_memory_from(source, ranges, max_entries, max_bytes):
            return entries
        fetched = await self._ahead.fetch(source, ranges)
        try:
            entries = self._in_memory(source, ranges, ReadLimits(max_entries, max_bytes))
        finally:
            self._ahead.release(fetched)
        if entries:
            self.misses += len(entries)
            self._ahead.taken(source, entries[-1].ledger_id, entries[-1].entry_id)
        return entries

    async def last_message_id(
        self, part: TopicPart, chain: LedgerChain, entries: Reads | None = None
    ) -> MessageId | None:
        """Return the id of the topic's last message, skipping markers, which clients do not see; None if there is none.

        Its batch index is that of the entry's last message, -1 if the entry is not a batch. Returns None if more than
        `MAX_MARKERS` markers follow the message. Trimmed entries that are still in the chain are skipped.

        Args:
            part: The topic.
            chain: The topic's chain of ledgers.
            entries: The reader of the entries; None to read the topic's log, without a compacted ledger.

        Raises:
            DataLossError, StorageError, MetadataError, UnbuildableEntryError: as `read`.
        """
        behind, floor = chain.end, EARLIEST
        for _ in range(MAX_MARKERS):
            position = chain.entry_before(behind)
            if position is None or position < floor:
                return None
            only = EntryRange(position.ledger, position.entry, position.entry + 1)
            try:
                (entry,) = await (entries or self).read(part, [only], 1, 0)
            except LOSSES:
                floor = await asyncio.to_thread(lambda: trimmed_before(self.root.store.view(), part.topic_id))
                if entries is not None or position >= floor:
                    raise  # entries of a compacted ledger are not trimmed
                behind = chain.end  # it may have grown
                continue
            behind = position
            look = look_at(entry.data)
            if not look.is_marker:
                batch_index = look.messages - 1 if look.is_batch else -1
                return MessageId(position.ledger, position.entry, part.partition, batch_index)
        return None

    async def position_at(self, part: TopicPart, chain: LedgerChain, publish_ms: int) -> Position:
        """Return the position of the first entry published at `publish_ms` or later; the chain's end if there is none.

        Args:
            part: The topic or partition.
            chain: The topic's ledgers.
            publish_ms: A publish time, in milliseconds since 1970.

        Raises:
            DataLossError, StorageError, MetadataError: an entry or the metadata cannot be read.
        """
        return await self.position_in(EntrySource(part), chain, publish_ms)

    async def position_in(self, source: EntrySource, chain: LedgerChain, publish_ms: int) -> Position:
        """Return a position as `position_at`, in a topic's log, or in a compacted ledger and the log after it."""
        start, lane = chain.start, Lane.JOURNALS
        while True:
            outcome, _ = await self._process.run_job(
                partial(FindJob, source=source, start=start, end=chain.end, publish_ms=publish_ms, lane=lane)
            )
            if isinstance(outcome, FoundAt):
                return outcome.position
            assert isinstance(outcome, Deferred)
            assert outcome.start is not None, "a search says where to go on"
            start, lane = outcome.start, outcome.lane

    async def lost_until(self, part: TopicPart, first: Position, end: int, error: PulsarpyError) -> int:
        """Report the loss of an unreadable entry, and return the entry id after the last entry that is lost with it.

        Args:
            part: The topic.
            first: The position of the unreadable entry.
            end: The entry id after the last entry that the read requested of this ledger.
            error: The error of the read.

        Raises:
            MetadataError: the metadata cannot be read.
        """

        def report_loss() -> int:
            lost = lost_entries(self.root.store.view(durable=True), part, first, end, error, current_ms())
            if lost.report is not None:
                write_report(self.root.place, lost.report)
            return lost.end

        return await asyncio.to_thread(report_loss)

    async def given_up_until(self, part: TopicPart, first: Position) -> int | None:
        """Return the entry id after the entries that an operator gave up together with `first`; None without these.

        Raises:
            MetadataError: the metadata cannot be read.
        """
        return await asyncio.to_thread(lambda: given_up_until(self.root.store.view(durable=True), part, first))

    def _in_memory(self, source: EntrySource, ranges: Sequence[EntryRange], limits: ReadLimits) -> list[StoredEntry]:
        """Return the ranges' entries up to the first one that is not in memory, or up to the limits."""
        get, take = self.cache.get, self._ahead.copy_entries
        is_log, source_id = source.compaction is None, source.id
        entries: list[StoredEntry] = []
        size_bytes = 0
        for wanted in ranges:
            ledger, entry = wanted.ledger, wanted.first
            while entry < wanted.end:
                if len(entries) == limits.entries:
                    return entries
                cached = get(ledger, EntryId(entry)) if is_log else None
                if cached is not None:
                    taken = [cached]
                else:
                    end = min(wanted.end, entry + limits.entries - len(entries))
                    taken = take(source_id, ledger, entry, end, limits.bytes - size_bytes)
                if not taken:
                    return entries
                for data in taken:
                    size_bytes += len(data)
                    if entries and size_bytes > limits.bytes:
                        return entries
                    ack_set = 0 if is_log else self._ahead.ack_set(source_id, ledger, entry)
                    entries.append(StoredEntry(ledger, EntryId(entry), data, ack_set))
                    entry += 1
        return entries
