"""Trimming of journals: files are deleted after the main table shows durably that no reader needs them.

    a CLOSED log is completely sealed      -> commit a close row for each of its ledgers
    cursor records are not in the table    -> append them if the log is CLOSED; the owner of an OPEN log appends its own
    fragments are sealed, cursors saved    -> commit the trim
    the grace period for readers is over   -> delete the files, by the names in the record, never by a listing
    files of a CLOSED log are deleted      -> remove them from its record; delete the record after the last file

Each step depends only on earlier commits. So a trimmer may be killed anywhere, and several trimmers may run at the same
time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pulsar_on_spark.ledger.journal.frames import Frame
from pulsar_on_spark.ledger.journal.journal_paths import clear_incarnation, delete_file, file_name, journal_incarnations
from pulsar_on_spark.ledger.journal.log import Copy, FrameNumber, LogState
from pulsar_on_spark.ledger.journal.places import JournalPath
from pulsar_on_spark.ledger.journal.sealing import deleted_before, files_to_delete
from pulsar_on_spark.metadata.records import IncarnationRecord, PathRecord
from pulsar_on_spark.metadata.state import DurableView, View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import InvalidArgumentError, StorageError
from pulsar_on_spark.model.ids import IncarnationId, JournalFileId, PathId
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.managed_ledger.sealing.journal_cursors import (
    CursorKey,
    CursorsInFrames,
    Rank,
    not_snapshotted,
    snapshot_cursors,
)
from pulsar_on_spark.topic.managed_ledger.sealing.journal_frames import frames_of
from pulsar_on_spark.topic.managed_ledger.sealing.seals import (
    SealedLog,
    decide_close,
    decide_prune,
    decide_trim,
    sealed_log,
    trimmable_before,
)

log = logging.getLogger(__name__)

GRACE_S = 10.0
"""Seconds for which files are kept after their trim, for readers that still use a view from before the trim."""
_MAX_CLOSE_COMMITS = 10_000


@dataclass(frozen=True, slots=True)
class TrimReport:
    """The result of one call of `Trimmer.trim`.

    Attributes:
        deleted_files: Number of journal files deleted, counting each copy.
        deleted_before: The frame below which all files are deleted; the writer of an OPEN log may drop these frames
            (`Journal.forget_trimmed_frames`).
        waiting_cursors: Subscriptions whose cursor records are not in the table yet, so that journal files are kept.
        is_cleared: True if the log is removed completely.
    """

    deleted_files: int = 0
    deleted_before: FrameNumber = 0
    waiting_cursors: tuple[CursorKey, ...] = ()
    is_cleared: bool = False


class Trimmer:
    """Trimmer of one incarnation's log.

    Args:
        root: The root.
        incarnation: The log's incarnation.
        cursors: The cursor records that the log's sealer has read. The trimmer reads missing frames from the journal.
        waiting_for: Replacement of `not_snapshotted`, for tests.
        grace_s: Seconds for which files are kept after their trim.
        files: The file operations of the operating system.
    """

    def __init__(
        self,
        root: RootHandle,
        incarnation: IncarnationId,
        cursors: CursorsInFrames | None = None,
        *,
        waiting_for: Callable[[Mapping[CursorKey, Rank]], list[CursorKey]] | None = None,
        grace_s: float = GRACE_S,
        files: FileOps = OS_FILES,
    ) -> None:
        self._root = root
        self._incarnation = incarnation
        self._cursors = cursors or CursorsInFrames()
        self._waiting_for = waiting_for or (lambda ranks: not_snapshotted(root.store, ranks))
        self._grace = timedelta(seconds=grace_s)
        self._files = files
        self._deleted: set[Copy] = set()
        self._kept: set[Copy] = set()
        """Files that could not be deleted, each of which was logged once."""
        self._waiting: tuple[CursorKey, ...] = ()

    def trim(self) -> TrimReport:
        """Take all steps of trimming that are possible now, from close rows to the deletion of files.

        Raises:
            JournalUndecidedError: a frame whose cursor records are needed cannot be read from any copy.
            CorruptCursorError: a cursor record is damaged.
            MetadataError: the metadata cannot be read or written.
        """
        for _ in range(_MAX_CLOSE_COMMITS):
            if not self._committed(lambda view: decide_close(view, self._incarnation)):
                break
        return self._trim(self._root.store.view(durable=True))

    def _trim(self, view: DurableView) -> TrimReport:
        log_ = sealed_log(view, self._incarnation)
        if log_ is None or log_.record.state is LogState.IN_RECOVERY:
            return TrimReport(is_cleared=log_ is None)
        if log_.is_sealed:
            self._snapshot(log_)
        self._waiting = ()
        before = trimmable_before(log_, lambda begin, end: self._is_snapshotted(log_, begin, end))
        if before > log_.seal.trimmed_before:
            now = datetime.now(UTC)
            self._root.store.commit(lambda view: decide_trim(view, self._incarnation, before, now))
        return self._delete(self._root.store.view(durable=True))

    # -- cursor records ------------------------------------------------------------------------------------------------

    def _is_snapshotted(self, found: SealedLog, begin: FrameNumber, end: FrameNumber) -> bool:
        ranks = self._cursors.newest_within(begin, end)
        if ranks is None:
            cursors = CursorsInFrames(begin, begin)
            for frame in self._frames(found, begin, end):
                _pass_given_up(cursors, found)
                cursors.add_frames([frame])
            _pass_given_up(cursors, found)
            ranks = cursors.newest_within(begin, end)
            assert ranks is not None, "all frames were looked at"
        self._waiting = tuple(self._waiting_for(ranks))
        return not self._waiting

    def _snapshot(self, found: SealedLog) -> None:
        """Append the cursors of a CLOSED log, which has no live owner to do so, to the cursors table."""
        snapshot_cursors(self._root.store, self._frames(found, found.floor, found.seal.sealed_before))

    def _frames(self, found: SealedLog, begin: FrameNumber, end: FrameNumber) -> Iterator[Frame]:
        return frames_of(found, self._root.current_journal_paths, begin, end, self._files)

    # -- files ---------------------------------------------------------------------------------------------------------

    def _delete(self, view: DurableView) -> TrimReport:
        """Delete the files of the frames that are trimmed in this view."""
        log_ = sealed_log(view, self._incarnation)
        trimmed_at = None if log_ is None else log_.seal.trimmed_at
        # A trim time in the future means that the clock was set back; the files need not be kept until then.
        if log_ is None or (trimmed_at and timedelta(0) <= datetime.now(UTC) - trimmed_at < self._grace):
            return TrimReport(waiting_cursors=self._waiting, is_cleared=log_ is None)
        paths = self._root.journal_paths(view)
        lost = {PathId(path.path_id) for path in view.all(PathRecord) if path.state in ("lost", "retired")}
        doomed = files_to_delete(log_.record, log_.seal.trimmed_before)
        count = 0
        for copy in doomed:
            if copy.path in lost:
                self._deleted.add(copy)
            elif copy not in self._deleted and (path := paths.get(copy.path)) is not None:
                count += self._delete_file(path, copy)
        before = deleted_before(log_.record, log_.seal.trimmed_before, self._deleted)
        self._cursors.forget_frames(before)
        self._committed(lambda view: decide_prune(view, self._incarnation, self._deleted))
        after = self._root.store.view(durable=True)
        is_cleared = sealed_log(after, self._incarnation) is None
        if is_cleared:
            clear_directories(self._root, after)
        return TrimReport(count, before, self._waiting, is_cleared)

    def _delete_file(self, path: JournalPath, copy: Copy) -> int:
        """Delete a journal file, and return the number of deleted files; 0 if its path cannot be reached now."""
        file = JournalFileId(copy.file)
        try:
            count = delete_file(path, self._incarnation, file, self._files)
        except (StorageError, OSError) as error:
            if copy not in self._kept:
                self._kept.add(copy)
                name = file_name(path, self._incarnation, file)
                log.warning("%s is not deleted yet: %s", name, error, extra={"path": path.path_id})
            return 0
        self._deleted.add(copy)
        return count

    def _committed(self, decide: Callable[[View], Change | None]) -> bool:
        """Commit a decision. Return True if there was a change to commit."""
        done = False

        def noted(view: View) -> Change | None:
            nonlocal done
            change = decide(view)
            done = change is not None
            return change

        self._root.store.commit(noted)
        return done


def _pass_given_up(seen: CursorsInFrames, found: SealedLog) -> None:
    """Skip the frames that were given up, because their cursor records cannot be read."""
    for begin, end in found.given_up:
        if begin <= seen.end < end:
            seen.pass_over(seen.end, end)


def clear_directories(root: RootHandle, view: DurableView) -> int:
    """Delete the files on storage paths of incarnations whose log was removed; return the number of deleted files.

    A listing names the incarnations, and an incarnation's files are deleted only if the view shows that its record was
    deleted. Files of incarnations that never had a record are kept.
    """
    count = 0
    for path in root.journal_paths(view).values():
        try:
            incarnations = journal_incarnations(path)
        except (StorageError, OSError) as error:
            log.debug("The journals on %s are skipped: %s", path, error, extra={"path": path.path_id})
            continue
        for incarnation in incarnations:
            row = view.last(IncarnationRecord, incarnation)
            if row is not None and view.get(IncarnationRecord, incarnation) is None:
                with suppress(OSError, StorageError, InvalidArgumentError):  # a later pass tries again
                    count += clear_incarnation(path, incarnation)
    return count
