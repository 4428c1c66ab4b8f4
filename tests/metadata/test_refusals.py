"""An operating system that refuses: what could not be reached is neither there nor missing."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from pulsar_on_spark.metadata.log import damage, delta_log, unsynced
from pulsar_on_spark.metadata.log.checksums import checksums_path
from pulsar_on_spark.metadata.log.delta_log import ORPHAN_HOURS, DeltaLog
from pulsar_on_spark.metadata.log.log_entry import entry_path
from pulsar_on_spark.metadata.records import TenantRecord
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import CorruptMetadataError, MetadataError
from pulsar_on_spark.storage import durability
from pulsar_on_spark.storage.durability import UnsyncedError, fsync_path, locked, syncing
from tests.kit.open_files import no_descriptors

from .conftest import ROOT_RECORD

Put = Callable[..., None]


def _tenants(store: MetadataStore) -> list[str]:
    return [record.tenant for record in store.view().all(TenantRecord)]


def test_a_store_outlives_a_time_without_descriptors(
    root: Path, store: MetadataStore, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_on_spark.metadata.patience.READ_ATTEMPTS", 2)
    put(store, "before")
    put(MetadataStore(root), "other")
    calls: list[Callable[[], object]] = [
        store.view,
        store.cursors,
        lambda: put(store, "never"),
        lambda: store.commit(lambda view: None),
        lambda: store.key_version("unasked"),
        lambda: MetadataStore(root),
    ]
    for call in calls:
        store._main._handle = None  # as after any error: the table is reopened
        with no_descriptors(), pytest.raises(MetadataError, match=r"Too many open files|os error 24"):
            call()
    put(store, "after")
    assert _tenants(store) == ["after", "before", "other"] == _tenants(MetadataStore(root))


def test_descriptors_that_are_short_while_a_commit_is_synced_do_not_end_a_store(
    store: MetadataStore, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit took place; it is reported once its files could be opened, and made once."""
    sync_to, calls = DeltaLog.sync_to, 0

    def short_at_first(log: DeltaLog, version: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            with no_descriptors():
                sync_to(log, version)
        sync_to(log, version)

    monkeypatch.setattr(DeltaLog, "sync_to", short_at_first)
    decided = []

    def decide(view: object) -> Change:
        decided.append(view)
        return Change(puts=[TenantRecord(tenant="n")], keys={"n": None})

    assert [record.tenant for record in store.commit(decide).all(TenantRecord)] == ["n"]
    assert len(decided) == 1
    assert calls > 1
    assert store.key_version("n") == 1


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOMEM, None])
def test_a_file_that_cannot_be_read_now_is_not_broken(
    ten_commits: Path, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    """No number is Arrow's own want of memory; nothing on the disk is wrong, and nothing is cut off."""
    error: Exception = pa.ArrowMemoryError("malloc") if number is None else OSError(number, os.strerror(number))
    before = sorted(path.name for path in (ten_commits / "metadata").rglob("*"))
    monkeypatch.setattr("pulsar_on_spark.metadata.patience.READ_ATTEMPTS", 3)

    def refuse(*_: object) -> None:
        raise error

    with monkeypatch.context() as refusing:
        refusing.setattr("pulsar_on_spark.metadata.log.data_files.pa.OSFile", refuse)
        with pytest.raises(MetadataError, match=os.strerror(number) if number else "malloc"):
            MetadataStore(ten_commits)
    assert sorted(path.name for path in (ten_commits / "metadata").rglob("*")) == before
    assert len(_tenants(MetadataStore(ten_commits))) == 9


# -- fsync -----------------------------------------------------------------------------------------------------------


def _refusing(monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    """fsync of files with this ending fails, as when the disk did not take a page."""

    def fsync(path: Path) -> None:
        if path.name.endswith(ending):
            raise UnsyncedError(errno.EIO, os.strerror(errno.EIO), str(path))
        fsync_path(path)

    monkeypatch.setattr("pulsar_on_spark.metadata.log.delta_log.fsync_path", fsync)


def test_errors_of_fsync_and_of_open_differ(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fsync_path(tmp_path / "missing")
    # A file of the kernel's that cannot be synced.
    with pytest.raises(UnsyncedError) as caught:
        fsync_path(Path("/proc/self/status"))
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("ending", [".parquet", ".json", "_delta_log", "main"])
def test_no_process_reports_a_commit_that_another_could_not_sync(
    root: Path, store: MetadataStore, put: Put, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """The kernel reports an error once: the other process's fsync of the same file succeeds."""
    other = MetadataStore(root)
    put(other, "before")
    with monkeypatch.context() as refusing:
        _refusing(refusing, ending)
        with pytest.raises(
            MetadataError, match=r"could not be made durable at version 3 .*Input/output error.*restart"
        ):
            put(store, "unsynced")
    version = DeltaLog(root / "metadata" / "main", root / "lock").version
    assert version == 3
    for process in (store, other, MetadataStore(root)):
        for _ in range(2):
            with pytest.raises(
                MetadataError,
                match=r"could not be made durable at version 3 .*remount .* and run `truncate -s 0 .*/_unsynced",
            ):
                put(process, "on top")
    with pytest.raises(MetadataError, match="durable"):
        other.view(durable=True)
    # A process that only reads is not refused.
    assert "before" in _tenants(other)


def test_a_mark_of_an_earlier_boot_is_removed(
    root: Path, store: MetadataStore, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as refusing:
        _refusing(refusing, ".parquet")
        with pytest.raises(MetadataError, match="durable"):
            put(store, "unsynced")
    monkeypatch.setattr(durability, "_BOOT_ID", root / "boot_id")
    (root / "boot_id").write_text("another\n")
    later = MetadataStore(root)
    put(later, "after")
    assert _tenants(later) == ["after", "unsynced"]
    assert not (root / "metadata" / "main" / "_unsynced").exists()


def test_a_mark_left_while_another_is_removed_stays(root: Path, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart many open the root. The disk fails again under the first, while the second still checks files."""
    table = root / "metadata" / "main"
    (table / "_unsynced").write_text('{"boot": "an-earlier-one", "version": 1}')
    needs_repair = damage.needs_repair

    def needs_repair_late(table: Path, *, deep: bool = False) -> bool:
        found = needs_repair(table, deep=deep)
        monkeypatch.setattr("pulsar_on_spark.metadata.log.damage.needs_repair", needs_repair)
        first = MetadataStore(root)
        with monkeypatch.context() as refusing:
            _refusing(refusing, ".parquet")
            with pytest.raises(MetadataError, match="durable"):
                put(first, "unsynced")
        return found

    monkeypatch.setattr("pulsar_on_spark.metadata.log.damage.needs_repair", needs_repair_late)
    second = MetadataStore(root)
    for process in (second, MetadataStore(root)):
        with pytest.raises(MetadataError, match="could not be made durable at version 2"):
            put(process, "on top")


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


def _broken_of_this_boot(root: Path, put: Put) -> Path:
    """Leave a root whose last commit was not reported and is not on the disk; returns its mark."""
    table = root / "metadata" / "main"
    store = MetadataStore(root)
    put(store, "reported")
    put(store, "unsynced")
    checksums_path(table, 3).unlink()
    entry_path(table, 3).write_bytes(entry_path(table, 3).read_bytes()[:-30])
    unsynced.leave_mark(table, 3, UnsyncedError(errno.EIO, os.strerror(errno.EIO)))
    return table / "_unsynced"


def test_an_operator_can_declare_that_the_file_system_was_remounted(root: Path, put: Put) -> None:
    mark = _broken_of_this_boot(root, put)
    mark.write_bytes(b"")
    later = MetadataStore(root)
    put(later, "after")
    assert _tenants(later) == ["after", "reported"]
    assert not mark.exists()


def test_entries_of_this_boot_are_cut_off_only_after_a_declared_remount(root: Path, put: Put) -> None:
    """Deleting the mark has no effect; the error says what has, also for a snapshot of a live root without a mark."""
    mark = _broken_of_this_boot(root, put)
    for removed in (False, True):
        if removed:
            mark.unlink()
        with pytest.raises(CorruptMetadataError, match=rf"since this machine started.*truncate -s 0 {mark}`"):
            MetadataStore(root)
    mark.touch()
    assert _tenants(MetadataStore(root)) == ["reported"]


def test_an_empty_mark_cuts_off_no_durable_entry(root: Path, store: MetadataStore, put: Put) -> None:
    put(store, "reported")
    del store
    path = entry_path(root / "metadata" / "main", 2)
    path.write_bytes(path.read_bytes()[:-30])
    (root / "metadata" / "main" / "_unsynced").touch()
    for _ in range(2):
        with pytest.raises(CorruptMetadataError, match="durable once"):
            MetadataStore(root)


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
        _refusing(refusing, ".parquet")
        with pytest.raises(MetadataError, match="durable"):
            put(store, "unsynced")
    with pytest.raises(MetadataError, match="durable"):
        put(store, "after")


def test_no_process_reports_between_the_failure_of_another_and_its_mark(
    root: Path, store: MetadataStore, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = MetadataStore(root)
    failing = threading.get_ident()
    leave_mark = unsynced.leave_mark

    def fsync(path: Path) -> None:
        if path.name.endswith(".parquet") and threading.get_ident() == failing:
            raise UnsyncedError(errno.EIO, os.strerror(errno.EIO), str(path))
        fsync_path(path)

    with ThreadPoolExecutor(1) as pool:

        def leave_mark_late(table: Path, version: int, error: UnsyncedError) -> MetadataError:
            nonlocal committing
            committing = pool.submit(put, other, "on top")
            with suppress(TimeoutError):
                committing.result(timeout=1)
            return leave_mark(table, version, error)

        committing: Future[None] | None = None
        monkeypatch.setattr("pulsar_on_spark.storage.durability.SYNC_WAIT_S", 60)
        monkeypatch.setattr("pulsar_on_spark.metadata.log.delta_log.fsync_path", fsync)
        monkeypatch.setattr("pulsar_on_spark.metadata.log.unsynced.leave_mark", leave_mark_late)
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


def test_a_mark_is_seen_before_a_failing_disk_has_answered(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = root / "metadata" / "main"
    seen: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda _: seen.append((table / "_unsynced").exists()))
    unsynced.leave_mark(table, 1, UnsyncedError(errno.EIO, os.strerror(errno.EIO)))
    assert seen == [True]


@pytest.mark.root
def test_a_reader_without_write_permission_opens_a_root_with_a_mark_of_an_earlier_boot(tmp_path: Path) -> None:
    mount = tmp_path / "disk"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", mount], check=True)
    try:
        MetadataStore.create(mount / "root", [ROOT_RECORD])
        mark = mount / "root" / "metadata" / "main" / "_unsynced"
        mark.write_text('{"boot": "an-earlier-one", "version": 1}')
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
        finally:
            release.set()
        holder.result()


def test_the_creation_of_a_root_waits_for_its_lock_for_a_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_on_spark.storage.durability.LOCK_WAIT_S", 0.1)
    with (
        locked(tmp_path / "lock"),
        ThreadPoolExecutor(1) as pool,
        pytest.raises(MetadataError, match=rf"Another process has held {tmp_path}/lock for .* try again"),
    ):
        pool.submit(MetadataStore.create, tmp_path, [ROOT_RECORD]).result(timeout=20)


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


# -- orphans ---------------------------------------------------------------------------------------------------------


def test_a_data_file_stays_while_a_commit_may_still_name_it(
    root: Path, store: MetadataStore, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process was paused for two days between its data file and its log entry, on a root where little happens."""
    put(store, "n")
    table = store._main._directory
    days_s = 86_400.0

    def aged(path: Path, days: float) -> None:
        os.utime(path, (time.time() - days * days_s,) * 2)

    orphan = table / "part-00000-of-a-paused-process.parquet"
    orphan.write_bytes(b"PAR1")
    aged(orphan, 2)
    aged(entry_path(table, 0), 3)
    assert ORPHAN_HOURS < 48
    store.vacuum()
    assert orphan.exists()
    # The log begins after the file was written: no commit that was decided before counts.
    monkeypatch.setattr(delta_log, "KEEP_ENTRIES", 0)
    monkeypatch.setattr(delta_log, "KEEP_S", 0)
    store._main.checkpoint()
    assert not entry_path(table, 0).exists()
    MetadataStore(root).vacuum()
    assert not orphan.exists()
    assert _tenants(store) == ["n"]


def test_permissions_that_a_disk_refuses_are_no_failed_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(descriptor: int, path: Path) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), str(path))

    monkeypatch.setattr("pulsar_on_spark.storage.durability.adopt", refused)
    with pytest.raises(OSError, match="not supported") as caught:
        fsync_path(tmp_path)
    assert not isinstance(caught.value, UnsyncedError)


@pytest.mark.parametrize("name", ["00000000000000000000.json", "_delta_log", "main", "cursors"])
def test_nothing_is_committed_on_a_table_that_could_not_be_made_durable(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The kernel reports an error once: the fsync of a second `pulsarpy init` would succeed."""

    def fsync(path: Path) -> None:
        if path.name == name:
            raise UnsyncedError(errno.EIO, os.strerror(errno.EIO), str(path))
        fsync_path(path)

    with monkeypatch.context() as refusing:
        refusing.setattr("pulsar_on_spark.metadata.log.creation.fsync_path", fsync)
        with pytest.raises(MetadataError, match=r"could not be made durable at version 0 .*Input/output error"):
            MetadataStore.create(memory_path / "root", [ROOT_RECORD])
    for _ in range(2):
        with pytest.raises(MetadataError, match="could not be made durable at version 0"):
            MetadataStore.create(memory_path / "root", [ROOT_RECORD])
