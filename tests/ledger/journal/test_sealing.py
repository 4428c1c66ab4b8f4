"""Decisions on one view of main: what may be sealed, closed, trimmed, deleted, forgotten and opened."""

from dataclasses import replace

import pytest

from pulsar_on_spark.ledger.journal.log import Fragment, LogRecord, LogState, fault_in
from pulsar_on_spark.ledger.journal.sealing import (
    EntryRange,
    GivenUp,
    SealMarks,
    deleted_before,
    files_to_delete,
    first_gap,
    is_sealed,
    is_unfinished,
    may_open,
    may_seal,
    may_trim,
    pruned,
    readable_to,
    sealable_to,
    trimmable_before,
)
from pulsar_on_spark.model.ids import EntryId, LedgerId
from tests.ledger.journal.script import copy

ONE, TWO = LedgerId(1), LedgerId(2)
OLD, ON, NEW, AHEAD = copy(0), copy(1), copy(2, "2"), copy(0, "3")
ROLLED = LogRecord(
    LogState.OPEN, 2, 1, (Fragment(0, (OLD, ON)), Fragment(2, (NEW, ON)), Fragment(4, (NEW,)), Fragment(None, (AHEAD,)))
)
CLOSED = LogRecord(LogState.CLOSED, 2, 1, (Fragment(0, (OLD, ON)), Fragment(2, (NEW,))), last_frame=3)


RECOVERING = replace(ROLLED, state=LogState.IN_RECOVERY)
ALL = SealMarks(sealed_before=9, has_ends=True)


def entries(ledger: LedgerId, first: int, end: int) -> EntryRange:
    return EntryRange(ledger, EntryId(first), EntryId(end))


def always(begin: int, end: int) -> bool:
    return True


def test_the_readable_end_is_proved_by_record_or_header() -> None:
    assert readable_to(ROLLED, 1) == 3  # the fragment before 4 has ended
    assert readable_to(ROLLED, 7) == 7
    assert readable_to(CLOSED, 2) == 3
    assert readable_to(replace(ROLLED, fragments=ROLLED.fragments[:1]), -1) == -1


def test_the_readable_end_is_sealable_unless_the_log_is_in_recovery() -> None:
    assert sealable_to(ROLLED, 7) == 7
    assert sealable_to(CLOSED, 2) == 3
    assert sealable_to(RECOVERING, 7) == -1


@pytest.mark.parametrize(
    ("record", "state", "sealed_before", "may"),
    [
        (ROLLED, LogState.OPEN, 2, True),
        (ROLLED, LogState.OPEN, 1, False),
        (ROLLED, LogState.OPEN, 3, False),
        (CLOSED, LogState.CLOSED, 2, True),
        (CLOSED, LogState.OPEN, 2, False),
        (RECOVERING, LogState.OPEN, 2, False),
        (RECOVERING, LogState.IN_RECOVERY, 2, False),
    ],
)
def test_the_next_frames_are_sealed_only_by_the_logs_owner(
    record: LogRecord, state: LogState, sealed_before: int, may: bool
) -> None:
    assert may_seal(record, SealMarks(sealed_before), state, 2, 4) is may


def test_nothing_is_sealed_above_the_end() -> None:
    with pytest.raises(AssertionError, match="closed end"):
        may_seal(CLOSED, SealMarks(2), LogState.CLOSED, 2, 5)


def test_a_sealer_loses_if_the_log_was_closed_before_its_frames() -> None:
    """An operator gave paths up, and with them frames that the broker's own sealer had read."""
    assert not may_seal(CLOSED, SealMarks(2), LogState.OPEN, 2, 5)


def test_sealed_ranges_tile_each_ledger() -> None:
    sealed = {ONE: EntryId(3)}
    assert first_gap(sealed, [entries(ONE, 3, 5), entries(TWO, 0, 1), entries(ONE, 5, 6)]) is None
    assert first_gap(sealed, [entries(TWO, 0, 1), entries(ONE, 2, 5)]) == entries(ONE, 2, 5)
    assert first_gap(sealed, [entries(ONE, 3, 5), entries(ONE, 6, 7)]) == entries(ONE, 6, 7)
    assert first_gap({}, [entries(TWO, 1, 2)]) == entries(TWO, 1, 2)


def test_gaps_are_explained_by_given_up_frames_only() -> None:
    two, five = entries(ONE, 2, 4), entries(ONE, 4, 5)
    named = GivenUp((five, two, entries(TWO, 7, 9)), unknown_runs=0)
    assert named.explains_gaps([])
    assert named.explains_gaps([two])
    assert named.explains_gaps([entries(ONE, 2, 5)]), "frames that follow each other"
    assert named.explains_gaps([two, entries(ONE, 4, 5)])
    assert not named.explains_gaps([entries(ONE, 1, 4)])
    assert not named.explains_gaps([entries(ONE, 2, 6)])
    assert not named.explains_gaps([entries(ONE, 7, 9)]), "those of another ledger"
    once = GivenUp((two,), unknown_runs=1)
    assert once.explains_gaps([entries(ONE, 90, 95)])
    assert once.explains_gaps([two, entries(ONE, 90, 95)])
    assert not once.explains_gaps([entries(ONE, 80, 81), entries(ONE, 90, 95)])


