"""Schemas of typed values as Spark users and Pulsar's registry give them, to Spark types and codecs.

`value_schema` reads the option `valueSchema`: for json a DDL string or the JSON of a `StructType`, for avro an Avro
record schema. `topic_value_schema` reads a topic's declared schema: Pulsar's JSON and AVRO types both carry Avro text.
A data source's Python worker has no JVM to parse DDL with, hence `parse_ddl`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.topic.values.avro_schemas import arrow_of_avro
from pulsar_on_spark.topic.values.values import ValueCodec, ValueFormat

_SIMPLE: dict[str, Callable[[], DataType]] = {
    "boolean": BooleanType,
    "tinyint": ByteType,
    "byte": ByteType,
    "smallint": ShortType,
    "short": ShortType,
    "int": IntegerType,
    "integer": IntegerType,
    "bigint": LongType,
    "long": LongType,
    "float": FloatType,
    "real": FloatType,
    "double": DoubleType,
    "string": StringType,
    "binary": BinaryType,
    "date": DateType,
    "timestamp": TimestampType,
    "timestamp_ltz": TimestampType,
    "timestamp_ntz": TimestampNTZType,
}
_DECIMAL = ("decimal", "dec", "numeric")
_TEXT = ("varchar", "char", "character")
_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z0-9_]+)|`(?P<quoted>(?:[^`]|``)+)`|'(?P<text>(?:[^'\\]|\\.)*)'|(?P<mark>[<>(),:]))"
)


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """Typed values: the fields that Spark sees, and how their bytes are made and read.

    Attributes:
        write_type: The fields as declared, also which of them are required.
        read_type: The same with everything nullable: a value that does not fit is null.
        codec: For `topic.values`.
    """

    write_type: StructType
    read_type: StructType
    codec: ValueCodec


def value_schema(value_format: str, text: str) -> ValueSchema:
    """Read the options `valueFormat` and `valueSchema`.

    Raises:
        InvalidArgumentError: the format is unknown or the schema cannot be read; names the option.
    """
    match value_format.strip().lower():
        case "json":
            return _made("json", _json_schema(text), None)
        case "avro":
            return _made("avro", spark_of_avro(text), text)
    raise InvalidArgumentError(f"Option valueFormat is {value_format!r}: give json or avro.")


def topic_value_schema(schema_type: str, text: str) -> ValueSchema:
    """Read a schema of the registry (`SchemaRecord`), of type JSON or AVRO.

    Raises:
        InvalidArgumentError: the schema's text has no Spark type.
    """
    if schema_type == "JSON":
        return _made("json", spark_of_avro(text, logical_types=False), None)
    return _made("avro", spark_of_avro(text), text)


def spark_of_avro(text: str, *, logical_types: bool = True) -> StructType:
    """The Spark type of an Avro record schema, as `from_avro` has it (`topic.avro_schemas` shows the mapping).

    Args:
        text: The schema's JSON.
        logical_types: False for Pulsar's JSON type, whose values hold times as bare numbers.

    Raises:
        InvalidArgumentError: the text is not such a schema, or has no Spark type.
    """
    kind = from_arrow_type(arrow_of_avro(text, logical_types=logical_types), prefer_timestamp_ntz=True)
    if not isinstance(kind, StructType):
        raise InvalidArgumentError(
            "The Avro schema is not a record: topics with typed values have records with fields."
        )
    return kind


def as_nullable(kind: DataType) -> DataType:
    """The type with every field, element and map value nullable."""
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, as_nullable(field.dataType), True) for field in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(as_nullable(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(as_nullable(kind.keyType), as_nullable(kind.valueType), True)
    return kind


def parse_ddl(text: str) -> StructType:
    """Read `name TYPE, ...` or `struct<name: type, ...>` as Spark does, without a JVM.

    All types that values can have; `NOT NULL` and `COMMENT` are understood, comments dropped.

    Raises:
        InvalidArgumentError: the text is not such a schema.
    """
    tokens = _Tokens(text)
    struct = re.match(r"\s*struct\s*<", text, re.IGNORECASE) is not None
    kind = _read_type(tokens) if struct else StructType(_read_fields(tokens, None))
    tokens.end()
    if not isinstance(kind, StructType) or not kind.fields:
        raise InvalidArgumentError(f"Schema {text[:80]!r} has no fields: give such as 'city STRING, delay DOUBLE'.")
    return kind


def _made(value_format: ValueFormat, declared: StructType, avro: str | None) -> ValueSchema:
    read_type = as_nullable(declared)
    if not isinstance(read_type, StructType) or not read_type.fields:
        raise InvalidArgumentError("Option valueSchema has no fields: name at least one.")
    if repeated := [name for name in read_type.names if read_type.names.count(name) > 1]:
        raise InvalidArgumentError(f"Option valueSchema has the field {repeated[0]!r} twice: rename one.")
    arrow_type: pa.StructType = to_arrow_type(read_type, timezone="UTC")
    return ValueSchema(declared, read_type, ValueCodec(value_format, arrow_type, avro))


def _json_schema(text: str) -> StructType:
    if not text.lstrip().startswith("{"):
        return parse_ddl(text)
    try:
        return StructType.fromJson(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(
            f"Option valueSchema is not the JSON of a StructType ({type(error).__name__}: {error}): give DDL, or "
            "df.schema.json()."
        ) from error


class _Tokens:
    """The tokens of a DDL text, one ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._next: re.Match[str] | None = None
        self._advance()

    def _advance(self) -> None:
        found = _TOKEN.match(self._text, self._at)
        if found is None and self._text[self._at :].strip():
            raise self.error()
        self._next = found
        self._at = found.end() if found is not None else len(self._text)

    def error(self) -> InvalidArgumentError:
        where = self._next.start() if self._next is not None else self._at
        rest = self._text[where:].strip()[:40]
        return InvalidArgumentError(
            f"Schema {self._text[:80]!r} cannot be read {f'at {rest!r}' if rest else 'to its end'}: give such as "
            "'city STRING, delay DOUBLE, tags ARRAY<STRING>'."
        )

    def take(self, *wanted: str) -> bool:
        """Whether one of these words or marks is next, and if so goes past it."""
        found = self._next
        if found is None or (found["name"] or found["mark"] or "").lower() not in wanted:
            return False
        self._advance()
        return True

    def need(self, *wanted: str) -> None:
        if not self.take(*wanted):
            raise self.error()

    def name(self) -> str:
        found = self._next
        if found is None or (found["name"] is None and found["quoted"] is None):
            raise self.error()
        self._advance()
        return found["name"] or found["quoted"].replace("``", "`")

    def number(self) -> int:
        found = self._next
        if found is None or not (found["name"] or "").isdecimal():
            raise self.error()
        return int(self.name())

    def comment(self) -> None:
        if self._next is None or self._next["text"] is None:
            raise self.error()
        self._advance()

    def end(self) -> None:
        if self._next is not None:
            raise self.error()


