"""Bounds on the memory and work that a few bytes of Avro can cause.

- Items of arrays that take no bytes: nulls, records of such fields only, and empty `fixed` values. All other items take
  at least a byte each, so a value has no more of them than bytes. Of these, five bytes can claim 2**31, for which
  fastavro would fill the memory. Apache Avro bounds them as well
  (`org.apache.avro.limits.collectionItems.maxAllocation`).
- Uses of named types whose values take no bytes: a schema of 30 records, of which each has two of the one before, has
  billions.
- Records inside records of the same type. fastavro reads each level by a call of its own, and crashes when the stack
  is full.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, cast

from fastavro.types import Schema

FREE_ITEMS: Final = 64
"""Number of items, and of uses of types, without bytes that any value may have; a longer value may have one a byte."""
MAX_DEPTH: Final = 100
"""Maximum depth of references to named types inside each other, such as records inside records of the same type."""
_NAMED: Final = ("record", "error", "enum", "fixed")
_WIDTHS: Final[Mapping[str, int]] = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_Skip: TypeAlias = "Callable[[_Cursor], None]"


def check_of_bounds(schema: Schema) -> Callable[[bytes], None] | None:
    """Return a check for values before they are decoded; None if the schema itself bounds its values.

    The check raises `ValueError` if a value exceeds a bound, and `LookupError` or `ValueError` if it is not a datum of
    the schema.

    Args:
        schema: A schema that fastavro has parsed.
    """
    skips = _Skips()
    skip = skips.of(schema)

    def check(value: bytes) -> None:
        try:
            skip(_Cursor(value))
        except RecursionError as error:
            raise ValueError("its records are nested too deeply") from error

    return check if skips.is_unbounded else None


class _Cursor:
    """A position in a value, the number of items without bytes that it may still have, and the depth of references."""

    __slots__ = ("_at", "_depth", "_left", "_value")

    def __init__(self, value: bytes) -> None:
        self._value = value
        self._at = self._depth = 0
        self._left = max(FREE_ITEMS, len(value))

    def long(self) -> int:
        """Read an integer of variable length."""
        number = 0
        for shift in range(0, 70, 7):
            byte = self._value[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
        raise ValueError("an integer has more than 10 bytes")

    def skip(self, size: int) -> None:
        """Pass over `size` bytes."""
        if not 0 <= size <= len(self._value) - self._at:
            raise ValueError(f"it ends before {size} more bytes")
        self._at += size

    def claim(self, items: int) -> None:
        """Count items, or uses of types, that take no bytes."""
        self._left -= items
        if self._left < 0:
            limit = max(FREE_ITEMS, len(self._value))
            raise ValueError(f"it has more than {limit} items that take no bytes")

    def refer(self, skip: _Skip, *, is_free: bool) -> None:
        """Pass over a value whose type is a reference to a named type.

        `is_free` is True if the values of that type take no bytes.
        """
        self.claim(int(is_free))
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(f"its records are nested more than {MAX_DEPTH} times")
        skip(self)
        self._depth -= 1


class _Skips:
    """A translation of a schema into functions that pass over its values."""

    def __init__(self) -> None:
        self._named: dict[str, _Skip] = {}
        self._free_names: set[str] = set()
        self.is_unbounded = False

    def of(self, schema: Schema) -> _Skip:
        """Return the function that passes over a value of a schema."""
        if isinstance(schema, list):
            branches = [self.of(branch) for branch in schema]
            return lambda cursor: branches[_index(cursor.long(), len(branches))](cursor)
        fields: Mapping[str, Any] = schema if isinstance(schema, dict) else {"type": schema}
        kind = fields["type"]
        if kind in _WIDTHS:
            return lambda cursor: cursor.skip(_WIDTHS[kind])
        if kind in ("int", "long"):
            return _skip_long
        if kind in ("bytes", "string"):
            return lambda cursor: cursor.skip(cursor.long())
        if kind == "array":
            return self._array(fields["items"])
        if kind == "map":
            return self._map(fields["values"])
        if kind in _NAMED:
            return self._defined(kind, fields)
        is_free = kind in self._free_names
        self.is_unbounded |= is_free or kind not in self._named  # or a reference to a type that this is a part of
        return lambda cursor: cursor.refer(self._named[kind], is_free=is_free)

    def _defined(self, kind: str, schema: Mapping[str, Any]) -> _Skip:
        skip = _skip_long if kind == "enum" else self._fixed(schema) if kind == "fixed" else self._record(schema)
        self._named[schema["name"]] = skip
        if self._is_free(cast(Schema, schema)):
            self._free_names.add(schema["name"])
        return skip

    def _fixed(self, schema: Mapping[str, Any]) -> _Skip:
        return lambda cursor: cursor.skip(schema["size"])

    def _record(self, schema: Mapping[str, Any]) -> _Skip:
        parts = [self.of(field["type"]) for field in schema["fields"]]

        def skip(cursor: _Cursor) -> None:
            for part in parts:
                part(cursor)

        return skip

    def _array(self, items: Schema) -> _Skip:
        item = self.of(items)
        is_free = self._is_free(items)
        self.is_unbounded |= is_free

        def skip(cursor: _Cursor) -> None:
            while count := _block(cursor):
                if is_free:
                    cursor.claim(count)
                    continue
                for _ in range(count):
                    item(cursor)

        return skip

    def _map(self, values: Schema) -> _Skip:
        item = self.of(values)

        def skip(cursor: _Cursor) -> None:
            while count := _block(cursor):
                for _ in range(count):
                    cursor.skip(cursor.long())
                    item(cursor)

        return skip

    def _is_free(self, schema: Schema) -> bool:
        """Return True if the values of a schema, whose parts were translated, take no bytes."""
        if not isinstance(schema, dict):
            return schema == "null" or (isinstance(schema, str) and schema in self._free_names)
        if schema["type"] in ("record", "error"):
            return all(self._is_free(field["type"]) for field in schema["fields"])
        return bool(schema["type"] == "null" or (schema["type"] == "fixed" and schema["size"] == 0))


def _skip_long(cursor: _Cursor) -> None:
    cursor.long()


def _block(cursor: _Cursor) -> int:
    """Read the beginning of a block of an array or a map, and return the number of its items; 0 at the end."""
    count = cursor.long()
    if count < 0:
        cursor.long()  # the size of the block, which decoders do not rely on
    return abs(count)


def _index(number: int, count: int) -> int:
    if not 0 <= number < count:
        raise ValueError(f"its union has no branch {number}")
    return number
