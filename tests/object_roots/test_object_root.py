"""A root on an S3 server: creation, messages, status, repair, housekeeping and what ends them."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pulsar_on_spark.ledger.segments.segment_reader import verify_file
from pulsar_on_spark.metadata.cursors import CursorRow
from pulsar_on_spark.metadata.records import FileRecord, PathRecord, TenantRecord, TopicRecord
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import (
    CorruptSegmentError,
    InvalidArgumentError,
    NotARootError,
    RootExistsError,
    StoragePathError,
)
from pulsar_on_spark.model.ids import FileId, PathId, SegmentName
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.identity import IDENTITY_NAME
from pulsar_on_spark.storage.object_path import ObjectPath
from pulsar_on_spark.storage.objects import remote
from pulsar_on_spark.storage.root_place import objects_at, parse_place
from pulsar_on_spark.testing.s3_faults import Fault, Request, S3Faults
from pulsar_on_spark.topic.maintenance.backup import restore
from pulsar_on_spark.topic.maintenance.backup.backup import back_up
from pulsar_on_spark.topic.maintenance.backup.restore import restore_root
from pulsar_on_spark.topic.maintenance.files.collect import Ages
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from pulsar_on_spark.topic.maintenance.repair.limits import RepairLimits
from pulsar_on_spark.topic.maintenance.repair.repairing import repair
from pulsar_on_spark.topic.maintenance.usage import usage
from tests.kit import messages
from tests.kit.s3_server import S3Server, write_profile
from tests.kit.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.long

AT_ONCE = RepairLimits(replace_after=timedelta())
AGES_AT_ONCE = Ages(abort_after_s=-1, keep_replaced_s=-1, keep_verdicts_s=-1)


@pytest.fixture
def root(bucket: str) -> Root:
    return Root.create(f"{bucket}/a/root")


def files(root: Root) -> list[FileRecord]:
    return root.store.view().all(FileRecord)


def test_a_root_keeps_what_was_written(root: Root) -> None:
    root.create_topic("t", 2)
    values = [b"%d" % number for number in range(100)]
    messages.write(root, "t", values, [b"k%d" % (number % 7) for number in range(100)])
    again = Root.open(str(root.place))
    assert (again.cluster_id, str(again.quorum)) == (root.cluster_id, "1/1/1")
    assert again.store.root_record.features == {"object-paths": "read"}
    assert sorted(messages.values(again, "t")) == sorted(values)
    (path,) = again.status().paths
    assert (str(path.directory), path.is_well, path.total_bytes) == (f"{root.place}/storage/0", True, None)
    assert path.copies == len(files(root)) == 1
    used = usage(again)
    assert used.metadata_bytes > 0
    assert used.paths[0].bytes >= files(root)[0].length


def test_a_place_that_holds_something_is_no_root(bucket: str) -> None:
    objects_at(parse_place(f"{bucket}/used")).create("thesis.tex", b"chapter 1")
    with pytest.raises(NotARootError, match="is not empty"):
        Root.create(f"{bucket}/used")
    with pytest.raises(NotARootError, match="is not a pulsar_on_spark root"):
        Root.open(f"{bucket}/absent")
    root = Root.create(f"{bucket}/root")
    with pytest.raises(RootExistsError):
        Root.create(f"{bucket}/root")
    assert Root.open_or_create(root.place).cluster_id == root.cluster_id


def test_many_processes_that_create_a_root_get_the_same(bucket: str) -> None:
    def create(number: int) -> str:
        try:
            return Root.create(f"{bucket}/root").cluster_id
        except RootExistsError:
            return Root.open(f"{bucket}/root").cluster_id

    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(create, range(4)))) == 1
    root = Root.open(f"{bucket}/root")
    root.create_topic("t")
    messages.write(root, "t", [b"v"])
    assert messages.values(root, "t") == [b"v"]


def test_copies_are_restored_under_new_names(bucket: str) -> None:
    root = Root.create(f"{bucket}/root", quorum=Quorum(3, 3, 2))
    root.create_topic("t")
    for number in range(3):
        messages.write(root, "t", [b"%d" % number * 5_000])
    before = messages.values(root, "t")
    paths = root.current_storage_paths()
    one, two, _ = files(root)
    paths[PathId(0)].delete_segment(one.names[0])
    damaged = objects_at(paths[PathId(1)].place)
    (key,) = (each.location for each in paths[PathId(1)].segment_files(0) if each.name == two.names[1])
    content = damaged.fetch(key)
    assert content is not None
    damaged.delete(key)
    damaged.create(key, content.content[:-9] + bytes(9))

    done = repair(root, AT_ONCE)
    assert (done.missing, done.work.restored) == (1, 1)
    root.status(verify=True)
    done = repair(root, AT_ONCE)
    assert (done.bad, done.work.restored, done.is_whole) == (1, 1, True)
    assert messages.values(root, "t") == before
    assert [len(set(file.generations)) for file in files(root)] == [2, 2, 0]
    root.maintain(Ages(abort_after_s=-1, keep_replaced_s=-1, keep_verdicts_s=-1))
    stored = {stored.name for path in paths.values() for stored in path.segment_files(0)}
    assert stored == {name for file in files(root) for name in file.names.values()}
    assert messages.values(root, "t") == before


def test_a_store_that_lost_its_bucket_says_nothing_about_copies(root: Root) -> None:
    root.create_topic("t")
    messages.write(root, "t", [b"v"])
    (path,) = root.current_storage_paths().values()
    objects_at(path.place).delete(IDENTITY_NAME)
    with pytest.raises(StoragePathError, match=f"has no object {IDENTITY_NAME}"):
        path.check()
    (found,) = root.status().paths
    assert not found.is_there
    done = repair(root, AT_ONCE)
    assert (done.missing, done.work.restored, done.work.lost) == (0, 0, ())
    path.create()
    assert messages.values(root, "t") == [b"v"]


def test_a_path_is_added_drained_and_retired(root: Root, bucket: str) -> None:
    root.create_topic("t")
    messages.write(root, "t", [b"v"])
    added = storage_paths.add(root, f"{bucket}/elsewhere")
    assert (added.uri, added.role, added.path_id) == (f"{bucket}/elsewhere", "both", 1)
    storage_paths.drain(root, 0)
    assert repair(root).is_whole
    assert [file.copies for file in files(root)] == [(1,)]
    root.maintain(Ages(abort_after_s=-1, keep_replaced_s=-1, keep_verdicts_s=-1))
    assert storage_paths.retire(root, 0).state == "retired"
    assert messages.values(Root.open(root.place), "t") == [b"v"]


def test_a_storage_path_of_another_root_is_no_place_for_a_root(root: Root) -> None:
    with pytest.raises(NotARootError, match="is storage path 0 of another root"):
        Root.create(f"{root.place}/storage/0", [f"{root.place}/storage/0"])


def test_a_directory_can_hold_journals_only(root: Root, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="can hold journals only"):
        storage_paths.add(root, tmp_path / "disk", role="segments")
    with pytest.raises(InvalidArgumentError, match="needs storage paths on object stores"):
        Root.create(f"{root.place}-other", [tmp_path / "other"])
    added = storage_paths.add(root, tmp_path / "disk")
    assert (added.role, bool(added.host)) == ("journal", True)
    root.create_topic("t")
    messages.write(root, "t", [b"v"])
    assert [file.copies for file in files(root)] == [(0,)]


def test_a_directory_moves_to_a_host_of_another_name(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = storage_paths.add(root, tmp_path / "disk")
    with pytest.raises(InvalidArgumentError, match="already"):
        storage_paths.add(root, tmp_path / "disk")
    monkeypatch.setattr(socket, "gethostname", lambda: "pod-2")
    assert all(isinstance(path, ObjectPath) for path in root.writable_journal_paths(root.store.view()))
    moved = storage_paths.add(root, tmp_path / "disk")
    assert (moved.path_id, moved.host) == (added.path_id, "pod-2")
    assert [path.path_id for path in root.writable_journal_paths(root.store.view())] == [moved.path_id]


def test_one_url_becomes_one_path(root: Root, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second command adds it while the first one is between the identity and its commit."""
    commit = storage_paths._is_committed
    others: list[object] = []

    def add_before(opened: Root, record: PathRecord) -> bool:
        if not others:
            others.append(record)
            storage_paths.add(Root.open(root.place), f"{bucket}/more", "zone-a")
        return commit(opened, record)

    monkeypatch.setattr(storage_paths, "_is_committed", add_before)
    with pytest.raises(InvalidArgumentError, match="is storage path 1"):
        storage_paths.add(root, f"{bucket}/more", "zone-b")
    assert [path.label for path in root.current_storage_paths().values()] == ["", "zone-a"]
    root.current_storage_paths()[PathId(1)].check()


