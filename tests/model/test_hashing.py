"""Hashes against the golden vectors of Pulsar's Java client and against slow, obvious versions."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.hashing import (
    base64_encode,
    invalid_utf8,
    java_string_hash,
    key_strings,
    murmur3_32,
    sticky_key_hash,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "keys.json").read_text("utf-8"))["vectors"]
KEYS = [bytes.fromhex(vector["hex"]) * vector["times"] for vector in GOLDEN]
FLAGS = [vector["b64"] for vector in GOLDEN]


def slow_java_hash(text: str) -> int:
    units = text.encode("utf-16-le")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + units[at] + 256 * units[at + 1]) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


def slow_murmur(data: bytes) -> int:
    """MurmurHash3 x86 32 with seed 0, word by word."""

    def mixed(word: int) -> int:
        word = word * 0xCC9E2D51 & 0xFFFFFFFF
        word = (word << 15 | word >> 17) & 0xFFFFFFFF
        return word * 0x1B873593 & 0xFFFFFFFF

    value = 0
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        value ^= mixed(int.from_bytes(data[at : at + 4], "little"))
        value = (value << 13 | value >> 19) & 0xFFFFFFFF
        value = (value * 5 + 0xE6546B64) & 0xFFFFFFFF
    value ^= mixed(int.from_bytes(data[whole:], "little"))
    value ^= len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    value = (value ^ value >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return (value ^ value >> 16) & 0x7FFFFFFF


def is_text(key: bytes) -> bool:
    try:
        key.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def test_golden_vectors_hold_the_cases_that_matter() -> None:
    assert b"" in KEYS
    assert max(map(len, KEYS)) > 64 * 1024
    assert {bytes([value]) for value in range(256)} <= {key for key, flag in zip(KEYS, FLAGS, strict=True) if flag}
    assert any(len(key.decode()) != len(key.decode().encode("utf-16-le")) // 2 for key in KEYS if is_text(key))


def test_hashes_equal_the_java_client() -> None:
    keys, flags = pa.array(KEYS, pa.binary()), pa.array(FLAGS)
    strings = key_strings(keys, flags)
    assert java_string_hash(strings).tolist() == [vector["java_string_hash"] for vector in GOLDEN]
    assert murmur3_32(strings).tolist() == [vector["murmur3_32"] for vector in GOLDEN]
    assert sticky_key_hash(keys).tolist() == [vector["sticky_key_hash"] for vector in GOLDEN]


def test_partitions_equal_the_java_clients_router() -> None:
    strings = key_strings(pa.array(KEYS, pa.binary()), pa.array(FLAGS))
    for scheme, hashes in (("JavaStringHash", java_string_hash(strings)), ("Murmur3_32Hash", murmur3_32(strings))):
        chosen = [[int(value) % count for count in (1, 3, 8, 1000)] for value in hashes]
        assert chosen == [vector[f"partition_{scheme}"] for vector in GOLDEN]


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=70), max_size=60), st.integers(0, 5))
def test_murmur_equals_the_reference_also_for_slices(keys: list[bytes], skip: int) -> None:
    column = pa.array(keys, pa.binary()).slice(skip)
    assert murmur3_32(column).tolist() == [slow_murmur(key) for key in keys[skip:]]


@settings(max_examples=60)
@given(st.lists(st.text(max_size=40), max_size=60), st.integers(0, 5))
def test_java_hash_equals_the_reference_also_for_slices(texts: list[str], skip: int) -> None:
    column = pa.array(texts, pa.string()).slice(skip)
    assert java_string_hash(column).tolist() == [slow_java_hash(text) for text in texts[skip:]]
    assert java_string_hash(column.cast(pa.binary())).tolist() == java_string_hash(column).tolist()


def test_more_rows_and_bytes_than_fit_one_chunk() -> None:
    keys = [b"%d" % (number * 7919) for number in range(40_000)] + [b"x" * 300_003, b"", b"y" * 20_000, b"end"]
    column = pa.array(keys, pa.binary())
    some = [*range(0, 40_000, 101), *range(40_000, len(keys))]
    assert murmur3_32(column)[some].tolist() == [slow_murmur(keys[row]) for row in some]
    assert java_string_hash(column)[some].tolist() == [slow_java_hash(keys[row].decode()) for row in some]
    assert base64_encode(column).to_pylist() == [base64.b64encode(key) for key in keys]


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=6) | st.text(max_size=3).map(str.encode), max_size=30), st.integers(0, 3))
def test_invalid_utf8_is_found_row_by_row(keys: list[bytes], skip: int) -> None:
    column = pa.array(keys, pa.binary()).slice(skip)
    expected = [not is_text(key) for key in keys[skip:]]
    found = invalid_utf8(column)
    assert (found.to_pylist() if found is not None else [False] * len(expected)) == expected


@pytest.mark.parametrize("lead", range(0x80, 0x100))
def test_every_lead_byte_with_every_second_byte(lead: int) -> None:
    tails = (b"", b"\x80", b"\x80\x80")
    keys = [bytes([lead, second]) + tail for second in range(256) for tail in tails]
    found = invalid_utf8(pa.array(keys, pa.binary()))
    expected = [not is_text(key) for key in keys]
    assert found is not None
    assert found.to_pylist() == expected


@given(st.lists(st.none() | st.binary(max_size=20), max_size=30), st.integers(0, 3))
def test_base64_equals_the_standard_library(values: list[bytes | None], skip: int) -> None:
    column = pa.array(values, pa.binary()).slice(skip)
    expected = [None if value is None else base64.b64encode(value) for value in values[skip:]]
    assert base64_encode(column).to_pylist() == expected


def test_nulls_do_not_change_hashes_of_other_rows() -> None:
    column = pa.array([None, "key", None, "a"], pa.string())
    assert java_string_hash(column)[[1, 3]].tolist() == [106079, 97]
    assert murmur3_32(column)[[1, 3]].tolist() == [1654417988, 1009084850]
    strings = key_strings(column, pa.array([None, False, None, True]))
    assert strings.to_pylist() == [None, b"key", None, b"YQ=="]
    assert len(murmur3_32(pa.nulls(3, pa.binary()))) == 3
    assert len(java_string_hash(pa.array([], pa.string()))) == 0


def test_the_ordering_key_takes_precedence_over_the_key() -> None:
    keys = pa.array([b"key", b"key", None], pa.binary())
    ordering = pa.array([None, b"order", b"order"], pa.binary())
    assert sticky_key_hash(keys, ordering).tolist() == [
        slow_murmur(b"key"),
        slow_murmur(b"order"),
        slow_murmur(b"order"),
    ]


def test_bytes_that_are_not_text_have_no_java_hash() -> None:
    with pytest.raises(InvalidArgumentError, match="Base64"):
        java_string_hash(pa.array([b"\xc3", b"\xa9"], pa.binary()))
    with pytest.raises(InvalidArgumentError, match="large_string"):
        murmur3_32(pa.array(["a"], pa.large_string()))
