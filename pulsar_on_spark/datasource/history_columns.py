"""The columns of `history()`, from the history table and from the topic: one name and one type for both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, functions
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from pulsar_on_spark.datasource.options import Typed
from pulsar_on_spark.datasource.typed import typed_values
from pulsar_on_spark.history_table.columns import SYSTEM, VALUE
from pulsar_on_spark.history_table.sql import quoted
from pulsar_on_spark.history_table.values import candidates, is_reserved
from pulsar_on_spark.metadata.records import SchemaRecord

_WIDENED: Mapping[type[DataType], DataType] = {
    ByteType: LongType(),
    ShortType: LongType(),
    IntegerType: LongType(),
    FloatType: DoubleType(),
    TimestampNTZType: LongType(),
}
_NUMBERS = ("long", "double", "decimal")


@dataclass(frozen=True, slots=True)
class HistoryColumn:
    """A column of `history()`, and what it is made of.

    Attributes:
        name: Its name.
        kind: Its type.
        table: The expression over the table; None if the table has no such column.
        topic: The expression over the topic's columns; None if the topic's schema has no such field.
    """

    name: str
    kind: DataType
    table: Column | None
    topic: Column | None

    def of_table(self) -> Column:
        """Return the column over the table."""
        return self._named(self.table)

    def of_topic(self) -> Column:
        """Return the column over the topic."""
        return self._named(self.topic)

    def _named(self, column: Column | None) -> Column:
        return (functions.lit(None).cast(self.kind) if column is None else column).alias(self.name)


def history_columns(schema: SchemaRecord | None, table: Sequence[Mapping[str, Any]]) -> list[HistoryColumn]:
    """Return all columns: the fields of the topic's latest schema, other columns of the table, those of messages.

    Args:
        schema: The topic's latest schema.
        table: The table's columns as Delta's JSON; empty if there is no table.
    """
    made: list[HistoryColumn] = []
    used: set[str] = set()
    for field in _fields(schema):
        stored = _WIDENED.get(type(field.dataType), field.dataType)
        parts = [column for column in candidates(field.name, table) if _is_castable(column["type"], stored)]
        parts.sort(key=lambda column: column["type"] != stored.jsonValue())
        used |= {column["name"] for column in parts}
        made.append(HistoryColumn(field.name, stored, _merged(parts, stored), _widened(field, stored)))
    for column in table:
        if column["name"] not in used and not is_reserved(column["name"]):
            kind = StructField.fromJson(dict(column)).dataType
            made.append(HistoryColumn(column["name"], kind, functions.col(quoted(column["name"])), None))
    made.extend(
        HistoryColumn(field.name, field.dataType, functions.col(field.name), functions.col(field.name))
        for field in from_arrow_schema(SYSTEM)
    )
    return made


def _fields(schema: SchemaRecord | None) -> list[StructField]:
    typed = typed_values(Typed(None, None, "PERMISSIVE"), None if schema is None or schema.type == "NONE" else schema)
    fields = StructType([StructField(VALUE, BinaryType())]) if typed is None else typed.schema.read_type
    return [field for field in fields if not isinstance(field.dataType, NullType)]


def _merged(parts: Sequence[Mapping[str, Any]], stored: DataType) -> Column | None:
    """Return a field's values: from the column of its type, else from columns with its earlier types."""
    if not parts:
        return None
    wanted = stored.jsonValue()
    columns = [functions.col(quoted(part["name"])) for part in parts]
    same = [
        column if part["type"] == wanted else column.try_cast(stored)
        for column, part in zip(columns, parts, strict=True)
    ]
    return same[0] if len(same) == 1 else functions.coalesce(*same)


def _is_castable(kind: Any, stored: DataType) -> bool:
    wanted = stored.jsonValue()
    if kind == wanted:
        return True
    if not isinstance(kind, str) or not isinstance(wanted, str) or "binary" in (kind, wanted):
        return False
    are_numbers = kind.startswith(_NUMBERS) and wanted.startswith(_NUMBERS)
    return are_numbers or isinstance(stored, StringType) or kind == "string"


def _widened(field: StructField, stored: DataType) -> Column:
    column = functions.col(quoted(field.name))
    if isinstance(field.dataType, TimestampNTZType):
        epoch = "TIMESTAMP_NTZ'1970-01-01 00:00:00'"
        return functions.expr(f"timestampdiff(MICROSECOND, {epoch}, {quoted(field.name)})")
    return column if field.dataType == stored else column.cast(stored)
