"""Decisions about sealing, closing, trimming and deleting of a log, on one view of main, without IO.

    seal     the next frames in order, up to the last that is proved to be acknowledged; a ledger's entries tile
    close    once all of a CLOSED log is sealed, the ends of its ledgers are the ends of their sealed entries
    trim     whole fragments that have ended, all of it sealed and its cursor records snapshotted; in a CLOSED log only
             after the close rows
    prune    the record of a CLOSED log forgets trimmed fragments when their files are deleted; an empty log goes

All of it is committed under the incarnation's `seal` key, at the version of the view that the decision is based on. A
takeover moves that key: a decision before it loses, and a decision after it finds the log not OPEN.
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
    """The frames up to which a log is sealed and trimmed, in one view of main.

    Attributes:
        sealed_before: All entries in frames below are in segments.
        trimmed_before: No frame below is needed: its file may be deleted.
        has_ends: Whether every ledger that was opened in the log has its close row.
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
    """The last frame that anybody may read: the end of a CLOSED log, else the highest LAC that there is proof of.

    Proof is a LAC in any frame's header, and a fragment that has ended by the record.
    """
    if record.last_frame is not None:
        return record.last_frame
    return max(lac_seen, ended_before(record) - 1)


# -- sealing -----------------------------------------------------------------------------------------------------------


def sealable_to(record: LogRecord, lac_seen: FrameNumber) -> FrameNumber:
    """The last frame that may be sealed; NO_FRAME while the log is in recovery."""
    return NO_FRAME if record.state is LogState.IN_RECOVERY else readable_to(record, lac_seen)


def may_seal(record: LogRecord, marks: SealMarks, state: LogState, begin: FrameNumber, end: FrameNumber) -> bool:
    """Return True if frames [begin, end) are the next ones to be sealed, and the sealer that read them still owns them.

    Args:
        record: The log's record in the view that commits.
        marks: Of the same view.
        state: The log's state when the frames were read up to `sealable_to`: another state means that the log has
            changed hands.
        begin: The first frame that was read.
        end: The number after the last one.
    """
    may = record.state is state is not LogState.IN_RECOVERY and marks.sealed_before == begin
    assert not may or record.last_frame is None or end <= record.last_frame + 1, "never above the closed end"
    return may


def first_gap(ends: Mapping[LedgerId, EntryId], ranges: Iterable[EntryRange]) -> EntryRange | None:
    """Return the first of these ranges, in order, that does not continue its ledger's sealed entries; None if all do.

    Args:
        ends: The number after the last sealed entry of each ledger; 0 if there is none.
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
        entries: Entries in frames whose directory could be read.
        unknown_runs: Runs of frames besides; each may have taken one run of entries of every ledger along.
    """

    entries: tuple[EntryRange, ...] = ()
    unknown_runs: int = 0

    def explains_gaps(self, gaps: Iterable[EntryRange]) -> bool:
        """True if these gaps, all that one ledger has, are due to it."""
        return sum(not self._names(gap) for gap in gaps) <= self.unknown_runs

    def _names(self, gap: EntryRange) -> bool:
        at = gap.first
        for first, end in sorted((each.first, each.end) for each in self.entries if each.ledger == gap.ledger):
            if first <= at:
                at = max(at, end)
        return at >= gap.end


def is_sealed(record: LogRecord, marks: SealMarks) -> bool:
    """True if the log is CLOSED and all of it is sealed: then its ledgers end where they are sealed to."""
    return record.last_frame is not None and marks.sealed_before > record.last_frame


# -- trimming ----------------------------------------------------------------------------------------------------------


def trimmable_before(
    record: LogRecord, marks: SealMarks, is_snapshotted: Callable[[FrameNumber, FrameNumber], bool]
) -> FrameNumber:
    """Return the frame before which the log may be trimmed; `marks.trimmed_before` if no further.

    Args:
        record: The log's record in a durable view.
        marks: Of the same view.
        is_snapshotted: Whether every cursor record in frames [begin, end) has a durable snapshot at or past it.
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
    """Return True if a trim up to `before`, whose cursor records are in snapshots, may be committed on this view."""
    trimmable = trimmable_before(record, marks, lambda _begin, end: end <= before)
    return marks.trimmed_before < before <= trimmable


def files_to_delete(record: LogRecord, trimmed_before: FrameNumber) -> tuple[Copy, ...]:
    """The files that only trimmed fragments name, after the trim is committed durably."""
    trimmed = {begin for begin, end in ended_spans(record) if end <= trimmed_before}
    gone: set[Copy] = set()
    needed: set[Copy] = set()
    for fragment in record.fragments:
        (gone if fragment.first in trimmed else needed).update(fragment.copies)
    return tuple(sorted(gone - needed))


def deleted_before(record: LogRecord, trimmed_before: FrameNumber, deleted: Collection[Copy]) -> FrameNumber:
    """Return the frame before which the log's record may forget its fragments: all their files are deleted.

    A file that a later fragment needs keeps the earlier ones in the record: if the record dropped it from the later
    one, nothing else would name it.

    Args:
        record: The log's record.
        trimmed_before: Of the same view.
        deleted: The files that are known to be deleted.
    """
    left = [fragment for fragment in record.fragments if not set(deleted).issuperset(fragment.copies)]
    return min([trimmed_before, *(fragment.first for fragment in left if fragment.first is not None)])


def pruned(record: LogRecord, marks: SealMarks, deleted: Collection[Copy]) -> tuple[Fragment, ...] | None:
    """Return the rest of a CLOSED log's record, which it must name after these files are deleted.

    The record of a log that is OPEN is its writer's, which prunes it itself.

    Returns:
        None if there is nothing to forget, or nothing may be; no fragments: the log may go altogether.
    """
    if record.last_frame is None:
        return None
    before = deleted_before(record, marks.trimmed_before, deleted)
    gone = {begin for begin, end in ended_spans(record) if end <= before}
    kept = tuple(fragment for fragment in record.fragments if fragment.first not in gone)
    if not kept:
        return kept if is_sealed(record, marks) and marks.has_ends else None
    return kept if len(kept) < len(record.fragments) else None


def ended_spans(record: LogRecord) -> list[tuple[FrameNumber, FrameNumber]]:
    """Frames [begin, end) of each fragment that has ended, in order."""
    firsts = [fragment.first for fragment in record.fragments if fragment.first is not None]
    ends = [*firsts[1:], *([record.last_frame + 1] if record.last_frame is not None else [])]
    return list(zip(firsts, ends, strict=False))


# -- ledgers -----------------------------------------------------------------------------------------------------------


def is_unfinished(entries: int | None, sealed_end: int) -> bool:
    """True if a ledger may have entries that are in the journal only.

    Args:
        entries: How many it has by its close row; None while there is none.
        sealed_end: The number after its last sealed entry.
    """
    return entries is None or sealed_end < entries


def may_open(state: LogState) -> bool:
    """True if a topic's ledger may be opened, or closed by its owner, in a log of this state."""
    return state is LogState.OPEN
