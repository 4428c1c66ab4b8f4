"""Casts of nested arrays, level by level: pyarrow 26 makes invalid arrays of nulls inside lists and maps."""

from __future__ import annotations

import pyarrow as pa


def cast_nested(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array with another type, which has the same lists, maps, and fields in the same order.

    Raises:
        ArrowException: a value does not fit.
    """
    if array.type == kind:
        return array
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        parts = [cast_nested(part, field.type) for part, field in zip(array.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    if pa.types.is_list(kind):
        values = cast_nested(array.values, kind.value_type)
        return pa.ListArray.from_arrays(_offsets(array), values, type=kind, mask=mask)
    if pa.types.is_map(kind):
        items = cast_nested(array.items, kind.item_type)
        return pa.MapArray.from_arrays(_offsets(array), array.keys, items, type=kind, mask=mask)
    return pa.nulls(len(array), kind) if pa.types.is_null(array.type) else array.cast(kind)


def _offsets(array: pa.Array) -> pa.Array:
    """Copy the offsets: those of a slice cannot have a mask."""
    return pa.array(array.offsets.to_numpy())
