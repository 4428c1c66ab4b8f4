"""Spark's Python worker processes: detect one, and prepare it once."""

from __future__ import annotations

import gc
import os
import signal
import sys
from functools import cache
from pathlib import Path

from pyspark.core.files import SparkFiles

_RUNTIME = "SPARK_PYTHON_RUNTIME"
"""Spark sets this to PYTHON_WORKER in every Python process that it starts, daemons and planners included."""


def is_spark_worker() -> bool:
    """Return True if Spark started this process."""
    return os.environ.get(_RUNTIME) == "PYTHON_WORKER"


def session_folder() -> Path | None:
    """Return the folder of the session's files in a worker, which Spark removes with the session; None elsewhere."""
    return Path(SparkFiles.getRootDirectory()) if is_spark_worker() and SparkFiles._is_running_on_worker else None


@cache
def end_by_exception() -> None:
    """Let SIGTERM raise SystemExit in a worker of Spark's: locks unwind, and the stream's runner calls `stop`.

    Spark ends a stream's process so. It is not known by its name: other distributions of Spark have their own.
    """
    if is_spark_worker():
        signal.signal(signal.SIGTERM, _end_once)


def _end_once(*_: object) -> None:
    """Leave by an exception; a second signal must not interrupt `stop`."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


@cache
def keep_modules() -> None:
    """Take what the process has loaded so far, modules above all, out of the garbage collector's sight.

    pyspark 4.2.0 collects garbage after every task of a reused worker. With the modules that a task needs (pyarrow
    loads pandas at its first constant) such a walk takes about 45 ms, as long as reading 50,000 messages; frozen
    objects are left out of it.
    """
    gc.collect()
    gc.freeze()
