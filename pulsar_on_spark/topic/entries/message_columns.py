"""Columns of messages for SQL, from the columns of segments: times, properties and schema versions."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MICROSECONDS: Final = pa.timestamp("us", "UTC")
MAX_MILLISECONDS: Final = (2**63 - 1) // 1000
"""The last time in milliseconds since 1970 that fits into microseconds."""


def properties_of(maps: pa.MapArray) -> pa.MapArray:
    """Return maps of properties with empty maps in place of nulls, because Pulsar treats both alike.

    No string is copied.
    """
    if maps.null_count == 0:
        return maps
    if maps.null_count == len(maps):
        return pa.MapArray.from_arrays(np.zeros(len(maps) + 1, np.int32), maps.keys.slice(0, 0), maps.items.slice(0, 0))
    if np.diff(maps.offsets.to_numpy())[maps.is_null().to_numpy(zero_copy_only=False)].any():
        # In Arrow a null map may cover entries; taking every row drops them.
        maps = maps.take(pa.array(np.arange(len(maps))))
    return pa.MapArray.from_arrays(maps.offsets, maps.keys, maps.items)


def schema_versions_of(versions: pa.BinaryArray) -> pa.Int64Array:
    """Return schema versions as numbers. Pulsar's versions are eight big-endian bytes; other bytes become null."""
    if versions.null_count == len(versions):
        return pa.nulls(len(versions), pa.int64())
    fits = pc.equal(pc.binary_length(versions), 8).fill_null(False)
    is_version = fits.to_numpy(zero_copy_only=False)
    numbers = np.zeros(len(versions), np.int64)
    numbers[is_version] = np.frombuffer(b"".join(versions.filter(fits).to_pylist()), ">i8")
    return pa.array(numbers, mask=~is_version)


def times_of(times: pa.TimestampArray) -> pa.TimestampArray:
    """Return times in milliseconds as times in microseconds; null for a time beyond the range of microseconds."""
    try:
        return times.cast(MICROSECONDS)
    except pa.ArrowInvalid:
        milliseconds = times.view(pa.int64())
        fits = pc.and_(pc.greater_equal(milliseconds, -MAX_MILLISECONDS), pc.less_equal(milliseconds, MAX_MILLISECONDS))
        return pc.if_else(fits, times, None).cast(MICROSECONDS)