def test_a_path_that_is_being_retired_takes_no_copy(root: Root, bucket: str) -> None:
    root.create_topic("t")
    storage_paths.add(root, f"{bucket}/elsewhere")
    write_id = messages.new_write_id()
    staged = messages.stage(root, {"t": messages.make_rows([b"v"])}, write_id)
    (used,) = staged.files[0].written.copies
    path = root.current_storage_paths()[PathId(used)]
    storage_paths.drain(root, used)
    with pytest.raises(InvalidArgumentError, match="not committed yet"):
        storage_paths.retire(root, used)
    path.check()
    late = path.write_segment(SegmentName(FileId("ab-0")))
    assert path.hide_identity()
    with pytest.raises(StoragePathError, match=f"is being retired.*`pulsarpy storage resume {used}`"):
        late.seal(None)
    late.discard()
    with pytest.raises(InvalidArgumentError, match="not committed yet"):
        storage_paths.retire(root, used)  # again, after a command that was killed
    messages.attach(root.store, write_id, [staged], None)
    assert messages.values(Root.open(root.place), "t") == [b"v"]


def test_a_truncated_copy_is_damaged(root: Root) -> None:
    root.create_topic("t")
    messages.write(root, "t", [b"v" * 1_000])
    (path,) = root.current_storage_paths().values()
    (file,) = files(root)
    (stored,) = path.segment_files(0)
    objects = objects_at(path.place)
    content = objects.fetch(stored.location)
    assert content is not None
    objects.delete(stored.location)
    objects.create(stored.location, content.content[: file.tile_lengths[0]])
    with pytest.raises(CorruptSegmentError, match="ends at byte"):
        verify_file(file, path)


