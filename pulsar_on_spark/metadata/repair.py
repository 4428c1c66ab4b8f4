"""After a power cut: find broken entries at the end of a Delta log, and set them aside.

delta-rs neither fsyncs nor checks: a 0-byte log entry reads as an empty commit, a cut one makes every open fail, an
entry may outlive the data file that it adds. Only commits that nobody reported can be hit (`DeltaLog.sync_to` comes
before every report), so cutting the log at the first broken entry loses nothing that was promised.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from pulsar_on_spark.model.errors import MetadataError

_ENTRY = re.compile(r"^(\d{20})\.json$")
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint\.parquet$")
_PARQUET_MAGIC = b"PAR1"
TOKEN_FIELD = "pulsarpyToken"
"""Commit metadata: the random token by which a writer recognises its own commit."""
KEYS_FIELD = "pulsarpyKeys"
"""Commit metadata: the number of app transactions, so that an entry cut between two lines is recognised."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """What a log entry adds and removes (data file names) and whether it is complete."""

    version: int
    added: tuple[tuple[str, int], ...]
    removed: tuple[str, ...]
    token: str | None
    complete: bool


def entry_path(table: Path, version: int) -> Path:
    """The log entry's file."""
    return table / "_delta_log" / f"{version:020d}.json"


def read_entry(table: Path, version: int) -> LogEntry | None:
    """Parse one log entry; None where the file does not exist (cleaned up, or not written yet)."""
    try:
        text = entry_path(table, version).read_bytes()
    except FileNotFoundError:
        return None
    added: list[tuple[str, int]] = []
    removed: list[str] = []
    token: str | None = None
    expected_keys: int | None = None
    keys = 0
    dataless = False  # creation and vacuum add no file
    try:
        for line in text.splitlines():
            action = json.loads(line)
            if "add" in action:
                added.append((unquote(action["add"]["path"]), int(action["add"]["size"])))
            elif "remove" in action:
                removed.append(unquote(action["remove"]["path"]))
            elif "txn" in action:
                keys += 1
            elif "commitInfo" in action:
                token = action["commitInfo"].get(TOKEN_FIELD)
                declared = action["commitInfo"].get(KEYS_FIELD)
                expected_keys = None if declared is None else int(declared)
                dataless = str(action["commitInfo"].get("operation", "")).startswith("VACUUM")
            elif "metaData" in action:
                dataless = True
    except (ValueError, KeyError, TypeError):
        return LogEntry(version, (), (), None, complete=False)
    complete = bool(added or removed or dataless) and text.endswith((b"}", b"}\n"))
    if expected_keys is not None:
        complete = complete and keys == expected_keys
    return LogEntry(version, tuple(added), tuple(removed), token, complete)


def newest_checkpoint(table: Path) -> int | None:
    """The version of the newest checkpoint that is whole, or None."""
    for version in sorted(_versions(table, _CHECKPOINT), reverse=True):
        if _is_parquet(_checkpoint_path(table, version)):
            return version
    return None


def first_broken(table: Path) -> int | None:
    """The first log entry after the newest whole checkpoint that must not be used, or None."""
    checkpoint = newest_checkpoint(table)
    versions = sorted(version for version in _versions(table, _ENTRY) if checkpoint is None or version > checkpoint)
    expected = versions[0] if checkpoint is None and versions else (checkpoint or 0) + 1
    entries: list[LogEntry] = []
    for version in versions:
        entry = read_entry(table, version)
        if entry is None or version != expected or not entry.complete:
            return min(version, expected)
        entries.append(entry)
        expected = version + 1
    gone = {path for entry in entries for path in entry.removed}
    for entry in entries:
        for path, size in entry.added:
            # A file that a later entry removed may have been vacuumed since.
            if path not in gone and not _is_parquet(table / path, size):
                return entry.version
    return None


def needs_repair(table: Path) -> bool:
    """Whether `repair` has something to do (a cheap look, without the lock)."""
    return first_broken(table) is not None or bool(_broken_checkpoints(table))


def repair(table: Path, lock_file: Path) -> Path | None:
    """Set the first broken log entry and all after it aside, and broken checkpoints; returns where they went.

    Holds flock on `lock_file` and looks again under it, so that two processes never cut the same log twice.
    """
    with _locked(lock_file):
        doomed = _broken_checkpoints(table)
        broken = first_broken(table)
        if broken is not None:
            doomed += [entry_path(table, v) for v in _versions(table, _ENTRY) if v >= broken]
            doomed += [_checkpoint_path(table, v) for v in _versions(table, _CHECKPOINT) if v >= broken]
        if not doomed:
            return None
        if broken == 0:
            raise MetadataError(
                f"The metadata table {table} has no readable first entry: restore the root from a backup, or remove "
                "it if it was never used."
            )
        return _set_aside(table, sorted(set(doomed)))


def _set_aside(table: Path, doomed: list[Path]) -> Path:
    aside = table.parent / "set-aside" / f"{table.name}-{time.time_ns()}"
    aside.mkdir(parents=True)
    # Newest first: a crash in between leaves a log that is cut further down, never one with a hole.
    for path in sorted(doomed, key=lambda p: p.name, reverse=True):
        path.rename(aside / path.name)
    last_checkpoint = table / "_delta_log" / "_last_checkpoint"
    if last_checkpoint.exists():
        last_checkpoint.rename(aside / last_checkpoint.name)
    for directory in (table / "_delta_log", aside, aside.parent, table.parent):
        fsync_path(directory)
    return aside


def _broken_checkpoints(table: Path) -> list[Path]:
    paths = [_checkpoint_path(table, version) for version in _versions(table, _CHECKPOINT)]
    broken = [path for path in paths if not _is_parquet(path)]
    pointer = table / "_delta_log" / "_last_checkpoint"
    if pointer.exists():
        try:
            named = _checkpoint_path(table, int(json.loads(pointer.read_bytes())["version"]))
            if not named.exists():
                broken.append(pointer)
        except (ValueError, KeyError, TypeError):
            broken.append(pointer)
    return broken


def _checkpoint_path(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020d}.checkpoint.parquet"


def _versions(table: Path, pattern: re.Pattern[str]) -> list[int]:
    try:
        names = os.listdir(table / "_delta_log")
    except FileNotFoundError:
        return []
    return [int(match.group(1)) for name in names if (match := pattern.match(name))]


def _is_parquet(path: Path, size: int | None = None) -> bool:
    """Whether the file has the promised size and Parquet's magic at both ends."""
    try:
        with path.open("rb") as file:
            length = os.fstat(file.fileno()).st_size
            if length < 12 or (size is not None and length != size):
                return False
            head = file.read(4)
            file.seek(length - 4)
            return head == file.read(4) == _PARQUET_MAGIC
    except FileNotFoundError:
        return False


@contextmanager
def _locked(lock_file: Path) -> Iterator[None]:
    with lock_file.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def fsync_path(path: Path) -> None:
    """Make a file's content, or a directory's names, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
