"""A pass of housekeeping: what a day of small writes leaves, two passes at once, and processes killed anywhere."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import PathRecord, SubscriptionRecord, WriteRecord
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.ids import EARLIEST, TopicId, WriteId
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.root_place import LEASES, consumers_of
from pulsar_on_spark.topic.catalog.leases import LeaseKeeper
from pulsar_on_spark.topic.data_path.attach import TaskOutput, attach
from pulsar_on_spark.topic.data_path.routing import HashingScheme
from pulsar_on_spark.topic.data_path.task_writer import TaskWriter
from pulsar_on_spark.topic.data_path.transactions import batch_of
from pulsar_on_spark.topic.maintenance.files import merge
from pulsar_on_spark.topic.maintenance.files.collect import Ages
from pulsar_on_spark.topic.maintenance.maintain import MaintainReport, maintain
from pulsar_on_spark.topic.maintenance.repair.repairing import RepairReport
from pulsar_on_spark.topic.maintenance.repair.worker import WorkReport
from pulsar_on_spark.topic.maintenance.retention import expiry
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions
from tests.kit import messages

AT_ONCE = Ages(abort_after_s=-1, keep_replaced_s=-1, keep_verdicts_s=-1)
ROWS = 4
"""Of a simulated second: keys take them to about three of the partitions."""


def simulate_seconds(root: Root, topic: str, first: int, count: int) -> None:
    """Write a few keyed rows each second, as a query does: tasks stage ahead, the driver attaches in order."""
    to, paths = messages.target(root, topic), root.writable_paths(root.store.view())

    def staged(number: int) -> tuple[int, WriteId, TaskOutput]:
        values = [f"{number}-{row}".encode() for row in range(ROWS)]
        write_id = messages.new_write_id()
        writer = TaskWriter(write_id, number, paths, root.quorum, HashingScheme.JAVA_STRING_HASH)
        writer.add(to, messages.make_rows(values, [f"key {number * row}".encode() for row in range(ROWS)]))
        return number, write_id, writer.finish()

    with ThreadPoolExecutor(2) as tasks:
        for number, write_id, output in tasks.map(staged, range(first, first + count)):
            attach(root.store, write_id, [output], batch_of("day", number))


def check_day(root: Root, topic: str, writes: int) -> list[messages.Message]:
    found = messages.read(root, topic)
    assert Counter(m.value for m in found) == Counter(f"{n}-{r}".encode() for n in range(writes) for r in range(ROWS))
    return found


def report_day(root: Root, writes: int, started_s: float) -> None:
    status = root.status()
    (topic,) = status.topics
    stored = sum(1 for _ in root.path.glob("storage/*/segments/*/*"))
    print(
        f"\n{writes} writes: {topic.messages} messages in {topic.ledgers} ledgers, {topic.segments} segments, "
        f"{topic.files} files ({stored} on disk), {time.monotonic() - started_s:.0f} s"
    )


@pytest.mark.long
def test_a_simulated_day_in_short(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """250 one-second writes on 8 partitions, more than one merge takes: 750 files become a handful, and no more."""
    monkeypatch.setattr(merge, "MAX_JOB_SEGMENTS", 600)
    root, started_s, writes = Root.create(memory_path / "root"), time.monotonic(), 250
    topic = root.create_topic("t", 8).name
    simulate_seconds(root, topic, 0, writes)
    before = check_day(root, topic, writes)
    (status,) = root.status().topics
    assert (status.files, status.ledgers) == (writes, 8)

    done = root.maintain(AT_ONCE)

    assert done.problems == ()
    assert done.merge.merged_segments >= status.segments > merge.MAX_JOB_SEGMENTS
    assert messages.read(root, topic) == before
    (status,) = root.status().topics
    report_day(root, writes, started_s)
    assert (status.ledgers, status.messages) == (8, ROWS * writes)
    assert status.segments <= 24
    assert status.files <= 3
    assert sum(1 for _ in root.path.glob("storage/*/segments/*/*")) <= 3 * 2 * status.files
    assert len(root.store.view().all(WriteRecord)) <= status.files
    messages.write(root, topic, [b"continues"])
    assert messages.read(root, topic)[0] == before[0]


@pytest.mark.soak
def test_a_simulated_day(root: Root) -> None:
    """A quarter of a day's 86,400 writes, with an hourly pass, in the 20 minutes that there are."""
    started_s, hour, hours = time.monotonic(), 3_600, 6
    topic = root.create_topic("t", 8).name
    for number in range(hours):
        simulate_seconds(root, topic, number * hour, hour)
        assert root.maintain(AT_ONCE).problems == ()
        report_day(root, (number + 1) * hour, started_s)
    check_day(root, topic, hour * hours)
    (status,) = root.status().topics
    assert status.ledgers == 8
    assert status.segments <= 8 * 12
    assert status.files <= 12


