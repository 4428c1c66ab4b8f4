"""Comparison of two Avro schemas, which shows if a reader's schema can read all values of a writer's. Pure.

The rules are those of "Schema Resolution" in Avro's specification 1.12, as Pulsar's brokers apply them through Avro's
`ValidateCanRead` and its `Resolver`:

* every branch of a writer's union must be readable, even if no value has it;
* records are matched by their fields, whatever their names, but in a reader's union, a record with exactly the writer's
  name is the branch that is used;
* enums and fixed types match by name without namespace, or by alias;
* decimals must agree in precision and scale, because they would be read as other numbers. Avro's own checker does not
  require that.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from pulsar_on_spark.model.errors import IncompatibleSchemaError, InvalidArgumentError
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
"""The other types that values of a type may be read as."""
_REMARKS: Final = ("doc", "__fastavro_parsed", "__named_schemas", "namespace")
SHORT_LETTERS: Final = 4_096
"""Maximum length of a text that is parsed in a few milliseconds."""
MAX_DEPTH: Final = 64
"""Maximum depth of types within types in a schema."""
MAX_STEPS: Final = 1_000_000
"""Maximum number of types, fields and names that one check compares, in some seconds. Clients send both schemas."""
_MAX_REASONS: Final = 100
"""Maximum number of reasons that one comparison returns."""
_SHOWN_NAMES: Final = 20
"""Maximum number of branches or symbols that a reason names."""
_SHOWN_LETTERS: Final = 64
"""Maximum number of characters of each name in a reason."""
_MAX_FINGERPRINTS: Final = 16_384

PartPath: TypeAlias = "tuple[PartPath, str] | None"
"""The path to a part of a schema: the path of the enclosing part, and the part's name; None for the whole value."""


@dataclass(frozen=True, slots=True, eq=False)
class AvroSchema:
    """A parsed schema.

    Attributes:
        canonical: The schema with full names and without documentation; it is equal for schemas with equal meaning.
        named: The records, enums and fixed types in the schema, by full name.
        fingerprint: Digest of the canonical form.
    """

    canonical: Json
    named: Mapping[str, Json]
    fingerprint: bytes


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
        given: Json = json.loads(text)
        _check_unparsed(given)
        canonical = _canonical(cast(Json, fastavro.parse_schema(cast("Schema", given))), 0)
        digest = hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).digest()
        return AvroSchema(canonical, dict(_named_types(canonical)), digest)
    except (
        *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError),
        *(SchemaParseException, UnknownType),
    ) as error:
        raise InvalidArgumentError(
            f"The schema is not the JSON text of an Avro schema ({str(error)[:200]}): correct it."
        ) from error


_parse_short = lru_cache(maxsize=256)(_parse)
_parse_long = lru_cache(maxsize=8)(_parse)
"""Only 8, because a parsed schema has up to thirty times the bytes of its text, and any client may send a long text."""


