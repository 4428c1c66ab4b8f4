"""The mark beside a log that could not be synced: no process builds on what may not be on the disk.

Linux reports a failed write-back once. A process that syncs the same file afterwards is answered that all is well,
whatever the disk holds, and would report commits that rest on nothing. So the process that meets the failure leaves a
mark, and no process commits while it is there. After a restart of the machine the files show what the disk holds:
then the mark means nothing, and what is broken is what a power cut leaves.

The same holds after the file system was mounted anew, and in a snapshot of a live root. No process can see that, so
the operator says it, by an empty mark. A mark appears whole, so within one boot none but a disk tears it: also then
the files are what the disk holds.
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
    """Mark a table whose version may not be on the disk; returns the error that says so.

    The caller holds `syncing`. If the disk refuses the mark, too, only this process refuses further commits.
    """
    unfinished = table / f"{_NAME}.tmp"
    try:
        mark = {"boot": boot_id(), "version": version, "error": str(error)}
        with open(unfinished, "w", opener=opener) as file:
            json.dump(mark, file)
            file.flush()
            unfinished.replace(mark_path(table))
            with suppress(OSError):  # other processes see the mark all the same
                os.fsync(file.fileno())
    except OSError as refused:
        _LOGGER.warning("The mark that %s was not synced could not be written: %s", table, refused)
    return _refusal(table, version, str(error))


def refuse_marked(table: Path) -> None:
    """Check whether an fsync of this table has failed since the machine started.

    Raises:
        MetadataError: it has, in any process.
        OSError: there is a mark, or not: it could not be read.
    """
    mark = _read_mark(table)
    if mark is not None and mark.get("boot") == boot_id():
        raise _refusal(table, mark.get("version"), str(mark.get("error")))


def is_marked_before(table: Path) -> bool:
    """True if there is a mark from before the files were read from the disk: then all of them have to be checked."""
    mark = _read_mark(table)
    return mark is not None and mark.get("boot") != boot_id()


def is_mounted_anew(table: Path) -> bool:
    """True if the mark is empty: entries of this boot, too, may be what a power cut leaves."""
    return _read_mark(table) == {}


def mark_path(table: Path) -> Path:
    """The mark's file."""
    return table / _NAME


def _read_mark(table: Path) -> dict[str, object] | None:
    """The mark; None if there is none. A torn one is empty."""
    try:
        mark = json.loads(mark_path(table).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return mark if isinstance(mark, dict) else {}


def remove_mark(table: Path) -> None:
    """Remove the mark from before the files were read: all that the log names are complete.

    It stays where this process may not write: then it is for the next that may. So does a mark that another process has
    left meanwhile.
    """
    try:
        with syncing(table / "_delta_log"):  # as everyone who leaves a mark
            if is_marked_before(table):
                mark_path(table).unlink(missing_ok=True)
    except OSError as error:
        if error.errno not in _MAY_NOT_WRITE:
            raise


def _refusal(table: Path, version: object, error: str) -> MetadataError:
    return MetadataError(
        f"The metadata table {table} could not be made durable at version {version} ({error}): whether the last "
        "commits outlive a power cut is unknown, and nothing is committed on top of them; check the disk, then restart "
        f"this machine, or mount the disk's file system anew and run `truncate -s 0 {mark_path(table)}`."
    )
