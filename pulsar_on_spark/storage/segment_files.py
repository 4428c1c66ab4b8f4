"""Copies of segment files in a directory: written under a temporary name, and renamed when they are durable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pulsar_on_spark.model.errors import SegmentGoneError, StoragePathError
from pulsar_on_spark.storage.files import FileOps, read_file, tmp_name, write_synced

GROUP_BYTES: Final = 2 * 1024 * 1024
"""Bytes to read at once: enough to amortize a read's fixed cost, and few enough to stay in the processor's cache."""
SYNC_BYTES: Final = 8 * 1024 * 1024
"""Bytes after which a copy is synced. So the disk works while the next bytes are encoded, and a journal on the same
disk never waits long for one sync."""

Check = Callable[[], None]
"""Function that raises StoragePathError if the directory is not the storage path."""


class FileSink:
    """A copy that is being written; its methods raise `OSError`.

    Args:
        final: The file's final name.
        sidecar: The final name of its sidecar.
        files: The operating system.
        check: Checks the storage path.
        stays_cached: True if the operating system may keep the copy in memory for readers, which use the first copy.
            Pages of other copies are dropped after each sync and reused for the next bytes, because fresh pages would
            cost more than the write (see `journal.page_cache`).
    """

    is_readable = True

    def __init__(self, final: Path, sidecar: Path, files: FileOps, check: Check, *, stays_cached: bool) -> None:
        if final.exists():
            raise FileExistsError(f"{final} exists, and a segment file is written only once: use another file id")
        self._files = files
        self._check = check
        self._final = final
        self._tmp = tmp_name(final)
        self._sidecar = sidecar
        self._stays_cached = stays_cached
        self._made: set[Path] = set()
        self._written_bytes = 0
        self._unsynced_bytes = 0
        self._is_sealed = False
        self._fd = files.create(self._tmp)
        self._made.add(self._tmp)

    def write(self, content: bytes) -> None:
        """Append the bytes, and sync after each `SYNC_BYTES`."""
        self._files.write(self._fd, content)
        self._written_bytes += len(content)
        self._unsynced_bytes += len(content)
        if self._unsynced_bytes >= SYNC_BYTES:
            self._sync()

    def open_written(self) -> FileSource:
        """Return the copy, open for reading under its temporary or final name."""
        return FileSource(self._final if self._is_sealed else self._tmp, self._sidecar, self._files, self._check)

    def seal(self, sidecar: bytes | None) -> None:
        """Sync, rename to the final names, and sync the directory; `sidecar` is None for a copy without one."""
        self._sync()
        self._close()
        if sidecar is not None:
            sidecar_tmp = tmp_name(self._sidecar)
            self._made.add(sidecar_tmp)
            write_synced(self._files, sidecar_tmp, sidecar)
            self._rename(sidecar_tmp, self._sidecar)
        self._rename(self._tmp, self._final)
        self._is_sealed = True

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            self._close()

    def discard(self) -> None:
        """Close and delete the files."""
        self.close()
        for made in sorted(self._made):
            # If the file cannot be deleted, garbage collection finds it by the write id in its name.
            with suppress(OSError):
                self._files.unlink(made)

    def _close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._files.close(fd)

    def _sync(self) -> None:
        self._files.fdatasync(self._fd)
        self._unsynced_bytes = 0
        if not self._stays_cached:
            self._files.drop_cached_bytes(self._fd, self._written_bytes)

    def _rename(self, tmp: Path, final: Path) -> None:
        # Each rename is synced: after a crash, there must be no segment without its sidecar.
        self._made.add(final)
        self._files.rename(tmp, final)
        self._made.discard(tmp)
        self._files.fsync_directory(final.parent)


class FileSource:
    """A copy that is open for reading.

    Args:
        file: The file.
        sidecar: The file's sidecar, which need not exist.
        files: The operating system.
        check: Checks the storage path.
    """

    group_bytes = GROUP_BYTES

    def __init__(self, file: Path, sidecar: Path, files: FileOps, check: Check) -> None:
        self._sidecar = sidecar
        self._files = files
        self._check = check
        self.location = str(file)
        with self._examining(f"Segment file {file}"):
            self._fd = files.open(file)

    def size_bytes(self) -> int:
        """Return the file's length in bytes."""
        with self._examining(f"Segment file {self.location}"):
            return self._files.size(self._fd)

    def sidecar(self) -> bytes:
        """Return the content of the sidecar file."""
        with self._examining(f"Sidecar of segment file {self.location}"):
            return read_file(self._files, self._sidecar)

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Do nothing, because the operating system reads ahead."""

    def read_into(self, offset: int, target: memoryview) -> int:
        """Fill `target` from `offset`, and return the number of bytes read."""
        with self._examining(f"Segment file {self.location}"):
            return self._files.read_into(self._fd, offset, target)

    def close(self) -> None:
        """Close the file; a read after it fails, because the descriptor's number may be another file's by then."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._files.close(fd)

    @contextmanager
    def _examining(self, name: str) -> Iterator[None]:
        """Turn errors of the operating system in the context into SegmentGoneError or StoragePathError."""
        try:
            yield
        except FileNotFoundError as error:
            self._check()  # raises if the disk has just gone away: the file may still exist then
            raise SegmentGoneError(f"{name} is missing.") from error
        except OSError as error:
            raise StoragePathError(
                f"{name} cannot be read ({error}): check its disk, and the limits of this process."
            ) from error
