"""Spark's Python worker processes: detection and preparation."""

from __future__ import annotations

import gc
import os
import signal
import sys
from functools import cache
from pathlib import Path

from pyspark.core.files import SparkFiles

_RUNTIME = "SPARK_PYTHON_RUNTIME"
"""The variable that Spark sets to PYTHON_WORKER in every Python process that it starts, including daemons."""


def is_spark_worker() -> bool:
    """Return True if Spark started this process."""
    return os.environ.get(_RUNTIME) == "PYTHON_WORKER"


def session_folder() -> Path | None:
    """Return the folder of the session's files, which Spark deletes with the session; None outside a worker."""
    return Path(SparkFiles.getRootDirectory()) if is_spark_worker() and SparkFiles._is_running_on_worker else None


@cache
def end_by_exception() -> None:
    """Let SIGTERM raise SystemExit in a worker of Spark, so that locks are released and a stream's `stop` is called.

    Spark ends a stream's process by SIGTERM. The process is not detected by its name, which differs in other
    distributions of Spark.
    """
    if is_spark_worker():
        signal.signal(signal.SIGTERM, _end_once)


def finish_undisturbed() -> None:
    """Ignore SIGTERM from now on in a worker of Spark, so that it does not interrupt a `stop` in progress.

    Spark also closes the worker's socket, and the worker may see this before the signal.
    """
    if is_spark_worker():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _end_once(*_: object) -> None:
    """Exit by an exception, and ignore further signals, which must not interrupt `stop`.

    Nothing is raised while another exception is being handled: the runner may have seen the closed socket and be about
    to call `stop`, which a second exception would prevent. If it handles something else, it ends at its closed socket.
    """
    finish_undisturbed()
    if sys.exception() is None:
        sys.exit(0)


@cache
def keep_modules() -> None:
    """Exclude all current objects, mainly modules, from garbage collection.

    pyspark 4.2.0 collects garbage after every task of a reused worker. With the modules that a task needs (pyarrow
    loads pandas at its first constant) a collection takes about 45 ms, as long as reading 50,000 messages; it skips
    frozen objects.
    """
    gc.collect()
    gc.freeze()
