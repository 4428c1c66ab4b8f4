"""Pulsar's metadata as columns: the metadata of entries, and of the messages in batches.

`walk_metadata` reads a column of serialized metadata. If a row has an unusual form, the protobuf parser first rewrites
it in the usual form, so that the same code reads the fields of all rows. A row is invalid if the parser refuses it, or
if it lacks a required field.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from pulsar_on_spark.protocol.field_walk import (
    Bools,
    Bytes,
    Fields,
    Int64s,
    Kind,
    Occurrences,
    binary_data,
    pick_ranges,
    walk_fields,
)
from pulsar_on_spark.protocol.messages import MessageMetadata, SingleMessageMetadata


@dataclass(frozen=True, slots=True)
class MetadataLayout:
    """The field numbers of one of Pulsar's two metadata messages, for the fields that both messages have."""

    message: type[MessageMetadata] | type[SingleMessageMetadata]
    shape: Mapping[int, Kind]
    required: tuple[int, ...]
    properties: int
    partition_key: int
    partition_key_b64_encoded: int
    null_partition_key: int
    ordering_key: int
    event_time: int
    sequence_id: int
    null_value: int


SINGLE = MetadataLayout(
    message=SingleMessageMetadata,
    shape={
        1: Kind.REPEATED,
        2: Kind.BYTES,
        3: Kind.INT32,
        4: Kind.BOOL,
        5: Kind.INT64,
        6: Kind.BOOL,
        7: Kind.BYTES,
        8: Kind.INT64,
        9: Kind.BOOL,
        10: Kind.BOOL,
    },
    required=(3,),
    properties=1,
    partition_key=2,
    event_time=5,
    partition_key_b64_encoded=6,
    ordering_key=7,
    sequence_id=8,
    null_value=9,
    null_partition_key=10,
)
PAYLOAD_SIZE, COMPACTED_OUT = 3, 4

ENTRY = MetadataLayout(
    message=MessageMetadata,
    shape={
        1: Kind.BYTES,
        2: Kind.INT64,
        3: Kind.INT64,
        4: Kind.REPEATED,
        5: Kind.BYTES,
        6: Kind.BYTES,
        7: Kind.REPEATED,
        8: Kind.INT32,
        9: Kind.UINT32,
        11: Kind.INT32,
        12: Kind.INT64,
        13: Kind.REPEATED,
        14: Kind.BYTES,
        15: Kind.BYTES,
        16: Kind.BYTES,
        17: Kind.BOOL,
        18: Kind.BYTES,
        19: Kind.INT64,
        20: Kind.INT32,
        22: Kind.INT64,
        23: Kind.INT64,
        24: Kind.INT64,
        25: Kind.BOOL,
        26: Kind.BYTES,
        27: Kind.INT32,
        28: Kind.INT32,
        29: Kind.INT32,
        30: Kind.BOOL,
    },
    required=(1, 2, 3),
    properties=4,
    partition_key=6,
    event_time=12,
    partition_key_b64_encoded=17,
    ordering_key=18,
    sequence_id=2,
    null_value=25,
    null_partition_key=30,
)
PRODUCER_NAME, PUBLISH_TIME, COMPRESSION, UNCOMPRESSED_SIZE, NUM_MESSAGES_IN_BATCH = 1, 3, 8, 9, 11
ENCRYPTION_KEYS, SCHEMA_VERSION, DELIVER_AT_TIME, MARKER_TYPE, NUM_CHUNKS, CHUNK_ID = 13, 16, 19, 20, 27, 29

_KEY_VALUE = {1: Kind.BYTES, 2: Kind.BYTES}
_FEW_PROPERTIES = 16
"""Number of a message's properties up to which comparing neighbours is faster than sorting."""


