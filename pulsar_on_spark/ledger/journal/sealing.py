"""Decisions about sealing, closing, trimming and deleting of a log, on one view of the main table, without IO.

    seal     the next frames in order, up to the last one that is proved to be acknowledged, without gaps in a ledger
    close    the ledgers of a CLOSED log, when the log is completely sealed: each ends with its last sealed entry
    trim     whole fragments that have ended, with all entries sealed and all cursor records snapshotted; in a CLOSED
             log only after the close rows
    prune    trimmed fragments from the record of a CLOSED log when their files are deleted; an empty log is deleted

Each step is committed under the incarnation's `seal` key, at the key's version in the view on which the step was
decided. A takeover moves the key, so the commit of an earlier decision fails, and a later decision sees that the log is
not OPEN.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from pulsar_on_spark.ledger.journal.log import (
    NO_FRAME,
    Copy,
    Fragment,
    FrameNumber,
    LogRecord,
    LogState,
    ended_before,
)
from pulsar_on_spark.model.ids import EntryId, LedgerId


@dataclass(frozen=True, slots=True)
class SealMarks:
    """The frames up to which a log is sealed and trimmed, in one view of the main table.

    Attributes:
        sealed_before: The frame below which all entries are in segments.
        trimmed_before: The frame below which no frame is needed, so that their files may be deleted.
        has_ends: True if every ledger that was opened in the log has its close row.
    """

    sealed_before: FrameNumber = 0
    trimmed_before: FrameNumber = 0
    has_ends: bool = False


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Entries [first, end) of a ledger."""

    ledger: LedgerId
    first: EntryId
    end: EntryId


def readable_to(record: LogRecord, lac_seen: FrameNumber) -> FrameNumber:
    """Return the last frame that readers may read: the end of a CLOSED log, else the highest proved LAC.

    `lac_seen` is the highest LAC in the headers that were read. A LAC is proved by any frame header that names it, and
    by a fragment that has ended according to the record.
    """
    if record.last_frame is not None:
        return record.last_frame
    return max(lac_seen, ended_before(record) - 1)


# -- sealing -----------------------------------------------------------------------------------------------------------


def sealable_to(record: LogRecord, lac_seen: FrameNumber) -> FrameNumber:
    """Return the last frame that may be sealed; NO_FRAME while the log is in recovery (`lac_seen` as `readable_to`)."""
    return NO_FRAME if record.state is LogState.IN_RECOVERY else readable_to(record, lac_seen)


def may_seal(record: LogRecord, marks: SealMarks, state: LogState, begin: FrameNumber, end: FrameNumber) -> bool:
    """Return True if frames [begin, end) are the next ones to be sealed, and the sealer that read them still owns them.

    Args:
        record: The log's record in the view that commits.
        marks: The marks in the same view.
        state: The log's state when the frames were read up to `sealable_to`; if it differs now, another process has
            taken over the log.
        begin: The first frame that was read.
        end: The number after the last frame that was read.
    """
    may = record.state is state is not LogState.IN_RECOVERY and marks.sealed_before == begin
    assert not may or record.last_frame is None or end <= record.last_frame + 1, "never above the closed end"
    return may


