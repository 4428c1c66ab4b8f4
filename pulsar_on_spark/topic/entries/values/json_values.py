"""Conversion of JSON values to Arrow structs, with the meaning of Spark's `from_json`; `json_texts` does the reverse.

Arrow's JSON reader reads a whole block of rows at a time, and fails at the first row that it does not accept. A block
that fails is halved until only a few rows around the bad one remain. These are read one by one, by the rules of Spark's
parser (measured on Spark 4.2.0):

* text that is not a JSON object makes the whole row null; text after the first object is ignored;
* a field of the wrong type is null and the other fields keep their values; an array or map with one bad element is null
  as a whole;
* a string field takes any JSON value as its text; a float takes "NaN" and "Infinity"; binary is Base64;
* times are ISO 8601 in Spark's lenient forms, or a number of seconds; a time without zone is UTC.

There are three differences from Spark: text in single quotes is not JSON; a number too large for tinyint or smallint is
null instead of wrapped around; a float keeps its digits when it is read as a string.

The reader parses the rows of a block as one text, so two broken rows could together form valid ones. It therefore gets
only rows that begin with `{` and end with `}`: a parser that is inside an object behind a `}` accepts no `{`, and one
that is inside a string accepts no end of a line. Each row then gives one object at least, and all give as many as there
are rows only if each gives one. Version 26 of Arrow crashes the process at a `null` between objects, so a block that
could contain such a `null` is not passed to the reader.
"""

from __future__ import annotations

import binascii
import json
import math
import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from pulsar_on_spark.topic.entries.values.json_times import parse_dates, parse_times

_BLOCK_ROWS = 4_096
_FEW_ROWS = 16
_CRASHING = re.compile(rb"\}\s*null")
_BLANK = b" \t\r\n"
_NAMED_FLOATS = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "+Infinity": math.inf,
    "+INF": math.inf,
    "-Infinity": -math.inf,
    "-INF": -math.inf,
}
_WIDE = Context(prec=80)
"""Context with twice the digits of Spark's largest decimal; Python's default of 28 digits is too few."""
_BAD = object()
"""Result of a converter for a value that does not fit its type."""

BadRow = Callable[[int, str], None]
"""Called with the row and the reason of each value that does not fit; may raise."""


def decode_json(values: pa.BinaryArray, arrow_type: pa.StructType, on_bad_row: BadRow) -> pa.StructArray:
    """Return a struct for each row; null where the value is null, blank or not a JSON object.

    Args:
        values: UTF-8 JSON text.
        arrow_type: The wanted fields, all nullable.
        on_bad_row: Called with the number of a row that does not fit, and the reason.
    """
    reading = _reading_type(arrow_type)
    parts: list[pa.StructArray] = []
    for first in range(0, len(values), _BLOCK_ROWS):
        block = values.slice(first, _BLOCK_ROWS)
        parts += _decode_block(block, first, arrow_type, reading, on_bad_row)
    return pa.concat_arrays(parts) if parts else pa.array([], arrow_type)


def _decode_block(
    values: pa.BinaryArray,
    first: int,
    arrow_type: pa.StructType,
    reading: pa.StructType | None,
    on_bad_row: BadRow,
) -> list[pa.StructArray]:
    made = None if reading is None else _read_block(values, arrow_type, reading)
    if made is not None:
        return [made]
    if reading is None or len(values) <= _FEW_ROWS:
        return [_read_rows(values, first, arrow_type, on_bad_row)]
    half = len(values) // 2
    return [
        *_decode_block(values.slice(0, half), first, arrow_type, reading, on_bad_row),
        *_decode_block(values.slice(half), first + half, arrow_type, reading, on_bad_row),
    ]


