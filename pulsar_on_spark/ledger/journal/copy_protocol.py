"""The rules of one file on one storage path: `CopyAppender` for its writer, `CopyReader` for all others.

The two share nothing but the file system. The fence is a rename of `frames.open`, so the writer may count a frame
only on positive proof that the name still refers to the file that it has open. A missing name (renamed, trimmed away,
unmounted, another disk in the path's place) always means "fenced". The order of one round, and of a fencing read:

    appender   write -> fdatasync (of what was written before it began) -> is `frames.open` my file? -> Ok(watermark)
    reader     identity -> rename -> fsync of the directory -> scan -> answer

If the appender's check succeeds, its bytes were in the file before any rename, so a recovery, which renames before it
reads, finds them. This holds within one kernel. Network file systems cache names: `storage.local_disk` refuses them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from pulsar_on_spark.ledger.journal.log import NO_FRAME, FrameFacts, FrameNumber

MAX_AHEAD = 64
"""Limit of appends that arrive before their predecessor; more of them mean that an append was lost."""

# -- the writer's side -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AppendFrames:
    """Event: append frames `first` to `last`; if `sync` is False, they wait for a sync that other frames need."""

    first: FrameNumber
    last: FrameNumber
    sync: bool


@dataclass(frozen=True, slots=True)
class Written:
    """Event: the `Write` has returned and wrote all bytes."""


@dataclass(frozen=True, slots=True)
class Synced:
    """Event: the `Sync` has returned without error."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Event: the result of `Check`: True if `frames.open` was the appender's own file, by device and inode."""

    is_my_file: bool


@dataclass(frozen=True, slots=True)
class IoFailed:
    """Event: a write or fdatasync failed. There is no retry, because the kernel may have marked lost pages clean."""


@dataclass(frozen=True, slots=True)
class Write:
    """Effect: append these frames' bytes."""

    first: FrameNumber
    last: FrameNumber


@dataclass(frozen=True, slots=True)
class Sync:
    """Effect: call fdatasync on the file."""


@dataclass(frozen=True, slots=True)
class Check:
    """Effect: check that `frames.open` is the file that is being appended to."""


@dataclass(frozen=True, slots=True)
class Ok:
    """Effect: report to the writer that all frames up to `watermark` became durable in this file before any fence."""

    watermark: FrameNumber


@dataclass(frozen=True, slots=True)
class Lost:
    """Effect: report to the writer that the file failed or was fenced. Frames without an `Ok` have no known outcome."""

    reason: str


AppendEvent: TypeAlias = AppendFrames | Written | Synced | Checked | IoFailed
AppendEffect: TypeAlias = Write | Sync | Check | Ok | Lost


class CopyAppender:
    """The state of a file that its writer appends to: frames have no gaps, and work stops at the first error.

    Writes continue during a sync; there is one round of sync and check at a time.
    """

    def __init__(self, first: FrameNumber) -> None:
        """Begin a file whose first frame will be `first`."""
        self._queued = first - 1
        self._ahead: list[AppendFrames] = []
        self._writing_to: FrameNumber | None = None
        self._written = first - 1
        self._sync_wanted = first - 1
        self._round_to: FrameNumber | None = None
        self._watermark = first - 1
        self.is_lost = False

    def handle(self, event: AppendEvent) -> list[AppendEffect]:
        """Handle an event; a lost file ignores all events."""
        if self.is_lost:
            return []
        match event:
            case AppendFrames():
                return self._append(event)
            case Written():
                assert self._writing_to is not None, "a write that returned was asked for"
                self._written, self._writing_to = self._writing_to, None
                return self._next_write() + self._next_round()
            case Synced():
                return self._synced()
            case Checked():
                return self._checked(event.is_my_file)
            case IoFailed():
                return self._lose("a write or a sync failed")

    def _append(self, event: AppendFrames) -> list[AppendEffect]:
        if event.first > self._queued + 1:
            if len(self._ahead) >= MAX_AHEAD:
                return self._lose("a frame is missing")
            self._ahead.append(event)
            return []
        self._queue(event)
        while self._ahead and (following := min(self._ahead, key=lambda ahead: ahead.first)).first <= self._queued + 1:
            self._ahead.remove(following)
            self._queue(following)
        return self._next_write()

    def _queue(self, event: AppendFrames) -> None:
        """Queue the frames that are not queued yet; ranges may overlap, because frames may be sent again."""
        if event.last > self._queued:
            self._queued = event.last
            if event.sync:
                self._sync_wanted = event.last

    def _next_write(self) -> list[AppendEffect]:
        if self._writing_to is not None or self._queued == self._written:
            return []
        self._writing_to = self._queued
        return [Write(self._written + 1, self._queued)]

    def _next_round(self) -> list[AppendEffect]:
        if self._round_to is not None or min(self._sync_wanted, self._written) <= self._watermark:
            return []
        self._round_to = self._written
        return self._begin_round()

    def _begin_round(self) -> list[AppendEffect]:
        return [Sync()]

    def _synced(self) -> list[AppendEffect]:
        return [Check()]

    def _checked(self, is_my_file: bool) -> list[AppendEffect]:
        if not self._may_count(is_my_file):
            return self._lose("fenced: frames.open is no longer this file")
        return self._round_done()

    def _may_count(self, is_my_file: bool) -> bool:
        """Return True if the check proves that the round's frames were written before any fence."""
        return is_my_file

    def _round_done(self) -> list[AppendEffect]:
        assert self._round_to is not None, "a check belongs to a round"
        self._watermark, self._round_to = self._round_to, None
        return [Ok(self._watermark), *self._next_round()]

    def _lose(self, reason: str) -> list[AppendEffect]:
        self.is_lost = True
        self._ahead.clear()
        return [Lost(reason)]


