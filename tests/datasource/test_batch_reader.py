"""The batch reader as Spark calls it, without Spark: selections, positions, splits, losses."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition

from pulsar_on_spark import Root
from pulsar_on_spark.datasource.batch_reader import PulsarBatchReader
from pulsar_on_spark.datasource.source import PulsarDataSource
from pulsar_on_spark.metadata.records import SubscriptionRecord
from pulsar_on_spark.model.errors import (
    DataLossError,
    IncompatibleSchemaError,
    InvalidArgumentError,
    NotARootError,
    TopicNotFoundError,
)
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.storage.reports import ReportKind, read_reports, sum_losses
from pulsar_on_spark.topic.data_path.attach import attach
from tests.kit.journal_logs import LogOnDisk
from tests.kit.messages import make_rows, new_write_id, stage, write
from tests.kit.pulsar_entries import ClientMessage, single_entry
from tests.topic.managed_ledger.sealing import test_lost_frames as lost_frames


def reader(root: Path, topic: str | None = "x", /, **options: object) -> PulsarBatchReader:
    given = {"path": str(root)} | {name: str(value) for name, value in options.items()}
    if topic is not None:
        given["topic"] = topic
    source = PulsarDataSource(CaseInsensitiveDict(given))
    made = source.reader(source.schema())
    return pickle.loads(pickle.dumps(made))


def rows(made: PulsarBatchReader, plan: Sequence[InputPartition] | None = None) -> list[dict[str, object]]:
    """Return the rows that Spark's tasks would read."""
    found: list[dict[str, object]] = []
    for partition in made.partitions() if plan is None else plan:
        for batch in made.read(pickle.loads(pickle.dumps(partition))):
            found += batch.to_pylist(maps_as_pydicts="strict")
    return found


def payloads(root: Path, topic: str | None = "x", /, **options: object) -> list[object]:
    return [row["value"] for row in rows(reader(root, topic, **options))]


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root.create(tmp_path / "root")


@pytest.fixture
def filled(root: Root) -> Root:
    """Topic x: three writes of 1,500 messages, entries of up to 1,000."""
    root.create_topic("x")
    for first in (0, 1_500, 3_000):
        write(root, "x", numbered(first, first + 1_500))
    return root


def test_a_read_is_planned_from_the_metadata_that_its_columns_came_from(root: Root) -> None:
    """A further look would be a further request on an object store. Tasks do not get the metadata."""
    root.create_topic("x")
    write(root, "x", [b"1"])
    source = PulsarDataSource(CaseInsensitiveDict({"path": str(root.path), "topic": "x"}))
    made = source.reader(source.schema())
    write(root, "x", [b"2"])
    assert [row["value"] for row in rows(made)] == [b"1"]
    assert [row["value"] for row in rows(pickle.loads(pickle.dumps(made)))] == [b"1", b"2"]


def test_the_whole_topic_in_order(filled: Root) -> None:
    assert payloads(filled.path) == numbered(0, 4_500)


def test_reading_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotARootError, match=r"Root .*absent does not exist: make it with"):
        reader(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"")
    for name in ("empty", "file"):
        with pytest.raises(NotARootError, match=name):
            reader(tmp_path / name)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "file"]


def test_a_read_leaves_the_root_unchanged(filled: Root) -> None:
    def state() -> list[tuple[str, int]]:
        return sorted((str(path), path.stat().st_mtime_ns) for path in filled.path.rglob("*"))

    before = state()
    made = reader(filled.path, subscription="s", subscriptionType="Shared")
    assert len(rows(made)) == 4_500
    with pytest.raises(TopicNotFoundError, match=r"Topic persistent://public/default/y does not exist"):
        reader(filled.path, "y")
    assert state() == before
    assert filled.store.view().all(SubscriptionRecord) == []


def test_a_plan_is_a_snapshot(filled: Root) -> None:
    made = reader(filled.path)
    plan = made.partitions()
    write(filled, "x", [b"later"])
    assert len(rows(made, plan)) == 4_500
    assert len(rows(made)) == 4_501


