"""Rebuilding entries from segment rows for clients, with the same ids and the same messages.

* A whole entry is returned unchanged.
* A received entry gets its metadata as received. The uncompressed bytes of its payload are restored exactly, and
  compressed again by the same codec, possibly to other bytes.
* An entry that Spark wrote has no stored metadata. It becomes a batch whose metadata is derived from the columns. An
  entry with a single message becomes a batch, too, because the message has a batch index.
* A compacted batch has only some rows left. Like Pulsar's compaction (`RawBatchConverter`), this replaces each removed
  message by an empty message marked as compacted out, which clients skip.

A payload is never above `maxMessageSize`, because clients would refuse it (Java's
`ConsumerImpl.uncompressPayloadIfNeeded`). If its codec doesn't compress it enough, another codec is used, and the
metadata names the other codec.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_on_spark.model.errors import UnbuildableEntryError
from pulsar_on_spark.model.hashing import key_strings
from pulsar_on_spark.model.ids import EntryId, LedgerId
from pulsar_on_spark.protocol.compression import Codec, compress_within
from pulsar_on_spark.protocol.entry_frame import join_entry
from pulsar_on_spark.protocol.messages import MessageMetadata, SingleMessageMetadata
from pulsar_on_spark.topic.entries.cutting import MAX_MESSAGE_BYTES
from pulsar_on_spark.topic.entries.rows import StoredEntry

_COMPACTED_OUT = SingleMessageMetadata(compacted_out=True, payload_size=0).SerializeToString()
_PLACE = len(_COMPACTED_OUT).to_bytes(4, "big") + _COMPACTED_OUT
"""The bytes that replace, in a batch, a message that compaction removed."""


def rebuild_entries(
    rows: pa.RecordBatch,
    ledger_id: LedgerId,
    entry_offset: int = 0,
    *,
    max_message_size_bytes: int = MAX_MESSAGE_BYTES,
    compacted: bool = False,
) -> Iterator[StoredEntry]:
    """Rebuild the entries of some rows.

    Args:
        rows: All rows of each entry, in order, in `SEGMENT_SCHEMA`. All entries are of one ledger.
        ledger_id: The ledger.
        entry_offset: Added to the column `entry_id` to get entry ids (`SegmentRecord.entry_offset`).
        max_message_size_bytes: The broker's `maxMessageSize`.
        compacted: True if messages of batches may be missing.

    Raises:
        UnbuildableEntryError: rows of an entry are missing, or no codec compresses an entry below the limit.
    """
    if rows.num_rows == 0:
        return
    parts = _Parts(rows, ledger_id, entry_offset, max_message_size_bytes, compacted=compacted)
    ids = rows.column("entry_id").to_numpy()
    bounds = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]
    for first, last in pairwise(bounds):
        data, ack_set = parts.entry(first, last)
        yield StoredEntry(ledger_id, EntryId(int(ids[first]) + entry_offset), data, ack_set)


class _Parts:
    """Builder of entries from the columns of some rows."""

    def __init__(
        self, rows: pa.RecordBatch, ledger_id: LedgerId, entry_offset: int, limit_bytes: int, *, compacted: bool
    ) -> None:
        self._compacted = compacted
        self._rows = rows
        self._ledger_id = ledger_id
        self._entry_offset = entry_offset
        self._limit = limit_bytes
        # Convert the values that each entry needs all at once: to convert one value by itself costs as much as to
        # rebuild a message.
        self._entry_metadata: list[bytes | None] = rows.column("entry_metadata").to_pylist()
        self._codecs: list[int] = rows.column("codec").fill_null(Codec.NONE).to_pylist()
        self._indexes = rows.column("batch_index").fill_null(-1).to_numpy()
        raw, in_batch_metadata = rows.column("raw"), rows.column("message_metadata")
        self._raw = raw
        self._is_whole: list[bool] = pc.and_(raw.is_valid(), in_batch_metadata.is_null()).to_pylist()
        self._values = _Slices(rows.column("value").fill_null(b""))
        self._framed: _Slices | None = None

    def _batches(self) -> _Slices:
        """Return each row's part of its batch's payload: the metadata's size, the metadata, the message."""
        if self._framed is None:
            rows = self._rows
            derived = _derived_rows(rows)
            metadata = _with_derived(rows, rows.column("message_metadata"), derived).fill_null(b"")
            framed = pc.binary_join_element_wise(_sizes(metadata), metadata, self._values.column, b"")
            self._framed = _Slices(framed)
        return self._framed

    def entry(self, first: int, last: int) -> tuple[bytes, int]:
        """Return the entry of rows [first, last), and the bit mask of its remaining messages; 0 if none was removed."""
        if self._is_whole[first]:
            return bytes(self._raw[first].as_py()), 0
        metadata = self._entry_metadata[first]
        if metadata is None:
            self._check_complete(first, last, last - first)
            metadata = derived_metadata(self._rows.slice(first, last - first))
            return self._packed(first, metadata, self._batch(first, last)), 0
        parsed = MessageMetadata.FromString(metadata)
        if not parsed.HasField("num_messages_in_batch"):
            return self._packed(first, metadata, self._values.between(first, first + 1)), 0
        messages = parsed.num_messages_in_batch
        if self._compacted and last - first < messages:
            payload = self._compacted_batch(first, last, messages)
            remaining = sum(1 << index for index in self._indexes[first:last].tolist())
            return self._packed(first, metadata + _with_size(payload), payload), remaining
        self._check_complete(first, last, messages)
        return self._packed(first, metadata, self._batch(first, last)), 0

    def _batch(self, first: int, last: int) -> bytes:
        return self._batches().between(first, last)

    def _compacted_batch(self, first: int, last: int, messages: int) -> bytes:
        """Return a batch's payload, with replacements for the removed messages."""
        pieces: list[bytes] = []
        at = 0
        for row, index in enumerate(self._indexes[first:last].tolist(), first):
            if not at <= index < messages:
                raise UnbuildableEntryError(
                    f"Entry {self._name(row)} has {messages} messages, and a row has the batch index {index} where one "
                    f"of at least {at} is expected: report this as a defect."
                )
            pieces += (_PLACE * (index - at), self._batch(row, row + 1))
            at = index + 1
        return b"".join((*pieces, _PLACE * (messages - at)))

    def _check_complete(self, first: int, last: int, messages: int) -> None:
        indexes = self._indexes[first:last]
        if last - first != messages or not np.array_equal(indexes, np.arange(messages)):
            raise UnbuildableEntryError(
                f"Entry {self._name(first)} has {messages} messages, and there are {last - first} rows with the batch "
                f"indexes from {int(indexes[0])} to {int(indexes[-1])}: read all rows of the entry."
            )

    def _packed(self, first: int, metadata: bytes, payload: bytes) -> bytes:
        codec = Codec(self._codecs[first])
        packed = compress_within(codec, payload, self._limit)
        if packed is None:
            raise UnbuildableEntryError(
                f"Entry {self._name(first)} has {len(payload)} bytes, and no codec compresses it to maxMessageSize "
                f"({self._limit}): raise maxMessageSize, or read it with Spark."
            )
        used_codec, content = packed
        if used_codec != codec:
            metadata += MessageMetadata(compression=used_codec).SerializePartialToString() + _with_size(payload)
        return join_entry(metadata, content)

    def _name(self, row: int) -> str:
        return f"{self._ledger_id}:{self._rows.column('entry_id')[row].as_py() + self._entry_offset}"


