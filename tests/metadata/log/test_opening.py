"""Logs that are damaged, which are refused by name, and logs that a power cut left with a gap."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_on_spark.metadata.log import opening
from pulsar_on_spark.metadata.log.checkpoints import checkpoint_key, checksum_key
from pulsar_on_spark.metadata.log.entry import Content, Entry, decode_entry, encode_entry, entry_key
from pulsar_on_spark.metadata.log.local_log import LocalLog
from pulsar_on_spark.metadata.log.log_store import LogStore
from pulsar_on_spark.metadata.records import TenantRecord
from pulsar_on_spark.metadata.store import MetadataStore
from pulsar_on_spark.model.errors import CorruptMetadataError, MetadataError
from pulsar_on_spark.storage.durability import locked

Put = Callable[..., None]


def _main(root: Path) -> Path:
    return root / "metadata" / "main"


def _entry(root: Path, version: int) -> Entry:
    return decode_entry(version, (_main(root) / entry_key(version)).read_bytes())


def _data_file(root: Path, version: int) -> Path:
    return _main(root) / _entry(root, version).added[0].name


def _names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.name != "lock")


def _tenants(root: Path) -> list[str]:
    return [record.tenant for record in MetadataStore(root).view().all(TenantRecord)]


def _zero(path: Path, start: int, length: int) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(length))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def _cut_between_lines(path: Path) -> None:
    path.write_bytes(b"\n".join(path.read_bytes().splitlines()[:-1]))


BREAKS: dict[str, Callable[[Path, int], object]] = {
    "entry empty": lambda root, version: (_main(root) / entry_key(version)).write_bytes(b""),
    "entry cut": lambda root, version: _cut(_main(root) / entry_key(version)),
    "entry cut between lines": lambda root, version: _cut_between_lines(_main(root) / entry_key(version)),
    "entry zeroed": lambda root, version: _zero(_main(root) / entry_key(version), 0, 600),
    "data missing": lambda root, version: _data_file(root, version).unlink(),
    "data empty": lambda root, version: _data_file(root, version).write_bytes(b""),
    "data cut": lambda root, version: _cut(_data_file(root, version)),
    "data zeroed in the middle": lambda root, version: _zero(_data_file(root, version), 16, 1024),
}


def _refused(root: Path, message: str) -> None:
    """Check that nothing is cut off, however often the root is opened."""
    before = _names(root / "metadata")
    for _ in range(2):
        with pytest.raises(MetadataError, match=message):
            MetadataStore(root).view()
    assert _names(root / "metadata") == before


@pytest.mark.parametrize("broken", list(BREAKS))
@pytest.mark.parametrize("version", [9, 10])
def test_damage_is_refused_by_name_and_nothing_is_cut_off(
    ten_commits: Path, broken: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_on_spark.metadata.patience.READ_ATTEMPTS", 2)
    name = entry_key(version) if broken.startswith("entry") else _data_file(ten_commits, version).name
    BREAKS[broken](ten_commits, version)
    _refused(ten_commits, name)


def test_an_open_store_refuses_damage_too(root: Path, store: MetadataStore, put: Put) -> None:
    put(MetadataStore(root), "a")
    (_main(root) / entry_key(2)).write_bytes(b"")
    with pytest.raises(CorruptMetadataError, match=entry_key(2)):
        store.view()
    with pytest.raises(CorruptMetadataError, match=entry_key(2)):
        put(store, "b")


# -- gaps --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def gap(ten_commits: Path) -> Path:
    """Entry 9 lost its name in a power cut, before the writer of entry 10, another process, had synced it."""
    _rewrite_as_another_writer(ten_commits, 10)
    (_main(ten_commits) / entry_key(9)).unlink()
    _note_last_report(ten_commits, 8)
    return ten_commits


def _note_last_report(root: Path, version: int) -> None:
    (_main(root) / "_reported").unlink()
    LocalLog(_main(root)).note_reported(version)


def _rewrite_as_another_writer(root: Path, version: int) -> None:
    entry = _entry(root, version)
    text = encode_entry(Content(entry.added, keys=entry.keys), "f" * 32, entry.previous or "", entry.boot)
    (_main(root) / entry_key(version)).write_bytes(text)


def test_what_is_behind_a_gap_of_an_earlier_boot_is_set_aside(
    gap: Path, put: Put, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert _tenants(gap) == [f"t{number}" for number in range(7)]
    assert "ended in a gap after a power cut: 1 entries behind it" in caplog.text
    store = MetadataStore(gap)
    assert store.view().version == 8
    put(store, "after")
    assert "after" in _tenants(gap)
    assert [path.name for path in (gap / "metadata" / "set-aside").rglob("*.json")] == [Path(entry_key(10)).name]


def test_a_reported_entry_is_missed_at_the_end_of_a_log(ten_commits: Path, put: Put) -> None:
    """As behind a copy of an older log over a newer one."""
    newest = _main(ten_commits) / entry_key(10)
    newest.rename(ten_commits / "kept")
    _refused(ten_commits, f"{entry_key(10)} is missing, and nothing in it was changed")
    (ten_commits / "kept").rename(newest)
    put(MetadataStore(ten_commits), "after")
    assert len(_tenants(ten_commits)) == 10


@pytest.mark.parametrize("note", [b"", b"00000000000000000099 00000000\n", b"\xff\xfe", b"1 2 3"])
def test_a_torn_note_of_the_last_report_says_nothing(ten_commits: Path, note: bytes, put: Put) -> None:
    (_main(ten_commits) / "_reported").write_bytes(note)
    put(MetadataStore(ten_commits), "after")
    assert len(_tenants(ten_commits)) == 10


def test_a_gap_before_a_reported_entry_is_damage(gap: Path) -> None:
    LocalLog(_main(gap)).note_reported(10)
    _refused(gap, f"{entry_key(9)} is missing")


def test_a_gap_is_damage_where_nothing_is_known_of_reports(gap: Path) -> None:
    (_main(gap) / "_reported").unlink()
    _refused(gap, f"{entry_key(9)} is missing")


def test_the_note_of_the_last_report_does_not_go_back(root: Path) -> None:
    log = LocalLog(_main(root))
    log.note_reported(7)
    log.note_reported(3)
    assert log.reported_version() == 7


def test_a_gap_before_two_entries_of_one_writer_is_damage(ten_commits: Path) -> None:
    """A writer syncs the folder after each entry: the first of the two was durable, and so was everything before."""
    (_main(ten_commits) / entry_key(8)).unlink()
    _refused(ten_commits, f"{entry_key(8)} is missing, and nothing in it was changed")


def test_a_gap_of_this_boot_is_damage_unless_the_operator_says_that_the_disk_was_remounted(
    root: Path, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(MetadataStore(root), "a")
    put(MetadataStore(root), "b")
    (_main(root) / entry_key(2)).unlink()
    _note_last_report(root, 1)
    _refused(root, f"{entry_key(2)} is missing")
    (_main(root) / "_unsynced").touch()
    assert _tenants(root) == []
    assert not (_main(root) / "_unsynced").exists()


def test_a_damaged_entry_behind_a_gap_is_not_set_aside(gap: Path) -> None:
    (_main(gap) / entry_key(10)).write_bytes(b"")
    _refused(gap, f"{entry_key(9)} is missing")


def test_a_gap_is_left_alone_while_another_process_cleans_up(gap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsar_on_spark.metadata.patience.READ_ATTEMPTS", 2)
    holder = subprocess.Popen(["flock", "--no-fork", gap / "lock", "sleep", "600"])
    try:
        while True:
            with locked(gap / "lock", wait=False) as mine:
                if not mine:
                    break
        with pytest.raises(MetadataError, match="another process cleans up"):
            MetadataStore(gap)
    finally:
        holder.kill()
        holder.wait()
    assert len(_tenants(gap)) == 7


def test_a_gap_that_another_process_closes_meanwhile_is_no_damage(gap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is closed between the look at the log and the lock, and no commit has come since."""
    close_gap = opening._close_gap

    def close_twice(store: LogStore, missing: int) -> None:
        monkeypatch.setattr(opening, "_close_gap", close_gap)
        close_gap(store, missing)
        close_gap(store, missing)

    monkeypatch.setattr(opening, "_close_gap", close_twice)
    assert MetadataStore(gap).view().version == 8


