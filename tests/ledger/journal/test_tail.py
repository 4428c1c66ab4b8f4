"""A log reader's next frame: the choice of the frame and its copy, and the evidence that it may believe."""

from dataclasses import replace

import pytest

from pulsar_on_spark.ledger.journal.log import Copy, Fragment, LogRecord, LogState
from pulsar_on_spark.ledger.journal.tail import LogWalk
from tests.ledger.journal.script import copy

A, B, C, D, AHEAD = copy(0), copy(1), copy(0, "2"), copy(1, "2"), copy(2, "3")
OPEN = LogRecord(LogState.OPEN, 2, 1, (Fragment(0, (A, B)),))
ROLLED = replace(OPEN, fragments=(Fragment(0, (A, B)), Fragment(3, (C, D))))
PREPARED = replace(OPEN, fragments=(Fragment(0, (A, B)), Fragment(None, (C, D))))
CLOSED = LogRecord(LogState.CLOSED, 2, 1, (Fragment(0, (A, B)), Fragment(3, (C,))), last_frame=4)


def at(record: LogRecord, begin: int = 0) -> LogWalk:
    walk = LogWalk()
    walk.main_read(record, begin)
    return walk


def take(walk: LogWalk, source: Copy, *lacs: int, first: int = 0) -> LogWalk:
    walk.use(source, first)
    for lac in lacs:
        walk.took(walk.next, lac)
    return walk


def test_one_file_of_each_fragment_is_opened_and_then_main_is_read_again() -> None:
    walk = at(ROLLED)
    opened = []
    while (source := walk.to_open()) is not None:
        opened.append(source)
        walk.opened(source, is_open=source != A)
    assert opened == [A, B, D], "the path of A is tried last from now on"
    assert not walk.is_ready, "what was sealed before they were opened is known only now"
    walk.main_read(ROLLED, 0)
    assert walk.is_ready


def test_a_file_that_cannot_be_opened_is_tried_again_when_failures_are_forgotten() -> None:
    walk = at(OPEN)
    for source in (A, B):
        walk.opened(source, is_open=False)
    assert walk.to_open() is None
    walk.forget_failures()
    assert walk.to_open() == A


def test_a_path_that_fails_is_tried_last_until_one_of_its_files_can_be_read() -> None:
    walk = at(ROLLED)
    walk.opened(A, is_open=True)
    walk.on_copy_lost(A)
    assert walk.to_open() == B
    walk.opened(B, is_open=True)
    walk.forget_failures()
    assert walk.to_open() == D
    walk.opened(D, is_open=False)
    assert walk.to_open() == C, "there is no other"
    walk.opened(C, is_open=True)
    walk.all_closed()
    assert walk.to_open() == A


def test_main_that_names_more_has_them_opened() -> None:
    walk = at(OPEN)
    walk.opened(A, is_open=True)
    walk.main_read(ROLLED, 0)
    assert walk.to_open() == C
    assert not walk.is_ready


def test_files_of_frames_that_were_read_or_sealed_are_closed() -> None:
    walk = at(ROLLED)
    for source in (A, C):
        walk.opened(source, is_open=True)
    assert walk.passed_files() == []
    walk.main_read(ROLLED, 3)
    assert walk.next == 3
    assert walk.passed_files() == [A]
    assert walk.passed_files() == []


def test_frames_are_readable_as_proved_by_a_header_or_the_record() -> None:
    walk = take(at(OPEN), A, -1, 0)
    assert walk.last_readable == 0
    walk.main_read(ROLLED, 0)
    assert walk.last_readable == 2, "the fragment before 3 has ended"
    walk.main_read(CLOSED, 0)
    assert walk.last_readable == 4


def test_a_frame_that_is_not_due_may_come_yet_and_one_that_is_may_not_be_missing() -> None:
    walk = take(at(OPEN), A, -1)
    assert not walk.others()
    assert list(walk.others(every=True)) == [B]
    walk.found_none()
    assert not walk.is_stuck
    walk.main_read(ROLLED, 0)
    assert list(walk.others()) == [B]
    walk.found_none()
    assert walk.is_stuck


