"""Schemas that the official client and Spark share."""

from __future__ import annotations

import json

import pulsar
import pyarrow as pa
from pulsar.schema import AvroSchema
from pyspark.sql import SparkSession

from pulsar_on_spark.root import Root
from tests.kit.running_broker import RunningBroker

from .conftest import WAIT_MS
from .test_schemas import new, old


def test_spark_and_clients_share_one_registry(
    broker: RunningBroker, client: pulsar.Client, topic: str, spark: SparkSession
) -> None:
    root = Root.open(broker.root)
    root.create_topic(topic)
    root.declare_schema(topic, json.dumps(old().schema()), "AVRO")
    before, after = old(), new()
    client.create_producer(topic, schema=AvroSchema(before)).send(before(item="a"))
    client.create_producer(topic, schema=AvroSchema(after)).send(after(item="b", count=7))
    read = spark.read.format("pulsarpy").option("topic", topic).option("mode", "FAILFAST").load(str(broker.root))
    rows = read.select("item", "count", "__publishTime").orderBy("__publishTime").collect()
    assert [(row["item"], row["count"]) for row in rows] == [("a", 1), ("b", 7)]
    assert pa.types.is_string(read.toArrow().schema.field("item").type)

    made = spark.sql("SELECT 'c' item, 3 count")
    made.write.format("pulsarpy").mode("append").option("topic", topic).save(str(broker.root))
    reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=AvroSchema(after))
    values = [reader.read_next(WAIT_MS).value() for _ in range(3)]
    assert [(each.item, each.count) for each in values] == [("a", 1), ("b", 7), ("c", 3)]
