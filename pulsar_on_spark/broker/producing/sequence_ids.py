"""The sequence id of an entry's last message, by which the entry is deduplicated. Only the Java client sends it."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from pulsar_on_spark.protocol.compression import decompress
from pulsar_on_spark.protocol.entry_frame import MAX_MESSAGES_IN_ENTRY, split_entry
from pulsar_on_spark.protocol.messages import MessageMetadata, SingleMessageMetadata
from pulsar_on_spark.protocol.server import Sent

_SIZE_BYTES = 4
MAX_MESSAGES = 10_000
"""Limits above which a batch is not unpacked, because unpacking would delay the broker's other clients."""
MAX_BYTES = 2 << 20


def with_last_sequence_id(sent: Sent) -> Sent:
    """Return the entry with the sequence id of its last message as `highest_sequence_id`.

    An entry that has the id already or cannot be parsed is returned unchanged.
    """
    if sent.num_messages == 1 or sent.highest_sequence_id > sent.sequence_id:
        return sent
    bounds = split_entry(sent.entry)
    if bounds is None:
        return sent
    try:
        metadata = MessageMetadata.FromString(sent.entry[slice(*bounds)])
    except DecodeError:
        return sent
    last = last_sequence_id(metadata, memoryview(sent.entry)[bounds[1] :])
    return sent._replace(highest_sequence_id=max(sent.sequence_id, last))


def last_sequence_id(metadata: MessageMetadata, payload: memoryview) -> int:
    """Return the sequence id of an entry's last message.

    Args:
        metadata: The entry's metadata.
        payload: The bytes after the metadata. An encrypted or large batch is not unpacked: its ids are counted up from
            the id of its first message, as clients do if the application sets no ids.
    """
    first: int = metadata.sequence_id
    if metadata.highest_sequence_id > first or metadata.num_messages_in_batch <= 1:
        return max(first, metadata.highest_sequence_id)
    messages: int = metadata.num_messages_in_batch
    plain_bytes = metadata.uncompressed_size if metadata.compression else len(payload)
    is_opaque = metadata.encryption_keys or messages > MAX_MESSAGES or plain_bytes > MAX_BYTES
    plain = None if is_opaque else decompress(metadata.compression, payload, plain_bytes)
    last = None if plain is None else _last_of_batch(plain, messages)
    return max(first, first + min(messages, MAX_MESSAGES_IN_ENTRY) - 1 if last is None else last)


def _last_of_batch(plain: bytes, messages: int) -> int | None:
    """Return the last message's sequence id; None if a message has none, or `plain` is not a batch of `messages`."""
    last, at = None, 0
    for _ in range(messages):
        if at >= len(plain):
            return None
        metadata_at = at + _SIZE_BYTES
        payload_at = metadata_at + int.from_bytes(plain[at:metadata_at], "big")
        try:
            single = SingleMessageMetadata.FromString(plain[metadata_at:payload_at])
        except DecodeError:
            return None
        if not single.HasField("sequence_id"):
            return None
        last, at = single.sequence_id, payload_at + max(single.payload_size, 0)
    return last
