"""Speculative attempts of a task on a small standalone cluster: each message is there once. Under `make soak`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

from pulsar_on_spark import Root
from tests.kit.free_ports import free_port
from tests.kit.messages import values

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
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    home = Path(pyspark.__file__).parent
    environment = os.environ | {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "SPARK_NO_DAEMONIZE": "1"}
    deploy = "org.apache.spark.deploy"
    commands = [[f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]]
    for number in (1, 2):
        host = ["--host", f"127.0.0.{number}", "--webui-port", "0", "--cores", "1", "--memory", "700m"]
        commands.append([f"{deploy}.worker.Worker", *host, "--work-dir", str(tmp_path / f"worker-{number}"), url])
    with ExitStack() as stack:
        for command in commands:
            log = stack.enter_context((tmp_path / f"{command[0]}-{len(command)}.log").open("ab"))
            arguments = [str(home / "bin" / "spark-class"), *command]
            process = stack.enter_context(subprocess.Popen(arguments, env=environment, stdout=log, stderr=log))
            stack.callback(process.terminate)
            time.sleep(5)
        yield url


def test_one_of_several_speculative_attempts_is_committed(master: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    arguments = [sys.executable, "-c", PROGRAM, master, str(root)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-3_000:]
    assert sorted(path.name for path in tmp_path.glob("root.attempt-*")) == ["root.attempt-0", "root.attempt-1"]
    found = sorted(int(value or b"-1") for value in values(Root.open(root), "x"))
    assert found == list(range(1_000))
