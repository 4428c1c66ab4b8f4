"""Entries of Pulsar's clients as rows: equal to what the official client reads, and nothing is lost or raised."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.model.ids import EntryId, LedgerId
from pulsar_on_spark.protocol.compression import Codec
from pulsar_on_spark.protocol.entry_frame import join_entry
from pulsar_on_spark.protocol.messages import MessageMetadata, SingleMessageMetadata
from pulsar_on_spark.topic.entries.rebuild import rebuild_entries
from pulsar_on_spark.topic.entries.rows import DecodedEntries, StoredEntry, decode_entries, decode_groups
from pulsar_on_spark.topic.entries.stored import StoredEntries
from tests.kit.pulsar_entries import ClientMessage, batch_entry, read_entry, read_metadata, single_entry
from tests.kit.walks import both_walks  # noqa: F401

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "entries.json").read_text())["vectors"]
LEDGER = LedgerId(3)
CODECS = list(Codec)

times = st.sampled_from([0, 1, 1_753_500_000_123, 2**63 - 1])
texts = st.text(st.characters(codec="utf-8"), max_size=6)
messages = st.builds(
    lambda key, b64, **rest: ClientMessage(key=key if b64 or key is None else key.hex().encode(), key_b64=b64, **rest),
    key=st.none() | st.binary(max_size=6),
    b64=st.booleans(),
    value=st.none() | st.binary(max_size=20) | st.sampled_from([b"x" * 127, b"y" * 128, b"z" * 20_000]),
    ordering_key=st.none() | st.binary(max_size=4),
    properties=st.lists(st.tuples(texts, texts), max_size=4).map(tuple),
    event_time=times,
    sequence_id=st.none() | st.integers(0, 2**63 - 1),
    compacted_out=st.sampled_from([False, False, True]),
    extra=st.sampled_from([b"", b"", b"\xa2\x06\x03abc", b"\x98\x06\x05"]),
).map(lambda message: message if message.key is not None else replace(message, key_b64=False))
heads = st.builds(
    MessageMetadata,
    schema_version=st.none() | st.binary(max_size=8),
    deliver_at_time=st.none() | times,
    event_time=st.none() | times,
    txnid_least_bits=st.none() | st.integers(0, 2**64 - 1),
    replicated_from=st.none() | texts,
)
sends = st.one_of(
    st.builds(batch_entry, st.lists(messages, min_size=1, max_size=20), st.sampled_from(CODECS), heads),
    st.builds(single_entry, messages, st.sampled_from(CODECS), heads),
)
OPAQUE = {
    "encrypted": lambda head: head.encryption_keys.add(key="k", value=b"v"),
    "a chunk": lambda head: head.MergeFrom(MessageMetadata(uuid="u", chunk_id=0, num_chunks_from_msg=2)),
    "a marker": lambda head: head.MergeFrom(MessageMetadata(marker_type=21)),
    "an unknown codec": lambda head: head.MergeFrom(MessageMetadata(compression=9)),
    "a codec that a byte doesn't hold": lambda head: head.MergeFrom(MessageMetadata(compression=257)),
}


def _decode(entries: Sequence[bytes], **options: int) -> list[DecodedEntries]:
    stored = [StoredEntry(LEDGER, EntryId(5 + number), data) for number, data in enumerate(entries)]
    return list(decode_entries(stored, **options))


def _rows(entries: Sequence[bytes]) -> list[dict[str, Any]]:
    decoded = _decode(entries)
    for piece in decoded:
        piece.batch.validate(full=True)
        assert piece.batch.schema.equals(SEGMENT_SCHEMA, check_metadata=True)
    return pa.Table.from_batches([piece.batch for piece in decoded]).to_pylist() if decoded else []


def _numbered(entries: Sequence[bytes]) -> list[dict[str, Any]]:
    """Rows with times as milliseconds: any 64 bits are a time in a segment, and Python's have a last year."""
    schema = pa.schema(
        [field.with_type(pa.int64()) if pa.types.is_timestamp(field.type) else field for field in SEGMENT_SCHEMA]
    )
    rows = []
    for piece in _decode(entries):
        piece.batch.validate(full=True)
        columns = [
            column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in piece.batch.columns
        ]
        rows += pa.RecordBatch.from_arrays(columns, schema=schema).to_pylist()
    return rows


