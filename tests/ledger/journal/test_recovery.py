"""Scripted traces of a recovery: what it fences, reads, writes back and closes with, and when it stops."""

from pulsar_on_spark.ledger.journal.copy_protocol import End
from pulsar_on_spark.ledger.journal.log import Copy, Fragment, FrameFacts, FrameKind, LogRecord, LogState, copies_of
from pulsar_on_spark.ledger.journal.messages import (
    CopyAcked,
    CopyFailed,
    CopyFenced,
    CopyRead,
    CopySilent,
    FileCreated,
    GiveUpPath,
    LogCommitted,
    LogCommitUnknown,
    LogConflict,
    LogRead,
    StartRecovery,
)
from pulsar_on_spark.ledger.journal.recovery import Recovery
from pulsar_on_spark.ledger.journal.recovery_files import RecoveryFiles
from pulsar_on_spark.model.ids import PathId
from tests.ledger.journal.script import copy, played, trace

FILES = (copy(0), copy(1), copy(2))
AHEAD = (copy(0, "2"), copy(1, "2"), copy(2, "2"))
ONE = LogRecord(LogState.OPEN, 3, 2, (Fragment(0, FILES),), token="w:1")
TWO = LogRecord(LogState.OPEN, 3, 2, (Fragment(0, FILES), Fragment(None, AHEAD)), token="w:2")


def entries(*numbers: int, lac: int = -1) -> tuple[FrameFacts, ...]:
    return tuple(FrameFacts(number, FrameKind.ENTRIES, lac) for number in numbers)


FENCED = CopyFenced(copy(2), True, 0, 0)
SILENT = CopySilent(copy(2))


def taken(record: LogRecord = ONE) -> Recovery:
    """A recovery that has just taken the log, under version 8."""
    recovery = Recovery("r", tuple(PathId(path) for path in range(3, 6)))
    recovery.handle(StartRecovery())
    recovery.handle(LogRead(record, 7))
    recovery.handle(LogCommitted(8))
    return recovery


def reading(record: LogRecord = ONE, lac: int = 0, third: CopyFenced | CopySilent = SILENT) -> Recovery:
    """Return a recovery that has fenced copies 0 and 1 and reads; the third is silent, or as given."""
    recovery = taken(record)
    recovery.handle(CopyFenced(copy(0), True, 0, lac))
    recovery.handle(CopyFenced(copy(1), True, 0, lac))
    recovery.handle(third)
    return recovery


def read(source: Copy, start: int, *numbers: int, end: End = End.NO) -> CopyRead:
    return CopyRead(source, start, entries(*numbers), end)


def test_takes_the_log_with_both_keys_and_fences_every_file_that_may_be_written_to() -> None:
    recovery = Recovery("r", (PathId(3),))

    result = played(
        recovery.handle,
        StartRecovery(),
        LogRead(TWO, 7),
        LogCommitted(8),
    )

    assert result == trace(
        """
        > StartRecovery
          ReadLog
        > LogRead [OPEN 0:p0/1,p1/1,p2/1 ?:p0/2,p1/2,p2/2] 7
          CommitLog [IN_RECOVERY 0:p0/1,p1/1,p2/1 ?:p0/2,p1/2,p2/2] 7 True
        > LogCommitted 8
          FenceCopy p0/1
          FenceCopy p1/1
          FenceCopy p2/1
          FenceCopy p0/2
          FenceCopy p1/2
          FenceCopy p2/2
        """
    )


def test_takes_a_log_in_recovery_again_so_that_only_the_latest_can_close() -> None:
    recovery = Recovery("r", (PathId(3),))

    result = played(
        recovery.handle,
        StartRecovery(),
        LogRead(LogRecord(LogState.IN_RECOVERY, 3, 2, ONE.fragments, None, "other:1"), 8),
        LogCommitUnknown(),
        LogRead(LogRecord(LogState.IN_RECOVERY, 3, 2, ONE.fragments, None, "r:1"), 9),
    )

    assert result == trace(
        """
        > StartRecovery
          ReadLog
        > LogRead [IN_RECOVERY 0:p0/1,p1/1,p2/1] 8
          CommitLog [IN_RECOVERY 0:p0/1,p1/1,p2/1] 8 True
        > LogCommitUnknown
          ReadLog
        > LogRead [IN_RECOVERY 0:p0/1,p1/1,p2/1] 9
          FenceCopy p0/1
          FenceCopy p1/1
          FenceCopy p2/1
        """
    )


