"""Typed values without Spark: blocks, modes, hostile rows, Avro."""

from __future__ import annotations

import io
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_on_spark.model.errors import IncompatibleSchemaError, InvalidArgumentError
from pulsar_on_spark.topic.entries.values.avro_schemas import arrow_of_avro
from pulsar_on_spark.topic.entries.values.values import ParseMode, ValueCodec

SIMPLE = ValueCodec("json", pa.struct([("a", pa.int64()), ("s", pa.string())]))


def decode(codec: ValueCodec, values: list[bytes | None], mode: ParseMode = ParseMode.PERMISSIVE) -> list[object]:
    structs = codec.decode(pa.array(values, pa.binary()), mode, "message 1:{}:-1:0 of topic x".format)
    structs.validate(full=True)
    rows: list[object] = structs.to_pylist()
    return rows


def test_one_bad_row_in_many_blocks_costs_only_itself() -> None:
    values = [b'{"a":%d,"s":"x"}' % number for number in range(10_000)]
    values[5000] = b"not json"
    rows = decode(SIMPLE, list(values))
    assert rows[5000] is None
    assert [row["a"] for row in rows if isinstance(row, dict)] == [n for n in range(10_000) if n != 5000]


HOSTILE = [
    b'{"a":1}} null {"a":{}', b"null}null{", b'{"s":"', b'"}', b'"}}\n{"n":0,"v":{"a":7', b"\xff", b"{", b"}",
    b"[", b"]", b'{"a":1},{"a":2}', b'{"a":1}\n{"a":2}', b'{"a":1}\n', b"null", b"", b"\x00",
    b'{"a":' + b"[" * 3000, b'1}\n{"n":5,"v":2', b'{"s":"} null"}', b'{"s":"\\ud800"}', b'\xef\xbb\xbf{"a":1}',
    b'{"a":1}/*c*/', None,
]  # fmt: skip


@settings(max_examples=150)
@given(st.lists(st.sampled_from(HOSTILE) | st.sampled_from([b'{"a":1,"s":"one"}', b'{"a":2}']), max_size=30))
def test_no_row_changes_another_however_broken(values: list[bytes | None]) -> None:
    assert decode(SIMPLE, values) == [decode(SIMPLE, [value])[0] for value in values]


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=12) | st.text('{}[]",:nulltrue0 \n', max_size=25).map(str.encode), max_size=8))
def test_random_rows_never_shift_their_neighbours(values: list[bytes]) -> None:
    mixed: list[bytes | None] = []
    for number, value in enumerate(values):
        mixed += [value, b'{"a":%d}' % number]
    assert decode(SIMPLE, mixed)[1::2] == [{"a": number, "s": None} for number in range(len(values))]


@pytest.mark.parametrize("value", [b"junk", b'{"a":"text"}', b"null", b"5", b'{"a":1', b"\xff"])
def test_failfast_names_the_message(value: bytes) -> None:
    with pytest.raises(IncompatibleSchemaError, match=r"message 1:2:-1:0 of topic x.*PERMISSIVE"):
        decode(SIMPLE, [b'{"a":1}', None, value], ParseMode.FAILFAST)


def test_failfast_accepts_null_values_and_missing_fields() -> None:
    assert decode(SIMPLE, [None, b"{}", b""], ParseMode.FAILFAST) == [None, {"a": None, "s": None}, None]


def test_times_without_a_zone_are_utc() -> None:
    times = pa.struct([("t", pa.timestamp("us", "UTC"))])
    row = b'{"t":"2020-07-01T12:00:00"}'
    assert decode(ValueCodec("json", times), [row]) == [{"t": datetime(2020, 7, 1, 12, tzinfo=UTC)}]


def test_slices_and_empty_columns() -> None:
    values = pa.array([b'{"a":%d}' % number for number in range(20)]).slice(7, 5)
    made = SIMPLE.decode(values, ParseMode.PERMISSIVE, str)
    assert [row["a"] for row in made.to_pylist()] == [7, 8, 9, 10, 11]
    assert decode(SIMPLE, []) == []
    sliced = SIMPLE.encode(made.slice(2, 2))
    assert sliced.to_pylist() == [b'{"a":9}', b'{"a":10}']