class _Fingerprints:
    """Cache of fingerprints by the digest of the schema's text: a topic has up to 1,000 versions. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}
        self._lock = threading.Lock()

    def of(self, text: str) -> bytes:
        key = hashlib.sha256(text.encode()).digest()
        found = self._known.get(key)
        if found is None:
            found = parse_avro(text).fingerprint
            with self._lock:
                if len(self._known) >= _MAX_FINGERPRINTS:
                    del self._known[next(iter(self._known))]
                self._known[key] = found
        return found


_FINGERPRINTS: Final = _Fingerprints()


def fingerprint(text: str) -> bytes:
    """Return a digest that is equal for schemas with equal meaning. It is cached, because parsing takes long.

    Raises:
        InvalidArgumentError: the text is not an Avro schema.
    """
    return _FINGERPRINTS.of(text)


@dataclass(slots=True)
class Steps:
    """The budget of steps of one check, which may compare a schema with several others.

    Attributes:
        left: Number of steps that the check may still take.
    """

    left: int = MAX_STEPS

    def take(self, steps: int = 1) -> None:
        """Count steps.

        Raises:
            IncompatibleSchemaError: no steps are left.
        """
        self.left -= steps
        if self.left < 0:
            raise IncompatibleSchemaError(
                f"The comparison with the topic's schema takes more than {MAX_STEPS} steps: register a smaller schema, "
                "with fewer records in its unions."
            )


def unreadable(writer: AvroSchema, reader: AvroSchema, steps: Steps) -> list[str]:
    """Return the reasons why `reader` cannot read values of `writer`: up to 100 clauses, one per field.

    Empty if it can.

    Raises:
        IncompatibleSchemaError: the comparison takes more than `steps`, or the records refer to each other too deeply.
    """
    found = _Resolution(writer, reader, steps).problems(writer.canonical, reader.canonical, None)
    try:
        return list(dict.fromkeys(islice(found, _MAX_REASONS)))
    except RecursionError as error:
        raise IncompatibleSchemaError(
            "The records of the schema refer to each other in too long a chain to be compared: register a flatter one."
        ) from error


def _check_unparsed(schema: Json) -> None:
    """Refuse nested unions, and the parser's own mark, which would make it trust a client's schema without a check."""
    for part in schema if isinstance(schema, list) else [schema]:
        if isinstance(part, list):
            raise ValueError("a union is directly in a union")
        if isinstance(part, dict) and "__fastavro_parsed" in part:
            raise ValueError("__fastavro_parsed is not a property of a schema")


def _named_types(schema: Json) -> Iterator[tuple[str, Json]]:
    """Yield the records, enums and fixed types in a canonical schema, each with its full name."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _named_types(branch)
    elif isinstance(schema, dict):
        if isinstance(schema["type"], str) and _kind(schema) in _NAMED:
            yield str(schema["name"]), schema
        parts = [schema[part] for part in ("type", "items", "values") if part in schema]
        for part in [*parts, *(each["type"] for each in _fields_of(schema))]:
            yield from _named_types(part)


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
        fields = [each["name"] for each in _fields_of(cleaned)]
        if len(fields) != len(set(fields)):
            raise ValueError(f"record {cleaned.get('name')} has a field twice")
    return cleaned["type"] if list(cleaned) == ["type"] else cleaned


@dataclass(slots=True)
class _Union:
    """The branches of a reader's union, by the properties of a writer's type that select them.

    Attributes:
        names: Names of the branches, to list in a reason.
        by_kind: Branches other than enums and fixed types, by kind.
        by_name: Enums and fixed types, by (kind, name without namespace) and by (kind, full alias).
        namesakes: Records by full name.
    """

    names: list[str] = field(default_factory=list)
    by_kind: dict[str, list[Json]] = field(default_factory=dict)
    by_name: dict[tuple[str, str], list[Json]] = field(default_factory=dict)
    namesakes: dict[str, Json] = field(default_factory=dict)

    def add(self, branch: Json) -> None:
        """Add a branch: a type, not the name of a type."""
        kind = _kind(branch)
        self.names.append(_name(branch))
        if not isinstance(branch, dict) or kind not in _MATCHED_BY_NAME:
            self.by_kind.setdefault(kind, []).append(branch)
        else:
            for name in {_short(branch), *_full_aliases(branch)}:
                self.by_name.setdefault((kind, name), []).append(branch)
        if isinstance(branch, dict) and kind == "record":
            self.namesakes.setdefault(str(branch["name"]), branch)

    def namesake(self, writer: Json) -> Json:
        """Return the record with exactly the writer's name; None if there is none or the writer is not a record."""
        if not isinstance(writer, dict) or _kind(writer) != "record":
            return None
        return self.namesakes.get(str(writer["name"]))

    def candidates(self, writer: Json) -> Iterator[Json]:
        """Yield the branches that might read a writer's type; branches of its own kind come last."""
        kind = _kind(writer)
        for other in _READ_AS.get(kind, ()):
            yield from self.by_kind.get(other, ())
        if isinstance(writer, dict) and kind in _MATCHED_BY_NAME:
            for name in dict.fromkeys((_short(writer), str(writer["name"]))):
                yield from self.by_name.get((kind, name), ())
        yield from self.by_kind.get(kind, ())


