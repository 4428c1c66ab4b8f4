"""A failed storage path is healthy once it takes files and has room for them, and is retried with growing pauses."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.health import Condition
from pulsar_on_spark.storage.identity import IDENTITY_NAME
from pulsar_on_spark.storage.local_path import LocalPath
from pulsar_on_spark.storage.probe import FIRST_PAUSE_S, LONGEST_PAUSE_S, Trials, examine, try_out
from tests.kit.small_disks import MIB, SmallDisk

DISK_MIB = 20
FULL = "frames.open cannot be written: [Errno 28] No space left on device"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk", DISK_MIB) as made:
        yield made


@pytest.mark.root
def test_a_full_disk_is_healthy_with_room_for_a_journal_file(small_disk: SmallDisk) -> None:
    path = LocalPath(PathId(0), small_disk.at, "c")
    path.create()
    assert try_out(path, FULL).is_well
    small_disk.fill(but_bytes=MIB)
    first = try_out(path, FULL)
    assert first.condition is Condition.FULL
    assert "less than 2 MiB are free" in first.reason, "a tenth of so small a disk"
    small_disk.fill(but_bytes=MIB // 2)
    assert try_out(path, FULL).reason == first.reason, "the same words, so that the log says it once"
    assert try_out(path, "its disk was away").is_well, "what it had was enough before"
    small_disk.make_room()
    small_disk.fill(but_bytes=3 * MIB)
    assert try_out(path, FULL).is_well
    assert sorted(each.name for each in small_disk.at.iterdir()) == ["filler", IDENTITY_NAME, "segments"]


def test_another_disk_is_not_healthy(tmp_path: Path) -> None:
    LocalPath(PathId(0), tmp_path / "disk", "c").create()
    found = try_out(LocalPath(PathId(1), tmp_path / "disk", "c"), "")
    assert found.condition is Condition.WIPED
    assert "is path 0" in found.reason


def test_a_path_that_fails_again_is_tried_after_longer_pauses() -> None:
    now_s = 1_000.0
    trials = Trials(lambda: now_s)
    path, other = PathId(0), PathId(1)
    pauses = []
    for _ in range(7):
        assert trials.may_try(path)
        trials.record_trial(path)
        tried_s = now_s
        while not trials.may_try(path):
            now_s += 1
        pauses.append(now_s - tried_s)
        assert trials.may_try(other)
    assert pauses == [5, 10, 20, 40, 60, 60, 60]
    now_s += LONGEST_PAUSE_S
    trials.record_trial(path)
    now_s += FIRST_PAUSE_S
    assert trials.may_try(path), "it was well for long enough"


def test_a_hanging_disk_delays_the_caller_once(tmp_path: Path) -> None:
    """Make the identity file a pipe without a writer: a process that opens it hangs."""
    path = LocalPath(PathId(0), tmp_path / "disk", "c")
    path.create()
    identity = path.directory / IDENTITY_NAME
    identity.rename(identity.with_suffix(".kept"))
    os.mkfifo(identity)
    trials = Trials(wait_s=0.05)
    for _ in range(3):
        found = trials.try_out(path, FULL)
        assert (found.condition, found.reason) == (Condition.UNREACHABLE, f"{path.directory} does not answer")
    assert [each.name for each in threading.enumerate()].count("probe-path-0") == 1
    (waiting,) = [each for each in threading.enumerate() if each.name == "probe-path-0"]
    os.close(os.open(identity, os.O_WRONLY))  # its open returns
    waiting.join(30)
    identity.with_suffix(".kept").rename(identity)
    assert not trials.try_out(path, FULL).is_well, "a pipe is no identity: this is the answer that was waited for"
    assert Trials(wait_s=30).try_out(path, FULL).is_well


@pytest.mark.parametrize(
    ("change", "mark", "condition"),
    [
        ("", "", Condition.WELL),
        ("", "frames.open cannot be written: [Errno 5] Input/output error", Condition.FAILING),
        ("", FULL, Condition.FULL),
        ("empty", "", Condition.WIPED),
        ("another", "", Condition.WIPED),
        ("empty", FULL, Condition.WIPED),
        ("away", "", Condition.UNREACHABLE),
        ("damaged", "", Condition.UNREACHABLE),
    ],
)
def test_an_examination_reports_a_paths_state(tmp_path: Path, change: str, mark: str, condition: Condition) -> None:
    path = LocalPath(PathId(4), tmp_path / "disk", "c", "rack")
    path.create()
    identity = path.directory / IDENTITY_NAME
    if change == "empty":
        identity.unlink()
    elif change == "another":
        identity.write_bytes(identity.read_bytes().replace(b"4", b"5"))
    elif change == "damaged":
        identity.write_bytes(b"{")
    elif change == "away":
        path.directory.rename(tmp_path / "elsewhere")
    found = examine(path, mark)
    assert (found.path_id, found.label, found.condition) == (4, "rack", condition)
    is_there = not change
    assert (found.is_there, found.is_well) == (is_there, condition is Condition.WELL)
    assert (found.reason == mark) is is_there
    assert (found.free_bytes is not None, found.total_bytes is not None) == (is_there, is_there)
