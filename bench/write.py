"""Appending rows to a topic: pulsarpy with three synced copies, Spark's Kafka sink, a Delta table."""

from __future__ import annotations

import itertools
import shutil

from pyspark.sql import DataFrame

from bench.harness import Benchmark, Goal, NotRunError, Setting, Side, ratio, seconds
from bench.topics import (
    COPIES,
    KAFKA_COPIES,
    create_topic,
    delete_topic,
    rows,
    write_kafka,
    write_pulsarpy,
)

SHARE = 0.25
NUMBERS = itertools.count(1)


def benchmark(setting: Setting) -> Benchmark:
    """Return the benchmark: rows a second from Parquet files into a new topic in each run."""
    count = int(setting.rows * SHARE)

    def source(keyed: bool) -> DataFrame:
        frame = rows(setting, SHARE)
        return frame if keyed else frame.select("value")

    def pulsarpy(partitions: int, keyed: bool) -> float:
        setting.need_pulsarpy()
        topic = f"write-{next(NUMBERS)}"
        create_topic(setting, topic, partitions)
        frame = source(keyed).withColumnRenamed("key", "__key")
        took = seconds(lambda: write_pulsarpy(setting, frame, topic))
        delete_topic(setting, topic)
        return count / took

    def kafka(partitions: int, keyed: bool) -> float:
        peer = setting.need_kafka()
        topic = f"write-{next(NUMBERS)}"
        peer.create_topic(topic, partitions)
        frame = source(keyed)
        took = seconds(lambda: write_kafka(frame, topic))
        peer.delete_topic(topic)
        return count / took

    def delta() -> float:
        if "delta" not in (setting.spark.conf.get("spark.sql.extensions", "") or "").lower():
            raise NotRunError("the session has no Delta JARs")
        table = setting.work / "delta-append"
        shutil.rmtree(table, ignore_errors=True)
        frame = source(keyed=False)
        return count / seconds(lambda: frame.write.format("delta").mode("append").save(str(table)))

    def sides(partitions: int, keyed: bool) -> list[Side]:
        what = f"{partitions} {'keyed' if keyed else 'keyless'}"
        return [
            Side(f"pulsarpy, {what}", lambda: pulsarpy(partitions, keyed), COPIES),
            Side(f"Kafka sink, {what}", lambda: kafka(partitions, keyed), KAFKA_COPIES),
        ]

    return Benchmark(
        name="write",
        unit="rows/s",
        work=f"{count:,} rows of 1 KiB from zstd Parquet into 1 and 8 partitions",
        sides=[
            *itertools.chain.from_iterable(sides(n, keyed) for n in (1, 8) for keyed in (False, True)),
            Side("Delta append", delta, "1 copy, not synced"),
        ],
        goals=[
            *(_beside_kafka(f"{n} keyless", 1.75) for n in (1, 8)),
            *(Goal(f"{n} keyless / Delta", ratio(f"pulsarpy, {n} keyless", "Delta append"), 1.5) for n in (1, 8)),
            *(_beside_kafka(f"{n} keyed", None) for n in (1, 8)),
        ],
    )


def _beside_kafka(what: str, at_least: float | None) -> Goal:
    return Goal(f"{what} / Kafka sink", ratio(f"pulsarpy, {what}", f"Kafka sink, {what}"), at_least)
