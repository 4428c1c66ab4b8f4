"""One entry of a Delta log: what it says, and whether all of it is there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sized
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

TOKEN_FIELD = "pulsarpyToken"
"""Commit metadata: the random token by which a writer recognises its own commit."""
KEYS_FIELD = "pulsarpyKeys"
"""Commit metadata: the number of app transactions, so that an entry cut between two lines is recognised."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """What a log entry adds (names and sizes), removes (names) and moves on (app transactions), and if it is whole."""

    version: int
    complete: bool
    added: tuple[tuple[str, int], ...] = ()
    removed: tuple[str, ...] = ()
    keys: Mapping[str, int] = field(default_factory=dict)
    token: str | None = None


def entry_path(table: Path, version: int) -> Path:
    """The log entry's file."""
    return table / "_delta_log" / f"{version:020d}.json"


def checkpoint_path(table: Path, version: int) -> Path:
    """The checkpoint's file."""
    return table / "_delta_log" / f"{version:020d}.checkpoint.parquet"


def read_entry(table: Path, version: int) -> LogEntry | None:
    """Parse one log entry; None where the file does not exist (cleaned up, or not written yet)."""
    try:
        text = entry_path(table, version).read_bytes()
    except FileNotFoundError:
        return None
    return parse_entry(version, text)


def parse_entry(version: int, text: bytes) -> LogEntry:
    """Parse a log entry's text.

    Complete means: every line parses, and there is as much as the entry's own `commitInfo` announces. delta-rs writes
    `commitInfo` first, with the numbers of files added and removed, and this project adds the number of keys. Entries
    of other writers announce nothing, so of them every line counts that is there. A commit may well add no file.
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
