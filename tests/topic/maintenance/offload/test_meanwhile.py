"""Every pass that judges copies, with an offload and a release between its look at the metadata and its reading."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.ids import FileId, PathId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.reports import Finding, ReportKind, read_reports, write_report
from pulsar_on_spark.topic.maintenance import status
from pulsar_on_spark.topic.maintenance.backup import restore, snapshot
from pulsar_on_spark.topic.maintenance.backup.backup import back_up
from pulsar_on_spark.topic.maintenance.files import merge
from pulsar_on_spark.topic.maintenance.offload.offloading import OffloadRequest, offload
from pulsar_on_spark.topic.maintenance.repair import audit, checking, repairing, scrub, storage_paths, worker
from pulsar_on_spark.topic.maintenance.repair.limits import RepairLimits
from tests.kit import messages
from tests.topic.maintenance.offload.conftest import root_with_cold_path

ALL = OffloadRequest(TopicName.parse("t"))
VALUES = [bytes([65 + number]) * 300 for number in range(4)]


@pytest.fixture
def cold_root(memory_path: Path) -> Root:
    """A root with a topic of four files, and a cold path."""
    return root_with_cold_path(memory_path, VALUES)


@pytest.fixture
def move_before(cold_root: Root, monkeypatch: pytest.MonkeyPatch) -> Callable[[object, str], None]:
    """Lets the first call of a module's function begin with an offload and a release of all files."""

    def prepare(module: object, name: str) -> None:
        original = getattr(module, name)

        def move_first(*args: object, **options: object) -> object:
            monkeypatch.setattr(module, name, original)
            other = Root.open(cold_root.path)
            assert offload(other, ALL).moved.moved == len(VALUES)
            released = offload(other, now=lambda: datetime.now(UTC) + timedelta(hours=5))
            assert released.released.moved == len(VALUES)
            return original(*args, **options)

        monkeypatch.setattr(module, name, move_first)

    return prepare


def files(root: Root) -> list[FileRecord]:
    return [file for file in root.store.view().all(FileRecord) if file.replaced_at is None]


MoveBefore = Callable[[object, str], None]


@pytest.mark.parametrize("step", ["_copy_files", "restore_copy"])
def test_a_restore_copies_the_moved_files(
    cold_root: Root, memory_path: Path, move_before: MoveBefore, step: str
) -> None:
    move_before(restore, step)
    done = restore.restore_root(cold_root, memory_path / "restored", cold_root.store.view().version)
    assert (done.missing, done.files) == ((), len(VALUES))
    assert messages.values(Root.open(memory_path / "restored"), "t") == VALUES


