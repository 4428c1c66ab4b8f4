"""The protobuf messages of a stored entry, under one name for the rest of the project, and their text fields.

The parser returns a text field that is not UTF-8 as bytes, although its type is `str`, and any client may send one.
Read text fields of entries by `as_bytes` or `as_text` only.
"""

from __future__ import annotations

from pulsar_on_spark._generated.pulsar_entry_pb2 import KeyValue, MessageMetadata, SingleMessageMetadata

__all__ = ["KeyValue", "MessageMetadata", "SingleMessageMetadata", "as_bytes", "as_text"]


def as_bytes(field: str | bytes) -> bytes:
    """Return the bytes of a text field as the client sent them."""
    return field.encode() if isinstance(field, str) else field


def as_text(field: str | bytes) -> str:
    r"""Return a text field; bytes that are not UTF-8 are written as `\xff`."""
    return field if isinstance(field, str) else field.decode(errors="backslashreplace")
