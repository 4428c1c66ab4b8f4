"""One Delta table as a durable log of rows: refresh, append under compare-and-set keys, sync, fold, checkpoint.

delta-rs does the Delta protocol; this module adds what it lacks: fsync, recognition of one's own commit after an
error, and reading only the files that are new. `optimize.compact()` and plain overwrites are never used: two
compactions of one snapshot both succeed in deltalake 1.6.6 and double every row.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from pulsar_on_spark.metadata import folding, repair
from pulsar_on_spark.model.errors import MetadataError

_T = TypeVar("_T")
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_MAX_REBASES = 100
"""delta-rs rebases an append over foreign commits this often; a commit under the same key ends it at once."""
RETAIN_HOURS = 1
"""Log entries and replaced data files stay at least this long, for handles that still read them."""
ORPHAN_HOURS = 24
"""Data files that no log entry names (a commit that never happened) are vacuumed at this age."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """An active data file of the table: its name, its rows and the range of their `seq`."""

    name: str
    rows: int
    min_seq: int
    max_seq: int


class StaleHandleError(MetadataError):
    """The table moved on in a way that this handle cannot follow: reopen and decide anew."""


class DeltaLog:
    """An open handle on one metadata table. Not thread-safe: its owner holds a lock."""

    def __init__(self, directory: Path, lock_file: Path) -> None:
        self._directory = directory
        self._lock_file = lock_file
        self._files: dict[str, DataFile] = {}
        self._synced = -1
        self._open()

    @staticmethod
    def create(directory: Path, schema: pa.Schema) -> None:
        """Create the empty table durably."""
        directory.mkdir(parents=True, exist_ok=True)
        DeltaTable.create(
            str(directory),
            schema=schema,
            configuration={
                "delta.checkpointInterval": "1000000",  # checkpoints are made, and synced, by `checkpoint`
                "delta.logRetentionDuration": f"interval {RETAIN_HOURS} hours",
                "delta.deletedFileRetentionDuration": f"interval {RETAIN_HOURS} hours",
                "delta.dataSkippingStatsColumns": "seq",
            },
        )
        for path in (repair.entry_path(directory, 0), directory / "_delta_log", directory, directory.parent):
            repair.fsync_path(path)

    def _open(self) -> None:
        if repair.needs_repair(self._directory):
            repair.repair(self._directory, self._lock_file)
        try:
            self._table = DeltaTable(str(self._directory))
        except DeltaError as error:
            raise MetadataError(
                f"The metadata table {self._directory} cannot be opened ({error}): restore the root from a backup."
            ) from error
        self._synced = max(self._synced, repair.newest_checkpoint(self._directory) or -1)

    def reopen(self) -> None:
        """Forget the handle: after any error of delta-rs its state says nothing about the table."""
        self._open()

    @property
    def version(self) -> int:
        """The table version that this handle stands at."""
        return int(self._table.version())

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The active data files as of the last `refresh`."""
        return tuple(self._files.values())

    def key_version(self, key: str) -> int | None:
        """The version that the newest commit under `key` gave it, as this handle sees it; None before the first."""
        found = self._table.transaction_version(key)
        return None if found is None else int(found)

    def refresh(self) -> tuple[bool, list[pa.Table]]:
        """Move to the newest version.

        Returns:
            (rebuild, rows): the rows of data files that are new to this handle. With `rebuild` the base of the table
            was folded anew, which may have dropped old tombstones: `rows` is then the whole table.

        Raises:
            StaleHandleError: the log that this handle needs was cleaned up.
        """
        try:
            self._table.update_incremental()
            names = {uri.rsplit("/", 1)[-1] for uri in self._table.file_uris()}
        except DeltaError as error:
            raise StaleHandleError(f"The metadata table {self._directory} must be reopened: {error}") from error
        base = min(self._files.values(), key=lambda file: file.min_seq, default=None)
        rebuild = base is not None and base.name not in names
        known = {} if rebuild else {name: file for name, file in self._files.items() if name in names}
        tables = []
        for name in names - known.keys():
            table = self._read(name)
            seqs = table.column("seq")
            bounds = pa.compute.min_max(seqs).as_py() if table.num_rows else {"min": 0, "max": 0}
            known[name] = DataFile(name, table.num_rows, bounds["min"], bounds["max"])
            tables.append(table)
        self._files = known
        return rebuild, tables

    def _read(self, name: str) -> pa.Table:
        try:
            with pq.ParquetFile(self._directory / name) as file:
                return file.read(use_threads=False)
        except FileNotFoundError as error:
            raise StaleHandleError(f"The metadata file {self._directory / name} was vacuumed under this handle.") from error

    def append(self, rows: pa.Table, keys: Mapping[str, int], token: str) -> None:
        """Append rows in one commit that moves every key to its new version, and make it durable.

        Raises:
            StaleHandleError: the commit's outcome is unknown; `find_commit` tells after a reopen.
        """
        self._write(rows, keys, token, None)
        self.sync_to(self.version)

    def _write(self, rows: pa.Table, keys: Mapping[str, int], token: str, predicate: str | None) -> None:
        properties = CommitProperties(
            custom_metadata={repair.TOKEN_FIELD: token, repair.KEYS_FIELD: str(len(keys))},
            max_commit_retries=_MAX_REBASES if predicate is None else 0,
            app_transactions=[Transaction(key, version) for key, version in keys.items()],
        )
        try:
            if predicate is None:
                write_deltalake(
                    self._table, rows, mode="append", commit_properties=properties, post_commithook_properties=_NO_HOOKS
                )
            else:
                write_deltalake(
                    self._table,
                    rows,
                    mode="overwrite",
                    predicate=predicate,
                    commit_properties=properties,
                    post_commithook_properties=_NO_HOOKS,
                )
            self._table.update_incremental()
        except (DeltaError, OSError) as error:
            raise StaleHandleError(f"A commit to {self._directory} ended in an error: {error}") from error

    def find_commit(self, token: str, after_version: int) -> int | None:
        """The version of the commit that carries `token`, looked for above `after_version`; None if there is none."""
        for version in range(after_version + 1, self.version + 1):
            entry = repair.read_entry(self._directory, version)
            if entry is not None and entry.token == token:
                return version
        return None

    def sync_to(self, version: int) -> None:
        """Make every log entry up to `version`, and the data files that they add, durable.

        Entries of other processes included: whoever reports, deletes or skips on the strength of a read calls this
        first. Entries at or below a checkpoint are durable already (`checkpoint` syncs before it writes).
        """
        if version <= self._synced:
            return
        for number in range(self._synced + 1, version + 1):
            entry = repair.read_entry(self._directory, number)
            if entry is None:
                continue  # cleaned up behind a durable checkpoint
            for name, _ in entry.added:
                self._sync_data_file(name)
            repair.fsync_path(repair.entry_path(self._directory, number))
        repair.fsync_path(self._directory / "_delta_log")
        repair.fsync_path(self._directory)
        self._synced = version

    def _sync_data_file(self, name: str) -> None:
        try:
            repair.fsync_path(self._directory / name)
        except FileNotFoundError:
            if name in self._files or any(uri.endswith(name) for uri in self._table.file_uris()):
                raise MetadataError(
                    f"The data file {self._directory / name} is gone while its log entry is live: restore the root's "
                    "metadata from a backup."
                ) from None

    def fold(self, order: folding.Order, forget_before: pa.Scalar | None) -> bool:
        """Rewrite superseded rows away; False if there is nothing worth folding or another writer won.

        The handle must be fresh (`refresh`). See `folding` for what is kept.
        """
        plan = folding.plan(self.files, self.version)
        if plan is None:
            return False
        tables = [self._read(file.name) for file in self.files]
        kept = folding.fold(pa.concat_tables(tables), plan, order, forget_before)
        previous = self.key_version(folding.FOLD_KEY)
        try:
            self._write(kept, {folding.FOLD_KEY: (previous or 0) + 1}, uuid.uuid4().hex, plan.predicate)
        except StaleHandleError:
            self.reopen()
            return False
        self.sync_to(self.version)
        return True

    def checkpoint(self) -> None:
        """Write a checkpoint, make it durable, and only then clean up the log behind it."""
        self.sync_to(self.version)
        try:
            self._table.create_checkpoint()
            log = self._directory / "_delta_log"
            repair.fsync_path(log / f"{self.version:020d}.checkpoint.parquet")
            repair.fsync_path(log / "_last_checkpoint")
            repair.fsync_path(log)
            self._table.cleanup_metadata()
        except (DeltaError, FileNotFoundError) as error:
            # Another process may have checkpointed and cleaned up meanwhile.
            raise StaleHandleError(f"A checkpoint of {self._directory} was not finished: {error}") from error

    def entries_since_checkpoint(self) -> int:
        """How many log entries an open has to read."""
        return self.version - (repair.newest_checkpoint(self._directory) or 0)

    def vacuum(self) -> int:
        """Delete data files that no version within the retention needs; returns how many."""
        self.sync_to(self.version)

        def run(*, full: bool, hours: int) -> int:
            removed = self._table.vacuum(
                retention_hours=hours,
                enforce_retention_duration=False,
                dry_run=False,
                full=full,
                post_commithook_properties=_NO_HOOKS,
            )
            return len(removed)

        count = self._guarded(lambda: run(full=False, hours=RETAIN_HOURS) + run(full=True, hours=ORPHAN_HOURS))
        self.sync_to(self.version)
        return count

    def _guarded(self, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except DeltaError as error:
            raise StaleHandleError(f"The metadata table {self._directory} must be reopened: {error}") from error

    @property
    def size_bytes(self) -> int:
        """Bytes of the active data files."""
        return sum(os.path.getsize(self._directory / file.name) for file in self.files)
