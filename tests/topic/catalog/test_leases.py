"""Lease files: real files in a temporary directory, observed on a clock that the test sets."""

import json
import os
import time
from pathlib import Path

import pytest

from pulsar_on_spark.model.errors import ConsumerBusyError, FormatVersionError, StorageError
from pulsar_on_spark.model.ids import TopicId
from pulsar_on_spark.model.lease_state import LeaseState
from pulsar_on_spark.storage.leases.files import UNFINISHED_S, LeaseFiles
from pulsar_on_spark.storage.root_place import LEASES, consumers_of
from pulsar_on_spark.topic.catalog import leases
from pulsar_on_spark.topic.catalog.leases import Lease, LeaseKeeper, LeaseWatcher, longest_pause_s

T, U = TopicId("a" * 32), TopicId("b" * 32)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class Watch:
    """A watcher and its clock: `after(s)` lets time pass and observes."""

    def __init__(self, directory: Path) -> None:
        self.clock = Clock()
        self.watcher = LeaseWatcher(LeaseFiles(directory), self.clock)

    def after(self, seconds: float = 0.0, topic: TopicId = T) -> dict[str, LeaseState]:
        self.clock.now_s += seconds
        self.watcher.observe_leases()
        return self.watcher.lease_states(topic)


def lease_folder(root: Path, subscription: str) -> Path:
    return root / LEASES / consumers_of(subscription)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return lease_folder(tmp_path, "delays")


@pytest.fixture
def watch(directory: Path) -> Watch:
    return Watch(directory)


@pytest.fixture
def keeper(directory: Path) -> LeaseKeeper:
    """Consumer `a`; its thread never wakes in a test's time, so that the test renews."""
    keeper = LeaseKeeper(LeaseFiles(directory), "a", duration_s=3_000)
    keeper.start([T])
    return keeper


def lease_file(directory: Path) -> Path:
    (path,) = directory.glob("*.json")
    return path


def lease_of(directory: Path, consumer: str) -> Path:
    (path,) = (p for p in directory.glob("*.json") if Lease.parse(p.read_bytes(), "there").consumer == consumer)
    return path


def test_the_file_describes_the_lease(keeper: LeaseKeeper, directory: Path) -> None:
    keeper.renew()
    fields = json.loads(lease_file(directory).read_text())
    token = fields.pop("token")
    assert fields == {"v": 1, "consumer": "a", "topics": [T], "counter": 2, "duration_s": 3000, "released": False}
    assert lease_file(directory).name.startswith("a-")
    assert len(token) == 32
    assert [path.suffix for path in directory.iterdir()] == [".json"], "no temporary file is left"


def test_no_lease_is_no_consumer(watch: Watch) -> None:
    assert watch.after() == {}


def test_a_consumer_is_unknown_for_one_period_and_then_alive_while_it_renews(keeper: LeaseKeeper, watch: Watch) -> None:
    assert watch.after() == {"a": LeaseState.UNKNOWN}
    for _ in range(2):
        keeper.renew()
        assert watch.after(1_000) == {"a": LeaseState.UNKNOWN}
    for _ in range(5):
        keeper.renew()
        assert watch.after(1_000) == {"a": LeaseState.ALIVE}


def test_a_lease_runs_out_when_nothing_changed_for_its_duration(keeper: LeaseKeeper, watch: Watch) -> None:
    watch.after()
    keeper.renew()
    watch.after(1_000)
    assert watch.after(2_999) == {"a": LeaseState.ALIVE}
    assert watch.after(1) == {"a": LeaseState.EXPIRED}
    keeper.renew()
    assert watch.after(1) == {"a": LeaseState.ALIVE}, "a paused consumer woke up"


def test_a_dead_consumer_is_unknown_and_then_run_out_however_old_its_file_is(
    keeper: LeaseKeeper, watch: Watch, directory: Path
) -> None:
    for written_at in (0, 2_000_000_000 * 2):
        os.utime(lease_file(directory), (written_at, written_at))  # wall clocks say nothing
    assert watch.after() == {"a": LeaseState.UNKNOWN}
    assert watch.after(2_999) == {"a": LeaseState.UNKNOWN}
    assert watch.after(1) == {"a": LeaseState.EXPIRED}


