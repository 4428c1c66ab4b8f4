"""Garbage collection of segment files: listings of storage paths find candidates, and the metadata decide.

A durable view of the metadata alone decides the fate of a file that a listing shows. The verdict on a write id is its
`WriteRecord`:

    the copy's record    verdict on its write id      fate
    -------------------  ---------------------------  --------------------------------------------------------------
    of a live file       -                            kept while a topic names the file; then it is marked as replaced,
                                                      kept for ten minutes more, and deleted
    none                 committed                    deleted: the leftover of a retried or speculative task, or a copy
                                                      that a repair has replaced
    none                 aborted                      deleted
    none                 none yet                     kept until it is a day old; then the write is aborted, by a commit
                                                      under the key that its attach or repair needs too, and the file
                                                      is deleted

So a slow writer and a collection never both win: the later commit sees the verdict of the earlier one. A file that
is *missing* in a listing decides nothing.
"""

from __future__ import annotations

import logging
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import FileRecord, Record, WriteRecord
from pulsar_on_spark.metadata.state import DurableView, View
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import StoragePathError
from pulsar_on_spark.model.ids import FileId, PathId, WriteId
from pulsar_on_spark.storage.reports import Finding, clear_report, read_reports
from pulsar_on_spark.storage.storage_path import StoragePath, StoredFile
from pulsar_on_spark.topic.catalog.catalog import named_files
from pulsar_on_spark.topic.catalog.holds import unheld_paths
from pulsar_on_spark.topic.catalog.progress import Progress, silent
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.files.claims import claim

log = logging.getLogger(__name__)

DAY_S = 24 * 3600.0
SOLE_TIMES = 7
_OWN_FILE_ID = re.compile(r"[0-9a-f]{32}-[0-9a-f]+")
"""Pattern of the file ids that collection handles; it ignores all other files."""
_COMMIT_RECORDS = 1_000
"""Maximum number of records that one commit changes: larger commits conflict with those of other writers more often."""
CLAIMED_DELETIONS = 20
"""Number of deletions after which the claims on cold paths are read again."""


@dataclass(frozen=True, slots=True)
class Ages:
    """Minimum ages, in seconds, of files that may still be in use.

    Attributes:
        abort_after_s: Age at which an uncommitted write is aborted: the age of its newest file. Unfinished files of
            this age are deleted.
        keep_replaced_s: Time for which a file is kept after the last segment record that named it, for running reads.
        keep_verdicts_s: Minimum time for which committed verdicts are kept. For a write without a transaction it is
            `SOLE_TIMES` as long: a driver that was suspended during its commit can learn only from the verdict that the
            write is done.
    """

    abort_after_s: float = DAY_S
    keep_replaced_s: float = 600.0
    keep_verdicts_s: float = DAY_S


DEFAULT_AGES = Ages()


@dataclass(frozen=True, slots=True)
class CollectReport:
    """The result of a collection: numbers of writes, files, bytes and verdicts.

    `retired_files` were marked as replaced. `skipped_paths` has a reason for each storage path that was not collected.
    """

    aborted_writes: int = 0
    retired_files: int = 0
    deleted_files: int = 0
    deleted_bytes: int = 0
    cleared_verdicts: int = 0
    skipped_paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Nominee:
    """A candidate for deletion: a stored file, and the storage path that lists it."""

    path: StoragePath
    stored: StoredFile

    @property
    def write_id(self) -> WriteId:
        """The write id in the copy's name."""
        return self.stored.name.write_id


def collect(
    root: RootHandle,
    ages: Ages = DEFAULT_AGES,
    progress: Progress = silent,
    clock: float | None = None,
) -> CollectReport:
    """Collect garbage once.

    Args:
        root: The root.
        ages: The minimum ages of files that may still be in use.
        progress: Called as the collection proceeds.
        clock: The time by which ages are computed, in seconds since 1970; None for now.

    Raises:
        MetadataError: the metadata cannot be read or written. Metadata that cannot be read never lead to a deletion.
    """
    now_s = time.time() if clock is None else clock
    store = root.store
    nominees, skipped = _listed(root, now_s)
    aborted = _abort(store, nominees, ages, now_s)
    retired = _retire(store, now_s)
    view = store.view(durable=True)
    collected = _replaced(view, ages, now_s)
    doomed = [nominee for nominee in nominees if is_garbage(view, nominee, collected, ages)]
    refused = claim(root, {nominee.path.path_id for nominee in doomed})
    files, size_bytes = _delete(root, view, doomed, refused, progress)
    skipped += refused.values()
    _tombstone(store, collected)
    deleted = {nominee.write_id for nominee in doomed if nominee.path.path_id not in refused}
    remaining = {nominee.write_id for nominee in nominees} - deleted
    cleared = _clear_verdicts(store, remaining, ages, now_s)
    _clear_reports(root, read_reports(root.place), store.view(durable=True))
    return CollectReport(aborted, retired, files, size_bytes, cleared, tuple(skipped))


