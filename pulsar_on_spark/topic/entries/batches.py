"""The places of messages in entries: payloads lie in one buffer, and each message is a range of it.

A batch's payload is a chain (`[size u32][SingleMessageMetadata][payload]`, and only the metadata gives the start of the
next one), so it is walked in Python; everything else about messages is read in columns afterwards (`columns.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from pulsar_on_spark.protocol.field_walk import Bools, Bytes, Int64s, pick_ranges
from pulsar_on_spark.protocol.messages import SingleMessageMetadata

_SIZE = struct.Struct(">I")
_PAYLOAD_SIZE_TAG = 0x18
_SKIPPED_TAGS = (0x12, 0x0A)
"""Size limits of the key and of a property."""
_MORE = 0x80


@dataclass(frozen=True, slots=True)
class MessageRows:
    """Rows of consecutive entries; entries are counted from 0.

    Attributes:
        counts: Rows of each entry.
        whole: The entries that were not taken apart.
        entry: The entry of each row.
        batch_index: Of each row; -1 where the message is not in a batch.
        payload_sizes: Bytes of each row's message.
    """

    counts: Int64s
    whole: Int64s
    entry: Int64s
    batch_index: Int64s
    payload_sizes: Int64s
    _data: Bytes
    _bounds: Int64s

    @property
    def in_batch(self) -> Bools:
        """A flag for each row: True if its message belongs to a batch."""
        return self.batch_index >= 0

    def first_rows(self) -> Int64s:
        """The first row of each entry."""
        return np.cumsum(self.counts) - self.counts

    def batch_metadata(self) -> pa.BinaryArray:
        """The metadata of the messages of batches, without nulls."""
        bounds = self._bounds[self.in_batch]
        return pick_ranges(self._data, bounds[:, 0], bounds[:, 1])

    def payloads(self, valid: Bools) -> pa.BinaryArray:
        """The messages, null where not valid."""
        return pick_ranges(self._data, self._bounds[:, 1], self._bounds[:, 2], valid)


def message_rows(
    data: Bytes, starts: Int64s, ends: Int64s, messages: Int64s, whole: Bools, batch_bounds: Sequence[Sequence[int]]
) -> MessageRows:
    """Return the rows of entries whose payloads are in `data`, in rising order.

    Args:
        data: Payloads, uncompressed.
        starts: Where each entry's payload starts.
        ends: Its end.
        messages: Number of messages in each entry's batch; 0 if it is not a batch.
        whole: Which entries are not taken apart.
        batch_bounds: Of each batch, what `walk_batch` found.
    """
    counts = np.maximum(messages, 1)
    entry = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(entry)) - (np.cumsum(counts) - counts)[entry]
    in_batch = messages[entry] > 0
    bounds = np.empty((len(entry), 3), np.int64)
    bounds[:] = starts[entry, None]
    single = ~in_batch & ~whole[entry]
    bounds[single, 2] = ends[entry[single]]
    if batch_bounds:
        bounds[in_batch] += np.fromiter(chain.from_iterable(batch_bounds), np.int64).reshape(-1, 3)
    return MessageRows(
        counts=counts,
        whole=np.flatnonzero(whole),
        entry=entry,
        batch_index=np.where(in_batch, within, -1),
        payload_sizes=bounds[:, 2] - bounds[:, 1],
        _data=data,
        _bounds=bounds,
    )


def walk_batch(payload: bytes, messages: int) -> list[int] | None:
    """Return the places of a batch's messages, from its start; None if the payload has another number of messages.

    Three numbers a message: where its metadata starts, where that ends and the payload starts, where this ends.
    """
    bounds: list[int] = []
    return bounds if messages > 0 and _walk_batch(payload, messages, bounds) else None


def _walk_batch(payload: bytes, messages: int, bounds: list[int]) -> bool:
    """Appends the bounds of each message; whether the messages are exactly the payload."""
    at, end = 0, len(payload)
    unpack = _SIZE.unpack_from
    for _ in range(messages):
        start = at + 4
        if start > end:
            return False
        stop = start + unpack(payload, at)[0]
        if stop > end:
            return False
        size = -1
        # Clients write fields in their order: short properties and keys are skipped, and the size has one or two bytes.
        # Should it come twice, this is not the last: what reads all fields will notice.
        while stop - start >= 2:
            tag, low = payload[start], payload[start + 1]
            if tag == _PAYLOAD_SIZE_TAG:
                if low < _MORE:
                    size = low
                elif start + 2 < stop and payload[start + 2] < _MORE:
                    size = low & 0x7F | payload[start + 2] << 7
                break
            if low >= _MORE or tag not in _SKIPPED_TAGS:
                break
            start += 2 + low
        if size < 0:
            size = _parsed_payload_size(payload[at + 4 : stop])
        start = at + 4
        at = stop + size
        if size < 0 or at > end:
            return False
        bounds += (start, stop, at)
    return at == end


def _parsed_payload_size(serialized: bytes) -> int:
    try:
        _PARSED.ParseFromString(serialized)
    except DecodeError:
        return -1
    return _PARSED.payload_size


_PARSED = SingleMessageMetadata()
"""Used again and again: making one takes four times as long as filling it."""
