"""Schema texts against Spark's own parser, and JSON values against Spark's own from_json and to_json."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pulsar_on_spark.datasource.value_types import (
    as_nullable,
    spark_of_avro,
    topic_value_schema,
    value_schema,
)
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.topic.entries.values.values import ParseMode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DDL = (
    "a bigint, s string, f double, l array<int>, st struct<x:smallint,y:string>, b boolean, t timestamp, d date, "
    "n decimal(10,2), m map<string,int>, bin binary, tn timestamp_ntz, g float, h int, lt array<timestamp>"
)
SCHEMAS = [
    DDL,
    "a INT",
    "a: int, b : STRING",
    "`odd name` STRING, `tick``` INT",
    "struct<a:int,b:array<struct<c:map<string,decimal(38,18)>>>>",
    "a int NOT NULL, b string COMMENT 'it\\'s text', c STRUCT<x: INT NOT NULL>",
    "a dec, b numeric(5), c varchar(10), d char(3), e byte, f short, g integer, h long, i real, j timestamp_ltz",
    "array array<int>, map int, struct string, not int, comment date, int int",
]
NOT_SCHEMAS = [
    "",
    "a",
    "a int,",
    "a int b int",
    "a array<int",
    "a struct<>>",
    "a foo",
    "a decimal(99,1)",
    "a int 'x'",
    "a;int",
]
TEXTS = [
    "null", "{}", '{"a":1}', '{"a":1.0}', '{"a":1e3}', '{"a":true,"s":"k"}', '{"a":"1","s":"k"}',
    '{"a":"","s":"k"}', '{"a":1,"a":2}', '{"a":1} junk', '{"a":01}', '{"a":1,}', '{"s":"k","a":1,}', "{a:1}",
    '{"a":\n1}', '{"s":"line\nbreak"}', '{"s":"\\u0000"}', '{"s":"\\ud83d\\ude00\\n\\"\u00e9"}', '{"s":5}',
    '{"s":{"q": [1, 2, null, true]}}', '{"s":true}', '{"s":[1]}', '{"f":NaN}', '{"f":Infinity}', '{"f":"NaN"}',
    '{"f":"-Infinity"}', '{"f":"1.5","a":1}', '{"f":1e400}', '{"f":12345678901234567890}',
    '{"a":9223372036854775808,"s":"k"}', '{"l":[1,null]}', '{"l":[1,2147483648],"a":1}', '{"l":5,"a":1}',
    '{"l":[1,"x"],"a":1}', '{"st":{"x":1,"z":[{}]}}', '{"st":5,"a":1}', '{"st":{"x":"q","y":"ok"},"a":1}',
    '{"b":"true","a":1}', '{"b":true}', "", "   ", "[", "5", '"x"', '[{"a":1}]', '[{"a":1},{"a":2}]', '{"A":1}',
    '{"a":+1}', '{"a":.5}', '{"f":1.}', '{"a":1', '{"a":1,"s":"x', '{"a":1}{"a":2}', '{"a":1} null {"a":3}',
    "null}{", '{"s":"', '"}', '{"unknown":bad,"a":1}', '{"unknown":[{"q":1}],"a":1}',
    '{"t":"2020-01-01T01:02:03Z"}', '{"t":"2020-01-01 01:02:03"}', '{"t":"2020-01-01T01:02:03.123456+01:00"}',
    '{"t":"2020-01-01T01:02:03.123456789Z"}', '{"t":"2020-01-01"}', '{"t":"2020-01"}', '{"t":"2020"}',
    '{"t":"2020-01-01T01:02"}', '{"t":1577836800}', '{"t":1577836800.5,"a":1}', '{"t":"junk","a":1}',
    '{"t":"2020-01-01T01:02:03 UTC"}', '{"t":"2020-1-1 1:2:3"}', '{"t":"2020-01-01T01:02:03+0100"}',
    '{"t":"2020-01-01T01:02:03+01"}', '{"t":"0001-01-01T00:00:00Z"}', '{"t":" 2020-01-01T00:00:00Z "}',
    '{"t":"2020-01-01T01:02:03 Europe/Paris"}', '{"t":"1960-01-01T00:00:00.001Z"}',
    '{"t":"2020-02-30T00:00:00Z","a":1}', '{"t":"2020-01-01T25:00:00Z","a":1}',
    '{"lt":["2020-01-01T01:02:03Z",null,"2020-01-01"]}', '{"lt":["junk"],"a":1}', '{"lt":[1577836800]}',
    '{"d":"2020-01-01"}', '{"d":"2020-1-1"}', '{"d":"2020"}', '{"d":"2020-01-01T00:00:00"}',
    '{"d":"2020-02-30","a":1}', '{"d":18000,"a":1}', '{"n":1.25}', '{"n":"1.25"}', '{"n":1.255}',
    '{"n":-1.255}', '{"n":123456789012,"a":1}', '{"n":"x","a":1}', '{"n":1e2}', '{"n":7}',
    '{"m":{"a":1,"b":null}}', '{"m":{"a":"x"},"a":1}', '{"m":[],"a":1}', '{"bin":"YWJj"}', '{"bin":"?","a":1}',
    '{"bin":5,"a":1}', '{"tn":"2020-01-01T01:02:03"}', '{"tn":"2020-01-01T01:02:03Z","a":1}', '{"g":1.1}',
    '{"g":1e39}', '{"h":2147483648,"a":1}', '{"h":1.0,"a":1}', '{"a":null}', '{"st":null,"l":null,"a":3}',
]  # fmt: skip


def decode(texts: list[str | None], ddl: str = DDL, mode: ParseMode = ParseMode.PERMISSIVE) -> list[object]:
    codec = pickle.loads(pickle.dumps(value_schema("json", ddl))).codec
    values = pa.array([None if text is None else text.encode() for text in texts], pa.binary())
    structs = codec.decode(values, mode, "message {}".format)
    structs.validate(full=True)
    assert structs.type == codec.arrow_type
    return pa.RecordBatch.from_arrays(structs.flatten(), [field.name for field in structs.type]).to_pylist()


@pytest.fixture(scope="module")
def spark_says(spark: SparkSession) -> list[object]:
    """Return the value that Spark's from_json makes of each text, as Arrow sees it."""
    rows = spark.createDataFrame(list(enumerate(TEXTS)), "i int, text string").coalesce(1)
    parsed = rows.select("i", F.from_json("text", DDL).alias("v")).orderBy("i").select("v.*")
    table = parsed.toArrow().cast(pa.schema(value_schema("json", DDL).codec.arrow_type))
    rows_made: list[object] = table.to_pylist()
    return rows_made


