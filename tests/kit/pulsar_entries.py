"""Entries as Pulsar's clients make and read them, message by message with the protobuf parser: the slow, plain way.

The engine reads whole columns instead (`topic.entries.rows`); tests hold the two against each other.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from pulsar_on_spark.protocol.compression import Codec, compress, decompress
from pulsar_on_spark.protocol.entry_frame import join_entry, split_entry
from pulsar_on_spark.protocol.messages import MessageMetadata, SingleMessageMetadata

_Metadata = TypeVar("_Metadata", MessageMetadata, SingleMessageMetadata)


@dataclass(frozen=True, slots=True)
class ClientMessage:
    """A message as an application gives it to a client, or gets it; `extra` is metadata of fields yet unknown."""

    value: bytes | None = b""
    key: bytes | None = None
    key_b64: bool = False
    ordering_key: bytes | None = None
    properties: tuple[tuple[str, str], ...] = ()
    event_time: int = 0
    sequence_id: int | None = None
    compacted_out: bool = False
    extra: bytes = b""


def batch_entry(
    messages: Sequence[ClientMessage], codec: Codec = Codec.NONE, metadata: MessageMetadata | None = None
) -> bytes:
    """The entry of a batch; `metadata` adds to what a client says of it."""
    parts = []
    for message in messages:
        single = _filled(message, SingleMessageMetadata(payload_size=len(message.value or b"")))
        if message.compacted_out:
            single.compacted_out = True
        serialized = single.SerializeToString() + message.extra
        parts += [len(serialized).to_bytes(4, "big"), serialized, message.value or b""]
    head = _head(metadata)
    head.num_messages_in_batch = len(messages)
    return _packed(head, b"".join(parts), codec)


def single_entry(message: ClientMessage, codec: Codec = Codec.NONE, metadata: MessageMetadata | None = None) -> bytes:
    """The entry of a message that is sent by itself; `metadata` adds to what a client says of it."""
    return _packed(_filled(message, _head(metadata)), message.value or b"", codec, message.extra)


def batch_bomb(
    messages: int, codec: Codec = Codec.ZSTD, *, claimed: int | None = None, size: int | None = None
) -> bytes:
    """A batch of empty messages in a few bytes; its metadata may claim another number and another size."""
    payload = b"\0\0\0\x02\x18\0" * messages
    head = _head(None)
    head.compression, head.uncompressed_size = codec, len(payload) if size is None else size
    head.num_messages_in_batch = messages if claimed is None else claimed
    return join_entry(head.SerializeToString(), compress(codec, payload))


def read_metadata(entry: bytes) -> MessageMetadata:
    """The metadata of an entry."""
    place = split_entry(entry)
    assert place is not None
    return MessageMetadata.FromString(entry[place[0] : place[1]])


def read_payload(entry: bytes) -> bytes:
    """The payload of an entry, uncompressed."""
    place = split_entry(entry)
    assert place is not None
    metadata = read_metadata(entry)
    payload = decompress(metadata.compression, memoryview(entry)[place[1] :], metadata.uncompressed_size)
    assert payload is not None
    return payload


def read_entry(entry: bytes) -> list[ClientMessage]:
    """The messages that a client reads out of an entry, also those that compaction took out."""
    metadata, payload = read_metadata(entry), read_payload(entry)
    if not metadata.HasField("num_messages_in_batch"):
        return [_read(metadata, metadata, payload)]
    messages, at = [], 0
    for _ in range(metadata.num_messages_in_batch):
        start = at + 4
        stop = start + int.from_bytes(payload[at:start], "big")
        single = SingleMessageMetadata.FromString(payload[start:stop])
        at = stop + single.payload_size
        messages.append(_read(metadata, single, payload[stop:at]))
    assert at == len(payload)
    return messages


def _head(metadata: MessageMetadata | None) -> MessageMetadata:
    head = MessageMetadata(producer_name="producer", sequence_id=7, publish_time=1_753_500_000_000)
    if metadata is not None:
        head.MergeFrom(metadata)
    return head


def _filled(message: ClientMessage, metadata: _Metadata) -> _Metadata:
    for name, value in message.properties:
        metadata.properties.add(key=name, value=value)
    if message.key is not None:
        metadata.partition_key = base64.b64encode(message.key).decode() if message.key_b64 else message.key.decode()
        if message.key_b64:
            metadata.partition_key_b64_encoded = True
    if message.ordering_key is not None:
        metadata.ordering_key = message.ordering_key
    if message.event_time:
        metadata.event_time = message.event_time
    if message.sequence_id is not None:
        metadata.sequence_id = message.sequence_id
    if message.value is None:
        metadata.null_value = True
    return metadata


def _packed(metadata: MessageMetadata, payload: bytes, codec: Codec, extra: bytes = b"") -> bytes:
    metadata.uncompressed_size = len(payload)
    if codec != Codec.NONE:
        metadata.compression = codec
    return join_entry(metadata.SerializeToString() + extra, compress(codec, payload))


def _as_bytes(text: str | bytes) -> bytes:
    """The parser gives text that is not UTF-8 as bytes, whatever its type says."""
    return text.encode() if isinstance(text, str) else text


def _read(entry: MessageMetadata, single: MessageMetadata | SingleMessageMetadata, payload: bytes) -> ClientMessage:
    """By the rules of the Java client's `MessageImpl`."""
    key = None
    if single.HasField("partition_key") and not single.null_partition_key:
        key = _as_bytes(single.partition_key)
    if key is not None and single.partition_key_b64_encoded:
        # Java decodes a key only for a caller that asks for it: the value is readable all the same.
        with suppress(binascii.Error):
            key = base64.b64decode(key)
    return ClientMessage(
        value=None if single.null_value else payload,
        key=key,
        key_b64=single.partition_key_b64_encoded,
        ordering_key=single.ordering_key if single.HasField("ordering_key") else None,
        properties=tuple({pair.key: pair.value for pair in single.properties}.items()),
        event_time=single.event_time or entry.event_time,
        sequence_id=single.sequence_id if single.HasField("sequence_id") else entry.sequence_id,
        compacted_out=isinstance(single, SingleMessageMetadata) and single.compacted_out,
    )
