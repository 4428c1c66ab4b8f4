"""An availableNow stream over a topic in batches of a quarter of its rows, to a sink that drops them."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping

from pyspark.sql import DataFrame

from bench.harness import Benchmark, Goal, Setting, Side, ratio
from bench.kafka import BOOTSTRAP
from bench.topics import kafka_read_topic, pulsarpy_read_topic

BATCHES = 4
FULL = 0.9
"""Share of its limit from which a batch counts as full: the limits of both sides are soft."""


def benchmark(setting: Setting) -> Benchmark:
    """Return the benchmark: rows a second by the median triggerExecution of the full batches after the first."""
    limit = setting.rows // BATCHES

    def pulsarpy() -> float:
        reader = setting.spark.readStream.format("pulsarpy").option("topic", pulsarpy_read_topic(setting))
        return _rate(
            setting,
            reader.option("startingOffsets", "earliest")
            .option("maxMessagesPerTrigger", str(limit))
            .load(str(setting.root)),
            limit,
        )

    def kafka() -> float:
        reader = setting.spark.readStream.format("kafka").option("kafka.bootstrap.servers", BOOTSTRAP)
        return _rate(
            setting,
            reader.option("subscribe", kafka_read_topic(setting))
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(limit))
            .load(),
            limit,
        )

    return Benchmark(
        name="availableNow stream",
        unit="rows/s",
        work=f"{setting.rows:,} rows of 1 KiB in batches of {limit:,}, to noop; full batches after the first",
        sides=[Side("pulsarpy", pulsarpy), Side("Kafka source", kafka)],
        goals=[Goal("pulsarpy / Kafka source", ratio("pulsarpy", "Kafka source"), at_least=1.8)],
    )


def _rate(setting: Setting, frame: DataFrame, limit: int) -> float:
    with tempfile.TemporaryDirectory(dir=setting.work, ignore_cleanup_errors=True) as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        progress: list[Mapping[str, object]] = [dict(entry) for entry in query.recentProgress]
    batches = [(_number(entry["numInputRows"]), _duration_ms(entry)) for entry in progress]
    read = sum(count for count, _ in batches)
    if read != setting.rows:
        raise AssertionError(f"the stream read {read:,} rows of {setting.rows:,}")
    rates = [count / duration_ms * 1_000 for count, duration_ms in batches[1:] if count >= FULL * limit]
    if not rates:
        raise AssertionError(f"no full batch after the first among {batches}")
    return statistics.median(rates)


def _duration_ms(entry: Mapping[str, object]) -> float:
    durations = entry["durationMs"]
    assert isinstance(durations, Mapping)
    return _number(durations["triggerExecution"])


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return value
