"""Spark applications that are killed, and two applications under one subscription."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pulsar_on_spark.metadata.records import SubscriptionRecord
from pulsar_on_spark.root import Root
from tests.datasource.stream_app import let_it_initialize
from tests.kit.messages import values, write

pytestmark = pytest.mark.long

MARK = "PULSARPY_TEST_APPLICATION"
APP = Path(__file__).with_name("stream_app.py")
TIMEOUT_S = 120.0
KILLS = 15
"""Number of kills in the soak test."""
# Spark gives a stream's Python ten seconds to import pyspark and connect. From Spark's ZIP archive, where no compiled
# modules are kept, that takes 2 s of CPU, and 0.6 s from the installed package.
_PYTHON = """\
#!{python} -IS
import os, sys
path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
os.environ["PYTHONPATH"] = os.pathsep.join(part for part in path if not part.endswith("pyspark.zip"))
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""


class App:
    """A Spark application: driver, JVM and Python workers can be killed together.

    Its processes are known by a variable of their environment: workers have process groups of their own, and the
    kernel reuses the numbers of processes that have ended.
    """

    def __init__(self, root: Root, specs: list[dict[str, object]], log: Path) -> None:
        self._log = log
        self._mark = uuid.uuid4().hex
        python = log.with_suffix(".python")
        python.write_text(_PYTHON.format(python=sys.executable))
        python.chmod(0o700)
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(APP), str(root.path), json.dumps(specs)],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=os.environ | {MARK: self._mark, "PYSPARK_PYTHON": str(python)},
            )

    def check(self) -> None:
        assert self._process.poll() is None, self._log.read_text()[-3_000:]

    def kill(self) -> None:
        """SIGKILL to every process."""
        for _ in range(2):  # who was just being forked is found the second time
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error):
                    if process.environ().get(MARK) == self._mark:
                        process.kill()
        self._process.wait(30)


@pytest.fixture
def apps(tmp_path: Path) -> Iterator[Callable[..., App]]:
    started: list[App] = []

    def start(root: Root, *specs: dict[str, object]) -> App:
        started.append(App(root, list(specs), tmp_path / f"app-{len(started)}.log"))
        return started[-1]

    yield start
    for app in started:
        app.kill()


@pytest.fixture
def root(tmp_path: Path) -> Root:
    made = Root.create(tmp_path / "root")
    for name in ("in", "out", "batches", "twice", *(f"{name}-{side}" for name in KINDS for side in ("ours", "theirs"))):
        made.create_topic(name)
    return made


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


def keyed(root: Root, first: int, count: int) -> None:
    found = numbered(first, count)
    write(root, "in", found, [b"key-%d" % (int(value) % 50) for value in found])


def wait_for(what: Callable[[], bool], why: str, app: App | None = None, seconds: float = TIMEOUT_S) -> None:
    until_s = time.monotonic() + seconds
    while not what():
        if app is not None:
            app.check()
        assert time.monotonic() < until_s, why
        time.sleep(0.05)


def start_here(
    spark: SparkSession, root: Root, checkpoint: str, read: dict[str, str], sink: str, *, available_now: bool = False
) -> StreamingQuery:
    frame = spark.readStream.format("pulsarpy").options(**read).load(str(root.path)).select("__key", "value")
    writer = frame.writeStream.format("pulsarpy").option("topic", sink).option("path", str(root.path))
    writer = writer.option("checkpointLocation", checkpoint)
    return let_it_initialize((writer.trigger(availableNow=True) if available_now else writer).start())


PLACES = {"before": "true", "after": "false"}
"""The points at which a sink waits to be killed: before its commit, and between it and Spark's commit log."""
KINDS = {"k": "Key_Shared", "s": "Shared", "f": "Failover"}


