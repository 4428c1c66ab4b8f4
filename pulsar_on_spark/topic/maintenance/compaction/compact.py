"""Compacting a topic: two passes over its messages, and one commit that installs the new compacted ledger.

    Tail ──> Source ──pass 1──> NewestOfKeys ──places──> pass 2 ──> CompactedLedgerWriter ──> commit

The commit uses the topic's key, and is made only if the topic still has the compacted ledger from which the compaction
began. So of two concurrent compactors, one wins. Before the commit no record names the new files. If a compactor is
killed, its files belong to a write that garbage collection aborts. The same commit marks the former compacted ledger as
replaced, so the topic always has a compacted ledger, and the former files stay for active readers.
"""

from __future__ import annotations

import logging
import time
import uuid
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import numpy as np

from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import CompactionRecord, FileRecord, Record, TopicRecord, TrimRecord, WriteRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import MetadataError, StorageError, TopicNotFoundError
from pulsar_on_spark.model.ids import EARLIEST, FileId, Position, SegmentName, WriteId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.field_walk import Int64s
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.policies.quorums import quorum_of
from pulsar_on_spark.topic.catalog.progress import Progress, silent
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.data_path.tail import Tail
from pulsar_on_spark.topic.maintenance.compaction import newest
from pulsar_on_spark.topic.maintenance.compaction.newest import NewestOfKeys, Share, TooManyKeysError
from pulsar_on_spark.topic.maintenance.compaction.source import Source
from pulsar_on_spark.topic.maintenance.compaction.survivors import kept_rows
from pulsar_on_spark.topic.maintenance.compaction.writing import CompactedLedgerWriter, WrittenLedger
from pulsar_on_spark.topic.managed_ledger.chain.compaction_record import horizon_of, truncated_before

log = logging.getLogger(__name__)

KEYS_BYTES = 256 << 20
"""Maximum bytes of keys and places in a first pass; if they take more, a pass is made for each share of the keys."""
_MAX_SHARES = 4096


@dataclass(frozen=True, slots=True)
class Compaction:
    """The options of a compaction.

    Attributes:
        retain_null_key: True to keep messages without a key (`topicCompactionRetainNullKey`).
        keys_bytes: Limit of the memory for keys and the places of their messages, in bytes. Each kept message takes
            eight more bytes.
    """

    retain_null_key: bool = False
    keys_bytes: int = KEYS_BYTES


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """The result of a compaction.

    Attributes:
        topic: The topic, or partition.
        outcome: `compacted`; `unchanged` if there was nothing new; `overtaken` if meanwhile another compaction was
            committed or the topic was truncated.
        horizon: The position before which messages are compacted.
        read_messages: Number of messages that were read, from the former compacted ledger and the log.
        read_bytes: Key and value bytes of the messages that were read.
        messages: Number of remaining messages.
        entries: Number of entries with remaining messages.
        bytes: Key and value bytes of the remaining messages.
        files: Number of files of the compacted ledger.
        passes: Number of first passes; more than one if the keys take more memory than allowed.
        duration_s: Duration of the compaction in seconds.
    """

    topic: str
    outcome: str
    horizon: Position
    read_messages: int = 0
    read_bytes: int = 0
    messages: int = 0
    entries: int = 0
    bytes: int = 0
    files: int = 0
    passes: int = 0
    duration_s: float = 0.0


