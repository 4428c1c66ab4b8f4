"""Scripted traces of one file on a path: the writer's side and the recoverer's."""

from pulsar_on_spark.ledger.journal.copy_protocol import (
    MAX_AHEAD,
    AppendFrames,
    Checked,
    CopyAppender,
    CopyReader,
    DirectorySynced,
    FenceFirst,
    FileRenamed,
    IdentityChecked,
    IoFailed,
    Lost,
    ReadFrames,
    Renamed,
    ScanEnd,
    Scanned,
    Synced,
    Written,
)
from pulsar_on_spark.ledger.journal.log import FrameFacts, FrameKind
from tests.ledger.journal.script import played, trace

FRAMES = (FrameFacts(4, FrameKind.ENTRIES, 3), FrameFacts(5, FrameKind.ENTRIES, 3))
CLEAN = Scanned(0, FRAMES, ScanEnd.CLEAN, 3)


def fenced() -> CopyReader:
    reader = CopyReader()
    for event in (
        FenceFirst(),
        IdentityChecked(True),
        FileRenamed(Renamed.DONE),
        DirectorySynced(True),
        Scanned(0, (), ScanEnd.CLEAN, 3),
    ):
        reader.handle(event)
    return reader


def test_a_round_counts_frames_written_before_its_sync_once_its_check_passed() -> None:
    appender = CopyAppender(0)

    result = played(
        appender.handle,
        AppendFrames(0, 0, True),
        AppendFrames(1, 1, True),
        Written(),
        Written(),
        Synced(),
        Checked(True),
        Synced(),
        Checked(True),
    )

    assert result == trace(
        """
        > AppendFrames 0 0 True
          Write 0 0
        > AppendFrames 1 1 True
        > Written
          Write 1 1
          Sync
        > Written
        > Synced
          Check
        > Checked True
          Ok 0
          Sync
        > Synced
          Check
        > Checked True
          Ok 1
        """
    )


def test_an_idle_frame_waits_for_the_next_sync() -> None:
    appender = CopyAppender(0)

    result = played(
        appender.handle,
        AppendFrames(0, 0, False),
        Written(),
        AppendFrames(1, 1, True),
        Written(),
        Synced(),
        Checked(True),
    )

    assert result == trace(
        """
        > AppendFrames 0 0 False
          Write 0 0
        > Written
        > AppendFrames 1 1 True
          Write 1 1
        > Written
          Sync
        > Synced
          Check
        > Checked True
          Ok 1
        """
    )


def test_frames_that_arrive_early_or_twice_leave_no_hole() -> None:
    appender = CopyAppender(4)

    result = played(
        appender.handle,
        AppendFrames(5, 5, True),
        AppendFrames(4, 4, True),
        AppendFrames(4, 4, True),
        Written(),
    )

    assert result == trace(
        """
        > AppendFrames 5 5 True
        > AppendFrames 4 4 True
          Write 4 5
        > AppendFrames 4 4 True
        > Written
          Sync
        """
    )


def test_early_and_overlapping_ranges_are_all_written() -> None:
    """Frames 5 and 6 come together and 5 alone, before 4: none waits for a frame that has passed."""
    appender = CopyAppender(4)

    result = played(
        appender.handle,
        AppendFrames(5, 6, True),
        AppendFrames(5, 5, True),
        AppendFrames(6, 7, True),
        AppendFrames(4, 5, True),
        Written(),
    )

    assert result == trace(
        """
        > AppendFrames 5 6 True
        > AppendFrames 5 5 True
        > AppendFrames 6 7 True
        > AppendFrames 4 5 True
          Write 4 7
        > Written
          Sync
        """
    )


def test_another_file_under_the_name_means_fenced_and_ends_the_writes() -> None:
    appender = CopyAppender(0)

    result = played(
        appender.handle,
        AppendFrames(0, 0, True),
        Written(),
        Synced(),
        Checked(False),
        AppendFrames(1, 1, True),
        Written(),
    )

    assert result == trace(
        """
        > AppendFrames 0 0 True
          Write 0 0
        > Written
          Sync
        > Synced
          Check
        > Checked False
          Lost 'fenced: frames.open is no longer this file'
        > AppendFrames 1 1 True
        > Written
        """
    )


def test_a_failed_sync_is_never_tried_again() -> None:
    appender = CopyAppender(0)

    result = played(
        appender.handle,
        AppendFrames(0, 0, True),
        Written(),
        IoFailed(),
        Synced(),
    )

    assert result == trace(
        """
        > AppendFrames 0 0 True
          Write 0 0
        > Written
          Sync
        > IoFailed
          Lost 'a write or a sync failed'
        > Synced
        """
    )