def test_a_pass_over_an_idle_root_does_nothing(root: Root) -> None:
    root.create_topic("t")
    messages.write(root, "t", [b"v"])
    done = root.maintain()
    assert done.repair.is_whole
    assert (done.repair.work, done.repair.scrubbed.copies) == (WorkReport(), 3), "some copies are read in every pass"
    assert replace(done, repair=RepairReport()) == MaintainReport()


def test_progress_names_every_step(root: Root) -> None:
    steps: list[tuple[str, int, int]] = []
    maintain(root, progress=lambda *each: steps.append(each))
    names = list(dict.fromkeys(step for step, _, _ in steps))
    assert names[0] == "probe storage paths"
    assert {"merge", "collect", "expire subscriptions", "fold and checkpoint", "vacuum", "sweep leases"} <= set(names)


def test_a_step_that_fails_does_not_keep_the_others(root: Root) -> None:
    """With too few storage paths nothing can be merged; all else is done."""
    root.create_topic("t")
    for number in range(3):
        messages.write(root, "t", [str(number).encode()])
    for number in (0, 1):
        (root.path / "storage" / str(number)).rename(root.path / f"away{number}")
    done = root.maintain()
    assert len(done.problems) == 1
    assert done.problems[0].startswith("merge: ")
    assert len(done.collect.skipped_paths) == 2
    assert len(messages.read(root, "t")) == 3


@pytest.mark.long
def test_two_passes_at_once_beside_writers_and_readers(root: Root) -> None:
    topic = root.create_topic("t", 2).name
    stop, errors, written, passes = threading.Event(), [], [], []

    def guarded(work: Callable[[Root], None]) -> threading.Thread:
        def run() -> None:
            own = Root.open(root.path)
            try:
                while not stop.is_set():
                    work(own)
            except BaseException as error:
                errors.append(error)
                raise

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def writing(own: Root) -> None:
        values = [f"{len(written)}-{row}".encode() for row in range(4)]
        messages.write(own, topic, values, [b"a", b"b", b"c", b"d"])
        written.append(values)

    def reading(own: Root) -> None:
        known = [value for values in list(written) for value in values]
        assert Counter(known) - Counter(messages.values(own, topic)) == Counter()

    def keeping(own: Root) -> None:
        assert maintain(own, Ages(keep_replaced_s=2)).problems == ()
        passes.append(own)

    threads = [guarded(work) for work in (writing, reading, keeping, keeping)]
    until_s = time.monotonic() + 60
    while not errors and (len(written) < 20 or len(passes) < 6) and time.monotonic() < until_s:
        time.sleep(0.05)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(written) > 10
    assert len(passes) > 2
    assert Counter(messages.values(root, topic)) == Counter(value for values in written for value in values)


KILLED = """
import sys
from pathlib import Path
from tests.kit import messages
from pulsar_on_spark.topic.maintenance.files.collect import Ages
from pulsar_on_spark.topic.maintenance.repair.repairing import RepairReport
from pulsar_on_spark.topic.maintenance.repair.worker import WorkReport
from pulsar_on_spark.root import Root
root = Root.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for number in range(10_000):
    label = f"{sys.argv[2]}-{number}"
    rows = range(12)
    messages.write(root, "t", [f"{label}-{row}".encode() for row in rows], [f"k{row}".encode() for row in rows])
    print(label, flush=True)
    if number % 8 == 7:
        root.maintain(Ages(abort_after_s=-1, keep_replaced_s=-1, keep_verdicts_s=-1))
"""


def kill_again_and_again(root: Root, rounds: int, start_python: Callable[..., subprocess.Popen[str]]) -> None:
    """Kill a process that writes and maintains at random points; what it reported is there once, every write whole."""
    root.create_topic("t", 3)
    dice, reported = random.Random(11), set()
    successor = start_python(KILLED, root.path, "round 0")
    for number in range(rounds):
        process = successor
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("go\n")
        process.stdin.flush()
        if number + 1 < rounds:
            successor = start_python(KILLED, root.path, f"round {number + 1}")
        if number % 2:
            reported.add(process.stdout.readline().removesuffix("\n"))  # not all may die in their first write
        time.sleep(dice.uniform(0.0, 1.2))
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read()
        process.wait()
        reported |= set(rest.split("\n")[:-1])
        check_whole(root, reported)
    successor.kill()
    successor.wait()
    root.maintain(AT_ONCE)
    check_whole(root, reported)
    assert len(reported) >= rounds // 2


