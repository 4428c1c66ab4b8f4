"""Mutants of the cores, each with a broken rule, which `test_mutants` installs for the simulator to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pulsar_on_spark.ledger.journal import copy_protocol, log_index, sealing, writer
from pulsar_on_spark.ledger.journal.copy_protocol import Check, CopyAppender, CopyReader, End, ReadFrames, ScanEnd, Sync
from pulsar_on_spark.ledger.journal.log import Copy, Fragment, FrameNumber, LogRecord, LogState
from pulsar_on_spark.ledger.journal.messages import (
    CommitLog,
    LogCommitted,
    LogCommitUnknown,
    RecoveryEvent,
    WriterEvent,
)
from pulsar_on_spark.ledger.journal.recovery import Recovery
from pulsar_on_spark.ledger.journal.recovery_answers import Answers
from pulsar_on_spark.ledger.journal.recovery_files import RecoveryFiles
from pulsar_on_spark.ledger.journal.sealing import SealMarks, readable_to
from pulsar_on_spark.ledger.journal.tail import LogWalk
from pulsar_on_spark.ledger.journal.writer import JournalWriter
from pulsar_on_spark.ledger.journal.writer_fragments import Change, Purpose, Run, WriterFragments
from pulsar_on_spark.model.ids import EntryId, LedgerId
from tests.simulators.journal import housekeeper
from tests.simulators.journal.register import MainView, Register, SealCommit
from tests.simulators.journal.writer_process import WriterProcess


@dataclass(frozen=True)
class Mutant:
    """Of each patch, `owner.method` is replaced; `profile` is the kind of run that meets it soonest."""

    name: str
    patches: tuple[tuple[object, str, object], ...]
    profile: str | None = None


_propose = JournalWriter._propose
_advance = JournalWriter._advance
_commit_log = Register.commit_log
_commit_seal = Register.commit_seal
_running = WriterFragments._running
_writer_handle = JournalWriter.handle
_recovery_handle = Recovery.handle
_writer_outcome = JournalWriter._outcome
_recovery_outcome = Recovery._outcome
_is_negative = Answers.is_negative
_reader_handle = CopyReader.handle
_appender_handle = CopyAppender.handle
_trimmable_before = sealing.trimmable_before
_pruned = sealing.pruned


def _fences_only_when_asked(self: CopyReader, request: object) -> bool:
    return not isinstance(request, ReadFrames)


def _missing_means_no(self: CopyReader) -> list[copy_protocol.ReadEffect]:
    if not isinstance(self._current, ReadFrames):
        return self._no_answer()
    self._fenced = True
    return self._answer(copy_protocol.Scanned(None, (), ScanEnd.CLEAN))


def _unfenced_no(self: CopyReader, scanned: copy_protocol.Scanned) -> bool:
    return scanned.end in (ScanEnd.CLEAN, ScanEnd.TORN)


def _threshold_off_by_one(self: Answers, copies: int) -> int:
    return copies - self._ack_quorum


def _close_at_lac(self: Recovery) -> list[object]:
    self._next = self._lac + 1
    self._negative = True
    return self._close_if_done()  # type: ignore[return-value]


def _change_without_commit(self: JournalWriter, change: Change) -> list[writer.WriterEffect]:
    return self._adopt(change) if change.purpose is Purpose.CHANGE else _propose(self, change)


def _roll_without_record(self: JournalWriter, change: Change) -> list[writer.WriterEffect]:
    return self._adopt(change) if change.purpose is Purpose.PREPARE else _propose(self, change)


def _keep_replaced_acks(self: WriterFragments, run: Run, copies: tuple[Copy, ...], begin: int) -> dict[Copy, int]:
    old = [run.watermarks[copy] for copy in run.copies]
    return {copy: run.watermarks.get(copy, old[i] if i < len(old) else begin - 1) for i, copy in enumerate(copies)}


def _last_run_first(self: JournalWriter) -> list[writer.WriterEffect]:
    before = self._lac
    if self._changing:
        return []
    fragments = self._fragments
    self._lac = max(self._lac, *(min(fragments.durable(run), run.last) for run in fragments.runs))
    while fragments.runs and fragments.runs[0].rolled and self._lac >= fragments.runs[0].last:
        fragments.end_first()
    return [writer.Acknowledged(self._lac)] if self._lac > before else []


def _acks_while_changing(self: JournalWriter) -> list[writer.WriterEffect]:
    changing, self._changing = self._changing, self._changing and len(self._fragments.runs) > 1
    effects = _advance(self)
    self._changing = changing
    return effects


def _no_floor(self: Recovery) -> int:
    return 0


def _check_first(self: CopyAppender) -> list[copy_protocol.AppendEffect]:
    return [Check()]


def _sync_when_checked(self: CopyAppender, is_my_file: bool) -> list[copy_protocol.AppendEffect]:
    return [Sync()] if is_my_file else self._lose("fenced")


def _absence_is_permission(self: CopyAppender, is_my_file: bool) -> bool:
    return True


def _blind_close(self: Register, commit: CommitLog) -> object:
    if commit.record.state is LogState.CLOSED:
        commit = replace(commit, expected_version=self.log_version)
    return _commit_log(self, commit)


def _all_written_back(self: RecoveryFiles, last: FrameNumber) -> bool:
    return True


def _source_counts(self: RecoveryFiles) -> tuple[Copy, ...]:
    source = self.held[0].source
    others = [copy for copy in self.targets if copy.path != source.path]
    return (source, *others[:1])


def _torn_is_no(self: Answers, noes: int, torn: int, copies: int) -> bool:
    return noes + torn >= self._threshold(copies)


def _metadata_first(self: LogWalk) -> bool:
    return self.to_open() is None


def _past_the_lac(self: LogWalk) -> FrameNumber:
    return max(self.next - 1, readable_to(self._record, self.lac))


def _begun_means_ended(self: LogWalk) -> FrameNumber:
    return readable_to(self._resolved, self.lac)


def _skips_what_is_lost(self: LogWalk) -> None:
    self._found_none = self.skip_hole() is None


def _skips_to_the_end(self: LogWalk) -> FrameNumber | None:
    later = [first for first in self._begins() if first > self.next]
    if not self.is_due or not later:
        return None
    self.rewind(later[-1])
    return later[-1]


def _goes_on_in_the_next_file(self: LogWalk) -> None:
    later = [first for first in self._begins() if first > self.next]
    if later:
        self.rewind(later[0])


def _no_gap(at: int, first: int) -> bool:
    return False


def _seal_all(record: LogRecord, lac_seen: FrameNumber) -> FrameNumber:
    return 1 << 60


def _may_seal_whatever_the_state(
    record: LogRecord, marks: SealMarks, state: LogState, begin: FrameNumber, end: FrameNumber
) -> bool:
    return marks.sealed_before == begin


def _may_seal_again(record: LogRecord, marks: SealMarks, state: LogState, begin: FrameNumber, end: FrameNumber) -> bool:
    return record.state is state is not LogState.IN_RECOVERY


def _no_tiles(*_: object) -> None:
    return None


def _blind_seal(self: Register, commit: SealCommit) -> bool:
    now = replace(commit.decided_on, seal_version=self.main.seal_version, log_version=self.main.log_version)
    return _commit_seal(self, replace(commit, decided_on=now))


def _log_key_only(self: Register, commit: CommitLog) -> object:
    return _commit_log(self, replace(commit, moves_seal=False))


IsSnapshotted = Callable[[FrameNumber, FrameNumber], bool]


def _cursors_forgotten(record: LogRecord, marks: SealMarks, is_snapshotted: IsSnapshotted) -> FrameNumber:
    return _trimmable_before(record, marks, lambda _begin, _end: True)


def _unsealed_forgotten(record: LogRecord, marks: SealMarks, is_snapshotted: IsSnapshotted) -> FrameNumber:
    all_sealed = replace(marks, sealed_before=1 << 60) if record.state is LogState.OPEN else marks
    return _trimmable_before(record, all_sealed, is_snapshotted)


def _ends_forgotten(record: LogRecord, marks: SealMarks, is_snapshotted: IsSnapshotted) -> FrameNumber:
    return _trimmable_before(record, replace(marks, has_ends=True), is_snapshotted)


def _recovery_forgotten(record: LogRecord, marks: SealMarks, is_snapshotted: IsSnapshotted) -> FrameNumber:
    return _trimmable_before(replace(record, state=LogState.OPEN), marks, is_snapshotted)


def _is_done(record: LogRecord, marks: SealMarks) -> bool:
    return record.last_frame is not None and marks.sealed_before >= record.last_frame


def _may_always_open(state: LogState) -> bool:
    return True


def _closes_whatever_the_state(main: MainView, ledger: LedgerId, entries: EntryId) -> SealCommit:
    return SealCommit(main, ends={ledger: entries})


def _always_drained(self: WriterProcess, ledger: LedgerId) -> bool:
    return True


def _files_forgotten(record: LogRecord, marks: SealMarks, deleted: set[Copy]) -> tuple[Fragment, ...] | None:
    return _pruned(record, marks, {copy for fragment in record.fragments for copy in fragment.copies})


def _trims_forgotten(record: LogRecord, trimmed_before: FrameNumber, deleted: set[Copy]) -> FrameNumber:
    return 1 << 60


def _joins_a_recovery(self: Recovery, record: LogRecord | None, version: int) -> list[object]:
    if record is not None and record.state is LogState.IN_RECOVERY and self._phase.name == "STARTING":
        self._record, self._version = record, version
        return self._fence()  # type: ignore[return-value]
    return _recovery_outcome(self, record, version)  # type: ignore[return-value]


def _counts_what_is_not_synced(self: CopyAppender) -> list[copy_protocol.AppendEffect]:
    if self._round_to is not None or min(self._sync_wanted, self._written) <= self._watermark:
        return []
    self._round_to = self._queued
    return self._begin_round()


def _syncs_again(self: CopyAppender, event: copy_protocol.AppendEvent) -> list[copy_protocol.AppendEffect]:
    if isinstance(event, copy_protocol.IoFailed) and self._round_to is not None:
        return [Sync()]
    return _appender_handle(self, event)


def _writer_believes(self: JournalWriter, event: WriterEvent) -> list[writer.WriterEffect]:
    if isinstance(event, LogCommitUnknown):
        event = LogCommitted(self._version + 1)
    return _writer_handle(self, event)


def _recovery_believes(self: Recovery, event: RecoveryEvent) -> list[object]:
    if isinstance(event, LogCommitUnknown):
        event = LogCommitted(self._version + 1)
    return _recovery_handle(self, event)  # type: ignore[return-value]


def _writer_takes_any_record(self: JournalWriter, record: LogRecord | None, version: int) -> list[writer.WriterEffect]:
    if record is not None and self._change is not None and self._change.proposed is not None:
        record = replace(record, token=self._change.proposed.token)
    return _writer_outcome(self, record, version)


def _recovery_takes_any_record(self: Recovery, record: LogRecord | None, version: int) -> list[object]:
    if record is not None and self._proposed is not None:
        record = replace(record, token=self._proposed.token)
    return _recovery_outcome(self, record, version)  # type: ignore[return-value]


def _rename_is_durable(self: CopyReader, event: copy_protocol.ReadEvent) -> list[copy_protocol.ReadEffect]:
    if isinstance(event, copy_protocol.FileRenamed) and event.result in (
        copy_protocol.Renamed.DONE,
        copy_protocol.Renamed.ALREADY,
    ):
        self._fenced = True
        return self._scan()
    return _reader_handle(self, event)


def _scans_first(self: CopyReader, event: copy_protocol.ReadEvent) -> list[copy_protocol.ReadEffect]:
    """Scan, then fence, then answer by the scan."""
    if isinstance(event, copy_protocol.IdentityChecked) and event.intact:
        return self._scan()
    if isinstance(event, copy_protocol.Scanned) and not self._fenced:
        self._early = event  # type: ignore[attr-defined]
        return [copy_protocol.Rename()]
    if isinstance(event, copy_protocol.DirectorySynced):
        self._fenced = event.ok
        return self._answer(self._early)  # type: ignore[attr-defined]
    if isinstance(event, copy_protocol.FileRenamed) and event.result is copy_protocol.Renamed.FAILED:
        return self._answer(self._early)  # type: ignore[attr-defined]
    return _reader_handle(self, event)


def _never_idle(self: JournalWriter) -> list[writer.WriterEffect]:
    return []


def _never_acknowledges_again(self: JournalWriter) -> list[writer.WriterEffect]:
    return [] if self._fragments.ended else _advance(self)


def _all_of_trimmed_fragments(record: LogRecord, trimmed_before: int) -> tuple[Copy, ...]:
    return tuple(sorted({copy for f in record.fragments if (f.first or 0) < trimmed_before for copy in f.copies}))


def _first_frames_too_early(self: WriterFragments, change: Change, lac: int) -> list[Fragment]:
    fragments = _running(self, change, lac)
    if len(self.runs) == 1:
        return fragments
    return [replace(f, first=self.runs[1].first) if f.copies == change.runs[1] else f for f in fragments]


def _acks_behind_the_end(self: JournalWriter) -> list[writer.WriterEffect]:
    closing = self._change is not None and self._change.purpose is Purpose.CLOSE
    self._changing = self._changing and not closing
    return _advance(self)


def _close_keeps_seal_key(self: Register, commit: CommitLog) -> object:
    return _commit_log(self, replace(commit, moves_seal=commit.record.state is LogState.IN_RECOVERY))


def _later_files_deny(self: CopyReader, scanned: copy_protocol.Scanned, start: int) -> End:
    if scanned.end is ScanEnd.LIMIT:
        return End.MORE
    return End.NO if self._may_say_no(scanned) else End.UNKNOWN


def _trimmable(broken: Callable[..., FrameNumber]) -> tuple[tuple[object, str, object], ...]:
    """Patch both places that call it: the trimmer, and the check on the view that commits."""
    return (housekeeper, "trimmable_before", broken), (sealing, "trimmable_before", broken)


def _given_up_is_not_read(self: Answers) -> bool:
    return _is_negative(self) or self.given_up.issuperset(copy.path for copy in self._sources)


def _unknown_is_lost(self: Answers) -> bool:
    return _is_negative(self) or all(source.end not in (None, End.MORE) for source in self._sources.values())


MUTANTS = (
    Mutant(
        "#2614: reads do not fence",
        ((CopyReader, "_fences", _fences_only_when_asked), (CopyReader, "_may_say_no", _unfenced_no)),
    ),
    Mutant("amnesia: a missing file says no", ((CopyReader, "_missing", _missing_means_no),), "disks"),
    Mutant("an unfenced path's no", ((CopyReader, "_may_say_no", _unfenced_no),), "two copies"),
    Mutant("negative threshold off by one", ((Answers, "_threshold", _threshold_off_by_one),)),
    Mutant("close at the LAC", ((Recovery, "_judge", _close_at_lac),)),
    Mutant("ensemble change without compare-and-set", ((JournalWriter, "_files_ready", _change_without_commit),)),
    Mutant("acks during an ensemble change", ((JournalWriter, "_advance", _acks_while_changing),)),
    Mutant("roll past the fence", ((JournalWriter, "_files_ready", _roll_without_record),), "rolling"),
    Mutant("keeping replaced acks", ((WriterFragments, "_watermarks", _keep_replaced_acks),)),
    Mutant("out-of-order acks", ((JournalWriter, "_advance", _last_run_first),), "rolling"),
    Mutant("#2615: no floor", ((Recovery, "_floor", _no_floor),)),
    Mutant(
        "add after fence",
        (
            (CopyAppender, "_begin_round", _check_first),
            (CopyAppender, "_checked", _sync_when_checked),
            (CopyAppender, "_synced", CopyAppender._round_done),
        ),
    ),
    Mutant("absence of a fence read as permission", ((CopyAppender, "_may_count", _absence_is_permission),)),
    Mutant("blind close", ((Register, "commit_log", _blind_close),)),
    Mutant("close without waiting for write-backs", ((RecoveryFiles, "have", _all_written_back),)),
    Mutant("the dead writer's file counted", ((RecoveryFiles, "counted", _source_counts),)),
    Mutant("an unended fragment's first frame", ((WriterFragments, "_running", _first_frames_too_early),)),
    Mutant("acks behind the end of a close", ((JournalWriter, "_advance", _acks_behind_the_end),), "closing"),
    Mutant("a close that leaves the seal key", ((Register, "commit_log", _close_keeps_seal_key),), "sealing"),
    Mutant("a torn frame read as the end", ((CopyReader, "_end", _later_files_deny),), "disks"),
    Mutant("metadata read before the journal", ((LogWalk, "is_ready", property(_metadata_first)),), "sealing"),
    Mutant("a reader past the LAC", ((LogWalk, "last_readable", property(_past_the_lac)),)),
    Mutant(
        "a reader believes a ROLL that was not acknowledged",
        ((LogWalk, "last_readable", property(_begun_means_ended)),),
    ),
    Mutant(
        "a reader that skips a gap",
        ((LogWalk, "found_none", _skips_what_is_lost), (log_index, "_is_gap", _no_gap)),
        "disks",
    ),
    Mutant("a reader that continues far behind what is lost", ((LogWalk, "skip_hole", _skips_to_the_end),)),
    Mutant("a reader that leaves a file too early", ((LogWalk, "found_none", _goes_on_in_the_next_file),), "no spares"),
    Mutant("seal above the LAC", ((housekeeper, "sealable_to", _seal_all),)),
    Mutant(
        "sealing while the log is in recovery",
        ((housekeeper, "sealable_to", readable_to), (housekeeper, "may_seal", _may_seal_whatever_the_state)),
        "sealing",
    ),
    Mutant(
        "sealing what is sealed",
        ((housekeeper, "may_seal", _may_seal_again), (housekeeper, "first_gap", _no_tiles)),
        "sealing",
    ),
    Mutant("seal, trim and open without the incarnation's key", ((Register, "commit_seal", _blind_seal),), "sealing"),
    Mutant("a takeover that leaves the seal key", ((Register, "commit_log", _log_key_only),)),
    Mutant("trim before cursors are snapshotted", _trimmable(_cursors_forgotten), "sealing"),
    Mutant("trim before all is sealed", _trimmable(_unsealed_forgotten), "sealing"),
    Mutant("trim before close rows", _trimmable(_ends_forgotten), "sealing"),
    Mutant("trim while the log is in recovery", _trimmable(_recovery_forgotten), "sealing"),
    Mutant("ledgers end before all is sealed", ((housekeeper, "is_sealed", _is_done),), "sealing"),
    Mutant("ledgers opened in any log", ((housekeeper, "may_open", _may_always_open),), "sealing"),
    Mutant("a ledger closed in any log", ((housekeeper, "_close", _closes_whatever_the_state),), "sealing"),
    Mutant("a ledger closed before it is drained", ((WriterProcess, "is_drained", _always_drained),), "sealing"),
    Mutant("a growing file is deleted", ((housekeeper, "files_to_delete", _all_of_trimmed_fragments),), "sealing"),
    Mutant("a file forgotten before it is deleted", ((housekeeper, "pruned", _files_forgotten),), "trimming"),
    Mutant(
        "a fragment forgotten before it is trimmed", ((housekeeper, "deleted_before", _trims_forgotten),), "sealing"
    ),
    Mutant("a torn frame is a no at once", ((Answers, "_torn_counts", _torn_is_no),), "disks"),
    Mutant("what is given up is not read", ((Answers, "is_negative", _given_up_is_not_read),), "disks"),
    Mutant("what is unknown is lost", ((Answers, "is_negative", _unknown_is_lost),)),
    Mutant("a recovery that joins another", ((Recovery, "_outcome", _joins_a_recovery),), "recovery"),
    Mutant("a watermark past what was synced", ((CopyAppender, "_next_round", _counts_what_is_not_synced),)),
    Mutant("fdatasync tried again after an error", ((CopyAppender, "handle", _syncs_again),)),
    Mutant("the writer takes an unknown outcome for a commit", ((JournalWriter, "handle", _writer_believes),), "lossy"),
    Mutant("a recovery takes an unknown outcome for a commit", ((Recovery, "handle", _recovery_believes),), "lossy"),
    Mutant("the writer takes any record for its own", ((JournalWriter, "_outcome", _writer_takes_any_record),)),
    Mutant("a recovery takes any record for its own", ((Recovery, "_outcome", _recovery_takes_any_record),)),
    Mutant("a fence that is not synced", ((CopyReader, "handle", _rename_is_durable),)),
    Mutant("scanned before it is fenced", ((CopyReader, "handle", _scans_first),)),
    Mutant("no frame when idle", ((JournalWriter, "_idle", _never_idle),)),
    Mutant(
        "a writer that acknowledges no more after a roll", ((JournalWriter, "_advance", _never_acknowledges_again),)
    ),
)

_FOLLOWS = {
    "#2614: reads do not fence": "consequences",
    "an unfenced path's no": "consequences",
    "amnesia: a missing file says no": "consequences on disks",
    "a torn frame read as the end": "consequences on disks",
    "add after fence": "consequences on disks",
    "absence of a fence read as permission": "consequences on disks",
    "a watermark past what was synced": "consequences on disks",
    "fdatasync tried again after an error": "consequences on disks",
}

CONSEQUENCES = tuple(replace(m, profile=_FOLLOWS[m.name]) for m in MUTANTS if m.name in _FOLLOWS)
"""The mutants that checks of single answers find at once: without these checks, their consequences are found."""
