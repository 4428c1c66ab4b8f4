"""Detection of Spark's Python worker processes, and their preparation: signals and garbage collection."""

from __future__ import annotations

import gc
import os
import signal
import sys
from functools import cache
from pathlib import Path

from pyspark.core.files import SparkFiles

_RUNTIME = "SPARK_PYTHON_RUNTIME"
"""Environment variable that Spark sets to PYTHON_WORKER in every Python process that it starts, also in daemons."""


def is_spark_worker() -> bool:
    """Return True if Spark started this process as a Python worker or daemon."""
    return os.environ.get(_RUNTIME) == "PYTHON_WORKER"


def session_folder() -> Path | None:
    """Return the folder of the session's files, which Spark deletes with the session; None outside a worker."""
    return Path(SparkFiles.getRootDirectory()) if is_spark_worker() and SparkFiles._is_running_on_worker else None


@cache
def end_by_exception() -> None:
    """Make SIGTERM raise SystemExit in a worker of Spark, so that locks are released and a stream's `stop` is called.

    Spark ends a stream's process by SIGTERM. In a process that is not a worker of Spark, nothing changes.
    """
    if is_spark_worker():
        signal.signal(signal.SIGTERM, _end_once)


def finish_undisturbed() -> None:
    """Ignore SIGTERM from now on in a worker of Spark, so that the signal does not interrupt a stream's `stop`.

    Spark also closes the worker's socket, and the worker may call `stop` for this reason before the signal arrives.
    """
    if is_spark_worker():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _end_once(*_: object) -> None:
    """Raise SystemExit, and ignore further signals, which must not interrupt a stream's `stop`.

    While another exception is being handled, nothing is raised: Spark's runner may have seen its closed socket and be
    about to call `stop`, which a second exception would prevent. Otherwise the runner ends when it reads its closed
    socket.
    """
    finish_undisturbed()
    if sys.exception() is None:
        sys.exit(0)


@cache
def keep_modules() -> None:
    """Exclude all current objects, mainly modules, from garbage collection.

    pyspark 4.2.0 collects garbage after every task of a reused worker. With the modules that a task loads, pandas among
    them, a collection would take about 45 ms, as long as reading 50,000 messages.
    """
    gc.collect()
    gc.freeze()
