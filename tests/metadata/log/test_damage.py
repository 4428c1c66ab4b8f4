from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pulsar_on_spark.metadata.log import damage
from pulsar_on_spark.metadata.log.checksums import checksums_path
from pulsar_on_spark.metadata.log.damage import find_damage
from pulsar_on_spark.metadata.log.folding import Order
from pulsar_on_spark.metadata.log.log_entry import checkpoint_path, entry_path, read_entry
from pulsar_on_spark.metadata.records import TenantRecord
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import CorruptMetadataError, MetadataError
from pulsar_on_spark.storage.durability import locked

Put = Callable[..., None]


def _main(root: Path) -> Path:
    return root / "metadata" / "main"


def _data_file(root: Path, version: int) -> Path:
    entry = read_entry(_main(root), version)
    assert entry is not None
    return _main(root) / entry.added[0][0]


def _names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def _tenants(root: Path) -> list[str]:
    return [record.tenant for record in MetadataStore(root).view().all(TenantRecord)]


def _zero(path: Path, start: int, length: int) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(length))


def _empty(root: Path, version: int) -> None:
    entry_path(_main(root), version).write_bytes(b"")


def _cut(root: Path, version: int) -> None:
    path = entry_path(_main(root), version)
    path.write_bytes(path.read_bytes()[:-30])


def _cut_between_lines(root: Path, version: int) -> None:
    path = entry_path(_main(root), version)
    path.write_bytes(b"\n".join(path.read_bytes().splitlines()[:-1]))


def _zeroed(root: Path, version: int) -> None:
    path = entry_path(_main(root), version)
    path.write_bytes(bytes(path.stat().st_size))


def _lost(root: Path, version: int) -> None:
    entry_path(_main(root), version).unlink()


def _data_lost(root: Path, version: int) -> None:
    _data_file(root, version).unlink()


def _data_empty(root: Path, version: int) -> None:
    _data_file(root, version).write_bytes(b"")


def _data_cut(root: Path, version: int) -> None:
    path = _data_file(root, version)
    path.write_bytes(path.read_bytes()[:-1])


def _data_zeroed(root: Path, version: int) -> None:
    _zero(_data_file(root, version), 0, _data_file(root, version).stat().st_size)


def _data_end_zeroed(root: Path, version: int) -> None:
    _zero(_data_file(root, version), _data_file(root, version).stat().st_size - 64, 64)


def _data_middle_zeroed(root: Path, version: int) -> None:
    _zero(_data_file(root, version), 16, 1024)


BREAKS = [
    _empty,
    _cut,
    _cut_between_lines,
    _zeroed,
    _lost,
    _data_lost,
    _data_empty,
    _data_cut,
    _data_zeroed,
    _data_end_zeroed,
    _data_middle_zeroed,
]


@pytest.mark.parametrize(
    ("damage", "version"),
    # A lost last entry leaves a healthy, shorter log.
    [(damage, version) for damage in BREAKS for version in (9, 10) if not (damage is _lost and version == 10)],
    ids=lambda value: value.__name__[1:] if callable(value) else str(value),
)
def test_a_broken_tail_is_set_aside_and_the_store_works(
    cut_off: Path, damage: Callable[[Path, int], None], version: int, put: Put
) -> None:
    damage(cut_off, version)
    assert _tenants(cut_off) == [f"t{number}" for number in range(version - 2)]
    store = MetadataStore(cut_off)
    assert store.view().version == version - 1
    put(store, "after")
    assert "after" in _tenants(cut_off)
    assert not find_damage(_main(cut_off), deep=True)
    aside = [path.name for path in (cut_off / "metadata" / "set-aside").rglob("*.json")]
    lost = {9} if damage is _lost else set()
    assert sorted(aside) == [
        entry_path(Path(), number).name for number in (9, 10) if number >= version and number not in lost
    ]
    assert DeltaTable(str(_main(cut_off))).version() == version


