"""Histories beside Delta's own SQL: views, OPTIMIZE and VACUUM by Spark, and joins."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pulsar_on_spark import history, views
from pulsar_on_spark.history_table import merging
from pulsar_on_spark.history_table.build import build
from pulsar_on_spark.history_table.sql import view_statements
from pulsar_on_spark.history_table.table import HistoryTable
from pulsar_on_spark.metadata.log.tables import HISTORY
from pulsar_on_spark.model.errors import HistoryTableError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from tests.kit import messages

T = TopicName.parse("t")


def folder(root: Root) -> Path:
    (found,) = (root.path / HISTORY).iterdir()
    return found


def test_spark_may_optimize_and_vacuum(
    delta_spark: SparkSession, root_with_topic: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = root_with_topic
    monkeypatch.setattr(merging, "WORTH_FILES", 2)
    delta_spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    for number in range(7):
        messages.write(root, "t", [b"%d" % number])
        build(root, T)
        if number in (2, 4):
            delta_spark.sql(f"OPTIMIZE delta.`{folder(root)}`")
            delta_spark.sql(f"VACUUM delta.`{folder(root)}`")
        if number == 6:  # the files of the last two builds
            assert merging.merge_small_files(HistoryTable(root.path, f"{HISTORY}/{folder(root).name}")) == 2
        frame = history(delta_spark, "t", str(root.path))
        assert sorted(bytes(row.value) for row in frame.collect()) == [b"%d" % each for each in range(number + 1)]
    delta_spark.conf.unset("spark.sql.parquet.outputTimestampType")
    assert delta_spark.read.format("delta").load(str(folder(root))).count() == 7
    delta_spark.sql(f"DELETE FROM delta.`{folder(root)}` WHERE value = X'31'")
    with pytest.raises(HistoryTableError, match="DELETE"):
        history(delta_spark, "t", str(root.path))


def test_persistent_views(delta_spark: SparkSession, root_with_topic: Root) -> None:
    root = root_with_topic
    root.create_topic("empty")
    messages.write(root, "t", [b"a"])
    build(root, T)
    database = f"history_{root.cluster_id}".replace("-", "_")
    try:
        for statement in view_statements(root, "public/default", database).statements:
            delta_spark.sql(statement)
        messages.write(root, "t", [b"b"])
        assert delta_spark.sql(f"SELECT count(*) FROM {database}.t").first()[0] == 1
        build(root, T)
        assert delta_spark.sql(f"SELECT count(*) FROM {database}.t").first()[0] == 2
        shown = delta_spark.sql(f"SHOW TABLES IN {database}").where("NOT isTemporary")
        assert [row.tableName for row in shown.collect()] == ["t"]
    finally:
        delta_spark.sql(f"DROP DATABASE IF EXISTS {database} CASCADE")


def test_temporary_views_of_a_namespace(delta_spark: SparkSession, root_with_topic: Root) -> None:
    root = root_with_topic
    root.create_topic("a-b", 2)
    messages.write(root, "a-b", [b"x", b"y"])
    messages.write(root, "t", [b"z"])
    build(root, T)
    assert views(delta_spark, str(root.path)) == ["a-b", "t"]
    joined = delta_spark.sql("SELECT count(*) FROM `a-b` JOIN t ON t.__partition IS NULL WHERE `a-b`.value <> t.value")
    assert joined.first()[0] == 2
