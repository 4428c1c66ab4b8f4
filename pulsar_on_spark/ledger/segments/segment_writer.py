"""Writer of one segment file: encoded once, written in write-quorum copies, complete if ack-quorum are durable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

import pyarrow as pa
from crc32c import crc32c

from pulsar_on_spark.ledger.segments.segment_copy import SegmentCopy
from pulsar_on_spark.ledger.segments.segment_format import INLINE_BATCHES, SegmentEncoder, Tiles, encode_sidecar
from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.errors import NotEnoughCopiesError
from pulsar_on_spark.model.ids import FileId, PathId, SegmentName, WriteId
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.storage.placement import next_apart, preferred
from pulsar_on_spark.storage.storage_path import PathFailure, StoragePath


class FileNotWrittenError(NotEnoughCopiesError):
    """A segment file did not get enough copies; `failures` are the storage paths that failed, with reasons."""

    def __init__(self, message: str, failures: tuple[PathFailure, ...]) -> None:
        super().__init__(message)
        self.failures = failures


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A finished segment file, the paths with a durable copy (`copies`) and the paths that failed (`failures`).

    `FileRecord` describes the other fields.
    """

    file_id: FileId
    length: int
    batches: int
    tile_lengths: tuple[int, ...]
    tile_crcs: tuple[int, ...]
    sidecar_length: int
    sidecar_crc: int
    copies: tuple[PathId, ...]
    write_quorum: int
    failures: tuple[PathFailure, ...]

    def file_record(self, write_id: WriteId) -> FileRecord:
        """Make the metadata record of this file, written under `write_id`."""
        return FileRecord(
            file_id=self.file_id,
            write_id=write_id,
            copies=self.copies,
            write_quorum=self.write_quorum,
            length=self.length,
            batches=self.batches,
            tile_lengths=self.tile_lengths,
            tile_crcs=self.tile_crcs,
            sidecar_length=self.sidecar_length,
            sidecar_crc=self.sidecar_crc,
        )


