"""The drivers of Spark jobs are killed; what the next run makes of it is whole."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pulsar_on_spark.model.errors import NotARootError
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from pulsar_on_spark.topic.maintenance.repair.checking import check
from tests.kit.root_checks import violations
from tests.ops.live_root import PATHS, LiveRoot

AUDIT_KILLS = 100
AUDITS_OF_A_ROOT = 10
FIRST_TAKES_LONGER = 10
"""The first audit of a session, than the next ones, about."""
DEMO_KILLS = 100
DEMOS_OF_A_ROOT = 10
AUDIT = """
import sys
from pathlib import Path
from pulsar_on_spark import spark_session
from pulsar_on_spark.jobs import audit
from pulsar_on_spark.root import Root

with spark_session("audit", **{"spark.master": "local[2]", "spark.ui.enabled": "false"}) as spark:
    spark.sparkContext.setLogLevel("OFF")
    for line in sys.stdin:
        done = audit.run(spark, Root.open(line.strip()), repair=True)
        print(f"done {done.problems} {done.lost}", flush=True)
"""
"""`jobs/audit.py --repair` again and again: a session's start takes longer than the job."""
DEMO = [sys.executable, str(Path(__file__).parents[2] / "jobs" / "flights.py")]


class AuditDriver:
    """A driver that audits the root at each command."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._process = subprocess.Popen(
            [sys.executable, "-c", AUDIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def ask(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{self._root}\n".encode())
        self._process.stdin.flush()

    def run(self) -> tuple[str, float]:
        """Run the job to its end; return its output and the seconds."""
        began_s = time.monotonic()
        self.ask()
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode(), time.monotonic() - began_s

    def kill(self) -> bool:
        """Returns whether it was under way."""
        self._process.kill()
        return not self._process.communicate()[0]


@pytest.mark.soak
def test_audits_whose_driver_is_killed(tmp_path: Path) -> None:
    print(f"seed {(seed := random.randrange(1 << 32))}")
    rng = random.Random(seed)
    kills = 0
    for number in itertools.count():
        if kills >= AUDIT_KILLS:
            break
        scratch = tmp_path / str(number)
        scratch.mkdir()
        live = LiveRoot(scratch, rng)
        for _ in range(AUDITS_OF_A_ROOT):
            driver = AuditDriver(live.path)
            said, first_s = driver.run()
            assert said == "done () ()\n"
            assert check(live.open()).is_good
            live.stir()
            drained = rng.randrange(PATHS)
            storage_paths.drain(live.open(), drained)
            driver.ask()
            time.sleep(rng.uniform(0, first_s / FIRST_TAKES_LONGER))
            kills += driver.kill()
            live.check()
            storage_paths.resume(live.open(), drained)
        live.check_after_all()
        print(kills)


class Demo:
    """`make demo`, in a process group of its own."""

    def __init__(self, root: Path) -> None:
        self._process = subprocess.Popen([*DEMO, str(root)], start_new_session=True)

    def kill_after(self, seconds: float, *, only_driver: bool) -> bool:
        """Returns whether it was under way; waits for the JVM and workers, which end by themselves without a driver."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            assert self._process.wait(seconds) == 0
            return False
        if only_driver:
            self._process.kill()
        else:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        ends_s = time.monotonic() + 60
        while is_group_alive(self._process.pid):
            assert time.monotonic() < ends_s, "Spark still runs without its driver"
            time.sleep(0.1)
        return True


def is_group_alive(group: int) -> bool:
    """True if any process of the group is alive."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.soak
def test_demos_that_are_killed(tmp_path: Path) -> None:
    """Run again, it checks itself that every flight is there once."""
    print(f"seed {(seed := random.randrange(1 << 32))}")
    rng = random.Random(seed)
    kills, took_s = 0, 60.0
    for number in itertools.count():
        if kills >= DEMO_KILLS:
            break
        root = tmp_path / str(number)
        for _ in range(DEMOS_OF_A_ROOT):
            kills += Demo(root).kill_after(rng.uniform(1, took_s), only_driver=rng.random() < 0.5)
            with contextlib.suppress(NotARootError):  # it was killed before it had made one
                assert violations(Root.open(root)) == []
        began_s = time.monotonic()
        subprocess.run([*DEMO, str(root)], check=True)
        took_s = time.monotonic() - began_s
        assert violations(Root.open(root)) == []
        assert check(Root.open(root)).is_good
        print(kills)
