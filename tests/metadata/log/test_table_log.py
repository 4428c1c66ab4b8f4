from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pulsar_on_spark.metadata.log import cleaning, folding
from pulsar_on_spark.metadata.log.chain import ConflictError, OvertakenError, UnknownOutcomeError
from pulsar_on_spark.metadata.log.checkpoints import Snapshot, checkpoint_key, encode_checkpoint
from pulsar_on_spark.metadata.log.creation import create_table
from pulsar_on_spark.metadata.log.entry import Content, Entry, decode_entry, encode_entry, entry_key
from pulsar_on_spark.metadata.log.local_log import LocalLog
from pulsar_on_spark.metadata.log.table_log import News, TableLog
from pulsar_on_spark.model.errors import MetadataError, ObjectsUnreachableError
from pulsar_on_spark.storage.objects import local
from pulsar_on_spark.storage.objects.contract import Created, Exists, Fetched, Listed, Version
from pulsar_on_spark.storage.objects.local import LocalObjects

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("token", pa.string(), nullable=False),
    ]
)
ORDER = folding.Order(key=("id",), rank=("seq", "token"))


@pytest.fixture
def table(memory_path: Path) -> Path:
    folder = memory_path / "table"
    folder.mkdir()
    create_table(LocalLog(folder, memory_path / "lock"), SCHEMA)
    return folder


def opened(table: Path) -> TableLog:
    log = TableLog(LocalLog(table, table.parent / "lock"))
    refreshed(log)
    return log


def refreshed(log: TableLog) -> News:
    """Refresh and take in the new rows, as an owner does."""
    news = log.refresh()
    log.taken_in()
    return news


def ids_in(news: News) -> list[list[str]]:
    return [rows.column("id").to_pylist() for rows in news.tables]


def append(log: TableLog, name: str, key: str | None = None, seq: int | None = None) -> str:
    """Append as the store does, on the version that was read; returns the token."""
    token = log.new_token()
    keys = {} if key is None else {key: (log.key_version(key) or 0) + 1}
    rows = pa.table({"id": [name], "seq": [log.version + 1 if seq is None else seq], "token": [token]}, schema=SCHEMA)
    log.append(rows, keys, token)
    log.taken_in()
    return token


def ids(table: Path) -> list[str]:
    log = TableLog(LocalLog(table))
    return sorted(name for names in ids_in(log.refresh()) for name in names)