# -- the readers' side -------------------------------------------------------------------------------------------------


class End(Enum):
    """A copy's statement about the frame that follows the returned frames.

    Only `NO` and, if the whole write set was read, `TORN` are evidence that the frame was never written (BookKeeper's
    NoSuchEntry); the other values are no evidence.
    """

    MORE = "there is more to read"
    NO = "the file was fenced before it was read, is intact, and ends here"
    TORN = "as NO, but a short frame or a hole in a header's place is at its very end"
    UNKNOWN = "cannot tell"


class ScanEnd(Enum):
    """The reason why a scan of a file ended."""

    LIMIT = "as many frames as were asked for"
    CLEAN = "the end of the file, behind a whole frame"
    TORN = "a short frame or a hole in a header's place, with nothing behind it"
    DAMAGED = "a whole frame whose content is bad, a damaged header, a bad frame that others follow, or an IO error"


class Renamed(Enum):
    """The outcome of a rename of `frames.open` to `frames.fenced`."""

    DONE = "fenced now"
    ALREADY = "frames.fenced is there"
    MISSING = "neither name is there"
    FAILED = "an IO error"


@dataclass(frozen=True, slots=True)
class FenceFirst:
    """Event: fence the copy and report the highest LAC in its frames."""


@dataclass(frozen=True, slots=True)
class ReadFrames:
    """Event: fence the copy unless it is fenced, then return up to `limit` frames from `start` on (BookKeeper #2614).

    If the fence fails, the frames are still returned: a frame that was read exists, with or without a fence.
    """

    start: FrameNumber
    limit: int


@dataclass(frozen=True, slots=True)
class IdentityChecked:
    """Event: True if the path's identity file (cookie) exists and belongs to this path."""

    intact: bool


@dataclass(frozen=True, slots=True)
class FileRenamed:
    """Event: the outcome of the rename."""

    result: Renamed


@dataclass(frozen=True, slots=True)
class DirectorySynced:
    """Event: True if fsync of the file's directory succeeded and `frames.fenced` existed afterwards."""

    ok: bool


@dataclass(frozen=True, slots=True)
class Scanned:
    """Event: the content of the file.

    Attributes:
        first: Number of the file's first frame, by its header; None if the file has neither frame nor header.
        frames: Good frames from the requested start on, without gap.
        end: The reason why the scan ended.
        lac: The highest LAC in the headers that were read.
    """

    first: FrameNumber | None
    frames: tuple[FrameFacts, ...]
    end: ScanEnd
    lac: FrameNumber = NO_FRAME


@dataclass(frozen=True, slots=True)
class CheckIdentity:
    """Effect: read the path's identity file."""


