"""Limit of the page cache that a path's journal files use: only their newest bytes stay cached.

Sealer and tail readers read soon after the write; later readers are rare. Pages left in the cache would displace those
of other readers, or fill memory that was never used before. A new page costs more than the write itself: on a 2-core
virtual machine, writing a group of 416 KiB took 1.7 ms with new pages, after 2 GiB had been written, and 0.13 ms with
reused pages. The sealer also releases the pages that it has read.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pulsar_on_spark.ledger.journal.files import open_journal_file
from pulsar_on_spark.storage.files import FileOps

KEPT_BYTES = 384 << 20
"""Number of the newest bytes that stay cached of the files that readers read first.

This is half as much again as a sealer lets wait under load (`SealingPolicy.tail_bytes`), so that it reads what it seals
from memory: from the disk, it reads and allocates pages again, and competes with the writers of the journal."""
STEP_BYTES = 16 << 20
"""Excess over the kept bytes at which the oldest bytes are released."""


@dataclass(slots=True)
class _File:
    written: int = 0
    forgotten: int = 0


class PageCache:
    """Bytes in the page cache of a path's files, in the order in which the files began. A missing file is skipped.

    Args:
        files: The file operations of the operating system.
        kept_bytes: The number of newest bytes, of all files, that may stay cached.
        step_bytes: The excess in bytes above which the oldest bytes are released.
    """

    def __init__(self, files: FileOps, kept_bytes: int = KEPT_BYTES, step_bytes: int = STEP_BYTES) -> None:
        self._os = files
        self._kept_bytes = kept_bytes
        self._step_bytes = step_bytes
        self._files: dict[Path, _File] = {}
        self._cached_bytes = 0

    def wrote(self, directory: Path, size_bytes: int) -> None:
        """Count bytes that were appended to a directory's file and synced; unsynced pages could not be released."""
        self._files.setdefault(directory, _File()).written += size_bytes
        self._cached_bytes += size_bytes
        if self._cached_bytes >= self._kept_bytes + self._step_bytes:
            self._forget(self._cached_bytes - self._kept_bytes)

    def _forget(self, size_bytes: int) -> None:
        self._cached_bytes -= size_bytes
        for directory, file in list(self._files.items()):
            now = min(size_bytes, file.written - file.forgotten)
            file.forgotten += now
            size_bytes -= now
            with suppress(OSError):  # trimmed already, or the disk fails: then its writer gets the error
                self._forget_in(directory, file.forgotten)
            if not size_bytes:
                return
            del self._files[directory]

    def _forget_in(self, directory: Path, end: int) -> None:
        fd = open_journal_file(directory, self._os)
        try:
            self._os.drop_cached_bytes(fd, end)
        finally:
            self._os.close(fd)
