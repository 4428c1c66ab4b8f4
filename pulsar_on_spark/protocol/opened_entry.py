"""An entry taken apart for people to look at: its metadata, and its payload as its producer had it."""

from __future__ import annotations

from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.protocol.compression import MAX_UNCOMPRESSED_BYTES, Codec, decompress
from pulsar_on_spark.protocol.entry_frame import split_entry
from pulsar_on_spark.protocol.messages import MessageMetadata


class PayloadTooLargeError(PulsarpyError):
    """A payload is larger, once decompressed, than its reader takes."""


def open_entry(data: bytes, limit_bytes: int = MAX_UNCOMPRESSED_BYTES) -> tuple[MessageMetadata, bytes]:
    """An entry's metadata and payload.

    The payload is decompressed if that can be, which an encrypted one cannot. Bytes that are no entry have empty
    metadata and are their own payload.

    Args:
        data: The entry as it is stored.
        limit_bytes: The largest payload that is decompressed.

    Raises:
        PayloadTooLargeError: its metadata claims a larger payload.
    """
    parts = split_entry(data)
    if parts is None:
        return MessageMetadata(), data
    metadata = MessageMetadata.FromString(data[parts[0] : parts[1]])
    payload = memoryview(data)[parts[1] :]
    if metadata.encryption_keys:
        return metadata, bytes(payload)
    if metadata.compression != Codec.NONE and limit_bytes < metadata.uncompressed_size <= MAX_UNCOMPRESSED_BYTES:
        raise PayloadTooLargeError(
            f"The payload has {metadata.uncompressed_size:,} bytes once decompressed, above {limit_bytes:,}."
        )
    plain = decompress(metadata.compression, payload, metadata.uncompressed_size)
    return metadata, bytes(payload) if plain is None else plain
