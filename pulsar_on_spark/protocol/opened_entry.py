"""An entry taken apart for people to look at: its metadata, and its payload as its producer had it."""

from __future__ import annotations

from pulsar_on_spark.protocol.compression import decompress
from pulsar_on_spark.protocol.entry_frame import split_entry
from pulsar_on_spark.protocol.messages import MessageMetadata


def open_entry(data: bytes) -> tuple[MessageMetadata, bytes]:
    """An entry's metadata and payload.

    The payload is decompressed if that can be, which an encrypted one cannot. Bytes that are no entry have empty
    metadata and are their own payload.
    """
    parts = split_entry(data)
    if parts is None:
        return MessageMetadata(), data
    metadata = MessageMetadata.FromString(data[parts[0] : parts[1]])
    payload = memoryview(data)[parts[1] :]
    if metadata.encryption_keys:
        return metadata, bytes(payload)
    plain = decompress(metadata.compression, payload, metadata.uncompressed_size)
    return metadata, bytes(payload) if plain is None else plain
