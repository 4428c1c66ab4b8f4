"""Conversion of Avro record schemas, the texts of Pulsar's JSON and AVRO schema types, to Arrow types and back.

| Avro | Arrow (and Spark, by pyspark's own mapping) |
|---|---|
| boolean, int, long, float, double, string, bytes | the same |
| enum | string |
| fixed | binary |
| record, array, map | struct, list, map of string |
| union of null and T | T, nullable |
| union of int and long; of float and double | int64; double |
| date, decimal, timestamp-millis and -micros | the same |
| local-timestamp-millis and -micros | timestamp without zone |
| time-millis, time-micros, duration, uuid, other logical types | the type that they annotate |

This is the mapping of Spark's `from_avro`. Other unions, records that contain themselves, and schemas with more than
`MAX_FIELDS` fields have no Spark type and are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

import pyarrow as pa

from pulsar_on_spark.model.errors import InvalidArgumentError

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

_PRIMITIVES: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Mapping[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_WIDENED: Mapping[frozenset[str], pa.DataType] = {
    frozenset({"int", "long"}): pa.int64(),
    frozenset({"float", "double"}): pa.float64(),
}
_NAMED = ("record", "error", "enum", "fixed")
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_MAX_PRECISION = 38
MAX_FIELDS = 10_000
"""Maximum number of a schema's fields. Those of a named record count at each use, as a few lines can make billions."""


@lru_cache(maxsize=64)
def arrow_of_avro(text: str, *, logical_types: bool = True) -> pa.StructType:
    """Return the Arrow type of an Avro record schema; times have the unit of the schema.

    Args:
        text: The schema's JSON.
        logical_types: False for JSON-encoded values, in which times are the plain numbers that Avro would store.

    Raises:
        InvalidArgumentError: the text is not the JSON of a record schema, or has no Spark type.
    """
    try:
        schema: Json = json.loads(text)
    except ValueError as error:
        raise InvalidArgumentError(
            f"The Avro schema is not JSON ({error}): give the text of a record schema."
        ) from error
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise InvalidArgumentError(
            "The Avro schema is not a record, which typed values need: give a record schema with fields."
        )
    kind, _ = _Reader(logical_types).read(schema, "")
    return kind


def avro_of_arrow(kind: pa.StructType, *, logical_types: bool = True) -> str:
    """Return the JSON text of an Avro record schema for a struct. A nullable field is a union with null, its default.

    Args:
        kind: The fields, with types as in Spark.
        logical_types: False for JSON-encoded values, which have no dates, times and decimals.

    Raises:
        InvalidArgumentError: a type, or the name of a field, cannot be expressed in Avro.
    """
    return json.dumps(_Writer(logical_types).write(kind, "Value"), separators=(",", ":"))


def decimal_type(schema: Mapping[str, Json]) -> pa.DataType | None:
    """Return the Arrow type of a decimal schema; None for other schemas.

    Decimals that are not valid or have more than 38 digits give None, too: by Avro's rule, their values are the
    annotated bytes.
    """
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if schema.get("logicalType") != "decimal" or not isinstance(precision, int) or not isinstance(scale, int):
        return None
    is_valid = 1 <= precision <= _MAX_PRECISION and 0 <= scale <= precision
    return pa.decimal128(precision, scale) if is_valid else None


