"""The journal cut from power: what has reached the file of a loop device is what a disk would hold."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.model.quorum import Quorum
from tests.ledger.journal.journal_runs import Place
from tests.ledger.journal.writing import check, forks

pytestmark = [pytest.mark.root, pytest.mark.long]


@contextmanager
def mounted(image: Path, at: Path) -> Iterator[Path]:
    at.mkdir(exist_ok=True)
    mount = subprocess.run(["mount", "-o", "loop", str(image), str(at)], capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"loop devices cannot be mounted here: {mount.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


def cut_in_a_loop(base: Path, quorum: str, cuts: int) -> int:
    """Stop the writer, copy the disk, let it go on; each copy's log is recovered with all that was acknowledged."""
    rng = random.Random()
    image = base / "disk"
    with image.open("wb") as file:
        file.truncate(1 << 30)  # nothing is trimmed: a hundred cuts fill some hundred MiB
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    incarnation = IncarnationId("cut")
    total = 0
    with mounted(image, base / "mounted") as disk, forks() as writers:
        writer = writers.start(disk, incarnation, 100_000, Quorum.parse(quorum))
        writer.acks.parent.mkdir(exist_ok=True)
        for number in range(cuts):
            writer.wait_for(writer.acked() + rng.choice([1, 20, 300]))
            time.sleep(rng.random() * 0.02)
            writer.stop()
            acked = writer.acked()
            # A file of its own each time: the metadata's store may keep the last one mounted until it is collected.
            copy = base / f"copy-{number}"
            subprocess.run(["cp", "--sparse=always", str(image), str(copy)], check=True)
            with mounted(copy, base / f"after-{number}") as after:
                place = Place(after, incarnation=incarnation)
                total = check(incarnation, place.log(place.recover()), acked)
            copy.unlink()
            os.kill(writer.pid, signal.SIGCONT)
        os.kill(writer.pid, signal.SIGKILL)
        writers.wait(writer)
    return total


@pytest.mark.parametrize("quorum", ["3/3/2", "1/1/1"])
def test_power_cuts_keep_what_was_acknowledged(tmp_path, quorum):
    assert cut_in_a_loop(tmp_path, quorum, 5) > 0


@pytest.mark.soak
@pytest.mark.parametrize("quorum", ["3/3/2", "1/1/1"])
def test_a_hundred_power_cuts(tmp_path, quorum):
    assert cut_in_a_loop(tmp_path, quorum, 100) > 0
