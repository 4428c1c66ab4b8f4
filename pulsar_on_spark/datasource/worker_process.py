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
"""Spark sets this to PYTHON_WORKER in every Python process that it starts, daemons and planners included."""


def is_spark_worker() -> bool:
    """Return True if Spark started this process."""
    return os.environ.get(_RUNTIME) == "PYTHON_WORKER"


def session_folder() -> Path | None:
    """Return the folder of the session's files in a worker, which Spark removes with the session; None elsewhere."""
    return Path(SparkFiles.getRootDirectory()) if is_spark_worker() and SparkFiles._is_running_on_worker else None


@cache
def end_by_exception() -> None:
    """Let SIGTERM raise SystemExit in a worker of Spark: locks unwind, and the stream's runner calls `stop`.

    Spark ends a stream's process in this way. Its name is not used to detect it: other distributions of Spark differ.
    """
    if is_spark_worker():
        signal.signal(signal.SIGTERM, _end_once)


def finish_undisturbed() -> None:
    """Ignore SIGTERM from now on in a worker of Spark: it must not interrupt a `stop` that another event has begun.

    Spark closes the worker's socket, too, and the worker may see that before the signal.
    """
    if is_spark_worker():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _end_once(*_: object) -> None:
    """Exit by an exception; a second signal must not interrupt `stop`.

    While an exception is handled, none is raised: the runner may have seen the closed socket, and be on its way to
    `stop`, which a second exception would leave out. A worker that still does something else ends at its socket.
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
