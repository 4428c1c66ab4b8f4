"""Conversion of Avro values to Arrow structs and back. A value is one datum without a file header, as in Pulsar."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

import fastavro
import pyarrow as pa
from fastavro.read import SchemaResolutionError
from fastavro.types import Schema

from pulsar_on_spark.model.errors import IncompatibleSchemaError, InvalidArgumentError
from pulsar_on_spark.topic.entries.values.avro_bounds import check_of_bounds
from pulsar_on_spark.topic.entries.values.avro_schemas import Json, arrow_of_avro, decimal_type
from pulsar_on_spark.topic.entries.values.nested_casts import cast_nested

_NESTED = ("type", "items", "values", "fields")
"""Attributes of a schema that contain further schemas."""
_RECORDS = ("record", "error")
_UNFIT = (pa.ArrowException, OverflowError)
"""Errors of Arrow for a value that does not fit its type."""
_UNREADABLE = (EOFError, LookupError, ValueError, OverflowError, TypeError, MemoryError, SchemaResolutionError)
"""Errors of fastavro for bytes that are not a datum of the schema."""


def decode_avro(
    values: pa.BinaryArray,
    arrow_type: pa.StructType,
    avro_schema: str,
    on_bad_row: Callable[[int, str], None],
    writer_schema: str | None = None,
) -> pa.StructArray:
    """Return a struct for each row; null where the value is null or is not a datum of the schema.

    A field is null if its value is outside the range of its Arrow type.

    Args:
        values: One Avro datum for each row.
        arrow_type: The wanted fields of the schema, with every field nullable and times in any unit.
        avro_schema: The record schema as JSON text.
        on_bad_row: Called with the number of a row that does not fit, and the reason; may raise.
        writer_schema: The schema that the values were written with, if it differs; None for `avro_schema`. Avro's
            resolution rules apply.
    """
    if writer_schema is None or writer_schema == avro_schema:
        written, read = _parsed(avro_schema), None
    else:
        written, read = _parsed(writer_schema), _reader(avro_schema, writer_schema)
    check = _check(writer_schema or avro_schema)
    rows: list[object] = []
    for number, value in enumerate(values.to_pylist()):
        row: object = None
        if value is not None:
            stream = io.BytesIO(value)
            try:
                if check is not None:
                    check(value)
                row = fastavro.schemaless_reader(stream, written, read)
                if stream.tell() != len(value):
                    on_bad_row(number, f"{len(value) - stream.tell()} bytes are left over")
                    row = None
            except _UNREADABLE as error:
                on_bad_row(number, f"it is not a datum of that schema ({type(error).__name__}: {error})")
        rows.append(row)
    declared = _nullable(arrow_of_avro(avro_schema))
    annotated = pa.struct([declared.field(field.name) for field in arrow_type])
    try:
        return _converted(rows, annotated, arrow_type)
    except _UNFIT:
        return _by_fields(rows, annotated, arrow_type, on_bad_row)


def _converted(values: list[Any], annotated: pa.DataType, wanted: pa.DataType) -> pa.Array:
    return cast_nested(cast_nested(pa.array(values, _stored(annotated)), annotated), wanted)


def _by_fields(
    rows: list[Any], annotated: pa.StructType, wanted: pa.StructType, on_bad_row: Callable[[int, str], None]
) -> pa.StructArray:
    """Convert rows field by field, with null for a value outside its type's range, such as a time in year 300,000."""

    def convert(values: list[Any], first: int, kinds: tuple[pa.Field, pa.Field]) -> pa.Array:
        try:
            return _converted(values, kinds[0].type, kinds[1].type)
        except _UNFIT as error:
            if len(values) == 1:
                on_bad_row(first, f"its field {kinds[0].name!r} is beyond {kinds[0].type} ({error})")
                return pa.nulls(1, kinds[1].type)
        half = len(values) // 2
        return pa.concat_arrays([convert(values[:half], first, kinds), convert(values[half:], first + half, kinds)])

    columns = [
        convert([None if row is None else row[kinds[0].name] for row in rows], 0, kinds)
        for kinds in zip(annotated, wanted, strict=True)
    ]
    return pa.StructArray.from_arrays(columns, fields=list(wanted), mask=pa.array([row is None for row in rows]))


