"""Simulated sealers, trimmers and openers of ledgers, of a live incarnation and of a dead one's.

Their shells are short copies of the real ones: each step that another process may come between is an event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from pulsar_on_spark.ledger.journal.log import Copy, LogState
from pulsar_on_spark.ledger.journal.messages import FragmentsTrimmed
from pulsar_on_spark.ledger.journal.sealing import (
    EntryRange,
    deleted_before,
    ended_spans,
    files_to_delete,
    first_gap,
    is_sealed,
    may_open,
    may_seal,
    may_trim,
    pruned,
    sealable_to,
    trimmable_before,
)
from pulsar_on_spark.model.ids import EntryId, LedgerId
from tests.simulators.journal.disk import SimFrame
from tests.simulators.journal.log_files import LogFiles
from tests.simulators.journal.object_disk import SimStore
from tests.simulators.journal.oracle import ViolationError
from tests.simulators.journal.register import MainView, SealCommit
from tests.simulators.journal.world import Actor, World
from tests.simulators.journal.writer_process import WriterProcess

Task: TypeAlias = Literal["seal", "end", "trim", "open", "close"]
Decide: TypeAlias = Callable[[MainView], SealCommit | None]

CLOSES_AT_ONCE = 2
"""Close rows of one commit: the others come with the next."""


class Housekeeper(Actor):
    """A task of a sealer, a trimmer or a broker: read main, read the journal, decide, commit, delete."""

    def __init__(self, world: World, name: str, task: Task, writer: WriterProcess) -> None:
        """It begins with `start`."""
        super().__init__(world, name)
        self._task = task
        self._writer = writer
        self._frames: list[SimFrame] = []

    def start(self) -> None:
        """Begin."""
        self.world.post(self, self.read_main)

    def read_main(self) -> None:
        """Take a view of main."""
        main = self.world.register.main
        if main.log is None or main.is_gone:
            return
        match self._task:
            case "seal":
                self._read_frames(main, main.sealed_before, self.sealed)
            case "end":
                self.world.post(self, self.commit, self._end)
            case "trim":
                self._snapshot_or_trim(main)
            case "open":
                self.world.post(self, self.commit, self._open)
            case "close":
                self._close_drained()

    def _read_frames(self, main: MainView, begin: int, then: Callable[[MainView, LogFiles], None]) -> None:
        files = LogFiles(self, begin, self.world.rng.randrange(3))
        files.walk.main_read(main.record, begin)
        self._frames = []
        self.world.post(self, files.read, self._frames.append, lambda: then(main, files))

    # -- sealing -------------------------------------------------------------------------------------------------------

    def sealed(self, main: MainView, files: LogFiles) -> None:
        """Frames were read: write a file of those that may be sealed, then commit it."""
        limit = sealable_to(main.record, files.walk.lac)
        frames = [frame for frame in self._frames if frame.facts.number <= limit]
        if frames and self.world.random() < 0.3:
            frames = frames[: 1 + int(self.world.random() * len(frames))]  # a file is full
        if frames:
            state, begin, end = main.record.state, main.sealed_before, frames[-1].facts.number + 1
            ranges = _by_ledger(frames)
            self.world.post(self, self.commit, lambda now: _seal(now, state, begin, end, ranges))

    # -- ledgers -------------------------------------------------------------------------------------------------------

    def _end(self, main: MainView) -> SealCommit | None:
        if not is_sealed(main.record, main.marks) or not main.unended:
            return None
        ends = {ledger: main.sealed.get(ledger, EntryId(0)) for ledger in main.unended[:CLOSES_AT_ONCE]}
        return SealCommit(main, ends=ends)

    def _close_drained(self) -> None:
        """Close a ledger as its owner, while the others stay open."""
        drained = self._writer.drained()
        if drained is None:
            self._writer.retire()
            return
        ledger, entries = drained
        self.world.post(self, self.commit, lambda now: _close(now, ledger, entries))

    def _open(self, main: MainView) -> SealCommit | None:
        ledger = LedgerId(100 + len(main.opened))
        return SealCommit(main, opens=ledger) if may_open(main.record.state) else None

    # -- trimming ------------------------------------------------------------------------------------------------------

    def _snapshot_or_trim(self, main: MainView) -> None:
        """Trim the log; snapshot the cursors of a closed one first, as no broker will."""
        begins = [
            max(begin, main.trimmed_before) for begin, end in ended_spans(main.record) if end > main.trimmed_before
        ]
        if not begins:
            self.delete()
        elif main.record.last_frame is not None and is_sealed(main.record, main.marks):
            self._read_frames(main, begins[0], self.snapshot)
        else:
            self._read_frames(main, begins[0], self.trim)

    def snapshot(self, main: MainView, files: LogFiles) -> None:
        """The cursors of a dead broker go to Delta, from its closed log."""
        last = main.record.last_frame
        for frame in self._frames:
            if last is not None and frame.facts.number <= last:
                for subscription, n in frame.cursors:
                    self.world.append_snapshot(subscription, n)
        self.world.post(self, self.trim, main, files)

    def trim(self, main: MainView, _: LogFiles) -> None:
        """The frames' cursor records are known: trim as far as all have a snapshot."""
        by_number = {frame.facts.number: frame for frame in self._frames}
        snapshots = dict(self.world.register.snapshots)

        def is_snapshotted(begin: int, end: int) -> bool:
            frames = [by_number.get(number) for number in range(begin, end)]
            return all(frame is not None and _has_snapshots(frame, snapshots) for frame in frames)

        before = trimmable_before(main.record, main.marks, is_snapshotted)
        if before > main.trimmed_before:
            self.world.post(self, self.commit, lambda now: _trim(now, before), self.delete)
        else:
            self.world.post(self, self.delete)

    def delete(self) -> None:
        """Delete what is committed as trimmed, file by file."""
        main = self.world.register.main
        if main.is_gone:
            return
        doomed = files_to_delete(main.record, main.trimmed_before)
        self.world.post(self, self.delete_next, doomed, main, [])

    def delete_next(self, doomed: tuple[Copy, ...], main: MainView, deleted: list[Copy]) -> None:
        """Unlink one; a path that is away keeps it. Then the record may forget."""
        if not doomed:
            before = deleted_before(main.record, main.trimmed_before, deleted)
            self.world.post(self._writer, self._writer.feed, FragmentsTrimmed(before))
            self.world.post(self, self.commit, lambda now: _prune(now, deleted))
            return
        copy, path = doomed[0], self.world.paths[doomed[0].path]
        if not path.is_away:
            if copy in path.files:
                self.world.oracle.on_delete(copy)
            if path.delete_next(copy) and isinstance(path, SimStore):
                self.world.post(self, self.delete_next, doomed, main, deleted)
                return
            deleted.append(copy)
        if self.world.random() < 0.5:
            self.delete_next(doomed[1:], main, deleted)
        else:
            self.world.post(self, self.delete_next, doomed[1:], main, deleted)

    # -- commits -------------------------------------------------------------------------------------------------------

    def commit(self, decide: Decide, then: Callable[[], None] | None = None) -> None:
        """Decide on main as it is now; the commit arrives later."""
        main = self.world.register.main
        commit = None if main.is_gone else decide(main)
        if commit is None:
            return
        if self.world.random() < self.world.profile.unknown:
            # The commit arrives later, and the process that waits for it decides again.
            self.world.post(None, self.late, commit)
            self.world.post(self, self.commit, decide, then)
        else:
            self.world.post(None, self.arrive, commit, decide, then)

    def arrive(self, commit: SealCommit, decide: Decide, then: Callable[[], None] | None) -> None:
        """Compare and set; after a conflict it decides again."""
        if not self.apply(commit):
            self.world.post(self, self.commit, decide, then)
        elif then is not None:
            self.world.post(self, then)

    def late(self, commit: SealCommit) -> None:
        """A commit that was reported as unknown arrives after all."""
        self.apply(commit)

    def apply(self, commit: SealCommit) -> bool:
        """Compare and set."""
        world = self.world
        before = world.register.main
        if not world.register.commit_seal(commit):
            return False
        world.note(f"{self.name} commits {commit}")
        world.oracle.on_seal_commit(before, commit)
        return True


