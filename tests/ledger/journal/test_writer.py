"""Scripted traces of the journal's writer: what it asks for, in which order, and when it acknowledges."""

from pulsar_on_spark.ledger.journal.log import Fragment, FrameKind, LogRecord, LogState
from pulsar_on_spark.ledger.journal.messages import (
    Acknowledged,
    AddGroup,
    BecameIdle,
    CloseLog,
    CommitLog,
    CopyAcked,
    CopyFailed,
    FileCreated,
    FileNotCreated,
    FragmentsTrimmed,
    LogAbandoned,
    LogCommitted,
    LogCommitUnknown,
    LogConflict,
    LogFenced,
    LogRead,
    SpareOffered,
    StartLog,
)
from pulsar_on_spark.ledger.journal.writer import MAX_COMMIT_ATTEMPTS, JournalWriter
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.model.quorum import Quorum
from tests.ledger.journal.script import copy, played, trace

GROUP = AddGroup(FrameKind.ENTRIES, 10)


def opened(paths: int = 4, roll_bytes: int = 1000) -> JournalWriter:
    """A 3/3/2 log on paths 0 to 2: file 1 is open, file 2 prepared, the record has version 2."""
    writer = JournalWriter("w", Quorum(3, 3, 2), roll_bytes)
    writer.handle(StartLog(tuple(PathId(path) for path in range(paths))))
    for file in ("1", "2"):
        for path in range(3):
            writer.handle(FileCreated(copy(path, file)))
        writer.handle(LogCommitted(int(file)))
    return writer


TAKEN = LogRecord(
    LogState.IN_RECOVERY,
    3,
    2,
    (
        Fragment(0, (copy(0), copy(1), copy(2))),
        Fragment(None, (copy(0, "2"), copy(1, "2"), copy(2, "2"))),
    ),
    token="r:1",
)


def test_opens_on_paths_that_take_a_file_and_prepares_the_next_fragment() -> None:
    writer = JournalWriter("w", Quorum(3, 3, 2), 1000)

    result = played(
        writer.handle,
        StartLog((PathId(0), PathId(1), PathId(2), PathId(3))),
        FileCreated(copy(0)),
        FileCreated(copy(1)),
        FileNotCreated(copy(2)),
        FileCreated(copy(0, "2")),
        FileCreated(copy(1, "2")),
        FileCreated(copy(3, "2")),
        LogCommitted(1),
    )

    assert result == trace(
        """
        > StartLog (0 1 2 3)
          CreateFile p0/1
          CreateFile p1/1
          CreateFile p2/1
        > FileCreated p0/1
        > FileCreated p1/1
        > FileNotCreated p2/1
          ReleaseFiles (p0/1 p1/1 p2/1)
          CreateFile p0/2
          CreateFile p1/2
          CreateFile p3/2
        > FileCreated p0/2
        > FileCreated p1/2
        > FileCreated p3/2
          CommitLog [OPEN 0:p0/2,p1/2,p3/2] 0 False
        > LogCommitted 1
          BeginFiles (p0/2 p1/2 p3/2) 0
          LogOpened
          CreateFile p0/3
          CreateFile p1/3
          CreateFile p3/3
        """
    )


def test_frames_are_acknowledged_in_order_at_the_ack_quorum() -> None:
    writer = opened()

    result = played(
        writer.handle,
        GROUP,
        GROUP,
        CopyAcked(copy(0), 1),
        CopyAcked(copy(2), 0),
        BecameIdle(),
        CopyAcked(copy(1), 1),
        BecameIdle(),
        BecameIdle(),
    )

    assert result == trace(
        """
        > AddGroup ENTRIES 10
          Append (p0/1 p1/1 p2/1) #0 ENTRIES lac -1 True
        > AddGroup ENTRIES 10
          Append (p0/1 p1/1 p2/1) #1 ENTRIES lac -1 True
        > CopyAcked p0/1 1
        > CopyAcked p2/1 0
          Acknowledged 0
        > BecameIdle
        > CopyAcked p1/1 1
          Acknowledged 1
        > BecameIdle
          Append (p0/1 p1/1 p2/1) #2 LAC lac 1 False
        > BecameIdle
        """
    )


