"""The data files of history tables: Parquet, with the statistics by which readers skip files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_ROW_GROUP: Final = 64 << 10
"""Rows of a row group."""
_LIMITED: Final = ("__partition", "__ledgerId", "__entryId", "__publishTime")
"""The columns whose smallest and largest values are in the log; those of all columns are in the file."""
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999; `_FIRST_MS` is the first one of the year 1."""


def encode_file(schema: pa.Schema, parts: Iterable[pa.Table]) -> tuple[bytes, int, str]:
    """Encode rows as a file, part by part, so that only one part and the file's bytes are in memory.

    Args:
        schema: The columns.
        parts: The rows; a part ends a row group.

    Returns:
        The file's content, the number of its rows, and its statistics as Delta's JSON text.
    """
    sink = pa.BufferOutputStream()
    comparable = _comparable_leaves(schema)
    limits: list[pa.Table] = []
    nulls: Counter[str] = Counter()
    rows = 0
    with pq.ParquetWriter(
        sink,
        schema,
        use_dictionary=comparable,
        write_statistics=comparable,
        compression="zstd",
        compression_level=1,
        write_page_index=True,
        write_page_checksum=True,
    ) as writer:
        for part in parts:
            writer.write_table(part, row_group_size=_ROW_GROUP)
            limits.append(pa.table({name: _limits(part.column(name)) for name in _LIMITED}))
            nulls.update({name: part.column(name).null_count for name in _LIMITED})
            rows += part.num_rows
    content: bytes = sink.getvalue().to_pybytes()
    return content, rows, _statistics(pa.concat_tables(limits), rows, nulls)


def _comparable_leaves(schema: pa.Schema) -> list[str]:
    """Return the paths of the leaf columns whose values readers may skip by statistics and dictionaries.

    Floating numbers are left out: statistics lack NaN, and 0.0 equals -0.0 for Spark, but not in a dictionary.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    leaves = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    columns = [leaves.column(number) for number in range(len(leaves.names))]
    return [column.path for column in columns if column.physical_type not in ("FLOAT", "DOUBLE")]


def _limits(column: pa.ChunkedArray) -> pa.Array:
    """Return the smallest and the largest value of a column, both null if it has none."""
    found = pc.min_max(column)
    return pa.array([found["min"], found["max"]], column.type)


def _statistics(limits: pa.Table, rows: int, nulls: Mapping[str, int]) -> str:
    found = {name: _written(_limits(limits.column(name))) for name in _LIMITED}
    return json.dumps(
        {
            "numRecords": rows,
            "minValues": {name: each[0] for name, each in found.items() if each is not None},
            "maxValues": {name: each[1] for name, each in found.items() if each is not None},
            "nullCount": {name: nulls[name] for name in _LIMITED},
        },
        separators=(",", ":"),
    )


def _written(limits: pa.Array) -> tuple[Any, Any] | None:
    """Return limits as Delta writes them; None if there are none, or a time is beyond the years of Delta."""
    smallest, largest = limits
    if not smallest.is_valid:
        return None
    if not pa.types.is_timestamp(limits.type):
        return smallest.as_py(), largest.as_py()
    in_ms = [limit.cast(pa.int64()).as_py() // 1000 for limit in (smallest, largest)]  # publish times are whole ones
    if in_ms[0] < _FIRST_MS or in_ms[1] > _LAST_MS:
        return None
    earliest, latest = (pc.strftime(pa.scalar(ms, pa.timestamp("ms", "UTC")), format=_TIME).as_py() for ms in in_ms)
    return earliest, latest
