"""Loops over the bytes of many messages, compiled by numba.

Import this module through `kernel_loading` only: the import takes 0.45 s of CPU, and 1.5 s once after an installation,
when the loops are compiled. `field_walk` and `topic.entries.batches` have loops with the same results without numba:
the tests of these modules run on both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba
import numpy as np

from pulsar_on_spark.protocol.field_walk import Bools, Bytes, Int64s

Loop = TypeVar("Loop", bound=Callable[..., object])

BROKEN, UNUSUAL = -1, -2
"""Results of `walk_chains` in place of the number of messages."""
UNKNOWN, NUMBER, BYTES, REPEATED = 0, 1, 2, 3
"""Kinds of fields in the table of `walk_messages`."""
_VARINT_BYTES = 10
_PROPERTY_TAG, _KEY_TAG, _SIZE_TAG = 0x0A, 0x12, 0x18
_SIZE_BYTES = np.int64(4)
_MAX_INT32 = 2**31 - 1
_NONE, _ONE = np.int64(0), np.int64(1)
"""Signed numbers of 64 bits, because numba adds a signed and an unsigned number as floating-point numbers."""

_DATA = numba.types.Array(numba.uint8, 1, "C", readonly=True)
_INTS, _INT_ROWS, _INT_PAIRS = numba.int64[::1], numba.int64[:, ::1], numba.int64[:, :, ::1]
_TWO_INTS = numba.types.UniTuple(numba.int64, 2)  # type: ignore[no-untyped-call]
_FLAGS, _FLAG_ROWS = numba.bool_[::1], numba.bool_[:, ::1]


def _compiled(signature: object) -> Callable[[Loop], Loop]:
    """Return a decorator that compiles a loop for numba's signature, or loads it as another process compiled it."""

    def compiled(loop: Loop) -> Loop:
        try:
            return cast(Loop, numba.njit(signature, nogil=True, cache=True)(loop))
        except RuntimeError:
            # Neither the package's folder nor the user's cache can be written, as in a locked-down service.
            return cast(Loop, numba.njit(signature, nogil=True)(loop))

    return compiled


@_compiled(_TWO_INTS(_DATA, numba.int64, numba.int64))
def _varint(data: Bytes, at: np.int64, end: np.int64) -> tuple[np.int64, np.int64]:
    """Decode one varint to (end, value), where the value has wrapped to 64 bits; (-1, 0) if it does not end."""
    value = _NONE
    for index in range(_VARINT_BYTES):
        if at >= end:
            break
        byte = data[at]
        value |= np.int64(byte & 0x7F) << np.int64(7 * index)
        at += _ONE
        if byte < 0x80:
            return at, value
    return -_ONE, _NONE


@_compiled(numba.int64(_DATA, numba.int64, numba.int64, numba.int64, _INT_ROWS, numba.int64))
def _walk_chain(data: Bytes, at: np.int64, end: np.int64, messages: int, bounds: Int64s, row: np.int64) -> int:
    """Find the messages of the batch in `data[at:end]`; return their number, `BROKEN` or `UNUSUAL` (`walk_chains`)."""
    for _ in range(messages):
        start = at + _SIZE_BYTES
        if start > end:
            return BROKEN
        size = _NONE
        for index in range(at, start):
            size = size << 8 | np.int64(data[index])
        stop = start + size
        if stop > end:
            return BROKEN
        # Clients write fields in the order of their numbers: properties, the key, the size.
        field = start
        while field < stop and (data[field] == _PROPERTY_TAG or data[field] == _KEY_TAG):
            field, length = _varint(data, field + _ONE, stop)
            if field < 0 or length < 0 or length > stop - field:
                return UNUSUAL
            field += length
        if field >= stop or data[field] != _SIZE_TAG:
            return UNUSUAL
        field, size = _varint(data, field + _ONE, stop)
        if field < 0 or size < 0 or size > _MAX_INT32:
            return UNUSUAL
        if size > end - stop:
            return BROKEN
        at = stop + size
        bounds[row, 0], bounds[row, 1], bounds[row, 2] = start, stop, at
        row += _ONE
    return messages if at == end else BROKEN


