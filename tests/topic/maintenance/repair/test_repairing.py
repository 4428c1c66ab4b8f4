"""Whole passes over real roots: what is missing, short or rotten comes back, and paths come and go."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import FileRecord, PathRecord
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import InvalidArgumentError, StoragePathError
from pulsar_on_spark.model.ids import FileId, PathId
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.files import OsFiles
from pulsar_on_spark.storage.reports import Finding, LostBatches, ReportKind, read_reports, write_report
from pulsar_on_spark.topic.maintenance.maintain import heal_paths, maintain
from pulsar_on_spark.topic.maintenance.repair import scrub, storage_paths
from pulsar_on_spark.topic.maintenance.repair.checking import check
from pulsar_on_spark.topic.maintenance.repair.limits import RepairLimits
from pulsar_on_spark.topic.maintenance.repair.repairing import Throttle, repair
from tests.kit import messages
from tests.topic.maintenance.repair.conftest import assert_whole, files

Locate = Callable[[Root, FileRecord, int], Path]
AT_ONCE = RepairLimits(replace_after=timedelta(0))


def filled(root: Root, writes: int = 3) -> list[bytes | None]:
    root.create_topic("t")
    values: list[bytes | None] = [str(number).encode() * 100 for number in range(writes)]
    for value in values:
        messages.write(root, "t", [value])
    return values


def flip(path: Path, offset: int = 50) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_a_pass_over_a_complete_root_repairs_nothing(root: Root) -> None:
    filled(root)
    done = repair(root)
    assert done.is_whole
    assert (done.missing, done.bad, done.work.restored, done.work.moved) == (0, 0, 0, 0)
    assert done.scrubbed.copies == 3, "one of each path, as a first pass does not know how long it has"


def test_missing_short_and_reported_copies_are_restored(root: Root, copy_of: Locate) -> None:
    values = filled(root)
    one, two, three = files(root)
    copy_of(root, one, 0).unlink()
    os.truncate(copy_of(root, two, 1), 99)
    flip(copy_of(root, three, 2))
    write_report(root.path, Finding(ReportKind.BAD_COPY, FileId(three.file_id), PathId(2), "a reader says so", 1))
    steps: list[str] = []

    done = repair(root, progress=lambda step, *_: steps.append(step))

    assert (done.missing, done.bad, done.work.restored, done.work.moved) == (1, 2, 3, 0)
    assert done.is_whole
    assert_whole(root)
    assert read_reports(root.path) == []
    assert messages.values(root, "t") == values
    assert {"audit", "check reports", "repair"} <= set(steps)
    assert (root.status().audit.missing, root.status().audit.restored) == (1, 3)


def test_reports_of_good_copies_and_of_copies_that_are_no_more_are_cleared(root: Root) -> None:
    filled(root, 1)
    (file,) = files(root)
    for path_id in (1, 7):
        write_report(root.path, Finding(ReportKind.BAD_COPY, FileId(file.file_id), PathId(path_id), "?", 1))
    write_report(root.path, Finding(ReportKind.LOSS, FileId(file.file_id), None, "?", 1, LostBatches("t", 0, (1,))))
    assert repair(root).work.restored == 0
    assert read_reports(root.path) == []


def test_batches_without_a_good_copy_are_reported_and_left_alone(root: Root, copy_of: Locate) -> None:
    filled(root, 1)
    (file,) = files(root)
    copies = [copy_of(root, file, path_id) for path_id in range(3)]
    for copy in copies:
        flip(copy)
        write_report(root.path, Finding(ReportKind.BAD_COPY, FileId(file.file_id), PathId(copies.index(copy)), "?", 1))
    before = [copy.read_bytes() for copy in copies]
    done = repair(root)
    assert [file_id for file_id, _ in done.work.lost] == [file.file_id]
    assert not done.is_whole
    assert [copy.read_bytes() for copy in copies] == before
    assert [loss.file_id for loss in root.status().losses] == [file.file_id]
    copies[1].write_bytes(before[1][:50] + bytes([before[1][50] ^ 1]) + before[1][51:])
    repair(root)
    assert repair(root).is_whole
    assert root.status().losses == ()
    assert_whole(root)


def test_no_loss_is_reported_while_a_copy_is_unreachable(root: Root, copy_of: Locate) -> None:
    filled(root, 1)
    (file,) = files(root)
    flip(copy_of(root, file, 0))
    write_report(root.path, Finding(ReportKind.BAD_COPY, FileId(file.file_id), PathId(0), "?", 1))
    for number in (1, 2):
        (root.path / "storage" / str(number)).rename(root.path / f"away{number}")
    done = repair(root)
    assert (done.work.lost, root.status().losses) == ((), ())
    assert any("cannot be restored" in problem for problem in done.work.problems)
    for number in (1, 2):
        (root.path / f"away{number}").rename(root.path / "storage" / str(number))
    maintain(root)
    assert repair(root).is_whole
    assert_whole(root)


def test_a_copy_that_cannot_be_opened_is_neither_bad_nor_lost(
    root: Root, copy_of: Locate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process without descriptors looks at a damaged copy, and at good ones."""
    filled(root, 1)
    (file,) = files(root)
    flip(copy_of(root, file, 0))
    write_report(root.path, Finding(ReportKind.BAD_COPY, FileId(file.file_id), PathId(0), "?", 1))

    def refuse(files: OsFiles, path: Path) -> int:
        if path.suffix == ".arrow":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    with monkeypatch.context() as patch:
        patch.setattr(OsFiles, "open", refuse)
        found = check(root)
        assert (found.good, found.bad, found.missing, found.is_good) == (0, 0, 0, False)
        assert sum("Too many open files" in reason for reason in found.reasons) == 3
        done = repair(root)
        assert not done.is_whole
        assert (done.work.lost, done.scrubbed.bad) == ((), 0)
        assert len(read_reports(root.path)) == 1, "no good copy was reported"
    assert repair(root).is_whole
    assert_whole(root)


