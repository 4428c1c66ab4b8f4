"""The columns of `format("pulsarpy")`, and their construction from the record batches of segments.

`select_columns` turns the options into a `ColumnSelection`. Its `segment_columns` are the columns that a reader must
decode, and its `spark_schema` is the result of `PulsarDataSource.schema`. `build` makes batches with exactly the Arrow
schema that pyspark 4.2.0 requires of a reader, `to_arrow_schema(spark_schema, timezone="UTC")`.

Semantics of some columns:

* `__key` has the key's bytes, even if Pulsar's clients send the key as Base64.
* `__messageProperties` is never null: in Pulsar no properties and an empty map are the same.
* `__partition` is null, and -1 inside message ids, for a topic that is not a partition.
* `__schemaVersion` is null for messages without a schema.
* A time that does not fit into Spark's microseconds is null, because clients may send any 64-bit number as event time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pulsar_on_spark.datasource.option_names import names_in
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import LedgerId
from pulsar_on_spark.model.message_ids import message_id_texts, serialized_message_ids
from pulsar_on_spark.topic.entries.message_columns import properties_of, schema_versions_of, times_of

VALUE = "value"

_CACHED_ROWS = 1 << 14


@dataclass(frozen=True, slots=True)
class _Range:
    """A record batch of a segment, with the ledger, topic and partition that its rows share."""

    batch: pa.RecordBatch
    ledger_id: LedgerId
    entry_offset: int
    topic: str
    partition: int

    def column(self, name: str) -> pa.Array:
        return self.batch.column(name)

    @property
    def entries(self) -> pa.Int64Array:
        entries = self.column("entry_id")
        return entries if self.entry_offset == 0 else pc.add(entries, pa.scalar(self.entry_offset, pa.int64()))


@dataclass(frozen=True, slots=True)
class _Column:
    spark_type: DataType
    needs: tuple[str, ...]
    build: Callable[[_Range], pa.Array]


@dataclass(frozen=True, slots=True)
class ColumnSelection:
    """The columns of one read, in order, as `select_columns` returns them. Picklable.

    Attributes:
        names: Column names as Spark sees them.
        value_type: The fields of typed values; None if `value` is bytes.
        spark_schema: The schema of the frame.
        arrow_schema: The schema that pyspark requires of every batch.
        segment_columns: The columns of `SEGMENT_SCHEMA` that `build` reads; a reader need not decode other columns.
        field_prefix: The prefix in the names of the columns of fields; the rest is the field's name.
    """

    names: tuple[str, ...]
    value_type: StructType | None
    spark_schema: StructType
    arrow_schema: pa.Schema
    segment_columns: tuple[str, ...]
    field_prefix: str

    @property
    def field_names(self) -> list[str]:
        """The names of the selected fields of typed values, without `field_prefix`."""
        return [name.removeprefix(self.field_prefix) for name in self.names if name not in _COLUMNS]

    @property
    def needs_values(self) -> bool:
        """True if a field of the typed value is selected, so that `build` needs decoded values."""
        return self.value_type is not None and VALUE in self.segment_columns


def select_columns(
    columns: str | None = None,
    *,
    include_metadata: bool = False,
    value_type: StructType | None = None,
    field_prefix: str = "",
) -> ColumnSelection:
    """Return the columns of a read.

    Args:
        columns: The option `columns`: the names of any columns, in any order; None for the default columns.
        include_metadata: The option `includeMetadata`: True to add all metadata columns to the default columns.
        value_type: The fields of typed values, which replace the column `value`; None for bytes.
        field_prefix: The option `fieldPrefix`: the prefix in the names of the columns of fields.

    Raises:
        InvalidArgumentError: `columns` is empty, names an unknown column, or names a column twice; or a field of typed
            values has the name of a metadata column or of the column `value`.
    """
    fields = {f"{field_prefix}{field.name}": field for field in value_type} if value_type is not None else {}
    types = {**({name: field.dataType for name, field in fields.items()} or {VALUE: BinaryType()}), **_metadata_types()}
    if clashing := sorted(set(fields) & set(_COLUMNS)):
        raise InvalidArgumentError(
            f"The value's field {clashing[0].removeprefix(field_prefix)!r} would be the column {clashing[0]!r}, which "
            "has another meaning: rename the field, or set option fieldPrefix, for example to 'value.'."
        )
    if columns is None:
        extra = _MORE_METADATA if include_metadata else ()
        names = (*(fields or (VALUE,)), *_DEFAULT_METADATA, *extra)
    else:
        names = _parse_names(columns, types)
    spark_schema = StructType([StructField(name, types[name], True) for name in names])
    needs = dict.fromkeys(need for name in names for need in (_COLUMNS[name].needs if name in _COLUMNS else (VALUE,)))
    return ColumnSelection(
        names=names,
        value_type=value_type,
        spark_schema=spark_schema,
        arrow_schema=to_arrow_schema(spark_schema, timezone="UTC"),
        segment_columns=tuple(needs) or ("batch_index",),
        field_prefix=field_prefix,
    )


def build(
    batch: pa.RecordBatch,
    ledger_id: LedgerId,
    entry_offset: int,
    topic: str,
    partition: int,
    selection: ColumnSelection,
    values: pa.StructArray | None = None,
) -> pa.RecordBatch:
    """Return a record batch of a segment in Spark's columns, with copies only where types differ.

    Args:
        batch: Rows in `SEGMENT_SCHEMA`, with at least the columns `selection.segment_columns`.
        ledger_id: The ledger of all rows.
        entry_offset: The number to add to the column `entry_id` to get entry ids (`SegmentRecord.entry_offset`).
        topic: The full name of the rows' topic or partition.
        partition: The partition's index; -1 for a topic without partitions.
        selection: The requested columns.
        values: The decoded values, one struct for each row, which must have the selected fields of
            `selection.value_type`; None unless `selection.needs_values`.
    """
    rows = _Range(batch, ledger_id, entry_offset, topic, partition)
    typed: Mapping[str, pa.Array] = {}
    if values is not None:
        names = (f"{selection.field_prefix}{field.name}" for field in values.type)
        typed = dict(zip(names, values.flatten(), strict=True))
    arrays = []
    for name, field in zip(selection.names, selection.arrow_schema, strict=True):
        array = typed[name] if name in typed else _COLUMNS[name].build(rows)
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=selection.arrow_schema)


def _parse_names(columns: str, known: Mapping[str, DataType]) -> tuple[str, ...]:
    by_lower = {name.lower(): name for name in known}
    names: list[str] = []
    for text in names_in(columns):
        name = text if text in known else by_lower.get(text.lower())
        if name is None:
            raise InvalidArgumentError(f"Option columns names {text!r}: give names of the columns {', '.join(known)}.")
        if name in names:
            raise InvalidArgumentError(f"Option columns names {name!r} twice: leave one out.")
        names.append(name)
    return tuple(names)


def _message_id(rows: _Range) -> pa.BinaryArray:
    batch_indexes = rows.column("batch_index")
    return serialized_message_ids(
        rows.ledger_id,
        rows.entries.to_numpy(),
        rows.partition,
        (batch_indexes.fill_null(-1) if batch_indexes.null_count else batch_indexes).to_numpy(),
    )


def _message_id_text(rows: _Range) -> pa.StringArray:
    return message_id_texts(rows.ledger_id, rows.entries, rows.partition, rows.column("batch_index"))


def _topic(rows: _Range) -> pa.StringArray:
    count = rows.batch.num_rows
    if count > _CACHED_ROWS:
        return pa.repeat(pa.scalar(rows.topic, pa.string()), count)
    return _repeated_text(rows.topic).slice(0, count)


@lru_cache(maxsize=4)
def _repeated_text(text: str) -> pa.StringArray:
    """Return a cached array that repeats `text`; to build it for each batch would take as long as all message ids."""
    return pa.repeat(pa.scalar(text, pa.string()), _CACHED_ROWS)


def _partition(rows: _Range) -> pa.Int32Array:
    index = rows.partition if rows.partition >= 0 else None
    return pa.repeat(pa.scalar(index, pa.int32()), rows.batch.num_rows)


def _properties(rows: _Range) -> pa.MapArray:
    return properties_of(rows.column("properties"))


def _schema_version(rows: _Range) -> pa.Int64Array:
    return schema_versions_of(rows.column("schema_version"))


def _time(name: str) -> Callable[[_Range], pa.TimestampArray]:
    return lambda rows: times_of(rows.column(name))


def _stored(name: str) -> Callable[[_Range], pa.Array]:
    return lambda rows: rows.column(name)


def _constant(value_of: Callable[[_Range], int], arrow_type: pa.DataType) -> Callable[[_Range], pa.Array]:
    return lambda rows: pa.repeat(pa.scalar(value_of(rows), arrow_type), rows.batch.num_rows)


_ENTRY_AND_BATCH = ("entry_id", "batch_index")
_COLUMNS: dict[str, _Column] = {
    VALUE: _Column(BinaryType(), ("value",), _stored("value")),
    "__key": _Column(BinaryType(), ("key",), _stored("key")),
    "__topic": _Column(StringType(), (), _topic),
    "__messageId": _Column(BinaryType(), _ENTRY_AND_BATCH, _message_id),
    "__publishTime": _Column(TimestampType(), ("publish_time",), _time("publish_time")),
    "__eventTime": _Column(TimestampType(), ("event_time",), _time("event_time")),
    "__messageProperties": _Column(MapType(StringType(), StringType(), True), ("properties",), _properties),
    "__messageIdStr": _Column(StringType(), _ENTRY_AND_BATCH, _message_id_text),
    "__ledgerId": _Column(LongType(), (), _constant(lambda rows: rows.ledger_id, pa.int64())),
    "__entryId": _Column(LongType(), ("entry_id",), lambda rows: rows.entries),
    "__batchIndex": _Column(IntegerType(), ("batch_index",), _stored("batch_index")),
    "__partition": _Column(IntegerType(), (), _partition),
    "__producerName": _Column(StringType(), ("producer_name",), _stored("producer_name")),
    "__sequenceId": _Column(LongType(), ("sequence_id",), _stored("sequence_id")),
    "__redeliveryCount": _Column(IntegerType(), (), _constant(lambda rows: 0, pa.int32())),
    "__schemaVersion": _Column(LongType(), ("schema_version",), _schema_version),
    "__orderingKey": _Column(BinaryType(), ("ordering_key",), _stored("ordering_key")),
    "__deliverAtTime": _Column(TimestampType(), ("deliver_at_time",), _time("deliver_at_time")),
}
METADATA_COLUMNS = tuple(name for name in _COLUMNS if name != VALUE)
"""All metadata columns, in the order of Spark's schema."""
_DEFAULT_METADATA = METADATA_COLUMNS[: METADATA_COLUMNS.index("__messageIdStr")]
_MORE_METADATA = METADATA_COLUMNS[len(_DEFAULT_METADATA) :]


def _metadata_types() -> dict[str, DataType]:
    return {name: _COLUMNS[name].spark_type for name in METADATA_COLUMNS}
