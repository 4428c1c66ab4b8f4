"""Comparison of two Avro schemas: can a reader's schema read all values of a writer's? Pure.

The rules are those of "Schema Resolution" in Avro's specification 1.12, as Pulsar's brokers apply them through Avro's
`ValidateCanRead` and its `Resolver`: every branch of a writer's union must be readable, even if no value has it, and
records are matched by their fields, whatever their names; but if a reader's union has a record of exactly the writer's
name, that branch is used. Enums and fixed types match by name without namespace, or by alias. Beyond Avro's own
checker, decimals must agree in precision and scale, because they would be read as other numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, cast

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.topic.entries.values.avro_schemas import Json

if TYPE_CHECKING:
    from fastavro.types import Schema

_PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAMED: Final = ("record", "enum", "fixed")
_MATCHED_BY_NAME: Final = ("enum", "fixed")
_READ_AS: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""Types that may be read as others, besides as themselves."""
_REMARKS: Final = ("doc", "__fastavro_parsed", "__named_schemas", "namespace")
SHORT_LETTERS: Final = 4_096
"""Length of a text up to which a schema is parsed in some milliseconds."""
MAX_DEPTH: Final = 64
"""Types within types: a schema that is deeper is refused."""


@dataclass(frozen=True, slots=True, eq=False)
class AvroSchema:
    """A parsed schema.

    Attributes:
        canonical: The schema with full names and without documentation: equal for schemas with equal meaning.
        named: The records, enums and fixed types in the schema, by full name.
    """

    canonical: Json
    named: Mapping[str, Json]


def parse_avro(text: str) -> AvroSchema:
    """Parse the JSON text of any Avro schema; the latest results are cached. It takes about a millisecond per KiB.

    Raises:
        InvalidArgumentError: the text is not an Avro schema.
    """
    return (_parse_short if len(text) <= SHORT_LETTERS else _parse_long)(text)


def _parse(text: str) -> AvroSchema:
    # Imported here, so that opening a root need not wait for the parser.
    import fastavro
    from fastavro.schema import SchemaParseException, UnknownType

    try:
        named: dict[str, dict[str, Json]] = {}
        parsed = fastavro.parse_schema(cast("Schema", json.loads(text)), named_schemas=named)
        canonical = _canonical(cast(Json, parsed), 0)
        return AvroSchema(canonical, {name: _canonical(definition, 0) for name, definition in named.items()})
    except (ValueError, TypeError, KeyError, RecursionError, SchemaParseException, UnknownType) as error:
        raise InvalidArgumentError(
            f"The schema is not the JSON text of an Avro schema ({error}): correct it."
        ) from error


_parse_short = lru_cache(maxsize=256)(_parse)
_parse_long = lru_cache(maxsize=4)(_parse)
"""A schema in memory has up to thirty times the bytes of its text, which any client may send."""


def unreadable(writer: AvroSchema, reader: AvroSchema) -> list[str]:
    """Return the reasons why `reader` cannot read values of `writer`, a clause for each field; empty if it can."""
    return list(dict.fromkeys(_Resolution(writer, reader).problems(writer.canonical, reader.canonical, "")))


