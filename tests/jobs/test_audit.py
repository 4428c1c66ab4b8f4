"""The audit as a Spark job finds and restores what the one in a process does."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from pulsar_on_spark.jobs import audit as job
from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.maintenance.repair import scrub, storage_paths
from pulsar_on_spark.topic.maintenance.repair.audit import audit
from pulsar_on_spark.topic.maintenance.repair.checking import check
from pulsar_on_spark.topic.maintenance.repair.limits import RepairLimits
from pulsar_on_spark.topic.maintenance.repair.plan import FilePlan
from pulsar_on_spark.topic.maintenance.repair.worker import new_write_id, restore
from tests.kit import messages


def filled(tmp_path: Path, paths: int) -> Root:
    root = Root.create(tmp_path / "root", [tmp_path / f"disk{number}" for number in range(paths)])
    root.create_topic("t")
    for number in range(6):
        messages.write(root, "t", [str(number).encode() * 100])
    return root


def copy_of(root: Root, file: FileRecord, path_id: int) -> Path:
    return root.current_journal_paths()[PathId(path_id)].segment_file(file.names[path_id])


def test_tasks_read_all_copies_and_restore_bad_ones(spark: SparkSession, tmp_path: Path) -> None:
    """A driver that was killed before its commit has left what its tasks had copied."""
    root = filled(tmp_path, 4)
    before = messages.values(root, "t")
    files = root.store.view().all(FileRecord)
    one = next(file for file in files if 0 in file.copies)
    two = next(file for file in files if file is not one)
    copy_of(root, one, 0).unlink()  # on the path to be drained, where nothing is restored
    rotten = copy_of(root, two, two.copies[1])
    rotten.write_bytes(rotten.read_bytes()[:-1] + b"?")

    storage_paths.drain(root, 0)
    on_drained = sum(0 in file.copies for file in root.store.view().all(FileRecord))
    paths = root.storage_paths(root.store.view())
    plans = audit(root, RepairLimits()).plans(root.quorum.write)
    assert all(restore(plan, paths, new_write_id()).loss is None for plan in plans)
    done = job.run(spark, root, repair=True)

    assert (done.check.good, done.check.missing, done.check.bad) == (16, 1, 1)
    assert (done.lost, done.problems) == ((), ())
    assert on_drained <= done.restored <= on_drained + 2
    assert done.moved == on_drained
    again = check(root)
    assert (again.good, again.is_good) == (18, True)
    view = root.store.view()
    for file in view.all(FileRecord):
        assert 0 not in file.copies
        assert all(scrub.defect(file, root.storage_paths(view)[PathId(each)]) is None for each in file.copies)
    assert root.status().bad_copies == ()
    assert messages.values(root, "t") == before
    storage_paths.retire(root, 0)


def test_waves_are_bounded() -> None:
    files = [
        FileRecord(file_id=str(number), write_id="w", copies=(0, 1), length=1 << 30, batches=0) for number in range(40)
    ]
    plans = [FilePlan(file, 3, (), (), (PathId(2),), (), 0) for file in files]
    assert [len(wave) for wave in job.waves(plans)] == [16, 16, 8]
    assert [plan for wave in job.waves(plans) for plan in wave] == plans
    assert list(job.waves([])) == []
