"""Merges of small files keep every row, with builds, a user's OPTIMIZE and damage in between."""

from __future__ import annotations

import json
import os
import time
from importlib import metadata
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from pulsar_on_spark.history_table import merging
from pulsar_on_spark.history_table import table as history_tables
from pulsar_on_spark.history_table.build import build
from pulsar_on_spark.history_table.merging import merge_small_files, merges
from pulsar_on_spark.history_table.table import HistoryTable, TableVersion
from pulsar_on_spark.history_table.upkeep import keep_up
from pulsar_on_spark.metadata.log.entry import Content, DataFile
from pulsar_on_spark.metadata.records import HistoryTableRecord
from pulsar_on_spark.model.errors import HistoryTableError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.policies.change import set_topic_policies
from tests.kit import messages

P = TopicName.parse("p")
DELTA_RS = tuple(map(int, metadata.version("deltalake").split(".")[:3]))
STALE_OPTIMIZES = pytest.mark.skipif(DELTA_RS < (1, 6, 6), reason="delta-rs before 1.6.6 refuses them")
"""Of tests with an OPTIMIZE of an older version, whose files were merged meanwhile."""


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small files are worth a merge."""
    monkeypatch.setattr(merging, "WORTH_FILES", 2)


@pytest.fixture
def table(root: Root, few: None) -> HistoryTable:
    """Four files in each of two partitions, the last ones with a column more."""
    root.create_topic("p", 2, schema="id BIGINT")
    for number in range(4):
        if number == 3:
            root.declare_schema("p", "id BIGINT, note STRING")
        values = [json.dumps({"id": 10 * number + each, "note": "n"}).encode() for each in range(10)]
        messages.write(root, "p", values, [b"%d" % each for each in range(10)])
        build(root, P)
    return HistoryTable(root.path, root.store.view().all(HistoryTableRecord)[0].table)


def rows(table: HistoryTable) -> list[tuple[int, str | None]]:
    found = DeltaTable(table.place).to_pyarrow_table()
    return sorted(zip(found["id"].to_pylist(), found["note"].to_pylist(), strict=True))


def test_each_partition_has_one_file_afterwards(table: HistoryTable) -> None:
    before = rows(table)
    assert len(before) == 40
    assert merge_small_files(table) == 8
    version = table.version()
    assert len(version.files) == 2
    assert rows(table) == before
    assert merge_small_files(table) == 0
    entry = (table.place / "_delta_log" / f"{version.tip.version:020d}.json").read_text()
    assert '"dataChange":true' not in entry


def test_a_build_in_between_goes_on(root: Root, table: HistoryTable, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = HistoryTable.commit

    def merged_first(*arguments: object, **named: object) -> None:
        monkeypatch.setattr(HistoryTable, "commit", commit)
        assert merge_small_files(table) == 8
        commit(*arguments, **named)  # type: ignore[arg-type]

    messages.write(root, "p", [b'{"id": 99}'], [b"0"])
    monkeypatch.setattr(HistoryTable, "commit", merged_first)
    build(root, P)
    assert [row[0] for row in rows(table)] == [*range(40), 99]


def test_an_optimize_in_between_ends_the_merge(table: HistoryTable, monkeypatch: pytest.MonkeyPatch) -> None:
    before, commit = rows(table), HistoryTable.commit

    def optimized_first(*arguments: object, **named: object) -> None:
        DeltaTable(table.place).optimize.compact()
        commit(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(HistoryTable, "commit", optimized_first)
    assert merge_small_files(table) == 0
    assert rows(table) == before


def test_an_optimize_that_a_merge_has_overtaken_fails(root: Root, table: HistoryTable) -> None:
    before, old = rows(table), DeltaTable(table.place)
    assert merge_small_files(table) == 8
    with pytest.raises(CommitFailedError):
        old.optimize.compact()
    assert rows(table) == before
    old = DeltaTable(table.place)
    messages.write(root, "p", [b'{"id": 99}'], [b"0"])
    build(root, P)
    old.optimize.compact()
    assert rows(table) == [*before, (99, None)]


@pytest.fixture
def unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges that delta-rs does not notice, as it does not notice another OPTIMIZE."""

    def rearrangement(_: TableVersion, *arguments: Any) -> Content:
        return Content(*arguments, is_rearrangement=True)

    monkeypatch.setattr(history_tables, "_rearrangement", rearrangement)


