"""Builds of unpartitioned topics of bytes: each message once, whatever dies in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from pulsar_on_spark.history_table import build as building
from pulsar_on_spark.history_table import deletion, upkeep
from pulsar_on_spark.history_table import table as history_tables
from pulsar_on_spark.history_table.build import BuildOptions, build
from pulsar_on_spark.history_table.files import encode_file
from pulsar_on_spark.history_table.pieces import SYSTEM
from pulsar_on_spark.history_table.retention import apply_retention
from pulsar_on_spark.history_table.table import HistoryTable, TableVersion
from pulsar_on_spark.metadata.log import cleaning
from pulsar_on_spark.metadata.log.tables import HISTORY
from pulsar_on_spark.metadata.records import HistoryRecord, HistoryTableRecord, SegmentRecord
from pulsar_on_spark.metadata.records.record import Record
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import DataLossError, HistoryTableError, TopicNotFoundError, UnreadableMessageError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.policies.policies import HistoryPolicies
from tests.kit import messages
from tests.kit.journal_logs import LogOnDisk
from tests.kit.pulsar_entries import ClientMessage, single_entry
from tests.metadata.log.test_other_readers import by_duckdb
from tests.topic.managed_ledger.sealing import test_lost_frames as lost_frames

T = TopicName.parse("t")


MEASURED = """
import resource, sys
from pulsar_on_spark.history_table import build as building
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from tests.kit import messages

def rss_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

root = Root.create(sys.argv[1])
for name, fields in (("warm", 1), ("t", 300)):
    root.create_topic(name, schema=", ".join(f"f{number} BIGINT" for number in range(fields)))
    messages.write(root, name, [b'{"f0":1}'] * 60_000)
building.FILE_BYTES = 16 << 20
building.build(root, TopicName.parse("warm"))
idle = rss_bytes()
building.build(root, TopicName.parse("t"))
print(rss_bytes() - idle)
"""


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def topic(root: Root) -> Root:
    root.create_topic("t")
    messages.write(root, "t", [b"a", None, b"c"])
    return root


def folder(root: Root) -> Path:
    (record,) = root.store.view().all(HistoryTableRecord)
    return root.path / record.table


def table_name(root: Root) -> str:
    return folder(root).relative_to(root.path).as_posix()


def values(root: Root) -> list[bytes | None]:
    """The values in the table, as delta-rs reads it, in the order of ids."""
    table = DeltaTable(folder(root)).to_pyarrow_table()
    rows = table.sort_by([("__ledgerId", "ascending"), ("__entryId", "ascending"), ("__batchIndex", "ascending")])
    found: list[bytes | None] = rows.column("value").to_pylist()
    return found


def test_a_build_appends_each_message_once(topic: Root) -> None:
    (built,) = build(topic, T)
    assert (built.rows, values(topic)) == (3, [b"a", None, b"c"])

    assert build(topic, T)[0].rows == 0
    messages.write(topic, "t", [b"d"])
    assert build(topic, T)[0].rows == 1
    assert values(topic) == [b"a", None, b"c", b"d"]


def test_a_topic_without_messages_gets_no_table(root: Root) -> None:
    root.create_topic("t")
    assert build(root, T)[0].rows == 0
    assert not (root.path / "history").exists()


def test_the_rows_have_ids_keys_and_times(topic: Root) -> None:
    build(topic, T)
    row = DeltaTable(folder(topic)).to_pyarrow_table().to_pylist()[0]
    (message, *_) = messages.read(topic, "t")
    assert (row["__ledgerId"], row["__entryId"], row["__batchIndex"]) == (
        message.id.ledger,
        message.id.entry,
        message.id.batch_index,
    )
    stored = dict(message.columns)
    assert (row["__key"], row["__publishTime"], row["__partition"]) == (stored["key"], stored["publish_time"], None)
    assert (row["__messageProperties"], row["__producerName"]) == ([], stored["producer_name"])


@pytest.mark.parametrize("step", ["write_file", "commit", "_record"])
def test_a_build_that_dies_after_a_step_is_completed_by_the_next(
    topic: Root, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    home = building._PartBuild if step == "_record" else HistoryTable
    done = getattr(home, step)

    def die(*arguments: object, **named: object) -> None:
        done(*arguments, **named)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(home, step, die)
        with pytest.raises(Killed):
            build(topic, T)
    messages.write(topic, "t", [b"d"])
    build(topic, T)
    assert values(topic) == [b"a", None, b"c", b"d"]


def test_two_builds_at_once_append_once(topic: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = HistoryTable.commit

    def overtaken(*arguments: object, **named: object) -> None:
        monkeypatch.setattr(HistoryTable, "commit", commit)
        assert build(topic, T)[0].rows == 3
        commit(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(HistoryTable, "commit", overtaken)
    build(topic, T)
    assert values(topic) == [b"a", None, b"c"]
    assert topic.store.view().all(HistoryRecord)[0].rows == 3


@pytest.mark.parametrize("is_built_again", [False, True])
@pytest.mark.parametrize("step", ["create", "write_file", "commit", "_record"])
def test_a_history_that_is_deleted_during_a_build_is_built_from_the_beginning(
    topic: Root, step: str, is_built_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one case, another process builds the next table first."""
    if step != "create":
        build(topic, T)
    messages.write(topic, "t", [b"d"])
    place: Any = building._PartBuild if step == "_record" else HistoryTable
    do = getattr(place, step)

    def deleted_first(*arguments: object, **named: object) -> object:
        monkeypatch.setattr(place, step, do)
        topic.delete_history("t")
        if is_built_again:
            build(topic, T)
        return do(*arguments, **named)

    monkeypatch.setattr(place, step, deleted_first)
    build(topic, T)
    assert values(topic) == [b"a", None, b"c", b"d"]
    (record,) = topic.store.view().all(HistoryRecord)
    assert record.rows == 4
    messages.write(topic, "t", [b"e"])
    build(topic, T)
    assert values(topic) == [b"a", None, b"c", b"d", b"e"]


