"""The replication worker: writes missing copies, and adds them to the files' records.

    stage on the target, sync, rename  ->  a commit that names the new copies  ->  does each of them still exist?
    ->  a commit without the copies that they replace  ->  delete the copies that no record names

Both commits move the key of files and are decided on the current records: a merge, a collection, a trim or another
worker that changed a record first wins. A deletion first renames a copy and then reads the metadata; a repair looks for
a copy after the commit that names it. So if a deletion and a repair of one copy coincide, one of them sees the other,
and a file whose new copy is gone keeps its old ones. The root is consistent wherever the worker is killed: a staged
copy without a record is garbage, and the next audit finds a copy that is named and missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from pulsar_on_spark.ledger.segments.restoring import delete_aside, put_back, restore_copy, set_aside
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import FileRecord, PathRecord
from pulsar_on_spark.metadata.state import DurableView, View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import CopiesUnreachableError, CorruptSegmentError, StoragePathError
from pulsar_on_spark.model.ids import FileId, PathId
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.storage.reports import Finding, ReportKind, clear_report, write_report
from pulsar_on_spark.storage.storage_path import PathFailure, StoragePath
from pulsar_on_spark.topic.catalog.progress import Progress, silent
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.repair.plan import FilePlan, copies_left, copies_named

log = logging.getLogger(__name__)

COMMIT_FILES = 200
"""Maximum number of records in a commit: larger ones lose to other writers."""
COMMIT_BYTES = 1 << 30
"""Restored bytes after which a commit follows: this much is copied again after a kill."""

Pace = Callable[[int], None]
CopiesThen = Callable[[FileRecord, FilePlan, Sequence[PathId]], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a plan.

    Attributes:
        plan: The plan.
        targets: Ids of the target paths that got a copy.
        failures: Paths that failed.
        loss: The reason why no good copy was found although all copies were examined; else None.
        undecided: The reason why no good copy was found while some copies could not be examined; else None.
    """

    plan: FilePlan
    targets: tuple[PathId, ...] = ()
    failures: tuple[PathFailure, ...] = ()
    loss: str | None = None
    undecided: str | None = None


@dataclass(frozen=True, slots=True)
class WorkReport:
    """The result of a worker.

    Attributes:
        restored: Number of copies written.
        bytes: Bytes of the copies written.
        moved: Number of files whose record names other paths now.
        dropped: Number of copies that were deleted because no record names them.
        lost: The reason for each file, by id, of which no good copy could be restored.
        problems: Other failures, one sentence for each.
        unfinished: Number of plans that were left for the next pass.
    """

    restored: int = 0
    bytes: int = 0
    moved: int = 0
    dropped: int = 0
    lost: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()
    unfinished: int = 0

    def plus(self, later: WorkReport) -> WorkReport:
        """Add later work to this report; losses and unfinished plans are those of the later work."""
        return WorkReport(
            restored=self.restored + later.restored,
            bytes=self.bytes + later.bytes,
            moved=self.moved + later.moved,
            dropped=self.dropped + later.dropped,
            lost=later.lost,
            problems=tuple(dict.fromkeys((*self.problems, *later.problems))),
            unfinished=later.unfinished,
        )


def carry_out_plans(
    root: RootHandle,
    plans: Sequence[FilePlan],
    *,
    is_over: Callable[[], bool] = lambda: False,
    pace: Pace = lambda size_bytes: None,
    progress: Progress = silent,
    files: FileOps = OS_FILES,
) -> WorkReport:
    """Carry out plans in their order.

    Args:
        root: The root.
        plans: The plans.
        is_over: Called before each plan after the first; True ends the work.
        pace: Called with the number of bytes that are copied, to limit the speed.
        progress: Called as the work proceeds.
        files: The operating system.

    Raises:
        MetadataError: the metadata cannot be read or written; the staged copies are garbage.
    """
    paths = root.storage_paths(root.store.view())
    report = WorkReport()
    batch: list[Restored] = []
    batch_bytes = 0
    failed: set[PathId] = set()
    for number, plan in enumerate(plans):
        if number and is_over():
            report = replace(report, unfinished=len(plans) - number)
            break
        progress("repair", number, len(plans))
        done = restore(plan, paths, failed, pace, files)
        failed |= {failure.path_id for failure in done.failures}
        batch.append(done)
        batch_bytes += len(done.targets) * plan.file.length
        if len(batch) >= COMMIT_FILES or batch_bytes >= COMMIT_BYTES:
            report = _with(report, batch, commit(root, batch, files))
            batch, batch_bytes = [], 0
    if batch:
        report = _with(report, batch, commit(root, batch, files))
    progress("repair", len(plans) - report.unfinished, len(plans))
    return report