def test_recovery_writes_back_frames_above_the_lac_and_closes_with_complete_files() -> None:
    recovery = reading()

    result = played(
        recovery.handle,
        read(copy(0), 0, 0, 1, 2),
        FileCreated(copy(3, "r-0")),
        FileCreated(copy(4, "r-1")),
        read(copy(1), 0, 0),
        FileCreated(copy(5, "r-2")),
        read(copy(2), 0, 0),
        CopyAcked(copy(3, "r-0"), 2),
        CopyAcked(copy(4, "r-1"), 2),
        CopyFailed(copy(5, "r-2")),
        LogCommitted(9),
    )

    assert result == trace(
        """
        > CopyRead p0/1 0 (#0 ENTRIES lac -1 #1 ENTRIES lac -1 #2 ENTRIES lac -1) NO
          CreateFile p3/r-0
          CreateFile p4/r-1
          CreateFile p5/r-2
        > FileCreated p3/r-0
          BeginFiles (p3/r-0) 1
          WriteBack p3/r-0 p0/1 1 2
        > FileCreated p4/r-1
          BeginFiles (p4/r-1) 1
          WriteBack p4/r-1 p0/1 1 2
        > CopyRead p1/1 0 (#0 ENTRIES lac -1) NO
        > FileCreated p5/r-2
          BeginFiles (p5/r-2) 1
          WriteBack p5/r-2 p0/1 1 2
        > CopyRead p2/1 0 (#0 ENTRIES lac -1) NO
        > CopyAcked p3/r-0 2
        > CopyAcked p4/r-1 2
        > CopyFailed p5/r-2
          ReleaseFiles (p5/r-2)
          CommitLog [CLOSED 0:p0/1,p1/1,p2/1 1:p3/r-0,p4/r-1 end 2] 8 False
        > LogCommitted 9
          ReleaseFiles (p3/r-0 p4/r-1)
          LogRecovered [CLOSED 0:p0/1,p1/1,p2/1 1:p3/r-0,p4/r-1 end 2]
        """
    )


def test_one_yes_or_enough_noes_decide() -> None:
    recovery = reading()

    result = played(
        recovery.handle,
        read(copy(0), 0, 0),
        read(copy(1), 0, 0),
        LogCommitted(9),
    )

    assert result == trace(
        """
        > CopyRead p0/1 0 (#0 ENTRIES lac -1) NO
        > CopyRead p1/1 0 (#0 ENTRIES lac -1) NO
          CommitLog [CLOSED 0:p0/1,p1/1,p2/1 end 0] 8 False
        > LogCommitted 9
          LogRecovered [CLOSED 0:p0/1,p1/1,p2/1 end 0]
        """
    )


def test_a_torn_frame_is_a_no_only_if_the_whole_write_set_was_read() -> None:
    recovery = reading(third=FENCED)

    result = played(
        recovery.handle,
        read(copy(0), 0, 0),
        read(copy(1), 0, 0, end=End.TORN),
        read(copy(2), 0, 0),
    )

    assert result == trace(
        """
        > CopyRead p0/1 0 (#0 ENTRIES lac -1) NO
        > CopyRead p1/1 0 (#0 ENTRIES lac -1) TORN
        > CopyRead p2/1 0 (#0 ENTRIES lac -1) NO
          CommitLog [CLOSED 0:p0/1,p1/1,p2/1 end 0] 8 False
        """
    )


def test_stops_rather_than_guess_when_a_path_is_away_and_another_torn() -> None:
    recovery = reading(third=FENCED)

    result = played(
        recovery.handle,
        read(copy(0), 0, 0),
        read(copy(1), 0, 0, end=End.TORN),
        CopySilent(copy(2)),
    )

    assert result == trace(
        """
        > CopyRead p0/1 0 (#0 ENTRIES lac -1) NO
        > CopyRead p1/1 0 (#0 ENTRIES lac -1) TORN
        > CopySilent p2/1
          RecoveryStopped 'it cannot be decided whether frame 1 was acknowledged: a path is away or damaged'
        """
    )


