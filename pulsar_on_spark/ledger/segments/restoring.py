"""Restoration of a segment file's copy on one storage path, from the file's other copies.

The new copy gets a name of its own, so no copy is ever overwritten, not even one that was judged bad by mistake.
Every byte is checked while it is copied; each tile comes from any copy that has it undamaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from pulsar_on_spark.ledger.segments.segment_format import Tiles, encode_sidecar
from pulsar_on_spark.ledger.segments.segment_reader import OpenCopy, verify_file
from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.errors import (
    CorruptSegmentError,
    NoAccessError,
    SegmentGoneError,
    StorageError,
    StoragePathError,
)
from pulsar_on_spark.model.ids import PathId, SegmentName
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.storage.loss import CopyVerdict, in_words, summary, unreachable, verdict_on
from pulsar_on_spark.storage.storage_path import StoragePath


def restore_copy(
    file: FileRecord,
    sources: Sequence[StoragePath],
    target: StoragePath,
    name: SegmentName,
    pace: Callable[[int], None] = lambda size_bytes: None,
    files: FileOps = OS_FILES,
) -> None:
    """Write a copy of `file` to `target`, and read it back.

    Args:
        file: The file's record.
        sources: Paths that may have copies, best ones first; the target may be among them.
        target: The path that gets the copy.
        name: The name of the new copy.
        pace: Called with the size of each tile in bytes, to limit the speed; its errors abort the restoration.
        files: The file operations of the operating system.

    Raises:
        SegmentGoneError: no source has an undamaged copy of a tile, and at least one no longer has the file.
        CopiesUnreachableError: a tile cannot be read from any source now, but an unreachable source may have it.
        CorruptSegmentError: a tile is damaged in every source; the error names each source's problem.
        StoragePathError: the target is not the path in the root's metadata, cannot be written, or returns other bytes.
    """
    with ExitStack() as stack:
        tiles = _Tiles(file, sources, files, stack)
        _write(file, tiles, target, name, pace, files)
    try:
        verify_file(file, target, files, name=name)
    except CorruptSegmentError as error:
        # The sources gave every tile, so the target failed and nothing is lost.
        raise StoragePathError(
            f"The copy of file {file.file_id} that was written to {target} is bad ({error}): check its disk."
        ) from error


class _Tiles:
    """Reader of a file's tiles, each from any copy in which it is undamaged."""

    def __init__(self, file: FileRecord, sources: Sequence[StoragePath], files: FileOps, stack: ExitStack) -> None:
        self._file = file
        self._causes: dict[PathId, StorageError] = {}
        self._copies: list[tuple[StoragePath, OpenCopy]] = []
        self._sources = {source.path_id: source for source in sources}
        for source in sources:
            try:
                copy = OpenCopy(file, source, files)
            except (CorruptSegmentError, StoragePathError) as error:
                self._causes[source.path_id] = error
            else:
                stack.callback(copy.close)
                self._copies.append((source, copy))
        if not self._copies:
            raise self._loss()

    @property
    def table(self) -> Tiles:
        """The lengths and checksums of the tiles."""
        return self._copies[0][1].tiles

    def read(self, number: int) -> bytearray:
        """Read a tile from the first copy that has it undamaged; that copy is tried first for the next tile."""
        for source, copy in tuple(self._copies):
            try:
                return copy.read_tile(number)
            except (CorruptSegmentError, StoragePathError) as error:
                # A copy that could not be read once is not judged by what it returned later.
                if not isinstance(self._causes.get(source.path_id), StoragePathError):
                    self._causes[source.path_id] = error
                # The copy may still have other tiles: it goes to the end of the list.
                self._copies.remove((source, copy))
                self._copies.append((source, copy))
        raise self._loss()

    def _loss(self) -> StorageError:
        causes = in_words(self._causes)
        verdict = summary(verdict_on(cause, self._sources[path_id]) for path_id, cause in self._causes.items())
        if verdict is CopyVerdict.UNREACHABLE:
            return unreachable(f"File {self._file.file_id}, which repair restores from its copies,", causes)
        return (SegmentGoneError if verdict is CopyVerdict.GONE else CorruptSegmentError)(
            f"File {self._file.file_id} cannot be restored from its copies: restore a copy from a backup. {causes}"
        )


def _write(
    file: FileRecord,
    tiles: _Tiles,
    target: StoragePath,
    name: SegmentName,
    pace: Callable[[int], None],
    files: FileOps,
) -> None:
    try:
        sink = target.write_segment(name, files, stays_cached=False)
    except OSError as error:
        raise _unwritten(file, target, error) from error
    try:
        for number in range(len(tiles.table.lengths)):
            tile = tiles.read(number)
            sink.write(bytes(tile))
            pace(len(tile))
        sink.seal(encode_sidecar(tiles.table) if file.sidecar_length else None)
    except BaseException as error:
        sink.discard()
        if isinstance(error, OSError):
            raise _unwritten(file, target, error) from error
        raise


def _unwritten(file: FileRecord, target: StoragePath, error: OSError) -> StoragePathError:
    kind = NoAccessError if isinstance(error, PermissionError) else StoragePathError
    return kind(f"A copy of file {file.file_id} cannot be written to {target} ({error}): check its disk.")
