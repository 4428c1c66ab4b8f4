"""Merging: adjacent small segments of a ledger become one segment, and small files become part of large ones.

A stream that writes every second leaves one file for each batch. A merge reads such segments in order, writes the same
entries with the same ids into a new file (of many topics), and replaces the segment records in one commit.

A merge loses no entries. The old files stay until ten minutes after the last segment record that named them. If a topic
changed within the merged range meanwhile, it keeps its old segments. A killed merge leaves a file that no topic names.
"""

from __future__ import annotations

import logging
import secrets
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pulsar_on_spark.ledger.segments.segment_writer import SegmentFileWriter, WrittenFile
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import FileRecord, Record, SegmentRecord, TopicRecord, WriteRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import CommitConflictError
from pulsar_on_spark.model.ids import FileId, WriteId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.storage.reports import ReportKind, read_reports
from pulsar_on_spark.topic.catalog.policies.quorums import quorum_of, strictest
from pulsar_on_spark.topic.catalog.progress import Progress, silent
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.files.rewrite import Piece, Run, rewrite

log = logging.getLogger(__name__)

SMALL_BYTES = 32 << 20
"""Segments with fewer key and value bytes are merged with their neighbours."""
TINY_FILE_BYTES = 1 << 20
WORTH_TINY_FILES = 16
"""Minimum number of tiny files in a root for merging them even if their segments have no neighbours."""
MAX_RUN_BYTES = 64 << 20
"""Maximum estimated memory of the runs that are read together before they are written."""
MAX_JOB_BYTES = 256 << 20
MAX_JOB_SEGMENTS = 2_000
"""Maximum number of records that one commit replaces: larger commits conflict with those of writers more often."""
ROW_BYTES = 120
"""Estimated memory that a message needs in addition to its key and value."""
_MAX_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class MergeJob:
    """The runs that are merged into one file.

    Attributes:
        runs: The runs to merge.
        named_by: For each file that a run reads, the ids of all segments in it. The file is needed while one of them
            names it.
    """

    runs: tuple[Run, ...]
    named_by: Mapping[str, tuple[str, ...]]

    @property
    def segments(self) -> int:
        """The number of segments that the job replaces."""
        return sum(len(run.segments) for run in self.runs)


@dataclass(frozen=True, slots=True)
class MergeReport:
    """The result of a merge. `skipped_segments` counts segments that were unreadable, or that other commits changed."""

    merged_segments: int = 0
    new_segments: int = 0
    new_files: int = 0
    skipped_segments: int = 0


def merge(root: RootHandle, progress: Progress = silent) -> MergeReport:
    """Merge small segments in a few rounds: a round may merge the results of the previous round.

    Raises:
        NotEnoughCopiesError: fewer storage paths than the ack quorum can be written; merges committed before remain.
        MetadataError: the metadata cannot be read or written.
        StorageError: the reports cannot be read.
    """
    done = MergeReport()
    given_up: set[str] = set()
    for number in range(1, _MAX_ROUNDS + 1):
        lost = {report.file_id for report in read_reports(root.place) if report.kind is ReportKind.LOSS}
        jobs = plan(root.store.view(), lost | given_up)
        total = sum(job.segments for job in jobs)
        step = "merge" if number == 1 else f"merge, round {number}"
        progress(step, 0, total)
        finished = 0
        for job in jobs:
            pieces, file_written = _run(root, job)
            merged = {source.record_id for piece in pieces for source in piece.sources}
            skipped = [s for run in job.runs for s in run.segments if s.record_id not in merged]
            given_up |= {segment.file_id for segment in skipped}
            done = MergeReport(
                done.merged_segments + len(merged),
                done.new_segments + len(pieces),
                done.new_files + file_written,
                done.skipped_segments + len(skipped),
            )
            finished += job.segments
            progress(step, finished, total)
        if not jobs:
            break
    return done


# --- the plan ---


