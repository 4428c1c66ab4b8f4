"""Offloading on real files: moves, crashes, races, cold paths that are away, and everything that reads the files."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pulsar_on_spark.metadata.features import COLD_PATHS
from pulsar_on_spark.metadata.records import FileRecord, PathRecord, RootRecord, SegmentRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import (
    CopiesUnreachableError,
    InvalidArgumentError,
    TopicNotFoundError,
)
from pulsar_on_spark.model.ids import EntryId, LedgerId, PathId, Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage import bounded_path, local_path
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.storage.local_path import LocalPath
from pulsar_on_spark.storage.reports import ReportKind, read_reports
from pulsar_on_spark.storage.segment_files import FileSink
from pulsar_on_spark.storage.storage_path import PathFailure
from pulsar_on_spark.testing.failing_files import FailingFiles
from pulsar_on_spark.topic.catalog.policies.change import set_namespace_policies, set_topic_policies
from pulsar_on_spark.topic.data_path.attach import attach
from pulsar_on_spark.topic.maintenance.backup.backup import back_up
from pulsar_on_spark.topic.maintenance.backup.restore import restore_root
from pulsar_on_spark.topic.maintenance.compaction.compact import compact
from pulsar_on_spark.topic.maintenance.files.collect import Ages, collect
from pulsar_on_spark.topic.maintenance.files.merge import merge
from pulsar_on_spark.topic.maintenance.maintain import maintain
from pulsar_on_spark.topic.maintenance.offload import offloading
from pulsar_on_spark.topic.maintenance.offload.offloading import OffloadRequest, offload
from pulsar_on_spark.topic.maintenance.repair import repairing, scrub, storage_paths, worker
from pulsar_on_spark.topic.maintenance.repair.checking import check
from pulsar_on_spark.topic.maintenance.repair.limits import RepairLimits
from pulsar_on_spark.topic.maintenance.repair.repairing import repair
from pulsar_on_spark.topic.maintenance.status import storage_status
from pulsar_on_spark.topic.maintenance.usage import usage
from tests.kit import messages
from tests.kit.hanging_path import HangingPath
from tests.kit.waiting import wait_until
from tests.topic.maintenance.offload.conftest import root_with_cold_path
from tests.topic.maintenance.repair.conftest import assert_consistent

COLD = PathId(3)
ALL = OffloadRequest(TopicName.parse("t"))
AT_ONCE = Ages(abort_after_s=-1, keep_replaced_s=-1, keep_verdicts_s=-1)
LATER = timedelta(hours=5)
VALUES = [bytes([65 + number]) * 300 for number in range(8)]


@pytest.fixture
def cold_root(memory_path: Path) -> Root:
    """A root with a topic of eight files, and a cold path."""
    return root_with_cold_path(memory_path, VALUES)


def files(root: Root) -> list[FileRecord]:
    return [file for file in root.store.view().all(FileRecord) if file.replaced_at is None]


def end_of_first(root: Root) -> Position:
    first = min(root.store.view().all(SegmentRecord), key=lambda segment: segment.record_id)
    return Position(LedgerId(first.ledger_id), EntryId(first.first_entry + 1))


def later() -> datetime:
    """A moment after the deletion lag of what is offloaded now."""
    return datetime.now(UTC) + LATER


def on_disk(root: Root) -> dict[int, set[str]]:
    """The finished segment files on each storage path."""
    return {
        path_id: {stored.name.file_id for stored in path.segment_files(time.time()) if not stored.is_tmp}
        for path_id, path in root.current_storage_paths().items()
    }


def test_a_cold_path_is_a_feature_and_takes_nothing_else(cold_root: Root) -> None:
    record = cold_root.store.view().get(RootRecord, "root")
    assert record is not None
    assert record.features[COLD_PATHS] == "read"
    messages.write(cold_root, "t", [b"hot"])
    assert repair(cold_root).is_whole
    assert all(COLD not in file.copies for file in files(cold_root))
    assert COLD not in {path.path_id for path in cold_root.writable_paths(cold_root.store.view())}
    assert COLD not in {path.path_id for path in cold_root.writable_journal_paths(cold_root.store.view())}


def test_segments_move_once_and_other_copies_go_after_the_lag(cold_root: Root) -> None:
    before, hot = messages.read(cold_root, "t"), {file.file_id: file.copies for file in files(cold_root)}
    done = offload(cold_root, ALL)
    assert (done.moved.moved, done.released.moved, done.is_complete) == (8, 0, True)
    for file in files(cold_root):
        assert file.copies == (*hot[file.file_id], COLD)
        assert file.is_cold
    assert messages.read(cold_root, "t") == before
    again = offload(cold_root, ALL)
    assert (again.moved.restored, again.released.moved) == (0, 0)

    released = offload(cold_root, now=later)
    assert (released.moved.restored, released.released.moved, released.released.dropped) == (0, 8, 24)
    assert {file.copies for file in files(cold_root)} == {(COLD,)}
    assert [len(stored) for stored in on_disk(cold_root).values()] == [0, 0, 0, 8]
    assert messages.read(cold_root, "t") == before
    assert_consistent(cold_root)


def test_a_position_and_a_size_limit_what_a_request_offloads(cold_root: Root) -> None:
    ledger = LedgerId(messages.read(cold_root, "t")[0].id.ledger)
    offload(cold_root, OffloadRequest(TopicName.parse("t"), before=Position(ledger, EntryId(3))))
    assert [file.is_cold for file in files_in_order(cold_root)] == [True] * 3 + [False] * 5
    offload(cold_root, OffloadRequest(TopicName.parse("t"), keep_bytes=600))
    assert [file.is_cold for file in files_in_order(cold_root)] == [True] * 6 + [False] * 2


def files_in_order(root: Root) -> list[FileRecord]:
    """The files of topic t in the order of its entries."""
    view = root.store.view()
    topic = view.get(TopicRecord, TopicName.parse("t").full)
    assert topic is not None
    found = [view.get(FileRecord, segment.file_id) for segment in view.all(SegmentRecord, topic.topic_id)]
    return [file for file in found if file is not None]


def test_a_request_needs_a_topic_and_a_cold_path(root: Root) -> None:
    with pytest.raises(TopicNotFoundError):
        offload(root, ALL)
    root.create_topic("t")
    with pytest.raises(InvalidArgumentError, match="has no cold storage path: add one"):
        offload(root, ALL)
    root.create_topic("parts", partitions=2)
    with pytest.raises(InvalidArgumentError, match="name the partition"):
        offload(root, OffloadRequest(TopicName.parse("parts"), before=Position(LedgerId(1), EntryId(1))))
    assert offload(root).is_complete


def test_thresholds_of_namespace_and_topic(cold_root: Root) -> None:
    assert offload(cold_root).moved.restored == 0
    set_namespace_policies(
        cold_root,
        "public/default",
        {"offload_policies": {"managedLedgerOffloadThresholdInBytes": 600, "managedLedgerOffloadDriver": "archive"}},
    )
    assert offload(cold_root).moved.moved == 6
    assert [file.is_cold for file in files_in_order(cold_root)] == [True] * 6 + [False] * 2
    set_topic_policies(
        cold_root,
        TopicName.parse("t"),
        {
            "offload_policies": {
                "managedLedgerOffloadThresholdInSeconds": 3_600,
                "managedLedgerOffloadDeletionLagInMillis": 60_000,
            }
        },
    )
    assert offload(cold_root).moved.moved == 0
    done = offload(cold_root, now=lambda: datetime.now(UTC) + timedelta(hours=1))
    assert (done.moved.moved, done.released.moved) == (2, 6)


def test_a_driver_chooses_the_cold_path_by_its_label(cold_root: Root, memory_path: Path) -> None:
    storage_paths.add(cold_root, memory_path / "glacier", "glacier", role="cold")
    with pytest.raises(InvalidArgumentError, match=r"'s3' in policy 'offload_policies' of topic .*archive, glacier"):
        set_topic_policies(cold_root, TopicName.parse("t"), {"offload_policies": {"managedLedgerOffloadDriver": "s3"}})
    set_topic_policies(cold_root, TopicName.parse("t"), {"offload_policies": {"managedLedgerOffloadDriver": "glacier"}})
    offload(cold_root, ALL)
    assert {file.copies[-1] for file in files(cold_root)} == {4}
    with pytest.raises(InvalidArgumentError, match=r"can take 8 of its files: .* driver \(glacier\) first"):
        storage_paths.drain(cold_root, 4)
    storage_paths.add(cold_root, memory_path / "glacier2", "glacier", role="cold")
    storage_paths.drain(cold_root, 4)
    offload(cold_root, now=later)
    assert repair(cold_root).is_whole
    assert {frozenset(file.copies) for file in files(cold_root)} == {frozenset((0, 1, 2, 5))}
    storage_paths.retire(cold_root, 4)
    storage_paths.give_up(cold_root, 5)
    messages.write(cold_root, "t", [b"more"])
    done = offload(cold_root, ALL)
    assert (done.waiting, done.moved.restored) == (1, 0)
    assert done.problems[-1].endswith("or mend those that take no files now: [path 5] It is lost.")


def test_a_file_with_a_part_that_stays_stays(cold_root: Root) -> None:
    cold_root.create_topic("other")
    write_id = messages.new_write_id()
    rows = {"t": messages.make_rows([b"x" * 2_000]), "other": messages.make_rows([b"y"])}
    attach(cold_root.store, write_id, [messages.stage(cold_root, rows, write_id)], None)
    done = offload(cold_root, ALL)
    assert (done.moved.moved, done.shared) == (8, 1)
    done = offload(cold_root, OffloadRequest(TopicName.parse("other")))
    assert (done.moved.moved, done.shared) == (0, 1)
    set_namespace_policies(
        cold_root, "public/default", {"offload_policies": {"managedLedgerOffloadThresholdInBytes": 0}}
    )
    assert offload(cold_root).moved.moved == 1


def test_merges_leave_offloaded_files_alone(cold_root: Root) -> None:
    offload(cold_root, ALL)
    messages.write(cold_root, "t", [b"new 1"])
    messages.write(cold_root, "t", [b"new 2"])
    before = messages.read(cold_root, "t")
    assert merge(cold_root).merged_segments == 2
    assert sum(file.is_cold for file in files(cold_root)) == 8
    assert messages.read(cold_root, "t") == before


def test_compacted_ledgers_stay(cold_root: Root) -> None:
    cold_root.create_topic("keyed")
    messages.write(cold_root, "keyed", [b"1", b"2"], keys=[b"k", b"k"])
    offload(cold_root, OffloadRequest(TopicName.parse("keyed")))
    offload(cold_root, now=later)
    compact(cold_root, "keyed")
    assert [message.value for message in messages.read_compacted(cold_root, "keyed")] == [b"2"]
    offload(cold_root, OffloadRequest(TopicName.parse("keyed")))
    assert sum(file.is_cold for file in files(cold_root)) == 1


def test_a_bad_hot_copy_is_not_moved(cold_root: Root, copy_of: Callable[[Root, FileRecord, int], Path]) -> None:
    before = messages.read(cold_root, "t")
    for file in files(cold_root):
        spoil(copy_of(cold_root, file, file.copies[0]))
    assert offload(cold_root, ALL).moved.moved == 8
    assert offload(cold_root, now=later).released.moved == 8
    assert messages.read(cold_root, "t") == before


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_bad_cold_copy_is_restored_within_the_lag(
    cold_root: Root, copy_of: Callable[[Root, FileRecord, int], Path]
) -> None:
    offload(cold_root, ALL)
    first, second, *_ = files(cold_root)
    copy_of(cold_root, first, COLD).unlink()
    spoil_end = copy_of(cold_root, second, COLD)
    spoil_end.write_bytes(spoil_end.read_bytes()[:-1])
    done = offload(cold_root, now=later)
    assert (done.released.moved, len(done.unverified), done.is_complete) == (6, 2, False)
    assert repair(cold_root).is_whole
    assert offload(cold_root, now=later).released.moved == 2
    assert [message.value for message in messages.read(cold_root, "t")] == VALUES
    assert_consistent(cold_root)


def test_hot_copies_are_not_restored_once_a_file_is_offloaded(
    cold_root: Root, copy_of: Callable[[Root, FileRecord, int], Path]
) -> None:
    offload(cold_root, ALL)
    for file in files(cold_root):
        copy_of(cold_root, file, 0).unlink()
    assert repair(cold_root).work.restored == 0
    assert {frozenset(file.copies) for file in files(cold_root)} == {frozenset((1, 2, COLD))}
    assert storage_status(cold_root).missing_copies == 0


def test_a_cold_path_that_is_away_loses_nothing(cold_root: Root, memory_path: Path) -> None:
    before = messages.read(cold_root, "t")
    offload(cold_root, ALL)
    offload(cold_root, now=later)
    (memory_path / "cold").rename(memory_path / "away")
    with pytest.raises(CopiesUnreachableError, match="cannot be read now, though a good copy may exist"):
        messages.read(cold_root, "t")
    limits = RepairLimits(replace_after=timedelta(0))
    for _ in range(2):
        report = repair(cold_root, limits)
        assert (report.work.lost, report.lacking, report.work.restored) == ((), 0, 0)
    messages.write(cold_root, "t", [b"new"])
    assert offload(cold_root, ALL).waiting == 1
    maintain(cold_root, AT_ONCE)
    assert [finding for finding in read_reports(cold_root.path) if finding.kind is ReportKind.LOSS] == []
    assert {file.copies for file in files(cold_root) if file.is_cold} == {(COLD,)}

    (memory_path / "away").rename(memory_path / "cold")
    assert maintain(cold_root, AT_ONCE).healed_paths == (COLD,)
    record = cold_root.store.view().get(PathRecord, str(COLD))
    assert record is not None
    assert (record.state, record.check_since) == ("writable", None)
    assert messages.read(cold_root, "t")[:8] == before
    assert offload(cold_root, ALL).moved.moved == 1


def test_a_check_marks_no_path_as_failed(cold_root: Root, memory_path: Path) -> None:
    offload(cold_root, ALL)
    (memory_path / "cold").rename(memory_path / "away")
    assert str(memory_path / "cold") in " ".join(check(cold_root).reasons)
    assert {record.state for record in cold_root.store.view().all(PathRecord)} == {"writable"}


def test_a_path_without_access_is_not_marked_as_failed(
    cold_root: Root, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offload(cold_root, OffloadRequest(TopicName.parse("t"), keep_bytes=600))
    offload(cold_root, now=later)
    read_file = local_path.read_file

    def refuse(ops: FileOps, path: Path) -> bytes:
        if path.is_relative_to(memory_path / "cold"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read_file(ops, path)

    with monkeypatch.context() as patch:
        patch.setattr(local_path, "read_file", refuse)
        done = repair(cold_root, RepairLimits(replace_after=timedelta()))
        assert "Permission denied" in " ".join(done.away)
        assert (done.work.lost, done.work.restored) == ((), 0)
        assert offload(cold_root, ALL, now=later).waiting == 2
        assert check(cold_root, COLD).reasons
    assert {record.state for record in cold_root.store.view().all(PathRecord)} == {"writable"}
    assert offload(cold_root, ALL).moved.moved == 2


def test_a_target_without_access_is_not_marked_as_failed(
    cold_root: Root, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_segment = LocalPath.write_segment

    def refuse(path: LocalPath, *args: Any, **options: Any) -> FileSink:
        if path.path_id == COLD:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path.directory))
        return write_segment(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LocalPath, "write_segment", refuse)
        done = offload(cold_root, ALL)
    assert (done.moved.moved, "Permission denied" in done.problems[0]) == (0, True)
    assert {record.state for record in cold_root.store.view().all(PathRecord)} == {"writable"}
    assert offload(cold_root, ALL).moved.moved == len(VALUES)


def test_an_empty_cold_path_releases_nothing(cold_root: Root, memory_path: Path) -> None:
    offload(cold_root, ALL)
    for folder in (memory_path / "cold" / "segments").iterdir():
        shutil.rmtree(folder)
    done = offload(cold_root, now=later)
    assert (done.released.moved, len(done.unverified)) == (0, 8)
    assert repair(cold_root).work.restored == 8
    assert offload(cold_root, now=later).released.moved == 8
    assert [message.value for message in messages.read(cold_root, "t")] == VALUES


def test_a_release_looks_once_at_a_path_that_goes_away(
    cold_root: Root, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look may take a minute."""
    offload(cold_root, ALL)
    looks, look_at = 0, offloading._look_at

    def look(*arguments: Any) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            (memory_path / "cold").rename(memory_path / "away")
        look_at(*arguments)

    monkeypatch.setattr(offloading, "_look_at", look)
    done = offload(cold_root, now=later)
    assert (looks, len(done.unverified)) == (1, 1)
    assert (done.released.moved, done.is_complete) == (0, False)


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_cold_copy_that_cannot_be_read_holds_up_no_other(
    cold_root: Root, memory_path: Path, is_damaged: bool
) -> None:
    offload(cold_root, ALL)
    first = files(cold_root)[0].file_id
    (copy,) = (memory_path / "cold" / "segments").glob(f"*/{first}*.arrow")
    if is_damaged:
        copy.write_bytes(b"bad")
    done = offload(cold_root, now=later, files=OS_FILES if is_damaged else FailingFiles((copy,), "open", 0, errno.EIO))
    assert (done.released.moved, done.is_complete) == (len(VALUES) - 1, False)
    (doubt,) = done.unverified
    assert first in doubt


