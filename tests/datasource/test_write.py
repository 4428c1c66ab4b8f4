"""Batch writes with Spark: every column, routing, several topics, exactly once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import lit
from pyspark.sql.types import (
    BinaryType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pulsar_on_spark import Root
from pulsar_on_spark.model.ids import EntryId, LedgerId, MessageId
from tests.datasource.conftest import Read, Write

EVERY_COLUMN = StructType(
    [
        StructField("__deliverAtTime", TimestampType()),
        StructField("value", BinaryType()),
        StructField("__messageProperties", MapType(StringType(), StringType())),
        StructField("__key", BinaryType()),
        StructField("__orderingKey", BinaryType()),
        StructField("__eventTime", TimestampType()),
    ]
)
MOMENT = datetime(2013, 1, 1, 5, 15, 0, 123000, tzinfo=UTC)
BEFORE_1970 = datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
KEYS = [
    None,
    b"",
    b"plain",
    "k\u00e9".encode(),
    "\U0001f680".encode(),
    b"\xff\xfe\x00",
    bytes(range(256)),
    b"x" * 70_000,
]
GOLDEN_FILE = Path(__file__).parents[1] / "golden" / "keys.json"


def is_text(key: bytes) -> bool:
    try:
        key.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def golden_vectors() -> dict[bytes, dict[str, int]]:
    """The form that Pulsar's Java client gives to keys: text as a key string, other bytes as `keyBytes`."""
    vectors = json.loads(GOLDEN_FILE.read_text("utf-8"))["vectors"]
    keyed = ((bytes.fromhex(vector["hex"]) * vector["times"], vector) for vector in vectors)
    return {key: vector for key, vector in keyed if vector["b64"] != is_text(key)}


GOLDEN = golden_vectors()


def every_column(spark: SparkSession) -> DataFrame:
    rows = [(None, b"%d" % index, None, key, None, MOMENT if index % 2 else None) for index, key in enumerate(KEYS)]
    rows += [
        (None, None, None, b"plain", None, None),  # a tombstone
        (None, b"", {}, None, b"\x00ordering\xff", BEFORE_1970),
        (MOMENT, b"\x00\xff", {"a": "1", "": "\U0001f680", "empty": ""}, b"plain", b"", None),
    ]
    return spark.createDataFrame(rows, EVERY_COLUMN)


def in_order(frame: DataFrame) -> list[Row]:
    """A topic's rows in the order of their ids."""
    return sorted(
        frame.collect(),
        key=lambda row: (row["__partition"] or 0, row["__ledgerId"], row["__entryId"], row["__batchIndex"]),
    )


def without_id(row: Row) -> tuple[object, ...]:
    names = ("value", "__key", "__orderingKey", "__eventTime", "__deliverAtTime", "__messageProperties")
    return tuple(
        tuple(sorted(cell.items())) if isinstance(cell, dict) else cell for cell in (row[name] for name in names)
    )


def utc(moment: datetime | None) -> datetime | None:
    """As `collect` gives a time: without a zone, in this machine's."""
    return None if moment is None else moment.astimezone().replace(tzinfo=None)


def test_every_column_is_read_back(spark: SparkSession, write: Write, read: Read, root: Path) -> None:
    frame = every_column(spark)
    write(frame, "all")
    found = in_order(read("all", includeMetadata=True))

    written = [
        (row["value"], row["__key"], row["__orderingKey"], row["__eventTime"], row["__deliverAtTime"],
         tuple(sorted((row["__messageProperties"] or {}).items())))
        for row in frame.collect()
    ]  # fmt: skip
    assert Counter(map(without_id, found)) == Counter(written)
    assert {row["__eventTime"] for row in found} == {None, utc(MOMENT), utc(BEFORE_1970)}

    for row in found:
        expected = MessageId(LedgerId(row["__ledgerId"]), EntryId(row["__entryId"]), -1, row["__batchIndex"])
        assert bytes(row["__messageId"]) == expected.serialize()
        assert row["__messageIdStr"] == str(expected)
        assert row["__topic"] == "persistent://public/default/all"
        assert row["__partition"] is None
        assert row["__producerName"].startswith("spark-")
        assert row["__redeliveryCount"] == 0
        assert row["__schemaVersion"] is None
        assert abs((datetime.now() - row["__publishTime"]).total_seconds()) < 600
    assert len({row["__messageIdStr"] for row in found}) == len(found)
    assert sorted(Counter(row["__key"] for row in found).values()) == sorted(
        Counter(row[1] for row in written).values()
    )

    # A frame read from one topic is written to another as it is.
    write(read("all", includeMetadata=True), "copy")
    copied = in_order(read("copy", includeMetadata=True))
    assert Counter(map(without_id, copied)) == Counter(written)


def test_ids_are_dense_and_grow_along_the_topic(spark: SparkSession, write: Write, read: Read) -> None:
    for start in (0, 5_000, 6_000):
        write(spark.range(start, start + 2_500).selectExpr("CAST(id AS STRING) value"), "ids")
    found = in_order(read("ids", includeMetadata=True))
    assert len({row["__ledgerId"] for row in found}) == 1
    entries = Counter(row["__entryId"] for row in found)
    assert sorted(entries) == list(range(len(entries)))
    for entry, count in entries.items():
        indexes = [row["__batchIndex"] for row in found if row["__entryId"] == entry]
        assert indexes == list(range(count))
    # What was written later has larger ids, and a task's rows keep their order.
    values = [int(row["value"]) for row in found]
    assert values[:2_500] == list(range(2_500))
    assert sorted(values[2_500:5_000]) == list(range(5_000, 7_500))
    assert sorted(values[5_000:]) == list(range(6_000, 8_500))


