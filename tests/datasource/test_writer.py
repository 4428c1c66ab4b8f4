"""The batch writer as Spark calls it, without Spark: attempts, replays, roots, failures."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import pickle
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, DoubleType, LongType, StringType, StructField, StructType

from pulsar_on_spark import Root
from pulsar_on_spark.datasource.options import write_options
from pulsar_on_spark.datasource.write_targets import WriteTargets
from pulsar_on_spark.datasource.writer import PulsarBatchWriter, PulsarStreamWriter
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import FileRecord, SegmentRecord
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import (
    BacklogQuotaExceededError,
    IncompatibleSchemaError,
    InvalidArgumentError,
    NotARootError,
    NotEnoughCopiesError,
    ReplayDiffersError,
    StorageError,
    TopicNotFoundError,
)
from pulsar_on_spark.model.ids import EARLIEST
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.storage.files import OsFiles
from pulsar_on_spark.topic.catalog import registry
from pulsar_on_spark.topic.catalog.policies.change import set_topic_policies
from pulsar_on_spark.topic.catalog.policies.policies import PersistencePolicies
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions
from tests.kit.messages import read, target, values
from tests.kit.running_incarnation import RunningIncarnation
from tests.kit.waiting import LIMIT_S

VALUES = StructType([StructField("value", BinaryType())])
WITH_TOPIC = StructType([StructField("value", StringType()), StructField("__topic", StringType())])


def writer(root: Path, schema: StructType = VALUES, /, **options: str) -> PulsarBatchWriter:
    """Return a writer as the driver makes it and tasks get it."""
    given = {"path": str(root), "topic": "x"} | options
    return pickled(PulsarBatchWriter(write_options({n: v for n, v in given.items() if v}), schema, False))


def pickled(made: PulsarBatchWriter) -> PulsarBatchWriter:
    copied = pickle.loads(pickle.dumps(made))
    assert isinstance(copied, PulsarBatchWriter)
    return copied


def batch(*payloads: bytes | None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(payloads, pa.binary())], names=["value"])


def run(task: PulsarBatchWriter, *batches: pa.RecordBatch) -> WriterCommitMessage:
    message = pickle.loads(pickle.dumps(pickled(task).write(iter(batches))))
    assert isinstance(message, WriterCommitMessage)
    return message


def files(root: Path) -> Sequence[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def test_a_missing_root_is_created_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        made = writer(tmp_path / "new")
    assert f"Created the root {tmp_path / 'new'}" in caplog.text
    made.commit([run(made, batch(b"a", None), batch(b"b"))])
    assert values(Root.open(tmp_path / "new"), "x") == [b"a", None, b"b"]
    caplog.clear()
    writer(tmp_path / "new")
    assert "Created" not in caplog.text


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        (StructType([StructField("id", LongType())]), {}, "no column value"),
        (StructType([StructField("value", LongType())]), {}, "Column 'value' is bigint: cast it to string or binary"),
        (VALUES, {"topic": ""}, "No topic is named"),
        (VALUES, {"topic": "a/b"}, "Topic name 'a/b' is not valid"),
        (VALUES, {"topic": "x-partition-3"}, "is named like a partition"),
        (VALUES, {"valueFormat": "json", "valueSchema": "a INT,"}, "cannot be read"),
        (StructType([*VALUES.fields, StructField("__key", LongType())]), {}, "Column '__key' is bigint"),
    ],
)
def test_a_refused_write_creates_nothing(
    tmp_path: Path, schema: StructType, options: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        writer(tmp_path / "new", schema, **options)
    assert not (tmp_path / "new").exists()


def test_a_folder_that_is_not_a_root_stays_unchanged(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"meow")
    (tmp_path / "file").write_bytes(b"not a folder")
    for name in ("photos", "photos/cat.jpg", "file"):
        with pytest.raises(NotARootError, match=name.split("/", maxsplit=1)[0]):
            writer(tmp_path / name)
    assert [path.name for path in files(tmp_path)] == ["file", "cat.jpg"]


def test_one_of_two_attempts_of_a_task_is_committed(tmp_path: Path) -> None:
    made = writer(tmp_path / "root")
    first, lost = run(made, batch(b"a", b"b")), run(made, batch(b"c"))
    again = run(made, batch(b"c"))
    assert lost != again
    made.commit([first, again])
    assert values(Root.open(tmp_path / "root"), "x") == [b"a", b"b", b"c"]


def test_a_repeated_commit_changes_nothing(tmp_path: Path) -> None:
    made = writer(tmp_path / "root")
    message = run(made, batch(b"a"))
    pickled(made).commit([message])
    pickled(made).commit([message])
    assert values(Root.open(tmp_path / "root"), "x") == [b"a"]


def test_a_write_that_is_aborted_leaves_no_message(tmp_path: Path) -> None:
    made = writer(tmp_path / "root")
    made.abort([run(made, batch(b"a")), None])
    assert values(Root.open(tmp_path / "root"), "x") == []


def test_a_task_without_rows_writes_no_file(tmp_path: Path) -> None:
    made = writer(tmp_path / "root")
    before = files(tmp_path)
    made.commit([run(made), run(made, batch())])
    assert [path for path in files(tmp_path) if path.suffix == ".arrow"] == []
    assert [path for path in before if path not in files(tmp_path)] == []


def test_transactions_are_of_one_application(tmp_path: Path) -> None:
    for app, version in [("a", "2"), ("a", "1"), ("b", "1"), ("a", "3")]:
        made = writer(tmp_path / "root", txnAppId=app, txnVersion=version)
        made.commit([run(made, batch(f"{app}{version}".encode()))])
    assert values(Root.open(tmp_path / "root"), "x") == [b"a2", b"b1", b"a3"]


def test_a_row_above_the_limit_names_topic_and_size(tmp_path: Path) -> None:
    made = writer(tmp_path / "root")
    with pytest.raises(
        InvalidArgumentError, match=r"'persistent://public/default/x' has 5242881 bytes .*maxMessageSize"
    ):
        made.write(iter([batch(b"fits"), batch(bytes(5 * 1024 * 1024 + 1))]))
    assert [path for path in files(tmp_path) if "segments" in path.parts] == []
    made.commit([run(made, batch(bytes(5 * 1024 * 1024)))])
    assert len(read(Root.open(tmp_path / "root"), "x")) == 1


def test_a_topic_deleted_while_it_is_written_to_fails_the_commit(tmp_path: Path) -> None:
    root = Root.open_or_create(tmp_path / "root")
    for again in (False, True):
        made = writer(tmp_path / "root")
        message = run(made, batch(b"a"))
        root.delete_topic("x")
        if again:
            root.create_topic("x")
        with pytest.raises(TopicNotFoundError, match="deleted while it was written to: nothing was written"):
            made.commit([message])
        assert [topic.name for topic in root.topics()] == ["persistent://public/default/x"] * again
    assert values(root, "x") == []


def test_the_driver_fixes_the_number_of_partitions(tmp_path: Path) -> None:
    root = Root.open_or_create(tmp_path / "root")
    root.create_topic("x", partitions=2)
    made = writer(tmp_path / "root")
    root.add_partitions("x", 4)
    made.commit([run(made, batch(*[b"%d" % number for number in range(40)]))])
    assert {message.id.partition for message in read(root, "x")} == {0, 1}


def test_copies_are_as_many_as_the_policies_of_the_topics_ask_for(tmp_path: Path) -> None:
    root = Root.open_or_create(tmp_path / "root")
    root.create_topic("x")
    set_topic_policies(root, TopicName.parse("x"), {"persistence": PersistencePolicies.of(Quorum(2, 2, 1))})

    def copies(made: PulsarBatchWriter, written: pa.RecordBatch) -> set[int]:
        before = {file.file_id for file in root.store.view().all(FileRecord)}
        made.commit([run(made, written)])
        return {len(file.copies) for file in root.store.view().all(FileRecord) if file.file_id not in before}

    assert copies(writer(root.path), batch(b"a")) == {2}
    rows = pa.record_batch([pa.array(["a", "b"]), pa.array(["x", "y"])], names=["value", "__topic"])
    assert copies(writer(root.path, WITH_TOPIC, topic=""), rows) == {3}, "y has the root's quorum"


def test_a_write_above_a_backlog_quota_fails_its_commit(tmp_path: Path) -> None:
    root = Root.open_or_create(tmp_path / "root")
    first = writer(root.path)
    first.commit([run(first, batch(b"x" * 100))])
    parts = target(root, "x").parts
    subscriptions.create_subscriptions(root.store, "slow", "Shared", dict.fromkeys(parts, EARLIEST))
    quota = {"limitSize": 50, "policy": "producer_exception"}
    set_topic_policies(root, TopicName.parse("x"), {"backlog_quota_size": quota})
    second = writer(root.path)
    message = run(second, batch(b"more"))
    with pytest.raises(BacklogQuotaExceededError, match="nothing was written"):
        second.commit([message])
    assert values(root, "x") == [b"x" * 100]


def test_rows_of_many_topics_keep_their_order(tmp_path: Path) -> None:
    root = tmp_path / "root"
    made = writer(root, WITH_TOPIC, topic="")
    names = [("a", "persistent://public/default/a", "t/n/b", "a")[number % 4] for number in range(400)]
    rows = [pa.array([str(number) for number in range(400)]), pa.array(names)]
    made.commit([run(made, pa.record_batch(rows, names=["value", "__topic"]))])
    assert values(Root.open(root), "t/n/b") == [b"%d" % number for number in range(2, 400, 4)]
    found = [int(value or b"") for value in values(Root.open(root), "a")]
    assert sorted(found) == [number for number in range(400) if number % 4 != 2]


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        (None, "Column __topic is null in a row"),
        ("a//b", "Topic name 'a//b' is not valid"),
        ("non-persistent://t/n/x", "exists only in a broker's memory"),
        ("x-partition-1", "is named like a partition"),
    ],
)
def test_a_row_with_a_bad_topic_fails_the_task(tmp_path: Path, topic: str | None, said: str) -> None:
    made = writer(tmp_path / "root", WITH_TOPIC, topic="")
    rows = pa.record_batch([pa.array(["v"]), pa.array([topic], pa.string())], names=["value", "__topic"])
    with pytest.raises(InvalidArgumentError, match=said):
        made.write(iter([rows]))
    assert Root.open(tmp_path / "root").topics() == []


def test_a_storage_path_that_fails_is_replaced_and_marked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "root"
    made = writer(root)
    shutil.rmtree(root / "storage" / "1")
    made.commit([run(made, batch(b"a")), run(made, batch(b"b"))])
    assert values(Root.open(root), "x") == [b"a", b"b"]
    assert len([record for record in caplog.records if "Storage path 1 failed and is read-only" in record.message]) == 1
    assert {path.path_id: path.state for path in Root.open(root).status().paths}[1] == "read-only"


def test_below_the_ack_quorum_nothing_is_written(tmp_path: Path) -> None:
    root = tmp_path / "root"
    made = writer(root)
    for number in (0, 2):
        shutil.rmtree(root / "storage" / str(number))
    with pytest.raises(NotEnoughCopiesError, match="repair or add storage paths"):
        made.write(iter([batch(b"a")]))
    assert [path for path in files(root) if "segments" in path.parts] == []
    states = [path.state for path in Root.open(root).status().paths]
    assert states == ["read-only", "writable", "read-only"], "no driver hears of this task, so it marks them itself"


def test_a_stream_has_no_transaction_of_its_own_choice(tmp_path: Path) -> None:
    options = write_options({"path": str(tmp_path / "root"), "topic": "x", "txnAppId": "a", "txnVersion": "1"})
    with pytest.raises(InvalidArgumentError, match="txnAppId and txnVersion belong to batch writes"):
        PulsarStreamWriter(options, VALUES, False)
    assert not (tmp_path / "root").exists()


def test_a_topic_cannot_be_overwritten(tmp_path: Path) -> None:
    options = write_options({"path": str(tmp_path / "root"), "topic": "x"})
    for made in (PulsarBatchWriter, PulsarStreamWriter):
        with pytest.raises(InvalidArgumentError, match="can't be overwritten: use mode"):
            made(options, VALUES, True)
    assert not (tmp_path / "root").exists()


TRIP = StructType([StructField("city", StringType()), StructField("fare", DoubleType())])


@pytest.mark.parametrize(("value_format", "stored"), [("json", b'{"city":"Paris","fare":2.5}'), ("avro", None)])
def test_a_typed_write_registers_its_schema(tmp_path: Path, value_format: str, stored: bytes | None) -> None:
    given = {"topic": "trips", "valueFormat": value_format, "valueSchema": TRIP.json(), "registerSchema": "true"}
    rows = pa.RecordBatch.from_pydict({"city": ["Paris"], "fare": [2.5]})
    for _ in range(2):
        made = writer(tmp_path / "root", TRIP, **given)
        made.commit([run(pickled(made), rows)])
    root = Root.open(tmp_path / "root")
    schema = registry.latest(root.store.view(), root.topics()[0])
    assert schema is not None
    assert (schema.type, schema.version) == (value_format.upper(), 0)
    assert {dict(message.columns)["schema_version"] for message in read(root, "trips")} == {bytes(8)}
    assert stored is None or set(values(root, "trips")) == {stored}

    wider = StructType([*TRIP, StructField("note", StringType(), False)])
    with pytest.raises(IncompatibleSchemaError):
        writer(tmp_path / "root", wider, **(given | {"valueSchema": wider.json()}))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "x"}, "needs the options topic, valueFormat and valueSchema"),
        ({"topic": "", "valueFormat": "json", "valueSchema": "value STRING"}, "needs the options topic"),
        ({"topic": "x", "valueFormat": "json", "valueSchema": "value DATE"}, "'value' is date32.* use AVRO"),
        (
            {"topic": "x", "valueFormat": "avro", "valueSchema": "value DATE"},
            "Column 'value' is binary, but the topic's schema has the type date",
        ),
    ],
)
def test_a_schema_that_cannot_be_registered_creates_nothing(tmp_path: Path, options: dict[str, str], said: str) -> None:
    with pytest.raises((InvalidArgumentError, IncompatibleSchemaError), match=said):
        writer(tmp_path / "root", registerSchema="true", **options)
    assert not (tmp_path / "root").exists()


def test_a_stream_registers_no_schema(tmp_path: Path) -> None:
    given = {"path": str(tmp_path / "root"), "topic": "x", "valueFormat": "json", "valueSchema": "a INT"}
    with pytest.raises(InvalidArgumentError, match=r"declare the schema by Root\.declare_schema before the stream"):
        PulsarStreamWriter(write_options(given | {"registerSchema": "true"}), VALUES, False)


def first_write(root: Path, number: int, all_ready: Barrier) -> None:
    all_ready.wait(LIMIT_S)
    made = writer(root)
    made.commit([run(made, batch(b"%d" % number))])


def test_first_writes_at_once_make_one_root_and_one_topic(tmp_path: Path) -> None:
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([__name__])
    all_ready = forks.Barrier(4)
    processes = [forks.Process(target=first_write, args=(tmp_path / "root", number, all_ready)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIMIT_S)
    assert [process.exitcode for process in processes] == [0] * 4
    root = Root.open(tmp_path / "root")
    assert sorted(value or b"" for value in values(root, "x")) == [b"0", b"1", b"2", b"3"]
    assert len(root.topics()) == 1


def test_transactions_are_of_one_target(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Delta's idempotent foreachBatch: one txnAppId, several targets."""
    several = pa.record_batch([pa.array(["a", "a", "b"]), pa.array(["x", "y", "x"])], names=["value", "__topic"])
    for _ in range(2):
        for topic in ("x", "y", ""):
            schema, rows = (VALUES, batch(b"1", b"2")) if topic else (WITH_TOPIC, several)
            made = writer(tmp_path / "root", schema, topic=topic, txnAppId="a", txnVersion="7")
            made.commit([run(made, rows)])
    root = Root.open(tmp_path / "root")
    assert (len(values(root, "x")), len(values(root, "y"))) == (4, 3)
    said = [record for record in caplog.records if "is committed already" in record.getMessage()]
    assert [record.levelno for record in said] == [logging.WARNING] * 3
    assert said[0].getMessage() == (
        "A write of 2 messages was skipped, because txnVersion 7 of txnAppId 'a' for persistent://public/default/x is "
        "committed already."
    )


