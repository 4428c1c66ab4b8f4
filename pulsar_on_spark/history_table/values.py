"""The columns of a topic's values: by the fields of its schema, or one column of bytes.

A table keeps the columns of earlier schemas. A field goes to the column of its name and type; a field whose type has
changed gets a column `<name>__v<schema version>`. Integers are stored as bigint and floats as double, so that widening
a field needs no new column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from pulsar_on_spark.history_table.columns import SYSTEM, VALUE
from pulsar_on_spark.metadata.log.creation import schema_json
from pulsar_on_spark.metadata.records import SchemaRecord
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.topic.catalog.value_decoder import AVRO, ValueDecoder
from pulsar_on_spark.topic.catalog.writer_schemas import WriterSchemas
from pulsar_on_spark.topic.entries.message_columns import MICROSECONDS
from pulsar_on_spark.topic.entries.values.avro_schemas import arrow_of_avro
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
        kept = [array for array in fields if not pa.types.is_null(array.type)]
        return [_stored(array, column.type) for array, column in zip(kept, self.columns, strict=True)]


BYTES: Final = pa.schema([(VALUE, pa.binary())])


def value_columns(schema: SchemaRecord | None, writers: WriterSchemas) -> ValueColumns:
    """Return the columns for a topic's latest schema, under the names of its fields.

    A schema that has no Spark columns is treated like none, as in `format("pulsarpy")`.

    Raises:
        InvalidArgumentError: a field cannot be stored in Delta.
    """
    if schema is None or schema.type not in (AVRO, "JSON"):
        return ValueColumns(None, BYTES)
    try:
        declared = arrow_of_avro(schema.data, logical_types=schema.type == AVRO)
    except InvalidArgumentError:
        return ValueColumns(None, BYTES)
    fields: pa.StructType = _as_spark(declared)
    names = [field.name for field in fields]
    if not names or len(set(names)) < len(names):
        return ValueColumns(None, BYTES)
    if len({name.lower() for name in names}) < len(names):
        raise InvalidArgumentError(
            f"The fields {', '.join(names)} of {schema.name} differ only in the case of letters, which Delta does not "
            "allow: rename one, or build no history."
        )
    is_avro = schema.type == AVRO
    codec = ValueCodec("avro", fields, schema.data) if is_avro else ValueCodec("json", fields)
    columns = [(field.name, _storage_type(field)) for field in fields if not pa.types.is_null(field.type)]
    return ValueColumns(ValueDecoder(codec, ParseMode.PERMISSIVE, writers if is_avro else None), pa.schema(columns))


def placed(values: ValueColumns, table: Sequence[Mapping[str, Any]], version: int) -> ValueColumns:
    """Give fields the names of their columns in a table.

    Args:
        values: The fields, under their own names.
        table: The table's columns, as Delta's JSON.
        version: The version of the schema, for new columns of fields whose type has changed.
    """
    kinds = delta_types(values.columns)
    taken: set[str] = set()
    columns: list[tuple[str, pa.DataType]] = []
    for field in values.columns:
        name = _place(field.name, kinds[field.name], table, version, taken)
        taken.add(name.lower())
        columns.append((name, field.type))
    return ValueColumns(values.decoder, pa.schema(columns))


def _place(name: str, kind: object, table: Sequence[Mapping[str, Any]], version: int, taken: set[str]) -> str:
    there = candidates(name, table)
    for column in there:
        if column["type"] == kind and column["name"].lower() not in taken:
            return str(column["name"])
    if not there and name.lower() not in taken and not is_reserved(name):
        return name
    versioned = f"{name}__v{version}"
    return versioned if versioned.lower() not in taken else f"{versioned}__v{version}"


def candidates(name: str, table: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the columns that a table has for a field: under its name, then under its name with a version."""
    pattern = re.compile(rf"{re.escape(name)}(__v[0-9]+)?", re.IGNORECASE)
    return [column for column in table if not is_reserved(column["name"]) and pattern.fullmatch(column["name"])]


def is_reserved(name: str) -> bool:
    """Return True for the name of a column that is not of the values."""
    return name.lower() in _RESERVED


_RESERVED: Final = frozenset(name.lower() for name in SYSTEM.names)


def delta_types(columns: pa.Schema) -> dict[str, Any]:
    """Return the types of columns as Delta's JSON."""
    return {field["name"]: field["type"] for field in json.loads(schema_json(columns))["fields"]}


def with_columns(values: pa.Schema, table: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """Return a table's columns with new ones of values before the others; None if the table has them all."""
    known = {column["name"] for column in table}
    new = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in delta_types(values).items()
        if name not in known
    ]
    if not new:
        return None
    first = next(position for position, column in enumerate(table) if column["name"] == SYSTEM.names[0])
    return [*map(dict, table[:first]), *new, *map(dict, table[first:])]


def _storage_type(field: pa.Field) -> pa.DataType:
    kind = field.type
    if _ILLEGAL.search(field.name):
        raise InvalidArgumentError(
            f"The field {field.name!r} has a name that Delta does not allow: rename it, or build no history."
        )
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_timestamp(kind):
        return pa.int64() if kind.tz is None else MICROSECONDS
    _check_nested(field.name, kind)
    return kind


def _check_nested(name: str, kind: pa.DataType) -> None:
    if (pa.types.is_timestamp(kind) and kind.tz is None) or pa.types.is_null(kind):
        raise InvalidArgumentError(
            f"The field {name!r} has {kind} inside, which a history table cannot store: change the schema, or keep no "
            "history of the topic."
        )
    for number in range(kind.num_fields):
        _check_nested(name, kind.field(number).type)


def _stored(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a decoded field in its stored type; local times become microseconds since 1970 in their own zone."""
    return array if array.type == kind else array.cast(kind)


def _as_spark(kind: pa.DataType) -> pa.DataType:
    """Return a type as pyspark's `to_arrow_type` makes it of Spark's: all nullable, times in microseconds."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _as_spark(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _as_spark(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_as_spark(kind.key_type), pa.field("value", _as_spark(kind.item_type)))
    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else kind
