"""Rows made into entries again: the same ids, messages and metadata, within maxMessageSize."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_on_spark.model.errors import UnbuildableEntryError
from pulsar_on_spark.model.ids import EntryId, LedgerId
from pulsar_on_spark.protocol.compression import Codec
from pulsar_on_spark.protocol.entry_frame import split_entry
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.topic.entries.cutting import cut_entries
from pulsar_on_spark.topic.entries.rebuild import rebuild_entries
from pulsar_on_spark.topic.entries.rows import StoredEntry, decode_entries
from tests.kit.messages import ROW_SCHEMA
from tests.kit.pulsar_entries import ClientMessage, batch_entry, read_entry, read_metadata, read_payload, single_entry
from tests.kit.walks import both_walks  # noqa: F401

LEDGER = LedgerId(9)
NOISE = random.Random(1).randbytes(4_000)
UNKNOWN_FIELD = b"\xa2\x06\x03abc"

values = st.none() | st.binary(max_size=30)
texts = st.text(st.characters(codec="utf-8"), max_size=5)
messages = st.builds(
    ClientMessage,
    value=values,
    key=st.none() | st.sampled_from([b"a", b"bb"]),
    ordering_key=st.none() | st.binary(max_size=3),
    properties=st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
    event_time=st.integers(0, 2**40),
    sequence_id=st.none() | st.integers(0, 2**63 - 1),
    compacted_out=st.booleans(),
    extra=st.sampled_from([b"", UNKNOWN_FIELD]),
)
heads = st.builds(
    MessageMetadata, schema_version=st.none() | st.just(b"12345678"), txnid_most_bits=st.none() | st.just(3)
)
sends = st.one_of(
    st.builds(batch_entry, st.lists(messages, min_size=1, max_size=20), st.sampled_from(list(Codec)), heads),
    st.builds(single_entry, messages, st.sampled_from(list(Codec)), heads),
    st.binary(max_size=30),
)


def _decoded(*entries: bytes, max_message_size_bytes: int = 5 * 1024 * 1024) -> pa.RecordBatch:
    stored = [StoredEntry(LEDGER, EntryId(number), data) for number, data in enumerate(entries)]
    (piece,) = decode_entries(stored, max_message_size_bytes=max_message_size_bytes)
    return piece.batch


def _rebuilt(rows: pa.RecordBatch, **options: int) -> list[bytes]:
    return [entry.data for entry in rebuild_entries(rows, LEDGER, **options)]


def _metadata(entry: bytes) -> bytes:
    place = split_entry(entry)
    assert place is not None
    return entry[place[0] : place[1]]


def _spark_rows(count: int, **columns: list[object]) -> pa.RecordBatch:
    """Rows as the data source writes them, cut into entries."""
    given_columns: dict[str, list[object]] = {
        "publish_time": [1_753_500_000_000] * count,
        "producer_name": ["spark-1"] * count,
        "sequence_id": list(range(40, 40 + count)),
        "value": [b"value"] * count,
        **columns,
    }
    arrays = [pa.array(given_columns.get(field.name, [None] * count), field.type) for field in ROW_SCHEMA]
    return cut_entries(pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA), 0, "t").batch


@settings(max_examples=75)
@given(st.lists(sends, min_size=1, max_size=8))
def test_rebuilt_entries_have_the_ids_messages_and_metadata_of_the_received(entries: list[bytes]) -> None:
    rebuilt = list(rebuild_entries(_decoded(*entries), LEDGER))
    assert [(entry.ledger_id, entry.entry_id) for entry in rebuilt] == [(9, number) for number in range(len(entries))]
    for before, after in zip(entries, (entry.data for entry in rebuilt), strict=True):
        if split_entry(before) is None or read_metadata(before).compression == Codec.NONE:
            assert after == before
        else:
            assert _metadata(after) == _metadata(before)
            assert read_payload(after) == read_payload(before)


def test_unknown_fields_survive() -> None:
    message = ClientMessage(b"value", key=b"k", extra=UNKNOWN_FIELD)
    entries = [batch_entry([message] * 2, Codec.LZ4), single_entry(message, Codec.SNAPPY)]
    batch, single = _rebuilt(_decoded(*entries))
    assert read_payload(batch).count(UNKNOWN_FIELD) == 2
    assert _metadata(single).endswith(UNKNOWN_FIELD)


@settings(max_examples=50)
@given(
    st.lists(
        st.builds(
            ClientMessage,
            value=values,
            key=st.none() | st.sampled_from([b"a", b"\xff\x00"]),
            ordering_key=st.none() | st.binary(max_size=3),
            properties=st.dictionaries(texts, texts, max_size=3).map(lambda drawn: tuple(drawn.items())),
            event_time=st.integers(1, 2**40),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_rows_of_spark_become_batches(written: list[ClientMessage]) -> None:
    flagged = [replace(message, key_b64=message.key == b"\xff\x00") for message in written]
    rows = _spark_rows(
        len(written),
        key=[message.key for message in written],
        key_b64=[message.key_b64 for message in flagged],
        ordering_key=[message.ordering_key for message in written],
        properties=[message.properties for message in written],
        event_time=[message.event_time for message in written],
        value=[message.value for message in written],
    )
    read = []
    for entry in rebuild_entries(rows, LEDGER, 100):
        assert entry.entry_id >= 100
        in_entry = read_entry(entry.data)
        head = read_metadata(entry.data)
        assert head.num_messages_in_batch == len(in_entry)
        # A broker hands out by the first message's key, and all keys of an entry are of its slot.
        assert head.partition_key_b64_encoded == in_entry[0].key_b64
        assert head.HasField("partition_key") == (in_entry[0].key is not None)
        assert head.sequence_id == in_entry[0].sequence_id
        assert (head.producer_name, head.publish_time) == ("spark-1", 1_753_500_000_000)
        read += in_entry
    by_sequence = sorted(read, key=lambda message: message.sequence_id or 0)
    assert by_sequence == [replace(message, sequence_id=40 + row) for row, message in enumerate(flagged)]


def test_a_row_of_spark_is_a_batch_of_one_because_its_id_has_a_batch_index() -> None:
    (entry,) = _rebuilt(_spark_rows(1))
    head = read_metadata(entry)
    assert head.HasField("num_messages_in_batch")
    assert not head.HasField("highest_sequence_id")
    assert [message.value for message in read_entry(entry)] == [b"value"]


def test_an_entry_of_spark_is_delivered_when_all_its_messages_are_due() -> None:
    (entry,) = _rebuilt(_spark_rows(3, deliver_at_time=[3, 5, 4], schema_version=[b"00000001"] * 3))
    assert read_metadata(entry).deliver_at_time == 5
    assert read_metadata(entry).schema_version == b"00000001"
    assert read_metadata(entry).highest_sequence_id == 42


def test_rows_of_spark_wait_for_no_others_time() -> None:
    rows = _spark_rows(5, deliver_at_time=[None, 999, 1_000, 1_999, None])
    heads = [read_metadata(entry) for entry in _rebuilt(rows)]
    assert [head.num_messages_in_batch for head in heads] == [1, 1, 2, 1]
    assert [head.deliver_at_time if head.HasField("deliver_at_time") else None for head in heads] == [
        *(None, 999, 1_999, None)
    ]


def test_rebuilt_entries_decode_to_the_same_rows() -> None:
    entries = _rebuilt(_spark_rows(5, key=[b"a"] * 5))
    assert _rebuilt(_decoded(*entries)) == entries


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZLIB, Codec.ZSTD, Codec.SNAPPY])
def test_a_payload_is_never_above_the_limit(codec: Codec) -> None:
    """Compressed again by a faster level, these bytes are larger than the limit, and larger than as they are."""
    entry = batch_entry([ClientMessage(NOISE)], codec)
    limit = len(read_payload(entry))
    (after,) = _rebuilt(_decoded(entry), max_message_size_bytes=limit)
    place = split_entry(after)
    assert place is not None
    assert len(after) - place[1] <= limit
    assert read_entry(after) == read_entry(entry)
    assert _metadata(after).startswith(_metadata(entry))
    assert read_metadata(after).compression in (codec, Codec.NONE)


def test_another_codec_is_used_if_the_original_one_exceeds_the_limit() -> None:
    # What repeats lies further back than Snappy, in blocks of 64 KiB, can look.
    far = random.Random(2).randbytes(100_000) * 4
    entry = batch_entry([ClientMessage(far)], Codec.SNAPPY)
    (after,) = _rebuilt(_decoded(entry), max_message_size_bytes=150_000)
    assert len(after) < 150_000
    assert read_metadata(after).compression == Codec.ZSTD
    assert read_entry(after) == read_entry(entry)


def test_an_uncompressed_payload_above_the_limit_is_compressed() -> None:
    (entry,) = _rebuilt(_spark_rows(1, value=[b"x" * 1_000]), max_message_size_bytes=500)
    assert read_metadata(entry).compression == Codec.ZSTD
    assert read_entry(entry)[0].value == b"x" * 1_000


def test_an_entry_above_the_limit_with_every_codec_is_an_error() -> None:
    with pytest.raises(UnbuildableEntryError, match=r"Entry 9:0 has 4\d\d\d bytes, .* maxMessageSize \(500\)"):
        _rebuilt(_spark_rows(1, value=[NOISE]), max_message_size_bytes=500)


@pytest.mark.parametrize("kept", [slice(0, 2), slice(1, 3)])
def test_an_entry_of_which_rows_are_missing_is_an_error(kept: slice) -> None:
    rows = _decoded(batch_entry([ClientMessage(b"v")] * 3))
    with pytest.raises(UnbuildableEntryError, match=r"Entry 9:0 has .* there are 2 rows"):
        _rebuilt(rows.slice(kept.start, kept.stop - kept.start))


def test_no_rows_make_no_entries() -> None:
    assert _rebuilt(_spark_rows(1)[:0]) == []


def test_rows_may_be_a_slice() -> None:
    entries = [batch_entry([ClientMessage(bytes([letter]))] * 3) for letter in b"abc"]
    assert _rebuilt(_decoded(*entries).slice(3, 6)) == entries[1:]
