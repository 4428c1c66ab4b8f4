"""Reader of a segment file's record batches, from any good copy; every byte is checked before Arrow parses it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
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
)
from pulsar_on_spark.model.ids import PathId, SegmentName
from pulsar_on_spark.storage.copies import CopiesInTurn, NoGoodCopyError
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.storage.loss import CopyVerdict, unreachable
from pulsar_on_spark.storage.storage_path import PathTable, StoragePath


def read_batches(
    file: FileRecord,
    paths: PathTable,
    numbers: Sequence[int],
    columns: Sequence[str] | None,
    on_bad_copy: Callable[[PathId, str], None],
    files: FileOps = OS_FILES,
    at_stake: str = "",
) -> Generator[pa.RecordBatch]:
    """Read batches of a file from one copy, and continue with another copy if that fails.

    Only the wanted columns are decompressed. Memory holds one group of encoded batches and one decoded batch.

    Args:
        file: The file's record.
        paths: Returns the root's storage paths.
        numbers: The batches' numbers, ascending; adjacent ones are read together.
        columns: Names from `SEGMENT_SCHEMA`, or None for all; the batches have them in the order of the schema.
        on_bad_copy: Called with path id and reason, once for each reported copy. If a good copy was found, all damaged,
            missing and unreachable copies before it are reported; if none was found, only the damaged ones.
        files: The file operations of the operating system.
        at_stake: The content of the batches (topic, ledger, entries), named by the error if no copy is good.

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
            f"Segment file {file.file_id} has {file.batches} batches: give rising numbers below {file.batches} "
            f"instead of {_named(numbers)}."
        )
    options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
    what = f"batches {_named(numbers)}" + (f" ({at_stake})" if at_stake else "")
    spans = list(adjacent(numbers))
    groups = _Groups(file, paths, files, on_bad_copy, what, spans)
    try:
        for next_batch, end in spans:
            while next_batch < end:
                count, stream = groups.read(next_batch, end)
                yield from _decode(stream, count, options, f"Segment file {file.file_id}")
                next_batch += count
    finally:
        groups.close()


