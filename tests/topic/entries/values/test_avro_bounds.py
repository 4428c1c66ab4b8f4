"""Avro values that claim more items than memory has room for, or more levels than the stack, in a few bytes."""

from __future__ import annotations

import io
import json
import resource
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.cli.message_values import ValueSchema
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.topic.entries.values.avro_bounds import FREE_ITEMS, check_of_bounds
from pulsar_on_spark.topic.entries.values.avro_schemas import arrow_of_avro
from pulsar_on_spark.topic.entries.values.values import ParseMode, ValueCodec
from tests.topic.entries.values.test_values import decode

FREE = (
    "null",
    {"type": "record", "name": "E", "fields": []},
    {"type": "record", "name": "N", "fields": [{"name": "a", "type": "null"}]},
    {"type": "fixed", "name": "Z", "size": 0},
)
"""Types whose values take no bytes."""
BOUND = (
    "string",
    "boolean",
    "double",
    ["null", "int"],
    {"type": "fixed", "name": "F", "size": 3},
    {"type": "enum", "name": "G", "symbols": ["A"]},
    {"type": "map", "values": "null"},
    {"type": "array", "items": "int"},
    {"type": "record", "name": "R", "fields": [{"name": "a", "type": "null"}, {"name": "b", "type": "long"}]},
)
"""Types whose values take bytes."""


def schema(*fields: object) -> dict[str, Any]:
    named = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(fields)]
    return {"type": "record", "name": "T", "fields": named}


def array(items: object) -> dict[str, object]:
    return {"type": "array", "items": items}


def long(number: int) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, "long", number)
    return stream.getvalue()


def encoded(kind: dict[str, Any], row: object) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(kind), row)
    return stream.getvalue()


def codec(kind: dict[str, Any]) -> ValueCodec:
    text = json.dumps(kind)
    return ValueCodec("avro", arrow_of_avro(text), text)