def check_whole(root: Root, reported: set[str]) -> None:
    opened = Root.open(root.path)
    counts = Counter(value.decode() for value in messages.values(opened, "t") if value is not None)
    assert set(counts.values()) <= {1}, "doubled"
    writes = Counter(text.rpartition("-")[0] for text in counts)
    assert set(writes.values()) <= {12}, "a write is visible in part"
    assert reported <= set(writes), "lost"


@pytest.mark.long
def test_processes_killed_at_random_points(root: Root, start_python: Callable[..., subprocess.Popen[str]]) -> None:
    kill_again_and_again(root, 12, start_python)


@pytest.mark.soak
def test_processes_killed_at_many_random_points(root: Root, start_python: Callable[..., subprocess.Popen[str]]) -> None:
    kill_again_and_again(root, 300, start_python)


# --- storage paths ---


def test_only_paths_that_failed_are_healed(root: Root) -> None:
    """A path that an operator set to read-only, draining or lost stays so."""
    states = {0: ("read-only", "disk is full"), 1: ("read-only", ""), 2: ("draining", "")}
    records = [
        PathRecord(path_id=number, uri=f"storage/{number}", state=state, reason=reason)
        for number, (state, reason) in states.items()
    ]
    root.store.commit(lambda _: Change(puts=records, keys={keys.path(number): None for number in states}))
    assert root.maintain().healed_paths == (0,)
    assert [record.state for record in root.store.view().all(PathRecord)] == ["writable", "read-only", "draining"]
    assert sorted(os.listdir(root.path / "storage" / "0")) == ["pulsarpy-path.json", "segments"]


# --- what ends by itself ---


def subscribe(root: Root, name: str, expires_after_s: float | None, age_s: float = 0.0) -> SubscriptionRecord:
    (part,) = messages.target(root, "t").parts
    subscriptions.create_subscriptions(root.store, name, "Exclusive", {part: EARLIEST}, expires_after_s)
    record = root.store.view().get(SubscriptionRecord, f"{part.topic_id}/{name}")
    assert record is not None
    aged = record.model_copy(update={"created_at": datetime.now(UTC) - timedelta(seconds=age_s)})
    root.store.commit(lambda _: Change(puts=[aged], keys={keys.topic(part.name): None}))
    return aged


def renew(root: Root, record: SubscriptionRecord, age_s: float, topic_id: str | None = None) -> Path:
    directory = root.path / LEASES / consumers_of(record.name)
    keeper = LeaseKeeper(root.consumer_leases(record.name), "me", 3.0)
    keeper.start([TopicId(topic_id or record.topic_id)])
    keeper.stop(keep=True)
    (file,) = directory.glob("*.json")
    os.utime(file, (time.time() - age_s,) * 2)
    return file


def test_subscriptions_without_consumers_expire(root: Root) -> None:
    root.create_topic("t")
    renewed = subscribe(root, "renewed", 100, age_s=1_000)
    renew(root, renewed, age_s=50)
    renew(root, subscribe(root, "left", 100, age_s=1_000), age_s=150)
    renew(root, subscribe(root, "of another topic", 100, age_s=1_000), age_s=50, topic_id="other")
    subscribe(root, "never read", 100, age_s=150)
    subscribe(root, "young", 100, age_s=50)
    subscribe(root, "for good", None, age_s=10_000_000)

    assert root.maintain().expired_subscriptions == 3

    left = [record.name for record in root.store.view().all(SubscriptionRecord)]
    assert left == ["for good", "renewed", "young"]
    assert expiry.expire_subscriptions(root, time.time() + 60) == 2


def test_old_lease_files_are_swept_unless_an_expiry_needs_them(root: Root) -> None:
    root.create_topic("t")
    day = expiry.SWEEP_AFTER_S
    old = renew(root, subscribe(root, "plain", None), age_s=day + 60)
    young = renew(root, subscribe(root, "other", None), age_s=day - 60)
    assert root.maintain().swept_leases == 1
    assert (old.parent.exists(), young.exists()) == (False, True)
    slow = renew(root, subscribe(root, "slow", 3 * day), age_s=2 * day)
    assert json.loads(slow.read_text())["consumer"] == "me"
    assert root.maintain().swept_leases == 0


def test_directories_without_leases_are_swept(root: Root) -> None:
    """Each query without a checkpoint of a `subscriptionPrefix` had one."""
    directory = root.path / LEASES / consumers_of("gone")
    keeper = LeaseKeeper(root.consumer_leases("gone"), "me", 3_000.0)
    keeper.start([])
    assert expiry.sweep_leases(root) == 0
    assert directory.exists()
    keeper.stop()
    assert expiry.sweep_leases(root) == 0
    assert list((root.path / "leases").iterdir()) == []