@dataclass(frozen=True, slots=True)
class Rename:
    """Effect: rename `frames.open` to `frames.fenced`, unless that was done before."""


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    """Effect: fsync the file's directory, then look for `frames.fenced`: a crash may have undone the rename."""


@dataclass(frozen=True, slots=True)
class Scan:
    """Effect: open the file under either name, check its frames and return up to `limit` of them from `start` on."""

    start: FrameNumber
    limit: int


@dataclass(frozen=True, slots=True)
class FenceAnswer:
    """Effect: answer to `FenceFirst`.

    Attributes:
        fenced: True if the copy is durably fenced.
        first: The copy's first frame; None if the copy is empty or cannot be read.
        lac: The highest LAC in the copy's frames; -1 if there is none.
    """

    fenced: bool
    first: FrameNumber | None
    lac: FrameNumber


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """Effect: answer to `ReadFrames`: good frames from `start` on, and the copy's statement about the frame after them.

    A frame that is returned certainly exists.
    """

    start: FrameNumber
    frames: tuple[FrameFacts, ...]
    end: End


ReadEvent: TypeAlias = FenceFirst | ReadFrames | IdentityChecked | FileRenamed | DirectorySynced | Scanned
ReadEffect: TypeAlias = CheckIdentity | Rename | SyncDirectory | Scan | FenceAnswer | ReadAnswer

_ALL_FRAMES = 1 << 62


class CopyReader:
    """The state of a copy that a recovery fences and reads; one request at a time."""

    def __init__(self) -> None:
        self._fenced = False
        self._request: FenceFirst | ReadFrames | None = None

    def handle(self, event: ReadEvent) -> list[ReadEffect]:
        """Handle a request, or the outcome of the previous effect."""
        match event:
            case FenceFirst() | ReadFrames():
                assert self._request is None, "one request at a time"
                self._request = event
                return [CheckIdentity()]
            case IdentityChecked(intact):
                if not intact:
                    return self._no_answer()
                return [Rename()] if not self._fenced and self._fences(self._current) else self._scan()
            case FileRenamed(result):
                if result is Renamed.MISSING:
                    return self._missing()
                return self._scan() if result is Renamed.FAILED else [SyncDirectory()]
            case DirectorySynced(ok):
                self._fenced = ok
                return self._scan()
            case Scanned():
                return self._answer(event)

    @property
    def _current(self) -> FenceFirst | ReadFrames:
        assert self._request is not None, "an outcome belongs to a request"
        return self._request

    def _fences(self, request: FenceFirst | ReadFrames) -> bool:
        """Return True if the copy must be fenced before the request is served.

        This applies to reads, too, because the path may have been away when the log was fenced (BookKeeper #2614).
        """
        return True

    def _missing(self) -> list[ReadEffect]:
        """Answer for a missing file. The record names the file, so it existed: its absence proves nothing of frames."""
        return self._no_answer()

    def _scan(self) -> list[ReadEffect]:
        request = self._current
        if isinstance(request, ReadFrames):
            return [Scan(request.start, request.limit)]
        return [Scan(_ALL_FRAMES, 0)]

    def _no_answer(self) -> list[ReadEffect]:
        request, self._request = self._current, None
        if isinstance(request, ReadFrames):
            return [ReadAnswer(request.start, (), End.UNKNOWN)]
        return [FenceAnswer(fenced=False, first=None, lac=NO_FRAME)]

    def _answer(self, scanned: Scanned) -> list[ReadEffect]:
        request, self._request = self._current, None
        if isinstance(request, FenceFirst):
            return [FenceAnswer(self._fenced, scanned.first, scanned.lac)]
        return [ReadAnswer(request.start, scanned.frames, self._end(scanned, request.start))]

    def _end(self, scanned: Scanned, start: FrameNumber) -> End:
        if scanned.end is ScanEnd.LIMIT:
            return End.MORE
        begins_later = scanned.first is not None and scanned.first > start
        if begins_later or not self._may_say_no(scanned):
            return End.UNKNOWN
        return End.TORN if scanned.end is ScanEnd.TORN else End.NO

    def _may_say_no(self, scanned: Scanned) -> bool:
        """Return True if `NO` counts as an answer: the copy was fenced before the read, and was read to its end."""
        return self._fenced and scanned.end in (ScanEnd.CLEAN, ScanEnd.TORN)
