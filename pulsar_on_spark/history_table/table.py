"""A topic's history table: its versions, and commits to it. Other programs may read it, and OPTIMIZE and VACUUM it.

    <root>/history/<table>/_delta_log/       the log, written like the logs of the metadata tables (docs/adr/0017)
    <root>/history/<table>/g<generation>-<partition>-<32 hex digits>.parquet    files of builds
    <root>/history/<table>/m<number>-<partition>-<32 hex digits>.parquet        files of merges

The table's name begins with the topic's id. A storage path for histories has the same folders (`places`).

The log has the progress of each partition as versions of app transactions. So each version of the table has it, even
after a clean-up of the log.
"""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from pulsar_on_spark.history_table.plan import NOT_BUILT, Progress
from pulsar_on_spark.metadata.log import cleaning
from pulsar_on_spark.metadata.log.chain import (
    ConflictError,
    DamagedEntryError,
    OvertakenError,
    UnknownOutcomeError,
    append,
)
from pulsar_on_spark.metadata.log.checkpoints import Snapshot, write_checkpoint
from pulsar_on_spark.metadata.log.creation import create_table, has_log
from pulsar_on_spark.metadata.log.entry import (
    Content,
    DataFile,
    Entry,
    Tip,
    encode_entry,
    entry_key,
    new_token,
    new_writer,
)
from pulsar_on_spark.metadata.log.opening import open_log
from pulsar_on_spark.metadata.log.requests import run
from pulsar_on_spark.metadata.log.tables import HISTORY, history_log
from pulsar_on_spark.model.errors import (
    CorruptMetadataError,
    HistoryTableError,
    MetadataError,
    StorageError,
)
from pulsar_on_spark.model.ids import EntryId, LedgerId, PathId, Position
from pulsar_on_spark.storage.objects.local import LocalObjects
from pulsar_on_spark.storage.permissions import make_folders
from pulsar_on_spark.storage.root_place import RootPlace
from pulsar_on_spark.storage.storage_path import StoragePath

FILE_NAME: Final = re.compile(r"([gm])([0-9]+)-(-1|[0-9]+)-[0-9a-f]{32}\.parquet")
"""Names of data files of builds (`g`) and merges (`m`): generation or merge number, partition or -1, random digits."""
MERGES: Final = "pulsarpy/merges"
"""Id of the app transaction whose version is the number of the last merge."""
_APP: Final = "pulsarpy"
_CONFIGURATION: Final = {
    # This project writes the checkpoints, and cleans the log up: a program that did so would leave out its checksums.
    "delta.checkpointInterval": "1000000",
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.dataSkippingStatsColumns": "__partition,__ledgerId,__entryId,__publishTime",
}
_CHECKPOINT_ENTRIES: Final = 64
"""Number of log entries after the last checkpoint at which a commit writes the next one."""
_KEEP_LOG_S: Final = 86_400.0
"""Age in seconds at which log entries may be deleted, equal to `delta.logRetentionDuration`."""
_REMEMBER_S: Final = 30 * 86_400.0
"""Seconds for which checkpoints name removed files, so that housekeeping can delete the files by name."""
_ATTEMPTS: Final = 10
_READ: Final = "Read it with format('delta'), or delete it with `pulsarpy history delete` and build it again."
"""The remedy in the error about a table that builds and `history()` refuse."""
_MAX_WRITER: Final = 2
"""Highest of Delta's writer protocol versions (`minWriterVersion`) that commits of this module observe."""
_LOGGER: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A version of a table.

    Attributes:
        tip: The log's last entry.
        snapshot: The files, the versions of app transactions, and the table's metadata.
        checkpointed: The version of the checkpoint from which the log was read.
        foreign: Names of the files that other programs have written after that checkpoint: log entries, and the data
            files that these entries add.
        listed: The data files that the log lists, by name. They differ from `files` if another program's OPTIMIZE has
            added rows twice, until `HistoryTable.commit` corrects the log.
    """

    tip: Tip
    snapshot: Snapshot
    checkpointed: int
    foreign: tuple[str, ...]
    listed: Mapping[str, DataFile]

    @property
    def files(self) -> Mapping[str, DataFile]:
        """The data files that have each row once, by name."""
        return self.snapshot.files

    @property
    def schema_text(self) -> str:
        """The columns as JSON text: Delta's `schemaString`, which Spark can parse."""
        return str(self.snapshot.head["metaData"]["schemaString"])

    @property
    def columns(self) -> list[dict[str, Any]]:
        """The columns, each as Delta's JSON: an object with `name`, `type`, `nullable` and `metadata`."""
        fields: list[dict[str, Any]] = json.loads(self.schema_text)["fields"]
        return fields

    def progress(self, topic_id: str) -> Progress:
        """Return the progress of a topic or partition in this version; `NOT_BUILT` if it has none."""
        keys, app = self.snapshot.keys, f"{_APP}/{topic_id}"
        if app not in keys:
            return NOT_BUILT
        ledger, entry, rows, size = (keys[f"{app}/{name}"] for name in ("ledger", "entry", "rows", "bytes"))
        return Progress(keys[app], Position(LedgerId(ledger), EntryId(entry)), rows, size)