def _refused(root: Path, message: str) -> None:
    """Check that nothing is cut off, however often the root is opened."""
    before = _names(root / "metadata")
    for _ in range(2):
        with pytest.raises(CorruptMetadataError, match=message):
            MetadataStore(root).view()
    assert _names(root / "metadata") == before


@pytest.mark.parametrize("damage", BREAKS, ids=lambda value: value.__name__[1:])
def test_reported_commits_are_never_cut_off(ten_commits: Path, damage: Callable[[Path, int], None]) -> None:
    """Also after the machine has started again: the commit's checksums, or later ones, say that it was durable."""
    damage(ten_commits, 9)
    _refused(ten_commits, r"metadata/main.* (damaged at version 9, which was durable once|not what was written)")


def test_an_operator_can_give_up_the_commits_from_a_damaged_one_on(ten_commits: Path, put: Put) -> None:
    """Follow docs/operations.md for a root without a backup."""
    _empty(ten_commits, 9)
    _refused(ten_commits, "damaged at version 9")
    for version in (9, 10):
        entry_path(_main(ten_commits), version).unlink()
        checksums_path(_main(ten_commits), version).unlink()
    assert _tenants(ten_commits) == [f"t{number}" for number in range(7)]
    store = MetadataStore(ten_commits)
    for name in "abc":
        put(store, name)
    assert len(_tenants(ten_commits)) == 10


@pytest.mark.parametrize("damage", BREAKS, ids=lambda value: value.__name__[1:])
def test_no_power_was_cut_since_the_machine_started(
    root: Path, store: MetadataStore, put: Put, damage: Callable[[Path, int], None]
) -> None:
    """Without checksums, too: as where a process was killed before it wrote them."""
    for name in "abc":
        put(store, name)
    del store
    for version in (3, 4):
        checksums_path(_main(root), version).unlink()
    damage(root, 3)
    _refused(root, r"damaged at version 3, which was written since this machine started.* restore")


def test_an_open_table_is_never_cut(cut_off: Path) -> None:
    holding = MetadataStore(cut_off)
    _empty(cut_off, 10)
    _refused(cut_off, r"00010.json\), but it is in use: stop all that use the root")
    with pytest.raises(MetadataError, match="in use"):
        holding.view()
    del holding
    assert len(_tenants(cut_off)) == 8


def test_a_damaged_checkpoint_is_replaced_by_an_older_one(checkpointed: Path) -> None:
    path = checkpoint_path(_main(checkpointed), 12)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert _tenants(checkpointed) == [*"abcd", *(f"t{number}" for number in range(9))]
    assert not path.exists()


def test_the_only_checkpoint_of_a_cleaned_log_is_refused_by_name(checkpointed: Path) -> None:
    damage.clean_up(_main(checkpointed), 12, 0)
    path = checkpoint_path(_main(checkpointed), 12)
    path.write_bytes(path.read_bytes()[:-1])
    _refused(checkpointed, r"00012.checkpoint.parquet is not what was written.* restore")


def test_every_cut_length_of_the_last_entry_is_seen(cut_off: Path) -> None:
    path = entry_path(_main(cut_off), 10)
    text = path.read_bytes()
    for length in range(len(text.rstrip())):
        path.write_bytes(text[:length])
        assert find_damage(_main(cut_off)).first_broken == 10, length
    path.write_bytes(text)
    assert not find_damage(_main(cut_off))


def test_several_broken_entries_and_an_orphan_after_a_gap_all_go(cut_off: Path) -> None:
    _data_lost(cut_off, 7)
    _empty(cut_off, 8)
    _lost(cut_off, 9)
    assert _tenants(cut_off) == [f"t{number}" for number in range(5)]


def _never_touched(root: Path) -> None:
    before = _names(root)
    assert damage.repair(_main(root), root / "lock", deep=True) is None
    assert damage.repair(root / "metadata" / "cursors", root / "lock", deep=True) is None
    MetadataStore(root)
    assert _names(root) == before