def test_keys_go_where_the_java_client_sends_them(spark: SparkSession, write: Write, read: Read, root: Path) -> None:
    made = Root.open_or_create(root)
    frame = spark.createDataFrame([(key,) for key in GOLDEN], "__key BINARY").withColumn("value", lit("v"))
    for scheme, golden in (("JavaStringHash", "java_string_hash"), ("Murmur3_32Hash", "murmur3_32")):
        made.create_topic(f"by-{scheme}", partitions=7)
        write(frame, f"by-{scheme}", hashingScheme=scheme.lower())
        found = read(f"by-{scheme}", columns="__key,__partition").collect()
        assert {bytes(key): partition for key, partition in found} == {
            key: vector[golden] % 7 for key, vector in GOLDEN.items()
        }

    # A string column is the same key as its UTF-8 bytes.
    made.create_topic("by-text", partitions=7)
    texts = [key.decode() for key in GOLDEN if is_text(key)]
    assert any(letter >= "\U00010000" for text in texts for letter in text), "a key beyond the basic plane"
    write(spark.createDataFrame([(text, "v") for text in texts], "__key STRING, value STRING"), "by-text")
    for key, partition in read("by-text", columns="__key,__partition").collect():
        assert partition == GOLDEN[bytes(key)]["java_string_hash"] % 7


def test_rows_without_keys_use_all_partitions(spark: SparkSession, write: Write, read: Read, root: Path) -> None:
    Root.open_or_create(root).create_topic("even", partitions=8)
    write(spark.range(0, 80, 1, 2).selectExpr("CAST(id AS STRING) value"), "even")
    write(spark.range(0, 100_000, 1, 2).selectExpr("CAST(id AS STRING) value"), "even")
    found = read("even", columns="__partition,__topic,value").groupBy("__partition", "__topic").count().collect()
    assert sorted((row[0], row[1]) for row in found) == [
        (index, f"persistent://public/default/even-partition-{index}") for index in range(8)
    ]
    counts = [row[2] for row in found]
    assert sum(counts) == 100_080
    assert max(counts) - min(counts) <= 4_000
    small = read("even", includeMetadata=True, endingOffsets=json.dumps({"even": "latest"})).filter(
        "CAST(CAST(value AS STRING) AS INT) < 80"
    )
    assert small.select("__partition").distinct().count() == 8


def test_rows_name_their_topics(spark: SparkSession, write: Write, read: Read, root: Path) -> None:
    made = Root.open_or_create(root)
    made.create_topic("known", partitions=3)
    frame = (
        spark.range(900)
        .selectExpr(
            "CAST(id AS STRING) value",
            "CASE id % 3 WHEN 0 THEN 'known' WHEN 1 THEN 'persistent://a/b/made' ELSE 'public/default/also-made' END",
        )
        .toDF("value", "__topic")
    )
    write(frame)
    assert [topic.name for topic in made.topics()] == [
        "persistent://a/b/made",
        "persistent://public/default/also-made",
        "persistent://public/default/known",
    ]
    for topic, rest in (("known", 0), ("a/b/made", 1), ("also-made", 2)):
        found = read(topic, columns="value").collect()
        assert sorted(int(row[0]) for row in found) == list(range(rest, 900, 3))

    # A partition's name, as reading gives it, means that partition; the option topic is stronger than the column.
    before = Counter(row[0] for row in read("known", columns="__topic").collect())
    write(read("known"))
    assert Counter(row[0] for row in read("known", columns="__topic").collect()) == {
        k: 2 * v for k, v in before.items()
    }
    write(frame.limit(10), "also-made")
    assert read("also-made").count() == 310


def test_a_transaction_is_written_once(spark: SparkSession, write: Write, read: Read) -> None:
    frame = spark.range(10).selectExpr("CAST(id AS STRING) value")
    for app, version in [("a", 3), ("a", 3), ("a", 2), ("b", 1), ("a", 4)]:
        write(frame, "once", txnAppId=app, txnVersion=version)
    assert read("once").count() == 30


def test_an_empty_frame_makes_the_topic_and_no_message(
    spark: SparkSession, write: Write, read: Read, root: Path
) -> None:
    write(spark.createDataFrame([], "value STRING"), "empty")
    assert read("empty").collect() == []
    assert Root.open(root).status().topics[0].messages == 0


@pytest.mark.soak
def test_tasks_that_fail_with_their_rows_out_are_tried_again(read: Read, tmp_path: Path) -> None:
    """In a program of its own, whose session tries tasks again."""
    done = subprocess.run(
        [sys.executable, "-c", RETRIES, str(tmp_path / "root")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert "attempts 3" in done.stdout
    found = read("retried").collect()
    assert sorted(int(row["value"]) for row in found) == list(range(1_000))


RETRIES = """
import sys
from pathlib import Path
from pyspark import TaskContext
from pulsar_on_spark import spark_session
root = sys.argv[1]
spark = spark_session("retries", delta=False, **{"spark.master": "local[2,3]", "spark.ui.enabled": "false"})
spark.sparkContext.setLogLevel("OFF")
def flaky(batches):
    context = TaskContext.get()
    for batch in batches:
        yield batch
    if context.partitionId() == 1 and context.attemptNumber() < 2:
        raise RuntimeError("the task fails when all its rows are out")
    if context.partitionId() == 1:
        Path(root + ".attempts").write_text(str(context.attemptNumber() + 1))
frame = spark.range(0, 1000, 1, 2).selectExpr("CAST(id AS STRING) value").mapInArrow(flaky, "value STRING")
frame.write.format("pulsarpy").mode("append").option("topic", "retried").save(root)
print("attempts", Path(root + ".attempts").read_text())
spark.stop()
"""