JSON_VALUES = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(allow_nan=False),
        "s": st.none() | st.text(max_size=20),
        "b": st.none() | st.booleans(),
        "t": st.none() | st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
        "d": st.none() | st.dates(date(1, 1, 1)),
        "l": st.none() | st.lists(st.none() | st.text(max_size=5), max_size=3),
        "o": st.none()
        | st.fixed_dictionaries({"x": st.none() | st.integers(-9, 9), "y": st.none() | st.text(max_size=4)}),
        "m": st.none()
        | st.lists(st.tuples(st.text(max_size=3), st.integers(0, 9)), max_size=2, unique_by=lambda pair: pair[0]),
        "y": st.none() | st.binary(max_size=5),
        "n": st.none() | st.decimals(-1000, 1000, places=2),
    }
)
JSON_TYPE = pa.struct(
    [
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("t", pa.timestamp("us", "UTC")),
        ("d", pa.date32()),
        ("l", pa.list_(pa.field("element", pa.string()))),
        ("o", pa.struct([("x", pa.int64()), ("y", pa.string())])),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("y", pa.binary()),
        ("n", pa.decimal128(10, 2)),
    ]
)
WITHOUT_SLOW = ["i", "f", "s", "b", "t", "d", "l", "o", "y"]


@settings(max_examples=100)
@given(st.lists(st.none() | JSON_VALUES, max_size=12), st.booleans())
def test_json_round_trip(rows: list[dict[str, object] | None], all_fields: bool) -> None:
    names = [field.name for field in JSON_TYPE] if all_fields else WITHOUT_SLOW
    kind = pa.struct([JSON_TYPE.field(name) for name in names])
    codec = ValueCodec("json", kind)
    structs = pa.array([None if row is None else {name: row[name] for name in names} for row in rows], kind)
    texts = codec.encode(structs)
    for text in texts.to_pylist():
        assert text is None or isinstance(json.loads(text), dict)
    assert codec.decode(texts, ParseMode.FAILFAST, str).to_pylist() == structs.to_pylist()


def test_minus_zero_keeps_its_sign_in_floats_only() -> None:
    codec = ValueCodec("json", pa.struct([("a", pa.map_(pa.string(), pa.float64())), ("b", pa.int64())]))
    assert repr(decode(codec, [b'{"a":{"x":-0,"y":-0.0,"z":0},"b":-0}'])) == (
        "[{'a': [('x', -0.0), ('y', -0.0), ('z', 0.0)], 'b': 0}]"
    )


def test_floats_that_json_has_no_number_for() -> None:
    codec = ValueCodec("json", pa.struct([("f", pa.float64())]))
    structs = pa.array(
        [{"f": float("nan")}, {"f": float("inf")}, {"f": float("-inf")}, {"f": None}, {"f": 1.5}], codec.arrow_type
    )
    texts = codec.encode(structs)
    assert texts.to_pylist() == [b'{"f":"NaN"}', b'{"f":"Infinity"}', b'{"f":"-Infinity"}', b"{}", b'{"f":1.5}']
    assert repr(codec.decode(texts, ParseMode.FAILFAST, str).to_pylist()) == repr(structs.to_pylist())


