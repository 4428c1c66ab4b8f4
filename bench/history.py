"""History tables: reads beside Parquet and segments of the same rows, and builds.

The rows are JSON of 20 fields and about 1 KiB, typed by the topic's schema.
"""

from __future__ import annotations

import time

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from bench.harness import Benchmark, Goal, Setting, Side, ratio
from bench.topics import create_topic, delete_topic, read_rate
from pulsar_on_spark import Root, history

TOPIC = "events"
NUMBERS, TEXTS = 9, 10
TWO = ("id", "number3")
BUILD_ROWS = 200_000
GOAL_BUILD = 60_000


def read_benchmark(setting: Setting) -> Benchmark:
    """Return the benchmark of reads, whose topic and history are made at the first run."""

    def table() -> DataFrame:
        return history(setting.spark, _built(setting), str(setting.root))

    def files() -> DataFrame:
        return setting.spark.read.parquet(*table().inputFiles())

    def segments() -> DataFrame:
        reader = setting.spark.read.format("pulsarpy").option("topic", _built(setting))
        return reader.option("columns", ", ".join(TWO)).load(str(setting.root))

    return Benchmark(
        name="history read",
        unit="rows/s",
        work=f"{setting.rows:,} built rows of 20 fields, 1 KiB each, to noop",
        sides=[
            Side("history()", lambda: read_rate(setting, table)),
            Side("Parquet of its files", lambda: read_rate(setting, files)),
            Side("history(), 2 columns", lambda: read_rate(setting, lambda: table().select(*TWO))),
            Side("segments, 2 columns", lambda: read_rate(setting, segments)),
        ],
        goals=[
            Goal("history() / Parquet of its files", ratio("history()", "Parquet of its files"), at_least=0.95),
            Goal("2 columns / out of segments", ratio("history(), 2 columns", "segments, 2 columns"), at_least=5.0),
        ],
    )


def build_benchmark(setting: Setting) -> Benchmark:
    """Return the benchmark of the build of a topic's history, without Spark."""

    def rate() -> float:
        _fill(setting, "built", BUILD_ROWS, 1)
        root = Root.open(setting.root)
        begin_s = time.process_time()
        root.build_history("built")
        rows = BUILD_ROWS / (time.process_time() - begin_s)
        delete_topic(setting, "built")
        return rows

    return Benchmark(
        name="history build",
        unit="rows/CPU s",
        work=f"{BUILD_ROWS:,} rows of 20 fields, 1 KiB each",
        sides=[Side("build", rate)],
        goals=[Goal("build, rows/CPU s", lambda medians: medians["build"], GOAL_BUILD)],
    )


def _built(setting: Setting) -> str:
    """Return the name of the topic with a history of all rows, which is made at the first call."""
    if "history" not in setting.filled:
        _fill(setting, TOPIC, setting.rows, 8)
        Root.open(setting.root).build_history(TOPIC)
        setting.filled.add("history")
    return TOPIC


def _fill(setting: Setting, topic: str, rows: int, partitions: int) -> None:
    setting.need_pulsarpy()
    create_topic(setting, topic, partitions)
    number = f.col("id")
    numbers = [(number * (place + 7) % 100_003).alias(f"number{place}") for place in range(NUMBERS)]
    texts = [
        f.concat(f.md5((number % 5_000 + place).cast("string")), f.lit(" of a text that is like many others"))
        for place in range(TEXTS)
    ]
    frame = setting.spark.range(0, rows, 1, 8).select(
        number, *numbers, *(text.alias(f"text{place}") for place, text in enumerate(texts))
    )
    writer = frame.write.format("pulsarpy").mode("append").option("topic", topic).option("valueFormat", "json")
    writer.option("valueSchema", frame.schema.json()).option("registerSchema", "true").save(str(setting.root))