def test_what_is_verified_in_the_time_of_a_pass_is_released(cold_root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    offload(cold_root, ALL)
    now_s = 0.0
    look_at = offloading._look_at

    def look(*arguments: Any) -> None:
        nonlocal now_s
        now_s += 1
        look_at(*arguments)

    monkeypatch.setattr(offloading, "_look_at", look)
    done = offload(cold_root, limits=RepairLimits(max_seconds=2.5), now=later, clock=lambda: now_s)
    assert (done.released.moved, done.released.unfinished, done.is_complete) == (3, 5, False)


def test_a_request_is_for_the_files_of_its_topic_only(cold_root: Root, memory_path: Path) -> None:
    """Another topic is due, too, and cannot move, and copies of a third one are to be released."""
    for topic in ("due", "old"):
        cold_root.create_topic(topic)
        messages.write(cold_root, topic, [b"x"])
    offload(cold_root, OffloadRequest(TopicName.parse("old")))
    gone = storage_paths.add(cold_root, memory_path / "gone", "gone", role="cold").path_id
    policies = {"managedLedgerOffloadThresholdInBytes": 0, "managedLedgerOffloadDriver": "gone"}
    set_topic_policies(cold_root, TopicName.parse("due"), {"offload_policies": policies})
    storage_paths.give_up(cold_root, gone)
    done = offload(cold_root, ALL, now=later)
    assert (done.moved.moved, done.released.moved, done.waiting, done.problems) == (8, 0, 0, ())
    nothing = OffloadRequest(TopicName.parse("t"), keep_bytes=10**9)
    done = offload(cold_root, nothing, now=lambda: later() + LATER)
    assert (done.moved.moved, done.released.moved, done.problems) == (0, 8, ())
    done = offload(cold_root, now=later)
    assert (done.released.moved, done.waiting) == (1, 1)


def test_drains_and_losses_of_cold_paths(cold_root: Root, memory_path: Path) -> None:
    offload(cold_root, ALL)
    with pytest.raises(InvalidArgumentError, match="no other cold path"):
        storage_paths.drain(cold_root, COLD)
    offload(cold_root, now=later)
    with pytest.raises(InvalidArgumentError, match="has the only copies of 8 files"):
        storage_paths.give_up(cold_root, COLD)
    storage_paths.add(cold_root, memory_path / "cold2", role="cold")
    storage_paths.drain(cold_root, COLD)
    assert repair(cold_root).is_whole
    storage_paths.retire(cold_root, COLD)
    assert {file.copies for file in files(cold_root)} == {(4,)}
    assert [message.value for message in messages.read(cold_root, "t")] == VALUES


def test_other_copies_are_restored_while_the_cold_path_is_given_up(
    cold_root: Root, memory_path: Path, copy_of: Callable[[Root, FileRecord, int], Path]
) -> None:
    """The files then move to another cold path, and the copies that were restored go at the end of the lag."""
    quorums = {file.file_id: file.write_quorum for file in files(cold_root)}
    offload(cold_root, ALL)
    storage_paths.give_up(cold_root, COLD)
    for file in files(cold_root):
        copy_of(cold_root, file, 0).unlink()
    done = repair(cold_root)
    assert (done.is_whole, done.work.restored) == (True, 8)
    assert {frozenset(file.copies) for file in files(cold_root)} == {frozenset((0, 1, 2))}
    assert offload(cold_root, now=later).released.moved == 0
    new = storage_paths.add(cold_root, memory_path / "new", role="cold").path_id
    assert repair(cold_root).work.restored == 8
    assert offload(cold_root, now=later).released.moved == 8
    assert {file.copies for file in files(cold_root)} == {(new,)}
    assert {file.file_id: file.write_quorum for file in files(cold_root)} == quorums
    assert [message.value for message in messages.read(cold_root, "t")] == VALUES
    assert_consistent(cold_root)


def test_other_copies_are_restored_while_the_cold_path_is_away_for_long(
    cold_root: Root, memory_path: Path, copy_of: Callable[[Root, FileRecord, int], Path]
) -> None:
    offload(cold_root, ALL)
    (memory_path / "cold").rename(memory_path / "away")
    for file in files(cold_root):
        copy_of(cold_root, file, 0).unlink()
    assert repair(cold_root).work.restored == 0
    done = repair(cold_root, RepairLimits(replace_after=timedelta(0)))
    assert (done.work.restored, done.lacking) == (8, 0)
    done = offload(cold_root, now=later, limits=RepairLimits(replace_after=timedelta(0)))
    assert (done.released.moved, done.moved.moved) == (0, 0)
    assert {frozenset(file.copies) for file in files(cold_root)} == {frozenset((0, 1, 2, COLD))}
    (memory_path / "away").rename(memory_path / "cold")
    maintain(cold_root, AT_ONCE)
    assert offload(cold_root, now=later).released.moved == 8
    assert_consistent(cold_root)


def test_copies_on_a_draining_path_stay_for_the_lag(cold_root: Root, memory_path: Path) -> None:
    for number in range(3):
        storage_paths.add(cold_root, memory_path / f"disk{number}")
    for number in range(3):
        storage_paths.drain(cold_root, number)
    hot = {file.file_id: set(file.copies) for file in files(cold_root)}
    offload(cold_root, ALL)
    assert repair(cold_root).is_whole
    assert all(set(file.copies) == {*hot[file.file_id], COLD} for file in files(cold_root))
    with pytest.raises(InvalidArgumentError, match="until the deletion lag is over"):
        storage_paths.retire(cold_root, 0)
    assert offload(cold_root, now=later).released.moved == 8
    storage_paths.retire(cold_root, 0)


def test_a_lost_path_that_is_back_keeps_its_role(cold_root: Root, memory_path: Path) -> None:
    disk = cold_root.path / "storage" / "1"
    storage_paths.give_up(cold_root, 1)
    with pytest.raises(
        InvalidArgumentError, match="has the role both and cannot get the role cold: give `--role both`"
    ):
        storage_paths.add(cold_root, disk, role="cold")
    assert storage_paths.add(cold_root, disk).role == "both"
    storage_paths.give_up(cold_root, COLD)
    with pytest.raises(InvalidArgumentError, match="has the role cold and cannot get the role both"):
        storage_paths.add(cold_root, memory_path / "cold")
    assert storage_paths.add(cold_root, memory_path / "cold", role="cold").state == "writable"
    assert repair(cold_root).is_whole


def test_trims_and_deletions_reach_cold_files(cold_root: Root) -> None:
    offload(cold_root, ALL)
    offload(cold_root, now=later)
    set_topic_policies(
        cold_root,
        TopicName.parse("t"),
        {"retention": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}},
    )
    maintain(cold_root, AT_ONCE)
    maintain(cold_root, AT_ONCE)
    assert on_disk(cold_root)[COLD] == set()
    messages.write(cold_root, "t", [b"new"])
    offload(cold_root, ALL)
    cold_root.delete_topic("t", force=True)
    maintain(cold_root, AT_ONCE)
    maintain(cold_root, AT_ONCE)
    assert set().union(*on_disk(cold_root).values()) == set()


