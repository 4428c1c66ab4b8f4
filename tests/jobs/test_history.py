"""The build as a Spark job makes the same table as the one in a process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pulsar_on_spark.jobs import history as job
from pulsar_on_spark.metadata.log.tables import HISTORY
from pulsar_on_spark.metadata.records import SegmentRecord
from pulsar_on_spark.model.errors import DataLossError
from pulsar_on_spark.root import Root
from tests.kit import messages


def test_a_lost_message_ends_the_job_behind_the_messages_before_it(
    spark: SparkSession, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "TASK_BYTES", 1)
    root = Root.create(memory_path / "root")
    root.create_topic("t")
    for number in range(9):
        messages.write(root, "t", [b"%d" % number])
    for number in (3, 6):
        for path in root.path.rglob(f"*{root.store.view().all(SegmentRecord)[number].file_id}*"):
            path.unlink()
    with pytest.raises(DataLossError, match="--skip-lost"):
        job.run(spark, root, "t")
    (folder,) = (root.path / HISTORY).iterdir()
    assert sorted(DeltaTable(folder).to_pyarrow_table()["value"].to_pylist()) == [b"0", b"1", b"2"]


def test_tasks_write_the_files(spark: SparkSession, memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "TASK_BYTES", 200)
    root = Root.create(memory_path / "root")
    root.create_topic("t", 2, schema="id BIGINT")
    for number in range(10):
        values = [json.dumps({"id": 10 * number + each}).encode() for each in range(10)]
        messages.write(root, "t", values, [b"%d" % each for each in range(10)])
    assert sum(built.rows for built in job.run(spark, root, "t")) == 100
    (folder,) = (root.path / HISTORY).iterdir()
    table = DeltaTable(folder)
    assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == list(range(100))
    assert len(table.file_uris()) > 4
    assert sum(built.rows for built in job.run(spark, root, "t")) == 0
