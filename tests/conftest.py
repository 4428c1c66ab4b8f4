"""A single Spark session for all tests that ask for it, long files first, no silent skips on the deciding machine."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from pulsar_on_spark.testing.s3_faults import S3Faults
from tests.kit.forked_workers import forked_workers
from tests.kit.s3_server import S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITH_DELTA = pytest.StashKey[bool]()
EARLY = (
    "tests/ledger/journal/test_simulation.py",
    "tests/topic/maintenance/",
    "tests/test_install.py",
    "tests/datasource/",
    "tests/ledger/journal/",
    "tests/broker/",
    "tests/metadata/test_race.py",
    "tests/crash/",
    "tests/topic/managed_ledger/sealing/",
    "tests/topic/data_path/",
)
"""After Spark's, processes begin with these: short files at the end, and none waits long for another."""
# How long an example takes says how busy the machine is: where CI is set, Hypothesis leaves both out by itself.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Their programs are short: what the second compiler and a parallel collector cost at their start never comes back.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# Thousands of tests are objects that stay: looking through them for garbage has cost a third of collecting them.
gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage from now on, but not among what was collected."""
    gc.enable()
    gc.freeze()


@cache
def has_session(file: Path) -> bool:
    """True if its tests ask for the Spark session; one process runs all such files: a warm JVM has cost 40 s of CPU."""
    return "spark: SparkSession" in file.read_text()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """`--dist loadfile`, but those that use the Spark session count as one file."""
    from xdist.scheduler import LoadFileScheduling

    class SparkTogether(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "spark" if has_session(config.rootpath / file) else file

    return SparkTogether(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A process has one JVM, and JARs come at its start: it gets Delta's if any selected test asks for them."""
    fixtures = [getattr(item, "fixturenames", ()) for item in items]
    config.stash[WITH_DELTA] = any("delta_spark" in names for names in fixtures)
    for item, names in zip(items, fixtures, strict=True):
        if "spark" in names:
            item.add_marker(pytest.mark.spark)
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    """Files with the session come first, then those of `EARLY`."""
    if has_session(item.path):
        return -1
    return next((number for number, start in enumerate(EARLY) if item.nodeid.startswith(start)), len(EARLY))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") is not None:
        if os.geteuid() != 0:
            pytest.skip("needs root's privileges")
        if shutil.which("strace") is None or shutil.which("mkfs.ext4") is None:
            pytest.skip("needs strace and mkfs.ext4 (e2fsprogs)")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.get_closest_marker("root") and os.environ.get("CI"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} must not be skipped where CI is set: {reason}"
    return report


@pytest.fixture(scope="session")
def memory_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory whose syncs cost nothing, where no real disk is the point; on a disk where memory has no room."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < 1 << 30:
        yield tmp_path_factory.mktemp("memory")
        return
    with TemporaryDirectory(prefix="pulsarpy-", dir=memory) as made:
        yield Path(made)


@pytest.fixture
def memory_path(memory_folder: Path) -> Iterator[Path]:
    """A directory there for one test."""
    with TemporaryDirectory(dir=memory_folder, ignore_cleanup_errors=True) as made:  # a thread may still write
        yield Path(made)


@pytest.fixture(scope="session")
def spark_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The Python of the session's workers, planners and streams."""
    with forked_workers(tmp_path_factory.mktemp("python")) as python:
        yield python


@pytest.fixture(scope="session")
def spark(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, spark_python: Path
) -> Iterator[SparkSession]:
    """The session: local[2], Unix-domain sockets, no UI; Delta's SQL only where a selected test uses `delta_spark`."""
    from pulsar_on_spark.datasource.session import spark_session

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(spark_python))
        # Programs that tests start with a Spark of their own have fresh Pythons.
        patch.setenv("PYSPARK_PYTHON", "")
        patch.delenv("PYSPARK_PYTHON")
        session = spark_session(
            "tests",
            delta=request.config.stash[WITH_DELTA],
            **{
                "spark.master": "local[2]",
                "spark.driver.memory": "2g",
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
                "spark.sql.shuffle.partitions": "2",
                "spark.databricks.delta.snapshotPartitions": "1",
                # A VACUUM lists a table by as many tasks as this; the default is 10,000.
                "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
                "spark.sql.session.timeZone": "UTC",
                "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            },
        )
    # Stopping a query prints pages of killed tasks.
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def delta_spark(spark: SparkSession) -> SparkSession:
    """The same session, with Delta's SQL."""
    return spark


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for all tests of a process."""
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def faults(s3_server: S3Server) -> Iterator[S3Faults]:
    """A proxy in front of the server."""
    with S3Faults(s3_server.url) as proxy:
        yield proxy