def _message(row: dict[str, Any]) -> ClientMessage:
    return ClientMessage(
        value=row["value"],
        key=row["key"],
        key_b64=row["key_b64"],
        ordering_key=row["ordering_key"],
        properties=tuple(sorted(row["properties"] or ())),
        event_time=row["event_time"] or 0,
        sequence_id=row["sequence_id"],
        compacted_out=row["raw"] == b"" and row["message_metadata"] is not None,
    )


def _sorted(message: ClientMessage) -> ClientMessage:
    return replace(message, properties=tuple(sorted(message.properties)))


def _metadata_bytes(entry: bytes) -> bytes:
    return entry[10 : 10 + int.from_bytes(entry[6:10], "big")]


@pytest.mark.parametrize("number", range(len(GOLDEN)))
def test_rows_equal_what_the_java_client_reads(number: int) -> None:
    vector = GOLDEN[number]
    entry = bytes.fromhex(vector["entry"])
    rows = _numbered([entry])
    assert len(rows) == len(vector["messages"])
    for index, (row, read) in enumerate(zip(rows, vector["messages"], strict=True)):
        assert row["raw"] is None
        assert row["batch_index"] == (index if vector["batch"] else None)
        assert (row["ledger_id"], row["entry_id"]) == (3, 5)
        for name in ("value", "key", "ordering_key", "schema_version"):
            assert row[name] == (None if read[name] is None else bytes.fromhex(read[name])), name
        for name in ("key_b64", "publish_time", "sequence_id", "producer_name"):
            assert row[name] == read[name], name
        for name in ("event_time", "deliver_at_time"):
            assert row[name] == (read[name] or None), name
        assert dict(row["properties"] or ()) == read["properties"]
        assert row["codec"] == Codec[vector["compression"]]
        assert (row["entry_metadata"] is not None) == (index == 0)
        assert (row["message_metadata"] is not None) == vector["batch"]


@settings(max_examples=75)
@given(st.lists(sends, min_size=1, max_size=20))
def test_rows_equal_what_the_protobuf_parser_reads(entries: list[bytes]) -> None:
    rows = iter(_numbered(entries))
    for number, entry in enumerate(entries):
        head = read_metadata(entry)
        for index, message in enumerate(read_entry(entry)):
            row = next(rows)
            assert _message(row) == _sorted(message)
            assert row["entry_id"] == 5 + number
            assert row["batch_index"] == (index if head.HasField("num_messages_in_batch") else None)
            assert row["producer_name"] == head.producer_name
            assert row["publish_time"] == head.publish_time
            assert row["schema_version"] == (head.schema_version if head.HasField("schema_version") else None)
            assert row["deliver_at_time"] == (head.deliver_at_time if head.HasField("deliver_at_time") else None)
            assert row["entry_metadata"] == (_metadata_bytes(entry) if index == 0 else None)
    assert next(rows, None) is None


@pytest.mark.parametrize("reason", OPAQUE)
@pytest.mark.parametrize("made", ["batch", "single"])
def test_an_entry_that_cannot_be_split_stays_whole(reason: str, made: str) -> None:
    head = MessageMetadata()
    OPAQUE[reason](head)
    message = ClientMessage(b"value", key=b"k")
    entry = batch_entry([message] * 2, metadata=head) if made == "batch" else single_entry(message, metadata=head)
    before, row, after = _rows([single_entry(message), entry, single_entry(message)])
    assert row["raw"] == entry
    assert row["value"] is None
    assert row["batch_index"] is None
    # A reader sees there why the entry is whole, and when and by whom it was published.
    assert MessageMetadata.FromString(row["entry_metadata"]).marker_type == head.marker_type
    assert row["producer_name"] == "producer"
    assert before["raw"] is None
    assert after["value"] == b"value"