def test_backup_restore_usage_and_checks(cold_root: Root, memory_path: Path) -> None:
    hot_moment = cold_root.store.view().version
    offload(cold_root, ALL)
    used = usage(cold_root)
    assert [topic.offloaded_bytes for topic in used.topics] == [sum(map(len, VALUES))]
    path_usage = {path.path_id: path.by_reason for path in used.paths}
    assert set(path_usage[PathId(0)]) == {"on a cold path, too, to be deleted"}
    assert set(path_usage[COLD]) == {"messages of topics"}
    offload(cold_root, now=later)
    assert check(cold_root).good == 8
    back_up(cold_root, memory_path / "backup")
    now = cold_root.store.view().version
    assert restore_root(cold_root, memory_path / "restored", now).files == 8
    assert restore_root(cold_root, memory_path / "earlier", hot_moment).missing == ()
    for place in (memory_path / "backup", memory_path / "restored"):
        copy = Root.open(place)
        assert [message.value for message in messages.read(copy, "t")] == VALUES
        assert {file.write_quorum for file in files(copy)} == {file.write_quorum for file in files(cold_root)}
        assert repair(copy).is_whole
    for name in ("restored", "earlier"):
        assert [message.value for message in messages.read(Root.open(memory_path / name), "t")] == VALUES
        assert {len(file.copies) for file in files(Root.open(memory_path / name))} == {3}


