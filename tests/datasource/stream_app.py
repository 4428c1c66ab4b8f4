"""A Spark application that tests run beside their own and kill: `python stream_app.py ROOT SPEC`.

SPEC is a JSON list of streaming queries from topic to topic. A sink may be told to stop the application in its tracks
before or after the commit of a batch: it leaves a marker file and waits to be killed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from pulsar_on_spark.datasource.options import write_options
from pulsar_on_spark.datasource.session import spark_session
from pulsar_on_spark.datasource.source import PulsarDataSource
from pulsar_on_spark.datasource.writer import PulsarStreamWriter


class StoppingWriter(PulsarStreamWriter):
    """The sink, with a place where it waits to be killed."""

    stop: dict[str, str]

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        here = batchId == int(self.stop["stopat"])
        if not (here and self.stop["stopbefore"] == "true"):
            super().commit(messages, batchId)
        if here:
            Path(self.stop["marker"]).touch()
            time.sleep(600)


class StoppingSource(PulsarDataSource):
    """Format `stopping`: `pulsarpy` with a sink that waits to be killed."""

    @classmethod
    def name(cls) -> str:
        return "stopping"

    def streamWriter(self, schema: StructType, overwrite: bool) -> PulsarStreamWriter:  # noqa: N802 - Spark's name
        given = {name.lower(): value for name, value in self.options.items()}
        stop = {name: given.pop(name) for name in ("stopbefore", "stopat", "marker")}
        writer = StoppingWriter(write_options(given), schema, overwrite)
        writer.stop = stop
        return writer


def let_it_initialize(query: StreamingQuery) -> StreamingQuery:
    """Wait until the query's sources have their Python processes.

    Spark gives such a process ten seconds from its start to its first connection and fails the query after them;
    several that load pyspark at once on few cores take longer.
    """
    while query.isActive and query.status["message"] == "Initializing sources":
        time.sleep(0.02)
    return query


def start(spark: SparkSession, root: str, spec: dict[str, object]) -> None:
    reader = spark.readStream.format("pulsarpy").options(**spec["read"])
    writer = reader.load(root).select("__key", "value").writeStream.format(str(spec.get("sink", "pulsarpy")))
    writer = writer.options(**spec["write"]).option("path", root)
    let_it_initialize(writer.option("checkpointLocation", str(spec["checkpoint"])).start())


def main(root: str, specs: str) -> None:
    spark = spark_session(
        "stream_app",
        delta=False,
        **{
            "spark.master": "local[2]",
            "spark.driver.memory": "1g",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
        },
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(StoppingSource)
    for spec in json.loads(specs):
        start(spark, root, spec)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
