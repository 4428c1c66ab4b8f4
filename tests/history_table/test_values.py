"""The columns of values: types as in Spark, and their places in a table whose schema has changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pulsar_on_spark.datasource.value_types import topic_value_schema
from pulsar_on_spark.history_table.columns import SYSTEM
from pulsar_on_spark.history_table.values import (
    BYTES,
    ValueColumns,
    delta_types,
    placed,
    value_columns,
    with_columns,
)
from pulsar_on_spark.metadata.records import SchemaRecord
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.topic.catalog.writer_schemas import WriterSchemas

WRITERS = WriterSchemas(Path("/nowhere"))
SYSTEM_COLUMNS = [{"name": name, "type": kind} for name, kind in delta_types(SYSTEM).items()]


def schema(fields: list[dict[str, Any]], kind: str = "AVRO") -> SchemaRecord:
    text = json.dumps({"type": "record", "name": "R", "fields": fields})
    return SchemaRecord(name="n", topic_id="t", version=3, type=kind, data=text)


def fields(**types: Any) -> list[dict[str, Any]]:
    return [{"name": name, "type": kind} for name, kind in types.items()]


ALL = fields(
    i="int",
    f="float",
    b="bytes",
    t={"type": "long", "logicalType": "timestamp-millis"},
    n={"type": "array", "items": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
    m={"type": "map", "values": "int"},
    d={"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
    s={"type": "record", "name": "S", "fields": fields(x="int")},
)


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_values_are_decoded_as_spark_reads_them(kind: str) -> None:
    decoder = value_columns(schema(ALL, kind), WRITERS).decoder
    assert decoder is not None
    assert decoder.codec == topic_value_schema(kind, schema(ALL).data).codec


def test_numbers_are_stored_wide() -> None:
    columns = value_columns(schema(ALL), WRITERS).columns
    assert [columns.field(name).type for name in "ift"] == [pa.int64(), pa.float64(), pa.timestamp("us", "UTC")]


@pytest.mark.parametrize("without", [None, schema([]), schema(ALL, "PROTOBUF"), schema(fields(u=["int", "string"]))])
def test_other_schemas_are_bytes(without: SchemaRecord | None) -> None:
    assert value_columns(without, WRITERS) == ValueColumns(None, BYTES)


@pytest.mark.parametrize("kind", ["null", {"type": "long", "logicalType": "local-timestamp-micros"}])
def test_what_delta_has_no_type_for_is_refused_inside_others(kind: object) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot store"):
        value_columns(schema(fields(a={"type": "array", "items": kind})), WRITERS)


def place(table: dict[str, str], **types: str) -> list[str]:
    values = value_columns(schema(fields(**types)), WRITERS)
    there = [*({"name": name, "type": kind} for name, kind in table.items()), *SYSTEM_COLUMNS]
    return placed(values, there, 3).columns.names


def test_a_field_has_the_column_of_its_name_and_type() -> None:
    assert place({}, a="int") == ["a"]
    assert place({"a": "long"}, a="int") == ["a"]
    assert place({"A": "long"}, a="int") == ["A"]
    assert place({"a": "long"}, a="string") == ["a__v3"]
    assert place({"a": "long", "a__v1": "string"}, a="string") == ["a__v1"]


def test_two_fields_never_share_a_column() -> None:
    assert place({"a": "long", "a__v3": "string"}, a__v3="string", a="string") == ["a__v3", "a__v3__v3"]
    assert place({}, __key="bytes") == ["__key__v3"]
    with pytest.raises(InvalidArgumentError, match="case of letters"):
        place({}, a="int", A="int")


def test_new_columns_come_before_those_of_messages() -> None:
    changed = with_columns(pa.schema([("a", pa.int64()), ("b", pa.string())]), [{"name": "a"}, *SYSTEM_COLUMNS])
    assert changed is not None
    assert [column["name"] for column in changed] == ["a", "b", *SYSTEM.names]
    assert with_columns(pa.schema([("a", pa.int64())]), changed) is None
