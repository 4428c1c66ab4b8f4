"""The retention of history tables, the deletion of files that no version needs, and the upkeep by policies."""

from __future__ import annotations

import os
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pulsar_on_spark.broker.observe.stored import counted
from pulsar_on_spark.history_table import deletion, retention, upkeep
from pulsar_on_spark.history_table.build import BuildOptions, Built, build
from pulsar_on_spark.history_table.retention import AgedFile, apply_retention, deletable, outdated
from pulsar_on_spark.history_table.table import HistoryTable
from pulsar_on_spark.history_table.upkeep import keep_up
from pulsar_on_spark.metadata.records import HistoryRecord, HistoryTableRecord, SegmentRecord
from pulsar_on_spark.model.errors import DataLossError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.policies.change import set_namespace_policies, set_topic_policies
from pulsar_on_spark.topic.catalog.policies.policies import HistoryPolicies
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.backup.backup import back_up
from pulsar_on_spark.topic.maintenance.backup.restore import restore_root
from pulsar_on_spark.topic.maintenance.retention.trim import trim_topics
from tests.kit import messages

T = TopicName.parse("t")
NOTHING_KEPT = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
MINUTE_MS = 60_000
DAY_S = 86_400.0


def limits(minutes: int = -1, megabytes: int = -1) -> HistoryPolicies:
    return HistoryPolicies(retention_time_in_minutes=minutes, retention_size_in_mb=megabytes)


def test_files_beyond_either_limit_go() -> None:
    files = [AgedFile(str(age), 1 << 20, 100 * MINUTE_MS - age * MINUTE_MS) for age in (1, 2, 3)]
    now_ms = 100 * MINUTE_MS
    assert outdated(files, limits(), now_ms) == []
    assert outdated(files, limits(minutes=1), now_ms) == ["2", "3"]
    assert outdated(files, limits(megabytes=2), now_ms) == ["3"]
    assert outdated(files, limits(minutes=0, megabytes=0), now_ms) == ["1", "2", "3"]
    assert outdated([AgedFile("?", 1, None)], limits(minutes=0), now_ms) == []
    assert outdated([AgedFile("one large file", 3 << 20, now_ms)], limits(megabytes=2), now_ms) == []


def test_files_that_a_build_or_a_reader_may_need_stay() -> None:
    now_s = 100 * DAY_S
    mine, other = f"g3--1-{'0' * 32}.parquet", f"g4--1-{'0' * 32}.parquet"
    old = {mine: now_s - 2 * DAY_S, other: now_s - 2 * DAY_S, "part-1.parquet": 0.0}
    assert deletable(old, (), {}, {-1: 3}, now_s) == [mine]
    assert deletable(old, (mine,), {}, {-1: 3}, now_s) == []
    assert deletable({mine: now_s - DAY_S / 2}, (), {}, {-1: 3}, now_s) == []
    removed = {"part-1.parquet": int((now_s - 8 * DAY_S) * 1000), mine: int((now_s - 6 * DAY_S) * 1000)}
    assert deletable(old, (), removed, {-1: 3}, now_s) == ["part-1.parquet"]


@pytest.fixture
def topic(root: Root) -> Root:
    root.create_topic("t")
    messages.write(root, "t", [b"a"])
    return root


def table(root: Root) -> HistoryTable:
    (record,) = root.store.view().all(HistoryTableRecord)
    return HistoryTable(root.path, record.table)


def count(root: Root) -> int:
    return int(DeltaTable(table(root).place).to_pyarrow_table().num_rows)


def test_retention_removes_old_files_and_keeps_the_boundary(topic: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "current_ms", lambda: int(time.time() * 1000) - 3_600_000)
    messages.write(topic, "t", [b"old"])
    build(topic, T)
    monkeypatch.undo()
    messages.write(topic, "t", [b"new"])
    build(topic, T)
    assert apply_retention(table(topic), limits(minutes=1)) == 0  # its file has a newer message, too
    assert apply_retention(table(topic), limits(megabytes=0)) == 2
    assert count(topic) == 0
    messages.write(topic, "t", [b"later"])
    assert build(topic, T)[0].rows == 1
    assert count(topic) == 1


