"""Frames from bytes that are cut anywhere."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_on_spark.model.errors import ProtocolError
from pulsar_on_spark.protocol.frames import FrameSplitter, frame_of

MAX_FRAME_BYTES = 1_000

contents = st.tuples(st.binary(max_size=40), st.binary(max_size=40))
streams = st.lists(contents, max_size=6)


def _stream(frames: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"".join(frame_of(command, len(entry)) + entry for command, entry in frames)


def _split(chunks: Iterable[bytes], max_frame_bytes: int = MAX_FRAME_BYTES) -> list[tuple[bytes, bytes]]:
    splitter, found = FrameSplitter(max_frame_bytes, max_frame_bytes), []
    for chunk in chunks:
        found += splitter.split(chunk)
    return found


def _cut(stream: bytes, places: Iterable[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(bounds)]


@given(streams, st.lists(st.integers(0, 10_000), max_size=12))
def test_frames_are_found_wherever_the_bytes_are_cut(frames: list[tuple[bytes, bytes]], places: list[int]) -> None:
    stream = _stream(frames)
    assert _split([stream]) == frames
    assert _split(bytes([byte]) for byte in stream) == frames
    assert _split(_cut(stream, places)) == frames


def test_a_command_may_be_empty() -> None:
    assert _split([frame_of(b"")]) == [(b"", b"")]


@settings(max_examples=300)
@given(st.binary(max_size=60), st.lists(st.integers(0, 10_000), max_size=5))
def test_garbage_is_refused_or_waits_wherever_it_is_cut(garbage: bytes, places: list[int]) -> None:
    def outcome(chunks: Iterable[bytes]) -> object:
        try:
            return _split(chunks)
        except ProtocolError as error:
            return str(error)

    whole = outcome([garbage])
    assert outcome(bytes([byte]) for byte in garbage) == whole
    assert outcome(_cut(garbage, places)) == whole


def test_the_largest_frame_passes_and_a_larger_one_does_not() -> None:
    command = b"c" * (MAX_FRAME_BYTES - 8)
    assert _split([frame_of(command)]) == [(command, b"")]
    with pytest.raises(ProtocolError, match="larger than the 1000 allowed"):
        _split([frame_of(command, 1)])


@pytest.mark.parametrize("size_bytes", [0, 1, 3, 4, 99])
def test_a_command_lies_inside_its_frame(size_bytes: int) -> None:
    with pytest.raises(ProtocolError, match="cannot hold a command of 96"):
        _split([size_bytes.to_bytes(4, "big") + (96).to_bytes(4, "big")])


@pytest.mark.parametrize("size_bytes", [MAX_FRAME_BYTES - 3, 2**31, 2**32 - 1])
@pytest.mark.parametrize("step", [1, 8])
def test_an_announced_size_allocates_no_memory(size_bytes: int, step: int) -> None:
    prefix = size_bytes.to_bytes(4, "big") + (4).to_bytes(4, "big")
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            _split([prefix[at : at + step] for at in range(0, len(prefix), step)])
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_memory_grows_with_received_bytes_not_with_announced_ones() -> None:
    tracemalloc.start()
    try:
        assert _split([frame_of(b"c", 2**29) + b"e" * 1_000], max_frame_bytes=2**30) == []
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