def first_gap(ends: Mapping[LedgerId, EntryId], ranges: Iterable[EntryRange]) -> EntryRange | None:
    """Return the first of these ranges that does not continue its ledger's sealed entries; None if all of them do.

    Args:
        ends: The number after the last sealed entry of each ledger; 0 for a ledger without sealed entries.
        ranges: The ranges to be sealed next.
    """
    reached = dict(ends)
    for entries in ranges:
        if entries.first != reached.get(entries.ledger, 0):
            return entries
        reached[entries.ledger] = entries.end
    return None


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The frames of a log that an operator has given up.

    Attributes:
        entries: Lost entries of the frames whose directory could be read.
        unknown_runs: Number of runs of lost frames without a readable directory. In each such run, any ledger may have
            lost one range of entries.
    """

    entries: tuple[EntryRange, ...] = ()
    unknown_runs: int = 0

    def explains_gaps(self, gaps: Iterable[EntryRange]) -> bool:
        """Return True if the given-up frames explain these gaps, which are all gaps of one ledger."""
        return sum(not self._names(gap) for gap in gaps) <= self.unknown_runs

    def _names(self, gap: EntryRange) -> bool:
        at = gap.first
        for first, end in sorted((each.first, each.end) for each in self.entries if each.ledger == gap.ledger):
            if first <= at:
                at = max(at, end)
        return at >= gap.end


def is_sealed(record: LogRecord, marks: SealMarks) -> bool:
    """Return True if the log is CLOSED and completely sealed, so that its ledgers end with their sealed entries."""
    return record.last_frame is not None and marks.sealed_before > record.last_frame


# -- trimming ----------------------------------------------------------------------------------------------------------


def trimmable_before(
    record: LogRecord, marks: SealMarks, is_snapshotted: Callable[[FrameNumber, FrameNumber], bool]
) -> FrameNumber:
    """Return the frame before which the log may be trimmed; `marks.trimmed_before` if nothing more may be trimmed.

    Args:
        record: The log's record in a durable view.
        marks: The marks in the same view.
        is_snapshotted: Returns True if every cursor with a record in frames [begin, end) has a durable snapshot that is
            not older than the record.
    """
    before = marks.trimmed_before
    if record.state is LogState.IN_RECOVERY:
        return before
    if record.state is LogState.CLOSED and not (is_sealed(record, marks) and marks.has_ends):
        return before
    for begin, end in ended_spans(record):
        if end <= before:
            continue
        if end > marks.sealed_before or not is_snapshotted(max(begin, before), end):
            break
        before = end
    return before


def may_trim(record: LogRecord, marks: SealMarks, before: FrameNumber) -> bool:
    """Return True if a trim up to `before` may be committed on this view.

    The caller has checked that the cursor records in frames below `before` are in durable snapshots.
    """
    trimmable = trimmable_before(record, marks, lambda _begin, end: end <= before)
    return marks.trimmed_before < before <= trimmable


def files_to_delete(record: LogRecord, trimmed_before: FrameNumber) -> tuple[Copy, ...]:
    """Return the files that only trimmed fragments name; to be called after the trim is committed durably."""
    trimmed = {begin for begin, end in ended_spans(record) if end <= trimmed_before}
    files_of_trimmed: set[Copy] = set()
    needed: set[Copy] = set()
    for fragment in record.fragments:
        (files_of_trimmed if fragment.first in trimmed else needed).update(fragment.copies)
    return tuple(sorted(files_of_trimmed - needed))


def deleted_before(record: LogRecord, trimmed_before: FrameNumber, deleted: Collection[Copy]) -> FrameNumber:
    """Return the frame before which the log's record may drop its fragments, because all their files are deleted.

    A trimmed fragment stays in the record until all its files are deleted, because only the record names them. A file
    stays, for example, while a later fragment needs it.

    Args:
        record: The log's record.
        trimmed_before: The mark in the same view as the record.
        deleted: The files that are known to be deleted.
    """
    remaining = [fragment for fragment in record.fragments if not set(deleted).issuperset(fragment.copies)]
    return min([trimmed_before, *(fragment.first for fragment in remaining if fragment.first is not None)])


def pruned(record: LogRecord, marks: SealMarks, deleted: Collection[Copy]) -> tuple[Fragment, ...] | None:
    """Return the fragments that a CLOSED log's record must keep after these files are deleted.

    Only its writer prunes the record of an OPEN log.

    Returns:
        The remaining fragments; empty if the whole log may be deleted. None if no fragment can be dropped now.
    """
    if record.last_frame is None:
        return None
    before = deleted_before(record, marks.trimmed_before, deleted)
    dropped = {begin for begin, end in ended_spans(record) if end <= before}
    kept = tuple(fragment for fragment in record.fragments if fragment.first not in dropped)
    if not kept:
        return kept if is_sealed(record, marks) and marks.has_ends else None
    return kept if len(kept) < len(record.fragments) else None


def ended_spans(record: LogRecord) -> list[tuple[FrameNumber, FrameNumber]]:
    """Return the frames [begin, end) of each fragment that has ended, in order."""
    firsts = [fragment.first for fragment in record.fragments if fragment.first is not None]
    ends = [*firsts[1:], *([record.last_frame + 1] if record.last_frame is not None else [])]
    return list(zip(firsts, ends, strict=False))


# -- ledgers -----------------------------------------------------------------------------------------------------------


def is_unfinished(entries: int | None, sealed_end: int) -> bool:
    """Return True if a ledger may have entries that are not sealed, which only the journal has.

    Args:
        entries: The count of entries in the ledger's close row; None while it has no close row.
        sealed_end: The id after the ledger's last sealed entry.
    """
    return entries is None or sealed_end < entries


def may_open(state: LogState) -> bool:
    """Return True if a topic's ledger may be opened, or closed by its owner, in a log of this state."""
    return state is LogState.OPEN
