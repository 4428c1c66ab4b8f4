"""The replication worker writes missing copies, and names them in the files' records.

    new copies, each under a name of its own  ->  one commit that names them instead of the copies that they replace
    ->  delete the copies that no record names

No copy is ever overwritten. New copies carry the write id of a batch of repairs. The commit that names them also stores
the outcome of that write id, under the key that garbage collection needs to abort it. So if a collection takes a slow
repair for dead, only one of the two succeeds. The commit advances the key of files, too, and is decided on the current
records: if a merge, a collection, a trim or another worker has changed a record, its change is kept. The root is
consistent wherever the worker is killed: a copy without a record is garbage.
"""

from __future__ import annotations

import logging
import secrets
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pulsar_on_spark.ledger.segments.restoring import restore_copy
from pulsar_on_spark.metadata import features, keys
from pulsar_on_spark.metadata.records import FileRecord, PathRecord, WriteRecord
from pulsar_on_spark.metadata.state import DurableView, View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import CopiesUnreachableError, CorruptSegmentError, NoAccessError, StoragePathError
from pulsar_on_spark.model.ids import FileId, PathId, SegmentName, WriteId
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.storage.reports import Finding, ReportKind, clear_report, write_report
from pulsar_on_spark.storage.storage_path import PathFailure, StoragePath
from pulsar_on_spark.topic.catalog.holds import unheld_paths
from pulsar_on_spark.topic.catalog.progress import Progress, silent
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.files.claims import claim
from pulsar_on_spark.topic.maintenance.repair.plan import FilePlan, names_after

log = logging.getLogger(__name__)

COMMIT_FILES = 200
"""Maximum number of records in a commit: larger commits conflict with those of other writers more often."""
COMMIT_BYTES = 1 << 30
"""Size of restored copies at which they are committed, so that a killed worker loses little more work than this."""

