"""An open handle on one Delta table: it opens and refreshes the table, and reads only new files.

After any error of delta-rs, delta-rs's own handle is dropped: the next `refresh` checks the table for damage and opens
it again, and keeps the known files only if the log still has the last entry that was read.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pulsar_on_spark.metadata.log import damage, unsynced
from pulsar_on_spark.metadata.log.creation import check_location
from pulsar_on_spark.metadata.log.data_files import DataFile, DataFiles, is_unreachable
from pulsar_on_spark.metadata.log.key_versions import KeyVersions, LogEntries
from pulsar_on_spark.metadata.log.log_entry import entry_checksums, entry_name, known_checksums
from pulsar_on_spark.model.errors import CorruptMetadataError, MetadataError
from pulsar_on_spark.storage.durability import LockHeldError, TableHold

BEFORE_FIRST = -1
"""Number below that of the first version."""


@dataclass(frozen=True, slots=True)
class _Identity:
    """Identity of a log entry's file on the disk.

    Logs lose entries oldest first. While this very file exists, no number above it was ever free again: the entries
    after it are one history, without entries that were linked too late.
    """

    version: int
    inode: int
    modified_ns: int


_OS_ERROR = re.compile(r"os error (\d+)")
_REFUSALS = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO))


class StaleHandleError(MetadataError):
    """The handle's state is out of date, or the outcome of its commit is unknown: refresh and decide again.

    Attributes:
        refused: True if the operating system refused the write: a retry helps only after the disk was repaired.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


_P = ParamSpec("_P")
_R = TypeVar("_R")
_Handle = TypeVar("_Handle", bound="DeltaHandle")


