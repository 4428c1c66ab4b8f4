"""Checksums beside a table's log, one small file for each commit: they separate damage from an unfinished commit.

    <table>/_checksums/<version>             of a log entry, and of the data files that it adds
    <table>/_checksums/<version>.checkpoint  of a checkpoint, and of all data files that were active then

A commit's file is written after all of the commit is on the disk and before it is reported. So what contradicts it is
damage to the medium, never what a power cut leaves. It is not synced itself: one that is missing, or torn, says
nothing, and the next checkpoint takes its place. Roots of older versions have none until their first checkpoint.

An entry that is missing at the end of a log, where its checksums are there, was lost, too: no crash leaves that behind.

- A commit writes its entry, syncs it, and writes the checksums. A crash in between leaves an entry without checksums.
- A clean-up deletes entries, then their checksums: what a crash leaves lies below a checkpoint, for the next clean-up.
- A repair moves checksums away, durably, and then the entries. A crash in between leaves broken entries without any.

Checksums belong to the commit whose token they name. A number has another life when other programs, or hands, cut the
log and went on: checksums of its former life say nothing about the entry that is there now.
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
    """The file that a commit's checksums are in."""
    return table / _DIRECTORY / f"{version:0{_DIGITS}d}"


def checkpoint_checksums_path(table: Path, version: int) -> Path:
    """The file that a checkpoint's checksums are in."""
    return table / _DIRECTORY / f"{version:0{_DIGITS}d}.checkpoint"


def checksummed_versions(table: Path) -> list[int]:
    """The versions of all commits whose checksums are there."""
    return sorted(int(name) for name in _names(table) if name.isdecimal())


def sweep_checksums(table: Path, below: int) -> None:
    """Delete the checksums of all versions below one: their entries and checkpoints were cleaned up."""
    for name in _names(table):
        if int(name[:_DIGITS]) < below:
            (table / _DIRECTORY / name).unlink(missing_ok=True)


def _names(table: Path) -> list[str]:
    folder = table / _DIRECTORY
    try:
        with os.scandir(folder) as found:
            return [each.name for each in found if _NAME.fullmatch(each.name) and each.is_file()]
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        _LOGGER.warning("%s is no folder: damage is not noticed, and no checkpoint made, until you move it.", folder)
        return []


def write_checksums(path: Path, checksums: Checksums) -> None:
    """Write a file of checksums, without syncing it.

    Raises:
        OSError: the disk does not take it.
    """
    content = json.dumps([checksums.token, dict(checksums.files)], separators=(",", ":")).encode()
    make_folders(path.parent)
    with open(path, "wb", opener=opener) as file:
        file.write(b"%s\n%08x\n" % (content, crc32c(content)))


def read_checksums(path: Path) -> Checksums | None:
    """A file of checksums; None where there is none, or it is torn.

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
