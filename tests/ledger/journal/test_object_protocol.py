"""Scripted traces of one file on an object store: the writer's side and the recoverer's."""

from __future__ import annotations

import pytest

from pulsar_on_spark.ledger.journal.copy_protocol import (
    MAX_AHEAD,
    End,
    FenceAnswer,
    FenceFirst,
    Lost,
    Ok,
    ReadAnswer,
    ReadFrames,
    ScanEnd,
)
from pulsar_on_spark.ledger.journal.log import FrameFacts, FrameKind
from pulsar_on_spark.ledger.journal.object_protocol import (
    MAX_IN_FLIGHT_BYTES,
    MAX_LOOKS,
    AwaitInterval,
    BirthChecked,
    CheckBirth,
    CommitPolicy,
    FencePut,
    FenceResult,
    GiveFrames,
    IntervalPassed,
    Look,
    Looked,
    ObjectAppender,
    ObjectConfirmed,
    ObjectExists,
    ObjectReader,
    ObjectsScanned,
    PutFailed,
    PutFence,
    PutObject,
    ScanObjects,
)

POLICY = CommitPolicy(interval_s=0.1, max_bytes=100, in_flight=3)
FRAMES = (FrameFacts(4, FrameKind.ENTRIES, 3), FrameFacts(5, FrameKind.ENTRIES, 3))


def appender(first: int = 0, policy: CommitPolicy = POLICY) -> ObjectAppender:
    return ObjectAppender(first, "mine", policy)


# -- cutting -----------------------------------------------------------------------------------------------------------


def test_frames_are_put_at_once_if_nothing_is_on_its_way() -> None:
    assert appender(7).handle(GiveFrames(7, (10, 10))) == [PutObject(1, 7, 8, 0), AwaitInterval()]


def test_later_frames_wait_for_the_interval() -> None:
    file = appender()
    file.handle(GiveFrames(0, (10,)))

    assert file.handle(GiveFrames(1, (10,))) == []
    assert file.handle(GiveFrames(2, (10,))) == []
    assert file.handle(IntervalPassed()) == [PutObject(2, 1, 2, 0), AwaitInterval()]


def test_an_interval_that_passed_without_frames_lets_the_next_ones_go_at_once() -> None:
    file = appender()
    file.handle(GiveFrames(0, (10,)))

    assert file.handle(IntervalPassed()) == []
    assert file.handle(GiveFrames(1, (10,))) == [PutObject(2, 1, 1, 0), AwaitInterval()]


def test_frames_of_enough_bytes_do_not_wait_for_the_interval() -> None:
    file = appender()
    file.handle(GiveFrames(0, (10,)))

    assert file.handle(GiveFrames(1, (60, 30))) == []
    assert file.handle(GiveFrames(3, (10,))) == [PutObject(2, 1, 3, 0), AwaitInterval()]


def test_an_object_has_at_most_the_policys_bytes_or_one_frame() -> None:
    puts = [each for each in appender().handle(GiveFrames(0, (60, 60, 150, 20))) if isinstance(each, PutObject)]

    assert puts == [PutObject(1, 0, 0, 0), PutObject(2, 1, 1, 0), PutObject(3, 2, 2, 0)]


def test_no_more_objects_are_on_their_way_than_the_policy_allows() -> None:
    file = appender()
    file.handle(GiveFrames(0, (100, 100, 100, 100)))

    assert file.handle(IntervalPassed()) == []
    assert file.handle(ObjectConfirmed(2)) == [PutObject(4, 3, 3, 0), AwaitInterval()]


def test_no_more_bytes_are_on_their_way_than_the_limit() -> None:
    file = appender(policy=CommitPolicy(0.1, MAX_IN_FLIGHT_BYTES, 8))
    file.handle(GiveFrames(0, (MAX_IN_FLIGHT_BYTES,)))

    assert file.handle(GiveFrames(1, (MAX_IN_FLIGHT_BYTES,))) == []
    assert file.handle(ObjectConfirmed(1)) == [Ok(0), PutObject(2, 1, 1, 1), AwaitInterval()]


def test_frames_may_come_early_again_and_overlapping() -> None:
    file = appender()
    assert file.handle(GiveFrames(2, (30,))) == []
    assert file.handle(GiveFrames(0, (10, 20))) == [PutObject(1, 0, 2, 0), AwaitInterval()]
    assert file.handle(GiveFrames(1, (20, 30, 40))) == []
    assert file.handle(IntervalPassed()) == [PutObject(2, 3, 3, 0), AwaitInterval()]


