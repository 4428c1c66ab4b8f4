"""Splitting entries, as Pulsar's producers send them, into segment rows: one row for each message.

There are three kinds of entry, distinguished by their metadata:

* a **batch** has a row for each message, with `batch_index` from 0 and its `message_metadata` as received;
* a **single** message has one row without batch index and without `message_metadata`;
* an entry that cannot be split is **whole**: one row with all bytes in `raw` and a null value. Such an entry is
  encrypted, a chunk, a marker (the broker's own entry), compressed by an unknown codec, too much work
  (`work_limits.py`), or inconsistent in any way.

The first row of an entry has `entry_metadata` as received. A whole entry has it, too, unless its metadata is missing or
broken, so that readers can find out why it is whole. No bytes are lost and no entry is an error: `rebuild.py` restores
the entry from its rows.

**Rows that are not messages for readers** have a `raw` that is not null. They are whole entries, and placeholders for
messages that compaction removed from a batch (with an empty `raw`, and `message_metadata` to rebuild the batch).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.model.ids import EntryId, LedgerId
from pulsar_on_spark.protocol.compression import MAX_UNCOMPRESSED_BYTES, Codec, compress, decompress
from pulsar_on_spark.protocol.field_walk import Bools, Bytes, Int64s, pick_ranges
from pulsar_on_spark.topic.entries import columns as columns
from pulsar_on_spark.topic.entries.batches import MessageRows, message_rows, walk_batches
from pulsar_on_spark.topic.entries.columns import ENTRY, SINGLE, MessageColumns, WalkedMetadata
from pulsar_on_spark.topic.entries.cutting import MAX_MESSAGE_BYTES, RECORD_BATCH_BYTES
from pulsar_on_spark.topic.entries.stored import StoredEntries, split_entries
from pulsar_on_spark.topic.entries.work_limits import above_group_budget, above_limits

GROUP_ENTRIES = 8_192
"""Maximum number of entries whose metadata is read together, in columns; fewer at a time are slower."""
_UTC_MS = pa.timestamp("ms", "UTC")


class StoredEntry(NamedTuple):
    """An entry, as received or as rebuilt after compaction; `ack_set` is the bit mask of its remaining messages."""

    ledger_id: LedgerId
    entry_id: EntryId
    data: bytes
    ack_set: int = 0
    """0 if no message was removed."""


@dataclass(frozen=True, slots=True)
class DecodedEntries:
    """Whole entries as rows.

    Attributes:
        batch: The rows in `SEGMENT_SCHEMA`, in the order of the entries.
        entry_rows: The number of rows of each entry.
        row_bytes: The key, value and raw bytes of each row.
    """

    batch: pa.RecordBatch
    entry_rows: Int64s
    row_bytes: Int64s


def decode_entries(
    entries: Iterable[StoredEntry],
    *,
    max_message_size_bytes: int = MAX_MESSAGE_BYTES,
    target_bytes: int = RECORD_BATCH_BYTES,
) -> Iterator[DecodedEntries]:
    """Split entries that arrive one by one (see `decode_groups`).

    Args:
        entries: The entries, in the order of the wanted rows.
        max_message_size_bytes: The broker's `maxMessageSize`. An entry that could not be compressed again to this size
            stays whole, so that every entry can be delivered again.
        target_bytes: The approximate uncompressed bytes of a batch; a single entry may have more.
    """
    return decode_groups(
        _groups(entries, target_bytes), max_message_size_bytes=max_message_size_bytes, target_bytes=target_bytes
    )


def decode_dense_entry(entry: StoredEntry) -> Iterator[DecodedEntries]:
    """Split one entry that may be whole in a segment because its group was too much work.

    The rows are only for reading, because the check that the entry can be compressed again to `maxMessageSize` is left
    out.
    """
    yield from _Group(_in_columns([entry]), None).decode(RECORD_BATCH_BYTES)


def decode_groups(
    groups: Iterable[StoredEntries],
    *,
    max_message_size_bytes: int = MAX_MESSAGE_BYTES,
    target_bytes: int = RECORD_BATCH_BYTES,
) -> Iterator[DecodedEntries]:
    """Split groups of entries into record batches. A batch has all rows of its entries, which are of one group.

    Args:
        groups: Groups of entries; the metadata of a group is read in columns, so small groups are slow.
        max_message_size_bytes: As for `decode_entries`.
        target_bytes: As for `decode_entries`.
    """
    for group in groups:
        yield from _Group(group, max_message_size_bytes).decode(target_bytes)


def _groups(entries: Iterable[StoredEntry], target_bytes: int) -> Iterator[StoredEntries]:
    group: list[StoredEntry] = []
    size = 0
    for entry in entries:
        group.append(entry)
        size += len(entry.data)
        if size >= target_bytes or len(group) == GROUP_ENTRIES:
            yield _in_columns(group)
            group, size = [], 0
    if group:
        yield _in_columns(group)


def _in_columns(entries: Sequence[StoredEntry]) -> StoredEntries:
    bounds = np.cumsum(np.fromiter(chain((0,), (len(entry.data) for entry in entries)), np.int64, len(entries) + 1))
    return StoredEntries(
        np.fromiter((entry.ledger_id for entry in entries), np.int64, len(entries)),
        np.fromiter((entry.entry_id for entry in entries), np.int64, len(entries)),
        np.frombuffer(b"".join(entry.data for entry in entries), np.uint8),
        bounds[:-1],
        bounds[1:],
    )


class _Group:
    """Entries whose metadata is read together.

    Args:
        entries: The entries.
        max_message_size_bytes: As for `decode_entries`. None for rows that are only read: the limit of a group's work
            does not apply to them, and their entries need not be compressed again.
    """

    def __init__(self, entries: StoredEntries, max_message_size_bytes: int | None) -> None:
        self.data, self.starts, self.ends = entries.data, entries.starts, entries.ends
        split = split_entries(entries)
        # After the metadata of the entries comes an empty row, the source of missing fields.
        metadata = pick_ranges(self.data, split.metadata_at, split.payload_at)
        self.metadata = pa.concat_arrays([metadata, pa.array([b""], pa.binary())])
        self.walked = walked = columns.walk_metadata(self.metadata, ENTRY)
        self.named = columns.message_columns(walked)
        self.ledger_ids = pa.array(entries.ledger_ids)
        self.entry_ids = pa.array(entries.entry_ids)
        self.producer_names = columns.as_text(walked.column(columns.PRODUCER_NAME))
        self.schema_versions = walked.column(columns.SCHEMA_VERSION)
        self._limit = max_message_size_bytes
        self._payload_at = split.payload_at
        self._whole = self._must_stay_whole()[:-1] | ~split.valid
        self._codecs = walked.values(columns.COMPRESSION)[:-1]
        self._in_batch = walked.present(columns.NUM_MESSAGES_IN_BATCH)[:-1]
        self._messages = walked.values(columns.NUM_MESSAGES_IN_BATCH)[:-1]
        self._sizes = walked.values(columns.UNCOMPRESSED_SIZE)[:-1]
        # Rows cannot represent a tombstone with a payload.
        is_tombstone = self.named.null_value[:-1] & ~self._in_batch
        self._whole |= is_tombstone & (self._codecs == Codec.NONE) & (self._payload_at < self.ends)
        self._tombstones = is_tombstone
        self._whole |= self._is_too_much_work()

    def _is_too_much_work(self) -> Bools:
        messages = np.where(self._in_batch, self._messages, 1)
        sizes = np.where(self._codecs == Codec.NONE, 0, self._sizes)
        too_much = above_limits(messages, sizes)
        if self._limit is None:
            return too_much
        wanted = ~(self._whole | too_much)
        stored = self.ends - self._payload_at
        return too_much | above_group_budget(np.maximum(messages, 0) * wanted, sizes * wanted, stored)

    def _must_stay_whole(self) -> Bools:
        walked = self.walked
        codecs = walked.values(columns.COMPRESSION)
        chunked = (walked.values(columns.NUM_CHUNKS) > 1) | walked.present(columns.CHUNK_ID)
        unknown_codec = (codecs < 0) | (codecs > max(Codec))
        return (
            ~walked.valid
            | walked.has_any(columns.ENCRYPTION_KEYS)
            | chunked
            | walked.present(columns.MARKER_TYPE)
            | unknown_codec
        )

    def decode(self, target_bytes: int) -> Iterator[DecodedEntries]:
        """Yield the entries in batches of equal size, as far as their sizes are known before they are split."""
        first = 0
        while first < len(self.ends):
            sizes = np.cumsum(self._claimed_sizes(first))
            batches = round(int(sizes[-1]) / target_bytes)
            end = first + 1 + int(np.searchsorted(sizes, sizes[-1] / batches)) if batches > 1 else len(self.ends)
            rows = self._take_apart(first, end)
            walked = columns.walk_metadata(rows.batch_metadata(), SINGLE)
            named = columns.message_columns(walked)
            bad = _bad_entries(rows, walked, named)
            if len(bad):
                # This is rare, so just split all again, with the entries that have bad messages left whole.
                self._whole[first + bad] = True
                continue
            yield _RowColumns(self, first, rows, walked, named).decoded()
            first += len(rows.counts)

    def _take_apart(self, first: int, end: int) -> MessageRows:
        """Split the entries from `first` to `end`."""
        whole, data = self._whole[first:end], self.data
        starts, ends = self._payload_at[first:end], self.ends[first:end]
        payloads: dict[int, Bytes] = {}
        for index in np.flatnonzero(~whole & (self._codecs[first:end] != Codec.NONE)).tolist():
            payload = self._unpacked(first + index)
            if payload is None:
                whole[index] = True
            else:
                payloads[index] = payload
        if payloads:
            data, starts, ends = self._joined(whole, starts, ends, payloads)
        is_batch = ~whole & self._in_batch[first:end]
        messages = np.where(is_batch, self._messages[first:end], 0)
        bounds, fits = walk_batches(data, starts[is_batch], ends[is_batch], messages[is_batch])
        if not fits.all():
            whole[is_batch] = ~fits
            messages[whole] = 0
        return message_rows(data, starts, ends, messages, whole, bounds)

    def _claimed_sizes(self, first: int) -> Int64s:
        """Return the uncompressed size of each entry from `first` on, as its metadata claims it."""
        packed = (self._codecs[first:] != Codec.NONE) & ~self._whole[first:]
        claimed = np.clip(self._sizes[first:], 0, MAX_UNCOMPRESSED_BYTES)
        return np.where(packed, claimed, self.ends[first:] - self.starts[first:])

    def _joined(
        self, whole: Bools, starts: Int64s, ends: Int64s, payloads: Mapping[int, Bytes]
    ) -> tuple[Bytes, Int64s, Int64s]:
        """Copy the payloads, some of which were compressed, into one buffer; return it with their starts and ends."""
        data = self.data.data
        pieces = [
            b"" if is_whole else payloads[index].data if index in payloads else data[start:end]
            for index, (is_whole, start, end) in enumerate(
                zip(whole.tolist(), starts.tolist(), ends.tolist(), strict=True)
            )
        ]
        bounds = np.cumsum(np.fromiter(chain((0,), map(len, pieces)), np.int64, len(pieces) + 1))
        return np.frombuffer(b"".join(pieces), np.uint8), bounds[:-1], bounds[1:]

    def _unpacked(self, index: int) -> Bytes | None:
        """Return the uncompressed payload of a compressed entry, or None if the entry must stay whole.

        It must if its payload has another size than claimed, cannot be compressed again, or is that of a tombstone.
        """
        codec, packed = int(self._codecs[index]), self.data[self._payload_at[index] : self.ends[index]]
        payload = decompress(codec, packed.data, int(self._sizes[index]))
        if payload is not None and self._limit is not None and len(payload) > self._limit:
            # The codec's best level might compress it enough, but takes half a minute for 64 MiB.
            payload = payload if len(compress(Codec(codec), payload)) <= self._limit else None
        if payload is None or (len(payload) and self._tombstones[index]):
            return None
        return np.frombuffer(payload, np.uint8)


def _bad_entries(rows: MessageRows, walked: WalkedMetadata, named: MessageColumns) -> Int64s:
    """Return the numbers of the entries with a bad message.

    A message is bad if its metadata is invalid, its payload has a wrong size, or it is a tombstone with a payload.
    """
    sizes = rows.payload_sizes[rows.in_batch]
    bad = ~walked.valid | (walked.values(columns.PAYLOAD_SIZE) != sizes) | (named.null_value & (sizes > 0))
    return np.unique(rows.entry[rows.in_batch][bad])


class _RowColumns:
    """Builder of the segment columns for some entries of a group, from entry `first` on."""

    def __init__(
        self, group: _Group, first: int, rows: MessageRows, walked: WalkedMetadata, named: MessageColumns
    ) -> None:
        self._group = group
        self._rows = rows
        self._walked = walked
        self._named = named
        self._entry = rows.entry + first
        self._first = first
        self._whole_row = np.zeros(len(rows.entry), np.bool_)
        self._whole_row[rows.first_rows()[rows.whole]] = True
        # The fields of an entry with invalid metadata are unknown.
        self._unknown = ~group.walked.valid[self._entry]

    def decoded(self) -> DecodedEntries:
        """Build the batch, with the rows of each entry and the bytes of each row."""
        rows = self._rows
        named = self._message_columns()
        value = rows.payloads(~(named.null_value | self._whole_row))
        raw = self._raw()
        batch_index = rows.batch_index.astype(np.int32)
        arrays = {
            **self._of_entries(named),
            "batch_index": pa.array(batch_index, mask=~rows.in_batch),
            "key": named.key,
            "key_b64": named.key_b64,
            "ordering_key": named.ordering_key,
            "properties": named.properties,
            "value": value,
            "message_metadata": self._message_metadata(),
            "raw": raw,
        }
        batch = pa.RecordBatch.from_arrays([arrays[name] for name in SEGMENT_SCHEMA.names], schema=SEGMENT_SCHEMA)
        return DecodedEntries(batch, rows.counts, _lengths(named.key) + _lengths(value) + _lengths(raw))

    def _of_entries(self, named: MessageColumns) -> dict[str, pa.Array]:
        """Return the columns that an entry's rows share, and those that default to the entry's value."""
        group, entry = self._group, self._entry
        walked = group.walked
        on_first_row = np.zeros(len(entry), np.bool_)
        on_first_row[self._rows.first_rows()] = True
        entry_indices = pa.array(entry, mask=self._unknown)
        deliver_at = walked.values(columns.DELIVER_AT_TIME)[entry]
        immediate = self._unknown | ~walked.present(columns.DELIVER_AT_TIME)[entry]
        return {
            "ledger_id": group.ledger_ids.take(pa.array(entry)),
            "entry_id": group.entry_ids.take(pa.array(entry)),
            "publish_time": pa.array(walked.values(columns.PUBLISH_TIME)[entry], mask=self._unknown).view(_UTC_MS),
            "event_time": pc.coalesce(named.event_time, group.named.event_time.take(entry_indices)).view(_UTC_MS),
            "deliver_at_time": pa.array(deliver_at, mask=immediate).view(_UTC_MS),
            "producer_name": group.producer_names.take(entry_indices),
            "sequence_id": pc.coalesce(named.sequence_id, group.named.sequence_id.take(entry_indices)),
            "schema_version": group.schema_versions.take(entry_indices),
            "codec": pa.array(walked.values(columns.COMPRESSION)[entry].astype(np.int8), mask=self._unknown),
            "entry_metadata": group.metadata.take(pa.array(entry, mask=self._unknown | ~on_first_row)),
        }

    def _message_columns(self) -> MessageColumns:
        """Return the columns of a message's own metadata, or of its entry's if it is not in a batch."""
        in_batch = self._rows.in_batch
        if in_batch.all():
            return self._named
        # The last row of `of_entries` is empty, and is taken for entries with invalid metadata.
        of_entries = self._group.named
        source = np.where(self._unknown, of_entries.count - 1, self._entry)
        source[in_batch] = of_entries.count + np.arange(self._named.count)
        return of_entries.then(self._named).select_rows(source)

    def _message_metadata(self) -> pa.BinaryArray:
        in_batch = self._rows.in_batch
        column = self._rows.batch_metadata()
        if in_batch.all():
            return column
        source = np.zeros(len(in_batch), np.int64)
        source[in_batch] = np.arange(len(column))
        return column.take(pa.array(source, mask=~in_batch))

    def _raw(self) -> pa.BinaryArray:
        rows = self._rows
        compacted = np.zeros(len(self._entry), np.bool_)
        compacted[rows.in_batch] = self._walked.values(columns.COMPACTED_OUT) != 0
        if not len(rows.whole) and not compacted.any():
            return pa.nulls(len(self._entry), pa.binary())
        entries = self._first + rows.whole
        raw = pick_ranges(self._group.data, self._group.starts[entries], self._group.ends[entries])
        source = np.full(len(self._entry), len(raw))
        source[self._whole_row] = np.arange(len(raw))
        with_empty = pa.concat_arrays([raw, pa.array([b""], pa.binary())])
        return with_empty.take(pa.array(source, mask=~(self._whole_row | compacted)))


def _lengths(column: pa.BinaryArray) -> Int64s:
    """Return the number of bytes of each row; 0 for null."""
    lengths: Int64s = pc.binary_length(column).fill_null(0).to_numpy().astype(np.int64)
    return lengths
