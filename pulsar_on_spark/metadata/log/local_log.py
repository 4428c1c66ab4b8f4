"""A table's log on a local disk."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection, Iterable
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
"""Minimum free bytes on the root's disk for a commit.

With less, new commits are refused, so that commits in progress can end.
"""


class LocalLog:
    """The log store of a table in a folder.

    Args:
        folder: The table's folder.
        lock_file: The root's lock file; None for a reader that repairs and cleans up nothing.
        is_shared: True if other programs may write to the table, too.
    """

    requests_at_once = 1

    def __init__(self, folder: Path, lock_file: Path | None = None, *, is_shared: bool = False) -> None:
        self.objects = LocalObjects(folder)
        self.place = str(folder)
        self.is_shared = is_shared
        self._folder = folder
        self._lock_file = lock_file

    @property
    def boot(self) -> str | None:
        """The id of the machine's current boot, from the kernel; never None."""
        return boot_id()

    def require_writable(self) -> None:
        """Check the disk's free space and the folder's permissions.

        Raises:
            MetadataError: this process may not write to the folder, or the disk is read-only or full.
            OSError: the disk does not answer.
        """
        require_writable(self._folder)

    def sync(self) -> None:
        """Sync the names of files; their content was durable before they got their names."""
        for prefix in ("", LOG):
            self.objects.sync(prefix)

    def sync_files(self, keys: Iterable[str]) -> None:
        """Sync the content of the given files that exist, and the names of all files."""
        for key in keys:
            with suppress(FileNotFoundError):
                descriptor = os.open(self._folder / key, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        self.sync()

    def housekeeping(self) -> AbstractContextManager[bool]:
        """Hold the root's lock; yield False if another process holds it, or if this log has no lock file."""
        return nullcontext(False) if self._lock_file is None else locked(self._lock_file, wait=False)

    def note_reported(self, version: int) -> None:
        """Write the version to a file of its own, without a sync, so that it costs a commit almost nothing."""
        with suppress(OSError, ObjectsUnreachableError):
            if self.reported_version() < version:
                descriptor = opener(self._folder / REPORTED, os.O_WRONLY | os.O_CREAT)
                try:
                    text = b"%020d" % version
                    os.pwrite(descriptor, b"%s %08x\n" % (text, crc32c(text)), 0)
                finally:
                    os.close(descriptor)

    def reported_version(self) -> int:
        """Return the version in the file that `note_reported` writes; -1 if the file is torn or absent."""
        note = self.objects.fetch(REPORTED)
        if note is None:
            return -1
        try:
            text, check = note.content.split()
            return int(text) if check == b"%08x" % crc32c(text) else -1
        except ValueError:
            return -1

    def lost_names(self, boots: Collection[str | None]) -> bool:
        """Return True if no entry is from the machine's current boot, or the disk was remounted since.

        Otherwise no file names can be lost.
        """
        return boot_id() not in boots or is_remounted(self._folder)

    def note_whole(self) -> None:
        """Remove the mark of a failed sync if it is of an earlier boot, or the disk was remounted."""
        if self._lock_file is not None:
            remove_obsolete_mark(self._folder)

    def set_aside(self, keys: Collection[str]) -> str:
        """Move the files into a new folder below `metadata/set-aside`, and return its path.

        The newest files are moved first, so that a crash leaves no further gap.
        """
        aside = self._folder.parent / "set-aside" / f"{self._folder.name}-{time.time_ns()}"
        make_folders(aside)
        for key in sorted(keys, reverse=True):
            (self._folder / key).rename(aside / Path(key).name)
        for folder in (self._folder / LOG, aside, aside.parent, self._folder.parent):
            fsync_path(folder)
        return str(aside)

    def sweep(self) -> None:
        """Delete old files that killed writers have left without a final name."""
        for prefix in ("", LOG):
            self.objects.sweep(prefix)


def require_writable(folder: Path) -> None:
    """Check that a whole commit can be written to a folder.

    Raises:
        MetadataError: the file system is mounted read-only, this process may not write to the folder, or less than
            `RESERVE_BYTES` bytes are free.
        OSError: the disk does not answer.
    """
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        raise MetadataError(
            f"The folder {folder} is on a file system that is mounted read-only: mount it read-write (nothing was "
            "committed)."
        )
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        raise MetadataError(
            f"The user of this process may not write to the folder {folder}: check the owner and the permissions of "
            "the root (nothing was committed)."
        )
    if shutil.disk_usage(folder).free < RESERVE_BYTES:
        raise MetadataError(
            f"The disk of {folder} is full: free some space (nothing was committed; commits need "
            f"{RESERVE_BYTES >> 20} MiB of free space)."
        )
