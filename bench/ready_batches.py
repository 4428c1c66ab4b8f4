"""The minimal cost of a read through Spark's Python data sources: batches that are ready in the worker's memory.

No file is read, and nothing is decoded, checked or decompressed. The only cost is the transport of the bytes from the
Python worker into Spark's rows, which no Python data source can avoid.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bench.payload import value_batches
from pulsar_on_spark.datasource.columns import build, select_columns
from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.model.ids import LedgerId

BATCH_ROWS = 4_000


class ReadyBatches(DataSource):
    """Data source `ready-batches` with the options `rows` and `tasks`, and the default columns of `pulsarpy`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "ready-batches"

    def schema(self) -> StructType:
        """Return the default columns of `pulsarpy`."""
        return select_columns().spark_schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader with the requested number of tasks."""
        return _Reader(int(self.options["rows"]), int(self.options["tasks"]))


class _Reader(DataSourceReader):
    def __init__(self, rows: int, tasks: int) -> None:
        self._rows, self._tasks = rows, tasks

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(task) for task in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        ready = _ready_batch()
        left = self._rows // self._tasks
        while left > 0:
            yield ready.slice(0, left)
            left -= BATCH_ROWS


def _ready_batch() -> pa.RecordBatch:
    values = next(value_batches(BATCH_ROWS)).column("value")
    given = {
        "entry_id": pa.array(range(BATCH_ROWS), pa.int64()),
        "batch_index": pa.array([0] * BATCH_ROWS, pa.int32()),
        "publish_time": pa.array([1_700_000_000_000] * BATCH_ROWS, pa.timestamp("ms", "UTC")),
        "value": values,
    }
    columns = [given.get(field.name, pa.nulls(BATCH_ROWS, field.type)) for field in SEGMENT_SCHEMA]
    batch = pa.RecordBatch.from_arrays(columns, schema=SEGMENT_SCHEMA)
    return build(batch, LedgerId(1), 0, "persistent://public/default/orders", 0, select_columns())