@_compiled(numba.void(_DATA, _INTS, _INTS, _INTS, _INT_ROWS, _INTS))
def walk_chains(data: Bytes, starts: Int64s, ends: Int64s, messages: Int64s, bounds: Int64s, found: Int64s) -> None:
    """Find the messages of batches.

    Args:
        data: The bytes of all batches, each a chain of `[size u32][SingleMessageMetadata][payload]`.
        starts: The start of each batch in `data`.
        ends: The end of each batch.
        messages: The number of messages that each batch must have.
        bounds: Gets, for each message, the start of its metadata, the start of its payload, and its end, in `data`.
        found: Gets, for each batch, the number of its messages, `BROKEN` or `UNUSUAL`; without all its messages, the
            rows of a batch in `bounds` have no meaning.
    """
    row = _NONE
    for batch in range(len(starts)):
        found[batch] = _walk_chain(data, starts[batch], ends[batch], messages[batch], bounds, row)
        row += messages[batch]


@_compiled(
    numba.int64(_DATA, _INTS, _INTS, _INTS, _INTS, _INT_ROWS, _FLAG_ROWS, _INT_PAIRS, _FLAG_ROWS, _FLAGS, _INT_ROWS)
)
def walk_messages(
    data: Bytes,
    starts: Int64s,
    ends: Int64s,
    kinds: Int64s,
    slots: Int64s,
    numbers: Int64s,
    has_number: Bools,
    ranges: Int64s,
    has_range: Bools,
    odd: Bools,
    found: Int64s,
) -> int:
    """Find the fields of messages; return the number of repeated fields, of which `found` may have had no room for all.

    The caller makes `found`, because a loop that replaces an array by a larger one is more than twice as slow.

    Args:
        data: The bytes of all messages.
        starts: The start of each message in `data`.
        ends: The end of each message.
        kinds: The kind of the field with each protobuf tag; a tag beyond the table is unknown.
        slots: The index of the field with each tag among the fields of its kind.
        numbers: Gets a row of 64-bit values, by message, for each numeric field.
        has_number: Gets a row of flags for each numeric field: True where the message has the field.
        ranges: Gets a row of starts and a row of ends for each bytes field.
        has_range: Gets a row of flags for each bytes field.
        odd: Gets True for each message with other fields, or with fields that do not end where it ends.
        found: Gets a row of slots, of messages, of starts and of ends, by repeated field, for the fields that fit.
    """
    count = 0
    for message in range(len(starts)):
        at, end = starts[message], ends[message]
        while at < end:
            tag = np.int64(data[at])
            at += _ONE
            if tag >= 0x80:
                if at >= end:
                    odd[message] = True
                    break
                tag += (np.int64(data[at]) - 1) << 7
                at += _ONE
            kind = kinds[tag] if tag < len(kinds) else UNKNOWN
            if kind == UNKNOWN:
                odd[message] = True
                break
            slot = slots[tag]
            if at < end and data[at] < 0x80:  # as nearly all: a call for these took most of the time
                value = np.int64(data[at])
                at += _ONE
            else:
                at, value = _varint(data, at, end)
            if at < 0 or (kind != NUMBER and (value < 0 or value > end - at)):
                odd[message] = True
                break
            if kind == NUMBER:
                numbers[slot, message], has_number[slot, message] = value, True
                continue
            if kind == BYTES:
                ranges[slot, 0, message], ranges[slot, 1, message] = at, at + value
                has_range[slot, message] = True
            else:
                if count < found.shape[1]:
                    found[0, count], found[1, count], found[2, count], found[3, count] = slot, message, at, at + value
                count += 1
            at += value
    return count
