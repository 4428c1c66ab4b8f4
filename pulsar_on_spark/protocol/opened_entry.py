"""Splitter of stored entries into metadata and decompressed payload, for inspection."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.protocol.compression import MAX_UNCOMPRESSED_BYTES, Codec, decompress
from pulsar_on_spark.protocol.entry_frame import split_entry
from pulsar_on_spark.protocol.messages import MessageMetadata


class PayloadTooLargeError(PulsarpyError):
    """The decompressed payload of an entry would exceed the caller's limit."""


def open_entry(data: bytes, limit_bytes: int = MAX_UNCOMPRESSED_BYTES) -> tuple[MessageMetadata, bytes]:
    """Return an entry's metadata and its decompressed payload.

    A payload that is encrypted or cannot be decompressed is returned as stored. Bytes that are not a valid entry are
    returned as a payload with empty metadata.

    Args:
        data: The entry as stored.
        limit_bytes: Maximum size of the decompressed payload, in bytes.

    Raises:
        PayloadTooLargeError: the metadata claims a decompressed size above `limit_bytes`.
    """
    parts = split_entry(data)
    if parts is None:
        return MessageMetadata(), data
    try:
        metadata = MessageMetadata.FromString(data[parts[0] : parts[1]])
    except DecodeError:
        return MessageMetadata(), data
    payload = memoryview(data)[parts[1] :]
    if metadata.encryption_keys:
        return metadata, bytes(payload)
    if metadata.compression != Codec.NONE and limit_bytes < metadata.uncompressed_size <= MAX_UNCOMPRESSED_BYTES:
        raise PayloadTooLargeError(
            f"The payload has {metadata.uncompressed_size:,} bytes once decompressed, above {limit_bytes:,}."
        )
    plain = decompress(metadata.compression, payload, metadata.uncompressed_size)
    return metadata, bytes(payload) if plain is None else plain
