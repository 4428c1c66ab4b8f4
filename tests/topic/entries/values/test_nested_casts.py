"""Nulls inside lists, maps and records: arrays of them are valid, whatever types they are cast to."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from pulsar_on_spark.topic.entries.values.avro_schemas import arrow_of_avro
from pulsar_on_spark.topic.entries.values.nested_casts import cast_nested
from pulsar_on_spark.topic.entries.values.values import ValueCodec
from tests.topic.entries.values.test_values import decode

ARRAY = {"type": "array", "items": "null"}
RECORD = {"type": "record", "name": "N", "fields": [{"name": "x", "type": ARRAY}]}
TIMED = {"type": "record", "name": "N", "fields": [{"name": "x", "type": ARRAY}, {"name": "t", "type": "long"}]}
CASES: tuple[tuple[Any, Any], ...] = (
    (ARRAY, [None] * 20),
    ({"type": "array", "items": ARRAY}, [[None] * 4] * 5),
    ({"type": "array", "items": {"type": "map", "values": "null"}}, [{"a": None, "b": None}] * 8),
    ({"type": "array", "items": RECORD}, [{"x": [None] * 3}] * 8),
    ({"type": "map", "values": ["null", ARRAY]}, {"a": [None] * 3, "b": None}),
    ({"type": "array", "items": TIMED}, [{"x": [None] * 3, "t": 1}] * 8),
)


def schema(kind: object) -> dict[str, Any]:
    return {"type": "record", "name": "T", "fields": [{"name": "f", "type": kind}]}


def plain(value: object) -> object:
    """The value as Arrow returns it: a map is a list of pairs."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() <= {"x", "t"}:
        return {name: plain(each) for name, each in value.items()}
    return [(name, plain(each)) for name, each in value.items()]


def texts_for_nulls(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(texts_for_nulls(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, texts_for_nulls(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, texts_for_nulls(field.type)) for field in kind])
    return pa.string() if pa.types.is_null(kind) else kind


@pytest.mark.parametrize(("kind", "value"), CASES)
def test_avro_and_json(kind: object, value: object) -> None:
    text = json.dumps(schema(kind))
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema(kind)), {"f": value})
    avro = ValueCodec("avro", arrow_of_avro(text), text)
    as_json = ValueCodec("json", arrow_of_avro(text, logical_types=False))
    for codec, encoded in ((avro, stream.getvalue()), (as_json, json.dumps({"f": value}).encode())):
        assert decode(codec, [encoded, None, encoded]) == [{"f": plain(value)}, None, {"f": plain(value)}]


@pytest.mark.parametrize(("kind", "value"), CASES)
def test_nulls_become_texts(kind: object, value: object) -> None:
    found = pa.array([plain(value), None, plain(value)], arrow_of_avro(json.dumps(schema(kind))).field("f").type)
    for array, expected in ((found, found.to_pylist()), (found.slice(1), found.to_pylist()[1:])):
        made = cast_nested(array, texts_for_nulls(found.type))
        made.validate(full=True)
        assert made.to_pylist() == expected
