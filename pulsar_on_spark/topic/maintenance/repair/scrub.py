"""Scrubbing: every copy is read in full from time to time, so that bit rot is found while other copies are good.

Each path is read in rounds, in the order of file ids, so the next copy is always the one that was read longest ago. The
progress of rounds is in a small object, `reports/audit.json`; if it is lost, rounds start again. Concurrent scrubbers
read some copies twice.
"""

from __future__ import annotations

import errno
import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pydantic import BaseModel, ConfigDict, ValidationError

from pulsar_on_spark.ledger.segments.segment_reader import verify_file
from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import CorruptSegmentError, StorageError, StoragePathError
from pulsar_on_spark.model.ids import FileId, PathId
from pulsar_on_spark.storage.objects.contract import Exists
from pulsar_on_spark.storage.reports import REPORTS, Finding, ReportKind, clear_report, write_report
from pulsar_on_spark.storage.root_place import RootPlace, objects_at
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.catalog.holds import unheld_paths
from pulsar_on_spark.topic.catalog.present_copies import is_named, names_copy
from pulsar_on_spark.topic.catalog.root_handle import RootHandle

log = logging.getLogger(__name__)

STATE_KEY = f"{REPORTS}/audit.json"


class PathScrub(BaseModel):
    """The progress of a path's scrub. Times are milliseconds since 1970 on the scrubber's clock.

    Attributes:
        after: The id of the file that was read last in this round; empty before the first.
        at_ms: The time of the last reading, or of the first pass.
        unexamined: Number of copies that could not be examined in this round.
        checks: The `check_since` of the path's record when the round began; None if the round is not the check of a
            path that came back.
        completed_ms: The time at which a round was last completed, with all copies examined; None if no round was.
    """

    model_config = ConfigDict(frozen=True)
    after: str = ""
    at_ms: int = 0
    unexamined: int = 0
    checks: datetime | None = None
    completed_ms: int | None = None


class AuditState(BaseModel):
    """The state that is kept between passes of repair; `status` shows it.

    Attributes:
        audited_ms: The time of the last audit, in milliseconds since 1970; 0 if there was none.
        missing: Number of copies that were missing.
        bad: Number of copies that existed and were bad.
        lacking: Number of copies that files need but no storage path can take.
        restored: Number of copies that the last pass restored or moved.
        unfinished: Number of files that the last pass left to the next one.
        scrubs: The progress of the scrub of each path.
    """

    model_config = ConfigDict(frozen=True)
    audited_ms: int = 0
    missing: int = 0
    bad: int = 0
    lacking: int = 0
    restored: int = 0
    unfinished: int = 0
    scrubs: dict[int, PathScrub] = {}


def read_state(root: RootPlace) -> AuditState:
    """Return the stored state of the last pass; an empty state if none is stored, or if it cannot be read."""
    try:
        stored = objects_at(root).fetch(STATE_KEY)
        return AuditState() if stored is None else AuditState.model_validate_json(stored.content)
    except (StorageError, ValidationError):
        return AuditState()


def write_state(root: RootPlace, state: AuditState) -> None:
    """Store the state for the next pass. A failure is logged; at worst, a round of scrubbing is repeated."""
    objects, content = objects_at(root), state.model_dump_json().encode()
    try:
        written = objects.create(STATE_KEY, content)
        if isinstance(written, Exists):
            objects.replace(STATE_KEY, content, written.version)  # None: a concurrent audit was faster
    except StorageError as error:
        log.warning("The state of the audit of %s cannot be written, so its round is repeated: %s", root, error)


# --- what to read: no IO, no clock ---


def budget_bytes(total_bytes: int, since: timedelta, within: timedelta) -> int:
    """Return the bytes to read now, `since` after the last reading, so that a round over all bytes takes `within`."""
    return int(total_bytes * min(since / within, 1.0))


def is_within_budget(spent_bytes: int, next_bytes: int, max_bytes: int | None, *, is_strict: bool) -> bool:
    """Return True if a pass may read one more copy of a path.

    Args:
        spent_bytes: The bytes of the copies that the pass has read, or tried to read.
        next_bytes: The bytes of the next copy.
        max_bytes: The budget; None for no limit.
        is_strict: True to stay within the budget, even if the pass reads nothing; the budget of the next pass is larger
            then. False to read at least one copy, and to exceed the budget by a part of the last copy.
    """
    if max_bytes is None:
        return True
    return spent_bytes + next_bytes <= max_bytes if is_strict else not spent_bytes or spent_bytes < max_bytes


def upcoming(files: Sequence[FileRecord], after: str) -> Sequence[FileRecord]:
    """Return the files, in the order of their ids, that this round has not read yet."""
    return files[bisect_right([file.file_id for file in files], after) :]


# --- reading ---


@dataclass(frozen=True, slots=True)
class ScrubReport:
    """The result of scrubbing.

    Attributes:
        copies: Number of copies that were read in full.
        bad: Number of these copies that are bad.
        bytes: Bytes of the copies that were read.
        is_complete: True if the round is complete, with all copies examined.
        unexamined: The reason why a copy could not be examined, for each such copy.
    """

    copies: int = 0
    bad: int = 0
    bytes: int = 0
    is_complete: bool = False
    unexamined: tuple[str, ...] = ()

    def plus(self, other: ScrubReport) -> ScrubReport:
        """Return the sum of two reports; it is complete if both are."""
        return ScrubReport(
            self.copies + other.copies,
            self.bad + other.bad,
            self.bytes + other.bytes,
            self.is_complete and other.is_complete,
            (*self.unexamined, *other.unexamined),
        )


