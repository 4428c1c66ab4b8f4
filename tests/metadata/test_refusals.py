"""An operating system that refuses: what could not be reached is neither there nor missing."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from pulsar_on_spark.metadata.log.entry import entry_key
from pulsar_on_spark.metadata.records import TenantRecord
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import MetadataError, UnsyncedFolderError
from pulsar_on_spark.storage import durability, unsynced
from pulsar_on_spark.storage.durability import UnsyncedError, fsync_path, locked, syncing
from pulsar_on_spark.storage.objects import local
from tests.kit.open_files import no_descriptors

from .conftest import ROOT_RECORD

Put = Callable[..., None]


def _tenants(store: MetadataStore) -> list[str]:
    return [record.tenant for record in store.view().all(TenantRecord)]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.LocalObjects.__init__, "__kwdefaults__", {"patience_s": 0.02})


@pytest.mark.usefixtures("impatient")
def test_a_store_outlives_a_time_without_descriptors(root: Path, put: Put) -> None:
    store = MetadataStore(root)
    put(store, "before")
    put(MetadataStore(root), "other")
    calls: list[Callable[[], object]] = [
        store.view,
        store.cursors,
        lambda: put(store, "never"),
        lambda: store.commit(lambda view: None),
        lambda: MetadataStore(root),
    ]
    for call in calls:
        store._main._tip = None  # as after an interrupted refresh: the log is read again
        with no_descriptors(), pytest.raises(MetadataError, match="Too many open files"):
            call()
    put(store, "after")
    assert _tenants(store) == ["after", "before", "other"] == _tenants(MetadataStore(root))


def test_a_commit_waits_for_descriptors_that_are_short_for_a_moment(
    store: MetadataStore, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of a commit meets the shortage once; the commit is made once."""
    opened = os.open
    short: set[str] = set()

    def short_once(path: str | Path, flags: int, *arguments: int) -> int:
        name = "unnamed" if Path(path).name.startswith(".") else Path(path).name
        if "metadata" in str(path) and name not in short:
            short.add(name)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return opened(path, flags, *arguments)

    decided = []

    def decide(view: object) -> Change:
        decided.append(view)
        return Change(puts=[TenantRecord(tenant="n")], keys={"n": None})

    with monkeypatch.context() as refusing:
        refusing.setattr(os, "open", short_once)
        assert [record.tenant for record in store.commit(decide).all(TenantRecord)] == ["n"]
    assert {"unnamed", "_delta_log", "main"} <= short
    assert len(decided) == 1
    assert store.key_version("n") == 1


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOMEM])
def test_a_file_that_cannot_be_read_now_is_not_broken(
    ten_commits: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Nothing on the disk is wrong, and nothing is cut off."""
    before = sorted(path.name for path in (ten_commits / "metadata").rglob("*"))

    def refuse(path: Path) -> None:
        raise OSError(number, os.strerror(number), str(path))

    for step in (3, 7):
        with monkeypatch.context() as refusing:
            read, calls = local._read, 0

            def refuse_from(path: Path, step: int = step, read: Callable[[Path], object] = read) -> object:
                nonlocal calls
                calls += 1
                return refuse(path) if calls >= step else read(path)

            refusing.setattr(local, "_read", refuse_from)
            with pytest.raises(MetadataError, match=os.strerror(number)):
                MetadataStore(ten_commits)
    assert sorted(path.name for path in (ten_commits / "metadata").rglob("*")) == before
    assert len(_tenants(MetadataStore(ten_commits))) == 9


# -- fsync -----------------------------------------------------------------------------------------------------------


def _refusing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """fsync of folders with this name fails, as when the disk did not take a page."""

    def fsync(path: Path) -> None:
        if path.name == name:
            raise UnsyncedError(errno.EIO, os.strerror(errno.EIO), str(path))
        fsync_path(path)

    monkeypatch.setattr(unsynced, "fsync_path", fsync)


def test_errors_of_fsync_and_of_open_differ(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fsync_path(tmp_path / "missing")
    # A file of the kernel's that cannot be synced.
    with pytest.raises(UnsyncedError) as caught:
        fsync_path(Path("/proc/self/status"))
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("name", ["_delta_log", "main"])
def test_no_process_reports_a_commit_that_another_could_not_sync(
    root: Path, store: MetadataStore, put: Put, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The kernel reports an error once: the other process's fsync of the same folder succeeds."""
    other = MetadataStore(root)
    put(other, "before")
    with monkeypatch.context() as refusing:
        _refusing(refusing, name)
        with pytest.raises(MetadataError, match=r"could not be made durable .*Input/output error.*restart"):
            put(store, "unsynced")
    assert (root / "metadata" / "main" / entry_key(3)).exists() == (name == "_delta_log")
    for process in (store, other, MetadataStore(root)):
        for _ in range(2):
            with pytest.raises(MetadataError, match=r"could not be made durable .*`truncate -s 0 .*/_unsynced"):
                put(process, "on top")
    if name == "_delta_log":
        with pytest.raises(MetadataError, match="durable"):
            MetadataStore(root).view(durable=True)
    # A process that only reads is not refused.
    assert "before" in _tenants(MetadataStore(root))


def test_a_file_that_could_not_be_synced_is_no_commit(
    root: Path, store: MetadataStore, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no name yet, so nothing is in doubt: a later commit writes a file of its own."""
    fsync = os.fsync

    def refuse(descriptor: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{descriptor}")).name.startswith("."):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    with monkeypatch.context() as refusing:
        refusing.setattr(os, "fsync", refuse)
        with pytest.raises(MetadataError, match=r"cannot be written .*nothing was committed"):
            put(store, "never")
    put(store, "after")
    assert _tenants(store) == ["after"] == _tenants(MetadataStore(root))


def test_a_mark_of_an_earlier_boot_is_removed(
    root: Path, store: MetadataStore, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as refusing:
        _refusing(refusing, "_delta_log")
        with pytest.raises(MetadataError, match="durable"):
            put(store, "unsynced")
    monkeypatch.setattr(durability, "_BOOT_ID", root / "boot_id")
    (root / "boot_id").write_text("another\n")
    later = MetadataStore(root)
    put(later, "after")
    assert _tenants(later) == ["after", "unsynced"]
    assert not (root / "metadata" / "main" / "_unsynced").exists()


def test_the_error_in_a_service_with_a_restricted_proc_names_the_file(
    root: Path, store: MetadataStore, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as hardened:
        hardened.setattr(durability, "_BOOT_ID", root / "boot_id")
        with pytest.raises(MetadataError, match=rf"{root}/boot_id is missing.*ProcSubset"):
            put(store, "never")
        assert _tenants(MetadataStore(root)) == []
    put(store, "after")
    assert _tenants(store) == ["after"]


@pytest.mark.parametrize("content", [b"", b'{"boot": "', b"[]", b"null", b"\xff"])
def test_a_root_with_a_torn_mark_opens(root: Path, store: MetadataStore, put: Put, content: bytes) -> None:
    put(store, "written")
    mark = root / "metadata" / "main" / "_unsynced"
    mark.write_bytes(content)
    later = MetadataStore(root)
    put(later, "after")
    assert _tenants(later) == ["after", "written"]
    assert not mark.exists()


def test_a_mark_that_cannot_be_written_still_ends_the_store(
    root: Path, store: MetadataStore, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "metadata" / "main" / "_unsynced.tmp").mkdir()
    with monkeypatch.context() as refusing:
        _refusing(refusing, "_delta_log")
        with pytest.raises(MetadataError, match="durable"):
            put(store, "unsynced")
    for _ in range(2):
        with pytest.raises(MetadataError, match="durable"):
            put(store, "after")


def test_no_process_reports_between_the_failure_of_another_and_its_mark(
    root: Path, store: MetadataStore, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = MetadataStore(root)
    failing = threading.get_ident()
    leave_mark = unsynced._leave_mark

    def fsync(path: Path) -> None:
        if path.name == "_delta_log" and threading.get_ident() == failing:
            raise UnsyncedError(errno.EIO, os.strerror(errno.EIO), str(path))
        fsync_path(path)

    with ThreadPoolExecutor(1) as pool:

        def leave_mark_late(base: Path, folder: Path, error: UnsyncedError) -> Exception:
            nonlocal committing
            committing = pool.submit(put, other, "on top")
            with suppress(TimeoutError):
                committing.result(timeout=1)
            return leave_mark(base, folder, error)

        committing: Future[None] | None = None
        monkeypatch.setattr(durability, "SYNC_WAIT_S", 60)
        monkeypatch.setattr(unsynced, "fsync_path", fsync)
        monkeypatch.setattr(unsynced, "_leave_mark", leave_mark_late)
        with pytest.raises(MetadataError, match="durable"):
            put(store, "unsynced")
        assert committing is not None
        with pytest.raises(MetadataError, match="could not be made durable"):
            committing.result()


def test_a_process_suspended_while_it_syncs_does_not_block_the_others(
    root: Path, store: MetadataStore, put: Put
) -> None:
    with syncing(root / "metadata" / "main" / "_delta_log"):
        put(store, "n")
    assert _tenants(MetadataStore(root)) == ["n"]


@pytest.mark.root
def test_a_reader_without_write_permission_opens_a_root_with_a_mark_of_an_earlier_boot(tmp_path: Path) -> None:
    mount = tmp_path / "disk"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", mount], check=True)
    try:
        MetadataStore.create(mount / "root", [ROOT_RECORD])
        mark = mount / "root" / "metadata" / "main" / "_unsynced"
        mark.write_text('{"boot": "an-earlier-one"}')
        subprocess.run(["mount", "-o", "remount,ro", mount], check=True)
        assert MetadataStore(mount / "root").view().version == 1
        assert mark.exists()
    finally:
        subprocess.run(["umount", "-l", mount], check=True)


# -- the lock --------------------------------------------------------------------------------------------------------


def test_nothing_waits_for_a_lock_that_another_process_holds(root: Path, store: MetadataStore, put: Put) -> None:
    """The wait is outside the store's own lock: otherwise every thread of its process would wait, too."""
    release = threading.Event()
    held = threading.Event()

    def hold() -> None:
        with locked(root / "lock"):
            held.set()
            release.wait()

    with ThreadPoolExecutor(1) as pool:
        holder = pool.submit(hold)
        held.wait()
        try:
            assert store.vacuum() == 0
            assert not store.fold_and_checkpoint()
            put(store, "n")
            MetadataStore.create(root, [ROOT_RECORD])
        finally:
            release.set()
        holder.result()


FORKING = """
import os, sys
from pathlib import Path
from pulsar_on_spark.storage.durability import locked
reading, writing = os.pipe()
with locked(Path(sys.argv[1])):
    child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
with locked(Path(sys.argv[1]), wait=False) as mine:
    print(mine)
os.close(writing)
os.waitpid(child, 0)
"""


def test_a_child_forked_under_the_lock_does_not_hold_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKING, tmp_path / "lock"]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout == "True\n"


def test_permissions_that_a_disk_refuses_are_no_failed_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(descriptor: int, path: Path) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), str(path))

    monkeypatch.setattr("pulsar_on_spark.storage.durability.adopt", refused)
    with pytest.raises(OSError, match="not supported") as caught:
        fsync_path(tmp_path)
    assert not isinstance(caught.value, UnsyncedError)


@pytest.mark.parametrize("name", ["_delta_log", "main", "cursors"])
def test_nothing_is_committed_on_a_table_that_could_not_be_made_durable(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The kernel reports an error once: the fsync of a second `pulsarpy init` would succeed."""
    with monkeypatch.context() as refusing:
        _refusing(refusing, name)
        with pytest.raises((MetadataError, UnsyncedFolderError), match=r"could not be made durable .*Input/output"):
            MetadataStore.create(memory_path / "root", [ROOT_RECORD])
    for _ in range(2):
        with pytest.raises((MetadataError, UnsyncedFolderError), match="could not be made durable"):
            MetadataStore.create(memory_path / "root", [ROOT_RECORD])
