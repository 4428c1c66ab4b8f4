"""A quick look at an entry's metadata: what a dispatcher must know of it."""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from google.protobuf.message import DecodeError

from pulsar_on_spark.protocol.entry_frame import CHECKSUM_MAGIC, MAX_MESSAGES_IN_ENTRY
from pulsar_on_spark.protocol.messages import MessageMetadata

_CHECKSUM_BYTES = 6
_SIZE_BYTES = 4
_USUAL_MESSAGES = 1_000
"""The usual number of messages in a batch; a larger number is compared with the bytes that are there for it."""
_LEAST_BYTES = 6
"""Least bytes of a message in a batch: the length of its metadata, and in this the length of its payload."""


class EntryLook(NamedTuple):
    """What an entry's metadata says.

    Attributes:
        messages: Number of its messages, 1 to `MAX_MESSAGES_IN_ENTRY`, and no more than there are bytes for.
        is_batch: Whether its messages have batch indexes; also a batch of one has.
        key: The sticky key of Key_Shared: ordering key, else key, else `<producer>-<sequence id>`.
        deliver_at_ms: Not before this time; None at once. An entry that Spark wrote has the latest time of its rows.
        publish_ms: When its producer sent it, by the producer's clock.
        is_marker: The broker's own entry: no message.
        chunk: (uuid, chunk id, number of chunks) of a large message's chunk.
    """

    messages: int
    is_batch: bool
    key: bytes | None
    deliver_at_ms: int | None
    publish_ms: int
    is_marker: bool
    chunk: tuple[str, int, int] | None


UNREADABLE = EntryLook(1, False, None, None, 0, False, None)
"""What is said of bytes that are no entry: they go to consumers as they are, and their clients discard them."""


def look_at(entry: bytes) -> EntryLook:
    """The metadata of an entry; its checksum was verified when it came, and is not again."""
    start = _CHECKSUM_BYTES if entry[:2] == CHECKSUM_MAGIC else 0
    metadata_at = start + _SIZE_BYTES
    payload_at = metadata_at + int.from_bytes(entry[start:metadata_at], "big")
    if payload_at > len(entry):
        return UNREADABLE
    try:
        said = MessageMetadata.FromString(entry[metadata_at:payload_at])
    except DecodeError:
        return UNREADABLE
    # A field that is asked for by its value costs half of one that is asked for by its presence.
    messages = said.num_messages_in_batch
    return EntryLook(
        max(messages, 1) if messages <= _USUAL_MESSAGES else _believed(said, len(entry) - payload_at),
        messages != 1 or said.HasField("num_messages_in_batch"),
        _sticky_key(said),
        said.deliver_at_time or None,
        said.publish_time,
        said.HasField("marker_type"),
        (said.uuid, said.chunk_id, said.num_chunks_from_msg) if said.num_chunks_from_msg else None,
    )


def _believed(said: MessageMetadata, payload_bytes: int) -> int:
    """Consumers' permits and limits go by the number: it must not be one that their clients never see."""
    plain_bytes = max(payload_bytes, said.uncompressed_size)
    return max(1, min(said.num_messages_in_batch, MAX_MESSAGES_IN_ENTRY, plain_bytes // _LEAST_BYTES))


def _sticky_key(said: MessageMetadata) -> bytes:
    """As Pulsar's `Commands.resolveStickyKey` takes it."""
    if said.HasField("ordering_key"):
        return said.ordering_key
    if said.HasField("partition_key"):
        key = said.partition_key.encode()
        if said.partition_key_b64_encoded:
            try:
                return base64.b64decode(key, validate=True)
            except binascii.Error:
                return key
        return key
    return f"{said.producer_name}-{said.sequence_id}".encode()
