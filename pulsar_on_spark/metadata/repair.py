"""After a power cut: find broken entries at the end of a Delta log, and set them aside.

delta-rs neither fsyncs nor checks: a 0-byte log entry reads as an empty commit, a cut one makes every open fail, an
entry may outlive the data file that it adds. Only commits that nobody reported can be hit (`DeltaLog.sync_to` comes
before every report), so cutting the log at the first broken entry loses nothing that was promised.

A checkpoint is written only after every entry up to it is durable. So a break at or below one is not a power cut but
damage to the medium, and what it hit may have been reported: then nothing is cut, and the error says so.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pulsar_on_spark.metadata.durability import fsync_path, locked
from pulsar_on_spark.metadata.log_entry import checkpoint_path, entry_path, read_entry
from pulsar_on_spark.model.errors import MetadataError

_ENTRY = re.compile(r"^(\d{20})\.json$")
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint\.parquet$")
_POINTER = "_last_checkpoint"
_PARQUET_MAGIC = b"PAR1"
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Damage:
    """What keeps a log from being used.

    Attributes:
        first_broken: the first log entry that must not be used; it and all after it go.
        checkpoints: versions of checkpoints that are not whole.
        pointer: whether `_last_checkpoint` is unreadable, or names a checkpoint that is not there.
        missing_entry: version of the newest whole checkpoint if its log entry is gone: delta-rs reads such a table but
            cannot commit to it.
    """

    first_broken: int | None
    checkpoints: tuple[int, ...]
    pointer: bool
    missing_entry: int | None

    def __bool__(self) -> bool:
        return self != _WHOLE


_WHOLE = Damage(None, (), False, None)


@dataclass(frozen=True, slots=True)
class _Listing:
    """The log directory as one look found it: concurrent clean-ups must not come between two looks."""

    entries: tuple[int, ...]
    checkpoints: tuple[int, ...]


def _list(table: Path) -> _Listing:
    try:
        names = os.listdir(table / "_delta_log")
    except FileNotFoundError:
        names = []
    entries = sorted(int(match.group(1)) for name in names if (match := _ENTRY.match(name)))
    checkpoints = sorted(int(match.group(1)) for name in names if (match := _CHECKPOINT.match(name)))
    return _Listing(tuple(entries), tuple(checkpoints))


def clean_up(table: Path, below: int) -> None:
    """Delete log entries and checkpoints behind the newest checkpoint at or below a version. The caller holds the lock.

    A whole checkpoint and every entry after it stay, so that damage to a newer checkpoint costs nothing.
    """
    listing = _list(table)
    behind = [version for version in listing.checkpoints if version <= below]
    if not behind or not _is_parquet(checkpoint_path(table, behind[-1])):
        return
    for version in listing.entries:  # oldest first: a crash in between leaves no hole
        if version < behind[-1]:
            entry_path(table, version).unlink(missing_ok=True)
    for version in behind[:-1]:
        checkpoint_path(table, version).unlink(missing_ok=True)


def newest_checkpoint(table: Path) -> int | None:
    """The version of the newest checkpoint that is whole, or None."""
    for version in reversed(_list(table).checkpoints):
        if _is_parquet(checkpoint_path(table, version)):
            return version
    return None


def pointed_checkpoint(table: Path) -> int | None:
    """The version that `_last_checkpoint` names: one small read; None where there is none or it is unreadable."""
    try:
        return int(json.loads((table / "_delta_log" / _POINTER).read_bytes())["version"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def find_damage(table: Path, *, deep: bool = False) -> Damage:
    """Look for what a power cut leaves behind.

    Args:
        table: the table's directory.
        deep: read data files and checkpoints whole, not only their length and their ends; for when something failed.
    """
    listing = _list(table)
    whole = [version for version in listing.checkpoints if _is_parquet(checkpoint_path(table, version), deep=deep)]
    checkpoint = whole[-1] if whole else None
    broken_checkpoints = tuple(version for version in listing.checkpoints if version not in whole)
    entries = [version for version in listing.entries if checkpoint is None or version > checkpoint]
    pointer = (table / "_delta_log" / _POINTER).exists() and pointed_checkpoint(table) not in whole
    missing = checkpoint if checkpoint is not None and checkpoint not in listing.entries else None
    return Damage(_first_broken(table, entries, checkpoint, deep=deep), broken_checkpoints, pointer, missing)


def _first_broken(table: Path, versions: list[int], checkpoint: int | None, *, deep: bool) -> int | None:
    if not versions:
        return None
    expected = versions[0] if checkpoint is None else checkpoint + 1
    added: list[tuple[int, str, int]] = []
    gone: set[str] = set()
    broken: int | None = None
    for version in versions:
        entry = read_entry(table, version)
        if entry is None or version != expected or not entry.complete:
            broken = expected
            break
        added += [(version, path, size) for path, size in entry.added]
        gone.update(entry.removed)
        expected = version + 1
    for version, path, size in added:
        # A file that a later entry removed may have been vacuumed since.
        if path not in gone and not _is_parquet(table / path, size, deep=deep):
            return version
    return broken


def needs_repair(table: Path) -> bool:
    """Whether `repair` has something to do (a cheap look, without the lock)."""
    return bool(find_damage(table))


def repair(table: Path, lock_file: Path, *, deep: bool = False) -> Path | None:
    """Set the first broken log entry and all after it aside, and broken checkpoints; returns where they went.

    Holds flock on `lock_file` and looks again under it, so that two processes never cut the same log twice, and no
    clean-up runs meanwhile.

    Raises:
        MetadataError: what is broken may have been reported, or the table has no readable beginning.
    """
    with locked(lock_file):
        damage = find_damage(table, deep=deep)
        if not damage:
            return None
        listing = _list(table)
        doomed = [checkpoint_path(table, version) for version in damage.checkpoints]
        if damage.first_broken is not None:
            _refuse_reported(table, damage.first_broken, listing)
            doomed += [entry_path(table, version) for version in listing.entries if version >= damage.first_broken]
        if damage.missing_entry is not None:
            _replace_entry(table, damage.missing_entry)
        if not doomed and not damage.pointer:
            return None
        aside = _set_aside(table, doomed)
        _LOGGER.warning("The metadata table %s was repaired after a crash: %s went to %s.", table, damage, aside)
        return aside


def _refuse_reported(table: Path, broken: int, listing: _Listing) -> None:
    if broken == 0:
        raise MetadataError(
            f"The metadata table {table} has no readable first entry: if the root was never used, run `pulsarpy init` "
            "again, else restore it from a backup."
        )
    if any(version >= broken for version in listing.checkpoints):
        raise MetadataError(
            f"The metadata table {table} is damaged at version {broken}, which was durable once (a checkpoint covers "
            "it): nothing was cut off; check the disk and restore the root's metadata from a backup."
        )


def _replace_entry(table: Path, version: int) -> None:
    """Put an entry without actions where a checkpoint holds all that it said."""
    path = entry_path(table, version)
    with path.open("x") as file:
        json.dump({"commitInfo": {"operation": "REPAIR", "operationParameters": {}}}, file)
    fsync_path(path)
    fsync_path(path.parent)


def _set_aside(table: Path, doomed: list[Path]) -> Path:
    aside = table.parent / "set-aside" / f"{table.name}-{time.time_ns()}"
    aside.mkdir(parents=True)
    # Newest first: a crash in between leaves a log that is cut further down, never one with a hole.
    for path in sorted(doomed, key=lambda p: p.name, reverse=True):
        path.rename(aside / path.name)
    pointer = table / "_delta_log" / _POINTER
    if pointer.exists():
        pointer.rename(aside / _POINTER)
    for directory in (table / "_delta_log", aside, aside.parent, table.parent):
        fsync_path(directory)
    return aside


def _is_parquet(path: Path, size: int | None = None, *, deep: bool = False) -> bool:
    """Whether the file has the promised size and Parquet's magic at both ends; `deep`: whether all of it decodes."""
    try:
        with path.open("rb") as file:
            length = os.fstat(file.fileno()).st_size
            if length < 12 or (size is not None and length != size):
                return False
            head = file.read(4)
            file.seek(length - 4)
            if not head == file.read(4) == _PARQUET_MAGIC:
                return False
    except FileNotFoundError:
        return False
    if deep:
        try:
            pq.ParquetFile(path).read()
        except (pa.ArrowException, OSError):
            return False
    return True
