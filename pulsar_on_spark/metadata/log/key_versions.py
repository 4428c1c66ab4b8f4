"""Cache of parsed log entries, and the versions of compare-and-set keys."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from pulsar_on_spark.metadata.log import damage
from pulsar_on_spark.metadata.log.data_files import damaged, read_content, rows_of
from pulsar_on_spark.metadata.log.log_entry import LogEntry, checkpoint_path, entry_path, read_entry

_MAX_PARSED = 4096
_ASK_SINGLY = 32
"""Number of keys that are looked up one by one before all keys of the table are read from its log together."""


class LogEntries:
    """The entries of one table's log, each parsed once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._parsed: dict[int, LogEntry] = {}

    def get(self, version: int) -> LogEntry | None:
        """Read an entry; None if it was cleaned up, or is not written yet.

        Raises:
            CorruptMetadataError: the entry was changed after it was written.
        """
        if version not in self._parsed:
            entry = read_entry(self._directory, version)
            if entry is None:
                return None
            if entry.durable is not None and not entry.complete:
                raise damaged(entry_path(self._directory, version))
            if len(self._parsed) >= _MAX_PARSED:
                self._parsed.clear()
            self._parsed[version] = entry
        return self._parsed[version]


class KeyVersions:
    """Cache of key versions.

    delta-rs replays its log for each lookup (3 to 6 ms at 10,000 keys), so results are cached and updated by later
    entries. For a caller that needs many keys, such as one that creates a thousand topics, all keys are read once from
    the newest checkpoint and the entries after it.
    """

    def __init__(self, directory: Path, entries: LogEntries) -> None:
        self._directory = directory
        self._entries = entries
        self._versions: dict[str, int | None] = {}
        self._is_complete = False
        self._at = -1

    def get(self, table: DeltaTable, key: str) -> int | None:
        """The version that the newest commit under `key` gave it, as this handle sees it; None before the first.

        Raises:
            DeltaError: delta-rs cannot read it.
        """
        version = int(table.version())
        for number in range(self._at + 1, version + 1) if self._versions else ():
            entry = self._entries.get(number)
            if entry is None:  # cleaned up: the keys that it changed are unknown
                self._versions.clear()
                self._is_complete = False
                break
            news = entry.keys.items()
            self._versions.update({moved: at for moved, at in news if self._is_complete or moved in self._versions})
        self._at = version
        if key not in self._versions and not self._is_complete and len(self._versions) >= _ASK_SINGLY:
            self._read_all(version)
        if key not in self._versions:
            key_version = None if self._is_complete else table.transaction_version(key)
            self._versions[key] = None if key_version is None else int(key_version)
        return self._versions[key]

    def _read_all(self, version: int) -> None:
        """Read all keys from the log, unless a part of it is missing."""
        checkpoint = damage.pointed_checkpoint(self._directory)
        found: dict[str, int | None] = {}
        if checkpoint is not None:
            if checkpoint > version:
                return
            try:
                content = read_content(checkpoint_path(self._directory, checkpoint))
                if damage.contradicts_checkpoint(self._directory, checkpoint, content):
                    return
                column = rows_of(content, ["txn"]).column("txn")
            except (OSError, pa.ArrowInvalid):
                return
            found = {txn["appId"]: txn["version"] for txn in column.drop_null().to_pylist() if txn["appId"] is not None}
        for number in range(0 if checkpoint is None else checkpoint + 1, version + 1):
            entry = self._entries.get(number)
            if entry is None or not entry.complete:
                return
            found |= entry.keys
        self._versions = found
        self._is_complete = True
