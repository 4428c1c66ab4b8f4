"""Restoring one copy of a segment file from its other copies, and setting a copy aside: repair's work on one path.

A restored copy is staged under a temporary name, synced, and renamed to its final name. The old copy is moved aside
first, so a copy that was judged bad by mistake is never overwritten; under its temporary name it becomes garbage. Every
byte is checked while it is copied: each tile comes from any copy that holds it undamaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from pulsar_on_spark.ledger.segments.segment_copy import SYNC_BYTES
from pulsar_on_spark.ledger.segments.segment_format import Tiles, encode_sidecar
from pulsar_on_spark.ledger.segments.segment_reader import OpenCopy, verify_file
from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.errors import CorruptSegmentError, SegmentGoneError, StorageError, StoragePathError
from pulsar_on_spark.model.ids import FileId, PathId
from pulsar_on_spark.storage.files import OS_FILES, FileOps, tmp_name, write_synced
from pulsar_on_spark.storage.loss import CopyVerdict, in_words, summary, unreachable, verdict_on
from pulsar_on_spark.storage.storage_path import StoragePath


def restore_copy(
    file: FileRecord,
    sources: Sequence[StoragePath],
    target: StoragePath,
    pace: Callable[[int], None] = lambda size_bytes: None,
    files: FileOps = OS_FILES,
) -> None:
    """Write a copy of `file` to `target`, replacing any copy there. Concurrent calls for one target are safe.

    Args:
        file: The file's record.
        sources: Paths that may have copies, the best first; the target itself may be among them.
        target: The path that gets the copy.
        pace: Called with the size of each tile in bytes, to limit the speed; its errors end the work.
        files: The operating system.

    Raises:
        SegmentGoneError: no source has the file, or the tiles that are needed.
        CopiesUnreachableError: a tile cannot be read from any source now, but an unreachable source may have it.
        CorruptSegmentError: no source has an undamaged copy of a tile; the error names each source's problem.
        StoragePathError: the target is not the path in the root's metadata, cannot be written, or returns other bytes.
    """
    with ExitStack() as stack:
        tiles = _Tiles(file, sources, files, stack)
        try:
            _write(file, tiles, target, pace, files)
        except OSError as error:
            raise StoragePathError(
                f"A copy of file {file.file_id} cannot be written to {target} ({error}): check its disk."
            ) from error
    try:
        verify_file(file, target, files)
    except CorruptSegmentError as error:
        # The sources gave every tile, so the target failed and nothing is lost.
        raise StoragePathError(
            f"The copy of file {file.file_id} that was written to {target} is bad ({error}): check its disk."
        ) from error


def set_aside(file_id: FileId, path: StoragePath, files: FileOps = OS_FILES) -> list[tuple[Path, Path]]:
    """Rename a copy's files durably; returns (final name, new name) pairs for `put_back` and `delete_aside`.

    Raises:
        StoragePathError: the directory is not this path, or a rename failed.
    """
    path.check(files)
    moved = []
    try:
        # The segment goes first: a segment without its sidecar would look damaged, a sidecar alone looks absent.
        for final in (path.segment_file(file_id), path.sidecar_file(file_id)):
            aside = tmp_name(final)
            with suppress(FileNotFoundError):
                files.rename(final, aside)
                moved.append((final, aside))
        if moved:
            files.fsync_directory(moved[0][0].parent)
    except OSError as error:
        raise StoragePathError(
            f"The copy of file {file_id} on {path} cannot be renamed ({error}): check its disk."
        ) from error
    return moved


def put_back(moved: Sequence[tuple[Path, Path]], files: FileOps = OS_FILES) -> None:
    """Undo `set_aside` (raises `OSError`)."""
    for final, aside in reversed(moved):
        files.rename(aside, final)
        files.fsync_directory(final.parent)


def delete_aside(moved: Sequence[tuple[Path, Path]], files: FileOps = OS_FILES) -> None:
    """Delete the files that `set_aside` moved (raises `OSError`). A power cut may bring them back, as garbage."""
    for _, aside in moved:
        with suppress(FileNotFoundError):
            files.unlink(aside)


class _Tiles:
    """Reader of a file's tiles from any copy that has them."""

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
        """Read an undamaged tile; the copy that has it is tried first for the next tile."""
        for source, copy in tuple(self._copies):
            try:
                return copy.read_tile(number)
            except (CorruptSegmentError, StoragePathError) as error:
                self._causes[source.path_id] = error
                # The copy may still have other tiles: it goes to the end of the list.
                self._copies.remove((source, copy))
                self._copies.append((source, copy))
        raise self._loss()

    def _loss(self) -> StorageError:
        causes = in_words(self._causes)
        verdict = summary(verdict_on(cause, self._sources[path_id]) for path_id, cause in self._causes.items())
        if verdict is CopyVerdict.UNREACHABLE:
            return unreachable(f"File {self._file.file_id}, to be restored from its copies,", causes)
        return (SegmentGoneError if verdict is CopyVerdict.GONE else CorruptSegmentError)(
            f"File {self._file.file_id} cannot be restored from its copies, bring one back from a backup: {causes}"
        )


def _write(file: FileRecord, tiles: _Tiles, target: StoragePath, pace: Callable[[int], None], files: FileOps) -> None:
    file_id = FileId(file.file_id)
    final, sidecar = target.segment_file(file_id), target.sidecar_file(file_id)
    target.check(files)
    target.make_segment_directory(file_id, files)
    tmp, sidecar_tmp = tmp_name(final), tmp_name(sidecar)
    try:
        _stage(tiles, tmp, pace, files)
        if file.sidecar_length:
            write_synced(files, sidecar_tmp, encode_sidecar(tiles.table))
        replaced = set_aside(file_id, target, files)
        # Each rename is synced: after a crash, there must be no segment without its sidecar.
        if file.sidecar_length:
            files.rename(sidecar_tmp, sidecar)
            files.fsync_directory(sidecar.parent)
        files.rename(tmp, final)
        files.fsync_directory(final.parent)
    except BaseException:
        for leftover in (tmp, sidecar_tmp):
            with suppress(OSError):
                files.unlink(leftover)
        raise
    delete_aside(replaced, files)


def _stage(tiles: _Tiles, tmp: Path, pace: Callable[[int], None], files: FileOps) -> None:
    fd = files.create(tmp)
    try:
        unsynced_bytes = 0
        for number in range(len(tiles.table.lengths)):
            tile = tiles.read(number)
            files.write(fd, bytes(tile))
            unsynced_bytes += len(tile)
            if unsynced_bytes >= SYNC_BYTES:
                files.fdatasync(fd)
                unsynced_bytes = 0
            pace(len(tile))
        files.fdatasync(fd)
    finally:
        files.close(fd)
