"""One Spark session for all tests that ask for it, long files first, no silent skips on the machine that decides."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITH_DELTA = pytest.StashKey[bool]()
WITH_SPARK = ("tests/datasource/", "tests/docs/test_examples.py", "tests/jobs/", "tests/broker/clients/test_schemas.py")
"""Where the tests are that use the session: one process runs them all, for a JVM that is warm costs 40 s of CPU."""
LONG = (
    *WITH_SPARK,
    "tests/ledger/journal/test_simulation.py",
    "tests/topic/housekeeping/",
    "tests/ledger/journal/",
    "tests/broker/",
    "tests/metadata/test_race.py",
    "tests/crash/",
    "tests/topic/sealing/",
    "tests/topic/tail/",
    "tests/test_install.py",
)
"""Who begins with these, in this order, has only short ones at the end, and no process waits long for another."""
# Their programs are short: what the second compiler and a parallel collector cost at their start never comes back.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """`--dist loadfile`, but what uses the Spark session counts as one file."""
    from xdist.scheduler import LoadFileScheduling

    class SparkTogether(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if nodeid.startswith(WITH_SPARK) else super()._split_scope(nodeid)

    return SparkTogether(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A process has one JVM, and JARs come at its start: it gets Delta's if any selected test asks for them."""
    fixtures = [getattr(item, "fixturenames", ()) for item in items]
    config.stash[WITH_DELTA] = any("delta_spark" in names for names in fixtures)
    for item, names in zip(items, fixtures, strict=True):
        if "spark" in names:
            item.add_marker(pytest.mark.spark)
    places = {start: place for place, start in reversed(list(enumerate(LONG)))}
    items.sort(key=lambda item: next((places[start] for start in LONG if item.nodeid.startswith(start)), len(LONG)))


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
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session: local[2], Unix-domain sockets, no UI; Delta's SQL only where a selected test uses `delta_spark`."""
    from pulsar_on_spark.datasource.session import spark_session

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
