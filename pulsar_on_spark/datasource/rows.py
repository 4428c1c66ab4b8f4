"""The check of a frame that is to be written, and the conversion of Spark's Arrow batches to segment rows.

The writer calls `check_frame` once, when it is created, and each task calls `to_segment_rows` for every batch. Values,
keys and properties are not copied if Spark's type is the stored type.

A frame that was read from one topic can be written to another topic unchanged. Columns that only Pulsar sets
(`__messageId`, `__publishTime`, ...) are accepted and ignored, and so is `__topic` if option `topic` names the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pulsar_on_spark.datasource.columns import METADATA_COLUMNS, VALUE
from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.model.errors import IncompatibleSchemaError, InvalidArgumentError
from pulsar_on_spark.model.hashing import invalid_utf8

ROW_SCHEMA = pa.schema(
    [field for field in SEGMENT_SCHEMA if field.name not in ("ledger_id", "entry_id", "batch_index")]
)
"""`SEGMENT_SCHEMA` without the columns of message ids, which are set when rows are cut into entries and attached."""

_MILLISECONDS = pa.timestamp("ms", "UTC")
_TEXT_OR_BYTES = (StringType, BinaryType)
_TIME = (TimestampType, LongType)
_WRITABLE: Mapping[str, tuple[type[DataType], ...]] = {
    "__key": _TEXT_OR_BYTES,
    "__topic": (StringType,),
    "__orderingKey": _TEXT_OR_BYTES,
    "__eventTime": _TIME,
    "__deliverAtTime": _TIME,
    "__messageProperties": (MapType,),
}
_EXPECTED = {
    _TEXT_OR_BYTES: "string or binary",
    _TIME: "timestamp, or bigint milliseconds since 1970",
    (StringType,): "string",
    (MapType,): "map<string,string>",
}
_SEGMENT_NAMES = {
    "__key": "key",
    "__orderingKey": "ordering_key",
    "__eventTime": "event_time",
    "__deliverAtTime": "deliver_at_time",
    "__messageProperties": "properties",
}


@dataclass(frozen=True, slots=True)
class FramePlan:
    """The mapping of a frame's columns to messages, created by `check_frame`. Picklable. Positions count from 0.

    Attributes:
        value: Position of the column `value`; None if the value is encoded from `fields`.
        fields: The fields of typed values in the order of the value type, each with the position of its column; None
            for a field that the frame lacks.
        topic: Position of the column `__topic`; None if the option `topic` names the topic of all rows.
        metadata: Names and positions of the frame's writable metadata columns.
    """

    value: int | None
    fields: tuple[tuple[int | None, StructField], ...]
    topic: int | None
    metadata: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """Rows to write.

    Attributes:
        rows: The rows, in `ROW_SCHEMA`.
        topics: The name of each row's topic; None if the option `topic` names the topic of all rows.
    """

    rows: pa.RecordBatch
    topics: pa.StringArray | None


def check_frame(schema: StructType, *, has_topic_option: bool, value_type: StructType | None = None) -> FramePlan:
    """Check that a frame can be written, and return the mapping of its columns to messages.

    Column names are compared as in Spark, ignoring case. If `value_type` is None, the column `value` contains encoded
    values. With `value_type` (the topic's schema, or `valueSchema`) all columns except metadata columns are fields of
    the value. There is one exception: if the only such column is a binary column `value`, and `value_type` has no field
    of this name, the column contains encoded values.

    Raises:
        InvalidArgumentError: `value` or a topic is missing, or a column is unknown, is given twice or has a wrong type.
        IncompatibleSchemaError: the columns are not the fields of `value_type`.
    """
    positions = _positions(schema)
    for name, position in positions.items():
        if name.startswith("__"):
            _check_metadata(name, schema.fields[position].dataType)
    topic = None if has_topic_option else positions.get("__topic")
    if topic is None and not has_topic_option:
        raise InvalidArgumentError(
            "No topic is named: set the option topic, or give the frame a string column __topic."
        )
    metadata = tuple((name, positions[name]) for name in _SEGMENT_NAMES if name in positions)
    others = [name for name in positions if not name.startswith("__")]
    if value_type is not None and not _is_encoded(others, schema, positions, value_type):
        return FramePlan(None, _match_fields(schema, positions, others, value_type), topic, metadata)
    return FramePlan(_check_value(schema, positions, others), (), topic, metadata)


def to_segment_rows(
    batch: pa.RecordBatch,
    plan: FramePlan,
    *,
    producer_name: str,
    first_sequence_id: int,
    publish_time_ms: int,
    schema_version: bytes | None = None,
    encode: Callable[[pa.StructArray], pa.BinaryArray] | None = None,
) -> SegmentRows:
    """Return one of Spark's batches as segment rows.

    Args:
        batch: Columns in the order of the plan's frame.
        plan: The plan from `check_frame`.
        producer_name: The producer name of all rows.
        first_sequence_id: The sequence id of the first row; the ids of further rows count up from it.
        publish_time_ms: The publish time of all rows, in milliseconds since 1970.
        schema_version: The schema version in Pulsar's eight bytes; None for a topic without a schema.
        encode: The function that encodes structs as values; required if `plan` has fields.

    Raises:
        InvalidArgumentError: a value of the frame cannot be stored, and the error names the column; or `encode` is
            required and missing.
    """
    count = batch.num_rows
    arrays: dict[str, pa.Array] = {
        "publish_time": pa.repeat(pa.scalar(publish_time_ms, pa.int64()), count).view(_MILLISECONDS),
        "producer_name": pa.repeat(pa.scalar(producer_name, pa.string()), count),
        "sequence_id": pa.array(np.arange(first_sequence_id, first_sequence_id + count)),
        "value": _values(batch, plan, encode),
    }
    if schema_version is not None:
        arrays["schema_version"] = pa.repeat(pa.scalar(schema_version, pa.binary()), count)
    for name, position in plan.metadata:
        field = ROW_SCHEMA.field(_SEGMENT_NAMES[name])
        arrays[field.name] = _stored(batch.column(position), field.type, name)
    _check_properties(arrays.get("properties"))
    if "key" in arrays and (flagged := invalid_utf8(arrays["key"])) is not None:
        arrays["key_b64"] = flagged
    columns = [arrays[field.name] if field.name in arrays else pa.nulls(count, field.type) for field in ROW_SCHEMA]
    topics = None if plan.topic is None else _stored(batch.column(plan.topic), pa.string(), "__topic")
    if topics is not None and topics.null_count:
        raise InvalidArgumentError("Column __topic is null in a row: name a topic in each, or set the option topic.")
    return SegmentRows(pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA), topics)


def _positions(schema: StructType) -> dict[str, int]:
    canonical = {name.lower(): name for name in (VALUE, *METADATA_COLUMNS)}
    positions: dict[str, int] = {}
    for position, field in enumerate(schema.fields):
        name = canonical.get(field.name.lower(), field.name)
        if name in positions:
            raise InvalidArgumentError(f"Column {field.name!r} is in the frame twice: drop one of them.")
        positions[name] = position
    return positions


def _check_metadata(name: str, given: DataType) -> None:
    if name not in METADATA_COLUMNS:
        raise InvalidArgumentError(
            f"Column {name!r} is unknown, and names with two underscores are reserved: rename it, or use one of "
            f"{', '.join(_WRITABLE)}."
        )
    if name not in _WRITABLE or isinstance(given, NullType):
        return
    expected = _WRITABLE[name]
    fits = isinstance(given, expected)
    if isinstance(given, MapType):
        fits = fits and isinstance(given.keyType, StringType) and isinstance(given.valueType, StringType | NullType)
    if not fits:
        raise _wrong_type(name, given, _EXPECTED[expected])


def _check_value(schema: StructType, positions: Mapping[str, int], others: list[str]) -> int:
    if VALUE not in positions:
        raise InvalidArgumentError(
            "The frame has no column value (string or binary), and its topic has no schema: rename a column to value, "
            "or set valueFormat and valueSchema to write the columns as fields."
        )
    if unknown := [name for name in others if name != VALUE]:
        raise InvalidArgumentError(
            f"Column {unknown[0]!r} cannot be written beside value: drop it, or set valueFormat and valueSchema to "
            "write the columns as fields."
        )
    given = schema.fields[positions[VALUE]].dataType
    if not isinstance(given, (*_TEXT_OR_BYTES, NullType)):
        raise _wrong_type(VALUE, given, "string or binary")
    return positions[VALUE]


def _is_encoded(others: list[str], schema: StructType, positions: Mapping[str, int], value_type: StructType) -> bool:
    return (
        others == [VALUE]
        and VALUE not in value_type.names
        and isinstance(schema.fields[positions[VALUE]].dataType, BinaryType | NullType)
    )


def _match_fields(
    schema: StructType, positions: Mapping[str, int], others: list[str], value_type: StructType
) -> tuple[tuple[int | None, StructField], ...]:
    """Return each field of `value_type` with its column's position, or None for a nullable field without a column."""
    by_lower = {name.lower(): name for name in others}
    wanted = {field.name.lower() for field in value_type}
    for name in others:
        if name.lower() not in wanted:
            raise IncompatibleSchemaError(
                f"Column {name!r} is not a field of the topic's schema ({', '.join(value_type.names)}): drop it."
            )
    matched: list[tuple[int | None, StructField]] = []
    for field in value_type:
        column = by_lower.get(field.name.lower())
        if column is None and not field.nullable:
            raise IncompatibleSchemaError(
                f"The frame has no column {field.name!r}, which the topic's schema requires: add it."
            )
        position = None if column is None else positions[column]
        if position is not None:
            _check_field(schema.fields[position], field)
        matched.append((position, field))
    return tuple(matched)


def _check_field(given: StructField, wanted: StructField) -> None:
    """Check that the types are equal except for nullability, because a silent cast could lose data."""
    if isinstance(given.dataType, NullType) and wanted.nullable:
        return
    if given.dataType.simpleString() != wanted.dataType.simpleString():
        raise IncompatibleSchemaError(
            f"Column {given.name!r} is {given.dataType.simpleString()}, but the topic's schema has the type "
            f"{wanted.dataType.simpleString()}: cast the column."
        )


def _wrong_type(name: str, given: DataType, expected: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"Column {name!r} is {given.simpleString()}: cast it to {expected}.")


def _values(
    batch: pa.RecordBatch, plan: FramePlan, encode: Callable[[pa.StructArray], pa.BinaryArray] | None
) -> pa.BinaryArray:
    if plan.value is not None:
        return _stored(batch.column(plan.value), pa.binary(), VALUE)
    if encode is None:
        raise InvalidArgumentError(
            "The frame's columns are fields of a value, but their format is unknown: set option valueFormat."
        )
    present = [(batch.column(position), field.name) for position, field in plan.fields if position is not None]
    if not present:
        # Without fields, Arrow cannot know the number of structs.
        return encode(pa.array([{}] * batch.num_rows, pa.struct([])))
    return encode(pa.StructArray.from_arrays([array for array, _ in present], [name for _, name in present]))


def _stored(array: pa.Array, stored_type: pa.DataType, name: str) -> pa.Array:
    """Return the column `name` in its stored type; raise InvalidArgumentError if a value does not fit."""
    if array.type == stored_type:
        return array
    if stored_type == pa.binary() and array.type == pa.string():
        return array.view(stored_type)
    if stored_type == _MILLISECONDS:
        return _milliseconds(array)
    try:
        return array.cast(stored_type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidArgumentError(
            f"Column {name!r} does not fit the type {stored_type} ({error}): cast the column, or correct its values."
        ) from error


def _check_properties(maps: pa.MapArray | None) -> None:
    if maps is None or maps.null_count == len(maps):
        return
    first, last = maps.offsets[0].as_py(), maps.offsets[-1].as_py()
    if maps.items.slice(first, last - first).null_count:
        raise InvalidArgumentError(
            "Column '__messageProperties' has a null value, but Pulsar's properties are text: drop its key."
        )


def _milliseconds(times: pa.Array) -> pa.TimestampArray:
    """Return times in milliseconds. Times are rounded down, even before 1970, as in Spark's `unix_millis`."""
    if pa.types.is_int64(times.type):
        return times.view(_MILLISECONDS)
    if pa.types.is_null(times.type):
        return times.cast(_MILLISECONDS)
    microseconds = times.cast(pa.timestamp("us", "UTC")).view(pa.int64())
    if (pc.min(microseconds).as_py() or 0) < 0:
        microseconds = pc.subtract(microseconds, pc.if_else(pc.less(microseconds, 0), 999, 0))
    return pc.divide(microseconds, 1000).view(_MILLISECONDS)
