"""Audit and repair of a large root as a Spark job: tasks read and copy files, and the driver plans and commits.

The decisions about each copy are made by `topic.maintenance.repair`, as in a repair within one process. Every executor
must be able to reach the root and its storage paths.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

import typer
from pyspark.sql import SparkSession
from rich.console import Console

from pulsar_on_spark import spark_session
from pulsar_on_spark.jobs.tasks import Rows, result, run_tasks
from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.ids import FileId, PathId, WriteId
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.root_place import RootPlace
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.repair.audit import audit
from pulsar_on_spark.topic.maintenance.repair.checking import CheckReport, report_of, to_read
from pulsar_on_spark.topic.maintenance.repair.limits import RepairLimits
from pulsar_on_spark.topic.maintenance.repair.plan import FilePlan
from pulsar_on_spark.topic.maintenance.repair.scrub import check_copy
from pulsar_on_spark.topic.maintenance.repair.worker import Restored, commit, new_write_id, restore

TASK_BYTES = 1 << 30
"""Approximate bytes that a task reads or copies."""
WAVE_BYTES = 16 << 30
"""Bytes copied before each commit.

Copies must be committed within ten minutes, because later, garbage collection may delete a file that no record names.
"""
WAVE_FILES = 2_000


@dataclass(frozen=True, slots=True)
class AuditJobReport:
    """Findings of the audit, and the copies that the job restored.

    Attributes:
        check: The number of good copies, and the problems of other copies; see `CheckReport`.
        restored: Number of copies that were written; 0 without `repair`.
        moved: Number of files whose record names other storage paths than before.
        lost: One sentence for each file that cannot be restored, because no copy has an intact version of some part.
        problems: One sentence for each other failure.
    """

    check: CheckReport
    restored: int = 0
    moved: int = 0
    lost: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def run(spark: SparkSession, root: Root, *, repair: bool) -> AuditJobReport:
    """Read every copy in full, with `repair` restore missing, bad and misplaced copies, and return a report.

    Raises:
        MetadataError: the metadata cannot be read or written.
    """
    found = audit(root, RepairLimits(), marks=repair)
    paths = root.storage_paths(found.view)
    copies = to_read(found)
    read = _read_all(spark, root.place, paths, copies)
    problems = [(file_id, path_id, reason, examined) for file_id, path_id, reason, examined in read if reason]
    defects = [(file_id, path_id, reason) for file_id, path_id, reason, is_examined in problems if is_examined]
    unexamined = [reason for _, _, reason, is_examined in problems if not is_examined]
    good = len(copies) - len(read)
    check = report_of(found, root.quorum.write, good, [reason for _, _, reason in defects], unexamined)
    if not repair:
        return AuditJobReport(check)
    bad = {(FileId(file_id), PathId(path_id)) for file_id, path_id, _ in defects}
    plans = [plan for plan in found.plans(root.quorum.write, bad) if not plan.is_idle]
    return _restore_all(spark, root, check, plans)


def _read_all(
    spark: SparkSession,
    root: RootPlace,
    paths: Mapping[PathId, StoragePath],
    copies: Sequence[tuple[FileRecord, PathId]],
) -> list[tuple[str, int, str, bool]]:
    """Return (file id, storage path id, problem, is examined) for each copy that was not read and found good.

    The problem of a copy that was moved meanwhile is "". "Is examined" is False if the copy could not be read now.
    """

    def read(batches: Rows) -> Rows:
        for batch in batches:
            for work in batch.column(0).to_pylist():
                file, path_id = cast("tuple[FileRecord, PathId]", pickle.loads(work))
                checked = check_copy(RootHandle.shared(root), file, paths[path_id])
                if not checked.is_good:
                    found = (file.file_id, int(path_id), checked.defect or "", checked.is_examined)
                    yield result(found)

    size_bytes = sum(file.length for file, _ in copies)
    return [cast("tuple[str, int, str, bool]", each) for each in run_tasks(spark, copies, size_bytes, TASK_BYTES, read)]


def _restore_all(spark: SparkSession, root: Root, check: CheckReport, plans: Sequence[FilePlan]) -> AuditJobReport:
    restored = moved = 0
    lost: list[str] = []
    problems: list[str] = []
    for wave in waves(plans):
        paths, write_id = root.storage_paths(root.store.view()), new_write_id()

        def copy(batches: Rows, paths: Mapping[PathId, StoragePath] = paths, write_id: WriteId = write_id) -> Rows:
            for batch in batches:
                for work in batch.column(0).to_pylist():
                    yield result(restore(cast(FilePlan, pickle.loads(work)), paths, write_id))

        size_bytes = sum(plan.file.length * len(plan.targets) for plan in wave)
        done = [cast(Restored, each) for each in run_tasks(spark, wave, size_bytes, TASK_BYTES, copy)]
        committed = commit(root, done)
        restored += sum(len(each.copies) for each in done)
        moved += committed.moved
        lost += [f"File {file_id}: {reason}" for file_id, reason in committed.lost]
        problems += [*committed.problems, *(failure.reason for each in done for failure in each.failures)]
    return AuditJobReport(check, restored, moved, tuple(lost), tuple(dict.fromkeys(problems)))


def waves(plans: Sequence[FilePlan]) -> Iterator[list[FilePlan]]:
    """Yield the plans in their order, in groups of up to about `WAVE_BYTES` and `WAVE_FILES`, one for each commit."""
    wave: list[FilePlan] = []
    size_bytes = 0
    for plan in plans:
        wave.append(plan)
        size_bytes += plan.file.length * len(plan.targets)
        if size_bytes >= WAVE_BYTES or len(wave) >= WAVE_FILES:
            yield wave
            wave, size_bytes = [], 0
    if wave:
        yield wave


def main(
    root: Annotated[Path, typer.Argument(help="The root's folder; every executor must be able to reach it.")],
    repair: Annotated[bool, typer.Option("--repair", help="Restore missing, bad and misplaced copies.")] = False,
) -> None:
    """Read every copy of every file in full, in parallel; with --repair, restore missing, bad and misplaced copies."""
    console = Console()
    with spark_session("pulsarpy audit") as spark:
        done = run(spark, Root.open(root), repair=repair)
    check = done.check
    console.print(
        f"{check.good:,} copies are good, {check.missing:,} were missing, {check.bad:,} bad, {check.lacking:,} without "
        f"a storage path; {done.restored:,} restored, {done.moved:,} files moved."
    )
    for sentence in (*done.lost, *done.problems):
        console.print(sentence, markup=False)
    if not check.is_good and not (done.restored and not done.lost and not done.problems and not check.lacking):
        raise typer.Exit(1)
