"""Copies of a root that share a cold path: one of them maintains it, and the others notice that and only read."""

from __future__ import annotations

import json
import random
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_on_spark.broker.reading.catch_up import CatchUp
from pulsar_on_spark.broker.reading.jobs import EntrySource
from pulsar_on_spark.metadata.records import FileRecord, PathRecord, SegmentRecord
from pulsar_on_spark.model.errors import CopiesUnreachableError, SegmentGoneError, StoragePathError
from pulsar_on_spark.model.ids import LedgerId, PathId, WriteId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.claim import CLAIM_NAME, UNCLAIMED, Claim, named, read_claim
from pulsar_on_spark.storage.local_path import LocalPath
from pulsar_on_spark.storage.probe import Trials
from pulsar_on_spark.storage.reports import ReportKind, read_reports
from pulsar_on_spark.storage.root_place import ObjectPlace
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.catalog import holds
from pulsar_on_spark.topic.catalog.holds import unheld_paths
from pulsar_on_spark.topic.maintenance.backup.backup import back_up
from pulsar_on_spark.topic.maintenance.backup.restore import restore_root
from pulsar_on_spark.topic.maintenance.compaction.compact import compact
from pulsar_on_spark.topic.maintenance.files import claims
from pulsar_on_spark.topic.maintenance.files import collect as collecting
from pulsar_on_spark.topic.maintenance.files.claims import claim, take_over
from pulsar_on_spark.topic.maintenance.files.collect import Ages
from pulsar_on_spark.topic.maintenance.files.merge import merge
from pulsar_on_spark.topic.maintenance.maintain import heal_paths, maintain
from pulsar_on_spark.topic.maintenance.offload.offloading import OffloadRequest, offload
from pulsar_on_spark.topic.maintenance.repair import storage_paths, worker
from pulsar_on_spark.topic.maintenance.repair.audit import audit
from pulsar_on_spark.topic.maintenance.repair.checking import check
from pulsar_on_spark.topic.maintenance.repair.limits import RepairLimits
from pulsar_on_spark.topic.maintenance.repair.repairing import repair
from pulsar_on_spark.topic.maintenance.status import storage_status
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import EntryRange
from tests.kit import messages
from tests.kit.pulsar_entries import read_entry
from tests.topic.maintenance.offload.conftest import root_with_cold_path
from tests.topic.maintenance.repair.conftest import assert_consistent

COLD = PathId(3)
HOUR = timedelta(hours=1)
ALL = OffloadRequest(TopicName.parse("t"))
AT_ONCE = Ages(abort_after_s=-1, keep_replaced_s=-1, keep_verdicts_s=-1)
VALUES = [bytes([65 + number]) * 300 for number in range(4)]
REFUSAL = "so this root only reads from it"


def later() -> datetime:
    return datetime.now(UTC) + timedelta(hours=5)


@pytest.fixture
def cold_root(memory_path: Path) -> Root:
    """A root with a topic of four files, and a cold path outside of it."""
    return root_with_cold_path(memory_path, VALUES)


def copied(root: Root, name: str) -> Root:
    """A copy of the root's folder, as `cp -a` makes it."""
    return Root.open(shutil.copytree(root.path, root.path.with_name(name)))


def cold_copies(root: Root) -> set[Path]:
    return set((root.path.with_name("cold") / "segments").glob("*/*.arrow"))


def files(root: Root) -> list[FileRecord]:
    return [file for file in root.store.view().all(FileRecord) if file.replaced_at is None]


def path_record(root: Root) -> PathRecord:
    record = root.store.view().get(PathRecord, str(COLD))
    assert record is not None
    return record


def assert_refused(root: Root) -> None:
    """Neither offloading nor repair nor a collection changes the cold path, and each says why."""
    before, records = cold_copies(root), files(root)
    messages.write(root, "t", [b"new"])
    done = offload(root, ALL, now=later)
    assert (done.moved.moved, done.released.moved) == (0, 0)
    assert re.search(r"take no files now: \[path 3\] Storage path 3 .* " + REFUSAL, done.problems[-1])
    (reason,) = repair(root).away
    assert REFUSAL in reason
    assert str(root.path.with_name("cold")) in reason
    assert all(file in files(root) for file in records)
    assert (path_record(root).state, REFUSAL in path_record(root).reason) == ("read-only", True)
    assert heal_paths(root) == ()
    root.delete_topic("t", force=True)
    for _ in range(2):
        done_all = maintain(root, AT_ONCE)
        assert REFUSAL in " ".join(done_all.collect.skipped_paths)
    assert cold_copies(root) == before