def test_after_a_failure_nothing_is_acknowledged_until_the_record_names_the_new_copy() -> None:
    writer = opened()

    result = played(
        writer.handle,
        GROUP,
        GROUP,
        CopyAcked(copy(0), 0),
        CopyAcked(copy(1), 0),
        CopyFailed(copy(1)),
        CopyAcked(copy(0), 1),
        CopyAcked(copy(2), 1),
        GROUP,
        FileCreated(copy(3, "3")),
        FileCreated(copy(3, "4")),
        LogCommitted(3),
        CopyAcked(copy(0), 2),
        CopyAcked(copy(3, "3"), 2),
    )

    assert result == trace(
        """
        > AddGroup ENTRIES 10
          Append (p0/1 p1/1 p2/1) #0 ENTRIES lac -1 True
        > AddGroup ENTRIES 10
          Append (p0/1 p1/1 p2/1) #1 ENTRIES lac -1 True
        > CopyAcked p0/1 0
        > CopyAcked p1/1 0
          Acknowledged 0
        > CopyFailed p1/1
          CreateFile p3/3
          CreateFile p3/4
        > CopyAcked p0/1 1
        > CopyAcked p2/1 1
        > AddGroup ENTRIES 10
          Append (p0/1 p2/1) #2 ENTRIES lac 0 True
        > FileCreated p3/3
        > FileCreated p3/4
          CommitLog [OPEN 0:p0/1,p1/1,p2/1 1:p0/1,p3/3,p2/1 ?:p0/2,p3/4,p2/2] 2 False
        > LogCommitted 3
          BeginFiles (p3/3) 1
          Resend p3/3 1 2
          ReleaseFiles (p1/1 p1/2)
          Acknowledged 1
        > CopyAcked p0/1 2
        > CopyAcked p3/3 2
          Acknowledged 2
        """
    )


def test_the_acks_of_a_replaced_copy_do_not_count() -> None:
    writer = opened()

    result = played(
        writer.handle,
        GROUP,
        CopyAcked(copy(1), 0),
        CopyFailed(copy(1)),
        FileCreated(copy(3, "3")),
        FileCreated(copy(3, "4")),
        LogCommitted(3),
        CopyAcked(copy(0), 0),
        CopyAcked(copy(2), 0),
    )

    assert result == trace(
        """
        > AddGroup ENTRIES 10
          Append (p0/1 p1/1 p2/1) #0 ENTRIES lac -1 True
        > CopyAcked p1/1 0
        > CopyFailed p1/1
          CreateFile p3/3
          CreateFile p3/4
        > FileCreated p3/3
        > FileCreated p3/4
          CommitLog [OPEN 0:p0/1,p3/3,p2/1 ?:p0/2,p3/4,p2/2] 2 False
        > LogCommitted 3
          BeginFiles (p3/3) 0
          Resend p3/3 0 0
          ReleaseFiles (p1/1 p1/2)
        > CopyAcked p0/1 0
        > CopyAcked p2/1 0
          Acknowledged 0
        """
    )


def test_a_failure_during_a_change_is_repaired_by_a_second_one() -> None:
    writer = opened(paths=5)

    result = played(
        writer.handle,
        GROUP,
        CopyFailed(copy(1)),
        FileCreated(copy(3, "3")),
        FileCreated(copy(3, "4")),
        CopyFailed(copy(2)),
        LogCommitted(3),
        CopyAcked(copy(0), 0),
        CopyAcked(copy(3, "3"), 0),
        FileCreated(copy(4, "5")),
        FileCreated(copy(4, "6")),
        LogCommitted(4),
    )

    assert result == trace(
        """
        > AddGroup ENTRIES 10
          Append (p0/1 p1/1 p2/1) #0 ENTRIES lac -1 True
        > CopyFailed p1/1
          CreateFile p3/3
          CreateFile p3/4
        > FileCreated p3/3
        > FileCreated p3/4
          CommitLog [OPEN 0:p0/1,p3/3,p2/1 ?:p0/2,p3/4,p2/2] 2 False
        > CopyFailed p2/1
        > LogCommitted 3
          BeginFiles (p3/3) 0
          Resend p3/3 0 0
          ReleaseFiles (p1/1 p1/2)
          CreateFile p4/5
          CreateFile p4/6
        > CopyAcked p0/1 0
        > CopyAcked p3/3 0
        > FileCreated p4/5
        > FileCreated p4/6
          CommitLog [OPEN 0:p0/1,p3/3,p4/5 ?:p0/2,p3/4,p4/6] 3 False
        > LogCommitted 4
          BeginFiles (p4/5) 0
          Resend p4/5 0 0
          ReleaseFiles (p2/1 p2/2)
          Acknowledged 0
        """
    )