class _Resolution:
    """A comparison of two schemas.

    If a pair of records occurs again while it is being compared, it counts as readable. That assumption can only hide
    problems, never invent them. So the problems found for a pair are final, and the pair is not compared again.
    """

    def __init__(self, writer: AvroSchema, reader: AvroSchema, steps: Steps) -> None:
        self._writer = writer.named
        self._reader = reader.named
        self._steps = steps
        # Pairs of names, in the order of their discovery, so that the pairs of a failed branch can be removed again.
        self._seen: dict[tuple[str, str], None] = {}
        self._failed: dict[tuple[str, str], list[str]] = {}
        self._unions: dict[int, _Union] = {}
        self._written: dict[str, dict[str, dict[str, Json]]] = {}
        self._unknown: dict[tuple[str, str], list[str]] = {}
        self._aliases: dict[str, frozenset[str]] = {}

    def problems(self, writer: Json, reader: Json, path: PartPath) -> Iterator[str]:
        self._steps.take()
        writer, reader = _resolved(writer, self._writer), _resolved(reader, self._reader)
        if isinstance(writer, list):
            for branch in writer:
                yield from self.problems(branch, reader, path)
        elif isinstance(reader, list):
            yield from self._in_union(writer, self._union(reader), path)
        else:
            yield from self._one(writer, reader, path)

    def _union(self, branches: list[Json]) -> _Union:
        found = self._unions.get(id(branches))
        if found is None:
            found = self._unions[id(branches)] = _Union()
            self._add(found, branches)
        return found

    def _add(self, union: _Union, branches: list[Json]) -> None:
        self._steps.take(len(branches))
        for branch in branches:
            resolved = _resolved(branch, self._reader)
            if isinstance(resolved, list):
                self._add(union, resolved)
            else:
                union.add(resolved)

    def _in_union(self, writer: Json, union: _Union, path: PartPath) -> Iterator[str]:
        namesake = union.namesake(writer)
        if namesake is not None:
            yield from self.problems(writer, namesake, path)
            return
        alike: list[str] = []
        for branch in union.candidates(writer):
            before = len(self._seen)
            alike = list(islice(self.problems(writer, branch, path), _MAX_REASONS))
            if not alike:
                return
            while len(self._seen) > before:
                self._seen.popitem()
        yield from alike or [f"{_at(path)} is {_name(writer)}, and the union [{_some(union.names)}] has no such branch"]

    def _one(self, writer: Json, reader: Json, path: PartPath) -> Iterator[str]:
        written, read = _kind(writer), _kind(reader)
        if written != read:
            if read not in _READ_AS.get(written, ()):
                yield f"{_at(path)} is {_name(writer)} and cannot be read as {_name(reader)}"
            return
        if isinstance(writer, dict) and isinstance(reader, dict):
            if written in _MATCHED_BY_NAME and not self._is_same_name(writer, reader):
                yield f"{_at(path)} is the {_name(writer)}, and {_cut(reader['name'])} is expected"
                return
            yield from self._complex(written, writer, reader, path)

    def _is_same_name(self, writer: dict[str, Json], reader: dict[str, Json]) -> bool:
        """Return True if the names are equal without namespaces, or the writer's full name is among the aliases."""
        name = str(reader["name"])
        if name not in self._aliases:
            self._aliases[name] = frozenset(_full_aliases(reader))
            self._steps.take(len(self._aliases[name]))
        return _short(writer) == _short(reader) or str(writer["name"]) in self._aliases[name]

    def _complex(self, kind: str, writer: dict[str, Json], reader: dict[str, Json], path: PartPath) -> Iterator[str]:
        match kind:
            case "record":
                yield from self._record(writer, reader, path)
            case "array":
                yield from self.problems(writer["items"], reader["items"], (path, "[]"))
            case "map":
                yield from self.problems(writer["values"], reader["values"], (path, "{}"))
            case "enum":
                unknown = self._unknown_symbols(writer, reader)
                if unknown:
                    symbols = _some(unknown)
                    yield f"{_at(path)} may be {symbols}, which are not in the reader's enum, and that has no default"
            case "fixed" if writer["size"] != reader["size"]:
                yield f"{_at(path)} has {writer['size']} bytes, and {reader['size']} are expected"
        sizes = [(part.get("precision"), part.get("scale", 0)) for part in (writer, reader)]
        if all(part.get("logicalType") == "decimal" for part in (writer, reader)) and sizes[0] != sizes[1]:
            yield f"{_at(path)} is decimal{sizes[0]} and cannot be read as decimal{sizes[1]}"

    def _unknown_symbols(self, writer: dict[str, Json], reader: dict[str, Json]) -> list[str]:
        """Return the writer's symbols that the reader's enum lacks; an empty list if that enum has a default."""
        pair = (str(writer["name"]), str(reader["name"]))
        if pair not in self._unknown:
            written, read = _list(writer["symbols"]), _list(reader["symbols"])
            self._steps.take(len(written) + len(read))
            known = {*map(str, read)}
            self._unknown[pair] = (
                [] if "default" in reader else [each for each in map(str, written) if each not in known]
            )
        return self._unknown[pair]

    def _record(self, writer: dict[str, Json], reader: dict[str, Json], path: PartPath) -> Iterator[str]:
        pair = (str(writer["name"]), str(reader["name"]))
        if pair in self._seen:
            return
        if pair not in self._failed:
            self._seen[pair] = None
            found = list(islice(self._fields(writer, reader, path), _MAX_REASONS))
            if not found:
                return
            self._failed[pair] = found
        self._seen[pair] = None
        yield from self._failed[pair]

    def _fields(self, writer: dict[str, Json], reader: dict[str, Json], path: PartPath) -> Iterator[str]:
        written = self._fields_by_name(writer)
        for each in _fields_of(reader):
            name, aliases = str(each["name"]), _aliases(each)
            self._steps.take(1 + len(aliases))
            source = next((candidate for candidate in (name, *aliases) if candidate in written), None)
            if source is not None:
                yield from self.problems(written[source]["type"], each["type"], (path, name))
            elif "default" not in each:
                yield f"{_at((path, name))} is missing and has no default value"

    def _fields_by_name(self, writer: dict[str, Json]) -> dict[str, dict[str, Json]]:
        name = str(writer["name"])
        if name not in self._written:
            self._written[name] = {str(each["name"]): each for each in _fields_of(writer)}
            self._steps.take(len(self._written[name]))
        return self._written[name]