def _broken_batches() -> dict[str, bytes]:
    def entry(payload: bytes, messages: int = 1, codec: int = 0, size: int | None = None) -> bytes:
        head = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, num_messages_in_batch=messages)
        head.compression = codec
        head.uncompressed_size = len(payload) if size is None else size
        return join_entry(head.SerializeToString(), payload)

    def one(metadata: bytes, payload: bytes) -> bytes:
        return len(metadata).to_bytes(4, "big") + metadata + payload

    single = SingleMessageMetadata(payload_size=3).SerializeToString()
    tombstone = SingleMessageMetadata(payload_size=3, null_value=True).SerializeToString()
    negative = SingleMessageMetadata(payload_size=-1).SerializeToString()
    good = one(single, b"abc")
    return {
        "fewer messages": entry(good, messages=2),
        "more messages": entry(good + good),
        "no messages": entry(b"", messages=0),
        "a negative number of messages": entry(good, messages=-1),
        "a message that is cut": entry(good[:-1]),
        "metadata that is cut": entry(good[:5]),
        "a size that is cut": entry(good[:2]),
        "metadata without a size": entry(one(b"", b"")),
        "metadata that is none": entry(one(b"\xff\xff\xff", b"abc")),
        "a property that is none": entry(one(b"\x0a\x03\xff\xff\xff" + single, b"abc")),
        "a property without a value": entry(one(b"\x0a\x03\x0a\x01k" + single, b"abc")),
        "a negative size": entry(one(negative, b"")),
        "a size that is cut, at the end": entry(one(b"\x18\x80", b"")),
        "a message over another": entry(bytes.fromhex("00000001 00 000002 1800"), messages=2),
        "a property that leads beyond": entry(one(single + b"\x0a\x7f\x0a\x7f", b"abc")),
        "two sizes": entry(one(single + SingleMessageMetadata(payload_size=2).SerializeToString(), b"abc")),
        "a tombstone with a payload": entry(one(tombstone, b"abc")),
        "not lz4": entry(b"\xff" * 20, codec=1, size=100),
        "not zlib": entry(good, codec=2),
        "not zstd": entry(good, codec=3),
        "not snappy": entry(good, codec=4),
        "4 GiB": entry(good, codec=1, size=2**32 - 1),
    }


@pytest.mark.parametrize("reason", _broken_batches())
def test_an_inconsistent_batch_stays_whole(reason: str) -> None:
    entry = _broken_batches()[reason]
    good = batch_entry([ClientMessage(b"good")] * 3)
    rows = _rows([good, entry, good, entry])
    assert [row["raw"] for row in rows] == [None] * 3 + [entry] + [None] * 3 + [entry]
    assert [row["entry_id"] for row in rows] == [5, 5, 5, 6, 7, 7, 7, 8]


@pytest.mark.parametrize("count", [1, 20])
def test_properties_that_lead_beyond_the_metadata_are_no_metadata(count: int) -> None:
    beyond = join_entry(b"\x22\xff\xff\x03\x0a\x7f", b"")
    rows = _rows([beyond, single_entry(ClientMessage())] * count)
    assert [row["raw"] for row in rows] == [beyond, None] * count
    single = SingleMessageMetadata(payload_size=0).SerializeToString() + b"\x0a\xff\xff\x03\x0a\x7f"
    payload = (len(single).to_bytes(4, "big") + single) * 20
    head = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, num_messages_in_batch=20)
    entries = [join_entry(head.SerializeToString(), payload)] * count
    assert [row["raw"] for row in _rows(entries)] == entries