def restore(
    plan: FilePlan,
    paths: dict[PathId, StoragePath],
    failed: Iterable[PathId] = (),
    pace: Pace = lambda size_bytes: None,
    files: FileOps = OS_FILES,
) -> Restored:
    """Write a plan's copies without a commit, in any process. A path that fails is left out."""
    targets: list[PathId] = []
    failures: list[PathFailure] = []
    sources = [paths[path_id] for path_id in plan.sources if path_id in paths]
    for path_id in plan.targets:
        target = paths.get(path_id)
        if target is None or path_id in failed:
            continue
        try:
            restore_copy(plan.file, sources, target, pace, files)
        except CorruptSegmentError as error:
            loss, undecided = (None, str(error)) if plan.away else (str(error), None)
            return Restored(plan, tuple(targets), tuple(failures), loss, undecided)
        except CopiesUnreachableError as error:
            return Restored(plan, tuple(targets), tuple(failures), undecided=str(error))
        except StoragePathError as error:
            failures.append(PathFailure(path_id, str(error)))
        else:
            targets.append(path_id)
    return Restored(plan, tuple(targets), tuple(failures))


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a commit: files moved, copies deleted, failures, and files that no longer exist."""

    moved: int = 0
    dropped: int = 0
    problems: tuple[str, ...] = ()
    ended: frozenset[str] = frozenset()


def commit(root: RootHandle, batch: Sequence[Restored], files: FileOps = OS_FILES) -> Committed:
    """Move the restored copies into the records, clear their reports, and delete the copies that no record names.

    Raises:
        MetadataError: the metadata cannot be read or written.
    """
    failures = [failure for restored in batch for failure in restored.failures]
    if failures:
        root.mark_failed(failures)
    moved = _change(root, batch, copies_named)
    gone = _gone_again(root, root.store.view(durable=True), batch)
    replacing = [restored for restored in batch if restored.plan.leaving and restored.plan.file.file_id not in gone]
    if replacing:
        moved |= _change(root, replacing, copies_left)
    dropped, ended = _drop(root, root.store.view(durable=True), batch, files)
    return Committed(len(moved), dropped, tuple(problem for some in gone.values() for problem in some), ended)


def _drop(root: RootHandle, view: DurableView, batch: Sequence[Restored], files: FileOps) -> tuple[int, frozenset[str]]:
    """Delete the copies that no record names; returns their number, and the files that no longer exist."""
    paths = root.storage_paths(view)
    dropped = 0
    for restored in batch:
        file_id = FileId(restored.plan.file.file_id)
        now = view.get(FileRecord, file_id)
        _settle_reports(root, restored, now)
        if now is None or now.replaced_at is not None:
            continue  # garbage collection deletes its copies
        unnamed = {*restored.plan.file.copies, *restored.targets} - set(now.copies)
        for path_id in sorted(map(PathId, unnamed)):
            if path_id in paths:
                try:
                    dropped += discard(root, file_id, paths[path_id], files)
                except (StoragePathError, OSError) as error:
                    # The path is away, or broken: the next audit that finds the copy deletes it.
                    log.info("The copy of file %s stays on %s for now: %s", file_id, paths[path_id], error)
    ended = frozenset(
        restored.plan.file.file_id for restored in batch if view.get(FileRecord, restored.plan.file.file_id) is None
    )
    return dropped, ended


def discard(root: RootHandle, file_id: FileId, path: StoragePath, files: FileOps = OS_FILES) -> bool:
    """Delete a copy that no record names; returns True if it was deleted.

    The copy is renamed first, and renamed back if the metadata, read after that, name it after all.

    Raises:
        StoragePathError: the directory is not this path.
        OSError: files on the path cannot be changed.
    """
    moved = set_aside(file_id, path, files)
    if not moved:
        return False
    if _is_named(root.store.view(durable=True), file_id, path.path_id):
        put_back(moved, files)
        return False
    delete_aside(moved, files)
    return True


def _is_named(view: DurableView, file_id: FileId, path_id: PathId) -> bool:
    now = view.get(FileRecord, file_id)
    return now is not None and path_id in now.copies


def _change(root: RootHandle, batch: Sequence[Restored], copies: CopiesThen) -> set[str]:
    """Commit new lists of copies to the records of files; returns the files whose record changed."""
    changed: list[FileRecord] = []

    def decide(view: View) -> Change | None:
        nonlocal changed
        changed = [record for restored in batch if (record := _changed(view, restored, copies)) is not None]
        return Change(puts=changed, keys={keys.FILES: None}) if changed else None

    root.store.commit(decide)
    return {record.file_id for record in changed}


def _changed(view: View, done: Restored, copies: CopiesThen) -> FileRecord | None:
    """Return the file's record with its new copies; None if it is unchanged, or repair must not change it now."""
    now = view.get(FileRecord, done.plan.file.file_id)
    if now is None or now.replaced_at is not None:
        return None
    usable = [path_id for path_id in done.targets if _may_hold(view, path_id)]
    new_copies = copies(now, done.plan, usable)
    return None if new_copies == now.copies else now.model_copy(update={"copies": new_copies})