def is_garbage(view: DurableView, nominee: Nominee, collected: Mapping[str, FileRecord], ages: Ages) -> bool:
    """Return True if a stored file may be deleted.

    Args:
        view: The metadata, read after the listing.
        nominee: The file.
        collected: The files that were replaced longer ago than `keep_replaced_s`, and that no topic in the view names.
        ages: The minimum ages.
    """
    stored = nominee.stored
    if stored.name.file_id in collected:
        return True
    if stored.is_tmp and stored.age_s < ages.abort_after_s:
        return False  # a task may still be writing it, even if its write is decided
    file = view.get(FileRecord, stored.name.file_id)
    if file is not None and file.names.get(nominee.path.path_id) == stored.name:
        return stored.is_tmp
    # A write that a live record names is committed, even if its verdict has been cleared since.
    is_decided = file is not None and stored.name.write_id == file.write_id
    return is_decided or view.get(WriteRecord, stored.name.write_id) is not None


def write_ids(view: View) -> set[WriteId]:
    """Return the write ids of the copies that records name. These writes are committed even without a verdict."""
    files = view.all(FileRecord)
    repaired = {name.write_id for file in files if file.generations for name in file.names.values()}
    return repaired | {WriteId(file.write_id) for file in files}


# --- steps ---


def _listed(root: RootHandle, now_s: float) -> tuple[list[Nominee], list[str]]:
    """Return the stored files of the paths that can be listed and changed, and a reason for each other path."""
    nominees: list[Nominee] = []
    skipped = []
    view = root.store.view()
    paths = root.storage_paths(view)
    unheld = unheld_paths(root, view, paths)
    for path_id, path in paths.items():
        if path_id in unheld:
            skipped.append(unheld[path_id].reason)
            continue
        try:
            listed = path.segment_files(now_s)
            nominees += [Nominee(path, stored) for stored in listed if _OWN_FILE_ID.fullmatch(stored.name.file_id)]
        except StoragePathError as error:
            log.warning(
                "Garbage collection skips storage path %d: %s", path.path_id, error, extra={"path": path.path_id}
            )
            skipped.append(str(error))
    return nominees, skipped


def _abort(store: MetadataStore, nominees: Iterable[Nominee], ages: Ages, now_s: float) -> int:
    """Abort the writes without a verdict whose files are all older than `abort_after_s`. Return their number."""
    youngest: dict[WriteId, float] = defaultdict(lambda: float("inf"))
    for each in nominees:
        youngest[each.write_id] = min(youngest[each.write_id], each.stored.age_s)
    old = sorted(write_id for write_id, age_s in youngest.items() if age_s >= ages.abort_after_s)
    view = store.view()
    aborted = 0
    for some in _chunks([write_id for write_id in old if view.get(WriteRecord, write_id) is None]):
        undecided: list[str] = []

        def decide(view: View, some: Sequence[str] = some) -> Change | None:
            nonlocal undecided
            known = write_ids(view)
            undecided = [each for each in some if each not in known and view.get(WriteRecord, each) is None]
            if not undecided:
                return None
            return Change(
                puts=[WriteRecord(write_id=each, status="aborted", decided_at=_time(now_s)) for each in undecided],
                keys={keys.write_bucket(each): None for each in undecided},
            )

        store.commit(decide)
        aborted += len(undecided)
    return aborted


def _retire(store: MetadataStore, now_s: float) -> int:
    """Mark as replaced the files that no topic names, because their topics were deleted. Return their number."""
    retired = 0

    def decide(view: View) -> Change | None:
        nonlocal retired
        named = named_files(view)
        unnamed = [file for file in view.all(FileRecord) if file.replaced_at is None and file.file_id not in named]
        some = unnamed[:_COMMIT_RECORDS]
        retired = len(some)
        puts = [file.model_copy(update={"replaced_at": _time(now_s)}) for file in some]
        return Change(puts=puts, keys={keys.FILES: None}) if puts else None

    total = 0
    while True:
        store.commit(decide)
        total += retired
        if retired < _COMMIT_RECORDS:
            return total


