"""The journal's writer: pipelined groups, acknowledged in order; ensemble change; rolling. No IO, no clock.

    AddGroup -> Append to all copies ... CopyAcked, CopyAcked -> Acknowledged(lac)
    CopyFailed -> acknowledging stops -> CreateFile on a spare -> CommitLog -> Resend -> acknowledging resumes
    file full -> ROLL, and the next group goes to the fragment that was prepared ahead, without waiting for a commit

The rules, each a method of its own:

- A frame counts once it is on an ack quorum of its fragment's *current* copies (`WriterFragments.durable`), and is
  acknowledged only when all frames before it are (`_advance`).
- Nothing is acknowledged between the failure of a copy and the commit of the record that replaces it (`_changing`).
- A file is written to only when the record names it (`_files_ready`).
- A writer that finds the record not OPEN is fenced: the outcome of frames in flight is unknown (`_outcome`).
- Only the last fragment whose predecessor has ended gets a first frame in the record (`WriterFragments.proposed`).
"""

from __future__ import annotations

from enum import Enum

from pulsar_on_spark.ledger.journal.log import (
    NO_FRAME,
    Copy,
    FrameFacts,
    FrameKind,
    FrameNumber,
    LogRecord,
    LogState,
    fault_in,
)
from pulsar_on_spark.ledger.journal.messages import (
    Acknowledged,
    AddGroup,
    Append,
    BecameIdle,
    CloseLog,
    CommitLog,
    CopyAcked,
    CopyFailed,
    CreateFile,
    FileCreated,
    FileNotCreated,
    FragmentsTrimmed,
    LogAbandoned,
    LogClosed,
    LogCommitted,
    LogCommitUnknown,
    LogConflict,
    LogFenced,
    LogOpened,
    LogRead,
    PathWithdrawn,
    ReadLog,
    ReleaseFiles,
    SpareOffered,
    StartLog,
    Starved,
    WriterEffect,
    WriterEvent,
)
from pulsar_on_spark.ledger.journal.writer_fragments import Change, Purpose, WriterFragments
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.model.quorum import Quorum

MAX_COMMIT_ATTEMPTS = 20
"""Attempts to commit a change of the record that acknowledgements wait for; then the incarnation ends."""


class _Phase(Enum):
    NEW = "not started"
    OPENING = "the first fragment is being made"
    OPEN = "groups are welcome"
    CLOSING = "the last groups are being acknowledged"
    OVER = "closed or fenced"


