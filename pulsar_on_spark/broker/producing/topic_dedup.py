"""Deduplication of loaded topics: the state is saved in the metadata and restored when a topic is loaded.

    load      the topic's record, then a replay of the entries after its position; without a record, an empty state
    publish   `admit_entry` before the journal takes an entry, `on_entry_stored` after the journal acknowledged it
    snapshot  from time to time, the due records of all topics in one commit

A new topic's first record is durable before anything is published, so a crash leaves a position to replay from. The
replay finds entries acknowledged after the last record; all other entries have no receipt and are sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from pulsar_on_spark.broker.producing.dedup import (
    Deduplication,
    DedupLimits,
    DedupSnapshot,
    Sender,
    Source,
    Verdict,
    position_number,
    position_of,
)
from pulsar_on_spark.broker.producing.producers import ProducerInfo
from pulsar_on_spark.broker.producing.replicated import Replication, identity_of, source_cluster
from pulsar_on_spark.broker.reading.entry_look import look_at
from pulsar_on_spark.broker.reading.reader import EntryReader
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import DedupRecord, IncarnationRecord, LedgerRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.clock import monotonic_ms
from pulsar_on_spark.model.errors import JournalFencedError
from pulsar_on_spark.model.ids import EntryId, IncarnationId, LedgerId, Position, TopicId
from pulsar_on_spark.protocol.server import Sent
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import Cursor, EntryRange
from pulsar_on_spark.topic.managed_ledger.cursor.record import NO_RECORD, CursorRecord

SNAPSHOT_EVERY_S: Final = 5.0
"""Interval at which due snapshots are saved, in seconds."""
_REPLAY_ENTRIES: Final = 1000
_REPLAY_BYTES: Final = 8 << 20


class TopicDedup:
    """The deduplication of one topic.

    Args:
        core: The state that decides whether an entry is stored.
    """

    def __init__(self, core: Deduplication) -> None:
        self.core = core

    def admit_entry(self, producer: ProducerInfo, sent: Sent) -> Verdict:
        """Decide if a producer's entry must be stored; after NEW, the caller must append it to the journal."""
        identity = _identity(producer, sent)
        if identity is None:
            return Verdict.NEW
        sender, first, last, is_part = identity
        verdict = self.core.check(sender, first, last)
        if verdict is Verdict.OVERLAPPING and producer.replication is not None:
            # A replicator repeats only whole entries, so this is a different entry, which its source has stored.
            verdict = Verdict.NEW
        if verdict is Verdict.NEW and not is_part:
            self.core.note_pushed(sender, last)
        return verdict

    def on_entry_stored(self, producer: ProducerInfo, sent: Sent, ledger: LedgerId, end: int) -> None:
        """Record that an admitted entry is durable; `end` is the entry id after it."""
        following = Position(ledger, EntryId(end))
        identity = _identity(producer, sent)
        if identity is None or identity[3]:
            self.core.note_passed(following)
            return
        self.core.note_persisted(identity[0], identity[2], following)
        if producer.replication is not None:
            self.core.note_relayed(identity[0], monotonic_ms())


def _identity(producer: ProducerInfo, sent: Sent) -> tuple[Sender, int, int, bool] | None:
    """Return the `Identity` of a received entry, as `identity_of` finds it in a replay.

    None for an entry that is not deduplicated: a marker, or an entry without a producer's name.
    """
    if sent.marker:
        return None
    first, last, replication = sent.sequence_id, sent.highest_sequence_id, producer.replication
    if replication is None:  # avoids the named tuple, which would double the cost
        return producer.name, first, last if last > first else first, sent.is_chunk and _is_first_part(sent)
    if replication is Replication.BY_SEQUENCE_ID:
        return identity_of(sent.entry)
    number = position_number(first, last)
    return Source(source_cluster(producer.name)), number, number, False


