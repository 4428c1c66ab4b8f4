"""A Delta table as a durable log of rows: refresh, append under compare-and-set keys, sync, fold, checkpoint.

delta-rs implements the Delta protocol; this module adds fsync, the recognition of a writer's own commit after an error,
and reading only new files. `optimize.compact()` and plain overwrites are never used: in deltalake 1.6.6 two concurrent
compactions of one snapshot both succeed and double every row.

`delta_handle` opens and reads the table.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, PostCommitHookProperties, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from pulsar_on_spark.metadata.log import damage, folding, unsynced
from pulsar_on_spark.metadata.log.checksums import (
    Checksums,
    checkpoint_checksums_path,
    checksum_of,
    checksums_path,
    write_checksums,
)
from pulsar_on_spark.metadata.log.creation import RETAIN_HOURS
from pulsar_on_spark.metadata.log.data_files import read_content
from pulsar_on_spark.metadata.log.delta_handle import DeltaHandle, or_before_first, wrapping_os_errors
from pulsar_on_spark.metadata.log.log_entry import (
    BOOT_FIELD,
    KEYS_FIELD,
    TOKEN_FIELD,
    checkpoint_name,
    checkpoint_path,
    entry_name,
    entry_path,
)
from pulsar_on_spark.model.errors import MetadataError
from pulsar_on_spark.storage.durability import UnsyncedError, boot_id, fsync_path, locked, syncing

_LOGGER = logging.getLogger(__name__)
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_MAX_REBASES = 100
"""Number of times that delta-rs rebases a commit over other appends. It fails immediately on a commit under the same
key, or one that removes files that this one read."""
KEEP_ENTRIES = 512
"""Minimum number of log entries that are kept. Not by age, as in delta-rs's own clean-up, which keeps an hour: each
refresh lists the log, 1 ms for 1,000 entries, and a commit must not cost more after 10,000 others. A reader that falls
behind opens the table again."""
KEEP_S = 60.0
"""Minimum age of deleted log entries, in seconds: a process that was suspended for less can continue in the log."""
ORPHAN_HOURS = 24
"""Minimum age in hours of vacuumed data files that no log entry names. Their commit may still happen while the log has
entries from before they were written, so they may be kept longer."""
RESERVE_BYTES = 1 << 20
"""Free space on the root's disk below which commits are refused."""


