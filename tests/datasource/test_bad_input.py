"""Bad input: the user reads one sentence in the driver that names it, and nothing is written or made."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from pulsar_on_spark import Root
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import FormatVersionError
from pulsar_on_spark.storage.reports import read_reports, sum_losses
from tests.datasource.conftest import Read, Write
from tests.kit import messages

Act = Callable[[], object]


def sentence(act: Act) -> str:
    """The error that arrives, checked to be ours alone: no Python stack, no other line."""
    with pytest.raises(PySparkException) as caught:
        act()
    text = str(caught.value).split("\n=== Streaming Query ===", maxsplit=1)[0]
    assert "Traceback" not in text, text
    assert 'File "' not in text, text
    found = re.search(r"pulsar_on_spark\.model\.errors\.(\w+): (.*)", text)
    assert found, text
    said = re.sub(r"(\s*SQLSTATE: \w+)+\s*$", "", found[2].strip())
    assert said.endswith("."), said
    return f"{found[1]}: {said}"


def tree(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*"))


@pytest.fixture
def one(spark: SparkSession) -> DataFrame:
    return spark.sql("SELECT 'v' value")


def test_reads_of_missing_roots_and_topics(
    spark: SparkSession, read: Read, write: Write, root: Path, one: DataFrame
) -> None:
    absent = sentence(lambda: read("x").count())
    assert absent.startswith(f"NotARootError: Root {root} does not exist: make it with `pulsarpy init {root}`")
    root.mkdir()
    assert sentence(lambda: read("x")).startswith(f"NotARootError: {root}")
    (root / "photo.jpg").write_bytes(b"")
    assert sentence(lambda: read("x")).startswith(f"NotARootError: {root}")
    assert sentence(lambda: write(one, "x")).startswith(f"NotARootError: {root}")
    assert tree(root) == ["photo.jpg"]
    shutil.rmtree(root)

    write(one, "x")
    assert sentence(lambda: read("y")) == (
        "TopicNotFoundError: Topic persistent://public/default/y does not exist: create it with `pulsarpy topics "
        "create`, or write to it."
    )
    stream = spark.readStream.format("pulsarpy").option("topic", "y")
    assert "Topic persistent://public/default/y does not exist" in sentence(lambda: stream.load(str(root)))
    assert [topic.name for topic in Root.open(root).topics()] == ["persistent://public/default/x"]


def test_a_root_of_a_newer_format(read: Read, write: Write, root: Path, one: DataFrame) -> None:
    write(one, "x")
    raise_format_version(root)
    for act in (lambda: read("x"), lambda: write(one, "x")):
        assert re.match(r"FormatVersionError: The root .* has format version 99, .*: upgrade", sentence(act))


def raise_format_version(root: Path) -> None:
    """Commit a root record as a newer version would write it."""
    store = MetadataStore(root)
    later = store.root_record.model_copy(update={"format_version": 99})
    with suppress(FormatVersionError):  # raised after the commit, by reading it back
        store.commit(lambda _: Change(puts=[later], keys={"root": None}))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "Exactly one of the options topic, topics and topicsPattern is needed: none given"),
        ({"topic": "a/b"}, "Topic name 'a/b' is not valid"),
        ({"topic": "x", "readCompacted": "true", "startingTime": "1"}, "filter by the column __publishTime instead"),
        ({"topic": "x", "startingOffsets": "{"}, "Option startingOffsets has the value '{'"),
        ({"topic": "x", "startingOffsets": '{"x": [9, 0]}'}, "Position 9:0 of .*x is outside the topic"),
        ({"topic": "x", "endingOffsets": '{"x": [9, 0]}'}, "Option endingOffsets: Position 9:1"),
        ({"topic": "x", "valueFormat": "json", "valueSchema": "a INT, b"}, "Schema 'a INT, b' cannot be read"),
    ],
)
def test_options_of_a_read(write: Write, read: Read, one: DataFrame, options: dict[str, str], said: str) -> None:
    write(one, "x")
    assert re.search(said, sentence(lambda: read(**options).count()))


@pytest.mark.parametrize(
    ("sql", "options", "said"),
    [
        ("SELECT 1 id", {"topic": "x"}, "The frame has no column value"),
        ("SELECT 1 value", {"topic": "x"}, "Column 'value' is int: cast it to string or binary"),
        ("SELECT 'v' value", {}, "No topic is named: set the option topic"),
        ("SELECT 'v' value", {"topic": "x", "fsync": "false"}, "Option fsync is not supported: every write is synced"),
        ("SELECT 'v' value", {"topic": "x", "ackQuorum": "1"}, "Option ackQuorum is not supported: the root (`"),
        ("SELECT 'v' value", {"topic": "x", "hashingScheme": "md5"}, "Option hashingScheme has the value 'md5'"),
    ],
)
def test_writes_that_are_refused_make_no_root(
    spark: SparkSession, write: Write, root: Path, sql: str, options: dict[str, str], said: str
) -> None:
    assert said in sentence(lambda: write(spark.sql(sql), **options))
    assert not root.exists()


def test_writes_that_fail_in_tasks_write_nothing(spark: SparkSession, write: Write, root: Path) -> None:
    limit = 5 * 1024 * 1024
    good = spark.range(1_000).selectExpr("CAST(id AS STRING) value", "'x' __topic")
    for row, said in [
        (
            f"SELECT repeat('v', {limit + 1}) value, 'x' __topic",
            rf"'persistent://public/default/x' has {limit + 1} bytes",
        ),
        ("SELECT 'v' value, CAST(null AS STRING) __topic", "Column __topic is null in a row"),
        ("SELECT 'v' value, 'a//b' __topic", "Topic name 'a//b' is not valid"),
    ]:
        assert re.search(said, sentence(lambda row=row: write(good.union(spark.sql(row)))))  # type: ignore[misc]
        assert all(messages.values(Root.open(root), topic.name) == [] for topic in Root.open(root).topics())
    unfinished = [path for path in root.rglob("*") if ".tmp-" in path.name and path.suffix != ".json"]
    assert unfinished == []


def test_a_topic_deleted_while_it_is_written_to(spark: SparkSession, write: Write, root: Path, one: DataFrame) -> None:
    write(one, "x")
    place = str(root)

    def delete_the_topic(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        Root.open(place).delete_topic("x")
        yield from batches

    frame = one.coalesce(1).mapInArrow(delete_the_topic, "value STRING")
    said = sentence(lambda: write(frame, "x"))
    assert "Topic persistent://public/default/x was deleted while it was written to: nothing was written" in said
    assert Root.open(root).topics() == []


def test_segments_that_are_damaged_in_every_copy(spark: SparkSession, write: Write, read: Read, root: Path) -> None:
    write(spark.range(0, 1_000, 1, 1).selectExpr("CAST(id AS STRING) value"), "x")
    first = sorted(root.glob("storage/*/segments/*/*.arrow"))
    write(spark.range(1_000, 1_500, 1, 1).selectExpr("CAST(id AS STRING) value"), "x")
    for copy in first[:2]:
        copy.write_bytes(copy.read_bytes()[:-1])
    assert read("x").count() == 1_500
    first[2].unlink()
    said = sentence(lambda: read("x").count())
    assert said.startswith("DataLossError: 1000 messages of persistent://public/default/x")
    assert "set option failOnDataLoss to false" in said
    assert read("x", failOnDataLoss=False).count() == 500
    (loss,) = sum_losses(read_reports(root))
    assert loss.reason.startswith("1000 messages of persistent://public/default/x are lost")


def test_save_modes(one: DataFrame, write: Write, read: Read, root: Path) -> None:
    """docs/limits.md: the default mode is refused by Spark itself, which names the way out."""
    writer = one.write.format("pulsarpy").option("topic", "x")
    for mode in ("error", "ignore"):
        with pytest.raises(
            AnalysisException, match=r'cannot be written in the "\w+" mode. Please use either the "Append"'
        ):
            writer.mode(mode).save(str(root))
    assert "A topic can't be overwritten: use mode('append')" in sentence(
        lambda: writer.mode("overwrite").save(str(root))
    )
    assert not root.exists()
    writer.mode("append").save(str(root))
    assert "can't be overwritten" in sentence(lambda: writer.mode("overwrite").save(str(root)))
    assert read("x").count() == 1


def run(query: StreamingQuery) -> None:
    try:
        assert query.awaitTermination(60), "the query hangs"
    finally:
        query.stop()


def test_streams_that_cannot_run(spark: SparkSession, write: Write, read: Read, root: Path, tmp_path: Path) -> None:
    write(spark.sql("SELECT 'v' value"), "x")

    def follow(**options: str) -> None:
        stream = spark.readStream.format("pulsarpy").option("topic", "x").options(**options).load(str(root))
        run(stream.writeStream.format("noop").trigger(availableNow=True).start())

    for name in ("endingOffsets", "endingTime"):
        said = sentence(lambda name=name: follow(**{name: "5"}))  # type: ignore[misc]
        assert "Options endingOffsets and endingTime are not possible in a stream: leave them out." in said
    assert "Option startingOffsets has the value '{'" in sentence(lambda: follow(startingOffsets="{"))

    def publish(mode: str, sql: str, **options: str) -> None:
        rows = spark.readStream.format("rate").option("rowsPerSecond", "5").load()
        rows = (rows if mode == "append" else rows.groupBy().count()).selectExpr(sql)
        writer = rows.writeStream.format("pulsarpy").outputMode(mode).option("checkpointLocation", str(tmp_path / mode))
        run(writer.options(**options).start(str(root)))

    complete = sentence(lambda: publish("complete", "CAST(count AS STRING) value", topic="y"))
    assert "A topic can't be overwritten: use mode('append') for a batch and outputMode('append')" in complete
    assert "Column 'value' is bigint" in sentence(lambda: publish("append", "value", topic="y"))
    txn = {"topic": "y", "txnAppId": "a", "txnVersion": "1"}
    assert "txnAppId and txnVersion belong to batch" in sentence(lambda: publish("append", "'v' value", **txn))
    with pytest.raises(PySparkException, match="pulsarpy does not support Update mode"):
        publish("update", "CAST(count AS STRING) value", topic="y")
    assert [topic.name for topic in Root.open(root).topics()] == ["persistent://public/default/x"]
