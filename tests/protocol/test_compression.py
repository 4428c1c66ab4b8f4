"""Pulsar's compressions: payloads of clients decompress to exactly their stated length, and garbage is refused."""

from __future__ import annotations

import random
import zlib

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_on_spark.protocol.compression import MAX_UNCOMPRESSED_BYTES, Codec, compress, compress_within, decompress

PACKING = [codec for codec in Codec if codec != Codec.NONE]
TEXT = b"the quick brown fox " * 50
NOISE = random.Random(3).randbytes(1_000)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("best", [False, True])
@pytest.mark.parametrize("payload", [b"", b"x", TEXT, NOISE], ids=["empty", "a byte", "text", "noise"])
def test_compressed_payloads_round_trip(codec: Codec, best: bool, payload: bytes) -> None:
    assert decompress(codec, memoryview(compress(codec, payload, best=best)), len(payload)) == payload


@pytest.mark.parametrize("codec", PACKING)
@pytest.mark.parametrize("size_bytes", [0, 1, len(TEXT) - 1, len(TEXT) + 1, 2 * len(TEXT), 2**32 - 1, -1])
def test_a_payload_of_another_length_is_refused(codec: Codec, size_bytes: int) -> None:
    assert decompress(codec, memoryview(compress(codec, TEXT)), size_bytes) is None


@pytest.mark.parametrize("codec", PACKING)
def test_a_truncated_or_overlong_payload_is_refused(codec: Codec) -> None:
    packed = compress(codec, TEXT)
    assert decompress(codec, memoryview(packed + b"\x00more"), len(TEXT)) is None
    for length in range(len(packed) - (5 if codec is Codec.ZLIB else 0)):
        # zlib's own checksum at the end is not missed: the Java client never writes it.
        assert decompress(codec, memoryview(packed)[:length], len(TEXT)) is None


def test_zlib_of_the_java_client_has_no_end() -> None:
    stream = zlib.compressobj()
    flushed = stream.compress(TEXT) + stream.flush(zlib.Z_SYNC_FLUSH)
    assert decompress(Codec.ZLIB, memoryview(flushed), len(TEXT)) == TEXT


def test_a_zstd_frame_may_lack_its_length() -> None:
    packed = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)
    assert decompress(Codec.ZSTD, memoryview(packed), len(TEXT)) == TEXT
    assert decompress(Codec.ZSTD, memoryview(packed), len(TEXT) - 1) is None
    assert decompress(Codec.ZSTD, memoryview(packed), 0) is None


@pytest.mark.parametrize("codec", [-1, 5, 9, 127, 257])
def test_unknown_codecs_are_refused(codec: int) -> None:
    assert decompress(codec, memoryview(TEXT), len(TEXT)) is None


@pytest.mark.parametrize("codec", PACKING)
def test_no_memory_is_allocated_for_a_size_that_is_only_claimed(codec: Codec) -> None:
    assert decompress(codec, memoryview(compress(codec, TEXT)), MAX_UNCOMPRESSED_BYTES + 1) is None


@settings(max_examples=300)
@given(st.sampled_from(PACKING), st.binary(max_size=60), st.integers(0, 100))
def test_garbage_is_refused_or_has_the_claimed_length(codec: Codec, packed: bytes, size_bytes: int) -> None:
    plain = decompress(codec, memoryview(packed), size_bytes)
    assert plain is None or len(plain) == size_bytes


def test_the_limit_decides_codec_and_level() -> None:
    assert compress_within(Codec.LZ4, TEXT, len(TEXT)) == (Codec.LZ4, compress(Codec.LZ4, TEXT))
    # Noise grows in every codec.
    assert compress_within(Codec.SNAPPY, NOISE, len(NOISE)) == (Codec.NONE, NOISE)
    assert compress_within(Codec.NONE, TEXT, len(TEXT)) == (Codec.NONE, TEXT)
    assert compress_within(Codec.NONE, TEXT, len(TEXT) - 1) == (Codec.ZSTD, compress(Codec.ZSTD, TEXT, best=True))
    assert compress_within(Codec.ZSTD, NOISE, len(NOISE) - 1) is None


def test_the_codecs_best_level_is_tried_before_another_codec() -> None:
    payload = b"".join(b'{"id":%d,"name":"user-%d"}' % (number, number * 7919 % 1000) for number in range(2_000))
    limit = len(compress(Codec.ZLIB, payload, best=True))
    assert len(compress(Codec.ZLIB, payload)) > limit
    assert compress_within(Codec.ZLIB, payload, limit) == (Codec.ZLIB, compress(Codec.ZLIB, payload, best=True))
