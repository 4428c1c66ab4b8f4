"""Values of messages as text for display, decoded by their schema versions if possible."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Final

_NUMBERS: Final = {
    "BOOLEAN": ">?",
    "INT8": ">b",
    "INT16": ">h",
    "INT32": ">i",
    "INT64": ">q",
    "FLOAT": ">f",
    "DOUBLE": ">d",
    "DATE": ">q",
    "TIME": ">q",
    "TIMESTAMP": ">q",
}
"""Pulsar's numeric schema types with their `struct` formats."""
_UNREADABLE: Final = (EOFError, LookupError, ValueError, OverflowError, TypeError, MemoryError, struct.error)


class ValueSchema:
    """A version of a topic's schema.

    Args:
        type_: Pulsar's name of the type.
        data: The schema's text.
    """

    def __init__(self, type_: str, data: str) -> None:
        self._type = type_
        self._data = data

    def text(self, value: bytes) -> str:
        """Return a value for display: as JSON if it can be decoded by the schema, otherwise as text.

        Values of type AVRO and of numeric types are decoded.
        """
        try:
            if self._type == "AVRO":
                import fastavro

                if self._check is not None:
                    self._check(value)
                datum = fastavro.schemaless_reader(io.BytesIO(value), self._avro, None)
                return json.dumps(datum, ensure_ascii=False, default=str)
            if self._type in _NUMBERS:
                return json.dumps(struct.unpack(_NUMBERS[self._type], value)[0])
        except _UNREADABLE:
            pass
        return as_text(value)

    @cached_property
    def _avro(self) -> Any:
        import fastavro

        return fastavro.parse_schema(json.loads(self._data))

    @cached_property
    def _check(self) -> Callable[[bytes], None] | None:
        """The check of values before they are decoded; None if the schema itself bounds its values."""
        from pulsar_on_spark.topic.entries.values.avro_bounds import check_of_bounds

        return check_of_bounds(self._avro)


class ValueSchemas:
    """The versions of a topic's schema.

    Args:
        versions: The versions from the admin API, with `version`, `type` and `data`.
    """

    def __init__(self, versions: Iterable[Mapping[str, Any]]) -> None:
        self._by_version = {int(schema["version"]): ValueSchema(schema["type"], schema["data"]) for schema in versions}

    def text(self, value: bytes | None, version: bytes | None) -> str | None:
        """Return a value for display; None for a message without a value.

        The value is decoded by the schema version of its message (eight bytes), or by the newest version if the message
        has none.
        """
        if value is None:
            return None
        if not self._by_version:
            return as_text(value)
        number = int.from_bytes(version, "big") if version else max(self._by_version)
        schema = self._by_version.get(number)
        return as_text(value) if schema is None else schema.text(value)


NO_SCHEMA: Final = ValueSchemas(())
"""The schemas of a topic without a schema, whose values are shown as text."""


def as_text(data: bytes) -> str:
    """Return bytes decoded as UTF-8; bytes that are not UTF-8 are escaped by backslashes."""
    return data.decode(errors="backslashreplace")
