"""The fragments of a log that is being written: their files, and the frames in these files. No IO, no clock.

    ended      acknowledged to their last frame; their entries in the record are final
    running    one; two from a ROLL frame until all frames up to it are acknowledged
    prepared   the files of the next fragment, which the record names before a byte is written to them

`JournalWriter` decides when to roll, to change the record and to acknowledge; this module applies its decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from pulsar_on_spark.ledger.journal.log import NO_FRAME, Copy, Fragment, FrameNumber, LogRecord
from pulsar_on_spark.ledger.journal.messages import BeginFiles, ReleaseFiles, Resend, WriterEffect
from pulsar_on_spark.ledger.journal.placement import Placement
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.model.quorum import Quorum


class Purpose(Enum):
    """The purpose of a change of the record."""

    OPEN = "the first fragment"
    CHANGE = "an ensemble change"
    PREPARE = "the next fragment, ahead of time"
    CLOSE = "a clean close"


@dataclass(slots=True)
class Run:
    """A fragment that is written to; `last` is its last frame, `watermarks` the last durable frame of each copy."""

    first: FrameNumber
    copies: tuple[Copy, ...]
    last: FrameNumber
    watermarks: dict[Copy, FrameNumber]
    size_bytes: int = 0
    rolled: bool = False


@dataclass(slots=True)
class Change:
    """A change of the record in progress: first its files are created, then it is committed.

    `runs` has the copies of each run after the change, `prepared` those of the prepared fragment, None without one.
    `new` has the copies whose files must be created. `proposed` is the record to commit, None until the files are
    created.
    """

    purpose: Purpose
    runs: list[tuple[Copy, ...]]
    prepared: tuple[Copy, ...] | None
    new: tuple[Copy, ...]
    creating: set[Copy] = field(default_factory=set)
    proposed: LogRecord | None = None
    attempts: int = 0


class WriterFragments:
    """The set of a writer's fragments, which is empty at first.

    Attributes:
        ended: The ended fragments that the record still names, in order.
        runs: The fragments that are written to, in order.
        prepared: The files of the prepared fragment; None while there is none.
        lost: The files in use that have failed.
    """

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self._placement = Placement(quorum)
        self.ended: list[Fragment] = []
        self.runs: list[Run] = []
        self.prepared: tuple[Copy, ...] | None = None
        self.lost: set[Copy] = set()

    @property
    def is_hurt(self) -> bool:
        """True if a file that is written to has failed."""
        return any(copy in self.lost for run in self.runs for copy in run.copies)

    def used(self) -> set[Copy]:
        """Return the files of the runs and of the prepared fragment."""
        return {copy for run in self.runs for copy in run.copies} | set(self.prepared or ())

    def sound_copies(self) -> tuple[Copy, ...]:
        """Return the files that the next frame is written to."""
        copies = self.runs[-1].copies
        return tuple(copy for copy in copies if copy not in self.lost) if self.lost else copies

    # -- frames --------------------------------------------------------------------------------------------------------

    def acked(self, copy: Copy, watermark: FrameNumber) -> None:
        """Record that a file has all frames up to the watermark durably."""
        for run in self.runs:
            if watermark > run.watermarks.get(copy, watermark):
                run.watermarks[copy] = watermark

    def durable(self, run: Run) -> FrameNumber:
        """Return the last frame up to which an ack quorum of the run's current copies has all frames."""
        return sorted(run.watermarks[copy] for copy in run.copies)[-self._quorum.ack]

    def roll(self, first: FrameNumber) -> BeginFiles:
        """End the run with the frame before `first`, and continue in the prepared fragment."""
        assert self.prepared is not None, "a roll has somewhere to go"
        copies, self.prepared = self.prepared, None
        self.runs[0].rolled = True
        self.runs.append(Run(first, copies, first - 1, dict.fromkeys(copies, first - 1)))
        return BeginFiles(copies, first)

    def end_first(self) -> list[WriterEffect]:
        """End the first run, which has rolled and is completely acknowledged."""
        run = self.runs.pop(0)
        self.ended.append(Fragment(run.first, run.copies))
        return self._released(run.copies)

    def forget_fragments(self, before: FrameNumber) -> None:
        """Drop the ended fragments whose frames are all below `before`; the record may drop them, too."""
        firsts = [fragment.first or 0 for fragment in self.ended[1:]] + [run.first for run in self.runs[:1]]
        self.ended = [f for f, end in zip(self.ended, firsts, strict=False) if end > before]

    # -- paths ---------------------------------------------------------------------------------------------------------

    def offer_path(self, path: PathId, label: str) -> None:
        """Allow new files on a path, which is new or works again; `label` is its rack."""
        self._placement.offer_path(path, label)

    def fail(self, path: PathId, known: set[Copy]) -> None:
        """Give up a path, and the files in `known` that are on it."""
        self._placement.fail(path)
        self.lost |= {copy for copy in known if copy.path == path}

    def withdraw_path(self, path: PathId) -> None:
        """Create no new file on this path; its open files are used until the next roll."""
        self._placement.fail(path)

    @property
    def is_left_by_roll(self) -> bool:
        """True if the running fragment writes to an excluded path, and the prepared fragment avoids such paths."""
        return (
            self.prepared is not None
            and self._placement.can_leave(self.runs[0].copies)
            and not self._placement.can_leave(self.prepared)
        )

    def drop_unfit_prepared(self) -> list[WriterEffect]:
        """Drop the prepared fragment, which is empty, if a new one can be on better paths.

        A new one is better if a copy is lost or on an excluded path, or if a path for one more copy is available.
        """
        if self.prepared is None:
            return []
        can_be_better = self._placement.can_widen(self.prepared) or self._placement.can_leave(self.prepared)
        if self.lost.isdisjoint(self.prepared) and not can_be_better:
            return []
        dropped, self.prepared = self.prepared, None
        self.lost &= self.used()
        return self._released(dropped)

    # -- changes of the record -----------------------------------------------------------------------------------------

    def planned(self, purpose: Purpose) -> Change | None:
        """Choose copies for every fragment in use; None if too few paths are left for one of them."""
        runs = [self._placed(run.copies) for run in self.runs]
        prepared = self._placed(self.prepared) if self.prepared else None
        if purpose is Purpose.OPEN:
            runs = [self._placed(())]
        elif purpose is Purpose.PREPARE:
            prepared = self._placed(())
        placed = [copies for copies in runs if copies is not None]
        if len(placed) < len(runs) or (purpose is Purpose.PREPARE and prepared is None):
            return None
        used = self.used()
        new = {copy for copies in (*placed, prepared or ()) for copy in copies if copy not in used}
        return Change(purpose, placed, prepared, tuple(sorted(new)))

    def _placed(self, copies: tuple[Copy, ...]) -> tuple[Copy, ...] | None:
        """Replace the lost copies, on paths in use if possible.

        The result is None if too few paths are left (see `Placement.placed`).
        """
        return self._placement.placed(copies, self.lost, [copy.path for run in self.runs for copy in run.copies])

    def proposed(self, change: Change, lac: FrameNumber) -> tuple[Fragment, ...]:
        """Return the fragments that the record will name after the change. `lac` is the last acknowledged frame."""
        fragments = list(self.ended)
        if change.purpose is Purpose.OPEN:
            fragments.append(Fragment(0, change.runs[0]))
        elif change.purpose is Purpose.CLOSE:
            fragments += [Fragment(run.first, run.copies) for run in self.runs if run.first <= lac]
        else:
            fragments += self._running(change, lac)
        return tuple(fragments)

    def _running(self, change: Change, lac: FrameNumber) -> list[Fragment]:
        """Return the fragments of the runs after a change.

        A run whose predecessor has not ended gets no first frame yet.

        `lac` is the last acknowledged frame.
        """
        fragments = []
        start = lac + 1
        for index, (run, copies) in enumerate(zip(self.runs, change.runs, strict=True)):
            if index > 0:
                fragments.append(Fragment(None, copies))
            elif copies != run.copies and start > run.first:
                fragments += [Fragment(run.first, run.copies), Fragment(start, copies)]
            else:
                fragments.append(Fragment(run.first, copies))
        return [*fragments, Fragment(None, change.prepared)] if change.prepared else fragments

    def adopt(self, change: Change, lac: FrameNumber) -> list[WriterEffect]:
        """Use the new copies that the record names, and send them the unacknowledged frames."""
        before = self.used()
        effects: list[WriterEffect] = []
        if change.purpose is Purpose.OPEN:
            copies = change.runs[0]
            self.runs = [Run(0, copies, NO_FRAME, dict.fromkeys(copies, NO_FRAME))]
            effects.append(BeginFiles(copies, 0))
        elif change.purpose is Purpose.CHANGE:
            for index, (run, copies) in enumerate(zip(list(self.runs), change.runs, strict=True)):
                effects += self._replace(run, copies, lac, has_begun=index == 0)
        self.prepared = change.prepared
        effects += self._released(tuple(before))
        self.lost &= self.used()
        return effects

    def _replace(self, run: Run, copies: tuple[Copy, ...], lac: FrameNumber, *, has_begun: bool) -> list[WriterEffect]:
        if copies == run.copies:
            return []
        begin = max(lac + 1, run.first)
        if has_begun and begin > run.first:
            self.ended.append(Fragment(run.first, run.copies))
            run.first = begin
        run.watermarks = self._watermarks(run, copies, begin)
        new = tuple(copy for copy in copies if copy not in run.copies)
        run.copies = copies
        effects: list[WriterEffect] = [BeginFiles(new, begin)] if new else []
        if run.last >= begin:
            effects += [Resend(copy, begin, run.last) for copy in new]
        return effects

    def _watermarks(self, run: Run, copies: tuple[Copy, ...], begin: FrameNumber) -> dict[Copy, FrameNumber]:
        """Return the watermarks of a run's copies; a new copy has acknowledged nothing yet."""
        return {copy: run.watermarks.get(copy, begin - 1) for copy in copies}

    def _released(self, copies: tuple[Copy, ...]) -> list[WriterEffect]:
        used = self.used()
        unused = tuple(sorted(copy for copy in copies if copy not in used))
        return [ReleaseFiles(unused)] if unused else []
