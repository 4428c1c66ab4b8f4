"""Readers of the tail see what is acknowledged, all of it, and nothing else, whatever happens to the journal."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from pulsar_on_spark.ledger.journal.codec_scan import HEADS_WINDOW_BYTES
from pulsar_on_spark.ledger.journal.groups import JournalLimits
from pulsar_on_spark.ledger.journal.register import log_record
from pulsar_on_spark.metadata.records import IncarnationRecord, LedgerRecord, SegmentRecord
from pulsar_on_spark.model.errors import CopiesUnreachableError, DataLossError
from pulsar_on_spark.model.ids import EARLIEST, TopicId
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.identity import IDENTITY_NAME
from pulsar_on_spark.topic.data_path import tail as tail_module
from pulsar_on_spark.topic.data_path.journal_scan import JournalScan
from pulsar_on_spark.topic.data_path.reading import SliceReader
from pulsar_on_spark.topic.data_path.tail import Tail
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.incarnation.dead_brokers import recover_incarnation
from pulsar_on_spark.topic.managed_ledger.sealing.closed_journals import seal_closed
from pulsar_on_spark.topic.managed_ledger.sealing.sealer import Sealer
from pulsar_on_spark.topic.managed_ledger.sealing.trim import Trimmer
from tests.kit import messages
from tests.kit.journal_logs import LogOnDisk, WriterAsFast
from tests.kit.running_incarnation import RunningIncarnation
from tests.ledger.journal.journal_files import CountingFiles

SMALL_FILES = JournalLimits(roll_bytes=20_000)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    root = Root.create(tmp_path / "root")
    root.create_topic("t")
    return root


@pytest.fixture
def start(root: Root) -> Iterator[Callable[..., RunningIncarnation]]:
    """Start incarnations; those that are left are killed."""
    started = []

    def start(limits: JournalLimits | None = None, lease_duration_s: float = 10.0) -> RunningIncarnation:
        started.append(RunningIncarnation(root, limits=limits, lease_duration_s=lease_duration_s))
        return started[-1]

    yield start
    for each in started:
        each.__exit__(None, None, None)


class Follower:
    """A reader that continues where it stopped."""

    def __init__(self, root: Root, topic: str = "t") -> None:
        self.root = root
        self.tail = Tail(root)
        (self.part,) = messages.target(root, topic).parts
        self.position = EARLIEST
        self.values: list[bytes] = []

    def plan(self) -> chain.RangePlan:
        seen = self.tail.read_view([self.part])
        limit = chain.read_limit(seen, self.part.topic_id)
        assert limit >= self.position, "what was readable stays so"
        plan = chain.plan_range(seen, self.part.name, self.part.topic_id, -1, self.position, limit)
        assert not plan.losses
        self.position = limit
        return plan

    def follow(self, *, counted: bool = True) -> list[bytes]:
        """Everything up to now."""
        plan = self.plan()
        found = read(self.root, plan)
        assert not counted or len(found) == plan.rows
        self.values += found
        return self.values

    def follow_to(self, count: int, within_s: float = 60.0) -> list[bytes]:
        """Everything, as soon as it is so much."""
        end_s = time.monotonic() + within_s
        while len(self.follow()) < count and time.monotonic() < end_s:
            time.sleep(0.01)
        return self.values


def read(root: Root, plan: chain.RangePlan) -> list[bytes]:
    reader = SliceReader(root.path, root.storage_paths(root.store.view()), ("value",))
    return [
        value for one in plan.slices for _, batch in reader.read(one) for value in batch.column("value").to_pylist()
    ]


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, end)]


def log_of(root: Root, incarnation: str) -> IncarnationRecord:
    found = root.store.view().get(IncarnationRecord, incarnation)
    assert found is not None
    return found


def journal_files(root: Root, path: int = 0) -> list[Path]:
    return sorted((root.path / "storage" / str(path) / "journal").glob("*/*/frames.*"))


@pytest.mark.parametrize("batch", [1, 7])
def test_acknowledged_entries_are_readable_at_once(root: Root, start: Callable[..., RunningIncarnation], batch: int):
    broker = start()
    follower = Follower(root)
    for first in range(0, 500, 50):
        broker.send("t", numbered(first, first + 50), batch=batch)
        assert follower.follow_to(first + 50) == numbered(0, first + 50)
    assert Follower(root).follow_to(500) == numbered(0, 500)
    broker.stop()
    assert follower.follow() == Follower(root).follow() == numbered(0, 500)


def test_over_many_files(root: Root, start: Callable[..., RunningIncarnation]):
    broker, follower = start(SMALL_FILES), Follower(root)
    for first in range(0, 3_000, 100):
        broker.send("t", numbered(first, first + 100))
        follower.follow()
    assert follower.follow_to(3_000) == numbered(0, 3_000)
    assert len(journal_files(root)) > 4
    assert Follower(root).follow_to(3_000) == numbered(0, 3_000)


def test_topics_that_share_a_journal(root: Root, start: Callable[..., RunningIncarnation]):
    root.create_topic("u")
    broker, follower = start(SMALL_FILES), Follower(root, "u")
    follower.follow()
    for number in range(40):
        broker.send("t", numbered(100 * number, 100 * number + 30))
        broker.send("u", numbered(number, number + 1))
        if number % 7 == 0:
            follower.follow()
    assert follower.follow_to(40) == numbered(0, 40)
    assert Follower(root, "u").follow_to(40) == numbered(0, 40)


def test_a_path_fails_and_another_copy_is_read(root: Root, start: Callable[..., RunningIncarnation]):
    broker, follower = start(), Follower(root)
    broker.send("t", numbered(0, 100))
    follower.follow_to(100)
    (copy,) = [scan.reader.walk.copy for scan in follower.tail._scans.values()]
    assert copy is not None, "the copy that is looked at"
    file = max(journal_files(root, copy.path), key=lambda each: each.stat().st_size)
    file.rename(file.with_name("frames.elsewhere"))
    for first in range(100, 1_000, 100):
        broker.send("t", numbered(first, first + 100))
        follower.follow()
    assert follower.follow_to(1_000) == numbered(0, 1_000)
    assert Follower(root).follow_to(1_000) == numbered(0, 1_000)
    assert [len(each.copies) for each in log_of(root, broker.incarnation.id).fragments][-1] == 2


def test_paths_that_are_added_under_a_reader(root: Root, start: Callable[..., RunningIncarnation]):
    """All disks are replaced while the broker writes and a reader follows."""
    broker, follower = start(), Follower(root)
    broker.send("t", numbered(0, 10))
    follower.follow_to(10)
    new = [storage_paths.add(root, root.path.parent / f"new{number}").path_id for number in range(3)]
    for old in range(3):
        storage_paths.drain(root, old)
    sent = 10

    def paths() -> set[int]:
        """Paths of the last fragment that has begun."""
        fragments = log_record(log_of(root, broker.incarnation.id)).fragments
        return {copy.path for copy in [each for each in fragments if each.first is not None][-1].copies}

    while not paths() <= {*new}:
        broker.send("t", numbered(sent, sent + 1))
        sent += 1
        follower.follow()
    broker.send("t", numbered(sent, sent + 20))
    assert follower.follow_to(sent + 20, within_s=10.0) == numbered(0, sent + 20)


def test_paths_that_are_away_for_a_while(root: Root, start: Callable[..., RunningIncarnation]):
    """Nothing proves a gap, so each look tries again what could not be opened."""
    broker, follower = start(), Follower(root)
    broker.send("t", numbered(0, 10))
    identities = [root.path / "storage" / str(path) / IDENTITY_NAME for path in range(3)]
    for identity in identities:
        identity.rename(identity.with_suffix(".away"))
    assert follower.follow() == []
    for identity in identities:
        identity.with_suffix(".away").rename(identity)
    assert follower.follow_to(10, within_s=10.0) == numbered(0, 10)


def send_in_frames(broker: RunningIncarnation, values: list[bytes]) -> None:
    """Each in a frame of its own."""
    for value in values:
        broker.send("t", [value])


def test_known_entries_are_looked_up_in_one_copy_if_possible(root: Root, start: Callable[..., RunningIncarnation]):
    broker, follower = start(), Follower(root)
    send_in_frames(broker, numbered(0, 20))
    assert follower.follow_to(20) == numbered(0, 20)
    for _ in range(10):
        follower.tail.read_view([follower.part], reach={follower.part.topic_id: follower.position})
    (reader,) = [scan.reader for scan in follower.tail._scans.values()]
    assert [copy.file for copy in reader._open].count("1") == 1


def test_looks_into_every_copy_read_only_new_frames(root: Root, start: Callable[..., RunningIncarnation]):
    """Also of a copy that lacks the frames that are looked for."""
    broker = start()
    send_in_frames(broker, [b"%06d" % number * 200 for number in range(300)])
    ledger, *_ = root.store.view().all(LedgerRecord)
    files = CountingFiles()
    with closing(JournalScan(broker.incarnation.id, root.current_storage_paths, files)) as scan:
        for _ in range(2):
            scan.reader.open_files()
            scan.main_read(log_record(log_of(root, broker.incarnation.id)), 0, [ledger.ledger_id])
        scan.scan(every_copy=True)
        assert scan.reader.walk.next >= 300
        files.reads.clear()
        for _ in range(10):
            scan.scan(every_copy=True)
        looked_at = {each.fd for each in files.reads}
        read_bytes = sum(each.size_bytes for each in files.reads)
    assert len(looked_at) >= 3
    assert read_bytes < 10 * len(looked_at) * HEADS_WINDOW_BYTES < 10 * journal_files(root)[0].stat().st_size


def test_damaged_and_missing_copies(root: Root, start: Callable[..., RunningIncarnation]):
    broker = start()
    for first in range(0, 600, 20):
        broker.send("t", numbered(first, first + 20))
    broker.stop()
    for path in (0, 1):
        (file,) = [each for each in journal_files(root, path) if each.stat().st_size > 10_000]
        content = bytearray(file.read_bytes())
        for at in range(700, len(content), 999):
            content[at] ^= 4
        file.write_bytes(content)
        # Counts are not under the checksums that a plan is made from.
        assert Follower(root).follow(counted=False) == numbered(0, 600), f"path {path} damaged"
    for path in (0, 1):
        shutil.rmtree(root.path / "storage" / str(path) / "journal")
    assert Follower(root).follow() == numbered(0, 600)


def test_a_frame_without_a_good_copy_is_an_error_or_the_only_loss(root: Root, start: Callable[..., RunningIncarnation]):
    broker = start()
    for first in range(0, 600, 20):
        broker.send("t", numbered(first, first + 20))
    broker.stop()
    follower = Follower(root)
    plan = follower.plan()
    for path in range(3):
        (file,) = [each for each in journal_files(root, path) if each.stat().st_size > 10_000]
        content = bytearray(file.read_bytes())
        content[content.index(b"000305")] ^= 1
        file.write_bytes(content)
    with pytest.raises(DataLossError, match="no good copy left"):
        read(root, plan)
    reader = SliceReader(root.path, root.storage_paths(root.store.view()), ("value",), fail_on_data_loss=False)
    kept = [v for one in plan.slices for _, batch in reader.read(one) for v in batch.column("value").to_pylist()]
    assert kept == numbered(0, 300) + numbered(320, 600)


def test_a_lasting_gap_is_an_error_that_names_the_missing_frames(root: Root, start: Callable[..., RunningIncarnation]):
    broker = start()
    broker.send("t", numbered(0, 100))
    broker.stop()
    for path in range(3):
        shutil.rmtree(root.path / "storage" / str(path) / "journal")
    with pytest.raises(DataLossError, match="neither sealed nor good in a journal file"):
        Follower(root).follow()


def test_frames_on_unreachable_paths_are_never_skipped(
    root: Root, start: Callable[..., RunningIncarnation], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tail_module, "MAX_PASSES", 2)
    broker = start()
    broker.send("t", numbered(0, 100))
    broker.stop()
    storage, away = root.path / "storage", root.path / "away"
    planned = Follower(root).plan()
    storage.rename(away)
    for strict in (True, False):
        with closing(Tail(root, fail_on_data_loss=strict)) as tail, pytest.raises(CopiesUnreachableError):
            tail.read_view(messages.target(root, "t").parts)
        reader = SliceReader(root.path, root.storage_paths(root.store.view()), ("value",), strict)
        with pytest.raises(CopiesUnreachableError, match="mount its disk"):
            list(reader.read(planned.slices[0]))
    away.rename(storage)
    assert Follower(root).follow() == numbered(0, 100)
    # One copy is gone, another is bad, and the third one cannot be reached: nothing is lost yet.
    shutil.rmtree(storage / "0" / "journal")
    for file in journal_files(root, 1):
        file.write_bytes(file.read_bytes()[:600])
    (storage / "2").rename(away)
    with closing(Tail(root, fail_on_data_loss=False)) as tail, pytest.raises(CopiesUnreachableError):
        tail.read_view(messages.target(root, "t").parts)
    storage_paths.give_up(root, 2)
    with pytest.raises(DataLossError):
        Follower(root).follow()
    away.rename(storage / "2")
    assert Follower(root).follow() == numbered(0, 100), "what is there and good is read, given up or not"


def test_entries_that_became_unreachable_are_not_lost(
    root: Root, start: Callable[..., RunningIncarnation], monkeypatch: pytest.MonkeyPatch
):
    """The journal is open, and without its files nothing proves what is acknowledged: the batch before does."""
    monkeypatch.setattr(tail_module, "REACH_S", 0.3)
    broker = start()
    broker.send("t", numbered(0, 100))
    follower = Follower(root)
    follower.follow_to(90)
    (root.path / "storage").rename(root.path / "away")
    try:
        with closing(Tail(root, fail_on_data_loss=False)) as tail, pytest.raises(CopiesUnreachableError):
            tail.read_view([follower.part], reach={follower.part.topic_id: follower.position})
    finally:
        (root.path / "away").rename(root.path / "storage")


def test_ledgers_of_two_incarnations_and_of_spark(root: Root, start: Callable[..., RunningIncarnation]):
    expected: list[bytes] = []
    follower = Follower(root)
    for number in range(3):
        broker = start()
        broker.send("t", more := numbered(1_000 * number, 1_000 * number + 50))
        broker.stop()
        messages.write(root, "t", even_more := numbered(1_000 * number + 50, 1_000 * number + 60))
        expected += more + even_more
        assert follower.follow() == expected
    assert Follower(root).follow() == expected


def test_spark_writes_wait_for_the_brokers_switch_to_another_ledger(
    root: Root, start: Callable[..., RunningIncarnation]
):
    broker, follower = start(), Follower(root)
    broker.send("t", numbered(0, 10))
    messages.write(root, "t", numbered(10, 20))
    first_look = follower.follow()
    assert first_look in (numbered(0, 10), []), "no reader passes the open ledger"
    assert follower.follow_to(20) == numbered(0, 20)
    broker.send("t", numbered(20, 30))
    assert follower.follow_to(30) == numbered(0, 30)
    ledgers = root.store.view().all(LedgerRecord, follower.part.topic_id)
    assert [each.incarnation is None for each in ledgers] == [False, True, False]
    assert [(each.closed, each.entries) for each in ledgers] == [(True, 10), (False, None), (False, None)]


def test_a_killed_broker_is_recovered_by_its_readers(root: Root, start: Callable[..., RunningIncarnation]):
    broker, follower = start(SMALL_FILES, lease_duration_s=0.5), Follower(root)
    broker.send("t", numbered(0, 1_000))
    broker.kill()
    messages.write(root, "t", numbered(1_000, 1_010))
    assert follower.follow_to(1_010) == numbered(0, 1_010)
    assert log_of(root, broker.incarnation.id).state == "CLOSED"
    assert Follower(root).follow() == numbered(0, 1_010)


def test_a_paused_broker_that_was_fenced_acknowledges_nothing(root: Root, start: Callable[..., RunningIncarnation]):
    broker, follower = start(), Follower(root)
    broker.send("t", numbered(0, 100))
    recover_incarnation(root, broker.incarnation.id)
    assert follower.follow() == numbered(0, 100)
    with pytest.raises(Exception, match=r"taken over|has ended|is over"):
        broker.send("t", numbered(100, 110))
    assert broker.over is not None
    assert follower.follow() == Follower(root).follow() == numbered(0, 100)


def test_a_batch_that_was_planned_on_the_journal_reads_the_segment(
    root: Root, start: Callable[..., RunningIncarnation]
):
    broker, follower = start(), Follower(root)
    broker.send("t", numbered(0, 50))
    broker.stop()
    planned = follower.plan()
    assert seal_closed(root, pytest.fail, grace_s=0).sealed_entries == 50
    seal_closed(root, pytest.fail, grace_s=0)
    assert not journal_files(root)
    assert read(root, planned) == numbered(0, 50)
    assert Follower(root).follow() == numbered(0, 50)


def test_sealing_and_trimming_under_a_writer_and_its_readers(root: Root, start: Callable[..., RunningIncarnation]):
    """Nothing is skipped, repeated or lost, for a reader that follows, one that plans late and one that comes new."""
    broker, follower = start(SMALL_FILES), Follower(root)
    incarnation = broker.incarnation.id
    sealer = Sealer(root, incarnation, is_live=True)
    trimmer = Trimmer(root, incarnation, sealer.cursors, grace_s=0)
    late: list[tuple[int, chain.RangePlan]] = []
    for round_ in range(12):
        broker.send("t", numbered(250 * round_, 250 * (round_ + 1)), batch=3)
        other = Follower(root)
        before = len(follower.values)
        plan = other.plan()
        late.append((plan.rows, plan))
        assert len(follower.follow()) >= before
        if round_ % 2:
            sealer.seal(tail=round_ % 4 == 1)
            trimmer.trim()
    assert follower.follow_to(3_000) == numbered(0, 3_000)
    assert Follower(root).follow_to(3_000) == numbered(0, 3_000)
    assert root.store.view().all(SegmentRecord)
    for rows, plan in late:
        assert read(root, plan) == numbered(0, rows)
    broker.kill()


@pytest.mark.parametrize("count", [5_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_all_at_once(root: Root, start: Callable[..., RunningIncarnation], count: int):
    """A writer, its sealer and trimmer, a reader that follows and others that come new: none waits for another."""
    broker, follower = start(SMALL_FILES), Follower(root)
    ended = threading.Event()

    def append() -> None:
        for first in range(0, count, 100):
            broker.send("t", numbered(first, first + 100), batch=5)
        ended.set()

    def seal() -> None:
        sealer = Sealer(root, broker.incarnation.id, is_live=True)
        trimmer = Trimmer(root, broker.incarnation.id, sealer.cursors, grace_s=0)
        while not ended.wait(0.05):
            sealer.seal(tail=True)
            broker._loop.call_soon_threadsafe(
                broker.incarnation.journal.forget_trimmed_frames, trimmer.trim().deleted_before
            )
        sealer.close()

    with ThreadPoolExecutor(2) as threads:
        work = [threads.submit(append), threads.submit(seal)]
        while not ended.is_set():
            before = len(follower.values)
            # What one reader has seen another one sees, or as much as was proved to it.
            fresh = Follower(root).follow()
            assert fresh == numbered(0, len(fresh))
            assert len(follower.follow()) >= before
        for each in work:
            each.result()
    assert follower.follow_to(count) == numbered(0, count)
    assert Follower(root).follow_to(count) == numbered(0, count)
    assert len(journal_files(root)) < len(log_of(root, broker.incarnation.id).fragments) + 8


def test_entries_sealed_during_a_look_are_not_skipped(
    root: Root, start: Callable[..., RunningIncarnation], monkeypatch: pytest.MonkeyPatch
):
    """A reader that may do without what is lost looks once more whether it is sealed by now."""
    broker = start(SMALL_FILES)
    for first in range(0, 2_000, 100):
        broker.send("t", numbered(first, first + 100))
    broker.stop()
    first_file = journal_files(root)[0].parent
    moved = []
    for path in range(3):
        directory = root.path / "storage" / str(path) / first_file.relative_to(root.path / "storage" / "0")
        aside = root.path / f"aside{path}"
        directory.rename(aside)
        moved.append((aside, directory))
    looks = 0
    scan = JournalScan.scan

    def sealed_just_now(self: JournalScan, **how: bool) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            for aside, directory in moved:
                aside.rename(directory)
            seal_closed(Root(root.path), pytest.fail, grace_s=0)
        scan(self, **how)

    monkeypatch.setattr(JournalScan, "scan", sealed_just_now)
    monkeypatch.setattr(tail_module, "MAX_PASSES", 2)
    part = messages.target(root, "t").parts[0]
    with closing(Tail(root, fail_on_data_loss=False)) as tail:
        seen = tail.read_view([part])
    plan = chain.plan_range(seen, part.name, part.topic_id, -1, EARLIEST, chain.read_limit(seen, part.topic_id))
    assert (plan.losses, read(root, plan)) == ((), numbered(0, 2_000))


def test_idle_looks_are_cheap(root: Root, start: Callable[..., RunningIncarnation]):
    broker = start()
    broker.send("t", numbered(0, 5_000))
    follower = Follower(root)
    follower.follow_to(5_000)
    open_files = len(os.listdir("/proc/self/fd"))
    before = time.process_time()
    for _ in range(50):
        follower.tail.read_view([follower.part])
    assert (time.process_time() - before) / 50 < 0.02
    # The broker of this process opens and closes files, too; a leak would be fifty.
    assert len(os.listdir("/proc/self/fd")) < open_files + 25


def test_unacknowledged_entries_are_never_visible(root: Root, start: Callable[..., RunningIncarnation]):
    """The frames of a writer that cannot reach its ack quorum are in a file, and stay invisible."""
    broker = start()
    follower = Follower(root)
    broker.send("t", numbered(0, 10))
    assert follower.follow_to(10) == numbered(0, 10)
    for path in (0, 1, 2):
        for file in journal_files(root, path):
            file.rename(file.with_name("frames.fenced"))
    part = broker.part("t")
    broker._loop.call_soon_threadsafe(
        broker.incarnation.append, TopicId(part.topic_id), 1, 1, b"never acknowledged", None
    )
    time.sleep(0.3)
    assert follower.follow() == Follower(root).follow_to(10) == numbered(0, 10)


def test_the_view_of_other_topics_is_unchanged(root: Root, start: Callable[..., RunningIncarnation]):
    root.create_topic("u")
    broker = start()
    broker.send("t", numbered(0, 10))
    messages.write(root, "u", numbered(0, 3))
    follower = Follower(root, "u")
    assert follower.follow() == numbered(0, 3)


def test_a_scan_does_not_follow_a_writer_that_is_as_fast(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogOnDisk(root)
    log.open_ledgers(["a"])
    log.append({"a": [b"before"]})
    log.idle()
    writer = WriterAsFast(monkeypatch, log, lambda number: b"%d" % number)
    with closing(JournalScan(log.incarnation, root.current_journal_paths)) as scan:
        scan.main_read(log.record, 0, [log.ledger("a")])
        scan.reader.open_files()
        scan.main_read(log.record, 0, [log.ledger("a")])
        scan.scan()
        assert scan.reader.walk.next >= 2
        assert writer.written < 10
        while writer.written < WriterAsFast.MOST:
            scan.scan()
        scan.scan()
        assert scan.reader.walk.next == log.last_frame + 1
