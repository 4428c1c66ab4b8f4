"""Rows of messages whose text fields are not UTF-8, as any client may send them: Spark and compaction must read on."""

from __future__ import annotations

import pytest

from pulsar_on_spark.model.ids import EntryId, LedgerId
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.topic.entries.rows import StoredEntry, decode_dense_entry
from tests.kit.pulsar_entries import join_entry

HEAD = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1).SerializeToString()


@pytest.mark.parametrize(
    ("fields", "key", "properties", "producer"),
    [
        (b"\x32\x01\xff", b"\xff", None, "p"),
        (b"\x0a\x01\xff", None, None, "\ufffd"),
        (b"\x22\x06\x0a\x01\xff\x12\x01\xfe", None, [("\ufffd", "\ufffd")], "p"),
    ],
)
@pytest.mark.parametrize("is_batch", [False, True])
def test_text_that_is_not_utf_8_makes_valid_rows(
    fields: bytes, key: bytes | None, properties: object, producer: str, is_batch: bool
) -> None:
    single = b"\x18\x01" + {b"\x32": b"\x12", b"\x22": b"\x0a"}.get(fields[:1], b"\x12") + fields[1:]
    if not is_batch:
        entry = join_entry(HEAD + fields, b"v")
    elif fields[0] == 0x0A:
        entry = join_entry(HEAD + fields + b"\x58\x01", b"\x00\x00\x00\x02\x18\x01v")
    else:
        entry = join_entry(HEAD + b"\x58\x01", len(single).to_bytes(4, "big") + single + b"v")
    (decoded,) = decode_dense_entry(StoredEntry(LedgerId(1), EntryId(0), entry))
    decoded.batch.validate(full=True)
    (row,) = decoded.batch.select(["key", "properties", "producer_name", "value"]).to_pylist()
    assert row == {"key": key, "properties": properties, "producer_name": producer, "value": b"v"}
