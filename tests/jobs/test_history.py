"""The build as a Spark job makes the same table as the one in a process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pulsar_on_spark.history_table.table import HISTORY
from pulsar_on_spark.jobs import history as job
from pulsar_on_spark.root import Root
from tests.kit import messages


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
