"""Objects that Spark creates from options: warnings once, errors that survive Spark's runners, no worker stacks."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType

from pulsar_on_spark import Root
from pulsar_on_spark.datasource.source import PulsarDataSource, RefusedStream
from pulsar_on_spark.datasource.stream_reader import PulsarStreamReader
from pulsar_on_spark.datasource.user_errors import one_sentence
from pulsar_on_spark.model.errors import InvalidArgumentError
from tests.kit import messages

VALUES = StructType([StructField("value", BinaryType())])


@pytest.fixture
def root(tmp_path: Path) -> Root:
    made = Root.create(tmp_path / "root")
    made.create_topic("x")
    messages.write(made, "x", [b"a"])
    return made


def source(root: Root, **options: str) -> PulsarDataSource:
    return PulsarDataSource(CaseInsensitiveDict({"path": str(root.path), "topic": "x"} | options))


def test_options_without_effect_are_logged_once_for_each_read(root: Root, caplog: pytest.LogCaptureFixture) -> None:
    made = source(root, **{"pulsar.client.ioThreads": "3"})
    reader = made.reader(made.schema())
    reader.partitions()
    made.streamReader(made.schema())
    assert [record.getMessage() for record in caplog.records] == [
        "Options pulsar.client.iothreads configure a Pulsar client and have no effect here."
    ] * 2  # once for each time that it was asked for the schema, as Spark does for each `load`


def test_options_without_effect_are_logged_once_for_each_query(
    root: Root, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        source(root, **{"pulsar.producer.batchingenabled": "true"}).streamWriter(VALUES, False)
    assert len(caplog.records) == 1
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "pyspark.daemon", "x.python_streaming_sink_runner"])
    source(root, **{"pulsar.producer.batchingenabled": "false"}).streamWriter(VALUES, False)
    assert len(caplog.records) == 1


def test_the_sink_runner_commits_without_a_plan(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = source(root).streamWriter(VALUES, False)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "pyspark.daemon", "x.python_streaming_sink_runner"])
    committer = source(root, topic="unknown").streamWriter(VALUES, False)
    assert [topic.name for topic in root.topics()] == ["persistent://public/default/x"]
    committer.commit([None], 0)
    assert pickle.loads(pickle.dumps(planned)) is not None


def test_a_refused_stream_raises_when_spark_asks_for_offsets(root: Root) -> None:
    made = source(root, endingoffsets="latest")
    refused = pickle.loads(pickle.dumps(made.streamReader(made.schema())))
    assert isinstance(refused, RefusedStream)
    for ask in (
        refused.initialOffset,
        lambda: refused.latestOffset({}, ReadAllAvailable()),
        lambda: refused.partitions({}, {}),
        lambda: refused.read(InputPartition(None)),
    ):
        with pytest.raises(InvalidArgumentError, match="endingOffsets and endingTime are not possible in a stream"):
            ask()
    assert isinstance(source(root).streamReader(source(root).schema()), PulsarStreamReader)


@one_sentence
def fails(error: Exception) -> None:
    raise error


def test_workers_hide_the_stack_of_our_own_errors_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")  # so that what the code sets is undone
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK")
    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")
    with pytest.raises(ZeroDivisionError):
        fails(ZeroDivisionError())
    assert "SPARK_HIDE_TRACEBACK" not in os.environ
    monkeypatch.delenv("SPARK_PYTHON_RUNTIME")
    with pytest.raises(InvalidArgumentError):
        fails(InvalidArgumentError("in a user's own process nothing changes"))
    assert "SPARK_HIDE_TRACEBACK" not in os.environ
    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")
    with pytest.raises(InvalidArgumentError):
        fails(InvalidArgumentError("in a worker"))
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"
