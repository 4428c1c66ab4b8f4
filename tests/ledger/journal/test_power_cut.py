"""The journal on a disk that is cut from power."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.model.quorum import Quorum
from tests.kit.cut_disks import cut_disk
from tests.ledger.journal.journal_runs import Place
from tests.ledger.journal.writing import check, forks

pytestmark = [pytest.mark.root, pytest.mark.long]


def cut_in_a_loop(base: Path, quorum: str, cuts: int) -> int:
    """Stop the writer, copy the disk, let it go on; each copy's log is recovered with all that was acknowledged."""
    rng = random.Random()
    incarnation = IncarnationId("cut")
    total = 0
    # Nothing is trimmed: a hundred cuts fill some hundred MiB.
    with cut_disk(base, 1 << 30) as disk, forks() as writers:
        writer = writers.start(disk.at, incarnation, 100_000, Quorum.parse(quorum))
        writer.acks.parent.mkdir(exist_ok=True)
        for _ in range(cuts):
            writer.wait_for(writer.acked() + rng.choice([1, 20, 300]))
            time.sleep(rng.random() * 0.02)
            writer.stop()
            acked = writer.acked()
            with disk.cut() as after:
                place = Place(after, incarnation=incarnation)
                total = check(incarnation, place.log(place.recover()), acked)
            os.kill(writer.pid, signal.SIGCONT)
        os.kill(writer.pid, signal.SIGKILL)
        writers.wait(writer)
    return total


@pytest.mark.parametrize("quorum", ["3/3/2", "1/1/1"])
def test_power_cuts_keep_acknowledged_entries(tmp_path, quorum):
    assert cut_in_a_loop(tmp_path, quorum, 5) > 0


@pytest.mark.soak
@pytest.mark.parametrize("quorum", ["3/3/2", "1/1/1"])
def test_a_hundred_power_cuts(tmp_path, quorum):
    assert cut_in_a_loop(tmp_path, quorum, 100) > 0