def _read_fields(tokens: _Tokens, closing: str | None) -> list[StructField]:
    fields: list[StructField] = []
    if closing is not None and tokens.take(closing):
        return fields
    while True:
        name = tokens.name()
        tokens.take(":")
        kind = _read_type(tokens)
        nullable = True
        if tokens.take("not"):
            tokens.need("null")
            nullable = False
        if tokens.take("comment"):
            tokens.comment()
        fields.append(StructField(name, kind, nullable))
        if not tokens.take(","):
            break
    if closing is not None:
        tokens.need(closing)
    return fields


def _read_type(tokens: _Tokens) -> DataType:
    if tokens.take("array"):
        tokens.need("<")
        element = _read_type(tokens)
        tokens.need(">")
        return ArrayType(element, True)
    if tokens.take("map"):
        tokens.need("<")
        key = _read_type(tokens)
        tokens.need(",")
        item = _read_type(tokens)
        tokens.need(">")
        return MapType(key, item, True)
    if tokens.take("struct"):
        tokens.need("<")
        return StructType(_read_fields(tokens, ">"))
    if tokens.take(*_DECIMAL):
        return _read_decimal(tokens)
    if tokens.take(*_TEXT):
        tokens.need("(")
        tokens.number()
        tokens.need(")")
        return StringType()
    for name, kind in _SIMPLE.items():
        if tokens.take(name):
            return kind()
    raise tokens.error()


def _read_decimal(tokens: _Tokens) -> DecimalType:
    if not tokens.take("("):
        return DecimalType(10, 0)
    precision = tokens.number()
    scale = tokens.number() if tokens.take(",") else 0
    tokens.need(")")
    if not 0 <= scale <= precision <= 38 or precision == 0:
        raise InvalidArgumentError(
            f"Schema has decimal({precision},{scale}): the precision is 1 to 38, the scale at most that."
        )
    return DecimalType(precision, scale)
