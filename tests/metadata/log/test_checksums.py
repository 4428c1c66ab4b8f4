"""Checksums and the entries that they are of: which go, which come back, and which are of another life of a number."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import write_deltalake

from pulsar_on_spark.metadata.current import current
from pulsar_on_spark.metadata.log import damage
from pulsar_on_spark.metadata.log.checksums import (
    Checksums,
    checkpoint_checksums_path,
    checksummed_versions,
    checksums_path,
    write_checksums,
)
from pulsar_on_spark.metadata.log.damage import find_damage
from pulsar_on_spark.metadata.log.log_entry import checkpoint_path, entry_path, read_entry
from pulsar_on_spark.metadata.records import TenantRecord
from pulsar_on_spark.metadata.state import encode
from pulsar_on_spark.metadata.store import MetadataStore
from pulsar_on_spark.model.errors import CorruptMetadataError, MetadataError
from tests.metadata.conftest import ROOT_RECORD

Put = Callable[..., None]


def _main(root: Path) -> Path:
    return root / "metadata" / "main"


def _tenants(root: Path) -> list[str]:
    return [record.tenant for record in MetadataStore(root).view().all(TenantRecord)]


def _write_of_another_life(root: Path, version: int) -> None:
    name = entry_path(Path(), version).as_posix()
    write_checksums(checksums_path(_main(root), version), Checksums("of-another-life", {name: (7, 7)}))


def _names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in (root / "metadata").rglob("*"))


# -- an entry that is missing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [(10,), (9, 10)])
@pytest.mark.parametrize("checksummed", [(9, 10), (10,)])
def test_a_reported_commit_at_the_end_does_not_vanish_silently(
    ten_commits: Path, lost: tuple[int, ...], checksummed: tuple[int, ...]
) -> None:
    for version in lost:
        entry_path(_main(ten_commits), version).unlink()
    for version in {9, 10} - set(checksummed):
        checksums_path(_main(ten_commits), version).unlink()
    before = _names(ten_commits)
    for _ in range(2):
        with pytest.raises(CorruptMetadataError, match=rf"damaged at version {lost[0]}, .*{lost[0]}.json is missing"):
            MetadataStore(ten_commits)
    with pytest.raises(MetadataError, match="metadata/main is damaged"):
        current(ten_commits, "main")
    assert _names(ten_commits) == before


def test_a_reported_commit_does_not_vanish_from_an_open_store(root: Path, store: MetadataStore, put: Put) -> None:
    put(store, "a")
    put(store, "b")
    entry_path(_main(root), 3).unlink()
    with pytest.raises(MetadataError, match=r"damaged at version 3, .*3.json is missing"):
        store.view()


def test_a_commit_that_was_not_reported_may_be_missing(cut_off: Path, put: Put) -> None:
    """A process was killed, or power was cut, between a commit and its checksums."""
    entry_path(_main(cut_off), 10).unlink()
    assert len(_tenants(cut_off)) == 8
    assert not (cut_off / "metadata" / "set-aside").exists()


def test_a_table_without_its_log_is_not_created_again(root: Path, store: MetadataStore, put: Put) -> None:
    put(store, "a")
    del store
    shutil.rmtree(_main(root) / "_delta_log")
    with pytest.raises(CorruptMetadataError, match=r"main/_delta_log/0*\.json"):
        MetadataStore.create(root, [ROOT_RECORD])


# -- another life of a number ------------------------------------------------------------------------------------------


def test_metadata_restored_over_newer_ones_are_refused_until_these_are_deleted(ten_commits: Path, put: Put) -> None:
    """Restore without emptying the folder first, which leaves the checksums of later commits."""
    for version in (9, 10):
        entry_path(_main(ten_commits), version).unlink()
    with pytest.raises(CorruptMetadataError, match="into an empty folder"):
        MetadataStore(ten_commits)
    for version in (9, 10):
        checksums_path(_main(ten_commits), version).unlink()
    store = MetadataStore(ten_commits)
    put(store, "after")
    assert len(_tenants(ten_commits)) == 8


def test_a_foreign_entry_is_read_whose_number_has_checksums_of_an_earlier_commit(
    root: Path, store: MetadataStore, put: Put
) -> None:
    """Other writers leave no token. An entry that looks like a broken one of ours would lock the root."""
    put(store, "a")
    _write_of_another_life(root, 3)
    rows = encode([(TenantRecord(tenant="foreign"), False)], 3, "tok", ["k"])
    write_deltalake(str(_main(root)), rows, mode="append")
    entry = read_entry(_main(root), 3)
    assert entry is not None
    assert (entry.token, entry.complete, entry.durable) == (None, True, None)
    put(store, "b")
    assert _tenants(root) == ["a", "b", "foreign"]


def test_a_vacuum_makes_no_entry(root: Path, store: MetadataStore, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    """delta-rs's own have no token, so they took the checksums of another life of their number for theirs."""
    monkeypatch.setattr("pulsar_on_spark.metadata.log.delta_log.RETAIN_HOURS", 0)
    monkeypatch.setattr("pulsar_on_spark.metadata.log.folding.LAG", 2)
    monkeypatch.setattr("pulsar_on_spark.metadata.log.folding.WORTH_FILES", 2)
    for name in "abcde":
        put(store, name)
    assert store.fold_and_checkpoint()
    version = store.view().version
    assert store.vacuum() > 0
    assert store.view().version == version == MetadataStore(root).view().version


