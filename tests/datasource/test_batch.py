"""Batch reads with Spark: what only a session shows."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from pulsar_on_spark import Root
from tests.datasource.conftest import Read, Write


def test_a_frame_is_a_snapshot_and_load_sees_the_rest(spark: SparkSession, write: Write, read: Read) -> None:
    write(spark.range(1_000).selectExpr("CAST(id AS STRING) value", "CAST(id % 3 AS STRING) __key"), "x")
    frame = read("x")
    assert frame.count() == 1_000
    write(spark.range(500).selectExpr("CAST(id AS STRING) value"), "x")
    assert frame.count() == 1_000
    assert frame.filter("__key IS NULL").count() == 0
    assert frame.filter("CAST(value AS STRING) = '7'").count() == 1
    assert frame.count() == 1_000, "a filter of one action must not stay for the next"
    assert read("x").count() == 1_500
    assert read("x").agg({"__publishTime": "max"}).collect()[0][0] is not None
    # A frame may be used on both sides of a join, and its columns chosen by option or by select.
    joined = frame.alias("l").join(frame.alias("r"), "__messageId").count()
    assert joined == 1_000
    assert read("x", columns="__key").groupBy("__key").count().count() == 4


def test_one_big_topic_uses_all_cores(spark: SparkSession, write: Write, read: Read, root: Path) -> None:
    payload = "concat(id, repeat(sha2(CAST(id AS STRING), 256), 10)) value"
    write(spark.range(0, 40_000, 1, 1).selectExpr(payload), "big")
    frame = read("big", columns="__messageIdStr,value")
    assert frame.rdd.getNumPartitions() >= spark.sparkContext.defaultParallelism == 2
    found = frame.selectExpr("count(DISTINCT __messageIdStr)", "count(DISTINCT value)", "sum(length(value))").collect()
    assert tuple(found[0][:2]) == (40_000, 40_000)
    assert read("big", minPartitions=7).rdd.getNumPartitions() >= 7
    assert read("big", maxRecordsPerPartition=5_000).rdd.getNumPartitions() >= 8
    assert Root.open(root).status().topics[0].messages == 40_000


def test_options_come_by_alias_and_url(spark: SparkSession, write: Write, root: Path) -> None:
    write(spark.createDataFrame([("a",)], "value STRING"), "persistent://t/n/x")
    reader = spark.read.format("pulsarpy").option("service.url", f"file://{root}").option("subscribePattern", "t/n/.*")
    assert reader.load().count() == 1
    assert reader.option("includeHeaders", "true").load().columns[-1] == "__deliverAtTime"