LEG = {"type": "record", "name": "Leg", "fields": [{"name": "km", "type": "float"}]}
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Flight",
        "namespace": "air",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["IN", "OUT"]}},
            {"name": "other", "type": ["null", "Kind"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "exact", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
            {"name": "local", "type": ["null", {"type": "long", "logicalType": "local-timestamp-millis"}]},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "cost", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "legs", "type": {"type": "array", "items": LEG}},
            {"name": "tags", "type": {"type": "map", "values": ["null", "int"]}},
            {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
            {"name": "uid", "type": ["null", {"type": "string", "logicalType": "uuid"}]},
        ],
    }
)
ROW = {
    "id": 2**40,
    "kind": "OUT",
    "other": None,
    "at": datetime(2013, 1, 1, 5, 15, 0, 7000, tzinfo=UTC),
    "exact": datetime(2013, 1, 1, 5, 15, 0, 7, tzinfo=UTC),
    "local": datetime(2013, 1, 1, 5, 15),
    "day": date(2013, 1, 1),
    "cost": Decimal("12.34"),
    "legs": [{"km": 1.5}],
    "tags": [("a", 1), ("b", None)],
    "hash": b"abcd",
    "uid": "9f1c0f6e-0000-4000-8000-000000000000",
}


def microseconds(kind: pa.StructType) -> pa.StructType:
    """The type as pyspark has it: all times in microseconds, everything nullable."""
    times = {field.name: pa.timestamp("us", field.type.tz) for field in kind if pa.types.is_timestamp(field.type)}
    return pa.struct([(field.name, times.get(field.name, field.type)) for field in kind])


AVRO_CODEC = ValueCodec("avro", microseconds(arrow_of_avro(AVRO)), AVRO)


def test_avro_round_trip_and_bytes_of_an_independent_writer() -> None:
    structs = pa.array([ROW, None], AVRO_CODEC.arrow_type)
    data = AVRO_CODEC.encode(structs)
    assert decode(AVRO_CODEC, data.to_pylist()) == [ROW, None]
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(AVRO)), {**ROW, "tags": dict(ROW["tags"])})  # type: ignore[call-overload]
    assert data[0].as_py() == stream.getvalue()


@pytest.mark.parametrize("cut", [0, 1, 5, 20])
def test_avro_that_is_cut_or_too_long(cut: int) -> None:
    data = AVRO_CODEC.encode(pa.array([ROW], AVRO_CODEC.arrow_type))[0].as_py()
    values = [data, data[:cut], data + b"x", data]
    rows = decode(AVRO_CODEC, list(values))
    assert rows == [ROW, None, None, ROW]
    with pytest.raises(IncompatibleSchemaError, match="message 1:1:-1:0 of topic x"):
        decode(AVRO_CODEC, list(values), ParseMode.FAILFAST)


def test_a_narrowed_codec_decodes_the_named_fields_only_and_finds_the_same_bad_rows() -> None:
    data = AVRO_CODEC.encode(pa.array([ROW], AVRO_CODEC.arrow_type))[0].as_py()
    names = [field.name for field in AVRO_CODEC.arrow_type][1::3]
    assert decode(AVRO_CODEC.narrowed(names[::-1]), [data, data[:5], None]) == [
        {name: ROW[name] for name in names},
        None,
        None,
    ]
    assert decode(SIMPLE.narrowed(["s"]), [b'{"a":"no number","s":"x"}', b"[]", None]) == [{"s": "x"}, None, None]


@given(st.binary(max_size=60))
def test_avro_of_random_bytes_is_null_or_a_row_and_never_an_error(value: bytes) -> None:
    assert len(decode(AVRO_CODEC, [value])) == 1


@pytest.mark.parametrize("kind", ["bytes", "fixed"])
@pytest.mark.parametrize(("precision", "scale"), [(0, 0), (-1, 0), (3, 4), (39, 0), ("9", 0), (None, 0)])
def test_an_avro_decimal_that_is_not_valid_is_its_bytes(kind: str, precision: object, scale: int) -> None:
    decimal = {"type": kind, "name": "D", "size": 2, "logicalType": "decimal", "precision": precision, "scale": scale}
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": "d", "type": decimal}]})
    codec = ValueCodec("avro", arrow_of_avro(text), text)
    value = b"\x01\x02" if kind == "fixed" else b"\x04\x01\x02"
    assert decode(codec, [value], ParseMode.FAILFAST) == [{"d": b"\x01\x02"}]
    assert codec.encode(codec.decode(pa.array([value]), ParseMode.FAILFAST, str)).to_pylist() == [value]