def _resolved(schema: Json, named: Mapping[str, Json]) -> Json:
    """Return the type that a name refers to; any other schema is returned without wrappers around its type."""
    if isinstance(schema, str) and schema not in _PRIMITIVES:
        return named[schema]
    if isinstance(schema, dict) and not isinstance(schema["type"], str):
        return _resolved(schema["type"], named)
    return schema


def _kind(schema: Json) -> str:
    """Return the kind of a type, such as `record` or `int`; an error type is a record."""
    kind = str(schema["type"] if isinstance(schema, dict) else schema)
    return "record" if kind == "error" else kind


def _name(schema: Json) -> str:
    kind = _kind(schema)
    return f"{kind} {_cut(schema['name'])}" if isinstance(schema, dict) and kind in _NAMED else kind


def _cut(name: Json) -> str:
    text = str(name)
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}..."


def _some(names: list[str]) -> str:
    """Return the first names, joined by commas, and the number of names left out."""
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(map(_cut, names[:_SHOWN_NAMES])) + more


def _at(path: PartPath) -> str:
    names: list[str] = []
    while path is not None:
        path, name = path
        names.append(name if name in ("[]", "{}") else f".{_cut(name)}")
    shown = "".join(reversed(names)).removeprefix(".")
    return f"field {shown!r}" if shown else "the value"


def _short(schema: dict[str, Json]) -> str:
    """Return the name of a named type without its namespace."""
    return str(schema["name"]).rpartition(".")[2]


def _full_aliases(schema: dict[str, Json]) -> list[str]:
    """Return the full aliases of a named type: an alias without a namespace has the namespace of the type."""
    space = str(schema["name"]).rpartition(".")[0]
    return [alias if "." in alias or not space else f"{space}.{alias}" for alias in _aliases(schema)]


def _aliases(part: dict[str, Json]) -> list[str]:
    return [str(alias) for alias in _list(part.get("aliases"))]


def _fields_of(record: dict[str, Json]) -> list[dict[str, Json]]:
    return [each for each in _list(record.get("fields")) if isinstance(each, dict)]


def _list(part: Json) -> list[Json]:
    return part if isinstance(part, list) else []