def test_an_application_with_transactions_of_an_older_version_continues(tmp_path: Path) -> None:
    root = Root.create(tmp_path / "root")
    root.store.commit(lambda _: Change(puts=(), keys={keys.application_of_root("a"): 7}))
    for version in ("7", "8"):
        made = writer(root.path, txnAppId="a", txnVersion=version)
        made.commit([run(made, batch(version.encode()))])
    assert values(root, "x") == [b"8"]


@pytest.mark.parametrize("again", [(b"a",), (b"a", b"b", b"c"), ()])
def test_a_transaction_repeated_with_other_rows_is_refused(tmp_path: Path, again: tuple[bytes, ...]) -> None:
    for payloads in ((b"a", b"b"), (b"c", b"d")):
        made = writer(tmp_path / "root", txnAppId="a", txnVersion="1")
        made.commit([run(made, batch(*payloads))])
    made = writer(tmp_path / "root", txnAppId="a", txnVersion="1")
    with pytest.raises(ReplayDiffersError, match=f"TxnVersion 1 .* with 2 messages, and came again with {len(again)}"):
        made.commit([run(made, batch(*again))])
    assert values(Root.open(tmp_path / "root"), "x") == [b"a", b"b"]


@contextmanager
def task_of(query_id: str, batch_id: int, **settings: str) -> Iterator[None]:
    """Be a task of a micro-batch, with the properties that Spark gives it."""
    context = TaskContext._getOrCreate()
    context._partitionId = 0
    context._localProperties = {
        "sql.streaming.queryId": query_id,
        "streaming.sql.batchId": str(batch_id),
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    try:
        yield
    finally:
        TaskContext._taskContext = None


def micro_batch(
    options: dict[str, str], query_id: str, batch_id: int, *batches: pa.RecordBatch, **settings: str
) -> None:
    """Spark's way through a micro-batch: a writer for the tasks, and another one to commit."""
    schema = VALUES if "topic" in options else WITH_TOPIC
    with task_of(query_id, batch_id, **settings):
        message = PulsarStreamWriter(write_options(options), schema, False).write(iter(batches))
    PulsarStreamWriter(write_options(options), schema, False).commit([message], batch_id)


NAMED = pa.record_batch([pa.array(["a"]), pa.array(["x"])], names=["value", "__topic"])


@pytest.mark.parametrize("rows_name_topics", [False, True])
def test_a_streaming_query_does_not_recreate_its_deleted_topic(tmp_path: Path, rows_name_topics: bool) -> None:
    """However Spark was given the checkpoint, and whatever file system that is on."""
    root = Root.create(tmp_path / "root")
    root.create_topic("x", partitions=3)
    options = {"path": str(root.path)} if rows_name_topics else {"path": str(root.path), "topic": "x"}
    rows = NAMED if rows_name_topics else batch(b"a")
    micro_batch(options, "3f6d", 0, rows)
    root.delete_topic("x")
    with pytest.raises(TopicNotFoundError, match="was deleted under the streaming query"):
        micro_batch(options, "3f6d", 1, rows)
    assert root.topics() == []
    micro_batch(options, "another", 0, rows)
    assert [topic.name for topic in root.topics()] == ["persistent://public/default/x"]


def test_a_streaming_query_makes_its_topic_with_its_first_batch(tmp_path: Path) -> None:
    options = {"path": str(tmp_path / "root"), "topic": "x"}
    PulsarStreamWriter(write_options(options), VALUES, False)
    root = Root.open(tmp_path / "root")
    assert root.topics() == []
    micro_batch(options, "3f6d", 0)
    assert [topic.name for topic in root.topics()] == ["persistent://public/default/x"]
    micro_batch(options, "3f6d", 1, batch(b"a"))
    assert values(root, "x") == [b"a"]


def test_rows_may_name_new_topics_at_any_time(tmp_path: Path) -> None:
    options = {"path": str(tmp_path / "root")}
    for number, topic in enumerate(("x", "y")):
        rows = pa.record_batch([pa.array(["a"]), pa.array([topic])], names=["value", "__topic"])
        micro_batch(options, "3f6d", number, rows)
    assert len(Root.open(tmp_path / "root").topics()) == 2


def test_a_batch_repeated_with_other_rows_is_refused(tmp_path: Path) -> None:
    """After a power cut that took Spark's log of offsets: batch 1 is planned again, over more or less."""
    options = {"path": str(tmp_path / "root"), "topic": "x"}
    micro_batch(options, "q", 0, batch(b"a"))
    micro_batch(options, "q", 1, batch(b"b", b"c"))
    micro_batch(options, "q", 1, batch(b"b"), batch(b"c"))
    for rows in (batch(b"b", b"c", b"d"), batch(b"b"), batch()):
        with pytest.raises(ReplayDiffersError, match="Batch 1 of streaming query q is committed with 2 messages"):
            micro_batch(options, "q", 1, rows)
    with pytest.raises(ReplayDiffersError, match="Batch 0 of streaming query q came after batch 1"):
        micro_batch(options, "q", 0, batch(b"a"))
    root = Root.open(tmp_path / "root")
    assert values(root, "x") == [b"a", b"b", b"c"]
    micro_batch(options, "q", 2, batch(b"d"))
    assert values(root, "x") == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("way", ["option", "setting"])
def test_a_batch_is_committed_only_when_its_offsets_are_durable(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / "checkpoints" / "named"
    other = tmp_path / "checkpoints" / "other"
    for folder, query in ((checkpoint, "q"), (other, "another")):
        (folder / "offsets").mkdir(parents=True)
        (folder / "metadata").write_text(f'{{"id":"{query}"}}')
        (folder / "offsets" / "0").write_text("v1")
    (checkpoint / "offsets" / ".0.crc").write_text("crc")
    options = {"path": str(tmp_path / "root"), "topic": "x"}
    settings = {}
    if way == "option":
        options["checkpointLocation"] = checkpoint.as_uri()
    else:
        settings["spark_sql_streaming_checkpointLocation"] = str(tmp_path / "checkpoints")
    synced: list[str] = []
    real = OsFiles.fdatasync

    def fdatasync(files: OsFiles, fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.is_relative_to(tmp_path / "checkpoints"):
            synced.append(str(path.relative_to(checkpoint)))
            assert root.store.view().all(SegmentRecord) == []
        real(files, fd)

    root = Root.create(tmp_path / "root")
    monkeypatch.setattr(OsFiles, "fdatasync", fdatasync)
    micro_batch(options, "q", 0, batch(b"a"), **settings)
    assert synced == ["offsets/0", "offsets/.0.crc", "metadata"]
    assert values(root, "x") == [b"a"]

    def failing(files: OsFiles, fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").startswith(str(checkpoint)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(files, fd)

    monkeypatch.setattr(OsFiles, "fdatasync", failing)
    (checkpoint / "offsets" / "1").write_text("v1")
    with pytest.raises(StorageError, match=r"offsets of batch 1 .* cannot be made durable"):
        micro_batch(options, "q", 1, batch(b"b"), **settings)
    assert values(root, "x") == [b"a"]


def test_the_topics_that_rows_may_name_weigh_little_in_each_task() -> None:
    """100,000 partitions, of which a task's rows name one."""
    ids = " ".join(uuid.uuid4().hex for _ in range(10))
    names = [f"persistent://public/default/topic-{number}" for number in range(10_000)]
    plain = {f"{name}-plain": uuid.uuid4().hex for name in names}
    carried = pickle.dumps(WriteTargets(plain, dict.fromkeys(names, ids)))
    assert len(carried) < 2_000_000, "ids are the same object here, and 33 bytes each in a root"
    known = pickle.loads(carried)
    found = known.get(TopicName.parse("topic-7"))
    assert [(part.name, part.topic_id, part.partition) for part in found.parts] == [
        (f"persistent://public/default/topic-7-partition-{index}", each, index)
        for index, each in enumerate(ids.split())
    ]
    (one,) = known.get(TopicName.parse("topic-7-plain")).parts
    assert (one.name, one.topic_id, one.partition) == (f"{names[7]}-plain", plain[f"{names[7]}-plain"], -1)
    assert known.get(TopicName.parse("another")) is None


def test_a_task_without_the_mounts_reports_its_first_error(tmp_path: Path) -> None:
    """Neither storage paths nor root are there: the error is that of the paths."""
    made = writer(tmp_path / "root")
    (tmp_path / "root").rename(tmp_path / "elsewhere")
    with pytest.raises(NotEnoughCopiesError, match="mount its disk"):
        run(made, batch(b"a"))


def test_a_write_after_a_dead_brokers_open_ledger_is_visible_at_once(tmp_path: Path) -> None:
    root = Root.create(tmp_path)
    root.create_topic("x")
    with RunningIncarnation(root, lease_duration_s=0.3) as broker:
        broker.send("x", [b"1"])
        broker.kill()
    time.sleep(0.4)
    task = writer(tmp_path)
    task.commit([run(task, batch(b"2"))])
    (incarnation,) = root.status().incarnations
    assert incarnation.state == "CLOSED"
    (topic,) = root.status().topics
    assert topic.messages == 2