def adjacent(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges [first, end) of adjacent numbers that ascending numbers consist of."""
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
    name: SegmentName | None = None,
) -> None:
    """Check every byte of one copy, sidecar and footer included.

    Args:
        file: The file's record.
        path: The copy's storage path.
        files: The file operations of the operating system.
        pace: Called with the size of each piece that was read in bytes, to limit the speed.
        name: The copy's name, if the record does not name it yet; None for the name in the record.

    Raises:
        SegmentGoneError: the path is intact and has no such file.
        CorruptSegmentError: the copy is damaged.
        StoragePathError: the path or the copy cannot be examined now; the copy may be good.
        FormatVersionError: a newer version wrote the sidecar.
    """
    copy = OpenCopy(file, path, files, name)
    try:
        checked = _TileChecks(copy.tiles, copy.name)
        step = copy.group_bytes
        ranges = [(start, min(start + step, file.length)) for start in range(0, file.length, step)]
        copy.expect(ranges)
        buffer = memoryview(bytearray(min(step, file.length)))
        for start, end in ranges:
            piece = buffer[: end - start]
            copy.read_into(start, piece)
            checked.add(piece)
            pace(len(piece))
    finally:
        copy.close()


class _TileChecks:
    """Check of a file's tiles against their checksums, while the file is read from its beginning."""

    def __init__(self, tiles: Tiles, name: str) -> None:
        self._tiles = tiles
        self._name = name
        self._number = 0
        self._left = tiles.lengths[0]
        self._value = 0

    def add(self, piece: memoryview) -> None:
        """Add the next bytes.

        Raises:
            CorruptSegmentError: a tile that these bytes complete is damaged.
        """
        while piece:
            part, piece = piece[: self._left], piece[self._left :]
            self._value = crc32c(part, self._value)
            self._left -= len(part)
            while self._left == 0 and self._number < len(self._tiles.lengths):
                if self._value != self._tiles.crcs[self._number]:
                    raise CorruptSegmentError(f"{self._name} fails the checksum of tile {self._number}.")
                self._number, self._value = self._number + 1, 0
                self._left = self._tiles.lengths[self._number] if self._number < len(self._tiles.lengths) else 0


class OpenCopy:
    """An open copy whose identity, table of tiles and length (unless only reading shows it) have been checked.

    Args:
        file: The file's record.
        path: The copy's storage path.
        files: The file operations of the operating system.
        name: The copy's name, if the record does not name it yet; None for the name in the record.

    Raises:
        SegmentGoneError, CorruptSegmentError, StoragePathError, FormatVersionError: as `verify_file`.
    """

    def __init__(self, file: FileRecord, path: StoragePath, files: FileOps, name: SegmentName | None = None) -> None:
        self._source = path.open_segment(name or file.names[path.path_id], files)
        self.name = f"Segment file {self._source.location}"
        try:
            self.tiles = self._read_tiles(file)
        except BaseException:
            self.close()
            raise
        self._offsets = self.tiles.offsets()
        self._schema: bytes | None = None

    @property
    def group_bytes(self) -> int:
        """The number of bytes to read at once."""
        return self._source.group_bytes

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Announce the ranges [start, end) that are read next, in this order."""
        self._source.expect(ranges)

    def expect_groups(self, spans: Sequence[tuple[int, int]]) -> None:
        """Announce the schema and the ranges of batches [first, end), read next group by group, in this order."""
        groups = [group for first, end in spans for group in self._groups(first, end)]
        self.expect([(0, self.tiles.lengths[0]), *(self._range(group) for group in groups)])

    def next_group(self, first: int, end: int) -> range:
        """Return the batches of the group that begins at `first`; the group ends at `end` or before."""
        return range(first, group_end(self.tiles, first, end, self.group_bytes))

    def read_group(self, batches: range) -> pa.Buffer:
        """Read and check the Arrow stream of the schema and these batches."""
        if self._schema is None:
            self._schema = bytes(self.read_tile(0))
        position = len(self._schema)
        start, end = self._range(batches)
        buffer = pa.allocate_buffer(position + end - start)
        view = memoryview(buffer).cast("B")
        view[:position] = self._schema
        self.read_into(start, view[position:])
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
        """Fill `target` with the file's bytes from `offset` on (raises as `read_tile`)."""
        count = self._source.read_into(offset, target)
        if count != len(target):
            raise CorruptSegmentError(f"{self.name} ends at byte {offset + count}.")

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def _groups(self, first: int, end: int) -> Iterator[range]:
        while first < end:
            group = self.next_group(first, end)
            yield group
            first = group.stop

    def _range(self, batches: range) -> tuple[int, int]:
        return self._offsets[batches.start + 1], self._offsets[batches.stop + 1]

    def _check(self, tile: int, content: memoryview) -> None:
        if crc32c(content) != self.tiles.crcs[tile]:
            raise CorruptSegmentError(f"{self.name} fails the checksum of tile {tile}.")

    def _read_tiles(self, file: FileRecord) -> Tiles:
        size_bytes = self._source.size_bytes()
        if size_bytes not in (None, file.length):
            raise CorruptSegmentError(f"{self.name} has {size_bytes} bytes instead of {file.length}.")
        if not file.sidecar_length:
            tiles = Tiles(file.tile_lengths, file.tile_crcs)
        else:
            name = f"Sidecar of segment file {self._source.location}"
            tiles = decode_sidecar(self._source.sidecar(), file.sidecar_length, file.sidecar_crc, name)
        if problem := tiles.problem(file.length, file.batches):
            raise CorruptSegmentError(f"{self.name} {problem}.")
        return tiles


class _Groups:
    """Reader of a file's groups of batches. If a copy cannot be read, the next copy is used.

    All readers start with the first copy, so that they share its cached pages. The path of the first copy depends on
    the file's id, which spreads the load.
    """

    def __init__(
        self,
        file: FileRecord,
        paths: PathTable,
        files: FileOps,
        on_bad_copy: Callable[[PathId, str], None],
        what: str,
        spans: Sequence[tuple[int, int]],
    ) -> None:
        self._file = file
        self._on_bad_copy = on_bad_copy
        self._what = what
        self._spans = spans
        self._announced: OpenCopy | None = None
        order = [PathId(path_id) for path_id in file.copies]
        self._copies = CopiesInTurn(order, paths, lambda path: OpenCopy(file, path, files))
        self._reported = 0

    def read(self, first: int, end: int) -> tuple[int, pa.Buffer]:
        """Read the group that begins at batch `first`. Return its number of batches and their checked Arrow stream."""

        def read_from(copy: OpenCopy) -> tuple[int, pa.Buffer]:
            if copy is not self._announced:
                copy.expect_groups([(max(begin, first), until) for begin, until in self._spans if until > first])
                self._announced = copy
            group = copy.next_group(first, end)
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
        """Pass each copy that failed since the last report to `on_bad_copy`.

        With `only`, copies with another verdict are left out; None leaves out none.
        """
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
    """Return the indexes of these columns in `SEGMENT_SCHEMA`, ascending; None means all columns in both cases."""
    if columns is None:
        return None
    if unknown := sorted(set(columns) - set(SEGMENT_SCHEMA.names)):
        raise InvalidArgumentError(f"Segments have no column {unknown[0]!r}: use columns of {SEGMENT_SCHEMA.names}.")
    if not columns:
        raise InvalidArgumentError("Reading a segment needs at least one column: name a cheap one, such as entry_id.")
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
def _parsing(name: str) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise  # Arrow's MemoryError is an ArrowException, too, but does not mean damage
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise CorruptSegmentError(
            f"{name} passes its checksums and cannot be parsed ({error}): report this as a defect."
        ) from error