def test_json_reads_as_sparks_from_json(spark_says: list[object]) -> None:
    alone = [decode([text])[0] for text in TEXTS]
    for text, ours, sparks in zip(TEXTS, alone, spark_says, strict=True):
        assert repr(ours) == repr(sparks), text
    together = decode(list(TEXTS))
    assert repr(together) == repr(alone), "a row must not depend on its neighbours"


def test_json_is_written_so_that_spark_reads_the_same(spark: SparkSession, spark_says: list[object]) -> None:
    codec = value_schema("json", DDL).codec
    finite = [row for row in spark_says if isinstance(row, dict) and row["f"] is None]
    texts = codec.encode(pa.array(finite, codec.arrow_type)).cast(pa.string()).to_pylist()
    rows = spark.createDataFrame(list(enumerate(texts)), "i int, text string").coalesce(1)
    back = rows.select("i", F.from_json("text", DDL).alias("v")).orderBy("i").select("v.*").toArrow()
    assert repr(back.cast(pa.schema(codec.arrow_type)).to_pylist()) == repr(finite)
    assert repr(decode(texts)) == repr(finite)
    assert all(json.loads(text) is not None for text in texts)


def test_nested_json_is_written_as_by_sparks_to_json(spark: SparkSession) -> None:
    ddl = "l array<array<decimal(38,2)>>, o array<struct<x:int,t:array<timestamp>,s:string>>, m map<string,array<date>>"
    keyed = "k map<int,struct<f:double,b:binary>>, n map<boolean,string>"
    texts = [
        '{"l":[[1.50,null],null,[]],"o":[{"x":1,"t":["2020-01-01T01:02:03.004Z",null]},null,{}],"m":{"a":null,"b":[]}}',
        '{"l":[],"o":[{"s":"q\\"\\n\\u0001é"}],"m":{}}',
        '{"m":{"a\\"":["2020-01-02",null]},"l":[[123456789012345678901234567890123456.78]],"o":[{"s":"\\\\"}]}',
        "{}",
    ]
    rows = spark.createDataFrame(list(enumerate(texts)), "i int, text string").coalesce(1)
    parsed = rows.select("i", F.from_json("text", ddl).alias("v")).selectExpr(
        "i",
        "v.*",
        'IF(i = 0, map(7, from_json(\'{"f":1.5,"b":"YWI="}\', \'f double, b binary\'), -1, NULL), NULL) AS k',
        "IF(i = 1, map(true, 'yes', false, 'no'), NULL) AS n",
    )
    fields = ["l", "o", "m", "k", "n"]
    ordered = parsed.orderBy("i")
    sparks = [json.loads(row.text) for row in ordered.select(F.to_json(F.struct(*fields)).alias("text")).collect()]
    structs = ordered.select(*fields).toArrow().to_struct_array().combine_chunks()
    texts_made = value_schema("json", f"{ddl}, {keyed}").codec.encode(structs).to_pylist()
    assert [json.loads(text) for text in texts_made] == sparks