class SegmentFileWriter:
    """Writer of one segment file to write-quorum storage paths in parallel, from one encoding.

    If a path fails, the next candidate path replaces it for this file, and the earlier bytes are copied to the new path
    from a good copy. (This is BookKeeper's ensemble change, but without a change of metadata: the file is not read
    before it is committed.) Without a replacement, writing continues while ack-quorum copies are good. Memory
    grows with the tiles in flight, not with the file. Not thread-safe. As a context manager, it aborts a file that was
    not closed.

    Args:
        file_id: An unused id, `<write id>-<number>`.
        paths: The candidate paths, in any order: the choice depends on the file's id, on weights and on labels.
        quorum: The number of copies to write, and of copies that must be durable.
        files: The file operations of the operating system.

    Raises:
        FileNotWrittenError: fewer than ack-quorum paths can be opened.
    """

    def __init__(
        self, file_id: FileId, paths: Sequence[StoragePath], quorum: Quorum, files: FileOps = OS_FILES
    ) -> None:
        self._file_id = file_id
        self._quorum = quorum
        self._files = files
        self._spares = preferred(paths, file_id)
        self._copies: list[SegmentCopy] = []
        self._failures: list[PathFailure] = []
        self._lengths: list[int] = []
        self._crcs: list[int] = []
        self._size_bytes = 0
        self._ended = False
        self._encoder = SegmentEncoder()
        first, self._spares = self._spares[: quorum.write], self._spares[quorum.write :]
        name = SegmentName(file_id)
        self._copies = [SegmentCopy(path, name, files, stays_cached=path is first[0]) for path in first]
        for copy in self._copies:
            copy.drain()
        self._append(self._encoder.header)

    @property
    def size_bytes(self) -> int:
        """The number of encoded bytes so far."""
        return self._size_bytes

    @property
    def failures(self) -> tuple[PathFailure, ...]:
        """The paths that failed so far and were replaced or dropped, with reasons."""
        return tuple(self._failures)

    def write_batch(self, batch: pa.RecordBatch) -> int:
        """Append a batch in `SEGMENT_SCHEMA`, and return its number in the file, from 0.

        Raises:
            InvalidArgumentError: the batch has another schema.
            FileNotWrittenError: fewer than ack-quorum copies are left; the file is aborted.
        """
        self._append(self._encoder.encode(batch))
        return len(self._lengths) - 2

    def close(self) -> WrittenFile:
        """Make the file durable and visible under its final name, waiting for every copy or its failure.

        Raises:
            FileNotWrittenError: fewer than ack-quorum copies became durable; the written files are deleted.
        """
        self._append(self._encoder.finish())
        tiles = self._tiles()
        sidecar = encode_sidecar(tiles) if tiles.batches > INLINE_BATCHES else None
        for _ in range(len(self._spares) + 1):
            for copy in self._copies:
                copy.seal(sidecar)
            self._drain()
            if all(copy.failure is None for copy in self._copies):
                break
            self._change_ensemble()
        assert len(self._copies) >= self._quorum.ack
        assert all(copy.sealed for copy in self._copies)
        self._release(delete=False)
        return WrittenFile(
            file_id=self._file_id,
            length=self._size_bytes,
            batches=tiles.batches,
            tile_lengths=() if sidecar else tiles.lengths,
            tile_crcs=() if sidecar else tiles.crcs,
            sidecar_length=len(sidecar or b""),
            sidecar_crc=crc32c(sidecar) if sidecar else 0,
            copies=tuple(copy.path.path_id for copy in self._copies),
            write_quorum=self._quorum.write,
            failures=self.failures,
        )

    def abort(self) -> None:
        """Delete the written copies whose paths can be reached. No effect after `close` or `abort`."""
        if not self._ended:
            self._release(delete=True)

    def __enter__(self) -> SegmentFileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _tiles(self) -> Tiles:
        return Tiles(tuple(self._lengths), tuple(self._crcs))

    def _append(self, tile: bytes) -> None:
        assert not self._ended, "the writer was closed or aborted"
        # Failures are handled before the tile is counted, so `_lengths` lists exactly the tiles that good copies have.
        if any(copy.failure is not None for copy in self._copies) or len(self._copies) < self._quorum.ack:
            self._change_ensemble()
        for copy in self._copies:
            copy.append(tile)
        self._lengths.append(len(tile))
        self._crcs.append(crc32c(tile))
        self._size_bytes += len(tile)

    def _change_ensemble(self) -> None:
        """Replace failed copies by copies on spare paths, which get the earlier tiles from good copies."""
        self._drain()
        self._retire_failed()
        while self._spares and len(self._copies) < self._quorum.write and self._can_replace():
            spare = next_apart(self._spares, [copy.path.label for copy in self._copies])
            self._spares.remove(spare)
            copy = SegmentCopy(spare, SegmentName(self._file_id), self._files, stays_cached=not self._copies)
            if self._lengths:
                self._catch_up(copy)
            copy.drain()
            self._copies.append(copy)
            self._retire_failed()
        if len(self._copies) < self._quorum.ack:
            self._release(delete=True)
            raise FileNotWrittenError(self._shortage(), self.failures)

    def _can_replace(self) -> bool:
        """Return True if a new copy can be made: a good copy can be read, or no tiles were written yet."""
        return not self._lengths or any(copy.is_readable for copy in self._copies)

    def _catch_up(self, copy: SegmentCopy) -> None:
        """Copy the earlier tiles to a new copy; if a source copy turns out to be bad, use another source."""
        for source in [each for each in self._copies if each.is_readable]:
            copy.append_from(source, self._tiles())
            copy.drain()
            if source.failure is None:
                return
        copy.failure = copy.failure or "no good copy was left to copy the earlier bytes from"

    def _drain(self) -> None:
        for copy in self._copies:
            copy.drain()

    def _retire_failed(self) -> None:
        for copy in self._copies:
            if copy.failure is not None:
                copy.release(delete=True)
                self._failures.append(PathFailure(copy.path.path_id, copy.failure))
        self._copies = [copy for copy in self._copies if copy.failure is None]

    def _release(self, *, delete: bool) -> None:
        self._ended = True
        for copy in self._copies:
            copy.release(delete=delete)

    def _shortage(self) -> str:
        causes = "; ".join(f"path {failure.path_id}: {failure.reason}" for failure in self._failures)
        return (
            f"Segment file {self._file_id} has {len(self._copies)} good copies and needs {self._quorum.ack} "
            f"(quorum {self._quorum}; {causes or 'no path failed, too few are given'}): repair or add storage paths "
            "and write again."
        )
