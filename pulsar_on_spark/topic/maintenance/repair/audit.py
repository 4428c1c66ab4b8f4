"""The auditor finds copies that are missing or have the wrong length, from metadata and listings alone.

A copy that a listing lacks is looked up by name before it counts as missing, because it may be newer than the listing.
A bad copy counts only if its file's record still names it, because files are moved meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from pulsar_on_spark.ledger.journal.log import LogState
from pulsar_on_spark.ledger.journal.register import log_record
from pulsar_on_spark.metadata.records import FileRecord, IncarnationRecord, PathRecord
from pulsar_on_spark.metadata.state import DurableView, View
from pulsar_on_spark.model.errors import NoAccessError, StoragePathError
from pulsar_on_spark.model.ids import FileId, IncarnationId, PathId, SegmentName
from pulsar_on_spark.storage.health import Condition, Hold, PathHealth
from pulsar_on_spark.storage.storage_path import PathFailure, StoragePath
from pulsar_on_spark.topic.catalog.holds import examine_paths
from pulsar_on_spark.topic.catalog.policies.drivers import drivers_of_files
from pulsar_on_spark.topic.catalog.present_copies import names_copy
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.repair.limits import RepairLimits
from pulsar_on_spark.topic.maintenance.repair.plan import FilePlan, plan_file

log = logging.getLogger(__name__)

MISSING = "the copy is missing"


@dataclass(frozen=True, slots=True)
class StoredCopy:
    """A segment's copy in a storage path's listing: its size, and True if it has a sidecar."""

    size_bytes: int
    has_sidecar: bool


@dataclass(frozen=True, slots=True)
class BareFragment:
    """A journal fragment that has fewer copies than its write quorum on paths that can be read.

    Repair does not change journals: an open journal belongs to its writer, which changes its ensemble itself, and a
    closed journal is soon sealed into segments with write-quorum copies.

    Attributes:
        incarnation: The broker incarnation that owns the journal.
        first_frame: The number of the fragment's first frame.
        copies: Number of copies on paths that can be read.
        wanted: The write quorum of the journal.
        is_closed: True if the journal is closed.
    """

    incarnation: IncarnationId
    first_frame: int
    copies: int
    wanted: int
    is_closed: bool


@dataclass(frozen=True, slots=True)
class Audit:
    """The findings of an audit.

    Attributes:
        view: The audited version of the metadata.
        paths: All storage paths, without retired ones.
        problems: The reason why a path cannot be reached or must not be changed, by path.
        bad: The reason why a copy is missing or wrong, by file and path.
        bare_fragments: Journal fragments that lack copies.
    """

    view: DurableView
    paths: Mapping[PathId, PathHealth]
    problems: Mapping[PathId, str] = field(default_factory=dict)
    bad: Mapping[tuple[FileId, PathId], str] = field(default_factory=dict)
    bare_fragments: tuple[BareFragment, ...] = ()

    @property
    def missing(self) -> int:
        """The number of copies that a record names and that do not exist."""
        return sum(reason == MISSING for reason in self.bad.values())

    def plans(self, wanted: int, bad: Collection[tuple[FileId, PathId]] = ()) -> list[FilePlan]:
        """Return the plans of the files to repair; files with the fewest good copies come first.

        Args:
            wanted: The root's write quorum.
            bad: Further bad copies, which the audit did not find.
        """
        spoilt: dict[str, set[PathId]] = {}
        for file_id, path_id in (*self.bad, *bad):
            spoilt.setdefault(file_id, set()).add(path_id)
        drivers = drivers_of_files(self.view)
        plans = [
            plan_file(file, wanted, self.paths, spoilt.get(file.file_id, ()), drivers.get(file.file_id, ()))
            for file in live(self.view)
        ]
        return sorted((plan for plan in plans if not plan.is_idle or plan.lacking), key=lambda plan: len(plan.counted))


def live(view: View) -> list[FileRecord]:
    """Return the records of all segment files that were not replaced."""
    return [file for file in view.all(FileRecord) if file.replaced_at is None]


def audit(root: RootHandle, limits: RepairLimits, *, marks: bool = True) -> Audit:
    """Check once, by listings of the storage paths, that all copies exist with the right length.

    The copies on a cold path that is not known to be this root's are not checked, because the path may be in an earlier
    state.

    Args:
        root: The root.
        limits: The limits of the pass.
        marks: True to mark each path that cannot be reached as failed, so that no process writes to it and its downtime
            is recorded. Cold paths that another copy of the root has changed are marked, too. A path for which this
            process lacks credentials or permissions is never marked, because it may be well.

    Raises:
        MetadataError: the metadata cannot be read or written.
    """
    view = root.store.view()
    lost = {record.path_id for record in view.all(PathRecord) if record.state == "lost"}
    listable = {
        path_id: path
        for path_id, path in root.storage_paths(view).items()
        if path_id not in lost and not path.is_elsewhere
    }
    stored: dict[PathId, dict[SegmentName, StoredCopy]] = {}
    problems: dict[PathId, str] = {}
    failures: list[PathFailure] = []
    for path_id, path in listable.items():
        try:
            stored[path_id] = listed(path)
        except StoragePathError as error:
            problems[path_id] = str(error)
            if marks and not isinstance(error, NoAccessError):
                failures.append(PathFailure(path_id, str(error)))
    if failures:
        root.mark_failed(failures)
    view = root.store.view(durable=True)
    paths = path_health(root, view, problems, limits)
    foreign = [PathFailure(path_id, path.reason) for path_id, path in paths.items() if path.hold is Hold.FOREIGN]
    if foreign and marks:
        root.mark_failed(foreign)
    unheld = {path_id: path.reason for path_id, path in paths.items() if path.hold is not Hold.OURS}
    problems = unheld | problems
    stored = {path_id: copies for path_id, copies in stored.items() if path_id not in unheld}
    files = {FileId(file.file_id): file for file in live(view)}
    suspected = {
        (file_id, path_id): reason
        for (file_id, path_id), reason in compared(files.values(), stored).items()
        if reason != MISSING or not _has(listable[path_id], files[file_id].names[path_id])
    }
    now = root.store.view() if suspected else view
    bad = {key: reason for key, reason in suspected.items() if names_copy(now, files[key[0]], key[1])}
    return Audit(view, paths, problems, bad, tuple(bare_fragments(view, paths)))


def listed(path: StoragePath) -> dict[SegmentName, StoredCopy]:
    """Return the finished copies on a path, by name (raises as `StoragePath.segment_files`)."""
    sizes: dict[SegmentName, int] = {}
    sidecars: set[SegmentName] = set()
    for stored in path.segment_files(time.time()):
        if stored.is_sidecar and not stored.is_tmp:
            sidecars.add(stored.name)
        elif not stored.is_tmp:
            sizes[stored.name] = stored.size_bytes
    return {name: StoredCopy(size_bytes, name in sidecars) for name, size_bytes in sizes.items()}


def path_health(
    root: RootHandle, view: View, problems: Mapping[PathId, str], limits: RepairLimits
) -> dict[PathId, PathHealth]:
    """Examine all paths again, and return their health by id. A path that could not be listed counts as unreachable."""
    now = datetime.now(UTC)
    health = examine_paths(root, view)
    for record in view.all(PathRecord):
        path_id = PathId(record.path_id)
        if path_id in problems and health[path_id].is_there:
            health[path_id] = replace(
                health[path_id],
                condition=Condition.UNREACHABLE,
                reason=problems[path_id],
                total_bytes=None,
                free_bytes=None,
            )
        if record.failed_at is not None and path_id in health:
            health[path_id] = replace(health[path_id], is_overdue=limits.is_overdue(record.failed_at, now))
    return health


def compared(
    files: Iterable[FileRecord], stored: Mapping[PathId, Mapping[SegmentName, StoredCopy]]
) -> dict[tuple[FileId, PathId], str]:
    """Compare records with the listings of reachable paths. Return, by (file, path), why a copy is missing or bad.

    Args:
        files: The records of live files.
        stored: The listing of each reachable path.
    """
    bad: dict[tuple[FileId, PathId], str] = {}
    for file in files:
        for path_id, name in file.names.items():
            if (copies := stored.get(PathId(path_id))) is not None:
                reason = _defect(file, copies.get(name))
                if reason is not None:
                    bad[FileId(file.file_id), PathId(path_id)] = reason
    return bad


def bare_fragments(view: View, paths: Mapping[PathId, PathHealth]) -> list[BareFragment]:
    """Return the journal fragments in use that lack copies, because paths are unreachable or lost."""
    fragments = []
    for row in view.all(IncarnationRecord):
        record = log_record(row)
        for fragment in record.fragments:
            readable = sum(1 for copy in fragment.copies if copy.path in paths and paths[copy.path].is_readable)
            if fragment.first is not None and readable < row.write_quorum:
                is_closed = record.state is LogState.CLOSED
                fragments.append(
                    BareFragment(IncarnationId(row.incarnation), fragment.first, readable, row.write_quorum, is_closed)
                )
    return fragments


def _defect(file: FileRecord, copy: StoredCopy | None) -> str | None:
    """Return the reason why a listed copy (None for none) is missing or bad; None if it has the right length."""
    if copy is None:
        return MISSING
    if copy.size_bytes != file.length:
        return f"the copy has {copy.size_bytes} bytes instead of {file.length}"
    return "the copy has no sidecar" if file.sidecar_length and not copy.has_sidecar else None


def _has(path: StoragePath, name: SegmentName) -> bool:
    """Return True if the path has the copy, which may be newer than the listing, or if the path cannot be reached."""
    try:
        return path.has_segment(name)
    except StoragePathError:
        return True
