"""The columns of a topic's values: by the fields of its schema, or one column of bytes.

A table keeps the columns of earlier schemas. The metadata of a column name its field, and the schema version that it
was made for; its own name is the field's or, if that is taken, `<name>__v<schema version>`. A field goes to its column
of the right type. Integers are stored as bigint and floats as double, so that widening a field needs no new column;
local times are stored as bigint, too, and fields that are always null as string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from pulsar_on_spark.history_table.columns import SYSTEM, VALUE
from pulsar_on_spark.metadata.log.creation import schema_json
from pulsar_on_spark.metadata.records import SchemaRecord
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.topic.catalog.value_decoder import AVRO, ValueDecoder
from pulsar_on_spark.topic.catalog.writer_schemas import WriterSchemas
from pulsar_on_spark.topic.entries.values.avro_schemas import arrow_of_avro
from pulsar_on_spark.topic.entries.values.nested_casts import cast_nested
from pulsar_on_spark.topic.entries.values.values import ParseMode, ValueCodec

_ILLEGAL: Final = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that Delta does not allow in the names of columns."""


@dataclass(frozen=True)
class ValueColumns:
    """The columns of values in one build.

    Attributes:
        decoder: The decoder of typed values; None if the only column has the bytes.
        columns: The columns of the fields, in the order of the fields.
    """

    decoder: ValueDecoder | None
    columns: pa.Schema

    @property
    def segment_columns(self) -> tuple[str, ...]:
        """The columns of segments that `arrays` needs."""
        return (VALUE,) if self.decoder is None else self.decoder.segment_columns

    def arrays(self, batch: pa.RecordBatch, topic: str) -> list[pa.Array]:
        """Return the columns of a topic's messages; malformed values are null."""
        if self.decoder is None:
            return [batch.column(VALUE)]
        fields = self.decoder.decode(batch, topic, str).flatten()
        pairs = zip(fields, self.columns, strict=True)
        return [cast_nested(array, column.type) for array, column in pairs]


FIELD: Final = "pulsarpyField"
"""Key in a column's metadata: the name of its field; "" for the bytes of whole values."""
VERSION: Final = "pulsarpyVersion"
"""Key in a column's metadata: the version of the schema that it was made for."""
BYTES: Final = pa.schema([pa.field(VALUE, pa.binary(), metadata={FIELD: "", VERSION: "0"})])


def value_columns(schema: SchemaRecord | None, writers: WriterSchemas) -> ValueColumns:
    """Return the columns for a topic's latest schema, under the names of its fields.

    A schema that has no Spark columns is treated like none, as in `format("pulsarpy")`.

    Raises:
        InvalidArgumentError: a field cannot be stored in Delta.
    """
    columns, fields = stored_columns(schema), _fields(schema)
    if schema is None or fields is None:
        return ValueColumns(None, columns)
    is_avro = schema.type == AVRO
    codec = ValueCodec("avro", fields, schema.data) if is_avro else ValueCodec("json", fields)
    return ValueColumns(ValueDecoder(codec, ParseMode.PERMISSIVE, writers if is_avro else None), columns)


def stored_columns(schema: SchemaRecord | None) -> pa.Schema:
    """Return the columns of `value_columns` alone (raises as it)."""
    fields = _fields(schema)
    if schema is None or fields is None:
        return BYTES
    version = str(schema.version)
    return pa.schema(
        pa.field(field.name, _stored(field.name, field.type), metadata={FIELD: field.name, VERSION: version})
        for field in fields
    )


def _fields(schema: SchemaRecord | None) -> pa.StructType | None:
    """Return the fields of a schema as Spark reads them; None if values are bytes for Spark."""
    if schema is None or schema.type not in (AVRO, "JSON"):
        return None
    try:
        declared = arrow_of_avro(schema.data, logical_types=schema.type == AVRO)
    except InvalidArgumentError:
        return None
    names = [field.name for field in declared]
    return _as_spark(declared) if names and len(set(names)) == len(names) else None


def placed(values: ValueColumns, table: Sequence[Mapping[str, Any]]) -> ValueColumns:
    """Give fields the names of their columns in a table.

    Args:
        values: The fields, under their own names.
        table: The table's columns, as Delta's JSON.
    """
    used = {name.lower() for name in (*SYSTEM.names, *(column["name"] for column in table))}
    columns: list[pa.Field] = []
    for field, wanted in zip(values.columns, described(values.columns), strict=True):
        same = [each["name"] for each in columns_of(field_of(wanted), table) if each["type"] == wanted["type"]]
        legal = _ILLEGAL.sub("_", field.name)
        columns.append(field.with_name(same[0] if same else unused(legal, version_of(wanted), used)))
    return ValueColumns(values.decoder, pa.schema(columns))


def unused(name: str, version: int, used: set[str]) -> str:
    """Return a name that differs from used ones in more than the case of letters, and add it to them in lower case."""
    while name.lower() in used:
        name = f"{name}__v{version}"
    used.add(name.lower())
    return name


def columns_of(field: str | None, table: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the columns, given as Delta's JSON, that a table has for a field."""
    return [column for column in table if not is_system(column) and field_of(column) == field]


def is_system(column: Mapping[str, Any]) -> bool:
    """Return True for a column that every table has."""
    return column["name"] in SYSTEM.names


def field_of(column: Mapping[str, Any]) -> str | None:
    """Return the name of a column's field; "" for the bytes of whole values, None if another program has made it."""
    name: str | None = column["metadata"].get(FIELD)
    return name


def version_of(column: Mapping[str, Any]) -> int:
    """Return the version of the schema that a column was made for."""
    return int(column["metadata"].get(VERSION, 0))


def described(columns: pa.Schema) -> list[Mapping[str, Any]]:
    """Return columns as Delta's JSON, each by itself: before they are placed, names may differ in case alone."""
    return [json.loads(schema_json(pa.schema([column])))["fields"][0] for column in columns]


def with_columns(values: pa.Schema, table: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]] | None:
    """Return a table's columns with new ones of values before the others; None if the table has them all."""
    known = {column["name"] for column in table}
    new = [column for column in described(values) if column["name"] not in known]
    first = next(position for position, column in enumerate(table) if is_system(column))
    return [*table[:first], *new, *table[first:]] if new else None


def _stored(name: str, kind: pa.DataType) -> pa.DataType:
    """Return the type in which a field, or a part of it, is stored."""
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        if not names or len({each.lower() for each in names}) < len(names) or any(map(_ILLEGAL.search, names)):
            raise InvalidArgumentError(
                f"The record {name!r} has no fields, or fields ({', '.join(names)}) whose names Delta does not allow, "
                "because of their characters or because they differ only in the case of letters: change the schema, or "
                "keep no history of the topic."
            )
        return pa.struct([(field.name, _stored(f"{name}.{field.name}", field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _stored(name, kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, pa.field("value", _stored(name, kind.item_type)))
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_floating(kind):
        return pa.float64()
    is_local = pa.types.is_timestamp(kind) and kind.tz is None
    return pa.int64() if pa.types.is_integer(kind) or is_local else kind


def _as_spark(kind: pa.DataType) -> pa.DataType:
    """Return a type as pyspark's `to_arrow_type` makes it of Spark's: all nullable, times in microseconds."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _as_spark(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _as_spark(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_as_spark(kind.key_type), pa.field("value", _as_spark(kind.item_type)))
    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else kind
