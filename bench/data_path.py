"""Throughput of the pure data path on one core: hashes, message ids, columns, entries, typed values.

`python bench/data_path.py` prints millions of rows a second, the best of several rounds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from pulsar_on_spark.datasource.columns import build, select_columns
from pulsar_on_spark.datasource.rows import ROW_SCHEMA
from pulsar_on_spark.datasource.value_types import value_schema
from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.model.hashing import invalid_utf8, java_string_hash, murmur3_32
from pulsar_on_spark.model.ids import LedgerId
from pulsar_on_spark.model.message_ids import serialized_message_ids
from pulsar_on_spark.topic.data_path.routing import HashingScheme, RoundRobin, route, split_rows
from pulsar_on_spark.topic.entries.cutting import cut_entries
from pulsar_on_spark.topic.entries.values.values import ParseMode

ROUNDS = 7
TOPIC = "persistent://public/default/x"


def best_seconds(work: Callable[[], object]) -> float:
    """Return the duration in seconds of the shortest of several runs."""
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def batch_of(schema: pa.Schema, rows: int, **columns: pa.Array) -> pa.RecordBatch:
    """Return a batch of `rows` rows with the given columns of `schema`; all other columns are null."""
    arrays = [columns.get(field.name, pa.nulls(rows, field.type)).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def data_path(rows: int) -> dict[str, tuple[int, Callable[[], object]]]:
    """Return the pieces of work by name, each as its number of rows and a function that does the work."""
    row = np.arange(rows)
    keys = pa.array([b"key-%06d" % (number % 100_000) for number in range(rows)])
    accents = pa.array([b"k\xc3\xa9y-%d" % (number % 1000) for number in range(rows)])
    values = pa.array([b"%01000d" % number for number in range(10_000)])
    entry, index = row // 125 + 50_000, (row % 125).astype(np.int32)
    ids = {"entry_id": pa.array(entry[:10_000]), "batch_index": pa.array(index[:10_000])}
    segment = batch_of(SEGMENT_SCHEMA, 10_000, value=values, publish_time=pa.array(row[:10_000]), **ids)
    keyless = batch_of(ROW_SCHEMA, 10_000, value=values)
    keyed = batch_of(ROW_SCHEMA, 10_000, value=values, key=keys.slice(0, 10_000))
    default, everything = select_columns(), select_columns(include_metadata=True)

    def write_keyed() -> None:
        partitions, _ = route(keyed.column("key"), 10_000, 8, HashingScheme.JAVA_STRING_HASH, RoundRobin())
        for _, part in split_rows(keyed, partitions):
            cut_entries(part, 0, TOPIC)

    typed = value_schema("json", "id INT, origin STRING, delay DOUBLE, at TIMESTAMP, note STRING").codec
    document = {"origin": "JFK", "delay": 1.5, "at": "2013-01-01T05:15:00.000Z", "note": "n" * 400, "more": ["x", 1]}
    texts = pa.array([json.dumps({"id": number, **document}).encode() for number in range(10_000)])
    structs = typed.decode(texts, ParseMode.FAILFAST, str)
    ledger = LedgerId(123_456)
    return {
        "murmur3_32, 10-byte keys": (rows, lambda: murmur3_32(keys)),
        "java_string_hash, 10-byte keys": (rows, lambda: java_string_hash(keys)),
        "java_string_hash, keys beyond ASCII": (rows, lambda: java_string_hash(accents)),
        "invalid_utf8, keys beyond ASCII": (rows, lambda: invalid_utf8(accents)),
        "serialized message ids": (rows, lambda: serialized_message_ids(ledger, entry, 3, index)),
        "default columns of 10,000 rows": (10_000, lambda: build(segment, ledger, 0, TOPIC, 3, default)),
        "default columns of 1,000 rows": (1_000, lambda: build(segment.slice(0, 1_000), ledger, 0, TOPIC, 3, default)),
        "all metadata columns": (10_000, lambda: build(segment, ledger, 0, TOPIC, 3, everything)),
        "cut entries, no keys, 1 KB": (10_000, lambda: cut_entries(keyless, 0, TOPIC)),
        "route, split, cut 1 KB to 8 partitions by key": (10_000, write_keyed),
        "JSON decoded, 5 of 6 fields, 500 bytes": (10_000, lambda: typed.decode(texts, ParseMode.PERMISSIVE, str)),
        "JSON encoded, 5 fields, 500 bytes": (10_000, lambda: typed.encode(structs)),
    }


def main() -> None:
    """Measure all pieces of work, and print a line for each."""
    table = Table("work", "M rows/s", title="The data path on one core")
    for name, (rows, work) in data_path(1_000_000).items():
        table.add_row(name, f"{rows / best_seconds(work) / 1e6:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