def test_stops_when_an_acknowledged_frame_is_lost() -> None:
    recovery = reading(lac=3)

    result = played(
        recovery.handle,
        read(copy(0), 3),
        read(copy(1), 3),
    )

    assert result == trace(
        """
        > CopyRead p0/1 3 () NO
        > CopyRead p1/1 3 () NO
          RecoveryStopped 'frame 3 is acknowledged, and its copies are lost'
        """
    )


def test_waits_for_the_copy_that_must_have_an_acknowledged_frame() -> None:
    recovery = reading(lac=3, third=FENCED)

    result = played(
        recovery.handle,
        read(copy(0), 3),
        read(copy(1), 3),
        read(copy(2), 3, 3),
        read(copy(2), 4),
        read(copy(0), 4),
    )

    assert result == trace(
        """
        > CopyRead p0/1 3 () NO
        > CopyRead p1/1 3 () NO
        > CopyRead p2/1 3 (#3 ENTRIES lac -1) NO
          CommitLog [CLOSED 0:p0/1,p1/1,p2/1 end 3] 8 False
        > CopyRead p2/1 4 () NO
        > CopyRead p0/1 4 () NO
        """
    )


# -- paths that are given up -------------------------------------------------------------------------------------------


def giving_up(*paths: int, record: LogRecord = ONE, lac: int = 0, third: CopyFenced | CopySilent = SILENT) -> Recovery:
    """As `reading`, with paths given up."""
    recovery = Recovery("r", tuple(PathId(path) for path in range(3, 6)))
    for path in paths:
        recovery.handle(GiveUpPath(PathId(path)))
    recovery.handle(StartRecovery())
    recovery.handle(LogRead(record, 7))
    recovery.handle(LogCommitted(8))
    recovery.handle(CopyFenced(copy(0), True, 0, lac))
    recovery.handle(CopyFenced(copy(1), True, 0, lac))
    recovery.handle(third)
    return recovery


def test_unknown_frames_of_a_given_up_path_are_lost_once_the_others_have_answered() -> None:
    recovery = giving_up(2)

    result = played(
        recovery.handle,
        read(copy(0), 0, 0),
        read(copy(1), 0, 0, end=End.TORN),
        LogCommitted(9),
    )

    assert result == trace(
        """
        > CopyRead p0/1 0 (#0 ENTRIES lac -1) NO
        > CopyRead p1/1 0 (#0 ENTRIES lac -1) TORN
          CommitLog [CLOSED 0:p0/1,p1/1,p2/1 end 0 gave up 2] 8 False
        > LogCommitted 9
          LogRecovered [CLOSED 0:p0/1,p1/1,p2/1 end 0 gave up 2]
        """
    )


def test_other_paths_than_the_given_up_one_are_still_waited_for() -> None:
    recovery = giving_up(2)

    result = played(
        recovery.handle,
        read(copy(1), 0, 0, end=End.TORN),
        CopySilent(copy(0)),
    )

    assert result == trace(
        """
        > CopyRead p1/1 0 (#0 ENTRIES lac -1) TORN
        > CopySilent p0/1
          RecoveryStopped 'it cannot be decided whether frame 1 was acknowledged: a path is away or damaged'
        """
    )


def test_frames_that_a_given_up_path_still_returns_are_kept() -> None:
    recovery = giving_up(2, third=FENCED)

    result = played(
        recovery.handle,
        read(copy(0), 0, 0),
        read(copy(2), 0, 0, 1, end=End.UNKNOWN),
        FileCreated(copy(3, "r-0")),
        FileCreated(copy(4, "r-1")),
        FileCreated(copy(5, "r-2")),
        read(copy(1), 0, 0, end=End.TORN),
        *(CopyAcked(copy(path, f"r-{path - 3}"), 1) for path in (3, 4, 5)),
    )

    assert result.splitlines()[-1] == (
        "  CommitLog [CLOSED 0:p0/1,p1/1,p2/1 1:p3/r-0,p4/r-1,p5/r-2 end 1 gave up 2] 8 False"
    )


