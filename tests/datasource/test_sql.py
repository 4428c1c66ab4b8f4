"""Topics in SQL: temp views, typed values, declared schemas, joins with Delta."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import Row, SparkSession

from pulsar_on_spark import Root
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import registry
from pulsar_on_spark.topic.entries.schemas.schema import TopicSchema
from tests.datasource.conftest import Read, Write
from tests.kit import messages

FLIGHT = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "double"], "default": None},
    ],
}
ROWS = [("UA", 2.5), ("DL", None), ("B\u00e9", -1.0)]
FIELDS = "carrier STRING, delay DOUBLE"


def test_a_view_of_a_topic_joins_a_delta_table(
    delta_spark: SparkSession, write: Write, read: Read, tmp_path: Path
) -> None:
    spark = delta_spark
    rows = spark.range(300).selectExpr(
        "CASE id % 3 WHEN 0 THEN 'UA' WHEN 1 THEN 'DL' ELSE 'XX' END __key", "to_json(named_struct('delay', id)) value"
    )
    write(rows, "flights")
    read("flights", valueFormat="json", valueSchema="delay BIGINT").createOrReplaceTempView("flights")
    carriers = f"delta.`{tmp_path / 'carriers'}`"
    spark.sql(f"CREATE TABLE {carriers} (code STRING, name STRING) USING delta")
    spark.sql(f"INSERT INTO {carriers} VALUES ('UA', 'United'), ('DL', 'Delta')")
    query = f"""
        SELECT name, count(*) flights, sum(delay) delay FROM flights JOIN {carriers} ON code = CAST(__key AS STRING)
        GROUP BY name ORDER BY name"""
    assert [tuple(row) for row in spark.sql(query).collect()] == [("Delta", 100, 14_950), ("United", 100, 14_850)]
    spark.sql(f"CREATE TABLE delta.`{tmp_path / 'kept'}` USING delta AS SELECT __messageId, delay FROM flights")
    assert spark.read.format("delta").load(str(tmp_path / "kept")).count() == 300
    write(spark.read.format("delta").load(str(tmp_path / "kept")).selectExpr("CAST(delay AS STRING) value"), "back")
    assert read("back").count() == 300


def test_json_by_option_as_from_json_reads_it(spark: SparkSession, write: Write, read: Read) -> None:
    texts = ['{"carrier":"UA","delay":2.5}', "{oops", '{"carrier":7,"delay":"x"}', None, "{}", '{"delay":1,"more":2}']
    write(spark.createDataFrame([(text,) for text in texts], "value STRING"), "texts")
    typed = read("texts", valueFormat="json", valueSchema=FIELDS)
    assert typed.columns[:2] == ["carrier", "delay"]
    plain = read("texts").selectExpr(f"from_json(CAST(value AS STRING), '{FIELDS}') parsed").selectExpr("parsed.*")
    assert sorted(map(str, typed.select("carrier", "delay").collect())) == sorted(map(str, plain.collect()))
    with pytest.raises(
        PythonException, match=r"value of message \d+:\d+ of persistent://public/default/texts does not"
    ):
        read("texts", valueFormat="json", valueSchema=FIELDS, mode="FAILFAST").collect()
    # Fields are columns like others: they can be chosen, and left undecoded.
    assert read("texts", valueFormat="json", valueSchema=FIELDS, mode="FAILFAST", columns="__messageId").count() == 6
    assert read("texts", valueFormat="json", valueSchema=FIELDS, columns="delay,__topic").columns == [
        "delay",
        "__topic",
    ]


@pytest.mark.parametrize("schema_type", ["JSON", "AVRO"])
def test_a_declared_schema_types_reads_and_packs_writes(
    spark: SparkSession, write: Write, read: Read, root: Path, schema_type: str
) -> None:
    made = Root.open_or_create(root)
    made.create_topic("flights", partitions=2)
    made.declare_schema("flights", json.dumps(FLIGHT), schema_type)
    frame = spark.createDataFrame([(*row, row[0]) for row in ROWS], f"{FIELDS}, __key STRING")
    write(frame, "flights")
    write(frame.drop("delay"), "flights")
    found = read("flights", includeMetadata=True).orderBy("__sequenceId").collect()
    assert sorted((row["carrier"], str(row["delay"])) for row in found) == sorted(
        [(carrier, str(delay)) for carrier, delay in ROWS] + [(carrier, "None") for carrier, _ in ROWS]
    )
    assert {row["__schemaVersion"] for row in found} == {0}
    assert {bytes(row["__key"]).decode() for row in found} == {carrier for carrier, _ in ROWS}
    stored = {bytes(value or b"") for value in messages.values(made, "flights")}
    if schema_type == "JSON":
        assert json.dumps({"carrier": "UA", "delay": 2.5}, separators=(",", ":")).encode() in stored

    # Bytes that are already encoded are written as they are, null as a tombstone.
    raw = spark.createDataFrame([(bytearray(sorted(stored)[-1]),), (None,)], "value BINARY")
    write(raw, "flights")
    assert read("flights").count() == 8
    assert read("flights").filter("carrier IS NULL").count() == 1

    for bad, said in [
        (spark.range(1), "Column 'id' is not a field of the topic's schema"),
        (spark.sql("SELECT 1 carrier"), "Column 'carrier' is int, but the topic's schema has the type string"),
        (spark.sql("SELECT 1.5D delay"), "has no column 'carrier', which the topic's schema requires"),
    ]:
        with pytest.raises(AnalysisException, match=said):
            write(bad, "flights")
    assert read("flights").count() == 8


def test_every_type_of_value_is_read_back(spark: SparkSession, write: Write, read: Read) -> None:
    ddl = (
        "b BOOLEAN, t TINYINT, i INT, l BIGINT, f FLOAT, d DOUBLE, s STRING, x BINARY, day DATE, at TIMESTAMP, "
        "m MAP<STRING, INT>, a ARRAY<STRING>, n STRUCT<p: INT, q: STRING>, c DECIMAL(20, 4)"
    )
    frame = spark.sql(
        "SELECT true b, 1Y t, 2 i, 3L l, 1.5F f, 2.5D d, '\u00e9' s, X'00FF' x, DATE'2013-01-01' day, "
        "TIMESTAMP'2013-01-01 05:15:00.123456' at, map('k', 1) m, array('a', null) a, "
        "named_struct('p', 1, 'q', 'z') n, "
        "CAST(12345.6789 AS DECIMAL(20, 4)) c"
    )
    write(frame, "types", valueFormat="json", valueSchema=ddl)
    assert read("types", valueFormat="json", valueSchema=ddl).select(*frame.columns).collect() == frame.collect()
    row = frame.collect()[0]
    assert isinstance(row, Row)
    assert row["c"] == Decimal("12345.6789")


def test_topics_with_different_schemas(spark: SparkSession, write: Write, read: Read, root: Path) -> None:
    made = Root.open_or_create(root)
    for name in ("one", "two", "three"):
        made.create_topic(name)
    made.declare_schema("one", json.dumps(FLIGHT), "JSON")
    registry.add_schema(made.store, TopicName.parse("three"), TopicSchema("NONE", ""))
    write(spark.sql("SELECT 'UA' carrier"), "one")
    write(spark.sql("SELECT 'x' value"), "two")
    write(spark.sql("SELECT 'y' value"), "three")
    assert read(topics="two,three").count() == 2, "schema NONE is none"
    with pytest.raises(AnalysisException, match="selected topics have different schemas: read them one by one"):
        read(topics="one,two")
    assert read(topics="one,two", allowDifferentTopicSchemas=True).select("value").count() == 2


def test_catalog_tables_lose_their_options_with_an_error(spark: SparkSession, write: Write, root: Path) -> None:
    """docs/limits.md: Spark 4.2.0 keeps a table's OPTIONS from Python data sources, and Delta's catalog the table."""
    write(spark.sql("SELECT 'x' value"), "x")
    spark.sql(f"CREATE TABLE topic_x (value BINARY) USING pulsarpy OPTIONS (topic 'x', path '{root}')")
    try:
        with pytest.raises(AnalysisException, match=r"No root is given|pulsarpy is not a valid Spark SQL Data Source"):
            spark.table("topic_x").collect()
    finally:
        spark.sql("DROP TABLE topic_x")


def test_a_view_made_in_sql_reads_and_takes_rows(spark: SparkSession, write: Write, read: Read, root: Path) -> None:
    write(spark.sql("SELECT 'a' value, 'k' __key"), "x")
    options = f"path '{root}', topic 'x', columns 'value, __key'"
    spark.sql(f"CREATE TEMPORARY VIEW x USING pulsarpy OPTIONS ({options})")
    try:
        assert spark.sql("SELECT CAST(value AS STRING) FROM x").collect() == [("a",)]
        spark.sql("INSERT INTO x VALUES (X'62', null)")
        spark.sql("INSERT INTO x (value) SELECT __key FROM x")
        with pytest.raises(AnalysisException, match="A topic can't be overwritten"):
            spark.sql("INSERT OVERWRITE x VALUES (X'63', null)")
        assert spark.sql("SELECT count(*) FROM x").collect() == [(1,)], "a view is a snapshot"
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW x USING pulsarpy OPTIONS ({options})")
        assert sorted(spark.sql("SELECT CAST(value AS STRING) FROM x").collect()) == [("a",), ("b",), ("k",)]
    finally:
        spark.sql("DROP VIEW x")


def test_a_view_of_typed_values_made_in_sql_takes_rows(spark: SparkSession, read: Read, root: Path) -> None:
    Root.open_or_create(root).create_topic("flights", schema=json.dumps(FLIGHT), schema_type="AVRO")
    spark.sql(f"CREATE TEMPORARY VIEW typed USING pulsarpy OPTIONS (path '{root}', topic 'flights')")
    try:
        spark.sql("INSERT INTO typed (carrier, delay, __key) VALUES ('UA', 2.5, X'4142')")
    finally:
        spark.sql("DROP VIEW typed")
    assert read("flights").select("carrier", "delay", "__key").collect() == [("UA", 2.5, bytearray(b"AB"))]
