"""A copy of a segment file while it is being written, by a thread that appends tiles until the first error."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from crc32c import crc32c

from pulsar_on_spark.ledger.segments.segment_format import Tiles
from pulsar_on_spark.model.errors import StorageError
from pulsar_on_spark.model.ids import FileId
from pulsar_on_spark.storage.files import FileOps, tmp_name, write_synced
from pulsar_on_spark.storage.storage_path import StoragePath

IN_FLIGHT_BYTES = 16 * 1024 * 1024
"""Limit of tiles queued for one copy. All copies share the same bytes, so it bounds the writer's memory."""

SYNC_BYTES = 8 * 1024 * 1024
"""Bytes after which a copy is synced: the disk works while the next tiles are encoded, and a journal on the same disk
never waits long for one sync."""


class SegmentCopy:
    """Copy that is written under a temporary name, then sealed under its final one.

    Operations are queued and executed in order by the copy's own thread. `failure` is the first error, after which all
    later operations are skipped. `sealed` is true once the copy is durable under its final name. Both are up to date
    only after `drain`.

    Args:
        path: The storage path of the copy.
        file_id: The segment file's id.
        files: The operating system.
        stays_cached: True if the operating system may keep the copy in memory for readers, which use the first copy.
            Pages of other copies are dropped after each sync and reused for the next bytes, because fresh pages would
            cost more than the write (see `journal.page_cache`).
    """

    def __init__(self, path: StoragePath, file_id: FileId, files: FileOps, *, stays_cached: bool) -> None:
        self.path = path
        self._stays_cached = stays_cached
        self.failure: str | None = None
        self._files = files
        self._file_id = file_id
        self._final = path.segment_file(file_id)
        self._tmp = tmp_name(self._final)
        self._sidecar = path.sidecar_file(file_id)
        self._made: set[Path] = set()
        self._fd = -1
        self._tiles_written = 0
        self._written_bytes = 0
        self._unsynced_bytes = 0
        self.sealed = False
        self._pending: deque[tuple[Future[None], int]] = deque()
        self._pending_bytes = 0
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"segment-copy-{path.path_id}")
        self._submit("open", self._open)

    def append(self, tile: bytes) -> None:
        """Queue the next tile; block while more than `IN_FLIGHT_BYTES` would be queued."""
        while self._pending and self._pending_bytes + len(tile) > IN_FLIGHT_BYTES:
            self._finish_oldest()
        self._submit("write", partial(self._append, tile), len(tile))

    def append_from(self, source: SegmentCopy, tiles: Tiles) -> None:
        """Queue the tiles that this copy lacks, read from a drained source that has them all.

        If the source cannot be read or fails a checksum, `source.failure` is set instead of this copy's `failure`, and
        this copy keeps the tiles before the failed one.
        """
        self._submit("copy", partial(self._append_from, source, tiles))

    def seal(self, sidecar: bytes | None) -> None:
        """Queue the last steps: sync, rename to the final names (sidecar first), sync the directory."""
        self._submit("seal", partial(self._seal, sidecar))

    def drain(self) -> None:
        """Wait until all queued operations are done, or were skipped because of a failure."""
        while self._pending:
            self._finish_oldest()

    def release(self, *, delete: bool) -> None:
        """End the thread and close the file; `delete` also removes the written files, as far as possible."""
        self.drain()
        self._executor.shutdown()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with suppress(OSError):
                self._files.close(fd)
        if delete:
            for made in sorted(self._made):
                # If the file cannot be deleted, garbage collection finds it by the write id in its name.
                with suppress(OSError):
                    self._files.unlink(made)

    def _submit(self, action: str, step: Callable[[], None], size_bytes: int = 0) -> None:
        self._pending.append((self._executor.submit(self._run, action, step), size_bytes))
        self._pending_bytes += size_bytes

    def _finish_oldest(self) -> None:
        future, size_bytes = self._pending.popleft()
        self._pending_bytes -= size_bytes
        future.result()

    def _run(self, action: str, step: Callable[[], None]) -> None:
        if self.failure is not None:
            return
        try:
            step()
        except (OSError, StorageError) as error:
            self.failure = f"{action} failed: {str(error).rstrip('.')}"

    def _open(self) -> None:
        self.path.check(self._files)
        self.path.make_segment_directory(self._file_id, self._files)
        if self._final.exists():
            raise FileExistsError(f"{self._final} exists already, and a segment is written only once")
        self._fd = self._files.create(self._tmp)
        self._made.add(self._tmp)

    def _append(self, tile: bytes) -> None:
        self._files.write(self._fd, tile)
        self._tiles_written += 1
        self._written_bytes += len(tile)
        self._unsynced_bytes += len(tile)
        if self._unsynced_bytes >= SYNC_BYTES:
            self._sync()

    def _sync(self) -> None:
        self._files.fdatasync(self._fd)
        self._unsynced_bytes = 0
        if not self._stays_cached:
            self._files.drop_cached_bytes(self._fd, self._written_bytes)

    def _append_from(self, source: SegmentCopy, tiles: Tiles) -> None:
        try:
            fd = self._files.open(source._final if source.sealed else source._tmp)
        except OSError as error:
            source.failure = f"reading back failed: {error}"
            return
        try:
            offset = tiles.offsets()[self._tiles_written]
            for tile_number in range(self._tiles_written, len(tiles.lengths)):
                tile = source._read_back(fd, offset, tiles.lengths[tile_number], tiles.crcs[tile_number])
                if tile is None:
                    return
                self._append(tile)
                offset += len(tile)
        finally:
            self._files.close(fd)

    def _read_back(self, fd: int, offset: int, length: int, crc: int) -> bytes | None:
        tile = bytearray(length)
        try:
            count = self._files.read_into(fd, offset, memoryview(tile))
        except OSError as error:
            self.failure = f"reading back failed: {error}"
            return None
        if count != length or crc32c(tile) != crc:
            self.failure = "reading back failed: the bytes differ from those written"
            return None
        return bytes(tile)

    def _seal(self, sidecar: bytes | None) -> None:
        if self.sealed:
            return
        self._sync()
        fd, self._fd = self._fd, -1
        self._files.close(fd)
        if sidecar is not None:
            sidecar_tmp = tmp_name(self._sidecar)
            self._made.add(sidecar_tmp)
            write_synced(self._files, sidecar_tmp, sidecar)
            self._rename(sidecar_tmp, self._sidecar)
        self._rename(self._tmp, self._final)
        self.sealed = True

    def _rename(self, tmp: Path, final: Path) -> None:
        # Each rename is synced: after a crash, there must be no segment without its sidecar.
        self._made.add(final)
        self._files.rename(tmp, final)
        self._made.discard(tmp)
        self._files.fsync_directory(final.parent)
