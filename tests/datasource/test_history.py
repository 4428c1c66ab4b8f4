"""One frame over a topic's history and the topic: each message once, with filters and columns pushed down."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession

from pulsar_on_spark import history
from pulsar_on_spark.history_table.build import _PartBuild, build
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from tests.kit import messages

T = TopicName.parse("t")
IDS = ("__ledgerId", "__entryId", "__batchIndex")


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def frame(spark: SparkSession, root_with_topic: Root) -> Callable[..., DataFrame]:
    def load(topic: str = "t", **named: object) -> DataFrame:
        return history(spark, topic, str(root_with_topic.path), **named)

    return load


def values(frame: DataFrame) -> list[bytes | None]:
    found = [row.value for row in frame.orderBy(*IDS).select("value").collect()]
    return [None if value is None else bytes(value) for value in found]


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().toString())


def test_the_table_and_behind_it_the_topic(root_with_topic: Root, frame: Callable[..., DataFrame]) -> None:
    root = root_with_topic
    assert values(frame()) == []
    messages.write(root, "t", [b"a", None])
    assert values(frame()) == [b"a", None]
    build(root, T)
    assert values(frame()) == [b"a", None]
    messages.write(root, "t", [b"b"])
    assert values(frame()) == [b"a", None, b"b"]


def test_a_build_that_died_between_its_commits_doubles_nothing(
    root_with_topic: Root, frame: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*arguments: object) -> None:
        raise Killed

    messages.write(root_with_topic, "t", [b"a"])
    build(root_with_topic, T)
    messages.write(root_with_topic, "t", [b"b"])
    monkeypatch.setattr(_PartBuild, "_record", die)
    with pytest.raises(Killed):
        build(root_with_topic, T)
    assert values(frame()) == [b"a", b"b"]


def test_the_columns_are_those_of_the_topic(
    spark: SparkSession, root_with_topic: Root, frame: Callable[..., DataFrame]
) -> None:
    messages.write(root_with_topic, "t", [b"a"], [b"k"])
    read = spark.read.format("pulsarpy").option("topic", "t").option("includeMetadata", "true")
    expected = read.load(str(root_with_topic.path)).select(*frame().columns).collect()
    before = frame()
    build(root_with_topic, T)
    after = frame()
    assert before.schema == after.schema
    assert before.collect() == after.collect() == expected


def test_columns_and_metadata_can_be_left_out(root_with_topic: Root, frame: Callable[..., DataFrame]) -> None:
    messages.write(root_with_topic, "t", [b"a"])
    assert frame(include_metadata=False).columns == ["value"]
    assert frame(columns=["__key", "value"]).columns == ["__key", "value"]
    with pytest.raises(InvalidArgumentError, match="no column 'price'"):
        frame(columns=["price"])


def test_filters_and_columns_reach_the_files(root_with_topic: Root, frame: Callable[..., DataFrame]) -> None:
    messages.write(root_with_topic, "t", [b"a", b"b"])
    build(root_with_topic, T)
    plan = plan_of(frame().where("__entryId = 0").select("value"))
    assert "PushedFilters: [IsNotNull(__entryId), EqualTo(__entryId,0)]" in plan
    assert "ReadSchema: struct<value:binary,__entryId:bigint>" in plan


def test_times_choose_messages(root_with_topic: Root, frame: Callable[..., DataFrame]) -> None:
    messages.write(root_with_topic, "t", [b"a"])
    build(root_with_topic, T)
    messages.write(root_with_topic, "t", [b"b"])
    now = datetime.now(UTC)
    assert values(frame(starting_time=now - timedelta(hours=1))) == [b"a", b"b"]
    assert values(frame(ending_time=now - timedelta(hours=1))) == []


def test_a_frame_shows_the_same_when_it_is_used_again(root_with_topic: Root, frame: Callable[..., DataFrame]) -> None:
    messages.write(root_with_topic, "t", [b"a"])
    build(root_with_topic, T)
    messages.write(root_with_topic, "t", [b"b"])
    planned = frame()
    messages.write(root_with_topic, "t", [b"c"])
    build(root_with_topic, T)
    assert values(planned) == [b"a", b"b"]
    assert values(frame()) == [b"a", b"b", b"c"]


def test_sql_over_the_frame(spark: SparkSession, root_with_topic: Root, frame: Callable[..., DataFrame]) -> None:
    messages.write(root_with_topic, "t", [b"a", b"b"])
    build(root_with_topic, T)
    counted = spark.sql("SELECT count(*) AS n FROM {orders} WHERE value = X'61'", orders=frame())
    assert json.loads(counted.toJSON().first() or "") == {"n": 1}
