"""Columns of `history()` for fields of any name: those of the table, and behind it those of the topic, are alike."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from pulsar_on_spark import history
from pulsar_on_spark.datasource.columns import METADATA_COLUMNS
from pulsar_on_spark.history_table.build import build
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import registry
from pulsar_on_spark.topic.entries.schemas.compatibility import Strategy
from pulsar_on_spark.topic.entries.schemas.schema import TopicSchema
from tests.kit import messages

T = TopicName.parse("t")
RECORD = {"type": "record", "name": "S", "fields": [{"name": "value", "type": "int"}, {"name": "a.b`", "type": "int"}]}
KINDS = (("long", 7), ("string", "s"), ({"type": "array", "items": "double"}, [0.5]))
VALUES = ("value", "VALUE", "value.", "value.value", "value__v0")
CASES = ("__KEY", "__v0", "id", "ID", "Id", "s", "\u017f")
MARKS = ("", " ", " a", "a ", "a b", "a,b", "a.b", "a`b", '["a"]', '"', "'", "\\", "*", "%2F", "a/b", "\u00e9", "a\n")
NULS = ("\0", "a\0b", "a\0c")
ODD = (*METADATA_COLUMNS, *VALUES, *CASES, *MARKS, *NULS)
names = st.sampled_from(ODD) | st.text(max_size=6)


@settings(max_examples=3)
@given(st.lists(names, min_size=1, max_size=30, unique=True), st.data())
@example(["id", "value"], None)
@example(list(ODD), None)
def test_the_topic_has_the_columns_of_the_table(
    spark: SparkSession, memory_folder: Path, fields: list[str], data: st.DataObject | None
) -> None:
    kinds = [KINDS[number % 3] for number in range(len(fields) - 1)] + [(RECORD, {"value": 1, "a.b`": 2})]
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": kind} for name, (kind, _) in zip(fields, kinds, strict=True)],
    }
    value = {name: value for name, (_, value) in zip(fields, kinds, strict=True)}
    with TemporaryDirectory(dir=memory_folder) as folder:
        root = Root.create(Path(folder) / "root")
        root.create_topic("t")
        registry.add_schema(root.store, T, TopicSchema("JSON", json.dumps(schema)), Strategy.ALWAYS_COMPATIBLE)
        messages.write(root, "t", [json.dumps(value).encode(), b"{}"])
        topic = history(spark, "t", root)
        rows = topic.collect()
        build(root, T)
        table = history(spark, "t", root)
        assert table.schema == topic.schema
        assert table.collect() == rows
        *plain, record = rows[0][: len(fields)]
        assert [*plain, record.asDict()] == list(value.values())
        some = data.draw(st.lists(st.sampled_from(table.columns), min_size=1, unique=True)) if data else table.columns
        messages.write(root, "t", [b"{}"])
        both = history(spark, "t", root, columns=some)
        assert both.columns == some
        assert [row[:] for row in both.collect()[:2]] == [
            tuple(row[table.columns.index(name)] for name in some) for row in rows
        ]
        assert both.count() == 3


def test_fields_of_avro_with_the_names_of_other_columns(spark: SparkSession, memory_path: Path) -> None:
    root = Root.create(memory_path / "root")
    root.create_topic("t")
    fields = [{"name": "value", "type": "int"}, {"name": "__key", "type": "string"}]
    schema = TopicSchema("AVRO", json.dumps({"type": "record", "name": "R", "fields": fields}))
    registry.add_schema(root.store, T, schema, Strategy.ALWAYS_COMPATIBLE)
    messages.write(root, "t", [b"\x0e\x02f"], [b"k"])
    for _ in range(2):
        row = history(spark, "t", root, columns=["value", "__key__v0", "__key"]).first()
        assert row[:] == (7, "f", b"k")
        build(root, T)