def test_a_lease_is_late_when_nothing_changed_for_half_of_its_duration(keeper: LeaseKeeper, watch: Watch) -> None:
    watch.after()
    watch.after(1_499)
    assert not watch.watcher.is_late("a")
    watch.after(1)
    assert watch.watcher.is_late("a")
    keeper.renew()
    watch.after(1)
    assert not watch.watcher.is_late("a")


def test_an_observer_that_slept_sees_a_change_as_life(keeper: LeaseKeeper, watch: Watch) -> None:
    watch.after()
    keeper.renew()
    assert watch.after(100_000) == {"a": LeaseState.ALIVE}
    assert watch.after(100_000) == {"a": LeaseState.EXPIRED}


def test_a_stopped_consumer_is_gone_at_once_and_leaves_no_file(
    keeper: LeaseKeeper, watch: Watch, directory: Path
) -> None:
    watch.after()
    keeper.stop()
    assert watch.after() == {}
    assert list(directory.iterdir()) == []
    keeper.stop()
    assert keeper.renew() is False
    assert keeper.hold([T, U]) is False
    assert list(directory.iterdir()) == [], "it doesn't come back"


def test_a_stopped_consumer_may_leave_a_released_lease(keeper: LeaseKeeper, watch: Watch, directory: Path) -> None:
    watch.after()
    keeper.stop(keep=True)
    assert watch.after() == {"a": LeaseState.EXPIRED}
    assert Lease.parse(lease_file(directory).read_bytes(), "there").released


def test_a_consumer_counts_for_the_topics_that_it_reads(keeper: LeaseKeeper, watch: Watch) -> None:
    assert watch.after(topic=U) == {}
    assert keeper.hold([T, U])
    assert watch.after(topic=U) == {"a": LeaseState.UNKNOWN}
    assert keeper.topics == (T, U)


def test_a_topic_that_the_file_could_not_name_is_not_held_and_tried_again(
    keeper: LeaseKeeper, watch: Watch, directory: Path
) -> None:
    aside = directory.rename(directory.with_suffix(".aside"))
    directory.write_text("in the way")
    assert keeper.hold([T, U]) is False
    assert keeper.hold([T, U]) is False, "the first failure is not forgotten"
    assert keeper.topics == (T,)
    assert keeper.hold([T])
    directory.unlink()
    aside.rename(directory)
    keeper.renew()
    assert watch.after(topic=U) == {}
    assert keeper.hold([T, U])
    assert watch.after(topic=U) == {"a": LeaseState.UNKNOWN}


def test_the_thread_renews_while_the_process_is_busy_and_ends_on_request(directory: Path, watch: Watch) -> None:
    keeper = LeaseKeeper(LeaseFiles(directory), "a", duration_s=0.06)
    keeper.start([T])
    until = time.monotonic() + 30
    while Lease.parse(lease_file(directory).read_bytes(), "there").counter < 4:
        assert time.monotonic() < until, "the thread does not renew"
        time.sleep(0.005)
    keeper.stop()
    time.sleep(0.1)
    assert list(directory.iterdir()) == []
    assert keeper.failures == 0


def test_a_later_process_of_the_consumer_has_the_lease(keeper: LeaseKeeper, directory: Path) -> None:
    later = LeaseKeeper(LeaseFiles(directory), "a", duration_s=3_000)
    later.start([T])
    content = lease_file(directory).read_bytes()
    assert keeper.renew() is False
    assert keeper.superseded
    keeper.stop()
    assert lease_file(directory).read_bytes() == content, "the later one is not released by the earlier one"
    assert later.renew()


