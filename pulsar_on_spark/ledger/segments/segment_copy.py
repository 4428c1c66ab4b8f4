"""A copy of a segment file while it is being written, by a thread that appends tiles until the first error."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial

from crc32c import crc32c

from pulsar_on_spark.ledger.segments.segment_format import Tiles
from pulsar_on_spark.model.errors import StorageError
from pulsar_on_spark.model.ids import SegmentName
from pulsar_on_spark.storage.files import FileOps
from pulsar_on_spark.storage.storage_path import SegmentSink, SegmentSource, StoragePath

IN_FLIGHT_BYTES = 16 * 1024 * 1024
"""Maximum bytes of tiles queued for one copy. All copies share these bytes, so the limit bounds the writer's memory."""


class SegmentCopy:
    """A copy that is written and then sealed, which makes it durable and visible under its name.

    Operations are queued and executed in order by the copy's own thread. `failure` is the first error, after which all
    later operations are skipped. `sealed` is True once the copy is sealed. Both are up to date only after `drain`.

    Args:
        path: The storage path of the copy.
        name: The copy's name.
        files: The file operations of the operating system.
        stays_cached: True if the operating system may keep the copy in memory for readers, which use the first copy.
    """

    def __init__(self, path: StoragePath, name: SegmentName, files: FileOps, *, stays_cached: bool) -> None:
        self.path = path
        self.failure: str | None = None
        self.sealed = False
        self._sink: SegmentSink | None = None
        self._tiles_written = 0
        self._pending: deque[tuple[Future[None], int]] = deque()
        self._pending_bytes = 0
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"segment-copy-{path.path_id}")
        self._submit("open", partial(self._open, name, files, stays_cached=stays_cached))

    def append(self, tile: bytes) -> None:
        """Queue the next tile; first wait until at most `IN_FLIGHT_BYTES` will be queued, or the queue is empty."""
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
        """Queue the last step: make the copy and its sidecar (None for none) durable and visible."""
        self._submit("seal", partial(self._seal, sidecar))

    def drain(self) -> None:
        """Wait until all queued operations are done, or were skipped because of a failure."""
        while self._pending:
            self._finish_oldest()

    @property
    def is_readable(self) -> bool:
        """True if another copy can be made from this one before it is complete."""
        return self._sink is not None and self._sink.is_readable

    def release(self, *, delete: bool) -> None:
        """End the thread and close the copy; with `delete`, also try to remove the written bytes."""
        self.drain()
        self._executor.shutdown()
        if self._sink is not None:
            (self._sink.discard if delete else self._sink.close)()

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

    def _open(self, name: SegmentName, files: FileOps, *, stays_cached: bool) -> None:
        self._sink = self.path.write_segment(name, files, stays_cached=stays_cached)

    def _append(self, tile: bytes) -> None:
        assert self._sink is not None, "a copy is opened first"
        self._sink.write(tile)
        self._tiles_written += 1

    def _append_from(self, source: SegmentCopy, tiles: Tiles) -> None:
        assert source._sink is not None, "a source is open"
        try:
            written = source._sink.open_written()
        except (OSError, StorageError) as error:
            source.failure = _unreadable(error)
            return
        with closing(written):
            offset = tiles.offsets()[self._tiles_written]
            for tile_number in range(self._tiles_written, len(tiles.lengths)):
                tile = source._read_back(written, offset, tiles.lengths[tile_number], tiles.crcs[tile_number])
                if tile is None:
                    return
                self._append(tile)
                offset += len(tile)

    def _read_back(self, written: SegmentSource, offset: int, length: int, crc: int) -> bytes | None:
        """Read a tile that was written; None if that fails, after `failure` is set."""
        tile = bytearray(length)
        try:
            count = written.read_into(offset, memoryview(tile))
        except (OSError, StorageError) as error:
            self.failure = _unreadable(error)
            return None
        if count != length or crc32c(tile) != crc:
            self.failure = "reading back failed: the bytes differ from those written"
            return None
        return bytes(tile)

    def _seal(self, sidecar: bytes | None) -> None:
        if self.sealed:
            return
        assert self._sink is not None, "a copy is opened first"
        self._sink.seal(sidecar)
        self.sealed = True


def _unreadable(error: Exception) -> str:
    return f"reading back failed: {str(error).rstrip('.')}"
