"""Option readCompacted: the compacted ledger up to its horizon, then the log."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict

from pulsar_on_spark import Root
from pulsar_on_spark.datasource.options import read_options
from pulsar_on_spark.datasource.source import PulsarDataSource
from pulsar_on_spark.datasource.stream_reader import PulsarStreamReader
from pulsar_on_spark.metadata.records import CompactionRecord, FileRecord
from pulsar_on_spark.model.errors import (
    CopiesUnreachableError,
    DataLossError,
    InvalidArgumentError,
    UnreadableMessageError,
)
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.topic.maintenance.compaction.compact import compact
from pulsar_on_spark.topic.maintenance.files.collect import Ages, collect
from tests.kit.messages import write
from tests.kit.pulsar_entries import ClientMessage, batch_entry, single_entry
from tests.kit.running_incarnation import RunningIncarnation

SOON = Ages(keep_replaced_s=0.0)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    made = Root.create(tmp_path / "root")
    made.create_topic("x")
    return made


def source(root: Root, **options: object) -> PulsarDataSource:
    given = {"path": str(root.path), "topic": "x", "readCompacted": "true"}
    return PulsarDataSource(CaseInsensitiveDict(given | {name: str(value) for name, value in options.items()}))


def rows(root: Root, **options: object) -> list[dict[str, object]]:
    made = source(root, **options)
    reader = pickle.loads(pickle.dumps(made.reader(made.schema())))
    found: list[dict[str, object]] = []
    for partition in reader.partitions():
        for batch in reader.read(pickle.loads(pickle.dumps(partition))):
            found += batch.to_pylist(maps_as_pydicts="strict")
    return found


def values(root: Root, **options: object) -> list[object]:
    return [row["value"] for row in rows(root, **options)]


def test_an_uncompacted_topic_is_read_completely(root: Root) -> None:
    write(root, "x", [b"1", b"2"], [b"a", b"a"])
    assert values(root) == [b"1", b"2"]


def test_newest_of_each_key_then_the_log(root: Root) -> None:
    write(root, "x", [b"a1", b"b1", b"a2", None, b"no key"], [b"a", b"b", b"a", b"c", None])
    compact(root, "x")
    write(root, "x", [b"b2", None], [b"b", b"a"])
    log = values(root, readCompacted="false")  # a Spark write is in the order of its keys' slots
    assert len(log) == 7
    assert values(root) == [value for value in log[:5] if value in (b"b1", b"a2")] + log[5:]
    compact(root, "x")
    assert values(root) == [b"b2"]


def test_rows_are_those_of_the_log(root: Root) -> None:
    """Ids, times and all other columns, of messages of Spark and of clients."""
    write(root, "x", [b"%d" % number for number in range(100)], [b"k%d" % (number % 10) for number in range(100)])
    with RunningIncarnation(root) as broker:
        group = [ClientMessage(b"%d" % n, b"k%d" % n, properties=(("p", str(n)),), event_time=n + 1) for n in range(5)]
        broker.send_entries("x", [batch_entry(group), single_entry(ClientMessage(b"s", b"k3"))], [5, 1])
        broker.stop()
    everything = rows(root, readCompacted="false", includeMetadata="true")
    compact(root, "x")
    found = rows(root, includeMetadata="true")
    newest = {row["__key"]: row for row in everything}
    assert sorted(found, key=str) == sorted(newest.values(), key=str)
    assert found == [row for row in everything if row in found]


def test_offsets_select_among_the_remaining_messages(root: Root) -> None:
    with RunningIncarnation(root) as broker:
        entries = [single_entry(ClientMessage(b"%d" % number, b"k%d" % (number % 3))) for number in range(4)]
        broker.send_entries("x", entries)
        ledger = broker.acknowledged_ids[0].ledger
        broker.stop()
    compact(root, "x")
    assert values(root) == [b"1", b"2", b"3"]
    assert values(root, startingOffsets=json.dumps({"x": [ledger, 2]})) == [b"2", b"3"]
    assert values(root, endingOffsets=json.dumps({"x": [ledger, 1]})) == [b"1"]


def test_unreadable_messages_are_an_error_as_in_the_log(root: Root) -> None:
    encrypted = MessageMetadata()
    encrypted.encryption_keys.add(key="k", value=b"secret")
    with RunningIncarnation(root) as broker:
        broker.send_entries(
            "x", [single_entry(ClientMessage(b"1", b"a"), metadata=encrypted), single_entry(ClientMessage(b"2", b"b"))]
        )
        broker.stop()
    compact(root, "x")
    with pytest.raises(UnreadableMessageError, match="it is encrypted"):
        rows(root)
    assert values(root, failOnDataLoss="false") == [b"2"]


def test_a_read_continues_while_the_topic_is_compacted_again(root: Root) -> None:
    write(root, "x", [b"1", b"2"], [b"a", b"b"])
    compact(root, "x")
    made = source(root)
    reader = made.reader(made.schema())
    plan, first = reader.partitions(), values(root)
    write(root, "x", [b"3"], [b"a"])
    compact(root, "x")
    collect(root)
    assert [row["value"] for part in plan for batch in reader.read(part) for row in batch.to_pylist()] == first
    collect(root, SOON)
    with pytest.raises(DataLossError, match="its files were deleted while they were read"):
        list(reader.read(plan[0]))


def test_splits_cover_the_compacted_topic(root: Root) -> None:
    for number in range(6):
        write(
            root,
            "x",
            [b"%d %d" % (number, row) for row in range(500)],
            [b"%d %d" % (number, row) for row in range(500)],
        )
    compact(root, "x")
    assert len(values(root, minPartitions=4)) == 3000
    assert values(root, minPartitions=4) == values(root)


def test_streams_refuse_read_compacted(root: Root) -> None:
    with pytest.raises(InvalidArgumentError, match="Option readCompacted is not possible in a stream"):
        PulsarStreamReader(read_options({"path": str(root.path), "topic": "x", "readCompacted": "true"}), None)  # type: ignore[arg-type]


def test_in_sql(spark: SparkSession, root: Root) -> None:
    write(root, "x", [b"%d" % number for number in range(50)], [b"k%d" % (number % 5) for number in range(50)])
    compact(root, "x")
    write(root, "x", [b"50"], [b"k0"])
    read = spark.read.format("pulsarpy").option("topic", "x").option("readCompacted", True).load(str(root.path))
    read.createOrReplaceTempView("newest")
    found = spark.sql("select cast(value as string) from newest where cast(__key as string) = 'k0'").collect()
    assert ([row[0] for row in found], read.count()) == (["45", "50"], 6)


def test_a_damaged_file_loses_only_its_damaged_batches(root: Root) -> None:
    """Batches are read in groups: those before the bad one are good."""
    wanted = [b"%06d" % number + b"x" * 1_000 for number in range(14_000)]
    write(root, "x", wanted, [value[:6] for value in wanted])
    compact(root, "x")
    view = root.store.view()
    (record,) = view.all(CompactionRecord)
    (compacted,) = record.files
    file = view.get(FileRecord, compacted.file_id)
    assert file is not None
    assert len(compacted.batches) > 2
    whole = values(root)
    assert len(whole) == len(wanted)
    for path_id in file.copies:
        copy = root.journal_paths(view)[PathId(path_id)].segment_file(file.names[path_id])
        content = bytearray(copy.read_bytes())
        content[sum(file.tile_lengths[:2]) + 50] ^= 1
        copy.write_bytes(content)
    counts = [rows for _, _, _, rows in compacted.batches]
    found = values(root, failOnDataLoss="false")
    assert found == whole[: counts[0]] + whole[counts[0] + counts[1] :]
    with pytest.raises(DataLossError, match=f"{counts[1]} compacted messages"):
        values(root)
    (root.path / "storage").rename(root.path / "away")
    with pytest.raises(CopiesUnreachableError):
        values(root, failOnDataLoss="false")
