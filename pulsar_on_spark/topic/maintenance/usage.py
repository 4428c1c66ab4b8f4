"""Room that a root takes on its disks: by storage path and reason, and by topic.

    listings of storage paths  ->  a reason for each file, by the metadata  ->  sums

Every listed file gets a reason, so the sums are those of `du`. Nothing is decided by them:
what may be deleted is up to `collect` and to the trimmer of journals.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pulsar_on_spark.ledger.journal.files import JOURNAL
from pulsar_on_spark.ledger.journal.register import log_record
from pulsar_on_spark.ledger.journal.sealing import ended_spans
from pulsar_on_spark.ledger.segments.segment_format import write_id_of
from pulsar_on_spark.metadata.records import (
    CompactionRecord,
    FileRecord,
    IncarnationRecord,
    SealRecord,
    SegmentRecord,
    WriteRecord,
)
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import StoragePathError
from pulsar_on_spark.model.ids import FileId, PathId
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.status import TopicSubscription, topic_subscriptions, view_with_journals
from pulsar_on_spark.topic.managed_ledger.chain.tail_view import UnsealedSegment


class Reason(Enum):
    """The reason why a file, or a part of it, takes disk space."""

    TOPICS = "messages of topics"
    COMPACTED = "compacted ledgers"
    TRIMMED = "trimmed, in files with other messages"
    REPLACED = "no longer in a topic, to be deleted"
    UNCOMMITTED = "written, and not committed yet"
    UNSEALED = "journal, not sealed yet"
    SEALED = "journal, sealed, to be deleted"


@dataclass(frozen=True, slots=True)
class PathUsage:
    """A storage path.

    Attributes:
        path_id: Its id.
        directory: The path's directory.
        bytes: Bytes on it.
        by_reason: The same by reason; those that there are.
        problem: Why its files are not, or not all, counted; empty if they are.
    """

    path_id: PathId
    directory: Path
    bytes: int
    by_reason: dict[str, int]
    problem: str


@dataclass(frozen=True, slots=True)
class TopicUsage:
    """A topic with all its partitions.

    Attributes:
        name: Its name.
        message_bytes: Bytes of keys and values, as they were written.
        unsealed_bytes: Bytes of entries that are in a journal only; they are in `message_bytes` too.
        log_bytes: Bytes of its log in segment files on all storage paths. Of a batch that several topics share each has
            the part that its messages have.
        compacted_bytes: Bytes of its compacted ledger on all storage paths.
    """

    name: str
    message_bytes: int
    unsealed_bytes: int
    log_bytes: int
    compacted_bytes: int

    @property
    def stored_bytes(self) -> int:
        """Bytes in segment files on all storage paths."""
        return self.log_bytes + self.compacted_bytes


@dataclass(frozen=True, slots=True)
class RootUsage:
    """A root: what takes room, the largest first.

    Attributes:
        root: Its path.
        metadata_bytes: Bytes of its metadata tables.
        paths: Its storage paths.
        topics: Its topics, by stored bytes.
        subscriptions: Their subscriptions, by bytes of backlog.
    """

    root: Path
    metadata_bytes: int
    paths: tuple[PathUsage, ...]
    topics: tuple[TopicUsage, ...]
    subscriptions: tuple[TopicSubscription, ...]


@dataclass(frozen=True, slots=True)
class FileShares:
    """Return the shares of topics in a file, by topic id; they sum up to 1, less batches that were trimmed whole."""

    log: Mapping[str, float]
    compacted: Mapping[str, float]


def usage(root: RootHandle) -> RootUsage:
    """Look at a root now.

    Raises:
        MetadataError: the metadata cannot be read.
    """
    view = view_with_journals(root, root.store.view(durable=True))
    shares = file_shares(view)
    stored: Counter[FileId] = Counter()
    unsealed = unsealed_journal_files(view)
    paths = tuple(_path(view, path, shares, unsealed, stored) for path in root.storage_paths(view).values())
    topics = [_topic(view, topic.name, catalog.parts(view, topic), shares, stored) for topic in catalog.topics(view)]
    return RootUsage(
        root=root.path,
        metadata_bytes=sum(size for _, size in _files(root.path / "metadata")),
        paths=paths,
        topics=tuple(sorted(topics, key=lambda topic: (-topic.stored_bytes, -topic.message_bytes, topic.name))),
        subscriptions=tuple(sorted(topic_subscriptions(root, view), key=lambda each: -each.backlog_bytes)),
    )


def file_shares(view: View) -> dict[FileId, FileShares]:
    """The parts that topics have in each file that they name. Pure."""
    by_batch: dict[str, dict[int, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for segment in view.all(SegmentRecord):
        if isinstance(segment, UnsealedSegment):
            continue
        batches = [batch for batch, _ in segment.places] or [
            segment.first_batch + index for index in range(len(segment.batch_entries))
        ]
        for batch in batches:
            # Messages without a byte have a part, too.
            by_batch[segment.file_id][batch][segment.topic_id] += segment.bytes // len(batches) + 1
    found = {}
    for file_id, batches_of_file in by_batch.items():
        record = view.get(FileRecord, file_id)
        count = max(record.batches if record is not None else 0, len(batches_of_file))
        log: dict[str, float] = defaultdict(float)
        for weights in batches_of_file.values():
            for topic_id, weight in weights.items():
                log[topic_id] += weight / weights.total() / count
        found[FileId(file_id)] = FileShares(log, {})
    for compaction in view.all(CompactionRecord):
        for file in compaction.files:
            found[FileId(file.file_id)] = FileShares({}, {compaction.topic_id: 1.0})
    return found


def reasons_of_file(view: View, file_id: FileId, size_bytes: int, shares: FileShares | None) -> dict[Reason, int]:
    """The bytes of a segment file, or of its sidecar, by reason. Pure."""
    if shares is None:
        is_decided = (
            view.get(FileRecord, file_id) is not None or view.get(WriteRecord, write_id_of(file_id)) is not None
        )
        return {Reason.REPLACED if is_decided else Reason.UNCOMMITTED: size_bytes}
    if shares.compacted:
        return {Reason.COMPACTED: size_bytes}
    kept = min(round(sum(shares.log.values()) * size_bytes), size_bytes)
    return {Reason.TOPICS: kept, Reason.TRIMMED: size_bytes - kept}


def unsealed_journal_files(view: View) -> set[tuple[int, str, str]]:
    """The journal files (path id, incarnation, file) with frames that are not sealed, or may get some. Pure."""
    found: set[tuple[int, str, str]] = set()
    for record in view.all(IncarnationRecord):
        seal = view.get(SealRecord, record.incarnation) or SealRecord(incarnation=record.incarnation)
        ends = dict(ended_spans(log_record(record)))
        for fragment in record.fragments:
            end = None if fragment.first is None else ends.get(fragment.first)
            if end is None or end > seal.sealed_before:
                found.update((path_id, record.incarnation, file) for path_id, file in fragment.copies)
    return found


def _path(
    view: View,
    path: StoragePath,
    shares: Mapping[FileId, FileShares],
    unsealed: Set[tuple[int, str, str]],
    stored: Counter[FileId],
) -> PathUsage:
    """A path's usage; adds the sizes of its segment files to `stored`."""
    by_reason: Counter[Reason] = Counter()
    problem = ""
    try:
        for each in path.segment_files(time.time()):
            known = None if each.is_tmp else shares.get(each.file_id)
            by_reason.update(reasons_of_file(view, each.file_id, each.size_bytes, known))
            if known is not None:
                stored[each.file_id] += each.size_bytes
    except StoragePathError as error:
        problem = str(error)
    for file, size_bytes in _files(path.directory / JOURNAL):
        incarnation, name = file.parts[-3:-1]
        is_unsealed = (path.path_id, incarnation, name) in unsealed
        by_reason[Reason.UNSEALED if is_unsealed else Reason.SEALED] += size_bytes
    return PathUsage(
        path_id=path.path_id,
        directory=path.directory,
        bytes=by_reason.total(),
        by_reason={reason.value: by_reason[reason] for reason in Reason if by_reason[reason]},
        problem=problem,
    )