Pace = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of carrying out a plan, before the commit.

    Attributes:
        plan: The plan.
        write_id: The write id of the batch, which is in the names of the copies.
        copies: The new copies, by target path.
        failures: Paths that failed.
        loss: The reason why no copy is good; None if a copy is good, or not all copies were examined.
        undecided: The reason why it is unknown if the file is lost, or why this process lacks access to a target; None
            if there is none.
    """

    plan: FilePlan
    write_id: WriteId
    copies: Mapping[PathId, SegmentName]
    failures: tuple[PathFailure, ...] = ()
    loss: str | None = None
    undecided: str | None = None


@dataclass(frozen=True, slots=True)
class WorkReport:
    """The result of carrying out plans.

    Attributes:
        restored: Number of copies written.
        bytes: Bytes of the copies written.
        moved: Number of files whose records name other paths now.
        dropped: Number of copies that were deleted because no record names them.
        lost: Pairs (file id, reason) of the files that have no good copy.
        problems: Other failures, one sentence for each.
        unfinished: Number of plans that were left to the next pass.
    """

    restored: int = 0
    bytes: int = 0
    moved: int = 0
    dropped: int = 0
    lost: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()
    unfinished: int = 0

    def plus(self, later: WorkReport) -> WorkReport:
        """Return the sum of this report and a later one; `lost` and `unfinished` are those of the later one."""
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
    """Carry out plans in their order: write the missing copies, and commit them in batches.

    Args:
        root: The root.
        plans: The plans.
        is_over: Called before each plan after the first; True ends the work.
        pace: Called with the number of bytes that were copied, to limit the speed.
        progress: Called as the work proceeds.
        files: The file operations of the operating system.

    Raises:
        MetadataError: the metadata cannot be read or written. Garbage collection deletes the copies that were written
            since the last commit.
    """
    paths = root.storage_paths(root.store.view())
    report = WorkReport()
    write_id = new_write_id()
    batch: list[Restored] = []
    batch_bytes = 0
    failed: set[PathId] = set()
    for number, plan in enumerate(plans):
        if number and is_over():
            report = replace(report, unfinished=len(plans) - number)
            break
        progress("repair", number, len(plans))
        done = restore(plan, paths, write_id, failed, pace, files)
        failed |= {failure.path_id for failure in done.failures}
        batch.append(done)
        batch_bytes += len(done.copies) * plan.file.length
        if len(batch) >= COMMIT_FILES or batch_bytes >= COMMIT_BYTES:
            report = _with(report, batch, commit(root, batch, files))
            batch, batch_bytes, write_id = [], 0, new_write_id()
    if batch:
        report = _with(report, batch, commit(root, batch, files))
    progress("repair", len(plans) - report.unfinished, len(plans))
    return report


def first_batch(plans: Sequence[FilePlan]) -> Sequence[FilePlan]:
    """Return the first plans that are committed together: those up to a limit of files or of bytes to copy."""
    size_bytes = 0
    for number, plan in enumerate(plans, 1):
        size_bytes += len(plan.targets) * plan.file.length
        if number >= COMMIT_FILES or size_bytes >= COMMIT_BYTES:
            return plans[:number]
    return plans


def new_write_id() -> WriteId:
    """Return the write id for a batch of repairs, which are committed together."""
    return WriteId(uuid.uuid4().hex)


def restore(
    plan: FilePlan,
    paths: Mapping[PathId, StoragePath],
    write_id: WriteId,
    failed: Collection[PathId] = (),
    pace: Pace = lambda size_bytes: None,
    files: FileOps = OS_FILES,
) -> Restored:
    """Write the copies of a plan, without a commit, in any process. `pace` is called with the number of bytes copied.

    Paths in `failed` are skipped. A path that fails is reported in `Restored.failures`.
    """
    copies: dict[PathId, SegmentName] = {}
    failures: list[PathFailure] = []
    loss = undecided = None
    sources = [paths[path_id] for path_id in plan.sources if path_id in paths]
    for path_id in plan.targets:
        target = paths.get(path_id)
        if target is None or path_id in failed:
            continue
        name = SegmentName(FileId(plan.file.file_id), f"{write_id}-{secrets.token_hex(4)}")
        try:
            restore_copy(plan.file, sources, target, name, pace, files)
        except CorruptSegmentError as error:
            loss, undecided = (None, str(error)) if plan.away else (str(error), None)
            break
        except CopiesUnreachableError as error:
            undecided = str(error)
            break
        except NoAccessError as error:
            undecided = str(error)
        except StoragePathError as error:
            failures.append(PathFailure(path_id, str(error)))
        else:
            copies[path_id] = name
    return Restored(plan, write_id, copies, tuple(failures), loss, undecided)


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a commit: numbers of moved files and deleted copies, problems, and (file id, reason) of each loss.

    A plan is outdated if its file was replaced or got other copies after the plan was made: then its loss does not
    count. A file with a copy on a path whose claim was refused does not count as lost, unless the path was given up.
    """

    moved: int = 0
    dropped: int = 0
    problems: tuple[str, ...] = ()
    lost: tuple[tuple[str, str], ...] = ()


