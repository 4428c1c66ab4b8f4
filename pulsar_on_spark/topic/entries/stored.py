"""Stored entries in columns; the offsets of their metadata and payloads, which numpy computes for all at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from pulsar_on_spark.protocol.entry_frame import CHECKSUM_MAGIC
from pulsar_on_spark.protocol.field_walk import Bools, Bytes, Int64s

_SIZE_BYTES = 4
_CHECKSUM_BYTES = 6
"""Size of the magic number and the checksum that follows it."""


@dataclass(frozen=True, slots=True)
class StoredEntries:
    """Entries as received.

    Attributes:
        ledger_ids: The ledger id of each entry.
        entry_ids: The entry id of each entry.
        data: Bytes that contain the entries in order; there may be other bytes between two entries.
        starts: The start of each entry in `data`.
        ends: The end of each entry in `data`.
    """

    ledger_ids: Int64s
    entry_ids: Int64s
    data: Bytes
    starts: Int64s
    ends: Int64s

    def __len__(self) -> int:
        return len(self.entry_ids)


class SplitEntries(NamedTuple):
    """The starts of each entry's metadata and payload; both are the entry's start if it is malformed (not `valid`)."""

    metadata_at: Int64s
    payload_at: Int64s
    valid: Bools


def split_entries(entries: StoredEntries) -> SplitEntries:
    """Find the parts of entries, as `entry_frame.split_entry` does for a single entry."""
    data, starts, ends = entries.data, entries.starts, entries.ends
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