def test_a_log_is_sealed_if_it_is_closed_and_complete() -> None:
    assert is_sealed(CLOSED, SealMarks(4))
    assert not is_sealed(CLOSED, SealMarks(3))
    assert not is_sealed(ROLLED, SealMarks(99))
    assert is_sealed(LogRecord(LogState.CLOSED, 2, 1, (), last_frame=-1), SealMarks())


def test_a_ledger_is_unfinished_until_it_has_an_end_and_is_sealed_to_it() -> None:
    assert is_unfinished(None, 7)
    assert is_unfinished(8, 7)
    assert not is_unfinished(7, 7)


@pytest.mark.parametrize(
    ("record", "marks", "before"),
    [
        (ROLLED, SealMarks(4), 4),
        (ROLLED, SealMarks(9), 4),
        (ROLLED, SealMarks(3), 2),
        (ROLLED, SealMarks(1), 0),
        (ROLLED, SealMarks(4, 4), 4),
        (ROLLED, SealMarks(4, 2), 4),
        (RECOVERING, SealMarks(4), 0),
        (CLOSED, SealMarks(4), 0),
        (CLOSED, SealMarks(3, has_ends=True), 0),
        (CLOSED, SealMarks(4, has_ends=True), 4),
    ],
)
def test_trims_ended_fragments_that_are_sealed(record: LogRecord, marks: SealMarks, before: int) -> None:
    assert trimmable_before(record, marks, always) == before
    assert may_trim(record, marks, before) is (before > marks.trimmed_before)
    assert not may_trim(record, marks, before + 1)


def test_trims_as_far_as_cursors_have_snapshots() -> None:
    asked = []

    def is_snapshotted(begin: int, end: int) -> bool:
        asked.append((begin, end))
        return end <= 2

    assert trimmable_before(ROLLED, SealMarks(9, 1), is_snapshotted) == 2
    assert asked == [(1, 2), (2, 4)], "of what is not trimmed yet"


def test_only_an_open_log_gets_ledgers() -> None:
    assert [state for state in LogState if may_open(state)] == [LogState.OPEN]


@pytest.mark.parametrize(("before", "files"), [(1, ()), (2, (OLD,)), (4, (OLD, ON)), (9, (OLD, ON))])
def test_a_file_that_a_later_fragment_uses_is_kept(before: int, files: tuple[object, ...]) -> None:
    assert files_to_delete(ROLLED, before) == files


def test_all_files_of_a_closed_log_are_deleted_when_it_is_trimmed() -> None:
    assert files_to_delete(CLOSED, 4) == (OLD, ON, NEW)


def test_the_record_forgets_fragments_whose_files_are_all_deleted() -> None:
    assert deleted_before(ROLLED, 4, {OLD, ON, NEW}) == 4
    assert deleted_before(ROLLED, 4, {OLD}) == 0, "ON continues, and only this record names it"
    assert deleted_before(ROLLED, 4, {OLD, ON}) == 2
    assert deleted_before(ROLLED, 2, {OLD, ON, NEW}) == 2
    assert deleted_before(ROLLED, 4, ()) == 0


def test_a_closed_log_forgets_deleted_files_and_its_record_goes_with_the_last() -> None:
    trimmed = SealMarks(4, 4, has_ends=True)
    assert pruned(CLOSED, trimmed, {OLD, ON}) == CLOSED.fragments[1:]
    assert pruned(CLOSED, trimmed, {OLD, NEW}) is None
    assert pruned(CLOSED, trimmed, {OLD, ON, NEW}) == ()
    assert pruned(CLOSED, replace(trimmed, trimmed_before=2), {OLD, ON, NEW}) == CLOSED.fragments[1:]
    assert pruned(CLOSED, replace(trimmed, has_ends=False), {OLD, ON, NEW}) is None
    assert pruned(ROLLED, trimmed, {OLD, ON, NEW}) is None


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        (ROLLED, None),
        (CLOSED, None),
        (replace(ROLLED, ack_quorum=2), "fewer copies"),
        (replace(ROLLED, fragments=ROLLED.fragments[::-1]), "not the last"),
        (replace(ROLLED, fragments=(ROLLED.fragments[1], ROLLED.fragments[0])), "rising"),
        (replace(ROLLED, fragments=(Fragment(0, (OLD, AHEAD)),)), "two copies on one path"),
        (replace(ROLLED, last_frame=5), "CLOSED records only"),
        (replace(ROLLED, given_up=(OLD.path,)), "given up in CLOSED records only"),
        (replace(CLOSED, last_frame=1), "after the last frame"),
    ],
)
def test_a_faulty_record_is_recognised(record: LogRecord, fault: str | None) -> None:
    found = fault_in(record)
    assert found is None if fault is None else fault in (found or "")
