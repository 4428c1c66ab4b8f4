"""Repair after a power cut: find broken entries at the end of a Delta log, and set them aside.

delta-rs neither fsyncs nor checks: a 0-byte log entry reads as an empty commit, a cut one makes every open fail, an
entry may outlive the data file that it adds. A power cut can hit only commits that were not reported
(`DeltaLog.sync_to` comes before every report), so cutting the log at the first broken entry loses nothing that was
promised.

All other breakage is damage to the medium and may concern reported commits: then nothing is cut, and an error is
raised.
A power cut is excluded if a checkpoint or checksums show that the entry was durable once, or if an entry was written
since the machine started, unless the operator declares that the file system was remounted (see `unsynced`). Nothing is
cut while another process has the table open. A file that cannot be read now (an OSError with an errno) is not broken:
the error is raised.
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

from pulsar_on_spark.metadata.log import unsynced
from pulsar_on_spark.metadata.log.checksums import (
    Checksum,
    checkpoint_checksums_path,
    checksum_of,
    checksummed_versions,
    checksums_path,
    read_checksums,
    sweep_checksums,
)
from pulsar_on_spark.metadata.log.data_files import damaged, is_unreachable, read_content, rows_of
from pulsar_on_spark.metadata.log.log_entry import LogEntry, checkpoint_name, checkpoint_path, entry_path, read_entry
from pulsar_on_spark.model.errors import CorruptMetadataError
from pulsar_on_spark.storage.durability import LockHeldError, boot_id, fsync_path, locked, unheld
from pulsar_on_spark.storage.permissions import make_folders, opener

_ENTRY = re.compile(r"^(\d{20})\.json$")
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint\.parquet$")
_POINTER = "_last_checkpoint"
_PARQUET_MAGIC = b"PAR1"
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Damage:
    """Damage that prevents the use of a log.

    Attributes:
        first_broken: the first log entry that is missing or broken; a repair cuts it and all later ones.
        broken_file: the broken or missing file: the entry itself, or a data file.
        checkpoints: versions of broken checkpoints.
        pointer: True if `_last_checkpoint` is unreadable, or names a missing checkpoint.
        missing_entry: version of the newest intact checkpoint if its log entry is gone: delta-rs reads such a table but
            cannot commit to it.
    """

    first_broken: int | None
    checkpoints: tuple[int, ...]
    pointer: bool
    missing_entry: int | None
    broken_file: Path | None = None

    def __bool__(self) -> bool:
        return self != _WHOLE


_WHOLE = Damage(None, (), False, None)


@dataclass(frozen=True, slots=True)
class _Listing:
    """A single listing of the log directory, since concurrent clean-ups could change a second one."""

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


def clean_up(table: Path, below: int, older_than_s: float) -> None:
    """Delete the log entries and checkpoints before a checkpoint. The caller holds the lock.

    The checkpoint is the newest at or below version `below` that is at least `older_than_s` seconds old; all earlier
    entries are older. It and every later entry stay, so that damage to a newer checkpoint is harmless.
    """
    listing = _list(table)
    latest_s = time.time() - older_than_s
    behind = [
        version
        for version in listing.checkpoints
        if version <= below and checkpoint_path(table, version).stat().st_mtime <= latest_s
    ]
    if not behind or not _is_parquet(checkpoint_path(table, behind[-1])):
        return
    for version in behind[:-1]:  # before any entry: see `was_never_free`
        checkpoint_path(table, version).unlink(missing_ok=True)
    for version in listing.entries:  # oldest first: see `was_never_free`; and a crash in between leaves no hole
        if version < behind[-1]:
            entry_path(table, version).unlink(missing_ok=True)
    sweep_checksums(table, behind[-1])


def was_never_free(table: Path, version: int) -> bool:
    """True if an entry with this number must be the log's own, and not one that was linked too late.

    Entries are cleaned up oldest first, and only below the oldest remaining checkpoint.
    """
    return version >= min(_list(table).checkpoints, default=0)


def has_gap_above(table: Path, version: int) -> bool:
    """True if an entry between this one and the oldest checkpoint is gone, so this one was linked too late."""
    listing = _list(table)
    between = range(version, min(listing.checkpoints, default=version))
    return not set(between) <= set(listing.entries)


def oldest_entry_s(table: Path) -> float:
    """Time of writing of the log's oldest remaining entry, in seconds since 1970."""
    return entry_path(table, _list(table).entries[0]).stat().st_mtime


