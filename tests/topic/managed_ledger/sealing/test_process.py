"""The sealer's process: it seals and trims beside a live writer, keeps to its budget, and never outlives its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.managed_ledger.sealing.journal_frames import JournalLag
from pulsar_on_spark.topic.managed_ledger.sealing.process import CpuBudget, SealingPolicy, SealingProcess
from tests.kit.fork_server import stop_fork_server
from tests.kit.journal_logs import LogOnDisk, journal_files
from tests.kit.pulsar_entries import batch_bomb
from tests.kit.waiting import wait_until

from .test_sealer import entry, sealed_entries

EAGER = SealingPolicy(backlog_bytes=1, ledger_bytes=0, tail_bytes=1, interval_s=0.05, trim_interval_s=0.1, grace_s=0)


@pytest.fixture
def log(root: Root) -> LogOnDisk:
    made = LogOnDisk(root)
    made.open_ledgers(["a", "b"])
    return made


def test_beside_a_live_writer(log: LogOnDisk) -> None:
    process = SealingProcess(log.root.path, log.incarnation, EAGER)
    process.start()
    try:
        for number in range(120):
            log.append({"a": [entry(number)], "b": [entry(-number)]})
            if number % 20 == 19:
                log.roll()
                time.sleep(0.1)
            if number % 30 == 0:
                for ledger, entries in log.entries.items():
                    found = sealed_entries(log.root, ledger)
                    assert found == entries[: len(found)]
        log.idle()
        log.idle()
        wait_until(lambda: len(sealed_entries(log.root, log.ledger("b"))) == 120, "all is sealed")
        wait_until(lambda: len(journal_files(log.root, log.incarnation)) == 3, "all but the live file is trimmed")
        wait_until(lambda: process.deleted_before == log.record.fragments[-1].first, "the writer may forget")
        assert not process.is_over_lag_limit()
    finally:
        process.stop()
    assert not process.is_alive()
    for ledger, entries in log.entries.items():
        assert sealed_entries(log.root, ledger) == entries


def test_a_fenced_sealer_ends(log: LogOnDisk) -> None:
    process = SealingProcess(log.root.path, log.incarnation, EAGER)
    process.start()
    try:
        log.append({"a": [entry(0)]})
        log.take_over()
        wait_until(lambda: not process.is_alive(), "the sealer ends")
    finally:
        process.stop()


def test_a_sealer_ends_when_it_is_replaced_because_its_fork_server_was_killed(log: LogOnDisk) -> None:
    """Without the server, its parent takes a sealer for dead that is not."""
    stop_fork_server()
    process = SealingProcess(log.root.path, log.incarnation, EAGER)
    process.start()
    first = psutil.Process(process.pid)
    first.parent().kill()
    wait_until(lambda: not process.is_alive(), "the parent notices")
    process.start()
    try:
        wait_until(lambda: not first.is_running() or first.status() == psutil.STATUS_ZOMBIE, "the first one ends")
        log.append({"a": [entry(0)]})
        log.roll()
        wait_until(lambda: sealed_entries(log.root, log.ledger("a")) == [entry(0)], "the second one seals")
    finally:
        process.stop()


def test_the_sealing_process_is_lazy_and_reports_the_unsealed_rest(log: LogOnDisk) -> None:
    policy = SealingPolicy(backlog_bytes=1 << 30, interval_s=0.05, lag_limit_bytes=2_000)
    process = SealingProcess(log.root.path, log.incarnation, policy)
    process.start()
    try:
        for number in range(20):
            log.append({"a": [entry(number)]})
        wait_until(process.is_over_lag_limit, "the lag is seen")
        assert process.lag_bytes > 2_000
        assert sealed_entries(log.root, log.ledger("a")) == []
    finally:
        process.stop()


def test_unknown_sizes_count_up_to_the_limit() -> None:
    policy = SealingPolicy(lag_limit_bytes=800)
    assert policy.lag_bytes(JournalLag(5, unknown_files=2)) == 205
    assert policy.lag_bytes(JournalLag(1, unknown_files=8)) > policy.lag_limit_bytes


def test_paths_that_are_away_for_a_while(log: LogOnDisk) -> None:
    """An unreadable file counts no more for back-pressure than a full one, and is sealed once it is readable."""
    storage = log.root.path / "storage"
    log.append({"a": [entry(0)]})
    log.idle()
    storage.rename(storage.with_name("away"))
    process = SealingProcess(log.root.path, log.incarnation, EAGER)
    process.start()
    try:
        wait_until(lambda: process.lag_bytes == EAGER.lag_limit_bytes // 8, "it is behind")
        assert not process.is_over_lag_limit()
        storage.with_name("away").rename(storage)
        wait_until(lambda: len(sealed_entries(log.root, log.ledger("a"))) == 1, "sealing continues")
    finally:
        process.stop()


def test_a_reason_not_to_seal_is_logged_once(log: LogOnDisk, capfd: pytest.CaptureFixture[str]) -> None:
    """The second try and all later ones log nothing, until sealing continues."""
    storage = log.root.path / "storage"
    log.append({"a": [entry(0)]})
    log.roll()
    log.idle()
    log.idle()
    first = [directory.parent for directory in storage.glob(f"*/journal/{log.incarnation}/w00000000/frames.open")]
    for directory in first:
        directory.rename(directory.with_name("away"))
    stop_fork_server()  # an earlier one would write what its children say to the standard error of its time
    process = SealingProcess(log.root.path, log.incarnation, EAGER)
    process.start()
    said = ""
    try:
        wait_until(lambda: process.lag_bytes > EAGER.lag_limit_bytes // 8, "it looks")
        time.sleep(1.0)  # some twenty passes
        for directory in first:
            directory.with_name("away").rename(directory)
        wait_until(lambda: len(sealed_entries(log.root, log.ledger("a"))) == 1, "sealing continues")
    finally:
        process.stop()
        said = capfd.readouterr().err
    assert said.count("Sealing is put off") == 1
    assert said.count("Sealing works again") == 1


@pytest.mark.long
def test_killed_and_started_again(log: LogOnDisk) -> None:
    process = SealingProcess(log.root.path, log.incarnation, EAGER)
    try:
        for number in range(3):
            process.start()
            log.append({"a": [entry(number)]})
            log.idle()
            log.idle()
            wait_until(lambda count=number + 1: len(sealed_entries(log.root, log.ledger("a"))) == count, "it continues")
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            wait_until(lambda: not process.is_alive(), "it is dead")
    finally:
        process.stop()


def test_a_signal_to_all_leaves_its_end_to_the_parent(log: LogOnDisk) -> None:
    stop_fork_server()  # an earlier one may have been started by other code, which blocks no signals
    process = SealingProcess(log.root.path, log.incarnation, EAGER)
    process.start()
    try:
        for number in range(2):  # once before it has begun, and once when it has
            assert process.pid is not None
            os.kill(process.pid, signal.SIGTERM)
            os.kill(process.pid, signal.SIGINT)
            log.append({"a": [entry(number)]})
            log.idle()
            log.idle()
            wait_until(lambda count=number + 1: len(sealed_entries(log.root, log.ledger("a"))) == count, "it continues")
    finally:
        began_s = time.monotonic()
        process.stop()
    assert time.monotonic() - began_s < 10, "it was killed"


def test_a_sealing_process_that_fails_repeatedly_counts_as_silent(tmp_path: Path) -> None:
    """A start is no sign of life: producers need back-pressure while no process seals."""
    process = SealingProcess(tmp_path / "no root", IncarnationId("i"))
    process.start()
    wait_until(lambda: not process.is_alive(), "it fails")
    silent_s = process.silent_s
    process.start()
    try:
        assert process.silent_s >= silent_s
    finally:
        process.stop()


PARENT = """
import os, sys, time
from pathlib import Path
from pulsar_on_spark.topic.managed_ledger.sealing.process import SealingProcess
if __name__ == "__main__":
    os.dup2(1, 2)
    process = SealingProcess(Path(sys.argv[1]), sys.argv[2])
    process.start()
    print(process.pid, flush=True)
    time.sleep(60)