@pytest.mark.parametrize("published_ms", [4_102_444_800_000, 1 << 62, -1])
def test_a_wrong_clock_of_a_producer_keeps_no_file(
    root: Root, monkeypatch: pytest.MonkeyPatch, published_ms: int
) -> None:
    root.create_topic("t")
    monkeypatch.setattr(messages, "current_ms", lambda: published_ms)
    messages.write(root, "t", [b"a"])
    build(root, T)
    day_ago = time.time() - DAY_S
    (file,) = table(root).place.glob("g*.parquet")
    os.utime(file, (day_ago, day_ago))
    assert apply_retention(table(root), limits(minutes=2 * 24 * 60)) == (published_ms < 0)
    assert apply_retention(table(root), limits(minutes=60)) == (published_ms >= 0)


def test_a_time_beyond_all_years_that_an_optimize_has_written_keeps_no_file(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.create_topic("t")
    for published_ms in (253_402_300_800_000, 1_700_000_000_000):
        monkeypatch.setattr(messages, "current_ms", lambda now_ms=published_ms: now_ms)
        messages.write(root, "t", [b"a"])
        build(root, T)
    DeltaTable(table(root).place).optimize.compact()
    (file,) = table(root).version().files
    day_ago = time.time() - DAY_S
    os.utime(table(root).place / file, (day_ago, day_ago))
    assert apply_retention(table(root), limits(minutes=60)) == 1


def test_removed_files_are_deleted_later(topic: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    build(topic, T)
    apply_retention(table(topic), limits(megabytes=0))
    keep_up(topic)
    assert len(list(table(topic).place.glob("g*.parquet"))) == 1
    monkeypatch.setattr(retention, "KEEP_REMOVED_S", -1.0)
    keep_up(topic)
    assert list(table(topic).place.glob("g*.parquet")) == []


def test_policies_of_namespace_and_topic_decide(topic: Root) -> None:
    assert keep_up(topic) == []
    assert not (topic.path / "history").exists()
    set_namespace_policies(topic, "public/default", {"history": {"enabled": True}})
    topic.create_topic("other")
    messages.write(topic, "other", [b"x"])
    set_topic_policies(topic, TopicName.parse("other"), {"history": {"enabled": False}})
    assert topic.maintain().problems == ()
    assert count(topic) == 1
    set_topic_policies(topic, T, {"history": {"retentionSizeInMB": 0}})
    keep_up(topic)
    assert count(topic) == 0


def test_metrics_tell_what_is_built_and_what_waits(topic: Root) -> None:
    build(topic, T)
    messages.write(topic, "t", [b"12345"])
    assert counted(topic.store.view()).history_waiting_bytes == 0  # no policy wants it
    set_topic_policies(topic, T, {"history": {}})
    state = counted(topic.store.view())
    assert (state.history_rows, state.history_waiting_bytes) == (1, 5)
    assert state.history_bytes == sum(file.stat().st_size for file in table(topic).place.glob("g*.parquet"))


def test_a_problem_of_one_topic_does_not_stop_the_others(topic: Root) -> None:
    set_namespace_policies(topic, "public/default", {"history": {}})
    keep_up(topic)
    topic.create_topic("u")
    messages.write(topic, "u", [b"x"])
    folder = table(topic).place
    (folder / "_delta_log" / f"{0:020d}.json").write_bytes(b"{")
    messages.write(topic, "t", [b"b"])
    (problem,) = keep_up(topic)
    assert "history of persistent://public/default/t" in problem
    assert len(topic.store.view().all(HistoryRecord)) == 2


def lose_newest_segment(root: Root, topic: str) -> None:
    topic_id = catalog.require_topic(root.store.view(), TopicName.parse(topic)).topic_id
    newest = root.store.view().all(SegmentRecord, topic_id)[-1]
    for copy in root.path.rglob(f"*{newest.file_id}*"):
        copy.unlink()


def test_a_partition_that_cannot_be_built_does_not_stop_the_others(root: Root) -> None:
    root.create_topic("p", partitions=3)
    set_topic_policies(root, TopicName.parse("p"), {"history": {}})
    for number in range(3):
        messages.write(root, f"p-partition-{number}", [b"x"])
    lose_newest_segment(root, "p-partition-0")
    (problem,) = keep_up(root)
    assert "history of persistent://public/default/p-partition-0" in problem
    assert [record.rows for record in root.store.view().all(HistoryRecord)] == [1, 1]
    with pytest.raises(DataLossError, match="p-partition-0"):
        build(root, TopicName.parse("p"))
    root.create_topic("q", partitions=2)
    for number in range(2):
        messages.write(root, f"q-partition-{number}", [b"x"])
    lose_newest_segment(root, "q-partition-0")
    with pytest.raises(DataLossError, match="q-partition-0"):
        build(root, TopicName.parse("q"))
    assert len(root.store.view().all(HistoryRecord)) == 3


def test_a_build_that_fails_does_not_stop_the_retention(topic: Root) -> None:
    set_topic_policies(topic, T, {"history": {"retentionSizeInMB": 0}})
    assert keep_up(topic) == []
    messages.write(topic, "t", [b"b"])
    lose_newest_segment(topic, "t")
    assert len(keep_up(topic)) == 1
    assert not table(topic).version().files


@pytest.mark.parametrize(("days", "is_limited", "rows"), [(5.9, True, 2), (6.1, True, 6), (6.1, False, 2)])
def test_messages_that_cannot_be_read_are_left_out_before_all_that_waits_is_trimmed(
    topic: Root, days: float, rows: int, *, is_limited: bool
) -> None:
    set_topic_policies(topic, T, {"history": {}, "retention": NOTHING_KEPT})
    messages.write(topic, "t", [b"b"])
    for value in (b"c", b"d"):
        messages.write(topic, "t", [b"lost"])
        lose_newest_segment(topic, "t")
        messages.write(topic, "t", [value, value])
    assert len(keep_up(topic)) == 1
    assert count(topic) == 2
    trim_topics(topic, now=datetime.now(UTC) - timedelta(days=days))
    if not is_limited:
        set_topic_policies(topic, T, {"retention": dict.fromkeys(NOTHING_KEPT, -1)})
    assert len(topic.maintain().problems) == (0 if rows == 6 else 1)
    assert count(topic) == rows


def test_a_value_that_a_library_refuses_does_not_stop_other_topics(
    topic: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build_all_but_t(root: RootHandle, name: TopicName, options: BuildOptions) -> list[Built]:
        if name.local == "t":
            raise pa.ArrowInvalid("Rescaling Decimal value would cause data loss")
        return build(root, name, options)

    monkeypatch.setattr(upkeep, "build", build_all_but_t)
    set_namespace_policies(topic, "public/default", {"history": {}})
    topic.create_topic("u")
    messages.write(topic, "u", [b"x"])
    (problem,) = keep_up(topic)
    assert "history of persistent://public/default/t" in problem
    assert [record.rows for record in topic.store.view().all(HistoryRecord)] == [1]


def test_the_table_of_a_deleted_topic_is_deleted_after_a_while(topic: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    build(topic, T)
    folder = table(topic).place
    topic.delete_topic("t")
    assert topic.store.view().all(HistoryRecord) == []
    long_ago = time.time() - 2 * deletion.GRACE_S
    os.utime(folder / "_delta_log", (long_ago, long_ago))
    copy, note = folder.with_name(f"{folder.name}.bak"), folder.with_name("note.txt")
    copy.mkdir()
    note.write_text("not ours")
    keep_up(topic)
    keep_up(topic)
    assert folder.exists()
    for each in (folder / "_unnamed", copy, note):
        os.utime(each, (long_ago, long_ago))
    assert keep_up(topic) == []
    assert sorted(folder.parent.iterdir()) == sorted([copy, note])
    shutil.rmtree(folder.parent)
    folder.parent.write_text("not a folder")
    (problem,) = keep_up(topic)
    assert "deleted topics" in problem


def test_a_copy_of_a_root_begins_other_histories(topic: Root, tmp_path: Path) -> None:
    build(topic, T)
    back_up(topic, tmp_path / "copy")
    restore_root(topic, tmp_path / "restored", datetime.now(UTC))
    for name in ("copy", "restored"):
        copy = Root.open(tmp_path / name)
        assert copy.store.view().all(HistoryRecord) == []
        assert build(copy, T)[0].rows == 1