def test_a_restore_copies_files_from_a_path_that_was_added_meanwhile(
    cold_root: Root, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore_copy = restore.restore_copy

    def move_first(*args: object) -> None:
        monkeypatch.setattr(restore, "restore_copy", restore_copy)
        storage_paths.add(cold_root, memory_path / "new", role="cold")
        offload(cold_root, ALL)
        storage_paths.drain(cold_root, 3)
        repairing.repair(cold_root)
        offload(cold_root, now=lambda: datetime.now(UTC) + timedelta(hours=5))
        assert {file.copies for file in files(cold_root)} == {(4,)}
        restore_copy(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(restore, "restore_copy", move_first)
    done = restore.restore_root(cold_root, memory_path / "restored", cold_root.store.view().version)
    assert (done.missing, done.files) == ((), len(VALUES))
    assert messages.values(Root.open(memory_path / "restored"), "t") == VALUES


def test_a_dry_run_of_a_restore_finds_the_moved_files(
    cold_root: Root, memory_path: Path, move_before: MoveBefore
) -> None:
    move_before(restore, "_absent")
    done = restore.restore_root(cold_root, memory_path / "x", cold_root.store.view().version, dry_run=True)
    assert done.missing == ()


def test_a_backup_has_the_moved_files(cold_root: Root, memory_path: Path, move_before: MoveBefore) -> None:
    move_before(snapshot, "copy_segments")
    done = back_up(cold_root, memory_path / "backup")
    assert (done.check.is_good, done.files) == (True, len(VALUES))
    assert messages.values(Root.open(memory_path / "backup"), "t") == VALUES


def test_a_backup_that_has_copied_metadata_copies_the_moved_files(
    cold_root: Root, memory_path: Path, monkeypatch: pytest.MonkeyPatch, move_before: MoveBefore
) -> None:
    copy_table, tables = snapshot.copy_table, []

    def last_table_then_move(source: Path, target: Path) -> None:
        copy_table(source, target)
        tables.append(source)
        if len(tables) == 2:
            move_before(snapshot, "copy_segments")

    monkeypatch.setattr(snapshot, "copy_table", last_table_then_move)
    copy_segments = snapshot.copy_segments

    def copy_none(*_: object) -> list[FileId]:
        monkeypatch.setattr(snapshot, "copy_segments", copy_segments)
        raise snapshot.VanishedError("the copies made before the metadata were copied would hide the move")

    monkeypatch.setattr(snapshot, "copy_segments", copy_none)
    done = back_up(cold_root, memory_path / "backup")
    assert (done.check.is_good, done.files) == (True, len(VALUES))


def test_a_merge_takes_no_moved_file_for_lost(cold_root: Root, move_before: MoveBefore) -> None:
    move_before(merge, "rewrite")
    merge.merge(cold_root)
    assert read_reports(cold_root.path) == []
    assert messages.values(cold_root, "t") == VALUES


@pytest.mark.parametrize("step", ["to_read", "check_copy"])
def test_a_check_finds_nothing_bad(cold_root: Root, move_before: MoveBefore, step: str) -> None:
    move_before(checking, step)
    found = checking.check(cold_root)
    assert (found.missing, found.bad, found.reasons) == (0, 0, ())
    assert read_reports(cold_root.path) == []


def test_an_audit_finds_nothing_missing(
    cold_root: Root, move_before: MoveBefore, copy_of: Callable[[Root, FileRecord, int], Path]
) -> None:
    copy_of(cold_root, files(cold_root)[0], 0).unlink()
    move_before(audit, "compared")
    found = audit.audit(cold_root, RepairLimits())
    assert (found.missing, found.bad) == (0, {})


def test_status_counts_no_moved_copy_as_bad(cold_root: Root, move_before: MoveBefore) -> None:
    move_before(status, "_verify")
    cold_root.status(verify=True)
    assert read_reports(cold_root.path) == []


@pytest.mark.parametrize("step", ["copies_on", "verify_file"])
def test_a_scrub_finds_nothing_bad(cold_root: Root, move_before: MoveBefore, step: str) -> None:
    move_before(scrub, step)
    done = repairing.repair(cold_root)
    assert (done.bad, done.scrubbed.bad, done.is_whole) == (0, 0, True)
    assert read_reports(cold_root.path) == []


def test_reports_are_checked_by_the_present_records(cold_root: Root, move_before: MoveBefore) -> None:
    first, second, *_ = (FileId(file.file_id) for file in files(cold_root))
    write_report(cold_root.path, Finding(ReportKind.BAD_COPY, first, PathId(0), "?", 1))
    write_report(cold_root.path, Finding(ReportKind.LOSS, second, None, "?", 1))
    move_before(repairing, "check_reports")
    done = repairing.repair(cold_root)
    assert (done.bad, done.work.lost, done.is_whole) == (0, (), True)
    repairing.repair(cold_root)
    assert read_reports(cold_root.path) == []


def test_a_repair_takes_no_moved_file_for_lost(cold_root: Root, move_before: MoveBefore) -> None:
    for path_id in (0, 1):
        (cold_root.path / "storage" / str(path_id)).rename(cold_root.path / f"away-{path_id}")
    file = files(cold_root)[0]
    plan = audit.audit(cold_root, RepairLimits(replace_after=timedelta())).plans(3, {(FileId(file.file_id), PathId(2))})
    for path_id in (0, 1):
        (cold_root.path / f"away-{path_id}").rename(cold_root.path / "storage" / str(path_id))
    move_before(worker, "restore")
    done = worker.carry_out_plans(cold_root, plan)
    assert (done.lost, done.problems) == ((), ())
    assert read_reports(cold_root.path) == []


def test_a_reader_reports_no_copy_that_was_released_since_its_plan(cold_root: Root) -> None:
    offload(cold_root, ALL)
    planned = cold_root.store.view(durable=True)
    assert offload(cold_root, now=lambda: datetime.now(UTC) + timedelta(hours=5)).released.moved == len(VALUES)
    assert [message.value for message in messages.read(cold_root, "t", view=planned)] == VALUES
    assert read_reports(cold_root.path) == []


@pytest.mark.parametrize("is_strict", [False, True])
def test_a_reader_looks_for_the_cold_copy_of_a_file_whose_known_copies_are_damaged(
    cold_root: Root, copy_of: Callable[[Root, FileRecord, int], Path], is_strict: bool
) -> None:
    planned = cold_root.store.view(durable=True)
    hot = [copy_of(cold_root, file, path_id) for file in files(cold_root) for path_id in file.copies]
    offload(cold_root, ALL)
    for copy in hot:
        copy.write_bytes(bytes(copy.stat().st_size))
    found = messages.read(cold_root, "t", view=planned, fail_on_data_loss=is_strict)
    assert [message.value for message in found] == VALUES