class JournalWriter:
    """An incarnation's log, from its opening to its end."""

    def __init__(self, name: str, quorum: Quorum, roll_bytes: int, max_in_flight: int = 64) -> None:
        """Create a writer that has not started.

        Args:
            name: A name that is unique to this writer; it marks the writer's commits.
            quorum: The quorum; the ensemble is the write quorum, as there is no striping.
            roll_bytes: The size at which a file gets a ROLL frame, once the next file is prepared.
            max_in_flight: The limit of frames that are sent and not acknowledged.
        """
        self._name = name
        self._quorum = quorum
        self._roll_bytes = roll_bytes
        self._max_in_flight = max_in_flight
        self._phase = _Phase.NEW
        self._version = 0
        self._proposals = 0
        self._fragments = WriterFragments(quorum)
        self._change: Change | None = None
        self._changing = False
        self._prepare_blocked = False
        self._lac = NO_FRAME
        self._next: FrameNumber = 0
        self._last_awaited = NO_FRAME
        self._lac_sent = NO_FRAME
        self.is_starved = False

    @property
    def lac(self) -> FrameNumber:
        """The last acknowledged frame; -1 if there is none."""
        return self._lac

    @property
    def copies(self) -> tuple[Copy, ...]:
        """The files that the next group goes to; none before the log is open."""
        return self._fragments.runs[-1].copies if self._fragments.runs else ()

    @property
    def awaited(self) -> tuple[tuple[Copy, ...], FrameNumber] | None:
        """The copies, and the frame that an ack quorum of them must have before anything more is acknowledged.

        None before the log is open, and during a roll or a change of the record, when other conditions apply.
        """
        runs = self._fragments.runs
        return None if self._changing or len(runs) != 1 else (runs[0].copies, self._lac + 1)

    @property
    def waits_for_record(self) -> bool:
        """True if nothing is acknowledged until the record is changed."""
        return self._changing or self._phase in (_Phase.OPENING, _Phase.CLOSING)

    @property
    def is_over(self) -> bool:
        """True if the log is closed or lost, so that nothing will ever be acknowledged again."""
        return self._phase is _Phase.OVER

    @property
    def can_add(self) -> bool:
        """True if `AddGroup` is accepted now; the caller checks this before each group."""
        in_flight = self._next - 1 - self._lac
        return self._phase is _Phase.OPEN and not self.is_starved and in_flight < self._max_in_flight

    def handle(self, event: WriterEvent) -> list[WriterEffect]:
        """Handle an event; after the log's end, all events are ignored."""
        if self._phase is _Phase.OVER:
            return []
        match event:
            case CopyAcked(copy, watermark):
                return self._acked(copy, watermark)
            case AddGroup(kind, size_bytes):
                return self._add(kind, size_bytes)
            case BecameIdle():
                return self._idle()
            case _:
                return self._handle_rare(event)

    def _handle_rare(self, event: WriterEvent) -> list[WriterEffect]:
        effects: list[WriterEffect] = []
        match event:
            case CopyFailed(copy) | FileNotCreated(copy):
                effects = self._copy_failed(copy)
            case FileCreated(copy):
                effects = self._file_created(copy)
            case LogCommitted(version):
                effects = self._committed(version)
            case LogCommitUnknown():
                effects = [ReadLog()]
            case LogConflict(record, version) | LogRead(record, version):
                effects = self._outcome(record, version)
            case SpareOffered(path, label):
                effects = self._spare(path, label)
            case PathWithdrawn(path):
                effects = self._withdrawn(path)
            case FragmentsTrimmed(before):
                self._fragments.forget_fragments(before)
            case StartLog(paths, labels):
                assert self._phase is _Phase.NEW, "a log is started once"
                for path in paths:
                    self._fragments.offer_path(path, labels.get(path, ""))
                self._phase = _Phase.OPENING
            case CloseLog():
                assert self._phase is _Phase.OPEN, "only an open log can be closed"
                self._phase = _Phase.CLOSING
        return effects + self._next_change()

    # -- groups --------------------------------------------------------------------------------------------------------

    def _add(self, kind: FrameKind, size_bytes: int) -> list[WriterEffect]:
        assert self.can_add, "can_add is asked before each group"
        effects: list[WriterEffect] = []
        if self._may_roll():
            effects += self._roll()
        self._fragments.runs[-1].size_bytes += size_bytes
        effects.append(self._append(kind, sync=True))
        return effects

    def _append(self, kind: FrameKind, *, sync: bool) -> Append:
        frame = FrameFacts(self._next, kind, self._lac)
        self._fragments.runs[-1].last = self._next
        self._next += 1
        self._lac_sent = self._lac
        if sync:
            self._last_awaited = frame.number
        return Append(self._fragments.sound_copies(), frame, sync)

    def _idle(self) -> list[WriterEffect]:
        """Append a LAC frame, once for each LAC, so that tail readers learn the LAC before the next entries."""
        if self._phase is not _Phase.OPEN or self._changing or not self._lac_sent < self._lac == self._last_awaited:
            return []
        return [self._append(FrameKind.LAC, sync=False)]

    def _acked(self, copy: Copy, watermark: FrameNumber) -> list[WriterEffect]:
        self._fragments.acked(copy, watermark)
        effects = self._advance()
        return effects + self._next_change() if effects else effects

    def _advance(self) -> list[WriterEffect]:
        """Acknowledge the next frames in order, run by run; nothing during an ensemble change."""
        if self._changing:
            return []
        before, fragments = self._lac, self._fragments
        effects: list[WriterEffect] = []
        while fragments.runs:
            run = fragments.runs[0]
            self._lac = max(self._lac, min(fragments.durable(run), run.last))
            if not (run.rolled and self._lac == run.last):
                break
            effects += fragments.end_first()
        return [*effects, Acknowledged(self._lac)] if self._lac > before else effects

    # -- rolling -------------------------------------------------------------------------------------------------------

    def _may_roll(self) -> bool:
        """Return True if the next group begins the prepared fragment, as the running one is full or on worse paths."""
        prepared, runs = self._fragments.prepared, self._fragments.runs
        if prepared is None or self._changing or len(runs) > 1:
            return False
        is_better = len(prepared) > len(runs[0].copies) or self._fragments.is_left_by_roll
        return is_better or runs[0].size_bytes >= self._roll_bytes

    def _roll(self) -> list[WriterEffect]:
        roll = self._append(FrameKind.ROLL, sync=True)
        return [self._fragments.roll(self._next), roll]

    # -- changes of the record -----------------------------------------------------------------------------------------

    def _copy_failed(self, copy: Copy) -> list[WriterEffect]:
        """Give up the copy's whole path. One change of the record replaces all copies that fail before its commit."""
        in_use = self._fragments.used() | set(self._change.new if self._change else ())
        is_used = copy in in_use
        self._fragments.fail(copy.path, in_use if is_used else set())
        if not is_used:  # its fragment has ended, or the file was never used: only new files avoid the path
            return []
        self._prepare_blocked = False
        self._changing = self._changing or self._fragments.is_hurt
        if self._change is not None and self._change.proposed is None:
            unused, self._change = self._change.new, None
            return [ReleaseFiles(unused), *self._drop_unfit_prepared()]
        return self._drop_unfit_prepared()

    def _drop_unfit_prepared(self) -> list[WriterEffect]:
        """Drop the prepared fragment if a new one can be on better paths, unless the record is being changed."""
        return [] if self._changing else self._fragments.drop_unfit_prepared()

    def _spare(self, path: PathId, label: str) -> list[WriterEffect]:
        self._fragments.offer_path(path, label)
        self._prepare_blocked = False
        return self._drop_unfit_prepared()

    def _withdrawn(self, path: PathId) -> list[WriterEffect]:
        self._fragments.withdraw_path(path)
        self._prepare_blocked = False
        return self._drop_unfit_prepared()

    def _next_change(self) -> list[WriterEffect]:
        """Begin the next change of the record, if one is needed and none is in progress."""
        if self._change is not None or self._phase in (_Phase.NEW, _Phase.OVER):
            return []
        if self._phase is _Phase.OPENING:
            return self._begin(self._fragments.planned(Purpose.OPEN))
        if self._phase is _Phase.CLOSING and self._lac >= self._last_awaited:
            self._change = Change(Purpose.CLOSE, [], None, ())
            self._changing = True  # nothing is acknowledged beyond the end that is proposed
            return self._propose(self._change)
        if self._changing:
            return self._begin(self._fragments.planned(Purpose.CHANGE))
        if self._may_prepare():
            change = self._fragments.planned(Purpose.PREPARE)
            self._prepare_blocked = change is None
            return self._begin(change) if change is not None else []
        return []

    def _may_prepare(self) -> bool:
        """Return True if the next fragment should be prepared, and the last attempt did not fail for lack of paths."""
        fragments = self._fragments
        is_wanted = fragments.prepared is None and len(fragments.runs) == 1 and self._phase is _Phase.OPEN
        return is_wanted and not self._prepare_blocked

    def _begin(self, change: Change | None) -> list[WriterEffect]:
        if change is None:
            first_time, self.is_starved = not self.is_starved, True
            return [Starved()] if first_time else []
        self.is_starved = False
        self._change = change
        change.creating = set(change.new)
        if not change.new:
            return self._files_ready(change)
        return [CreateFile(copy) for copy in change.new]

    def _file_created(self, copy: Copy) -> list[WriterEffect]:
        change = self._change
        if change is None or copy not in change.creating:
            return []
        change.creating.discard(copy)
        return [] if change.creating else self._files_ready(change)

    def _files_ready(self, change: Change) -> list[WriterEffect]:
        """Propose a record that names the new files, before a byte is written to them."""
        return self._propose(change)

    def _propose(self, change: Change) -> list[WriterEffect]:
        if change.attempts >= MAX_COMMIT_ATTEMPTS:
            return self._over(LogAbandoned(self._lac))
        change.attempts += self._is_waited_for(change)
        self._proposals += 1
        change.proposed = self._proposal(change)
        assert fault_in(change.proposed) is None, fault_in(change.proposed)
        return [CommitLog(change.proposed, self._version, moves_seal=change.purpose is Purpose.CLOSE)]

    def _is_waited_for(self, change: Change) -> bool:
        """Return True if acknowledgements wait for the change; otherwise the running fragment just keeps growing."""
        return change.purpose is not Purpose.PREPARE or self.waits_for_record

    def _proposal(self, change: Change) -> LogRecord:
        token = f"{self._name}:{self._proposals}"
        fragments = self._fragments.proposed(change, self._lac)
        is_end = change.purpose is Purpose.CLOSE
        state, last_frame = (LogState.CLOSED, self._lac) if is_end else (LogState.OPEN, None)
        return LogRecord(state, self._quorum.write, self._quorum.ack, fragments, last_frame, token)

    def _outcome(self, record: LogRecord | None, version: int) -> list[WriterEffect]:
        """Handle a conflict, or the record after an unknown outcome. Its token shows if this writer committed it.

        `record` is None if the log has no record yet.
        """
        change = self._change
        if change is None or change.proposed is None:
            return []
        if record is not None and record.token == change.proposed.token:
            return self._committed(version)
        if record is None:
            is_ours = change.purpose is Purpose.OPEN  # only the first writer may create a missing record
        else:
            is_ours = record.state is LogState.OPEN and record.token.startswith(f"{self._name}:")
        if is_ours:
            # An earlier attempt of this writer moved the key, or no attempt has succeeded yet.
            self._version = version
            return self._propose(change)
        if record is not None and record.state is LogState.CLOSED and record.last_frame == change.proposed.last_frame:
            return self._closed()
        return self._over(LogFenced(self._lac))

    def _committed(self, version: int) -> list[WriterEffect]:
        change = self._change
        assert change is not None, "a commit belongs to a change"
        self._version = version
        if change.purpose is Purpose.CLOSE:
            return self._closed()
        return self._adopt(change)

    def _adopt(self, change: Change) -> list[WriterEffect]:
        """Use the new copies, which the record names now, and resume acknowledging."""
        self._change = None
        effects = self._fragments.adopt(change, self._lac)
        if change.purpose is Purpose.OPEN:
            self._phase = _Phase.OPEN
            effects.append(LogOpened())
        self._changing = self._fragments.is_hurt
        effects += self._drop_unfit_prepared()
        return effects + self._advance()

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _closed(self) -> list[WriterEffect]:
        return self._over(LogClosed(self._lac))

    def _over(self, end: LogClosed | LogFenced | LogAbandoned) -> list[WriterEffect]:
        self._phase = _Phase.OVER
        return [ReleaseFiles(tuple(sorted(self._fragments.used()))), end]