def test_a_writer_whose_log_was_taken_over_ends_with_unknown_outcomes() -> None:
    writer = opened()

    result = played(
        writer.handle,
        GROUP,
        CopyFailed(copy(0)),
        FileCreated(copy(3, "3")),
        FileCreated(copy(3, "4")),
        LogConflict(TAKEN, 3),
        CopyAcked(copy(1), 0),
        CopyAcked(copy(2), 0),
    )

    assert result == trace(
        """
        > AddGroup ENTRIES 10
          Append (p0/1 p1/1 p2/1) #0 ENTRIES lac -1 True
        > CopyFailed p0/1
          CreateFile p3/3
          CreateFile p3/4
        > FileCreated p3/3
        > FileCreated p3/4
          CommitLog [OPEN 0:p3/3,p1/1,p2/1 ?:p3/4,p1/2,p2/2] 2 False
        > LogConflict [IN_RECOVERY 0:p0/1,p1/1,p2/1 ?:p0/2,p1/2,p2/2] 3
          ReleaseFiles (p0/1 p0/2 p1/1 p1/2 p2/1 p2/2)
          LogFenced -1
        > CopyAcked p1/1 0
        > CopyAcked p2/1 0
        """
    )


def test_a_writer_continues_down_to_ack_quorum_copies_and_then_waits_for_a_path() -> None:
    writer = opened(paths=3)

    result = played(
        writer.handle,
        GROUP,
        CopyFailed(copy(1)),
        LogCommitted(3),
        CopyAcked(copy(0), 0),
        CopyAcked(copy(2), 0),
        CopyFailed(copy(2)),
        SpareOffered(PathId(1)),
        FileCreated(copy(1, "7")),
        FileCreated(copy(1, "8")),
        LogCommitted(4),
    )

    assert result == trace(
        """
        > AddGroup ENTRIES 10
          Append (p0/1 p1/1 p2/1) #0 ENTRIES lac -1 True
        > CopyFailed p1/1
          CommitLog [OPEN 0:p0/1,p2/1 ?:p0/2,p2/2] 2 False
        > LogCommitted 3
          ReleaseFiles (p1/1 p1/2)
        > CopyAcked p0/1 0
        > CopyAcked p2/1 0
          Acknowledged 0
        > CopyFailed p2/1
          Starved
        > SpareOffered 1
          CreateFile p1/7
          CreateFile p1/8
        > FileCreated p1/7
        > FileCreated p1/8
          CommitLog [OPEN 0:p0/1,p2/1 1:p0/1,p1/7 ?:p0/2,p1/8] 3 False
        > LogCommitted 4
          BeginFiles (p1/7) 1
          ReleaseFiles (p2/1 p2/2)
        """
    )


def test_a_roll_needs_no_commit_and_prepares_the_next_fragment() -> None:
    writer = opened(roll_bytes=10)

    result = played(
        writer.handle,
        GROUP,
        GROUP,
        CopyAcked(copy(0, "2"), 2),
        CopyAcked(copy(1, "2"), 2),
        CopyAcked(copy(0), 1),
        CopyAcked(copy(1), 1),
        FileCreated(copy(0, "3")),
        FileCreated(copy(1, "3")),
        FileCreated(copy(2, "3")),
        LogCommitted(3),
        FragmentsTrimmed(2),
        CopyFailed(copy(2, "2")),
        FileCreated(copy(3, "4")),
        FileCreated(copy(3, "5")),
    )

    assert result == trace(
        """
        > AddGroup ENTRIES 10
          Append (p0/1 p1/1 p2/1) #0 ENTRIES lac -1 True
        > AddGroup ENTRIES 10
          BeginFiles (p0/2 p1/2 p2/2) 2
          Append (p0/1 p1/1 p2/1) #1 ROLL lac -1 True
          Append (p0/2 p1/2 p2/2) #2 ENTRIES lac -1 True
        > CopyAcked p0/2 2
        > CopyAcked p1/2 2
        > CopyAcked p0/1 1
        > CopyAcked p1/1 1
          ReleaseFiles (p0/1 p1/1 p2/1)
          Acknowledged 2
          CreateFile p0/3
          CreateFile p1/3
          CreateFile p2/3
        > FileCreated p0/3
        > FileCreated p1/3
        > FileCreated p2/3
          CommitLog [OPEN 0:p0/1,p1/1,p2/1 2:p0/2,p1/2,p2/2 ?:p0/3,p1/3,p2/3] 2 False
        > LogCommitted 3
        > FragmentsTrimmed 2
        > CopyFailed p2/2
          CreateFile p3/4
          CreateFile p3/5
        > FileCreated p3/4
        > FileCreated p3/5
          CommitLog [OPEN 2:p0/2,p1/2,p2/2 3:p0/2,p1/2,p3/4 ?:p0/3,p1/3,p3/5] 3 False
        """
    )


