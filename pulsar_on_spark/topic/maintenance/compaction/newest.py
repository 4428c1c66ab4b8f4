"""The first pass of a compaction: the newest message of each key. Pure: from rows to places (`places.py`).

Keys are compared as a whole, because two keys may have the same hash. Memory holds each key and its newest place. If
these take more than `max_bytes`, a pass raises `TooManyKeysError`, and the caller makes one pass for each share of the
keys.

Messages whose key is unknown are kept: they might be the newest of their keys.

    row                                          outcome
    -------------------------------------------  -------------------------------------------------------------
    message with a key                           kept if it is the newest of its key and not empty
    newest message of a key, null or empty       a tombstone: all messages of the key are dropped (see below)
    message without a key                        dropped, or kept if `retain_null_key` (Pulsar's setting)
    marker, placeholder of a removed message     dropped
    encrypted message, unknown codec             as any message, by the key in its metadata
    chunks of a large message                    kept or dropped together: the message has the place of its last
                                                 chunk; if the last chunk has not arrived, all chunks are kept
    encrypted or unreadable batch                kept: its keys are unknown. Tombstones after such a batch are
                                                 kept, too: they may belong to messages in the batch
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.model.hashing import murmur3_32
from pulsar_on_spark.model.ids import LedgerId
from pulsar_on_spark.protocol.entry_frame import split_entry
from pulsar_on_spark.protocol.field_walk import Bools, Int64s
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.topic.maintenance.compaction.places import Places

COLUMNS = ("entry_id", "batch_index", "key", "key_b64", "value", "raw")
"""Columns that the pass reads."""
_MERGE_ROWS = 1 << 18
"""Minimum number of rows to buffer before they are grouped with the known keys."""


class TooManyKeysError(PulsarpyError):
    """The keys of a share take more memory than allowed, so the pass must be repeated with smaller shares."""


@dataclass(frozen=True, slots=True)
class Share:
    """The share of the keys whose hash modulo `of` is `number`."""

    number: int = 0
    of: int = 1


@dataclass(slots=True)
class _Chunks:
    """Chunks of large messages.

    Attributes:
        open: Places of the chunks of messages whose last chunk has not arrived, by producer and uuid.
        before_last: Places of the other chunks of complete messages, by the place of the last chunk.
    """

    open: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    before_last: dict[int, list[int]] = field(default_factory=dict)


class NewestOfKeys:
    """The first pass: the caller adds all rows in the order of the chain, then `finish` returns the kept places.

    Args:
        places: The places of all entries.
        retain_null_key: True to keep messages without a key.
        share: The keys of this pass. Messages that are kept regardless of their key belong to share 0.
        max_bytes: Maximum bytes of keys and places.
    """

    def __init__(
        self, places: Places, *, retain_null_key: bool = False, share: Share | None = None, max_bytes: int = 256 << 20
    ) -> None:
        self._places = places
        self._retain_null_key = retain_null_key
        self._share = share or Share()
        self._max_bytes = max_bytes
        self._known = _table(pa.nulls(0, pa.binary()), pa.nulls(0, pa.bool_()), np.zeros(0, np.int64))
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._kept: list[int] = []
        self._first_opaque: int | None = None
        self._chunks = _Chunks()

    def add_rows(self, ledger: LedgerId, entry_offset: int, rows: pa.RecordBatch) -> None:
        """Add rows with the columns `COLUMNS`; all rows of an entry must be added together.

        Args:
            ledger: The ledger of the rows.
            entry_offset: Added to the column `entry_id` to get entry ids.
            rows: The rows.

        Raises:
            TooManyKeysError: the keys take more than `max_bytes`.
        """
        entries = rows.column("entry_id").to_numpy() + entry_offset
        indexes = rows.column("batch_index").fill_null(-1).to_numpy().astype(np.int64)
        places = self._places.of_messages(ledger, entries, indexes)
        keys, raw = rows.column("key"), rows.column("raw")
        is_empty = pc.equal(pc.binary_length(rows.column("value")).fill_null(0), 0)
        is_tombstone: Bools = is_empty.to_numpy(zero_copy_only=False)
        counts: Bools = keys.is_valid().to_numpy(zero_copy_only=False)
        if raw.null_count < len(raw):
            counts = counts & raw.is_null().to_numpy(zero_copy_only=False)
            is_tombstone = is_tombstone.copy()
            for row in np.flatnonzero(raw.is_valid().to_numpy(zero_copy_only=False)).tolist():
                null_value = self._take_whole(int(places[row]), raw[row].as_py(), has_key=keys[row].is_valid)
                counts[row] = null_value is not None
                is_tombstone[row] = bool(null_value)
        self._add(keys, rows.column("key_b64"), (places << 1) | is_tombstone, counts)

    def finish(self) -> Int64s:
        """Return the sorted places (`Places`) of all kept messages, and of all kept entries that are not split."""
        self._merge()
        newest = self._known.column("place").to_numpy()
        places, is_tombstone = newest >> 1, (newest & 1).astype(np.bool_)
        is_kept = ~is_tombstone
        if self._first_opaque is not None:
            is_kept |= places > self._first_opaque
        survivors = places[is_kept]
        kept_anyway = list(self._kept)
        if self._share.number == 0:
            kept_anyway += [place for chunks in self._chunks.open.values() for place in chunks]
        if self._chunks.before_last:
            for last in np.intersect1d(survivors, np.fromiter(self._chunks.before_last, np.int64)).tolist():
                kept_anyway += self._chunks.before_last[last]
            if self._share.number == 0:
                kept_anyway += [place for last in self._kept for place in self._chunks.before_last.get(last, ())]
        return np.unique(np.concatenate((survivors, np.array(kept_anyway, np.int64))))

    # -- entries that are not split ------------------------------------------------------------------------------------

    def _take_whole(self, place: int, entry: bytes, *, has_key: bool) -> bool | None:
        """Add an entry that is not split. Return True if it is a tombstone, False if it is another message with a key.

        The result is None if the entry has no key, its key is unknown, or it is no message of its own.
        """
        if not entry:
            return None  # the row is the placeholder of a message that an earlier compaction removed
        metadata = _metadata(entry)
        if metadata is None or metadata.num_messages_in_batch > 1:
            if self._first_opaque is None:
                self._first_opaque = place
            self._keep(place)
            return None
        if metadata.HasField("marker_type"):
            return None
        if metadata.HasField("chunk_id") and metadata.num_chunks_from_msg > 1 and not self._take_chunk(place, metadata):
            return None
        if not has_key and self._retain_null_key:
            self._keep(place)
        # An encrypted message is empty if its size before encryption, which producers record, is 0.
        is_empty = metadata.HasField("uncompressed_size") and not metadata.uncompressed_size
        return metadata.null_value or is_empty if has_key else None

    def _take_chunk(self, place: int, said: MessageMetadata) -> bool:
        """Add a chunk. Return True if it is the last chunk of its message."""
        message = (said.producer_name, said.uuid)
        if said.chunk_id < said.num_chunks_from_msg - 1:
            self._chunks.open.setdefault(message, []).append(place)
            return False
        self._chunks.before_last[place] = self._chunks.open.pop(message, [])
        return True

    def _keep(self, place: int) -> None:
        if self._share.number == 0:
            self._kept.append(place)

    # -- keys ----------------------------------------------------------------------------------------------------------

    def _add(self, keys: pa.BinaryArray, flags: pa.BooleanArray, places: Int64s, counts: Bools) -> None:
        if self._share.of > 1:
            counts = counts & (murmur3_32(keys) % np.uint32(self._share.of) == self._share.number)
        if not counts.any():
            return
        table = _table(keys, flags.fill_null(False), places)
        if not counts.all():
            table = table.filter(pa.array(counts))
        self._waiting.append(table)
        self._waiting_rows += table.num_rows
        if self._waiting_rows > max(_MERGE_ROWS, self._known.num_rows):
            self._merge()

    def _merge(self) -> None:
        if not self._waiting:
            return
        grouped = pa.concat_tables([self._known, *self._waiting]).group_by(["key", "b64"], use_threads=False)
        newest = grouped.aggregate([("place", "max")]).rename_columns(["key", "b64", "place"])
        self._known = newest.combine_chunks()
        self._waiting, self._waiting_rows = [], 0
        if self._known.nbytes > self._max_bytes and self._known.num_rows > 1:
            raise TooManyKeysError(f"{self._known.num_rows} keys take {self._known.nbytes} bytes")


def _table(keys: pa.BinaryArray, flags: pa.BooleanArray, places: Int64s) -> pa.Table:
    """Make a table of keys, flags and places. A key sent as Base64 differs from a key sent as text with equal bytes."""
    return pa.table({"key": keys.cast(pa.large_binary()), "b64": flags, "place": pa.array(places, pa.int64())})


def _metadata(entry: bytes) -> MessageMetadata | None:
    """Return the metadata of an entry; None if it is malformed."""
    bounds = split_entry(entry)
    if bounds is None:
        return None
    try:
        metadata = MessageMetadata.FromString(entry[bounds[0] : bounds[1]])
    except DecodeError:
        return None
    return metadata if metadata.IsInitialized() else None
