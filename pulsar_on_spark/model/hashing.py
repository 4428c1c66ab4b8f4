"""Pulsar's key hashes for whole Arrow columns, without a Python loop over rows.

Three hashes route messages, with the same results as the official clients (`tests/golden`):

* `java_string_hash`, the Java client's default routing hash;
* `murmur3_32`, the Java client's `Murmur3_32Hash`, and the default routing hash of other clients;
* `sticky_key_hash`, by which a broker, and Key_Shared slots in Spark, keep a key with one consumer.

**Keys.** Pulsar's `partition_key` is a string; the Java client's `keyBytes` stores the Base64 of the bytes there and
sets a flag. This project stores a key as its *bytes* and this flag (`key_b64`): readers get the bytes without any work,
and `key_strings` gives Pulsar's string. A key from Spark is a string if it is valid UTF-8; otherwise it is flagged. The
flag depends on the key alone and never on other rows, so equal keys are always routed alike. The Java client flags
*every* key that is given to `keyBytes`. A Spark job whose keys must reach the same partitions as those of such a
producer must write their Base64 as `__key`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_on_spark.model.errors import InvalidArgumentError

Hashes = npt.NDArray[np.uint32]
"""A hash for each row, in 0 .. 2**31 - 1; the hash of a null row is undefined."""

KeyArray: TypeAlias = pa.BinaryArray | pa.StringArray

_POSITIVE = np.uint32(0x7FFFFFFF)
_ROWS_AT_ONCE = 16_384
_UNITS_AT_ONCE = 262_144
"""Limits of a chunk in rows and in bytes (or UTF-16 units), so that its columns stay in the processor's cache."""
_FEW_ROWS = 16
"""Number of rows up to which one Python step per word is faster than a dozen numpy calls per word."""
_C1 = np.uint32(0xCC9E2D51)
_C2 = np.uint32(0x1B873593)
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_MODULUS = 1 << 32


def murmur3_32(keys: KeyArray) -> Hashes:
    """Return Pulsar's `Murmur3_32Hash` (seed 0, sign bit cleared) of each row's bytes; text counts as UTF-8."""
    data, offsets = _bytes_and_offsets(keys)
    hashes = np.empty(len(keys), np.uint32)
    for first, last in _chunks(offsets):
        ends = offsets[first : last + 1]
        hashes[first:last] = _murmur_rows(data[ends[0] : ends[-1]], ends - ends[0])
    hashes &= _POSITIVE
    return hashes


def sticky_key_hash(keys: KeyArray, ordering_keys: KeyArray | None = None) -> Hashes:
    """Return the broker's Key_Shared hash: Murmur3 of the ordering key or, without one, of the key's decoded bytes.

    The rule is `Commands.resolveStickyKey` of Pulsar. A row with neither key gets the hash of an empty key.
    `ordering_keys` is None if no row has an ordering key.
    """
    if ordering_keys is None or ordering_keys.null_count == len(ordering_keys):
        return murmur3_32(keys)
    return murmur3_32(pc.coalesce(_as_binary(ordering_keys), _as_binary(keys)))


def java_string_hash(strings: KeyArray) -> Hashes:
    """Return the Java client's `JavaStringHash`: `String.hashCode() & Integer.MAX_VALUE` over UTF-16 code units.

    Raises:
        InvalidArgumentError: a row is not valid UTF-8 (see `key_strings`).
    """
    data, offsets = _bytes_and_offsets(strings)
    units: npt.NDArray[np.uint8] | npt.NDArray[np.uint16] = data
    if not _is_ascii(data):
        if not _all_utf8(strings):
            raise InvalidArgumentError("A key to be hashed as a Java string is not valid UTF-8: give the key's Base64.")
        units, offsets = _utf16_units(data, offsets)
    hashes = np.empty(len(strings), np.uint32)
    for first, last in _chunks(offsets):
        ends = offsets[first : last + 1]
        hashes[first:last] = _java_rows(units[ends[0] : ends[-1]], ends - ends[0])
    hashes &= _POSITIVE
    return hashes


def invalid_utf8(keys: KeyArray) -> pa.BooleanArray | None:
    """Return a mask of the rows that are not valid UTF-8 and need `key_b64`; None if all rows are valid or null."""
    if keys.null_count == len(keys) or _is_ascii(_bytes_and_offsets(keys)[0]) or _all_utf8(keys):
        return None
    # A fault may be detected up to three bytes later, so three bytes between rows keep each fault in its row.
    separated = pc.binary_join_element_wise(_as_binary(keys).fill_null(b""), b"", pa.scalar(b"\n\n\n"))
    data, offsets = _bytes_and_offsets(separated)
    bad = np.zeros(len(keys), np.bool_)
    bad[np.searchsorted(offsets, np.flatnonzero(_utf8_faults(data)), side="right") - 1] = True
    return pa.array(bad)


