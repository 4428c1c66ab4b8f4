"""Batch read of a whole topic to a sink that drops the rows: pulsarpy, Parquet of the same rows, Spark's Kafka source.

A Python data source that only passes ready batches is the upper bound of any reader in Python.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from bench.harness import Benchmark, Goal, Setting, Side, ratio
from bench.kafka import BOOTSTRAP
from bench.ready_batches import ReadyBatches
from bench.topics import kafka_read_topic, pulsarpy_read_topic, read_rate, rows

WITHOUT_VALUE = "__key,__topic,__messageId,__publishTime,__eventTime,__messageProperties"


def benchmark(setting: Setting) -> Benchmark:
    """Return the benchmark; each side makes its topic or files at its first run."""

    def pulsarpy(columns: str | None) -> DataFrame:
        reader = setting.spark.read.format("pulsarpy").option("topic", pulsarpy_read_topic(setting))
        return (reader if columns is None else reader.option("columns", columns)).load(str(setting.root))

    def ready() -> DataFrame:
        setting.spark.dataSource.register(ReadyBatches)
        return setting.spark.read.format("ready-batches").option("rows", setting.rows).option("tasks", 8).load()

    def kafka() -> DataFrame:
        reader = setting.spark.read.format("kafka").option("kafka.bootstrap.servers", BOOTSTRAP)
        return reader.option("subscribe", kafka_read_topic(setting)).load()

    return Benchmark(
        name="batch read",
        unit="rows/s",
        work=f"{setting.rows:,} rows of 1 KiB, 8 partitions, to noop",
        sides=[
            Side("pulsarpy", lambda: read_rate(setting, lambda: pulsarpy(None))),
            Side("pulsarpy, no value", lambda: read_rate(setting, lambda: pulsarpy(WITHOUT_VALUE))),
            Side("Parquet (zstd)", lambda: read_rate(setting, lambda: rows(setting).select("value"))),
            Side("Kafka source", lambda: read_rate(setting, kafka)),
            Side("Python data source, ready batches", lambda: read_rate(setting, ready)),
        ],
        goals=[
            Goal("pulsarpy / Kafka source", ratio("pulsarpy", "Kafka source"), at_least=2.5),
            Goal("pulsarpy / Parquet", ratio("pulsarpy", "Parquet (zstd)"), at_least=0.8),
            Goal("without value / with value", ratio("pulsarpy, no value", "pulsarpy"), at_least=2.0),
            Goal("pulsarpy / ready batches", ratio("pulsarpy", "Python data source, ready batches")),
        ],
    )
