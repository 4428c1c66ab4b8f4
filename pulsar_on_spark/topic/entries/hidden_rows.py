"""Rows of broker-written entries that readers do not get as messages: rows that are left out, and rows that are errors.

The broker's own entries (markers) are left out, and so are the placeholder rows of messages that compaction removed
from a batch. An entry that is whole only because its group was too much work (`work_limits.py`) is split here, by
itself. Any other whole entry has messages that Spark cannot read. Its reader gets an error: a null value would mean
that the key was deleted, and to skip the entry would be a loss.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from pulsar_on_spark.model.errors import UnreadableMessageError
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from pulsar_on_spark.protocol.compression import MAX_UNCOMPRESSED_BYTES, Codec
from pulsar_on_spark.protocol.entry_frame import MAX_MESSAGES_IN_ENTRY, split_entry
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.topic.entries.rows import StoredEntry, decode_dense_entry

log = logging.getLogger(__name__)

HIDING_COLUMNS = ("entry_id", "raw")
"""The columns that show which rows are not messages."""


@dataclass(frozen=True, slots=True)
class UnreadableEntry:
    """An entry that cannot be split, and the reason.

    `entry_id` is the value of the column `entry_id`, `reason` a clause for an error.
    """

    entry_id: int
    reason: str


def message_rows_of(
    batch: pa.RecordBatch, ledger: LedgerId, on_unreadable: Callable[[UnreadableEntry], None]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch that are messages, in order, as one or more batches; the last one may be empty.

    Whole entries are split one at a time, so that at most one of them is unpacked in memory.

    Args:
        batch: Columns of the segment schema, including `HIDING_COLUMNS`.
        ledger: The ledger of all rows.
        on_unreadable: Called for each entry that must be reported to readers; its exception ends the read.
    """
    raw = batch.column("raw")
    if raw.null_count == len(raw):
        yield batch
        return
    is_message, entry_ids = raw.is_null(), batch.column("entry_id")
    is_whole = pc.greater(pc.binary_length(raw), 0).fill_null(False)
    first = 0
    for row in pc.indices_nonzero(is_whole).to_pylist():
        entry_id, entry = entry_ids[row].as_py(), raw[row].as_py()
        reason = _reason(entry)
        if reason is None:
            continue
        pieces = _taken_apart(StoredEntry(ledger, EntryId(entry_id), entry), batch.schema) if not reason else None
        if pieces is None:
            on_unreadable(UnreadableEntry(entry_id, reason or "inconsistent with its metadata"))
            continue
        yield _between(batch, is_message, first, row)
        yield from pieces
        first = row + 1
    yield _between(batch, is_message, first, len(raw))


def _between(batch: pa.RecordBatch, is_message: pa.BooleanArray, first: int, end: int) -> pa.RecordBatch:
    return batch.slice(first, end - first).filter(is_message.slice(first, end - first))


def _taken_apart(entry: StoredEntry, schema: pa.Schema) -> list[pa.RecordBatch] | None:
    """Split an entry into rows with the columns of `schema`; None if it cannot be split."""
    batches = [decoded.batch for decoded in decode_dense_entry(entry)]
    raw = [batch.column("raw") for batch in batches]
    if any(pc.any(pc.greater(pc.binary_length(column), 0)).as_py() for column in raw):
        return None
    chosen = [batch.filter(column.is_null()).select(schema.names) for batch, column in zip(batches, raw, strict=True)]
    return [pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in chosen]


def leave_out(
    position: Position, topic: str, reason: str, *, is_error: bool, remedy: str = "set option failOnDataLoss to false"
) -> None:
    """Log that an unreadable entry is left out of a read, or raise an error.

    Args:
        position: The entry's position.
        topic: The topic's full name.
        reason: The reason in the `UnreadableEntry`.
        is_error: True to raise an error, because the reader allows no losses and a skipped entry would be a loss.
        remedy: The end of the error's sentence: how to allow losses.

    Raises:
        UnreadableMessageError: `is_error` is set.
    """
    if is_error:
        raise UnreadableMessageError(
            f"Message {position} of {topic} cannot be read as rows, because it is {reason}. It is not lost: Pulsar "
            f"clients can read it. To leave such messages out, {remedy}.",
            position=position,
        )
    log.warning("Message %s of %s is left out, because it is %s.", position, topic, reason, extra={"topic": topic})


def _reason(entry: bytes) -> str | None:
    """Return the reason why an entry cannot be split, as a clause; None if it is a marker, which readers never get.

    The result is "" if only an attempt to split the entry can show the reason.
    """
    ranges = split_entry(entry)
    if ranges is None:
        return "not a well-formed entry, or fails its checksum"
    metadata = MessageMetadata()
    try:
        metadata.ParseFromString(entry[ranges[0] : ranges[1]])
    except DecodeError:
        return "without metadata that can be parsed"
    if metadata.HasField("marker_type"):
        return None
    if metadata.encryption_keys:
        return "encrypted"
    if metadata.HasField("chunk_id"):
        return f"chunk {metadata.chunk_id + 1} of {metadata.num_chunks_from_msg} of a large message"
    if metadata.num_messages_in_batch > MAX_MESSAGES_IN_ENTRY:
        return (
            f"a batch of {metadata.num_messages_in_batch} messages, above the limit of {MAX_MESSAGES_IN_ENTRY} for rows"
        )
    if metadata.compression and metadata.uncompressed_size > MAX_UNCOMPRESSED_BYTES:
        return (
            f"{metadata.uncompressed_size} bytes when it is decompressed, above the limit of {MAX_UNCOMPRESSED_BYTES} "
            "for rows"
        )
    if metadata.compression not in set(Codec):
        return f"compressed by a codec that is not known here ({metadata.compression})"
    return ""
