"""The walk over columns of messages against the protobuf parser: messages that are not odd have the parser's values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_on_spark.protocol.field_walk import Fields, Kind, binary_data, pick_ranges, walk_fields
from pulsar_on_spark.protocol.messages import MessageMetadata, SingleMessageMetadata
from tests.kit.walks import both_walks  # noqa: F401

SINGLE_SHAPE = {
    1: Kind.REPEATED,
    2: Kind.BYTES,
    3: Kind.INT32,
    4: Kind.BOOL,
    5: Kind.INT64,
    6: Kind.BOOL,
    7: Kind.BYTES,
    8: Kind.INT64,
    9: Kind.BOOL,
    10: Kind.BOOL,
}
COUNTS = [1, 5, 13, 40]
"""Below and above the number from which messages are walked in step."""

numbers = st.integers(0, 2**64 - 1) | st.integers(0, 300) | st.integers(0, 64).map(lambda bits: 2**bits % 2**64)
varints = st.one_of(numbers.map(lambda n: _varint(n)), st.binary(max_size=11).map(lambda b: bytes(x | 0x80 for x in b)))
tags = st.sampled_from([number << 3 | wire for number in range(14) for wire in (0, 2)]) | st.integers(0, 300)
lengthy = st.binary(max_size=6).map(lambda content: _varint(len(content)) + content)
pieces = st.builds(lambda tag, body: _varint(tag) + body, tags, st.one_of(varints, lengthy))
made = st.builds(
    lambda key, size, event, sequence, b64, properties: _single(key, size, event, sequence, b64, properties),
    st.none() | st.text(max_size=5),
    st.integers(-(2**31), 2**31 - 1),
    st.none() | numbers,
    st.none() | numbers,
    st.none() | st.booleans(),
    st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=4),
)
garbage = st.lists(pieces, max_size=5).map(b"".join) | st.binary(max_size=12)
bodies = made | garbage | st.builds(lambda left, right: left + right, made, garbage)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _single(
    key: str | None,
    size: int,
    event: int | None,
    sequence: int | None,
    b64: bool | None,
    properties: Sequence[tuple[str, str]],
) -> bytes:
    single = SingleMessageMetadata(
        partition_key=key, payload_size=size, event_time=event, sequence_id=sequence, partition_key_b64_encoded=b64
    )
    for name, value in properties:
        single.properties.add(key=name, value=value)
    return single.SerializeToString()


def _walk(messages: Sequence[bytes], shape: dict[int, Kind] | None = None) -> tuple[Fields, bytes]:
    data, offsets = binary_data(pa.array(messages, pa.binary()))
    return walk_fields(data, offsets[:-1], offsets[1:], shape or SINGLE_SHAPE), data.tobytes()


def _check_agrees(fields: Fields, data: bytes, row: int, message: bytes, parsed: Message) -> None:
    names = {field.number: field.name for field in parsed.DESCRIPTOR.fields}
    for number, column in fields.numbers.items():
        expected = int(getattr(parsed, names[number])) if parsed.HasField(names[number]) else 0
        assert int(column.values[row]) % 2**64 == expected % 2**64, (names[number], message.hex())
        assert bool(column.present[row]) == parsed.HasField(names[number])
    for number, ranges in fields.ranges.items():
        assert bool(ranges.present[row]) == parsed.HasField(names[number])
        found = data[int(ranges.starts[row]) : int(ranges.ends[row])]
        # The parser gives text that is not UTF-8 as bytes.
        value = getattr(parsed, names[number]) if parsed.HasField(names[number]) else b""
        assert found == (value.encode() if isinstance(value, str) else value)
    for number, occurrences in fields.repeated.items():
        assert int((occurrences.messages == row).sum()) == len(getattr(parsed, names[number]))


@settings(max_examples=300)
@given(st.lists(bodies, min_size=1, max_size=16), st.sampled_from(COUNTS))
def test_messages_that_are_not_odd_have_the_parsers_values(drawn: list[bytes], count: int) -> None:
    messages = [drawn[row % len(drawn)] for row in range(count)]
    fields, data = _walk(messages)
    for row, message in enumerate(messages):
        if fields.odd[row]:
            continue
        parsed = SingleMessageMetadata()
        # Properties are submessages that are walked on their own: the parser may refuse what is in them.
        has_properties = bool((fields.repeated[1].messages == row).any())
        try:
            parsed.ParseFromString(message)
        except DecodeError:
            assert has_properties, message.hex()
            continue
        _check_agrees(fields, data, row, message, parsed)


@settings(max_examples=100)
@given(st.lists(made, min_size=1, max_size=8), st.sampled_from(COUNTS))
def test_messages_of_clients_are_not_odd(drawn: list[bytes], count: int) -> None:
    fields, _ = _walk([drawn[row % len(drawn)] for row in range(count)])
    assert not fields.odd.any()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"\x5a\x01x\x18\x01", id="a field that the shape lacks"),
        pytest.param(b"\x1a\x01x", id="another wire type"),
        pytest.param(b"\x12\x05ab", id="a length beyond the end"),
        pytest.param(b"\x18", id="a tag alone"),
        pytest.param(b"\x18\x80", id="a number without its end"),
        pytest.param(b"\x28" + b"\xff" * 10 + b"\x01", id="a number of eleven bytes"),
        pytest.param(b"\x00\x00", id="field 0"),
        pytest.param(b"\x98\x80\x80\x00\x07", id="a tag of four bytes"),
        pytest.param(b"\x28" + b"\x80" * 10 + b"\x18\x07", id="a number that has no end before the next field"),
        pytest.param(b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f", id="a length that wraps"),
        pytest.param(b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", id="a negative length"),
    ],
)
def test_all_other_messages_are_odd(message: bytes, count: int) -> None:
    good = SingleMessageMetadata(payload_size=7).SerializeToString()
    fields, _ = _walk([good] * count + [message] + [good] * count + [message] * count)
    assert fields.odd.tolist() == [False] * count + [True] + [False] * count + [True] * count
    assert fields.numbers[3].values[:count].tolist() == [7] * count


@pytest.mark.parametrize("count", COUNTS)
def test_a_length_without_end_is_odd(count: int) -> None:
    """Eleven bytes that would lead, read from the front of the buffer, into the message itself."""
    messages = []
    for row in range(count):
        inside = 40 * row + 30
        first, second = inside + 1 & 0x7F, inside + 1 >> 7
        endless = bytes([first | 0x80, second | 0x80]) + b"\x80" * 9
        message = b"\x12" + endless + b"\x00" * 18 + b"\x18\x07"
        messages.append(message + b"\x18\x07" * ((40 - len(message)) // 2))
    fields, _ = _walk(messages)
    assert fields.odd.all()


def test_tags_of_two_bytes() -> None:
    message = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, schema_version=b"v", marker_type=21)
    shape = {1: Kind.BYTES, 2: Kind.INT64, 3: Kind.INT64, 16: Kind.BYTES, 20: Kind.INT32}
    fields, data = _walk([message.SerializeToString()] * 30, shape)
    assert not fields.odd.any()
    assert fields.numbers[20].values.tolist() == [21] * 30
    versions = fields.ranges[16]
    assert pick_ranges(np.frombuffer(data, np.uint8), versions.starts, versions.ends).to_pylist() == [b"v"] * 30


@pytest.mark.parametrize("properties", ["abc", pytest.param("abcdefghijk", id="more than fit at first")])
def test_occurrences_come_in_the_order_of_the_messages(properties: str) -> None:
    one = _single(None, 1, None, None, None, [(name, "1") for name in properties])
    fields, data = _walk([one] * 20)
    found = fields.repeated[1]
    assert not fields.odd.any()
    assert found.messages.tolist() == [row for row in range(20) for _ in properties]
    names = [data[start + 2 : start + 3].decode() for start in found.starts.tolist()]
    assert names == list(properties) * 20
    assert [data[start:end] for start, end in zip(found.starts.tolist(), found.ends.tolist(), strict=True)] == [
        b"\n\x01" + name.encode() + b"\x12\x011" for name in names
    ]


def test_picked_ranges_may_be_null_and_empty() -> None:
    data = np.frombuffer(b"abcdef", np.uint8)
    picked = pick_ranges(data, np.array([0, 2, 3]), np.array([2, 2, 6]), np.array([True, True, False]))
    assert picked.to_pylist() == [b"ab", b"", None]
    assert pick_ranges(data, np.array([], np.int64), np.array([], np.int64)).to_pylist() == []