def test_without_a_copy_in_use_open_files_are_tried_first() -> None:
    walk = at(OPEN)
    assert list(walk.others()) == [A, B]
    walk.opened(B, is_open=True)
    assert list(walk.others()) == [B, A]


def test_logs_are_spread_over_their_copies() -> None:
    walk = LogWalk(spread=3)
    walk.main_read(OPEN, 0)
    assert list(walk.others()) == [B, A]


def test_a_file_is_left_where_its_fragment_ends() -> None:
    walk = take(at(ROLLED), A, -1, 0)
    assert walk.copy == A
    walk.took(2, 1)
    assert walk.copy is None
    assert list(walk.others()) == [C, D]


def test_a_file_that_the_next_fragment_uses_stays_open() -> None:
    walk = take(at(replace(ROLLED, fragments=(Fragment(0, (A, B)), Fragment(1, (A, D))))), A, -1)
    assert walk.copy == A


def test_a_copy_that_main_has_replaced_is_left() -> None:
    walk = take(at(ROLLED), A, -1)
    walk.main_read(replace(OPEN, fragments=(Fragment(0, (B, C)),)), 0)
    assert walk.copy is None
    assert list(walk.others()) == [B, C]


def test_a_prepared_fragment_begins_where_its_files_say() -> None:
    walk = take(at(PREPARED), A, -1, 0)
    assert list(walk.others()) == [C, D], "perhaps one has begun"
    walk.use(D, first=2)
    assert walk.resolved.fragments == (Fragment(0, (A, B)), Fragment(2, (C, D)))
    walk.took(2, 1)
    assert walk.last_readable == 1, "that it has begun proves nothing of the frames before"
    walk.main_read(
        replace(PREPARED, fragments=(*PREPARED.fragments[:1], Fragment(2, (C, D)), Fragment(None, (AHEAD,)))), 0
    )
    assert walk.resolved.fragments[-1] == Fragment(None, (AHEAD,))
    assert walk.copy == D


def test_a_closed_log_has_no_frame_after_its_end() -> None:
    walk = take(at(CLOSED, 3), C, 2, 3, first=3)
    assert walk.next == 5
    assert walk.others(every=True) == ()
    assert walk.to_open() is None
    walk.found_none()
    assert not walk.is_stuck


def test_a_reader_that_accepts_losses_continues_after_them() -> None:
    walk = at(ROLLED)
    assert walk.skip_hole() == 3
    assert walk.next == 3
    assert walk.skip_hole() is None, "nothing is due"


def test_a_skipped_frame_is_not_read_when_it_arrives() -> None:
    walk = take(at(replace(OPEN, fragments=(Fragment(0, (A, B)), Fragment(3, (A, C))))), A, -1)
    assert walk.skip_hole() == 3
    assert walk.copy is None, "A is before what was skipped, and lags"
    assert list(walk.others()) == [A, C]


def test_a_frame_can_be_read_again_after_a_rewind() -> None:
    walk = take(at(ROLLED), A, -1, 0, 1)
    walk.rewind(1)
    assert list(walk.others()) == [A, B]
    walk.use(A, first=0)
    walk.took(1, 0)
    assert walk.lac == 1, "what is proved stays so"


def test_a_reader_that_restarts_begins_at_the_first_unsealed_frame() -> None:
    walk = take(at(ROLLED), A, -1, 0, 1)
    walk.restart()
    assert (walk.next, walk.copy) == (0, None)
    walk.main_read(ROLLED, 3)
    assert walk.next == 3
    assert list(walk.others()) == [C, D]


def test_a_dead_descriptor_is_given_up() -> None:
    walk = at(OPEN)
    walk.opened(A, is_open=True)
    walk.use(A, first=0)
    walk.on_copy_lost(A)
    assert walk.copy is None
    assert walk.to_open() == B


def test_frames_come_in_order() -> None:
    with pytest.raises(AssertionError, match="in order"):
        take(at(OPEN), A).took(1, 0)
