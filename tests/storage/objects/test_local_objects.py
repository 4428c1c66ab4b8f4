"""The object store in a folder: the contract, and what a disk adds to it."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path

import pytest

from pulsar_on_spark.model.errors import ObjectsRefusedError, ObjectsUnreachableError, UnsyncedFolderError
from pulsar_on_spark.storage import durability
from pulsar_on_spark.storage.objects import local
from pulsar_on_spark.storage.objects.contract import Created, Version
from pulsar_on_spark.storage.objects.local import LocalObjects
from pulsar_on_spark.testing.object_store_contract import ObjectStoreContract
from tests.kit.open_files import no_descriptors


@pytest.fixture
def store(memory_path: Path) -> LocalObjects:
    return LocalObjects(memory_path, patience_s=0.05)


class TestContract(ObjectStoreContract):
    pass


def test_a_writer_that_ended_leaves_no_object(store: LocalObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before the link: the unnamed file is no object, and a later sweep deletes it."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as ending:
        ending.setattr(os, "link", end)
        ending.setattr(Path, "unlink", end)
        with pytest.raises(KeyboardInterrupt):
            store.create("a/b", b"1")
    assert [path.name[0] for path in (store.folder / "a").iterdir()] == ["."]
    assert list(store.list_after("")) == []
    assert store.fetch("a/b") is None
    store.sweep("a")
    assert len(list((store.folder / "a").iterdir())) == 1
    for path in (store.folder / "a").iterdir():
        os.utime(path, (time.time() - local.ABANDONED_S - 1,) * 2)
    store.sweep("a")
    store.sweep("absent")
    assert list((store.folder / "a").iterdir()) == []


def test_an_object_has_its_content_on_the_disk_before_its_name(
    store: LocalObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, link = os.fsync, os.link

    def note_sync(descriptor: int) -> None:
        done.append("sync " + Path(os.readlink(f"/proc/self/fd/{descriptor}")).name[:1].replace(".", "content"))
        fsync(descriptor)

    def note_link(source: Path, target: Path) -> None:
        done.append("link")
        link(source, target)

    store.create("f/first", b"0")
    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "link", note_link)
    store.create("f/a", b"1")
    assert done == ["sync content", "link", "sync f"]


def test_a_full_disk_refuses_at_once_and_leaves_nothing(store: LocalObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as refusing:
        refusing.setattr(os, "fsync", full)
        with pytest.raises(ObjectsRefusedError, match="No space left"):
            store.create("a", b"1")
    assert list(store.folder.iterdir()) == []
    assert isinstance(store.create("a", b"1"), Created)


def test_a_store_without_descriptors_gives_no_answer(store: LocalObjects) -> None:
    created = store.create("a", b"1")
    assert isinstance(created, Created)
    for call in (
        lambda: store.fetch("a"),
        lambda: store.fetch_range("a", 0, 1),
        lambda: store.create("b", b"1"),
        lambda: store.replace("a", b"2", created.version),
        lambda: list(store.list_after("")),
        lambda: store.sync(""),
    ):
        with no_descriptors(), pytest.raises(ObjectsUnreachableError, match="Too many open files"):
            call()
    assert store.fetch("b") is None


def test_the_name_of_a_folder_that_another_process_made_is_synced(
    store: LocalObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That process may have been killed before it synced the name."""
    (store.folder / "a" / "b").mkdir(parents=True)
    synced: list[Path] = []
    sync_folder = local.sync_folder

    def noted(base: Path, folder: Path) -> None:
        synced.append(folder.relative_to(store.folder))
        sync_folder(base, folder)

    monkeypatch.setattr(local, "sync_folder", noted)
    store.create("a/b/1", b"1")
    assert synced == [Path(), Path("a"), Path("a/b")]
    store.create("a/b/2", b"2")
    assert synced[3:] == [Path("a/b")]
    shutil.rmtree(store.folder / "a")
    store.create("a/b/3", b"3")
    assert synced[4:] == [Path(), Path("a"), Path("a/b")]


def test_a_folder_that_is_gone_proves_no_absence(memory_path: Path) -> None:
    store = LocalObjects(memory_path / "unmounted", patience_s=0.05)
    with pytest.raises(ObjectsUnreachableError, match="No such file"):
        store.confirm_absent("a")
    with pytest.raises(ObjectsUnreachableError):
        store.create("a", b"1")
    assert store.replace("a", b"1", Version("x")) is None


def _failing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise durability.UnsyncedError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr("pulsar_on_spark.storage.unsynced.fsync_path", fail)


def test_no_process_writes_after_a_folder_could_not_be_synced(
    store: LocalObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports the error once: the next fsync would succeed."""
    with monkeypatch.context() as failing:
        _failing(failing)
        with pytest.raises(UnsyncedFolderError, match=r"Input/output error.*restart this machine"):
            store.create("a", b"1")
    for process in (store, LocalObjects(store.folder)):
        for _ in range(2):
            with pytest.raises(UnsyncedFolderError, match=r"truncate -s 0 .*/_unsynced"):
                process.create("b", b"1")
        with pytest.raises(UnsyncedFolderError):
            process.sync("")
    assert store.fetch("a") is not None


def test_a_mark_ends_with_the_boot_or_where_the_operator_says_so(
    store: LocalObjects, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as failing:
        _failing(failing)
        with pytest.raises(UnsyncedFolderError):
            store.create("a", b"1")
    (store.folder / "_unsynced").write_bytes(b"")
    store.create("b", b"1")
    with monkeypatch.context() as failing:
        _failing(failing)
        with pytest.raises(UnsyncedFolderError):
            store.create("c", b"1")
    (memory_path / "boot").write_text("another")
    monkeypatch.setattr(durability, "_BOOT_ID", memory_path / "boot")
    store.create("d", b"1")
