"""An incarnation's progress of sealing and trimming in the main table, and the commits that advance it.

Each commit is decided on one view. The rules are in `ledger.journal.sealing`, and this module applies them to the
records of the main table. All these commits, and a takeover, advance the incarnation's `seal` key. So after a takeover,
a commit by the sealer of the fenced incarnation fails. The sealer decides again, sees that its log is not OPEN, and
commits nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pulsar_on_spark.ledger.journal import sealing
from pulsar_on_spark.ledger.journal.log import Copy, FrameNumber, LogRecord, LogState
from pulsar_on_spark.ledger.journal.register import log_record
from pulsar_on_spark.ledger.journal.sealing import EntryRange, GivenUp, SealMarks
from pulsar_on_spark.ledger.segments.segment_writer import WrittenFile
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import (
    IncarnationRecord,
    LedgerRecord,
    LostEntries,
    Record,
    SealRecord,
    SegmentRecord,
    TopicRecord,
    WriteRecord,
)
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import MetadataError
from pulsar_on_spark.model.ids import EntryId, IncarnationId, LedgerId, WriteId

_CLOSES_AT_ONCE = 100
"""Maximum number of ledgers that one commit closes, because it needs a key for each topic; others follow later."""


@dataclass(frozen=True, slots=True)
class SealedLog:
    """An incarnation's log, and its progress of sealing and trimming, in one view."""

    view: View
    row: IncarnationRecord
    record: LogRecord
    seal: SealRecord

    @property
    def marks(self) -> SealMarks:
        """The frames up to which the log is sealed and trimmed, and the mark that all its ledgers have close rows.

        `has_ends` is always False unless the log is CLOSED.
        """
        has_ends = self.record.state is LogState.CLOSED and not _unended(self)
        return SealMarks(self.seal.sealed_before, self.seal.trimmed_before, has_ends)

    @property
    def given_up(self) -> list[tuple[FrameNumber, FrameNumber]]:
        """The ranges [begin, end) of given-up frames, which readers skip, in order."""
        return sorted((each.begin, each.end) for each in self.seal.given_up)

    @property
    def floor(self) -> FrameNumber:
        """The first frame that is not trimmed and whose fragment is still in the log's record."""
        begins = (begin for begin, end in sealing.ended_spans(self.record) if end > self.seal.trimmed_before)
        return max(next(begins, 0), self.seal.trimmed_before)

    @property
    def is_sealed(self) -> bool:
        """True if the log is CLOSED and completely sealed."""
        return sealing.is_sealed(self.record, SealMarks(self.seal.sealed_before))

    def ledgers(self) -> list[LedgerRecord]:
        """Return the ledgers that the incarnation opened and that still exist."""
        return [ledger for ledger in self.view.all(LedgerRecord) if ledger.incarnation == self.row.incarnation]


def sealed_log(view: View, incarnation: IncarnationId) -> SealedLog | None:
    """Return the incarnation's log; None if the incarnation is unknown, or its log was removed.

    Raises:
        MetadataError: the record is malformed.
    """
    row = view.get(IncarnationRecord, incarnation)
    if row is None:
        return None
    seal = view.get(SealRecord, incarnation) or SealRecord(incarnation=incarnation)
    return SealedLog(view, row, log_record(row), seal)


def sealed_end(view: View, topic_id: str, ledger_id: int) -> EntryId:
    """Return the id after a ledger's last sealed entry; 0 if there is none."""
    last = view.before(SegmentRecord, topic_id, f"{topic_id}/{ledger_id + 1:020d}")
    if last is None or last.ledger_id != ledger_id:
        return EntryId(0)
    return EntryId(last.first_entry + last.entries)