def test_a_single_tombstone_with_a_payload_stays_whole() -> None:
    entry = single_entry(ClientMessage(b"payload"), metadata=MessageMetadata(null_value=True))
    assert [row["raw"] for row in _rows([entry])] == [entry]


def test_an_entry_without_its_checksum_is_an_entry_and_one_with_a_wrong_one_is_not() -> None:
    entry = batch_entry([ClientMessage(b"value")])
    bare = entry[6:]
    flipped = entry[:-1] + bytes([entry[-1] ^ 1])
    rows = _rows([bare, flipped])
    assert (rows[0]["value"], rows[0]["raw"]) == (b"value", None)
    assert (rows[1]["value"], rows[1]["raw"]) == (None, flipped)
    assert rows[1]["entry_metadata"] is None
    assert rows[1]["producer_name"] is None


@pytest.mark.parametrize("missing", ["producer_name", "sequence_id", "publish_time"])
def test_metadata_without_required_fields_are_invalid(missing: str) -> None:
    head = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
    head.ClearField(missing)
    entry = join_entry(head.SerializePartialToString(), b"value")
    (row,) = _rows([entry])
    assert row["raw"] == entry
    assert {name for name, value in row.items() if value is not None} == {"ledger_id", "entry_id", "raw", "key_b64"}


def test_messages_that_compaction_took_out_keep_their_place_and_are_marked() -> None:
    kept, gone = ClientMessage(b"kept"), ClientMessage(b"", compacted_out=True)
    rows = _rows([batch_entry([kept, gone, kept])])
    assert [row["batch_index"] for row in rows] == [0, 1, 2]
    assert [row["raw"] for row in rows] == [None, b"", None]


def test_keys_are_bytes_and_keep_pulsars_flag() -> None:
    said = [("QUJD", True), ("QUI", True), ("QUI=", True), ("not base64!", True), ("QUJD", False), ("", True)]
    entries = [
        single_entry(ClientMessage(), metadata=MessageMetadata(partition_key=text, partition_key_b64_encoded=flag))
        for text, flag in said
    ]
    rows = _rows([*entries, single_entry(ClientMessage(), metadata=MessageMetadata(null_partition_key=True))])
    assert [(row["key"], row["key_b64"]) for row in rows] == [
        (b"ABC", True),
        (b"AB", True),
        (b"AB", True),
        (b"not base64!", False),
        (b"QUJD", False),
        (b"", True),
        (None, False),
    ]


def test_the_last_of_two_equal_properties_counts() -> None:
    twice = ClientMessage(b"v", properties=(("a", "1"), ("b", "2"), ("a", "3")))
    rows = _rows([batch_entry([twice, ClientMessage(b"v", properties=(("a", "4"),)), ClientMessage()])])
    assert [dict(row["properties"] or ()) for row in rows] == [{"a": "3", "b": "2"}, {"a": "4"}, {}]


def test_text_that_is_not_utf8_is_replaced_and_kept_in_the_metadata() -> None:
    metadata = SingleMessageMetadata(payload_size=1).SerializeToString() + b"\x0a\x06\x0a\x01\xff\x12\x01\xfe"
    payload = (len(metadata).to_bytes(4, "big") + metadata + b"v") * 20
    head = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, num_messages_in_batch=20)
    entry = join_entry(head.SerializeToString(), payload)
    rows = _rows([entry])
    assert rows[0]["properties"] == [("�", "�")]
    assert rows[0]["message_metadata"] == metadata
    assert [rebuilt.data for rebuilt in rebuild_entries(_decode([entry])[0].batch, LEDGER)] == [entry]


def test_a_message_of_thousands_of_properties() -> None:
    many = ClientMessage(b"v", properties=tuple((f"k{number}", "v") for number in range(3_000)))
    rows = _rows([batch_entry([many, ClientMessage(b"w")])])
    assert len(rows[0]["properties"]) == 3_000
    assert rows[1]["properties"] is None


