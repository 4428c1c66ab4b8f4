"""An open handle on one Delta table: opening it, seeing what is new, reading only the files that are new.

Whatever delta-rs raises, the handle is not used again: the next `refresh` opens the table anew, after a look for
damage, and keeps what it knows only if the log still holds the entry that it last stood at.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pulsar_on_spark.metadata import repair
from pulsar_on_spark.metadata.creation import check_location
from pulsar_on_spark.metadata.data_files import DataFile, DataFiles
from pulsar_on_spark.metadata.key_versions import KeyVersions, LogEntries
from pulsar_on_spark.metadata.log_entry import entry_path
from pulsar_on_spark.model.errors import MetadataError

BEFORE_FIRST = -1
"""The version before the first."""


@dataclass(frozen=True, slots=True)
class _Identity:
    """A log entry as it lies on the disk: while it is there, so is the log before it."""

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


class DeltaHandle:
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
        self.checkpointed = BEFORE_FIRST
        self._forget()
        self._ensure_open()

    def _forget(self) -> None:
        self._files: dict[str, DataFile] = {}
        self._identity: _Identity | None = None
        self._synced = BEFORE_FIRST
        self._rebuild = True
        self._entries = LogEntries(self._directory)
        self._keys = KeyVersions(self._directory, self._entries)
        self._data = DataFiles(self._directory)

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
            self.checkpointed = or_before_first(repair.newest_checkpoint(self._directory))
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
        self._data.keep(active)
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
        except (pa.ArrowException, OSError) as error:
            self._suspect_files = True
            raise self._stale(error, f"The file {name} is broken in") from error


def or_before_first(version: int | None) -> int:
    """A version that may be missing, to be compared with others."""
    return BEFORE_FIRST if version is None else version