@pytest.mark.parametrize(
    ("annotated", "plain", "fits", "beyond"),
    [
        ({"type": "long", "logicalType": "timestamp-millis"}, "long", 0, 2**63 - 1),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "long", 0, -(2**63)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}, "bytes", b"\x01", b"\x7f" * 8),
    ],
)
def test_an_avro_value_beyond_its_type_costs_only_its_field(
    annotated: object, plain: object, fits: object, beyond: object
) -> None:
    def schema(kind: object) -> dict[str, object]:
        fields = [{"name": "f", "type": ["null", kind]}, {"name": "n", "type": "int"}]
        return {"type": "record", "name": "R", "fields": fields}

    text = json.dumps(schema(annotated))
    codec = ValueCodec("avro", microseconds(arrow_of_avro(text)), text)
    values: list[bytes | None] = [None]
    for number in range(40):
        stream = io.BytesIO()
        row = {"f": beyond if number % 8 == 7 else fits, "n": number}
        fastavro.schemaless_writer(stream, fastavro.parse_schema(schema(plain)), row)
        values.append(stream.getvalue())
    null, *rows = decode(codec, values)
    assert null is None
    assert [row["n"] for row in rows if isinstance(row, dict)] == list(range(40))
    assert [row["n"] for row in rows if isinstance(row, dict) and row["f"] is None] == [7, 15, 23, 31, 39]
    with pytest.raises(IncompatibleSchemaError, match=r"message 1:8:-1:0 of topic x.*'f' is beyond"):
        decode(codec, values, ParseMode.FAILFAST)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.string(), b'["\\ud800x"]', '["?x"]'),
        (pa.map_(pa.string(), pa.int64()), b'{"\\ud800":1}', [("?", 1)]),
        (pa.null(), b'"text"', None),
        (pa.list_(pa.null()), b'["text"]', None),
    ],
)
def test_json_that_arrow_has_no_value_for(kind: pa.DataType, value: bytes, expected: object) -> None:
    rows = decode(ValueCodec("json", pa.struct([("f", kind), ("n", pa.int64())])), [b'{"f":%s,"n":1}' % value])
    assert rows == [{"f": expected, "n": 1}]


@pytest.mark.parametrize("depth", range(900, 1001, 5))
def test_json_of_any_depth_is_a_text_or_null(depth: int) -> None:
    assert len(decode(SIMPLE, [b'{"s":%s%s}' % (b"[" * depth, b"]" * depth)])) == 1


def test_an_integer_beyond_a_float_is_infinite() -> None:
    codec = ValueCodec("json", pa.struct([("f", pa.float32()), ("d", pa.float64())]))
    assert decode(codec, [b'{"f":-1%s,"d":1%s}' % (b"0" * 400, b"0" * 400)]) == [{"f": -math.inf, "d": math.inf}]


def test_avro_rows_that_lack_a_required_field() -> None:
    with pytest.raises(IncompatibleSchemaError, match="Avro"):
        AVRO_CODEC.encode(pa.array([{**ROW, "id": None}], AVRO_CODEC.arrow_type))
    with pytest.raises(IncompatibleSchemaError, match="'id'"):
        AVRO_CODEC.encode(pa.array([{"id": "text"}]))


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (["int", "string"], "union"),
        ("Missing", "'Missing'"),
        ({"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}, "contains itself"),
        (5, "5"),
    ],
)
def test_avro_schemas_without_a_spark_type(field: object, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        arrow_of_avro(json.dumps({"type": "record", "name": "T", "fields": [{"name": "f", "type": field}]}))


@pytest.mark.parametrize("text", ["", "nonsense", '"string"', "[]", '{"type":"record","name":"R"}'])
def test_texts_that_are_no_record_schema(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="Avro"):
        arrow_of_avro(text)


def test_avro_values_need_their_schema() -> None:
    with pytest.raises(InvalidArgumentError, match="Avro"):
        ValueCodec("avro", arrow_of_avro(AVRO))