def _topic(
    view: View,
    name: str,
    parts: list[catalog.TopicPart],
    shares: Mapping[FileId, FileShares],
    stored: Mapping[FileId, int],
) -> TopicUsage:
    ids = {part.topic_id for part in parts}
    segments = [segment for topic_id in ids for segment in view.all(SegmentRecord, topic_id)]
    of_log = {segment.file_id for segment in segments if not isinstance(segment, UnsealedSegment)}
    compactions = [record for topic_id in ids if (record := view.get(CompactionRecord, topic_id)) is not None]
    return TopicUsage(
        name=name,
        message_bytes=sum(segment.bytes for segment in segments),
        unsealed_bytes=sum(segment.bytes for segment in segments if isinstance(segment, UnsealedSegment)),
        log_bytes=round(
            sum(
                stored.get(FileId(file_id), 0) * sum(shares[FileId(file_id)].log.get(topic_id, 0) for topic_id in ids)
                for file_id in of_log
            )
        ),
        compacted_bytes=sum(stored.get(FileId(file.file_id), 0) for record in compactions for file in record.files),
    )


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    """The files in a folder and below with their sizes; those that vanish meanwhile are left out."""
    for directory, _, names in os.walk(folder):
        for name in names:
            file = Path(directory, name)
            try:
                yield file, file.stat().st_size
            except FileNotFoundError:
                continue