@STALE_OPTIMIZES
@pytest.mark.parametrize("is_merged_in_part", [False, True])
def test_an_optimize_of_an_older_version_repeats_no_rows(
    root: Root, table: HistoryTable, is_merged_in_part: bool, unnoticed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs commits it, although its files were replaced meanwhile."""
    before = rows(table)
    old = DeltaTable(table.place)
    if is_merged_in_part:
        chosen = merging.merges(table.version().files.values())[0][:2]
        monkeypatch.setattr(merging, "merges", lambda _: [chosen])
    assert merge_small_files(table) == (2 if is_merged_in_part else 8)
    files = table.version().files
    monkeypatch.undo()
    old.optimize.compact()
    assert rows(table) != before, "delta-rs would notice"
    assert table.version().files == files
    messages.write(root, "p", [b'{"id": 99}'], [b"0"])
    build(root, P)
    assert table.version().files.keys() > files.keys()
    assert rows(table) == [*before, (99, None)]
    DeltaTable(table.place).optimize.compact()
    assert rows(table) == [*before, (99, None)]


@STALE_OPTIMIZES
def test_an_optimize_behind_a_repeating_one_is_undone_with_it(root: Root, table: HistoryTable, unnoticed: None) -> None:
    before, old = rows(table), DeltaTable(table.place)
    assert merge_small_files(table) == 8
    old.optimize.compact()
    DeltaTable(table.place).optimize.compact()
    assert rows(table) != before
    assert keep_up(root) == []
    assert rows(table) == before


@STALE_OPTIMIZES
@pytest.mark.parametrize("is_late", [False, True])
def test_what_a_vacuum_behind_two_optimizes_has_deleted_is_named(
    root: Root, table: HistoryTable, is_late: bool, unnoticed: None
) -> None:
    """The next build and housekeeping say so, with and without messages to append."""
    old = DeltaTable(table.place)
    assert merge_small_files(table) == 8
    old.optimize.compact()
    theirs = DeltaTable(table.place)
    theirs.optimize.compact()
    theirs.vacuum(0, dry_run=False, enforce_retention_duration=False)
    if is_late:
        messages.write(root, "p", [b'{"id": 99}'], [b"0"])
    with pytest.raises(HistoryTableError, match=r"are missing: .*`pulsarpy history delete`"):
        build(root, P)
    (problem,) = keep_up(root)
    assert "are missing" in problem


@STALE_OPTIMIZES
def test_repeated_rows_behind_a_clean_up_of_the_log_are_noticed(
    root: Root, table: HistoryTable, unnoticed: None
) -> None:
    old = DeltaTable(table.place)
    assert merge_small_files(table) == 8
    old.optimize.compact()
    long_ago = time.time() - 3 * 86_400
    for entry in (table.place / "_delta_log").iterdir():
        os.utime(entry, (long_ago, long_ago))
    theirs = DeltaTable(table.place)
    theirs.create_checkpoint()
    theirs.cleanup_metadata()
    with pytest.raises(HistoryTableError, match=r"has 80 rows, but builds have added 40, .*`pulsarpy history delete`"):
        table.version()
    root.delete_history("p")
    assert [built.rows for built in build(root, P)] == [20, 20]


def test_files_of_other_programs_are_left_alone(root: Root, table: HistoryTable) -> None:
    """Spark may have written them with dates of the Julian calendar, which a merge would change."""
    DeltaTable(table.place).optimize.compact()
    optimized = table.version().files.keys()
    for number in range(2):
        messages.write(root, "p", [b'{"id": %d}' % number] * 10, [b"%d" % each for each in range(10)])
        build(root, P)
    before = rows(table)
    assert merge_small_files(table) == 4
    assert table.version().files.keys() > optimized
    assert rows(table) == before


def test_a_merge_has_one_part_in_memory(table: HistoryTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "PART_BYTES", 1)
    before = rows(table)
    assert merge_small_files(table) == 8
    assert rows(table) == before
    files = [pq.ParquetFile(path) for path in table.place.glob("m*.parquet")]
    assert [file.num_row_groups for file in files] == [4, 4]
    stats = [json.loads(file.stats)["minValues"]["__entryId"] for file in table.version().files.values()]
    assert stats == [0, 0]


def test_a_vacuum_before_the_commit_ends_the_merge(table: HistoryTable, monkeypatch: pytest.MonkeyPatch) -> None:
    before, commit = rows(table), HistoryTable.commit

    def vacuumed_first(*arguments: object, **named: object) -> None:
        DeltaTable(table.place).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        commit(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(HistoryTable, "commit", vacuumed_first)
    assert merge_small_files(table) == 0
    assert rows(table) == before


def test_a_damaged_file_is_not_merged(table: HistoryTable) -> None:
    victim = sorted(table.place.glob("g*.parquet"))[0]
    content = bytearray(victim.read_bytes())
    content[content.index(b"\x28\xb5\x2f\xfd") + 8] ^= 1  # in the first compressed page
    victim.write_bytes(content)
    with pytest.raises(HistoryTableError, match="cannot be read"):
        merge_small_files(table)


def test_upkeep_merges(root: Root, table: HistoryTable) -> None:
    assert keep_up(root) == []
    assert len(table.version().files) == 2


def test_only_the_retention_of_an_append_only_table_fails(root: Root, table: HistoryTable) -> None:
    DeltaTable(table.place).alter.set_table_properties({"delta.appendOnly": "true"})
    set_topic_policies(root, P, {"history": {"enabled": True, "retentionSizeInMB": 0}})
    before = rows(table)
    messages.write(root, "p", [b'{"id": 1000, "note": "n"}'], [b"0"])
    (problem,) = keep_up(root)
    assert "delta.appendOnly" in problem
    assert len(table.version().files) == 2
    assert rows(table) == [*before, (1000, "n")]
    DeltaTable(table.place).alter.set_table_properties({"delta.appendOnly": "false"})
    assert keep_up(root) == []
    assert rows(table) == []


def file(name: str, partition: int | None, ledger: int, size: int = 1) -> DataFile:
    limits = {"__ledgerId": ledger, "__entryId": 0} | ({} if partition is None else {"__partition": partition})
    stats = {"minValues": limits, "maxValues": limits, "nullCount": {"__partition": 5 if partition is None else 0}}
    return DataFile(
        f"g1-{-1 if partition is None else partition}-{name * 32}.parquet", size, 5, 0, 0, None, json.dumps(stats)
    )


def test_small_neighbours_are_chosen(few: None) -> None:
    big = file("f", 0, 2, size=merging.SMALL_BYTES)
    files = [file("b", 0, 3), file("a", 0, 1), big, file("c", 1, 1), file("d", None, 2), file("e", None, 1)]
    chosen = [[each.file.name.rpartition("-")[2][0] for each in group] for group in merges(files)]
    assert chosen == [["a", "b"], ["e", "d"]]
    assert merges([DataFile("foreign", 1, 5, 0, 0, None), *files[:1]]) == []
