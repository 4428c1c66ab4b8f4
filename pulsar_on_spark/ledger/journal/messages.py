"""Events and effects of `JournalWriter` and `Recovery`; `copy_protocol` has the events and effects of one path.

A shell keeps the frames' bytes by number; the cores handle numbers only. If an effect's docstring names outcomes, the
shell answers the effect by exactly one of these events. A path that does not answer in time is reported as failed, and
its later answers are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from pulsar_on_spark.ledger.journal.copy_protocol import End
from pulsar_on_spark.ledger.journal.log import Copy, FrameFacts, FrameKind, FrameNumber, LogRecord
from pulsar_on_spark.model.ids import PathId

# -- the register ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommitLog:
    """Effect: compare-and-set the record. Outcome: LogCommitted, LogConflict or LogCommitUnknown.

    Attributes:
        record: The new value.
        expected_version: The version of the incarnation's `log` key that the commit replaces; 0 if the key is new.
        moves_seal: True if the same commit moves the `seal` key. A takeover thus fences the dead writer's sealer and
            trimmer, and a clean close makes openings of ledgers fail that were decided earlier.
    """

    record: LogRecord
    expected_version: int
    moves_seal: bool = False


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Effect: read the record, after a pause if commits have failed before. Outcome: LogRead."""


@dataclass(frozen=True, slots=True)
class LogCommitted:
    """Event: the record is committed and durable, under this version."""

    version: int


@dataclass(frozen=True, slots=True)
class LogConflict:
    """Event: nothing was committed, because the record had changed; `record` is the current one."""

    record: LogRecord
    version: int


@dataclass(frozen=True, slots=True)
class LogCommitUnknown:
    """Event: the commit may have happened, may still happen, or may fail; `reason` is a text for operators."""

    reason: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class LogRead:
    """Event: the record as it was at some moment after the read began; None, with version 0, if there was none."""

    record: LogRecord | None
    version: int


# -- files and frames --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateFile:
    """Effect: check the path's identity, create the empty `frames.open`, sync it and its directories.

    Outcome: FileCreated or FileNotCreated.
    """

    copy: Copy


@dataclass(frozen=True, slots=True)
class BeginFiles:
    """Effect: begin these created files; their headers name frame `first` as their first. Appends to them follow."""

    copies: tuple[Copy, ...]
    first: FrameNumber


@dataclass(frozen=True, slots=True)
class Append:
    """Effect: encode the next frame (a group, or LAC or ROLL) and append it to these files.

    Outcome, at any later time and for many frames at once: CopyAcked, or CopyFailed. `sync` is False for a LAC frame,
    which needs no acknowledgement.
    """

    copies: tuple[Copy, ...]
    frame: FrameFacts
    sync: bool


@dataclass(frozen=True, slots=True)
class Resend:
    """Effect: append frames to this file that were sent to other files before. The outcome is as of `Append`."""

    copy: Copy
    first: FrameNumber
    last: FrameNumber


@dataclass(frozen=True, slots=True)
class ReleaseFiles:
    """Effect: close these files after the writes that are queued for them. No appends follow; there is no outcome."""

    copies: tuple[Copy, ...]


@dataclass(frozen=True, slots=True)
class FileCreated:
    """Event: the file was created and is durable."""

    copy: Copy


