"""One Delta table as a durable log of rows: refresh, append under compare-and-set keys, sync, fold, checkpoint.

delta-rs does the Delta protocol; this module adds what it lacks: fsync, recognition of one's own commit after an
error, and reading only the files that are new. `optimize.compact()` and plain overwrites are never used: two
compactions of one snapshot both succeed in deltalake 1.6.6 and double every row.

Reading and the handle itself stand in `delta_handle`.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, PostCommitHookProperties, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from pulsar_on_spark.metadata import folding, repair
from pulsar_on_spark.metadata.creation import RETAIN_HOURS
from pulsar_on_spark.metadata.delta_handle import DeltaHandle, or_before_first
from pulsar_on_spark.metadata.durability import fsync_path, locked
from pulsar_on_spark.metadata.log_entry import KEYS_FIELD, TOKEN_FIELD, checkpoint_path, entry_path
from pulsar_on_spark.model.errors import MetadataError

_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_MAX_REBASES = 100
"""delta-rs rebases a commit over foreign appends this often; a commit under the same key, or one that removes what
this one read, ends it at once."""
KEEP_ENTRIES = 512
"""Log entries that stay at least. By number, not by age (delta-rs's own clean-up keeps an hour): each refresh lists the
log, 1 ms for 1,000 entries, and a commit must not cost more after 10,000 others. Who falls behind opens anew."""
ORPHAN_HOURS = 24
"""Data files that no log entry names (a commit that never happened) are vacuumed at this age."""
RESERVE_BYTES = 1 << 20
"""With less free space on the root's disk nothing is committed."""


class DeltaLog(DeltaHandle):
    """A table that is followed, and written to. Not thread-safe: its owner holds a lock."""

    def key_version(self, key: str) -> int | None:
        """The version that the newest commit under `key` gave it, as this handle sees it; None before the first."""
        table = self._ensure_open()
        try:
            return self._keys.get(table, key)
        except DeltaError as error:
            raise self._stale(error, "A key cannot be looked up in") from error

    # -- committing ------------------------------------------------------------------------------------------------

    def append(self, rows: pa.Table, keys: Mapping[str, int], token: str) -> str | None:
        """Append rows in one commit that moves every key to its new version, and make it durable.

        Returns:
            The name of the data file, for `take_in`; None for a commit without rows.

        Raises:
            StaleHandleError: the commit's outcome is unknown; after a refresh `find_commit` tells.
            MetadataError: the disk refused to make it durable.
        """
        rows = self._padded(rows)
        self._write(rows, keys, token, None)
        version = self.version
        self.sync_to(version)
        entry = self._entries.get(version)
        if entry is None or entry.token != token:
            raise self._stale(RuntimeError(f"entry {version} is another's"), "A commit went astray in")
        if not entry.added:
            return None
        self._data.remember(entry.added[0][0], rows)
        return entry.added[0][0]

    def _padded(self, rows: pa.Table) -> pa.Table:
        """Rows with nulls in the columns that a newer version of this project has added to the table."""
        present = set(rows.column_names)
        for field in pa.schema(self._ensure_open().schema().to_arrow()):
            if field.name not in present:
                rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        return rows

    def _write(self, rows: pa.Table, keys: Mapping[str, int], token: str, predicate: str | None) -> None:
        table = self._ensure_open()
        require_space(self._directory)
        self._handle = None  # until the outcome is known
        properties = CommitProperties(
            custom_metadata={TOKEN_FIELD: token, KEYS_FIELD: str(len(keys))},
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

    def find_commit(self, token: str, after_version: int) -> int | None:
        """The version of the commit that carries `token`, looked for above `after_version`; None if there is none.

        Raises:
            MetadataError: the log was cleaned up since, and the rows do not tell.
        """
        version = self.version
        cleaned = False
        for number in range(after_version + 1, version + 1):
            entry = self._entries.get(number)
            if entry is None:
                cleaned = True
            elif entry.token == token:
                return number
        if not cleaned:
            return None
        for file in self.files:
            if pc.any(pc.equal(self._read(file.name).column("token"), token)).as_py():
                return version
        raise MetadataError(
            f"The outcome of a commit to {self._directory} is unknown, because the process stood still while others "
            f"made more than {KEEP_ENTRIES} commits: look whether the change is there before making it again."
        )

    def sync_to(self, version: int) -> None:
        """Make every log entry up to `version`, and the data files that they add, durable.

        Entries of other processes included: whoever reports, deletes or skips on the strength of a read calls this
        first. Entries at or below a checkpoint are durable already (`checkpoint` syncs before it writes one).

        Raises:
            StaleHandleError: a data file is missing; opening the table anew repairs it, or says why not.
            MetadataError: the disk refused. An fsync that failed once may "succeed" when repeated without having
                written anything, so this handle refuses all further work.
        """
        self._synced = max(self._synced, self.checkpointed)
        if version - self._synced > folding.LAG:
            self._synced = max(self._synced, or_before_first(repair.pointed_checkpoint(self._directory)))
        if version <= self._synced:
            return
        try:
            for number in range(self._synced + 1, version + 1):
                self._sync_entry(number)
            fsync_path(self._directory / "_delta_log")
            fsync_path(self._directory)
        except OSError as error:
            self._lost_durability = (
                f"The metadata table {self._directory} could not be made durable ({error}): whether the last commits "
                "outlive a power cut is unknown; check the disk, then restart this process."
            )
            raise MetadataError(self._lost_durability) from error
        self._synced = version

    def _sync_entry(self, version: int) -> None:
        entry = self._entries.get(version)
        if entry is None:
            return  # cleaned up behind a durable checkpoint
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

    # -- housekeeping ----------------------------------------------------------------------------------------------

    def fold(self, order: folding.Order, forgettable: folding.Forgettable | None) -> bool:
        """Rewrite superseded rows away; False if there is nothing worth folding.

        The handle must be fresh (`refresh`). See `folding` for what is kept.

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
        # A full fold may have forgotten rows, which its own process must forget too.
        self._rebuild = self._rebuild or plan.full
        # The rows of any other are known to this handle's owner already.
        entry = self._entries.get(version)
        active = self._active_files()
        own = {name for name, _ in entry.added} if entry is not None and entry.token == token else set()
        self._files = {name: file for name, file in active.items() if name in self._files or name in own}
        return True

    def checkpoint(self) -> bool:
        """Write a checkpoint, make it durable, and only then clean up the log behind it.

        Returns:
            False if another process is at it.

        Raises:
            StaleHandleError: the log changed under this handle.
        """
        table = self._ensure_open()
        version = self.version
        self.sync_to(version)
        log = self._directory / "_delta_log"
        with locked(self._lock_file, wait=False) as mine:
            if not mine:
                return False
            newest = or_before_first(repair.pointed_checkpoint(self._directory))
            if newest < version:
                try:
                    table.create_checkpoint()
                    for path in (checkpoint_path(self._directory, version), log / "_last_checkpoint", log):
                        fsync_path(path)
                    repair.clean_up(self._directory, version - KEEP_ENTRIES)
                except (DeltaError, OSError) as error:
                    raise self._stale(error, "A checkpoint was not finished of") from error
        self.checkpointed = max(version, newest)
        return True

    def entries_since_checkpoint(self) -> int:
        """How many log entries an open has to read, at most."""
        return self.version - self.checkpointed

    def look_for_checkpoint(self) -> None:
        """Take notice of the checkpoints of other processes."""
        self.checkpointed = max(self.checkpointed, or_before_first(repair.pointed_checkpoint(self._directory)))

    def vacuum(self) -> int:
        """Delete data files that no version within the retention needs; returns how many. The handle must be fresh."""
        table = self._ensure_open()
        self.sync_to(self.version)
        self._handle = None

        def run(*, full: bool, hours: int) -> int:
            removed = table.vacuum(
                retention_hours=hours,
                enforce_retention_duration=False,
                dry_run=False,
                full=full,
                post_commithook_properties=_NO_HOOKS,
            )
            return len(removed)

        with locked(self._lock_file):
            try:
                count = run(full=False, hours=RETAIN_HOURS) + run(full=True, hours=ORPHAN_HOURS)
            except (DeltaError, OSError) as error:
                raise self._stale(error, "A vacuum was not finished of") from error
        self._handle = table
        self.sync_to(self.version)
        return count


def require_space(directory: Path) -> None:
    """Refuse while the disk still has room for what is under way: a full one makes delta-rs panic.

    Raises:
        MetadataError: less than `RESERVE_BYTES` are free.
        OSError: the disk does not answer.
    """
    if shutil.disk_usage(directory).free < RESERVE_BYTES:
        raise MetadataError(
            f"The disk of {directory} is full: free some space (nothing was committed; commits go on from "
            f"{RESERVE_BYTES >> 20} MiB of free space)."
        )
