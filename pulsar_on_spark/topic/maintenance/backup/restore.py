"""Restoring a root as it was at an earlier moment, into a new root, while the old root may be used.

    logs of both tables ─> plan ─> files ─> were missing files merged meanwhile? ─ no ─> cursors ─> main: the new root
                             ▲                                                      │ yes
                             └──────────────────────────────────────────────────────┘

The source is only read. The target shares nothing with it: the files that the target needs are copied, each tile of a
file from any good copy. The target becomes a root when its main table gets its rows, in one commit at the end. A killed
attempt leaves a folder or prefix that is no root, and the next attempt uses the files in it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_on_spark.ledger.segments.restoring import restore_copy
from pulsar_on_spark.ledger.segments.segment_reader import verify_file
from pulsar_on_spark.metadata.features import FEATURES
from pulsar_on_spark.metadata.past import Past, read_past
from pulsar_on_spark.metadata.records import FileRecord, Record, RootRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import CopiedRows
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import (
    CorruptSegmentError,
    InvalidArgumentError,
    SegmentGoneError,
    StorageError,
    StoragePathError,
)
from pulsar_on_spark.model.ids import FileId, PathId, SegmentName
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.storage import permissions
from pulsar_on_spark.storage.loss import CopyVerdict, in_words, unreachable, verdict_on
from pulsar_on_spark.storage.placement import preferred
from pulsar_on_spark.storage.reports import Finding, ReportKind, write_report
from pulsar_on_spark.storage.root_place import RootPlace
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.catalog import root_creation
from pulsar_on_spark.topic.catalog.present_copies import with_present_copies
from pulsar_on_spark.topic.catalog.progress import Progress, silent
from pulsar_on_spark.topic.catalog.root_creation import Content
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.backup.restore_plan import (
    Missing,
    RestorePlan,
    plan_restore,
    reachable_cursors,
)

log = logging.getLogger(__name__)

ATTEMPTS: Final = 10
"""Maximum number of attempts to copy files. An attempt is repeated if merges deleted files before it copied them."""
_PLANNED_KINDS: Final = (
    "root",
    "path",
    "incarnation",
    "seal",
    "file",
    "segment",
    "ledger",
    "compaction",
    "history",
    "history-table",
)
"""Kinds of records that are not copied from the source: the target gets its own. It gets none of histories, because
their tables are not restored. Records of other kinds are copied unchanged."""


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The result of a restore, or of a dry run.

    Attributes:
        target: The target's folder or URL.
        version: The restored version of the source's main table.
        at: The moment that was restored.
        topics: Number of topics.
        messages: Number of messages, including those in missing files.
        files: Number of segment files, without missing ones.
        bytes: Bytes of one copy of each of these files.
        missing: The lost messages, by file and topic; readers of the target report them as lost.
        unsealed: Topics whose last messages may have been only in a broker's journal; such messages are not in the
            target.
    """

    target: str
    version: int
    at: datetime
    topics: int
    messages: int
    files: int
    bytes: int
    missing: tuple[Missing, ...]
    unsealed: tuple[str, ...]


def restore_root(
    root: RootHandle,
    target: RootPlace,
    moment: int | datetime,
    progress: Progress = silent,
    *,
    dry_run: bool = False,
) -> RestoreReport:
    """Make a new root with the content that a root had at an earlier moment.

    Args:
        root: The source.
        target: A path or URL where nothing exists yet, or where a restore was killed.
        moment: A version of the main table, or a time with a zone.
        progress: Called as the restore proceeds.
        dry_run: True to report what would be restored, and write nothing.

    Raises:
        InvalidArgumentError: the source no longer has its metadata of that moment, or one of target and source is
            inside the other.
        RootExistsError, NotARootError: the target is a root already, or has other files.
        CopiesUnreachableError: a file cannot be read now, which does not mean that it is lost.
        StorageError: the target cannot be written, or segments are merged faster than they can be copied.
        MetadataError: the metadata cannot be read or written.
    """
    _require_apart(root.place, target)
    past = read_past(root.place, moment)
    quorum = Quorum.parse(_root_record(past.view).quorum)
    if dry_run:
        plan = plan_restore(past, root.store.view())
        gone = _absent(root, plan.files, progress)
        return _report(target, past, plan.without_files(gone, past.view), gone)
    restored: list[RestoreReport] = []

    def fill(paths: Sequence[StoragePath]) -> Content:
        plan, gone = _copied(root, past, paths, quorum, progress)
        restored.append(_report(target, past, plan, gone))
        return _content(past, plan, paths, quorum)

    uris = root_creation.default_uris(target, quorum)
    root_creation.create_root(target, uris, quorum, _file_mode(root.place), fill)
    (report,) = restored
    for file_id in sorted({missing.file_id for missing in report.missing}):
        reason = f"it was deleted before the root was restored to {past.at.isoformat()}"
        write_report(target, Finding(ReportKind.LOSS, FileId(file_id), None, reason, current_ms()))
    return report


def _require_apart(source: RootPlace, target: RootPlace) -> None:
    one, other = f"{source}/", f"{target}/"
    if one.startswith(other) or other.startswith(one):
        raise InvalidArgumentError(
            f"One of {target} and the root {source} is inside the other: give a path or URL outside of the root."
        )


def _file_mode(source: RootPlace) -> int:
    """Return the permissions for the target's files: those of the source if it is in a folder, else private."""
    is_shared = isinstance(source, Path) and permissions.mode_of(source) == permissions.folder_mode(permissions.SHARED)
    return permissions.SHARED if is_shared else permissions.PRIVATE


def _root_record(view: View) -> RootRecord:
    record = view.get(RootRecord, "root")
    assert record is not None, "the oldest version that is kept has it"
    return record


