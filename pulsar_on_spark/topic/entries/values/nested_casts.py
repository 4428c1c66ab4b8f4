"""Casts of nested arrays, level by level, because pyarrow 26 casts nulls inside lists and maps to invalid arrays."""

from __future__ import annotations

import pyarrow as pa


def cast_nested(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the array cast to a type with the same nesting: lists, maps, and the fields of structs in the same order.

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
    """Return a copy of the offsets, because Arrow takes no mask together with the offsets of a slice."""
    return pa.array(array.offsets.to_numpy())
