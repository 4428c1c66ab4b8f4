from __future__ import annotations

import json

import pytest

from pulsar_on_spark.metadata.log.entry import (
    BrokenEntryError,
    Content,
    DataFile,
    decode_entry,
    encode_entry,
    new_token,
    new_writer,
)

FILE = DataFile("part-7 ä%.parquet", 1234, 5, 8, 9, 0xC0FFEE)
CONTENT = Content([FILE], ["gone.parquet"], {"q/1": 5, 'q/"\n': 6})


def test_an_entry_is_read_as_it_was_written() -> None:
    writer = new_writer()
    token = new_token(writer)
    entry = decode_entry(8, encode_entry(CONTENT, token, "before", "boot"))
    assert (entry.version, entry.token, entry.previous, entry.boot) == (8, token, "before", "boot")
    assert (entry.added, entry.removed, entry.keys) == ((FILE,), ("gone.parquet",), CONTENT.keys)
    assert entry.writer == writer
    assert entry.tip.is_chained


def test_an_entry_without_actions_is_an_entry() -> None:
    entry = decode_entry(8, encode_entry(Content(), "t", "", None))
    assert (entry.added, entry.removed, entry.keys, entry.boot) == ((), (), {}, None)


def test_every_cut_and_every_flipped_bit_is_noticed() -> None:
    text = encode_entry(CONTENT, "token", "before", "boot")
    for length in range(len(text)):
        with pytest.raises(BrokenEntryError):
            decode_entry(8, text[:length])
    for bit in range(8 * len(text)):
        flipped = bytearray(text)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BrokenEntryError):
            decode_entry(8, bytes(flipped))


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([{"commitInfo": {"operation": "WRITE"}}], id="an empty write of delta-spark"),
        pytest.param([{"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}}], id="no commitInfo at all"),
        pytest.param([{"commitInfo": {"pulsarpyToken": "t"}}, {"txn": {"appId": "a", "version": 1}}], id="format 1"),
    ],
)
def test_entries_of_other_writers_name_no_predecessor(lines: list[dict[str, object]]) -> None:
    entry = decode_entry(7, "\n".join(map(json.dumps, lines)).encode())
    assert entry.previous is None
    assert not entry.tip.is_chained


@pytest.mark.parametrize("text", [b"", b"\0\0\0", b"[]", b"null", b'{"add":{}}', b'{"add":null}', b"{}", b"1"])
def test_nonsense_is_broken(text: bytes) -> None:
    with pytest.raises(BrokenEntryError):
        decode_entry(7, text)