@pytest.fixture
def cut_under_checksums(cut_off: Path) -> Path:
    """Numbers 9 and 10 were used before, and their second life ended in a power cut."""
    for version in (9, 10):
        _write_of_another_life(cut_off, version)
    entry = read_entry(_main(cut_off), 9)
    assert entry is not None
    (_main(cut_off) / entry.added[0][0]).unlink()
    return cut_off


@pytest.mark.parametrize("moved", range(6))
def test_a_repair_leaves_no_checksums_above_the_log_wherever_it_ends(
    cut_under_checksums: Path, monkeypatch: pytest.MonkeyPatch, put: Put, moved: int
) -> None:
    renamed, rename = 0, Path.rename

    def rename_some(path: Path, target: Path) -> Path:
        nonlocal renamed
        renamed += 1
        if renamed > moved:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as ending:
        ending.setattr(Path, "rename", rename_some)
        try:
            MetadataStore(cut_under_checksums)
        except KeyboardInterrupt:
            assert moved < 4
        else:
            assert moved >= 4
    assert len(_tenants(cut_under_checksums)) == 7
    assert checksummed_versions(_main(cut_under_checksums))[-1] == 6
    put(MetadataStore(cut_under_checksums), "after")
    assert len(_tenants(cut_under_checksums)) == 8
    assert not find_damage(_main(cut_under_checksums), deep=True)


# -- the folder --------------------------------------------------------------------------------------------------------


def test_a_clean_up_deletes_checksums_whose_entries_an_older_version_deleted(
    root: Path, store: MetadataStore, put: Put
) -> None:
    for name in "abc":
        put(store, name)
        assert store._main.checkpoint()
    for version in (0, 1, 2):
        entry_path(_main(root), version).unlink()
    checkpoint_path(_main(root), 2).unlink()
    damage.clean_up(_main(root), 4, 0)
    assert sorted(path.name for path in (_main(root) / "_checksums").iterdir()) == [
        path.name for path in (checksums_path(_main(root), 4), checkpoint_checksums_path(_main(root), 4))
    ]
    assert _tenants(root) == ["a", "b", "c"]


def test_a_file_in_place_of_the_folder_is_reported_and_the_root_still_opens(
    root: Path, store: MetadataStore, put: Put, caplog: pytest.LogCaptureFixture
) -> None:
    put(store, "a")
    folder = _main(root) / "_checksums"
    folder.rename(root / "away")
    folder.touch()
    reopened = MetadataStore(root)
    assert f"{folder} is not a folder" in caplog.text
    put(reopened, "b")
    assert _tenants(root) == ["a", "b"]
    assert len(current(root, "main", "tenant")) == 2


def test_a_root_opens_with_a_folder_in_place_of_checksums(root: Path, store: MetadataStore, put: Put) -> None:
    checksums_path(_main(root), 2).mkdir()
    checksums_path(_main(root), 7).mkdir()
    put(store, "a")
    put(MetadataStore(root), "b")
    assert store._main.refresh()
    assert store._main.checkpoint()
    damage.clean_up(_main(root), 3, 0)
    assert _tenants(root) == ["a", "b"]