def clean(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave nothing of the log before its newest version."""
    with monkeypatch.context() as at_once:
        at_once.setattr(cleaning, "KEEP_ENTRIES", 0)
        at_once.setattr(cleaning, "KEEP_S", -1.0)
        assert opened(table).checkpoint()


# -- reading ---------------------------------------------------------------------------------------------------------


def test_refresh_gives_each_file_once(table: Path) -> None:
    writer, reader = opened(table), opened(table)
    for number in range(3):
        append(writer, f"r{number}")
    news = refreshed(reader)
    assert not news.rebuild or ids_in(news) == [["r0"], ["r1"], ["r2"]]
    append(writer, "r3")
    news = refreshed(reader)
    assert not news.rebuild
    assert ids_in(news) == [["r3"]]
    assert refreshed(reader) == News(False, [])


def test_a_commit_gives_the_rows_before_it_too(table: Path) -> None:
    mine, other = opened(table), opened(table)
    append(mine, "first")
    append(other, "theirs")
    token = mine.new_token()
    rows = pa.table({"id": ["mine"], "seq": [2], "token": [token]}, schema=SCHEMA)
    news = mine.append(rows, {}, token)
    assert news is not None
    assert not news.rebuild
    assert ids_in(news) == [["theirs"], ["mine"]]


def test_rows_that_the_owner_did_not_take_in_are_given_again(table: Path) -> None:
    writer, reader = opened(table), opened(table)
    append(writer, "first")
    reader.refresh()  # and the owner is interrupted before it has taken them in
    append(writer, "second")
    news = refreshed(reader)
    assert news.rebuild
    assert ids_in(news) == [["first"], ["second"]]


def test_other_programs_read_the_table(table: Path) -> None:
    log = opened(table)
    for number in range(5):
        append(log, f"r{number}", "key")
    for is_checkpointed in (False, True):
        delta = DeltaTable(str(table))
        assert sorted(delta.to_pyarrow_table().column("id").to_pylist()) == [f"r{number}" for number in range(5)]
        assert delta.transaction_version("key") == 5
        assert delta.version() == log.version
        assert is_checkpointed or log.checkpoint()


def test_an_entry_of_another_program_is_refused_by_name(table: Path) -> None:
    log = opened(table)
    append(log, "mine")
    rows = pa.table({"id": ["theirs"], "seq": [2], "token": ["x"]}, schema=SCHEMA)
    write_deltalake(str(table), rows, mode="append")
    for attempt in (log.refresh, lambda: append(log, "again"), lambda: opened(table)):
        with pytest.raises(MetadataError, match=rf"Another program has written {entry_key(2)} .* restore"):
            attempt()


# -- compare and set -------------------------------------------------------------------------------------------------


def test_the_second_of_two_commits_under_one_key_fails_and_under_two_keys_passes(table: Path) -> None:
    first, second, third = opened(table), opened(table), opened(table)
    append(first, "a", "key")
    with pytest.raises(ConflictError):
        append(second, "b", "key")
    append(third, "c", "other")
    assert ids(table) == ["a", "c"]
    refreshed(second)
    assert second.key_version("key") == 1
    append(second, "b", "key")
    assert second.key_version("key") == 2
    assert second.key_version("never") is None


def test_keys_are_read_from_a_checkpoint(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(table)
    for key in ("a", "b", "a"):
        append(log, key, key)
    clean(table, monkeypatch)
    fresh = opened(table)
    assert [fresh.key_version(key) for key in ("a", "b", "c")] == [2, 1, None]


# -- unknown outcomes --------------------------------------------------------------------------------------------------


class LosingReplies(LocalObjects):
    """A store that writes the next entry, or does not, and gives no answer."""

    is_written: bool | None = None

    def create(self, key: str, content: bytes) -> Created | Exists:
        if key.startswith("_delta_log") and self.is_written is not None:
            is_written, self.is_written = self.is_written, None
            if is_written:
                super().create(key, content)
            raise ObjectsUnreachableError("no reply")
        return super().create(key, content)


def losing(table: Path, *, is_written: bool) -> TableLog:
    store = LocalLog(table, table.parent / "lock")
    objects = store.objects = LosingReplies(table)
    log = TableLog(store)
    refreshed(log)
    objects.is_written = is_written
    return log


@pytest.mark.parametrize("is_written", [True, False])
def test_a_commit_without_an_answer_is_looked_for(table: Path, *, is_written: bool) -> None:
    log = losing(table, is_written=is_written)
    with pytest.raises(UnknownOutcomeError) as caught:
        append(log, "a", "key")
    token = _entries(table)[-1].token if is_written else "never"
    assert log.settle(token, 0, caught.value) is is_written
    refreshed(log)
    assert ids(table) == ["a"] * is_written
    assert log.key_version("key") == (1 if is_written else None)
    # The number is taken: a request that arrives now comes too late.
    assert log.version == 1


def _entries(table: Path) -> list[Entry]:
    paths = sorted((table / "_delta_log").glob("*.json"))
    return [decode_entry(number, path.read_bytes()) for number, path in enumerate(paths)]


def test_a_disk_that_refuses_behind_the_link_leaves_the_outcome_open(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the mark of another user cannot be read: the entry is there."""
    monkeypatch.setattr(LocalObjects.__init__, "__kwdefaults__", {"patience_s": 0.02})
    log = opened(table)
    sync_folder = local.sync_folder

    def refuse(base: Path, folder: Path) -> None:
        if folder.name == "_delta_log":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        sync_folder(base, folder)

    with monkeypatch.context() as refusing:
        refusing.setattr(local, "sync_folder", refuse)
        with pytest.raises(UnknownOutcomeError) as caught:
            append(log, "a", "key")
        with pytest.raises(MetadataError, match=r"outcome of a commit .*unknown"):
            log.settle(_entries(table)[-1].token, 0, caught.value)
    assert log.settle(_entries(table)[-1].token, 0, caught.value)
    assert ids(table) == ["a"]


def test_damage_behind_a_commit_does_not_undo_it(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalLog(table, table.parent / "lock")
    objects = store.objects = Overtaken(table)
    log = TableLog(store)
    refreshed(log)
    objects.other = opened(table)
    read = objects.fetch
    monkeypatch.setattr(objects, "fetch", lambda key: Fetched(b"", Version("x")) if key == entry_key(2) else read(key))
    with pytest.raises(UnknownOutcomeError):
        append(log, "mine")


def test_a_writer_has_another_name_after_a_commit_that_did_not_succeed(table: Path) -> None:
    """Two entries of one name behind a gap show that nothing before them was lost, because the first was synced."""
    log, other = opened(table), opened(table)
    writer = log.new_token()[:16]
    assert log.new_token()[:16] == writer
    append(log, "a", "key")
    assert log.new_token()[:16] == writer
    with pytest.raises(ConflictError):
        append(other, "b", "key")
    refreshed(log)
    append(log, "c")
    append(opened(table), "d", "key")
    with pytest.raises(ConflictError):
        append(log, "e", "key")
    assert log.new_token()[:16] != writer


class Overtaken(LocalObjects):
    """A store in which another writer commits between an entry and the listing behind it."""

    other: TableLog | None = None

    def list_after(self, prefix: str, after: str = "") -> Iterator[Listed]:
        other, self.other = self.other, None
        if other is not None:
            refreshed(other)
            append(other, "theirs")
        return super().list_after(prefix, after)


def test_entries_behind_an_own_one_are_synced_before_something_is_reported(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their writers may have linked them just now."""
    store = LocalLog(table, table.parent / "lock")
    objects = store.objects = Overtaken(table)
    log = TableLog(store)
    refreshed(log)
    objects.other = opened(table)
    append(log, "mine")
    assert log.version == 2
    syncs: list[bool] = []
    monkeypatch.setattr(store, "sync", lambda: syncs.append(True))
    log.sync_to(1)
    assert not syncs
    log.sync_to(2)
    log.sync_to(2)
    assert syncs == [True]


def test_a_commit_is_found_in_the_rows_where_the_log_was_cleaned_and_unknown_where_they_are_gone(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(table)
    tokens = [append(log, f"r{number}") for number in range(3)]
    clean(table, monkeypatch)
    unknown = UnknownOutcomeError(1)
    assert opened(table).settle(tokens[0], 0, unknown)
    with pytest.raises(MetadataError, match=r"outcome of a commit .* unknown .* check whether"):
        opened(table).settle("never", 0, unknown)
    assert not opened(table).settle("never", 3, UnknownOutcomeError(3))


def test_a_process_that_was_suspended_while_the_log_was_cleaned_decides_anew(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decided at version 0, and puts its entry under number 1, which was cleaned up."""
    writer, reader, zombie = opened(table), opened(table), opened(table)
    for number in range(20):
        append(writer, f"r{number}")
    clean(table, monkeypatch)
    append(writer, "last")
    with pytest.raises(UnknownOutcomeError) as caught:
        append(zombie, "zombie", "key")
    assert (table / entry_key(1)).exists()
    with pytest.raises(MetadataError, match="unknown"):
        zombie.settle("zombie", 0, caught.value)
    for log in (reader, zombie):
        assert sum(map(len, ids_in(refreshed(log)))) == 21
        assert log.version == writer.version
        assert log.key_version("key") is None


def test_consecutive_strays_do_not_form_a_history(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one is linked to the first: only the entry that was read before shows that neither is the log's."""
    reader, writer = opened(table), opened(table)
    first = _entries(table)[0].token
    for number in range(9):
        append(writer, f"r{number}")
    clean(table, monkeypatch)
    for version, (token, previous) in enumerate((("s1", first), ("s2", "s1")), start=1):
        (table / entry_key(version)).write_bytes(encode_entry(Content(keys={"k": 7}), token, previous, None))
    assert sum(map(len, ids_in(refreshed(reader)))) == 9
    assert reader.version == writer.version
    assert reader.key_version("k") is None


# -- folding ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def long(table: Path, short_folds: None) -> TableLog:
    """Make 40 commits to ten records after one that does not change, which are worth a fold."""
    log = opened(table)
    append(log, "once")
    for number in range(40):
        append(log, f"r{number % 10}")
    return log


def test_a_fold_leaves_the_newest_of_each_record_and_the_last_versions(long: TableLog, table: Path) -> None:
    append(long, "own")
    assert long.fold(ORDER, None)
    news = refreshed(long)  # its owner too forgets what a full fold forgot
    assert news.rebuild
    assert sum(rows.num_rows for rows in news.tables) == sum(file.rows for file in long.files)
    assert len(long.files) == 1 + folding.LAG
    assert ids(table) == sorted(["once", "own", *(f"r{number % 10}" for number in range(32, 40)), "r0", "r1"])
    assert not long.fold(ORDER, None)
    assert sorted(DeltaTable(str(table)).to_pyarrow_table().column("id").to_pylist()) == ids(table)


def test_readers_rebuild_after_a_full_fold(long: TableLog, table: Path) -> None:
    reader = opened(table)
    assert long.fold(ORDER, None)
    news = refreshed(reader)
    assert news.rebuild
    assert sum(rows.num_rows for rows in news.tables) == sum(file.rows for file in long.files)


def test_a_fold_that_drops_no_rows_gives_its_owner_none(long: TableLog, table: Path) -> None:
    assert long.fold(ORDER, None)
    refreshed(long)
    for number in range(200):
        append(long, f"new{number}")
        if number >= 20 and number % 20 == 0 and long.fold(ORDER, None) and len(long.files) > folding.LAG + 1:
            assert refreshed(long) == News(False, [])
            break
    else:
        raise AssertionError("no fold left the base as it was")
    assert len(set(ids(table))) == 11 + number + 1


def test_an_append_does_not_stop_a_fold_and_is_kept(long: TableLog, table: Path) -> None:
    append(opened(table), "theirs", "key")
    assert long.fold(ORDER, None)
    assert ids(table).count("theirs") == 1


def test_an_append_that_lagged_into_its_range_is_kept(long: TableLog, table: Path) -> None:
    before = ids(table)
    append(opened(table), "late", "key", seq=3)
    assert long.fold(ORDER, None)
    assert set(ids(table)) == {*before, "late"}
    for number in range(30):
        append(long, f"r{number % 10}")
    refreshed(long)
    assert long.fold(ORDER, None)
    assert ids(table).count("late") == 1


def test_a_fold_that_others_overtook_gives_their_rows(
    long: TableLog, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They came between its entry and the look behind it."""
    store = LocalLog(table, table.parent / "lock")
    objects = store.objects = Overtaken(table)
    folding_log = TableLog(store)
    refreshed(folding_log)
    monkeypatch.setattr(folding, "plan", lambda files, version: folding.FoldPlan(above=5, up_to=30))
    objects.other = opened(table)
    assert folding_log.fold(ORDER, None)
    news = refreshed(folding_log)
    assert "theirs" in [name for names in ids_in(news) for name in names]
    assert sorted(name for names in ids_in(news) for name in names) == ids(table)


def test_the_second_of_two_folds_fails_and_no_row_is_doubled(long: TableLog, table: Path) -> None:
    other = opened(table)
    assert other.fold(ORDER, None)
    after = ids(table)
    with pytest.raises(ConflictError):
        long.fold(ORDER, None)
    refreshed(long)
    assert ids(table) == after


def test_an_append_that_a_fold_overtook_decides_again(long: TableLog, table: Path) -> None:
    other = opened(table)
    assert long.fold(ORDER, None)
    with pytest.raises(ConflictError):
        append(other, "theirs", "key")
    refreshed(other)
    append(other, "theirs", "key")
    assert ids(table).count("theirs") == 1


def test_a_reader_that_missed_a_tombstone_does_not_keep_what_it_deleted(table: Path, short_folds: None) -> None:
    """Full folds drop rows; a reader of older ones notices that the base is gone and reads the whole table again."""
    log = opened(table)
    append(log, "doomed")
    readers = [opened(table)]
    for number in range(50):
        append(log, f"r{number}")
        if number % 10 == 0:
            readers.append(opened(table))

    def forgets_doomed(rows: pa.Table) -> pa.Array:
        return pa.array([name == "doomed" for name in rows.column("id").to_pylist()], pa.bool_())

    assert log.fold(ORDER, forgets_doomed)
    assert "doomed" not in ids(table)
    for reader in readers:
        assert refreshed(reader).rebuild


# -- checkpoints and clean-up -----------------------------------------------------------------------------------------


def _versions(table: Path, ending: str) -> list[int]:
    return sorted(int(path.name[:20]) for path in (table / "_delta_log").glob(f"*{ending}"))


def test_a_checkpoint_keeps_a_bounded_log(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cleaning.KEEP_ENTRIES >= 2 * folding.LAG
    monkeypatch.setattr(cleaning, "KEEP_ENTRIES", 20)
    monkeypatch.setattr(cleaning, "KEEP_S", -1.0)
    log = opened(table)
    for number in range(90):
        append(log, f"r{number}")
        if number % 10 == 9:
            assert log.checkpoint()
    assert _versions(table, ".json") == list(range(70, 91))
    assert _versions(table, ".checkpoint.parquet") == [70, 80, 90]
    assert sorted(path.name for path in (table / "_checksums").iterdir()) == [
        f"{version:020d}.checkpoint" for version in (70, 80, 90)
    ]
    assert len(ids(table)) == 90


def test_young_entries_stay_whatever_their_number(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "KEEP_ENTRIES", 2)
    log = opened(table)
    for number in range(9):
        append(log, f"r{number}")
        assert log.checkpoint()
    assert _versions(table, ".json") == list(range(10))


def test_a_checkpoint_that_others_made_is_not_made_again(table: Path) -> None:
    log, other = opened(table), opened(table)
    append(log, "a")
    assert log.checkpoint()
    refreshed(other)
    assert not other.checkpoint()
    assert other.entries_since_checkpoint() == 0


def test_a_checkpoint_that_says_something_else_is_not_used(table: Path) -> None:
    log = opened(table)
    append(log, "a", "key")
    LocalObjects(table).create(checkpoint_key(1), encode_checkpoint(Snapshot(1, {}, {}, {}, {})))
    with pytest.raises(MetadataError, match="contradicts its checkpoint 1"):
        log.checkpoint()
    assert opened(table).checkpointed == -1


def test_a_postponed_checkpoint_counts_fewer_entries(table: Path) -> None:
    log = opened(table)
    for number in range(8):
        append(log, f"r{number}")
    log.put_off_checkpoint(4)
    assert log.entries_since_checkpoint() == 4


def test_vacuum_deletes_only_files_that_no_version_in_the_log_needs(
    long: TableLog, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert long.fold(ORDER, None)
    refreshed(long)
    assert long.vacuum() == 0
    before = ids(table)
    clean(table, monkeypatch)
    assert long.vacuum() == 0, "replaced within the last hour"
    monkeypatch.setattr(cleaning, "RETAIN_S", -1.0)
    assert long.vacuum() == 0, "the entry that replaced them is in the log"
    for number in range(2):
        append(long, f"after{number}")
    clean(table, monkeypatch)
    assert long.vacuum() == 33
    assert ids(table) == sorted([*before, "after0", "after1"])


def test_a_data_file_stays_while_a_commit_may_still_name_it(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process was suspended between its data file and its log entry."""
    log = opened(table)
    append(log, "a")
    orphan = table / f"part-{1:020d}-{log.new_token()}.parquet"
    orphan.write_bytes(b"PAR1")
    append(log, "b")
    monkeypatch.setattr(cleaning, "RETAIN_S", -1.0)
    clean(table, monkeypatch)
    assert log.vacuum() == 0, "entry 2 is there, so a commit that was decided at version 1 is still told"
    append(log, "c")
    clean(table, monkeypatch)
    assert log.vacuum() == 1
    assert not orphan.exists()
    assert ids(table) == ["a", "b", "c"]


def test_a_handle_that_never_read_has_to(table: Path) -> None:
    with pytest.raises(OvertakenError):
        assert TableLog(LocalLog(table)).version
