"""The columns of `history()`, each with one name and one type for the history table's rows and the topic's messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pyspark.sql import Column, functions
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from pulsar_on_spark.history_table.columns import SYSTEM
from pulsar_on_spark.history_table.sql import quoted
from pulsar_on_spark.history_table.values import (
    BYTES,
    columns_of,
    described,
    field_of,
    is_system,
    stored_columns,
    unused,
    version_of,
)
from pulsar_on_spark.metadata.records import SchemaRecord

Conversion: TypeAlias = Callable[[Column], Column]
FIELD_PREFIX: Final = "value."
"""Value of the option `fieldPrefix` for reads of the topic, so that no field has the name of a metadata column."""
_UNCAST: Final = (StructType, ArrayType, MapType, BinaryType)
_EPOCH: Final = "TIMESTAMP_NTZ'1970-01-01 00:00:00'"


@dataclass(frozen=True, slots=True)
class HistoryColumn:
    """A column of `history()`, and its sources in the history table and in the topic.

    Attributes:
        name: The column's name.
        kind: The column's type.
        table: The expression over the history table's columns; None if the table has no such column.
        topic: The column's name in a read of the topic, where fields have the prefix `FIELD_PREFIX`; None if the topic
            has no such column.
    """

    name: str
    kind: DataType
    table: Column | None
    topic: str | None

    def of_table(self) -> Column:
        """Return the expression for this column over a frame of the history table; null if the table lacks it."""
        return self._null() if self.table is None else self.table.alias(self.name)

    def of_topic(self, columns: Mapping[str, tuple[Column, DataType]]) -> Column:
        """Return the expression for this column over a frame of the topic; null if the topic lacks it.

        Args:
            columns: The columns of the frame of the topic, with their types, by name.
        """
        if self.topic is None:
            return self._null()
        column, kind = columns[self.topic]
        convert = _conversion(kind, self.kind)
        assert convert is not None, "each field has a stored type"
        return convert(column).alias(self.name)

    def _null(self) -> Column:
        return functions.lit(None).cast(self.kind).alias(self.name)


def history_columns(schema: SchemaRecord | None, table: Sequence[Mapping[str, Any]]) -> list[HistoryColumn]:
    """Return all columns: fields of the topic's latest schema, other columns of the history table, metadata columns.

    If the type of a field has changed, the history table has a column for each type. The values of such columns are
    converted and merged into the field's column; a column whose type cannot be converted stays a column of its own.

    Args:
        schema: The topic's latest schema; None without a schema.
        table: The history table's columns as Delta's JSON; empty without a table.

    Raises:
        InvalidArgumentError: a field of the schema cannot be stored in Delta.
    """
    made: list[HistoryColumn] = []
    merged: set[str] = set()
    used = {name.lower() for name in SYSTEM.names}
    stored = stored_columns(schema)
    prefix = "" if stored is BYTES else FIELD_PREFIX
    for field in described(stored):
        kind = _kind(field)
        there = columns_of(field_of(field), table)
        parts = {each["name"]: _conversion(_kind(each), kind) for each in there}
        values = {name: convert(functions.col(quoted(name))) for name, convert in parts.items() if convert is not None}
        merged |= values.keys()
        name = unused(field["name"], min(map(version_of, [field, *there])), used)
        made.append(HistoryColumn(name, kind, _first(list(values.values())), prefix + field["name"]))
    for column in table:
        if column["name"] not in merged and not is_system(column):
            name = unused(column["name"], version_of(column), used)
            made.append(HistoryColumn(name, _kind(column), functions.col(quoted(column["name"])), None))
    made.extend(
        HistoryColumn(each.name, each.dataType, functions.col(each.name), each.name)
        for each in from_arrow_schema(SYSTEM)
    )
    return made


def _first(columns: Sequence[Column]) -> Column | None:
    """Return the expression for the first value in `columns` that is not null; None without columns.

    A single column is returned unchanged, because Spark does not push down filters on a `coalesce`.
    """
    return functions.coalesce(*columns) if len(columns) > 1 else next(iter(columns), None)


def _kind(column: Mapping[str, Any]) -> DataType:
    return StructField.fromJson(dict(column)).dataType


def _conversion(kind: DataType, wanted: DataType) -> Conversion | None:
    """Return the conversion of values from type `kind` to type `wanted`; None if the types cannot be converted.

    A single value that cannot be converted becomes null. Records are converted field by field, by the fields' names.
    """
    if kind == wanted:
        return lambda column: column
    if isinstance(kind, StructType) and isinstance(wanted, StructType):
        return _of_records(kind, wanted)
    if isinstance(kind, ArrayType) and isinstance(wanted, ArrayType):
        element = _conversion(kind.elementType, wanted.elementType)
        return None if element is None else lambda column: functions.transform(column, element)
    if isinstance(kind, MapType) and isinstance(wanted, MapType):
        item = _conversion(kind.valueType, wanted.valueType)
        return None if item is None else lambda column: functions.transform_values(column, lambda _, value: item(value))
    if isinstance(kind, TimestampNTZType) and isinstance(wanted, LongType):
        return lambda column: functions.timestamp_diff("MICROSECOND", functions.expr(_EPOCH), column)
    return (lambda column: column.try_cast(wanted)) if _is_castable(kind, wanted) else None


def _of_records(kind: StructType, wanted: StructType) -> Conversion | None:
    """Return the conversion of records; None if the types of a common field cannot be converted."""
    parts: dict[str, Conversion] = {}
    for field in wanted:
        if field.name in kind.names:
            part = _conversion(kind[field.name].dataType, field.dataType)
            if part is None:
                return None
            parts[field.name] = part

    def convert(column: Column) -> Column:
        fields = (
            parts[field.name](column.getField(field.name))
            if field.name in parts
            else functions.lit(None).cast(field.dataType)
            for field in wanted
        )
        record = functions.struct(*(part.alias(field.name) for part, field in zip(fields, wanted, strict=True)))
        return functions.when(column.isNotNull(), record)

    return convert


def _is_castable(kind: DataType, wanted: DataType) -> bool:
    if isinstance(kind, NullType):
        return True
    if isinstance(kind, _UNCAST) or isinstance(wanted, _UNCAST):
        return False
    are_numbers = isinstance(kind, NumericType) and isinstance(wanted, NumericType)
    return are_numbers or isinstance(kind, StringType) or isinstance(wanted, StringType)
