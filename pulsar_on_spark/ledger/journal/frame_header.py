"""A frame's header, which is verified before anything else is read, and the chain that headers form.

Everything is little-endian. Each header names the CRC of the frame before, so that frames form a chain over all files
of the log: a stale block does not fit into the chain even if its own checksums are good. A length is used only after
its header's checksum was verified. `frames` describes the rest of a frame.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from crc32c import crc32c

from pulsar_on_spark.ledger.journal.log import FrameKind, FrameNumber
from pulsar_on_spark.model.errors import CorruptJournalError, FormatVersionError

FRAME_FORMAT = 1
MAGIC = b"PSJF"
MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Limit of a frame's length: a group of entries closes below it, and a reader allocates no more."""

_HEADER = struct.Struct("<4sHBxIIQqIIIIxxxxI")
"""Magic, format version, kind, the frame's bytes, ledgers in the directory, number, LAC, rows of the batch, the
directory's CRC, the content's CRC (with padding), the CRC of the frame before, the CRC of the header up to here.

Magic, version, number and this CRC stay where they are in every version."""

HEADER_BYTES = _HEADER.size
_CRC_AT = HEADER_BYTES - 4
_NUMBER_AT = 16
_KINDS = frozenset(map(int, FrameKind))
DIRECTORY_ITEM_BYTES = 32
"""The length of a ledger's item in the directory."""


@dataclass(frozen=True, slots=True)
class ChainPoint:
    """A position between two frames of a log: the next frame's number and the previous frame's CRC."""

    next_number: FrameNumber
    crc: int


@dataclass(frozen=True, slots=True)
class ScanPosition:
    """The offset of the next frame in a file, and the position in the chain that the frame must continue."""

    offset: int
    chain: ChainPoint


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """A frame's header.

    `lac` is the last frame that was acknowledged when this frame was sent, or -1. `size_bytes` includes header,
    directory and padding. `runs` is the number of ledgers in the directory. `crc` covers the whole frame.
    """

    number: FrameNumber
    kind: FrameKind
    lac: FrameNumber
    size_bytes: int
    runs: int
    rows: int
    directory_crc: int
    content_crc: int
    previous_crc: int
    crc: int

    @property
    def head_bytes(self) -> int:
        """The length of header and directory in bytes."""
        return HEADER_BYTES + DIRECTORY_ITEM_BYTES * self.runs

    @property
    def after(self) -> ChainPoint:
        """The position after the frame in the chain."""
        return ChainPoint(self.number + 1, self.crc)


def pack_header(
    kind: FrameKind,
    at: ChainPoint,
    lac: FrameNumber,
    rows: int,
    directory: bytes,
    content_bytes: int,
    content_crc: int,
) -> tuple[bytes, FrameHeader]:
    """Make the header of a frame at a position in the log. Return its bytes, and the same header as a value.

    Args:
        kind: The frame's kind.
        at: The frame's position in the chain.
        lac: The last acknowledged frame, or -1.
        rows: The number of rows of the frame's batch.
        directory: The encoded directory.
        content_bytes: The size of the content in bytes, padding included.
        content_crc: The CRC32C of the content, padding included.
    """
    runs, directory_crc = len(directory) // DIRECTORY_ITEM_BYTES, crc32c(directory)
    size_bytes = HEADER_BYTES + len(directory) + content_bytes
    assert size_bytes <= MAX_FRAME_BYTES
    assert lac < at.next_number
    packed = _HEADER.pack(
        *(MAGIC, FRAME_FORMAT, kind, size_bytes, runs, at.next_number, lac, rows),
        *(directory_crc, content_crc, at.crc, 0),
    )[:_CRC_AT]
    crc = crc32c(packed)
    header = FrameHeader(at.next_number, kind, lac, size_bytes, runs, rows, directory_crc, content_crc, at.crc, crc)
    return packed + crc.to_bytes(4, "little"), header


def is_intact(header: memoryview) -> bool:
    """Return True if `HEADER_BYTES` bytes have the magic and the checksum of a header, of any format version."""
    return header[:4] == MAGIC and crc32c(header[:_CRC_AT]) == int.from_bytes(header[_CRC_AT:], "little")


def number_in(header: memoryview) -> FrameNumber:
    """Read the frame's number from an intact header of any format version."""
    return int.from_bytes(header[_NUMBER_AT : _NUMBER_AT + 8], "little")


def parse_header(header: memoryview, name: str) -> FrameHeader:
    """Parse `HEADER_BYTES` bytes; `name` is the frame's name in errors.

    Raises:
        CorruptJournalError: the bytes are not a header that a writer makes.
        FormatVersionError: a newer version wrote them.
    """
    if not is_intact(header):
        raise CorruptJournalError(f"{name} has a header that fails its checksum: read another copy.")
    _, version, kind, size_bytes, runs, number, lac, rows, *crcs = _HEADER.unpack(header)
    if version > FRAME_FORMAT:
        raise FormatVersionError(
            f"{name} has frame format {version}, this pulsar_on_spark reads up to {FRAME_FORMAT}: upgrade it."
        )
    try:
        known_kind = FrameKind(kind)
    except ValueError as error:
        raise CorruptJournalError(
            f"{name} is of kind {kind}, which does not exist in format {version}: read another copy."
        ) from error
    parsed = FrameHeader(number, known_kind, lac, size_bytes, runs, rows, *crcs)
    if not parsed.head_bytes <= size_bytes <= MAX_FRAME_BYTES or size_bytes % 8:
        raise CorruptJournalError(
            f"{name} claims {size_bytes} bytes and a head of {parsed.head_bytes}, which cannot be: read another copy."
        )
    return parsed


def follow_headers(window: memoryview, at: ChainPoint, rest_bytes: int) -> tuple[int, ChainPoint, FrameNumber]:
    """Skip whole frames by their headers, while the next header is in the window and continues the chain.

    The skipped frames may be followed by another frame, a bad frame or the end of the file; the caller must find out.
    Skipping costs a fraction of `parse_header`, which matters in a journal of a million small frames.

    Args:
        window: Bytes of the file, from the start of a frame on.
        at: The position of that frame in the chain.
        rest_bytes: Bytes of the file from the start of the window to the end of the file.

    Returns:
        The number of bytes passed, the position after them, and the highest LAC that the headers name, or -1.
    """
    offset, number, chain, highest = 0, at.next_number, at.crc, -1
    last_start = len(window) - HEADER_BYTES
    unpack, in_window = _HEADER.unpack_from, bytes(window)
    while offset <= last_start:
        magic, version, kind, size_bytes, runs, number_read, lac, _, _, _, previous, crc = unpack(in_window, offset)
        if (
            magic != MAGIC
            or version != FRAME_FORMAT
            or number_read != number
            or previous != chain
            or crc32c(in_window[offset : offset + _CRC_AT]) != crc
            or kind not in _KINDS
            or not HEADER_BYTES + DIRECTORY_ITEM_BYTES * runs <= size_bytes <= MAX_FRAME_BYTES
            or size_bytes % 8
            or offset + size_bytes > rest_bytes
        ):
            break
        offset += size_bytes
        number += 1
        chain = crc
        highest = max(highest, lac)
    return offset, ChainPoint(number, chain), highest
