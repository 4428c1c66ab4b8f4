"""Stored entries in columns; the offsets of their metadata and payloads, which numpy computes for all at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from pulsar_on_spark.protocol.entry_frame import CHECKSUM_MAGIC
from pulsar_on_spark.protocol.field_walk import Bools, Bytes, Int64s

_SIZE_BYTES = 4
_CHECKSUM_BYTES = 6
"""Size of the magic number and the checksum that follows it."""


@dataclass(frozen=True)
class StoredEntries:
    """Entries as received.

    Attributes:
        ledger_ids: The ledger id of each entry.
        entry_ids: The entry id of each entry.
        payloads: The bytes of each entry, without nulls.
    """

    ledger_ids: Int64s
    entry_ids: Int64s
    payloads: pa.BinaryArray

    def __len__(self) -> int:
        return len(self.entry_ids)

    @cached_property
    def data(self) -> Bytes:
        """The concatenated bytes of the entries, for the offsets in `bounds`."""
        data = self.payloads.buffers()[2]
        return np.frombuffer(data or b"", np.uint8)

    @cached_property
    def bounds(self) -> Int64s:
        """The starts of the entries in `data`, and the end of the last one."""
        count = len(self.payloads)
        if count == 0:
            return np.zeros(1, np.int64)
        offsets = np.frombuffer(self.payloads.buffers()[1], np.int32, count + 1, 4 * self.payloads.offset)
        return offsets.astype(np.int64)


class SplitEntries(NamedTuple):
    """The starts of each entry's metadata and payload; both are the entry's start if it is malformed (not `valid`)."""

    metadata_at: Int64s
    payload_at: Int64s
    valid: Bools


def split_entries(data: Bytes, bounds: Int64s) -> SplitEntries:
    """Find the parts of contiguous entries, as `entry_frame.split_entry` does for a single entry."""
    starts, ends = bounds[:-1], bounds[1:]
    if len(data) == 0:
        return SplitEntries(starts, starts, np.zeros(len(starts), np.bool_))
    # For an entry that is too short, bytes after it are read; the result is then discarded.
    at_most = len(data) - 1

    def number(at: Int64s) -> Int64s:
        value = np.zeros(len(at), np.int64)
        for index in range(_SIZE_BYTES):
            value = value << 8 | data[np.minimum(at + index, at_most)]
        return value

    is_checked = ends - starts >= len(CHECKSUM_MAGIC)
    for index, byte in enumerate(CHECKSUM_MAGIC):
        is_checked &= data[np.minimum(starts + index, at_most)] == byte
    covered_at = starts + np.where(is_checked, _CHECKSUM_BYTES, 0)
    metadata_at = covered_at + _SIZE_BYTES
    payload_at = metadata_at + number(covered_at)
    valid = (metadata_at <= ends) & (payload_at <= ends)
    checked = np.flatnonzero(valid & is_checked)
    view = data.data
    spans = zip(covered_at[checked].tolist(), ends[checked].tolist(), strict=True)
    checksums = np.fromiter((crc32c(view[start:end]) for start, end in spans), np.int64, len(checked))
    valid[checked] = checksums == number(starts[checked] + len(CHECKSUM_MAGIC))
    return SplitEntries(np.where(valid, metadata_at, starts), np.where(valid, payload_at, starts), valid)