def test_changes_both_fragments_when_frames_are_in_flight_on_both_sides_of_a_roll() -> None:
    writer = opened(roll_bytes=10)

    result = played(
        writer.handle,
        GROUP,
        CopyAcked(copy(0), 0),
        CopyAcked(copy(1), 0),
        GROUP,
        CopyFailed(copy(2, "2")),
        FileCreated(copy(3, "3")),
        FileCreated(copy(3, "4")),
        LogCommitted(3),
    )

    assert result == trace(
        """
        > AddGroup ENTRIES 10
          Append (p0/1 p1/1 p2/1) #0 ENTRIES lac -1 True
        > CopyAcked p0/1 0
        > CopyAcked p1/1 0
          Acknowledged 0
        > AddGroup ENTRIES 10
          BeginFiles (p0/2 p1/2 p2/2) 2
          Append (p0/1 p1/1 p2/1) #1 ROLL lac 0 True
          Append (p0/2 p1/2 p2/2) #2 ENTRIES lac 0 True
        > CopyFailed p2/2
          CreateFile p3/3
          CreateFile p3/4
        > FileCreated p3/3
        > FileCreated p3/4
          CommitLog [OPEN 0:p0/1,p1/1,p2/1 1:p0/1,p1/1,p3/3 ?:p0/2,p1/2,p3/4] 2 False
        > LogCommitted 3
          BeginFiles (p3/3) 1
          Resend p3/3 1 1
          BeginFiles (p3/4) 2
          Resend p3/4 2 2
          ReleaseFiles (p2/1 p2/2)
        """
    )


def test_closes_when_all_is_acknowledged_and_moves_the_seal_key() -> None:
    writer = opened()

    result = played(
        writer.handle,
        GROUP,
        CloseLog(),
        CopyAcked(copy(0), 0),
        CopyAcked(copy(1), 0),
        CopyAcked(copy(2), 0),
        LogCommitted(3),
    )

    assert result == trace(
        """
        > AddGroup ENTRIES 10
          Append (p0/1 p1/1 p2/1) #0 ENTRIES lac -1 True
        > CloseLog
        > CopyAcked p0/1 0
        > CopyAcked p1/1 0
          Acknowledged 0
          CommitLog [CLOSED 0:p0/1,p1/1,p2/1 end 0] 2 True
        > CopyAcked p2/1 0
        > LogCommitted 3
          ReleaseFiles (p0/1 p0/2 p1/1 p1/2 p2/1 p2/2)
          LogClosed 0
        """
    )


def test_a_close_of_unknown_outcome_is_recognised_by_its_token() -> None:
    writer = opened()

    result = played(
        writer.handle,
        CloseLog(),
        LogCommitUnknown(),
        LogRead(LogRecord(LogState.CLOSED, 3, 2, (), -1, "w:3"), 3),
    )

    assert result == trace(
        """
        > CloseLog
          CommitLog [CLOSED  end -1] 2 True
        > LogCommitUnknown
          ReadLog
        > LogRead [CLOSED  end -1] 3
          ReleaseFiles (p0/1 p0/2 p1/1 p1/2 p2/1 p2/2)
          LogClosed -1
        """
    )


