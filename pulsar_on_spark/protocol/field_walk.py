"""Decoder of the protobuf fields of many messages at once: numpy reads one field of every message in each step.

In a process that walks many messages, a compiled loop does the same (`kernel_loading`).

The results are columns of numbers and byte ranges. A *shape* lists the fields that the decoder knows, in their usual
wire types. A message with anything else (an unknown field, a length beyond the message's end) is **odd**: its decoded
fields are undefined, and the caller must use the protobuf parser for it. All other messages are well-formed and get the
parser's values (tests/protocol compare the two). The caller checks required fields: `present` marks the messages that
have a field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pulsar_on_spark.protocol.kernel_loading import LOADING

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

_FEW_MESSAGES = 12
"""Number of messages up to which one Python step per field is faster than two dozen numpy calls per field."""
_REPEATED_FIELDS = 4
"""Repeated fields a message for which a compiled walk has room at first; if there are more, it walks a second time."""
_VARINT_BYTES = 10
_TAG_BYTES = 2
_PADDING = bytes(16)
"""Bytes appended to the data, because the first bytes of a field are read before the message's end is checked."""


class Kind(Enum):
    """The type of a field. `BYTES` are bytes, text or a submessage; `REPEATED` is a repeated submessage."""

    INT32 = 0
    UINT32 = 1
    INT64 = 2
    BOOL = 3
    BYTES = 4
    REPEATED = 5


@dataclass(frozen=True, slots=True)
class Numbers:
    """A numeric field of many messages.

    Attributes:
        values: The value in each message, a signed 64-bit number; 0 in messages without the field.
        present: True for each message that has the field.
    """

    values: Int64s
    present: Bools


@dataclass(frozen=True, slots=True)
class Ranges:
    """A field of bytes of many messages.

    Attributes:
        starts: The offset of the field's first byte in each message; the message's start in messages without the field.
        ends: The offset after the field's last byte; the message's start in messages without the field.
        present: True for each message that has the field.
    """

    starts: Int64s
    ends: Int64s
    present: Bools


@dataclass(frozen=True, slots=True)
class Occurrences:
    """The occurrences of a repeated field in many messages, in the order of the data.

    Attributes:
        messages: The index of the message of each occurrence.
        starts: The offset of the first byte of each occurrence.
        ends: The offset after the last byte of each occurrence.
    """

    messages: Int64s
    starts: Int64s
    ends: Int64s


@dataclass(frozen=True, slots=True)
class Fields:
    """The decoded fields of many messages.

    Attributes:
        numbers: The numeric fields, by field number.
        ranges: The fields of bytes, by field number.
        repeated: The repeated fields, by field number.
        odd: True for each message that needs the protobuf parser.
    """

    numbers: Mapping[int, Numbers]
    ranges: Mapping[int, Ranges]
    repeated: Mapping[int, Occurrences]
    odd: Bools


def walk_fields(data: Bytes, starts: Int64s, ends: Int64s, shape: Mapping[int, Kind]) -> Fields:
    """Decode the fields of many messages.

    Args:
        data: The bytes of the messages, with padding at the end as by `binary_data`.
        starts: The offset of each message's first byte. The messages must ascend and must not overlap.
        ends: The offset after each message's last byte.
        shape: The kind of each known field, by field number.
    """
    kernels = LOADING.kernels(len(starts))
    if kernels is not None:
        return _walk_compiled(kernels, data, starts, ends, shape)
    return _Walk(data, starts, ends, shape).run()


def binary_data(messages: pa.BinaryArray) -> tuple[Bytes, Int64s]:
    """Return the bytes of an Arrow column without nulls, padded for `walk_fields`, and the offsets of its rows.

    Row i is from offset i up to offset i + 1.
    """
    _, offset_buffer, data_buffer = messages.buffers()
    if len(messages) == 0 or data_buffer is None:
        return np.frombuffer(_PADDING, np.uint8), np.zeros(len(messages) + 1, np.int64)
    offsets = np.frombuffer(offset_buffer, np.int32, len(messages) + 1, messages.offset * 4).astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]
    return np.concatenate((data, np.frombuffer(_PADDING, np.uint8))), offsets - offsets[0]


def pick_ranges(data: Bytes, starts: Int64s, ends: Int64s, valid: Bools | None = None) -> pa.BinaryArray:
    """Return the bytes of ascending ranges as an Arrow column.

    Args:
        data: The bytes.
        starts: The offset of the first byte of each range.
        ends: The offset after the last byte of each range.
        valid: False for each range that is null in the column; None if no range is null.
    """
    count = len(starts)
    if count == 0:
        return pa.array([], pa.binary())
    # This column also has the bytes between two ranges, as every second element.
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2], bounds[1::2] = starts, ends
    spaced = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)], null_count=0
    )
    every_second = np.arange(0, 2 * count, 2)
    return spaced.take(pa.array(every_second, mask=None if valid is None or valid.all() else ~valid))


