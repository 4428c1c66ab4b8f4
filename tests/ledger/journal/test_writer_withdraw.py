"""Scripted traces of a writer that leaves a path: no new file is made there, and what was written there counts."""

from pulsar_on_spark.ledger.journal.log import FrameKind
from pulsar_on_spark.ledger.journal.messages import (
    AddGroup,
    CopyAcked,
    FileCreated,
    LogCommitted,
    PathWithdrawn,
    StartLog,
)
from pulsar_on_spark.ledger.journal.writer import JournalWriter
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.model.quorum import Quorum
from tests.ledger.journal.script import copy, played, trace

GROUP = AddGroup(FrameKind.ENTRIES, 10)


def opened(paths: int) -> JournalWriter:
    """A 3/3/2 log on paths 0 to 2: file 1 is open, file 2 prepared, the record has version 2."""
    writer = JournalWriter("w", Quorum(3, 3, 2), 1000)
    writer.handle(StartLog(tuple(PathId(path) for path in range(paths))))
    for file in ("1", "2"):
        for path in range(3):
            writer.handle(FileCreated(copy(path, file)))
        writer.handle(LogCommitted(int(file)))
    return writer


def test_a_withdrawn_path_is_used_until_the_next_group() -> None:
    """No full file is waited for; what was written there counts."""
    writer = opened(paths=4)
    writer.handle(GROUP)

    result = played(
        writer.handle,
        PathWithdrawn(PathId(1)),
        FileCreated(copy(0, "3")),
        FileCreated(copy(2, "3")),
        FileCreated(copy(3, "3")),
        GROUP,
        LogCommitted(3),
        GROUP,
        CopyAcked(copy(1), 2),
        CopyAcked(copy(0), 2),
    )

    assert result == trace(
        """
        > PathWithdrawn 1
          ReleaseFiles (p0/2 p1/2 p2/2)
          CreateFile p0/3
          CreateFile p2/3
          CreateFile p3/3
        > FileCreated p0/3
        > FileCreated p2/3
        > FileCreated p3/3
          CommitLog [OPEN 0:p0/1,p1/1,p2/1 ?:p0/3,p2/3,p3/3] 2 False
        > AddGroup ENTRIES 10
          Append (p0/1 p1/1 p2/1) #1 ENTRIES lac -1 True
        > LogCommitted 3
        > AddGroup ENTRIES 10
          BeginFiles (p0/3 p2/3 p3/3) 3
          Append (p0/1 p1/1 p2/1) #2 ROLL lac -1 True
          Append (p0/3 p2/3 p3/3) #3 ENTRIES lac -1 True
        > CopyAcked p1/1 2
        > CopyAcked p0/1 2
          ReleaseFiles (p0/1 p1/1 p2/1)
          Acknowledged 2
          CreateFile p0/4
          CreateFile p2/4
          CreateFile p3/4
        """
    )


def test_a_withdrawn_path_stays_in_use_where_too_few_others_are_left() -> None:
    writer = opened(paths=3)
    assert len(writer.handle(PathWithdrawn(PathId(0)))) == 3, "two of three make an ack quorum"
    for path in (1, 2):
        writer.handle(FileCreated(copy(path, "3")))
    writer.handle(LogCommitted(3))
    assert writer.handle(PathWithdrawn(PathId(1))) == []
    assert writer.handle(PathWithdrawn(PathId(2))) == []
