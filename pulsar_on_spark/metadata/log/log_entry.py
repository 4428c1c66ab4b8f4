"""Parser of a Delta log's entries, with a check that an entry is complete."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote

from pulsar_on_spark.metadata.log.checksums import (
    Checksum,
    checkpoint_checksums_path,
    checksum_of,
    checksums_path,
    read_checksums,
)

TOKEN_FIELD = "pulsarpyToken"
"""Commit metadata: the random token by which a writer recognises its own commit."""
KEYS_FIELD = "pulsarpyKeys"
"""Commit metadata: the number of app transactions, which reveals an entry that was cut between two lines."""

BOOT_FIELD = "pulsarpyBoot"
"""Commit metadata: the boot of the machine in which the entry was written (`boot_id`)."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A log entry: the files that it adds and removes, its app transactions, and whether it is complete.

    Attributes:
        checksum: The checksum of the entry's own text.
        durable: The checksums of the entry and of the files that it adds, by name; None if they are unknown. If they
            are known, the whole commit was on the disk once.
    """

    version: int
    complete: bool
    added: tuple[tuple[str, int], ...] = ()
    removed: tuple[str, ...] = ()
    keys: Mapping[str, int] = field(default_factory=dict)
    token: str | None = None
    checksum: Checksum | None = None
    durable: Mapping[str, Checksum] | None = None


def entry_name(version: int) -> str:
    """The log entry's path in its table."""
    return f"_delta_log/{version:020d}.json"


def checkpoint_name(version: int) -> str:
    """The checkpoint's path in its table."""
    return f"_delta_log/{version:020d}.checkpoint.parquet"


def entry_path(table: Path, version: int) -> Path:
    """The log entry's file."""
    return table / entry_name(version)


def checkpoint_path(table: Path, version: int) -> Path:
    """The checkpoint's file."""
    return table / checkpoint_name(version)


def read_entry(table: Path, version: int) -> LogEntry | None:
    """Parse one log entry and compare it with its checksum; None if it was cleaned up, or is not written yet.

    Checksums with another token belong to an earlier commit with the same number: this entry has no checksums then. An
    entry with an illegible token is compared with the checksums that exist.
    """
    try:
        text = entry_path(table, version).read_bytes()
    except FileNotFoundError:
        return None
    entry = replace(parse_entry(version, text), checksum=checksum_of(text))
    stored_checksums = read_checksums(checksums_path(table, version))
    is_legible = entry.complete or entry.token is not None
    if stored_checksums is None or (is_legible and entry.token != stored_checksums.token):
        return entry
    is_same = stored_checksums.files.get(entry_name(version)) == entry.checksum
    return replace(entry, complete=entry.complete and is_same, durable=stored_checksums.files)


def known_checksums(
    table: Path, checkpoint: int, version: int, get_entry: Callable[[int], LogEntry | None]
) -> dict[str, Checksum]:
    """Read the known checksums of the data files that are active at a version.

    Args:
        table: the table's directory.
        checkpoint: the version of a checkpoint, or a negative number if there is none.
        version: the last version to read.
        get_entry: returns the entries after the checkpoint.
    """
    stored = None if checkpoint < 0 else read_checksums(checkpoint_checksums_path(table, checkpoint))
    by_name = {} if stored is None else dict(stored.files)
    return by_name | entry_checksums(range(checkpoint + 1, version + 1), get_entry)


def entry_checksums(versions: range, get_entry: Callable[[int], LogEntry | None]) -> dict[str, Checksum]:
    """Collect the known checksums of the data files that entries add.

    Args:
        versions: the entries' numbers.
        get_entry: returns an entry, or None if it was cleaned up.
    """
    by_name: dict[str, Checksum] = {}
    for version in versions:
        entry = get_entry(version)
        if entry is not None and entry.durable is not None:
            by_name |= entry.durable
    return by_name


def parse_entry(version: int, text: bytes) -> LogEntry:
    """Parse a log entry's text.

    An entry is complete if every line parses and the number of actions equals the entry's own `commitInfo`. delta-rs
    writes `commitInfo` first, with the numbers of files added and removed, and this project adds the number of keys.
    Entries of other writers have no such numbers: they are complete if all lines parse. A commit may add no file.
    """
    added: list[tuple[str, int]] = []
    removed: list[str] = []
    keys: dict[str, int] = {}
    token: str | None = None
    announced: list[tuple[int, Sized]] = []
    seen: set[str] = set()
    try:
        for line in text.splitlines():
            action = json.loads(line)
            seen.update(action)
            if "add" in action:
                added.append((unquote(action["add"]["path"]), int(action["add"]["size"])))
            elif "remove" in action:
                removed.append(unquote(action["remove"]["path"]))
            elif "txn" in action:
                keys[str(action["txn"]["appId"])] = int(action["txn"]["version"])
            elif "commitInfo" in action:
                info = action["commitInfo"]
                token = info.get(TOKEN_FIELD)
                metrics = info.get("operationMetrics") or {}
                numbers = (metrics.get("num_added_files"), metrics.get("num_removed_files"), info.get(KEYS_FIELD))
                counted: tuple[Sized, ...] = (added, removed, keys)
                announced = [
                    (int(number), actions)
                    for number, actions in zip(numbers, counted, strict=True)
                    if number is not None
                ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return LogEntry(version, complete=False)
    complete = bool(seen) and all(len(actions) == number for number, actions in announced)
    if version == 0:
        complete = complete and {"metaData", "protocol"} <= seen
    return LogEntry(version, complete, tuple(added), tuple(removed), keys, token)
