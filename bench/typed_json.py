"""Typed values as JSON: rows of different shapes that a task encodes in a second of CPU time, before it writes them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

import numpy as np
import pyarrow as pa

from bench.harness import Benchmark, Goal, Setting, Side
from pulsar_on_spark.topic.entries.values.values import ValueCodec

BATCH_ROWS = 10_000
"""Rows of a record batch that Spark passes to a Python sink."""
ROWS = 200_000
GOAL_ROWS = 60_000

_TEXT, _TIME = pa.string(), pa.timestamp("us", "UTC")
_PLAIN_ITEM: list[tuple[str, pa.DataType]] = [("sku", _TEXT), ("quantity", pa.int32()), ("price", pa.decimal128(10, 2))]
_ITEM = pa.struct([*_PLAIN_ITEM, ("labels", pa.list_(_TEXT))])
_FLAT: list[tuple[str, pa.DataType]] = [("id", pa.int64()), ("origin", _TEXT), ("delay", pa.float64()), ("at", _TIME)]
SHAPES: Mapping[str, pa.DataType | None] = {
    "flat": None,
    "list of 3 texts": pa.list_(_TEXT),
    "list of 3 numbers": pa.list_(pa.int64()),
    "struct": _ITEM,
    "map of 3 numbers": pa.map_(_TEXT, pa.float64()),
    "list of 3 structs": pa.list_(pa.struct(_PLAIN_ITEM)),
    "map of 3 lists": pa.map_(_TEXT, pa.list_(pa.int32())),
    "list of 3 structs with lists": pa.list_(_ITEM),
}


def benchmark(_: Setting) -> Benchmark:
    """Return the benchmark: the rate of each shape, and the slowest rate beside its goal."""
    return Benchmark(
        name="typed JSON",
        unit="rows/CPU s",
        work=f"{ROWS:,} rows of 4 flat fields and one of the named shape, encoded in batches of {BATCH_ROWS:,}",
        sides=[Side(name, partial(rows_per_cpu_second, kind)) for name, kind in SHAPES.items()],
        goals=[Goal("the slowest shape, rows/CPU s", lambda medians: min(medians.values()), GOAL_ROWS)],
    )


def rows_per_cpu_second(kind: pa.DataType | None) -> float:
    """Return the flat rows, with a nested field of type `kind` unless it is None, encoded in a CPU second."""
    fields = _FLAT if kind is None else [*_FLAT, ("nested", kind)]
    codec = ValueCodec("json", pa.struct(fields))
    random = np.random.default_rng(2013)
    batches = [pa.array(_values(codec.arrow_type, BATCH_ROWS, random), codec.arrow_type) for _ in range(2)]
    start = time.process_time()
    for number in range(ROWS // BATCH_ROWS):
        codec.encode(batches[number % len(batches)])
    return ROWS / (time.process_time() - start)


def _values(kind: pa.DataType, count: int, random: np.random.Generator) -> list[object]:
    """Return distinct values of a type; lists and maps have three elements."""
    if pa.types.is_struct(kind):
        columns = {field.name: _values(field.type, count, random) for field in kind}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if pa.types.is_map(kind):
        items = _values(kind.item_type, 3 * count, random)
        return [
            list(zip(("north", "south", "east"), items[row : row + 3], strict=True)) for row in range(0, 3 * count, 3)
        ]
    if pa.types.is_list(kind):
        elements = _values(kind.value_type, 3 * count, random)
        return [elements[row : row + 3] for row in range(0, 3 * count, 3)]
    numbers: list[int] = random.integers(0, 100_000, count).tolist()
    if pa.types.is_string(kind):
        return [f"text {number:05d} é" for number in numbers]
    if pa.types.is_floating(kind):
        return [number / 8 for number in numbers]
    return list(numbers)