def test_a_healthy_log_is_never_touched(ten_commits: Path, put: Put, short_folds: None) -> None:
    (ten_commits / "lock").touch()
    _never_touched(ten_commits)
    store = MetadataStore(ten_commits)
    store.commit(lambda view: Change(keys={"q/1": 7}))
    _never_touched(ten_commits)
    for number in range(25):
        put(store, "t0", note=number)
    _never_touched(ten_commits)
    store.fold_and_checkpoint()
    _never_touched(ten_commits)


def test_files_that_a_fold_replaced_may_be_vacuumed_before_a_checkpoint(
    ten_commits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries that added them are still read then."""
    monkeypatch.setattr("pulsar_on_spark.metadata.log.folding.LAG", 2)
    monkeypatch.setattr("pulsar_on_spark.metadata.log.folding.WORTH_FILES", 2)
    monkeypatch.setattr("pulsar_on_spark.metadata.log.delta_log.RETAIN_HOURS", 0)
    store = MetadataStore(ten_commits)
    assert store._main.fold(Order(key=("kind", "id"), rank=("seq",)), None)
    assert store.vacuum() == 8
    (ten_commits / "lock").touch()
    _never_touched(ten_commits)
    assert len(_tenants(ten_commits)) == 9


def test_entries_of_other_writers_do_not_break_a_log(ten_commits: Path, put: Put) -> None:
    entry_path(_main(ten_commits), 11).write_text(
        json.dumps({"commitInfo": {"operation": "STREAMING UPDATE", "operationMetrics": {"numOutputRows": "0"}}})
        + "\n"
        + json.dumps({"txn": {"appId": "spark", "version": 3}})
    )
    entry_path(_main(ten_commits), 12).write_text(json.dumps({"commitInfo": {"operation": "VACUUM START"}}))
    (ten_commits / "lock").touch()
    _never_touched(ten_commits)
    store = MetadataStore(ten_commits)
    assert store.key_version("spark") == 3
    put(store, "after")
    assert store.view().version == 13


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


def _checkpoint_cut(table: Path) -> None:
    path = checkpoint_path(table, 12)
    path.write_bytes(path.read_bytes()[:-7])


def _checkpoint_middle_zeroed(table: Path) -> None:
    _zero(checkpoint_path(table, 12), 64, checkpoint_path(table, 12).stat().st_size - 128)


CHECKPOINT_BREAKS: dict[str, Callable[[Path], object]] = {
    "empty": lambda table: checkpoint_path(table, 12).write_bytes(b""),
    "cut": _checkpoint_cut,
    "middle zeroed": _checkpoint_middle_zeroed,
    "missing": lambda table: checkpoint_path(table, 12).unlink(),
    "pointer empty": lambda table: (table / "_delta_log" / "_last_checkpoint").write_bytes(b""),
    "pointer cut": lambda table: (table / "_delta_log" / "_last_checkpoint").write_bytes(b'{"version":1'),
    "pointer zeroed": lambda table: (table / "_delta_log" / "_last_checkpoint").write_bytes(bytes(50)),
    "pointer missing": lambda table: (table / "_delta_log" / "_last_checkpoint").unlink(),
    "pointer astray": lambda table: (table / "_delta_log" / "_last_checkpoint").write_bytes(b'{"version":99,"size":1}'),
}


@pytest.mark.parametrize("damage", list(CHECKPOINT_BREAKS))
def test_a_broken_checkpoint_loses_nothing(checkpointed: Path, damage: str, put: Put) -> None:
    CHECKPOINT_BREAKS[damage](_main(checkpointed))
    expected = [*"abcd", *(f"t{number}" for number in range(9))]
    assert _tenants(checkpointed) == expected
    store = MetadataStore(checkpointed)
    assert store.view().version == 14
    put(store, "e")
    store.fold_and_checkpoint()
    assert _tenants(checkpointed) == sorted([*expected, "e"])
    assert not find_damage(_main(checkpointed), deep=True)


def test_a_checkpoint_newer_than_the_log_that_survived(checkpointed: Path, put: Put) -> None:
    """A power cut during the commits behind it, so that none of them had been reported."""
    for version in (12, 13, 14):
        entry_path(_main(checkpointed), version).unlink()
    for version in (13, 14):
        checksums_path(_main(checkpointed), version).unlink()
    store = MetadataStore(checkpointed)
    assert store.view().version == 12
    put(store, "e")
    assert [name for name in _tenants(checkpointed) if len(name) == 1] == ["a", "b", "e"]


def test_damage_below_a_checkpoint_is_an_error_and_cuts_nothing(checkpointed: Path) -> None:
    checkpoint_path(_main(checkpointed), 12).write_bytes(b"")
    _empty(checkpointed, 11)
    before = _names(checkpointed / "metadata")
    with pytest.raises(MetadataError, match=r"damaged at version 11, .* restore"):
        MetadataStore(checkpointed)
    assert _names(checkpointed / "metadata") == before


def test_a_live_data_file_lost_after_a_checkpoint_is_an_error(checkpointed: Path) -> None:
    _data_lost(checkpointed, 5)
    with pytest.raises(MetadataError, match="metadata/main"):
        MetadataStore(checkpointed)


def test_a_table_without_a_first_entry_is_an_error_with_the_remedy(root: Path) -> None:
    for path in _main(root).rglob("*.json"):
        path.write_bytes(b"")
    with pytest.raises(MetadataError, match="pulsarpy init"):
        MetadataStore(root)


def test_clean_up_keeps_a_whole_checkpoint_and_all_after_it(checkpointed: Path) -> None:
    damage.clean_up(_main(checkpointed), 9, 0)
    assert entry_path(_main(checkpointed), 0).exists()
    damage.clean_up(_main(checkpointed), 11, 0)
    assert [path.name for path in sorted(_main(checkpointed).rglob("*.json"))] == [
        entry_path(Path(), version).name for version in range(10, 15)
    ]
    checkpoint_path(_main(checkpointed), 12).write_bytes(b"")
    damage.clean_up(_main(checkpointed), 14, 0)
    assert entry_path(_main(checkpointed), 10).exists()
    assert len(_tenants(checkpointed)) == 13


# -- concurrency -----------------------------------------------------------------------------------------------------


def test_processes_that_find_the_break_together_cut_it_once(
    cut_off: Path, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    _empty(cut_off, 9)
    processes = [spawn(cut_off, number, 3) for number in range(3)]
    for process in processes:
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert len(output.splitlines()) == 3
    assert len(list((cut_off / "metadata" / "set-aside").iterdir())) == 1
    store = MetadataStore(cut_off)
    assert store.view().version == 8 + 9
    assert len(store.view().all(TenantRecord)) == 7 + 3 + 2


def test_a_repair_waits_for_another_and_finds_its_work_done(cut_off: Path) -> None:
    _empty(cut_off, 9)
    with ThreadPoolExecutor(1) as pool:
        with locked(cut_off / "lock"):
            waiting = pool.submit(MetadataStore, cut_off)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.3)
            assert damage.repair(_main(cut_off), cut_off / "lock") is not None
        assert waiting.result().view().version == 8
    assert len(list((cut_off / "metadata" / "set-aside").iterdir())) == 1


def test_threads_with_stores_of_their_own_cut_it_once(cut_off: Path) -> None:
    _data_lost(cut_off, 9)
    with ThreadPoolExecutor(6) as pool:
        versions = [view.version for view in pool.map(lambda _: MetadataStore(cut_off).view(), range(6))]
    assert versions == [8] * 6
    assert len(list((cut_off / "metadata" / "set-aside").iterdir())) == 1


def test_a_repair_that_was_cut_off_itself_is_finished(cut_off: Path) -> None:
    """A repair moves the newest entry first, so the rest of the tail is still found broken."""
    _empty(cut_off, 8)
    aside = cut_off / "metadata" / "set-aside" / "main-1"
    aside.mkdir(parents=True)
    shutil.move(entry_path(_main(cut_off), 10), aside)
    assert _tenants(cut_off) == [f"t{number}" for number in range(6)]
