"""A pass of offloading over a root. Several passes, repairs, merges and collections may run at the same time.

    stage a copy on a cold path, verify it  ->  one commit: the record names it, and is marked as offloaded
    ... deletion lag ...  ->  one commit: the record names the cold copy only  ->  delete the other copies

Both steps are plans of repair, carried out by its worker, under the key of files. So a file moves exactly once, and a
pass may be killed anywhere: a staged copy that no record names is garbage.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from pulsar_on_spark.ledger.segments.segment_reader import OpenCopy
from pulsar_on_spark.metadata.records import FileRecord, SegmentRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import CorruptSegmentError, InvalidArgumentError, StoragePathError
from pulsar_on_spark.model.ids import PathId, Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.storage.reports import ReportKind, read_reports
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.policies.drivers import cold_labels
from pulsar_on_spark.topic.catalog.policies.effective import DEFAULTS, effective_policies
from pulsar_on_spark.topic.catalog.policies.policies import OffloadPolicies, Policies
from pulsar_on_spark.topic.catalog.progress import Progress, silent
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.offload.plan import (
    Bad,
    Basis,
    OffloadPlan,
    end_of,
    plan_offload,
    plan_release,
)
from pulsar_on_spark.topic.maintenance.repair.audit import path_health
from pulsar_on_spark.topic.maintenance.repair.limits import RepairLimits
from pulsar_on_spark.topic.maintenance.repair.plan import FilePlan
from pulsar_on_spark.topic.maintenance.repair.repairing import Throttle
from pulsar_on_spark.topic.maintenance.repair.worker import WorkReport, carry_out_plans, first_batch


@dataclass(frozen=True, slots=True)
class OffloadReport:
    """The result of a pass.

    Attributes:
        moved: The work on files that were to get a copy on a cold path.
        released: The work on files whose other copies were to be deleted.
        waiting: Number of files that are due but wait, because no writable cold path has their driver's label.
        closed: If files wait, a reason for each cold path that takes no files.
        shared: Number of files that stay because other parts of them are needed hot, or because the policies of their
            topics name different drivers.
        unverified: A sentence for each file whose other copies are kept because its cold copy could not be verified.
    """

    moved: WorkReport = field(default_factory=WorkReport)
    released: WorkReport = field(default_factory=WorkReport)
    waiting: int = 0
    closed: tuple[str, ...] = ()
    shared: int = 0
    unverified: tuple[str, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """A sentence for each problem that kept files from being offloaded or released."""
        waiting = (
            f"{self.waiting:,} files wait for a cold storage path: add one with `pulsarpy storage add --role cold`, "
            "with the label that the policy names as its driver"
            + (f", or mend those that take no files now: {' '.join(self.closed)}" if self.closed else ".")
        )
        lost = (f"File {file_id}: {reason}" for file_id, reason in self.moved.lost)
        found = (*self.moved.problems, *self.released.problems, *lost, *self.unverified)
        return (*found, waiting) if self.waiting else found

    @property
    def is_complete(self) -> bool:
        """True if the pass had no problem and left no due work to the next pass."""
        return not (self.problems or self.moved.unfinished or self.released.unfinished)


@dataclass(frozen=True, slots=True)
class OffloadRequest:
    """An operator's request to offload the sealed segments of a topic, and of its partitions.

    Attributes:
        topic: The topic.
        before: The position before which segments are offloaded, of a topic without partitions or a partition.
            None for all sealed segments.
        keep_bytes: Number of newest key and value bytes of each partition that are not offloaded, if `before` is None.
    """

    topic: TopicName
    before: Position | None = None
    keep_bytes: int = 0


def offload(
    root: RootHandle,
    request: OffloadRequest | None = None,
    defaults: Policies = DEFAULTS,
    limits: RepairLimits | None = None,
    progress: Progress = silent,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    clock: Callable[[], float] = time.monotonic,
    files: FileOps = OS_FILES,
) -> OffloadReport:
    """Offload the files that are due, and delete the other copies of files whose deletion lag is over.

    Args:
        root: The root.
        request: Segments to offload in addition to those beyond their topics' thresholds. The pass is then for files
            with segments of this topic only. None for a pass over all topics.
        defaults: The policies for fields that neither a topic nor its namespace sets.
        limits: The limits of one pass; None for the defaults of `RepairLimits`.
        progress: Called as the pass proceeds.
        now: Returns the current time, by which ages and lags are computed.
        clock: Returns monotonic seconds.
        files: The file operations of the operating system.

    Raises:
        TopicNotFoundError: there is no such topic.
        InvalidArgumentError: the root has no cold path, or the request names a position of a partitioned topic.
        MetadataError: the metadata cannot be read or written.
        StorageError: the reports cannot be read.
    """
    limits = limits or RepairLimits()
    end_s = None if limits.max_seconds is None else clock() + limits.max_seconds
    pace = Throttle(limits.bytes_per_second)
    view = root.store.view()
    requests = {} if request is None else requested(view, request)
    if not cold_labels(view):
        if request is None:
            return OffloadReport()
        raise InvalidArgumentError(
            f"The root {root.place} has no cold storage path: add one with `pulsarpy storage add PLACE --role cold`."
        )

    def is_over() -> bool:
        return end_s is not None and clock() > end_s

    unverified: list[str] = []
    away: set[PathId] = set()
    planned = OffloadPlan()

    def basis() -> Basis:
        return _basis(root, None if request is None else request.topic, defaults, limits, now)

    def plan_releases() -> Sequence[FilePlan]:
        return plan_release(basis())

    def release(plans: Sequence[FilePlan]) -> WorkReport:
        done, doubts = _release(root, plans, away, is_over, progress, files)
        unverified.extend(doubts)
        return done

    def plan_moves() -> Sequence[FilePlan]:
        nonlocal planned
        planned = plan_offload(basis(), requests)
        return planned.moves

    def move(plans: Sequence[FilePlan]) -> WorkReport:
        return carry_out_plans(root, plans, is_over=is_over, pace=pace, progress=progress, files=files)

    # First, because it frees disks, and because moves may take hours.
    released = _in_batches(plan_releases, release, is_over)
    moved = _in_batches(plan_moves, move, is_over)
    return OffloadReport(moved, released, planned.waiting, planned.closed, planned.shared, tuple(unverified))


def _basis(
    root: RootHandle, topic: TopicName | None, defaults: Policies, limits: RepairLimits, now: Callable[[], datetime]
) -> Basis:
    """Read the current state, for files with segments of one topic, or (None) for all files."""
    view = root.store.view()
    only = None if topic is None else _files_of(view, topic)

    def policies_of(topic: TopicRecord) -> OffloadPolicies:
        return effective_policies(view, TopicName.parse(topic.name), defaults).offload_policies

    return Basis(view, path_health(root, view, {}, limits), _reported_copies(root), policies_of, now(), only)


def _in_batches(
    plan: Callable[[], Sequence[FilePlan]],
    carry_out: Callable[[Sequence[FilePlan]], WorkReport],
    is_over: Callable[[], bool],
) -> WorkReport:
    """Carry out plans in batches, and plan again before each batch.

    A pass may take hours. Meanwhile paths fail or are drained, copies are found bad, and policies are changed. No file
    is tried twice.
    """
    total = WorkReport()
    tried: set[str] = set()
    while True:
        left = [each for each in plan() if each.file.file_id not in tried]
        if tried and is_over():
            return replace(total, unfinished=total.unfinished + len(left))
        batch = first_batch(left)
        if batch:
            done = carry_out(batch)
            lost, unfinished = (*total.lost, *done.lost), total.unfinished + done.unfinished
            total = replace(total.plus(done), lost=lost, unfinished=unfinished)
            tried.update(each.file.file_id for each in batch)
        if len(batch) == len(left):
            return total


def requested(view: View, request: OffloadRequest) -> dict[str, Position]:
    """Return, by topic id, the position before which a request wants all sealed segments offloaded.

    Raises:
        TopicNotFoundError: there is no such topic.
        InvalidArgumentError: the request names a position of a partitioned topic.
    """
    topic = catalog.require_topic(view, request.topic)
    if request.before is not None:
        if topic.partitions is not None:
            raise InvalidArgumentError(
                f"Topic {topic.name} is partitioned, and a message id belongs to one partition: name the partition."
            )
        return {topic.topic_id: request.before}
    ends = {part.topic_id: _kept_from(view, part.topic_id, request.keep_bytes) for part in catalog.parts(view, topic)}
    return {topic_id: end for topic_id, end in ends.items() if end is not None}


def _kept_from(view: View, topic_id: str, keep_bytes: int) -> Position | None:
    """Return the end of the newest segment after which the topic has at least `keep_bytes`.

    The result is None if it has fewer bytes.
    """
    behind = 0
    for segment in reversed(view.all(SegmentRecord, topic_id)):
        if behind >= keep_bytes:
            return end_of(segment)
        behind += segment.bytes
    return None


def _files_of(view: View, topic: TopicName) -> set[str]:
    """Return the files with segments of a topic, or of its partitions; none if it has been deleted meanwhile."""
    record = view.get(TopicRecord, topic.full)
    parts = [] if record is None else catalog.parts(view, record)
    return {segment.file_id for part in parts for segment in view.all(SegmentRecord, part.topic_id)}


def _release(
    root: RootHandle,
    due: Sequence[FilePlan],
    away: set[PathId],
    is_over: Callable[[], bool],
    progress: Progress,
    files: FileOps,
) -> tuple[WorkReport, tuple[str, ...]]:
    """Verify the cold copies of files and delete the other copies. Return the work, and reasons to keep copies.

    A path that cannot be reached is added to `away`, and no further copies on it are verified, because each attempt may
    take a minute. A path that answers is not added, even if one copy on it cannot be read.
    """
    paths = root.current_storage_paths()
    verified: list[FilePlan] = []
    doubts: list[str] = []
    looked = 0
    for plan in due:
        if verified and is_over():
            break
        looked += 1
        if away.intersection(plan.counted):
            continue
        try:
            for path_id in plan.counted:
                _look_at(plan.file, paths[path_id], files)
            verified.append(plan)
        except (CorruptSegmentError, StoragePathError) as error:
            if not isinstance(error, CorruptSegmentError) and not _answers(paths[path_id], files):
                away.add(path_id)
            doubt = "keeps its other copies, because its cold copy cannot be verified"
            doubts.append(f"File {plan.file.file_id} {doubt}: {error}")
    done = carry_out_plans(root, verified, progress=progress, files=files)
    return replace(done, unfinished=done.unfinished + len(due) - looked), tuple(doubts)


def _answers(path: StoragePath, files: FileOps) -> bool:
    try:
        path.check(files)
    except StoragePathError:
        return False
    return True


def _look_at(file: FileRecord, path: StoragePath, files: FileOps) -> None:
    """Read the beginning and the end of a copy. Every byte was verified when the copy was made.

    Raises:
        CorruptSegmentError: the copy is damaged or missing.
        StoragePathError: the copy cannot be read now.
    """
    copy = OpenCopy(file, path, files)
    try:
        for tile in (0, len(copy.tiles.lengths) - 1):
            copy.read_tile(tile)
    finally:
        copy.close()


def _reported_copies(root: RootHandle) -> Bad:
    bad: dict[str, set[PathId]] = defaultdict(set)
    for report in read_reports(root.place):
        if report.kind is ReportKind.BAD_COPY and report.path_id is not None:
            bad[report.file_id].add(report.path_id)
    return bad
