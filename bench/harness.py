"""The definition and measurement of benchmarks: medians of alternating rounds of all sides.

Alternating (a, b, a, b, ...) distributes the machine's other work evenly over all sides. A side that cannot run here
raises `NotRunError`, and its row has the reason. Every other error ends the run, because a number would be missing.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pyspark.sql import SparkSession

from bench.kafka import Kafka

WARM_UPS = 2
PACKAGES = ("pulsar-on-spark", "pyspark", "deltalake", "delta-spark", "pyarrow")


class NotRunError(Exception):
    """Error of a side that cannot be measured here; the text names the missing part."""


@dataclass(frozen=True, slots=True)
class Side:
    """A way to do a benchmark's work, which is measured beside the other ways.

    Attributes:
        name: `pulsarpy` or a peer, with its variant.
        run: Does the work once and returns the number in the benchmark's unit.
        policy: The copies and fsyncs of the work; "" if the work does not write.
    """

    name: str
    run: Callable[[], float]
    policy: str = ""


@dataclass(frozen=True, slots=True)
class Goal:
    """A ratio of medians, with the bound that it must keep.

    Attributes:
        text: The ratio in words.
        ratio: Computes the ratio from the medians by side; raises KeyError if a side was not run.
        at_least: Lower bound; None for none.
        at_most: Upper bound; None for none. A ratio without bounds is only reported.
    """

    text: str
    ratio: Callable[[Mapping[str, float]], float]
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A piece of work, its sides and its goals.

    Attributes:
        name: The name in tables.
        unit: The unit of the sides' numbers.
        work: A description of the work.
        sides: The sides.
        goals: The goals.
    """

    name: str
    unit: str
    work: str
    sides: Sequence[Side]
    goals: Sequence[Goal]


@dataclass(frozen=True, slots=True)
class Setting:
    """The context that every benchmark gets.

    Attributes:
        spark: The session, local[2], the same for all sides.
        work: A folder for data and checkpoints, on the disk that is measured.
        rows: Rows of the large data set; the writes take a quarter of it.
        kafka: The running peer; None if it cannot run.
        kafka_missing: The reason why the peer cannot run; "" if it runs.
        pulsarpy_missing: The reason why `format("pulsarpy")` cannot be used; None if it can.
        filled: The topics that are already filled for reading.
    """

    spark: SparkSession
    work: Path
    rows: int
    kafka: Kafka | None
    kafka_missing: str
    pulsarpy_missing: str | None
    filled: set[str] = field(default_factory=set)

    @property
    def parquet(self) -> Path:
        """The folder of the large data set, with the columns `key` and `value`, as zstd Parquet."""
        return self.work / "parquet"

    @property
    def root(self) -> Path:
        """The folder of the root with pulsarpy's topics."""
        return self.work / "root"

    def need_kafka(self) -> Kafka:
        """Return the running peer.

        Raises:
            NotRunError: the peer is not running.
        """
        if self.kafka is None:
            raise NotRunError(self.kafka_missing)
        return self.kafka

    def need_pulsarpy(self) -> None:
        """Check that the data source can be used.

        Raises:
            NotRunError: the data source cannot be used.
        """
        if self.pulsarpy_missing is not None:
            raise NotRunError(self.pulsarpy_missing)


@dataclass(slots=True)
class Result:
    """The result of a benchmark.

    Attributes:
        benchmark: The benchmark.
        numbers: The numbers of each side that ran, in the order of the rounds, by the side's name.
        not_run: The reasons of the other sides, by name.
        load_average: The machine's load average before each round.
    """

    benchmark: Benchmark
    numbers: dict[str, list[float]] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)
    load_average: list[float] = field(default_factory=list)

    def medians(self) -> dict[str, float]:
        """Return the median of each side that ran, by the side's name."""
        return {side: statistics.median(numbers) for side, numbers in self.numbers.items()}

    def as_json(self) -> dict[str, object]:
        """Return the result in the form of the results file."""
        medians = self.medians()
        return {
            "name": self.benchmark.name,
            "work": self.benchmark.work,
            "unit": self.benchmark.unit,
            "load_average_per_round": self.load_average,
            "sides": [
                {
                    "name": side.name,
                    "policy": side.policy,
                    "numbers": self.numbers[side.name],
                    "median": medians[side.name],
                }
                if side.name in self.numbers
                else {"name": side.name, "policy": side.policy, "not_run": self.not_run[side.name]}
                for side in self.benchmark.sides
            ],
            "goals": [
                {
                    "ratio": goal.text,
                    "value": reached(goal, medians),
                    "at_least": goal.at_least,
                    "at_most": goal.at_most,
                }
                for goal in self.benchmark.goals
            ],
        }


def measure(benchmark: Benchmark, rounds: int, say: Callable[[str], None]) -> Result:
    """Run all sides twice to warm up (the JVM compiles), then `rounds` times in turn, and return the result.

    Args:
        benchmark: The benchmark.
        rounds: Number of measurements of each side.
        say: Called with a line of text after each measurement.
    """
    result = Result(benchmark)
    for number in range(-WARM_UPS, rounds):
        result.load_average.append(round(os.getloadavg()[0], 2))
        for side in benchmark.sides:
            if side.name in result.not_run:
                continue
            try:
                measured = side.run()
            except NotRunError as reason:
                result.not_run[side.name] = str(reason)
                say(f"{benchmark.name}: {side.name}: not run: {reason}")
                continue
            if number >= 0:
                result.numbers.setdefault(side.name, []).append(measured)
            label = f"round {number + 1}" if number >= 0 else "warm-up"
            say(f"{benchmark.name}: {label}: {side.name}: {measured:,.0f} {benchmark.unit}")
    return result


def reached(goal: Goal, medians: Mapping[str, float]) -> float | None:
    """Return the ratio of a goal; None if one of its sides was not run."""
    try:
        return goal.ratio(medians)
    except KeyError:
        return None


def ratio(over: str, under: str) -> Callable[[Mapping[str, float]], float]:
    """Return a function of the medians: the median of side `over`, divided by the median of side `under`."""
    return lambda medians: medians[over] / medians[under]


def seconds(work: Callable[[], object]) -> float:
    """Do the work, and return its duration in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def environment() -> dict[str, object]:
    """Return versions, processor, memory and placement, which a reader needs to judge the numbers."""
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    java = re.search(r'version "([^"]+)', said)
    return {
        "python": platform.python_version(),
        "java": java.group(1) if java else "unknown",
        "packages": {name: _version(name) for name in PACKAGES},
        "kernel": platform.release(),
        "processor": _processor(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "cpu_placement": f"{os.cpu_count()} CPUs, nothing pinned; Spark local[2] and the peer's broker share them",
        "load_average_at_start": round(os.getloadavg()[0], 2),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and (found := re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text())):
        return found.group(1)
    return platform.processor() or platform.machine()
