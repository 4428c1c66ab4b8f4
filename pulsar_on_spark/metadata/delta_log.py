"""One Delta table as a durable log of rows: refresh, append under compare-and-set keys, sync, fold, checkpoint.

delta-rs does the Delta protocol; this module adds what it lacks: fsync, recognition of one's own commit after an
error, and reading only the files that are new. `optimize.compact()` and plain overwrites are never used: two
compactions of one snapshot both succeed in deltalake 1.6.6 and double every row.

Whatever delta-rs raises, the handle is not used again: the next `refresh` opens the table anew, after a look for
damage, and keeps what it knows only if the log still holds the entry that it last stood at.
"""

from __future__ import annotations

import errno
import re
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from pulsar_on_spark.metadata import folding, repair
from pulsar_on_spark.metadata.creation import RETAIN_HOURS, check_location
from pulsar_on_spark.metadata.durability import fsync_path, locked
from pulsar_on_spark.metadata.log_entry import (
    KEYS_FIELD,
    TOKEN_FIELD,
    LogEntry,
    checkpoint_path,
    entry_path,
    read_entry,
)
from pulsar_on_spark.model.errors import MetadataError

_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_MAX_REBASES = 100
"""delta-rs rebases a commit over foreign appends this often; a commit under the same key, or one that removes what
this one read, ends it at once."""
_MAX_PARSED = 4096
_RECENT_ROWS = 512
"""Data files up to this size are remembered for the next fold, which reads all of the last 128 and more."""
_RECENT_FILES = 4 * folding.LAG
_NONE = -1
"""The version before the first."""
KEEP_ENTRIES = 512
"""Log entries that stay at least. By number, not by age (delta-rs's own clean-up keeps an hour): each refresh lists the
log, 1 ms for 1,000 entries, and a commit must not cost more after 10,000 others. Who falls behind opens anew."""
ORPHAN_HOURS = 24
"""Data files that no log entry names (a commit that never happened) are vacuumed at this age."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """An active data file of the table: its name, its rows and the range of their `seq`."""

    name: str
    rows: int
    min_seq: int
    max_seq: int


@dataclass(frozen=True, slots=True)
class _Identity:
    """A log entry as it lies on the disk: while it is there, so is the log before it."""

    version: int
    inode: int
    modified_ns: int


_OS_ERROR = re.compile(r"os error (\d+)")
_REFUSALS = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO))
RESERVE_BYTES = 1 << 20
"""With less free space on the root's disk nothing is committed."""


