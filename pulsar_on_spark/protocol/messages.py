"""The protobuf messages of a stored entry, under one name for the rest of the project."""

from __future__ import annotations

from pulsar_on_spark._generated.pulsar_entry_pb2 import KeyValue, MessageMetadata, SingleMessageMetadata

__all__ = ["KeyValue", "MessageMetadata", "SingleMessageMetadata"]