@pytest.mark.parametrize("is_released", [False, True])
def test_the_copy_of_a_root_only_reads_what_the_root_maintains(cold_root: Root, is_released: bool) -> None:
    offload(cold_root, ALL)
    if is_released:
        offload(cold_root, now=later)
    copy = copied(cold_root, "copy")
    messages.write(cold_root, "t", [b"more"])
    offload(cold_root, ALL)
    assert messages.values(copy, "t") == VALUES
    assert_refused(copy)
    assert messages.values(cold_root, "t") == [*VALUES, b"more"]
    assert offload(cold_root, now=later).is_complete
    assert repair(cold_root).is_whole
    assert_consistent(cold_root)
    assert read_reports(cold_root.path) == []


def test_the_root_that_is_to_keep_the_path_takes_it_over(cold_root: Root) -> None:
    offload(cold_root, ALL)
    copy = copied(cold_root, "copy")
    storage_paths.resume(copy, COLD)
    assert offload(cold_root, now=later).released.moved == 0
    assert REFUSAL in " ".join(repair(cold_root).away)
    assert storage_paths.resume(cold_root, COLD).state == "writable"
    assert offload(cold_root, now=later).released.moved == len(VALUES)
    assert messages.values(copy, "t") == VALUES
    assert_refused(copy)
    assert messages.values(cold_root, "t") == VALUES


@pytest.mark.parametrize("is_idle", [False, True])
def test_a_copy_gets_a_cold_path_of_its_own(cold_root: Root, memory_path: Path, is_idle: bool) -> None:
    offload(cold_root, ALL)
    offload(cold_root, now=later)
    copy, more = copied(cold_root, "copy"), [] if is_idle else [b"more"]
    if more:
        messages.write(cold_root, "t", more)
        offload(cold_root, ALL)
    before = cold_copies(cold_root)
    repair(copy)
    added = storage_paths.add(copy, memory_path / "own", role="cold")
    storage_paths.drain(copy, COLD)
    repair(copy)
    assert {file.copies for file in files(copy)} == {(added.path_id,)}
    storage_paths.retire(copy, COLD)
    assert repair(copy).is_whole
    assert messages.values(copy, "t") == VALUES
    assert cold_copies(cold_root) == before
    assert repair(cold_root).is_whole
    assert messages.values(cold_root, "t") == [*VALUES, *more]


def test_the_copy_of_an_idle_root_deletes_nothing_that_the_root_needs(cold_root: Root) -> None:
    offload(cold_root, ALL)
    offload(cold_root, now=later)
    copy = copied(cold_root, "copy")
    (shown,) = (path for path in storage_status(copy).paths if path.path_id == COLD)
    assert (shown.hold, shown.state) == ("foreign", "writable")
    (reason,) = claim(copy, [COLD]).values()
    assert shown.reason == reason
    assert named(cold_root.path) in reason
    assert f"pulsarpy storage resume {COLD}" in reason
    copy.delete_topic("t", force=True)
    for _ in range(2):
        maintain(copy, AT_ONCE)
    assert len(cold_copies(cold_root)) == len(VALUES)
    assert messages.values(cold_root, "t") == VALUES


def test_the_copy_of_an_idle_root_gives_the_path_up_and_retires_it(cold_root: Root) -> None:
    offload(cold_root, ALL)
    offload(cold_root, now=later)
    copy = copied(cold_root, "copy")
    copy.delete_topic("t", force=True)
    storage_paths.give_up(copy, COLD, force=True)
    for _ in range(2):
        assert maintain(copy, AT_ONCE).collect.deleted_files == 0
    assert storage_paths.retire(copy, COLD).state == "retired"
    assert messages.values(Root.open(cold_root.path), "t") == VALUES


def test_a_new_cold_path_belongs_to_the_root_that_added_it(cold_root: Root) -> None:
    copy = copied(cold_root, "copy")
    assert offload(copy, ALL).moved.moved == 0
    assert offload(cold_root, ALL).moved.moved == len(VALUES)


