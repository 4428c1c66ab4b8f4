"""The compression codecs of a payload, in the form that Pulsar's clients write.

| codec  | number | form                                                          |
|--------|--------|---------------------------------------------------------------|
| NONE   | 0      | unchanged                                                     |
| LZ4    | 1      | a raw block; only the metadata has the uncompressed size      |
| ZLIB   | 2      | a zlib stream; the Java client flushes it and does not end it |
| ZSTD   | 3      | one frame                                                     |
| SNAPPY | 4      | raw snappy, which starts with the uncompressed size           |

A payload is corrupt if its decompressed size differs from the metadata's `uncompressed_size`. Before memory is
allocated, `uncompressed_size` is checked against `MAX_UNCOMPRESSED_BYTES`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import IntEnum

import lz4.block
import pyarrow as pa
import zstandard

MAX_UNCOMPRESSED_BYTES = 64 * 1024 * 1024
"""Limit of the metadata's `uncompressed_size`. A payload with a larger size is not decompressed, because metadata may
claim 4 GiB for a payload of a few bytes."""


class Codec(IntEnum):
    """Pulsar's `CompressionType`."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


def decompress(codec: int, payload: memoryview, size_bytes: int) -> bytes | None:
    """Decompress a payload.

    Args:
        codec: The codec's number in the metadata, which may be unknown.
        payload: The payload as received.
        size_bytes: The metadata's `uncompressed_size`; ignored for the codec NONE.

    Returns:
        The decompressed payload. None if the codec is unknown, the payload is corrupt, its decompressed size is not
        `size_bytes`, or `size_bytes` is above `MAX_UNCOMPRESSED_BYTES`.
    """
    if codec == Codec.NONE:
        return bytes(payload)
    if codec not in _DECOMPRESS or not 0 <= size_bytes <= MAX_UNCOMPRESSED_BYTES:
        return None
    try:
        plain = _DECOMPRESS[codec](payload, size_bytes)
    except (ValueError, RuntimeError, OSError, MemoryError, zlib.error, zstandard.ZstdError, lz4.block.LZ4BlockError):
        return None
    return plain if plain is not None and len(plain) == size_bytes else None


def compress(codec: Codec, payload: bytes, *, best: bool = False) -> bytes:
    """Return the compressed payload, at the codec's fast level, or at its highest level if `best` is True."""
    return _COMPRESS[codec](payload, best)


def compress_within(codec: Codec, payload: bytes, limit_bytes: int) -> tuple[Codec, bytes] | None:
    """Compress a payload to at most `limit_bytes`.

    The first of these that fits is used: the codec's fast level, no compression, the codec's highest level, ZSTD's
    highest level.

    Returns:
        The used codec and the compressed bytes; None if none of them fits.
    """
    packed = compress(codec, payload)
    if len(packed) <= limit_bytes:
        return codec, packed
    if len(payload) <= limit_bytes:
        return Codec.NONE, payload
    for other in dict.fromkeys((codec, Codec.ZSTD)):
        packed = compress(other, payload, best=True)
        if len(packed) <= limit_bytes:
            return other, packed
    return None


def _from_lz4(payload: memoryview, size_bytes: int) -> bytes:
    return bytes(lz4.block.decompress(payload, uncompressed_size=size_bytes))


def _from_zlib(payload: memoryview, size_bytes: int) -> bytes | None:
    stream = zlib.decompressobj()
    # A limit one byte above the expected size makes zlib read on to the stream's checksum, if the stream has its end.
    plain = stream.decompress(payload, size_bytes + 1)
    return None if stream.unused_data or stream.unconsumed_tail else plain


def _from_zstd(payload: memoryview, size_bytes: int) -> bytes | None:
    if zstandard.frame_content_size(payload) not in (-1, size_bytes):
        return None
    # A limit of 0 would mean no limit.
    return zstandard.ZstdDecompressor().decompress(payload, max_output_size=max(size_bytes, 1), allow_extra_data=False)


def _from_snappy(payload: memoryview, size_bytes: int) -> bytes | None:
    if _snappy_length(payload) != size_bytes:
        # Arrow would return uninitialized bytes after a result that is shorter than `decompressed_size`.
        return None
    return bytes(_SNAPPY.decompress(payload, decompressed_size=size_bytes, asbytes=True))


def _snappy_length(payload: memoryview) -> int:
    """Return the uncompressed size at the start of raw snappy; -1 if it is not a varint of at most five bytes."""
    length = 0
    for index, byte in enumerate(payload[:5]):
        length |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return length
    return -1


def _to_lz4(payload: bytes, best: bool) -> bytes:
    mode = "high_compression" if best else "default"
    return bytes(lz4.block.compress(payload, mode=mode, store_size=False))


_SNAPPY = pa.Codec("snappy")
_ZSTD_FAST, _ZSTD_BEST = 1, 19
_DECOMPRESS: dict[int, Callable[[memoryview, int], bytes | None]] = {
    Codec.LZ4: _from_lz4,
    Codec.ZLIB: _from_zlib,
    Codec.ZSTD: _from_zstd,
    Codec.SNAPPY: _from_snappy,
}
_COMPRESS: dict[Codec, Callable[[bytes, bool], bytes]] = {
    Codec.NONE: lambda payload, _: payload,
    Codec.LZ4: _to_lz4,
    Codec.ZLIB: lambda payload, best: zlib.compress(payload, 9 if best else 1),
    Codec.ZSTD: lambda payload, best: zstandard.compress(payload, _ZSTD_BEST if best else _ZSTD_FAST),
    Codec.SNAPPY: lambda payload, _: bytes(_SNAPPY.compress(payload, asbytes=True)),
}