def test_stopping_does_not_take_the_lease_from_a_later_process_not_yet_noticed(
    keeper: LeaseKeeper, directory: Path
) -> None:
    later = LeaseKeeper(LeaseFiles(directory), "a", duration_s=3_000)
    later.start([T])
    content = lease_file(directory).read_bytes()
    keeper.stop()
    assert lease_file(directory).read_bytes() == content


def test_a_lease_that_cannot_be_removed_is_logged_and_runs_out(
    keeper: LeaseKeeper, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = lease_file(directory)
    file.unlink()
    file.mkdir()
    keeper.stop()
    assert "could not be released" in caplog.text


def test_a_swept_directory_is_created_again_and_a_missing_root_not(
    keeper: LeaseKeeper, watch: Watch, directory: Path
) -> None:
    lease_file(directory).unlink()
    directory.rmdir()
    assert keeper.renew()
    assert watch.after() == {"a": LeaseState.UNKNOWN}
    lease_file(directory).unlink()
    directory.rmdir()
    directory.parent.rmdir()
    assert keeper.renew() is False
    assert not directory.parent.exists()


def test_a_renewal_that_fails_is_counted_and_the_next_may_succeed(
    keeper: LeaseKeeper, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    aside = directory.rename(directory.with_suffix(".aside"))
    directory.write_text("in the way")
    assert keeper.renew() is False
    assert keeper.failures == 1
    assert "could not be renewed" in caplog.text
    assert keeper.last_error is not None
    directory.unlink()
    aside.rename(directory)
    assert keeper.renew()


def test_a_swept_lease_is_restored_by_the_next_renewal(keeper: LeaseKeeper, watch: Watch, directory: Path) -> None:
    lease_file(directory).unlink()
    assert keeper.renew()
    assert watch.after() == {"a": LeaseState.UNKNOWN}


def test_a_root_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "leases").write_text("in the way")
    directory = lease_folder(tmp_path, "delays")
    with pytest.raises(StorageError, match=r"Lease file .*leases.* cannot be written"):
        LeaseKeeper(LeaseFiles(directory), "a").start([T])
    with pytest.raises(StorageError, match="cannot be read"):
        LeaseWatcher(LeaseFiles(directory)).observe_leases()


def test_too_many_consumers_are_refused(keeper: LeaseKeeper, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MAX_CONSUMERS", 1)
    LeaseKeeper(LeaseFiles(directory), "a").start([T])  # has a file already
    with pytest.raises(ConsumerBusyError, match="holds 1 live leases already"):
        LeaseKeeper(LeaseFiles(directory), "b").start([T])
    assert len(list(directory.iterdir())) == 1


def test_former_consumers_do_not_fill_the_limit(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is a new consumer each time: stopped, stopped with a trace, killed, killed while it wrote."""
    monkeypatch.setattr(leases, "MAX_CONSUMERS", 2)
    for number in range(12):
        keeper = LeaseKeeper(LeaseFiles(directory), f"run {number}", duration_s=3_000)
        keeper.start([T])
        if number % 3 == 2:
            for age_s in (-9_100, 9_100):  # the clock may have been set back since
                os.utime(lease_of(directory, f"run {number}"), (time.time() + age_s,) * 2)
        else:
            keeper.stop(keep=number % 3 == 1)
        (directory / f"run-{number}.{number}.tmp").write_text("a process died here")
    assert len(list(directory.glob("*.json"))) == 8
    for number in range(2):
        LeaseKeeper(LeaseFiles(directory), f"live {number}", duration_s=3_000).start([T])
    late = lease_of(directory, "live 0")
    os.utime(late, (time.time() - 8_900,) * 2)  # missed renewals, not yet given up
    with pytest.raises(ConsumerBusyError, match="holds 2 live leases already"):
        LeaseKeeper(LeaseFiles(directory), "one more").start([T])


def test_ended_consumers_make_room_for_new_ones(directory: Path) -> None:
    alive = LeaseKeeper(LeaseFiles(directory), "alive")
    alive.start([T])
    for number in range(10):
        ended = LeaseKeeper(LeaseFiles(directory), f"ended-{number}")
        ended.start([T])
        ended.stop()
    assert alive.renew()
    assert [path.name for path in directory.iterdir()] == [lease_of(directory, "alive").name]
    alive.stop()


def test_unfinished_files_of_a_killed_process_are_removed(directory: Path) -> None:
    directory.mkdir(parents=True)
    old, young = directory / "x.1.tmp", directory / "y.2.tmp"
    for path in (old, young):
        path.write_text("a process died here, or is writing")
    os.utime(old, (time.time() - UNFINISHED_S - 1,) * 2)
    LeaseKeeper(LeaseFiles(directory), "a", duration_s=3_000).start([T])
    assert (old.exists(), young.exists()) == (False, True)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"{}", b'{"v": 1}', b"\xff\xfe", b'{"v": "x"}'])
def test_a_file_that_is_not_a_lease_is_ignored(directory: Path, watch: Watch, content: bytes) -> None:
    directory.mkdir(parents=True)
    (directory / "x.json").write_bytes(content)
    assert watch.after() == {}


@pytest.mark.parametrize("duration_s", [0, -1, "Infinity", "NaN"])
def test_a_duration_that_never_ends_is_no_lease(duration_s: object) -> None:
    content = Lease("a", "t", (T,), 1, 5.0).encode().replace(b"5.0", str(duration_s).encode())
    assert Lease.parse(content, "there") is None


def test_an_observer_that_could_not_read_begins_to_watch_anew(
    keeper: LeaseKeeper, watch: Watch, directory: Path
) -> None:
    """While the store is out of reach, the holder cannot renew its lease either."""
    watch.after()
    assert watch.after(3_000) == {"a": LeaseState.EXPIRED}
    keeper.renew()
    assert watch.after() == {"a": LeaseState.ALIVE}
    aside = directory.rename(directory.with_suffix(".aside"))
    directory.write_text("in the way")
    for _ in range(2):
        with pytest.raises(StorageError, match="cannot be read"):
            watch.after(1_000)
    directory.unlink()
    aside.rename(directory)
    assert watch.after(1_500) == {"a": LeaseState.UNKNOWN}
    assert watch.after(2_999) == {"a": LeaseState.UNKNOWN}
    assert watch.after(1) == {"a": LeaseState.EXPIRED}


def test_a_newer_version_is_refused(directory: Path, watch: Watch) -> None:
    directory.mkdir(parents=True)
    (directory / "x.json").write_text('{"v": 2}')
    with pytest.raises(FormatVersionError, match=r"The lease x in .* has version 2, this .* reads up to 1"):
        watch.after()


def test_names_are_bounded_and_differ(tmp_path: Path) -> None:
    names = ["a/b", "a_b", "A_b", ".", "..", "ä" * 500, "ä" * 501, "", "a" * 5_000, "\n"]
    directories = [lease_folder(tmp_path, name) for name in names]
    assert len({str(directory).lower() for directory in directories}) == len(names)
    for directory in directories:
        assert directory.parent == tmp_path / "leases"
        assert len(directory.name) <= 96
        LeaseKeeper(LeaseFiles(directory), directory.name, duration_s=3_000).start([T])


def test_a_renewal_that_came_late_is_noticed_after_it(keeper: LeaseKeeper) -> None:
    before = keeper.renewals_s
    assert keeper.renew()
    assert keeper.renewals_s[:-1] == before
    assert keeper.renewals_s[-1] >= before[-1]
    renewals_s = (1.0, 3.0, 6.5, 7.0)
    assert longest_pause_s(renewals_s, since_s=5.0, now_s=8.0) == 3.5
    assert longest_pause_s(renewals_s, since_s=6.6, now_s=8.0) == 1.0
    assert longest_pause_s(renewals_s, since_s=6.6, now_s=11.0) == 4.0
    assert longest_pause_s(renewals_s, since_s=-4.0, now_s=8.0) == 5.0  # earlier ones are forgotten
