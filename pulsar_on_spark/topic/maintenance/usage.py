"""Disk space of a root: by storage path and reason, and by topic.

    listings of storage paths  ->  a reason for each file, by the metadata  ->  sums

Every listed file gets a reason, so the sums equal those of `du`. These reasons are for information only: `collect` and
the journals' trimmer decide which files are deleted.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import Enum

from pulsar_on_spark.ledger.journal.journal_paths import journal_sizes
from pulsar_on_spark.ledger.journal.register import log_record
from pulsar_on_spark.ledger.journal.sealing import ended_spans
from pulsar_on_spark.ledger.segments.segment_format import write_id_of
from pulsar_on_spark.metadata.log.tables import HISTORY, METADATA
from pulsar_on_spark.metadata.records import (
    CompactionRecord,
    FileRecord,
    HistoryTableRecord,
    IncarnationRecord,
    PathRecord,
    SealRecord,
    SegmentRecord,
    TopicRecord,
    WriteRecord,
)
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import StoragePathError
from pulsar_on_spark.model.ids import FileId, PathId
from pulsar_on_spark.storage.local_path import LocalPath
from pulsar_on_spark.storage.object_path import ObjectPath
from pulsar_on_spark.storage.root_place import RootPlace, objects_at
from pulsar_on_spark.storage.segment_objects import translated
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.status import topic_subscriptions, view_with_journals
from pulsar_on_spark.topic.managed_ledger.chain.tail_view import UnsealedSegment
from pulsar_on_spark.topic.managed_ledger.subscription.subscription_status import TopicSubscription


class Reason(Enum):
    """The reason why a file, or a part of it, takes disk space."""

    TOPICS = "messages of topics"
    COMPACTED = "compacted ledgers"
    TRIMMED = "trimmed, in files with other messages"
    OFFLOADED = "on a cold path, too, to be deleted"
    REPLACED = "no longer in a topic, to be deleted"
    UNCOMMITTED = "written, and not committed yet"
    UNSEALED = "journal, not sealed yet"
    SEALED = "journal, sealed, to be deleted"
    HISTORY = "histories"


@dataclass(frozen=True, slots=True)
class PathUsage:
    """The disk space of a storage path.

    Attributes:
        path_id: The path's id.
        directory: The path's directory or URL.
        bytes: Bytes of the path's files.
        by_reason: The bytes by reason, without reasons that do not occur.
        problem: The reason why some files are not counted; empty if all files are counted.
    """

    path_id: PathId
    directory: RootPlace
    bytes: int
    by_reason: dict[str, int]
    problem: str


@dataclass(frozen=True, slots=True)
class TopicUsage:
    """A topic with all its partitions.

    Attributes:
        name: The topic's name.
        message_bytes: Bytes of keys and values, as they were written.
        unsealed_bytes: Bytes of entries that are only in a journal; `message_bytes` includes them.
        offloaded_bytes: Bytes of keys and values in offloaded files; `message_bytes` includes them.
        log_bytes: Bytes of the topic's log in segment files on all storage paths. The bytes of a batch that several
            topics share are divided in proportion to the bytes of their messages.
        compacted_bytes: Bytes of the topic's compacted ledger on all storage paths.
        history_bytes: Bytes of the topic's history table, including files that are to be deleted; 0 while the storage
            path of the table cannot be reached.
    """

    name: str
    message_bytes: int
    unsealed_bytes: int
    offloaded_bytes: int
    log_bytes: int
    compacted_bytes: int
    history_bytes: int = 0

    @property
    def stored_bytes(self) -> int:
        """The topic's bytes in segment files on all storage paths."""
        return self.log_bytes + self.compacted_bytes


@dataclass(frozen=True, slots=True)
class RootUsage:
    """The disk space of a root; topics and subscriptions that take most space come first.

    Attributes:
        root: The root's path.
        metadata_bytes: Bytes of the metadata tables.
        history_bytes: Bytes of the history tables in the root itself, including tables of deleted topics.
        paths: The storage paths. Those for histories count the bytes of the history tables on them.
        topics: The topics, in descending order of stored bytes.
        subscriptions: The subscriptions of all topics, in descending order of bytes of backlog.
    """

    root: RootPlace
    metadata_bytes: int
    history_bytes: int
    paths: tuple[PathUsage, ...]
    topics: tuple[TopicUsage, ...]
    subscriptions: tuple[TopicSubscription, ...]


