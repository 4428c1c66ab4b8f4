"""The columns of a topic's values in its history table: one for each field of the schema, or one with the bytes.

A table keeps the columns of earlier schemas. The metadata of a column have the name of its field, and the schema
version for which the column was made. The column's name is the field's name or, if that is taken,
`<name>__v<schema version>`. A field is written to its column of the same type. Integers are stored as bigint and floats
as double, so that a wider type of a field needs no new column. Local times are stored as bigint, and fields that are
always null as string.
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

_ILLEGAL: Final = re.compile(r"[ ,;{}()\n\t=\0]")
"""Pattern of the characters that Delta does not allow in the names of columns, and NUL, which ends names in Arrow's C
interface."""


@dataclass(frozen=True)
class ValueColumns:
    """The columns of values in one build.

    Attributes:
        decoder: The decoder of typed values; None if one column has the values' bytes.
        columns: The columns of the fields, in the order of the fields.
    """

    decoder: ValueDecoder | None
    columns: pa.Schema

    @property
    def segment_columns(self) -> tuple[str, ...]:
        """The names of the columns of segments that `arrays` needs."""
        return (VALUE,) if self.decoder is None else self.decoder.segment_columns

    def arrays(self, batch: pa.RecordBatch, topic: str) -> list[pa.Array]:
        """Return the arrays for `columns` from a batch of a topic's messages; malformed values are null."""
        if self.decoder is None:
            return [batch.column(VALUE)]
        fields = self.decoder.decode(batch, topic, str).flatten()
        pairs = zip(fields, self.columns, strict=True)
        return [cast_nested(array, column.type) for array, column in pairs]


FIELD: Final = "pulsarpyField"
"""Key in a column's metadata, under which the name of its field is stored; "" for a column of whole values' bytes."""
VERSION: Final = "pulsarpyVersion"
"""Key in a column's metadata, under which the version of the schema is stored for which the column was made."""
BYTES: Final = pa.schema([pa.field(VALUE, pa.binary(), metadata={FIELD: "", VERSION: "0"})])


def value_columns(schema: SchemaRecord | None, writers: WriterSchemas) -> ValueColumns:
    """Return the columns for a topic's latest schema (None without one), under the names of its fields.

    Values with a schema that cannot be expressed in Spark columns are bytes, as in `format("pulsarpy")`.

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
    """Return only the columns of `value_columns`, without a decoder; `schema` and errors are as for it."""
    fields = _fields(schema)
    if schema is None or fields is None:
        return BYTES
    version = str(schema.version)
    return pa.schema(
        pa.field(field.name, _stored(field.name, field.type), metadata={FIELD: field.name, VERSION: version})
        for field in fields
    )


def _fields(schema: SchemaRecord | None) -> pa.StructType | None:
    """Return the fields of a schema in the types of `format("pulsarpy")`; None if the values are read as bytes."""
    if schema is None or schema.type not in (AVRO, "JSON"):
        return None
    try:
        declared = arrow_of_avro(schema.data, logical_types=schema.type == AVRO)
    except InvalidArgumentError:
        return None
    names = [field.name for field in declared]
    return _as_spark(declared) if names and len(set(names)) == len(names) else None


def placed(values: ValueColumns, table: Sequence[Mapping[str, Any]]) -> ValueColumns:
    """Return the columns of values under the names that they have, or are to have, in a table.

    Args:
        values: The columns, under the names of their fields.
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
    """Return `name`, with a suffix for the schema version if it is used, ignoring case; add it to `used`.

    The names in `used` are in lower case.
    """
    while name.lower() in used:
        name = f"{name}__v{version}"
    used.add(name.lower())
    return name


def columns_of(field: str | None, table: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the columns whose `field_of` is `field`, which may be None, from a table's columns as Delta's JSON."""
    return [column for column in table if not is_system(column) and field_of(column) == field]


def is_system(column: Mapping[str, Any]) -> bool:
    """Return True if a column, given as Delta's JSON, is one of `SYSTEM`, which every table has."""
    return column["name"] in SYSTEM.names


def field_of(column: Mapping[str, Any]) -> str | None:
    """Return the name of a column's field; "" for the bytes of whole values, None for a column of another program."""
    name: str | None = column["metadata"].get(FIELD)
    return name


def version_of(column: Mapping[str, Any]) -> int:
    """Return the version of the schema for which a column was made; 0 if it is not recorded."""
    return int(column["metadata"].get(VERSION, 0))


def described(columns: pa.Schema) -> list[Mapping[str, Any]]:
    """Return columns as Delta's JSON. Their names may differ only in case, which one schema in Delta cannot have."""
    # The name is given again, because it ends at a NUL in Arrow's C interface, by which Delta's library gets it.
    return [{**json.loads(schema_json(pa.schema([column])))["fields"][0], "name": column.name} for column in columns]


def with_columns(values: pa.Schema, table: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]] | None:
    """Return a table's columns with the new columns of values added; None if the table has all of them."""
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
                "because of their characters or because they differ only in upper and lower case: change the topic's "
                "schema, or keep no history of the topic."
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
    """Return a type as pyspark's `to_arrow_type` returns it: all fields nullable, times in microseconds."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _as_spark(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _as_spark(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_as_spark(kind.key_type), pa.field("value", _as_spark(kind.item_type)))
    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else kind