class DeltaLog(DeltaHandle):
    """Handle for reading and writing one table. Not thread-safe: its owner holds a lock."""

    @wrapping_os_errors
    def key_version(self, key: str) -> int | None:
        """The version that the newest commit under `key` gave it, as this handle sees it; None before the first."""
        table = self._ensure_open()
        try:
            return self._keys.get(table, key)
        except DeltaError as error:
            raise self._stale(error, "A key cannot be looked up in") from error

    # -- committing ------------------------------------------------------------------------------------------------

    @wrapping_os_errors
    def append(self, rows: pa.Table, keys: Mapping[str, int], token: str) -> str | None:
        """Append rows durably in one commit, which sets every key to its new version.

        Returns:
            The name of the data file, for `take_in`; None for a commit without rows.

        Raises:
            StaleHandleError: the commit's outcome is unknown; call `find_commit` after a refresh.
            MetadataError: the commit could not be synced.
        """
        rows = self._padded(rows)
        self._write(rows, keys, token, None)
        version = self.version
        self.sync_to(version)
        entry = self._entries.get(version)
        if entry is None or entry.token != token:
            raise self._stale(RuntimeError(f"entry {version} is another's"), "A commit went astray in")
        self._vouch(version)
        if not entry.added:
            return None
        self._data.remember(entry.added[0][0], rows)
        return entry.added[0][0]

    def _padded(self, rows: pa.Table) -> pa.Table:
        """Add nulls for the columns that a newer version of this project has added to the table."""
        present = set(rows.column_names)
        for field in pa.schema(self._ensure_open().schema().to_arrow()):
            if field.name not in present:
                rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        return rows

    def _write(self, rows: pa.Table, keys: Mapping[str, int], token: str, predicate: str | None) -> None:
        table = self._ensure_open()
        require_writable(self._directory)
        self._handle = None  # until the outcome is known
        properties = CommitProperties(
            custom_metadata={TOKEN_FIELD: token, KEYS_FIELD: str(len(keys)), BOOT_FIELD: boot_id()},
            max_commit_retries=_MAX_REBASES,
            app_transactions=[Transaction(key, version) for key, version in keys.items()],
        )
        try:
            if predicate is None:
                write_deltalake(
                    table, rows, mode="append", commit_properties=properties, post_commithook_properties=_NO_HOOKS
                )
            else:
                write_deltalake(
                    table,
                    rows,
                    mode="overwrite",
                    predicate=predicate,
                    commit_properties=properties,
                    post_commithook_properties=_NO_HOOKS,
                )
        except (DeltaError, OSError) as error:
            raise self._stale(error, "A commit ended in an error in") from error
        self._handle = table
        # delta-rs finds the newest entry and then links the next number. If this process was suspended in between, that
        # number may have been cleaned up meanwhile, and no reader will find the entry.
        self._identity = self._moved_on(int(table.version()))

    @wrapping_os_errors
    def find_commit(self, token: str, after_version: int) -> int | None:
        """Find the version of the commit with `token`, above `after_version`; None if there is none.

        An entry that was linked too late, under a number that had been cleaned up, does not count.

        Raises:
            MetadataError: the log was cleaned up since, and the table's rows do not show the outcome either.
        """
        version = self.version
        numbers = range(after_version + 1, version + 1)
        entries = {number: self._entries.get(number) for number in numbers}
        commit_version = next((number for number, entry in entries.items() if entry and entry.token == token), None)
        if commit_version is not None and damage.was_never_free(self._directory, commit_version):
            return commit_version
        if None not in entries.values() and commit_version is None:
            return None
        for file in self.files:
            if pc.any(pc.equal(self._read(file.name).column("token"), token)).as_py():
                return version
        if commit_version is not None and damage.has_gap_above(self._directory, commit_version):
            return None
        raise MetadataError(
            f"The outcome of a commit to {self._directory} is unknown, because the process was suspended while "
            f"others made more than {KEEP_ENTRIES} commits: check whether the change is there before making it again."
        )

    @wrapping_os_errors
    def sync_to(self, version: int) -> None:
        """Make every log entry up to `version`, and the data files that they add, durable.

        Entries of other processes are included: a caller must sync before it reports, deletes or skips something
        because of what it read. Entries up to a checkpoint are durable already (`checkpoint` syncs before it writes).

        Raises:
            StaleHandleError: a data file is missing, or a file cannot be opened: refresh and try again.
            MetadataError: an fsync failed, now or earlier, in this process or another. A repeated fsync may "succeed"
                without writing anything, so this handle refuses all further work.
        """
        self._synced = max(self._synced, self.checkpointed)
        if version - self._synced > folding.LAG:
            self._synced = max(self._synced, or_before_first(damage.pointed_checkpoint(self._directory)))
        if version <= self._synced:
            return
        log = self._directory / "_delta_log"
        with syncing(log):
            try:
                for number in range(self._synced + 1, version + 1):
                    self._sync_entry(number)
                fsync_path(log)
                fsync_path(self._directory)
            except UnsyncedError as error:
                raise self._lost(version, error) from error
            unsynced.refuse_marked(self._directory)
        self._synced = version

    def _lost(self, version: int, error: UnsyncedError) -> MetadataError:
        """Make this handle refuse all further work, and mark the table so that no process builds on this version."""
        self._lost_durability = unsynced.leave_mark(self._directory, version, error)
        return self._lost_durability

    def _sync_entry(self, version: int) -> None:
        entry = self._entries.get(version)
        if entry is None:
            return  # cleaned up after a durable checkpoint
        for name, _ in entry.added:
            try:
                fsync_path(self._directory / name)
            except FileNotFoundError as error:
                if name in self._active_files():
                    raise self._stale(error, "A live data file is missing in") from error
        try:
            fsync_path(entry_path(self._directory, version))
        except FileNotFoundError:
            return  # cleaned up just now

    def _vouch(self, version: int) -> None:
        """Write the checksums of a durable commit for later readers."""
        entry = self._entries.get(version)
        if entry is None or entry.checksum is None:
            return
        try:
            files = {name: self._data.checksum(name) for name, _ in entry.added}
            self._data.checksums |= files
            files[entry_name(version)] = entry.checksum
            write_checksums(checksums_path(self._directory, version), Checksums(entry.token, files))
        except OSError as error:
            # The commit is durable and must not end in an error. The next checkpoint adds the checksums.
            _LOGGER.info("Version %d of %s has no checksums: %s", version, self._directory, error)

    # -- housekeeping ----------------------------------------------------------------------------------------------

    @wrapping_os_errors
    def fold(self, order: folding.Order, forgettable: folding.Forgettable | None) -> bool:
        """Remove superseded rows by a rewrite; False if a fold is not worth its cost.

        Call `refresh` first. `folding` selects the rows to keep.

        Raises:
            StaleHandleError: another writer interfered.
        """
        plan = folding.plan(self.files, self.version)
        if plan is None:
            return False
        reach = sorted((file for file in self.files if file.max_seq > plan.above), key=lambda file: file.min_seq)
        rows = pa.concat_tables([self._read(file.name) for file in reach], promote_options="default")
        kept = folding.fold(rows, plan, order, forgettable)
        previous = self.key_version(folding.FOLD_KEY)
        token = uuid.uuid4().hex
        self._write(self._padded(kept), {folding.FOLD_KEY: (previous or 0) + 1}, token, plan.predicate)
        version = self.version
        self.sync_to(version)
        self._vouch(version)
        # A full fold may have dropped rows, which this process must drop, too.
        self._rebuild = self._rebuild or plan.full
        # The owner has the rows of any other fold already.
        entry = self._entries.get(version)
        active = self._active_files()
        own = {name for name, _ in entry.added} if entry is not None and entry.token == token else set()
        self._files = {name: file for name, file in active.items() if name in self._files or name in own}
        return True

    @wrapping_os_errors
    def checkpoint(self) -> bool:
        """Write a checkpoint durably, and only then clean up older log entries.

        Returns:
            False if another process holds the lock.

        Raises:
            StaleHandleError: the log changed under this handle.
        """
        table = self._ensure_open()
        version = self.version
        self.sync_to(version)
        log = self._directory / "_delta_log"
        with locked(self._lock_file, wait=False) as is_locked:
            if not is_locked:
                return False
            newest = or_before_first(damage.pointed_checkpoint(self._directory))
            if newest < version:
                try:
                    table.create_checkpoint()
                    checksums = self._checkpoint_checksums(version)
                    for path in (
                        checkpoint_path(self._directory, version),
                        log / "_last_checkpoint",
                        log,
                        checksums,
                        checksums.parent,
                    ):
                        fsync_path(path)
                    damage.clean_up(self._directory, version - KEEP_ENTRIES, KEEP_S)
                except UnsyncedError as error:
                    with syncing(log):
                        raise self._lost(version, error) from error
                except (DeltaError, OSError) as error:
                    raise self._stale(error, "A checkpoint was not finished of") from error
        self.checkpointed = max(version, newest)
        return True

    def _checkpoint_checksums(self, version: int) -> Path:
        """Write the checksums of a checkpoint and of all its data files; returns their path."""
        files = {name: self._data.checksum(name) for name in self._active_files()}
        files[checkpoint_name(version)] = checksum_of(read_content(checkpoint_path(self._directory, version)))
        path = checkpoint_checksums_path(self._directory, version)
        write_checksums(path, Checksums(None, files))
        return path

    def entries_since_checkpoint(self) -> int:
        """Count the log entries that an open has to read; fewer after `put_off_checkpoint`."""
        return self.version - max(self.checkpointed, self._put_off_at)

    def put_off_checkpoint(self, entries: int) -> None:
        """Count only `entries` since the last checkpoint: for use after a failed checkpoint."""
        assert self._identity is not None
        self._put_off_at = self._identity.version - entries

    @wrapping_os_errors
    def look_for_checkpoint(self) -> None:
        """Look up the newest checkpoint of other processes."""
        self.checkpointed = max(self.checkpointed, or_before_first(damage.pointed_checkpoint(self._directory)))

    @wrapping_os_errors
    def vacuum(self) -> int:
        """Delete data files that no version within the retention needs; returns their number. Call `refresh` first.

        Nothing is deleted while another process holds the lock. delta-rs only lists the files: deleting them, it would
        commit entries of its own, without our token.
        """
        table = self._ensure_open()
        self.sync_to(self.version)

        def run(*, full: bool, hours: int) -> int:
            names = table.vacuum(retention_hours=hours, enforce_retention_duration=False, dry_run=True, full=full)
            for name in names:
                (self._directory / name).unlink(missing_ok=True)
            return len(names)

        with locked(self._lock_file, wait=False) as is_locked:
            if not is_locked:
                return 0
            try:
                return run(full=False, hours=RETAIN_HOURS) + run(full=True, hours=self._orphan_hours())
            except (DeltaError, OSError) as error:
                raise self._stale(error, "A vacuum was not finished of") from error

    def _orphan_hours(self) -> int:
        """The age in hours, rounded up, beyond which an unnamed data file can no longer be committed.

        A process that was suspended during a commit may still commit its file while the log has the entry that it had
        read. Without that entry its commit does not count, so files older than the oldest entry can be deleted.
        """
        oldest_s = damage.oldest_entry_s(self._directory)
        return max(ORPHAN_HOURS, math.ceil((time.time() - oldest_s) / 3600))


def require_writable(directory: Path) -> None:
    """Refuse a commit on which delta-rs would panic, and reserve space for running commits.

    Raises:
        MetadataError: the directory may not be written, or less than `RESERVE_BYTES` are free.
        OSError: the disk does not answer.
    """
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        raise MetadataError(
            f"{directory} is on a file system that is mounted read-only: mount it read-write (nothing was committed)."
        )
    if not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
        raise MetadataError(
            f"{directory} may not be written by this user: check who owns the root (nothing was committed)."
        )
    if shutil.disk_usage(directory).free < RESERVE_BYTES:
        raise MetadataError(
            f"The disk of {directory} is full: free some space (nothing was committed; commits need "
            f"{RESERVE_BYTES >> 20} MiB of free space)."
        )
