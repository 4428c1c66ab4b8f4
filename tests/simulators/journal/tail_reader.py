"""A simulated reader of the tail: it looks again and again, and gives its user what is new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from pulsar_on_spark.ledger.journal.log import Fragment, LogState
from pulsar_on_spark.ledger.journal.log_index import GapError, LogIndex
from pulsar_on_spark.ledger.journal.sealing import is_unfinished
from pulsar_on_spark.model.ids import LedgerId
from tests.simulators.journal.disk import SimFrame
from tests.simulators.journal.log_files import LogFiles
from tests.simulators.journal.oracle import Place, ViolationError
from tests.simulators.journal.world import Actor, World
from tests.simulators.journal.writer_process import LEDGERS

MAX_PASSES = 2
"""Passes of one look over the same gap."""
MAX_ROUNDS = 20
"""Readings of main in one look."""


class SimRun(NamedTuple):
    """The entries of one ledger in one frame."""

    frame: int
    first: int
    end: int


Stretch: TypeAlias = tuple[Fragment | None, list[SimRun], int]
Readable: TypeAlias = tuple[Sequence[Stretch], int]


class TailProcess(Actor):
    """A reader of the tail.

    Attributes:
        had: Behind the last entry of each ledger that its user has.
        failed: Why its last look gave nothing; None: it did not fail.
        skipped: Entries that it went on without, being told to.
    """

    def __init__(self, world: World, name: str, *, fail_on_loss: bool = True) -> None:
        """Create the reader: it begins at `start`, also after each pass; without `fail_on_loss` it skips losses."""
        super().__init__(world, name)
        self._fail_on_loss = fail_on_loss
        self.skipped = 0
        self.had = dict.fromkeys(LEDGERS, 0)
        self.is_busy = False
        self.failed: str | None = None
        self.holes = 0
        self._index: LogIndex[SimRun, Stretch] = LogIndex()
        self._index.select_ledgers(LEDGERS)
        self._files = LogFiles(self, 0, world.rng.randrange(3))
        self._main = world.register.main
        self._faults = 0
        self._rounds = 0
        self._pass = 0
        self._had_failures = False

    def start(self) -> None:
        """Begin a look, unless one is under way."""
        if not self.is_busy and self.alive and self.world.register.log is not None:
            self.is_busy = True
            self._begin_pass(1)

    def _begin_pass(self, number: int) -> None:
        self._pass = number
        self._rounds = 0
        self._faults = self.world.faults
        self._files.found_dead = False
        self._had_failures = self._files.failures > 0
        self.world.post(self, self.read_main)

    def read_main(self) -> None:
        """Take a view of main."""
        main = self._main = self.world.register.main
        unfinished = [ledger for ledger in LEDGERS if is_unfinished(main.ends.get(ledger), main.sealed.get(ledger, 0))]
        if main.is_gone or not unfinished:
            self._show({ledger: ((), main.sealed.get(ledger, 0)) for ledger in LEDGERS})
            return
        self._files.main_read(main)
        self._rounds += 1
        self.world.post(self, self.open_next)

    def open_next(self) -> None:
        """Open one more of the files; if any was opened, main is read again."""
        copy = self._files.walk.to_open()
        if copy is not None:
            self._files.open(copy)
            self.world.post(self, self.open_next)
        elif self._files.walk.is_ready or self._rounds > MAX_ROUNDS:
            self.world.post(self, self._files.read, self._take, self.conclude, self._pass > 1)
        else:
            self.world.post(self, self.read_main)

    def _take(self, frame: SimFrame) -> None:
        for entries in frame.entries:
            self._index.add(entries.ledger, SimRun(frame.facts.number, entries.first, entries.end))

    def conclude(self) -> None:
        """All that is there was looked at: show it, or say what is missing."""
        main, walk = self._main, self._files.walk
        strict = self._fail_on_loss or self._pass < MAX_PASSES
        if not strict and walk.skip_hole() is not None:
            self.world.post(self, self._files.read, self._take, self.conclude, True)
            return
        if strict and walk.is_stuck:
            self._fail(walk.next, f"frame {walk.next} is missing")
            return
        readable: dict[LedgerId, Readable] = {}
        for ledger in LEDGERS:
            entries = main.ends.get(ledger) if main.record.state is LogState.CLOSED else None
            sealed_end = main.sealed.get(ledger, 0)
            try:
                readable[ledger] = self._index.readable(
                    ledger, sealed_end, walk.resolved, walk.last_readable, _stretch, entries=entries, strict=strict
                )
            except GapError as gap:
                self._fail(walk.next, str(gap))
                return
        self._show(readable)

    def _show(self, readable: Mapping[LedgerId, Readable]) -> None:
        """Give everything behind what was shown before to the user."""
        self.is_busy, self.failed = False, None
        oracle, places = self.world.oracle, []
        for ledger, (stretches, end) in readable.items():
            oracle.on_end(self.had[ledger], ledger, end)
            sealed_end = self._main.sealed.get(ledger, 0)
            if self.had[ledger] < sealed_end:
                places.append(Place(ledger, self.had[ledger], sealed_end, None, ()))
            for fragment, runs, first in stretches:
                for run in runs:
                    begin = max(run.first, first, self.had[ledger])
                    if begin < run.end:
                        copies = () if fragment is None else fragment.copies
                        places.append(Place(ledger, begin, run.end, run.frame, copies))
        self.skipped += oracle.on_delivered(self.had, places, may_skip=not self._fail_on_loss)

    def _fail(self, frame: int, reason: str) -> None:
        self.holes += 1
        self._check_excuse(frame, reason)
        self._files.forget_failures()
        if self._pass < MAX_PASSES:
            self._begin_pass(self._pass + 1)
        else:
            self.is_busy, self.failed = False, reason

    def _check_excuse(self, frame: int, reason: str) -> None:
        """A pass may fail if something is or was away or lost, or the frame's copies were replaced meanwhile.

        Or if the copy that is open lags, and the others were deleted before they were needed.
        """
        world, oracle = self.world, self.world.oracle
        then = oracle.holding(self._main.record, frame)
        since = oracle.holding(world.register.main.record, frame)
        replaced = then is not None and since is not None and then.copies != since.copies
        lags = then is not None and self._files.has_open(then.copies)
        was_away = self._had_failures or self._files.found_dead or world.losses or world.faults != self._faults
        if not (replaced or lags or was_away) and all(path.usable for path in world.paths.values()):
            raise ViolationError(f"L2: nothing is away, and {self.name} sees a hole: {reason}")


def _stretch(first: int, fragment: Fragment | None, runs: list[SimRun]) -> Stretch:
    return fragment, runs, first