def moved_keys(topic_id: str, progress: Progress) -> dict[str, int]:
    """Return the app transactions, as versions by id, that set the progress of a topic or partition."""
    app = f"{_APP}/{topic_id}"
    return {
        app: progress.generation,
        f"{app}/ledger": progress.to.ledger,
        f"{app}/entry": progress.to.entry,
        f"{app}/rows": progress.rows,
        f"{app}/bytes": progress.bytes,
    }


class HistoryTable:
    """A topic's history table, by its location. Methods read and write the table; no file stays open.

    Args:
        root: The root.
        name: The table's folder, relative to the root or the storage path.
        path: The storage path that has the table; None for the root itself.

    Attributes:
        place: The table's folder, or its prefix on an object store.
        name: The table's folder, relative to the root or the storage path.
        path: The storage path that has the table; None for the root itself.
    """

    def __init__(self, root: RootPlace, name: str, path: StoragePath | None = None) -> None:
        self._base = root if path is None else path.place
        self.place: RootPlace = self._base / name
        self.name = name
        self.path = path
        self._store = history_log(root, self._base, name)
        self._writer = new_writer()

    @property
    def path_id(self) -> PathId | None:
        """The id of the storage path; None for the root itself."""
        return None if self.path is None else self.path.path_id

    def exists(self) -> bool:
        """Return True if the table was created (raises `HistoryTableError`)."""
        with self._guarded():
            return self._is_there() and has_log(self._store.objects)

    def create(self, schema: pa.Schema) -> None:
        """Create the table with these columns, unless it exists (raises `HistoryTableError`)."""
        with self._guarded():
            if isinstance(self.place, Path) and isinstance(self._base, Path):
                make_folders(self.place)
                for parent in (HISTORY, ""):  # also if a killed build has made the folders
                    LocalObjects(self._base).sync(parent)
            create_table(self._store, schema, _CONFIGURATION)

    def version(self) -> TableVersion:
        """Return the newest version of the table.

        Raises:
            HistoryTableError: the table is missing or damaged, cannot be read now, has features of Delta that this
                module does not support, or has rows that another program has changed.
        """
        with self._guarded():
            for attempt in range(_ATTEMPTS):
                try:
                    return self._version()
                except OvertakenError as error:
                    reason: Exception = error
                    time.sleep(0.01 * 2**attempt)
            raise HistoryTableError(
                f"The history table {self.place} was changed during each of {_ATTEMPTS} reads ({reason}): try again."
            )

    def _version(self) -> TableVersion:
        if not self._is_there():
            raise HistoryTableError(f"The history table {self.place} is missing: restore it from a copy.")
        opened = open_log(self._store)
        base = opened.snapshot
        listed, keys, head = dict(base.files), dict(base.keys), dict(base.head)
        files, removed_ms = dict(listed), dict(base.removed_ms)
        foreign: list[str] = []
        for entry in opened.entries:
            if entry.previous is None:
                self._check_foreign(entry)
                foreign += [entry_key(entry.version), *(file.name for file in entry.added)]
            _apply(entry, listed)
            if entry.previous is not None or repeats_no_rows(entry, files):
                _apply(entry, files)
                removed_ms.update(dict.fromkeys(entry.removed, entry.written_ms))
            keys.update(entry.keys)
            head.update(entry.head)
        tip = opened.entries[-1].tip if opened.entries else opened.tip
        self._check_protocol(head)
        snapshot = Snapshot(tip.version, files, keys, removed_ms, head)
        self._check_rows(snapshot)
        return TableVersion(tip, snapshot, base.version, tuple(foreign), listed)

    def _is_there(self) -> bool:
        """Return False if the table's folder is missing. On an object store, which has no folders, return True."""
        return not isinstance(self.place, Path) or self.place.is_dir()

    def _check_foreign(self, entry: Entry) -> None:
        """Check that another program's log entry does not change rows; an OPTIMIZE does not.

        An entry that changes rows is found by each reader, because no checkpoint of a version with it is written.

        Raises:
            HistoryTableError: the entry changes rows.
        """
        if entry.changes_rows:
            raise HistoryTableError(
                f"Another program has changed the rows of the history table {self.place} (entry {entry.version}, "
                f"{entry.operation}). {_READ}"
            )

    def _check_rows(self, snapshot: Snapshot) -> None:
        """Check that a version has no more rows than builds have added.

        A clean-up of the log by another program may have deleted the entries that show which rows are repeated.

        Raises:
            HistoryTableError: the version has more rows.
        """
        rows = sum(file.rows for file in snapshot.files.values())
        built = sum(count for app, count in snapshot.keys.items() if app.startswith(_APP) and app.endswith("/rows"))
        if rows > built:
            raise HistoryTableError(
                f"The history table {self.place} has {rows} rows, but builds have added {built}, because another "
                f"program has written rows again and cleaned the log up. {_READ}"
            )

    def _check_protocol(self, head: Mapping[str, Mapping[str, Any]]) -> None:
        protocol = head.get("protocol", {})
        if protocol.get("minReaderVersion") != 1 or protocol.get("minWriterVersion", 0) > _MAX_WRITER:
            raise HistoryTableError(
                f"The history table {self.place} has features of Delta that another program has switched on, and that "
                f"builds do not support ({json.dumps(protocol)}). {_READ}"
            )

    def write_file(self, prefix: str, partition: int, schema: pa.Schema, parts: Iterable[pa.Table]) -> DataFile:
        """Write a data file durably, and return it. No version of the table has it before a `commit`.

        Args:
            prefix: `g` with the generation of a build, or `m` with the number of a merge.
            partition: The partition of the rows; -1 for a topic without partitions.
            schema: The columns.
            parts: The rows, in parts of which only one is in memory at a time.

        Raises:
            HistoryTableError: the file cannot be written.
        """
        from pulsar_on_spark.history_table.files import encode_file

        name = f"{prefix}-{partition}-{uuid.uuid4().hex}.parquet"
        content, rows, stats = encode_file(schema, parts)
        with self._guarded():
            self._store.require_writable()
            upload = self._store.objects.upload(name)
            upload.write(content)
            upload.finish()
        return DataFile(name, len(content), rows, 0, 0, None, stats)

    def commit(
        self,
        version: TableVersion,
        keys: Mapping[str, int],
        added: Iterable[DataFile] = (),
        removed: Sequence[str] = (),
        columns: Sequence[Mapping[str, Any]] | None = None,
        *,
        is_rearrangement: bool = False,
    ) -> None:
        """Commit durably to the table, unless another commit has come first.

        If the log lists rows twice, only a correction is committed, and a ConflictError is raised.

        Args:
            version: The version from which the caller has decided on this commit.
            keys: The new versions of app transactions, by id.
            added: The files to add.
            removed: The names of the files to remove.
            columns: The new columns as Delta's JSON; None to keep the columns, as a rearrangement always does.
            is_rearrangement: True if the added files have the same rows as the removed files.

        Raises:
            ConflictError: this was not committed, or the outcome is unknown, and the caller must read the newest
                version and decide again; or another program's VACUUM has deleted an added file, and the caller must
                write the file again.
            HistoryTableError: the table cannot be written, or `delta.appendOnly` forbids to remove rows.
        """
        if version.listed != version.files:
            self._correct(version)
            raise ConflictError("another program's OPTIMIZE, of an older version, is undone")
        metadata = version.snapshot.head["metaData"]
        is_append_only = str(metadata["configuration"].get("delta.appendOnly")).lower() == "true"
        if removed and is_append_only and not is_rearrangement:
            raise HistoryTableError(
                f"The history table {self.place} has the property delta.appendOnly, which another program has set, so "
                "the topic's history retention cannot remove rows: unset the property or the retention."
            )
        if is_rearrangement:
            content = _rearrangement(version, tuple(added), removed, keys)
        else:
            content = Content(tuple(added), removed, keys, [] if columns is None else [_with_schema(metadata, columns)])
        self._append(version, content)

    def _correct(self, version: TableVersion) -> None:
        """Undo the log entries of other programs that have added rows twice.

        Raises:
            ConflictError: as `commit`.
            HistoryTableError: the table cannot be written, or a file without these rows is deleted already.
        """
        files, listed = version.files, version.listed
        added = [file for name, file in files.items() if name not in listed]
        removed = [name for name in listed if name not in files]
        if not self.has_files(added):
            raise HistoryTableError(
                f"Files of the history table {self.place} are missing: another program has optimized an older version "
                f"of it, which repeats rows, and then the newest one, and a VACUUM has deleted them. {_READ}"
            )
        _LOGGER.warning(
            "Another program has optimized an older version of %s, which repeats rows: %d files are removed again.",
            self.place,
            len(removed),
        )
        self._append(version, _rearrangement(version, added, removed))

    def _append(self, version: TableVersion, content: Content) -> None:
        """Append a log entry after a version of the table (errors as `commit`)."""
        token = new_token(self._writer)
        encode = partial(encode_entry, content, token, boot=self._store.boot)
        with self._guarded():
            if not self.has_files(content.added):
                raise ConflictError("a VACUUM has deleted files before they were committed")
            self._store.require_writable()
            self._store.sync_files(version.foreign)  # an entry must not outlive those before it
            try:
                news = run(append(version.tip, encode, content, token, is_shared=True), self._store)
            except (OvertakenError, UnknownOutcomeError) as error:
                # A late request can only create the entry behind `version`. The next attempt takes this number, too.
                self._writer = new_writer()
                raise ConflictError(str(error)) from error
            self._store.note_reported(next(entry.version for entry in news if entry.token == token))

    def has_files(self, files: Iterable[DataFile]) -> bool:
        """Return True if all of these files are in the table's folder (raises `HistoryTableError`)."""
        with self._guarded():
            return all(self._store.objects.head(file.name) is not None for file in files)

    def listed_files(self) -> dict[str, float]:
        """Return the times at which the folder's Parquet files were written, in seconds since 1970, by file name."""
        with self._guarded():
            found = self._store.objects.list_after("")
            return {
                listed.key: listed.written_s
                for listed in found
                if "/" not in listed.key and listed.key.endswith(".parquet")
            }

    def read_file(self, name: str) -> bytes | None:
        """Return the content of a data file; None if the file is missing (raises `HistoryTableError`)."""
        with self._guarded():
            fetched = self._store.objects.fetch(name)
        return None if fetched is None else fetched.content

    def delete_file(self, name: str) -> None:
        """Delete a file that no version names (raises `HistoryTableError`)."""
        with self._guarded():
            self._store.objects.delete(name)

    def housekeep(self) -> None:
        """Correct the log if it lists rows twice; otherwise, if it is long, write a checkpoint and delete old entries.

        Raises:
            HistoryTableError: the table cannot be read or written.
        """
        version = self.version()
        if version.listed != version.files:
            with suppress(ConflictError):  # else the next commit corrects it
                self._correct(version)
        elif version.tip.version - version.checkpointed >= _CHECKPOINT_ENTRIES:
            self._write_checkpoint(version)

    def _write_checkpoint(self, version: TableVersion) -> None:
        with self._guarded(), self._store.housekeeping() as is_alone:
            if is_alone:
                self._store.sync()
                since_ms = (time.time() - _REMEMBER_S) * 1000
                removed_ms = {name: ms for name, ms in version.snapshot.removed_ms.items() if ms >= since_ms}
                write_checkpoint(self._store.objects, replace(version.snapshot, removed_ms=removed_ms))
                cleaning.clean_log(self._store, version.tip.version, _KEEP_LOG_S)
                self._store.sweep()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Check that the storage path can be reached, and turn errors in the context into `HistoryTableError`."""
        try:
            if self.path is not None:
                self.path.check()  # a table is missing only if its disk is not
            yield
        except DamagedEntryError as error:
            raise HistoryTableError(
                f"The history table {self.place} is damaged, because its file {entry_key(error.version)} has other "
                "bytes than were written: restore the table from a copy."
            ) from error
        except CorruptMetadataError as error:
            raise HistoryTableError(str(error)) from error
        except (MetadataError, StorageError, OSError) as error:
            raise HistoryTableError(f"The history table {self.place} cannot be used now: {error}") from error


def repeats_no_rows(entry: Entry, files: Mapping[str, DataFile]) -> bool:
    """Return False if a log entry of another program replaces a file that the table no longer has. Pure.

    The rows of such a file are in the files that have replaced it, or have been removed by retention. So the entry adds
    rows twice, or adds removed rows again. delta-rs writes such entries, because it does not notice that another commit
    has removed the file meanwhile.

    Args:
        entry: The log entry.
        files: The files of the version before the entry, by name.
    """
    return files.keys() >= set(entry.removed)


def _rearrangement(
    version: TableVersion, added: Sequence[DataFile], removed: Sequence[str], keys: Mapping[str, int] = {}
) -> Content:
    """Return the content of an entry that replaces files by files with the same rows.

    It names the table's unchanged metadata, so that an OPTIMIZE of an older version fails: delta-rs notices such an
    action, but not that the files that it has read were replaced.
    """
    head = [{"metaData": version.snapshot.head["metaData"]}]
    return Content(added, removed, keys, head, is_rearrangement=True)


def _with_schema(metadata: Mapping[str, Any], columns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the action that gives a table other columns, which are given as Delta's JSON."""
    schema = json.dumps({"type": "struct", "fields": columns}, separators=(",", ":"))
    return {"metaData": {**metadata, "schemaString": schema}}


def _apply(entry: Entry, files: dict[str, DataFile]) -> None:
    """Apply a log entry to `files`: drop the files that the entry removes, and add the files that it adds."""
    for name in entry.removed:
        files.pop(name, None)
    files.update((file.name, file) for file in entry.added)