def test_a_close_that_was_not_applied_is_proposed_again() -> None:
    writer = opened()

    result = played(
        writer.handle,
        CloseLog(),
        LogCommitUnknown(),
        LogRead(LogRecord(LogState.OPEN, 3, 2, (), None, "w:2"), 2),
        LogCommitted(3),
    )

    assert result == trace(
        """
        > CloseLog
          CommitLog [CLOSED  end -1] 2 True
        > LogCommitUnknown
          ReadLog
        > LogRead [OPEN ] 2
          CommitLog [CLOSED  end -1] 2 True
        > LogCommitted 3
          ReleaseFiles (p0/1 p0/2 p1/1 p1/2 p2/1 p2/2)
          LogClosed -1
        """
    )


def test_groups_in_flight_are_bounded() -> None:
    writer = opened()
    while writer.can_add:
        writer.handle(GROUP)
    assert writer.handle(CopyAcked(copy(0), 0)) == []
    assert not writer.can_add
    writer.handle(CopyAcked(copy(1), 0))
    assert writer.can_add


def test_commits_of_unknown_outcome_are_bounded() -> None:
    writer = opened()
    writer.handle(CloseLog())
    for _ in range(MAX_COMMIT_ATTEMPTS - 1):
        writer.handle(LogCommitUnknown())
        writer.handle(LogRead(LogRecord(LogState.OPEN, 3, 2, (), None, "w:2"), 2))
    writer.handle(LogCommitUnknown())
    assert LogAbandoned(-1) in writer.handle(LogRead(LogRecord(LogState.OPEN, 3, 2, (), None, "w:2"), 2))
    assert writer.is_over


def preparing() -> JournalWriter:
    """A 3/3/2 log that is open, while the commit of its first prepared fragment is under way."""
    writer = JournalWriter("w", Quorum(3, 3, 2), 1000)
    writer.handle(StartLog(tuple(PathId(path) for path in range(4))))
    for path in range(3):
        writer.handle(FileCreated(copy(path)))
    writer.handle(LogCommitted(1))
    for path in range(3):
        writer.handle(FileCreated(copy(path, "2")))
    return writer


def test_the_next_fragment_may_be_refused_while_the_last_one_is_well() -> None:
    writer = preparing()
    unchanged = LogRead(LogRecord(LogState.OPEN, 3, 2, (Fragment(0, (copy(0), copy(1), copy(2))),), token="w:1"), 1)
    for _ in range(3 * MAX_COMMIT_ATTEMPTS):
        writer.handle(LogCommitUnknown())
        assert [type(effect) for effect in writer.handle(unchanged)] == [CommitLog]

    writer.handle(GROUP)
    writer.handle(CopyAcked(copy(0), 0))
    assert writer.handle(CopyAcked(copy(1), 0)) == [Acknowledged(0)]

    writer.handle(CopyFailed(copy(2)))
    for _ in range(MAX_COMMIT_ATTEMPTS):
        writer.handle(LogCommitUnknown())
        assert [type(effect) for effect in writer.handle(unchanged)] == [CommitLog]
    writer.handle(LogCommitUnknown())
    assert LogAbandoned(0) in writer.handle(unchanged)


def test_a_deleted_record_is_not_created_again() -> None:
    writer = preparing()
    writer.handle(LogCommitUnknown())
    assert LogFenced(-1) in writer.handle(LogRead(None, 0))
    assert writer.is_over


def test_a_first_record_without_outcome_is_proposed_again() -> None:
    writer = JournalWriter("w", Quorum(1, 1, 1), 1000)
    writer.handle(StartLog((PathId(0),)))
    writer.handle(FileCreated(copy(0)))
    writer.handle(LogCommitUnknown())
    assert [type(effect) for effect in writer.handle(LogRead(None, 0))] == [CommitLog]