# --- files ---


def _copied(
    root: RootHandle, past: Past, targets: Sequence[StoragePath], quorum: Quorum, progress: Progress
) -> tuple[RestorePlan, set[str]]:
    """Copy all files. Return the plan, and the ids of the files that have no copy left.

    If files are merged and deleted meanwhile, plan and copy again, with the segments that replaced them.
    """
    for _ in range(ATTEMPTS):
        before = root.store.view()
        plan = plan_restore(past, before)
        gone = _copy_files(root, plan.files, targets, quorum, progress)
        now = root.store.view()
        if not any(_is_in_use(before, file_id) and not _is_in_use(now, file_id) for file_id in gone):
            return plan.without_files(gone, past.view), gone
    raise StorageError(
        f"Segments of {root.place} were merged or deleted during each of {ATTEMPTS} attempts to copy them: stop its "
        "housekeeping, and try again."
    )


def _is_in_use(view: View, file_id: str) -> bool:
    file = view.get(FileRecord, file_id)
    return file is not None and file.replaced_at is None


def _copy_files(
    root: RootHandle,
    files: Sequence[FileRecord],
    targets: Sequence[StoragePath],
    quorum: Quorum,
    progress: Progress,
) -> set[str]:
    gone = set()
    sources = _Sources(root)
    for number, file in enumerate(files):
        progress("copy segments", number, len(files))
        try:
            for target in _targets_of(file, targets, quorum):
                with_present_copies(root, file, partial(_copy, sources, target=target))
        except CorruptSegmentError as error:
            gone.add(file.file_id)
            log.warning("File %s is not in the restored root: %s", file.file_id, error, extra={"file": file.file_id})
    progress("copy segments", len(files), len(files))
    return gone


def _targets_of(file: FileRecord, targets: Sequence[StoragePath], quorum: Quorum) -> list[StoragePath]:
    return preferred(targets, file.file_id)[: file.as_restored().write_quorum or quorum.write]


class _Sources:
    """The source's storage paths, which are read again for a file on a path that was added meanwhile."""

    def __init__(self, root: RootHandle) -> None:
        self._root = root
        self._paths = root.current_storage_paths()

    def of(self, file: FileRecord) -> list[StoragePath]:
        """Return the storage paths of a file's copies, without retired paths."""
        if not self._paths.keys() >= set(file.copies):
            self._paths = self._root.current_storage_paths()
        return [self._paths[PathId(path_id)] for path_id in file.copies if PathId(path_id) in self._paths]


def _copy(sources: _Sources, file: FileRecord, target: StoragePath) -> None:
    name = SegmentName(FileId(file.file_id))
    if target.has_segment(name):  # a killed attempt wrote it
        try:
            verify_file(file, target, name=name)
        except CorruptSegmentError:
            target.delete_segment(name)
        else:
            return
    paths = sources.of(file)
    if not paths:
        raise SegmentGoneError(f"The storage paths of file {file.file_id} were retired.")
    restore_copy(file, paths, target, name)


def _absent(root: RootHandle, files: Sequence[FileRecord], progress: Progress) -> set[str]:
    """Look for copies without reading them. Return the ids of the files that have no copy."""
    absent = set()
    sources = _Sources(root)
    for number, file in enumerate(files):
        progress("look for segments", number, len(files))
        try:
            with_present_copies(root, file, partial(_look_for_copy, sources))
        except SegmentGoneError:
            absent.add(file.file_id)
    progress("look for segments", len(files), len(files))
    return absent


def _look_for_copy(sources: _Sources, file: FileRecord) -> None:
    """Look for a copy of a file, good or bad; return if there is one.

    Raises:
        CopiesUnreachableError: no path that can be reached has a copy, and some path cannot be reached.
        SegmentGoneError: no path has a copy.
    """
    away: dict[PathId, Exception] = {}
    for path in sources.of(file):
        try:
            if path.has_segment(file.names[path.path_id]):
                return
        except StoragePathError as error:
            if verdict_on(error, path) is CopyVerdict.UNREACHABLE:
                away[path.path_id] = error
    if away:
        raise unreachable(f"File {file.file_id}", in_words(away))
    raise SegmentGoneError(f"File {file.file_id} has no copy left: its messages are lost.")


# --- metadata ---


def _content(past: Past, plan: RestorePlan, paths: Sequence[StoragePath], quorum: Quorum) -> Content:
    files = [_with_copies(file, _targets_of(file, paths, quorum)) for file in plan.files]
    records: list[Record] = [*plan.ledgers, *plan.segments, *files, *plan.compactions]
    is_planned = pc.is_in(past.main.column("kind"), pa.array(_PLANNED_KINDS))
    copied = CopiedRows(past.main.filter(pc.invert(is_planned)), past.keys, reachable_cursors(past, plan))
    features = {name: use for name, use in _root_record(past.view).features.items() if name not in FEATURES}
    return Content(records, copied, features)


def _with_copies(file: FileRecord, paths: Sequence[StoragePath]) -> FileRecord:
    name = SegmentName(FileId(file.file_id))
    names: dict[int, SegmentName] = {path.path_id: name for path in paths}
    return file.as_restored().with_names(names)


def _report(target: RootPlace, past: Past, plan: RestorePlan, gone: Collection[str]) -> RestoreReport:
    there = [file for file in plan.files if file.file_id not in gone]
    return RestoreReport(
        target=str(target),
        version=past.version,
        at=past.at,
        topics=len(past.view.all(TopicRecord)),
        messages=sum(segment.rows for segment in plan.segments),
        files=len(there),
        bytes=sum(file.length for file in there),
        missing=tuple(plan.missing(gone, past.view)),
        unsealed=plan.unsealed,
    )
