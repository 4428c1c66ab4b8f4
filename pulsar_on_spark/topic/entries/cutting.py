"""Cutting rows into entries, the units that a subscription delivers and acknowledges, and the key slots of entries.

An entry of a Spark write holds up to 1,000 rows and 128 KiB of one task. If rows have keys, all rows of an entry belong
to one of 64 **key slots**, so that a Key_Shared consumer never gets a row of another consumer's key:

* a row's slot is `sticky_key_hash % 64` of its ordering key if it has one, else of its key;
* rows with neither have no slot; they share entries only with each other;
* in Shared subscriptions a slot is a block of 16 entries instead: `slots_of_entries`.

These numbers must never change, because stored offsets and cursors depend on them.

A broker delivers an entry as a whole. So delayed rows never share an entry with rows that are due at once. They share
entries only with neighbours that are due in the same second, the precision of Pulsar's delayed delivery.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.hashing import murmur3_32, sticky_key_hash
from pulsar_on_spark.model.ids import LedgerId

SLOTS = 64
NO_SLOT = SLOTS
"""The slot that `row_slots` returns for a row without a key."""
BLOCK_ENTRIES = 16
MAX_ENTRY_ROWS = 1_000
MAX_ENTRY_BYTES = 128 * 1024
MAX_MESSAGE_BYTES = 5 * 1024 * 1024
"""Pulsar's default `maxMessageSize`, which clients enforce."""

RECORD_BATCH_BYTES = 4 * 1024 * 1024
"""Target size of a batch: zstd has a fixed cost per buffer, so smaller batches read up to a quarter slower (ADR 3)."""
ROW_BYTES = 64
"""Approximate size of a row in a record batch without its key, value and properties."""

_FEW_ENTRIES = 256
"""Number of entries up to which a Python loop is faster than numpy."""
_AT_ONCE = -(2**62)
"""The second of delivery that stands for rows that are not delayed; it is earlier than any real one."""

Slots = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class CutRows:
    """Rows of one topic partition as entries.

    Attributes:
        batch: The rows in `SEGMENT_SCHEMA`, with entry id and batch index; the ledger id is null until the attach.
        entry_rows: The number of rows of each entry, in entry order.
        bytes: The key and value bytes of all rows.
        entry_bytes: The key, value and property bytes of each entry.
    """

    batch: pa.RecordBatch
    entry_rows: npt.NDArray[np.int64]
    bytes: int
    entry_bytes: npt.NDArray[np.int64]

    def record_batches(self, target_bytes: int = RECORD_BATCH_BYTES) -> list[tuple[pa.RecordBatch, int]]:
        """Split the batch into slices (slice, number of entries) of whole entries, each of about `target_bytes`."""
        entries = len(self.entry_rows)
        if entries == 0:
            return []
        rows = np.concatenate(([0], np.cumsum(self.entry_rows)))
        piece = np.cumsum(self.entry_bytes + self.entry_rows * ROW_BYTES) // target_bytes
        bounds = np.concatenate(([0], np.flatnonzero(np.diff(piece)) + 1, [entries])).tolist()
        return [
            (self.batch.slice(int(rows[first]), int(rows[last] - rows[first])), last - first)
            for first, last in pairwise(bounds)
        ]


def cut_entries(rows: pa.RecordBatch, first_entry: int, topic: str) -> CutRows:
    """Cut rows into entries whose ids count up from `first_entry`.

    Rows without keys keep their order and are not copied. Rows with keys are sorted by slot; rows with one key keep
    their order.

    Args:
        rows: `SEGMENT_SCHEMA` without ledger id, entry id and batch index.
        first_entry: The first entry's id.
        topic: The topic's name, for errors.

    Raises:
        InvalidArgumentError: a single row is above `maxMessageSize`.
    """
    slots = row_slots(rows)
    if slots is not None and bool((slots[1:] < slots[:-1]).any()):
        order = np.argsort(slots, kind="stable")
        rows, slots = rows.take(pa.array(order)), slots[order]
    sizes, counted_bytes = _row_bytes(rows)
    _check_sizes(sizes, topic)
    bounds = _entry_bounds(sizes, _group_ends(slots, rows.column("deliver_at_time"), rows.num_rows))
    entry_rows = np.diff(bounds)
    entry = np.repeat(np.arange(first_entry, first_entry + len(entry_rows)), entry_rows)
    batch_index = np.arange(rows.num_rows) - np.repeat(bounds[:-1], entry_rows)
    ids = [pa.nulls(rows.num_rows, pa.int64()), pa.array(entry), pa.array(batch_index.astype(np.int32))]
    batch = pa.RecordBatch.from_arrays([*ids, *rows.columns], schema=SEGMENT_SCHEMA)
    total = np.concatenate(([0], np.cumsum(sizes)))
    return CutRows(batch, entry_rows, counted_bytes, np.diff(total[bounds]))