class DedupStore:
    """Storage of the deduplication state of topics in the metadata. Call all methods in the broker's event loop.

    Args:
        root: The open root.
        incarnation: The id of the broker's incarnation.
        reader: The reader of the entries of a replay.
        limits: Bounds of each topic's state.
    """

    def __init__(self, root: RootHandle, incarnation: IncarnationId, reader: EntryReader, limits: DedupLimits) -> None:
        self._root = root
        self._incarnation = incarnation
        self._reader = reader
        self._limits = limits

    async def load(self, part: TopicPart, view: View, chain: LedgerChain) -> TopicDedup:
        """Load a topic's deduplication state from its record and a replay; without a record, commit a first one.

        Args:
            part: The topic, which no other broker owns.
            view: The current metadata.
            chain: The topic's current chain of ledgers.

        Raises:
            PulsarpyError: entries of the replay cannot be read, or the first record cannot be committed.
        """
        record = view.get(DedupRecord, part.topic_id)
        if record is None:
            dedup = TopicDedup(Deduplication(DedupSnapshot(chain.end), monotonic_ms(), self._limits))
            await self.save({TopicId(part.topic_id): (part, dedup)})
            return dedup
        snapshot = _snapshot_of(record)
        dedup = TopicDedup(Deduplication(snapshot, monotonic_ms(), self._limits))
        # Entries attached by Spark are exactly-once already, and each write has new producer names.
        brokers = {
            ledger.ledger_id for ledger in view.all(LedgerRecord, part.topic_id) if ledger.incarnation is not None
        }
        await self._replay(part, chain, snapshot.position, brokers, dedup.core)
        return dedup

    async def delete_snapshot(self, part: TopicPart, view: View) -> None:
        """Delete the saved state of a topic whose deduplication is off (errors as `save`).

        Otherwise an outdated state would be loaded when deduplication is on again.
        """
        if view.get(DedupRecord, part.topic_id) is None:
            return

        def decide(view: View) -> Change | None:
            record = view.get(DedupRecord, part.topic_id)
            self._require_open(view)
            if record is None:
                return None
            return Change(deletes=[record], keys={keys.incarnation_seal(self._incarnation): None})

        await asyncio.to_thread(self._root.store.commit, decide)

    async def save_due(self, topics: Iterable[tuple[TopicPart, TopicDedup]]) -> None:
        """Save the snapshots that are due in one commit, and forget inactive producers (errors as `save`)."""
        at_ms = monotonic_ms()
        due: dict[TopicId, tuple[TopicPart, TopicDedup]] = {}
        for part, dedup in topics:
            dedup.core.forget_inactive(at_ms)
            if dedup.core.is_snapshot_due(at_ms):
                due[TopicId(part.topic_id)] = (part, dedup)
        if due:
            await self.save(due)

    async def save(self, topics: Mapping[TopicId, tuple[TopicPart, TopicDedup]]) -> None:
        """Save snapshots of these topics now, in one commit; topics that were deleted are skipped.

        Raises:
            JournalFencedError: the broker's incarnation has ended.
            MetadataError: the commit failed.
        """
        taken: dict[str, DedupRecord] = {}
        for topic_id, (part, dedup) in topics.items():
            known = dedup.core.snapshot()
            dedup.core.snapshot_begun(monotonic_ms())
            taken[part.name] = _record_of(topic_id, known)

        def decide(view: View) -> Change | None:
            self._require_open(view)
            there = {name: view.get(TopicRecord, name) for name in taken}
            puts = [record for name, record in taken.items() if _is_same_topic(there[name], record)]
            return Change(puts=puts, keys={keys.incarnation_seal(self._incarnation): None}) if puts else None

        await asyncio.to_thread(self._root.store.commit, decide)

    def _require_open(self, view: View) -> None:
        owner = view.get(IncarnationRecord, self._incarnation)
        if owner is None or owner.state != "OPEN":
            raise JournalFencedError(f"Incarnation {self._incarnation} was taken over: restart this broker.")

    async def _replay(
        self, part: TopicPart, chain: LedgerChain, position: Position, ledgers: Collection[int], core: Deduplication
    ) -> None:
        """Apply the entries of these ledgers (ids) from a position on."""
        start = CursorRecord("snapshot", TopicId(part.topic_id), "dedup", 1, NO_RECORD, position)
        walk = Cursor(chain, start)
        at = walk.mark_delete
        while (deliverable := walk.deliverable(at, _REPLAY_ENTRIES)).ranges:
            left = tuple(range_ for range_ in deliverable.ranges if range_.ledger in ledgers)
            while left:
                entries = await self._reader.read(part, left, _REPLAY_ENTRIES, _REPLAY_BYTES)
                for entry in entries:
                    _replay_entry(core, entry.data, Position(entry.ledger_id, EntryId(entry.entry_id + 1)))
                left = _after(left, entries[-1].ledger_id, entries[-1].entry_id)
            at = deliverable.next


def _after(ranges: tuple[EntryRange, ...], ledger: LedgerId, entry: EntryId) -> tuple[EntryRange, ...]:
    """Return the ranges of entries that come after an entry in one of them."""
    at = next(
        index for index, range_ in enumerate(ranges) if range_.ledger == ledger and range_.first <= entry < range_.end
    )
    rest = EntryRange(ledger, entry + 1, ranges[at].end)
    return (*([rest] if rest.first < rest.end else []), *ranges[at + 1 :])


def _replay_entry(core: Deduplication, data: bytes, following: Position) -> None:
    identity = identity_of(data)
    if identity is None or identity.is_part:
        core.note_passed(following)
    else:
        core.replay(identity.sender, identity.last, following)


def _is_first_part(sent: Sent) -> bool:
    """Return True if an entry is a chunk that is not the last one of its message."""
    chunk = look_at(sent.entry).chunk
    return chunk is not None and chunk[1] + 1 < chunk[2]


def _snapshot_of(record: DedupRecord) -> DedupSnapshot:
    sequence_ids: dict[Sender, int] = dict(record.sequence_ids.items())
    sequence_ids |= {Source(cluster): position_number(*at) for cluster, at in record.positions.items()}
    return DedupSnapshot(Position(LedgerId(record.ledger), EntryId(record.entry)), sequence_ids)


def _record_of(topic_id: str, known: DedupSnapshot) -> DedupRecord:
    return DedupRecord(
        topic_id=topic_id,
        ledger=known.position.ledger,
        entry=known.position.entry,
        sequence_ids={name: last for name, last in known.sequence_ids.items() if isinstance(name, str)},
        positions={
            source.cluster: position_of(last)
            for source, last in known.sequence_ids.items()
            if isinstance(source, Source)
        },
    )


def _is_same_topic(topic: TopicRecord | None, record: DedupRecord) -> bool:
    return topic is not None and topic.topic_id == record.topic_id