@dataclass(frozen=True, slots=True)
class WalkedMetadata:
    """A column of metadata, and the positions of its fields.

    Attributes:
        layout: The kind of metadata message.
        data: The bytes that contain the ranges in `fields`.
        fields: The fields of each row.
        properties: Key and value of each property; the `messages` are row numbers.
        valid: Mask of the rows that are well-formed and have all required fields; the fields of others are undefined.
    """

    layout: MetadataLayout
    data: Bytes
    fields: Fields
    properties: Properties
    valid: Bools

    def __len__(self) -> int:
        return len(self.valid)

    def values(self, number: int) -> Int64s:
        """Return a numeric field of each row, given by its number; 0 if it is missing."""
        return self.fields.numbers[number].values

    def present(self, number: int) -> Bools:
        """Return a flag for each row: True if it has the numeric field."""
        return self.fields.numbers[number].present

    def has_any(self, number: int) -> Bools:
        """Return a flag for each row: True if it has the repeated field at least once."""
        flags = np.zeros(len(self), np.bool_)
        flags[self.fields.repeated[number].messages] = True
        return flags

    def column(self, number: int) -> pa.BinaryArray:
        """Return a bytes field of each row, null where the row lacks it."""
        ranges = self.fields.ranges[number]
        return pick_ranges(self.data, ranges.starts, ranges.ends, ranges.present)


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties of all rows, in the order of rows: row number, and byte ranges of key and value."""

    messages: Int64s
    key_starts: Int64s
    key_ends: Int64s
    value_starts: Int64s
    value_ends: Int64s


def walk_metadata(column: pa.BinaryArray, layout: MetadataLayout) -> WalkedMetadata:
    """Find the fields of each row of a column without nulls."""
    walked, odd = _walk(column, layout)
    if odd.any():
        # Rows that the parser refuses become empty, so that they lack the required fields and are invalid.
        usual = [_usual_form(message, layout) for message in column.filter(pa.array(odd)).to_pylist()]
        walked, odd = _walk(pc.replace_with_mask(column, pa.array(odd), pa.array(usual, pa.binary())), layout)
    valid = ~odd
    for number in layout.required:
        named = walked.fields.ranges.get(number) or walked.fields.numbers[number]
        valid &= named.present
    return WalkedMetadata(layout, walked.data, walked.fields, walked.properties, valid)


def _walk(column: pa.BinaryArray, layout: MetadataLayout) -> tuple[WalkedMetadata, Bools]:
    """Find the protobuf fields of each row's metadata.

    Returns:
        The fields, and a mask of the rows in a form that the walk cannot read, such as with a field twice. The protobuf
        parser must rewrite these rows first; what was found in them is not used.
    """
    data, offsets = binary_data(column)
    fields = walk_fields(data, offsets[:-1], offsets[1:], layout.shape)
    odd = fields.odd.copy()
    pairs_of_rows = fields.repeated[layout.properties]
    if odd.any():
        usual = ~odd[pairs_of_rows.messages]
        pairs_of_rows = Occurrences(
            pairs_of_rows.messages[usual], pairs_of_rows.starts[usual], pairs_of_rows.ends[usual]
        )
    pairs = walk_fields(data, pairs_of_rows.starts, pairs_of_rows.ends, _KEY_VALUE)
    keys, values = pairs.ranges[1], pairs.ranges[2]
    odd[pairs_of_rows.messages[pairs.odd | ~keys.present | ~values.present]] = True
    properties = Properties(pairs_of_rows.messages, keys.starts, keys.ends, values.starts, values.ends)
    return WalkedMetadata(layout, data, fields, properties, ~odd), odd


def _usual_form(serialized: bytes, layout: MetadataLayout) -> bytes:
    """Return the message with each known field once, and no unknown fields; empty if it is not a message."""
    message = layout.message()
    try:
        message.ParseFromString(serialized)
        if not message.IsInitialized():
            return b""
        message.DiscardUnknownFields()
        return message.SerializeToString()
    except (DecodeError, ValueError):
        return b""


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """Columns with one row for each message: columns of a segment, and `null_value`, the mask of tombstones."""

    key: pa.BinaryArray
    key_b64: pa.BooleanArray
    ordering_key: pa.BinaryArray
    properties: pa.MapArray
    event_time: pa.Int64Array
    sequence_id: pa.Int64Array
    null_value: Bools

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.null_value)

    def select_rows(self, rows: Int64s) -> MessageColumns:
        """Return the columns with only these rows, in this order."""
        indices = pa.array(rows)
        return MessageColumns(
            self.key.take(indices),
            self.key_b64.take(indices),
            self.ordering_key.take(indices),
            self.properties.take(indices),
            self.event_time.take(indices),
            self.sequence_id.take(indices),
            self.null_value[rows],
        )

    def then(self, other: MessageColumns) -> MessageColumns:
        """Return these columns with the rows of `other` appended."""
        return MessageColumns(
            pa.concat_arrays([self.key, other.key]),
            pa.concat_arrays([self.key_b64, other.key_b64]),
            pa.concat_arrays([self.ordering_key, other.ordering_key]),
            pa.concat_arrays([self.properties, other.properties]),
            pa.concat_arrays([self.event_time, other.event_time]),
            pa.concat_arrays([self.sequence_id, other.sequence_id]),
            np.concatenate((self.null_value, other.null_value)),
        )


def message_columns(walked: WalkedMetadata) -> MessageColumns:
    """Return the columns of walked metadata; null for a missing field, and for an event time of 0 (Pulsar's "none")."""
    layout = walked.layout
    key = walked.column(layout.partition_key)
    null_key = walked.values(layout.null_partition_key) != 0
    if null_key.any():
        key = pc.if_else(pa.array(null_key), None, key)
    key, flagged = _decoded_keys(key, walked.values(layout.partition_key_b64_encoded) != 0)
    event_time = walked.values(layout.event_time)
    return MessageColumns(
        key=key,
        key_b64=pa.array(flagged),
        ordering_key=walked.column(layout.ordering_key),
        properties=_property_maps(walked),
        event_time=pa.array(event_time, mask=event_time == 0),
        sequence_id=pa.array(walked.values(layout.sequence_id), mask=~walked.present(layout.sequence_id)),
        null_value=walked.values(layout.null_value) != 0,
    )


def _decoded_keys(keys: pa.BinaryArray, flagged: Bools) -> tuple[pa.BinaryArray, Bools]:
    """Return keys as bytes, and their flags: a flagged key is decoded, or loses its flag if it is not Base64."""
    if not flagged.any():
        return keys, flagged
    decoded: list[bytes | None] = []
    is_base64 = flagged.copy()
    rows = np.flatnonzero(flagged)
    for row, text in zip(rows.tolist(), keys.take(pa.array(rows)).to_pylist(), strict=True):
        try:
            # Java's decoder accepts Base64 without padding, too.
            decoded.append(None if text is None else base64.b64decode(text + b"=" * (-len(text) % 4), validate=True))
        except binascii.Error:
            decoded.append(text)
            is_base64[row] = False
    return pc.replace_with_mask(keys, pa.array(flagged), pa.array(decoded, pa.binary())), is_base64


def _property_maps(walked: WalkedMetadata) -> pa.MapArray:
    """Return the properties as maps, null for a message without any; if a key occurs twice, its last value counts."""
    properties = walked.properties
    if len(properties.messages) == 0:
        return pa.nulls(len(walked), pa.map_(pa.string(), pa.string()))
    keys = as_text(pick_ranges(walked.data, properties.key_starts, properties.key_ends))
    values = as_text(pick_ranges(walked.data, properties.value_starts, properties.value_ends))
    counts = np.bincount(properties.messages, minlength=len(walked))
    if (most := int(counts.max())) > 1:
        named = _keys_of_messages(properties.messages, keys)
        if most > _FEW_PROPERTIES or _has_twice(named, most):
            last = _last_of_each(named)
            keys, values = keys.take(pa.array(last)), values.take(pa.array(last))
            counts = np.bincount(properties.messages[last], minlength=len(walked))
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return pa.MapArray.from_arrays(offsets, keys, values, mask=pa.array(counts == 0))


def _keys_of_messages(messages: Int64s, keys: pa.StringArray) -> Int64s:
    """Return a number for each property: properties with the same number have the same message and the same key."""
    encoded = keys.dictionary_encode()
    indexes: Int64s = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return messages * len(encoded.dictionary) + indexes


def _has_twice(named: Int64s, most: int) -> bool:
    """Return True if a number occurs twice. The indexes of equal numbers differ by less than `most`."""
    return any(bool((named[distance:] == named[:-distance]).any()) for distance in range(1, most))


def _last_of_each(named: Int64s) -> Int64s:
    """Return the indexes, in order, of the last occurrence of each number."""
    _, first_from_behind = np.unique(named[::-1], return_index=True)
    return np.sort(len(named) - 1 - first_from_behind)


def as_text(column: pa.BinaryArray) -> pa.StringArray:
    """Return the column as text. Bytes that are not UTF-8 are replaced; `entry_metadata` has the original ones."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode(errors="replace") for value in column.to_pylist()]
        return pa.array(texts, pa.string())