def _read_block(values: pa.BinaryArray, arrow_type: pa.StructType, reading: pa.StructType) -> pa.StructArray | None:
    """Read a block of rows by Arrow's reader; None if the reader fails."""
    there = values.drop_null() if values.null_count else values
    if not len(there):
        return pa.nulls(len(values), arrow_type)
    try:
        rows = there.cast(pa.string())
        if not _are_objects(rows):
            rows = pc.ascii_trim(rows, _BLANK.decode())
            if not _are_objects(rows):
                return None
        lines = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows), "\n")
        text = lines[0].as_buffer()
        if _CRASHING.search(memoryview(text)):
            return None
        table = pa_json.read_json(
            pa.BufferReader(text),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=text.size + 1),
            parse_options=pa_json.ParseOptions(
                explicit_schema=pa.schema(list(reading)), unexpected_field_behavior="ignore", newlines_in_values=True
            ),
        )
        if table.num_rows != len(rows):
            return None
        columns = [
            _convert(column.combine_chunks(), field.type) for column, field in zip(table, arrow_type, strict=True)
        ]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    made = pa.StructArray.from_arrays(columns, fields=list(arrow_type))
    if there is values:
        return made
    valid = values.is_valid()
    return made.take(pc.if_else(valid, pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1), None))


def _are_objects(rows: pa.StringArray) -> bool:
    """Return True if each row begins with `{` and ends with `}`."""
    _, offsets, data = rows.buffers()
    ends = np.frombuffer(offsets, np.int32)[rows.offset : rows.offset + len(rows) + 1]
    if data is None or (ends[1:] == ends[:-1]).any():
        return False
    text = np.frombuffer(data, np.uint8)
    return bool((text[ends[:-1]] == ord("{")).all() and (text[ends[1:] - 1] == ord("}")).all())


def _reading_type(wanted: pa.DataType) -> pa.DataType | None:
    """Return the type to request from Arrow's reader, text for times and bytes.

    The result is None if the reader cannot read `wanted`.
    """
    if pa.types.is_struct(wanted):
        fields = [(field.name, _reading_type(field.type)) for field in wanted]
        return None if any(kind is None for _, kind in fields) or not fields else pa.struct(fields)
    if pa.types.is_list(wanted):
        element = _reading_type(wanted.value_type)
        return None if element is None else pa.list_(element)
    if pa.types.is_timestamp(wanted) or pa.types.is_date(wanted) or pa.types.is_binary(wanted):
        return pa.string()
    if pa.types.is_map(wanted) or pa.types.is_decimal(wanted) or pa.types.is_float32(wanted):
        return None
    if pa.types.is_null(wanted):  # in a list, the reader makes an invalid array of them
        return None
    return wanted


