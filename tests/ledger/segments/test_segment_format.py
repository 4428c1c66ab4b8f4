import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.ledger.segments.segment_format import (
    FORMAT_KEY,
    SEGMENT_SCHEMA,
    STREAM_OFFSET,
    SegmentEncoder,
    Tiles,
    check_segment_format,
    decode_sidecar,
    encode_sidecar,
    group_end,
)
from pulsar_on_spark.model.errors import CorruptSegmentError, FormatVersionError, InvalidArgumentError


def test_the_tiles_are_an_arrow_file_and_a_stream(batch):
    batches = [batch(10, 1), batch(1, 2), batch(0), batch(1000, 3)]
    encoder = SegmentEncoder()
    tiles = [encoder.header, *(encoder.encode(one) for one in batches), encoder.finish()]
    reader = pa.ipc.open_file(pa.py_buffer(b"".join(tiles)))
    assert [reader.get_batch(number) for number in range(reader.num_record_batches)] == batches
    assert reader.schema.metadata == {FORMAT_KEY: b"2"}
    for number, one in enumerate(batches, start=1):
        stream = (tiles[0] + tiles[number])[STREAM_OFFSET:]
        assert pa.ipc.open_stream(pa.py_buffer(stream)).read_next_batch() == one
    assert all(len(tile) % 8 == 0 for tile in tiles[:-1])


def test_a_file_without_batches_is_an_arrow_file():
    encoder = SegmentEncoder()
    assert pa.ipc.open_file(pa.py_buffer(encoder.header + encoder.finish())).num_record_batches == 0


def test_a_slice_is_written_alone(batch):
    whole = batch(1000)
    encoder = SegmentEncoder()
    tile = encoder.encode(whole.slice(500, 10))
    assert len(tile) < len(encoder.encode(whole)) / 10


def test_other_schemas_are_refused(batch):
    with pytest.raises(InvalidArgumentError, match="SEGMENT_SCHEMA"):
        SegmentEncoder().encode(batch(3).select(["value"]))


def test_newer_and_foreign_formats_are_refused():
    check_segment_format(SEGMENT_SCHEMA, "File f")
    with pytest.raises(FormatVersionError, match=r"File f has segment format 3.*upgrade"):
        check_segment_format(SEGMENT_SCHEMA.with_metadata({FORMAT_KEY: b"3"}), "File f")
    check_segment_format(SEGMENT_SCHEMA.with_metadata({FORMAT_KEY: b"1"}), "File f")
    for metadata in (None, {FORMAT_KEY: b"x"}):
        with pytest.raises(CorruptSegmentError, match="File f"):
            check_segment_format(SEGMENT_SCHEMA.with_metadata(metadata), "File f")


tiles_strategy = st.lists(
    st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)), min_size=2, max_size=300
).map(lambda pairs: Tiles(*(tuple(column) for column in zip(*pairs, strict=True))))


@given(tiles_strategy)
def test_sidecars_round_trip(tiles):
    content = encode_sidecar(tiles)
    assert decode_sidecar(content, len(content), crc32c(content), "s") == tiles


def test_damaged_sidecars_are_refused():
    content = encode_sidecar(Tiles((8, 9, 10), (1, 2, 3)))
    crc = crc32c(content)
    for position in range(len(content)):
        with pytest.raises(CorruptSegmentError, match="instead of"):
            decode_sidecar(content[:position], len(content), crc, "Sidecar s")
        for bit in range(8):
            bad = bytearray(content)
            bad[position] ^= 1 << bit
            with pytest.raises(CorruptSegmentError, match="Sidecar s fails its checksum"):
                decode_sidecar(bytes(bad), len(content), crc, "Sidecar s")
    newer = content[:4] + b"\x02" + content[5:]
    with pytest.raises(FormatVersionError, match="sidecar format 2"):
        decode_sidecar(newer, len(newer), crc32c(newer), "Sidecar s")
    other = b"ARRO" + content[4:]
    with pytest.raises(CorruptSegmentError, match="not a sidecar"):
        decode_sidecar(other, len(other), crc32c(other), "Sidecar s")


def test_tiles_that_do_not_fit_their_file():
    tiles = Tiles((8, 10, 4), (1, 2, 3))
    assert tiles.problem(22, 1) is None
    assert "22 bytes instead of 23" in tiles.problem(23, 1)
    assert "1 batches instead of 2" in tiles.problem(22, 2)
    assert "checksum" in Tiles((8, 10, 4), (1, 2)).problem(22, 1)


@given(tiles_strategy, st.data())
def test_groups_cover_the_range(tiles, data):
    end = data.draw(st.integers(0, tiles.batches))
    limit = data.draw(st.integers(1, 2**65))
    first = 0
    while first < end:
        stop = group_end(tiles, first, end, limit)
        assert first < stop <= end
        size = sum(tiles.lengths[first + 1 : stop + 1])
        assert size <= limit or stop == first + 1
        assert stop == end or size + tiles.lengths[stop + 1] > limit
        first = stop
