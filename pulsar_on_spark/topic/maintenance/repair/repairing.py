"""A pass of audit, scrub and repair over a root. Several passes may run at the same time, in any processes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import FileRecord, PathRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import StoragePathError
from pulsar_on_spark.model.ids import FileId, PathId
from pulsar_on_spark.storage.reports import ReportKind, clear_report, read_reports
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.catalog.present_copies import is_named
from pulsar_on_spark.topic.catalog.progress import Progress, silent
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.repair import scrub
from pulsar_on_spark.topic.maintenance.repair.audit import MISSING, Audit, BareFragment, audit, live
from pulsar_on_spark.topic.maintenance.repair.limits import RepairLimits
from pulsar_on_spark.topic.maintenance.repair.plan import FilePlan
from pulsar_on_spark.topic.maintenance.repair.scrub import AuditState, PathScrub, ScrubReport
from pulsar_on_spark.topic.maintenance.repair.worker import WorkReport, carry_out_plans

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The findings and results of a pass.

    Attributes:
        missing: Number of copies that the metadata name and that did not exist.
        bad: Number of copies that existed and were bad.
        scrubbed: The result of reading copies in full.
        work: The restored, moved and deleted copies.
        lacking: Number of copies that no storage path can take: an operator must add a path.
        away: The reasons why storage paths cannot be reached or must not be changed.
        checked_paths: Storage paths that are reachable again and whose copies, read in full, count again.
        bare_fragments: Parts of journals that lack copies (see `BareFragment`).
    """

    missing: int = 0
    bad: int = 0
    scrubbed: ScrubReport = field(default_factory=ScrubReport)
    work: WorkReport = field(default_factory=WorkReport)
    lacking: int = 0
    away: tuple[str, ...] = ()
    checked_paths: tuple[PathId, ...] = ()
    bare_fragments: tuple[BareFragment, ...] = ()

    @property
    def is_whole(self) -> bool:
        """True if the pass left no lacking copy, unreachable path, lost file, unfinished work or problem."""
        return not (self.lacking or self.away or self.work.lost or self.work.unfinished or self.work.problems)