def compact(
    root: RootHandle,
    name: str,
    how: Compaction | None = None,
    *,
    reach: Position | None = None,
    progress: Progress = silent,
) -> tuple[CompactionReport, ...]:
    """Compact a topic, each partition by itself.

    Args:
        root: The root.
        name: The topic, or a partition.
        how: The options; None for the defaults.
        reach: A position up to which entries were readable before: if some cannot be read now, the compaction tries
            every copy of them for a limited time. None for no such position.
        progress: Called as the compaction proceeds.

    Returns:
        A report for each partition, or one for a topic without partitions.

    Raises:
        TopicNotFoundError: there is no such topic, or it was deleted meanwhile.
        DataLossError, CorruptSegmentError, CorruptJournalError: messages cannot be read; nothing is changed.
        NotEnoughCopiesError: fewer storage paths than the ack quorum can be written; nothing is changed.
        MetadataError, StorageError: the root cannot be read or written.
    """
    view = root.store.view()
    parts = catalog.parts(view, catalog.require_topic(view, TopicName.parse(name)))
    return tuple(_compact(root, part, how or Compaction(), reach, progress) for part in parts)


def _compact(
    root: RootHandle, part: TopicPart, how: Compaction, reach: Position | None, progress: Progress
) -> CompactionReport:
    began_s = time.monotonic()
    with closing(Tail(root)) as tail:
        view = tail.read_view([part], settle=True, reach=None if reach is None else {part.topic_id: reach})
        source = Source(root, part, tail, view)
        if source.end <= max(horizon_of(source.base), EARLIEST) or source.start == source.end:
            return CompactionReport(part.name, "unchanged", horizon_of(source.base))
        survivors, passes = _newest(source, how, progress)
        write_id = WriteId(uuid.uuid4().hex)
        with root.marking_failures():
            ledger = _write(root, part, source, survivors, write_id, how, progress)
    if ledger.failures:
        root.mark_failed(ledger.failures)
    is_committed = _commit(root, part, source, write_id, ledger)
    return CompactionReport(
        part.name,
        "compacted" if is_committed else "overtaken",
        source.end,
        source.rows_total,
        source.bytes_total,
        ledger.rows,
        ledger.entries,
        ledger.bytes,
        len(ledger.files),
        passes,
        time.monotonic() - began_s,
    )


def _write(
    root: RootHandle,
    part: TopicPart,
    source: Source,
    survivors: Int64s,
    write_id: WriteId,
    how: Compaction,
    progress: Progress,
) -> WrittenLedger:
    """Make the second pass: write a durable compacted ledger that no record names yet."""
    step = _Step(progress, f"{part.name}: write them", source.rows_total)
    places = source.places
    view = root.store.view()
    quorum = quorum_of(view, TopicName.parse(part.name), root.quorum)
    with CompactedLedgerWriter(write_id, root.writable_paths(view), quorum) as writer:
        for source_rows in source.rows(SEGMENT_SCHEMA.names):
            kept = kept_rows(
                source_rows.ledger,
                source_rows.entry_offset,
                source_rows.rows,
                survivors,
                places,
                retain_null_key=how.retain_null_key,
            )
            if kept is not None:
                writer.add(source_rows.ledger, kept)
            step.done(source_rows.rows.num_rows)
        return writer.finish()


def _newest(source: Source, how: Compaction, progress: Progress) -> tuple[Int64s, int]:
    """Return the sorted places (`Places`) of the kept messages, and the number of first passes that were made."""
    shares, passes = 1, 0
    while True:
        places_of_shares: list[Int64s] = []
        try:
            for number in range(shares):
                passes += 1
                places_of_shares.append(_pass(source, how, Share(number, shares), progress))
        except TooManyKeysError as error:
            if shares >= _MAX_SHARES:
                raise TooManyKeysError(
                    f"{source.name} cannot be compacted, because a share of its keys needs more memory than allowed "
                    f"({error}): give it more memory (`--memory-mb`)."
                ) from error
            log.info("The first pass is repeated for smaller shares of the keys: %s", error)
            shares *= 4
        else:
            return (places_of_shares[0] if shares == 1 else np.unique(np.concatenate(places_of_shares))), passes