def _by_ledger(frames: Sequence[SimFrame]) -> tuple[EntryRange, ...]:
    """The entries of consecutive frames, one range for each ledger."""
    found: dict[LedgerId, EntryRange] = {}
    for frame in frames:
        for entries in frame.entries:
            first = found[entries.ledger].first if entries.ledger in found else entries.first
            found[entries.ledger] = EntryRange(entries.ledger, first, entries.end)
    return tuple(found.values())


def _seal(main: MainView, state: LogState, begin: int, end: int, ranges: tuple[EntryRange, ...]) -> SealCommit | None:
    if not may_seal(main.record, main.marks, state, begin, end):
        return None
    gap = first_gap(main.sealed, ranges)
    if gap is not None:
        raise ViolationError(f"I5: {gap} does not follow what is sealed, although the frames do")
    return SealCommit(main, sealed=ranges, sealed_before=end)


def _close(main: MainView, ledger: LedgerId, entries: EntryId) -> SealCommit | None:
    return SealCommit(main, ends={ledger: entries}) if may_open(main.record.state) else None


def _trim(main: MainView, before: int) -> SealCommit | None:
    return SealCommit(main, trimmed_before=before) if may_trim(main.record, main.marks, before) else None


def _prune(main: MainView, deleted: Sequence[Copy]) -> SealCommit | None:
    kept = pruned(main.record, main.marks, deleted)
    return None if kept is None else SealCommit(main, fragments=kept)


def _has_snapshots(frame: SimFrame, snapshots: dict[str, int]) -> bool:
    return all(snapshots.get(subscription, -1) >= n for subscription, n in frame.cursors)