def test_a_killed_deletion_leaves_no_rows_to_the_next_table(topic: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    build(topic, T)
    old = folder(topic)

    def die(*arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(deletion, "_delete", die)
        with pytest.raises(Killed):
            topic.delete_history("t")
    build(topic, T)
    assert folder(topic) != old
    assert values(topic) == [b"a", None, b"c"]
    monkeypatch.setattr(deletion, "GRACE_S", -60.0)
    assert upkeep.keep_up(topic) == []
    assert not old.exists()


def test_builds_go_on_behind_a_users_optimize_and_vacuum(topic: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    build(topic, T)
    messages.write(topic, "t", [b"d"])
    build(topic, T)
    commit = HistoryTable.commit

    def optimized(*arguments: object, **named: object) -> None:
        """A user's OPTIMIZE comes between the decision and the commit."""
        monkeypatch.setattr(HistoryTable, "commit", commit)
        table = DeltaTable(folder(topic))
        assert table.optimize.compact()["numFilesRemoved"] == 2
        table.vacuum(0, dry_run=False, enforce_retention_duration=False)
        commit(*arguments, **named)  # type: ignore[arg-type]

    messages.write(topic, "t", [b"e"])
    monkeypatch.setattr(HistoryTable, "commit", optimized)
    assert build(topic, T)[0].rows == 1
    assert values(topic) == [b"a", None, b"c", b"d", b"e"]


def test_files_that_a_vacuum_has_deleted_are_written_again(topic: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    build(topic, T)
    messages.write(topic, "t", [b"d"])
    commit = HistoryTable.commit

    def vacuumed(*arguments: object, **named: object) -> None:
        monkeypatch.setattr(HistoryTable, "commit", commit)
        DeltaTable(folder(topic)).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        commit(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(HistoryTable, "commit", vacuumed)
    build(topic, T)
    assert values(topic) == [b"a", None, b"c", b"d"]


def test_a_vacuum_while_files_are_written_does_no_harm(topic: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    build(topic, T)
    messages.write(topic, "t", [b"d"])
    write_file = HistoryTable.write_file

    def vacuumed(*arguments: object, **named: object) -> object:
        monkeypatch.setattr(HistoryTable, "write_file", write_file)
        written = write_file(*arguments, **named)  # type: ignore[arg-type]
        (folder(topic) / written.name).unlink()
        return written

    monkeypatch.setattr(HistoryTable, "write_file", vacuumed)
    build(topic, T)
    assert values(topic) == [b"a", None, b"c", b"d"]


def test_two_builds_that_are_steps_apart_do_not_contradict_each_other(
    topic: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = HistoryTable.version

    def overtaken(table: HistoryTable) -> TableVersion:
        """Two steps of another build come between the reading of the metadata and of the table."""
        monkeypatch.setattr(HistoryTable, "version", version)
        for value in (b"e", b"f"):
            messages.write(topic, "t", [value])
            build(topic, T)
        return version(table)

    build(topic, T)
    messages.write(topic, "t", [b"d"])
    monkeypatch.setattr(HistoryTable, "version", overtaken)
    build(topic, T)
    assert values(topic) == [b"a", None, b"c", b"d", b"e", b"f"]


def test_a_backlog_is_built_in_steps_and_pieces(topic: Root) -> None:
    for number in range(20):
        messages.write(topic, "t", [b"%02d" % number * 50])
    (built,) = build(topic, T, BuildOptions(step_bytes=500, piece_bytes=200))
    assert (built.rows, len(values(topic))) == (23, 23)
    record = topic.store.view().all(HistoryRecord)[0]
    assert (record.generation, len(list(folder(topic).glob("g1-*.parquet")))) == (4, 3)


def test_the_memory_of_a_build_does_not_grow_with_the_number_of_fields(memory_path: Path) -> None:
    script = [sys.executable, "-c", MEASURED, str(memory_path / "root")]
    done = subprocess.run(script, check=True, capture_output=True, text=True)
    assert int(done.stdout) < 128 << 20  # the rows together are 144 MiB


def test_a_build_may_be_limited(topic: Root) -> None:
    for number in range(4):
        messages.write(topic, "t", [b"%02d" % number * 50])
    assert [build(topic, T, BuildOptions(limit_bytes=150))[0].rows for _ in range(4)] == [5, 2, 0, 0]


def test_the_work_of_a_step_does_not_grow_with_the_backlog(topic: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    live = View._live

    def counted(view: View, cls: type[Record], record_id: str) -> Record:
        read.append(record_id)
        return live(view, cls, record_id)

    monkeypatch.setattr(View, "_live", counted)
    counts = []
    for backlog in (3, 30):
        for _ in range(backlog):
            messages.write(topic, "t", [b"x" * 100])
        read.clear()
        build(topic, T, BuildOptions(step_bytes=1, limit_bytes=1))
        counts.append(len(read))
    assert counts[1] <= counts[0]


def test_a_checkpoint_shortens_the_log(topic: Root) -> None:
    build(topic, T)
    for number in range(70):
        messages.write(topic, "t", [b"%d" % number])
        build(topic, T)
    assert list(folder(topic).glob("_delta_log/*.checkpoint.parquet"))
    assert len(values(topic)) == 73
    assert HistoryTable(topic.path, table_name(topic)).version().checkpointed > 0


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_builds_go_on_behind_a_users_clean_up_of_the_log(topic: Root, is_checkpointed: bool) -> None:
    build(topic, T)
    for number in range(70 if is_checkpointed else 3):
        messages.write(topic, "t", [b"%d" % number])
        build(topic, T)
    before, rows = HistoryTable(topic.path, table_name(topic)).version(), values(topic)
    long_ago = time.time() - 3 * 86_400
    for entry in folder(topic).glob("_delta_log/*"):
        os.utime(entry, (long_ago, long_ago))
    table = DeltaTable(folder(topic))
    table.create_checkpoint()
    table.cleanup_metadata()
    assert not (folder(topic) / "_delta_log" / f"{0:020d}.json").exists()
    after = HistoryTable(topic.path, table_name(topic)).version()
    assert (after.files, after.snapshot.keys, after.columns) == (before.files, before.snapshot.keys, before.columns)
    messages.write(topic, "t", [b"d"])
    assert build(topic, T)[0].rows == 1
    assert values(topic) == [*rows, b"d"]


def test_a_field_may_have_the_name_of_a_checksum(root: Root) -> None:
    root.create_topic("t", schema="id BIGINT, pulsarpyCrc STRING, pulsarpyPrevious STRING")
    for number in range(2):
        messages.write(root, "t", [b'{"id": %d}' % number])
        assert build(root, T)[0].rows == 1
        DeltaTable(folder(root)).alter.set_table_description("all orders")


def test_a_users_properties_and_comment_stay(topic: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_tables, "_CHECKPOINT_ENTRIES", 1)
    topic.declare_schema("t", "id BIGINT")
    build(topic, T)
    theirs = DeltaTable(folder(topic))
    theirs.alter.set_table_description("all orders")
    theirs.alter.set_table_properties({"delta.appendOnly": "true"})
    for fields in ("id BIGINT, a STRING", "id BIGINT, a STRING, b STRING"):
        topic.declare_schema("t", fields)
        messages.write(topic, "t", [b'{"id": 1}'])
        build(topic, T)
    assert list(folder(topic).glob("_delta_log/*.checkpoint.parquet"))
    found = DeltaTable(folder(topic)).metadata()
    assert found.description == "all orders"
    table = HistoryTable(topic.path, table_name(topic))
    with pytest.raises(HistoryTableError, match=r"delta\.appendOnly"):
        apply_retention(table, HistoryPolicies(retention_size_in_mb=0))
    assert len(table.version().files) == 3


def test_entries_of_the_last_day_stay(topic: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `delta.logRetentionDuration` promises to users who read an older version."""
    monkeypatch.setattr(history_tables, "_CHECKPOINT_ENTRIES", 1)
    monkeypatch.setattr(cleaning, "KEEP_ENTRIES", 1)
    for keep_s, kept in ((86_400.0, 6), (-1.0, 2)):
        monkeypatch.setattr(history_tables, "_KEEP_LOG_S", keep_s)
        for number in range(5):
            messages.write(topic, "t", [b"%d" % number])
            build(topic, T)
        assert len(list(folder(topic).glob("_delta_log/*.json"))) == kept
    assert DeltaTable(folder(topic)).metadata().configuration["delta.logRetentionDuration"] == "interval 1 days"


def test_a_missing_table_is_an_error(topic: Root) -> None:
    build(topic, T)
    (topic.path / "history").rename(topic.path / "elsewhere")
    with pytest.raises(HistoryTableError, match="missing"):
        build(topic, T)


def test_a_table_with_unknown_features_is_refused(topic: Root) -> None:
    build(topic, T)
    DeltaTable(folder(topic)).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    messages.write(topic, "t", [b"d"])
    with pytest.raises(HistoryTableError, match="features of Delta"):
        build(topic, T)


@pytest.mark.parametrize("change", ["delete", "restore", "append"])
def test_rows_that_another_program_has_changed_are_noticed(topic: Root, change: str) -> None:
    build(topic, T)
    messages.write(topic, "t", [b"d"])
    build(topic, T)
    theirs = DeltaTable(folder(topic))
    if change == "delete":
        theirs.delete("value = 'a'")
    elif change == "restore":
        theirs.restore(theirs.version() - 1)
    else:
        write_deltalake(theirs, theirs.to_pyarrow_table().slice(0, 1), mode="append")
    for _ in range(2):
        messages.write(topic, "t", [b"e"])
        with pytest.raises(HistoryTableError, match=r"changed the rows .*`pulsarpy history delete`"):
            build(topic, T)
    topic.delete_history("t")
    build(topic, T)
    assert values(topic) == [b"a", None, b"c", b"d", b"e", b"e"]


def test_entries_of_other_programs_are_synced_before_the_next_one(topic: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut must not leave an entry without those before it."""
    build(topic, T)
    messages.write(topic, "t", [b"d"])
    build(topic, T)
    DeltaTable(folder(topic)).optimize.compact()
    synced: list[str] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    messages.write(topic, "t", [b"e"])
    monkeypatch.setattr(os, "fsync", recorded)
    build(topic, T)
    assert f"{3:020d}.json" in synced
    assert any(name.startswith("part-") for name in synced)


@pytest.mark.parametrize("is_second", [False, True])
def test_a_power_cut_takes_no_name_of_a_table_that_is_recorded(
    topic: Root, monkeypatch: pytest.MonkeyPatch, *, is_second: bool
) -> None:
    """Neither those of folders, nor those of files; and not if a killed build has made the folders either."""
    unsynced = noted_names(monkeypatch)
    if is_second:
        with monkeypatch.context() as killing:
            killing.setattr(history_tables, "LocalObjects", killed)
            with pytest.raises(Killed):
                build(topic, T)
        assert "history" in unsynced[topic.path]
    at_record: list[set[Path]] = []
    record = building._PartBuild._record

    def noting(*arguments: Any) -> None:
        at_record.append({folder / name for folder, names in unsynced.items() for name in names})
        record(*arguments)

    monkeypatch.setattr(building._PartBuild, "_record", noting)
    build(topic, T)
    (names,) = at_record
    lost = {name for name in names if name.is_relative_to(topic.path / HISTORY) and name.exists()}
    assert not lost


def killed(*arguments: object) -> None:
    raise Killed


def noted_names(monkeypatch: pytest.MonkeyPatch) -> dict[Path, set[str]]:
    """Note the names that get into folders, until the folder is synced."""
    unsynced: dict[Path, set[str]] = {}

    def noted(real: Callable[..., None], position: int) -> Callable[..., None]:
        def call(*arguments: Any, **named: Any) -> None:
            real(*arguments, **named)
            path = Path(arguments[position])
            unsynced.setdefault(path.parent, set()).add(path.name)

        return call

    for name, position in (("mkdir", 0), ("link", 1), ("rename", 1)):
        monkeypatch.setattr(os, name, noted(getattr(os, name), position))
    fsync = os.fsync

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        unsynced.pop(Path(os.readlink(f"/proc/self/fd/{descriptor}")), None)

    monkeypatch.setattr(os, "fsync", synced)
    return unsynced


def test_rows_without_statistics_are_not_counted_as_none(topic: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_tables, "_CHECKPOINT_ENTRIES", 1)
    build(topic, T)
    messages.write(topic, "t", [b"d"])
    build(topic, T)
    DeltaTable(folder(topic)).optimize.compact()
    (entry,) = [path for path in sorted(folder(topic).glob("_delta_log/*.json")) if b"OPTIMIZE" in path.read_bytes()]
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        action.get("add", {}).pop("stats", None)
    entry.write_text("".join(json.dumps(action) + "\n" for action in actions))
    messages.write(topic, "t", [b"e"])
    build(topic, T)
    assert list(folder(topic).glob("_delta_log/*.checkpoint.parquet"))
    adds = pa.table(DeltaTable(folder(topic)).get_add_actions(flatten=True))
    assert sorted(adds["num_records"].to_pylist(), key=str) == [1, None]
    assert by_duckdb(str(folder(topic))).num_rows == len(values(topic)) == 5


def test_a_deleted_topic_is_not_built(topic: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = HistoryTable.commit

    def deleted(*arguments: object, **named: object) -> None:
        topic.delete_topic("t")
        commit(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(HistoryTable, "commit", deleted)
    with pytest.raises(TopicNotFoundError, match="deleted while"):
        build(topic, T)
    assert not topic.store.view().all(HistoryRecord)


def test_lost_messages_end_a_build_unless_they_may_be_skipped(root: Root) -> None:
    log = LogOnDisk(root)
    log.open_ledgers(["t"])
    for number in range(9):
        log.append({"t": [lost_frames.entry(number)] * 2})
        if number == 4:
            log.roll()
    log.close()
    lost_frames.lose(log, 3)
    for _ in range(2):
        with pytest.raises(DataLossError, match="use --skip-lost"):
            build(root, T)
        assert len(values(root)) == 6  # of the frames before the lost one
    (built,) = build(root, T, BuildOptions(fail_on_data_loss=False))
    assert 0 < built.rows < 12
    assert len(values(root)) == 6 + built.rows


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_build_ends_before_a_lost_message(root: Root, first: int) -> None:
    root.create_topic("t")
    for number in range(4):
        messages.write(root, "t", [b"%d" % number, b"next"])
    lose_file(root, first)
    for _ in range(2):
        with pytest.raises(DataLossError, match=r"without them, use --skip-lost of `pulsarpy history build`\."):
            build(root, T)
        records = root.store.view().all(HistoryRecord)
        assert [(record.generation, record.rows) for record in records] == ([(1, 2 * first)] if first else [])
    build(root, T, BuildOptions(fail_on_data_loss=False))
    assert values(root)[::2] == [b"%d" % number for number in range(4) if number != first]


def test_a_build_ends_before_a_message_that_is_encrypted(root: Root) -> None:
    encrypted = MessageMetadata()
    encrypted.encryption_keys.add(key="k", value=b"secret")
    log = LogOnDisk(root)
    log.open_ledgers(["t"])
    entries = [single_entry(ClientMessage(b"%d" % number)) for number in range(6)]
    entries[2] = entries[4] = single_entry(ClientMessage(b"?"), metadata=encrypted)
    log.append({"t": entries})
    log.close()
    lost_frames.seal(log)
    for _ in range(2):
        with pytest.raises(UnreadableMessageError, match=r":2 of .* is encrypted.* use --skip-lost of"):
            build(root, T)
        assert values(root) == [b"0", b"1"]
    build(root, T, BuildOptions(fail_on_data_loss=False))
    assert values(root) == [b"0", b"1", b"3", b"5"]


def lose_file(root: Root, number: int) -> None:
    """Lose all copies of a segment's file."""
    segment = root.store.view().all(SegmentRecord)[number]
    for path in root.path.rglob(f"*{segment.file_id}*"):
        path.unlink()


def test_readers_skip_nothing_by_floating_numbers() -> None:
    """Statistics leave NaN out, and a dictionary tells 0.0 from -0.0: Spark's filters do neither."""
    numbers = pa.table({"x": [1.0, float("nan")], "n": [1, 2], "s": [{"y": 0.0, "z": "a"}, {"y": -0.0, "z": "b"}]})
    rows = numbers
    for field in SYSTEM:
        rows = rows.append_column(field, pa.nulls(2, field.type))
    content, *_ = encode_file(rows.schema, [rows])
    group = pq.ParquetFile(pa.BufferReader(content)).metadata.row_group(0)
    skippable = {
        column.path_in_schema
        for column in (group.column(number) for number in range(group.num_columns))
        if column.is_stats_set or column.has_dictionary_page
    }
    assert {"n", "s.z"} <= skippable
    assert not {"x", "s.y"} & skippable
