"""Brokers in processes of their own are killed and paused, while readers follow: each acknowledged message once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_on_spark.metadata.records import LedgerRecord, SegmentRecord
from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.managed_ledger.incarnation.dead_brokers import recover_incarnation
from pulsar_on_spark.topic.managed_ledger.sealing.closed_journals import seal_closed
from tests.kit import messages
from tests.kit.micro_batches import Checkpoint, MicroBatchQuery
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.long

BROKER = """
import sys
from pathlib import Path
from pulsar_on_spark.ledger.journal.groups import JournalLimits
from tests.kit.running_incarnation import RunningIncarnation
from pulsar_on_spark.root import Root

root, first = Root.open(Path(sys.argv[1])), int(sys.argv[2])
broker = RunningIncarnation(root, limits=JournalLimits(roll_bytes=60_000), lease_duration_s=0.5)
print(broker.incarnation.id, flush=True)
while True:
    broker.send("t", [b"%08d" % number for number in range(first, first + 40)], batch=4)
    first += 40
    print(first, flush=True)  # all below are acknowledged
"""

Start = Callable[..., subprocess.Popen[str]]


def acknowledged(lines: list[str], first: int) -> int:
    """Behind the last acknowledged number; the last line may be cut."""
    whole = [line for line in lines[1:] if line.endswith("\n")]
    return int(whole[-1]) if whole else first


def run_rounds(root: Root, start_python: Start, rounds: int, seed: int) -> None:
    """Each round a broker appends until it is killed; Spark writes behind it; a stream follows all along.

    Of every other broker the log is recovered, sealed and cleared away; of the others the stream's reader recovers it.
    """
    root.create_topic("t")
    chance = random.Random(seed)
    kept = Checkpoint()
    query = MicroBatchQuery(root.path, kept, {"topic": "t", "startingOffsets": "earliest"})
    certain: list[list[bytes]] = []
    first = 0
    for number in range(rounds):
        process = start_python(BROKER, root.path, first)
        assert process.stdout is not None
        incarnation = IncarnationId(process.stdout.readline().strip())
        lines = [incarnation]
        end_s = time.monotonic() + chance.uniform(0.2, 1.0)
        while time.monotonic() < end_s or len(lines) == 1:
            lines.append(process.stdout.readline())
            if chance.random() < 0.3:
                query.run()
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
        process.wait()
        end = acknowledged(lines, first)
        mark = b"spark %d" % number
        messages.write(root, "t", [mark])
        certain += [[b"%08d" % each for each in range(first, end)], [mark]]
        if number % 2:
            recover_incarnation(root, incarnation)
            for _ in range(2):
                seal_closed(root, pytest.fail, grace_s=0)
        wait_until(lambda mark=mark: query.run_all() >= 0 and mark in kept.values)
        first = end + 1_000
    check(kept.values, certain)
    fresh = Checkpoint()
    MicroBatchQuery(root.path, fresh, {"topic": "t", "startingOffsets": "earliest"}).run_all()
    assert fresh.values == kept.values
    ledgers = root.store.view().all(LedgerRecord)
    assert len({ledger.ledger_id for ledger in ledgers}) == len(ledgers)


def check(found: list[object], certain: list[list[bytes]]) -> None:
    """Runs of acknowledged messages in order; behind a broker's there may be some of unknown outcome, and no others."""
    at = 0
    for run in certain:
        assert found[at : at + len(run)] == run
        at += len(run)
        following = int(run[-1]) + 1 if run and run[-1].isdigit() else None
        while following is not None and at < len(found) and found[at] == b"%08d" % following:
            at, following = at + 1, following + 1
    assert at == len(found)


def test_killed_brokers(root: Root, start_python: Start):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    run_rounds(root, start_python, 3, seed)


@pytest.mark.soak
def test_brokers_killed_for_long(root: Root, start_python: Start):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    run_rounds(root, start_python, 150, seed)


def test_a_paused_broker_wakes_after_recovery_sealing_and_trimming(root: Root, start_python: Start):
    root.create_topic("t")
    process = start_python(BROKER, root.path, 0)
    assert process.stdout is not None
    incarnation = IncarnationId(process.stdout.readline().strip())
    end = max(int(process.stdout.readline()) for _ in range(5))
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(0.1)
    recover_incarnation(root, incarnation)
    for _ in range(2):
        seal_closed(root, pytest.fail, grace_s=0)
    before = messages.values(root, "t")
    assert before[:end] == [b"%08d" % number for number in range(end)]
    assert root.store.view().all(SegmentRecord)
    assert not list(Path(root.path).glob("storage/*/journal/*/*/frames.*"))
    os.kill(process.pid, signal.SIGCONT)
    rest = process.stdout.readlines()
    assert process.wait(timeout=20) != 0, "it ends"
    assert max([int(line) for line in rest], default=0) <= len(before), "nothing is acknowledged that is not there"
    assert messages.values(root, "t") == before