def test_a_plan_outlives_the_merging_of_segments(filled: Root) -> None:
    made = reader(filled.path, columns="value,__messageIdStr")
    plan = made.partitions()
    before = rows(made, plan)
    filled.maintain()
    assert filled.status().topics[0].segments == 1
    assert rows(made, plan) == before == rows(made)


def test_topics_by_list_and_pattern(filled: Root) -> None:
    for name in ("a/b/x1", "x1", "x2", "y1"):
        filled.create_topic(name)
        write(filled, name, [name.encode()])
    filled.create_topic("p", partitions=2)
    write(filled, "p", [b"p"] * 4)
    assert payloads(filled.path, None, topics="x2, y1,x2") == [b"x2", b"y1"]
    assert payloads(filled.path, None, subscribe="x1,persistent://a/b/x1") == [b"x1", b"a/b/x1"]
    assert payloads(filled.path, None, topicsPattern="x[0-9]") == [b"x1", b"x2"]
    assert payloads(filled.path, None, subscribePattern="persistent://[a-z]+/[a-z]+/x[0-9]") == [
        b"a/b/x1",
        b"x1",
        b"x2",
    ]
    assert payloads(filled.path, None, topicsPattern="nothing.*") == []
    assert payloads(filled.path, None, topics="p-partition-1,p") == [b"p"] * 4
    assert payloads(filled.path, "p-partition-1") == [b"p"] * 2
    with pytest.raises(InvalidArgumentError, match=r"Option topicsPattern '\(' is not a regular expression"):
        reader(filled.path, None, topicsPattern="(")
    with pytest.raises(TopicNotFoundError, match="public/default/nope"):
        reader(filled.path, None, topics="x1,nope")


