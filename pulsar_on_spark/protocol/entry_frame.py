"""The frame of a stored entry: the bytes that follow the command in a producer's SEND, stored unchanged.

    [0x0e01][CRC32C u32] [metadata size u32][MessageMetadata][payload]

All integers are big-endian. Clients before protocol version 6 omit the first two fields. An entry that has these fields
is sent to consumers byte for byte. The checksum covers everything after the checksum field (Pulsar's
`Commands.serializeMetadataAndPayload`). A batch's decompressed payload is, for each message,
`[metadata size u32][SingleMessageMetadata][message payload]`.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

CHECKSUM_MAGIC = b"\x0e\x01"
MAX_MESSAGES_IN_ENTRY = 100_000
"""Maximum number of messages in an entry, checked by the broker. Clients' batches have up to 1,000 by default."""

_CHECKSUM = struct.Struct(">2sI")
_CHECKSUM_AND_SIZE = struct.Struct(">2sII")
_SIZE = struct.Struct(">I")


def split_entry(entry: bytes) -> tuple[int, int] | None:
    """Return the offsets in bytes of a stored entry's metadata and payload; None if the bytes are not a valid entry.

    An entry that fails its checksum is not valid.
    """
    has_checksum = entry[:2] == CHECKSUM_MAGIC
    metadata_at = _CHECKSUM_AND_SIZE.size if has_checksum else _SIZE.size
    if len(entry) < metadata_at:
        return None
    if has_checksum:
        _, checksum, size = _CHECKSUM_AND_SIZE.unpack_from(entry)
        if crc32c(memoryview(entry)[_CHECKSUM.size :]) != checksum:
            return None
    else:
        (size,) = _SIZE.unpack_from(entry)
    payload_at: int = metadata_at + size
    return (metadata_at, payload_at) if payload_at <= len(entry) else None


def join_entry(metadata: bytes, payload: bytes) -> bytes:
    """Return the entry that has this encoded metadata and this payload, with a checksum."""
    covered = b"".join((_SIZE.pack(len(metadata)), metadata, payload))
    return _CHECKSUM.pack(CHECKSUM_MAGIC, crc32c(covered)) + covered