def _gone_again(root: RootHandle, view: DurableView, batch: Sequence[Restored]) -> dict[str, list[str]]:
    """Describe, by file, the new copies that a record names and that have disappeared since."""
    paths = root.storage_paths(view)
    by_file: dict[str, list[str]] = {}
    for restored in batch:
        file_id = FileId(restored.plan.file.file_id)
        now = view.get(FileRecord, file_id)
        named = () if now is None or now.replaced_at is not None else now.copies
        for path_id in restored.targets:
            if path_id in named and not paths[path_id].segment_file(file_id).exists():
                sentence = f"the new copy of file {file_id} on {paths[path_id]} is gone again"
                by_file.setdefault(file_id, []).append(sentence)
    return by_file


def _may_hold(view: View, path_id: PathId) -> bool:
    record = view.get(PathRecord, str(path_id))
    return record is not None and record.state not in ("lost", "retired")


def _settle_reports(root: RootHandle, done: Restored, now: FileRecord | None) -> None:
    """Clear the reports about copies that were rewritten or are no longer named; write reports of a loss."""
    file_id = FileId(done.plan.file.file_id)
    named = () if now is None else now.copies
    settled = {*done.targets, *(path_id for path_id in done.plan.file.copies if path_id not in named)}
    for path_id in settled:
        clear_report(root.place, Finding(ReportKind.BAD_COPY, file_id, PathId(path_id), "", 0))
    if done.loss is not None and now is not None and now.replaced_at is None:
        now_ms = current_ms()
        write_report(root.place, Finding(ReportKind.LOSS, file_id, None, done.loss, now_ms))


def _with(report: WorkReport, batch: Sequence[Restored], done: Committed) -> WorkReport:
    lost = [
        (restored.plan.file.file_id, restored.loss)
        for restored in batch
        if restored.loss is not None and restored.plan.file.file_id not in done.ended
    ]
    return replace(
        report,
        restored=report.restored + sum(len(restored.targets) for restored in batch),
        bytes=report.bytes + sum(len(restored.targets) * restored.plan.file.length for restored in batch),
        moved=report.moved + done.moved,
        dropped=report.dropped + done.dropped,
        lost=(*report.lost, *lost),
        problems=(
            *report.problems,
            *done.problems,
            *(
                f"storage path {failure.path_id}: {failure.reason}"
                for restored in batch
                for failure in restored.failures
            ),
            *(restored.undecided for restored in batch if restored.undecided is not None),
        ),
    )
