"""What a root is like: storage paths, topics and subscriptions, from the metadata and the reports of readers."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pulsar_on_spark.ledger.reports import Report, ReportKind, clear_report, read_reports, sum_losses, write_report
from pulsar_on_spark.ledger.segment_reader import verify_file
from pulsar_on_spark.ledger.storage_path import StoragePath
from pulsar_on_spark.metadata.records import (
    FileRecord,
    LedgerRecord,
    PathRecord,
    SegmentRecord,
    SubscriptionRecord,
    TopicRecord,
)
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import CorruptSegmentError, StorageError, StoragePathError
from pulsar_on_spark.model.ids import FileId, PathId
from pulsar_on_spark.topic import catalog, subscriptions
from pulsar_on_spark.topic.progress import Progress, silent
from pulsar_on_spark.topic.subscriptions import SubscriptionStatus

if TYPE_CHECKING:
    from pulsar_on_spark.topic.root import Root


@dataclass(frozen=True, slots=True)
class PathStatus:
    """A storage path.

    Attributes:
        path_id: Its id.
        directory: Where it is.
        state: As in the metadata: writable, read-only, draining or lost.
        reason: Why a write marked it as read-only.
        problem: What is wrong with it right now, as far as a look tells.
        free_bytes: Free space on its file system; None if that cannot be said.
        copies: Files of which it should hold a copy.
        bytes: What these take.
        bad_copies: Copies on it that readers, or a verification, found bad or missing.
    """

    path_id: PathId
    directory: Path
    state: str
    reason: str
    problem: str
    free_bytes: int | None
    copies: int
    bytes: int
    bad_copies: int


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """A topic with all its partitions. `bytes` counts key and value bytes, as they were written."""

    name: str
    partitions: int | None
    schema: str | None
    messages: int
    bytes: int
    ledgers: int
    segments: int
    files: int


@dataclass(frozen=True, slots=True)
class TopicSubscription:
    """A subscription on a topic: one cursor for each partition that has it."""

    topic: str
    name: str
    type: str
    consumers: tuple[str, ...]
    backlog_messages: int
    backlog_bytes: int
    cursors: tuple[SubscriptionStatus, ...]


@dataclass(frozen=True, slots=True)
class RootStatus:
    """A root at one version of its metadata.

    Attributes:
        root: Its path.
        cluster_id: Its identity.
        quorum: Ensemble, write and ack quorum of what is written.
        paths: Its storage paths.
        topics: Its topics, partitions summed up.
        subscriptions: Their subscriptions.
        missing_copies: How many copies live files lack to the write quorum. Those on paths that cannot be reached count
            as missing; the `problem` of such a path says why.
        bad_copies: Reports of copies of live files that are bad or missing, while another is good.
        losses: What of live files no copy gives: one of each file and topic, with the total of its messages.
        verified_copies: Copies that were read in full; None if that was not asked for.
    """

    root: Path
    cluster_id: str
    quorum: str
    paths: tuple[PathStatus, ...]
    topics: tuple[TopicStatus, ...]
    subscriptions: tuple[TopicSubscription, ...]
    missing_copies: int
    bad_copies: tuple[Report, ...]
    losses: tuple[Report, ...]
    verified_copies: int | None


def status(root: Root, *, verify: bool = False, progress: Progress = silent) -> RootStatus:
    """The root now.

    Args:
        root: the root.
        verify: read every copy of every file in full first; what is bad is reported, what is good again is cleared.
        progress: called in the course of it.

    Raises:
        MetadataError: the metadata cannot be read.
        StorageError: the reports cannot be read.
    """
    view = root.store.view(durable=True)
    files = catalog.live_files(view)
    verified = _verify(root, view, files, progress) if verify else None
    reports = [report for report in read_reports(root.path) if report.file_id in files]
    bad = tuple(report for report in reports if report.kind is ReportKind.BAD_COPY)
    paths = _paths(root, view, files, Counter(report.path_id for report in bad if report.path_id is not None))
    return RootStatus(
        root=root.path,
        cluster_id=root.cluster_id,
        quorum=str(root.quorum),
        paths=paths,
        topics=tuple(_topic(view, topic) for topic in catalog.topics(view)),
        subscriptions=topic_subscriptions(root, view),
        missing_copies=_missing_copies(root, files, {path.path_id for path in paths if not path.problem}),
        bad_copies=bad,
        losses=tuple(sum_losses(reports)),
        verified_copies=verified,
    )


def topic_subscriptions(root: Root, view: View) -> tuple[TopicSubscription, ...]:
    """The subscriptions of all topics, partitions summed up."""
    cursors = root.store.cursors()
    found = []
    for topic in catalog.topics(view):
        by_name: dict[str, list[SubscriptionStatus]] = defaultdict(list)
        for part in catalog.parts(view, topic):
            for record in view.all(SubscriptionRecord, part.topic_id):
                by_name[record.name].append(subscriptions.status(view, cursors, part, record))
        found += [_summed(topic.name, name, by_name[name]) for name in sorted(by_name)]
    return tuple(found)


def _summed(topic: str, name: str, parts: list[SubscriptionStatus]) -> TopicSubscription:
    return TopicSubscription(
        topic=topic,
        name=name,
        type=parts[0].type,
        consumers=tuple(sorted({consumer for part in parts for consumer in part.consumers})),
        backlog_messages=sum(part.backlog_messages for part in parts),
        backlog_bytes=sum(part.backlog_bytes for part in parts),
        cursors=tuple(parts),
    )


def _topic(view: View, topic: TopicRecord) -> TopicStatus:
    parts = catalog.parts(view, topic)
    segments = [segment for part in parts for segment in view.all(SegmentRecord, part.topic_id)]
    schema = catalog.latest_schema(view, topic)
    return TopicStatus(
        name=topic.name,
        partitions=topic.partitions,
        schema=None if schema is None else schema.type,
        messages=sum(segment.rows for segment in segments),
        bytes=sum(segment.bytes for segment in segments),
        ledgers=sum(len(view.all(LedgerRecord, part.topic_id)) for part in parts),
        segments=len(segments),
        files=len({segment.file_id for segment in segments}),
    )


def _paths(root: Root, view: View, files: Mapping[str, FileRecord], bad: Counter[PathId]) -> tuple[PathStatus, ...]:
    copies: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    for file in files.values():
        for path_id in file.copies:
            copies[path_id] += 1
            sizes[path_id] += file.length + file.sidecar_length
    known = root.storage_paths(view)
    found = []
    for record in view.all(PathRecord):
        path = known[PathId(record.path_id)]
        problem, free_bytes = _look(path)
        found.append(
            PathStatus(
                path_id=path.path_id,
                directory=path.directory,
                state=record.state,
                reason=record.reason,
                problem=problem,
                free_bytes=free_bytes,
                copies=copies[record.path_id],
                bytes=sizes[record.path_id],
                bad_copies=bad[path.path_id],
            )
        )
    return tuple(found)


def _missing_copies(root: Root, files: Mapping[str, FileRecord], reachable: Collection[int]) -> int:
    there = (sum(1 for path_id in file.copies if path_id in reachable) for file in files.values())
    return sum(max(root.quorum.write - copies, 0) for copies in there)


def _look(path: StoragePath) -> tuple[str, int | None]:
    try:
        path.check()
        return "", path.free_bytes()
    except StoragePathError as error:
        return str(error), None


def _verify(root: Root, view: View, files: Mapping[str, FileRecord], progress: Progress) -> int:
    """Read every copy of the files; returns how many were good."""
    paths = root.storage_paths(view)
    copies = [(file, PathId(path_id)) for file in files.values() for path_id in file.copies]
    good = 0
    for number, (file, path_id) in enumerate(copies):
        progress("verify", number, len(copies))
        reason = _defect(file, paths[path_id])
        now_ms = time.time_ns() // 1_000_000
        report = Report(ReportKind.BAD_COPY, FileId(file.file_id), path_id, reason or "", now_ms)
        if reason is None:
            good += 1
            clear_report(root.path, report)
        else:
            write_report(root.path, report)
    progress("verify", len(copies), len(copies))
    return good


def _defect(file: FileRecord, path: StoragePath) -> str | None:
    try:
        verify_file(file, path)
    except (CorruptSegmentError, StoragePathError, StorageError) as error:
        return str(error)
    return None
