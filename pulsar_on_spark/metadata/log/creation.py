"""Crash-safe creation of a metadata table: its permitted locations and its Delta settings."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from pulsar_on_spark.metadata.log import unsynced
from pulsar_on_spark.metadata.log.checksums import Checksums, checksummed_versions, checksums_path, write_checksums
from pulsar_on_spark.metadata.log.data_files import damaged
from pulsar_on_spark.metadata.log.log_entry import entry_name, entry_path, read_entry
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.storage.durability import UnsyncedError, fsync_path, locked, syncing
from pulsar_on_spark.storage.permissions import make_folders, mode_of, set_mode

RETAIN_HOURS = 1
"""Minimum time for which replaced data files are kept, for handles that still read them."""
_UNUSABLE = re.compile(r"[\x00-\x1f\x7f\\\[\]^|]|%[0-9a-fA-F]{2}")
"""Characters with which deltalake 1.6.6 panics or uses another path."""
_CONFIGURATION = {
    "delta.checkpointInterval": "1000000",  # checkpoints are made, and synced, by `DeltaLog.checkpoint`
    "delta.logRetentionDuration": f"interval {RETAIN_HOURS} hours",
    "delta.deletedFileRetentionDuration": f"interval {RETAIN_HOURS} hours",
    "delta.dataSkippingStatsColumns": "seq",
}


def check_location(directory: Path) -> None:
    """Refuse paths that deltalake would misread.

    Raises:
        InvalidArgumentError: the path has unusable characters; the error names the first.
    """
    unusable = _UNUSABLE.search(str(directory))
    if unusable is not None:
        raise InvalidArgumentError(
            f"The root's path {str(directory)!r} contains {unusable.group()!r}, which the Delta library cannot handle: "
            "choose a path without control characters, backslash, brackets, ^, | and percent escapes."
        )


def create_table(directory: Path, schema: pa.Schema, lock_file: Path) -> None:
    """Create an empty table durably, or complete an interrupted creation; an existing table is not changed.

    Raises:
        InvalidArgumentError: deltalake cannot handle the path.
        CorruptMetadataError: the table existed, and its log is gone.
        MetadataError: an fsync failed now, or earlier since the machine started.
    """
    check_location(directory)
    make_folders(directory)
    with locked(lock_file):
        first = entry_path(directory, 0)
        names = set(os.listdir(first.parent)) if first.parent.exists() else set()
        entry = read_entry(directory, 0)
        if names == {first.name} and entry is not None and not entry.complete:
            checksums_path(directory, 0).unlink(missing_ok=True)
            first.unlink()  # a power cut interrupted the creation, before the table was used
            names.clear()
        if not any(name.endswith((".json", ".checkpoint.parquet")) for name in names):
            if checksummed_versions(directory):
                raise damaged(first)
            DeltaTable.create(str(directory), schema=schema, configuration=_CONFIGURATION)
            set_mode(first.parent, mode_of(directory))
        with syncing(first.parent):
            try:
                for path in (first, first.parent, directory, directory.parent):
                    if path.exists():
                        fsync_path(path)
            except UnsyncedError as error:
                raise unsynced.leave_mark(directory, 0, error) from error
            unsynced.refuse_marked(directory)
        entry = read_entry(directory, 0)
        if entry is not None and entry.checksum is not None and entry.durable is None:
            write_checksums(checksums_path(directory, 0), Checksums(entry.token, {entry_name(0): entry.checksum}))
