"""The columns of `history()`, from the history table and from the topic: one name and one type for both."""

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
"""The option `fieldPrefix` of reads of the topic, with which no field has the name of another column."""
_UNCAST: Final = (StructType, ArrayType, MapType, BinaryType)
_EPOCH: Final = "TIMESTAMP_NTZ'1970-01-01 00:00:00'"


@dataclass(frozen=True, slots=True)
class HistoryColumn:
    """A column of `history()`, and what it is made of.

    Attributes:
        name: Its name.
        kind: Its type.
        table: The expression over the table; None if the table has no such column.
        topic: The name of the topic's column, of a field with `FIELD_PREFIX`; None if the topic has no such column.
    """

    name: str
    kind: DataType
    table: Column | None
    topic: str | None

    def of_table(self) -> Column:
        """Return Spark's expression for the column in a frame of the table."""
        return self._null() if self.table is None else self.table.alias(self.name)

    def of_topic(self, columns: Mapping[str, tuple[Column, DataType]]) -> Column:
        """Return Spark's expression for the column in a frame of the topic that has these columns."""
        if self.topic is None:
            return self._null()
        column, kind = columns[self.topic]
        convert = _conversion(kind, self.kind)
        assert convert is not None, "each field has a stored type"
        return convert(column).alias(self.name)

    def _null(self) -> Column:
        return functions.lit(None).cast(self.kind).alias(self.name)


def history_columns(schema: SchemaRecord | None, table: Sequence[Mapping[str, Any]]) -> list[HistoryColumn]:
    """Return all columns: the fields of the topic's latest schema, other columns of the table, those of messages.

    A column of the table with an earlier type of a field is part of the field's column, unless its values cannot be
    converted.

    Args:
        schema: The topic's latest schema.
        table: The table's columns as Delta's JSON; empty if there is no table.

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
    """Return the value that is not null; filters on a single column are pushed down, on a `coalesce` they are not."""
    return functions.coalesce(*columns) if len(columns) > 1 else next(iter(columns), None)


def _kind(column: Mapping[str, Any]) -> DataType:
    return StructField.fromJson(dict(column)).dataType


def _conversion(kind: DataType, wanted: DataType) -> Conversion | None:
    """Return the conversion of values between two types, which makes single values null; None if there is none.

    Records are converted field by field, by their names.
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