def test_batches_have_complete_entries_and_count_their_messages() -> None:
    entries = [batch_entry([ClientMessage(b"x" * 100, key=b"key")] * 10) for _ in range(10)] + [b"garbage"]
    decoded = _decode(entries, target_bytes=3_000)
    assert [piece.entry_rows.tolist() for piece in decoded] == [[10, 10, 10]] * 3 + [[10, 1]]
    assert [piece.batch.num_rows for piece in decoded] == [30, 30, 30, 11]
    assert [int(piece.row_bytes.sum()) for piece in decoded] == [30 * 103] * 3 + [10 * 103 + len(b"garbage")]


def test_compressed_entries_give_batches_of_bounded_size() -> None:
    entries = [batch_entry([ClientMessage(bytes(100_000))] * 10, Codec.ZSTD)] * 10
    assert [len(piece.entry_rows) for piece in _decode(entries, target_bytes=2_000_000)] == [2] * 5


def test_batches_of_a_group_are_of_equal_size() -> None:
    """A small last batch would cost as much as a large one, in segments and for their readers."""
    entry = np.frombuffer(batch_entry([ClientMessage(b"x" * 1_000)] * 10), np.uint8)
    for entries, batches in ((10, [10]), (13, [13]), (22, [11, 11]), (31, [11, 10, 10])):
        ids, bounds = np.arange(entries), np.arange(entries + 1) * len(entry)
        group = StoredEntries(ids, ids, np.tile(entry, entries), bounds[:-1], bounds[1:])
        decoded = decode_groups([group], target_bytes=100_000)
        assert [len(piece.entry_rows) for piece in decoded] == batches


def test_a_broken_batch_after_others_of_its_group_stays_whole() -> None:
    large = batch_entry([ClientMessage(bytes(100_000))] * 10, Codec.ZSTD)
    broken = _broken_batches()["metadata without a size"]
    decoded = _decode([large, large, large, broken], target_bytes=2_000_000)
    assert [piece.entry_rows.tolist() for piece in decoded] == [[10, 10], [10, 1]]
    assert decoded[1].batch.column("raw")[10].as_py() == broken


def test_an_entry_that_could_not_be_compressed_again_stays_whole() -> None:
    noise = bytes(range(256)) * 8
    entry = batch_entry([ClientMessage(noise)], Codec.ZLIB)
    assert _decode([entry], max_message_size_bytes=200)[0].batch.column("raw").to_pylist() == [entry]
    assert _decode([entry])[0].batch.column("raw").to_pylist() == [None]


def test_no_entries_give_no_rows() -> None:
    assert _decode([]) == []


@settings(max_examples=75)
@given(st.lists(st.binary(max_size=40), max_size=5))
def test_garbage_stays_whole(entries: list[bytes]) -> None:
    assert [row["raw"] for row in _rows(entries)] == entries


@settings(max_examples=120)
@given(st.lists(sends, min_size=1, max_size=3), st.data())
def test_changed_bytes_never_raise_and_nothing_is_lost(entries: list[bytes], data: st.DataObject) -> None:
    """The checksum is made to fit again, so that the bytes behind it are believed."""
    changed = []
    for entry in entries:
        covered = bytearray(entry[6:])
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, min(len(covered) - 1, 120)))
            covered[at] = data.draw(st.integers(0, 255))
        changed.append(b"\x0e\x01" + crc32c(covered).to_bytes(4, "big") + bytes(covered))
    for piece in _decode(changed):
        piece.batch.validate(full=True)
        rebuilt = [entry.data for entry in rebuild_entries(piece.batch, LEDGER)]
        for before, after in zip(changed, rebuilt, strict=True):
            if before != after:
                # Only compressed bytes may differ, and then what is compressed does not.
                assert read_metadata(before).compression != Codec.NONE
                assert _readable(before) == _readable(after)


def _readable(entry: bytes) -> tuple[bytes, list[bytes | None]]:
    return _metadata_bytes(entry), [message.value for message in read_entry(entry)]
