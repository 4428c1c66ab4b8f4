"""Micro-batches of 100 rows: the time that a topic as sink, as source, or as both adds to Spark's own time."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from bench.harness import Benchmark, Goal, Setting, Side, ratio
from bench.topics import COPIES, create_topic, rows, write_pulsarpy

ROWS = 100
WARM_UP_BATCHES = 10
BATCHES = 40
TIMEOUT_S = 120.0
NUMBERS = itertools.count(1)


def benchmark(setting: Setting) -> Benchmark:
    """Return the benchmark: the median triggerExecution in milliseconds of the batches after the first ten."""

    def rate() -> DataFrame:
        frame = setting.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
        return frame.selectExpr("CAST(value AS STRING) AS value")

    def topic_with_backlog() -> DataFrame:
        # One write for each batch: entries are never split, so each batch needs its own entries.
        setting.need_pulsarpy()
        topic = _fresh_topic(setting)
        frame = rows(setting).select("value").limit(ROWS).coalesce(1).cache()
        for _ in range(WARM_UP_BATCHES + BATCHES + 2):
            write_pulsarpy(setting, frame, topic)
        frame.unpersist()
        reader = setting.spark.readStream.format("pulsarpy").option("topic", topic)
        return (
            reader.option("startingOffsets", "earliest").option("maxMessagesPerTrigger", ROWS).load(str(setting.root))
        )

    def to_topic(frame: DataFrame) -> DataStreamWriter:
        setting.need_pulsarpy()
        writer = frame.writeStream.format("pulsarpy").option("topic", _fresh_topic(setting))
        return writer.option("path", str(setting.root))

    return Benchmark(
        name="micro-batch",
        unit="ms",
        work=f"{ROWS} rows a batch, back to back; default checkpoint manager",
        sides=[
            Side("rate to noop", lambda: _trigger_ms(setting, rate().writeStream.format("noop"))),
            Side("rate to topic", lambda: _trigger_ms(setting, to_topic(rate())), COPIES),
            Side("topic to noop", lambda: _trigger_ms(setting, topic_with_backlog().writeStream.format("noop"))),
            Side(
                "topic to topic",
                lambda: _trigger_ms(setting, to_topic(topic_with_backlog().select("value"))),
                COPIES,
            ),
        ],
        goals=[
            Goal(
                "topic to topic / (1.5 x rate to noop + 100 ms)",
                lambda medians: medians["topic to topic"] / (1.5 * medians["rate to noop"] + 100),
                at_most=1.0,
            ),
            Goal(
                "(rate to topic, then topic to noop) / (1.5 x rate to noop + 100 ms)",
                lambda medians: (
                    (medians["rate to topic"] + medians["topic to noop"]) / (1.5 * medians["rate to noop"] + 100)
                ),
            ),
            Goal("topic to noop / rate to noop", ratio("topic to noop", "rate to noop")),
        ],
    )


def _fresh_topic(setting: Setting) -> str:
    topic = f"micro-batch-{next(NUMBERS)}"
    create_topic(setting, topic, None)
    return topic


def _trigger_ms(setting: Setting, writer: DataStreamWriter) -> float:
    with tempfile.TemporaryDirectory(dir=setting.work, ignore_cleanup_errors=True) as checkpoint:
        query = writer.option("checkpointLocation", checkpoint).start()
        try:
            _await_batches(query, WARM_UP_BATCHES + BATCHES)
        finally:
            query.stop()
        durations = [entry["durationMs"]["triggerExecution"] for entry in query.recentProgress if entry["numInputRows"]]
    return float(statistics.median(durations[WARM_UP_BATCHES : WARM_UP_BATCHES + BATCHES]))


def _await_batches(query: StreamingQuery, batches: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while (query.lastProgress or {"batchId": -1})["batchId"] < batches - 1:
        if not query.isActive:
            raise AssertionError(f"the query ended before {batches} batches: {query.exception()}")
        if time.monotonic() > deadline:
            raise AssertionError(f"no {batches} batches within {TIMEOUT_S:.0f} s")
        time.sleep(0.1)