def row_slots(rows: pa.RecordBatch) -> Slots | None:
    """Return the key slot of each row, `NO_SLOT` if it has neither ordering key nor key; None if no row has either.

    Args:
        rows: Any batch with the columns `key` and `ordering_key`.
    """
    keys, ordering_keys = rows.column("key"), rows.column("ordering_key")
    if keys.null_count == len(keys) and ordering_keys.null_count == len(keys):
        return None
    slots = (sticky_key_hash(keys, ordering_keys) % np.uint32(SLOTS)).astype(np.uint8)
    if keys.null_count:
        keyless = keys.is_null().to_numpy(zero_copy_only=False)
        if ordering_keys.null_count < len(keys):
            keyless &= ordering_keys.is_null().to_numpy(zero_copy_only=False)
        slots[keyless] = NO_SLOT
    return slots


def slots_of_entries(ledger: LedgerId, first_entry: int, count: int) -> Slots:
    """Return the Shared slots of `count` entries. The 16 entries of a block have the same slot, hence one consumer.

    The slot is `murmur3_32(block) % 64`. The hashed bytes of a block are two little-endian 64-bit integers: the ledger
    id, and the entry id divided by 16.
    """
    if count == 0:
        return np.zeros(0, np.uint8)
    first_block, last_block = first_entry // BLOCK_ENTRIES, (first_entry + count - 1) // BLOCK_ENTRIES
    blocks = np.empty((last_block - first_block + 1, 2), "<i8")
    blocks[:, 0] = ledger
    blocks[:, 1] = np.arange(first_block, last_block + 1)
    offsets = np.arange(0, 16 * len(blocks) + 1, 16, dtype=np.int32)
    names = pa.BinaryArray.from_buffers(pa.binary(), len(blocks), [None, pa.py_buffer(offsets), pa.py_buffer(blocks)])
    block_slots = (murmur3_32(names) % np.uint32(SLOTS)).astype(np.uint8)
    skipped = first_entry - first_block * BLOCK_ENTRIES
    return np.repeat(block_slots, BLOCK_ENTRIES)[skipped : skipped + count]


def run_lengths(entry_rows: npt.NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    """Return runs of equal neighbours as (number of neighbours, value) pairs."""
    if len(entry_rows) == 0:
        return ()
    if len(entry_rows) <= _FEW_ENTRIES:
        return tuple((sum(1 for _ in run), rows) for rows, run in groupby(entry_rows.tolist()))
    starts = np.concatenate(([0], np.flatnonzero(np.diff(entry_rows)) + 1, [len(entry_rows)]))
    return tuple(zip(np.diff(starts).tolist(), entry_rows[starts[:-1]].tolist(), strict=True))


def _group_ends(slots: Slots | None, deliver_at: pa.TimestampArray, rows: int) -> list[int]:
    """Return the end of each group of rows that may share entries: adjacent rows with the same slot and due second.

    `slots` is None if no row has a key.
    """
    changes = np.zeros(max(rows - 1, 0), np.bool_)
    if slots is not None:
        changes |= np.diff(slots) != 0
    if deliver_at.null_count < rows:
        due_s = np.where(deliver_at.is_valid(), deliver_at.view(pa.int64()).fill_null(0).to_numpy() // 1000, _AT_ONCE)
        changes |= np.diff(due_s) != 0
    return [*(np.flatnonzero(changes) + 1).tolist(), rows]


def _entry_bounds(sizes: npt.NDArray[np.int64], group_ends: list[int]) -> npt.NDArray[np.int64]:
    """Return the first row of each entry, then the end.

    An entry takes the rows that fit, up to the end of its group.
    """
    total = np.cumsum(sizes)
    bounds, first, before = [0], 0, 0
    for group_end in group_ends:
        while first < group_end:
            limit = min(group_end, first + MAX_ENTRY_ROWS)
            if int(total[limit - 1]) - before > MAX_ENTRY_BYTES:
                fitting = int(np.searchsorted(total[first:limit], before + MAX_ENTRY_BYTES, side="right"))
                limit = first + max(1, fitting)
            first, before = limit, int(total[limit - 1])
            bounds.append(first)
    return np.array(bounds, np.int64)


def _row_bytes(rows: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], int]:
    """Return the key, value and property bytes of each row, and the sum of all key and value bytes."""
    sizes = _lengths(rows.column("key")) + _lengths(rows.column("value"))
    counted = int(sizes.sum())
    properties = rows.column("properties")
    if properties.null_count < len(properties):
        entries = properties.offsets.to_numpy()
        for texts in (properties.keys, properties.items):
            ends = np.concatenate(([0], np.cumsum(_lengths(texts))))
            sizes = sizes + np.diff(ends[entries])
    return sizes, counted


def _lengths(values: pa.BinaryArray | pa.StringArray) -> npt.NDArray[np.int64]:
    if values.null_count == len(values):
        return np.zeros(len(values), np.int64)
    offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)
    return np.diff(offsets).astype(np.int64)


def _check_sizes(sizes: npt.NDArray[np.int64], topic: str) -> None:
    largest = int(sizes.max()) if len(sizes) else 0
    if largest > MAX_MESSAGE_BYTES:
        raise InvalidArgumentError(
            f"A row for topic {topic!r} has {largest} bytes of key, value and properties, above maxMessageSize "
            f"({MAX_MESSAGE_BYTES}): split it or keep the data elsewhere and send a reference."
        )
