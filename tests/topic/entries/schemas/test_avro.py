"""Schema resolution: the cases of Avro's specification, and whatever passes is read in earnest by fastavro."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable

import fastavro
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pulsar_on_spark.model.errors import IncompatibleSchemaError, InvalidArgumentError
from pulsar_on_spark.topic.entries.schemas.avro import MAX_STEPS, Steps, parse_avro, unreadable

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
PROMOTED = {
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
    ("string", "bytes"),
    ("bytes", "string"),
}


def record(*fields: object, name: str = "R", **more: object) -> dict[str, object]:
    made = [{"name": field, "type": "int"} if isinstance(field, str) else field for field in fields]
    return {"type": "record", "name": name, "fields": made, **more}


def enum(*symbols: str, **more: object) -> dict[str, object]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F") -> dict[str, object]:
    return {"type": "fixed", "name": name, "size": size}


def decimal(precision: int, scale: int) -> dict[str, object]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def array(items: object) -> dict[str, object]:
    return {"type": "array", "items": items}


def problems(writer: object, reader: object) -> list[str]:
    return unreadable(parse_avro(json.dumps(writer)), parse_avro(json.dumps(reader)), Steps())


@pytest.mark.parametrize("reader", PRIMITIVES)
@pytest.mark.parametrize("writer", PRIMITIVES)
def test_primitives_are_read_as_themselves_or_promoted(writer: str, reader: str) -> None:
    assert (not problems(writer, reader)) == (writer == reader or (writer, reader) in PROMOTED)


LIST = record({"name": "next", "type": ["null", "R"]}, {"name": "v", "type": "int"})
LIST_OF_LONG = record({"name": "next", "type": ["null", "R"]}, {"name": "v", "type": "long"})
LIST_RENAMED = record({"name": "next", "type": ["null", "Q"]}, {"name": "v", "type": "int"}, name="Q")
OPTIONAL = {"name": "b", "type": ["null", "string"], "default": None}


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (record("a", "b"), record("b", "a")),
        (record("a", "gone"), record("a")),
        (record("a"), record("a", OPTIONAL)),
        (record("a"), record({"name": "a", "type": ["null", "int"]})),
        (record("old"), record({"name": "new", "type": "int", "aliases": ["old"]})),
        (record("a", name="x.R"), record("a", name="y.R")),
        (record("a", name="x.R"), record("a", name="x.Q")),
        (record("a"), {**record("a"), "type": "error"}),
        (record({"name": "a", "type": record("x", name="In")}), record({"name": "a", "type": record("x", name="To")})),
        (
            record({"name": "a", "type": ["null", record("x", name="In")]}),
            record({"name": "a", "type": ["null", record("x", name="To")]}),
        ),
        ([record("a", name="A"), record("b", name="B")], [record("b", name="C"), record("a", name="D")]),
        (LIST, LIST_RENAMED),
        (enum("A"), {**enum("A"), "name": "x.E"}),
        (fixed(4), {**fixed(4, "G"), "aliases": ["F"]}),
        (record("a", name="Old"), record("a", aliases=["Old"])),
        (record("a", name="x.Old"), record("a", name="x.R", aliases=["Old"])),
        (record({"name": "a", "type": record("x", name="In")}), record({"name": "a", "type": record("x", name="In")})),
        (array("int"), array("long")),
        ({"type": "map", "values": "int"}, {"type": "map", "values": ["null", "double"]}),
        (enum("A"), enum("A", "B")),
        (enum("A", "B"), enum("A", default="A")),
        (fixed(4), fixed(4)),
        (["int", "string"], ["string", "long"]),
        ("int", ["string", "double"]),
        (["int", "long"], "double"),
        (["string"], "string"),
        (LIST, LIST_OF_LONG),
        (decimal(9, 2), decimal(9, 2)),
        ({"type": "long", "logicalType": "timestamp-millis"}, "long"),
        ({"type": "string", "avro.java.string": "String"}, "string"),
    ],
)
def test_readable_pairs_of_schemas(writer: object, reader: object) -> None:
    assert problems(writer, reader) == []


@pytest.mark.parametrize(
    ("writer", "reader", "problem"),
    [
        (record("a"), record("a", "b"), "field 'b' is missing and has no default value"),
        (record("a"), record({"name": "b", "type": "int", "aliases": ["c"]}), "field 'b' is missing"),
        (record("a"), record({"name": "a", "type": "string"}), "field 'a' is int and cannot be read as string"),
        (record("a", name="x.R"), record("b", name="x.Q"), "field 'b' is missing and has no default value"),
        (
            record("a", name="A"),
            [record("b", name="A"), record("a", name="B")],
            "field 'b' is missing and has no default value",
        ),
        (enum("A"), {**enum("A"), "name": "F"}, "is the enum E, and F is expected"),
        (
            record({"name": "a", "type": array(record("x", name="In"))}),
            record({"name": "a", "type": array(record("x", "y", name="In"))}),
            r"field 'a\[\].y' is missing",
        ),
        (
            record({"name": "a", "type": ["null", record("x", name="In")]}),
            record({"name": "a", "type": ["null", record("y", name="In")]}),
            "field 'a.y' is missing",
        ),
        (record({"name": "m", "type": {"type": "map", "values": "string"}}),
         record({"name": "m", "type": {"type": "map", "values": "int"}}), r"field 'm\{\}' is string"),
        (enum("A", "B", "C"), enum("A"), "may be B, C, which are not in the reader's enum"),
        (fixed(4), fixed(8), "has 4 bytes, and 8 are expected"),
        (fixed(4), fixed(4, "G"), "is the fixed F, and G is expected"),
        (["null", "string"], "string", "is null and cannot be read as string"),
        (["int", "boolean"], ["int", "string"], "is boolean, and the union .int, string. has no such branch"),
        ("int", array("int"), "is int and cannot be read as array"),
        (LIST_OF_LONG, LIST, "field 'v' is long and cannot be read as int"),
        (decimal(9, 2), decimal(9, 3), r"is decimal\(9, 2\) and cannot be read as decimal\(9, 3\)"),
        (record(OPTIONAL), record({"name": "b", "type": "string"}), "field 'b' is null and cannot be read as string"),
    ],
)  # fmt: skip
def test_unreadable_fields_are_named(writer: object, reader: object, problem: str) -> None:
    (found,) = problems(writer, reader)
    assert re.search(problem, found)


def test_all_places_are_named_once() -> None:
    found = problems(record("a", "b"), record("c", "d", {"name": "a", "type": "boolean"}))
    assert len(found) == 3


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ({"type": "string"}, "string", True),
        (record("a"), record("a", doc="a remark"), True),
        (record("a", name="R", namespace="x"), record("a", name="x.R"), True),
        (record("a"), record({"type": {"type": "int"}, "name": "a", "order": "ascending"}), True),
        (record("a", "b"), record("b", "a"), False),
        (record(OPTIONAL), record({"name": "b", "type": ["null", "string"]}), False),
        (record("a"), record("a", aliases=["Q"]), False),
        (record("a"), record({"name": "a", "type": {"type": "int", "logicalType": "date"}}), False),
    ],
)
def test_the_canonical_form(one: object, other: object, is_same: bool) -> None:
    forms = [parse_avro(json.dumps(each, indent=indent)).canonical for each, indent in ((one, 2), (other, None))]
    assert (forms[0] == forms[1]) is is_same


@pytest.mark.parametrize(
    "text",
    [
        *("{", "7", "null", '"unknown"'),
        *(json.dumps(record(*fields)) for fields in (["a", {"name": "b"}], ["a", "a"])),
    ],
)
def test_invalid_avro_schemas_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="not the JSON text of an Avro schema"):
        parse_avro(text)


def test_deep_schemas_are_refused() -> None:
    deep: object = "int"
    for _ in range(100):
        deep = array(deep)
    with pytest.raises(InvalidArgumentError, match="nested deeper"):
        parse_avro(json.dumps(deep))


@pytest.mark.parametrize("marks", [{"__fastavro_parsed": True}, {"__fastavro_parsed": True, "__named_schemas": {}}])
def test_the_marks_of_the_parser_are_not_taken_from_a_client(marks: dict[str, object]) -> None:
    for schema in ({"type": "record"} | marks, [{"type": "record"} | marks]):
        with pytest.raises(InvalidArgumentError, match="not the JSON text of an Avro schema"):
            parse_avro(json.dumps(schema))


def test_a_size_that_no_number_can_hold_is_refused() -> None:
    text = json.dumps(fixed(10**400) | {"logicalType": "decimal", "precision": 3})
    with pytest.raises(InvalidArgumentError, match="not the JSON text of an Avro schema"):
        parse_avro(text)


# -- the cost ----------------------------------------------------------------------------------------------------------


def union_of_records(count: int) -> object:
    return record({"name": "u", "type": [record("x", name=f"R{number}") for number in range(count)]})


def strange_records(count: int) -> object:
    """A union that reads each record of `union_of_records` as its last branch, after all others failed."""
    others = [record(f"y{number}", name=f"Q{number}") for number in range(count)]
    return record({"name": "u", "type": [*others, record("x", name="Last")]})


def symbols(count: int) -> object:
    return record({"name": "e", "type": enum(*(f"S{number}" for number in range(count)), default="S0")})


def symbols_everywhere(count: int) -> object:
    first = {"name": "e", "type": enum(*(f"S{number}" for number in range(count)))}
    return record(first, *({"name": f"f{number}", "type": "E"} for number in range(count)))


def enums(count: int) -> object:
    return record({"name": "u", "type": [enum("A") | {"name": f"E{number}"} for number in range(count)]})


def aliases(count: int) -> object:
    names = [f"a{number}" for number in range(count)]
    first = {"name": "e", "type": fixed(4, "G") | {"aliases": names}}
    return record(first, *({"name": f"f{number}", "type": "G", "aliases": names[:1]} for number in range(count)))


def fields(count: int) -> object:
    return record(*(f"f{number}" for number in range(count)))


def chain(count: int) -> object:
    """Records that lead from one to the next, each in a union with one that fails at the end of the way."""
    links: list[object] = [record("x", name="R0"), record("x", name="Q0")]
    for number in range(1, count):
        union = {"name": "next", "type": [f"R{number - 1}", f"Q{number - 1}"]}
        links += [record(union, name=f"{letter}{number}") for letter in "RQ"]
    return record({"name": "all", "type": links, "default": None}, {"name": "one", "type": f"R{count - 1}"})


def taken(writer: object, reader: object) -> int:
    steps = Steps()
    unreadable(parse_avro(json.dumps(writer)), parse_avro(json.dumps(reader)), steps)
    return Steps().left - steps.left


@pytest.mark.parametrize("shape", [union_of_records, symbols, symbols_everywhere, enums, aliases, fields, chain])
def test_a_schema_of_twice_the_size_takes_twice_the_steps(shape: Callable[[int], object]) -> None:
    once, twice = (taken(shape(count), shape(count + 1)) for count in (40, 80))
    assert 0 < once < twice < 2.2 * once


def test_a_chain_of_records_that_fails_at_its_end_is_compared_once() -> None:
    writer = json.dumps(chain(24))
    reader = writer.replace("R", "S").replace("Q", "T").replace('"x"', '"z"')
    steps = Steps()
    assert unreadable(parse_avro(writer), parse_avro(reader), steps)
    assert Steps().left - steps.left < 10_000, "not 2 ** 24"


@pytest.mark.long
def test_a_comparison_of_too_many_steps_is_refused() -> None:
    with pytest.raises(IncompatibleSchemaError, match=f"takes more than {MAX_STEPS} steps: register a smaller schema"):
        taken(union_of_records(1_000), strange_records(1_000))


def test_a_chain_of_records_that_is_too_long_is_refused() -> None:
    links: list[object] = [record("x", name="R0")]
    links += [record({"name": "next", "type": f"R{number - 1}"}, name=f"R{number}") for number in range(1, 2_000)]
    text = record({"name": "all", "type": links, "default": None}, {"name": "one", "type": "R1999"})
    writer = record({"name": "here", "type": links}, {"name": "one", "type": "R1999"})
    with pytest.raises(IncompatibleSchemaError, match="refer to each other in too long a chain"):
        taken(writer, text)


def test_reasons_are_short_whatever_the_names() -> None:
    long = "n" * 100_000
    many = [record("x", name=f"{long}{number}") for number in range(3)]
    symbols_ = [f"{long}{number}" for number in range(30)]
    inner = [record({"name": long, "type": record(f"{long}{letter}", name="In")}) for letter in "ab"]
    a, b, c, d = ({"name": "u", "type": each} for each in (many, ["int", "string"], enum(*symbols_), enum("A")))
    for writer, reader in (inner, (record(a), record(b)), (record(b), record(a)), (record(c), record(d))):
        assert all(len(each) < 3_000 for each in problems(writer, reader))


def test_at_most_100_reasons_are_found() -> None:
    assert len(problems(record(), record(*(f"f{number}" for number in range(1_000))))) == 100


# -- whatever passes can be read ---------------------------------------------------------------------------------------

SIMPLE = st.sampled_from(["int", "long", "float", "double", "string", "bytes", "boolean"])
DEFAULTS = {"int": 0, "long": 1, "float": 0.5, "double": 1.5, "string": "x", "bytes": "x", "boolean": True}


@st.composite
def field_types(draw: st.DrawFn) -> object:
    kind = draw(SIMPLE)
    match draw(st.sampled_from(["plain", "plain", "optional", "array", "map", "enum", "union"])):
        case "optional":
            return ["null", kind]
        case "array":
            return array(kind)
        case "map":
            return {"type": "map", "values": kind}
        case "enum":
            return enum(*draw(st.sampled_from([("A",), ("A", "B"), ("B", "A", "C")])))
        case "union":
            return list(dict.fromkeys([kind, draw(SIMPLE)]))
    return kind


@st.composite
def records(draw: st.DrawFn) -> dict[str, object]:
    fields, has_enum = [], False
    for name in draw(st.lists(st.sampled_from("abcd"), unique=True, max_size=4)):
        kind = draw(field_types())
        if isinstance(kind, dict) and kind["type"] == "enum":
            if has_enum:
                continue
            has_enum = True
        made: dict[str, object] = {"name": name, "type": kind}
        if draw(st.booleans()):
            first = kind[0] if isinstance(kind, list) else kind
            if first == "null" or isinstance(first, str):
                made["default"] = None if first == "null" else DEFAULTS[first]
        fields.append(made)
    return {"type": "record", "name": "R", "fields": fields}


def datum(data: st.DataObject, kind: object) -> object:
    values = {
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "float": st.floats(width=32, allow_nan=False),
        "double": st.floats(allow_nan=False),
        "string": st.text(max_size=3),
        "bytes": st.just(b"abc"),  # also text, as which it may be read
        "boolean": st.booleans(),
        "null": st.none(),
    }
    match kind:
        case str():
            return data.draw(values[kind])
        case list():
            branch = data.draw(st.sampled_from(kind))
            return (branch, datum(data, branch))
        case {"type": "array", "items": items}:
            return [datum(data, items) for _ in range(data.draw(st.integers(0, 2)))]
        case {"type": "map", "values": items}:
            return {"k": datum(data, items)}
        case {"type": "enum", "symbols": symbols}:
            return data.draw(st.sampled_from(symbols))
    raise AssertionError(kind)


@settings(max_examples=100)
@given(writer=records(), reader=records(), data=st.data())
def test_schemas_that_pass_read_the_data(
    writer: dict[str, object], reader: dict[str, object], data: st.DataObject
) -> None:
    assume(not problems(writer, reader))
    fields = writer["fields"]
    assert isinstance(fields, list)
    stream = io.BytesIO()
    written, read = fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    fastavro.schemaless_writer(stream, written, {field["name"]: datum(data, field["type"]) for field in fields})
    stream.seek(0)
    found = fastavro.schemaless_reader(stream, written, read)
    assert isinstance(found, dict)
    assert set(found) == {field["name"] for field in reader["fields"]}  # type: ignore[attr-defined]