def test_an_acknowledged_frame_that_only_given_up_paths_may_have_is_lost_and_the_log_closed_before_it() -> None:
    recovery = giving_up(1, 2, lac=3)

    result = played(recovery.handle, read(copy(0), 3), read(copy(1), 3, end=End.UNKNOWN))

    assert result.splitlines()[-1] == "  CommitLog [CLOSED 0:p0/1,p1/1,p2/1 end 2 gave up 1,2] 8 False"


def test_a_log_whose_paths_are_all_given_up_ends_where_its_last_fragment_begins() -> None:
    files = tuple(copy(path, "2") for path in range(3))
    record = LogRecord(LogState.OPEN, 3, 2, (Fragment(0, FILES), Fragment(7, files)), token="w:9")
    recovery = Recovery("r", (PathId(3),))
    for path in range(3):
        recovery.handle(GiveUpPath(PathId(path)))

    result = played(
        recovery.handle,
        StartRecovery(),
        LogRead(record, 7),
        LogCommitted(8),
        *[CopySilent(copy(path, "2")) for path in range(3)] * 2,
    )

    assert result.splitlines()[-1] == "  CommitLog [CLOSED 0:p0/1,p1/1,p2/1 end 6 gave up 0,1,2] 8 False"


def test_reads_on_over_a_roll() -> None:
    recovery = reading(TWO)

    result = played(
        recovery.handle,
        CopyFenced(copy(0, "2"), True, 3, 0),
        CopyFenced(copy(1, "2"), True, None, -1),
        CopyRead(copy(0), 0, (*entries(0, 1), FrameFacts(2, FrameKind.ROLL, 0)), End.NO),
        read(copy(0, "2"), 3, 3),
        read(copy(1, "2"), 3),
        CopyFenced(copy(2, "2"), True, None, -1),
        read(copy(2, "2"), 3),
        FileCreated(copy(3, "r-0")),
        FileCreated(copy(4, "r-1")),
        FileCreated(copy(5, "r-2")),
        CopyAcked(copy(3, "r-0"), 3),
        CopyAcked(copy(4, "r-1"), 3),
        CopyAcked(copy(5, "r-2"), 3),
    )

    assert result == trace(
        """
        > CopyFenced p0/2 True 3 0
        > CopyFenced p1/2 True None -1
          ReadCopy p0/1 0 256
          ReadCopy p1/1 0 256
          ReadCopy p2/1 0 256
        > CopyRead p0/1 0 (#0 ENTRIES lac -1 #1 ENTRIES lac -1 #2 ROLL lac 0) NO
          CreateFile p3/r-0
          CreateFile p4/r-1
          CreateFile p5/r-2
          ReadCopy p0/2 3 256
          ReadCopy p1/2 3 256
        > CopyRead p0/2 3 (#3 ENTRIES lac -1) NO
        > CopyRead p1/2 3 () NO
        > CopyFenced p2/2 True None -1
        > CopyRead p2/2 3 () NO
        > FileCreated p3/r-0
          BeginFiles (p3/r-0) 1
          WriteBack p3/r-0 p0/1 1 2
          WriteBack p3/r-0 p0/2 3 3
        > FileCreated p4/r-1
          BeginFiles (p4/r-1) 1
          WriteBack p4/r-1 p0/1 1 2
          WriteBack p4/r-1 p0/2 3 3
        > FileCreated p5/r-2
          BeginFiles (p5/r-2) 1
          WriteBack p5/r-2 p0/1 1 2
          WriteBack p5/r-2 p0/2 3 3
        > CopyAcked p3/r-0 3
        > CopyAcked p4/r-1 3
        > CopyAcked p5/r-2 3
          CommitLog [CLOSED 0:p0/1,p1/1,p2/1 1:p3/r-0,p4/r-1,p5/r-2 end 3] 8 False
        """
    )


