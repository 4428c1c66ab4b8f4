"""A cycle of sealing and trimming, cut off at every step, under every assumption about what the disks had taken.

Metadata commits are durable when they are reported (`tests/crash` proves that), so that of the metadata a crash leaves
what was last reported, or what was just being committed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import pytest

from pulsar_on_spark.metadata.records import IncarnationRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import DataLossError
from pulsar_on_spark.model.ids import EARLIEST
from pulsar_on_spark.root import Root
from pulsar_on_spark.testing.recording_files import Crash, RecordingFiles
from pulsar_on_spark.topic.data_path.reading import SliceReader
from pulsar_on_spark.topic.data_path.tail import Tail
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.sealing.closed_journals import seal_closed
from pulsar_on_spark.topic.managed_ledger.sealing.sealer import Sealer
from pulsar_on_spark.topic.managed_ledger.sealing.trim import Trimmer
from tests.kit import messages
from tests.kit.journal_logs import LogOnDisk

from .test_sealer import entry

TOPICS = ("a", "b")
Decide = Callable[[View], Change | None]


class NoDataSync(RecordingFiles):
    """A sealer that forgets to sync its bytes."""

    def fdatasync(self, fd: int) -> None:
        pass


class NoDirectorySync(RecordingFiles):
    """A sealer that forgets to sync its names."""

    def fsync_directory(self, path: Path) -> None:
        pass


@dataclass(frozen=True)
class Commit:
    """The metadata after a commit, which lay between these two steps."""

    begin: int
    end: int
    metadata: Path


@dataclass(frozen=True)
class Cycle:
    """The record of a cycle: the root before it, the steps on its files, the metadata after each of its commits."""

    root: Path
    before: Path
    files: RecordingFiles
    commits: list[Commit]

    def states(self, *, at_end: bool = False) -> Iterator[str]:
        """Puts each state that a crash may leave in the root's place, `at_end` or anywhere, and says which it is."""
        recording = self.files.recording(self.before / "storage")
        seen = set()
        for step in range(len(recording.steps) if at_end else 0, len(recording.steps) + 1):
            done = [commit for commit in self.commits if commit.end <= step]
            under_way = [commit for commit in self.commits if commit.begin <= step < commit.end]
            for commit in [*done[-1:], *under_way] or [None]:
                metadata = self.before / "metadata" if commit is None else commit.metadata
                for crash in Crash:
                    recording.materialise(step, crash, self.root / "storage", self.root / "storage")
                    state = (metadata, _digest(self.root / "storage"))
                    if state not in seen:
                        seen.add(state)
                        shutil.rmtree(self.root / "metadata")
                        shutil.copytree(metadata, self.root / "metadata")
                        yield f"step {step} of {len(recording.steps)}, {crash.name}, {metadata.name}"


def _digest(directory: Path) -> bytes:
    found = blake2b()
    for path in sorted(directory.rglob("*")):
        found.update(str(path).encode())
        if path.is_file():
            found.update(path.read_bytes())
    return found.digest()


def run_cycle(log: LogOnDisk, directory: Path, files: RecordingFiles) -> Cycle:
    root, store = log.root.path, log.root.store
    cycle = Cycle(root, directory / "before", files, [])
    shutil.copytree(root, cycle.before)
    commit = store.commit

    def recorded(decide: Decide) -> View:
        begin = len(files.recording().steps)
        view = commit(decide)
        metadata = directory / f"metadata-{len(cycle.commits)}"
        shutil.copytree(root / "metadata", metadata)
        cycle.commits.append(Commit(begin, len(files.recording().steps), metadata))
        return view

    store.commit = recorded  # type: ignore[method-assign]
    sealer = Sealer(log.root, log.incarnation, is_live=log.record.last_frame is None, files=files)  # type: ignore[arg-type]
    trimmer = Trimmer(log.root, log.incarnation, sealer.cursors, grace_s=0, files=files)  # type: ignore[arg-type]
    sealer.seal(tail=True)
    assert trimmer.trim().deleted_files > 0
    sealer.close()
    store.commit = commit  # type: ignore[method-assign]
    assert len(cycle.commits) >= 3
    return cycle


