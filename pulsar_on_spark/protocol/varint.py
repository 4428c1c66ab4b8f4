"""Protobuf's base-128 numbers, encoded 14 bits at a time for the few commands that a broker sends by the million."""

from __future__ import annotations

_BITS = 14
_MASK = 2**_BITS - 1
_64_BITS = 2**64 - 1

_LAST = [bytes([n]) if n < 0x80 else bytes([n & 0x7F | 0x80, n >> 7]) for n in range(2**_BITS)]
"""The encoding of each number of 14 bits at the end of a number."""
_MORE = [bytes([n & 0x7F | 0x80, n >> 7 | 0x80]) for n in range(2**_BITS)]
"""The encoding of each number of 14 bits with higher bits after it."""


def varint(number: int) -> bytes:
    """Encode a number; a negative one by its 64 bits."""
    number &= _64_BITS
    out = b""
    while number > _MASK:
        out += _MORE[number & _MASK]
        number >>= _BITS
    return out + _LAST[number]
