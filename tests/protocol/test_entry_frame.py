"""The frame around an entry, against bytes written by hand and by the Java client."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pulsar_on_spark.protocol.entry_frame import join_entry, split_entry

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "entries.json").read_text())["vectors"]


def test_the_bytes_are_pulsars() -> None:
    assert join_entry(b"meta", b"payload")[6:] == b"\x00\x00\x00\x04metapayload"
    for vector in GOLDEN:
        entry = bytes.fromhex(vector["entry"])
        place = split_entry(entry)
        assert place is not None
        assert join_entry(entry[place[0] : place[1]], entry[place[1] :]) == entry


def test_the_checksum_may_be_missing() -> None:
    entry = join_entry(b"meta", b"payload")
    assert split_entry(entry) == (10, 14)
    assert split_entry(entry[6:]) == (4, 8)


@pytest.mark.parametrize("length", range(len(join_entry(b"meta", b"payload"))))
def test_truncated_bytes_are_not_an_entry(length: int) -> None:
    assert split_entry(join_entry(b"meta", b"payload")[:length]) is None


def test_every_flipped_bit_is_detected() -> None:
    entry = join_entry(b"meta", b"payload")
    for bit in range(8 * len(entry)):
        flipped = bytearray(entry)
        flipped[bit // 8] ^= 1 << bit % 8
        assert split_entry(bytes(flipped)) is None


def test_metadata_and_payload_may_be_empty() -> None:
    assert split_entry(join_entry(b"", b"")) == (10, 10)
    assert split_entry(b"\x00\x00\x00\x01") is None