def encode_avro(structs: pa.StructArray, avro_schema: str) -> pa.BinaryArray:
    """Return an Avro datum for each row; null where the row is null.

    Raises:
        IncompatibleSchemaError: a row lacks a required field, or a field has another type.
    """
    schema, annotated = _parsed(avro_schema), _nullable(arrow_of_avro(avro_schema))
    columns = dict(zip((field.name for field in structs.type), structs.flatten(), strict=True))
    arrays = []
    for field in annotated:
        column = columns.get(field.name, pa.nulls(len(structs), field.type))
        try:
            arrays.append(column.cast(field.type, safe=not pa.types.is_temporal(field.type)).cast(_stored(field.type)))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise IncompatibleSchemaError(
                f"Field {field.name!r} is {column.type}, which does not fit the topic's Avro schema ({error}): cast it."
            ) from error
    names = [field.name for field in annotated]
    stored = pa.StructArray.from_arrays(arrays, names, mask=structs.is_null() if structs.null_count else None)
    return pa.array([_datum(row, schema) for row in stored.to_pylist(maps_as_pydicts="strict")], pa.binary())


def _datum(row: object, schema: Schema) -> bytes | None:
    """Return a row as an Avro datum; None for a null row."""
    if row is None:
        return None
    stream = io.BytesIO()
    try:
        fastavro.schemaless_writer(stream, schema, row)
    except (ValueError, TypeError, KeyError, OverflowError, AttributeError) as error:
        raise IncompatibleSchemaError(
            f"The row {str(row)[:200]} does not fit the Avro schema ({type(error).__name__}: {error}): correct it."
        ) from error
    return stream.getvalue()


@lru_cache(maxsize=64)
def _parsed(avro_schema: str) -> Schema:
    try:
        return fastavro.parse_schema(cast(Schema, _plain(json.loads(avro_schema))))
    except (ValueError, fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise InvalidArgumentError(
            f"The Avro schema is not valid ({error}): give the JSON text of a record schema."
        ) from error


@lru_cache(maxsize=64)
def _check(avro_schema: str) -> Callable[[bytes], None] | None:
    """Return the check of values before they are decoded, as `check_of_bounds`; None if none is needed."""
    return check_of_bounds(_parsed(avro_schema))


@lru_cache(maxsize=64)
def _reader(avro_schema: str, writer_schema: str) -> Schema:
    """Return the schema with aliases by which its records can read the writer's records of any name, as in Pulsar.

    fastavro requires matching names. If a schema has a Spark type, no union has two records, so their names are not
    needed to tell records apart.
    """
    names = sorted(_record_names(cast(Json, _parsed(writer_schema))))
    return fastavro.parse_schema(cast(Schema, _with_aliases(_plain(json.loads(avro_schema)), names)))


def _record_names(schema: Json) -> set[str]:
    """Return the full names of the records in a parsed schema."""
    if isinstance(schema, list):
        return {name for part in schema for name in _record_names(part)}
    if not isinstance(schema, dict):
        return set()
    names = {name for part in _NESTED if part in schema for name in _record_names(schema[part])}
    return names | {str(schema["name"])} if schema.get("type") in _RECORDS else names


def _with_aliases(schema: Json, names: list[str]) -> Json:
    if isinstance(schema, list):
        return [_with_aliases(part, names) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _with_aliases(part, names) if name in _NESTED else part for name, part in schema.items()}
    if made.get("type") in _RECORDS:
        made["aliases"] = list[Json](names)
    return made


def _plain(schema: Json) -> Json:
    """Return the schema with no logical type except decimal: other values are read as the annotated type, then cast."""
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    is_kept = decimal_type(schema) is not None
    return {
        name: _plain(part) if name in _NESTED else part
        for name, part in schema.items()
        if name != "logicalType" or is_kept
    }


def _stored(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type of the values that fastavro reads and writes: times are numbers in them."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date(kind):
        return pa.int32()
    return _rebuilt(kind, _stored)


def _nullable(kind: pa.DataType) -> pa.DataType:
    """Return the type with every field and element nullable."""
    return _rebuilt(kind, _nullable)


def _rebuilt(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, change(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", change(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), change(kind.item_type))
    return kind