def _canonical(schema: Json, depth: int) -> Json:
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} types")
    if isinstance(schema, list):
        return [_canonical(branch, depth + 1) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    cleaned = {
        name: _canonical(part, depth + 1) if name in ("type", "items", "values", "fields") else part
        for name, part in schema.items()
        if name not in _REMARKS and (name, part) != ("order", "ascending")
    }
    if cleaned.get("type") in ("record", "error"):
        fields = [field["name"] for field in _fields_of(cleaned)]
        if len(fields) != len(set(fields)):
            raise ValueError(f"record {cleaned.get('name')} has a field twice")
    return cleaned["type"] if list(cleaned) == ["type"] else cleaned


class _Resolution:
    """A comparison of two schemas; a pair of records that is being compared counts as readable if it occurs again."""

    def __init__(self, writer: AvroSchema, reader: AvroSchema) -> None:
        self._writer = writer.named
        self._reader = reader.named
        self._seen: set[tuple[str, str]] = set()

    def problems(self, writer: Json, reader: Json, place: str) -> Iterator[str]:
        writer, reader = _resolved(writer, self._writer), _resolved(reader, self._reader)
        if isinstance(writer, list):
            for branch in writer:
                yield from self.problems(branch, reader, place)
        elif isinstance(reader, list):
            yield from self._in_union(writer, reader, place)
        else:
            yield from self._one(writer, reader, place)

    def _in_union(self, writer: Json, branches: list[Json], place: str) -> Iterator[str]:
        namesake = next(
            (branch_ for branch_ in branches if _is_namesake(writer, _resolved(branch_, self._reader))), None
        )
        if namesake is not None:
            yield from self.problems(writer, namesake, place)
            return
        alike: list[str] = []
        for branch in branches:
            before = set(self._seen)
            problems = list(self.problems(writer, branch, place))
            if not problems:
                return
            self._seen = before
            if _kind(_resolved(branch, self._reader)) == _kind(writer):
                alike = problems
        shown = ", ".join(_name(_resolved(branch, self._reader)) for branch in branches)
        yield from alike or [f"{_at(place)} is {_name(writer)}, and the union [{shown}] has no such branch"]

    def _one(self, writer: Json, reader: Json, place: str) -> Iterator[str]:
        written, read = _kind(writer), _kind(reader)
        if written != read:
            if read not in _READ_AS.get(written, ()):
                yield f"{_at(place)} is {_name(writer)} and cannot be read as {_name(reader)}"
            return
        if isinstance(writer, dict) and isinstance(reader, dict):
            if written in _MATCHED_BY_NAME and not _is_same_name(writer, reader):
                yield f"{_at(place)} is the {written} {writer['name']}, and {reader['name']} is expected"
                return
            yield from self._complex(written, writer, reader, place)

    def _complex(self, kind: str, writer: dict[str, Json], reader: dict[str, Json], place: str) -> Iterator[str]:
        match kind:
            case "record":
                pair = (str(writer["name"]), str(reader["name"]))
                if pair not in self._seen:
                    self._seen.add(pair)
                    yield from self._fields(writer, reader, place)
            case "array":
                yield from self.problems(writer["items"], reader["items"], f"{place}[]")
            case "map":
                yield from self.problems(writer["values"], reader["values"], f"{place}{{}}")
            case "enum":
                unknown = [symbol for symbol in _list(writer["symbols"]) if symbol not in _list(reader["symbols"])]
                if unknown and "default" not in reader:
                    symbols = ", ".join(map(str, unknown))
                    yield f"{_at(place)} may be {symbols}, which the enum it is read as lacks, as it does a default"
            case "fixed" if writer["size"] != reader["size"]:
                yield f"{_at(place)} has {writer['size']} bytes, and {reader['size']} are expected"
        sizes = [(part.get("precision"), part.get("scale", 0)) for part in (writer, reader)]
        if all(part.get("logicalType") == "decimal" for part in (writer, reader)) and sizes[0] != sizes[1]:
            yield f"{_at(place)} is decimal{sizes[0]} and cannot be read as decimal{sizes[1]}"

    def _fields(self, writer: dict[str, Json], reader: dict[str, Json], place: str) -> Iterator[str]:
        written = {str(field["name"]): field for field in _fields_of(writer)}
        for field in _fields_of(reader):
            name = str(field["name"])
            source = next((candidate for candidate in (name, *_aliases(field)) if candidate in written), None)
            if source is not None:
                yield from self.problems(written[source]["type"], field["type"], f"{place}.{name}".lstrip("."))
            elif "default" not in field:
                yield f"{_at(f'{place}.{name}'.lstrip('.'))} is not there and has no default value to stand for it"


def _resolved(schema: Json, named: Mapping[str, Json]) -> Json:
    """Return the type for a name, or a type without its documentation."""
    if isinstance(schema, str) and schema not in _PRIMITIVES:
        return named[schema]
    if isinstance(schema, dict) and not isinstance(schema["type"], str):
        return _resolved(schema["type"], named)
    return schema


def _kind(schema: Json) -> str:
    """Return the type's name; an error type is a record."""
    kind = str(schema["type"] if isinstance(schema, dict) else schema)
    return "record" if kind == "error" else kind


def _name(schema: Json) -> str:
    kind = _kind(schema)
    return f"{kind} {schema['name']}" if isinstance(schema, dict) and kind in _NAMED else kind


def _at(place: str) -> str:
    return f"field {place!r}" if place else "the value"


def _is_namesake(writer: Json, reader: Json) -> bool:
    """Return True if both are records with the same full name."""
    return (
        isinstance(writer, dict)
        and isinstance(reader, dict)
        and _kind(writer) == _kind(reader) == "record"
        and writer["name"] == reader["name"]
    )


def _is_same_name(writer: dict[str, Json], reader: dict[str, Json]) -> bool:
    """Compare names without namespaces, or the writer's full name with the reader's aliases."""
    full, reader_name = str(writer["name"]), str(reader["name"])
    space = reader_name.rpartition(".")[0]
    aliases = [alias if "." in alias or not space else f"{space}.{alias}" for alias in _aliases(reader)]
    return full.rpartition(".")[2] == reader_name.rpartition(".")[2] or full in aliases


def _aliases(part: dict[str, Json]) -> list[str]:
    return [str(alias) for alias in _list(part.get("aliases"))]


def _fields_of(record: dict[str, Json]) -> list[dict[str, Json]]:
    return [field for field in _list(record["fields"]) if isinstance(field, dict)]


def _list(part: Json) -> list[Json]:
    return part if isinstance(part, list) else []
