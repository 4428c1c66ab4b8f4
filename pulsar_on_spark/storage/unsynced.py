"""The mark of a folder whose names could not be synced, so that no process relies on names that a power cut may undo.

Linux reports a failed write-back only once. A later fsync of the same folder succeeds whatever the disk holds, so its
caller would report objects as durable that are not. Therefore the process that meets the failure leaves a mark, and no
process writes while the mark exists. After a restart of the machine the folder has the disk's content, so the mark is
obsolete.

A mark is also obsolete after the file system was remounted, and in a snapshot of a live root. Processes cannot detect
these cases, so the operator declares them by emptying the mark. A mark is written atomically, so a torn one comes from
the disk; it counts as empty, because the folder then has the disk's content, too.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from contextlib import suppress
from pathlib import Path

from pulsar_on_spark.model.errors import UnsyncedFolderError
from pulsar_on_spark.storage.durability import UnsyncedError, boot_id, fsync_path, syncing
from pulsar_on_spark.storage.permissions import opener

MARK = "_unsynced"
_MAY_NOT_WRITE = (errno.EACCES, errno.EPERM, errno.EROFS)
_LOGGER = logging.getLogger(__name__)


def sync_folder(base: Path, folder: Path) -> None:
    """Make the names in a folder durable; if that fails, leave the mark.

    Args:
        base: The store's folder, in which the mark is.
        folder: The folder to sync, which is in `base`.

    Raises:
        UnsyncedFolderError: fsync failed, now or earlier, in this process or another.
        OSError: the folder could not be opened.
    """
    with syncing(folder):
        try:
            fsync_path(folder)
        except UnsyncedError as error:
            raise _leave_mark(base, folder, error) from error
        refuse_marked(base)


def _leave_mark(base: Path, folder: Path, error: UnsyncedError) -> UnsyncedFolderError:
    """Write the mark, and return the error to raise. If writing fails, only this process knows of the failed sync."""
    unfinished = base / f"{MARK}.tmp"
    try:
        mark = {"boot": boot_id(), "folder": str(folder), "error": str(error)}
        with open(unfinished, "w", opener=opener) as file:
            json.dump(mark, file)
            file.flush()
            unfinished.replace(mark_path(base))
            with suppress(OSError):  # other processes see the mark even if it is not durable
                os.fsync(file.fileno())
    except OSError as refused:
        _LOGGER.warning("The mark that folder %s was not synced could not be written: %s", folder, refused)
    return _refusal(base, str(folder), str(error), is_own=True)


def refuse_marked(base: Path) -> None:
    """Check that no fsync of this store has failed since the machine started.

    Raises:
        UnsyncedFolderError: an fsync has failed, in any process.
        OSError: the mark cannot be read, so there may be a mark.
    """
    mark = _read_mark(base)
    if mark is not None and mark.get("boot") == boot_id():
        raise _refusal(base, str(mark.get("folder")), str(mark.get("error")), is_own=False)


def is_remounted(base: Path) -> bool:
    """Return True if the mark is empty, as for a remounted disk or a snapshot: names of this boot may be lost."""
    return _read_mark(base) == {}


def mark_path(base: Path) -> Path:
    """Return the path of the mark's file."""
    return base / MARK


def remove_obsolete_mark(base: Path) -> None:
    """Remove a mark from an earlier boot, or an empty mark, after the store was found complete.

    If this process has no permission to write, the mark stays for a process that has.
    """
    try:
        mark = _read_mark(base)
        if mark is not None and mark.get("boot") != boot_id():
            with syncing(base):
                again = _read_mark(base)
                if again is not None and again.get("boot") != boot_id():
                    mark_path(base).unlink(missing_ok=True)
    except OSError as error:
        if error.errno not in _MAY_NOT_WRITE:
            raise


def _read_mark(base: Path) -> dict[str, object] | None:
    """Return the fields of the mark; None if there is no mark. A torn mark counts as empty."""
    try:
        mark = json.loads(mark_path(base).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return mark if isinstance(mark, dict) else {}


def _refusal(base: Path, folder: str, error: str, *, is_own: bool) -> UnsyncedFolderError:
    refusal = UnsyncedFolderError(
        f"The names in {folder} could not be made durable ({error}), so that a power cut may undo the last commits and "
        "no more commits are made: check the disk, then restart this machine, or remount the disk's file system and "
        f"run `truncate -s 0 {mark_path(base)}`."
    )
    refusal.is_own = is_own
    return refusal