def test_a_returning_path_widens_the_fragment_ahead_which_the_next_group_uses() -> None:
    """The run and the fragment ahead have shrunk to paths 0 and 1: no full file is waited for."""
    writer = opened(paths=3)
    writer.handle(CopyFailed(copy(2)))
    writer.handle(LogCommitted(3))

    result = played(
        writer.handle,
        SpareOffered(PathId(3)),
        FileCreated(copy(0, "5")),
        GROUP,
        FileCreated(copy(1, "5")),
        FileCreated(copy(3, "5")),
        LogCommitted(4),
        GROUP,
    )

    assert result == trace(
        """
        > SpareOffered 3
          ReleaseFiles (p0/2 p1/2)
          CreateFile p0/5
          CreateFile p1/5
          CreateFile p3/5
        > FileCreated p0/5
        > AddGroup ENTRIES 10
          Append (p0/1 p1/1) #0 ENTRIES lac -1 True
        > FileCreated p1/5
        > FileCreated p3/5
          CommitLog [OPEN 0:p0/1,p1/1 ?:p0/5,p1/5,p3/5] 3 False
        > LogCommitted 4
        > AddGroup ENTRIES 10
          BeginFiles (p0/5 p1/5 p3/5) 2
          Append (p0/1 p1/1) #1 ROLL lac -1 True
          Append (p0/5 p1/5 p3/5) #2 ENTRIES lac -1 True
        """
    )


def test_a_path_that_returns_during_the_commit_of_the_fragment_ahead_widens_it_later() -> None:
    writer = opened(paths=3, roll_bytes=10)
    writer.handle(CopyFailed(copy(2)))
    writer.handle(LogCommitted(3))
    writer.handle(GROUP)
    writer.handle(GROUP)  # rolls into file 2
    for path in (0, 1):
        writer.handle(CopyAcked(copy(path), 1))
    for path in (0, 1):
        writer.handle(FileCreated(copy(path, "5")))

    result = played(writer.handle, SpareOffered(PathId(2)), LogCommitted(4))

    assert result == trace(
        """
        > SpareOffered 2
        > LogCommitted 4
          ReleaseFiles (p0/5 p1/5)
          CreateFile p0/6
          CreateFile p1/6
          CreateFile p2/6
        """
    )


def test_a_failure_in_the_prepared_fragment_alone_does_not_stop_acknowledging() -> None:
    """Path 3 serves only in the fragment ahead: it was offered after the run had shrunk."""
    writer = opened(paths=3)
    writer.handle(CopyFailed(copy(2)))
    writer.handle(LogCommitted(3))
    writer.handle(GROUP)
    writer.handle(SpareOffered(PathId(3)))
    for path in (0, 1, 3):
        writer.handle(FileCreated(copy(path, "5")))
    writer.handle(LogCommitted(4))

    result = played(
        writer.handle,
        CopyFailed(copy(3, "5")),
        CopyAcked(copy(0), 0),
        CopyAcked(copy(1), 0),
        FileCreated(copy(0, "6")),
        FileCreated(copy(1, "6")),
        LogCommitted(5),
    )

    assert result == trace(
        """
        > CopyFailed p3/5
          ReleaseFiles (p0/5 p1/5 p3/5)
          CreateFile p0/6
          CreateFile p1/6
        > CopyAcked p0/1 0
        > CopyAcked p1/1 0
          Acknowledged 0
        > FileCreated p0/6
        > FileCreated p1/6
          CommitLog [OPEN 0:p0/1,p1/1 ?:p0/6,p1/6] 4 False
        > LogCommitted 5
        """
    )


def test_an_open_record_of_another_writer_is_never_overwritten() -> None:
    """Two processes that were given one incarnation by mistake: the second one is over at once."""
    writer = JournalWriter("w", Quorum(1, 1, 1), 1000)
    writer.handle(StartLog((PathId(0),)))
    writer.handle(FileCreated(copy(0)))
    other = LogRecord(LogState.OPEN, 1, 1, (Fragment(0, (copy(0, "7"),)),), token="v:1")
    assert LogFenced(-1) in writer.handle(LogConflict(other, 1))
    assert writer.is_over


def test_an_answer_about_the_record_that_was_not_asked_for_changes_nothing() -> None:
    writer = opened()

    assert writer.handle(LogRead(TAKEN, 3)) == []


def test_a_log_that_a_recovery_closed_at_the_same_frame_is_closed() -> None:
    writer = opened()

    result = played(
        writer.handle,
        CloseLog(),
        LogConflict(LogRecord(LogState.CLOSED, 3, 2, (), -1, "r:1"), 3),
    )

    assert result == trace(
        """
        > CloseLog
          CommitLog [CLOSED  end -1] 2 True
        > LogConflict [CLOSED  end -1] 3
          ReleaseFiles (p0/1 p0/2 p1/1 p1/2 p2/1 p2/2)
          LogClosed -1
        """
    )
