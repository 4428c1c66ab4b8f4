"""Roots, and short forms of reading and writing topics with a Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from pyspark.sql import DataFrame, SparkSession

from pulsar_on_spark.root import Root
from tests.kit import micro_batches


class Write(Protocol):
    def __call__(self, frame: DataFrame, topic: str | None = None, /, **options: object) -> None: ...


class Read(Protocol):
    def __call__(self, topic: str | None = None, /, **options: object) -> DataFrame: ...


def _texts(topic: str | None, options: dict[str, object]) -> dict[str, str]:
    given = {name: str(value) for name, value in options.items()}
    return given if topic is None else given | {"topic": topic}


@pytest.fixture(autouse=True)
def _queries_end(memory_path: Path) -> Iterator[None]:
    """No query outlives its test, nor its root."""
    yield
    micro_batches.kill_all()


@pytest.fixture
def root(memory_path: Path) -> Path:
    """The path of the test's root, which the first write creates."""
    return memory_path / "root"


@pytest.fixture
def root_with_topic(memory_path: Path) -> Root:
    """A root with the empty topic t, for tests without a Spark session."""
    made = Root.create(memory_path / "root")
    made.create_topic("t")
    return made


@pytest.fixture
def write(root: Path) -> Write:
    """Append a frame to topics of the root."""

    def append(frame: DataFrame, topic: str | None = None, /, **options: object) -> None:
        frame.write.format("pulsarpy").mode("append").options(**_texts(topic, options)).save(str(root))

    return append


@pytest.fixture
def read(spark: SparkSession, root: Path) -> Read:
    """A batch read of topics of the root."""

    def load(topic: str | None = None, /, **options: object) -> DataFrame:
        return spark.read.format("pulsarpy").options(**_texts(topic, options)).load(str(root))

    return load
