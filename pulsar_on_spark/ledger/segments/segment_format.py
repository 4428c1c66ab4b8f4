"""Format of a sealed segment: an Arrow IPC file in which every byte belongs to one checksummed tile.

Arrow has no checksums and reads most flipped bits silently, so each range of the file has a CRC32C that is checked
before Arrow sees the bytes. Tile 0 is the magic and the schema message. One tile for each record batch follows. The
last tile is everything from the last batch to the end of the file (end-of-stream mark, footer, magic).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa
from crc32c import crc32c

from pulsar_on_spark.model.errors import CorruptSegmentError, FormatVersionError, InvalidArgumentError
from pulsar_on_spark.model.ids import WriteId

SEGMENT_FORMAT = 2
"""Format version. 1: a batch belongs to one segment. 2: segments of several ledgers may share it (docs/adr/0008)."""
FORMAT_KEY = b"pulsarpy.segment_format"
INLINE_BATCHES = 16
"""Maximum number of batches for which the metadata record lists the tiles; above it, a sidecar file lists them."""

SEGMENT_SCHEMA = pa.schema(
    [
        ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()),
        ("batch_index", pa.int32()),
        ("publish_time", pa.timestamp("ms", "UTC")),
        ("event_time", pa.timestamp("ms", "UTC")),
        ("deliver_at_time", pa.timestamp("ms", "UTC")),
        ("producer_name", pa.string()),
        ("sequence_id", pa.int64()),
        ("key", pa.binary()),
        ("key_b64", pa.bool_()),
        ("ordering_key", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("value", pa.binary()),
        ("schema_version", pa.binary()),
        ("codec", pa.int8()),
        ("entry_metadata", pa.binary()),
        ("message_metadata", pa.binary()),
        ("raw", pa.binary()),
    ],
    metadata={FORMAT_KEY: str(SEGMENT_FORMAT).encode()},
)
"""The columns of a segment, with one row per message."""

STREAM_OFFSET = 8
"""Offset of the Arrow stream in the file: after the magic, padded to 8 bytes."""


def check_segment_format(schema: pa.Schema, name: str) -> None:
    """Refuse a segment that a newer version wrote; `name` is the file's name for errors.

    Raises:
        FormatVersionError: the format version is above `SEGMENT_FORMAT`.
        CorruptSegmentError: the schema is not a segment's.
    """
    version = (schema.metadata or {}).get(FORMAT_KEY, b"")
    if not version.isdigit():
        raise CorruptSegmentError(f"{name} has no segment format version in its schema: it is not a segment file.")
    if int(version) > SEGMENT_FORMAT:
        raise FormatVersionError(
            f"{name} has segment format {int(version)}, this pulsar_on_spark reads up to {SEGMENT_FORMAT}: upgrade it."
        )


@dataclass(frozen=True, slots=True)
class Tiles:
    """The byte ranges that tile a segment file, in file order: lengths in bytes and CRC32Cs."""

    lengths: tuple[int, ...]
    crcs: tuple[int, ...]

    @property
    def batches(self) -> int:
        """The number of record batches (the first tile is the schema, the last the footer)."""
        return len(self.lengths) - 2

    def offsets(self) -> tuple[int, ...]:
        """Return the start of each tile in the file, and the end of the last one."""
        return (0, *accumulate(self.lengths))

    def problem(self, length: int, batches: int) -> str | None:
        """Return how these tiles contradict a file's length in bytes or number of batches; None if they do not.

        The result is a predicate for the sentence of an error.
        """
        if len(self.crcs) != len(self.lengths):
            return f"has {len(self.crcs)} checksums for {len(self.lengths)} tiles"
        if self.batches != batches:
            return f"has tiles for {self.batches} batches instead of {batches}"
        if sum(self.lengths) != length:
            return f"has tiles for {sum(self.lengths)} bytes instead of {length}"
        return None


class SegmentEncoder:
    """Encoder of record batches as tiles of one segment file, with zstd level 1 for each Arrow buffer.

    The file is the concatenation of `header`, the tiles from `encode` and the tile from `finish`.
    """

    def __init__(self) -> None:
        options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1), use_threads=False)
        self.header = _file_header()
        self._sink = _Pieces()
        self._writer = pa.ipc.new_file(self._sink, SEGMENT_SCHEMA, options=options)
        self._started = False

    def encode(self, batch: pa.RecordBatch) -> bytes:
        """Encode one batch as a tile.

        Raises:
            InvalidArgumentError: the batch is not in `SEGMENT_SCHEMA`.
        """
        if not batch.schema.equals(SEGMENT_SCHEMA):
            raise InvalidArgumentError(
                f"A segment cannot hold a batch with columns {batch.schema.names}: give batches in SEGMENT_SCHEMA."
            )
        self._writer.write_batch(batch)
        return self._take()

    def finish(self) -> bytes:
        """Encode the last tile (end-of-stream mark, footer, magic) and close the encoder."""
        self._writer.close()
        return self._take()

    def _take(self) -> bytes:
        tile = self._sink.take()
        if self._started:
            return tile
        # Arrow writes magic and schema together with the first batch or the footer.
        assert tile.startswith(self.header)
        self._started = True
        return tile[len(self.header) :]


class _Pieces:
    """Sink for Arrow that keeps written bytes until `take`."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, piece: bytes) -> int:
        self._pieces.append(piece)
        return len(piece)

    def take(self) -> bytes:
        content = b"".join(self._pieces)
        self._pieces.clear()
        return content

    def flush(self) -> None:
        """Do nothing: no bytes are buffered elsewhere."""

    def close(self) -> None:
        """Do nothing: the encoder takes the pieces after Arrow has closed the sink."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


def _file_header() -> bytes:
    """Return the start of every segment file: magic and schema message (continuation mark, length, message)."""
    sink = _Pieces()
    pa.ipc.new_file(sink, SEGMENT_SCHEMA).close()
    empty = sink.take()
    (message_bytes,) = struct.unpack_from("<i", empty, STREAM_OFFSET + 4)
    return empty[: STREAM_OFFSET + 8 + message_bytes]


_SIDECAR_MAGIC = b"PSCR"
_SIDECAR_FORMAT = 1
_SIDECAR_HEADER = struct.Struct("<4sHxxI")
"""Magic, format version, two zero bytes, number of tiles; all little-endian. Lengths (u64) and CRC32Cs (u32) follow."""


def encode_sidecar(tiles: Tiles) -> bytes:
    """Encode the sidecar file of a segment with many batches."""
    count = len(tiles.lengths)
    return (
        _SIDECAR_HEADER.pack(_SIDECAR_MAGIC, _SIDECAR_FORMAT, count)
        + struct.pack(f"<{count}Q", *tiles.lengths)
        + struct.pack(f"<{count}I", *tiles.crcs)
    )


def decode_sidecar(content: bytes, length: int, crc: int, name: str) -> Tiles:
    """Decode a sidecar, after comparing it with the length and CRC32C in the file's record; `name` is for errors.

    Raises:
        CorruptSegmentError: the length or the checksum differs.
        FormatVersionError: a newer version wrote the sidecar.
    """
    if len(content) != length:
        raise CorruptSegmentError(f"{name} has {len(content)} bytes instead of {length}.")
    if crc32c(content) != crc:
        raise CorruptSegmentError(f"{name} fails its checksum.")
    magic, version, count = _SIDECAR_HEADER.unpack_from(content)
    if version > _SIDECAR_FORMAT:
        raise FormatVersionError(
            f"{name} has sidecar format {version}, this pulsar_on_spark reads up to {_SIDECAR_FORMAT}: upgrade it."
        )
    if magic != _SIDECAR_MAGIC or length != _SIDECAR_HEADER.size + 12 * count:
        raise CorruptSegmentError(f"{name} is not a sidecar file.")
    lengths = struct.unpack_from(f"<{count}Q", content, _SIDECAR_HEADER.size)
    crcs = struct.unpack_from(f"<{count}I", content, _SIDECAR_HEADER.size + 8 * count)
    return Tiles(lengths, crcs)


def group_end(tiles: Tiles, first_batch: int, end: int, max_bytes: int) -> int:
    """Return the end of the group of batches that begins at `first_batch`, which is at most `end`.

    The group has at most `max_bytes` encoded bytes, but at least one batch.
    """
    size = tiles.lengths[first_batch + 1]
    for batch in range(first_batch + 1, end):
        size += tiles.lengths[batch + 1]
        if size > max_bytes:
            return batch
    return end


def write_id_of(file_id: str) -> WriteId:
    """Return the write id that a file's id contains."""
    return WriteId(file_id.partition("-")[0])
