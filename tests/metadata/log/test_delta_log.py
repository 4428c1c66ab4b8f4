from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pulsar_on_spark.metadata.log import folding
from pulsar_on_spark.metadata.log.checksums import checksums_path
from pulsar_on_spark.metadata.log.creation import create_table
from pulsar_on_spark.metadata.log.delta_handle import StaleHandleError
from pulsar_on_spark.metadata.log.delta_log import KEEP_ENTRIES, DeltaLog
from pulsar_on_spark.metadata.log.log_entry import checkpoint_path, entry_path
from pulsar_on_spark.model.errors import MetadataError

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("token", pa.string(), nullable=False),
    ]
)
ORDER = folding.Order(key=("id",), rank=("seq", "token"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    create_table(tmp_path / "table", SCHEMA, tmp_path / "lock")
    return tmp_path / "table"


def _log(table: Path) -> DeltaLog:
    log = DeltaLog(table, table.parent / "lock")
    _refreshed(log)
    return log


def _rows(name: str, seq: int, token: str = "tok") -> pa.Table:
    return pa.table({"id": [name], "seq": [seq], "token": [token]}, schema=SCHEMA)


def _append(log: DeltaLog, name: str, key: str | None = None, seq: int | None = None) -> None:
    """Append as the store does, on the version that was read."""
    token = f"{name}@{log.version}"
    keys = {} if key is None else {key: (log.key_version(key) or 0) + 1}
    log.append(_rows(name, log.version + 1 if seq is None else seq, token), keys, token)


def _ids(log: DeltaLog) -> list[str]:
    fresh = _log(log._directory)
    return sorted(name for file in fresh.files for name in fresh._read(file.name).column("id").to_pylist())


def _refreshed(log: DeltaLog) -> tuple[bool, list[pa.Table]]:
    """Refresh and take in the new rows, as an owner does."""
    news = log.refresh()
    log.taken_in()
    return news


def test_refresh_gives_each_file_once(table: Path) -> None:
    writer, reader = _log(table), _log(table)
    for number in range(3):
        _append(writer, f"r{number}")
    rebuild, tables = _refreshed(reader)
    assert not rebuild
    assert [rows.column("id").to_pylist() for rows in tables] == [["r0"], ["r1"], ["r2"]]
    assert _refreshed(reader) == (False, [])
    assert [(file.rows, file.min_seq, file.max_seq) for file in sorted(reader.files, key=lambda f: f.min_seq)] == [
        (1, seq, seq) for seq in (1, 2, 3)
    ]


def test_a_first_refresh_is_a_rebuild(table: Path) -> None:
    _append(_log(table), "r")
    rebuild, tables = _refreshed(DeltaLog(table, table.parent / "lock"))
    assert rebuild
    assert len(tables) == 1


def test_own_rows_are_not_read_again_but_those_of_others_in_between_are(table: Path) -> None:
    mine, other = _log(table), _log(table)
    _append(other, "theirs")
    own = mine.append(_rows("mine", 1, "m"), {}, "m")
    rebuild, tables = mine.take_in(own)
    mine.taken_in()
    assert not rebuild
    assert [rows.column("id").to_pylist() for rows in tables] == [["theirs"]]
    assert _refreshed(mine) == (False, [])


def test_files_without_statistics_are_measured(table: Path) -> None:
    log = _log(table)
    DeltaTable(str(table)).alter.set_table_properties({"delta.dataSkippingStatsColumns": "id"})
    _refreshed(log)
    write_deltalake(str(table), pa.concat_tables([_rows("a", 4), _rows("b", 9)]), mode="append")
    _, tables = _refreshed(log)
    assert sum(rows.num_rows for rows in tables) == 2
    assert [(file.rows, file.min_seq, file.max_seq) for file in log.files] == [(2, 4, 9)]


def test_rows_that_the_owner_did_not_take_in_are_given_again(table: Path) -> None:
    writer, reader = _log(table), _log(table)
    _append(writer, "first")
    reader.refresh()  # and the owner is interrupted before it has taken them in
    rebuild, tables = _refreshed(reader)
    assert rebuild
    assert [rows.column("id").to_pylist() for rows in tables] == [["first"]]
    assert _refreshed(reader) == (False, [])


# -- compare and set -------------------------------------------------------------------------------------------------


def test_the_second_of_two_commits_under_one_key_fails_and_under_two_keys_passes(table: Path) -> None:
    first, second, third = _log(table), _log(table), _log(table)
    _append(first, "a", "key")
    with pytest.raises(StaleHandleError):
        _append(second, "b", "key")
    _append(third, "c", "other")
    assert _ids(first) == ["a", "c"]
    _refreshed(second)
    assert second.find_commit("b@0", 0) is None
    assert second.key_version("key") == 1


def test_remembered_key_versions_move_on_with_the_commits_of_others(table: Path) -> None:
    mine, other = _log(table), _log(table)
    assert mine.key_version("key") is None
    for expected in (1, 2, 3):
        _refreshed(other)
        _append(other, "a", "key")
        _refreshed(mine)
        assert mine.key_version("key") == expected
    assert mine.key_version("never") is None


def test_remembered_key_versions_are_given_up_where_the_log_was_cleaned(table: Path) -> None:
    mine, other = _log(table), _log(table)
    assert mine.key_version("key") is None
    _append(other, "a", "key")
    _append(other, "a")
    other.checkpoint()
    for version in (0, 1):
        entry_path(table, version).unlink()
    _refreshed(mine)
    assert mine.key_version("key") == 1


def test_a_commit_whose_outcome_was_not_seen_is_found_by_its_token(table: Path) -> None:
    log = _log(table)
    _append(log, "a", "key")
    _append(log, "b", "key")
    log._handle = None  # as after any error
    _refreshed(log)
    assert log.find_commit("a@0", 0) == 1
    assert log.find_commit("b@1", 0) == 2
    assert log.find_commit("b@1", 2) is None
    assert log.find_commit("never", 0) is None


def test_a_commit_is_found_in_the_rows_where_the_log_was_cleaned_and_unknown_where_they_are_gone(table: Path) -> None:
    log = _log(table)
    for number in range(3):
        _append(log, f"r{number}")
    log.checkpoint()
    for version in (0, 1, 2):
        entry_path(table, version).unlink()
    fresh = _log(table)
    assert fresh.find_commit("r0@0", 0) is not None
    with pytest.raises(MetadataError, match="unknown"):
        fresh.find_commit("never", 0)


def test_a_process_that_was_suspended_while_the_log_was_cleaned_catches_up(table: Path) -> None:
    writer, reader, zombie = _log(table), _log(table), _log(table)
    for number in range(20):
        _append(writer, f"r{number}")
    writer.checkpoint()
    for version in range(20):
        entry_path(table, version).unlink()
    _append(writer, "last")
    before = sorted(path.name for path in (table / "_delta_log").iterdir())
    # It decided at version 0, and commits at what it takes for version 1.
    with pytest.raises(StaleHandleError):
        _append(zombie, "zombie", "key")
    assert sorted(path.name for path in (table / "_delta_log").iterdir()) == before
    _, tables = _refreshed(reader)
    assert sum(rows.num_rows for rows in tables) == 21
    _, tables = _refreshed(zombie)
    assert sum(rows.num_rows for rows in tables) == 21
    assert zombie.key_version("key") is None


def _cleaned(table: Path, monkeypatch: pytest.MonkeyPatch, commits: int = 12) -> DeltaLog:
    """Commits, a checkpoint at the last but one, and nothing left of the log before it."""
    monkeypatch.setattr("pulsar_on_spark.metadata.log.delta_log.KEEP_ENTRIES", 0)
    monkeypatch.setattr("pulsar_on_spark.metadata.log.delta_log.KEEP_S", 0)
    log = _log(table)
    for number in range(commits - 1):
        _append(log, f"r{number}")
    assert log.checkpoint()
    _append(log, f"r{commits - 1}")
    return log


def _stray(table: Path, tmp_path: Path, version: int, name: str) -> None:
    """An entry as a process links it that looked for its number before the log was cleaned up."""
    other = tmp_path / "other"
    create_table(other, SCHEMA, tmp_path / "lock")
    log = _log(other)
    log.append(_rows(name, version, f"{name}@{version - 1}"), {"key": 7}, f"{name}@{version - 1}")
    for file in other.glob("*.parquet"):
        shutil.copy(file, table)
    shutil.copy(entry_path(other, 1), entry_path(table, version))


@pytest.mark.parametrize("version", [1, 11], ids=["with a gap behind it", "just before the oldest entry"])
def test_an_entry_under_a_number_that_was_cleaned_up_is_never_read_nor_found(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    reader, zombie = _log(table), _log(table)
    for number in range(version - 1):  # both are at the entry before the stray one
        _append(_log(table), f"first{number}")
    for log in (reader, zombie):
        _refreshed(log)
    # As if a pause had come between its look at the log and its link.
    zombie._handle = None
    writer = _cleaned(table, monkeypatch, 12 if version == 1 else 3)
    assert not entry_path(table, version).exists()
    _stray(table, tmp_path, version, "stray")
    for log in (reader, zombie):
        _, _ = _refreshed(log)
        names = [row for file in log.files for row in log._read(file.name).column("id").to_pylist()]
        assert "stray" not in names
        assert sorted(names) == _ids(writer)
        assert log.version == writer.version
    token = f"stray@{version - 1}"
    if version == 1:
        assert zombie.find_commit(token, 0) is None
    else:
        with pytest.raises(MetadataError, match="unknown"):
            zombie.find_commit(token, version - 1)
    assert zombie.key_version("key") is None


def test_consecutive_strays_do_not_form_a_history(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one has a predecessor: only the entry that was read before shows that it is not the log's."""
    reader = _log(table)
    writer = _cleaned(table, monkeypatch)
    for version in (1, 2):
        _stray(table, tmp_path / str(version), version, f"stray{version}")
    _, tables = _refreshed(reader)
    assert sum(rows.num_rows for rows in tables) == 12
    assert reader.version == writer.version
    assert reader.find_commit("stray2@1", 0) is None


def test_a_reused_number_is_not_the_entry_that_a_sleeping_handle_read(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handle that has taken in entry 1 finds another entry 1 and no entry 2."""
    writer, reader = _log(table), _log(table)
    _append(writer, "first")
    _refreshed(reader)
    _refreshed(writer)
    writer = _cleaned(table, monkeypatch)
    _stray(table, tmp_path, 1, "stray")
    _refreshed(reader)
    assert reader.version == writer.version


def test_a_handle_notices_that_its_log_was_cut_and_grew_again(table: Path) -> None:
    stays, other = _log(table), _log(table)
    for number in range(4):
        _append(other, f"r{number}")
    _refreshed(stays)
    for version in (3, 4):
        entry_path(table, version).unlink()
        checksums_path(table, version).unlink()
    for name in ("new3", "new4", "new5"):
        _append(_log(table), name)
    stays._handle = None  # as after any error
    rebuild, tables = _refreshed(stays)
    assert rebuild
    assert sorted(rows.column("id").to_pylist()[0] for rows in tables) == ["new3", "new4", "new5", "r0", "r1"]


def test_columns_of_a_later_version_are_written_as_null_and_kept_by_a_fold(table: Path, short_folds: None) -> None:
    later = pa.table({"id": ["x"], "seq": [1], "token": ["t"], "later": ["kept"]})
    write_deltalake(str(table), later, mode="append", schema_mode="merge")
    log = _log(table)
    for _ in range(30):
        _append(log, "mine")
        log.take_in()
        log.taken_in()
    assert log.fold(ORDER, None)
    fresh = _log(table)
    rows = pa.concat_tables([fresh._read(file.name) for file in fresh.files], promote_options="default").to_pylist()
    assert {row["later"] for row in rows if row["id"] == "x"} == {"kept"}
    assert {row["later"] for row in rows if row["id"] == "mine"} == {None}


# -- folding ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def long(table: Path, short_folds: None) -> DeltaLog:
    """Make 40 commits to ten records after one that does not change, which are worth a fold."""
    log = _log(table)
    _append(log, "once")
    for number in range(40):
        _append(log, f"r{number % 10}")
    _refreshed(log)
    return log


def test_a_fold_leaves_the_newest_of_each_record_and_the_last_versions(long: DeltaLog) -> None:
    _append(long, "own")
    long.take_in()
    long.taken_in()
    assert long.fold(ORDER, None)
    rebuild, tables = _refreshed(long)  # its owner too forgets what a full fold forgot
    assert rebuild
    assert sum(rows.num_rows for rows in tables) == sum(file.rows for file in long.files)
    assert len(long.files) == 1 + folding.LAG
    assert _ids(long) == sorted(["once", "own", *(f"r{number}" for number in range(10))])
    assert not long.fold(ORDER, None)


def test_readers_rebuild_after_a_full_fold_and_only_then(long: DeltaLog) -> None:
    reader = _log(long._directory)
    assert long.fold(ORDER, None)
    rebuild, tables = _refreshed(reader)
    assert rebuild
    assert sum(rows.num_rows for rows in tables) == sum(file.rows for file in long.files)


def test_an_append_outside_its_range_does_not_stop_a_fold_and_the_append_is_kept(long: DeltaLog) -> None:
    other = _log(long._directory)
    _append(other, "theirs", "key")
    assert long.fold(ORDER, None)
    _refreshed(long)
    assert _ids(long).count("theirs") == 1


def test_an_append_that_lagged_into_its_range_stops_a_fold(long: DeltaLog) -> None:
    before = _ids(long)
    _append(_log(long._directory), "late", "key", seq=3)
    with pytest.raises(StaleHandleError):
        long.fold(ORDER, None)
    _refreshed(long)
    assert _ids(long) == sorted([*before, "late"])
    assert long.fold(ORDER, None)
    assert _ids(long).count("late") == 1


def test_the_second_of_two_folds_fails_and_no_row_is_doubled(long: DeltaLog) -> None:
    other = _log(long._directory)
    assert other.fold(ORDER, None)
    after = _ids(long)
    with pytest.raises(StaleHandleError):
        long.fold(ORDER, None)
    _refreshed(long)
    assert _ids(long) == after


def test_an_append_that_a_fold_overtook_decides_again(long: DeltaLog) -> None:
    other = _log(long._directory)
    assert long.fold(ORDER, None)
    with pytest.raises(StaleHandleError):
        _append(other, "theirs", "key")
    _refreshed(other)
    _append(other, "theirs", "key")
    assert _ids(long).count("theirs") == 1


def test_a_reader_that_missed_a_tombstone_does_not_keep_what_it_deleted(table: Path, short_folds: None) -> None:
    """Full folds drop rows; a reader of older ones notices that the base is gone and reads the whole table again."""
    log = _log(table)
    _append(log, "doomed")
    readers = [_log(table)]
    for number in range(50):
        _append(log, f"r{number}")
        if number % 10 == 0:
            readers.append(_log(table))
    _refreshed(log)

    def forgets_doomed(rows: pa.Table) -> pa.Array:
        return pa.array([name == "doomed" for name in rows.column("id").to_pylist()], pa.bool_())

    assert log.fold(ORDER, forgets_doomed)
    assert "doomed" not in _ids(log)
    for reader in readers:
        rebuild, _ = _refreshed(reader)
        assert rebuild


# -- checkpoints and vacuum -------------------------------------------------------------------------------------------


def test_a_checkpoint_keeps_a_bounded_log(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsar_on_spark.metadata.log.delta_log.KEEP_ENTRIES", 20)
    monkeypatch.setattr("pulsar_on_spark.metadata.log.delta_log.KEEP_S", 0)
    assert KEEP_ENTRIES >= 2 * folding.LAG
    log = _log(table)
    for number in range(90):
        _append(log, f"r{number}")
        if number % 10 == 9:
            log.checkpoint()
    versions = sorted(int(path.name[:20]) for path in (table / "_delta_log").glob("*.json"))
    assert versions == list(range(70, 91))
    assert len(list((table / "_delta_log").glob("*.checkpoint.parquet"))) == 3
    assert len(_ids(log)) == 90


def test_young_entries_stay_whatever_their_number(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsar_on_spark.metadata.log.delta_log.KEEP_ENTRIES", 2)
    log = _log(table)
    for number in range(9):
        _append(log, f"r{number}")
        log.checkpoint()
    assert len(list((table / "_delta_log").glob("*.json"))) == 10
    for version in range(6):
        os.utime(checkpoint_path(table, version), (0, 0)) if version else None
    _append(log, "last")
    log.checkpoint()
    assert sorted(int(path.name[:20]) for path in (table / "_delta_log").glob("*.json")) == list(range(5, 11))


def test_a_postponed_checkpoint_does_not_count(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commits of other processes below it may not be synced."""
    other, log = _log(table), _log(table)
    for number in range(8):
        _append(other, f"r{number}")
    _refreshed(log)
    log.put_off_checkpoint(4)
    assert log.entries_since_checkpoint() == 4
    synced: list[str] = []
    monkeypatch.setattr("pulsar_on_spark.metadata.log.delta_log.fsync_path", lambda path: synced.append(path.name))
    log.sync_to(log.version)
    assert [entry_path(table, version).name in synced for version in range(9)] == [True] * 9


def test_vacuum_deletes_only_files_that_no_version_needs(long: DeltaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    assert long.fold(ORDER, None)
    before = _ids(long)
    assert long.vacuum() == 0
    monkeypatch.setattr("pulsar_on_spark.metadata.log.delta_log.RETAIN_HOURS", 0)
    assert long.vacuum() == 33
    assert _ids(long) == before
    _append(long, "after")
    assert _log(long._directory).version == long.version
