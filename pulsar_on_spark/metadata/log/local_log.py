"""A table's log on a local disk."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Final

from crc32c import crc32c

from pulsar_on_spark.metadata.log.entry import LOG
from pulsar_on_spark.model.errors import MetadataError, ObjectsUnreachableError
from pulsar_on_spark.storage.durability import boot_id, fsync_path, locked
from pulsar_on_spark.storage.objects.local import LocalObjects
from pulsar_on_spark.storage.permissions import make_folders, opener
from pulsar_on_spark.storage.unsynced import is_remounted, remove_obsolete_mark

REPORTED: Final = "_reported"
RESERVE_BYTES: Final = 1 << 20
"""Free space on the root's disk below which commits are refused: those that run need some."""


class LocalLog:
    """A table in a folder.

    Args:
        folder: The table's folder.
        lock_file: The root's lock; None for a reader that changes nothing.
    """

    def __init__(self, folder: Path, lock_file: Path | None = None) -> None:
        self.objects = LocalObjects(folder)
        self.place = str(folder)
        self._folder = folder
        self._lock_file = lock_file

    @property
    def boot(self) -> str | None:
        """The kernel's boot id."""
        return boot_id()

    def require_writable(self) -> None:
        """Look at the disk and the folder's permissions."""
        require_writable(self._folder)

    def sync(self) -> None:
        """Sync the names of files: they have their content before their name."""
        for prefix in ("", LOG):
            self.objects.sync(prefix)

    def housekeeping(self) -> AbstractContextManager[bool]:
        """Hold the root's lock."""
        return nullcontext(False) if self._lock_file is None else locked(self._lock_file, wait=False)

    def note_reported(self, version: int) -> None:
        """Write the version to a file of its own, unsynced: evidence that costs a commit nothing."""
        with suppress(OSError, ObjectsUnreachableError):
            if self.reported_version() < version:
                descriptor = opener(self._folder / REPORTED, os.O_WRONLY | os.O_CREAT)
                try:
                    text = b"%020d" % version
                    os.pwrite(descriptor, b"%s %08x\n" % (text, crc32c(text)), 0)
                finally:
                    os.close(descriptor)

    def reported_version(self) -> int:
        """Read that file; a torn one says nothing."""
        note = self.objects.fetch(REPORTED)
        if note is None:
            return -1
        try:
            text, check = note.content.split()
            return int(text) if check == b"%08x" % crc32c(text) else -1
        except ValueError:
            return -1

    def lost_names(self, boots: Collection[str | None]) -> bool:
        """Compare the boots with this one: the names of entries are lost only if the machine ended in between."""
        return boot_id() not in boots or is_remounted(self._folder)

    def note_whole(self) -> None:
        """Remove a mark of an earlier boot, or of a remounted disk."""
        if self._lock_file is not None:
            remove_obsolete_mark(self._folder)

    def set_aside(self, keys: Collection[str]) -> str:
        """Rename the files into a folder beside the tables, newest first: a crash in between leaves a shorter log."""
        aside = self._folder.parent / "set-aside" / f"{self._folder.name}-{time.time_ns()}"
        make_folders(aside)
        for key in sorted(keys, reverse=True):
            (self._folder / key).rename(aside / Path(key).name)
        for folder in (self._folder / LOG, aside, aside.parent, self._folder.parent):
            fsync_path(folder)
        return str(aside)

    def sweep(self) -> None:
        """Delete unnamed files."""
        for prefix in ("", LOG):
            self.objects.sweep(prefix)


def require_writable(folder: Path) -> None:
    """Refuse a commit that cannot be written as a whole.

    Raises:
        MetadataError: the folder may not be written, or less than `RESERVE_BYTES` are free.
        OSError: the disk does not answer.
    """
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        raise MetadataError(
            f"{folder} is on a file system that is mounted read-only: mount it read-write (nothing was committed)."
        )
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        raise MetadataError(
            f"{folder} may not be written by this user: check who owns the root (nothing was committed)."
        )
    if shutil.disk_usage(folder).free < RESERVE_BYTES:
        raise MetadataError(
            f"The disk of {folder} is full: free some space (nothing was committed; commits need "
            f"{RESERVE_BYTES >> 20} MiB of free space)."
        )