def test_damage_is_found_by_reading_all_copies_within_the_stated_time(root: Root, copy_of: Locate) -> None:
    """Each pass reads at least a copy on each path, without readers of the data."""
    filled(root, 4)
    for number, file in enumerate(files(root)[:3]):
        flip(copy_of(root, file, number))
    found = [repair(root) for _ in range(4)]
    assert sum(done.scrubbed.bad for done in found) == 3
    assert sum(done.work.restored for done in found) == 3
    assert_whole(root)
    assert all(each.completed_ms for each in root.status().audit.scrubs.values())


def test_a_copy_that_cannot_be_examined_holds_up_no_other(
    root: Root, copy_of: Locate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path does not count as checked until it can be examined."""
    filled(root, 4)
    first, *_, last = sorted(files(root), key=lambda file: file.file_id)
    flip(copy_of(root, last, 1))
    storage_paths.give_up(root, 1)
    storage_paths.add(root, root.path / "storage" / "1")
    forbidden, open_file = copy_of(root, first, 1), OsFiles.open

    def refuse(files: OsFiles, path: Path) -> int:
        if path == forbidden:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return open_file(files, path)

    with monkeypatch.context() as patch:
        patch.setattr(OsFiles, "open", refuse)
        for _ in range(2):
            done = repair(root)
            assert done.checked_paths == ()
            assert first.file_id in "".join(done.scrubbed.unexamined)
        (mended,) = (file for file in files(root) if file.file_id == last.file_id)
        assert scrub.defect(mended, root.current_storage_paths()[PathId(1)]) is None
    assert repair(root).checked_paths == (1,)
    assert_whole(root)


def test_a_lost_path_is_replaced_by_a_new_one_in_its_folder(root: Root) -> None:
    values = filled(root)
    storage = root.path / "storage"
    shutil.rmtree(storage / "1")
    (storage / "1").mkdir()
    done = repair(root)
    assert (done.work.restored, len(done.away)) == (0, 1), "an empty directory is not believed"
    with pytest.raises(InvalidArgumentError, match="is storage path 1"):
        storage_paths.add(root, storage / "1")
    storage_paths.give_up(root, 1)
    assert repair(root).lacking == 3
    assert storage_paths.add(root, storage / "1").path_id == 3
    done = repair(root)
    assert (done.work.restored, done.work.moved, done.is_whole) == (3, 3, True)
    assert_whole(root)
    assert {frozenset(file.copies) for file in files(root)} == {frozenset({0, 2, 3})}
    assert messages.values(root, "t") == values
    storage_paths.retire(root, 1)
    assert sorted(root.storage_paths(root.store.view())) == [0, 2, 3]


def test_a_paths_problem_is_logged_again_only_if_it_changes(root: Root, caplog: pytest.LogCaptureFixture) -> None:
    filled(root)
    away = root.path / "storage" / "2"
    away.rename(root.path.parent / "away")
    repair(root)
    caplog.clear()
    told: dict[int, str] = {}
    assert [heal_paths(root, told) for _ in range(3)] == [(), (), ()]
    assert len([line for line in caplog.messages if "Storage path 2 still fails" in line]) == 1
    (root.path.parent / "away").rename(away)
    assert heal_paths(root, told) == (2,)
    assert told == {}


def test_an_unreachable_path_is_replaced_if_there_is_a_spare(root: Root) -> None:
    filled(root)
    storage_paths.add(root, root.path.parent / "spare")
    away = root.path / "storage" / "2"
    away.rename(root.path.parent / "away")
    done = repair(root)
    assert (done.work.restored, len(done.away)) == (0, 1), "it may be back soon"
    assert root.status().paths[2].state == "read-only"
    assert repair(root, AT_ONCE).work.restored == 3
    assert {frozenset(file.copies) for file in files(root)} == {frozenset({0, 1, 3})}
    (root.path.parent / "away").rename(away)
    assert heal_paths(root) == (2,)
    assert repair(root).checked_paths == (2,)
    assert root.maintain().collect.deleted_files == 3, "its former copies"
    assert_whole(root)


@pytest.mark.parametrize(("ahead", "is_replaced"), [(timedelta(days=400), True), (timedelta(minutes=9), False)])
def test_a_path_that_failed_in_the_future_by_a_wrong_clock_is_replaced(
    root: Root, ahead: timedelta, is_replaced: bool
) -> None:
    filled(root)
    storage_paths.add(root, root.path.parent / "spare")
    (root.path / "storage" / "2").rename(root.path.parent / "away")
    repair(root)
    record = root.store.view().get(PathRecord, "2")
    assert record is not None
    assert record.failed_at is not None
    shifted = record.model_copy(update={"failed_at": record.failed_at + ahead})
    root.store.commit(lambda _: Change(puts=[shifted], keys={keys.path(2): None}))
    assert repair(root).work.restored == (3 if is_replaced else 0)


def test_a_lost_path_that_returns_with_its_data_counts_after_it_was_read(root: Root, copy_of: Locate) -> None:
    filled(root)
    storage_paths.give_up(root, 2)
    (root.path / "storage" / "2").rename(root.path.parent / "found")
    flip(next((root.path.parent / "found").glob("segments/*/*.arrow")))
    back = storage_paths.add(root, root.path.parent / "found")
    assert (back.path_id, back.state, back.uri) == (2, "writable", str(root.path.parent / "found"))
    assert root.status().unchecked_copies == 3
    hasty = repair(root, RepairLimits(max_seconds=0))
    assert (hasty.scrubbed.copies, hasty.checked_paths) == (1, ()), "there was no time for more"
    done = repair(root)
    assert done.checked_paths == (2,)
    assert (hasty.scrubbed.bad + done.scrubbed.bad, hasty.work.restored + done.work.restored) == (1, 1)
    assert_whole(root)
    assert root.status().unchecked_copies == 0


@pytest.mark.parametrize("shift", [timedelta(days=-400), timedelta(days=400)])
def test_a_path_that_returned_by_a_wrong_clock_is_read_once_and_then_counts(
    root: Root, copy_of: Locate, shift: timedelta
) -> None:
    filled(root)
    repair(root)
    first = min(files(root), key=lambda file: file.file_id)
    assert scrub.read_state(root.place).scrubs[2].after == first.file_id, "a round of full reading has begun"
    flip(copy_of(root, first, 2))
    storage_paths.give_up(root, 2)
    (root.path / "storage" / "2").rename(root.path.parent / "found")
    back = storage_paths.add(root, root.path.parent / "found")
    assert back.check_since is not None
    shifted = back.model_copy(update={"check_since": back.check_since + shift})
    root.store.commit(lambda _: Change(puts=[shifted], keys={keys.path(2): None}))
    done = [repair(root, RepairLimits(max_seconds=0)) for _ in range(4)]
    assert sum(each.scrubbed.bad for each in done) == 1
    assert [path for each in done for path in each.checked_paths] == [2]
    repair(root)
    assert_whole(root)


def test_draining_moves_all_copies_and_refuses_new_ones(root: Root) -> None:
    values = filled(root)
    with pytest.raises(InvalidArgumentError, match="only a path that is draining or lost can"):
        storage_paths.retire(root, 0)
    storage_paths.drain(root, 0)
    assert [path.path_id for path in root.writable_paths(root.store.view())] == [1, 2]
    done = repair(root)
    assert (done.lacking, done.work.restored) == (3, 0), "there is no other path"
    with pytest.raises(InvalidArgumentError, match="still needed by 3 files"):
        storage_paths.retire(root, 0)
    storage_paths.add(root, root.path.parent / "new")
    done = repair(root)
    assert (done.work.restored, done.work.moved, done.work.dropped) == (3, 3, 3)
    assert (done.missing, done.bad) == (0, 0), "what was moved is not looked for where it was"
    assert list((root.path / "storage" / "0").glob("segments/*/*")) == []
    storage_paths.retire(root, 0)
    assert_whole(root)
    assert messages.values(root, "t") == values
    with pytest.raises(InvalidArgumentError, match="is retired"):
        storage_paths.drain(root, 0)


def test_a_path_is_not_retired_under_a_write(root: Root) -> None:
    root.create_topic("t")
    storage_paths.add(root, root.path.parent / "new")
    write_id = messages.new_write_id()
    staged = [messages.stage(root, {"t": messages.make_rows([b"v"])}, write_id)]
    (used,) = {copies for output in staged for file in output.files for copies in [file.written.copies]}
    storage_paths.drain(root, used[0])
    with pytest.raises(InvalidArgumentError, match="not committed yet"):
        storage_paths.retire(root, used[0])
    messages.attach(root.store, write_id, staged, None)
    assert messages.values(root, "t") == [b"v"]
    repair(root)
    storage_paths.retire(root, used[0])
    assert_whole(root)
    assert messages.values(root, "t") == [b"v"]


def test_a_failed_path_that_is_well_again_is_checked_by_the_same_pass(root: Root, copy_of: Locate) -> None:
    filled(root)
    copy_of(root, files(root)[0], 1).unlink()
    storage = root.path / "storage"
    (storage / "1").rename(storage / "away")
    repair(root)
    (storage / "away").rename(storage / "1")
    done = maintain(root)
    assert (done.healed_paths, done.repair.checked_paths, done.problems) == ((1,), (1,), ())
    assert done.repair.work.restored == 1
    assert_whole(root)


def test_racks_keep_copies_apart_also_during_a_move(tmp_path: Path) -> None:
    root = Root.create(tmp_path / "root", [tmp_path / f"disk{number}" for number in range(2)], Quorum(2, 2, 1))
    for label in ("a", "a", "b", "b"):
        storage_paths.add(root, tmp_path / f"{label}{len(root.store.view().all(PathRecord))}", label)
    for number in range(2):
        storage_paths.drain(root, number)
    filled(root, 8)

    def labels(file: FileRecord) -> list[str]:
        paths = root.storage_paths(root.store.view())
        return sorted(paths[PathId(each)].label for each in file.copies)

    assert [labels(file) for file in files(root)] == [["a", "b"]] * 8
    storage_paths.drain(root, 2)
    assert repair(root).is_whole
    assert [labels(file) for file in files(root)] == [["a", "b"]] * 8
    assert_whole(root, copies=2)


def test_paths_that_are_no_paths(root: Root, tmp_path: Path) -> None:
    other = Root.create(tmp_path / "other")
    with pytest.raises(StoragePathError, match="of cluster"):
        storage_paths.add(root, other.path / "storage" / "0")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("...")
    with pytest.raises(StoragePathError, match=r"holds 'thesis.tex'"):
        storage_paths.add(root, tmp_path / "full")
    for change in (storage_paths.drain, storage_paths.give_up, storage_paths.retire, storage_paths.resume):
        with pytest.raises(InvalidArgumentError, match="no storage path 9"):
            change(root, 9)
    assert len(root.store.view().all(PathRecord)) == 3


def test_the_only_copies_are_not_given_up_by_mistake(root: Root) -> None:
    filled(root, 1)
    storage_paths.give_up(root, 0)
    storage_paths.give_up(root, 1)
    with pytest.raises(InvalidArgumentError, match="only copies of 1 files"):
        storage_paths.give_up(root, 2)
    assert storage_paths.give_up(root, 2, force=True).state == "lost"


def test_too_few_paths_would_be_left(root: Root) -> None:
    storage_paths.drain(root, 0)
    with pytest.raises(InvalidArgumentError, match="cannot be drained"):
        storage_paths.drain(root, 1)
    assert storage_paths.resume(root, 0).state == "writable"
    assert storage_paths.drain(root, 1).state == "draining"


def test_an_addition_that_was_cut_off_is_gone_on_with(root: Root, tmp_path: Path) -> None:
    """The identity file stands before the record does; the id may have gone to another path meanwhile."""
    first = tmp_path / "first"
    record = storage_paths.add(root, tmp_path / "other")
    shutil.copytree(tmp_path / "other", first)
    with pytest.raises(InvalidArgumentError, match="has storage path 3"):
        storage_paths.add(root, first)
    (first / "pulsarpy-path.json").write_text(
        (first / "pulsarpy-path.json").read_text().replace('"path_id": 3', '"path_id": 4')
    )
    assert storage_paths.add(root, first).path_id == record.path_id + 1


def test_a_throttle_keeps_the_rate() -> None:
    now, slept = [0.0], []

    def pause(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    throttle = Throttle(100.0, clock=lambda: now[0], pause=pause)
    for _ in range(10):
        throttle(50)
    assert now[0] == pytest.approx(5.0)
    now[0] += 60.0
    throttle(100)
    assert slept[-1] == pytest.approx(1.0), "idleness is not saved up"


def test_a_strict_budget_is_saved_up_and_never_exceeded() -> None:
    may = scrub.is_within_budget
    assert [may(spent, 10, 25, is_strict=True) for spent in (0, 10, 20)] == [True, True, False]
    assert [may(spent, 10, 25, is_strict=False) for spent in (0, 10, 20, 30)] == [True, True, True, False]
    assert [may(0, 10, 0, is_strict=strict) for strict in (True, False)] == [False, True]
    assert may(1_000, 10, None, is_strict=True)


def test_rounds_are_spread_over_the_stated_time() -> None:
    assert scrub.budget_bytes(1_000, timedelta(hours=1), timedelta(hours=10)) == 100
    assert scrub.budget_bytes(1_000, timedelta(hours=20), timedelta(hours=10)) == 1_000
    assert [file.file_id for file in scrub.upcoming([_file("a"), _file("c"), _file("d")], "b")] == ["c", "d"]
    assert [file.file_id for file in scrub.upcoming([_file("a"), _file("c"), _file("d")], "c")] == ["d"]


def _file(file_id: str) -> FileRecord:
    return FileRecord(file_id=file_id, write_id="w", copies=(0,), length=1, batches=0)
