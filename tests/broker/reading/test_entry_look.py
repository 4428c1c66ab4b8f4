from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_on_spark.broker.producing.replicated import identity_of
from pulsar_on_spark.broker.reading.entry_look import UNREADABLE, is_encrypted, look_at
from pulsar_on_spark.protocol.compression import Codec
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.protocol.opened_entry import open_entry
from tests.kit.pulsar_entries import ClientMessage, batch_bomb, batch_entry, join_entry, single_entry


def test_a_message_alone_and_messages_in_a_batch() -> None:
    alone, one, many = (
        look_at(single_entry(ClientMessage(b"x"))),
        look_at(batch_entry([ClientMessage(b"x")])),
        look_at(batch_entry([ClientMessage(b"x")] * 7)),
    )
    assert [(look.messages, look.is_batch) for look in (alone, one, many)] == [(1, False), (1, True), (7, True)]
    assert alone.publish_ms == 1_753_500_000_000
    assert alone.deliver_at_ms is None
    assert not alone.is_marker
    assert alone.chunk is None


@pytest.mark.parametrize(
    ("message", "key"),
    [
        (ClientMessage(key=b"k", ordering_key=b"o"), b"o"),
        (ClientMessage(key=b"k", ordering_key=b""), b""),
        (ClientMessage(key=b"k"), b"k"),
        (ClientMessage(key=b""), b""),
        (ClientMessage(key=b"\xff\x00", key_b64=True), b"\xff\x00"),
        (ClientMessage(), b"producer-7"),
    ],
)
def test_the_sticky_key_is_pulsars(message: ClientMessage, key: bytes) -> None:
    assert look_at(single_entry(message)).key == key


def test_an_invalid_base64_key_is_used_unchanged() -> None:
    said = MessageMetadata(partition_key="no base64!", partition_key_b64_encoded=True)
    assert look_at(single_entry(ClientMessage(), metadata=said)).key == b"no base64!"


def test_delays_markers_and_chunks() -> None:
    def look(**said: object) -> object:
        return look_at(single_entry(ClientMessage(), metadata=MessageMetadata(**said)))  # type: ignore[arg-type]

    assert look(deliver_at_time=5).deliver_at_ms == 5  # type: ignore[attr-defined]
    assert look(marker_type=10).is_marker  # type: ignore[attr-defined]
    assert look(uuid="u", chunk_id=0, num_chunks_from_msg=3).chunk == ("u", 0, 3)  # type: ignore[attr-defined]


@pytest.mark.parametrize("data", [b"", b"\x0e", b"\x0e\x01", b"\x00\x00\x00\xff", b"\x00\x00\x00\x02\xff\xff"])
def test_bytes_that_are_not_an_entry_are_passed_on(data: bytes) -> None:
    assert look_at(data) == UNREADABLE


def test_an_entry_without_a_checksum() -> None:
    entry = batch_entry([ClientMessage(b"x")] * 3)
    assert look_at(entry[6:]) == look_at(entry)


@pytest.mark.parametrize(
    ("entry", "messages"),
    [
        (single_entry(ClientMessage(b"tiny"), metadata=MessageMetadata(num_messages_in_batch=2**31 - 1)), 1),
        (single_entry(ClientMessage(bytes(60_000)), metadata=MessageMetadata(num_messages_in_batch=50_000)), 10_000),
        (single_entry(ClientMessage(b"tiny"), metadata=MessageMetadata(num_messages_in_batch=-5)), 1),
        (batch_bomb(10, claimed=2**31 - 1, size=2**32 - 1), 100_000),
        (batch_entry([ClientMessage()] * 100_000, Codec.ZSTD), 100_000),
        (batch_entry([ClientMessage(b"x")] * 2_000), 2_000),
    ],
)
def test_a_claimed_number_of_messages_is_limited_by_the_entrys_bytes(entry: bytes, messages: int) -> None:
    assert look_at(entry).messages == messages


HEAD = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1).SerializeToString()


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        (b"\x32\x01\xff", b"\xff"),  # partition_key
        (b"\x32\x01\xff\x88\x01\x01", b"\xff"),  # and partition_key_b64_encoded, which it is not
        (b"\x0a\x02\xff\xfe", b"\xff\xfe-1"),  # producer_name
        (b"\xd2\x01\x01\xff\xd8\x01\x02\xe8\x01\x00", b"p-1"),  # uuid of the first of two chunks
    ],
)
def test_text_that_is_not_utf_8_counts_by_its_bytes(fields: bytes, key: bytes) -> None:
    look = look_at(join_entry(HEAD + fields, b"v"))
    assert look.key == key
    assert look.chunk in (None, (r"\xff", 0, 2))


@given(st.binary(max_size=200), st.booleans(), st.binary(max_size=20))
@settings(max_examples=2_000, deadline=None)
def test_parsing_any_metadata_raises_nothing(metadata: bytes, has_head: bool, payload: bytes) -> None:
    entry = join_entry((HEAD if has_head else b"") + metadata, payload)
    assert look_at(entry).messages >= 1
    assert is_encrypted(entry) in (True, False)
    open_entry(entry)
    identity_of(entry)


FIELDS = [each for each in MessageMetadata.DESCRIPTOR.fields if each.cpp_type == each.CPPTYPE_STRING]


@given(st.lists(st.tuples(st.sampled_from(FIELDS), st.binary(min_size=1, max_size=8)), max_size=6))
@settings(max_examples=500, deadline=None)
def test_parsing_any_text_raises_nothing(fields: list[tuple[Any, bytes]]) -> None:
    texts = b"".join(_field(each.number, content) for each, content in fields)
    entry = join_entry(HEAD + texts, b"v")
    assert look_at(entry) != UNREADABLE
    assert identity_of(entry) is not None


def _field(number: int, content: bytes) -> bytes:
    tag = number << 3 | 2
    head = bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])
    return head + bytes([len(content)]) + content
