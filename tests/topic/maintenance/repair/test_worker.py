"""Several workers at once, workers beside merges and collections, and workers that are killed anywhere."""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.ids import FileId, PathId
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.maintenance.files.collect import Ages
from pulsar_on_spark.topic.maintenance.files.merge import merge
from pulsar_on_spark.topic.maintenance.maintain import maintain
from pulsar_on_spark.topic.maintenance.repair import scrub, storage_paths
from pulsar_on_spark.topic.maintenance.repair.audit import audit
from pulsar_on_spark.topic.maintenance.repair.limits import RepairLimits
from pulsar_on_spark.topic.maintenance.repair.plan import FilePlan
from pulsar_on_spark.topic.maintenance.repair.repairing import repair
from pulsar_on_spark.topic.maintenance.repair.worker import Restored, carry_out_plans, commit, discard, restore
from tests.kit import messages
from tests.topic.maintenance.repair.conftest import assert_consistent, assert_whole, files

_REPAIR = """
import sys
from pulsar_on_spark import Root
root = Root.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
while True:
    root.repair()
"""


@pytest.fixture
def spread(tmp_path: Path) -> Root:
    """A root with five paths and a dozen files."""
    root = Root.create(tmp_path / "root", [tmp_path / f"disk{number}" for number in range(5)])
    root.create_topic("t")
    for number in range(12):
        messages.write(root, "t", [str(number).encode() * 200])
    return root


def plans(root: Root) -> list[FilePlan]:
    return [plan for plan in audit(root, RepairLimits()).plans(root.quorum.write) if not plan.is_idle]


def test_two_workers_with_one_plan(spread: Root) -> None:
    before = messages.values(spread, "t")
    storage_paths.drain(spread, 0)
    todo = plans(spread)
    assert todo
    at_once = [threading.Thread(target=carry_out_plans, args=(Root.open(spread.path), todo)) for _ in range(3)]
    for thread in at_once:
        thread.start()
    for thread in at_once:
        thread.join()
    assert repair(spread).is_whole
    assert_whole(spread)
    storage_paths.retire(spread, 0)
    assert messages.values(spread, "t") == before


def test_a_merge_that_was_faster_wins(spread: Root) -> None:
    before = messages.values(spread, "t")
    storage_paths.drain(spread, 0)
    paths = spread.storage_paths(spread.store.view())
    staged = [restore(plan, paths) for plan in plans(spread)]
    merge(spread)
    done = commit(spread, staged)
    assert (done.moved, done.problems) == (0, ())
    maintain(spread, Ages(abort_after_s=-1, keep_replaced_s=-1, keep_verdicts_s=-1))
    repair(spread)
    assert_whole(spread)
    assert messages.values(spread, "t") == before


def test_a_file_that_was_collected_meanwhile_stays_gone(spread: Root) -> None:
    storage_paths.drain(spread, 0)
    todo = plans(spread)
    spread.delete_topic("t")
    maintain(spread, Ages(abort_after_s=-1, keep_replaced_s=-1, keep_verdicts_s=-1))
    done = carry_out_plans(spread, todo)
    assert (done.restored, done.moved, done.lost) == (0, 0, ())
    maintain(spread, Ages(abort_after_s=-1, keep_replaced_s=-1, keep_verdicts_s=-1))
    assert files(spread) == []


def test_a_discarded_copy_that_a_record_names_again_is_restored(spread: Root) -> None:
    file = files(spread)[0]
    path = spread.storage_paths(spread.store.view())[PathId(file.copies[0])]
    assert not discard(spread, FileId(file.file_id), path)
    assert_whole(spread)


def test_a_new_copy_deleted_before_its_commit_is_reported(spread: Root) -> None:
    storage_paths.drain(spread, 0)
    plan = next(plan for plan in plans(spread) if plan.targets)
    paths = spread.storage_paths(spread.store.view())
    staged = restore(plan, paths)
    assert discard(spread, FileId(plan.file.file_id), paths[staged.targets[0]])
    done = commit(spread, [staged])
    assert "is gone again" in done.problems[0]
    assert done.dropped == 0
    assert repair(spread).is_whole
    assert_whole(spread)


def test_the_only_copy_stays_where_its_replacement_is_gone_again(tmp_path: Path) -> None:
    """A slow worker's copy was taken for a leftover: with write quorum 1 nothing else has what is in the file."""
    root = Root.create(tmp_path / "root", [tmp_path / "disk0", tmp_path / "disk1"], Quorum(1, 1, 1))
    root.create_topic("t")
    messages.write(root, "t", [b"only"])
    (file,) = files(root)
    (old,) = file.copies
    storage_paths.drain(root, old)
    (plan,) = plans(root)
    paths = root.storage_paths(root.store.view())
    staged = restore(plan, paths)
    assert discard(root, FileId(file.file_id), paths[staged.targets[0]])
    assert "is gone again" in commit(root, [staged]).problems[0]
    assert messages.values(root, "t") == [b"only"]
    assert repair(root).is_whole
    assert old not in files(root)[0].copies
    assert_whole(root, copies=1)
    assert messages.values(root, "t") == [b"only"]


