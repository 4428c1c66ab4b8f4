"""Resident memory of the Python workers while they write and read segments of 256 MiB."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import psutil

from bench.harness import Benchmark, Goal, NotRunError, Setting, Side
from bench.topics import COPIES, create_topic, delete_topic, pulsarpy_read_topic, rows, to_noop, write_pulsarpy

INTERVAL_S = 0.02
MIB = 1 << 20
IDLE = "import pyspark.worker, pulsar_on_spark.datasource, psutil; print(psutil.Process().memory_info().rss)"
NUMBERS = itertools.count(1)


def benchmark(setting: Setting) -> Benchmark:
    """Return the benchmark: MiB of the largest worker above the size of a new interpreter with the same imports."""
    # An idle worker's size, not a worker's own before the work: a reused one may already have grown.
    idle_bytes = int(subprocess.run([sys.executable, "-c", IDLE], capture_output=True, check=True).stdout)

    def read() -> None:
        reader = setting.spark.read.format("pulsarpy").option("topic", pulsarpy_read_topic(setting))
        to_noop(reader.load(str(setting.root)))

    def write() -> None:
        topic = f"memory-{next(NUMBERS)}"
        create_topic(setting, topic, 8)
        # One task, so that its files reach their full size.
        write_pulsarpy(setting, rows(setting, 0.5).select("value").coalesce(1), topic)
        delete_topic(setting, topic)

    def growth(work: Callable[[], None]) -> float:
        pulsarpy_read_topic(setting)
        with WorkerMemory() as during:
            work()
        return (during.largest_bytes() - idle_bytes) / MIB

    return Benchmark(
        name="memory of a task",
        unit="MiB",
        work="resident size above an idle worker's, the largest of all workers; segments of up to 256 MiB",
        sides=[
            Side("pulsarpy read", lambda: growth(read)),
            Side("pulsarpy write", lambda: growth(write), COPIES),
        ],
        goals=[
            Goal("read, MiB", lambda medians: medians["pulsarpy read"], at_most=300),
            Goal("write, MiB", lambda medians: medians["pulsarpy write"], at_most=300),
        ],
    )


class WorkerMemory:
    """Context manager that samples the resident size of Spark's Python workers.

    Attributes:
        peaks_bytes: The largest sampled size of each worker, by process id.
    """

    def __init__(self) -> None:
        self.peaks_bytes: dict[int, int] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        """Start sampling."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop sampling."""
        self._done.set()
        self._thread.join()

    def largest_bytes(self) -> int:
        """Return the size of the largest worker in bytes.

        Raises:
            NotRunError: no worker was sampled.
        """
        if not self.peaks_bytes:
            raise NotRunError("no Python worker was seen")
        return max(self.peaks_bytes.values())

    def _sample(self) -> None:
        me = psutil.Process()
        while not self._done.wait(INTERVAL_S):
            for process in me.children(recursive=True):
                try:
                    if process.name().startswith("python"):
                        size = process.memory_info().rss
                        self.peaks_bytes[process.pid] = max(size, self.peaks_bytes.get(process.pid, 0))
                except psutil.NoSuchProcess:
                    continue
