"""The protobuf messages of a stored entry, which the rest of the project imports from here, and readers of text fields.

Read text fields of entries only with `as_bytes` or `as_text`: for text that is not UTF-8, which any client may send,
the parser returns bytes although the field's type is `str`.
"""

from __future__ import annotations

from pulsar_on_spark._generated.pulsar_entry_pb2 import KeyValue, MessageMetadata, SingleMessageMetadata

__all__ = ["KeyValue", "MessageMetadata", "SingleMessageMetadata", "as_bytes", "as_text"]


def as_bytes(field: str | bytes) -> bytes:
    """Return the bytes of a text field as the client sent them."""
    return field.encode() if isinstance(field, str) else field


def as_text(field: str | bytes) -> str:
    r"""Return a text field as `str`, with `\x` and two hex digits for each byte that is not UTF-8."""
    return field if isinstance(field, str) else field.decode(errors="backslashreplace")