def test_a_forked_process_is_told(root: Root) -> None:
    script = """
import os, sys
from pulsar_on_spark.root import Root
root = Root.open(sys.argv[1])
if os.fork() == 0:
    for use in (root.store.view, lambda: Root.open(sys.argv[1])):
        try:
            use()
        except Exception as error:
            print(error, flush=True)
    os._exit(0)
os.wait()
"""
    command = [sys.executable, "-c", script, str(root.place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.count("start processes with the method spawn or forkserver") == 2, done.stdout + done.stderr


@pytest.mark.parametrize("is_held", [False, True])
def test_a_process_that_reads_ahead_ends_while_the_store_is_away(
    bucket: str, s3_server: S3Server, faults: S3Faults, tmp_path: Path, is_held: bool
) -> None:
    """Ranges are on their way, to a store that breaks connections or does not answer."""
    root = Root.create(f"{bucket}/root")
    root.create_topic("t")
    messages.write(root, "t", [b"v" * 1_000])
    script = """
import sys
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.root import Root
root = Root.open(sys.argv[1])
(file,) = root.store.view().all(FileRecord)
source = root.current_storage_paths()[PathId(0)].open_segment(file.names[0])
source.read_into(0, memoryview(bytearray(1)))
print("opened", flush=True)
sys.stdin.readline()
source.expect([(number, number + 1) for number in range(8)])
sys.stdin.readline()
"""
    write_profile(tmp_path / "storage.toml", bucket, s3_server.options(faults.url))
    command = [sys.executable, "-c", script, f"{bucket}/root"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "opened\n"
    asked, is_over = threading.Semaphore(0), threading.Event()

    def decide(request: Request) -> Fault | None:
        asked.release()
        if is_held:
            is_over.wait(LIMIT_S)
        return Fault.RESET

    faults.decide = decide
    try:
        assert process.stdin is not None
        process.stdin.write("read\n")
        process.stdin.flush()
        for _ in range(8):
            assert asked.acquire(timeout=LIMIT_S)
        began_s = time.monotonic()
        process.stdin.write("end\n")
        process.stdin.flush()
        assert process.wait(LIMIT_S) == 0
        assert time.monotonic() - began_s < remote.CONNECT_TIMEOUT_S
    finally:
        is_over.set()
        process.kill()
        process.wait()


def test_a_backup_is_refused(root: Root, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be backed up"):
        back_up(root, tmp_path / "backup")
    local = Root.create(tmp_path / "local")
    storage_paths.add(local, f"{root.place}-more")
    with pytest.raises(InvalidArgumentError, match="cannot be backed up"):
        back_up(local, tmp_path / "backup")


def test_deleted_topics_leave_no_objects(root: Root) -> None:
    root.create_topic("t")
    messages.write(root, "t", [b"v"] * 1_000)
    root.delete_topic("t")
    for _ in range(2):
        root.maintain(Ages(abort_after_s=-1, keep_replaced_s=-1, keep_verdicts_s=-1))
    (path,) = root.current_storage_paths().values()
    assert list(path.segment_files(0)) == []


def test_a_root_is_restored_as_it_was(root: Root, bucket: str, tmp_path: Path) -> None:
    """To another prefix, and to a folder; what was merged and deleted since is used, or named."""
    root.create_topic("t")
    root.create_topic("gone")
    for number in range(3):
        messages.write(root, "t", [b"%d" % number * 100])
    messages.write(root, "gone", [b"x", b"y"])
    root.store.append_cursors([CursorRow(root.store.view().all(TopicRecord)[1].topic_id, "s", 0, 1, 1, 1, 2)])
    before = messages.read(root, "t")
    then = root.store.view().version
    messages.write(root, "t", [b"later"])
    root.delete_topic("gone")
    for _ in range(2):
        root.maintain(AGES_AT_ONCE)
    targets = [parse_place(f"{bucket}/restored"), tmp_path / "restored"]
    for target in targets:
        assert restore_root(root, target, then, dry_run=True).missing
        done = restore_root(root, target, then)
        assert [(each.topic, each.messages) for each in done.missing] == [("persistent://public/default/gone", 2)]
        with pytest.raises(RootExistsError):
            restore_root(root, target, then)
    root.delete_topic("t")
    for _ in range(2):
        root.maintain(AGES_AT_ONCE)
    for target in targets:
        restored = Root.open(target)
        assert messages.read(restored, "t") == before
        assert messages.read(restored, "gone", fail_on_data_loss=False) == []
        assert set(restored.store.root_record.features) == (set() if isinstance(target, Path) else {"object-paths"})
        messages.write(restored, "t", [b"new"])
        assert messages.values(Root.open(target), "t")[-1] == b"new"


@pytest.mark.parametrize("step", ["restore_copy", "CopiedRows"])
def test_a_restore_that_was_killed_can_be_repeated(
    root: Root, bucket: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    root.create_topic("t")
    for number in range(3):
        messages.write(root, "t", [b"%d" % number])
    original, calls = getattr(restore, step), [0]

    def die_second(*given: object, **named: object) -> object:
        calls[0] += 1
        if step == "CopiedRows" or calls[0] == 2:
            raise KeyboardInterrupt
        return original(*given, **named)

    then = root.store.view().version
    with monkeypatch.context() as patched:
        patched.setattr(restore, step, die_second)
        with pytest.raises(KeyboardInterrupt):
            restore_root(root, parse_place(f"{bucket}/restored"), then)
    with pytest.raises(NotARootError):
        Root.open(f"{bucket}/restored")
    assert restore_root(root, parse_place(f"{bucket}/restored"), then).missing == ()
    assert messages.values(Root.open(f"{bucket}/restored"), "t") == [b"0", b"1", b"2"]


def test_a_root_is_restored_while_it_is_written_and_merged(root: Root, bucket: str) -> None:
    root.create_topic("t")
    is_over = threading.Event()
    written: list[int] = []

    def write() -> None:
        other = Root.open(root.place)
        while not is_over.is_set():
            messages.write(other, "t", [b"%d" % len(written)])
            written.append(len(written))
            if len(written) % 4 == 0:
                other.maintain(AGES_AT_ONCE)

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        try:
            for attempt in range(3):
                wait_until(lambda attempt=attempt: len(written) > 6 * (attempt + 1))
                least = len(written)
                done = restore_root(root, parse_place(f"{bucket}/restored-{attempt}"), datetime.now(UTC))
                assert done.missing == ()
                found = [int(value or b"") for value in messages.values(Root.open(done.target), "t")]
                assert found == list(range(len(found)))
                assert len(found) >= least
        finally:
            is_over.set()
        writing.result()


def test_a_commit_takes_four_requests_also_the_first_one(
    s3_server: S3Server, faults: S3Faults, bucket: str, tmp_path: Path
) -> None:
    write_profile(tmp_path / "storage.toml", bucket, s3_server.options(faults.url))
    Root.create(f"{bucket}/counted")
    store = Root.open(f"{bucket}/counted").store

    def requests(commit: Callable[[], object]) -> list[str]:
        before = len(faults.outcomes)
        commit()
        made = [outcome.request for outcome in faults.outcomes[before:]]
        return ["LIST" if "list-type" in request.query else request.method for request in made]

    def put(number: int) -> None:
        store.commit(lambda view: Change(puts=[TenantRecord(tenant=f"t{number}")], keys={"key": None}))

    def move(number: int) -> None:
        store.append_cursors([CursorRow("t", "s", 0, 1, number, 1, 1)])

    four = ["LIST", "PUT", "PUT", "LIST"]
    assert [requests(lambda number=number: put(number)) for number in range(3)] == [four] * 3
    opening = ["GET", "LIST", "LIST", "GET", "GET", "LIST"]
    assert requests(lambda: move(0)) == [*opening, *four[1:]], "cursors are opened by their first use"
    assert [requests(lambda number=number: move(number)) for number in range(1, 3)] == [four] * 2
