"""A Delta table as a durable log of rows: refresh, append under compare-and-set keys, fold, checkpoint, clean up.

Only pulsar_on_spark writes the objects of such a table (`chain` has the rules of entries). Any Delta reader may read
them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa

from pulsar_on_spark.metadata.log import cleaning, folding
from pulsar_on_spark.metadata.log.chain import (
    DamagedEntryError,
    ForeignEntryError,
    OvertakenError,
    UnknownOutcomeError,
    append,
    follow,
    settle,
)
from pulsar_on_spark.metadata.log.checkpoints import Snapshot, pointed_checkpoint, write_checkpoint
from pulsar_on_spark.metadata.log.data_files import DataFiles, MissingFileError, encode_file
from pulsar_on_spark.metadata.log.entry import (
    BEFORE_FIRST,
    Content,
    DataFile,
    Entry,
    Tip,
    encode_entry,
    entry_key,
    new_token,
    new_writer,
)
from pulsar_on_spark.metadata.log.history import History, read_history
from pulsar_on_spark.metadata.log.log_store import LogStore
from pulsar_on_spark.metadata.log.opening import damaged, open_log, read_entry
from pulsar_on_spark.metadata.log.requests import run
from pulsar_on_spark.model.errors import (
    CorruptMetadataError,
    MetadataError,
    ObjectsRefusedError,
    ObjectsUnreachableError,
    UnsyncedFolderError,
)

_SETTLING_S: Final = 60.0
"""Seconds after which no new attempt begins to find out an unknown outcome."""


@dataclass(frozen=True, slots=True)
class News:
    """Rows that are new to the caller of a `TableLog`.

    Attributes:
        rebuild: True if `tables` has all rows of the table, so that the caller must drop the rows that it has.
        tables: The rows of each new data file, in the order of the files' smallest `seq`.
    """

    rebuild: bool
    tables: list[pa.Table]


class TableLog:
    """An open table, for reading and writing. Not thread-safe: its owner must hold a lock.

    Each method raises `OvertakenError` if the log was cleaned up or replaced, so that the owner must call `refresh`,
    and `MetadataError` if the table is damaged, cannot be reached now, or may not be durable.
    """

    def __init__(self, store: LogStore, permit: Callable[[TableLog], None] = lambda log: None) -> None:
        """Create an object that has no version yet; the first `refresh` opens the log.

        Args:
            store: The log store of the table.
            permit: Called before each write; raises an error if this program may not write to the table.
        """
        self._store = store
        self._permit = permit
        self._writer, self._process = new_writer(), os.getpid()
        self._data = DataFiles(store)
        self._unsynced: UnsyncedFolderError | None = None
        self._tip: Tip | None = None
        self._files: dict[str, DataFile] = {}
        self._keys: dict[str, int] = {}
        self._removed_ms: dict[str, int] = {}
        self._head: dict[str, Mapping[str, Any]] = {}
        self._known: frozenset[str] = frozenset()
        self._synced = BEFORE_FIRST.version
        self.checkpointed = BEFORE_FIRST.version
        """The version of the newest known checkpoint; -1 if none is known."""
        self._put_off_at = BEFORE_FIRST.version

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version up to which the table was read."""
        return self._read_tip.version

    @property
    def is_chained(self) -> bool:
        """True if the table can be written; False if format 1 wrote it, so that it can only be read."""
        return self._read_tip.is_chained

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The active data files at this version."""
        return tuple(self._files.values())

    def key_version(self, key: str) -> int | None:
        """Return the version of a compare-and-set key; None before the first commit under the key."""
        return self._keys.get(key)

    def refresh(self) -> News:
        """Move to the newest version, and return the new rows.

        The owner must call `taken_in` when it has applied the rows. Otherwise the next call returns all rows of the
        table.
        """
        with self._translated():
            if self._tip is None:
                return self._open()
            try:
                return self._take(run(follow(self._tip), self._store), {})
            except OvertakenError:
                return self._open()

    def history(self) -> History:
        """Return the versions that the log still covers.

        The version of this object has no effect and does not change.
        """
        with self._translated():
            return read_history(self._store)

    def read(self, files: Iterable[DataFile]) -> list[pa.Table]:
        """Return the rows of each of these data files, which a version of the log must name."""
        with self._translated():
            return self._read(files)

    def taken_in(self) -> None:
        """Confirm that the owner has applied the rows of the last `News`."""
        self._known = frozenset(self._files)

    def sync_to(self, version: int) -> None:
        """Make every entry up to `version` durable, including entries of other processes.

        A caller must do so before it deletes or skips data, or reports a result, because of what it read.
        """
        with self._translated():
            if version > self._synced:
                newest = self.version
                self._store.sync()
                self._synced = newest

    def _open(self) -> News:
        self._tip = None
        self._known = frozenset()
        opened = open_log(self._store)
        snapshot = opened.snapshot
        self._files, self._keys = dict(snapshot.files), dict(snapshot.keys)
        self._removed_ms, self._head = dict(snapshot.removed_ms), dict(snapshot.head)
        self.checkpointed = self._synced = snapshot.version
        self._tip = opened.tip
        return self._take(opened.entries, {})

    def _take(self, entries: list[Entry], own: Mapping[str, pa.Table]) -> News:
        """Advance over these entries, and return the rows of the files that they add.

        The rows of files in `own` are taken from there; all other files are read. After an error, the log must be
        opened again.
        """
        tip, self._tip = self._read_tip, None
        base = min(self._files.values(), key=lambda file: file.min_seq, default=None)
        for entry in entries:
            self._files.update((file.name, file) for file in entry.added)
            for name in entry.removed:
                self._files.pop(name, None)
                self._removed_ms[name] = entry.written_ms
            self._keys.update(entry.keys)
            self._head.update(entry.head)
            tip = entry.tip
        if base is None or base.name not in self._files:  # a fold of the base may have dropped rows
            self._known = frozenset()
        news = [file for file in self._files.values() if file.name not in self._known]
        rebuild = not self._known
        news.sort(key=lambda file: file.min_seq)
        others = iter(self._read([file for file in news if file.name not in own]))
        tables = [own[file.name] if file.name in own else next(others) for file in news]
        self._data.keep(self._files)
        self._known = frozenset()  # until the owner has the rows
        self._tip = tip
        return News(rebuild, tables)

    def _read(self, files: Iterable[DataFile]) -> list[pa.Table]:
        try:
            return list(self._data.read(files))
        except MissingFileError as error:
            raise OvertakenError(f"the file {error} is missing") from error

    @property
    def _read_tip(self) -> Tip:
        if self._tip is None:
            raise OvertakenError("the log has to be read first")
        return self._tip

    # -- committing ------------------------------------------------------------------------------------------------

    def new_token(self) -> str:
        """Draw a random token for the next commit of this object."""
        if self._process != os.getpid():  # forked: commits under one writer's name come one after another
            self._writer, self._process = new_writer(), os.getpid()
        return new_token(self._writer)

    def append(self, rows: pa.Table, keys: Mapping[str, int], token: str) -> News | None:
        """Append rows durably in one commit.

        Args:
            rows: The rows; none for a commit that only moves keys.
            keys: The new version of each compare-and-set key that the commit moves.
            token: The commit's token, from `new_token`.

        Returns:
            The rows of this commit and of other commits that are new to this object; None if the commit is done, but
            the caller must call `refresh` to get them.

        Raises:
            ConflictError: another commit moved one of the keys or has removed files; nothing was committed.
            UnknownOutcomeError: the outcome is unknown: call `settle`.
            FormatVersionError: this program may not write to the table.
        """
        with self._translated():
            self._require_writable()
            return self._commit(rows, (), keys, token)

    def _require_writable(self) -> None:
        self._permit(self)
        self._store.require_writable()

    def replace_all(self, rows: pa.Table, keys: Mapping[str, int]) -> None:
        """Replace all rows of the table in one commit. In a table of format 1, its entry is the first of the chain.

        Raises:
            MetadataError: the commit failed, or its outcome is unknown.
        """
        with self._translated():
            self._require_writable()
            token, version = self.new_token(), self.version
            try:
                self._commit(rows, list(self._files), keys, token)
            except UnknownOutcomeError as error:
                if not self.settle(token, version, error):
                    raise MetadataError(
                        f"The rows of the metadata table {self._store.place} could not be replaced, and nothing was "
                        "committed: try again."
                    ) from error

    def _commit(self, rows: pa.Table, removed: Sequence[str], keys: Mapping[str, int], token: str) -> News | None:
        """Create the data file, if there are rows, and the log entry.

        Result, None included, and errors are those of `append`.
        """
        own: dict[str, pa.Table] = {}
        added: list[DataFile] = []
        if rows.num_rows:
            file, encoded = encode_file(rows, self.version, token)
            self._store.objects.create(file.name, encoded)
            added.append(file)
            own[file.name] = rows
        content = Content(added, removed, keys)
        encode = partial(encode_entry, content, token, boot=self._store.boot)
        try:
            entries = run(append(self._read_tip, encode, content, token), self._store)
        except BaseException:
            self._writer = new_writer()  # the entry may exist without being synced
            raise
        # The entry's name is synced, and so are all earlier names; an entry behind it may not be synced yet.
        self._synced = next(entry.version for entry in entries if entry.token == token)
        self._store.note_reported(self._synced)
        for name in own:
            self._data.remember(name, rows)
        try:
            return self._take(entries, own)
        except (OvertakenError, ObjectsUnreachableError, CorruptMetadataError):
            return None  # the commit is done, although this object cannot read the rows

    def settle(self, token: str, after_version: int, error: UnknownOutcomeError) -> bool:
        """Find out if a commit with an unknown outcome was made; if it was not, prevent that it is made later.

        Args:
            token: The commit's token.
            after_version: The version on which the commit was decided.
            error: The error that `append` raised.

        Returns:
            True if the commit is in the log, False if it never will be. In both cases the caller must call `refresh`.

        Raises:
            MetadataError: the outcome stays unknown.
        """
        deadline_s = time.monotonic() + _SETTLING_S
        reason: Exception = error
        while time.monotonic() < deadline_s:
            try:
                with self._translated():
                    return self._settle(token, after_version, error.version)
            except (OvertakenError, UnknownOutcomeError) as again:
                reason = again
            except MetadataError as refused:
                raise self._unknown(str(refused)) from refused
            finally:
                self._tip = None
        raise self._unknown(f"other processes commit all the time, or the store does not answer: {reason}")

    def _settle(self, token: str, after_version: int, version: int) -> bool:
        self._open()
        is_done = self._find(token, after_version)
        if not is_done and self.version < version:
            encode = partial(encode_entry, Content(), self.new_token(), boot=self._store.boot)
            is_done = run(settle(self._read_tip, encode, version, token), self._store)
        self._store.sync()
        return is_done

    def _find(self, token: str, after_version: int) -> bool:
        """Return True if the log has the commit with this token after `after_version`.

        It is found by its entry or, after a clean-up, by its rows.

        Raises:
            MetadataError: neither its entry nor its rows are found, but the clean-up may have removed its entry.
        """
        tip = self._read_tip
        while tip.version > after_version:
            entry = read_entry(self._store, tip.version)
            if entry is None or entry.token != tip.token:  # it was cleaned up; a late entry may have its number
                break
            if entry.token == token:
                return True
            tip = Tip(tip.version - 1, entry.previous or "", is_chained=True)
        else:
            return False
        if any(token in rows.column("token").to_pylist() for rows in self._read(self.files)):
            return True
        raise self._unknown("the log was cleaned up while this process was suspended")

    def _unknown(self, reason: str) -> MetadataError:
        return MetadataError(
            f"The outcome of a commit to the metadata table {self._store.place} is unknown ({reason}): check whether "
            "the change is there before you make it again."
        )

    # -- housekeeping ----------------------------------------------------------------------------------------------

    def fold(self, order: folding.Order, forgettable: folding.Forgettable | None) -> bool:
        """Remove superseded rows by a rewrite.

        Return True if rows were rewritten, False if a fold is not worth its cost. The caller must call `refresh` first.

        Args:
            order: The record key and the rank of rows.
            forgettable: Selects further rows that a full fold drops; None to drop none.

        Raises:
            ConflictError: another fold came first.
        """
        plan = folding.plan(self.files, self.version)
        if plan is None:
            return False
        with self._translated():
            self._require_writable()
            reach = sorted((file for file in self.files if file.max_seq > plan.above), key=lambda file: file.min_seq)
            rows = pa.concat_tables(self._read(reach), promote_options="default")
            kept = folding.fold(rows, plan, order, forgettable)
            removed = [file.name for file in reach if file.max_seq <= plan.up_to]
            token = self.new_token()
            keys = {folding.FOLD_KEY: (self.key_version(folding.FOLD_KEY) or 0) + 1}
            news = self._commit(kept, removed, keys, token)
            # The owner already has the rows of a fold that is not full, if no other commit came in between.
            is_alone = news is not None and not news.rebuild and len(news.tables) == (1 if kept.num_rows else 0)
            if is_alone and not plan.full:
                self.taken_in()
        return True

    def checkpoint(self) -> bool:
        """Write a checkpoint of this version durably, and then delete old log entries.

        Returns:
            True if the checkpoint was written; False if another process is cleaning up, or has written a checkpoint of
            this or a later version.
        """
        self._permit(self)
        with self._translated(), self._store.housekeeping() as is_alone:
            if not is_alone:
                return False
            version = self.version
            self.look_for_checkpoint()
            if self.checkpointed >= version:
                return False
            self.sync_to(version)
            since_ms = (time.time() - cleaning.RETAIN_S) * 1000
            removed_ms = {name: ms for name, ms in self._removed_ms.items() if ms >= since_ms}
            try:
                write_checkpoint(
                    self._store.objects, Snapshot(version, self._files, self._keys, removed_ms, self._head)
                )
            except ValueError as error:
                raise MetadataError(
                    f"The log of {self._store.place} contradicts its checkpoint {version}: report this as a defect of "
                    "pulsar_on_spark."
                ) from error
            self.checkpointed = version
            cleaning.clean_log(self._store, version, cleaning.KEEP_S)
            self._store.sweep()
            return True

    def entries_since_checkpoint(self) -> int:
        """Return the number of log entries since the last known checkpoint, less what `put_off_checkpoint` deducts.

        It is 0 before the first refresh.
        """
        return 0 if self._tip is None else self.version - max(self.checkpointed, self._put_off_at)

    def put_off_checkpoint(self, entries: int) -> None:
        """Postpone the next checkpoint after a failure: `entries_since_checkpoint` returns at most `entries` now."""
        self._put_off_at = self.version - entries

    def look_for_checkpoint(self) -> None:
        """Update `checkpointed` if another process has written a newer checkpoint."""
        with self._translated():
            pointed = pointed_checkpoint(self._store.objects)
            if pointed is not None:
                self.checkpointed = max(self.checkpointed, pointed)

    def vacuum(self) -> int:
        """Delete data files that no version in the log needs; return their number, 0 if another process cleans up."""
        self._permit(self)
        with self._translated(), self._store.housekeeping() as is_alone:
            return cleaning.clean_data(self._store) if is_alone else 0

    # -- errors ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate errors of the store and of the chain, raised in the block, into errors for operators."""
        if self._unsynced is not None:
            raise MetadataError(str(self._unsynced))
        place = self._store.place
        try:
            yield
        except DamagedEntryError as error:
            raise damaged(self._store, entry_key(error.version), "is not what was written") from error
        except ForeignEntryError as error:
            raise MetadataError(
                f"Another program has written {entry_key(error.version)} of the metadata table {place}, to which only "
                "pulsar_on_spark may write: restore the root's metadata from a backup into an empty folder."
            ) from error
        except ObjectsRefusedError as error:
            raise MetadataError(
                f"The metadata table {place} cannot be written ({error}), and nothing was committed: make room on its "
                "disk, or make it writable, and try again."
            ) from error
        except UnsyncedFolderError as error:
            if error.is_own:  # a later fsync would succeed, whatever the disk holds
                self._unsynced = error
            raise MetadataError(str(error)) from error
        except ObjectsUnreachableError as error:
            raise MetadataError(str(error)) from error
        except OSError as error:
            raise MetadataError(
                f"The metadata table {place} cannot be used now ({error.strerror or error}): check the disk and the "
                "limits of this process, and try again."
            ) from error