def plan(view: View, excluded_files: Collection[str] = ()) -> list[MergeJob]:
    """Plan the merges that are due, without segments in `excluded_files` and in offloaded files.

    An offloaded file is not merged, because reading it from a cold path, and writing it elsewhere, would cost more than
    it saves.
    """
    excluded_files = {*excluded_files, *(file.file_id for file in view.all(FileRecord) if file.is_cold)}
    named_by: dict[str, list[str]] = defaultdict(list)
    published_ms: dict[str, int] = {}
    for segment in view.all(SegmentRecord):
        file_id = segment.file_id
        named_by[file_id].append(segment.record_id)
        published_ms[file_id] = min(published_ms.get(file_id, segment.publish_min_ms), segment.publish_min_ms)
    tiny = _tiny_files(view, named_by, excluded_files)
    runs: list[Run] = []
    for topic in view.all(TopicRecord):
        for adjacent in _adjacent(view.all(SegmentRecord, topic.topic_id), excluded_files):
            runs += [
                Run(topic.name, topic.topic_id, worth)
                for worth in (_worth(piece, tiny) for piece in _chop(adjacent))
                if worth
            ]

    def place(run: Run) -> tuple[int, str, tuple[int, int]]:
        first = run.segments[0]
        return published_ms[first.file_id], first.file_id, first.places[0] if first.places else (first.first_batch, 0)

    # Sort, so that segments in the same file, and in the same batch of it, are read together.
    runs.sort(key=place)
    jobs = []
    for job in _jobs(runs):
        files = {segment.file_id for run in job for segment in run.segments}
        jobs.append(MergeJob(job, {file_id: tuple(named_by[file_id]) for file_id in files}))
    return jobs


def cost_bytes(segments: Iterable[SegmentRecord]) -> int:
    """Estimate the memory of decoded segments, in bytes."""
    return sum(segment.bytes + ROW_BYTES * segment.rows for segment in segments)


def _tiny_files(view: View, named_by: Mapping[str, object], excluded: Collection[str]) -> frozenset[str]:
    sizes = {file.file_id: file.length for file in view.all(FileRecord) if file.file_id in named_by}
    tiny = frozenset(
        file_id for file_id, length in sizes.items() if length < TINY_FILE_BYTES and file_id not in excluded
    )
    return tiny if len(tiny) >= WORTH_TINY_FILES else frozenset()


def _adjacent(segments: Sequence[SegmentRecord], excluded: Collection[str]) -> Iterator[list[SegmentRecord]]:
    """Yield the longest runs of adjacent small segments in one ledger."""
    run: list[SegmentRecord] = []
    for segment in segments:
        fit = segment.bytes < SMALL_BYTES and segment.file_id not in excluded
        follows = bool(run) and (segment.ledger_id, segment.first_entry) == (
            run[-1].ledger_id,
            run[-1].first_entry + run[-1].entries,
        )
        if run and not (fit and follows):
            yield run
            run = []
        if fit:
            run.append(segment)
    if run:
        yield run