def test_recovery_begins_in_the_prepared_fragment_if_it_has_the_lac() -> None:
    recovery = taken(TWO)

    result = played(
        recovery.handle,
        CopyFenced(copy(0, "2"), True, 3, 4),
        CopyFenced(copy(0), True, 0, 1),
        CopyFenced(copy(1), True, 0, 1),
        CopyFenced(copy(1, "2"), True, 3, 4),
        read(copy(0, "2"), 4, 4),
        read(copy(1, "2"), 4, 4),
    )

    assert result == trace(
        """
        > CopyFenced p0/2 True 3 4
        > CopyFenced p0/1 True 0 1
        > CopyFenced p1/1 True 0 1
        > CopyFenced p1/2 True 3 4
          ReadCopy p0/2 4 256
          ReadCopy p1/2 4 256
        > CopyRead p0/2 4 (#4 ENTRIES lac -1) NO
        > CopyRead p1/2 4 (#4 ENTRIES lac -1) NO
          CommitLog [CLOSED 0:p0/1,p1/1,p2/1 3:p0/2,p1/2,p2/2 end 4] 8 False
        """
    )


def test_another_that_closes_first_is_right() -> None:
    recovery = reading()

    result = played(
        recovery.handle,
        read(copy(0), 0, 0),
        read(copy(1), 0, 0),
        LogConflict(LogRecord(LogState.CLOSED, 3, 2, ONE.fragments, 1, "other:2"), 10),
    )

    assert result == trace(
        """
        > CopyRead p0/1 0 (#0 ENTRIES lac -1) NO
        > CopyRead p1/1 0 (#0 ENTRIES lac -1) NO
          CommitLog [CLOSED 0:p0/1,p1/1,p2/1 end 0] 8 False
        > LogConflict [CLOSED 0:p0/1,p1/1,p2/1 end 1] 10
          LogRecovered [CLOSED 0:p0/1,p1/1,p2/1 end 1]
        """
    )


def test_only_the_latest_recovery_continues() -> None:
    recovery = reading()

    result = played(
        recovery.handle,
        read(copy(0), 0, 0),
        read(copy(1), 0, 0),
        LogConflict(LogRecord(LogState.IN_RECOVERY, 3, 2, ONE.fragments, None, "other:1"), 9),
    )

    assert result == trace(
        """
        > CopyRead p0/1 0 (#0 ENTRIES lac -1) NO
        > CopyRead p1/1 0 (#0 ENTRIES lac -1) NO
          CommitLog [CLOSED 0:p0/1,p1/1,p2/1 end 0] 8 False
        > LogConflict [IN_RECOVERY 0:p0/1,p1/1,p2/1] 9
          RecoveryStopped 'another recovery has started after this one'
        """
    )


def test_recovery_waits_for_fences_of_the_next_fragment_to_learn_its_lac() -> None:
    recovery = reading(TWO, lac=8)

    result = played(
        recovery.handle,
        CopyFenced(copy(0, "2"), True, 10, 5000),
        CopyFenced(copy(1, "2"), True, 10, 4990),
    )

    assert result == trace(
        """
        > CopyFenced p0/2 True 10 5000
        > CopyFenced p1/2 True 10 4990
          ReadCopy p0/2 5000 256
          ReadCopy p1/2 5000 256
        """
    )


def test_a_copy_that_lost_its_first_frames_does_not_hide_where_the_next_fragment_begins() -> None:
    recovery = reading(TWO, lac=2)

    result = played(
        recovery.handle,
        CopyFenced(copy(0, "2"), True, None, 4),
        CopyFenced(copy(1, "2"), True, None, 4),
        CopyFenced(copy(2, "2"), True, 3, 4),
    )

    assert result == trace(
        """
        > CopyFenced p0/2 True None 4
        > CopyFenced p1/2 True None 4
        > CopyFenced p2/2 True 3 4
          ReadCopy p0/2 4 256
          ReadCopy p1/2 4 256
          ReadCopy p2/2 4 256
        """
    )