def commit(root: RootHandle, batch: Sequence[Restored], files: FileOps = OS_FILES) -> Committed:
    """Name the restored copies in the records, clear their reports, and delete the copies that no record names.

    Cold paths are claimed first. If the claim on a path is refused, the copies on the path do not count, and none of
    them is deleted. If another copy of the root claims the path during the commit, the records name again all copies
    that the commit has removed from them.

    Args:
        root: The root.
        batch: The restored copies, all of one write id.
        files: The file operations of the operating system.

    Raises:
        MetadataError: the metadata cannot be read or written.
    """
    (write_id,) = {restored.write_id for restored in batch}
    failures = [failure for restored in batch for failure in restored.failures]
    if failures:
        root.mark_failed(failures)
    concerned = {PathId(each) for done in batch for each in (*done.plan.file.copies, *done.copies)}
    refused = claim(root, concerned)
    named = _name(root, write_id, batch, refused)
    view = root.store.view(durable=True)
    if taken := unheld_paths(root, view, concerned - refused.keys()):
        _name_again(root, named.changes)
        refused |= {path_id: unheld.reason for path_id, unheld in taken.items()}
        view = root.store.view(durable=True)
    current = [restored for restored in batch if restored.plan.file.file_id not in named.outdated]
    unjudged = {path_id for path_id in refused if _may_hold(view, path_id)}
    lost = {
        restored.plan.file.file_id: restored.loss
        for restored in current
        if restored.loss is not None and unjudged.isdisjoint(restored.plan.file.copies)
    }
    for restored in batch:
        file_id = restored.plan.file.file_id
        _settle_reports(root, restored, view.get(FileRecord, file_id), lost.get(file_id))
    dropped = _drop(root, view, batch, refused, files)
    needed = {path_id for restored in batch for path_id in (*restored.plan.counted, *restored.copies)}
    problems = [reason for path_id, reason in refused.items() if path_id in needed]
    if named.is_aborted:
        problems.append(
            f"the new copies of repair {write_id} do not count, because garbage collection aborted it: repair again"
        )
    doubts = (restored.undecided or restored.loss for restored in current if restored.plan.file.file_id not in lost)
    problems += [doubt for doubt in doubts if doubt is not None]
    return Committed(len(named.moved), dropped, tuple(problems), tuple(lost.items()))


@dataclass(frozen=True, slots=True)
class _Named:
    """The result of the commit that names new copies in the records of files.

    Attributes:
        moved: The files that have other copies now.
        outdated: The files with outdated plans.
        is_aborted: True if garbage collection aborted the repair.
        changes: The records before and after the commit.
    """

    moved: frozenset[str] = frozenset()
    outdated: frozenset[str] = frozenset()
    is_aborted: bool = False
    changes: tuple[tuple[FileRecord, FileRecord], ...] = ()


def _name(root: RootHandle, write_id: WriteId, batch: Sequence[Restored], refused: Collection[PathId]) -> _Named:
    """Commit the new names of copies, without those on refused paths."""
    named = _Named()

    def decide(view: View) -> Change | None:
        nonlocal named
        outdated = frozenset(done.plan.file.file_id for done in batch if _is_outdated(view, done.plan.file))
        verdict = view.get(WriteRecord, write_id)
        named = _Named(outdated=outdated, is_aborted=verdict is not None and verdict.status == "aborted")
        if verdict is not None:
            return None
        changed = [change for restored in batch if (change := _changed(view, restored, refused)) is not None]
        if not changed:
            return None
        moved = frozenset(now.file_id for now, after in changed if set(now.copies) != set(after.copies))
        named = _Named(moved, outdated, changes=tuple(changed))
        verdict = WriteRecord(write_id=write_id, status="committed", decided_at=datetime.now(UTC))
        puts, moves = features.using(view, features.COPY_GENERATIONS)
        return Change(
            puts=[*(after for _, after in changed), verdict, *puts],
            keys={keys.FILES: None, keys.write_bucket(write_id): None, **moves},
        )

    root.store.commit(decide)
    return named


def _name_again(root: RootHandle, changes: Sequence[tuple[FileRecord, FileRecord]]) -> None:
    """Name in the records again the copies that a commit removed from them, and that are not deleted yet."""

    def decide(view: View) -> Change | None:
        puts = []
        for before, after in changes:
            now = view.get(FileRecord, after.file_id)
            if now is not None and now.replaced_at is None and now.names == after.names:
                names = {**before.names, **after.names}
                puts += [] if names == now.names else [now.with_names(names)]
        return Change(puts=puts, keys={keys.FILES: None}) if puts else None

    root.store.commit(decide)


