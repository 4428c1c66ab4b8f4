"""Read of two of five typed columns: from JSON values in segments, and from Parquet of the same rows."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from bench.harness import Benchmark, Goal, Setting, Side
from bench.topics import create_topic, read_rate

TOPIC = "flights"
SCHEMA = "id BIGINT, origin STRING, delay DOUBLE, at TIMESTAMP, note STRING"
TWO = ("id", "origin")
GOAL_ROWS = 1_290_000
"""Target in rows a second: three times the rate of a reader that decodes all fields."""


def benchmark(setting: Setting) -> Benchmark:
    """Return the benchmark; each side makes its topic or files at its first run."""

    def segments(columns: str | None) -> DataFrame:
        reader = setting.spark.read.format("pulsarpy").option("topic", _topic(setting))
        reader = reader.option("valueFormat", "json").option("valueSchema", SCHEMA)
        return (reader if columns is None else reader.option("columns", columns)).load(str(setting.root))

    def parquet() -> DataFrame:
        return setting.spark.read.parquet(str(_parquet(setting)))

    two = ", ".join(TWO)
    names = ", ".join(part.split()[0] for part in SCHEMA.split(", "))
    return Benchmark(
        name="typed read",
        unit="rows/s",
        work=f"{setting.rows:,} rows of five JSON fields, 114 bytes each, to noop",
        sides=[
            Side("pulsarpy, two columns", lambda: read_rate(setting, lambda: segments(two))),
            Side("pulsarpy, five columns", lambda: read_rate(setting, lambda: segments(names))),
            Side("Parquet, two columns", lambda: read_rate(setting, lambda: parquet().select(*TWO))),
        ],
        goals=[Goal("two columns, rows/s", lambda medians: medians["pulsarpy, two columns"], GOAL_ROWS)],
    )


def _rows(setting: Setting) -> DataFrame:
    number = f.col("id")
    airports = f.array(*(f.lit(name) for name in ("ORD", "JFK", "LAX", "SFO", "DEN")))
    return setting.spark.range(0, setting.rows, 1, 8).select(
        number,
        f.element_at(airports, (number % 5 + 1).cast("int")).alias("origin"),
        (number % 1000 / 8).alias("delay"),
        f.timestamp_seconds(f.lit(1_360_000_000) + number).alias("at"),
        f.concat(f.lit("text "), f.lpad(number.cast("string"), 8, "0"), f.lit(" abcdefgh")).alias("note"),
    )


def _parquet(setting: Setting) -> Path:
    files = setting.work / f"typed-parquet-{setting.rows}"
    if not (files / "_SUCCESS").exists():
        _rows(setting).write.mode("overwrite").parquet(str(files))
    return files


def _topic(setting: Setting) -> str:
    setting.need_pulsarpy()
    if "typed" not in setting.filled:
        create_topic(setting, TOPIC, 8)
        writer = _rows(setting).write.format("pulsarpy").mode("append").option("topic", TOPIC)
        writer.option("valueFormat", "json").option("valueSchema", SCHEMA).save(str(setting.root))
        setting.filled.add("typed")
    return TOPIC