def key_strings(keys: KeyArray, key_b64: pa.BooleanArray | None) -> KeyArray:
    """Return Pulsar's `partition_key` of each row: the key itself, or its Base64 if `key_b64` is True for the row.

    `key_b64` is None if it is False for all rows.
    """
    if key_b64 is None or not pc.any(key_b64).as_py():
        return keys
    flagged = key_b64.fill_null(False)
    encoded = base64_encode(_as_binary(keys.filter(flagged)))
    return pc.replace_with_mask(_as_binary(keys), flagged, encoded)


def base64_encode(values: KeyArray) -> pa.BinaryArray:
    """Return the padded standard Base64 (RFC 4648) of each row; null stays null."""
    data, offsets = _bytes_and_offsets(values)
    quads = np.concatenate(([0], np.cumsum((np.diff(offsets) + 2) // 3)))
    text = np.empty((int(quads[-1]), 4), np.uint8)
    for first, last in _chunks(offsets):
        ends = offsets[first : last + 1]
        _base64_rows(data[ends[0] : ends[-1]], ends - ends[0], text[quads[first] : quads[last]])
    text_offsets = (quads * 4).astype(np.int32)
    encoded = pa.BinaryArray.from_buffers(pa.binary(), len(values), [None, *map(pa.py_buffer, (text_offsets, text))])
    return encoded if values.null_count == 0 else pc.if_else(values.is_valid(), encoded, None)


def _base64_rows(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], text: npt.NDArray[np.uint8]) -> None:
    """Fill `text`, an array with four characters per row, with the concatenated Base64 of the rows of `data`."""
    quads = (np.diff(offsets) + 2) // 3
    start = np.repeat(offsets[:-1] - 3 * (np.cumsum(quads) - quads), quads)
    at = start + 3 * np.arange(len(start))
    left = np.repeat(offsets[1:], quads) - at
    padded = np.concatenate((data, np.zeros(2, np.uint8)))
    a, b, c = padded[at], np.where(left > 1, padded[at + 1], 0), np.where(left > 2, padded[at + 2], 0)
    text[:, 0] = _BASE64[a >> 2]
    text[:, 1] = _BASE64[(a & 3) << 4 | b >> 4]
    text[:, 2] = np.where(left > 1, _BASE64[(b & 15) << 2 | c >> 6], ord("="))
    text[:, 3] = np.where(left > 2, _BASE64[c & 63], ord("="))


def _chunks(offsets: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield ranges [first, last) of rows, each limited in rows and in bytes; a larger row is a range by itself."""
    first, rows = 0, len(offsets) - 1
    while first < rows:
        fitting = int(np.searchsorted(offsets, offsets[first] + _UNITS_AT_ONCE, side="right")) - 1
        last = min(max(first + 1, fitting), first + _ROWS_AT_ONCE, rows)
        yield first, last
        first = last


def _murmur_rows(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> Hashes:
    lengths = np.diff(offsets)
    words = _word_at_every_byte(data)
    starts = offsets[:-1]
    blocks = lengths >> 2
    if len(blocks) == 0:
        return np.empty(0, np.uint32)
    most, least = int(blocks.max()), int(blocks.min())
    order = None
    if most != least:
        keyed = blocks.astype(np.uint16) if most <= 0xFFFF else blocks
        order = np.argsort(keyed, kind="stable")[::-1]
        starts, lengths, blocks = starts[order], lengths[order], blocks[order]
    hashes = np.zeros(len(starts), np.uint32)
    active = len(starts)
    for block in range(most):
        if block >= least:
            active = int(np.searchsorted(-blocks[:active], -block, side="left"))
            if active <= _FEW_ROWS:
                _finish_long_rows(hashes[:active], words, starts[:active], blocks[:active], block)
                break
        _add_block(hashes[:active], words.take(starts[:active] + 4 * block))
    tail_mask = (np.uint32(1) << ((lengths & 3).astype(np.uint32) << np.uint32(3))) - np.uint32(1)
    hashes ^= _scramble(words.take(starts + 4 * blocks) & tail_mask)
    hashes ^= lengths.astype(np.uint32)
    _avalanche(hashes)
    if order is None:
        return hashes
    unsorted = np.empty_like(hashes)
    unsorted[order] = hashes
    return unsorted


def _word_at_every_byte(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Return the little-endian 32-bit word that starts at each byte (zeros after the end), by four shifted copies."""
    count = len(data) // 4 + 1
    padded = np.zeros(4 * count + 4, np.uint8)
    padded[: len(data)] = data
    words = np.empty((count, 4), np.uint32)
    for shift in range(4):
        words[:, shift] = padded[shift : shift + 4 * count].view("<u4")
    return words.reshape(-1)


def _scramble(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    words *= _C1
    high = words >> np.uint32(17)
    words <<= np.uint32(15)
    words |= high
    words *= _C2
    return words


def _add_block(hashes: Hashes, words: npt.NDArray[np.uint32]) -> None:
    hashes ^= _scramble(words)
    high = hashes >> np.uint32(19)
    hashes <<= np.uint32(13)
    hashes |= high
    hashes *= np.uint32(5)
    hashes += np.uint32(0xE6546B64)


def _finish_long_rows(
    hashes: Hashes,
    words: npt.NDArray[np.uint32],
    starts: npt.NDArray[np.int64],
    blocks: npt.NDArray[np.int64],
    first_block: int,
) -> None:
    """Add to each hash the remaining blocks of its long row, from `first_block`, without a numpy call per block."""
    for row, (start, count) in enumerate(zip(starts.tolist(), blocks.tolist(), strict=True)):
        value = int(hashes[row])
        for word in _scramble(words[start + 4 * first_block : start + 4 * count : 4].copy()).tolist():
            value ^= word
            value = (value << 13 | value >> 19) & 0xFFFFFFFF
            value = (value * 5 + 0xE6546B64) & 0xFFFFFFFF
        hashes[row] = value


def _avalanche(hashes: Hashes) -> None:
    hashes ^= hashes >> np.uint32(16)
    hashes *= np.uint32(0x85EBCA6B)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(0xC2B2AE35)
    hashes ^= hashes >> np.uint32(16)


def _java_rows(units: npt.NDArray[np.uint8] | npt.NDArray[np.uint16], offsets: npt.NDArray[np.int64]) -> Hashes:
    """Return each row's polynomial sum(unit[i] * 31**(length-1-i)), computed from one running sum over all units.

    31 is odd, so it has an inverse modulo 2**32. Let S be the running sum of unit[i] * 31**-i over the whole column;
    then a row's hash is (S[end] - S[start]) * 31**(end-1).
    """
    size = len(units)
    powers, inverses = _powers_of_31(max(_UNITS_AT_ONCE, 1 << (size - 1).bit_length() if size else 1))
    sums = np.empty(size + 1, np.uint32)
    sums[0] = 0
    np.cumsum(units * inverses[:size], dtype=np.uint32, out=sums[1:])
    ends = sums.take(offsets)
    hashes = ends[1:] - ends[:-1]
    hashes *= powers.take(np.maximum(offsets[1:] - 1, 0))
    return hashes


@lru_cache(maxsize=4)
def _powers_of_31(count: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Return 31**i and 31**-i modulo 2**32 for i below `count`."""
    return _powers(31, count), _powers(pow(31, -1, _MODULUS), count)


def _powers(base: int, count: int) -> npt.NDArray[np.uint32]:
    powers = np.empty(count, np.uint32)
    powers[0] = 1
    filled = 1
    while filled < count:
        more = min(filled, count - filled)
        powers[filled : filled + more] = powers[:more] * np.uint32(pow(base, filled, _MODULUS))
        filled += more
    return powers


def _utf16_units(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]:
    """Return the UTF-16 code units of valid UTF-8 rows, and the offset of each row in these units, then the end."""
    units = np.frombuffer(data.tobytes().decode("utf-8").encode("utf-16-le"), "<u2")
    width = ((data & 0xC0) != 0x80).astype(np.int64)
    width += data >= 0xF0
    before = np.concatenate(([0], np.cumsum(width)))
    return units, before[offsets]


def _utf8_faults(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Return a mask of the bytes that UTF-8 (RFC 3629) forbids at their position; `data` must end in an ASCII byte."""
    continues: npt.NDArray[np.bool_] = (data & 0xC0) == 0x80
    expected = np.zeros(len(data), np.bool_)
    for reach, least in ((1, 0xC0), (2, 0xE0), (3, 0xF0)):
        expected[reach:] |= data[:-reach] >= least
    faults: npt.NDArray[np.bool_] = continues != expected
    faults |= (data == 0xC0) | (data == 0xC1) | (data >= 0xF5)
    lead, second = data[:-1], data[1:]
    faults[1:] |= (lead == 0xE0) & (second < 0xA0)
    faults[1:] |= (lead == 0xED) & (second > 0x9F)
    faults[1:] |= (lead == 0xF0) & (second < 0x90)
    faults[1:] |= (lead == 0xF4) & (second > 0x8F)
    return faults


def _all_utf8(keys: KeyArray) -> bool:
    try:
        _as_binary(keys).cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _is_ascii(data: npt.NDArray[np.uint8]) -> bool:
    return len(data) == 0 or int(data.max()) < 0x80


def _as_binary(values: KeyArray) -> pa.BinaryArray:
    return values if values.type == pa.binary() else values.view(pa.binary())


def _bytes_and_offsets(values: KeyArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the rows' bytes without a copy, and the bounds of the rows as offsets from the first byte."""
    if values.type not in (pa.binary(), pa.string()):
        raise InvalidArgumentError(f"A key column is {values.type}: cast it to string or binary.")
    _, offset_buffer, data_buffer = values.buffers()
    if offset_buffer is None or len(values) == 0:
        return np.empty(0, np.uint8), np.zeros(len(values) + 1, np.int64)
    offsets = np.frombuffer(offset_buffer, np.int32, len(values) + 1, values.offset * 4)
    if data_buffer is None:
        return np.empty(0, np.uint8), np.zeros(len(values) + 1, np.int64)
    data = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]
    return data, offsets.astype(np.int64) - int(offsets[0])