def _pass(source: Source, how: Compaction, share: Share, progress: Progress) -> Int64s:
    keys_found = NewestOfKeys(source.places, retain_null_key=how.retain_null_key, share=share, max_bytes=how.keys_bytes)
    share_text = "" if share.of == 1 else f", {share.number + 1} of {share.of}"
    step = _Step(progress, f"{source.name}: find the newest messages{share_text}", source.rows_total)
    for source_rows in source.rows(newest.COLUMNS):
        keys_found.add_rows(source_rows.ledger, source_rows.entry_offset, source_rows.rows)
        step.done(source_rows.rows.num_rows)
    return keys_found.finish()


class _Step:
    def __init__(self, progress: Progress, name: str, total: int) -> None:
        self._report = partial(progress, name)
        self._total = total
        self._count = 0

    def done(self, rows: int) -> None:
        self._count += rows
        self._report(min(self._count, self._total), self._total)


# --- the commit ---


def _commit(root: RootHandle, part: TopicPart, source: Source, write_id: WriteId, ledger: WrittenLedger) -> bool:
    """Commit the new ledger.

    Return True; False, after deleting its files, if the topic was compacted or truncated meanwhile.
    """
    is_done = False

    def decide(view: View) -> Change | None:
        nonlocal is_done
        change = decide_swap(view, part, source.base, source.start, source.end, write_id, ledger, datetime.now(UTC))
        is_done = change is not None
        return change

    try:
        view = root.store.commit(decide)
    except TopicNotFoundError:
        _delete(root, ledger)
        raise
    committed = view.get(CompactionRecord, part.topic_id)
    if not is_done and (committed is None or committed.compaction_id != write_id):
        _delete(root, ledger)
        return False
    return True


def decide_swap(
    view: View,
    part: TopicPart,
    base: CompactionRecord | None,
    start: Position,
    horizon: Position,
    write_id: WriteId,
    ledger: WrittenLedger,
    now: datetime,
) -> Change | None:
    """Return the change that installs a compacted ledger; None if the topic was compacted or truncated meanwhile.

    Raises:
        TopicNotFoundError: the topic was deleted.
        MetadataError: garbage collection has aborted the write of the files.
    """
    topic = view.get(TopicRecord, part.name)
    if topic is None or topic.topic_id != part.topic_id:
        raise TopicNotFoundError(f"Topic {part.name} was deleted while it was compacted: there is nothing to compact.")
    trim = view.get(TrimRecord, part.topic_id)
    is_truncated = trim is not None and truncated_before(trim) > start
    if is_truncated or view.get(CompactionRecord, part.topic_id) != base:
        return None
    if view.get(WriteRecord, write_id) is not None:
        raise MetadataError(
            f"The compaction of {part.name} took so long that garbage collection aborted it: raise --abort-after."
        )
    record = CompactionRecord(
        topic_id=part.topic_id,
        compaction_id=write_id,
        horizon_ledger=horizon.ledger,
        horizon_entry=horizon.entry,
        files=ledger.files,
        entries=ledger.entries,
        rows=ledger.rows,
        bytes=ledger.bytes,
        last_batch_index=ledger.last_batch_index,
        compacted_at=now,
    )
    puts: list[Record] = [record, *(written.file_record(write_id) for written in ledger.written)]
    moved: dict[str, int | None] = {keys.topic(part.name): None, keys.FILES: None}
    if ledger.written:
        puts.append(WriteRecord(write_id=write_id, status="committed", decided_at=now))
        moved[keys.write_bucket(write_id)] = None
    for former in () if base is None else base.files:
        file = view.get(FileRecord, former.file_id)
        if file is not None:
            puts.append(file.model_copy(update={"replaced_at": now}))
    return Change(puts=puts, keys=moved)


def _delete(root: RootHandle, ledger: WrittenLedger) -> None:
    """Delete the files of a ledger that will not be committed."""
    for path in root.storage_paths(root.store.view()).values():
        for written in ledger.written:
            with suppress(StorageError):  # garbage collection deletes a file that remains
                path.delete_segment(SegmentName(FileId(written.file_id)))