def scrub_path(
    root: RootHandle,
    path: StoragePath,
    files: Sequence[FileRecord],
    state: PathScrub,
    *,
    max_bytes: int | None,
    is_strict: bool = False,
    is_over: Callable[[], bool] = lambda: False,
    pace: Callable[[int], None] = lambda size_bytes: None,
) -> tuple[PathScrub, ScrubReport]:
    """Read copies on a path in full, write reports of bad copies, and clear the reports of good copies.

    Args:
        root: The root.
        path: The storage path.
        files: The files that should have a copy on the path, in the order of their ids.
        state: The progress of the round.
        max_bytes: Limit of bytes to read; None for the rest of the round.
        is_strict: True to read nothing beyond the limit (see `is_within_budget`).
        is_over: Called before each copy after the first; True ends the reading.
        pace: Called with the number of bytes that were read.

    Returns:
        The round's progress, and the work done. Reading stops early if the path cannot be reached or a bad copy could
        not be reported. A copy that could not be examined is left to the next round, and this round does not count as
        complete.
    """
    now_ms = current_ms()
    state = state.model_copy(update={"at_ms": state.at_ms or now_ms})
    done, spent_bytes = ScrubReport(), 0
    for file in upcoming(files, state.after):
        if not is_within_budget(spent_bytes, file.length, max_bytes, is_strict=is_strict) or (
            spent_bytes and is_over()
        ):
            return state, done
        checked = check_copy(root, file, path, pace)
        if checked.is_examined:
            if not checked.is_reported:
                return state, done
            done = done.plus(ScrubReport(1, int(checked.defect is not None), file.length))
        else:
            done = replace(done, unexamined=(*done.unexamined, f"{checked.defect}"))
            if not _is_there(path):
                return state, done
            state = state.model_copy(update={"unexamined": state.unexamined + 1})
        spent_bytes += file.length
        state = state.model_copy(update={"after": file.file_id, "at_ms": current_ms()})
    is_complete = not state.unexamined
    completed_ms = current_ms() if is_complete else state.completed_ms
    ended = PathScrub(at_ms=current_ms(), completed_ms=completed_ms)
    return ended, replace(done, is_complete=is_complete)


def _is_there(path: StoragePath) -> bool:
    try:
        path.check()
    except StoragePathError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class CheckedCopy:
    """The result of reading a copy.

    Attributes:
        defect: The copy's defect, or the reason why it could not be examined; None if the copy is good.
        is_reported: True if the stored reports agree with the result.
        is_examined: False if the copy could not be examined; then it may be good, and no report is written.
        is_named: False if the file's record does not name the copy by now, so that its defect does not matter.
    """

    defect: str | None
    is_reported: bool
    is_examined: bool = True
    is_named: bool = True

    @property
    def is_good(self) -> bool:
        """True if the copy was read in full and no byte has changed since it was written."""
        return self.defect is None and self.is_named


def check_copy(
    root: RootHandle, file: FileRecord, path: StoragePath, pace: Callable[[int], None] = lambda size_bytes: None
) -> CheckedCopy:
    """Read one copy in full.

    Write a report if it is bad, clear an earlier report if it is good. `pace` is called with the number of bytes that
    were read. A copy that the file's current record does not name is neither good nor bad. The copies that this record
    names instead were read in full when they were written. A bad copy on a cold path that the root must not judge
    counts as not examined.

    Raises:
        MetadataError: the metadata cannot be read.
    """
    try:
        reason = defect(file, path, pace)
    except StoragePathError as error:
        if not is_named(root, file, path.path_id):
            return CheckedCopy(None, True, is_named=False)
        log.warning("A copy of file %s cannot be examined: %s", file.file_id, error, extra={"file": file.file_id})
        return CheckedCopy(str(error), is_reported=False, is_examined=False)
    report = Finding(ReportKind.BAD_COPY, FileId(file.file_id), path.path_id, reason or "", current_ms())
    if reason is None:
        clear_report(root.place, report)
        return CheckedCopy(None, True)
    view = root.store.view()
    if not names_copy(view, file, path.path_id):
        return CheckedCopy(None, True, is_named=False)
    if unheld := unheld_paths(root, view, [path.path_id]):
        return CheckedCopy(unheld[path.path_id].reason, is_reported=False, is_examined=False)
    log.warning("A copy of file %s is bad: %s", file.file_id, reason, extra={"file": file.file_id})
    return CheckedCopy(reason, write_report(root.place, report))


def defect(file: FileRecord, path: StoragePath, pace: Callable[[int], None] = lambda size_bytes: None) -> str | None:
    """Read every byte of a copy, and return its defect as a sentence; None if the copy is good.

    `pace` is called with the number of bytes that were read.

    A part that the disk cannot read (EIO) is a defect, because a new copy, on other blocks of the disk, can be read.

    Raises:
        StoragePathError: the copy cannot be examined now, which proves nothing about it.
    """
    try:
        verify_file(file, path, pace=pace)
    except CorruptSegmentError as error:
        return str(error)
    except StoragePathError as error:
        if not (isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EIO):
            raise
        return str(error)
    return None


def copies_on(files: Sequence[FileRecord], path_id: PathId) -> list[FileRecord]:
    """Return the files that have a copy on this path, in the order of their ids."""
    return sorted((file for file in files if path_id in file.copies), key=lambda file: file.file_id)
