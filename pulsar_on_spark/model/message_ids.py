"""Message ids for all rows of a column: the bytes that `serialize()` of Pulsar's clients returns, and the text form."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_on_spark.model.ids import LedgerId, varint

_ROWS_AT_ONCE = 8_192
"""Rows of one chunk, so that the table of their bytes stays in the processor's cache."""
_NO_BATCH = -1


def serialized_message_ids(
    ledger: LedgerId, entries: npt.NDArray[np.int64], partition: int, batch_indexes: npt.NDArray[np.int32]
) -> pa.BinaryArray:
    """Return `MessageId.serialize()` of each row.

    Args:
        ledger: The ledger of all rows.
        entries: The entry id of each row, not negative.
        partition: The topic's partition index, -1 if it is not a partition.
        batch_indexes: The batch index of each row, -1 if the message was not in a batch.
    """
    parts: list[npt.NDArray[np.uint8]] = []
    lengths = np.empty(len(entries), np.int32)
    for first in range(0, len(entries), _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        parts.append(_serialize(ledger, entries[rows], partition, batch_indexes[rows], lengths[rows]))
    offsets = np.zeros(len(entries) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty(0, np.uint8)])
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(entries), [None, pa.py_buffer(offsets), pa.py_buffer(data)], null_count=0
    )


def message_id_texts(
    ledger: LedgerId, entries: pa.Int64Array, partition: int, batch_indexes: pa.Int32Array
) -> pa.StringArray:
    """Return `str(MessageId)` of each row, "ledger:entry:partition:batch"; a null batch index counts as -1."""
    return pc.binary_join_element_wise(
        str(ledger),
        entries.cast(pa.string()),
        str(partition),
        batch_indexes.fill_null(_NO_BATCH).cast(pa.string()),
        ":",
    )


def _serialize(
    ledger: LedgerId,
    entries: npt.NDArray[np.int64],
    partition: int,
    batch_indexes: npt.NDArray[np.int32],
    lengths: npt.NDArray[np.int32],
) -> npt.NDArray[np.uint8]:
    """Return the serialized ids of the rows, concatenated, and store the length of each in `lengths`.

    Each id is laid out in one row of a table that is as wide as the longest id. If all ids are equally long, the table
    is the result; otherwise its unused cells are removed.
    """
    entry_width, batch_width = _varint_width(int(entries.max())), _varint_width(int(batch_indexes.max()))
    prefix = b"\x08" + varint(ledger) + b"\x10"
    middle = b"" if partition < 0 else b"\x18" + varint(partition)
    with_batch = int(batch_indexes.max()) >= 0
    batch_at = len(prefix) + entry_width + len(middle)
    template = prefix + bytes(entry_width) + middle + (b"\x20" + bytes(batch_width) if with_batch else b"")
    table = np.empty((len(entries), len(template)), np.uint8)
    table[:] = np.frombuffer(template, np.uint8)
    partly = _put_varints(table, len(prefix), entries, entry_width)
    if with_batch:
        partly += _put_varints(table, batch_at + 1, batch_indexes, batch_width)
        if int(batch_indexes.min()) < 0:
            present = batch_indexes >= 0
            partly += [(batch_at, present), (batch_at + 1, present)]
    lengths[:] = len(template) - len(partly)
    if not partly:
        return table.reshape(-1)
    used = np.ones(table.shape, np.bool_)
    for column, rows in partly:
        used[:, column] = rows
        lengths += rows
    return table[used]


def _put_varints(
    table: npt.NDArray[np.uint8], at: int, numbers: npt.NDArray[np.int64] | npt.NDArray[np.int32], width: int
) -> list[tuple[int, npt.NDArray[np.bool_]]]:
    """Write base-128 numbers into `width` columns of the table.

    Returns:
        The columns that shorter numbers leave unused, each with a mask of the rows that use the column.
    """
    least = int(numbers.min())
    partly: list[tuple[int, npt.NDArray[np.bool_]]] = []
    for digit in range(width):
        column = table[:, at + digit]
        column[:] = numbers if digit == 0 else numbers >> (7 * digit)
        if digit == width - 1:
            break
        followed_from = 1 << 7 * (digit + 1)
        if least >= followed_from:
            column |= 0x80
        else:
            follows = numbers >= followed_from
            column &= 0x7F
            column |= follows.view(np.uint8) << np.uint8(7)
            partly.append((at + digit + 1, follows))
    return partly


def _varint_width(number: int) -> int:
    return max(1, -(-number.bit_length() // 7)) if number >= 0 else 1
