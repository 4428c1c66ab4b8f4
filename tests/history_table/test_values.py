"""The columns of values: types as in Spark, and their places in a table whose schema has changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.datasource.value_types import topic_value_schema
from pulsar_on_spark.history_table.columns import SYSTEM
from pulsar_on_spark.history_table.values import (
    BYTES,
    ValueColumns,
    described,
    field_of,
    placed,
    value_columns,
    with_columns,
)
from pulsar_on_spark.metadata.records import SchemaRecord
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.topic.catalog.writer_schemas import WriterSchemas

WRITERS = WriterSchemas(Path("/nowhere"))
SYSTEM_COLUMNS = described(SYSTEM)


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


LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}


def test_what_delta_has_no_type_for_is_stored_in_another() -> None:
    columns = value_columns(schema(fields(a="null", b={"type": "array", "items": "null"}, c=LOCAL)), WRITERS).columns
    assert columns.types == [pa.string(), pa.list_(pa.field("element", pa.string())), pa.int64()]
    nested = value_columns(
        schema(fields(r={"type": "record", "name": "S", "fields": fields(x=LOCAL, y="int")})), WRITERS
    )
    assert nested.columns.types == [pa.struct([("x", pa.int64()), ("y", pa.int64())])]


@pytest.mark.parametrize("names", [("x", "X"), ("x y",), ()])
def test_names_that_delta_does_not_allow_inside_a_record_are_refused(names: tuple[str, ...]) -> None:
    record = {"type": "record", "name": "S", "fields": fields(**dict.fromkeys(names, "int"))}
    with pytest.raises(InvalidArgumentError, match="Delta does not allow"):
        value_columns(schema(fields(r=record)), WRITERS)


class Table:
    """The columns of a table, as builds of one schema after another make them."""

    def __init__(self) -> None:
        self.columns: list[Mapping[str, Any]] = SYSTEM_COLUMNS

    def build(self, version: int, **types: Any) -> list[str]:
        text = schema(fields(**types)).model_copy(update={"version": version})
        values = placed(value_columns(text, WRITERS), self.columns).columns
        self.columns = with_columns(values, self.columns) or self.columns
        names: list[str] = values.names
        return names


def test_a_field_has_the_column_of_its_name_and_type() -> None:
    table = Table()
    assert table.build(0, a="int") == ["a"]
    assert table.build(1, a="long") == ["a"]
    assert table.build(2, a="string") == ["a__v2"]
    assert table.build(3, a="int") == ["a"]
    assert table.build(4, a="string") == ["a__v2"]
    assert table.build(5, a="boolean") == ["a__v5"]


def test_two_fields_never_share_a_column() -> None:
    table = Table()
    assert table.build(0, a="int", a__v1="string") == ["a", "a__v1"]
    assert table.build(1, a="string", a__v1="string") == ["a__v1__v1", "a__v1"]
    assert table.build(2, a__v1="int", a="string") == ["a__v1__v2", "a__v1__v1"]
    assert table.build(3, A="long", a="int", __KEY="bytes") == ["A__v3", "a", "__KEY__v3"]
    assert table.build(4, A="long", **{"a b;c": "long"}) == ["A__v3", "a_b_c"]


def test_bytes_of_whole_values_are_no_field() -> None:
    table = Table()
    assert placed(value_columns(None, WRITERS), table.columns).columns.names == ["value"]
    table.columns = with_columns(BYTES, table.columns) or []
    assert table.build(1, value="bytes") == ["value__v1"]
    assert placed(value_columns(None, WRITERS), table.columns).columns.names == ["value"]


NAMES = st.sampled_from(["a", "A", "a__v0", "a__v1", "A__V1", "a__v1__v1", "a b", "a_b", "value", "__key", "__KEY"])
SCHEMAS = st.dictionaries(NAMES, st.sampled_from(["int", "long", "string", "bytes", "null"]), max_size=5)


@given(st.lists(SCHEMAS, max_size=6))
def test_any_evolution_keeps_columns_apart(schemas: list[dict[str, Any]]) -> None:
    """An empty schema is one of bytes. A table's columns never change, and each has one field and one type."""
    columns: list[Mapping[str, Any]] = SYSTEM_COLUMNS
    for version, types in enumerate(schemas):
        text = schema(fields(**types)).model_copy(update={"version": version})
        wanted = value_columns(text, WRITERS)
        before, names = columns, placed(wanted, columns).columns.names
        columns = with_columns(placed(wanted, before).columns, before) or before
        assert [column for column in columns if column in before] == before
        assert len({column["name"].lower() for column in columns}) == len(columns)
        by_name = {column["name"]: column for column in columns}
        for field, name in zip(described(wanted.columns), names, strict=True):
            assert (field_of(by_name[name]), by_name[name]["type"]) == (field_of(field), field["type"])
        assert placed(wanted, columns).columns.names == names


def test_new_columns_come_before_those_of_messages() -> None:
    table = Table()
    table.build(0, a="int")
    table.build(1, b="string")
    assert [column["name"] for column in table.columns] == ["a", "b", *SYSTEM.names]
    assert with_columns(pa.schema([("a", pa.int64())]), table.columns) is None
