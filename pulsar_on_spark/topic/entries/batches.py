"""The byte ranges of messages in entries: all payloads are in one buffer, and each message is a range of it.

A batch's payload is a chain of `[size u32][SingleMessageMetadata][payload]`. Only an element's metadata tells where the
next element starts, so the chain is walked message by message: in Python, or by a compiled loop in a process that walks
many messages (`kernel_loading`). Everything else about messages is then read in columns (`columns.py`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from pulsar_on_spark.protocol.field_walk import Bools, Bytes, Int64s, pick_ranges
from pulsar_on_spark.protocol.kernel_loading import LOADING
from pulsar_on_spark.protocol.messages import SingleMessageMetadata

_SIZE = struct.Struct(">I")
_PAYLOAD_SIZE_TAG = 0x18
_SKIPPED_TAGS = (0x12, 0x0A)
"""Protobuf tags of the key and of a property, which precede the payload's size."""
_MORE = 0x80
_MIN_MESSAGE_BYTES = 6
"""Bytes of an empty message: the size of its metadata, and metadata with only the payload's size."""


@dataclass(frozen=True, slots=True)
class MessageRows:
    """Rows of consecutive entries; entries are counted from 0.

    Attributes:
        counts: The number of rows of each entry.
        whole: The numbers of the entries that were not split.
        entry: The number of each row's entry.
        batch_index: The batch index of each row; -1 if the message is not in a batch.
        payload_sizes: The bytes of each row's message.
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
        """Return the number of the first row of each entry."""
        return np.cumsum(self.counts) - self.counts

    def batch_metadata(self) -> pa.BinaryArray:
        """Return the serialized metadata of the messages in batches, one row for each, without nulls."""
        bounds = self._bounds[self.in_batch]
        return pick_ranges(self._data, bounds[:, 0], bounds[:, 1])

    def payloads(self, valid: Bools) -> pa.BinaryArray:
        """Return the payload of each row's message; null where `valid` is False."""
        return pick_ranges(self._data, self._bounds[:, 1], self._bounds[:, 2], valid)


def message_rows(
    data: Bytes, starts: Int64s, ends: Int64s, messages: Int64s, whole: Bools, batch_bounds: Int64s
) -> MessageRows:
    """Return the rows of entries whose payloads are in `data`, in order.

    Args:
        data: The uncompressed payloads.
        starts: The start of each entry's payload in `data`.
        ends: The end of each entry's payload.
        messages: The number of messages in each entry's batch; 0 if the entry is not a batch.
        whole: Mask of the entries that are not split.
        batch_bounds: The bounds of the messages of all batches (`walk_batches`).
    """
    counts = np.maximum(messages, 1)
    entry = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(entry)) - (np.cumsum(counts) - counts)[entry]
    in_batch = messages[entry] > 0
    if in_batch.all():
        bounds = batch_bounds
    else:
        bounds = np.empty((len(entry), 3), np.int64)
        bounds[:] = starts[entry, None]
        single = ~in_batch & ~whole[entry]
        bounds[single, 2] = ends[entry[single]]
        bounds[in_batch] = batch_bounds
    return MessageRows(
        counts=counts,
        whole=np.flatnonzero(whole),
        entry=entry,
        batch_index=np.where(in_batch, within, -1),
        payload_sizes=bounds[:, 2] - bounds[:, 1],
        _data=data,
        _bounds=bounds,
    )


def walk_batches(data: Bytes, starts: Int64s, ends: Int64s, messages: Int64s) -> tuple[Int64s, Bools]:
    """Find the messages of batches.

    Args:
        data: The uncompressed payloads.
        starts: The start of each batch in `data`.
        ends: The end of each batch.
        messages: The number of messages that each batch must have.

    Returns:
        Three offsets in `data` for each message of the well-formed batches: the start of its metadata, the start of its
        payload, and its end. And a flag for each batch: False if it is malformed or has another number of messages.
    """
    well_formed = (messages > 0) & (messages <= (ends - starts) // _MIN_MESSAGE_BYTES)
    starts, ends, messages = starts[well_formed], ends[well_formed], messages[well_formed]
    bounds = np.empty((int(messages.sum()), 3), np.int64)
    fits, unknown = np.zeros(len(messages), np.bool_), np.ones(len(messages), np.bool_)
    kernels = LOADING.kernels(len(bounds))
    if kernels is not None:
        found = np.empty(len(messages), np.int64)
        kernels.walk_chains(data, starts, ends, messages, bounds, found)
        fits, unknown = found == messages, found == kernels.UNUSUAL
    first_rows = np.cumsum(messages) - messages
    for index in np.flatnonzero(unknown).tolist():
        start, count, row = int(starts[index]), int(messages[index]), int(first_rows[index])
        offsets: list[int] = []
        if _walk_batch(data[start : ends[index]].tobytes(), count, offsets):
            bounds[row : row + count] = start + np.array(offsets).reshape(-1, 3)
            fits[index] = True
    if not fits.all():
        bounds = bounds[np.repeat(fits, messages)]
        well_formed[well_formed] = fits
    return bounds, well_formed


def _walk_batch(payload: bytes, messages: int, bounds: list[int]) -> bool:
    """Append the bounds of each message; return True if the messages fill the payload exactly."""
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
        # Clients write fields in the order of their numbers. So short properties and keys are skipped, and the size,
        # of one or two bytes, is read. If a size occurs twice, the last one counts: `_bad_entries` finds the mismatch.
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
"""Reused for all messages, because making a message object takes four times as long as filling it."""