@dataclass(frozen=True, slots=True)
class FrameSpan:
    """Frames [begin, end) of a log that was in `state` when they were read."""

    incarnation: IncarnationId
    state: LogState
    begin: FrameNumber
    end: FrameNumber


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A durable file with all entries of a span of frames, and its segments."""

    written: WrittenFile
    write_id: WriteId
    segments: tuple[SegmentRecord, ...]


def decide_seal(view: View, span: FrameSpan, sealed: SealedFile | None, now: datetime) -> Change | None:
    """Return the change that seals a span of frames.

    The result is None if another process has sealed the frames or taken over the log, or if garbage collection has
    aborted the write of `sealed`.

    Args:
        view: The view on which the commit is decided.
        span: The frames that were read.
        sealed: The file with their entries; None if they have no entries of existing topics.
        now: The time of the commit.

    Raises:
        MetadataError: a segment does not follow its ledger's sealed entries, and no given-up frames explain the gap.
    """
    log_ = sealed_log(view, span.incarnation)
    if log_ is None:
        return None
    sealed_to = SealMarks(log_.seal.sealed_before)
    if not sealing.may_seal(log_.record, sealed_to, span.state, span.begin, span.end):
        return None
    puts: list[Record] = [log_.seal.model_copy(update={"sealed_before": span.end})]
    moved: dict[str, int | None] = {keys.incarnation_seal(span.incarnation): None}
    if sealed is not None:
        if view.get(WriteRecord, sealed.write_id) is not None:
            return None  # garbage collection aborted the write
        segments = [segment for segment in sealed.segments if _has_ledger(view, segment)]
        lost = _gaps(view, log_, span, segments)
        puts += lost
        moved |= _topic_keys(view, lost)
        if segments:
            committed = WriteRecord(write_id=sealed.write_id, status="committed", decided_at=now)
            puts += [sealed.written.file_record(sealed.write_id), committed, *segments]
            moved[keys.write_bucket(sealed.write_id)] = None
    return Change(puts=puts, keys=moved)


def decide_close(view: View, incarnation: IncarnationId) -> Change | None:
    """Return the change that writes close rows for up to 100 ledgers of a CLOSED, completely sealed log.

    The result is None if all ledgers have a close row, or if the log is not completely sealed.

    Raises:
        MetadataError: a ledger has fewer sealed entries than its close row says, and no given-up frames explain that.
    """
    log_ = sealed_log(view, incarnation)
    if log_ is None or not log_.is_sealed:
        return None
    ended: list[LedgerRecord] = []
    for ledger in _unended(log_)[:_CLOSES_AT_ONCE]:
        entries = sealed_end(view, ledger.topic_id, ledger.ledger_id)
        lost = _lost_at_end(log_, ledger, entries)
        ended.append(ledger.model_copy(update={"closed": True, "entries": int(entries), "lost": lost}))
    moved = {keys.incarnation_seal(incarnation): None, **_topic_keys(view, ended)}
    return Change(puts=ended, keys=moved) if ended else None


def trimmable_before(found: SealedLog, is_snapshotted: Callable[[FrameNumber, FrameNumber], bool]) -> FrameNumber:
    """Return the frame before which the log may be trimmed (see `sealing.trimmable_before`).

    Args:
        found: The log, in a durable view.
        is_snapshotted: Returns True if the cursors table covers the cursor records of frames [begin, end).
    """
    return sealing.trimmable_before(found.record, found.marks, is_snapshotted)


def decide_trim(view: View, incarnation: IncarnationId, before: FrameNumber, now: datetime) -> Change | None:
    """Return the change that trims the log below frame `before`; None if that is done already or not allowed."""
    log_ = sealed_log(view, incarnation)
    if log_ is None or not sealing.may_trim(log_.record, log_.marks, before):
        return None
    seal = log_.seal.model_copy(update={"trimmed_before": before, "trimmed_at": now})
    return Change(puts=[seal], keys={keys.incarnation_seal(incarnation): None})


def decide_prune(view: View, incarnation: IncarnationId, deleted: Collection[Copy]) -> Change | None:
    """Return the change that removes a CLOSED log's fragments whose files are deleted; None if there are none.

    If no fragment is left, the change deletes the records of the log.
    """
    log_ = sealed_log(view, incarnation)
    remaining = None if log_ is None else sealing.pruned(log_.record, log_.marks, deleted)
    if log_ is None or remaining is None:
        return None
    moved: dict[str, int | None] = {keys.incarnation_log(incarnation): None, keys.incarnation_seal(incarnation): None}
    if not remaining:
        stored = view.get(SealRecord, incarnation)
        return Change(deletes=[log_.row, *([stored] if stored else [])], keys=moved)
    firsts = {fragment.first for fragment in remaining}
    fragments = tuple(fragment for fragment in log_.row.fragments if fragment.first in firsts)
    return Change(puts=[log_.row.model_copy(update={"fragments": fragments})], keys=moved)


def _unended(found: SealedLog) -> list[LedgerRecord]:
    """Return the ledgers that need a close row, because they have none or one with more entries than are sealed."""

    def is_short(ledger: LedgerRecord) -> bool:
        return (ledger.entries or 0) > sealed_end(found.view, ledger.topic_id, ledger.ledger_id)

    return [ledger for ledger in found.ledgers() if not ledger.closed or ledger.entries is None or is_short(ledger)]


def _topic_keys(view: View, ledgers: Sequence[LedgerRecord]) -> dict[str, int | None]:
    """Return the compare-and-set keys of the topics of these ledgers, each to get its next version (None)."""
    changed = {ledger.topic_id for ledger in ledgers}
    return {keys.topic(topic.name): None for topic in view.all(TopicRecord) if topic.topic_id in changed}


def _given_up(found: SealedLog, before: FrameNumber) -> GivenUp:
    """Return the given-up frames below `before`."""
    given_up = [each for each in found.seal.given_up if each.begin < before]
    named = (_entries(lost) for each in given_up for lost in each.entries or ())
    return GivenUp(tuple(named), unknown_runs=sum(each.entries is None for each in given_up))


def _given_up_in_all(found: SealedLog) -> GivenUp:
    """Return the given-up frames of the whole log.

    A log that was closed without some paths has one more unknown run.
    """
    of_frames = _given_up(found, found.seal.sealed_before)
    return replace(of_frames, unknown_runs=of_frames.unknown_runs + bool(found.row.given_up_paths))


def _lost_at_end(found: SealedLog, ledger: LedgerRecord, sealed: EntryId) -> tuple[LostEntries, ...]:
    """Return the lost entries of a ledger, including those after its last sealed entry.

    Raises:
        MetadataError: the ledger's close row has more entries than are sealed, and no given-up frames explain that.
    """
    given_up = _given_up_in_all(found)
    named = [each.end for each in given_up.entries if each.ledger == ledger.ledger_id]
    end = max([ledger.entries or 0, sealed, *named])
    lost = (*ledger.lost, LostEntries(ledger_id=ledger.ledger_id, first=sealed, end=end))
    if end > sealed:
        if not given_up.explains_gaps(map(_entries, lost)):
            raise MetadataError(
                f"Ledger {ledger.ledger_id} of incarnation {found.row.incarnation} should have {end} entries by its "
                f"records, but only {sealed} are sealed: restore the metadata of this root."
            )
        return lost
    one_more = EntryRange(LedgerId(ledger.ledger_id), sealed, EntryId(sealed + 1))
    may_be_longer = ledger.entries is None and given_up.explains_gaps([*map(_entries, ledger.lost), one_more])
    return lost if may_be_longer else ledger.lost


def _has_ledger(view: View, segment: SegmentRecord) -> bool:
    return view.get(LedgerRecord, f"{segment.topic_id}/{segment.ledger_id:020d}") is not None


def _gaps(view: View, found: SealedLog, span: FrameSpan, segments: Sequence[SegmentRecord]) -> list[LedgerRecord]:
    """Return the ledgers in which given-up frames left a gap before a segment, with the gap as lost entries.

    Raises:
        MetadataError: a segment does not follow the ledger's sealed entries, and no given-up frames explain the gap.
    """
    given_up = _given_up(found, span.end)
    changed = []
    for segment in segments:
        ledger_id, first = LedgerId(segment.ledger_id), EntryId(segment.first_entry)
        end = sealed_end(view, segment.topic_id, ledger_id)
        if (
            sealing.first_gap({ledger_id: end}, [EntryRange(ledger_id, first, EntryId(first + segment.entries))])
            is None
        ):
            continue
        ledger = view.get(LedgerRecord, f"{segment.topic_id}/{ledger_id:020d}")
        assert ledger is not None, "segments of deleted topics are left out"
        lost = (*ledger.lost, LostEntries(ledger_id=ledger_id, first=end, end=first))
        if first < end or not given_up.explains_gaps(map(_entries, lost)):
            raise MetadataError(
                f"Entry {ledger_id}:{first} in frames {span.begin} to {span.end - 1} of incarnation {span.incarnation} "
                f"does not follow {end}, the end of the sealed entries: restore the metadata of this root."
            )
        changed.append(ledger.model_copy(update={"lost": lost}))
    return changed


def _entries(lost: LostEntries) -> EntryRange:
    return EntryRange(LedgerId(lost.ledger_id), EntryId(lost.first), EntryId(lost.end))


def closed_incarnations(view: View) -> Collection[IncarnationId]:
    """Return the incarnations whose log is CLOSED and still recorded."""
    return [IncarnationId(row.incarnation) for row in view.all(IncarnationRecord) if row.state == "CLOSED"]