@dataclass(frozen=True, slots=True)
class FileShares:
    """The shares of topics in a segment file, by topic id. Their sum is 1, less the share of wholly trimmed batches.

    Attributes:
        log: The shares in a file with segments of topics' logs; empty for a file of a compacted ledger.
        compacted: The topic with the share 1 for a file of its compacted ledger; else empty.
    """

    log: Mapping[str, float]
    compacted: Mapping[str, float]


def usage(root: RootHandle) -> RootUsage:
    """Return the disk space that a root takes now.

    Raises:
        MetadataError: the metadata cannot be read.
    """
    view = view_with_journals(root, root.store.view(durable=True))
    shares = file_shares(view)
    stored: Counter[FileId] = Counter()
    unsealed = unsealed_journal_files(view)
    tables: dict[int | None, Counter[str]] = {None: _tables(root.place)}
    paths = tuple(_path(view, path, shares, unsealed, stored, tables) for path in root.storage_paths(view).values())
    topics = [_topic(view, topic, catalog.parts(view, topic), shares, stored, tables) for topic in catalog.topics(view)]
    return RootUsage(
        root=root.place,
        metadata_bytes=sum(listed.size for listed in objects_at(root.place).list_after(METADATA)),
        history_bytes=tables[None].total(),
        paths=paths,
        topics=tuple(sorted(topics, key=lambda topic: (-topic.stored_bytes, -topic.message_bytes, topic.name))),
        subscriptions=tuple(sorted(topic_subscriptions(root, view), key=lambda each: -each.backlog_bytes)),
    )


def _tables(place: RootPlace) -> Counter[str]:
    """Return the bytes of the history tables in a root or on a storage path, by the tables' folders."""
    sizes: Counter[str] = Counter()
    for listed in objects_at(place).list_after(HISTORY):
        sizes["/".join(listed.key.split("/")[:2])] += listed.size
    return sizes