def test_positions_by_message_id(filled: Root) -> None:
    ids = [row["__messageIdStr"] for row in rows(reader(filled.path, columns="__messageIdStr"))]
    ledger = str(ids[0]).split(":")[0]
    # Entries are 0..999, 1000..1499, 1500..2499, ...
    for start in (f'"{ids[1_000]}"', f'"{ids[1_200]}"', f"[{ledger}, 1]", f'"{ledger}:1"'):
        assert payloads(filled.path, startingOffsets=f'{{"x": {start}}}') == numbered(1_000, 4_500)
        assert payloads(filled.path, endingOffsets=f'{{"x": {start}}}') == numbered(0, 1_500)
    both = {"startingOffsets": json.dumps({"x": ids[1_000]}), "endingOffsets": json.dumps({"x": ids[1_500]})}
    assert payloads(filled.path, **both) == numbered(1_000, 2_500)
    assert payloads(filled.path, startingOffsets=f'{{"x": [{ledger}, 6]}}') == []  # the topic's end
    assert payloads(filled.path, startingOffsets="earliest", endingOffsets="latest") == numbered(0, 4_500)
    backwards = {"startingOffsets": json.dumps({"x": ids[3_000]}), "endingOffsets": json.dumps({"x": ids[0]})}
    with pytest.raises(InvalidArgumentError, match="startingOffsets at or before endingOffsets"):
        payloads(filled.path, **backwards)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"startingOffsets": "latest"}, InvalidArgumentError, "startingOffsets can't be latest in a batch"),
        ({"startingOffsets": "{"}, InvalidArgumentError, "Option startingOffsets has the value '{'"),
        ({"startingOffsets": "0"}, InvalidArgumentError, "Option startingOffsets"),
        ({"endingOffsets": "earliest"}, InvalidArgumentError, "Option endingOffsets has the value 'earliest'"),
        (
            {"startingOffsets": '{"y": "earliest"}'},
            InvalidArgumentError,
            "names persistent://public/default/y, which this query does not read",
        ),
        ({"startingOffsets": '{"x": [99, 0]}'}, DataLossError, "Option startingOffsets: .*ledger 99 does not exist"),
        ({"endingOffsets": '{"x": [99, 0]}'}, DataLossError, "Option endingOffsets: .*ledger 99 does not exist"),
        ({"startingOffsets": '{"x": [1, 7]}'}, DataLossError, "ledger 1 ends before it"),
        ({"endingOffsets": '{"x": [1, 6]}'}, DataLossError, "ledger 1 ends before it"),
        ({"startingTime": 9**15}, InvalidArgumentError, "startingOffsetsByTimestampStrategy to latest"),
        ({"maxMessagesPerTrigger": 5}, InvalidArgumentError, "maxMessagesPerTrigger is possible only in a stream"),
        ({"maxBytesPerTrigger": 5}, InvalidArgumentError, "maxBytesPerTrigger is possible only in a stream"),
        ({"minOffsetsPerTrigger": 5}, InvalidArgumentError, "minOffsetsPerTrigger is possible only in a stream"),
        (
            {"columns": "value,nope"},
            InvalidArgumentError,
            "columns names 'nope': give names of the columns value, __key",
        ),
    ],
)
def test_positions_and_options_that_do_not_fit(
    filled: Root, options: dict[str, object], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        rows(reader(filled.path, **options))


def test_a_time_whose_first_message_may_be_lost(root: Root) -> None:
    log = LogOnDisk(root)
    log.open_ledgers(["x"])
    for number in range(9):
        metadata = MessageMetadata(publish_time=number)
        log.append({"x": [single_entry(ClientMessage(b"%d" % number), metadata=metadata)]})
        if number == 4:
            log.roll()
    log.close()
    lost_frames.lose(log, 3)
    left = payloads(root.path, failOnDataLoss="false")
    first = left[left.index(b"2") + 1]
    assert first is not None
    with pytest.raises(DataLossError, match="may be lost"):
        payloads(root.path, startingTime=int(first))
    assert payloads(root.path, startingTime=int(first), failOnDataLoss="false")[0] == first
    assert payloads(root.path, startingTime=int(first) + 1) == left[left.index(first) + 1 :]


def test_positions_by_publish_time(root: Root) -> None:
    root.create_topic("x")
    times = []
    for number in range(3):
        write(root, "x", numbered(number * 10, number * 10 + 10))
        times.append(time.time_ns() // 1_000_000 + 1)
        time.sleep(0.01)
    assert payloads(root.path, startingTime=times[0]) == numbered(10, 30)
    assert payloads(root.path, startingTimestamp=times[0], endingTimestamp=times[1]) == numbered(10, 20)
    assert payloads(root.path, endingTime=times[2]) == numbered(0, 30)
    assert payloads(root.path, startingTime=0) == numbered(0, 30)
    assert payloads(root.path, startingTime=times[2], startingOffsetsByTimestampStrategy="latest") == []
    root.maintain()
    # Now the three are one segment, and the boundary lies inside it.
    assert payloads(root.path, startingTime=times[0], endingTime=times[1]) == numbered(10, 20)


def test_columns_in_any_order(filled: Root) -> None:
    made = reader(filled.path, columns="__sequenceId, VALUE ,__topic", endingOffsets='{"x": [1, 0]}')
    (batch,) = [batch for partition in made.partitions() for batch in made.read(partition)]
    assert batch.schema.names == ["__sequenceId", "value", "__topic"]
    assert batch.to_pylist()[7] == {"__sequenceId": 7, "value": b"7", "__topic": "persistent://public/default/x"}


def test_a_schema_of_the_users_own_is_refused(filled: Root) -> None:
    source = PulsarDataSource(CaseInsensitiveDict({"path": str(filled.path), "topic": "x"}))
    other = PulsarDataSource(CaseInsensitiveDict({"path": str(filled.path), "topic": "x", "columns": "value"}))
    with pytest.raises(
        InvalidArgumentError, match=r"The columns of this read are value, __key, .*, not value: leave out"
    ):
        source.reader(other.schema())


def test_splits_read_every_message_once(root: Root) -> None:
    root.create_topic("x", partitions=3)
    for first in range(0, 4_000, 1_000):
        keys = [b"%d" % (number % 11) for number in range(first, first + 1_000)]
        write(root, "x", numbered(first, first + 1_000), keys)
    for options in ({}, {"minPartitions": 9}, {"maxRecordsPerPartition": 10}, {"maxRecordsPerPartition": 500}):
        made = reader(root.path, columns="value,__messageIdStr,__topic,__entryId", **options)
        plan = made.partitions()
        found = rows(made, plan)
        assert sorted(int(str(row["value"], "ascii")) for row in found) == list(range(4_000))
        assert len({row["__messageIdStr"] for row in found}) == 4_000
        assert len(plan) >= options.get("minPartitions", 1)
        if "maxRecordsPerPartition" in options:
            for partition in plan:
                read = rows(made, [partition])
                one_entry = len({(row["__topic"], row["__entryId"]) for row in read}) == 1
                assert len(read) <= options["maxRecordsPerPartition"] or one_entry


def test_an_empty_plan_reads_nothing(root: Root) -> None:
    root.create_topic("x")
    made = reader(root.path)
    assert made.partitions() == []
    assert list(made.read(InputPartition(None))) == []  # what Spark passes then


def segment_files(root: Root) -> list[Path]:
    return sorted(root.path.glob("storage/*/segments/*/*.arrow"))


def test_bad_copies_are_passed_over_and_reported(filled: Root) -> None:
    name = segment_files(filled)[0].name
    copies = [path for path in segment_files(filled) if path.name == name]
    good = copies[0].read_bytes()
    flipped = bytearray(good)
    flipped[300] ^= 1  # in the schema, which every reader checks
    for kept in copies:
        for copy, content in zip(copies, (bytes(flipped), good[:-1], bytes(flipped)), strict=True):
            copy.write_bytes(good if copy == kept else content)
        assert payloads(filled.path) == numbered(0, 4_500)
    # The copy that is tried first is not the good one in two of the three rounds, the second in one.
    found = {report.path_id for report in read_reports(filled.path) if report.kind is ReportKind.BAD_COPY}
    assert len(found) == 2


def test_without_a_good_copy_the_read_fails_or_skips_and_counts(filled: Root) -> None:
    first = segment_files(filled)[0].name
    held = rows(reader(filled.path, columns="value,__entryId"))
    for copy in segment_files(filled):
        if copy.name == first:
            copy.write_bytes(copy.read_bytes()[:-100])
    with pytest.raises(
        DataLossError, match=r"1500 messages of persistent://public/default/x .*failOnDataLoss to false"
    ):
        payloads(filled.path)
    found = payloads(filled.path, failOnDataLoss="false")
    assert len(found) == 3_000
    assert set(found) < {row["value"] for row in held}
    (loss,) = sum_losses(read_reports(filled.path))
    assert loss.reason.startswith("1500 messages of persistent://public/default/x are lost")


def test_a_missing_storage_path_does_not_stop_a_read(filled: Root) -> None:
    (filled.path / "storage" / "1").rename(filled.path / "gone")
    assert payloads(filled.path) == numbered(0, 4_500)


def test_tasks_come_in_the_order_of_their_numbers(root: Root) -> None:
    root.create_topic("x")
    write_id = new_write_id()
    tasks = [stage(root, {"x": make_rows([b"%d" % task] * 3)}, write_id, task) for task in (2, 0, 1)]
    attach(root.store, write_id, tasks, None)
    assert payloads(root.path) == [b"0"] * 3 + [b"1"] * 3 + [b"2"] * 3


def test_metadata_that_only_pulsar_sets(filled: Root) -> None:
    found = rows(reader(filled.path, includeHeaders="true", endingOffsets='{"x": [1, 0]}'))
    assert len(found) == 1_000
    assert {row["__redeliveryCount"] for row in found} == {0}
    assert [row["__sequenceId"] for row in found] == list(range(1_000))
    assert pa.array([row["__messageId"] for row in found]).null_count == 0


def test_a_value_that_ends_the_read_is_named_whatever_columns_are_read(root: Root) -> None:
    root.create_topic("x")
    write(root, "x", [b'{"a":1}'] * 2)
    write(root, "x", [b'{"a":1}', b"{oops"])
    typed = {"valueFormat": "json", "valueSchema": "a INT", "mode": "FAILFAST", "columns": "a"}
    with pytest.raises(IncompatibleSchemaError, match=r"value of message 1:1 of persistent://public/default/x"):
        rows(reader(root.path, **typed))
