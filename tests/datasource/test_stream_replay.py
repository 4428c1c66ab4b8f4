"""A streaming query's last batch that Spark runs again: the same one, and another one under its number."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pulsar_on_spark.root import Root
from tests.datasource.stream_app import let_it_initialize
from tests.kit.messages import values, write

TIMEOUT_S = 300
Run = Callable[..., None]


@pytest.fixture
def root(tmp_path: Path) -> Root:
    made = Root.create(tmp_path / "root")
    for name in ("in-a", "in-b", "out"):
        made.create_topic(name)
    return made


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture
def run(spark: SparkSession, root: Root, checkpoint: Path) -> Run:
    """Run the query to the end of its input, ten messages a batch."""

    def run(*, under_default: bool = False) -> None:
        reader = spark.readStream.format("pulsarpy").option("topicsPattern", "in-.*")
        reader = reader.option("startingOffsets", "earliest").option("maxMessagesPerTrigger", "10")
        frame = reader.load(str(root.path)).select("value")
        writer = frame.writeStream.format("pulsarpy").option("topic", "out").option("path", str(root.path))
        if under_default:
            writer = writer.queryName(checkpoint.name)
        else:
            writer = writer.option("checkpointLocation", str(checkpoint))
        query = let_it_initialize(writer.trigger(availableNow=True).start())
        assert query.awaitTermination(TIMEOUT_S)

    return run


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


def forget_commit(checkpoint: Path, batch_id: int) -> None:
    """Leave the state of a kill between the sink's commit and Spark's own."""
    for name in (str(batch_id), f".{batch_id}.crc"):
        (checkpoint / "commits" / name).unlink()


@pytest.mark.parametrize("under_default", [False, True])
def test_a_batch_replanned_over_as_many_other_messages_is_refused(
    spark: SparkSession, root: Root, checkpoint: Path, run: Run, under_default: bool
) -> None:
    """The checkpoint is restored from a backup, and another topic has got more messages: batch 1 is ten of its."""
    if under_default:
        spark.conf.set("spark.sql.streaming.checkpointLocation", str(checkpoint.parent))
    try:
        write(root, "in-a", numbered(0, 10))
        run(under_default=under_default)
        shutil.copytree(checkpoint, checkpoint.with_name("backup"))
        write(root, "in-a", numbered(10, 10))
        run(under_default=under_default)
        assert values(root, "out") == numbered(0, 20)

        checkpoint.rename(checkpoint.with_name("broken"))
        checkpoint.with_name("backup").rename(checkpoint)
        for first in (20, 30):
            write(root, "in-b", numbered(first, 10))
        if under_default:
            with pytest.raises(StreamingQueryException, match="different offsets of batch 1: move the copies out of"):
                run(under_default=True)
            checkpoint.with_name("broken").rename(checkpoint.parent.parent / f"{checkpoint.parent.name}-broken")
        with pytest.raises(StreamingQueryException) as refused:
            run(under_default=under_default)
        assert "is committed with 10 messages, and came again with 10" in str(refused.value)
        assert "from other offsets of its sources" in str(refused.value)
        assert values(root, "out") == numbered(0, 20)
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_a_batch_of_other_files_is_refused(spark: SparkSession, root: Root, checkpoint: Path, tmp_path: Path) -> None:
    """As when the source has deleted the files of batch 1 (`cleanSource`): offsets of files are but numbers."""
    files = tmp_path / "files"
    files.mkdir()

    def run_with(name: str) -> None:
        (files / name).write_text(name)
        writer = spark.readStream.text(str(files)).writeStream.format("pulsarpy").option("topic", "out")
        writer = writer.option("path", str(root.path)).option("checkpointLocation", str(checkpoint))
        assert let_it_initialize(writer.trigger(availableNow=True).start()).awaitTermination(TIMEOUT_S)

    spark.conf.set("spark.sql.streaming.fileSource.log.compactInterval", "2")
    try:
        run_with("a")
        shutil.copytree(checkpoint, checkpoint.with_name("backup"))
        run_with("b")
        assert (checkpoint / "sources" / "0" / "1.compact").exists()
        forget_commit(checkpoint, 1)
        run_with("b")
        assert values(root, "out") == [b"a", b"b"]

        shutil.rmtree(checkpoint)
        checkpoint.with_name("backup").rename(checkpoint)
        (files / "b").unlink()
        with pytest.raises(StreamingQueryException, match="from other offsets of its sources"):
            run_with("c")
        assert values(root, "out") == [b"a", b"b"]
    finally:
        spark.conf.unset("spark.sql.streaming.fileSource.log.compactInterval")


def test_a_batch_repeated_from_its_offsets_is_a_replay(root: Root, checkpoint: Path, run: Run) -> None:
    write(root, "in-a", numbered(0, 10))
    run()
    write(root, "in-a", numbered(10, 10))
    run()
    forget_commit(checkpoint, 1)
    write(root, "in-b", numbered(20, 10))
    run()
    assert values(root, "out") == numbered(0, 30)


def test_the_settings_of_a_batch_may_be_edited_before_its_replay(root: Root, checkpoint: Path, run: Run) -> None:
    """As operators do, who want another number of shuffle partitions; their editors end the last line."""
    write(root, "in-a", numbered(0, 10))
    run()
    forget_commit(checkpoint, 0)
    planned = checkpoint / "offsets" / "0"
    version, settings, *sources = planned.read_text().split("\n")
    edited = json.loads(settings)
    edited["batchTimestampMs"] += 1
    edited["conf"]["spark.sql.shuffle.partitions"] = "3"
    planned.write_text("\n".join((version, json.dumps(edited), *sources, "")))
    planned.with_name(".0.crc").unlink()
    write(root, "in-a", numbered(10, 10))
    run()
    assert values(root, "out") == numbered(0, 20)