@pytest.mark.parametrize("ddl", SCHEMAS)
def test_ddl_is_parsed_as_by_spark(spark: SparkSession, ddl: str) -> None:
    expected = StructType.fromDDL(ddl)
    for field in expected:
        field.metadata = {}
    ours = value_schema("json", ddl).write_type
    if "char(" not in ddl:
        assert ours == expected
        assert value_schema("json", expected.json()).write_type == expected
    assert ours.names == expected.names


@pytest.mark.parametrize("text", NOT_SCHEMAS)
def test_invalid_ddl_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="Schema"):
        value_schema("json", text)


def test_value_schema_takes_ddl_and_the_json_of_a_struct_type() -> None:
    declared = value_schema("json", DDL).write_type
    made = value_schema("JSON", declared.json())
    assert (made.write_type, made.read_type) == (declared, as_nullable(declared))
    for text in ('{"type":"nonsense"}', '{"type":"struct","fields":[{"name":1}]}', "{", AVRO):
        with pytest.raises(InvalidArgumentError, match=r"or df\.schema\.json"):
            value_schema("json", text)
    with pytest.raises(InvalidArgumentError, match="valueFormat"):
        value_schema("xml", "a int")
    with pytest.raises(InvalidArgumentError, match="twice"):
        value_schema("json", "a int, a int")


AVRO = json.dumps(
    {
        "type": "record",
        "name": "Flight",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "city", "type": ["null", "string"], "default": None},
            {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
            {"name": "cost", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]},
        ],
    }
)


def test_avro_schema_to_spark() -> None:
    declared = spark_of_avro(AVRO)
    assert declared == StructType(
        [
            StructField("id", LongType(), False),
            StructField("city", StringType()),
            StructField("at", TimestampType()),
            StructField("cost", DecimalType(9, 2)),
        ]
    )


def test_for_avro_ddl_and_struct_types_are_made_into_avro_schemas() -> None:
    ddl = DDL.replace("a bigint", "a bigint NOT NULL")
    made = value_schema("avro", ddl)
    assert made.write_type.names == value_schema("json", ddl).write_type.names
    assert not made.write_type["a"].nullable
    assert made.write_type["st"].dataType.simpleString() == "struct<x:int,y:string>"
    assert made.write_type["tn"].dataType == value_schema("json", DDL).write_type["tn"].dataType
    assert value_schema("avro", value_schema("json", ddl).write_type.json()).write_type == made.write_type
    row = {"a": 7, "n": Decimal("1.25"), "lt": [datetime(2026, 1, 2, tzinfo=UTC)], "m": [("k", None)]}
    structs = pa.array([row], made.codec.arrow_type)
    values = made.codec.encode(structs)
    assert made.codec.decode(values, ParseMode.FAILFAST, str).to_pylist() == structs.to_pylist()


def test_declared_topic_schemas() -> None:
    typed = topic_value_schema("AVRO", AVRO)
    assert typed is not None
    assert typed.write_type == spark_of_avro(AVRO)
    assert all(field.nullable for field in typed.read_type)
    numbers = topic_value_schema("JSON", AVRO)
    assert numbers is not None
    assert numbers.read_type["at"].dataType == LongType(), "in Pulsar's JSON a time is the bare number"
    with pytest.raises(InvalidArgumentError, match="Avro schema"):
        topic_value_schema("AVRO", '"string"')
    assert (
        spark_of_avro('{"type":"record","name":"r","fields":[{"name":"a","type":["int"]}]}')["a"].dataType
        == IntegerType()
    )