def _convert(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Convert a column from its reading type to the wanted type.

    Raises:
        ArrowInvalid: a text does not fit, so the rows must be read one by one.
    """
    if pa.types.is_struct(wanted):
        children = [_convert(child, field.type) for child, field in zip(array.flatten(), wanted, strict=True)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=mask)
    if pa.types.is_list(wanted):
        elements = _convert(array.flatten(), wanted.value_type)
        lengths = pc.list_value_length(array).fill_null(0).to_numpy()
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(pa.array(offsets), elements, type=wanted, mask=mask)
    if pa.types.is_timestamp(wanted):
        return parse_times(array, wanted)
    if pa.types.is_date(wanted):
        return parse_dates(array)
    if pa.types.is_binary(wanted):
        return pa.array([None if text is None else _bytes_of(text) for text in array.to_pylist()], wanted)
    return array


def _read_rows(values: pa.BinaryArray, first: int, arrow_type: pa.StructType, on_bad_row: BadRow) -> pa.StructArray:
    converter = _RowConverter()
    decoder = json.JSONDecoder(parse_float=Decimal, parse_int=_number, parse_constant=_NAMED_FLOATS.__getitem__)
    rows: list[object] = []
    for number, value in enumerate(values.to_pylist()):
        converter.reason = ""
        row: object = None
        if value is not None and value.strip(_BLANK):
            try:
                parsed = decoder.raw_decode(value.decode("utf-8").lstrip(" \t\r\n"))[0]
                row = converter.convert(parsed, arrow_type)
            except (ValueError, RecursionError) as error:
                converter.reason = f"it is not JSON ({error})"
            row = None if row is _BAD else row
            converter.reason = converter.reason or ("it is null" if row is None else "")
        if converter.reason:
            on_bad_row(first + number, converter.reason)
        rows.append(row)
    return pa.array(rows, arrow_type)


class _MinusZero(int):
    """The number `-0`, whose sign floats keep."""

    def __float__(self) -> float:
        return -0.0


def _number(text: str) -> int:
    return _MinusZero() if text == "-0" else int(text)


class _RowConverter:
    """Converter of parsed JSON values to Python values of Arrow types.

    `reason` is the reason why a value did not fit.
    """

    def __init__(self) -> None:
        self.reason = ""

    def convert(self, value: object, wanted: pa.DataType) -> object:
        if value is None:
            return None
        fitting = self._fit(value, wanted)
        if fitting is _BAD:
            self.reason = self.reason or f"{_text_of(value)[:80]} is no {wanted}"
        return fitting

    def _fit(self, value: object, wanted: pa.DataType) -> object:
        if pa.types.is_struct(wanted):
            return self._struct(value, wanted) if isinstance(value, dict) else _BAD
        if pa.types.is_list(wanted):
            return self._all(value, wanted.value_type) if isinstance(value, list) else _BAD
        if pa.types.is_map(wanted):
            return self._map(value, wanted) if isinstance(value, dict) else _BAD
        if pa.types.is_string(wanted):
            return _whole(_text_of(value))
        if pa.types.is_null(wanted):
            return _BAD
        if pa.types.is_boolean(wanted):
            return value if isinstance(value, bool) else _BAD
        if isinstance(value, bool):
            return _BAD
        if pa.types.is_integer(wanted):
            return (
                value
                if isinstance(value, int) and -(1 << wanted.bit_width - 1) <= value < 1 << wanted.bit_width - 1
                else _BAD
            )
        if pa.types.is_floating(wanted):
            return _float(value) if isinstance(value, int | float | Decimal) else _NAMED_FLOATS.get(str(value), _BAD)
        if pa.types.is_decimal(wanted):
            return _decimal(value, wanted)
        if pa.types.is_timestamp(wanted) and isinstance(value, int):
            return value * 1_000_000 if wanted.tz is not None and abs(value) < 1 << 43 else _BAD
        return self._text(value, wanted) if isinstance(value, str) else _BAD

    def _text(self, value: str, wanted: pa.DataType) -> object:
        try:
            if pa.types.is_binary(wanted):
                return _bytes_of(value)
            if pa.types.is_date(wanted):
                return parse_dates(pa.array([value]))[0].as_py()
            return parse_times(pa.array([value]), wanted).cast(pa.int64())[0].as_py()
        except pa.ArrowInvalid:
            return _BAD

    def _struct(self, value: dict[str, object], wanted: pa.StructType) -> object:
        made = {field.name: self.convert(value.get(field.name), field.type) for field in wanted}
        return {name: None if part is _BAD else part for name, part in made.items()}

    def _all(self, values: list[object], wanted: pa.DataType) -> object:
        made = [self.convert(value, wanted) for value in values]
        return _BAD if any(part is _BAD for part in made) else made

    def _map(self, value: dict[str, object], wanted: pa.MapType) -> object:
        made = self._all(list(value.values()), wanted.item_type)
        return list(zip(map(_whole, value), made, strict=True)) if isinstance(made, list) else _BAD


def _whole(text: str) -> str:
    """Return a text without halves of surrogate pairs, which JSON can escape and UTF-8 has no bytes for."""
    return text.encode("utf-16", "replace").decode("utf-16")


def _float(value: float | Decimal) -> float:
    try:
        return float(value)
    except OverflowError:  # of an integer; as Arrow's reader, and as for a large number with an exponent
        return math.inf if value > 0 else -math.inf


def _decimal(value: object, wanted: pa.DataType) -> object:
    try:
        if not isinstance(value, int | Decimal | str):
            return _BAD
        scaled = Decimal(value).quantize(Decimal(1).scaleb(-wanted.scale), ROUND_HALF_UP, _WIDE)
    except InvalidOperation:
        return _BAD
    return scaled if scaled.is_finite() and len(scaled.as_tuple().digits) <= wanted.precision else _BAD


def _bytes_of(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise pa.ArrowInvalid(f"{text[:80]!r} is not Base64") from error


def _text_of(value: object) -> str:
    """Return a JSON value as compact JSON text; a string is returned unchanged."""
    if isinstance(value, str):
        return value
    if isinstance(value, Decimal):
        return str(value)
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=float)
