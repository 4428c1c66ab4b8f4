"""Spark's Python daemon, started as Spark starts it, when Spark closes an idle worker."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

QUIET = "pulsar_on_spark.datasource.worker_daemon"
LOADS = """
import runpy, sys
from pyspark import worker
wait_for_a_task = worker.main
def load(*files):
    import {module}
    worker.main = wait_for_a_task
worker.main = load
sys.argv = ["-m", "pyspark.worker"]
runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
"""


def closing_an_idle_worker(arguments: list[str], folder: Path) -> str:
    """Close an idle worker; return the daemon's standard error."""
    confs = {"PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder)}
    spark = {"SPARK_REUSE_WORKER": "1", "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"}
    with subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, **confs, **spark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stderr is not None
        (length,) = struct.unpack("!i", daemon.stdout.read(4))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as worker:
            worker.connect(daemon.stdout.read(length).decode())
            (pid,) = struct.unpack("!i", worker.recv(4, socket.MSG_WAITALL))
        while Path(f"/proc/{pid}").exists():
            os.sched_yield()
        daemon.stdin.close()
        return daemon.stderr.read().decode()


def test_sparks_own_daemon_prints_a_stack(memory_path: Path) -> None:
    """Spark still prints a stack: once it no longer does, `worker_daemon` can be deleted."""
    said = closing_an_idle_worker(["-m", "pyspark.daemon", "pyspark.worker"], memory_path)
    assert "BrokenPipeError" in said


def test_the_projects_daemon_prints_nothing(memory_path: Path) -> None:
    assert closing_an_idle_worker(["-m", QUIET, "pyspark.worker"], memory_path) == ""


@pytest.mark.parametrize(
    "module",
    [
        "pyspark_pulsarpy",
        *(f"pulsar_on_spark.datasource.{name}" for name in ("batch_reader", "stream_reader", "writer")),
    ],
)
def test_a_worker_that_has_loaded_the_source_a_reader_or_a_writer_prints_nothing(
    memory_path: Path, module: str
) -> None:
    assert closing_an_idle_worker(["-c", LOADS.format(module=module)], memory_path) == ""


@pytest.mark.parametrize("module", ["pyarrow", "pandas", "numpy", "deltalake"])
def test_the_daemon_loads_no_module_that_starts_threads(module: str) -> None:
    code = f"import sys, {QUIET}; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
