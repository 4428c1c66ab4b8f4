"""The data files of history tables: Parquet files, and the statistics in the log by which readers skip files."""

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
"""The columns whose smallest and largest values are in the table's log."""
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999; `_FIRST_MS` is the first millisecond of the year 1."""


def encode_file(schema: pa.Schema, parts: Iterable[pa.Table]) -> tuple[bytes, int, str]:
    """Encode rows as a Parquet file, part by part, so that only one part and the file's bytes are in memory.

    Args:
        schema: The columns.
        parts: The rows; each part begins a new row group.

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
    """Return the paths of the leaf columns that get statistics and dictionaries, by which readers skip rows.

    Floating-point columns are left out: statistics lack NaN, and 0.0 equals -0.0 for Spark, but not in a dictionary.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    leaves = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    columns = [leaves.column(number) for number in range(len(leaves.names))]
    return [column.path for column in columns if column.physical_type not in ("FLOAT", "DOUBLE")]


def _limits(column: pa.ChunkedArray) -> pa.Array:
    """Return the smallest and the largest value of a column; both are null if the column has no value."""
    found = pc.min_max(column)
    return pa.array([found["min"], found["max"]], column.type)


def _statistics(limits: pa.Table, rows: int, nulls: Mapping[str, int]) -> str:
    """Return the statistics of a file as Delta's JSON text; only the number of rows if a time is beyond Delta's years.

    Limits of some columns alone are not written: with them, delta-rs would find no row by a column without limits.
    """
    found = {name: _limits(limits.column(name)) for name in _LIMITED}
    statistics: dict[str, Any] = {"numRecords": rows}
    if not any(map(_is_beyond_delta, found.values())):
        written = {name: _written(each) for name, each in found.items() if each[0].is_valid}
        statistics["minValues"] = {name: each[0] for name, each in written.items()}
        statistics["maxValues"] = {name: each[1] for name, each in written.items()}
        statistics["nullCount"] = {name: nulls[name] for name in _LIMITED}
    return json.dumps(statistics, separators=(",", ":"))


def _is_beyond_delta(limits: pa.Array) -> bool:
    """Return True if limits are times, of which one is before the year 1 or after the year 9999, Delta's limits."""
    if not (pa.types.is_timestamp(limits.type) and limits[0].is_valid):
        return False
    earliest_ms, latest_ms = _in_ms(limits)
    return earliest_ms < _FIRST_MS or latest_ms > _LAST_MS


def _written(limits: pa.Array) -> list[Any]:
    """Return limits as values of Delta's statistics; times are text in UTC."""
    if pa.types.is_timestamp(limits.type):
        limits = pc.strftime(pa.array(_in_ms(limits), pa.timestamp("ms", "UTC")), format=_TIME)
    written: list[Any] = limits.to_pylist()
    return written


def _in_ms(times: pa.Array) -> list[int]:
    """Return times in microseconds as milliseconds; nothing is lost, because publish times are in milliseconds."""
    return [us // 1000 for us in times.cast(pa.int64()).to_pylist()]