@pytest.mark.long
def test_processes_that_find_the_gap_together_close_it_once(
    gap: Path, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    processes = [spawn(gap, number, 3) for number in range(3)]
    for process in processes:
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert len(output.splitlines()) == 3
    assert len(list((gap / "metadata" / "set-aside").iterdir())) == 1
    assert MetadataStore(gap).view().version == 8 + 9


def test_an_operator_can_give_up_the_commits_from_a_damaged_one_on(ten_commits: Path, put: Put) -> None:
    """Follow docs/operations.md for a root without a backup."""
    BREAKS["entry empty"](ten_commits, 9)
    _refused(ten_commits, entry_key(9))
    for version in (9, 10):
        (_main(ten_commits) / entry_key(version)).unlink()
    (_main(ten_commits) / "_reported").unlink()
    assert _tenants(ten_commits) == [f"t{number}" for number in range(7)]
    for name in "abc":
        put(MetadataStore(ten_commits), name)
    assert len(_tenants(ten_commits)) == 10


def test_a_table_without_a_first_entry_is_damaged(root: Path) -> None:
    (_main(root) / entry_key(0)).unlink()
    _refused(root, f"{entry_key(0)} is missing")
    with pytest.raises(CorruptMetadataError, match="is missing"):
        MetadataStore.create(root, [])


# -- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpointed(ten_commits: Path, put: Put) -> Path:
    """Checkpoints at 10 and 12, entries up to 14."""
    store = MetadataStore(ten_commits)
    assert store._main.checkpoint()
    for name, checkpoint in (("a", False), ("b", True), ("c", False), ("d", False)):
        put(store, name)
        if checkpoint:
            assert store._main.checkpoint()
    assert [path.name[18:20] for path in sorted(_main(ten_commits).rglob("*.checkpoint.parquet"))] == ["10", "12"]
    return ten_commits


CHECKPOINT_BREAKS: dict[str, Callable[[Path], object]] = {
    "empty": lambda table: (table / checkpoint_key(12)).write_bytes(b""),
    "cut": lambda table: _cut(table / checkpoint_key(12)),
    "middle zeroed": lambda table: _zero(table / checkpoint_key(12), 64, 1000),
    "missing": lambda table: (table / checkpoint_key(12)).unlink(),
    "checksum empty": lambda table: (table / checksum_key(12)).write_bytes(b""),
    "checksum missing": lambda table: (table / checksum_key(12)).unlink(),
    "checksum of another": lambda table: (table / checksum_key(10)).rename(table / checksum_key(12)),
    "pointer empty": lambda table: (table / "_delta_log" / "_last_checkpoint").write_bytes(b""),
    "pointer cut": lambda table: (table / "_delta_log" / "_last_checkpoint").write_bytes(b'{"version":1'),
    "pointer missing": lambda table: (table / "_delta_log" / "_last_checkpoint").unlink(),
    "pointer astray": lambda table: (table / "_delta_log" / "_last_checkpoint").write_bytes(b'{"version":99,"size":1}'),
    "pointer to an old one": lambda table: (table / "_delta_log" / "_last_checkpoint").write_bytes(b'{"version":10}'),
}


@pytest.mark.parametrize("broken", list(CHECKPOINT_BREAKS))
def test_a_broken_checkpoint_loses_nothing(checkpointed: Path, broken: str, put: Put) -> None:
    CHECKPOINT_BREAKS[broken](_main(checkpointed))
    expected = [*"abcd", *(f"t{number}" for number in range(9))]
    assert _tenants(checkpointed) == expected
    store = MetadataStore(checkpointed)
    assert store.view().version == 14
    put(store, "e")
    store.fold_and_checkpoint()
    assert _tenants(checkpointed) == sorted([*expected, "e"])


def test_the_only_checkpoint_of_a_cleaned_log_is_refused_by_name(checkpointed: Path) -> None:
    for version in range(12):
        (_main(checkpointed) / entry_key(version)).unlink()
    for version in (10, 12):
        _cut(_main(checkpointed) / checkpoint_key(version))
    _refused(checkpointed, rf"{checkpoint_key(12)} is not what was written.* restore")


def test_the_entry_of_a_checkpoint_belongs_to_the_log(checkpointed: Path) -> None:
    """Its token is what the next entry names."""
    (_main(checkpointed) / entry_key(12)).unlink()
    _refused(checkpointed, f"{entry_key(12)} is missing")


def test_damage_below_a_checkpoint_changes_nothing(checkpointed: Path) -> None:
    for version in (0, 3, 9):
        (_main(checkpointed) / entry_key(version)).write_bytes(b"")
    assert len(_tenants(checkpointed)) == 13
    CHECKPOINT_BREAKS["cut"](_main(checkpointed))
    assert len(_tenants(checkpointed)) == 13, "checkpoint 10 is good"
    _cut(_main(checkpointed) / checkpoint_key(10))
    _refused(checkpointed, entry_key(0))
