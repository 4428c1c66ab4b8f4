"""Work in Spark's tasks: the driver sends pickled pieces of work to tasks, and gets pickled results back."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

MAX_TASKS: Final = 10_000

Rows = Iterator[pa.RecordBatch]


def run_tasks(
    spark: SparkSession, work: Sequence[object], size_bytes: int, task_bytes: int, function: Callable[[Rows], Rows]
) -> list[object]:
    """Run a function on pieces of work in Spark's tasks, and return the results, in no particular order.

    Args:
        spark: The session.
        work: The pieces of work, which must be picklable.
        size_bytes: The total bytes of all pieces.
        task_bytes: The approximate bytes of a task.
        function: The function that each task calls. It gets batches with pickled pieces in the first column, and yields
            batches made by `result`.
    """
    if not work:
        return []
    parallelism = int(spark.conf.get("spark.default.parallelism", "") or 8)
    tasks = min(max(size_bytes // task_bytes, parallelism), len(work), MAX_TASKS)
    frame = spark.createDataFrame([(pickle.dumps(each),) for each in work], "work BINARY").repartition(tasks)
    return [pickle.loads(row.work) for row in frame.mapInArrow(function, "work BINARY").collect()]


def result(value: object) -> pa.RecordBatch:
    """Return a value as a batch of one row, for the `function` of `run_tasks` to yield."""
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(value)], pa.binary())], names=["work"])