def test_a_root_that_was_moved_takes_its_path_over(cold_root: Root) -> None:
    offload(cold_root, ALL)
    moved = Root.open(cold_root.path.rename(cold_root.path.with_name("moved")))
    assert messages.values(moved, "t") == VALUES
    assert offload(moved, now=later).released.moved == 0
    storage_paths.resume(moved, COLD)
    assert offload(moved, now=later).released.moved == len(VALUES)
    assert repair(moved).is_whole


def test_a_root_is_named_by_its_place_whatever_it_is_called(cold_root: Root, memory_path: Path) -> None:
    (memory_path / "link").symlink_to(cold_root.path)
    assert named(memory_path / "link") == named(cold_root.path)
    before = named(cold_root.path)
    copy = shutil.copytree(cold_root.path, memory_path / "copy")
    cold_root.path.rename(memory_path / "original")
    copy.rename(cold_root.path)
    assert named(cold_root.path) != before, "another folder at the same path"
    assert named(ObjectPlace("s3://bucket/root", "profile")) == "s3://bucket/root"
    with pytest.raises(StoragePathError, match="mount its disk"):
        named(memory_path / "absent")


@pytest.mark.parametrize("claims_root", ["", None])
def test_any_copy_may_replace_a_claim_that_names_no_root(
    cold_root: Root, memory_path: Path, claims_root: str | None
) -> None:
    file = memory_path / "cold" / CLAIM_NAME
    fields = json.loads(file.read_bytes()) | {"root": claims_root}
    file.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))
    copy = copied(cold_root, "copy")
    assert claim(copy, [COLD]) == {}
    assert list(claim(cold_root, [COLD])) == [COLD]


def unreadable(_: StoragePath) -> Claim:
    raise StoragePathError("no answer")