def test_a_reader_fences_before_it_reads() -> None:
    reader = CopyReader()

    result = played(
        reader.handle,
        ReadFrames(4, 10),
        IdentityChecked(True),
        FileRenamed(Renamed.DONE),
        DirectorySynced(True),
        CLEAN,
        ReadFrames(6, 10),
        IdentityChecked(True),
        Scanned(0, (), ScanEnd.TORN),
    )

    assert result == trace(
        """
        > ReadFrames 4 10
          CheckIdentity
        > IdentityChecked True
          Rename
        > FileRenamed DONE
          SyncDirectory
        > DirectorySynced True
          Scan 4 10
        > Scanned 0 (#4 ENTRIES lac 3 #5 ENTRIES lac 3) CLEAN 3
          ReadAnswer 4 (#4 ENTRIES lac 3 #5 ENTRIES lac 3) NO
        > ReadFrames 6 10
          CheckIdentity
        > IdentityChecked True
          Scan 6 10
        > Scanned 0 () TORN -1
          ReadAnswer 6 () TORN
        """
    )


def test_a_yes_needs_no_fence_and_a_no_does() -> None:
    reader = CopyReader()

    result = played(
        reader.handle,
        ReadFrames(4, 10),
        IdentityChecked(True),
        FileRenamed(Renamed.FAILED),
        CLEAN,
    )

    assert result == trace(
        """
        > ReadFrames 4 10
          CheckIdentity
        > IdentityChecked True
          Rename
        > FileRenamed FAILED
          Scan 4 10
        > Scanned 0 (#4 ENTRIES lac 3 #5 ENTRIES lac 3) CLEAN 3
          ReadAnswer 4 (#4 ENTRIES lac 3 #5 ENTRIES lac 3) UNKNOWN
        """
    )


def test_a_fence_undone_by_a_crash_does_not_count() -> None:
    reader = CopyReader()

    result = played(
        reader.handle,
        ReadFrames(4, 10),
        IdentityChecked(True),
        FileRenamed(Renamed.DONE),
        DirectorySynced(False),
        CLEAN,
    )

    assert result == trace(
        """
        > ReadFrames 4 10
          CheckIdentity
        > IdentityChecked True
          Rename
        > FileRenamed DONE
          SyncDirectory
        > DirectorySynced False
          Scan 4 10
        > Scanned 0 (#4 ENTRIES lac 3 #5 ENTRIES lac 3) CLEAN 3
          ReadAnswer 4 (#4 ENTRIES lac 3 #5 ENTRIES lac 3) UNKNOWN
        """
    )


def test_a_path_without_its_identity_is_not_believed() -> None:
    reader = fenced()

    result = played(
        reader.handle,
        ReadFrames(4, 10),
        IdentityChecked(False),
    )

    assert result == trace(
        """
        > ReadFrames 4 10
          CheckIdentity
        > IdentityChecked False
          ReadAnswer 4 () UNKNOWN
        """
    )


def test_a_missing_file_proves_nothing() -> None:
    reader = CopyReader()

    result = played(
        reader.handle,
        FenceFirst(),
        IdentityChecked(True),
        FileRenamed(Renamed.MISSING),
        ReadFrames(4, 10),
        IdentityChecked(True),
        FileRenamed(Renamed.MISSING),
    )

    assert result == trace(
        """
        > FenceFirst
          CheckIdentity
        > IdentityChecked True
          Rename
        > FileRenamed MISSING
          FenceAnswer False None -1
        > ReadFrames 4 10
          CheckIdentity
        > IdentityChecked True
          Rename
        > FileRenamed MISSING
          ReadAnswer 4 () UNKNOWN
        """
    )


def test_damage_within_a_file_is_no_answer() -> None:
    reader = fenced()

    result = played(
        reader.handle,
        ReadFrames(4, 10),
        IdentityChecked(True),
        Scanned(0, FRAMES, ScanEnd.DAMAGED),
    )

    assert result == trace(
        """
        > ReadFrames 4 10
          CheckIdentity
        > IdentityChecked True
          Scan 4 10
        > Scanned 0 (#4 ENTRIES lac 3 #5 ENTRIES lac 3) DAMAGED -1
          ReadAnswer 4 (#4 ENTRIES lac 3 #5 ENTRIES lac 3) UNKNOWN
        """
    )


def test_a_file_that_begins_later_cannot_deny() -> None:
    reader = fenced()

    result = played(
        reader.handle,
        ReadFrames(4, 10),
        IdentityChecked(True),
        Scanned(6, (), ScanEnd.CLEAN),
    )

    assert result == trace(
        """
        > ReadFrames 4 10
          CheckIdentity
        > IdentityChecked True
          Scan 4 10
        > Scanned 6 () CLEAN -1
          ReadAnswer 4 () UNKNOWN
        """
    )


def test_frames_ahead_are_bounded() -> None:
    appender = CopyAppender(0)
    for number in range(MAX_AHEAD):
        assert appender.handle(AppendFrames(number + 2, number + 2, True)) == []
    assert appender.handle(AppendFrames(1000, 1000, True)) == [Lost("a frame is missing")]
