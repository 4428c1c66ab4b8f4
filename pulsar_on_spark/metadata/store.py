"""The metadata store of a root: compare-and-set on the main table, blind appends to `cursors`, housekeeping of both."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, TypeVar, overload

import pyarrow as pa

from pulsar_on_spark.metadata import state
from pulsar_on_spark.metadata.cursors import CursorRow, Cursors
from pulsar_on_spark.metadata.cursors_table import CURSORS_ORDER, CURSORS_SCHEMA, decode_cursors, encode_cursors
from pulsar_on_spark.metadata.log import folding
from pulsar_on_spark.metadata.log.creation import check_location, create_table
from pulsar_on_spark.metadata.log.data_files import decoding
from pulsar_on_spark.metadata.log.delta_handle import StaleHandleError
from pulsar_on_spark.metadata.log.delta_log import DeltaLog
from pulsar_on_spark.metadata.patience import give_up_after, retried
from pulsar_on_spark.metadata.records import Record, RootRecord, SubscriptionRecord
from pulsar_on_spark.metadata.state import DurableView, State, View
from pulsar_on_spark.model.errors import CommitConflictError, FormatVersionError, MetadataError, NotARootError
from pulsar_on_spark.model.latencies import Latencies
from pulsar_on_spark.storage.durability import fsync_path, locked

FORMAT_VERSION = 1
_LOCK = "lock"
_ATTEMPTS = 60
_BACKOFF_MAX_S = 0.5
_HOUSEKEEPING_ENTRIES = 64
"""Number of log entries after the last checkpoint at which a committer folds and writes a checkpoint."""
_LOGGER = logging.getLogger(__name__)
FORGET_TOMBSTONES_AFTER = timedelta(hours=1)

_FORGOTTEN_KINDS = ("segment", "file", "ledger", "write", "seal")
"""Kinds with an endless stream of records, whose old tombstones are dropped by full folds (docs/adr/0001)."""


@dataclass(frozen=True)
class Change:
    """Content of one commit: records to put, records to delete, and the keys whose version it increases.

    A key's value is its new version; None means one more than now, the usual compare-and-set.
    """

    puts: Sequence[Record] = ()
    deletes: Sequence[Record] = ()
    keys: Mapping[str, int | None] = field(default_factory=dict)


_T = TypeVar("_T")
Decide = Callable[[View], Change | None]


class MetadataStore:
    """The two metadata tables of one root, for one process. Thread-safe."""

    def __init__(self, root: Path) -> None:
        """Open the tables.

        Raises:
            NotARootError: `root` has no metadata tables.
            FormatVersionError: a newer version of this project wrote them.
            InvalidArgumentError: the Delta library cannot handle the path.
            MetadataError: the tables are damaged.
        """
        self._root = Path(os.path.abspath(root))
        self._lock = threading.RLock()
        self.commits = Latencies()
        """Durations of commits to the main table, including attempts that conflicted."""
        self.cursor_commits = Latencies()
        """Durations of appends to `cursors`."""
        self._main = self._retried("main", lambda: self._log("main"))
        self._state = State()
        self._views: weakref.WeakSet[View] = weakref.WeakSet()
        self._cursor_log: DeltaLog | None = None
        self._cursors = Cursors()
        self.root_record = self._checked_root(self.view())

    def _checked_root(self, view: View) -> RootRecord:
        row = view.state.row(RootRecord.kind, "root")
        if row is None or row.deleted:
            raise NotARootError(
                f"{self._root} has metadata tables but no root record: run `pulsarpy init {self._root}` again."
            )
        # Checked before the record is parsed: a newer version may have changed its fields.
        version = (row.values() or {}).get("format_version")
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise FormatVersionError(
                f"The root {self._root} has format version {version}, and this version of pulsar_on_spark reads up to "
                f"{FORMAT_VERSION}: upgrade pulsar_on_spark."
            )
        return row.record(RootRecord)

    @staticmethod
    def exists(root: Path) -> bool:
        """True if `root` has a main table."""
        return (root / "metadata" / "main" / "_delta_log").is_dir()

    @classmethod
    def create(cls, root: Path, first: Sequence[Record]) -> MetadataStore:
        """Create the tables and commit `first`, or complete an interrupted creation.

        If several processes create one root concurrently, the `first` of one of them is committed.
        """
        root = Path(os.path.abspath(root))
        check_location(root)
        root.mkdir(parents=True, exist_ok=True)
        lock_file = root / _LOCK
        with locked(lock_file):
            for name, schema in (("cursors", CURSORS_SCHEMA), ("main", state.MAIN_SCHEMA)):
                create_table(root / "metadata" / name, schema, lock_file)
            for directory in (root, root.parent):
                fsync_path(directory)
            log = DeltaLog(root / "metadata" / "main", lock_file)
            if log.version == 0:
                token = uuid.uuid4().hex
                log.append(state.encode(((record, False) for record in first), 1, token, ("root",)), {"root": 1}, token)
        return cls(root)

    def _log(self, name: str) -> DeltaLog:
        directory = self._root / "metadata" / name
        if not (directory / "_delta_log").is_dir():
            raise NotARootError(
                f"{self._root} is not a pulsar_on_spark root: give the path of one, or make it with "
                f"`pulsarpy init {self._root}`."
            )
        return DeltaLog(directory, self._root / _LOCK)

    # -- main ------------------------------------------------------------------------------------------------------

    @overload
    def view(self) -> View: ...

    @overload
    def view(self, *, durable: Literal[True]) -> DurableView: ...

    def view(self, *, durable: bool = False) -> View:
        """Read the main table's newest version.

        Args:
            durable: sync everything up to the returned version first; for callers that report, delete or skip
                something because of what they read.

        Raises:
            MetadataError: the table cannot be read or synced.
        """

        def read() -> View:
            view = self._read_main()
            if durable:
                self._main.sync_to(view.version)
                view = DurableView(view.state, view.version)
                self._views.add(view)
            return view

        return self._retried("main", read)

    def _read_main(self) -> View:
        return self._take_in(self._main.refresh())

    def _take_in(self, news: tuple[bool, list[pa.Table]]) -> View:
        rebuild, tables = news
        if rebuild:
            self._state = State(after=self._state)
        elif tables and any(view.state is self._state for view in self._views):
            self._state = self._state.fork()
        with decoding(self._root / "metadata" / "main"):
            for table in tables:
                self._state.apply(table)
        if rebuild:
            # After a large table, Arrow would keep its memory for reuse: 100 MB at 50,000 rows.
            tables.clear()
            pa.default_memory_pool().release_unused()
        self._main.taken_in()
        view = View(self._state, self._main.version)
        self._views.add(view)
        return view

    def _retried(self, table: str, read: Callable[[], _T]) -> _T:
        return retried(self._lock, self._root / "metadata" / table, read)

    def key_version(self, key: str) -> int | None:
        """The version of a key as of the last view; None before its first commit."""
        with self._lock:
            return self._main.key_version(key)

    def commit(self, decide: Decide) -> View:
        """Decide on a fresh view and commit; repeat both until no other writer interferes.

        `decide` is called at each attempt and must not keep state of an earlier one. It returns None if there is
        nothing to do; the view that it saw is then durable on return.

        Returns:
            The view after the commit.

        Raises:
            CommitConflictError: all 60 attempts conflicted with other writers.
            MetadataError: the table cannot be read, or the commit not be written.
        """
        began_s = time.perf_counter()
        unreadable = 0
        for attempt in range(_ATTEMPTS):
            try:
                with self._lock:
                    done = self._attempt(decide)
                    if done is not None:
                        self.commits.observe(time.perf_counter() - began_s)
                        return done
            except StaleHandleError as error:
                unreadable += 1
                give_up_after(unreadable, self._root / "metadata" / "main", error)
            time.sleep(random.uniform(0, min(_BACKOFF_MAX_S, 0.01 * 2**attempt)))
        raise CommitConflictError(
            f"A commit to {self._root}/metadata/main lost {_ATTEMPTS} attempts to other writers: try again."
        )

    def _attempt(self, decide: Decide) -> View | None:
        view = self._read_main()
        change = decide(view)
        version = view.version
        if self._main.version != version:
            return None  # `decide` itself read or committed: the keys would be checked against another version
        if change is None:
            self._main.sync_to(version)
            return view
        del view  # without another reference to the view, its state need not be copied
        done = self._try_commit(change, version)
        if done is not None:
            self._housekeep_if_due()
        return done

    def _try_commit(self, change: Change, version: int) -> View | None:
        assert change.keys, "every commit to the main table is a compare-and-set"
        rows = [*((record, False) for record in change.puts), *((record, True) for record in change.deletes)]
        names = {(record.kind, record.record_id) for record, _ in rows}
        assert len(names) == len(rows), "a change names a record once"
        token = uuid.uuid4().hex
        try:
            keys = {
                key: (self._main.key_version(key) or 0) + 1 if wanted is None else wanted
                for key, wanted in change.keys.items()
            }
            table = state.encode(rows, version + 1, token, keys)
            own_file = self._main.append(table, keys, token)
        except StaleHandleError as error:
            view = self._retried("main", lambda: self._found(token, version))
            if view is None and error.refused:
                raise MetadataError(_refusal(self._root, error)) from error
            return view
        try:
            rebuild, news = self._main.take_in(own_file)
        except StaleHandleError:
            return self.view()
        return self._take_in((rebuild, news if rebuild or own_file is None else [table, *news]))

    def _found(self, token: str, after_version: int) -> View | None:
        """The durable view after a commit with unknown outcome; None if the commit did not happen."""
        view = self._read_main()
        version_of_commit = self._main.find_commit(token, after_version)
        if version_of_commit is None:
            return None
        self._main.sync_to(version_of_commit)
        return view

    # -- cursors ---------------------------------------------------------------------------------------------------

    def cursors(self, *, durable: bool = False) -> Cursors:
        """Read the cursor rows that count.

        Args:
            durable: as for `view`.

        Raises:
            MetadataError: the table cannot be read or synced.
        """

        def read() -> Cursors:
            log = self._read_cursors()
            if durable:
                log.sync_to(log.version)
            return self._cursors

        return self._retried("cursors", read)

    def _read_cursors(self) -> DeltaLog:
        log = self._opened_cursor_log()
        rebuild, tables = log.refresh()
        if rebuild:
            self._cursors = Cursors()
        with decoding(self._root / "metadata" / "cursors"):
            self._cursors = self._cursors.having(row for table in tables for row in decode_cursors(table))
        log.taken_in()
        return log

    def _opened_cursor_log(self) -> DeltaLog:
        if self._cursor_log is None:
            self._cursor_log = self._log("cursors")
        return self._cursor_log

    def append_cursors(self, rows: Sequence[CursorRow]) -> None:
        """Append cursor rows durably, without compare-and-set: appending a row twice is harmless.

        Raises:
            CommitConflictError: all 60 attempts conflicted with other writers.
            MetadataError: the table cannot be read, or the commit not be written.
        """
        if not rows:
            return
        began_s = time.perf_counter()
        for attempt in range(_ATTEMPTS):
            try:
                with self._lock:
                    log = self._read_cursors()
                    token = uuid.uuid4().hex
                    log.append(encode_cursors(rows, log.version + 1, token), {}, token)
                    self._housekeep_if_due()
                self.cursor_commits.observe(time.perf_counter() - began_s)
                return
            except StaleHandleError as error:
                if error.refused:
                    raise MetadataError(_refusal(self._root, error)) from error
                # The outcome is unknown, and repeating the append is harmless.
            time.sleep(random.uniform(0, min(_BACKOFF_MAX_S, 0.01 * 2**attempt)))
        raise CommitConflictError(
            f"A commit to {self._root}/metadata/cursors lost {_ATTEMPTS} attempts to other writers: try again."
        )

    # -- housekeeping ----------------------------------------------------------------------------------------------

    def _housekeep_if_due(self) -> None:
        """Fold and checkpoint from time to time in the committing process, which keeps opens and commits cheap."""
        for log in filter(None, (self._main, self._cursor_log)):
            try:
                if log.entries_since_checkpoint() >= _HOUSEKEEPING_ENTRIES:
                    log.look_for_checkpoint()
                    if log.entries_since_checkpoint() >= _HOUSEKEEPING_ENTRIES:
                        self._housekeep(log)
            except MetadataError as error:
                # The preceding commit is durable and must not end in an error.
                _LOGGER.warning("Housekeeping of %s/metadata failed and is put off: %s", self._root, error)
                log.put_off_checkpoint(_HOUSEKEEPING_ENTRIES // 2)

    def _housekeep(self, log: DeltaLog) -> bool:
        """Fold and checkpoint; returns whether a fold happened."""
        folded = False
        try:
            if log is self._main:
                self.view()
                before = pa.scalar(datetime.now(UTC) - FORGET_TOMBSTONES_AFTER, pa.timestamp("us", "UTC"))
                folded = log.fold(state.MAIN_ORDER, folding.old_tombstones(_FORGOTTEN_KINDS, before))
            else:
                self.cursors()
                # Read after the cursors: a subscription is in the main table before its first cursor row.
                live = {(record.topic_id, record.name) for record in self.view().all(SubscriptionRecord)}
                folded = log.fold(CURSORS_ORDER, folding.ownerless_cursors(live))
            log.checkpoint()
        except StaleHandleError as error:
            # Another process did the same housekeeping concurrently.
            _LOGGER.info("Housekeeping of %s/metadata met another writer: %s", self._root, error)
        return folded

    def fold_and_checkpoint(self) -> bool:
        """Fold and checkpoint both tables once; returns whether a fold happened."""
        with self._lock:
            folded = self._housekeep(self._main)
            return self._housekeep(self._opened_cursor_log()) or folded

    def vacuum(self) -> int:
        """Delete metadata files that no reader can still need; returns their number."""
        with self._lock:
            self.view()
            self.cursors()
            count = 0
            for log in (self._main, self._opened_cursor_log()):
                try:
                    count += log.vacuum()
                except StaleHandleError as error:
                    _LOGGER.info("A vacuum of %s/metadata met another writer: %s", self._root, error)
            return count


def _refusal(root: Path, error: StaleHandleError) -> str:
    return (
        f"The metadata of {root} cannot be written ({error}): nothing was committed; make room on its disk, or make it "
        "writable, and try again."
    )
