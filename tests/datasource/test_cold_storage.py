"""Spark reads offloaded files: frames and streams that were planned before the move go on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from pulsar_on_spark import Root
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.maintenance.offload.offloading import OffloadRequest, offload
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from tests.datasource.conftest import Read, Write


def move(root: Path, topic: str) -> int:
    """Offload all sealed segments of a topic, and delete their other copies; return the number of files."""
    offload(Root.open(root), OffloadRequest(TopicName.parse(topic)))
    return offload(Root.open(root), now=lambda: datetime.now(UTC) + timedelta(hours=5)).released.moved


def test_a_frame_and_a_stream_from_before_the_move(
    spark: SparkSession, write: Write, read: Read, root: Path, memory_path: Path
) -> None:
    for first in (0, 1_000):
        write(spark.range(first, first + 1_000).selectExpr("CAST(id AS STRING) value"), "x")
    frame = read("x", columns="__messageIdStr")
    ids = sorted(row[0] for row in frame.collect())

    def run_stream() -> None:
        stream = spark.readStream.format("pulsarpy").option("topic", "x")
        frame = stream.option("startingOffsets", "earliest").load(str(root))
        writer = frame.select("value").writeStream.format("pulsarpy").option("topic", "copy")
        writer = writer.option("path", str(root)).option("checkpointLocation", str(memory_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(90)
        assert not query.isActive

    storage_paths.add(Root.open(root), memory_path / "cold", role="cold")
    assert move(root, "x") > 0
    assert sorted(row[0] for row in frame.collect()) == ids
    assert sorted(row[0] for row in read("x", columns="__messageIdStr").collect()) == ids
    write(spark.range(2_000, 2_500).selectExpr("CAST(id AS STRING) value"), "x")
    run_stream()
    assert move(root, "x") > 0
    write(spark.range(2_500, 2_600).selectExpr("CAST(id AS STRING) value"), "x")
    run_stream()
    for topic in ("x", "copy"):
        values = sorted(int(bytes(row[0])) for row in read(topic).select("value").collect())
        assert values == list(range(2_600)), topic