def _is_outdated(view: View, planned: FileRecord) -> bool:
    now = view.get(FileRecord, planned.file_id)
    return now is None or now.replaced_at is not None or now.names != planned.names


def _changed(view: View, done: Restored, refused: Collection[PathId]) -> tuple[FileRecord, FileRecord] | None:
    """Return the file's current record, and the record with the new copies; None if nothing is to be changed.

    A plan from before the file was offloaded changes nothing. A plan that offloads the file marks it as offloaded in
    the commit that names the copy on a cold path.
    """
    planned = done.plan.file
    now = view.get(FileRecord, planned.file_id)
    if now is None or now.replaced_at is not None or (now.is_cold and not planned.is_cold):
        return None

    def holds(path_id: PathId) -> bool:
        return path_id not in refused and _may_hold(view, path_id)

    usable = {path_id: name for path_id, name in done.copies.items() if holds(path_id)}
    plan = replace(done.plan, counted=tuple(filter(holds, done.plan.counted)))
    names = names_after(now, plan, usable)
    if planned.offloaded_at is None or now.is_cold:
        return None if names == now.names else (now, now.with_names(names))
    is_named = any(names.get(path_id) == name for path_id, name in usable.items())
    # The lag counts from the commit: a pass with many plans takes longer than some lags.
    offloaded_at = max(planned.offloaded_at, datetime.now(UTC))
    return (now, now.as_cold(offloaded_at).with_names(names)) if is_named else None


def _drop(
    root: RootHandle,
    view: DurableView,
    batch: Sequence[Restored],
    refused: Collection[PathId],
    files: FileOps,
) -> int:
    """Delete the copies of a batch that no record names, except those on refused paths. Return their number.

    After the outcome of the batch is committed, a copy that no record in a durable view names is never named again.
    """
    paths = root.storage_paths(view)
    dropped = 0
    for restored in batch:
        now = view.get(FileRecord, restored.plan.file.file_id)
        if now is None or now.replaced_at is not None:
            continue  # garbage collection deletes the file's copies
        known = {*restored.plan.file.names.items(), *restored.copies.items()}
        for path_id, name in sorted(known - now.names.items()):
            path = paths.get(PathId(path_id))
            if path is not None and path_id not in refused:
                try:
                    dropped += path.delete_segment(name, files) > 0
                except StoragePathError as error:
                    # Garbage collection deletes the copy when the path can be reached again.
                    log.info("The copy %s on %s is not deleted yet: %s", name, path, error)
    return dropped


def _may_hold(view: View, path_id: PathId) -> bool:
    record = view.get(PathRecord, str(path_id))
    return record is not None and record.state not in ("lost", "retired")


def _settle_reports(root: RootHandle, done: Restored, now: FileRecord | None, loss: str | None) -> None:
    """Clear the reports about copies that were rewritten or are no longer named. Report `loss` unless it is None."""
    file_id = FileId(done.plan.file.file_id)
    named = () if now is None else now.copies
    settled = {*done.copies, *(path_id for path_id in done.plan.file.copies if path_id not in named)}
    for path_id in settled:
        clear_report(root.place, Finding(ReportKind.BAD_COPY, file_id, PathId(path_id), "", 0))
    if loss is not None:
        write_report(root.place, Finding(ReportKind.LOSS, file_id, None, loss, current_ms()))


def _with(report: WorkReport, batch: Sequence[Restored], done: Committed) -> WorkReport:
    return replace(
        report,
        restored=report.restored + sum(len(restored.copies) for restored in batch),
        bytes=report.bytes + sum(len(restored.copies) * restored.plan.file.length for restored in batch),
        moved=report.moved + done.moved,
        dropped=report.dropped + done.dropped,
        lost=(*report.lost, *done.lost),
        problems=(
            *report.problems,
            *done.problems,
            *(
                f"storage path {failure.path_id}: {failure.reason}"
                for restored in batch
                for failure in restored.failures
            ),
        ),
    )
