"""Reader of a segment file's record batches, from any good copy; every byte is checked before Arrow parses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import pyarrow as pa
from crc32c import crc32c

from pulsar_on_spark.ledger.segments.segment_format import (
    SEGMENT_SCHEMA,
    STREAM_OFFSET,
    Tiles,
    check_segment_format,
    decode_sidecar,
    group_end,
)
from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.errors import (
    CorruptSegmentError,
    InvalidArgumentError,
    SegmentGoneError,
    StorageError,
    StoragePathError,
)
from pulsar_on_spark.model.ids import FileId, PathId
from pulsar_on_spark.storage.copies import CopiesInTurn, NoGoodCopyError
from pulsar_on_spark.storage.files import OS_FILES, FileOps, read_file
from pulsar_on_spark.storage.loss import CopyVerdict, unreachable
from pulsar_on_spark.storage.storage_path import PathTable, StoragePath

GROUP_BYTES = 2 * 1024 * 1024
"""Encoded bytes of a group, which is read and checked together: many enough to amortize its fixed cost, few enough to
stay in the processor's cache."""

_VERIFY_BYTES = 1024 * 1024


def read_batches(
    file: FileRecord,
    paths: PathTable,
    numbers: Sequence[int],
    columns: Sequence[str] | None,
    on_bad_copy: Callable[[PathId, str], None],
    files: FileOps = OS_FILES,
    at_stake: str = "",
) -> Iterator[pa.RecordBatch]:
    """Read batches of a file from one copy, and continue with another if it is bad.

    Only the wanted columns are decompressed. Memory holds one group of encoded batches and one decoded batch.

    Args:
        file: The file's record.
        paths: Returns the root's storage paths.
        numbers: The batches' numbers, ascending; adjacent ones are read together.
        columns: Names from `SEGMENT_SCHEMA`; the batches have them in the order of that schema. None for all.
        on_bad_copy: Called with path id and reason, once for each copy that is bad, missing or unreachable while
            another copy is good; if no copy is good, only for the damaged copies.
        files: The operating system.
        at_stake: The content of the batches (topic, ledger, entries), for the error if no copy is good.

    Raises:
        SegmentGoneError: some copies are gone and the others bad. The file may have been merged: look up where its
            entries are now.
        CopiesUnreachableError: no good copy can be reached now, but an unreachable one may be good
            (`storage/loss.py`).
        CorruptSegmentError: every copy is damaged; the error names the file, its content and each copy's problem.
        FormatVersionError: a newer version wrote the file.
        InvalidArgumentError: the file has no such batches, or segments have no such columns.
    """
    fields = _field_indexes(columns)
    if not numbers:
        return
    if numbers[0] < 0 or numbers[-1] >= file.batches or any(after <= before for before, after in pairwise(numbers)):
        raise InvalidArgumentError(
            f"Segment file {file.file_id} has {file.batches} batches: {_named(numbers)} are not rising numbers in it."
        )
    options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
    what = f"batches {_named(numbers)}" + (f" ({at_stake})" if at_stake else "")
    groups = _Groups(file, paths, files, on_bad_copy, what)
    try:
        for next_batch, end in adjacent(numbers):
            while next_batch < end:
                count, stream = groups.read(next_batch, end)
                yield from _decode(stream, count, options, f"Segment file {file.file_id}")
                next_batch += count
    finally:
        groups.close()