def newest_checkpoint(table: Path) -> int | None:
    """Version of the newest intact checkpoint, or None."""
    for version in reversed(_list(table).checkpoints):
        if _is_parquet(checkpoint_path(table, version)):
            return version
    return None


def pointed_checkpoint(table: Path) -> int | None:
    """Read the version in `_last_checkpoint`, a small file; None if it is missing or invalid."""
    try:
        return int(json.loads((table / "_delta_log" / _POINTER).read_bytes())["version"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def find_damage(table: Path, *, deep: bool = False) -> Damage:
    """Find damage of the kind that a power cut leaves.

    Args:
        table: the table's directory.
        deep: True to read data files and checkpoints completely, not only their length and both ends: after a failure.
    """
    checksummed = checksummed_versions(table)  # before the log: every version in this list was in the log already
    listing = _list(table)
    whole = [version for version in listing.checkpoints if _is_parquet(checkpoint_path(table, version), deep=deep)]
    while whole and contradicts_checkpoint(table, whole[-1], read_content(checkpoint_path(table, whole[-1]))):
        whole.pop()
    checkpoint = whole[-1] if whole else None
    broken_checkpoints = tuple(
        version
        for version in listing.checkpoints
        if version not in whole and checkpoint_path(table, version).exists()  # not cleaned up just now
    )
    entries = [version for version in listing.entries if checkpoint is None or version > checkpoint]
    pointer = (table / "_delta_log" / _POINTER).exists() and pointed_checkpoint(table) not in whole
    missing = checkpoint if checkpoint is not None and checkpoint not in listing.entries else None
    broken, file = _first_broken(table, entries, checkpoint, deep=deep)
    end = max(listing.entries[-1:] + tuple(whole[-1:]), default=-1)
    if broken is None and checksummed and checksummed[-1] > end:
        broken, file = end + 1, entry_path(table, end + 1)
    return Damage(broken, broken_checkpoints, pointer, missing, file)


def contradicts_checkpoint(table: Path, version: int, content: pa.Buffer) -> bool:
    """True if a checkpoint's content differs from its checksum; False if its checksum is unknown."""
    checksums = read_checksums(checkpoint_checksums_path(table, version))
    return checksums is not None and checksums.files.get(checkpoint_name(version)) != checksum_of(content)


def _first_broken(
    table: Path, versions: list[int], checkpoint: int | None, *, deep: bool
) -> tuple[int, Path] | tuple[None, None]:
    if not versions:
        return None, None
    expected = versions[0] if checkpoint is None else checkpoint + 1
    entries: list[LogEntry] = []
    removed: set[str] = set()
    broken: int | None = None
    for version in versions:
        entry = read_entry(table, version)
        if entry is None or version != expected or not entry.complete:
            broken = expected
            break
        entries.append(entry)
        removed.update(entry.removed)
        expected = version + 1
    for entry in entries:
        for name, size in entry.added:
            # A file that a later entry removed may have been vacuumed since.
            checksum = (entry.durable or {}).get(name)
            if name not in removed and not _is_parquet(table / name, size, checksum, deep=deep):
                return entry.version, table / name
    return (None, None) if broken is None else (broken, entry_path(table, broken))


def needs_repair(table: Path, *, deep: bool = False) -> bool:
    """Check without the lock if `repair` is needed; cheap unless `deep`."""
    return bool(find_damage(table, deep=deep))


def repair(table: Path, lock_file: Path, *, deep: bool = False, is_used: bool = False) -> Path | None:
    """Set aside the first broken log entry, all later ones, and broken checkpoints; returns their new folder.

    Acquires flock on `lock_file` and checks again under it, so that processes never cut the same log twice and no
    clean-up runs meanwhile.

    Args:
        table: the table's directory.
        lock_file: the root's lock file.
        deep: as for `find_damage`.
        is_used: True if the caller has worked with this table: then nothing is cut off.

    Raises:
        LockHeldError: another process holds the lock: try again.
        MetadataError: the broken entries may have been reported, or the table has no readable first entry.
    """
    with locked(lock_file, wait=False) as is_locked:
        if not is_locked:
            raise LockHeldError(f"{table} needs a repair, and another process holds {lock_file}")
        damage = find_damage(table, deep=deep)
        if not damage:
            return None
        listing = _list(table)
        if listing.checkpoints and damage.checkpoints == listing.checkpoints and listing.entries[:1] != (0,):
            raise damaged(checkpoint_path(table, listing.checkpoints[-1]))
        if damage.missing_entry is not None:
            _replace_entry(table, damage.missing_entry)
        doomed = [checkpoint_path(table, version) for version in damage.checkpoints]
        if damage.first_broken is None or damage.broken_file is None:
            return _set_aside(table, doomed, damage) if doomed or damage.pointer else None
        with unheld(table) as is_alone:
            _refuse_reported(table, damage.first_broken, damage.broken_file, listing)
            if is_used or not is_alone:
                raise CorruptMetadataError(
                    f"The metadata table {table} ends broken from version {damage.first_broken} on, as after a power "
                    f"cut ({damage.broken_file}), but it is in use: stop all that use the root, and open it again."
                )
            doomed += [entry_path(table, version) for version in listing.entries if version >= damage.first_broken]
            return _set_aside(table, doomed, damage)


def _refuse_reported(table: Path, broken: int, file: Path, listing: _Listing) -> None:
    if broken == 0:
        raise CorruptMetadataError(
            f"The metadata table {table} has no readable first entry: if the root was never used, run `pulsarpy init` "
            "again, else restore it from a backup."
        )
    if any(version >= broken for version in listing.checkpoints):
        reason = "was durable once (a checkpoint covers it)"
    elif any(_was_durable(table, version) for version in checksummed_versions(table) if version >= broken):
        reason = "was durable once (its checksum, or a later one, says so)"
    elif any(
        _is_of_this_boot(table, version) for version in listing.entries if version >= broken
    ) and not unsynced.is_remounted(table):
        reason = (
            "was written since this machine started, so no power cut has hit it (if its file system was remounted "
            f"since, or this is a snapshot of a live root, run `truncate -s 0 {unsynced.mark_path(table)}` and open it "
            "again)"
        )
    else:
        return
    fault = "is not what was written" if file.exists() else "is missing"
    raise CorruptMetadataError(
        f"The metadata table {table} is damaged at version {broken}, which {reason}: {file} {fault}; nothing was cut "
        "off; check the disk and restore the root's metadata, into an empty folder, from a backup."
    )


def _was_durable(table: Path, version: int) -> bool:
    """True if a version's checksums belong to its entry; a missing entry existed before its checksums."""
    entry = read_entry(table, version)
    return entry is None or entry.durable is not None


def _is_of_this_boot(table: Path, version: int) -> bool:
    """True if the entry's text names this boot, even if the text cannot be parsed."""
    return boot_id().encode() in entry_path(table, version).read_bytes()


def _replace_entry(table: Path, version: int) -> None:
    """Replace a missing entry, whose actions are all in a checkpoint, by an empty one."""
    path = entry_path(table, version)
    checksums_path(table, version).unlink(missing_ok=True)
    with open(path, "x", opener=opener) as file:
        json.dump({"commitInfo": {"operation": "REPAIR", "operationParameters": {}}}, file)
    fsync_path(path)
    fsync_path(path.parent)


def _set_aside(table: Path, doomed: list[Path], damage: Damage) -> Path:
    aside = table.parent / "set-aside" / f"{table.name}-{time.time_ns()}"
    make_folders(aside)
    if damage.first_broken is not None:
        _set_checksums_aside(table, damage.first_broken, aside)
    # Newest first: after a crash in between the log is just shorter, and never has a gap.
    for path in sorted(doomed, key=lambda p: p.name, reverse=True):
        path.rename(aside / path.name)
    pointer = table / "_delta_log" / _POINTER
    if pointer.exists():
        pointer.rename(aside / _POINTER)
    for directory in (table / "_delta_log", aside, aside.parent, table.parent):
        fsync_path(directory)
    _LOGGER.warning("The metadata table %s was repaired after a crash: %s went to %s.", table, damage, aside)
    return aside


def _set_checksums_aside(table: Path, first: int, aside: Path) -> None:
    """Set aside the checksums of entries that are about to be cut, as their numbers will be used again."""
    paths = [checksums_path(table, version) for version in checksummed_versions(table) if version >= first]
    for path in paths:
        path.rename(aside / path.name)
    if paths:
        fsync_path(paths[0].parent)


def _is_parquet(path: Path, size: int | None = None, known: Checksum | None = None, *, deep: bool = False) -> bool:
    """True if the file has the given size and Parquet's magic at both ends; `deep` checks its whole content."""
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
        content = read_content(path)
        if known is not None:
            return checksum_of(content) == known
        try:
            rows_of(content)
        except (pa.ArrowException, OSError) as error:
            if is_unreachable(error):
                raise
            return False
    return True