class StaleHandleError(MetadataError):
    """What this handle knows no longer holds, or the outcome of its commit is unknown: refresh and decide anew.

    Attributes:
        refused: The operating system refused the write: trying again helps only when the disk is well again.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class DeltaLog:
    """An open handle on one metadata table. Not thread-safe: its owner holds a lock."""

    def __init__(self, directory: Path, lock_file: Path) -> None:
        """Open the table, repairing it first where a crash left it broken.

        Raises:
            InvalidArgumentError: deltalake cannot hold a table at such a path.
            MetadataError: the table is damaged beyond what a crash does.
        """
        check_location(directory)
        self._directory = directory
        self._lock_file = lock_file
        self._handle: DeltaTable | None = None
        self._suspect_files = False
        self._lost_durability: str | None = None
        self.checkpointed = _NONE
        self._forget()
        self._ensure_open()

    def _forget(self) -> None:
        self._files: dict[str, DataFile] = {}
        self._identity: _Identity | None = None
        self._key_versions: dict[str, int | None] = {}
        self._keys_at = _NONE
        self._synced = _NONE
        self._rebuild = True
        self._parsed: dict[int, LogEntry] = {}
        self._recent: dict[str, pa.Table] = {}

    def _ensure_open(self) -> DeltaTable:
        if self._lost_durability is not None:
            raise MetadataError(self._lost_durability)
        if self._handle is None:
            table = self._open()
            version = int(table.version())
            known = self._identity
            if known is None or version < known.version or self._identify(known.version) != known:
                self._forget()
            self._handle = table
            self.checkpointed = _or_none(repair.newest_checkpoint(self._directory))
        return self._handle

    def _open(self) -> DeltaTable:
        for deep in (self._suspect_files, True):
            if deep or repair.needs_repair(self._directory):
                repair.repair(self._directory, self._lock_file, deep=deep)
            try:
                table = DeltaTable(str(self._directory))
            except DeltaError as error:
                if deep:
                    raise MetadataError(
                        f"The metadata table {self._directory} cannot be opened ({error}): restore the root from a "
                        "backup."
                    ) from error
                continue
            self._suspect_files = False
            return table
        raise AssertionError("unreachable")

    def _identify(self, version: int) -> _Identity | None:
        try:
            status = entry_path(self._directory, version).stat()
        except FileNotFoundError:
            return None
        return _Identity(version, status.st_ino, status.st_mtime_ns)

    def _stale(self, error: Exception, what: str) -> StaleHandleError:
        self._handle = None
        found = _OS_ERROR.search(str(error))
        number = int(found.group(1)) if found else getattr(error, "errno", None)
        return StaleHandleError(f"{what} {self._directory}: {error}", refused=number in _REFUSALS)

    @property
    def version(self) -> int:
        """The table version that this handle stands at."""
        return int(self._ensure_open().version())

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The active data files as of the last `refresh`, `take_in` or `fold`."""
        return tuple(self._files.values())

    # -- reading ---------------------------------------------------------------------------------------------------

    def refresh(self) -> tuple[bool, list[pa.Table]]:
        """Move to the newest version and take it in: see `take_in`."""
        table = self._ensure_open()
        if self._is_newest(int(table.version())):
            return False, []
        try:
            table.update_incremental()
        except DeltaError as error:
            raise self._stale(error, "The log was cleaned up under a reader of") from error
        return self.take_in()

    def _is_newest(self, version: int) -> bool:
        """Whether all is taken in and no entry follows: two stats instead of delta-rs's look, 4 ms at 10,000 keys.

        Logs are cleaned up from their beginning, so while an entry is there, the one after it has not been cleaned up.
        """
        known = self._identity
        return (
            not self._rebuild
            and known is not None
            and known.version == version
            and not entry_path(self._directory, version + 1).exists()
            and self._identify(version) == known
        )

    def take_in(self, own: str | None = None) -> tuple[bool, list[pa.Table]]:
        """What is new at this handle's version.

        Args:
            own: a data file whose rows the caller has already.

        Returns:
            (rebuild, rows): the rows of data files that are new to this handle. With `rebuild` the log is not a
            continuation of what was taken in before, or the base of the table was folded anew, which may have dropped
            rows for good: `rows` is then the whole table.

        Raises:
            StaleHandleError: the table moved on while it was read; refresh again.

        The owner calls `taken_in` when it has the rows; until then the next call gives the whole table.
        """
        active = self._active_files()
        base = min(self._files.values(), key=lambda file: file.min_seq, default=None)
        rebuild = self._rebuild or (base is not None and base.name not in active)
        known = {} if rebuild else self._files
        new = [file for file in active.values() if file.name not in known and (rebuild or file.name != own)]
        rows = [self._read(file.name) for file in sorted(new, key=lambda file: file.min_seq)]
        self._files = active
        self._recent = {name: self._recent[name] for name in self._recent if name in active}
        # Until the owner says that it has the rows: an interrupt in between would leave it without them for good.
        self._rebuild = True
        version = self.version
        if self._identity is None or self._identity.version != version:
            self._identity = self._identify(version)
        return rebuild, rows

    def taken_in(self) -> None:
        """The owner has the rows that the last `refresh` or `take_in` gave it."""
        self._rebuild = False

    def _active_files(self) -> dict[str, DataFile]:
        try:
            actions = pa.table(self._ensure_open().get_add_actions(flatten=True))
        except DeltaError as error:
            raise self._stale(error, "The files cannot be listed of") from error
        names = ("path", "num_records", "min.seq", "max.seq")
        if not actions.num_rows:
            return {}
        if any(name not in actions.column_names or actions.column(name).null_count for name in names):
            return {name: self._measure(name) for name in actions.column("path").to_pylist()}
        files = map(DataFile, *(actions.column(name).to_pylist() for name in names))
        return {file.name: file for file in files}

    def _measure(self, name: str) -> DataFile:
        """A file whose writer left no statistics."""
        if name in self._files:
            return self._files[name]
        seq = self._read(name).column("seq")
        bounds = pc.min_max(seq).as_py()
        return DataFile(name, len(seq), bounds["min"] or 0, bounds["max"] or 0)

    def _read(self, name: str) -> pa.Table:
        rows = self._recent.get(name)
        return self._remember(name, self._read_file(name)) if rows is None else rows

    def _remember(self, name: str, rows: pa.Table) -> pa.Table:
        if rows.num_rows <= _RECENT_ROWS and len(self._recent) < _RECENT_FILES:
            self._recent[name] = rows
        return rows

    def _read_file(self, name: str) -> pa.Table:
        path = self._directory / name
        try:
            with path.open("rb") as file:
                return pq.ParquetFile(file).read(use_threads=False)
        except FileNotFoundError as error:
            raise self._stale(error, "A file was vacuumed under a reader of") from error
        except (pa.ArrowException, OSError) as error:
            self._suspect_files = True
            raise self._stale(error, f"The file {name} is broken in") from error

    def key_version(self, key: str) -> int | None:
        """The version that the newest commit under `key` gave it, as this handle sees it; None before the first.

        delta-rs replays its log for each such question (3 ms at 10,000 keys), so answers are remembered and moved on
        by the entries that follow.
        """
        table = self._ensure_open()
        version = int(table.version())
        for number in range(self._keys_at + 1, version + 1) if self._key_versions else ():
            entry = self._entry(number)
            if entry is None:  # cleaned up: what it moved on is unknown
                self._key_versions.clear()
                break
            self._key_versions.update({moved: at for moved, at in entry.keys.items() if moved in self._key_versions})
        self._keys_at = version
        if key not in self._key_versions:
            try:
                found = table.transaction_version(key)
            except DeltaError as error:
                raise self._stale(error, "A key cannot be looked up in") from error
            self._key_versions[key] = None if found is None else int(found)
        return self._key_versions[key]

    def _entry(self, version: int) -> LogEntry | None:
        if version not in self._parsed:
            entry = read_entry(self._directory, version)
            if entry is None:
                return None
            if len(self._parsed) >= _MAX_PARSED:
                self._parsed.clear()
            self._parsed[version] = entry
        return self._parsed[version]

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
        entry = self._entry(version)
        if entry is None or entry.token != token:
            raise self._stale(RuntimeError(f"entry {version} is another's"), "A commit went astray in")
        if not entry.added:
            return None
        self._remember(entry.added[0][0], rows)
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
        self._require_space()
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

    def _require_space(self) -> None:
        """Refuse while the disk still has room for what is under way: a full one makes delta-rs panic."""
        if shutil.disk_usage(self._directory).free < RESERVE_BYTES:
            raise MetadataError(
                f"The disk of {self._directory} is full: free some space (nothing was committed; commits go on from "
                f"{RESERVE_BYTES >> 20} MiB of free space)."
            )

    def find_commit(self, token: str, after_version: int) -> int | None:
        """The version of the commit that carries `token`, looked for above `after_version`; None if there is none.

        Raises:
            MetadataError: the log was cleaned up since, and the rows do not tell.
        """
        version = self.version
        cleaned = False
        for number in range(after_version + 1, version + 1):
            entry = self._entry(number)
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
            self._synced = max(self._synced, _or_none(repair.pointed_checkpoint(self._directory)))
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
        entry = self._entry(version)
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
        entry = self._entry(version)
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
            newest = _or_none(repair.pointed_checkpoint(self._directory))
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
        self.checkpointed = max(self.checkpointed, _or_none(repair.pointed_checkpoint(self._directory)))

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


def _or_none(version: int | None) -> int:
    return _NONE if version is None else version