@dataclass(frozen=True, slots=True)
class FileNotCreated:
    """Event: the file could not be created, or creating it takes too long.

    Attributes:
        reason: A text for the log and for operators.
        exists: True if the file exists already. File ids are never reused, so another process is writing this log.
    """

    copy: Copy
    reason: str = field(default="", compare=False, repr=False)
    exists: bool = field(default=False, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CopyAcked:
    """Event: all frames up to `watermark` are durable in this file and came before any fence (`copy_protocol.Ok`)."""

    copy: Copy
    watermark: FrameNumber


@dataclass(frozen=True, slots=True)
class CopyFailed:
    """Event: the file failed, was fenced (`copy_protocol.Lost`) or is too slow, so it acknowledges no more frames.

    Attributes:
        reason: A text for the log and for operators.
        is_fenced: True if the file's name was gone or belonged to another file; False if its disk failed.
    """

    copy: Copy
    reason: str = field(default="", compare=False, repr=False)
    is_fenced: bool = field(default=False, compare=False, repr=False)


CopyEvent: TypeAlias = FileCreated | FileNotCreated | CopyAcked | CopyFailed
"""Reports about a log's files. Threads post them, `Ensemble` gets each one first, then the core."""

# -- the writer only ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartLog:
    """Event: open the log on the first of these paths, best ones first; `labels` are their racks."""

    paths: tuple[PathId, ...]
    labels: Mapping[PathId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AddGroup:
    """Event: a group of entries or cursor records to append as one frame of about `size_bytes`."""

    kind: FrameKind
    size_bytes: int


@dataclass(frozen=True, slots=True)
class BecameIdle:
    """Event: no group is waiting, so a LAC frame should show the last acknowledged frame to tail readers."""


@dataclass(frozen=True, slots=True)
class SpareOffered:
    """Event: a path, whose rack is `label`, may be used, or used again."""

    path: PathId
    label: str = ""


@dataclass(frozen=True, slots=True)
class PathWithdrawn:
    """Event: create no new file on this path. Its files stay valid; groups leave the path at the next roll."""

    path: PathId


@dataclass(frozen=True, slots=True)
class FragmentsTrimmed:
    """Event: all frames below `before` are trimmed, and their files deleted; the record may drop their fragments."""

    before: FrameNumber


@dataclass(frozen=True, slots=True)
class CloseLog:
    """Event: no more groups will come; close the log when the frames in flight are acknowledged."""


@dataclass(frozen=True, slots=True)
class LogOpened:
    """Effect: the log is open; groups may be added."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Effect: all frames up to `lac` are acknowledged; only files that lag behind still need the frames' bytes."""

    lac: FrameNumber


@dataclass(frozen=True, slots=True)
class Starved:
    """Effect: fewer paths than the ack quorum are left: producers get a retryable error until a path is offered."""


@dataclass(frozen=True, slots=True)
class LogClosed:
    """Effect: the log is closed for good at this frame."""

    last_frame: FrameNumber


@dataclass(frozen=True, slots=True)
class LogFenced:
    """Effect: another process took over and this incarnation is over; frames above `lac` have no known outcome."""

    lac: FrameNumber


@dataclass(frozen=True, slots=True)
class LogAbandoned:
    """Effect: the record could not be committed in many attempts: this incarnation is over, as with LogFenced."""

    lac: FrameNumber


WriterEvent: TypeAlias = (
    AddGroup
    | CopyEvent
    | BecameIdle
    | LogCommitted
    | LogConflict
    | LogCommitUnknown
    | LogRead
    | SpareOffered
    | PathWithdrawn
    | FragmentsTrimmed
    | StartLog
    | CloseLog
)
WriterEffect: TypeAlias = (
    Append
    | Acknowledged
    | Resend
    | CreateFile
    | BeginFiles
    | ReleaseFiles
    | CommitLog
    | ReadLog
    | LogOpened
    | Starved
    | LogClosed
    | LogFenced
    | LogAbandoned
)

# -- recovery only -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartRecovery:
    """Event: recover the log."""


@dataclass(frozen=True, slots=True)
class GiveUpPath:
    """Event: an operator accepts the loss of all data that cannot be read on this path. Only before StartRecovery."""

    path: PathId


@dataclass(frozen=True, slots=True)
class FenceCopy:
    """Effect: fence this file and read its LAC (`copy_protocol.FenceFirst`). Outcome: CopyFenced or CopySilent."""

    copy: Copy


@dataclass(frozen=True, slots=True)
class ReadCopy:
    """Effect: fence and read this file (`copy_protocol.ReadFrames`). Outcome: CopyRead or CopySilent.

    The frames read can be written back until the recovery ends.
    """

    copy: Copy
    start: FrameNumber
    limit: int


@dataclass(frozen=True, slots=True)
class CopyFenced:
    """Event: a copy's answer to `FenceCopy` (`copy_protocol.FenceAnswer`).

    `first` is None if the copy is empty or cannot be read.
    """

    copy: Copy
    fenced: bool
    first: FrameNumber | None
    lac: FrameNumber


@dataclass(frozen=True, slots=True)
class CopyRead:
    """Event: a copy's answer to `ReadCopy` (`copy_protocol.ReadAnswer`)."""

    copy: Copy
    start: FrameNumber
    frames: tuple[FrameFacts, ...]
    end: End


@dataclass(frozen=True, slots=True)
class CopySilent:
    """Event: the path does not answer the open request for this copy."""

    copy: Copy


@dataclass(frozen=True, slots=True)
class WriteBack:
    """Effect: append frames that were read from `source` to a file of this recovery. The outcome is as of `Append`."""

    copy: Copy
    source: Copy
    first: FrameNumber
    last: FrameNumber


@dataclass(frozen=True, slots=True)
class LogRecovered:
    """Effect: the log is CLOSED, by this recovery or another; this is its final record."""

    record: LogRecord


@dataclass(frozen=True, slots=True)
class RecoveryStopped:
    """Effect: the last acknowledged frame cannot be determined now, or another recovery took over: start again later.

    A guess could lose acknowledged frames. Another attempt costs only time.
    """

    reason: str


RecoveryEvent: TypeAlias = (
    StartRecovery
    | GiveUpPath
    | CopyFenced
    | CopyRead
    | CopySilent
    | CopyEvent
    | LogCommitted
    | LogConflict
    | LogCommitUnknown
    | LogRead
)
RecoveryEffect: TypeAlias = (
    CommitLog
    | ReadLog
    | FenceCopy
    | ReadCopy
    | CreateFile
    | BeginFiles
    | WriteBack
    | ReleaseFiles
    | LogRecovered
    | RecoveryStopped
)
