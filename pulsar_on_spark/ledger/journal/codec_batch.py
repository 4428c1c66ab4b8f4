"""Encoder of the uncompressed Arrow record batches in frames: one encoding, built and checked without a parser.

An encapsulated IPC message is a flatbuffer with the number of rows and the positions of the columns' buffers, followed
by the buffers. For a fixed schema the flatbuffer has a fixed shape, so one `struct` packs it; and because there is only
one encoding, a reader compares it with the expected bytes instead of parsing it. Any Arrow reader with the schema can
read the message. The shape is part of the journal's format: it changes only with the format version.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate

ALIGNMENT = 8
"""Arrow's least alignment of a buffer, in bytes."""

_METADATA_V5 = 4
_RECORD_BATCH = 3
_CONTINUATION = 0xFFFFFFFF

_TABLES = (
    "II"  # continuation mark, bytes of the flatbuffer
    "I"  # offset of the root table, Message
    "6H"  # vtable of Message: sizes of vtable and table; offsets of version, header type, header, body length
    "iHBxIxxxxq"  # Message: distance to its vtable, then these four fields
    "5Hxx"  # vtable of RecordBatch: sizes as above; offsets of length, nodes, buffers
    "iqII"  # RecordBatch: distance to its vtable, rows, offset of the nodes, offset of the buffers
    "xxxx"
)
_NODES_AT = 76
"""Position of the vector of nodes in the flatbuffer."""


def padded(size_bytes: int) -> int:
    """Return `size_bytes` rounded up to the alignment."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


class BatchLayout:
    """Encoder of record batch messages of one schema, whose columns have no nulls.

    Args:
        buffers_by_column: The number of each column's buffers, not counting validity: 1 for fixed width, 2 for binary.
    """

    def __init__(self, buffers_by_column: Sequence[int]) -> None:
        columns = len(buffers_by_column)
        buffers = columns + sum(buffers_by_column)
        buffers_at = _NODES_AT + 4 + 16 * columns + 4
        self._columns = columns
        self._buffers_by_column = tuple(buffers_by_column)
        self._struct = struct.Struct(f"<{_TABLES}I{2 * columns}qxxxxI{2 * buffers}q")
        self._way_to_buffers = buffers_at - 68
        self.message_bytes = self._struct.size
        """The length of the message without its body."""

    def message(self, rows: int, lengths: Sequence[int]) -> bytes:
        """Encode the message of a batch; the caller appends the columns' buffers, each zero-padded to the alignment.

        Args:
            rows: The number of rows.
            lengths: The bytes of each buffer without padding, in the schema's order and without validity buffers.
        """
        starts = list(accumulate(map(padded, lengths), initial=0))
        spans: list[int] = []
        number = 0
        for count in self._buffers_by_column:
            spans += (starts[number], 0)  # The validity: no bytes, as there are no nulls.
            for _ in range(count):
                spans += (starts[number], lengths[number])
                number += 1
        return self._struct.pack(
            *(_CONTINUATION, self.message_bytes - 8, 16),
            *(12, 24, 4, 6, 8, 16),
            *(12, _METADATA_V5, _RECORD_BATCH, 28, starts[-1]),
            *(10, 20, 4, 12, 16),
            *(12, rows, _NODES_AT - 64, self._way_to_buffers),
            *(self._columns, *((rows, 0) * self._columns)),
            *(len(spans) // 2, *spans),
        )
