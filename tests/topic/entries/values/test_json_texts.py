"""Structs as JSON text: any nesting of types gives what a plain encoder gives, row by row."""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.topic.entries.values.json_texts import encode_json
from pulsar_on_spark.topic.entries.values.json_values import decode_json

INSTANT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\\n\t\x00\x1f{},:é'), max_size=8)
LEAVES: dict[pa.DataType, st.SearchStrategy[object]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.bool_(): st.booleans(),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.decimal128(12, 3): st.decimals(-99_999, 99_999, places=3),
    pa.string(): TEXTS,
    pa.large_string(): TEXTS,
    pa.binary(): st.binary(max_size=7),
    pa.large_binary(): st.binary(max_size=7),
    pa.date32(): st.dates(date(1, 1, 1)),
    INSTANT: st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
    LOCAL: st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)),
    pa.null(): st.none(),
}


def struct_of(kinds: list[pa.DataType]) -> pa.StructType:
    return pa.struct([(f'f{number}"', kind) for number, kind in enumerate(kinds)])


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    keys = st.sampled_from([pa.string(), pa.int64(), pa.bool_(), pa.date32()])
    return (
        inner.map(pa.list_)
        | inner.map(pa.large_list)
        | st.lists(inner, max_size=3).map(struct_of)
        | st.tuples(keys, inner).map(lambda pair: pa.map_(*pair))
    )


KINDS = st.recursive(st.sampled_from(list(LEAVES)), nested, max_leaves=6)


def values_of(kind: pa.DataType) -> st.SearchStrategy[object]:
    """Values of a type as Python has them, null among them."""
    if pa.types.is_struct(kind):
        return st.none() | st.fixed_dictionaries({field.name: values_of(field.type) for field in kind})
    if pa.types.is_map(kind):
        pairs = st.tuples(LEAVES[kind.key_type], values_of(kind.item_type))
        return st.none() | st.lists(pairs, max_size=3, unique_by=lambda pair: pair[0])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return st.none() | st.lists(values_of(kind.value_type), max_size=3)
    return st.none() | LEAVES[kind]


def plainly(value: object, kind: pa.DataType) -> str:
    """The rules of `to_json`, one value at a time."""
    if value is None:
        return "null"
    if pa.types.is_struct(kind):
        fields = [(field.name, value[field.name], field.type) for field in kind]
        return "{" + ",".join(f"{json.dumps(n)}:{plainly(v, k)}" for n, v, k in fields if v is not None) + "}"
    if pa.types.is_map(kind):
        texts = [(plainly(name, kind.key_type), plainly(item, kind.item_type)) for name, item in value]
        return "{" + ",".join(f"{n if n[0] == chr(34) else json.dumps(n)}:{item}" for n, item in texts) + "}"
    if isinstance(value, list):
        return "[" + ",".join(plainly(each, kind.value_type) for each in value) + "]"
    if isinstance(value, bytes):
        return json.dumps(base64.b64encode(value).decode())
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, datetime):
        suffix = "" if value.tzinfo is None else "Z"
        digits = "milliseconds" if value.microsecond % 1000 == 0 else "microseconds"
        return f'"{value.replace(tzinfo=None).isoformat(timespec=digits)}{suffix}"'
    if isinstance(value, float) and not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
    text = str(pa.scalar(value, kind).cast(pa.string()).as_py())
    return f'"{text}"' if isinstance(value, date) else text


@settings(max_examples=60)
@given(st.data())
def test_any_type_is_encoded_as_row_by_row(data: st.DataObject) -> None:
    kind = struct_of(data.draw(st.lists(KINDS, min_size=1, max_size=3)))
    rows = data.draw(st.lists(values_of(kind), max_size=6))
    structs = pa.array(rows, kind)
    wanted = [None if row is None else plainly(row, kind).encode() for row in rows]
    assert encode_json(structs).to_pylist() == wanted
    first = data.draw(st.integers(0, len(rows)))
    count = data.draw(st.integers(0, len(rows) - first))
    assert encode_json(structs.slice(first, count)).to_pylist() == wanted[first : first + count]


READ_BACK = st.recursive(
    st.sampled_from([kind for kind in LEAVES if not (pa.types.is_null(kind) or "large" in str(kind))]),
    lambda inner: (
        inner.map(lambda kind: pa.list_(pa.field("element", kind)))
        | st.lists(inner, min_size=1, max_size=3).map(struct_of)
        | inner.map(lambda kind: pa.map_(pa.string(), kind))
    ),
    max_leaves=5,
)


@settings(max_examples=40)
@given(st.data())
def test_written_values_are_read_back(data: st.DataObject) -> None:
    kind = struct_of(data.draw(st.lists(READ_BACK, min_size=1, max_size=3)))
    structs = pa.array(data.draw(st.lists(values_of(kind), max_size=5)), kind)

    def refuse(row: int, reason: str) -> None:
        raise AssertionError(f"row {row}: {reason}")

    assert repr(decode_json(encode_json(structs), kind, refuse).to_pylist()) == repr(structs.to_pylist())


def test_elements_below_a_null_are_not_written() -> None:
    mask = pa.array([False, True, False])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 3, 4], pa.int32()), pa.array([1, 2, 3, 4]), mask=mask)
    structs = pa.StructArray.from_arrays([lists], ["l"])
    assert encode_json(structs).to_pylist() == [b'{"l":[1]}', b"{}", b'{"l":[4]}']


def test_decimals_keep_38_digits() -> None:
    kind = pa.struct([("l", pa.list_(pa.decimal128(38, 2)))])
    text = b'{"l":[123456789012345678901234567890123456.10]}'
    (row,) = decode_json(pa.array([text]), kind, lambda row, reason: None).to_pylist()
    assert encode_json(pa.array([row], kind)).to_pylist() == [text]


def test_a_type_without_json_text_is_refused_by_name() -> None:
    structs = pa.array([{"l": [1]}], pa.struct([("l", pa.list_(pa.duration("us")))]))
    with pytest.raises(InvalidArgumentError, match=r"is duration\[us\], which has no text in JSON: cast it to string"):
        encode_json(structs)
