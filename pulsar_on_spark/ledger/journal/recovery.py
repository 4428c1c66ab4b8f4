"""Recovery of a log whose writer is dead, or seems dead: any process may run it at any time, also several at once.

    STARTING  compare-and-set to IN_RECOVERY; from here on the writer can change nothing in the record
    FENCING   fence the copies of the fragments that may still be written to, and learn the highest LAC in them
    READING   read frame by frame from the LAC on, across ROLL frames. A frame exists if one copy has it. It does not
              exist if too many copies lack it for it ever to reach its ack quorum. In any other case, stop instead of
              guessing. Frames above the LAC are written back into files of this recovery
    CLOSING   compare-and-set to CLOSED, naming the files that count

An operator who knows that a path is lost for good may give it up (`GiveUpPath`). Only then does "unknown" count as
"lost", if every other copy of the write set has answered. Frames that a given-up path still returns count as usual.

Sources of the rules: forward reading and fencing reads are from BookKeeper #2614, the floor from #2615, and the new
version at each start from BookKeeper's TLA+ specification. `recovery_answers` decides what the answers mean,
`recovery_files` has the frames that are written back.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from enum import Enum

from pulsar_on_spark.ledger.journal.log import (
    NO_FRAME,
    Copy,
    Fragment,
    FrameNumber,
    LogRecord,
    LogState,
    ended_before,
    fault_in,
    unended_fragments,
)
from pulsar_on_spark.ledger.journal.messages import (
    CommitLog,
    CopyAcked,
    CopyFailed,
    CopyFenced,
    CopyRead,
    CopySilent,
    FenceCopy,
    FileCreated,
    FileNotCreated,
    GiveUpPath,
    LogCommitted,
    LogCommitUnknown,
    LogConflict,
    LogRead,
    LogRecovered,
    ReadLog,
    RecoveryEffect,
    RecoveryEvent,
    RecoveryStopped,
    StartRecovery,
)
from pulsar_on_spark.ledger.journal.recovery_answers import Answers
from pulsar_on_spark.ledger.journal.recovery_files import RecoveryFiles
from pulsar_on_spark.model.ids import PathId

MAX_COMMIT_ATTEMPTS = 20
"""Attempts of one commit; then the recovery stops and may be started again."""


class _Phase(Enum):
    NEW = "not started"
    STARTING = "the record is being set to IN_RECOVERY"
    FENCING = "copies are being fenced"
    READING = "frames are being read and written back"
    CLOSING = "the record is being closed"
    OVER = "recovered or stopped"


class Recovery:
    """An attempt to recover a log, which ends with a CLOSED log or with `RecoveryStopped`."""

    def __init__(self, name: str, paths: tuple[PathId, ...], read_limit: int = 256, window: int = 1024) -> None:
        """Create a recovery that has not started.

        Args:
            name: A name that is unique to this attempt; it marks the attempt's commits and names its files.
            paths: Paths that may be written to, best ones first.
            read_limit: Number of frames that are requested at once.
            window: Limit of the frames that are read and not yet written back; at this limit, reading waits.
        """
        self._name = name
        self._read_limit = read_limit
        self._window = window
        self._phase = _Phase.NEW
        self._record: LogRecord | None = None
        self._version = 0
        self._proposed: LogRecord | None = None
        self._proposals = 0
        self._attempts = 0
        self._answers = Answers()
        self._files = RecoveryFiles(name, paths)
        self._fragments: tuple[Fragment, ...] = ()
        self._at = 0
        self._lac = NO_FRAME
        self._next: FrameNumber = 0
        self._negative = False

    def handle(self, event: RecoveryEvent) -> list[RecoveryEffect]:
        """Handle an event; events after the end are ignored."""
        if self._phase is _Phase.OVER:
            return []
        match event:
            case CopyFenced(copy) | CopySilent(copy) if self._answers.lacks_fence(copy):
                return self._fenced(event)
            case CopyRead() | CopySilent():
                return self._read(event)
            case CopyAcked(copy, watermark):
                return self._acked(copy, watermark)
            case FileCreated(copy):
                return self._files.created(copy)
            case FileNotCreated(copy) | CopyFailed(copy):
                return self._failed(copy)
            case LogCommitted(version):
                return self._committed(version)
            case LogConflict(record, version) | LogRead(record, version):
                return self._outcome(record, version)
            case LogCommitUnknown():
                return [ReadLog()]
            case GiveUpPath() | StartRecovery():
                return self._begin(event)
            case _:
                return []

    def _begin(self, event: GiveUpPath | StartRecovery) -> list[RecoveryEffect]:
        assert self._phase is _Phase.NEW, "a recovery starts once, and paths are given up before that"
        if isinstance(event, GiveUpPath):
            self._answers.given_up.add(event.path)
            return []
        self._phase = _Phase.STARTING
        return [ReadLog()]

    # -- the register --------------------------------------------------------------------------------------------------

    def _outcome(self, record: LogRecord | None, version: int) -> list[RecoveryEffect]:
        if record is None:
            return self._stop("there is no record of this log")
        if record.state is LogState.CLOSED:
            return self._recovered(record)
        if self._proposed is not None and record.token == self._proposed.token:
            return self._committed(version)
        if self._phase is _Phase.STARTING:
            self._record, self._version = record, version
            return self._propose(self._start(record))
        if version == self._version and self._phase is _Phase.CLOSING:
            return self._propose(self._end())
        return self._stop("another recovery has started after this one")

    def _propose(self, record: LogRecord) -> list[RecoveryEffect]:
        if self._attempts >= MAX_COMMIT_ATTEMPTS:
            return self._stop(f"{MAX_COMMIT_ATTEMPTS} commits of the record failed")
        assert fault_in(record) is None, fault_in(record)
        self._attempts += 1
        self._proposed = record
        return [CommitLog(record, self._version, moves_seal=self._phase is _Phase.STARTING)]

    def _token(self) -> str:
        self._proposals += 1
        return f"{self._name}:{self._proposals}"

    def _start(self, record: LogRecord) -> LogRecord:
        """Make the record that starts this recovery, even of a log IN_RECOVERY: only the latest recovery may close."""
        return replace(record, state=LogState.IN_RECOVERY, token=self._token())

    def _committed(self, version: int) -> list[RecoveryEffect]:
        assert self._proposed is not None, "a commit was proposed"
        self._version, self._attempts = version, 0
        if self._phase is _Phase.CLOSING:
            return self._recovered(self._proposed)
        self._record, self._proposed = self._proposed, None
        return self._fence()

    @property
    def _taken(self) -> LogRecord:
        assert self._record is not None, "the record was taken"
        return self._record

    # -- fencing -------------------------------------------------------------------------------------------------------

    def _fence(self) -> list[RecoveryEffect]:
        self._phase = _Phase.FENCING
        self._fragments = unended_fragments(self._taken)
        copies = [copy for fragment in self._fragments for copy in fragment.copies]
        self._answers.expect_fences(copies, self._taken.ack_quorum)
        return [FenceCopy(copy) for copy in self._answers.asked_to_fence]

    def _fenced(self, answer: CopyFenced | CopySilent) -> list[RecoveryEffect]:
        answers = self._answers
        answers.fenced(answer)
        if self._phase is not _Phase.FENCING:
            return self._judge() if self._phase is _Phase.READING and answers.late(answer) else []
        if not all(self._is_settled(fragment.copies) for fragment in self._fragments):
            return []
        self._find_start()
        if answers.is_fenced(self._fragments[self._at].copies):
            self._phase = _Phase.READING
            return self._open_sources()
        if answers.have_answered(answers.asked_to_fence):
            return self._stop("too few copies of the last fragment can be fenced")
        return []

    def _is_settled(self, copies: Collection[Copy]) -> bool:
        """Return True if none of the awaited answers to fence requests can change the frame at which reading starts."""
        is_known = self._answers.is_fenced(copies) and not self._answers.lacks_first_frame(copies)
        return is_known or self._answers.have_answered(copies)

    def _floor(self) -> FrameNumber:
        """Return the frame before which all frames are acknowledged according to the record (BookKeeper #2615)."""
        return ended_before(self._taken)

    def _find_start(self) -> None:
        """Set the frame at which reading starts: the LAC's, which may be a ROLL, or a later fragment's first frame.

        Earlier frames are acknowledged, and their files need no fence.
        """
        self._lac = max([self._floor() - 1, *self._answers.known_lacs()])
        self._next = max(self._lac, self._floor())
        if len(self._fragments) > 1:
            firsts = self._answers.first_frames(self._fragments[1].copies)
            begun = [first for first in firsts if first <= self._lac + 1]
            if begun:
                self._enter(1, begun[0])
                self._next = max(self._lac, begun[0])

    # -- reading -------------------------------------------------------------------------------------------------------

    def _enter(self, index: int, first: FrameNumber) -> None:
        self._at = index
        entered = Fragment(first, self._fragments[index].copies)
        self._fragments = (*self._fragments[:index], entered, *self._fragments[index + 1 :])

    def _open_sources(self) -> list[RecoveryEffect]:
        self._answers.begin(self._fragments[self._at].copies, self._next)
        return self._judge()

    def _read(self, answer: CopyRead | CopySilent) -> list[RecoveryEffect]:
        return self._judge() if self._phase is _Phase.READING and self._answers.read(answer) else []

    def _judge(self) -> list[RecoveryEffect]:
        """Advance over the frames that the answers have, then request more frames, conclude or stop."""
        effects: list[RecoveryEffect] = []
        while self._phase is _Phase.READING and not self._negative:
            holder = self._answers.holder(self._next)
            if holder is None:
                return effects + self._conclude()
            copy, source = holder
            effects += self._take(copy, source.last)
            self._next = source.last + 1
            if source.roll_at == source.last:
                if self._at + 1 == len(self._fragments):
                    return effects + self._stop("a ROLL frame leads to a fragment that the record does not name")
                self._enter(self._at + 1, self._next)
                return effects + self._open_sources()
        return effects

    def _conclude(self) -> list[RecoveryEffect]:
        answers = self._answers
        must_exist = self._next <= self._lac  # then every copy is asked for it
        if answers.is_negative() and (answers.is_complete or not must_exist):
            if must_exist and not answers.misses_given_up:
                return self._stop(f"frame {self._next} is acknowledged, and its copies are lost")
            self._negative = True
            return self._close_if_done()
        if self._files.backlog(self._next, self._lac) >= self._window:
            return []
        effects: list[RecoveryEffect] = [*answers.ask(self._next, self._read_limit)]
        if not effects and not answers.is_waiting:
            return self._stop(
                f"it cannot be decided whether frame {self._next} was acknowledged: a path is away or damaged"
            )
        return effects

    # -- writing back --------------------------------------------------------------------------------------------------

    def _take(self, source: Copy, last: FrameNumber) -> list[RecoveryEffect]:
        first = max(self._next, self._lac + 1)
        if first > last:
            return []
        is_first = not self._files.held
        effects = self._files.write_back_frames(first, last, source)
        return self._add_targets() if is_first else effects

    def _add_targets(self) -> list[RecoveryEffect]:
        effects = self._files.add_targets(self._taken.write_quorum)
        if len(self._files.targets) < self._taken.ack_quorum:
            return self._stop("fewer paths can be written to than the ack quorum")
        return effects

    def _acked(self, copy: Copy, watermark: FrameNumber) -> list[RecoveryEffect]:
        if not self._files.acked(copy, watermark):
            return []
        return self._close_if_done() or (self._judge() if self._phase is _Phase.READING else [])

    def _failed(self, copy: Copy) -> list[RecoveryEffect]:
        if copy not in self._files.targets or self._phase is not _Phase.READING:
            return []
        return [*self._files.failed(copy), *(self._add_targets() or self._close_if_done() or self._judge())]

    @property
    def dispensable(self) -> list[Copy]:
        """The files that the close still waits for, although an ack quorum of other files has all frames."""
        if self._phase is not _Phase.READING or not self._negative:
            return []
        return self._files.dispensable(self._next - 1, self._taken.ack_quorum)

    # -- closing -------------------------------------------------------------------------------------------------------

    def _close_if_done(self) -> list[RecoveryEffect]:
        if self._phase is not _Phase.READING or not self._negative or not self._files.have(self._next - 1):
            return []
        self._phase = _Phase.CLOSING
        return self._propose(self._end())

    def _end(self) -> LogRecord:
        """Make the record of the closed log.

        Frames up to the LAC stay in their files; later frames are in the recovery's files. The record omits the
        fragments that begin above the LAC, because the recovery's files replace them.
        """
        last = self._next - 1
        ended = self._taken.fragments[: len(self._taken.fragments) - len(self._fragments)]
        begun = [fragment for fragment in (*ended, *self._fragments) if fragment.first is not None]
        kept = min(self._lac, last)  # less than the LAC only where paths were given up
        fragments = [fragment for fragment in begun if fragment.first is not None and fragment.first <= kept]
        if self._files.held:
            fragments.append(Fragment(self._lac + 1, self._files.counted()))
        return replace(
            self._taken,
            state=LogState.CLOSED,
            fragments=tuple(fragments),
            last_frame=last,
            token=self._token(),
            given_up=tuple(sorted(self._answers.given_up)),
        )

    def _recovered(self, record: LogRecord) -> list[RecoveryEffect]:
        self._phase = _Phase.OVER
        return [*self._files.release(), LogRecovered(record)]

    def _stop(self, reason: str) -> list[RecoveryEffect]:
        self._phase = _Phase.OVER
        return [*self._files.release(), RecoveryStopped(reason)]