def _replaced(view: DurableView, ages: Ages, now_s: float) -> dict[str, FileRecord]:
    """Return, by id, the files that were replaced longer ago than `keep_replaced_s` and that no topic names."""
    named = named_files(view)
    limit = _time(now_s - ages.keep_replaced_s)
    return {
        file.file_id: file
        for file in view.all(FileRecord)
        if file.replaced_at is not None and file.replaced_at <= limit and file.file_id not in named
    }


def _delete(
    root: RootHandle, view: View, doomed: Sequence[Nominee], refused: dict[PathId, str], progress: Progress
) -> tuple[int, int]:
    """Delete files. Return their number and their bytes. A file that cannot be deleted is left to the next pass.

    Deletions are not synced: a file that reappears after a power cut is still garbage. A path that another copy of the
    root takes over meanwhile is added to `refused`, and keeps its other files.
    """
    count = size_bytes = 0
    for number, nominee in enumerate(doomed):
        progress("collect", number, len(doomed))
        if number and number % CLAIMED_DELETIONS == 0:
            following = {each.path.path_id for each in doomed[number : number + CLAIMED_DELETIONS]}
            unheld = unheld_paths(root, view, following - refused.keys())
            refused |= {path_id: each.reason for path_id, each in unheld.items()}
        if nominee.path.path_id in refused:
            continue
        try:
            if not nominee.path.delete_stored(nominee.stored):
                continue  # another collection has deleted it
        except StoragePathError as error:
            log.warning(
                "File %s is not deleted yet: %s", nominee.stored.location, error, extra={"path": nominee.path.path_id}
            )
            continue
        count += 1
        size_bytes += nominee.stored.size_bytes
    progress("collect", len(doomed), len(doomed))
    return count, size_bytes


def _tombstone(store: MetadataStore, collected: Mapping[str, FileRecord]) -> None:
    """Delete the records of collected files.

    A copy on a path that cannot be reached now stays, with a committed verdict and no record, until a later collection
    deletes the copy.
    """
    for some in _chunks(sorted(collected)):

        def decide(view: View, some: Sequence[str] = some) -> Change | None:
            records = [view.get(FileRecord, file_id) for file_id in some]
            deletes: list[Record] = [file for file in records if file is not None]
            return Change(deletes=deletes, keys={keys.FILES: None}) if deletes else None

        store.commit(decide)


def _clear_verdicts(store: MetadataStore, remaining: set[WriteId], ages: Ages, now_s: float) -> int:
    """Delete old verdicts of committed writes without remaining files. Return their number.

    Verdicts of aborted writes are never deleted. If a file of a committed write appears after its verdict was deleted,
    on a path that could not be reached, the write is aborted, because it has no verdict.
    """
    view = store.view()
    used = write_ids(view) | remaining
    limits = [_time(now_s - times * ages.keep_verdicts_s) for times in (1, SOLE_TIMES)]
    old = [
        verdict.write_id
        for verdict in view.all(WriteRecord)
        if verdict.status == "committed"
        and verdict.decided_at is not None
        and verdict.decided_at <= limits[verdict.is_sole]
    ]
    cleared = 0
    for some in _chunks([write_id for write_id in old if write_id not in used]):

        def decide(view: View, some: Sequence[str] = some) -> Change | None:
            nonlocal cleared
            verdicts = [view.get(WriteRecord, write_id) for write_id in some]
            deletes = [verdict for verdict in verdicts if verdict is not None and verdict.status == "committed"]
            moved: dict[str, int | None] = {keys.write_bucket(verdict.write_id): None for verdict in deletes}
            return Change(deletes=deletes, keys=moved) if deletes else None

        store.commit(decide)
        cleared += len(some)
    return cleared


def _clear_reports(root: RootHandle, reports: Iterable[Finding], view: DurableView) -> None:
    """Clear the reports about files that no longer exist."""
    for report in reports:
        if view.get(FileRecord, FileId(report.file_id)) is None:
            clear_report(root.place, report)


def _time(seconds: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), _COMMIT_RECORDS):
        yield ids[start : start + _COMMIT_RECORDS]
