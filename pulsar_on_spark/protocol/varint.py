"""Encoder of protobuf's varints in steps of 14 bits, for the commands that a broker sends most often."""

from __future__ import annotations

from collections.abc import Iterator

_BITS = 14
_MASK = 2**_BITS - 1
_64_BITS = 2**64 - 1

_LAST = [bytes([n]) if n < 0x80 else bytes([n & 0x7F | 0x80, n >> 7]) for n in range(2**_BITS)]
"""The encodings of a number's highest bits, which are at most 14, indexed by their value: one byte or two."""
_MORE = [bytes([n & 0x7F | 0x80, n >> 7 | 0x80]) for n in range(2**_BITS)]
"""The encodings of 14 bits that are followed by higher bits, indexed by their value: two bytes."""


def varint(number: int) -> bytes:
    """Return the varint of a number. A negative number is encoded as unsigned 64 bits, as protobuf does."""
    number &= _64_BITS
    out = b""
    while number > _MASK:
        out += _MORE[number & _MASK]
        number >>= _BITS
    return out + _LAST[number]


def varints(first: int, step: int) -> Iterator[bytes]:
    """Yield the varints of a number and of those that follow it at a distance of `step`, without end.

    The numbers are encoded as by `varint`. Those that differ only in their lowest 14 bits share the encoding of their
    other bits.
    """
    while True:
        first &= _64_BITS
        higher, lowest = first >> _BITS, range(first & _MASK, _MASK + 1, step)
        if higher:
            encoded = varint(higher)
            for low in lowest:
                yield _MORE[low] + encoded
        else:
            yield from map(_LAST.__getitem__, lowest)
        first += len(lowest) * step