def test_a_file_without_a_frame_for_too_long_is_lost() -> None:
    file = appender()
    for number in range(MAX_AHEAD):
        assert file.handle(GiveFrames(2 + number, (1,))) == []
    assert file.handle(GiveFrames(200, (1,))) == [Lost("a frame is missing")]


# -- counting ----------------------------------------------------------------------------------------------------------


def test_an_object_counts_when_all_before_it_are_confirmed() -> None:
    file = appender()
    file.handle(GiveFrames(0, (100, 100, 100)))

    assert file.handle(ObjectConfirmed(2)) == []
    assert file.handle(ObjectConfirmed(3)) == []
    assert file.handle(ObjectConfirmed(1)) == [Ok(2)]


def test_a_confirmation_that_comes_twice_counts_once() -> None:
    file = appender()
    file.handle(GiveFrames(0, (10,)))

    assert file.handle(ObjectConfirmed(1)) == [Ok(0)]
    assert file.handle(ObjectConfirmed(1)) == []
    assert file.handle(PutFailed(1)) == []


def test_after_an_error_the_same_object_is_put_again_whatever_has_come_since() -> None:
    file = appender()
    file.handle(GiveFrames(0, (100, 100, 100)))
    file.handle(ObjectConfirmed(1))
    file.handle(GiveFrames(3, (100,)))

    assert file.handle(PutFailed(3)) == [PutObject(3, 2, 2, 0)]


def test_an_object_that_is_there_with_the_writers_token_is_its_own() -> None:
    file = appender()
    file.handle(GiveFrames(0, (10,)))

    assert file.handle(ObjectExists(1, "mine")) == [Ok(0)]


@pytest.mark.parametrize("token", ["another", ""])
def test_a_number_that_another_process_has_taken_ends_the_file(token: str) -> None:
    file = appender()
    file.handle(GiveFrames(0, (100, 100)))

    assert file.handle(ObjectExists(1, token)) == [Lost("fenced: object 1 is another process's")]
    assert file.handle(ObjectConfirmed(2)) == []
    assert file.is_lost
    assert file.is_drained


def test_a_file_is_drained_when_all_frames_are_confirmed() -> None:
    file = appender()
    assert file.is_drained
    file.handle(GiveFrames(0, (10,)))
    assert not file.is_drained
    file.handle(ObjectConfirmed(1))
    assert file.is_drained


# -- recovering --------------------------------------------------------------------------------------------------------


def fenced(end: int = 3) -> ObjectReader:
    """A reader that has fenced a file with objects before `end`."""
    reader = ObjectReader()
    for event in (
        FenceFirst(),
        BirthChecked(True),
        Looked(end, has_fence=False, last=end - 1),
        FencePut(FenceResult.DONE),
        BirthChecked(True),
        ObjectsScanned(4, (), ScanEnd.CLEAN, 3),
    ):
        reader.handle(event)
    return reader


def test_a_file_is_fenced_at_its_first_gap_and_its_birth_looked_for_again() -> None:
    reader = ObjectReader()

    assert reader.handle(FenceFirst()) == [CheckBirth()]
    assert reader.handle(BirthChecked(True)) == [Look()]
    assert reader.handle(Looked(3, has_fence=False, last=9)) == [PutFence(3)]
    assert reader.handle(FencePut(FenceResult.DONE)) == [CheckBirth()]
    (scan,) = reader.handle(BirthChecked(True))
    assert isinstance(scan, ScanObjects)
    assert (scan.limit, scan.end) == (0, 3)
    assert reader.handle(ObjectsScanned(4, (), ScanEnd.CLEAN, 3)) == [FenceAnswer(True, 4, 3)]


def test_a_fence_of_another_process_is_as_good() -> None:
    reader = ObjectReader()
    reader.handle(FenceFirst())
    reader.handle(BirthChecked(True))

    assert reader.handle(Looked(3, has_fence=True, last=3)) == [CheckBirth()]


def test_objects_behind_the_gap_tell_the_lac() -> None:
    reader = ObjectReader()
    for event in (FenceFirst(), BirthChecked(True), Looked(2, True, 9), BirthChecked(True)):
        reader.handle(event)

    assert reader.handle(ObjectsScanned(0, (), ScanEnd.CLEAN, 3, 8)) == [FenceAnswer(True, 0, 8)]