def _chop(run: Sequence[SegmentRecord]) -> Iterator[list[SegmentRecord]]:
    """Split a run into pieces that fit into memory, and that one commit can replace."""
    piece: list[SegmentRecord] = []
    size_bytes = 0
    for segment in run:
        cost = cost_bytes([segment])
        if piece and (size_bytes + cost > MAX_RUN_BYTES or len(piece) >= MAX_JOB_SEGMENTS // 8):
            yield piece
            piece, size_bytes = [], 0
        piece.append(segment)
        size_bytes += cost
    if piece:
        yield piece


def _worth(piece: Sequence[SegmentRecord], tiny: Collection[str]) -> tuple[SegmentRecord, ...]:
    """Return the part of a piece to rewrite: without leading segments that are larger than all later ones together.

    So a message is rewritten whenever its segment doubles, not whenever messages are appended. Segments in tiny files
    are always rewritten.
    """
    rest = sum(segment.bytes for segment in piece)
    start = 0
    while start < len(piece) - 1 and piece[start].file_id not in tiny:
        rest -= piece[start].bytes
        if piece[start].bytes <= rest:
            break
        start += 1
    kept = tuple(piece[start:])
    return kept if len(kept) > 1 or kept[0].file_id in tiny else ()


def _jobs(runs: Sequence[Run]) -> Iterator[tuple[Run, ...]]:
    job: list[Run] = []
    segments = size_bytes = 0
    for run in runs:
        cost = cost_bytes(run.segments)
        if job and (segments + len(run.segments) > MAX_JOB_SEGMENTS or size_bytes + cost > MAX_JOB_BYTES):
            yield tuple(job)
            job, segments, size_bytes = [], 0, 0
        job.append(run)
        segments += len(run.segments)
        size_bytes += cost
    if job:
        yield tuple(job)


# --- one job ---


def _run(root: RootHandle, job: MergeJob) -> tuple[list[Piece], bool]:
    """Write a job's file and commit it. Return the pieces that replaced segments, and True if a file was written."""
    view = root.store.view()
    write_id = WriteId(uuid.uuid4().hex)
    file_id = FileId(f"{write_id}-{secrets.token_hex(6)}")
    quorum = strictest(quorum_of(view, TopicName.parse(run.topic), root.quorum) for run in job.runs)
    with root.marking_failures(), SegmentFileWriter(file_id, root.writable_paths(view), quorum) as writer:
        pieces = [piece for group in _groups(job.runs) for piece in rewrite(root, view, group, writer)]
        if not pieces:
            return [], False  # leaving the block deletes the file
        written = writer.close()
    if written.failures:
        root.mark_failed(written.failures)
    return _commit(root, job, write_id, written, pieces), True


def _groups(runs: Sequence[Run]) -> Iterator[list[Run]]:
    group: list[Run] = []
    size_bytes = 0
    for run in runs:
        cost = cost_bytes(run.segments)
        if group and size_bytes + cost > MAX_RUN_BYTES:
            yield group
            group, size_bytes = [], 0
        group.append(run)
        size_bytes += cost
    if group:
        yield group


def _commit(
    root: RootHandle, job: MergeJob, write_id: WriteId, written: WrittenFile, pieces: Sequence[Piece]
) -> list[Piece]:
    """Replace the segments of all pieces whose sources have not changed. Return these pieces.

    If every attempt conflicts with other writers' commits, each half of the pieces is committed by itself, so that one
    busy topic does not block the others.
    """
    kept: list[Piece] = []

    def decide(view: View) -> Change | None:
        nonlocal kept
        kept = []
        file = view.get(FileRecord, written.file_id)
        verdict = view.get(WriteRecord, write_id)
        if (file is None) != (verdict is None) or (file is not None and file.replaced_at is not None):
            return None  # garbage collection has aborted the write, so no record may name the file
        kept = [piece for piece in pieces if _is_intact(view, piece)]
        now = datetime.now(UTC)
        bucket = {keys.write_bucket(write_id): None}
        if not kept:
            aborted = WriteRecord(write_id=write_id, status="aborted", decided_at=now)
            return Change(puts=[aborted], keys=bucket) if verdict is None else None
        puts: list[Record] = [piece.segment_record(written.file_id) for piece in kept]
        puts += _replaced(view, job, kept, now)
        moved: dict[str, int | None] = {keys.topic(piece.topic): None for piece in kept}
        moved[keys.FILES] = None
        if file is None:
            puts += [written.file_record(write_id), WriteRecord(write_id=write_id, status="committed", decided_at=now)]
            moved |= bucket
        # The new segment has the id of the first segment that it replaces.
        return Change(puts=puts, deletes=[source for piece in kept for source in piece.sources[1:]], keys=moved)

    try:
        root.store.commit(decide)
    except CommitConflictError as error:
        if len(pieces) == 1:
            log.warning(
                "%d segments of %s are left to a later merge: %s",
                len(pieces[0].sources),
                pieces[0].topic,
                error,
                extra={"topic": pieces[0].topic},
            )
            return []
        middle = len(pieces) // 2
        first = _commit(root, job, write_id, written, pieces[:middle])
        return [*first, *_commit(root, job, write_id, written, pieces[middle:])]
    return kept


def _is_intact(view: View, piece: Piece) -> bool:
    """Return True if the topic and all segments that the piece replaces are unchanged since the plan."""
    topic = view.get(TopicRecord, piece.topic)
    if topic is None or topic.topic_id != piece.sources[0].topic_id:
        return False
    return all(view.get(SegmentRecord, source.record_id) == source for source in piece.sources)


def _replaced(view: View, job: MergeJob, kept: Sequence[Piece], now: datetime) -> list[FileRecord]:
    """Return, marked as replaced, the records of files that no segment names after the commit of `kept`."""
    moved = {source.record_id for piece in kept for source in piece.sources}
    read = sorted({source.file_id for piece in kept for source in piece.sources})
    replaced = []
    for file_id, named_by in ((file_id, job.named_by[file_id]) for file_id in read):
        others = (view.get(SegmentRecord, record_id) for record_id in named_by if record_id not in moved)
        file = view.get(FileRecord, file_id)
        if file is not None and not any(other is not None and other.file_id == file_id for other in others):
            replaced.append(file.model_copy(update={"replaced_at": now}))
    return replaced