def _walk_compiled(kernels: ModuleType, data: Bytes, starts: Int64s, ends: Int64s, shape: Mapping[int, Kind]) -> Fields:
    """Return the same result as `_Walk`, by the compiled loops of `protocol.kernels`."""
    numeric = [number for number, kind in shape.items() if kind in _NUMERIC]
    ranged = [number for number, kind in shape.items() if kind is Kind.BYTES]
    repeated = [number for number, kind in shape.items() if kind is Kind.REPEATED]
    kinds, slots = np.zeros((2, 1 + max(_tag(number, kind) for number, kind in shape.items())), np.int64)
    for code, numbers in ((kernels.NUMBER, numeric), (kernels.BYTES, ranged), (kernels.REPEATED, repeated)):
        for slot, number in enumerate(numbers):
            tag = _tag(number, shape[number])
            kinds[tag], slots[tag] = code, slot
    count = len(starts)
    values, has_value = np.zeros((len(numeric), count), np.int64), np.zeros((len(numeric), count), np.bool_)
    ranges, has_range = np.empty((len(ranged), 2, count), np.int64), np.zeros((len(ranged), count), np.bool_)
    ranges[:] = starts
    odd = np.zeros(count, np.bool_)
    walk = partial(
        kernels.walk_messages,
        data,
        *(np.ascontiguousarray(bounds) for bounds in (starts, ends)),
        *(kinds, slots, values, has_value, ranges, has_range, odd),
    )
    found = np.empty((4, _REPEATED_FIELDS * count if repeated else 0), np.int64)
    total = walk(found)
    if total > found.shape[1]:
        found = np.empty((4, total), np.int64)
        walk(found)
    found = found[:, :total]
    return Fields(
        {
            number: Numbers(_as_kind(values[slot], shape[number]), has_value[slot])
            for slot, number in enumerate(numeric)
        },
        {number: Ranges(ranges[slot, 0], ranges[slot, 1], has_range[slot]) for slot, number in enumerate(ranged)},
        {number: Occurrences(*found[1:, found[0] == slot]) for slot, number in enumerate(repeated)},
        odd,
    )