def test_a_killed_application_is_continued_by_another(
    spark: SparkSession, root: Root, apps: Callable[..., App], tmp_path: Path
):
    """An application runs two queries whose sinks stop in the midst of batch 1, and a consumer of each kind; this one
    runs the other consumer of each kind, a standby under Failover. Then the other is killed by SIGKILL.
    """
    for first in range(0, 30, 10):
        write(root, "batches", numbered(first, 10))
    batches = {"topic": "batches", "startingOffsets": "earliest", "maxMessagesPerTrigger": "10", "leaseDuration": "2s"}
    shared = {
        name: {
            "topic": "in",
            "subscription": name,
            "subscriptionType": type_,
            "startingOffsets": "earliest",
            "leaseDuration": "2s",
        }
        for name, type_ in KINDS.items()
    }
    app = apps(
        root,
        *(
            {
                "read": {**batches, "subscription": place},
                "sink": "stopping",
                "write": {"topic": "twice", "stopAt": "1", "stopBefore": before, "marker": str(tmp_path / place)},
                "checkpoint": str(tmp_path / f"checkpoint-{place}"),
            }
            for place, before in PLACES.items()
        ),
        *(
            {"read": shared[name], "write": {"topic": f"{name}-theirs"}, "checkpoint": str(tmp_path / f"theirs-{name}")}
            for name in KINDS
        ),
    )
    wait_for(lambda: _shares(root, "f") == [1], "the other application doesn't read", app)
    queries = [start_here(spark, root, str(tmp_path / f"ours-{name}"), shared[name], f"{name}-ours") for name in KINDS]
    try:
        # Without takeovers every message comes exactly once, and a standby reads nothing.
        for name in ("k", "s"):
            wait_for(lambda name=name: _shares(root, name) == [32, 32], f"the slots of {name} are not shared", app)
        for first in range(0, 300, 100):
            keyed(root, first, 100)
        for name in KINDS:
            wait_for(lambda name=name: len(both(root, name)) >= 300, f"messages are missing under {name}", app)
            assert sorted(both(root, name)) == numbered(0, 300)
            assert values(root, f"{name}-theirs")
            assert bool(values(root, f"{name}-ours")) == (name != "f")
        wait_for(lambda: all((tmp_path / place).exists() for place in PLACES), "no sink is at batch 1", app)
        app.kill()
        keyed(root, 300, 100)

        # Exactly once within one checkpoint: the queries are restarted at once, as the consumers that they were.
        written = Counter(values(root, "twice"))
        assert [written[value] for value in numbered(0, 30)] == [2] * 10 + [1] * 10 + [0] * 10
        for place in PLACES:
            commits = os.listdir(tmp_path / f"checkpoint-{place}" / "commits")
            assert "0" in commits
            assert "1" not in commits
            reading = {**batches, "subscription": place}
            checkpoint = str(tmp_path / f"checkpoint-{place}")
            queries.append(start_here(spark, root, checkpoint, reading, "twice", available_now=True))
        for query in queries[len(KINDS) :]:
            query.awaitTermination(int(TIMEOUT_S))
        assert Counter(values(root, "twice")) == Counter(dict.fromkeys(numbered(0, 30), 2))

        # At least once across the takeover, and nothing lost.
        for name in KINDS:
            whole = [1] if name == "f" else [64]
            wait_for(lambda name=name, whole=whole: _shares(root, name) == whole, f"no consumer took {name} over")
            wait_for(lambda name=name: set(both(root, name)) == set(numbered(0, 400)), f"messages are lost by {name}")
            assert max(Counter(both(root, name)).values()) <= 2
    finally:
        for query in queries:
            query.stop()


def both(root: Root, name: str) -> list[bytes | None]:
    """Return the rows in the two applications' sinks."""
    return values(root, f"{name}-theirs") + values(root, f"{name}-ours")


def _shares(root: Root, subscription: str) -> list[int]:
    records = [record for record in root.store.view().all(SubscriptionRecord) if record.name == subscription]
    owners = Counter(owner.consumer for record in records for owner in record.owners for _ in owner.slots)
    return sorted(owners.values())


@pytest.mark.soak
def test_an_application_killed_again_and_again_leaves_each_message_once(
    root: Root, apps: Callable[..., App], tmp_path: Path
):
    chance = random.Random(20130101)
    written = 0
    spec: dict[str, object] = {
        "read": {"topic": "in", "subscription": "s", "startingOffsets": "earliest", "maxMessagesPerTrigger": "20"},
        "write": {"topic": "out"},
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    for _ in range(KILLS):
        write(root, "in", numbered(written, 7))
        written += 7
        seen = len(values(root, "out"))
        app = apps(root, spec)
        wait_for(lambda seen=seen: len(values(root, "out")) > seen, "the application doesn't get on", app)
        until_s = time.monotonic() + chance.uniform(0, 5)
        while time.monotonic() < until_s:
            write(root, "in", numbered(written, 7))
            written += 7
        app.kill()
    app = apps(root, spec)
    # What piled up comes in batches of 20.
    wait_for(lambda: len(values(root, "out")) >= written, "messages are missing", app, seconds=1200)
    assert values(root, "out") == numbered(0, written)