def file_shares(view: View) -> dict[FileId, FileShares]:
    """Return the shares of topics in each file that a segment or a compaction names. Pure."""
    by_batch: dict[str, dict[int, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for segment in view.all(SegmentRecord):
        if isinstance(segment, UnsealedSegment):
            continue
        batches = [batch for batch, _ in segment.places] or [
            segment.first_batch + index for index in range(len(segment.batch_entries))
        ]
        for batch in batches:
            # Add 1, so that a segment of empty messages has a share, too.
            by_batch[segment.file_id][batch][segment.topic_id] += segment.bytes // len(batches) + 1
    by_file = {}
    for file_id, batches_of_file in by_batch.items():
        record = view.get(FileRecord, file_id)
        count = max(record.batches if record is not None else 0, len(batches_of_file))
        log: dict[str, float] = defaultdict(float)
        for weights in batches_of_file.values():
            for topic_id, weight in weights.items():
                log[topic_id] += weight / weights.total() / count
        by_file[FileId(file_id)] = FileShares(log, {})
    for compaction in view.all(CompactionRecord):
        for file in compaction.files:
            by_file[FileId(file.file_id)] = FileShares({}, {compaction.topic_id: 1.0})
    return by_file


def reasons_of_file(view: View, file_id: FileId, size_bytes: int, shares: FileShares | None) -> dict[Reason, int]:
    """Return the bytes of a segment file, or of its sidecar, by reason.

    `shares` is None if no topic names the file. Pure.
    """
    if shares is None:
        is_decided = (
            view.get(FileRecord, file_id) is not None or view.get(WriteRecord, write_id_of(file_id)) is not None
        )
        return {Reason.REPLACED if is_decided else Reason.UNCOMMITTED: size_bytes}
    if shares.compacted:
        return {Reason.COMPACTED: size_bytes}
    topics_bytes = min(round(sum(shares.log.values()) * size_bytes), size_bytes)
    return {Reason.TOPICS: topics_bytes, Reason.TRIMMED: size_bytes - topics_bytes}


def unsealed_journal_files(view: View) -> set[tuple[int, str, str]]:
    """Return the journal files (path id, incarnation, file) that have, or may get, unsealed frames. Pure."""
    unsealed: set[tuple[int, str, str]] = set()
    for record in view.all(IncarnationRecord):
        seal = view.get(SealRecord, record.incarnation) or SealRecord(incarnation=record.incarnation)
        ends = dict(ended_spans(log_record(record)))
        for fragment in record.fragments:
            end = None if fragment.first is None else ends.get(fragment.first)
            if end is None or end > seal.sealed_before:
                unsealed.update((path_id, record.incarnation, file) for path_id, file in fragment.copies)
    return unsealed


def _path(
    view: View,
    path: StoragePath,
    shares: Mapping[FileId, FileShares],
    unsealed: Set[tuple[int, str, str]],
    stored: Counter[FileId],
    tables: dict[int | None, Counter[str]],
) -> PathUsage:
    """Return a path's usage; add its segment files that topics name to `stored`, and its history tables to `tables`."""
    by_reason: Counter[Reason] = Counter()
    problem = ""
    offloaded = {file.file_id for file in view.all(FileRecord) if file.is_cold and file.replaced_at is None}
    roles = {record.path_id: record.role for record in view.all(PathRecord)}
    try:
        for stored_file in path.segment_files(time.time()):
            file_id = stored_file.name.file_id
            file_shares_ = None if stored_file.is_tmp else shares.get(file_id)
            reasons = reasons_of_file(view, file_id, stored_file.size_bytes, file_shares_)
            is_beside = file_id in offloaded and roles[path.path_id] != "cold"
            by_reason.update({Reason.OFFLOADED: stored_file.size_bytes} if is_beside else reasons)
            if file_shares_ is not None:
                stored[file_id] += stored_file.size_bytes
        for incarnation, name, size_bytes in journal_sizes(path) if isinstance(path, LocalPath | ObjectPath) else ():
            is_unsealed = (path.path_id, incarnation, name) in unsealed
            by_reason[Reason.UNSEALED if is_unsealed else Reason.SEALED] += size_bytes
        if roles[path.path_id] == "history":
            with translated():
                tables[path.path_id] = _tables(path.place)
            by_reason[Reason.HISTORY] = tables[path.path_id].total()
    except StoragePathError as error:
        problem = str(error)
    return PathUsage(
        path_id=path.path_id,
        directory=path.place,
        bytes=by_reason.total(),
        by_reason={reason.value: by_reason[reason] for reason in Reason if by_reason[reason]},
        problem=problem,
    )


def _topic(
    view: View,
    topic: TopicRecord,
    parts: list[catalog.TopicPart],
    shares: Mapping[FileId, FileShares],
    stored: Mapping[FileId, int],
    tables: Mapping[int | None, Counter[str]],
) -> TopicUsage:
    ids = {part.topic_id for part in parts}
    segments = [segment for topic_id in ids for segment in view.all(SegmentRecord, topic_id)]
    of_log = {segment.file_id for segment in segments if not isinstance(segment, UnsealedSegment)}
    table = view.get(HistoryTableRecord, topic.topic_id)
    compactions = [record for topic_id in ids if (record := view.get(CompactionRecord, topic_id)) is not None]
    return TopicUsage(
        name=topic.name,
        message_bytes=sum(segment.bytes for segment in segments),
        unsealed_bytes=sum(segment.bytes for segment in segments if isinstance(segment, UnsealedSegment)),
        offloaded_bytes=sum(
            segment.bytes
            for segment in segments
            if (file := view.get(FileRecord, segment.file_id)) is not None and file.is_cold
        ),
        log_bytes=round(
            sum(
                stored.get(FileId(file_id), 0) * sum(shares[FileId(file_id)].log.get(topic_id, 0) for topic_id in ids)
                for file_id in of_log
            )
        ),
        compacted_bytes=sum(stored.get(FileId(file.file_id), 0) for record in compactions for file in record.files),
        history_bytes=0 if table is None or table.path_id not in tables else tables[table.path_id][table.table],
    )