class _Walk:
    """One run of the decoder, which fills the columns field by field."""

    def __init__(self, data: Bytes, starts: Int64s, ends: Int64s, shape: Mapping[int, Kind]) -> None:
        count = len(starts)
        self._data = data
        self._starts = starts
        self._ends = ends
        self._by_tag = {_tag(number, kind): (number, kind) for number, kind in shape.items()}
        self._odd = np.zeros(count, np.bool_)
        self._numbers: dict[int, Numbers] = {}
        self._ranges: dict[int, Ranges] = {}
        self._occurrences: dict[int, list[tuple[Int64s, Int64s, Int64s]]] = {}
        for number, kind in shape.items():
            if kind is Kind.REPEATED:
                self._occurrences[number] = []
            elif kind is Kind.BYTES:
                self._ranges[number] = Ranges(starts.copy(), starts.copy(), np.zeros(count, np.bool_))
            else:
                self._numbers[number] = Numbers(np.zeros(count, np.int64), np.zeros(count, np.bool_))

    def run(self) -> Fields:
        messages = np.flatnonzero(self._starts < self._ends)
        at = self._starts[messages]
        while len(messages) > _FEW_MESSAGES:
            after = self._step(messages, at)
            ends = self._ends[messages]
            wrong = (after <= at) | (after > ends)
            if wrong.any():
                self._odd[messages[wrong]] = True
                # Moving them to their ends excludes them from further steps.
                after[wrong] = ends[wrong]
            unfinished = after < ends
            messages, at = messages[unfinished], after[unfinished]
        for message, position in zip(messages.tolist(), at.tolist(), strict=True):
            self._walk_one(message, position)
        repeated = {number: _in_order(occurrences) for number, occurrences in self._occurrences.items()}
        return Fields(self._numbers, self._ranges, repeated, self._odd)

    def _step(self, messages: Int64s, at: Int64s) -> Int64s:
        """Read one field of each message at its offset; return the fields' ends, -1 for a field outside the shape."""
        tags = self._data[at].astype(np.int64)
        at = at + 1
        if (long := tags >= 0x80).any():
            tags[long] += (self._data[at[long]].astype(np.int64) - 1) << 7
            at[long] += 1
        first = int(tags[0])
        if (tags == first).all():
            return self._take_in(first, messages, at)
        after = np.empty_like(at)
        for tag in np.unique(tags).tolist():
            here = np.flatnonzero(tags == tag)
            after[here] = self._take_in(tag, messages[here], at[here])
        return after

    def _take_in(self, tag: int, messages: Int64s, at: Int64s) -> Int64s:
        if tag not in self._by_tag:
            return np.full(len(at), -1)
        number, kind = self._by_tag[tag]
        values, at = self._varints(at)
        if kind in _NUMERIC:
            column = self._numbers[number]
            column.values[messages] = _as_kind(values, kind)
            column.present[messages] = True
            return at
        ends = at + values
        # A length varint of more than ten bytes has `at` -1. `run` finds it by its end, as it finds ends out of bounds.
        ends[at < 0] = -1
        if kind is Kind.BYTES:
            ranges = self._ranges[number]
            ranges.starts[messages], ranges.ends[messages], ranges.present[messages] = at, ends, True
        else:
            self._occurrences[number].append((messages, at, ends))
        return ends

    def _varints(self, at: Int64s) -> tuple[Int64s, Int64s]:
        """Decode the varints at these offsets to (values, ends); the end of a varint of more than ten bytes is -1."""
        byte = self._data[at]
        values = (byte & 0x7F).astype(np.int64)
        at = at + 1
        longer = np.flatnonzero(byte >= 0x80)
        for index in range(1, _VARINT_BYTES):
            if len(longer) == 0:
                return values, at
            # A broken varint may go beyond the padding. Its message is odd, so the value of the byte does not matter.
            byte = self._data[np.minimum(at[longer], len(self._data) - 1)]
            values[longer] |= (byte & 0x7F).astype(np.int64) << np.int64(7 * index)
            at[longer] += 1
            longer = longer[byte >= 0x80]
        at[longer] = -1
        return values, at

    def _walk_one(self, message: int, at: int) -> None:
        """Read the remaining fields of one message one by one, when few messages have remaining fields."""
        end = int(self._ends[message])
        while 0 <= at < end:
            at = self._take_in_one(message, at, end)
        if at != end:
            self._odd[message] = True

    def _take_in_one(self, message: int, tag_at: int, end: int) -> int:
        """Read one field of a message and return the field's end; -1 for a field outside the shape."""
        at, tag = self._varint(tag_at, end)
        if at - tag_at > _TAG_BYTES or tag not in self._by_tag:
            return -1
        number, kind = self._by_tag[tag]
        start, value = self._varint(at, end)
        if start >= 0 and kind in _NUMERIC:
            column = self._numbers[number]
            column.values[message] = _as_kind(np.array([_wrapped(value)]), kind)[0]
            column.present[message] = True
            return start
        if start < 0 or start + value > end:
            return -1
        if kind is Kind.BYTES:
            ranges = self._ranges[number]
            ranges.starts[message], ranges.ends[message], ranges.present[message] = start, start + value, True
        else:
            self._occurrences[number].append((np.array([message]), np.array([start]), np.array([start + value])))
        return start + value

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """Decode one varint to (end, value); (-1, 0) if it has more than ten bytes or exceeds the message."""
        number = 0
        for index, byte in enumerate(self._data[at : min(end, at + _VARINT_BYTES)].tolist()):
            number |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                return at + index + 1, number
        return -1, 0


_NUMERIC = frozenset({Kind.INT32, Kind.UINT32, Kind.INT64, Kind.BOOL})


def _tag(number: int, kind: Kind) -> int:
    return number << 3 | (0 if kind in _NUMERIC else 2)


def _as_kind(values: Int64s, kind: Kind) -> Int64s:
    """Return 64-bit numbers as the protobuf parser converts them for a field of this kind."""
    if kind is Kind.INT32:
        return values.astype(np.int32).astype(np.int64)
    if kind is Kind.UINT32:
        return values & np.int64(0xFFFFFFFF)
    if kind is Kind.BOOL:
        return np.not_equal(values, 0).astype(np.int64)
    return values


def _wrapped(number: int) -> int:
    """Return the low 64 bits of a number as a signed number."""
    number &= 2**64 - 1
    return number - 2**64 if number >= 2**63 else number


def _in_order(occurrences: list[tuple[Int64s, Int64s, Int64s]]) -> Occurrences:
    if not occurrences:
        return Occurrences(*(np.empty(0, np.int64) for _ in range(3)))
    messages, starts, ends = (np.concatenate(column) for column in zip(*occurrences, strict=True))
    if len(occurrences) > 1:
        order = np.argsort(starts, kind="stable")
        messages, starts, ends = messages[order], starts[order], ends[order]
    return Occurrences(messages, starts, ends)
