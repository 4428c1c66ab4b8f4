"""Conversion of schemas in Spark's forms, DDL or the JSON of a `StructType`, to Arrow types and to Avro.

A topic's schema is Avro, but users have schemas of data frames. Spark's own parser needs a Spark session, and neither
the schema registry nor a worker process of a data source has one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final, Protocol

import pyarrow as pa

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.topic.entries.values.avro_schemas import Json, avro_of_arrow

_SIMPLE: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL = ("decimal", "dec", "numeric")
_TEXT = ("varchar", "char", "character")
_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z0-9_]+)|`(?P<quoted>(?:[^`]|``)+)`|'(?P<text>(?:[^'\\]|\\.)*)'|(?P<mark>[<>(),:]))"
)


class SparkSchema(Protocol):
    """A `StructType` of Spark, which this package does not import."""

    def json(self) -> str:
        """The type's JSON text."""


def avro_text(schema: str | SparkSchema, *, logical_types: bool = True) -> str:
    """Return the text of an Avro record schema for a schema in any accepted form.

    Args:
        schema: An Avro text (returned unchecked), DDL, a `StructType`, or the JSON of a `StructType`.
        logical_types: False for Pulsar's schema type JSON, whose times are plain numbers.

    Raises:
        InvalidArgumentError: the schema cannot be parsed, or a type cannot be expressed in Avro.
    """
    text = schema if isinstance(schema, str) else schema.json()
    if text.lstrip().startswith(("{", "[", '"')) and not _is_struct(text):
        return text
    return avro_of_arrow(arrow_of_spark(text), logical_types=logical_types)


def arrow_of_spark(text: str) -> pa.StructType:
    """Return the Arrow type of DDL, or of the JSON of a `StructType`.

    DDL is `name TYPE, ...` or `struct<name: type, ...>` with any type that values can have. `NOT NULL` makes a field
    not nullable; `COMMENT` is accepted and ignored.

    Raises:
        InvalidArgumentError: the text is not such a schema.
    """
    kind = _of_json(text) if text.lstrip().startswith("{") else _of_ddl(text)
    if not pa.types.is_struct(kind) or not kind.num_fields:
        raise InvalidArgumentError(
            f"Schema {text[:80]!r} has no fields: give some, such as 'city STRING, delay DOUBLE'."
        )
    return kind


def _of_ddl(text: str) -> pa.DataType:
    tokens = _Tokens(text)
    struct = re.match(r"\s*struct\s*<", text, re.IGNORECASE) is not None
    kind = _read_type(tokens) if struct else pa.struct(_read_fields(tokens, None))
    tokens.end()
    return kind


def _of_json(text: str) -> pa.DataType:
    try:
        return _read_json(json.loads(text))
    except json.JSONDecodeError as error:
        raise InvalidArgumentError(
            f"Schema {text[:80]!r} is not JSON ({error}): give DDL, or df.schema.json()."
        ) from error


def _read_json(kind: Json) -> pa.DataType:
    match kind:
        case str():
            return _simple(kind)
        case {"type": "struct", "fields": list(fields)}:
            return pa.struct([_json_field(field) for field in fields])
        case {"type": "array", "elementType": element, "containsNull": bool(nullable)}:
            return pa.list_(pa.field("element", _read_json(element), nullable))
        case {"type": "map", "keyType": key, "valueType": item, "valueContainsNull": bool(nullable)}:
            return pa.map_(_read_json(key), pa.field("value", _read_json(item), nullable))
    raise _not_of_spark(kind)


def _json_field(field: Json) -> pa.Field:
    match field:
        case {"name": str(name), "type": kind, "nullable": bool(nullable)}:
            return pa.field(name, _read_json(kind), nullable)
    raise _not_of_spark(field)


def _simple(name: str) -> pa.DataType:
    tokens = _Tokens(name)
    kind = _read_type(tokens)
    tokens.end()
    return kind


def _not_of_spark(part: Json) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"Schema {json.dumps(part)[:80]} is not the JSON of a StructType: give DDL, or df.schema.json()."
    )


def _is_struct(text: str) -> bool:
    try:
        loaded = json.loads(text)
    except ValueError:
        return False
    return isinstance(loaded, dict) and loaded.get("type") == "struct"


class _Tokens:
    """The tokens of a DDL text, read with one token of lookahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._next: re.Match[str] | None = None
        self._advance()

    def _advance(self) -> None:
        match = _TOKEN.match(self._text, self._at)
        if match is None and self._text[self._at :].strip():
            raise self.error()
        self._next = match
        self._at = match.end() if match is not None else len(self._text)

    def error(self) -> InvalidArgumentError:
        where = self._next.start() if self._next is not None else self._at
        rest = self._text[where:].strip()[:40]
        return InvalidArgumentError(
            f"Schema {self._text[:80]!r} cannot be read {f'at {rest!r}' if rest else 'to its end'}: give a schema like "
            "'city STRING, delay DOUBLE, tags ARRAY<STRING>'."
        )

    def take(self, *wanted: str) -> bool:
        """Move past the next token and return True if it is one of these words or marks."""
        token = self._next
        if token is None or (token["name"] or token["mark"] or "").lower() not in wanted:
            return False
        self._advance()
        return True

    def need(self, *wanted: str) -> None:
        if not self.take(*wanted):
            raise self.error()

    def name(self) -> str:
        token = self._next
        if token is None or (token["name"] is None and token["quoted"] is None):
            raise self.error()
        self._advance()
        return token["name"] or token["quoted"].replace("``", "`")

    def number(self) -> int:
        token = self._next
        if token is None or not (token["name"] or "").isdecimal():
            raise self.error()
        return int(self.name())

    def comment(self) -> None:
        if self._next is None or self._next["text"] is None:
            raise self.error()
        self._advance()

    def end(self) -> None:
        if self._next is not None:
            raise self.error()


def _read_fields(tokens: _Tokens, closing: str | None) -> list[pa.Field]:
    fields: list[pa.Field] = []
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
        fields.append(pa.field(name, kind, nullable))
        if not tokens.take(","):
            break
    if closing is not None:
        tokens.need(closing)
    return fields


def _read_type(tokens: _Tokens) -> pa.DataType:
    if tokens.take("array"):
        tokens.need("<")
        element = _read_type(tokens)
        tokens.need(">")
        return pa.list_(pa.field("element", element))
    if tokens.take("map"):
        tokens.need("<")
        key = _read_type(tokens)
        tokens.need(",")
        item = _read_type(tokens)
        tokens.need(">")
        return pa.map_(key, item)
    if tokens.take("struct"):
        tokens.need("<")
        return pa.struct(_read_fields(tokens, ">"))
    if tokens.take(*_DECIMAL):
        return _read_decimal(tokens)
    if tokens.take(*_TEXT):
        tokens.need("(")
        tokens.number()
        tokens.need(")")
        return pa.string()
    for name, kind in _SIMPLE.items():
        if tokens.take(name):
            return kind
    raise tokens.error()


def _read_decimal(tokens: _Tokens) -> pa.DataType:
    if not tokens.take("("):
        return pa.decimal128(10, 0)
    precision = tokens.number()
    scale = tokens.number() if tokens.take(",") else 0
    tokens.need(")")
    if not 0 <= scale <= precision <= 38 or precision == 0:
        raise InvalidArgumentError(
            f"Schema has decimal({precision},{scale}): give a precision of 1 to 38 and a scale up to the precision."
        )
    return pa.decimal128(precision, scale)
