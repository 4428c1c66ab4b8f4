"""A backup of a root, taken while brokers and Spark run: a complete copy that is a root itself, without open journals.

    present segments ─> cursors table ─> main table ─> segments added meanwhile ─> journals ─> is main still the same?
                             ▲                                                                      │ no
                             └──────────────────────────────────────────────────────────────────────┘

Cursors are copied before messages, so a subscription's position is never after the copied messages. Journals are copied
last, and the attempt counts only if the main table did not change meanwhile: then every ledger and file in the journals
is in the copied metadata. The copy looks like a root after a power cut, and is treated like one: the brokers' journals
in it are recovered, sealed and removed. All storage paths of the copy are inside it; the original root's are not
touched.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import (
    FileRecord,
    HistoryRecord,
    HistoryTableRecord,
    IncarnationRecord,
    PathRecord,
    TopicRecord,
)
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import InvalidArgumentError, StorageError
from pulsar_on_spark.model.ids import IncarnationId, PathId
from pulsar_on_spark.storage import permissions
from pulsar_on_spark.storage.claim import CLAIM_NAME
from pulsar_on_spark.storage.durability import locked
from pulsar_on_spark.storage.files import OS_FILES, make_directory
from pulsar_on_spark.storage.health import APART, keeps_copies
from pulsar_on_spark.storage.local_path import LocalPath, local_paths
from pulsar_on_spark.topic.catalog.holds import require_held
from pulsar_on_spark.topic.catalog.progress import Progress, silent
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.backup import snapshot
from pulsar_on_spark.topic.maintenance.backup.snapshot import VanishedError
from pulsar_on_spark.topic.maintenance.repair.checking import CheckReport, check
from pulsar_on_spark.topic.maintenance.repair.repairing import repair
from pulsar_on_spark.topic.managed_ledger.incarnation.dead_brokers import recover_incarnation
from pulsar_on_spark.topic.managed_ledger.sealing.closed_journals import seal_closed

log = logging.getLogger(__name__)

ATTEMPTS: Final = 100
"""Maximum number of attempts to copy metadata and journals without a commit meanwhile. An attempt copies only what is
new, in well below a second."""
_PAUSE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class BackupReport:
    """The result of a backup.

    Attributes:
        target: The path of the backup, which is a root.
        files: Number of segment files in the backup.
        sealed_entries: Number of entries that were only in the root's journals, and are in segments of the backup.
        attempts: Number of times that metadata and journals were copied, until they did not change during a copy.
        check: The result of reading all copies in full, after bad copies were restored from good ones.
    """

    target: Path
    files: int
    sealed_entries: int
    attempts: int
    check: CheckReport


def back_up(root: RootHandle, target: Path, progress: Progress = silent) -> BackupReport:
    """Copy a root while brokers, writers and readers may continue.

    The backup gets the name `target` when it is complete. An interrupted backup leaves `<target>.unfinished-...`.

    Args:
        root: The root.
        target: A path where nothing exists yet. It becomes another root.
        progress: Called as the backup proceeds.

    Raises:
        InvalidArgumentError: the target exists, or is inside the root; or the root or one of its storage paths, except
            cold and history paths, is on an object store.
        StorageError: the metadata changed too fast, or the copy cannot be written.
        CopiesUnreachableError: a file's copies cannot be reached now; the copy stays unfinished.
        JournalUndecidedError: a journal cannot be recovered with the paths that can be read.
        MetadataError: the metadata cannot be read.
    """
    _require_local(root)
    _require_free(root.path, target)
    unfinished = target.with_name(f"{target.name}.unfinished-{secrets.token_hex(4)}")
    make_directory(OS_FILES, unfinished)
    permissions.set_mode(unfinished, permissions.mode_of(root.path))
    for name in ("metadata", "leases", "reports"):
        make_directory(OS_FILES, unfinished / name)
    snapshot.copy_once(root.path / "metadata" / "cluster-id", unfinished / "metadata" / "cluster-id")
    attempts = _copied(root, unfinished, progress)
    copy = RootHandle.open(unfinished)
    copy.store.commit(_with_own_paths)
    sealed = _close_journals(copy)
    checked = check(copy, progress=progress)
    if not checked.is_good:
        repair(copy, progress=progress)
        checked = check(copy, progress=progress)
    copy.store.commit(_with_cold_paths_read_only)
    for path_id in copy.current_storage_paths():
        # Repair has claimed cold paths for a root in the unfinished folder.
        (unfinished / _own_uri(path_id) / CLAIM_NAME).unlink(missing_ok=True)
    files = len(copy.store.view().all(FileRecord))
    snapshot.sync_all([unfinished])
    os.rename(unfinished, target)
    OS_FILES.fsync_directory(target.parent)
    return BackupReport(target, files, sealed, attempts, checked)


def _require_free(root: Path, target: Path) -> None:
    if target.exists():
        raise InvalidArgumentError(f"{target} exists: give a path where nothing exists yet.")
    if target.is_relative_to(root):
        raise InvalidArgumentError(f"{target} is inside the root {root}: give a path outside of it.")


def _require_local(root: RootHandle) -> None:
    """Refuse a root with a part on an object store, except offloaded segments (downloaded) and histories (left out)."""
    view = root.store.view()
    apart = {record.path_id for record in view.all(PathRecord) if record.role in APART}
    remote = [
        path_id
        for path_id, path in root.storage_paths(view).items()
        if not isinstance(path, LocalPath) and path_id not in apart
    ]
    if remote or not isinstance(root.place, Path):
        raise InvalidArgumentError(
            f"The root {root.place} cannot be backed up, because a part of it is on an object store: use the store's "
            "object versioning, which keeps deleted objects."
        )


def _copied(root: RootHandle, unfinished: Path, progress: Progress) -> int:
    """Copy until metadata and journals did not change during a copy. Return the number of attempts."""
    with suppress(VanishedError):
        _copy_files(root, root.store.view(), unfinished, progress)  # most files, so that attempts have few to copy
    disturbed = ""
    for attempt in range(1, ATTEMPTS + 1):
        with locked(root.path / "lock"):  # commits continue, but clean-up waits
            for table in ("cursors", "main"):
                snapshot.copy_table(root.path / "metadata" / table, unfinished / "metadata" / table)
        view = MetadataStore(unfinished).view()
        try:
            has_journals = _copy_files(root, view, unfinished, progress)
        except VanishedError as error:
            disturbed = f"{error} was deleted"
        else:
            if not has_journals or root.store.view().version == view.version:
                return attempt
            disturbed = "there were commits"
        time.sleep(random.uniform(0, _PAUSE_S))
    raise StorageError(
        f"The metadata of {root.path} changed during each of {ATTEMPTS} attempts to copy them with the journals "
        f"({disturbed}): pause Spark's writes, or stop the broker, and try again."
    )


def _copy_files(root: RootHandle, view: View, unfinished: Path, progress: Progress) -> bool:
    """Copy the segments and journals that the view names. Return True if there are journals."""
    sources = root.current_storage_paths()
    targets = {
        path_id: LocalPath(path_id, unfinished / _own_uri(path_id), root.cluster_id, path.label)
        for path_id, path in sources.items()
        if _is_believed(view, path_id)
    }
    for path in targets.values():
        path.create()
    try:
        absent = snapshot.copy_segments(view, sources, targets, progress)
    except OSError as error:
        raise StorageError(f"The backup {unfinished} cannot be written ({error}): make room, and try again.") from error
    if absent:
        now = root.store.view()
        for file_id in absent:
            record = now.get(FileRecord, file_id)
            known = view.get(FileRecord, file_id)
            if record is None or record.replaced_at is not None or known is None or record.names != known.names:
                raise VanishedError(f"a copy of file {file_id}")
            require_held(root, now, record)
            log.warning(
                "File %s has no readable copy: it is missing in the backup, too.",
                file_id,
                extra={"file": file_id},
            )
    return snapshot.copy_journals(view, local_paths(sources), targets)


def _is_believed(view: View, path_id: PathId) -> bool:
    record = view.get(PathRecord, str(path_id))
    return record is not None and record.state not in ("lost", "retired")


def _own_uri(path_id: int) -> str:
    return f"storage/{path_id}"


def _with_own_paths(view: View) -> Change:
    """Return the change that moves all storage paths into the copy's folder, so that none is another root's."""
    records = view.all(PathRecord)
    moved = [record.model_copy(update={"uri": _own_uri(record.path_id), "claims": ()}) for record in records]
    names = {topic.topic_id: topic.name for topic in view.all(TopicRecord)}
    # Histories' tables are not copied.
    histories: list[HistoryRecord | HistoryTableRecord] = [*view.all(HistoryRecord), *view.all(HistoryTableRecord)]
    moves: dict[str, int | None] = {keys.path(record.path_id): None for record in records}
    moves |= {keys.topic(names[record.topic_id]): None for record in histories if record.topic_id in names}
    return Change(puts=moved, deletes=histories, keys=moves)


def _with_cold_paths_read_only(view: View) -> Change | None:
    """Return the change that makes the cold paths read-only; None if there are none.

    The copies of cold paths are folders on the copy's disk, to which no file must be offloaded.
    """
    cold = [record for record in view.all(PathRecord) if record.role == "cold" and keeps_copies(record.state)]
    changed = {"state": "read-only", "reason": "", "failed_at": None, "claims": ()}
    closed = [record.model_copy(update=changed) for record in cold]
    return Change(puts=closed, keys={keys.path(record.path_id): None for record in closed}) if closed else None


def _close_journals(copy: RootHandle) -> int:
    """Recover, seal and remove all journals of the copy. Return the number of sealed entries."""
    for record in copy.store.view().all(IncarnationRecord):
        if record.state != "CLOSED":
            recover_incarnation(copy, IncarnationId(record.incarnation))
    problems: list[str] = []
    entries = 0
    for _ in range(2):  # the first call commits the trim, the second deletes the files
        entries += seal_closed(copy, problems.append, grace_s=0).sealed_entries
    for problem in problems:
        log.warning("A journal could not be sealed and is backed up unsealed: %s", problem)
    return entries
