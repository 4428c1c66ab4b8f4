"""The same rows in Kafka topics and pulsarpy topics, written through Spark on both sides."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame

from bench.harness import Setting, seconds
from bench.kafka import BOOTSTRAP
from bench.payload import write_parquet

ROWS_PER_FILE = 250_000
READ_TOPIC = "orders"
READ_PARTITIONS = 8
COPIES = "3 copies, each fdatasynced, ack 2"
KAFKA_COPIES = "1 copy, not synced (Kafka's default)"


def rows(setting: Setting, share: float = 1.0) -> DataFrame:
    """Return `key` and `value` from this share of the Parquet files, which are written if they are missing."""
    write_parquet(setting.parquet, setting.rows, ROWS_PER_FILE)
    files = sorted(setting.parquet.glob("*.parquet"))
    chosen = files[: max(1, round(len(files) * share))]
    return setting.spark.read.schema("key STRING, value BINARY").parquet(*map(str, chosen))


def kafka_read_topic(setting: Setting) -> str:
    """Return the Kafka topic of the read benchmarks, which is filled with all rows, without keys, at its first use."""
    kafka = setting.need_kafka()
    if "kafka" not in setting.filled:
        kafka.create_topic(READ_TOPIC, READ_PARTITIONS)
        write_kafka(rows(setting).select("value"), READ_TOPIC)
        setting.filled.add("kafka")
    return READ_TOPIC


def pulsarpy_read_topic(setting: Setting) -> str:
    """Return the pulsarpy topic of the read benchmarks, which is filled with all rows at its first use."""
    setting.need_pulsarpy()
    if "pulsarpy" not in setting.filled:
        create_topic(setting, READ_TOPIC, READ_PARTITIONS)
        write_pulsarpy(setting, rows(setting).select("value"), READ_TOPIC)
        setting.filled.add("pulsarpy")
    return READ_TOPIC


def create_topic(setting: Setting, name: str, partitions: int | None) -> None:
    """Create a pulsarpy topic, and the root if it is missing; `partitions` is None for a topic without partitions."""
    from pulsar_on_spark import Root

    root = Root.open_or_create(setting.root)
    root.create_topic(name, partitions=partitions)


def delete_topic(setting: Setting, name: str) -> None:
    """Delete a pulsarpy topic."""
    from pulsar_on_spark import Root

    Root.open(setting.root).delete_topic(name)


def write_kafka(frame: DataFrame, topic: str) -> None:
    """Append the frame to a Kafka topic with the sink's default settings."""
    frame.write.format("kafka").option("kafka.bootstrap.servers", BOOTSTRAP).option("topic", topic).save()


def write_pulsarpy(setting: Setting, frame: DataFrame, topic: str) -> None:
    """Append the frame to a pulsarpy topic."""
    frame.write.format("pulsarpy").mode("append").option("topic", topic).save(str(setting.root))


def to_noop(frame: DataFrame) -> None:
    """Compute every row and every column of the frame, and drop them."""
    frame.write.format("noop").mode("overwrite").save()


def read_rate(setting: Setting, frame: Callable[[], DataFrame]) -> float:
    """Return the rows a second of a read of all rows; the frame is planned before the time begins."""
    planned = frame()
    return setting.rows / seconds(lambda: to_noop(planned))