def test_unnamed_copies_are_deleted_after_the_commit(spread: Root) -> None:
    """A worker whose target another one did not need takes its copy away."""
    storage_paths.drain(spread, 0)
    plan = next(plan for plan in plans(spread) if plan.targets)
    paths = spread.storage_paths(spread.store.view())
    (target,) = plan.targets
    other = next(path for path in paths if path not in (*plan.file.copies, *plan.targets))
    assert commit(spread, [restore(plan, paths)]).moved == 1
    surplus = replace(plan, targets=(other,))
    assert commit(spread, [restore(surplus, paths)]).moved == 0
    (now,) = [file for file in files(spread) if file.file_id == plan.file.file_id]
    assert target in now.copies
    assert not paths[other].segment_file(FileId(now.file_id)).exists()


def test_a_failing_target_is_marked_and_another_one_used(spread: Root) -> None:
    storage_paths.drain(spread, 0)
    todo = plans(spread)
    bad = todo[0].targets[0]
    directory = spread.storage_paths(spread.store.view())[bad].directory
    (directory / "pulsarpy-path.json").rename(directory / "away")
    done = carry_out_plans(spread, todo)
    assert any("pulsarpy-path.json" in problem for problem in done.problems)
    assert [path.state for path in spread.status().paths if path.path_id == bad] == ["read-only"]
    (directory / "away").rename(directory / "pulsarpy-path.json")
    storage_paths.resume(spread, bad)
    repair(spread)
    assert_whole(spread)


def test_a_retired_target_is_not_named(spread: Root) -> None:
    storage_paths.drain(spread, 0)
    staged: list[Restored] = []
    paths = spread.storage_paths(spread.store.view())
    plan = next(plan for plan in plans(spread) if plan.targets)
    staged.append(restore(plan, paths))
    (target,) = staged[0].targets
    storage_paths.give_up(spread, target)
    assert commit(spread, staged).moved == 0
    assert target not in files(spread)[0].copies or plan.file.file_id != files(spread)[0].file_id


@pytest.mark.long
@pytest.mark.parametrize(
    "rounds", [pytest.param(3, id="short"), pytest.param(100, id="hundred", marks=pytest.mark.soak)]
)
def test_killed_anywhere_the_root_is_consistent(
    tmp_path: Path, start_python: Callable[..., subprocess.Popen[str]], rounds: int
) -> None:
    """Copies rot, vanish and move all the time; two workers are killed again and again."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    root = Root.create(tmp_path / "root", [tmp_path / f"disk{number}" for number in range(5)])
    root.create_topic("t")
    for number in range(10):
        messages.write(root, "t", [str(number).encode() * 20_000])
    before = messages.values(root, "t")
    for number in range(rounds):
        draining = number % 5
        storage_paths.drain(root, draining)
        for file in rng.sample(files(root), 5):
            _harm(root, file, rng)
        workers = [start_python(_REPAIR, root.path) for _ in range(2)]
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            print(file=worker.stdin, flush=True)
        time.sleep(rng.uniform(0, 0.3))
        for worker in workers:
            worker.kill()
            worker.communicate()
        assert_consistent(root)
        assert messages.values(root, "t") == before
        if rng.random() < 0.5:
            storage_paths.resume(root, draining)
            continue
        assert repair(root).is_whole
        assert all(draining not in file.copies for file in files(root))
        storage_paths.resume(root, draining)
    for path in root.path.parent.glob("disk*/segments/*/*"):
        os.utime(path, (0, 0))
    for _ in range(2):
        maintain(root, Ages(abort_after_s=-1))
        repair(root)
    assert_whole(root)
    assert list(root.path.parent.glob("disk*/segments/*/*.tmp-*")) == []
    assert messages.values(root, "t") == before


def _harm(root: Root, file: FileRecord, rng: random.Random) -> None:
    """Delete or damage a copy, if another one is good."""
    paths = root.storage_paths(root.store.view())
    good = [each for each in file.copies if scrub.defect(file, paths[PathId(each)]) is None]
    if len(good) < 2:
        return
    copy = paths[PathId(rng.choice(good))].segment_file(FileId(file.file_id))
    if rng.random() < 0.5:
        copy.unlink()
    else:
        os.truncate(copy, rng.randrange(file.length))