def test_a_backup_without_the_only_copies_fails_and_names_their_path(cold_root: Root, memory_path: Path) -> None:
    offload(cold_root, ALL)
    back_up(cold_root, memory_path / "within-lag")
    offload(cold_root, now=later)
    (memory_path / "cold").rename(memory_path / "away")
    for _ in range(2):
        with pytest.raises(CopiesUnreachableError, match=f"Storage path 3 .*{memory_path / 'cold'}"):
            back_up(cold_root, memory_path / "backup")
        (memory_path / "cold").mkdir(exist_ok=True)  # an unmounted disk leaves an empty folder
    assert not (memory_path / "backup").exists()
    (memory_path / "cold").rmdir()
    (memory_path / "away").rename(memory_path / "cold")
    assert back_up(cold_root, memory_path / "backup").check.is_good


def test_a_backup_in_the_place_of_its_root_moves_nothing_to_its_own_disk(cold_root: Root, memory_path: Path) -> None:
    offload(cold_root, ALL)
    back_up(cold_root, memory_path / "backup")
    root = Root.open(memory_path / "backup")
    messages.write(root, "t", [b"new"])
    for _ in range(2):
        assert maintain(root, AT_ONCE).healed_paths == ()
        assert offload(root, ALL).waiting == 1
    added = storage_paths.add(root, memory_path / "cold2", role="cold")
    storage_paths.drain(root, COLD)
    assert repair(root).is_whole
    assert offload(root, ALL, now=later).is_complete
    storage_paths.retire(root, COLD)
    assert {file.copies for file in files(root) if len(file.copies) == 1} == {(added.path_id,)}
    assert [message.value for message in messages.read(root, "t")] == [*VALUES, b"new"]


