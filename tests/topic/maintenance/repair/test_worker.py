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
from pulsar_on_spark.model.errors import InvalidArgumentError, StoragePathError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.maintenance.files.collect import Ages, collect
from pulsar_on_spark.topic.maintenance.files.merge import merge
from pulsar_on_spark.topic.maintenance.maintain import maintain
from pulsar_on_spark.topic.maintenance.repair import scrub, storage_paths
from pulsar_on_spark.topic.maintenance.repair.audit import audit
from pulsar_on_spark.topic.maintenance.repair.limits import RepairLimits
from pulsar_on_spark.topic.maintenance.repair.plan import FilePlan
from pulsar_on_spark.topic.maintenance.repair.repairing import repair
from pulsar_on_spark.topic.maintenance.repair.worker import Restored, carry_out_plans, commit, new_write_id, restore
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
    write_id = new_write_id()
    staged = [restore(plan, paths, write_id) for plan in plans(spread)]
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


def test_a_repair_that_was_taken_for_dead_names_nothing(tmp_path: Path) -> None:
    """A collection deleted a slow worker's copy: with write quorum 1 nothing else has what is in the file."""
    root = Root.create(tmp_path / "root", [tmp_path / "disk0", tmp_path / "disk1"], Quorum(1, 1, 1))
    root.create_topic("t")
    messages.write(root, "t", [b"only"])
    (file,) = files(root)
    (old,) = file.copies
    storage_paths.drain(root, old)
    (plan,) = plans(root)
    staged = restore(plan, root.storage_paths(root.store.view()), new_write_id())
    maintain(root, Ages(abort_after_s=-1))
    assert [copy for path in root.current_journal_paths().values() for copy in path.segment_files(0)] != []
    done = commit(root, [staged])
    assert (done.moved, len(done.problems)) == (0, 1)
    assert "aborted it" in done.problems[0]
    assert messages.values(root, "t") == [b"only"]
    assert repair(root).is_whole
    assert old not in files(root)[0].copies
    assert_whole(root, copies=1)
    assert messages.values(root, "t") == [b"only"]


def test_a_collection_beside_a_repair_leaves_its_copies(spread: Root) -> None:
    storage_paths.drain(spread, 0)
    paths, write_id = spread.storage_paths(spread.store.view()), new_write_id()
    staged = [restore(plan, paths, write_id) for plan in plans(spread)]
    collect(spread)
    assert commit(spread, staged).moved == len(staged)
    collect(spread, Ages(abort_after_s=-1, keep_verdicts_s=-1))
    assert_whole(spread)


def test_the_first_new_name_sets_a_feature_of_the_root(spread: Root) -> None:
    """An older program would look for the former names, and report a loss."""
    assert Root.open(spread.place).store.root_record.features == {}
    storage_paths.drain(spread, 0)
    assert repair(spread).work.moved
    assert Root.open(spread.place).store.root_record.features == {"copy-generations": "read"}


def test_a_draining_path_that_is_away_is_not_retired(tmp_path: Path) -> None:
    """A write under way may have the only copy there, and be committed later."""
    root = Root.create(tmp_path / "root", [tmp_path / "disk0", tmp_path / "disk1"], Quorum(1, 1, 1))
    root.create_topic("t")
    write_id = messages.new_write_id()
    staged = messages.stage(root, {"t": messages.make_rows([b"v"])}, write_id)
    (used,) = staged.files[0].written.copies
    storage_paths.drain(root, used)
    disk = tmp_path / f"disk{used}"
    disk.rename(tmp_path / "unplugged")
    with pytest.raises(StoragePathError, match="mount its disk there"):
        storage_paths.retire(root, used)
    (tmp_path / "unplugged").rename(disk)
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="not committed yet"):
            storage_paths.retire(root, used)
    messages.attach(root.store, write_id, [staged], None)
    assert messages.values(Root.open(root.place), "t") == [b"v"]


def test_a_good_copy_stays_beside_a_path_that_was_given_up_meanwhile(tmp_path: Path) -> None:
    root = Root.create(tmp_path / "root", [tmp_path / f"disk{number}" for number in range(3)], Quorum(2, 2, 1))
    root.create_topic("t")
    messages.write(root, "t", [b"v"])
    first, second = files(root)[0].copies
    storage_paths.drain(root, first)
    (plan,) = plans(root)
    staged = restore(plan, root.storage_paths(root.store.view()), new_write_id())
    storage_paths.give_up(root, second)
    commit(root, [staged])
    assert first in files(root)[0].copies


def test_what_a_killed_worker_left_is_collected(spread: Root) -> None:
    storage_paths.drain(spread, 0)
    paths = spread.storage_paths(spread.store.view())
    left = [restore(plan, paths, new_write_id()) for plan in plans(spread)]
    assert repair(spread).is_whole
    unnamed = [(paths[path], name) for each in left for path, name in each.copies.items()]
    assert all(path.has_segment(name) for path, name in unnamed)
    maintain(spread, Ages(abort_after_s=-1))
    assert not any(path.has_segment(name) for path, name in unnamed)
    assert_whole(spread)


def test_a_replaced_copy_on_a_path_that_was_away_is_collected(spread: Root) -> None:
    """Also after the verdict on its write was cleared: its file's record shows that the write is committed."""
    file = files(spread)[0]
    path = spread.current_journal_paths()[PathId(file.copies[0])]
    storage_paths.give_up(spread, path.path_id)
    path.directory.rename(path.directory.with_name("away"))
    assert repair(spread).work.moved
    maintain(spread, Ages(keep_verdicts_s=-1))
    path.directory.with_name("away").rename(path.directory)
    assert path.has_segment(file.names[path.path_id])
    maintain(spread)
    assert not path.has_segment(file.names[path.path_id])
    assert_whole(spread)


def test_unnamed_copies_are_deleted_after_the_commit(spread: Root) -> None:
    """A worker whose target another one did not need takes its copy away."""
    storage_paths.drain(spread, 0)
    plan = next(plan for plan in plans(spread) if plan.targets)
    paths = spread.storage_paths(spread.store.view())
    (target,) = plan.targets
    other = next(path for path in paths if path not in (*plan.file.copies, *plan.targets))
    assert commit(spread, [restore(plan, paths, new_write_id())]).moved == 1
    surplus = restore(replace(plan, targets=(other,)), paths, new_write_id())
    assert commit(spread, [surplus]).moved == 0
    (now,) = [file for file in files(spread) if file.file_id == plan.file.file_id]
    assert target in now.copies
    assert not paths[other].has_segment(surplus.copies[other])


def test_a_failing_target_is_marked_and_another_one_used(spread: Root) -> None:
    storage_paths.drain(spread, 0)
    todo = plans(spread)
    bad = todo[0].targets[0]
    directory = spread.current_journal_paths()[bad].directory
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
    staged.append(restore(plan, paths, new_write_id()))
    (target,) = staged[0].copies
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
    paths = root.current_journal_paths()
    good = [each for each in file.copies if scrub.defect(file, paths[PathId(each)]) is None]
    if len(good) < 2:
        return
    chosen = PathId(rng.choice(good))
    copy = paths[chosen].segment_file(file.names[chosen])
    if rng.random() < 0.5:
        copy.unlink()
    else:
        os.truncate(copy, rng.randrange(file.length))