def test_a_fragment_whose_end_is_proved_need_not_be_fenced() -> None:
    recovery = taken(TWO)

    result = played(
        recovery.handle,
        *(CopySilent(copy(path)) for path in range(3)),
        CopyFenced(copy(0, "2"), True, 3, 1),
        CopyFenced(copy(1, "2"), True, 3, 1),
        CopyFenced(copy(2, "2"), True, 3, 4),
    )

    assert result == trace(
        """
        > CopySilent p0/1
        > CopySilent p1/1
        > CopySilent p2/1
        > CopyFenced p0/2 True 3 1
        > CopyFenced p1/2 True 3 1
        > CopyFenced p2/2 True 3 4
          ReadCopy p0/2 4 256
          ReadCopy p1/2 4 256
          ReadCopy p2/2 4 256
        """
    )


def test_paths_that_never_answer_end_the_fencing_too() -> None:
    recovery = taken(TWO)

    result = played(
        recovery.handle,
        CopyFenced(copy(0), True, 0, 1),
        CopyFenced(copy(1), True, 0, 1),
        *(CopySilent(copy(path, "2")) for path in range(3)),
    )

    assert result == trace(
        """
        > CopyFenced p0/1 True 0 1
        > CopyFenced p1/1 True 0 1
        > CopySilent p0/2
        > CopySilent p1/2
        > CopySilent p2/2
          ReadCopy p0/1 1 256
          ReadCopy p1/1 1 256
        """
    )


def test_reads_on_when_the_file_that_filled_the_window_fails_and_no_path_is_left() -> None:
    recovery = Recovery("r", tuple(PathId(path) for path in range(3, 6)), read_limit=2, window=2)
    recovery.handle(StartRecovery())
    recovery.handle(LogRead(ONE, 7))
    recovery.handle(LogCommitted(8))
    for path in range(3):
        recovery.handle(CopyFenced(copy(path), True, 0, -1))
    recovery.handle(read(copy(0), 0, 0, 1, end=End.MORE))
    for path in range(3, 6):
        recovery.handle(FileCreated(copy(path, f"r-{path - 3}")))

    result = played(
        recovery.handle,
        read(copy(1), 0, 0, 1, end=End.MORE),
        read(copy(2), 0, 0, 1, end=End.MORE),
        CopyAcked(copy(3, "r-0"), 1),
        CopyAcked(copy(4, "r-1"), 1),
        CopyFailed(copy(5, "r-2")),
    )

    assert result == trace(
        """
        > CopyRead p1/1 0 (#0 ENTRIES lac -1 #1 ENTRIES lac -1) MORE
        > CopyRead p2/1 0 (#0 ENTRIES lac -1 #1 ENTRIES lac -1) MORE
        > CopyAcked p3/r-0 1
        > CopyAcked p4/r-1 1
        > CopyFailed p5/r-2
          ReleaseFiles (p5/r-2)
          ReadCopy p0/1 2 2
          ReadCopy p1/1 2 2
          ReadCopy p2/1 2 2
        """
    )


def test_files_are_dispensable_only_beside_an_ack_quorum_of_complete_ones() -> None:
    files = RecoveryFiles("r", [PathId(0), PathId(1), PathId(2)])
    files.add_targets(3)
    first, second, third = files.targets
    files.write_back_frames(4, 5, Copy(PathId(0), "1"))
    assert files.dispensable(5, 2) == []
    for each in (first, second):
        files.created(each)
    files.acked(first, 5)
    files.acked(second, 4)
    assert files.dispensable(5, 2) == [], "one is complete"
    assert files.dispensable(5, 1) == [second, third]
    files.acked(second, 5)
    assert files.dispensable(5, 2) == [third]
    files.created(third)
    files.acked(third, 5)
    assert files.dispensable(5, 2) == []


def test_stops_at_a_roll_into_a_fragment_that_the_record_does_not_name() -> None:
    recovery = reading(ONE)

    *_, stopped = recovery.handle(CopyRead(copy(0), 0, (*entries(0), FrameFacts(1, FrameKind.ROLL, 0)), End.NO))

    assert "a ROLL frame leads to a fragment that the record does not name" in str(stopped)


def test_the_copies_of_a_log_are_those_of_all_its_fragments() -> None:
    assert copies_of(TWO) == {*FILES, *AHEAD}