def test_a_path_whose_claim_cannot_be_read_is_not_retired(
    cold_root: Root, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offload(cold_root, ALL)
    offload(cold_root, now=later)
    copy = copied(cold_root, "copy")
    storage_paths.add(copy, memory_path / "own", role="cold")
    storage_paths.drain(copy, COLD)
    repair(copy)
    with monkeypatch.context() as patch:
        patch.setattr(claims, "read_claim", unreadable)
        with pytest.raises(StoragePathError, match="no answer"):
            storage_paths.retire(copy, COLD)
        assert path_record(copy).state == "draining"
        storage_paths.give_up(copy, COLD)
        storage_paths.retire(copy, COLD)
    assert messages.values(Root.open(cold_root.path), "t") == VALUES


def test_a_retirement_that_was_interrupted_goes_on(cold_root: Root, memory_path: Path) -> None:
    storage_paths.add(cold_root, memory_path / "own", role="cold")
    storage_paths.drain(cold_root, COLD)
    assert cold_root.current_storage_paths()[COLD].hide_identity()
    assert storage_paths.retire(cold_root, COLD).state == "retired"


def test_a_path_whose_claim_cannot_be_read_is_neither_changed_nor_judged(
    cold_root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    offload(cold_root, ALL)
    offload(cold_root, now=later)
    before = cold_copies(cold_root)
    kept = {file: file.read_bytes() for file in before}
    for file in before:
        file.unlink()
    for module in (holds, claims):
        monkeypatch.setattr(module, "read_claim", unreadable)
    done = repair(cold_root)
    assert (done.missing, done.work.lost, done.away) == (0, (), ("no answer",))
    assert read_reports(cold_root.path) == []
    assert path_record(cold_root).state == "writable"
    for file, content in kept.items():
        file.write_bytes(content)
    cold_root.delete_topic("t", force=True)
    for _ in range(2):
        assert "no answer" in " ".join(maintain(cold_root, AT_ONCE).collect.skipped_paths)
    assert cold_copies(cold_root) == before


def in_an_earlier_state(root: Root, *, is_released: bool, passes: int = 3) -> None:
    """Put the cold path into its state before some passes; its present state is kept as `present`."""
    cold = root.path.with_name("cold")
    offload(root, OffloadRequest(TopicName.parse("t"), keep_bytes=600))
    shutil.copytree(cold, cold.with_name("earlier"))
    for _ in range(passes - 1):
        offload(root, ALL)
        messages.write(root, "t", [b"more"])
    offload(root, ALL)
    if is_released:
        offload(root, now=later)
    cold.rename(cold.with_name("present"))
    cold.with_name("earlier").rename(cold)


def in_its_present_state(root: Root) -> None:
    cold = root.path.with_name("cold")
    cold.rename(cold.with_name("earlier"))
    cold.with_name("present").rename(cold)


@pytest.mark.parametrize("passes", [1, 3])
def test_an_earlier_state_of_the_path_is_noticed(cold_root: Root, passes: int) -> None:
    in_an_earlier_state(cold_root, is_released=False, passes=passes)
    assert offload(cold_root, now=later).released.moved == 0
    report = repair(cold_root)
    assert (REFUSAL in " ".join(report.away), report.work.lost) == (True, ())
    assert [REFUSAL in reason for reason in check(cold_root, COLD).reasons] == [True]
    cold_root.status(verify=True)
    assert read_reports(cold_root.path) == []
    in_its_present_state(cold_root)
    assert heal_paths(cold_root) == (COLD,)
    assert offload(cold_root, now=later).released.moved == len(files(cold_root))


def read_as_a_consumer(root: Root) -> list[bytes | None]:
    (part,) = messages.target(root, "t").parts
    ends = {each.ledger_id: each.first_entry + each.entries for each in root.store.view().all(SegmentRecord)}
    ranges = [EntryRange(LedgerId(ledger), 0, end) for ledger, end in ends.items()]
    with closing(CatchUp(root, 1 << 20)) as reader, closing(reader.read(EntrySource(part), ranges)) as entries:
        return [read_entry(entry.data)[0].value for entry in entries]


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("damage", [None, b"damaged"])
def test_readers_count_nothing_as_lost_that_an_earlier_state_of_the_path_lacks(
    cold_root: Root, monkeypatch: pytest.MonkeyPatch, is_known: bool, damage: bytes | None
) -> None:
    in_an_earlier_state(cold_root, is_released=True)
    if damage is not None:
        for present in (cold_root.path.with_name("present") / "segments").glob("*/*.arrow"):
            there = cold_root.path.with_name("cold") / "segments" / present.parent.name / present.name
            there.parent.mkdir(exist_ok=True)
            there.write_bytes(damage)
    reason = REFUSAL if is_known else "no answer"
    with monkeypatch.context() as patch:
        if not is_known:
            patch.setattr(holds, "read_claim", unreadable)
        with pytest.raises(CopiesUnreachableError, match=reason):
            messages.read(cold_root, "t", fail_on_data_loss=False)
        with pytest.raises(CopiesUnreachableError, match=reason):
            read_as_a_consumer(cold_root)
        with pytest.raises(CopiesUnreachableError, match=reason):
            compact(cold_root, "t")
    assert [report.kind for report in read_reports(cold_root.path)].count(ReportKind.LOSS) == 0
    in_its_present_state(cold_root)
    assert messages.values(cold_root, "t") == read_as_a_consumer(cold_root) == [*VALUES, b"more", b"more"]
    assert len(compact(cold_root, "t")) == 1


def test_readers_count_files_as_lost_that_the_path_of_this_root_lacks(cold_root: Root) -> None:
    offload(cold_root, ALL)
    offload(cold_root, now=later)
    lost = cold_root.path.with_name("cold") / "segments"
    shutil.rmtree(lost)
    lost.mkdir()
    assert messages.read(cold_root, "t", fail_on_data_loss=False) == []
    with pytest.raises(SegmentGoneError):
        read_as_a_consumer(cold_root)


@pytest.mark.parametrize("is_known", [False, True])
def test_readers_and_backups_count_files_as_lost_whose_path_was_given_up(
    cold_root: Root, memory_path: Path, is_known: bool
) -> None:
    offload(cold_root, ALL)
    offload(cold_root, now=later)
    copy = copied(cold_root, "copy")
    (memory_path / "cold" / "segments").rename(memory_path / "away")
    if not is_known:
        (memory_path / "cold").rename(memory_path / "gone")
    storage_paths.give_up(copy, COLD, force=True)
    assert messages.read(copy, "t", fail_on_data_loss=False) == []
    with pytest.raises(SegmentGoneError):
        read_as_a_consumer(copy)
    back_up(copy, memory_path / "backup")
    done = restore_root(copy, memory_path / "restored", datetime.now(UTC))
    assert len(done.missing) == len(VALUES)
    storage_paths.add(copy, memory_path / "own", role="cold")
    assert len(repair(copy).work.lost) == len(VALUES)


@pytest.mark.parametrize("is_known", [False, True])
def test_backups_and_restores_do_not_leave_out_what_an_earlier_state_of_the_path_lacks(
    cold_root: Root, memory_path: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    in_an_earlier_state(cold_root, is_released=True)
    if not is_known:
        monkeypatch.setattr(holds, "read_claim", unreadable)
    with pytest.raises(CopiesUnreachableError, match=REFUSAL if is_known else "no answer"):
        back_up(cold_root, memory_path / "backup")
    assert not (memory_path / "backup").exists()
    for dry_run in (True, False):
        with pytest.raises(CopiesUnreachableError, match=REFUSAL if is_known else "no answer"):
            restore_root(cold_root, memory_path / "restored", datetime.now(UTC), dry_run=dry_run)


def test_the_repaired_backup_of_a_root_holds_its_cold_path(cold_root: Root, memory_path: Path) -> None:
    offload(cold_root, ALL)
    for file in cold_copies(cold_root):
        file.unlink()
    assert back_up(cold_root, memory_path / "backup").check.is_good
    assert claim(Root.open(memory_path / "backup"), [COLD]) == {}


def test_the_backup_of_a_root_has_a_cold_path_of_its_own(cold_root: Root, memory_path: Path) -> None:
    offload(cold_root, ALL)
    back_up(cold_root, memory_path / "backup")
    backup = Root.open(memory_path / "backup")
    assert offload(backup, now=later).released.moved == len(VALUES)
    assert repair(backup).is_whole
    assert offload(cold_root, now=later).released.moved == len(VALUES)


@pytest.mark.parametrize("is_release", [False, True])
def test_a_copy_that_claims_the_path_during_a_pass_is_noticed_at_the_commit(cold_root: Root, is_release: bool) -> None:
    offload(cold_root, ALL if is_release else OffloadRequest(TopicName.parse("t"), keep_bytes=600))
    copy, before = copied(cold_root, "copy"), files(cold_root)
    cold = copy.current_storage_paths()[COLD]

    def claim_it(step: str, number: int, _: int) -> None:
        if step == "repair" and number == 1:
            take_over(copy, cold)

    done = offload(cold_root, ALL, progress=claim_it, now=later if is_release else lambda: datetime.now(UTC))
    assert (done.moved.moved, done.released.moved, done.released.dropped) == (0, 0, 0)
    assert REFUSAL in " ".join(done.problems)
    assert files(cold_root) == before
    assert messages.values(cold_root, "t") == messages.values(copy, "t") == VALUES


def test_a_release_keeps_its_copies_if_the_path_is_taken_over_before_the_commit(
    cold_root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other root may delete all files that it does not name, so the copies on other paths stay named."""
    copy = copied(cold_root, "copy")
    offload(copy, ALL)
    name, taken = worker._name, []

    def take_over_first(root: Root, *rest: Any) -> Any:
        if not taken:
            taken.append(storage_paths.resume(cold_root, COLD))
        return name(root, *rest)

    monkeypatch.setattr(worker, "_name", take_over_first)
    assert offload(copy, now=later).released.dropped == 0
    for _ in range(2):
        maintain(cold_root, AT_ONCE)
    assert cold_copies(cold_root) == set()
    assert [message.value for message in messages.read(copy, "t")] == VALUES


def test_a_repair_reports_no_loss_on_a_path_that_is_taken_over_before_the_commit(
    cold_root: Root, memory_path: Path
) -> None:
    offload(cold_root, ALL)
    offload(cold_root, now=later)
    storage_paths.add(cold_root, memory_path / "other", "archive", role="cold")
    copy = copied(cold_root, "copy")
    for file in cold_copies(cold_root):
        file.rename(file.with_suffix(".away"))
    plans = audit(cold_root, RepairLimits()).plans(3)
    batch = [worker.restore(plan, cold_root.current_storage_paths(), WriteId("w")) for plan in plans]
    assert all(done.loss for done in batch)
    storage_paths.resume(copy, COLD)
    worker.commit(cold_root, batch)
    assert read_reports(cold_root.path) == []
    storage_paths.resume(cold_root, COLD)
    worker.commit(cold_root, batch)
    assert {report.kind for report in read_reports(cold_root.path)} == {ReportKind.LOSS}


def test_a_collection_stops_when_the_path_is_taken_over(cold_root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    offload(cold_root, ALL)
    offload(cold_root, now=later)
    copy = copied(cold_root, "copy")
    copy.delete_topic("t", force=True)
    monkeypatch.setattr(collecting, "CLAIMED_DELETIONS", 1)

    def progress(step: str, done: int, total: int) -> None:
        if (step, done) == ("collect", 1):
            storage_paths.resume(cold_root, COLD)

    storage_paths.resume(copy, COLD)
    maintain(copy, Ages(abort_after_s=-1, keep_replaced_s=600, keep_verdicts_s=-1))
    report = collecting.collect(copy, AT_ONCE, progress)
    assert len(cold_copies(cold_root)) == len(VALUES) - 1
    assert any(REFUSAL in reason for reason in report.skipped_paths)


@pytest.mark.parametrize("run", range(3))
def test_no_reader_skips_a_message_in_any_earlier_state_of_the_path(cold_root: Root, run: int) -> None:
    seed = random.randrange(1 << 32)
    chance, done, hours, expected = random.Random(seed), [], 0, list(VALUES)
    cold = cold_root.path.with_name("cold")
    states: list[Path] = []
    for number in range(20):
        step = chance.choice(["write", "offload", "offload", "wait", "repair", "merge", "maintain"])
        done.append(step)
        states.append(shutil.copytree(cold, cold.with_name(f"state-{number}")))
        if step == "write":
            messages.write(cold_root, "t", [b"%d" % number])
            expected.append(b"%d" % number)
        elif step == "offload":
            offload(cold_root, chance.choice((ALL, None)), now=lambda hours=hours: datetime.now(UTC) + hours * HOUR)
        elif step == "wait":
            hours += 5
        elif step == "repair":
            assert repair(cold_root).is_whole
        elif step == "merge":
            merge(cold_root)
        else:
            maintain(cold_root, AT_ONCE)
        assert messages.values(cold_root, "t") == expected
        for state in chance.sample(states, min(3, len(states))):
            cold.rename(cold.with_name("present"))
            state.rename(cold)
            try:
                found = [message.value for message in messages.read(cold_root, "t", fail_on_data_loss=False)]
                assert found == expected, f"seed {seed}: {done}, {state.name}"
            except CopiesUnreachableError:
                pass
            cold.rename(state)
            cold.with_name("present").rename(cold)
    assert read_reports(cold_root.path) == []


@pytest.mark.parametrize("run", range(4))
def test_work_on_two_copies_loses_no_message_of_either(cold_root: Root, run: int) -> None:
    seed = random.randrange(1 << 32)
    chance, done, hours = random.Random(seed), [], 0
    offload(cold_root, chance.choice((ALL, None)))
    roots = [cold_root, copied(cold_root, "copy")]
    storage_paths.resume(chance.choice(roots), COLD)
    expected = [list(VALUES), list(VALUES)]
    for _ in range(30):
        which = chance.randrange(2)
        step = chance.choice(["write", "offload", "offload", "wait", "repair", "merge", "maintain"])
        done.append((which, step))
        root, now = roots[which], lambda hours=hours: datetime.now(UTC) + timedelta(hours=hours)
        if step == "write":
            value = b"%d" % chance.randrange(1 << 40)
            messages.write(root, "t", [value])
            expected[which].append(value)
        elif step == "offload":
            offload(root, chance.choice((ALL, None)), now=now)
        elif step == "wait":
            hours += 5
        elif step == "repair":
            assert repair(root).work.lost == ()
        elif step == "merge":
            merge(root)
        else:
            maintain(root, AT_ONCE)
        assert [messages.values(each, "t") for each in roots] == expected, f"seed {seed}: {done}"
        for each in roots:
            assert_consistent(each)


def test_passes_over_one_root_at_once_are_never_refused(cold_root: Root) -> None:
    refused: list[object] = []

    def go() -> None:
        root = Root.open(cold_root.path)
        for _ in range(8):
            refused.extend(claim(root, [COLD]).items())
            refused.extend(unheld_paths(root, root.store.view(), [COLD]))

    threads = [threading.Thread(target=go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused == []
    assert len(path_record(cold_root).claims) <= claims.MAX_TOKENS


def test_a_foreign_path_is_tried_with_pauses_and_told_of_once(
    cold_root: Root, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    offload(cold_root, ALL)
    copy = copied(cold_root, "copy")
    assert claim(cold_root, [COLD]) == {}
    repair(copy)
    tried: list[float] = []
    now_s, told = [0.0], dict[int, str]()
    monkeypatch.setattr(LocalPath, "try_write", lambda _: tried.append(now_s[0]))
    trials = Trials(clock=lambda: now_s[0])
    caplog.clear()
    for _ in range(200):
        assert heal_paths(copy, told, trials) == ()
        now_s[0] += 1.0
    assert 4 < len(tried) < 9
    assert [REFUSAL in record.message for record in caplog.records] == [True]
    take_over(copy, copy.current_storage_paths()[COLD])
    now_s[0] += 60.0
    assert heal_paths(copy, told, trials) == (COLD,)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format_version": 2, "token": "x"}'])
def test_a_claim_that_cannot_be_read_refuses_all(cold_root: Root, memory_path: Path, content: bytes) -> None:
    (memory_path / "cold" / CLAIM_NAME).write_bytes(content)
    (reason,) = claim(cold_root, [COLD]).values()
    assert CLAIM_NAME in reason
    assert offload(cold_root, ALL).moved.moved == 0


def test_only_cold_paths_are_claimed(cold_root: Root) -> None:
    assert claim(cold_root, [PathId(0), PathId(9)]) == {}
    assert not (cold_root.path / "storage" / "0" / CLAIM_NAME).exists()


@given(st.lists(st.tuples(st.sampled_from(["write", "fail", "fail", "fail", "late"]), st.integers(0, 20)), max_size=40))
def test_tokens_stay_few_and_keep_what_the_path_may_have(steps: Sequence[tuple[str, int]]) -> None:
    """A pass announces its token and replaces the claim, or fails to; a write that failed may still be carried out."""
    known, present, version = (UNCLAIMED,), UNCLAIMED, 0
    failed: list[tuple[int, str]] = []
    for number, (step, which) in enumerate(steps):
        if step == "late" and failed:
            seen, token = failed.pop(which % len(failed))
            present, version = (token, version + 1) if seen == version else (present, version)
        else:
            known = claims.tokens_with(known, present, str(number))
            failed.append((version, known[-1]))
            if step == "write":
                present, version = known[-1], version + 1
        assert present in known
        assert len(known) <= claims.MAX_TOKENS


def test_a_claim_that_is_written_late_by_the_first_of_many_failed_passes_is_still_ours(
    cold_root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, sent = claims.write_claim, []

    def fail(*request: Any) -> bool:
        sent.append(request)
        raise StoragePathError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(claims, "write_claim", fail)
        for _ in range(3 * claims.MAX_TOKENS):
            assert claim(cold_root, [COLD]) == {COLD: "no answer"}
    assert len(path_record(cold_root).claims) == claims.MAX_TOKENS
    assert write(*sent[0])
    assert offload(cold_root, ALL).moved.moved == len(VALUES)


_STEPS = st.tuples(st.integers(0, 3), st.sampled_from(["claim", "claim", "cut before", "cut after", "copy", "force"]))


@settings(max_examples=25)
@given(st.lists(_STEPS, min_size=3, max_size=12))
def test_of_two_copies_only_the_one_that_claimed_last_goes_on(steps: Sequence[tuple[int, str]]) -> None:
    """Roots are copied, killed before and after they replace the claim, and take over, in any order.

    A root may claim the path if it wrote the present claim itself.
    """
    with TemporaryDirectory(dir="/dev/shm") as folder:
        first = Root.create(Path(folder) / "root")
        storage_paths.add(first, Path(folder) / "cold", role="cold")
        roots = [first]
        # The tokens that each root has written or tried to.
        tokens = [{read_claim(first.current_storage_paths()[COLD]).token}]
        for number, (which, step) in enumerate(steps):
            which %= len(roots)
            root, known = roots[which], tokens[which]
            present = read_claim(root.current_storage_paths()[COLD]).token
            if step == "copy":
                roots.append(copied(root, f"copy-{number}"))
                tokens.append(set())
                continue
            if step == "force":
                take_over(root, root.current_storage_paths()[COLD])
            else:
                refused = _claim(root, step, known.add)
                assert bool(refused) == (present not in known or step.startswith("cut"))
            written = read_claim(root.current_storage_paths()[COLD]).token
            if written != present:
                known.add(written)


def _claim(root: Root, step: str, announce: Callable[[str], None]) -> dict[PathId, str]:
    write = claims.write_claim

    def cut(path: StoragePath, token: str, name: str, found: Claim) -> bool:
        announce(token)
        if step != "cut before":
            done = write(path, token, name, found)
            if step == "claim":
                return done
        raise StoragePathError("cut")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "write_claim", cut)
        return claim(root, [COLD])