class _Reader:
    """A pass over a schema. `_known` holds the named types that were met, with None for a type that is being read.

    `_sizes` has the number of fields in each named type, and `_fields` the number of all fields that were read so far.
    """

    def __init__(self, logical_types: bool) -> None:
        self._logical_types = logical_types
        self._known: dict[str, pa.DataType | None] = {}
        self._sizes: dict[str, int] = {}
        self._fields = 0

    def read(self, schema: Json, space: str) -> tuple[pa.DataType, bool]:
        """Return the Arrow type of a schema, and True if its values may be null. `space` is the enclosing namespace."""
        if isinstance(schema, str):
            return self._by_name(schema, space), schema == "null"
        if isinstance(schema, list):
            return self._union(schema, space)
        if not isinstance(schema, dict):
            raise InvalidArgumentError(f"The Avro schema has {schema!r} where a type is expected: correct it.")
        kind = schema.get("type")
        if kind == "array":
            element, nullable = self.read(schema.get("items"), space)
            return pa.list_(pa.field("element", element, nullable)), False
        if kind == "map":
            item, nullable = self.read(schema.get("values"), space)
            return pa.map_(pa.string(), pa.field("value", item, nullable)), False
        if kind in _NAMED:
            return self._named(schema, str(kind), space), False
        if not isinstance(kind, str):
            return self.read(kind, space)
        return self._annotated(schema, kind, space), kind == "null"

    def _union(self, members: list[Json], space: str) -> tuple[pa.DataType, bool]:
        others = [member for member in members if member != "null"]
        nullable = len(others) < len(members)
        if len(others) == 1:
            kind, inner = self.read(others[0], space)
            return kind, nullable or inner
        names = frozenset(member for member in others if isinstance(member, str))
        if len(names) != len(others) or names not in _WIDENED:
            raise InvalidArgumentError(
                f"The Avro union {json.dumps(members)[:200]} has no Spark type: keep one type and null."
            )
        return _WIDENED[names], nullable

    def _named(self, schema: dict[str, Json], kind: str, space: str) -> pa.DataType:
        name = str(schema.get("name", ""))
        space = str(schema.get("namespace", name.rpartition(".")[0] or space))
        full = name if "." in name or not space else f"{space}.{name}"
        self._known[full] = None
        before = self._fields
        made: pa.DataType
        if kind == "enum":
            made = pa.string()
        elif kind == "fixed":
            made = (decimal_type(schema) if self._logical_types else None) or pa.binary()
        else:
            made = pa.struct([self._field(field, space) for field in self._fields_of(schema)])
        self._known[full] = made
        self._sizes[full] = self._fields - before
        return made

    def _fields_of(self, schema: dict[str, Json]) -> list[dict[str, Json]]:
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise InvalidArgumentError(
                f"The Avro record {schema.get('name')!r} has no list of fields: correct the schema."
            )
        return [field for field in fields if isinstance(field, dict)]

    def _field(self, field: dict[str, Json], space: str) -> pa.Field:
        self._count(1)
        kind, nullable = self.read(field.get("type"), space)
        return pa.field(str(field.get("name")), kind, nullable)

    def _count(self, fields: int) -> None:
        self._fields += fields
        if self._fields > MAX_FIELDS:
            raise InvalidArgumentError(
                f"The Avro schema has more than {MAX_FIELDS:,} fields, counting those of a named record at each use: "
                "use fewer fields."
            )

    def _annotated(self, schema: dict[str, Json], kind: str, space: str) -> pa.DataType:
        logical = (kind, str(schema.get("logicalType", "")))
        if self._logical_types and logical in _LOGICAL:
            return _LOGICAL[logical]
        made = decimal_type(schema) if self._logical_types and kind == "bytes" else None
        return made or self._by_name(kind, space)

    def _by_name(self, name: str, space: str) -> pa.DataType:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        full = name if "." in name or not space else f"{space}.{name}"
        if full not in self._known:
            full = name
        if full not in self._known:
            raise InvalidArgumentError(
                f"The Avro schema uses the type {name!r} before it defines it, or without defining it: correct it."
            )
        known = self._known[full]
        if known is None:
            raise InvalidArgumentError(
                f"The Avro record {name!r} contains itself, and no Spark type can do that: flatten it."
            )
        self._count(self._sizes[full])
        return known


class _Writer:
    """Converter of Arrow types to Avro. A record's name is the path of its field, joined by underscores."""

    def __init__(self, logical_types: bool) -> None:
        self._logical_types = logical_types

    def write(self, kind: pa.DataType, name: str) -> Json:
        if pa.types.is_struct(kind):
            return {"type": "record", "name": name, "fields": [self._field(field, name) for field in kind]}
        if pa.types.is_list(kind):
            return {"type": "array", "items": self._or_null(kind.value_field, name)}
        if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
            return {"type": "map", "values": self._or_null(kind.item_field, name)}
        if pa.types.is_int8(kind) or pa.types.is_int16(kind):
            return "int"
        for avro, arrow in _PRIMITIVES.items():
            if arrow == kind:
                return avro
        return self._annotated(kind, name)

    def _annotated(self, kind: pa.DataType, name: str) -> Json:
        path = name.partition("_")[2]
        if not (pa.types.is_decimal(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            raise InvalidArgumentError(f"The field {path!r} is {kind}, which Avro has no form for: cast it.")
        if not self._logical_types:
            raise InvalidArgumentError(
                f"The field {path!r} is {kind}, which Pulsar's JSON has no form for: use AVRO, or make it a number or "
                "a string."
            )
        if pa.types.is_decimal(kind):
            return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        if pa.types.is_date(kind):
            return {"type": "int", "logicalType": "date"}
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}

    def _field(self, field: pa.Field, record: str) -> Json:
        if not _NAME.fullmatch(field.name):
            raise InvalidArgumentError(
                f"The field {field.name!r} has a name that Avro does not allow: use letters, digits and underscores."
            )
        kind = self.write(field.type, f"{record}_{field.name}")
        if field.nullable:
            return {"name": field.name, "type": ["null", kind], "default": None}
        return {"name": field.name, "type": kind}

    def _or_null(self, field: pa.Field, name: str) -> Json:
        kind = self.write(field.type, f"{name}_{field.name}")
        return ["null", kind] if field.nullable else kind