def test_a_backup_within_the_lag_needs_no_cold_path(cold_root: Root, memory_path: Path) -> None:
    offload(cold_root, ALL)
    (memory_path / "cold").rename(memory_path / "away")
    assert back_up(cold_root, memory_path / "backup").check.is_good
    assert messages.values(Root.open(memory_path / "backup"), "t") == VALUES


def test_cold_copies_are_read_once_in_the_stated_time_and_not_more_often(
    cold_root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    offload(cold_root, ALL)
    offload(cold_root, now=later)
    now = [current_ms()]
    for module in (scrub, repairing):
        monkeypatch.setattr(module, "current_ms", lambda: now[0])
    limits, read = RepairLimits(scrub_cold_within=timedelta(hours=8)), []
    for _ in range(100):
        read.append(repair(cold_root, limits).scrubbed.bytes)
        now[0] += 600_000
    lengths = [file.length for file in files(cold_root)]
    assert max(read) <= max(lengths)
    assert len(lengths) <= sum(size > 0 for size in read[:56])
    assert sum(read) <= 2.1 * sum(lengths)


def test_a_path_that_is_given_up_during_a_release_does_not_keep_the_only_copies(
    cold_root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    offload(cold_root, ALL)
    changed = worker._changed

    def give_up_first(
        view: View, done: worker.Restored, refused: Collection[PathId]
    ) -> tuple[FileRecord, FileRecord] | None:
        found = changed(view, done, refused)
        monkeypatch.setattr(worker, "_changed", changed)
        storage_paths.give_up(Root.open(cold_root.path), COLD)
        return found

    monkeypatch.setattr(worker, "_changed", give_up_first)
    offload(cold_root, now=later)
    assert all(len(file.copies) > 1 for file in files(cold_root))


def test_a_release_during_the_decision_to_give_a_path_up_refuses_that(
    cold_root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    offload(cold_root, ALL)
    use_of = storage_paths.use_of

    def release_meanwhile(view: View, path_id: PathId) -> storage_paths.PathUse:
        found = use_of(view, path_id)
        monkeypatch.setattr(storage_paths, "use_of", use_of)
        assert offload(Root.open(cold_root.path), now=later).released.moved == len(VALUES)
        return found

    monkeypatch.setattr(storage_paths, "use_of", release_meanwhile)
    with pytest.raises(InvalidArgumentError, match="has the only copies of 8 files"):
        storage_paths.give_up(cold_root, COLD)


def test_what_is_found_during_moves_keeps_copies_for_the_next_pass(cold_root: Root) -> None:
    """Here the deletion lag is raised; it would be the same with a cold copy that is found bad."""
    set_namespace_policies(
        cold_root, "public/default", {"offload_policies": {"managedLedgerOffloadDeletionLagInMillis": 0}}
    )
    offload(cold_root, OffloadRequest(TopicName.parse("t"), end_of_first(cold_root)))
    (first,) = (file.file_id for file in files(cold_root) if file.is_cold)
    messages.write(cold_root, "t", [b"later"])

    def raise_lag(step: str, number: int, _: int) -> None:
        if (step, number) == ("repair", 0) and not raised:
            raised.append(step)
            lag = {"managedLedgerOffloadDeletionLagInMillis": 10**12}
            set_namespace_policies(cold_root, "public/default", {"offload_policies": lag})

    raised: list[str] = []
    offload(cold_root, ALL, progress=raise_lag)
    assert raised
    assert all(len(file.copies) > 1 for file in files(cold_root) if file.file_id != first)


@pytest.mark.parametrize("change", ["policies", "drained", "failed"])
def test_what_changes_during_a_pass_counts_from_the_next_batch_on(
    cold_root: Root, memory_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(worker, "COMMIT_FILES", 2)
    thresholds = {"managedLedgerOffloadThresholdInBytes": 0}
    set_namespace_policies(cold_root, "public/default", {"offload_policies": thresholds})
    batches: list[int] = []

    def change_at_the_second(step: str, number: int, total: int) -> None:
        if step == "repair" and number == 0:
            batches.append(total)
            if len(batches) != 2:
                return
            if change == "policies":
                set_namespace_policies(cold_root, "public/default", {"offload_policies": None})
            elif change == "drained":
                storage_paths.resume(cold_root, other.path_id)
                storage_paths.drain(cold_root, COLD)
                cold_root.mark_failed([PathFailure(PathId(other.path_id), "disk error")])
            else:
                cold_root.mark_failed([PathFailure(COLD, "disk error")])

    if change == "drained":
        other = storage_paths.add(cold_root, memory_path / "other", role="cold")
        cold_root.mark_failed([PathFailure(PathId(other.path_id), "disk error")])
    done = offload(cold_root, progress=change_at_the_second)
    assert (batches, done.moved.moved) == ([2, 2], 4)
    assert sum(file.is_cold for file in files(cold_root)) == 4


def test_a_topic_that_is_deleted_during_its_pass_ends_the_moves(
    cold_root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "COMMIT_FILES", 2)
    batches: list[int] = []

    def delete_after_the_first(step: str, number: int, total: int) -> None:
        if step == "repair" and number == total:
            batches.append(total)
            cold_root.delete_topic("t", force=True)

    done = offload(cold_root, ALL, progress=delete_after_the_first)
    assert (batches, done.moved.moved) == ([2], 2)


def test_a_pass_without_time_tells_what_it_left(cold_root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "COMMIT_FILES", 3)
    times = iter(range(100))
    done = offload(cold_root, ALL, limits=RepairLimits(max_seconds=4), clock=lambda: float(next(times)))
    assert done.moved.moved + done.moved.unfinished == len(VALUES)
    assert 0 < done.moved.moved < len(VALUES)
    assert offload(cold_root, ALL).is_complete


def test_the_lag_counts_from_the_commit_of_the_move(cold_root: Root) -> None:
    began = datetime.now(UTC)
    offload(cold_root, ALL, now=lambda: began - timedelta(days=1))
    assert all(file.offloaded_at is not None and file.offloaded_at >= began for file in files(cold_root))


def test_many_offloads_repairs_and_merges_at_once(cold_root: Root) -> None:
    before = messages.read(cold_root, "t")
    place = cold_root.path

    def run(work: Callable[[Root], object]) -> threading.Thread:
        thread = threading.Thread(target=lambda: [work(Root.open(place)) for _ in range(3)])
        thread.start()
        return thread

    work: tuple[Callable[[Root], object], ...] = (
        lambda root: offload(root, ALL),
        lambda root: offload(root, ALL, now=later),
        repair,
        merge,
        lambda root: collect(root, Ages(keep_replaced_s=-1)),
    )
    for thread in [run(each) for each in work]:
        thread.join()
    assert messages.read(cold_root, "t") == before
    assert_consistent(cold_root)
    offload(cold_root, ALL)
    offload(cold_root, now=lambda: later() + LATER)
    assert {file.copies for file in files(cold_root)} == {(COLD,)}
    maintain(cold_root, AT_ONCE)
    assert len(on_disk(cold_root)[COLD]) == len(files(cold_root))


_OFFLOAD = """
import os, sys
from datetime import UTC, datetime, timedelta
from pulsar_on_spark import Root
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.maintenance.offload.offloading import OffloadRequest, offload
step, hours = int(sys.argv[2]), int(sys.argv[3])
root = Root.open(sys.argv[1])
seen = 0
commit = root.store.commit
def killed():
    global seen
    seen += 1
    if seen == step:
        os._exit(9)
def committing(decide):
    killed()
    view = commit(decide)
    killed()
    return view
root.store.commit = committing
import pulsar_on_spark.topic.maintenance.repair.worker as worker
restore_copy = worker.restore_copy
def restoring(*args):
    killed()
    restore_copy(*args)
    killed()
worker.restore_copy = restoring
offload(root, OffloadRequest(TopicName.parse("t")), now=lambda: datetime.now(UTC) + timedelta(hours=hours))
os._exit(0)
"""


@pytest.mark.long
def test_kills_at_each_step_of_both_phases(cold_root: Root, start_python: Callable[..., subprocess.Popen[str]]) -> None:
    before = messages.read(cold_root, "t")
    codes = []
    for hours in (0, 5):
        for step in (1, 2, 3, 9, 17, 18, 19, 40):
            process = start_python(_OFFLOAD, cold_root.path, step, hours)
            codes.append(process.wait(60))
            assert messages.read(cold_root, "t") == before
            assert_consistent(cold_root)
    assert 9 in codes
    assert {file.copies for file in files(cold_root)} == {(COLD,)}
    maintain(cold_root, AT_ONCE)
    assert [len(stored) for stored in on_disk(cold_root).values()] == [0, 0, 0, 8]
    assert messages.read(cold_root, "t") == before


def test_housekeeping_goes_on_while_a_cold_directory_hangs(
    cold_root: Root, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_path, "ANSWER_WITHIN_S", 0.3)
    before = messages.read(cold_root, "t")
    offload(cold_root, OffloadRequest(TopicName.parse("t"), before=end_of_first(cold_root)))
    offload(cold_root, now=later)
    cold_root.create_topic("deleted")
    messages.write(cold_root, "deleted", [b"x"])
    cold_root.delete_topic("deleted")
    set_namespace_policies(
        cold_root, "public/default", {"offload_policies": {"managedLedgerOffloadThresholdInBytes": 0}}
    )
    with HangingPath(memory_path / "cold"):
        began_s = time.monotonic()
        done = maintain(cold_root, AT_ONCE)
        assert time.monotonic() - began_s < 5
        assert "has not answered for 0.3 s" in done.repair.away[0]
        assert (done.offload.moved.moved, done.offload.waiting > 0) == (0, True)
        assert (done.merge.new_files > 0, done.collect.deleted_files > 0) == (True, True)
        assert done.repair.work.lost == ()
        with pytest.raises(CopiesUnreachableError, match="has not answered"):
            messages.read(cold_root, "t")
    wait_until(lambda: maintain(cold_root, AT_ONCE).repair.is_whole, "the path answers")
    assert messages.read(cold_root, "t") == before
    assert {file.copies for file in files(cold_root)} >= {(COLD,)}


def test_a_cold_directory_that_hangs_can_be_retired(
    cold_root: Root, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_path, "ANSWER_WITHIN_S", 0.3)
    offload(cold_root, ALL)
    with HangingPath(memory_path / "cold"):
        storage_paths.give_up(cold_root, COLD)
        assert repair(cold_root).is_whole
        assert storage_paths.retire(cold_root, COLD).state == "retired"
    assert [message.value for message in messages.read(cold_root, "t")] == VALUES
