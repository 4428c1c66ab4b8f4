"""Writers killed and stopped at any moment: what they acknowledged is read back, and a zombie acknowledges nothing."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading

import pytest

from pulsar_on_spark.model.errors import JournalUndecidedError
from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.model.quorum import Quorum
from tests.ledger.journal.journal_runs import Place
from tests.ledger.journal.writing import FENCED, check, forks

pytestmark = pytest.mark.long


def delete_files(place: Place) -> None:
    for path in place.paths.values():
        shutil.rmtree(path.directory / "journal" / place.register.incarnation, ignore_errors=True)


def kill_in_a_loop(base, rounds: int) -> int:
    """Each incarnation is killed at some moment, and recovered, at times by several at once."""
    rng = random.Random()
    total = 0
    Place(base)  # a root that is there: a writer killed while it makes one is another test
    with forks() as writers:
        for number in range(rounds):
            incarnation = IncarnationId(f"b{number}")
            quorum = Quorum.parse(rng.choice(["3/3/2", "3/3/2", "1/1/1", "2/2/2"]))
            writer = writers.start(base, incarnation, quorum=quorum)
            writer.wait_for(rng.choice([0, 0, 1, 50, 500, 2000]))
            threading.Event().wait(rng.random() * 0.05)
            os.kill(writer.pid, signal.SIGKILL)
            assert writers.wait(writer) == -signal.SIGKILL
            place = Place(base, incarnation=incarnation)
            if place.register.read().record is None:
                assert writer.acked() == 0
                continue
            recover_at_once(base, incarnation, rng.choice([1, 1, 2, 3]))
            total += check(incarnation, place.log(place.recover()), writer.acked())
            delete_files(place)
    return total


def recover_at_once(base, incarnation, count: int) -> None:
    def work() -> None:
        try:
            records.append(Place(base, incarnation=incarnation).recover())
        except JournalUndecidedError as error:
            refusals.append(str(error))

    records = []
    refusals = []
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(record == records[0] for record in records)
    assert all("another recovery has started" in refusal for refusal in refusals)
    assert records, "the last one to start wins"


def stop_in_a_loop(base, rounds: int) -> int:
    """Each incarnation is stopped, recovered, at times trimmed away, and wakes up then."""
    rng = random.Random()
    total = 0
    with forks() as writers:
        for number in range(rounds):
            incarnation = IncarnationId(f"s{number}")
            quorum = Quorum.parse(rng.choice(["3/3/2", "1/1/1"]))
            writer = writers.start(base, incarnation, quorum=quorum)
            writer.wait_for(rng.choice([1, 50, 500, 2000]))
            writer.stop()
            place = Place(base, incarnation=incarnation)
            delay = rng.random() * 0.05 if rng.random() < 0.3 else 0.0  # before the recovery is through
            waking = threading.Timer(delay, os.kill, (writer.pid, signal.SIGCONT))
            if delay:
                waking.start()
            log = place.log(place.recover())
            if delay:
                waking.join()
            if rng.random() < 0.5:
                delete_files(place)
            os.kill(writer.pid, signal.SIGCONT)
            assert writers.wait(writer) == FENCED
            total += check(incarnation, log, writer.acked())
            delete_files(place)
    return total


def test_killed_writers(tmp_path):
    assert kill_in_a_loop(tmp_path, 12) > 0


def test_stopped_writers(tmp_path):
    assert stop_in_a_loop(tmp_path, 8) > 0


@pytest.mark.soak
def test_hundreds_of_killed_writers(tmp_path):
    assert kill_in_a_loop(tmp_path, 400) > 0


@pytest.mark.soak
def test_hundreds_of_stopped_writers(tmp_path):
    assert stop_in_a_loop(tmp_path, 300) > 0