class Throttle:
    """Limiter of the rate at which bytes are processed.

    Args:
        bytes_per_second: The maximum rate; None for no limit.
        clock: Returns monotonic seconds.
        pause: Waits for a number of seconds.
    """

    def __init__(
        self,
        bytes_per_second: float | None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._pause = pause
        self._free_at_s = clock()

    def __call__(self, size_bytes: int) -> None:
        """Count bytes that were processed, and wait until their rate is not above the maximum."""
        if self._rate is None:
            return
        now_s = self._clock()
        self._free_at_s = max(self._free_at_s, now_s) + size_bytes / self._rate
        if self._free_at_s > now_s:
            self._pause(self._free_at_s - now_s)


def repair(
    root: RootHandle,
    limits: RepairLimits | None = None,
    progress: Progress = silent,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> RepairReport:
    """Find copies that are missing, bad or on the wrong paths, and restore the write quorum of files.

    Known problems are repaired first. Then the copies that are due are read in full, and the problems found are
    repaired.

    Args:
        root: The root.
        limits: The limits of one pass; None for the defaults of `RepairLimits`.
        progress: Called as the repair proceeds.
        clock: Returns monotonic seconds.

    Raises:
        MetadataError: the metadata cannot be read or written.
        StorageError: the reports cannot be read or cleared.
    """
    limits = limits or RepairLimits()
    end_s = None if limits.max_seconds is None else clock() + limits.max_seconds
    pace = Throttle(limits.bytes_per_second)

    def is_over() -> bool:
        return end_s is not None and clock() > end_s

    audited, bad, plans, done = _round(root, limits, is_over, pace, progress)
    state, scrubbed, checked = _scrub(root, audited, limits, is_over, pace, progress)
    last = audited
    if scrubbed.bad or checked:
        last, _, plans, more = _round(root, limits, is_over, pace, progress)
        done = done.plus(more)
    report = RepairReport(
        missing=audited.missing,
        bad=len(bad) + scrubbed.bad,
        scrubbed=scrubbed,
        work=done,
        lacking=sum(plan.lacking for plan in plans),
        away=tuple(last.problems.values()),
        checked_paths=checked,
        bare_fragments=last.bare_fragments,
    )
    _remember(root, state, report)
    return report


def _round(
    root: RootHandle,
    limits: RepairLimits,
    is_over: Callable[[], bool],
    pace: Callable[[int], None],
    progress: Progress,
) -> tuple[Audit, set[tuple[FileId, PathId]], list[FilePlan], WorkReport]:
    """Find problems and repair them. Return the audit, the bad copies that exist, the plans, and the work done."""
    progress("audit", 0, 1)
    audited = audit(root, limits)
    progress("audit", 1, 1)
    reported = check_reports(root, audited, is_over, pace, progress)
    plans = audited.plans(root.quorum.write, reported)
    done = carry_out_plans(
        root,
        [plan for plan in plans if not plan.is_idle],
        is_over=is_over,
        pace=pace,
        progress=progress,
    )
    existing = {copy_key for copy_key, reason in audited.bad.items() if reason != MISSING}
    return (
        audited,
        existing | {copy_key for copy_key in reported if audited.bad.get(copy_key) != MISSING},
        plans,
        done,
    )


def check_reports(
    root: RootHandle,
    found: Audit,
    is_over: Callable[[], bool],
    pace: Callable[[int], None],
    progress: Progress,
) -> set[tuple[FileId, PathId]]:
    """Check the copies that readers reported. Return the bad copies, and clear the reports about good copies.

    A copy counts as bad without a check if the time limit has passed or the copy cannot be examined now. That is safe:
    rewriting a good copy does no harm, and messages count as lost only if all copies were read. A copy that the file's
    current record does not name is neither bad nor good.

    Raises:
        StorageError: the reports cannot be read or cleared.
    """
    files = {file.file_id: file for file in live(found.view)}
    paths = root.storage_paths(found.view)
    verdicts: dict[tuple[FileId, PathId], bool | None] = {}

    def is_bad(file: FileRecord, path_id: PathId) -> bool | None:
        key = (FileId(file.file_id), path_id)
        if key not in verdicts:
            verdicts[key] = is_over() or not _is_good(file, paths[path_id], pace)
            if verdicts[key] and not is_named(root, file, path_id):
                verdicts[key] = None
        return verdicts[key]

    reports = read_reports(root.place)
    for number, report in enumerate(reports):
        progress("check reports", number, len(reports))
        file = files.get(report.file_id)
        if file is None:
            continue  # garbage collection clears the report
        suspects = file.copies if report.kind is ReportKind.LOSS else [report.path_id]
        existing = [PathId(suspect) for suspect in suspects if suspect in file.copies and _is_judged(found, suspect)]
        judged = [is_bad(file, suspect) for suspect in existing]
        is_stale = report.kind is ReportKind.BAD_COPY and report.path_id not in file.copies
        if is_stale or False in judged:
            clear_report(root.place, report)
    progress("check reports", len(reports), len(reports))
    return {key for key, bad in verdicts.items() if bad}


def _is_good(file: FileRecord, path: StoragePath, pace: Callable[[int], None]) -> bool:
    try:
        return scrub.defect(file, path, pace) is None
    except StoragePathError:
        return False


def _is_judged(found: Audit, path_id: int) -> bool:
    health = found.paths.get(PathId(path_id))
    return health is not None and health.is_judged


def _scrub(
    root: RootHandle,
    found: Audit,
    limits: RepairLimits,
    is_over: Callable[[], bool],
    pace: Callable[[int], None],
    progress: Progress,
) -> tuple[AuditState, ScrubReport, tuple[PathId, ...]]:
    """Read the copies that are due. Paths that became reachable again come first and are read completely."""
    state = scrub.read_state(root.place)
    scrubs = dict(state.scrubs)
    view = root.store.view()  # copies may have moved since the audit
    paths = root.storage_paths(view)
    files = live(view)
    total = ScrubReport(is_complete=True)
    checked = []
    to_check = {PathId(row.path_id): row.check_since for row in view.all(PathRecord) if row.check_since}
    for path_id in sorted(
        (path_id for path_id, health in found.paths.items() if health.is_judged),
        key=lambda path_id: (path_id not in to_check, scrubs.get(path_id, PathScrub()).at_ms),
    ):
        if total.copies and is_over():
            break
        progress(f"scrub storage path {path_id}", 0, 1)
        copies = scrub.copies_on(files, path_id)
        progress_so_far = scrubs.get(path_id, PathScrub())
        since = to_check.get(path_id)
        if since is not None and progress_so_far.checks != since:
            # A round that began before the path was reachable again proves nothing. Hosts' clocks do not decide which.
            progress_so_far = PathScrub(checks=since)
        is_cold = found.paths[path_id].is_cold
        within = limits.scrub_cold_within if is_cold else limits.scrub_within
        budget = _budget(copies, progress_so_far, within) if since is None else None
        scrubs[path_id], done = scrub.scrub_path(
            root,
            paths[path_id],
            copies,
            progress_so_far,
            max_bytes=budget,
            is_strict=is_cold,
            is_over=is_over,
            pace=pace,
        )
        total = total.plus(done)
        if since is not None and done.is_complete and _settle_check(root, path_id, since):
            checked.append(path_id)
        progress(f"scrub storage path {path_id}", 1, 1)
    return state.model_copy(update={"scrubs": scrubs}), total, tuple(checked)


def _budget(copies: Sequence[FileRecord], known: PathScrub, within: timedelta) -> int:
    since = timedelta(milliseconds=current_ms() - known.at_ms) if known.at_ms else timedelta()
    return scrub.budget_bytes(sum(file.length for file in copies), max(since, timedelta()), within)


def _settle_check(root: RootHandle, path_id: PathId, since: datetime) -> bool:
    """Let a path's copies count after they were read in full.

    Return True, or False if the path failed again meanwhile.
    """
    settled = False

    def decide(view: View) -> Change | None:
        nonlocal settled
        record = view.get(PathRecord, str(path_id))
        settled = record is not None and record.check_since == since
        if record is None or not settled:
            return None
        return Change(puts=[record.model_copy(update={"check_since": None})], keys={keys.path(path_id): None})

    root.store.commit(decide)
    return settled


def _remember(root: RootHandle, state: AuditState, report: RepairReport) -> None:
    last = {
        "audited_ms": current_ms(),
        "missing": report.missing,
        "bad": report.bad,
        "lacking": report.lacking,
        "restored": report.work.restored,
        "unfinished": report.work.unfinished,
    }
    scrub.write_state(root.place, state.model_copy(update=last))
