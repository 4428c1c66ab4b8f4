"""Conversion of Arrow structs to JSON text, with the meaning of Spark's `to_json`.

* Null fields of structs are left out; null elements of lists and null values of maps are `null`.
* Times are ISO 8601 in UTC with `Z`, or without a zone for local times. They have milliseconds, or microseconds if
  needed.
* Binary is Base64. A float that JSON has no number for is "NaN", "Infinity" or "-Infinity". Characters beyond ASCII are
  not escaped.
* A map's key is the text of its value, always in quotes.

Whole columns are converted to text, never single rows. The elements of all lists at one depth are one column: their
texts are made together, and then joined by the lists' offsets.
"""

from __future__ import annotations

import binascii
import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.topic.entries.values.json_times import times_text

_LONGEST = 2**31 - 1
_SHORT_ESCAPES = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}
_BACKSLASH = 92
_IS_ESCAPED = np.isin(np.arange(256), [*range(0x20), *_SHORT_ESCAPES])


def encode_json(structs: pa.StructArray) -> pa.BinaryArray:
    """Return the JSON text of each row; a null row stays null.

    Raises:
        InvalidArgumentError: a field has a type without a text in JSON.
    """
    texts = _structs(structs).view(pa.binary())
    return texts if structs.null_count == 0 else pc.if_else(structs.is_valid(), texts, None)


def _texts(array: pa.Array) -> pa.StringArray:
    """Return the JSON text of each value. The text of a null value is undefined, but never null."""
    kind = array.type
    if pa.types.is_struct(kind):
        return _structs(array)
    if pa.types.is_map(kind):
        pairs = pc.binary_join_element_wise(_keys(_child(array, array.keys)), _or_null(_child(array, array.items)), ":")
        return _joined(array, pairs, "{", "}")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _joined(array, _or_null(_child(array, array.values)), "[", "]")
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return array.cast(pa.string()).fill_null("")
    if pa.types.is_floating(kind):
        return _floats(array)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _quoted(times_text(array).fill_null(""))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _quoted(_escaped(array.cast(pa.string()).fill_null("")))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        coded = [binascii.b2a_base64(value, newline=False) for value in array.fill_null(b"").to_pylist()]
        return _quoted(pa.array(coded, pa.binary()).view(pa.string()))
    if pa.types.is_null(kind):
        return pa.repeat(pa.scalar(""), len(array))
    raise InvalidArgumentError(f"A field of a JSON value is {kind}, which has no text in JSON: cast it to string.")


def _structs(structs: pa.StructArray) -> pa.StringArray:
    """Return the rows as JSON objects: join `,"name":text` of each field that is not null, then add the braces."""
    pieces: list[pa.StringArray] = []
    for field, child in zip(structs.type, structs.flatten(), strict=True):
        name = json.dumps(field.name, ensure_ascii=False)
        text = pc.binary_join_element_wise(f",{name}:", _texts(child), "")
        pieces.append(pc.if_else(child.is_valid(), text, "") if child.null_count else text)
    if not pieces:
        return pa.repeat(pa.scalar("{}"), len(structs))
    joined = pc.binary_join_element_wise(*pieces, "")
    without_comma = pc.binary_slice(joined.view(pa.binary()), 1, _LONGEST)
    return pc.binary_join_element_wise(b"{", without_comma, b"}", b"").view(pa.string())


def _child(array: pa.ListArray | pa.MapArray, elements: pa.Array) -> pa.Array:
    """Return only the elements of the array's own rows: a sliced Arrow array still has all of the unsliced array."""
    if len(array) == 0:
        return elements.slice(0, 0)
    first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return elements.slice(first, end - first)


def _joined(array: pa.ListArray | pa.MapArray, texts: pa.StringArray, before: str, after: str) -> pa.StringArray:
    """Join the texts of each row's elements with commas, and put `before` and `after` around the result."""
    if len(array) == 0:
        return pa.array([], pa.string())
    offsets = pc.subtract(array.offsets, array.offsets[0]).cast(pa.int32())
    lists = pa.ListArray.from_arrays(offsets, texts)
    return pc.binary_join_element_wise(before, pc.binary_join(lists, ","), after, "")


def _or_null(array: pa.Array) -> pa.StringArray:
    """Return the JSON text of each value, and `null` for a null value."""
    texts = _texts(array)
    return pc.if_else(array.is_valid(), texts, "null") if array.null_count else texts


def _keys(keys: pa.Array) -> pa.StringArray:
    """Return the texts of a map's keys, all in quotes."""
    kind, texts = keys.type, _texts(keys)
    if pa.types.is_nested(kind):
        return _quoted(_escaped(texts))
    if pa.types.is_floating(kind):
        return _quoted(pc.utf8_trim(texts, '"'))
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return _quoted(texts)
    return texts


def _floats(array: pa.Array) -> pa.StringArray:
    texts = array.cast(pa.string()).fill_null("")
    if pc.all(pc.is_finite(array)).as_py() in (True, None):
        return texts
    named = pc.if_else(pc.is_nan(array), '"NaN"', pc.if_else(pc.greater(array, 0), '"Infinity"', '"-Infinity"'))
    return pc.if_else(pc.is_finite(array), texts, named).fill_null("")


def _quoted(texts: pa.StringArray) -> pa.StringArray:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _escaped(texts: pa.StringArray) -> pa.StringArray:
    """Escape quotes, backslashes and control characters."""
    _, offset_buffer, data = texts.buffers()
    if data is None or len(texts) == 0:
        return texts
    offsets = np.frombuffer(offset_buffer, np.int32)
    letters = np.frombuffer(data, np.uint8)[offsets[texts.offset] : offsets[texts.offset + len(texts)]]
    to_escape = set(np.unique(letters[_IS_ESCAPED[letters]]).tolist())
    # The backslash first, because the other escapes contain backslashes.
    for letter in sorted(to_escape, key=lambda letter: letter != _BACKSLASH):
        escape = _SHORT_ESCAPES.get(letter, f"\\u{letter:04x}")
        texts = pc.replace_substring(texts, chr(letter), escape)
    return texts
