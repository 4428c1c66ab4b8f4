"""Speculative attempts of a task on a small standalone cluster: each message is there once. Under `make soak`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_on_spark import Root
from tests.kit.messages import values
from tests.kit.spark_cluster import Worker, spark_cluster

pytestmark = pytest.mark.soak

PROGRAM = """
import sys, time
from pathlib import Path
from pyspark import TaskContext
from pulsar_on_spark import spark_session
master, root = sys.argv[1:]
confs = {"multiplier": "1.1", "quantile": "0.5", "interval": "100ms", "minTaskRuntime": "100ms"}
spark = spark_session("speculation", delta=False, **{
    "spark.master": master, "spark.ui.enabled": "false", "spark.speculation": "true", "spark.cores.max": "2",
    "spark.executor.memory": "512m", **{f"spark.speculation.{name}": value for name, value in confs.items()}})
spark.sparkContext.setLogLevel("OFF")
def slow_at_first(batches):
    yield from batches
    context = TaskContext.get()
    if context.partitionId() == 3:
        Path(f"{root}.attempt-{context.attemptNumber()}").touch()
        if context.attemptNumber() == 0:
            time.sleep(20)
frame = spark.range(0, 1000, 1, 4).selectExpr("CAST(id AS STRING) value").mapInArrow(slow_at_first, "value STRING")
frame.write.format("pulsarpy").mode("append").option("topic", "x").save(root)
time.sleep(25)  # the attempt that lost ends, too
spark.stop()
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A master and two workers, under two host names: Spark starts a speculative attempt on another host only."""
    workers = [Worker(f"127.0.0.{number}", tmp_path / f"worker-{number}") for number in (1, 2)]
    with spark_cluster(tmp_path, workers) as url:
        yield url


def test_one_of_several_speculative_attempts_is_committed(master: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    arguments = [sys.executable, "-c", PROGRAM, master, str(root)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-3_000:]
    assert sorted(path.name for path in tmp_path.glob("root.attempt-*")) == ["root.attempt-0", "root.attempt-1"]
    found = sorted(int(value or b"-1") for value in values(Root.open(root), "x"))
    assert found == list(range(1_000))
