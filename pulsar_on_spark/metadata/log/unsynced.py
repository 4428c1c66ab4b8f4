"""The mark beside a log that could not be synced: no process builds on commits that may not be on the disk.

Linux reports a failed write-back once. A later fsync of the same file succeeds whatever the disk holds, so its caller
would report commits that are not durable. Therefore the process that meets the failure leaves a mark, and no process
commits while the mark exists. After a restart of the machine the files have the disk's content: the mark is obsolete,
and broken entries are treated as after a power cut.

The same is true after the file system was remounted, and in a snapshot of a live root. Processes cannot detect these
cases, so the operator declares them by an empty mark. A mark is written atomically: within one boot only a disk can
tear it, and in that case, too, the files have the disk's content.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from contextlib import suppress
from pathlib import Path

from pulsar_on_spark.model.errors import MetadataError
from pulsar_on_spark.storage.durability import UnsyncedError, boot_id, syncing
from pulsar_on_spark.storage.permissions import opener

_NAME = "_unsynced"
_MAY_NOT_WRITE = (errno.EACCES, errno.EPERM, errno.EROFS)
_LOGGER = logging.getLogger(__name__)


def leave_mark(table: Path, version: int, error: UnsyncedError) -> MetadataError:
    """Mark a table whose version may not be on the disk; returns the error to raise.

    The caller holds `syncing`. If the mark cannot be written either, only this process refuses further commits.
    """
    unfinished = table / f"{_NAME}.tmp"
    try:
        mark = {"boot": boot_id(), "version": version, "error": str(error)}
        with open(unfinished, "w", opener=opener) as file:
            json.dump(mark, file)
            file.flush()
            unfinished.replace(mark_path(table))
            with suppress(OSError):  # other processes see the mark even if it is not durable
                os.fsync(file.fileno())
    except OSError as refused:
        _LOGGER.warning("The mark that %s was not synced could not be written: %s", table, refused)
    return _refusal(table, version, str(error))


def refuse_marked(table: Path) -> None:
    """Check that no fsync of this table has failed since the machine started.

    Raises:
        MetadataError: one has failed, in any process.
        OSError: it is unknown whether there is a mark.
    """
    mark = _read_mark(table)
    if mark is not None and mark.get("boot") == boot_id():
        raise _refusal(table, mark.get("version"), str(mark.get("error")))


def is_marked_before(table: Path) -> bool:
    """True if there is a mark from an earlier boot: then all files have to be checked."""
    mark = _read_mark(table)
    return mark is not None and mark.get("boot") != boot_id()


def is_remounted(table: Path) -> bool:
    """True if the mark is empty: then entries of this boot may be broken as after a power cut, too."""
    return _read_mark(table) == {}


def mark_path(table: Path) -> Path:
    """The mark's file."""
    return table / _NAME


def _read_mark(table: Path) -> dict[str, object] | None:
    """Read the mark; None if there is none. A torn mark counts as empty."""
    try:
        mark = json.loads(mark_path(table).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return mark if isinstance(mark, dict) else {}


def remove_mark(table: Path) -> None:
    """Remove a mark from an earlier boot, after all files of the log were checked.

    It stays if this process may not write; the next process that may will remove it. A mark that another process has
    left meanwhile stays, too.
    """
    try:
        with syncing(table / "_delta_log"):  # as `leave_mark` requires of its callers
            if is_marked_before(table):
                mark_path(table).unlink(missing_ok=True)
    except OSError as error:
        if error.errno not in _MAY_NOT_WRITE:
            raise


def _refusal(table: Path, version: object, error: str) -> MetadataError:
    return MetadataError(
        f"The metadata table {table} could not be made durable at version {version} ({error}): whether the last "
        "commits outlive a power cut is unknown, and nothing is committed on top of them; check the disk, then restart "
        f"this machine, or remount the disk's file system and run `truncate -s 0 {mark_path(table)}`."
    )