def derived_metadata(rows: pa.RecordBatch) -> bytes:
    """Derive the metadata of an entry that Spark wrote, as the Java client's `BatchMessageContainerImpl` fills it.

    Args:
        rows: All rows of the entry.
    """
    head = rows.slice(0, 1)
    sequence_ids = rows.column("sequence_id")
    metadata = MessageMetadata(
        producer_name=head.column("producer_name")[0].as_py() or "",
        sequence_id=sequence_ids[0].as_py() or 0,
        publish_time=head.column("publish_time").view(pa.int64())[0].as_py() or 0,
        num_messages_in_batch=rows.num_rows,
        ordering_key=head.column("ordering_key")[0].as_py(),
        schema_version=head.column("schema_version")[0].as_py(),
    )
    if rows.num_rows > 1:
        metadata.highest_sequence_id = pc.max(sequence_ids).as_py() or 0
    key = key_strings(head.column("key"), head.column("key_b64"))[0].as_py()
    if key is not None:
        metadata.partition_key = key.decode()
        metadata.partition_key_b64_encoded = bool(head.column("key_b64")[0].as_py())
    # An entry is delivered as a whole, so its latest time counts: no message is delivered before its own time.
    deliver_at = pc.max(rows.column("deliver_at_time").view(pa.int64())).as_py()
    if deliver_at is not None:
        metadata.deliver_at_time = deliver_at
    return metadata.SerializeToString()


