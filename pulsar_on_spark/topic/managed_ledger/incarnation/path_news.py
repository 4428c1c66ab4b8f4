"""Changes of storage paths while a journal is written: failed paths are marked, and healthy paths are offered again."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence

from pulsar_on_spark.ledger.journal.journal import Journal
from pulsar_on_spark.ledger.journal.places import JournalPath
from pulsar_on_spark.metadata.records import PathRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import MetadataError, StoragePathError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.probe import Trials
from pulsar_on_spark.storage.storage_path import PathFailure
from pulsar_on_spark.topic.catalog.root_handle import RootHandle

log = logging.getLogger(__name__)


class PathNews:
    """The storage paths that were offered to a journal, and their changes in the metadata since.

    `mark_failed` is called in the thread of the journal's register. `fresh_view` is called in the poll's thread, and
    after it `tell` in the event loop's thread.
    """

    def __init__(self, root: RootHandle, known: Iterable[JournalPath]) -> None:
        """Begin with the paths with which the journal is opened, as the paths that were offered."""
        self._root = root
        self._known = {path.path_id for path in known}
        self._failed: set[PathId] = set()
        self._unmarked: dict[PathId, PathFailure] = {}
        self._offers: list[JournalPath] = []
        self._to_leave: list[PathId] = []
        self._trials = Trials()

    def mark_failed(self, failures: Sequence[PathFailure]) -> None:
        """Mark paths that the journal has given up as failed, so that no writer uses them.

        Errors are those of `RootHandle.mark_failed`. After an error, for example because the disk of the metadata is
        also full, `fresh_view` tries again to mark the paths.
        """
        self._unmarked.update({failure.path_id: failure for failure in failures})
        self._mark()

    def _mark(self) -> None:
        if unmarked := dict(self._unmarked):
            self._root.mark_failed(list(unmarked.values()))
            self._failed.update(unmarked)
            for path_id in unmarked:
                self._unmarked.pop(path_id, None)

    def fresh_view(self) -> View:
        """Return a new view, and find in it the paths to offer (new, or healthy again), and the paths to withdraw.

        The set of failed paths is copied before the view is read. These paths were marked in the metadata before, so a
        path of the set that the view shows as writable is healthy again. If too few paths are writable, failed paths
        are tried at growing intervals.
        """
        with contextlib.suppress(MetadataError):
            self._mark()
        failed = set(self._failed)
        view = self._root.store.view()
        writable = self._root.writable_journal_paths(view)
        self._to_leave = [
            PathId(record.path_id)
            for record in view.all(PathRecord)
            if record.path_id in self._known and record.state in ("draining", "lost", "retired")
        ]
        marked = {r.path_id: r.reason for r in view.all(PathRecord) if r.state == "read-only"}
        self._offers = [
            path
            for path in writable
            if path.path_id not in self._known
            or (path.path_id in failed and (path.path_id not in marked or self._seems_well(path, marked[path.path_id])))
        ]
        self._root.announce_journals(self._offers)
        return view

    def _seems_well(self, path: JournalPath, reason: str) -> bool:
        if not self._trials.may_try(path.path_id) or not self._trials.try_out(path, reason).is_well:
            return False
        self._trials.record_trial(path.path_id)
        return True

    def tell(self, journal: Journal) -> None:
        """Offer the journal the new and healthy paths of the last `fresh_view`, and withdraw the paths to leave."""
        for path_id in self._to_leave:
            self._known.discard(path_id)
            self._failed.discard(path_id)
            journal.withdraw_path(path_id)
        for path in self._offers:
            self._known.add(path.path_id)
            self._failed.discard(path.path_id)
            try:
                journal.offer_spare(path)
            except StoragePathError as error:
                log.warning("A journal cannot use a storage path: %s", error, extra={"path": path.path_id})
