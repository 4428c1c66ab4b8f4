"""The build of a large topic's history as a Spark job: tasks write the data files, the driver commits them.

Every executor must be able to reach the root and its storage paths. If Spark repeats a task, each attempt writes its
own files, and the driver commits only the files of the attempt whose results Spark returns.
"""

from __future__ import annotations

import pickle
from functools import partial
from typing import Annotated, cast

import typer
from pyspark.sql import SparkSession
from rich.console import Console

from pulsar_on_spark import spark_session
from pulsar_on_spark.history_table.build import BuildOptions, Built, build
from pulsar_on_spark.history_table.pieces import Piece
from pulsar_on_spark.jobs.tasks import Rows, result, run_tasks
from pulsar_on_spark.metadata.log.entry import DataFile
from pulsar_on_spark.model.errors import SkippableError
from pulsar_on_spark.model.ids import EARLIEST
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root

TASK_BYTES = 256 << 20
"""Approximate key and value bytes that a task reads."""
STEP_BYTES = 64 << 30
"""Key and value bytes that the job appends in one commit."""


def run(spark: SparkSession, root: Root, topic: str, *, fail_on_data_loss: bool = True) -> list[Built]:
    """Append the sealed messages of a topic to its history table, with Spark's tasks.

    Args:
        spark: The session.
        root: The root.
        topic: The topic or partition.
        fail_on_data_loss: False to leave out lost and unreadable messages permanently.

    Returns:
        The result of each partition, or of the topic without partitions.

    Raises:
        PulsarpyError, OSError: as `history_table.build.build`. A failure of the job raises Spark's own error.
    """
    options = BuildOptions(fail_on_data_loss, partial(_write, spark), STEP_BYTES, TASK_BYTES)
    return build(root, TopicName.parse(topic), options)


def _write(spark: SparkSession, pieces: list[Piece]) -> list[DataFile]:
    size_bytes = sum(slice_.bytes for piece in pieces for slice_ in piece.slices)
    written = run_tasks(spark, pieces, size_bytes, TASK_BYTES, _write_pieces)
    if errors := [each for each in written if isinstance(each, SkippableError)]:
        raise min(errors, key=lambda error: error.position or EARLIEST)
    return [file for files in written for file in cast("list[DataFile]", files)]


def _write_pieces(batches: Rows) -> Rows:
    for batch in batches:
        for work in batch.column(0).to_pylist():
            try:
                written: object = cast(Piece, pickle.loads(work)).write()
            except SkippableError as error:
                written = error
            yield result(written)


def main(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    root: Annotated[str, typer.Argument(help="The root; every executor must be able to reach it.")],
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Leave out lost and unreadable messages for good, with a log line.")
    ] = False,
) -> None:
    """Append a topic's sealed messages to its history table, each once, with Spark's tasks."""
    with spark_session("pulsarpy history") as spark:
        done = run(spark, Root.open(root), topic, fail_on_data_loss=not skip_lost)
    for built in done:
        Console().print(f"{built.part.name}: {built.rows:,} messages, up to {built.to}.", markup=False)