def readable(root: Root, topic: str) -> list[bytes]:
    """Every message of a topic, from segments and the journal."""
    (part,) = messages.target(root, topic).parts
    tail = Tail(root)
    seen = tail.read_view([part])
    tail.close()
    plan = chain.plan_range(seen, part.name, part.topic_id, -1, EARLIEST, chain.read_limit(seen, part.topic_id))
    assert not plan.losses, plan.losses
    reader = SliceReader(root.path, root.storage_paths(root.store.view()), ("value",))
    return [v for one in plan.slices for _, batch in reader.read(one) for v in batch.column("value").to_pylist()]


@pytest.fixture
def log(memory_path: Path) -> LogOnDisk:
    """Three files, the last one still written to; of it nothing but the last frame is not known to be acknowledged."""
    made = LogOnDisk(Root.create(memory_path / "root"))
    made.open_ledgers(TOPICS)
    for number in range(3):
        made.append({topic: [entry(number)] for topic in TOPICS})
        if number < 2:
            made.roll()
    made.idle()
    return made


EXPECTED = [f"value {number}".encode() for number in range(3)]


@pytest.mark.parametrize("closed", [False, True])
def test_some_crashes_leave_all_that_was_acknowledged(log: LogOnDisk, memory_path: Path, closed: bool) -> None:
    """Each fourth, others of a log that is closed."""
    check_crashes(log, memory_path, closed, first=2 * closed, each=4)


@pytest.mark.long
@pytest.mark.parametrize("closed", [False, True])
def test_every_crash_leaves_all_that_was_acknowledged(log: LogOnDisk, memory_path: Path, closed: bool) -> None:
    check_crashes(log, memory_path, closed)


def check_crashes(log: LogOnDisk, memory_path: Path, closed: bool, first: int = 0, each: int = 1) -> None:
    if closed:
        log.close()
    cycle = run_cycle(log, memory_path, RecordingFiles(memory_path / "steps"))
    count = 0
    for state in islice(cycle.states(), first, None, each):
        count += 1
        after = Root.open(cycle.root)
        for topic in TOPICS:
            assert readable(after, topic) == EXPECTED, state
        # The reader has recovered the log; the next sealer and trimmer reach the same end.
        for _ in range(2):
            seal_closed(after, pytest.fail, grace_s=0)
        assert not after.store.view().all(IncarnationRecord), state
        for topic in TOPICS:
            assert readable(after, topic) == EXPECTED, f"{state}, and the cycle after it"
    assert count > 20 // each


@pytest.mark.parametrize("broken", [NoDataSync, NoDirectorySync])
def test_a_forgotten_sync_is_found(log: LogOnDisk, memory_path: Path, broken: type[RecordingFiles]) -> None:
    cycle = run_cycle(log, memory_path, broken(memory_path / "steps"))

    def is_whole() -> bool:
        after = Root.open(cycle.root)
        try:
            return all(readable(after, topic) == EXPECTED for topic in TOPICS)
        except (DataLossError, AssertionError):
            return False

    assert not all(is_whole() for _ in cycle.states(at_end=True))


def test_deleting_before_the_trim_is_committed_is_found(log: LogOnDisk, memory_path: Path) -> None:
    """As it would be if the trimmer did not wait: the crash falls between the first deletion and the commits."""
    cycle = run_cycle(log, memory_path, RecordingFiles(memory_path / "steps"))
    recording = cycle.files.recording(cycle.before / "storage")
    recording.materialise(len(recording.steps), Crash.KEEP_ALL, cycle.root / "storage", cycle.root / "storage")
    shutil.rmtree(cycle.root / "metadata")
    shutil.copytree(cycle.before / "metadata", cycle.root / "metadata")
    with pytest.raises(DataLossError):
        readable(Root.open(cycle.root), "a")
