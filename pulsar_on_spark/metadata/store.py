"""The metadata store of a root: compare-and-set on the main table, blind appends to `cursors`, housekeeping of both."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, TypeVar, cast, overload

import pyarrow as pa

from pulsar_on_spark.metadata import state
from pulsar_on_spark.metadata.cursors import CursorRow, Cursors
from pulsar_on_spark.metadata.cursors_table import CURSORS_ORDER, CURSORS_SCHEMA, decode_cursors, encode_cursors
from pulsar_on_spark.metadata.features import FEATURES
from pulsar_on_spark.metadata.log import folding
from pulsar_on_spark.metadata.log.chain import ConflictError, OvertakenError, UnknownOutcomeError
from pulsar_on_spark.metadata.log.creation import check_location, create_table
from pulsar_on_spark.metadata.log.data_files import decoding
from pulsar_on_spark.metadata.log.table_log import News, TableLog
from pulsar_on_spark.metadata.log.tables import METADATA, has_table, log_store
from pulsar_on_spark.metadata.patience import give_up_after, retried
from pulsar_on_spark.metadata.records import Record, RootRecord, SubscriptionRecord
from pulsar_on_spark.metadata.state import DurableView, State, View
from pulsar_on_spark.model.errors import (
    CommitConflictError,
    FormatVersionError,
    MetadataError,
    NotARootError,
)
from pulsar_on_spark.model.latencies import Latencies
from pulsar_on_spark.storage.durability import fsync_path
from pulsar_on_spark.storage.permissions import make_folders
from pulsar_on_spark.storage.root_place import RootPlace

FORMAT_VERSION = 2
_TABLES = (("cursors", CURSORS_SCHEMA), ("main", state.MAIN_SCHEMA))
_ATTEMPTS = 60
_BACKOFF_MAX_S = 0.5
_HOUSEKEEPING_ENTRIES = 64
"""Number of log entries after the last checkpoint at which a committer folds and writes a checkpoint."""
_LOGGER = logging.getLogger(__name__)
FORGET_TOMBSTONES_AFTER = timedelta(hours=1)

_FORGOTTEN_KINDS = ("segment", "file", "ledger", "write", "seal")
"""Kinds of which records are created and deleted all the time. Full folds drop their old tombstones (docs/adr/0001)."""


@dataclass(frozen=True)
class Change:
    """Content of one commit: records to put, records to delete, and compare-and-set keys.

    `keys` maps each key to its new version. None means the current version plus one.
    """

    puts: Sequence[Record] = ()
    deletes: Sequence[Record] = ()
    keys: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class CopiedRows:
    """Rows of another root with which a new root begins.

    Attributes:
        main: Stored rows of the main table; they get a new `seq` and token.
        keys: The compare-and-set keys with their versions.
        cursors: The rows of the cursors table.
    """

    main: pa.Table
    keys: Mapping[str, int]
    cursors: Sequence[CursorRow]


_T = TypeVar("_T")
Decide = Callable[[View], Change | None]


class MetadataStore:
    """The two metadata tables of one root, for one process. Thread-safe."""

    def __init__(self, root: RootPlace) -> None:
        """Open the tables.

        Raises:
            NotARootError: `root` has no metadata tables.
            FormatVersionError: only a newer version of pulsar_on_spark can read them.
            MetadataError: the tables are damaged, or cannot be read now.
        """
        self._root = _absolute(root)
        self._lock = threading.RLock()
        self.commits = Latencies()
        """Durations of commits to the main table, including attempts that conflicted."""
        self.cursor_commits = Latencies()
        """Durations of appends to `cursors`."""
        self._root_row: object = None
        self._unknown_features: list[str] = []
        if not has_table(self._root, "main"):
            raise NotARootError(
                f"{self._root} is not a pulsar_on_spark root: give the path of a root, or create this one with "
                f"`pulsarpy init {self._root}`."
            )
        self._main = self._log("main")
        self._state = State()
        self._views: weakref.WeakSet[View] = weakref.WeakSet()
        self._cursor_log: TableLog | None = None
        self._cursors = Cursors()
        self.root_record = self._read_root()

    def _read_root(self) -> RootRecord:
        record = self.view().get(RootRecord, "root")
        if record is None:
            raise NotARootError(
                f"{self._root} has metadata tables but no root record: run `pulsarpy init {self._root}` again."
            )
        return record

    def _check_root_row(self) -> None:
        """Check the root's format if its row has changed, because another process may have upgraded the root.

        Raises:
            FormatVersionError: only a newer version of pulsar_on_spark can read the root.
        """
        row = self._state.row(RootRecord.kind, "root")
        if row is None or row is self._root_row:
            return
        # The row is not parsed into a record, because a newer version may have changed the record's fields.
        values = row.values() or row.record(RootRecord).model_dump()
        version, features = values.get("format_version"), cast(dict[str, str], values.get("features") or {})
        unknown = {name: use for name, use in features.items() if name not in FEATURES}
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise FormatVersionError(
                f"The root {self._root} has format version {version}, and this version of pulsar_on_spark reads up to "
                f"{FORMAT_VERSION}: upgrade pulsar_on_spark."
            )
        if "read" in unknown.values():
            raise FormatVersionError(
                f"The root {self._root} uses {', '.join(sorted(unknown))}, which this version of pulsar_on_spark does "
                "not know: upgrade pulsar_on_spark on this host."
            )
        self._root_row, self._unknown_features = row, sorted(unknown)

    def _require_writer(self, log: TableLog) -> None:
        """Check that this version may write to the root.

        Raises:
            FormatVersionError: this version may only read the root.
        """
        if not log.is_chained:
            raise FormatVersionError(
                f"The root {self._root} has format version 1, which this version of pulsar_on_spark can only read: run "
                f"`pulsarpy upgrade {self._root}`."
            )
        if self._unknown_features:
            raise FormatVersionError(
                f"The root {self._root} uses {', '.join(self._unknown_features)}, which this version of "
                "pulsar_on_spark does not know and so can only read it: upgrade pulsar_on_spark on this host."
            )

    @staticmethod
    def exists(root: RootPlace) -> bool:
        """Return True if `root` has a main table."""
        return has_table(root, "main")

    @classmethod
    def create(cls, root: RootPlace, first: Sequence[Record], copied: CopiedRows | None = None) -> MetadataStore:
        """Create the tables and commit their first records, or complete an interrupted creation; return the store.

        If several processes create the same root concurrently, only one of them commits its `first`.

        Args:
            root: The root's folder or object store.
            first: The first records of the main table.
            copied: Rows of another root; None for none. Its cursors are committed before `first`, its other rows
                together with it.

        Raises:
            InvalidArgumentError: the Delta library cannot handle the path.
            MetadataError, StorageError: the tables cannot be written now.
        """
        root = _absolute(root)
        if isinstance(root, Path):
            check_location(str(root))
        with _durable_folders(root):
            for name, schema in _TABLES:
                create_table(log_store(root, name), schema)
        if copied is not None:
            _replace_cursors(TableLog(log_store(root, "cursors")), copied.cursors)
        _append_first(root, first, copied)
        return cls(root)

    def _log(self, name: str) -> TableLog:
        return TableLog(log_store(self._root, name), self._require_writer)

    def _table(self, name: str) -> str:
        return f"{self._root}/{METADATA}/{name}"

    # -- main ------------------------------------------------------------------------------------------------------

    @overload
    def view(self) -> View: ...

    @overload
    def view(self, *, durable: Literal[True]) -> DurableView: ...

    def view(self, *, durable: bool = False) -> View:
        """Return a view of the main table's newest version.

        Args:
            durable: True to sync all commits up to the returned version first. A caller needs this if it deletes or
                skips data, or reports a result, because of what it read.

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

    def _take_in(self, news: News) -> View:
        tables = news.tables
        if news.rebuild:
            self._state = State(after=self._state)
        elif tables and any(view.state is self._state for view in self._views):
            self._state = self._state.fork()
        with decoding(self._table("main")):
            for table in tables:
                self._state.apply(table)
        if news.rebuild:
            # Arrow would keep the memory of a large table for reuse: 100 MB at 50,000 rows.
            tables.clear()
            pa.default_memory_pool().release_unused()
        self._main.taken_in()
        self._check_root_row()
        view = View(self._state, self._main.version)
        self._views.add(view)
        return view

    def _retried(self, table: str, read: Callable[[], _T]) -> _T:
        return retried(self._lock, self._table(table), read)

    def require_writable(self) -> None:
        """Check that commits can be written.

        Raises:
            MetadataError: the disk is full or read-only, or this process may not write to it.
            OSError: the disk does not answer.
        """
        log_store(self._root, "main").require_writable()

    def key_version(self, key: str) -> int | None:
        """Return the version of a key in the last view; None before the key's first commit."""
        with self._lock:
            return self._main.key_version(key)

    def commit(self, decide: Decide) -> View:
        """Call `decide` with the newest view and commit its change; repeat both until no other writer conflicts.

        `decide` is called at each attempt and must not keep state of an earlier attempt. It returns None if there is
        nothing to change. Then this method makes the view durable that `decide` got, and returns it.

        Returns:
            The view after the commit.

        Raises:
            CommitConflictError: all 60 attempts conflicted with other writers.
            MetadataError: the table cannot be read, or the commit cannot be written.
        """
        began_s = time.perf_counter()
        overtaken = 0
        for attempt in range(_ATTEMPTS):
            try:
                with self._lock:
                    done = self._attempt(decide)
                    if done is not None:
                        self.commits.observe(time.perf_counter() - began_s)
                        return done
            except ConflictError:
                pass
            except OvertakenError as error:
                overtaken += 1
                give_up_after(overtaken, self._table("main"), error)
            time.sleep(random.uniform(0, min(_BACKOFF_MAX_S, 0.01 * 2**attempt)))
        raise CommitConflictError(
            f"A commit to {self._root}/metadata/main conflicted with other writers in {_ATTEMPTS} attempts: try again."
        )

    def _attempt(self, decide: Decide) -> View | None:
        """Call `decide` once and commit its change; None if it must be called again."""
        view = self._read_main()
        change = decide(view)
        version = view.version
        if self._main.version != version:
            return None  # `decide` itself read or committed, so keys would be checked against another version
        if change is None:
            self._main.sync_to(version)
            return view
        del view  # without another reference to the view, its state need not be copied
        done = self._try_commit(change, version)
        if done is not None:
            self._housekeep_if_due()
        return done

    def _try_commit(self, change: Change, version: int) -> View | None:
        """Commit a change that was decided on a version. Return the view after it; None if nothing was committed."""
        assert change.keys, "every commit to the main table is a compare-and-set"
        rows = [*((record, False) for record in change.puts), *((record, True) for record in change.deletes)]
        names = {(record.kind, record.record_id) for record, _ in rows}
        assert len(names) == len(rows), "a change names a record once"
        token = self._main.new_token()
        keys = {
            key: (self._main.key_version(key) or 0) + 1 if wanted is None else wanted
            for key, wanted in change.keys.items()
        }
        table = state.encode(rows, version + 1, token, keys)
        try:
            news = self._main.append(table, keys, token)
        except UnknownOutcomeError as error:
            return self.view() if self._main.settle(token, version, error) else None
        return self.view() if news is None else self._take_in(news)

    # -- cursors ---------------------------------------------------------------------------------------------------

    def cursors(self, *, durable: bool = False) -> Cursors:
        """Return the cursor rows that count.

        Args:
            durable: True to sync all rows that are returned first, as for `view`.

        Raises:
            MetadataError: the table cannot be read or synced.
        """

        def read() -> Cursors:
            log = self._read_cursors()
            if durable:
                log.sync_to(log.version)
            return self._cursors

        return self._retried("cursors", read)

    def _read_cursors(self) -> TableLog:
        log = self._opened_cursor_log()
        self._take_in_cursors(log, log.refresh())
        return log

    def _take_in_cursors(self, log: TableLog, news: News) -> None:
        if news.rebuild:
            self._cursors = Cursors()
        with decoding(self._table("cursors")):
            self._cursors = self._cursors.having(row for table in news.tables for row in decode_cursors(table))
        log.taken_in()

    def _opened_cursor_log(self) -> TableLog:
        if self._cursor_log is None:
            self._cursor_log = self._log("cursors")
        return self._cursor_log

    def append_cursors(self, rows: Sequence[CursorRow]) -> None:
        """Append cursor rows durably, without compare-and-set. To append the same row twice has no effect.

        Raises:
            CommitConflictError: all 60 attempts conflicted with other writers.
            MetadataError: the table cannot be read, or the commit cannot be written.
        """
        if not rows:
            return
        began_s = time.perf_counter()
        for attempt in range(_ATTEMPTS):
            try:
                with self._lock:
                    log = self._read_cursors()
                    token = log.new_token()
                    news = log.append(encode_cursors(rows, log.version + 1, token), {}, token)
                    if news is not None:
                        self._take_in_cursors(log, news)
                    self._housekeep_if_due()
                self.cursor_commits.observe(time.perf_counter() - began_s)
                return
            except (ConflictError, OvertakenError, UnknownOutcomeError):
                pass  # repeating the append is harmless
            time.sleep(random.uniform(0, min(_BACKOFF_MAX_S, 0.01 * 2**attempt)))
        raise CommitConflictError(
            f"A commit to {self._root}/metadata/cursors conflicted with other writers in {_ATTEMPTS} attempts: "
            "try again."
        )

    # -- housekeeping ----------------------------------------------------------------------------------------------

    def _housekeep_if_due(self) -> None:
        """Fold and checkpoint each table that has enough entries since its last checkpoint; log failures."""
        for log in filter(None, (self._main, self._cursor_log)):
            try:
                if log.entries_since_checkpoint() >= _HOUSEKEEPING_ENTRIES:
                    log.look_for_checkpoint()
                    if log.entries_since_checkpoint() >= _HOUSEKEEPING_ENTRIES:
                        self._housekeep(log)
            except MetadataError as error:
                # The preceding commit is durable and must not end in an error.
                _LOGGER.warning("Housekeeping of %s/metadata failed and is postponed: %s", self._root, error)
                log.put_off_checkpoint(_HOUSEKEEPING_ENTRIES // 2)

    def _housekeep(self, log: TableLog) -> bool:
        """Fold and checkpoint one table; return True if it was folded."""
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
        except (ConflictError, OvertakenError, UnknownOutcomeError) as error:
            # Another process did the same housekeeping concurrently.
            _LOGGER.info("Housekeeping of %s/metadata conflicted with another writer: %s", self._root, error)
        return folded

    def fold_and_checkpoint(self) -> bool:
        """Fold and checkpoint both tables once; return True if at least one of them was folded.

        Raises:
            MetadataError: a table cannot be read or written.
        """
        with self._lock:
            folded = self._housekeep(self._main)
            return self._housekeep(self._opened_cursor_log()) or folded

    def vacuum(self) -> int:
        """Delete the metadata's data files that no reader can still need; return the number of deleted files.

        Raises:
            MetadataError: a table cannot be read or written.
        """
        with self._lock:
            count = 0
            for log in (self._main, self._read_cursors()):
                try:
                    count += log.vacuum()
                except OvertakenError as error:
                    _LOGGER.info("A vacuum of %s/metadata conflicted with another process: %s", self._root, error)
            return count


def _replace_cursors(log: TableLog, rows: Sequence[CursorRow]) -> None:
    """Commit the cursors of a root that is being created, in place of any cursors of an interrupted attempt."""
    log.refresh()
    log.replace_all(encode_cursors(rows, log.version + 1, log.new_token()), {})


def _append_first(root: RootPlace, first: Sequence[Record], copied: CopiedRows | None) -> None:
    """Commit the first records of a root, unless another process has done so.

    `copied` are rows of another root that are committed with them; None for none.

    Raises:
        CommitConflictError: all attempts conflicted with other processes.
        MetadataError: the table cannot be written.
    """
    log = TableLog(log_store(root, "main"))
    for _ in range(_ATTEMPTS):
        with suppress(ConflictError, OvertakenError):
            log.refresh()
            if log.key_version("root") is not None:
                return
            token, version = log.new_token(), log.version
            rows = state.encode(((record, False) for record in first), version + 1, token, ("root",))
            keys = {"root": 1}
            if copied is not None:
                rows = pa.concat_tables([rows, state.restamped(copied.main, version + 1, token)])
                keys = {**copied.keys, **keys}
            try:
                log.append(rows, keys, token)
            except UnknownOutcomeError as error:
                log.settle(token, version, error)
    raise CommitConflictError(
        f"The first records of the root {root} could not be committed in {_ATTEMPTS} attempts, because other processes "
        "commit, too: try again."
    )


def _absolute(root: RootPlace) -> RootPlace:
    return Path(os.path.abspath(root)) if isinstance(root, Path) else root


@contextmanager
def _durable_folders(root: RootPlace) -> Iterator[None]:
    """Create the tables' folders of a local root, and at the end of the block make the folders' names durable."""
    if not isinstance(root, Path):
        yield
        return
    new = [folder for folder in (root, *root.parents) if not folder.exists()]
    for name, _ in _TABLES:
        make_folders(root / METADATA / name)
    yield
    for folder in (root / METADATA, root, root.parent, *(each.parent for each in new)):
        fsync_path(folder)