def wrapping_os_errors(
    method: Callable[Concatenate[_Handle, _P], _R],
) -> Callable[Concatenate[_Handle, _P], _R]:
    """Translate OSErrors into StaleHandleErrors, so that the owner refreshes before it decides.

    All public methods of a handle that touch files are decorated: an unreachable file is not known to be missing.
    """

    @wraps(method)
    def wrapped(self: _Handle, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(self, *args, **kwargs)
        except (OSError, pa.ArrowMemoryError, LockHeldError) as error:
            raise self._stale(error, "Nothing can be read now of") from error

    return wrapped


class DeltaHandle:
    """An open handle on one metadata table. Not thread-safe: its owner holds a lock."""

    @wrapping_os_errors
    def __init__(self, directory: Path, lock_file: Path) -> None:
        """Open the table, repairing it first where a crash left it broken.

        Raises:
            InvalidArgumentError: deltalake cannot handle the path.
            StaleHandleError: the table could not be reached or repaired now: try again.
            MetadataError: the table is damaged in a way that no crash explains.
        """
        check_location(directory)
        self._directory = directory
        self._lock_file = lock_file
        self._handle: DeltaTable | None = None
        self._hold: TableHold | None = None
        self._was_read = False
        self._suspect_files = False
        self._lost_durability: MetadataError | None = None
        self.checkpointed = BEFORE_FIRST
        """The newest known checkpoint; every entry up to it is durable."""
        self._put_off_at = BEFORE_FIRST
        self._forget()
        self._ensure_open()

    def _forget(self) -> None:
        self._files: dict[str, DataFile] = {}
        self._identity: _Identity | None = None
        self._taken_in = BEFORE_FIRST
        self._learnt = BEFORE_FIRST
        self._synced = BEFORE_FIRST
        self._rebuild = True
        self._entries = LogEntries(self._directory)
        self._keys = KeyVersions(self._directory, self._entries)
        self._data = DataFiles(self._directory)

    def _ensure_open(self) -> DeltaTable:
        if self._lost_durability is not None:
            raise MetadataError(str(self._lost_durability))
        if self._handle is None:
            table = self._open()
            self._hold = TableHold(self._directory)
            version = int(table.version())
            last_seen = self._identity
            if last_seen is None or version < last_seen.version or self._identify(last_seen.version) != last_seen:
                self._forget()
                self._identity = self._first_identity(version)
            self.checkpointed = or_before_first(damage.newest_checkpoint(self._directory))
            self._data.checksums |= known_checksums(self._directory, self.checkpointed, version, self._entries.get)
            self._learnt = version
            self._handle = table
        return self._handle

    def _first_identity(self, version: int) -> _Identity:
        """Identify the entry at which a table was opened, and check that it is the log's own."""
        identity = self._identify(version)
        if identity is None or not damage.was_never_free(self._directory, version):
            raise self._stale(RuntimeError("its entry was cleaned up"), "The log was overtaken while opening")
        return identity

    def _open(self) -> DeltaTable:
        was_marked = unsynced.is_marked_before(self._directory)
        for deep in (self._suspect_files or was_marked, True):
            if damage.needs_repair(self._directory, deep=deep):
                self._hold = None  # this handle's own lock would prevent the repair
                damage.repair(self._directory, self._lock_file, deep=deep, is_used=self._was_read)
            try:
                table = DeltaTable(str(self._directory))
            except DeltaError as error:
                if deep:
                    if _OS_ERROR.search(str(error)):
                        raise self._stale(error, "Nothing can be opened now of") from error
                    raise CorruptMetadataError(
                        f"The metadata table {self._directory} cannot be opened ({error}): restore the root from a "
                        "backup."
                    ) from error
                continue
            self._suspect_files = False
            if was_marked:
                unsynced.remove_mark(self._directory)
            return table
        raise AssertionError("unreachable")

    def _identify(self, version: int) -> _Identity | None:
        try:
            status = os.stat(f"{self._directory}/{entry_name(version)}")
        except FileNotFoundError:
            return None
        return _Identity(version, status.st_ino, status.st_mtime_ns)

    def _stale(self, error: Exception, what: str) -> StaleHandleError:
        self._handle = None
        match = _OS_ERROR.search(str(error))
        number = int(match.group(1)) if match else getattr(error, "errno", None)
        return StaleHandleError(f"{what} {self._directory}: {error}", refused=number in _REFUSALS)

    @property
    @wrapping_os_errors
    def version(self) -> int:
        """The table version of this handle."""
        return int(self._ensure_open().version())

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The active data files as of the last `refresh`, `take_in` or `fold`."""
        return tuple(self._files.values())

    # -- reading ---------------------------------------------------------------------------------------------------

    @wrapping_os_errors
    def refresh(self) -> tuple[bool, list[pa.Table]]:
        """Move to the newest version and read its new rows; returns and raises as `take_in`."""
        table = self._ensure_open()
        if self._is_newest(int(table.version())):
            return False, []
        try:
            table.update_incremental()
        except DeltaError as error:
            raise self._stale(error, "The log was cleaned up under a reader of") from error
        last_seen = self._identity
        if last_seen is None or self._identify(last_seen.version) != last_seen:
            self._handle = None  # the next refresh opens the table again, from a checkpoint
        return self.take_in()

    def _is_newest(self, version: int) -> bool:
        """True if `version` is read and is the newest: two `stat` calls, where delta-rs takes 4 ms at 10,000 keys."""
        last_seen = self._identity
        return (
            not self._rebuild
            and last_seen is not None
            and last_seen.version == version == self._taken_in
            and self._identify(version + 1) is None
            and self._identify(version) == last_seen
        )

    @wrapping_os_errors
    def take_in(self, own: str | None = None) -> tuple[bool, list[pa.Table]]:
        """Read the new rows at this handle's version.

        Args:
            own: a data file whose rows the caller has already.

        Returns:
            (rebuild, rows): the rows of data files that are new to this handle. If `rebuild` is true, `rows` is the
            whole table, because the log does not continue the one that was read before, or because the table's base
            was rewritten by a fold, which may have dropped rows.

        Raises:
            StaleHandleError: the table changed while it was read; refresh again.

        The owner calls `taken_in` when it has the rows; until then the next call returns the whole table.
        """
        active = self._active_files()
        base = min(self._files.values(), key=lambda file: file.min_seq, default=None)
        rebuild = self._rebuild or (base is not None and base.name not in active)
        known = {} if rebuild else self._files
        new = [file for file in active.values() if file.name not in known and (rebuild or file.name != own)]
        self._learn_checksums()  # before files of other processes are read, as their rows are cached from then on
        rows = [self._read(file.name) for file in sorted(new, key=lambda file: file.min_seq)]
        self._identity = self._moved_on(self.version)
        self._files = active
        self._data.keep(active)
        # Until the owner confirms that it has the rows: after an interrupt it would otherwise never get them.
        self._rebuild = True
        self._taken_in = self._identity.version
        self._was_read = True
        return rebuild, rows

    def _moved_on(self, version: int) -> _Identity:
        """Identify a newer entry that was read or written after the one that identifies this handle.

        A process that is suspended before it links its entry may link it after that number was cleaned up. It would
        then read and report a history that no other process sees. The older entry, if it still exists, excludes this.

        Raises:
            StaleHandleError: the older entry is gone: the log was cleaned up, or cut.
        """
        last_seen = self._identity
        identity = self._identify(version)
        if identity is None or last_seen is None or self._identify(last_seen.version) != last_seen:
            raise self._stale(RuntimeError("the last known entry is gone"), "The log was cleaned up under a user of")
        return identity

    def _learn_checksums(self) -> None:
        """Collect the checksums of entries that are new since the last call."""
        version = self.version
        self._data.checksums |= entry_checksums(range(self._learnt + 1, version + 1), self._entries.get)
        self._learnt = version

    def taken_in(self) -> None:
        """Confirm that the owner has the rows of the last `refresh` or `take_in`."""
        self._rebuild = False

    def _active_files(self) -> dict[str, DataFile]:
        try:
            actions = pa.RecordBatchReader.from_stream(self._ensure_open().get_add_actions(flatten=True)).read_all()
        except DeltaError as error:
            raise self._stale(error, "The files cannot be listed of") from error
        names = ("path", "num_records", "min.seq", "max.seq")
        if not actions.num_rows:
            return {}
        if any(name not in actions.column_names or actions.column(name).null_count for name in names):
            return {name: self._measured(name) for name in actions.column("path").to_pylist()}
        files = map(DataFile, *(actions.column(name).to_pylist() for name in names))
        return {file.name: file for file in files}

    def _measured(self, name: str) -> DataFile:
        with self._reading(name):
            return self._files.get(name) or self._data.measure(name)

    def _read(self, name: str) -> pa.Table:
        with self._reading(name):
            return self._data.read(name)

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise self._stale(error, "A file was vacuumed under a reader of") from error
        except (pa.ArrowException, OSError, KeyError) as error:
            if is_unreachable(error):
                raise
            self._suspect_files = True
            raise self._stale(error, f"The file {name} is broken in") from error


def or_before_first(version: int | None) -> int:
    """Replace a missing version by `BEFORE_FIRST`, for comparisons."""
    return BEFORE_FIRST if version is None else version