def adjacent(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Group ascending numbers into ranges [first, end)."""
    first = end = None
    for number in numbers:
        if first is None or number != end:
            if first is not None and end is not None:
                yield first, end
            first = number
        end = number + 1
    if first is not None and end is not None:
        yield first, end


def _named(numbers: Sequence[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}"


def verify_file(
    file: FileRecord,
    path: StoragePath,
    files: FileOps = OS_FILES,
    pace: Callable[[int], None] = lambda size_bytes: None,
) -> None:
    """Check every byte of one copy, sidecar and footer included.

    Args:
        file: The file's record.
        path: The copy's storage path.
        files: The operating system.
        pace: Called with the size of each piece that was read in bytes, to limit the speed.

    Raises:
        SegmentGoneError: the path is the right one and has no such file.
        CorruptSegmentError: the copy is damaged.
        StoragePathError: the path or the copy cannot be examined now; the copy may be good.
        FormatVersionError: a newer version wrote the sidecar.
    """
    copy = OpenCopy(file, path, files)
    try:
        buffer = memoryview(bytearray(min(_VERIFY_BYTES, file.length)))
        offset = 0
        for number, (length, crc) in enumerate(zip(copy.tiles.lengths, copy.tiles.crcs, strict=True)):
            value, end = 0, offset + length
            while offset < end:
                piece = buffer[: min(_VERIFY_BYTES, end - offset)]
                copy.read_into(offset, piece)
                value = crc32c(piece, value)
                offset += len(piece)
                pace(len(piece))
            if value != crc:
                raise CorruptSegmentError(f"{copy.name} fails the checksum of tile {number}.")
    finally:
        copy.close()


class OpenCopy:
    """An open copy whose identity, length and table of tiles have been checked.

    Raises:
        SegmentGoneError, CorruptSegmentError, StoragePathError, FormatVersionError: as `verify_file`.
    """

    def __init__(self, file: FileRecord, path: StoragePath, files: FileOps) -> None:
        self._files = files
        self._path = path
        location = path.segment_file(FileId(file.file_id))
        self.name = f"Segment file {location}"
        path.check(files)
        with _examining(self.name, path, files):
            self._fd = files.open(location)
        try:
            self.tiles = self._read_tiles(file, path)
        except BaseException:
            self.close()
            raise
        self._offsets = self.tiles.offsets()

    def read_group(self, batches: range) -> pa.Buffer:
        """Read and check the Arrow stream of the schema and these batches."""
        schema_bytes = self.tiles.lengths[0]
        start, end = self._offsets[batches.start + 1], self._offsets[batches.stop + 1]
        buffer = pa.allocate_buffer(schema_bytes + end - start)
        view = memoryview(buffer).cast("B")
        self.read_into(0, view[:schema_bytes])
        self.read_into(start, view[schema_bytes:])
        self._check(0, view[:schema_bytes])
        position = schema_bytes
        for batch in batches:
            length = self.tiles.lengths[batch + 1]
            self._check(batch + 1, view[position : position + length])
            position += length
        return buffer.slice(STREAM_OFFSET)

    def read_tile(self, tile: int) -> bytearray:
        """Read and check one tile.

        Raises:
            CorruptSegmentError: the tile is damaged.
            StoragePathError: the tile cannot be read now.
        """
        content = bytearray(self.tiles.lengths[tile])
        self.read_into(self._offsets[tile], memoryview(content))
        self._check(tile, memoryview(content))
        return content

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` from the file (raises as `read_tile`)."""
        with _examining(self.name, self._path, self._files):
            count = self._files.read_into(self._fd, offset, target)
        if count != len(target):
            raise CorruptSegmentError(f"{self.name} ends at byte {offset + count}.")

    def close(self) -> None:
        """Close the file."""
        self._files.close(self._fd)

    def _check(self, tile: int, content: memoryview) -> None:
        if crc32c(content) != self.tiles.crcs[tile]:
            raise CorruptSegmentError(f"{self.name} fails the checksum of tile {tile}.")

    def _read_tiles(self, file: FileRecord, path: StoragePath) -> Tiles:
        with _examining(self.name, path, self._files):
            size_bytes = self._files.size(self._fd)
        if size_bytes != file.length:
            raise CorruptSegmentError(f"{self.name} has {size_bytes} bytes instead of {file.length}.")
        if not file.sidecar_length:
            tiles = Tiles(file.tile_lengths, file.tile_crcs)
        else:
            location = path.sidecar_file(FileId(file.file_id))
            with _examining(f"Sidecar file {location}", path, self._files):
                content = read_file(self._files, location)
            tiles = decode_sidecar(content, file.sidecar_length, file.sidecar_crc, f"Sidecar file {location}")
        if problem := tiles.problem(file.length, file.batches):
            raise CorruptSegmentError(f"{self.name} {problem}.")
        return tiles


class _Groups:
    """Reader of a file's groups of batches, from its copies in turn.

    All readers start with the first copy, so that they share its cached pages. Its path depends on the file's id, which
    spreads the load.
    """

    def __init__(
        self,
        file: FileRecord,
        paths: PathTable,
        files: FileOps,
        on_bad_copy: Callable[[PathId, str], None],
        what: str,
    ) -> None:
        self._file = file
        self._on_bad_copy = on_bad_copy
        self._what = what
        order = [PathId(path_id) for path_id in file.copies]
        self._copies = CopiesInTurn(order, paths, lambda path: OpenCopy(file, path, files))
        self._reported = 0

    def read(self, first: int, end: int) -> tuple[int, pa.Buffer]:
        """Read the next group, from batch `first`; returns its number of batches and their checked Arrow stream."""

        def read_from(copy: OpenCopy) -> tuple[int, pa.Buffer]:
            group = range(first, group_end(copy.tiles, first, end, GROUP_BYTES))
            return len(group), copy.read_group(group)

        try:
            count_and_stream = self._copies.read(read_from)
        except NoGoodCopyError:
            raise self._loss() from None
        self._report()
        return count_and_stream

    def close(self) -> None:
        """Close the copy in use."""
        self._copies.close()

    def _report(self, *, only: CopyVerdict | None = None) -> None:
        """Report bad copies, or `only` those with this verdict."""
        # Called only when another copy proved good or all failed: a file that is missing everywhere was deleted on
        # purpose, and unreachable copies often have one common cause.
        problems = list(self._copies.problems.items())[self._reported :]
        for path_id, error in problems:
            if only in (None, self._copies.verdict(path_id)):
                self._on_bad_copy(path_id, str(error))
        self._reported += len(problems)

    def _loss(self) -> StorageError:
        name, causes = f"Segment file {self._file.file_id}", self._copies.in_words()
        verdict = self._copies.summary()
        self._report(only=CopyVerdict.DAMAGED)
        if verdict is CopyVerdict.UNREACHABLE:
            return unreachable(f"{name} with {self._what}", causes)
        if verdict is CopyVerdict.GONE:
            return SegmentGoneError(f"{name} has no good copy left: look up where {self._what} are now. {causes}")
        return CorruptSegmentError(
            f"{name} has no good copy left for {self._what}: restore one from a backup. {causes}"
        )


def _field_indexes(columns: Sequence[str] | None) -> list[int] | None:
    if columns is None:
        return None
    if unknown := sorted(set(columns) - set(SEGMENT_SCHEMA.names)):
        raise InvalidArgumentError(f"Segments have no column {unknown[0]!r}: take some of {SEGMENT_SCHEMA.names}.")
    if not columns:
        raise InvalidArgumentError("Reading a segment needs at least one column: name the cheapest, such as entry_id.")
    return sorted(SEGMENT_SCHEMA.get_field_index(name) for name in set(columns))


def _decode(stream: pa.Buffer, count: int, options: pa.ipc.IpcReadOptions, name: str) -> Iterator[pa.RecordBatch]:
    with _parsing(name):
        reader = pa.ipc.open_stream(pa.BufferReader(stream), options=options)
    check_segment_format(reader.schema, name)
    for _ in range(count):
        with _parsing(name):
            batch = reader.read_next_batch()
        yield batch


@contextmanager
def _examining(name: str, path: StoragePath, files: FileOps) -> Iterator[None]:
    """Translate the operating system's errors into those of a copy that is gone or unreachable."""
    try:
        yield
    except FileNotFoundError as error:
        path.check(files)  # raises if its disk has just gone away: the file may still exist then
        raise SegmentGoneError(f"{name} is missing.") from error
    except OSError as error:
        raise StoragePathError(
            f"{name} cannot be read ({error}): check its disk, and the limits of this process."
        ) from error


@contextmanager
def _parsing(name: str) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise  # Arrow's MemoryError is an ArrowException, too, but does not mean damage
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise CorruptSegmentError(
            f"{name} passes its checksums and cannot be parsed ({error}): report this as a defect."
        ) from error
