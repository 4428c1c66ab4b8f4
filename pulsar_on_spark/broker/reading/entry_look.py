"""Fast parsing of the fields of an entry's metadata that dispatchers need."""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from google.protobuf.message import DecodeError

from pulsar_on_spark.protocol.entry_frame import CHECKSUM_MAGIC, MAX_MESSAGES_IN_ENTRY, split_entry
from pulsar_on_spark.protocol.messages import MessageMetadata, as_bytes, as_text

_CHECKSUM_BYTES = 6
_SIZE_BYTES = 4
_USUAL_MESSAGES = 1_000
"""The usual maximum number of messages in a batch; a larger number is checked against the payload's size."""
_LEAST_BYTES = 6
"""Minimum size of a message in a batch: the length of its metadata, and in this the length of its payload."""


class EntryLook(NamedTuple):
    """The fields of an entry's metadata.

    Attributes:
        messages: Number of its messages, 1 to `MAX_MESSAGES_IN_ENTRY`, and no more than its bytes can hold.
        is_batch: True if its messages have batch indexes, also in a batch of one message.
        key: The sticky key of Key_Shared: ordering key, else key, else `<producer>-<sequence id>`; None if the metadata
            cannot be parsed.
        deliver_at_ms: Earliest delivery time, in milliseconds since 1970; None for no delay. For an entry that Spark
            wrote, the latest of its rows.
        publish_ms: Publish time by the producer's clock, in milliseconds since 1970.
        is_marker: True for an entry of the broker itself, which is not a message.
        chunk: (uuid, chunk id, number of chunks) of a large message's chunk; None for other entries.
    """

    messages: int
    is_batch: bool
    key: bytes | None
    deliver_at_ms: int | None
    publish_ms: int
    is_marker: bool
    chunk: tuple[str, int, int] | None


UNREADABLE = EntryLook(1, False, None, None, 0, False, None)
"""The fields of bytes that are not a valid entry: they are delivered unchanged, and clients discard them."""


def look_at(entry: bytes) -> EntryLook:
    """Return the fields of an entry's metadata; UNREADABLE if they cannot be parsed. The checksum is not verified.

    Never raises, whatever a client sent: an entry that made this function raise would stop all its readers for good.
    """
    start = _CHECKSUM_BYTES if entry[:2] == CHECKSUM_MAGIC else 0
    metadata_at = start + _SIZE_BYTES
    payload_at = metadata_at + int.from_bytes(entry[start:metadata_at], "big")
    if payload_at > len(entry):
        return UNREADABLE
    try:
        metadata = MessageMetadata.FromString(entry[metadata_at:payload_at])
    except DecodeError:
        return UNREADABLE
    # Reading a field's value costs half as much as checking its presence.
    messages = metadata.num_messages_in_batch
    return EntryLook(
        max(messages, 1) if messages <= _USUAL_MESSAGES else _plausible_messages(metadata, len(entry) - payload_at),
        messages != 1 or metadata.HasField("num_messages_in_batch"),
        _sticky_key(metadata),
        metadata.deliver_at_time or None,
        metadata.publish_time,
        metadata.HasField("marker_type"),
        (as_text(metadata.uuid), metadata.chunk_id, metadata.num_chunks_from_msg)
        if metadata.num_chunks_from_msg
        else None,
    )


def is_encrypted(entry: bytes) -> bool:
    """Return True if the producer of an entry has encrypted it: its metadata holds the encrypted key of the payload."""
    parts = split_entry(entry)
    try:
        return parts is not None and bool(MessageMetadata.FromString(entry[parts[0] : parts[1]]).encryption_keys)
    except DecodeError:
        return False


def _plausible_messages(metadata: MessageMetadata, payload_bytes: int) -> int:
    """Return the number of messages that the metadata state, limited to as many as the payload can hold.

    Clients grant permits only for messages that they find in the payload.
    """
    plain_bytes = max(payload_bytes, metadata.uncompressed_size)
    return max(1, min(metadata.num_messages_in_batch, MAX_MESSAGES_IN_ENTRY, plain_bytes // _LEAST_BYTES))


def _sticky_key(metadata: MessageMetadata) -> bytes:
    """Return the sticky key by the rule of Pulsar's `Commands.resolveStickyKey`."""
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if metadata.HasField("partition_key"):
        key = as_bytes(metadata.partition_key)
        if metadata.partition_key_b64_encoded:
            try:
                return base64.b64decode(key, validate=True)
            except binascii.Error:
                return key
        return key
    return as_bytes(metadata.producer_name) + b"-%d" % metadata.sequence_id