"""


def test_the_sealing_process_ends_with_its_parent(
    log: LogOnDisk, start_python: Callable[..., subprocess.Popen[str]]
) -> None:
    parent = start_python(PARENT, log.root.path, log.incarnation)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(1)
    parent.kill()
    said = parent.stdout.read()
    parent.wait()
    wait_until(lambda: _is_gone(child), "the child is gone")
    assert "leaked" not in said, "a killed broker's last words are of no semaphores"


def _is_gone(pid: int) -> bool:
    """True if the process has ended; one that was not waited for is a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_budget_pauses_for_what_was_spent() -> None:
    clock, cpu, pauses = [0.0], [0.0], []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        clock[0] += seconds

    budget = CpuBudget(0.25, lambda: cpu[0], lambda: clock[0], pause)
    for spent_s, passed_s in ((0.1, 0.1), (0.1, 1.0), (0.5, 0.5)):
        cpu[0] += spent_s
        clock[0] += passed_s
        budget.pace()
    assert pauses == [pytest.approx(0.3), 1.0], "never longer than a second at a time"


def test_a_batch_bomb_delays_no_other_topic(log: LogOnDisk) -> None:
    """A message of nine kilobytes that claims sixteen million: other topics are sealed, the child reports."""
    process = SealingProcess(log.root.path, log.incarnation, EAGER)
    process.start()
    silent_s = 0.0

    def sealed() -> bool:
        nonlocal silent_s
        silent_s = max(silent_s, process.silent_s)
        return len(sealed_entries(log.root, log.ledger("b"))) == 3

    try:
        log.append({"a": [entry(0)], "b": [entry(1)]})
        log.idle()
        log.idle()
        wait_until(lambda: len(sealed_entries(log.root, log.ledger("b"))) == 1, "it has started")
        log.append({"a": [batch_bomb(16_000_000)], "b": [entry(2)]})
        log.append({"a": [entry(3)], "b": [entry(4)]})
        log.idle()
        log.idle()
        wait_until(sealed, "what is beside the bomb is sealed")
        assert not process.is_over_lag_limit()
    finally:
        process.stop()
    assert silent_s < 20, "it worked in silence, which producers take for death"
    assert sealed_entries(log.root, log.ledger("a")) == log.entries[log.ledger("a")]
