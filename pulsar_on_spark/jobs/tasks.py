"""Work in Spark's tasks: pickled pieces go to tasks, and their pickled results come back to the driver."""

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
    """Run a function on pieces of work in tasks, and return its results.

    Args:
        spark: The session.
        work: The pieces.
        size_bytes: The size of all pieces.
        task_bytes: The wanted size of a task.
        function: Gets batches of pickled pieces in the first column, and yields batches of pickled results.
    """
    if not work:
        return []
    parallelism = int(spark.conf.get("spark.default.parallelism", "") or 8)
    tasks = min(max(size_bytes // task_bytes, parallelism), len(work), MAX_TASKS)
    frame = spark.createDataFrame([(pickle.dumps(each),) for each in work], "work BINARY").repartition(tasks)
    return [pickle.loads(row.work) for row in frame.mapInArrow(function, "work BINARY").collect()]


def result(value: object) -> pa.RecordBatch:
    """Return a result as a batch, for a function of `run_tasks`."""
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(value)], pa.binary())], names=["work"])