def test_a_gap_that_was_filled_meanwhile_is_looked_for_again() -> None:
    reader = ObjectReader()
    for event in (FenceFirst(), BirthChecked(True), Looked(3, False, 2)):
        reader.handle(event)

    assert reader.handle(FencePut(FenceResult.TAKEN)) == [Look()]
    assert reader.handle(Looked(5, False, 4)) == [PutFence(5)]


def test_a_file_that_grows_all_the_time_is_read_without_a_fence() -> None:
    reader = ObjectReader()
    reader.handle(ReadFrames(0, 10))
    reader.handle(BirthChecked(True))
    for number in range(1, MAX_LOOKS):
        reader.handle(Looked(number, False, number - 1))
        assert reader.handle(FencePut(FenceResult.TAKEN)) == [Look()]
    reader.handle(Looked(MAX_LOOKS, False, MAX_LOOKS - 1))

    assert reader.handle(FencePut(FenceResult.TAKEN)) == [ScanObjects(0, 10, MAX_LOOKS)]
    assert reader.handle(ObjectsScanned(0, (), ScanEnd.CLEAN)) == [ReadAnswer(0, (), End.UNKNOWN)]


def test_frames_count_although_the_fence_failed_and_nothing_is_denied() -> None:
    reader = ObjectReader()
    for event in (ReadFrames(4, 10), BirthChecked(True), Looked(3, False, 2)):
        reader.handle(event)

    assert reader.handle(FencePut(FenceResult.FAILED)) == [ScanObjects(4, 10, 3)]
    assert reader.handle(ObjectsScanned(4, FRAMES, ScanEnd.CLEAN, 3)) == [ReadAnswer(4, FRAMES, End.UNKNOWN)]


@pytest.mark.parametrize("request_", [FenceFirst(), ReadFrames(4, 10)])
@pytest.mark.parametrize(
    "before",
    [
        (),
        (BirthChecked(True), Looked(1, False, 0), FencePut(FenceResult.DONE)),
        (BirthChecked(True), Looked(1, True, 1)),
    ],
)
def test_a_file_without_birth_answers_nothing(request_: FenceFirst | ReadFrames, before: tuple[Looked, ...]) -> None:
    """Also if the birth was there at first: collection deletes it before any other object."""
    reader = ObjectReader()
    for event in (request_, *before):
        reader.handle(event)

    no_answer = FenceAnswer(False, None, -1) if isinstance(request_, FenceFirst) else ReadAnswer(4, (), End.UNKNOWN)
    assert reader.handle(BirthChecked(False)) == [no_answer]


def test_a_file_that_cannot_be_listed_answers_nothing() -> None:
    reader = ObjectReader()
    reader.handle(ReadFrames(4, 10))
    reader.handle(BirthChecked(True))

    assert reader.handle(Looked(None, False, 0)) == [ReadAnswer(4, (), End.UNKNOWN)]


@pytest.mark.parametrize(
    ("scanned", "end"),
    [
        (ObjectsScanned(0, FRAMES, ScanEnd.LIMIT), End.MORE),
        (ObjectsScanned(0, FRAMES, ScanEnd.CLEAN), End.NO),
        (ObjectsScanned(None, (), ScanEnd.CLEAN), End.NO),
        (ObjectsScanned(0, FRAMES, ScanEnd.DAMAGED), End.UNKNOWN),
        (ObjectsScanned(9, (), ScanEnd.CLEAN), End.UNKNOWN),
        (ObjectsScanned(0, FRAMES, ScanEnd.CLEAN, 3, 8, confirmed_behind=2), End.NO),
        (ObjectsScanned(0, FRAMES, ScanEnd.CLEAN, 3, 8, confirmed_behind=3), End.UNKNOWN),
    ],
    ids=["more", "whole", "empty", "damaged", "begins later", "a late object behind", "a deleted object"],
)
def test_a_fenced_copy_says_no_only_if_its_prefix_is_whole(scanned: ObjectsScanned, end: End) -> None:
    reader = fenced(end=3)

    assert reader.handle(ReadFrames(4, 10)) == [CheckBirth()]
    assert reader.handle(BirthChecked(True)) == [ScanObjects(4, 10, 3)]
    assert reader.handle(scanned) == [ReadAnswer(4, scanned.frames, end)]
