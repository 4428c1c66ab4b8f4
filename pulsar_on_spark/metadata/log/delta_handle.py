"""An open handle on one Delta table: opening it, seeing what is new, reading only the files that are new.

Whatever delta-rs raises, the handle is not used again: the next `refresh` opens the table anew, after a look for
damage, and keeps what it knows only if the log still holds the entry that it last stood at.
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
"""The version before the first."""


@dataclass(frozen=True, slots=True)
class _Identity:
    """A log entry as it lies on the disk.

    Logs lose entries oldest first, so while this very file is there, no number above it was ever free again: what
    follows it is one history, and the newest entry is the newest.
    """

    version: int
    inode: int
    modified_ns: int


_OS_ERROR = re.compile(r"os error (\d+)")
_REFUSALS = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO))


class StaleHandleError(MetadataError):
    """What this handle knows no longer holds, or the outcome of its commit is unknown: refresh and decide anew.

    Attributes:
        refused: The operating system refused the write: trying again helps only when the disk is well again.
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
    """Let no OSError leave a handle: it becomes a StaleHandleError, so the owner looks again before it decides.

    Everything public of a handle that touches files has this: what could not be reached is neither there nor missing.
    """

    @wraps(method)
    def wrapped(self: _Handle, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(self, *args, **kwargs)
        except (OSError, pa.ArrowMemoryError, LockHeldError) as error:
            raise self._stale(error, "Just now nothing can be read of") from error

    return wrapped


class DeltaHandle:
    """An open handle on one metadata table. Not thread-safe: its owner holds a lock."""

    @wrapping_os_errors
    def __init__(self, directory: Path, lock_file: Path) -> None:
        """Open the table, repairing it first where a crash left it broken.

        Raises:
            InvalidArgumentError: deltalake cannot hold a table at such a path.
            StaleHandleError: it could not be reached or repaired just now: try again.
            MetadataError: the table is damaged beyond what a crash does.
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
        """The newest checkpoint that this handle knows; every entry up to it is durable."""
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
            known = self._identity
            if known is None or version < known.version or self._identify(known.version) != known:
                self._forget()
                self._identity = self._first_identity(version)
            self.checkpointed = or_before_first(damage.newest_checkpoint(self._directory))
            self._data.checksums |= known_checksums(self._directory, self.checkpointed, version, self._entries.get)
            self._learnt = version
            self._handle = table
        return self._handle

    def _first_identity(self, version: int) -> _Identity:
        """The entry at which a table was opened, read before another entry could take its number."""
        identity = self._identify(version)
        if identity is None or not damage.was_never_free(self._directory, version):
            raise self._stale(RuntimeError("its entry was cleaned up"), "The log was overtaken while opening")
        return identity

    def _open(self) -> DeltaTable:
        was_marked = unsynced.is_marked_before(self._directory)
        for deep in (self._suspect_files or was_marked, True):
            if damage.needs_repair(self._directory, deep=deep):
                self._hold = None  # its own, which would keep it from repairing
                damage.repair(self._directory, self._lock_file, deep=deep, is_used=self._was_read)
            try:
                table = DeltaTable(str(self._directory))
            except DeltaError as error:
                if deep:
                    if _OS_ERROR.search(str(error)):
                        raise self._stale(error, "Just now nothing can be opened of") from error
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
        found = _OS_ERROR.search(str(error))
        number = int(found.group(1)) if found else getattr(error, "errno", None)
        return StaleHandleError(f"{what} {self._directory}: {error}", refused=number in _REFUSALS)

    @property
    @wrapping_os_errors
    def version(self) -> int:
        """The table version that this handle stands at."""
        return int(self._ensure_open().version())

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The active data files as of the last `refresh`, `take_in` or `fold`."""
        return tuple(self._files.values())

    # -- reading ---------------------------------------------------------------------------------------------------

    @wrapping_os_errors
    def refresh(self) -> tuple[bool, list[pa.Table]]:
        """Move to the newest version and take it in: see `take_in`."""
        table = self._ensure_open()
        if self._is_newest(int(table.version())):
            return False, []
        try:
            table.update_incremental()
        except DeltaError as error:
            raise self._stale(error, "The log was cleaned up under a reader of") from error
        known = self._identity
        if known is None or self._identify(known.version) != known:
            self._handle = None  # the next look reopens the table, through a checkpoint
        return self.take_in()

    def _is_newest(self, version: int) -> bool:
        """True if all is taken in and no entry follows: two stats instead of delta-rs's look, 4 ms at 10,000 keys."""
        known = self._identity
        return (
            not self._rebuild
            and known is not None
            and known.version == version == self._taken_in
            and self._identify(version + 1) is None
            and self._identify(version) == known
        )

    @wrapping_os_errors
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
        self._learn_checksums()  # before the files of other processes are read: rows are kept from then on
        rows = [self._read(file.name) for file in sorted(new, key=lambda file: file.min_seq)]
        self._identity = self._moved_on(self.version)
        self._files = active
        self._data.keep(active)
        # Until the owner says that it has the rows: an interrupt in between would leave it without them for good.
        self._rebuild = True
        self._taken_in = self._identity.version
        self._was_read = True
        return rebuild, rows

    def _moved_on(self, version: int) -> _Identity:
        """The identity of an entry that was read or made behind the one that this handle is identified by.

        A process that is stopped before it links its entry may do so when that number has been cleaned up, and would
        then read, and report, a history that is its own. The older entry, still there, shows that this is none.

        Raises:
            StaleHandleError: the older one is gone: the log was cleaned up, or cut.
        """
        known = self._identity
        identity = self._identify(version)
        if identity is None or known is None or self._identify(known.version) != known:
            raise self._stale(RuntimeError("the last known entry is gone"), "The log was cleaned up under a user of")
        return identity

    def _learn_checksums(self) -> None:
        """Take notice of the checksums of entries that were read or made since the last look."""
        version = self.version
        self._data.checksums |= entry_checksums(range(self._learnt + 1, version + 1), self._entries.get)
        self._learnt = version

    def taken_in(self) -> None:
        """The owner has the rows that the last `refresh` or `take_in` gave it."""
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
    """A version that may be missing, to be compared with others."""
    return BEFORE_FIRST if version is None else version