def _with_size(payload: bytes) -> bytes:
    """Return bytes that correct the payload's size when appended to an entry's metadata: the last value counts."""
    return MessageMetadata(uncompressed_size=len(payload)).SerializePartialToString()


class _Slices:
    """The bytes of a column without nulls."""

    def __init__(self, column: pa.BinaryArray) -> None:
        self.column = column
        _, offsets, data = column.buffers()
        self._ends = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4).tolist()
        self._data = memoryview(data) if data is not None else memoryview(b"")

    def between(self, first: int, last: int) -> bytes:
        """Return the concatenated bytes of rows [first, last)."""
        return bytes(self._data[self._ends[first] : self._ends[last]])


def _derived_rows(rows: pa.RecordBatch) -> pa.BooleanArray:
    """Return a flag for each row: True if Spark wrote it, as a message of a batch without stored metadata."""
    unnamed = pc.and_(rows.column("message_metadata").is_null(), rows.column("raw").is_null())
    return pc.and_(unnamed, rows.column("batch_index").is_valid())


def _with_derived(rows: pa.RecordBatch, metadata: pa.BinaryArray, derived: pa.BooleanArray) -> pa.BinaryArray:
    """Return the messages' metadata, derived from the columns where none is stored."""
    if not pc.any(derived).as_py():
        return metadata
    written = rows.filter(derived)
    singles = pa.array(list(_single_metadata(written)), pa.binary())
    return singles if len(written) == rows.num_rows else pc.replace_with_mask(metadata, derived, singles)


def _single_metadata(rows: pa.RecordBatch) -> Iterator[bytes]:
    """Fill in fields in the order of the Java client's `Commands.serializeSingleMessageInBatchWithPayload`."""
    columns = (
        key_strings(rows.column("key"), rows.column("key_b64")).to_pylist(),
        rows.column("key_b64").to_pylist(),
        rows.column("ordering_key").to_pylist(),
        rows.column("properties").to_pylist(),
        rows.column("event_time").view(pa.int64()).to_pylist(),
        rows.column("sequence_id").to_pylist(),
        pc.binary_length(rows.column("value")).to_pylist(),
    )
    for key, is_base64, ordering_key, properties, event_time, sequence_id, size in zip(*columns, strict=True):
        single = SingleMessageMetadata(payload_size=size or 0)
        for name, value in properties or ():
            single.properties.add(key=name, value=value)
        if key is not None:
            single.partition_key = key.decode()
            if is_base64:
                single.partition_key_b64_encoded = True
        if ordering_key is not None:
            single.ordering_key = ordering_key
        if event_time is not None:
            single.event_time = event_time % 2**64
        if sequence_id is not None:
            single.sequence_id = sequence_id % 2**64
        if size is None:
            single.null_value = True
        yield single.SerializeToString()


def _sizes(values: pa.BinaryArray) -> pa.BinaryArray:
    """Return the length of each row as four big-endian bytes."""
    lengths = pc.binary_length(values).to_numpy(zero_copy_only=False).astype(">u4")
    offsets = np.arange(0, 4 * len(lengths) + 1, 4, dtype=np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(lengths)])