@pytest.mark.parametrize("items", FREE)
@pytest.mark.parametrize("claim", [long(1 << 31), long(-(1 << 31)) + long(1)])
def test_a_value_that_claims_items_without_bytes_is_null(items: object, claim: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kind = schema(array(items), "string")
    value, good = claim + b"\0\0", encoded(kind, {"f0": [], "f1": "x"})
    assert decode(codec(kind), [value, good]) == [None, {"f0": [], "f1": "x"}]
    with pytest.raises(Exception, match=f"more than {FREE_ITEMS} items that take no bytes"):
        decode(codec(kind), [value], ParseMode.FAILFAST)
    assert ValueSchema("AVRO", json.dumps(kind)).text(value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10


def test_the_bound_is_for_all_arrays_of_a_value_together() -> None:
    kind = schema(array(array("null")))
    rows = [{"f0": [[None] * count] * 8} for count in (FREE_ITEMS // 8, FREE_ITEMS // 8 + 1)]
    assert decode(codec(kind), [encoded(kind, row) for row in rows]) == [rows[0], None]
    padded = schema(array("null"), "string")
    row = {"f0": [None] * 1000, "f1": "x" * 1000}
    assert decode(codec(padded), [encoded(padded, row)]) == [row]


def test_fields_that_only_the_writer_has_count() -> None:
    written, read = schema("int", array("null")), schema("int")
    value = b"\2" + long(1 << 31) + b"\0"
    found = codec(read).decode(pa.array([value]), ParseMode.PERMISSIVE, str, json.dumps(written))
    assert found.to_pylist() == [None]


NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
ENDLESS = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": "Node"}]}
TREE = {"type": "record", "name": "Node", "fields": [{"name": "nodes", "type": array("Node")}]}


@pytest.mark.parametrize(
    ("kind", "level", "end"), [(NODE, b"\2", b"\0"), (ENDLESS, b"", b""), (TREE, b"\2", b"\0" * 100_001)]
)
def test_levels_beyond_the_stack_are_refused(kind: dict[str, Any], level: bytes, end: bytes) -> None:
    value = level * 100_000 + end
    assert ValueSchema("AVRO", json.dumps(kind)).text(value) == value.decode()
    found = codec(schema("int")).decode(
        pa.array([value + b"\2"]), ParseMode.PERMISSIVE, str, json.dumps(schema(kind, "int"))
    )
    assert found.to_pylist() == [None]


def test_a_schema_of_few_lines_with_billions_of_fields_is_refused() -> None:
    kind: dict[str, Any] = {"type": "record", "name": "R0", "fields": [{"name": "a", "type": "null"}]}
    for number in range(1, 31):
        parts = [{"name": "a", "type": kind}, {"name": "b", "type": f"R{number - 1}"}]
        kind = {"type": "record", "name": f"R{number}", "fields": parts}
    with pytest.raises(InvalidArgumentError, match="more than 10,000 fields"):
        arrow_of_avro(json.dumps(kind))
    assert ValueSchema("AVRO", json.dumps(kind)).text(b"") == ""
    written = json.dumps(schema(kind, "int"))
    found = codec(schema("int")).decode(pa.array([b"\2"]), ParseMode.PERMISSIVE, str, written)
    assert found.to_pylist() == [None]


def test_an_integer_without_an_end_is_refused() -> None:
    check = check_of_bounds(fastavro.parse_schema(schema(array("null"))))
    assert check is not None
    with pytest.raises(ValueError, match="more than 10 bytes"):
        check(b"\xff" * 5_000_000)


def test_some_levels_are_read() -> None:
    value = b"\2" * 100 + b"\0"
    assert ValueSchema("AVRO", json.dumps(NODE)).text(value).startswith('{"next": {"next": ')


@pytest.mark.parametrize("items", BOUND)
def test_items_with_bytes_need_no_check(items: object) -> None:
    assert check_of_bounds(fastavro.parse_schema(schema(array(items)))) is None


def test_names_are_known_where_they_are_used() -> None:
    kind = schema(
        FREE[1], array("E"), {"type": "record", "name": "R", "fields": [{"name": "a", "type": array("E")}]}, "R"
    )
    check = check_of_bounds(fastavro.parse_schema(kind))
    assert check is not None
    check(encoded(kind, {"f0": {}, "f1": [{}], "f2": {"a": [{}]}, "f3": {"a": []}}))
    with pytest.raises(ValueError, match="take no bytes"):
        check(b"\0\0" + long(65) + b"\0")


KINDS = schema(array("null"), *BOUND, *(array(each) for each in ("int", "string")))


@given(st.data())
def test_all_values_of_a_schema_pass(data: st.DataObject) -> None:
    row = {
        "f0": [None] * data.draw(st.integers(0, FREE_ITEMS)),
        "f1": data.draw(st.text(max_size=100)),
        "f2": data.draw(st.booleans()),
        "f3": data.draw(st.floats(allow_nan=False)),
        "f4": data.draw(st.none() | st.integers(-(1 << 31), (1 << 31) - 1)),
        "f5": data.draw(st.binary(min_size=3, max_size=3)),
        "f6": "A",
        "f7": dict.fromkeys(data.draw(st.lists(st.text(max_size=5), max_size=5))),
        "f8": data.draw(st.lists(st.integers(0, 9))),
        "f9": {"a": None, "b": data.draw(st.integers(-(1 << 63), (1 << 63) - 1))},
        "f10": data.draw(st.lists(st.integers(0, 1 << 30))),
        "f11": data.draw(st.lists(st.text(max_size=5))),
    }
    check = check_of_bounds(fastavro.parse_schema(KINDS))
    assert check is not None
    check(encoded(KINDS, row))


@given(st.binary(max_size=60))
def test_random_bytes_are_a_datum_or_refused(value: bytes) -> None:
    parsed = fastavro.parse_schema(KINDS)
    check = check_of_bounds(parsed)
    assert check is not None
    try:
        check(value)
    except (ValueError, LookupError):
        return
    assert len(fastavro.schemaless_reader(io.BytesIO(value), parsed, None)["f0"]) <= FREE_ITEMS  # type: ignore[index,arg-type,call-overload]
