"""Rows of broker-written entries that are no messages for readers: what is left out, and what cannot be read.

Left out are the broker's own entries (markers) and the places of messages that compaction took out of their batch.
Entries that were kept whole for another reason are messages that Spark cannot read: whoever reads them is told,
because a null value would say that the key was deleted, and a skip would be a loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from pulsar_on_spark.protocol.entry_frame import split_entry
from pulsar_on_spark.protocol.messages import MessageMetadata

HIDING_COLUMNS = ("entry_id", "raw")
"""The columns that tell."""


@dataclass(frozen=True, slots=True)
class UnreadableEntry:
    """An entry that cannot be taken apart, and why; `entry_id` is that of the column."""

    entry_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class HiddenRows:
    """What of a batch is no message.

    Attributes:
        messages: Which rows are messages.
        unreadable: The entries among the others that readers must be told of.
    """

    messages: pa.BooleanArray
    unreadable: tuple[UnreadableEntry, ...]


def hidden_rows(batch: pa.RecordBatch) -> HiddenRows | None:
    """Tell messages from other rows by `HIDING_COLUMNS`; None if all are messages."""
    raw = batch.column("raw")
    if raw.null_count == len(raw):
        return None
    messages = raw.is_null()
    whole = pc.greater(pc.binary_length(raw), 0).fill_null(False)
    entries = batch.column("entry_id").filter(whole).to_pylist()
    reasons = [_reason(entry) for entry in raw.filter(whole).to_pylist()]
    unreadable = (UnreadableEntry(entry, why) for entry, why in zip(entries, reasons, strict=True) if why is not None)
    return HiddenRows(messages, tuple(unreadable))


def _reason(entry: bytes) -> str | None:
    """Why an entry is kept whole; None for the broker's own."""
    place = split_entry(entry)
    if place is None:
        return "no entry that a producer makes, or fails its checksum"
    metadata = MessageMetadata()
    try:
        metadata.ParseFromString(entry[place[0] : place[1]])
    except DecodeError:
        return "without metadata that can be parsed"
    if metadata.HasField("marker_type"):
        return None
    if metadata.encryption_keys:
        return "encrypted"
    if metadata.HasField("chunk_id"):
        return f"chunk {metadata.chunk_id + 1} of {metadata.num_chunks_from_msg} of a large message"
    return "compressed in a way that is not known here, or not what its metadata says"
