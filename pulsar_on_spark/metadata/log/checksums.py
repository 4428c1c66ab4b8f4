"""Checksums beside a table's log, one small file for each commit: they separate damage from an unfinished commit.

    <table>/_checksums/<version>             of a log entry, and of the data files that it adds
    <table>/_checksums/<version>.checkpoint  of a checkpoint, and of all data files that were active then

A commit's file is written after the whole commit is on the disk and before it is reported. A file that contradicts its
checksum is therefore damage to the medium, never the result of a power cut. Checksums themselves are not synced:
missing or torn ones are ignored, and the next checkpoint replaces them. Roots of older versions have none until their
first checkpoint.

An entry at the end of a log that is missing although its checksums exist was lost, too: a crash cannot cause this.

- A commit writes its entry, syncs it, and writes the checksums. A crash in between leaves an entry without checksums.
- A clean-up deletes entries, then their checksums. A crash leaves checksums below a checkpoint, for the next clean-up.
- A repair moves checksums away durably, and then the entries. A crash leaves broken entries without checksums.

Checksums belong to the commit whose token they name. If another program or an operator cuts the log, a number may be
used again: checksums of its former commit do not apply to the new entry.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
from crc32c import crc32c

from pulsar_on_spark.storage.permissions import make_folders, opener

_DIRECTORY = "_checksums"
_DIGITS = 20
_NAME = re.compile(rf"\d{{{_DIGITS}}}(\.checkpoint)?")
_LOGGER = logging.getLogger(__name__)

Checksum: TypeAlias = tuple[int, int]
"""Length in bytes and CRC32C of a file."""


@dataclass(frozen=True, slots=True)
class Checksums:
    """A commit's checksums: the token of the commit, and the checksum of each file by its path in the table."""

    token: str | None
    files: Mapping[str, Checksum]


def checksum_of(content: bytes | pa.Buffer) -> Checksum:
    """The checksum of a file's content."""
    return len(content), crc32c(content)


def checksums_path(table: Path, version: int) -> Path:
    """The file of a commit's checksums."""
    return table / _DIRECTORY / f"{version:0{_DIGITS}d}"


def checkpoint_checksums_path(table: Path, version: int) -> Path:
    """The file of a checkpoint's checksums."""
    return table / _DIRECTORY / f"{version:0{_DIGITS}d}.checkpoint"


def checksummed_versions(table: Path) -> list[int]:
    """The versions of all commits that have checksums."""
    return sorted(int(name) for name in _names(table) if name.isdecimal())


def sweep_checksums(table: Path, below: int) -> None:
    """Delete the checksums of all versions below `below`, whose entries and checkpoints were cleaned up."""
    for name in _names(table):
        if int(name[:_DIGITS]) < below:
            (table / _DIRECTORY / name).unlink(missing_ok=True)


def _names(table: Path) -> list[str]:
    folder = table / _DIRECTORY
    try:
        with os.scandir(folder) as folder_entries:
            return [entry.name for entry in folder_entries if _NAME.fullmatch(entry.name) and entry.is_file()]
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        _LOGGER.warning("%s is not a folder: move it; until then damage goes undetected and checkpoints fail.", folder)
        return []


def write_checksums(path: Path, checksums: Checksums) -> None:
    """Write a file of checksums, without syncing it.

    Raises:
        OSError: the file cannot be written.
    """
    content = json.dumps([checksums.token, dict(checksums.files)], separators=(",", ":")).encode()
    make_folders(path.parent)
    with open(path, "wb", opener=opener) as file:
        file.write(b"%s\n%08x\n" % (content, crc32c(content)))


def read_checksums(path: Path) -> Checksums | None:
    """Read a file of checksums; None if it is missing or torn.

    Raises:
        OSError: it cannot be read now.
    """
    try:
        content, _, check = path.read_bytes().partition(b"\n")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    if check != b"%08x\n" % crc32c(content):
        return None
    token, files = json.loads(content)
    return Checksums(token, {name: (length, crc) for name, (length, crc) in files.items()})
