"""The rules of one journal file on an object store: `ObjectAppender` for its writer, `ObjectReader` for recoverers.

A file is a sequence of numbered objects, each of which is created once, if it is absent, and never changed:

    0         the birth, which is there before the record names the file
    1, 2, ..  data: whole frames, in order
    k         or a fence, at the first number that a recoverer found absent; it is never deleted

The content of the file is the *prefix*: the data objects from 1 up to the first number that is absent or a fence.
Objects behind the prefix do not count, because the writer counts an object only when all objects before it are there.
So a fence at the first absent number ends the file for good: when the writer's request for that number arrives, the
number is taken, and the writer counts nothing from there on.

    appender   create n (several at once) -> 1..n are all confirmed -> Ok(watermark)
    reader     birth -> list -> fence at the first gap, if absent -> birth again -> scan -> answer

A deletion of the file deletes the birth first. So if the birth is still there after a number was found absent, no
object of the file had been deleted, and the number was never filled. (`copy_protocol` has the rules of a file on a
disk, and the answers of both kinds of readers.)
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

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
from pulsar_on_spark.ledger.journal.log import NO_FRAME, FrameFacts, FrameNumber

BIRTH: Final = 0
"""The number of the birth; data begin behind it."""
MAX_IN_FLIGHT_BYTES: Final = 32 * 1024 * 1024
"""Limit of the bytes in flight to one file; at this limit no further object is put."""
MAX_LOOKS: Final = 64
"""Limit of attempts to fence a file whose writer still adds objects; then the copy is read without a fence."""

# -- the writer's side -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """The rule for cutting a file's frames into objects: a request costs money and time, whatever its size.

    If no object is in flight, waiting frames are put at once. Otherwise they are put when the interval has passed
    since the last object was cut, or when enough bytes wait.

    Attributes:
        interval_s: The interval, in seconds.
        max_bytes: Waiting bytes at which an object is cut before the interval has passed; about the largest object.
        in_flight: Limit of objects in flight.
    """

    interval_s: float = 0.1
    max_bytes: int = 4 * 1024 * 1024
    in_flight: int = 8


DEFAULT_COMMITS: Final = CommitPolicy()


@dataclass(frozen=True, slots=True)
class GiveFrames:
    """Event: append frames from number `first` on; `sizes` has the bytes of each frame."""

    first: FrameNumber
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ObjectConfirmed:
    """Event: the store has created the object, or it was read back with the writer's own content."""

    number: int


@dataclass(frozen=True, slots=True)
class ObjectExists:
    """Event: an object with this number exists; `token` is that object's token, or "" if it cannot be parsed."""

    number: int
    token: str


@dataclass(frozen=True, slots=True)
class PutFailed:
    """Event: it is unknown if the object was created; it may still be created later."""

    number: int


@dataclass(frozen=True, slots=True)
class IntervalPassed:
    """Event: the policy's interval has passed since the last `AwaitInterval`."""


@dataclass(frozen=True, slots=True)
class PutObject:
    """Effect: create the object with these frames, if the number is absent. A retry has exactly the same bytes.

    Outcome: ObjectConfirmed, ObjectExists or PutFailed. The object records that all objects up to `confirmed` exist.
    """

    number: int
    first: FrameNumber
    last: FrameNumber
    confirmed: int


@dataclass(frozen=True, slots=True)
class AwaitInterval:
    """Effect: an object was cut; send IntervalPassed after the policy's interval, counted from now."""


ObjectAppendEvent: TypeAlias = GiveFrames | ObjectConfirmed | ObjectExists | PutFailed | IntervalPassed
ObjectAppendEffect: TypeAlias = PutObject | AwaitInterval | Ok | Lost


@dataclass(frozen=True, slots=True)
class _Cut:
    first: FrameNumber
    last: FrameNumber
    size_bytes: int
    confirmed: int


class ObjectAppender:
    """The state of a file that its writer appends to: ordered objects, several of them in flight, and one watermark."""

    def __init__(self, first: FrameNumber, token: str, policy: CommitPolicy) -> None:
        """Begin a file.

        Args:
            first: Its first frame.
            token: The text that marks the writer's objects; no other writer or recoverer has it.
            policy: The rule for cutting objects.
        """
        self._token = token
        self._policy = policy
        self._given = first - 1
        self._ahead: list[GiveFrames] = []
        self._waiting: deque[int] = deque()
        """Sizes of the frames up to `_given` that are in no object yet."""
        self._waiting_bytes = 0
        self._is_due = True
        self._last_cut = BIRTH
        self._on_their_way: dict[int, _Cut] = {}
        self._confirmed: dict[int, FrameNumber] = {}
        """The last frame of each confirmed object behind the prefix."""
        self._prefix = BIRTH
        self._watermark = first - 1
        self.is_lost = False

    @property
    def is_drained(self) -> bool:
        """True if every frame is in a confirmed object."""
        return not (self._waiting or self._on_their_way or self._ahead)

    def handle(self, event: ObjectAppendEvent) -> list[ObjectAppendEffect]:
        """Handle an event; a lost file ignores all events."""
        if self.is_lost:
            return []
        match event:
            case GiveFrames():
                return self._give(event)
            case ObjectConfirmed(number):
                return self._confirm(number)
            case ObjectExists(number, token):
                return self._exists(number, token)
            case PutFailed(number):
                return self._again(number)
            case IntervalPassed():
                self._is_due = True
                return self._cut()

    def _give(self, event: GiveFrames) -> list[ObjectAppendEffect]:
        if event.first > self._given + 1:
            if len(self._ahead) >= MAX_AHEAD:
                return self._lose("a frame is missing")
            self._ahead.append(event)
            return []
        self._queue(event)
        while self._ahead and (following := min(self._ahead, key=lambda ahead: ahead.first)).first <= self._given + 1:
            self._ahead.remove(following)
            self._queue(following)
        return self._cut()

    def _queue(self, event: GiveFrames) -> None:
        """Queue the frames that are not queued yet; ranges may overlap, because frames may be sent again."""
        new = event.sizes[self._given + 1 - event.first :]
        self._waiting.extend(new)
        self._waiting_bytes += sum(new)
        self._given += len(new)

    # -- cutting -------------------------------------------------------------------------------------------------------

    def _cut(self) -> list[ObjectAppendEffect]:
        effects: list[ObjectAppendEffect] = []
        while self._may_cut():
            number, cut = self._last_cut + 1, self._next_cut()
            self._last_cut, self._is_due = number, False
            self._on_their_way[number] = cut
            effects.append(PutObject(number, cut.first, cut.last, cut.confirmed))
        return [*effects, AwaitInterval()] if effects else []

    def _may_cut(self) -> bool:
        policy, on_their_way = self._policy, self._on_their_way
        if not self._waiting or len(on_their_way) >= policy.in_flight:
            return False
        if sum(cut.size_bytes for cut in on_their_way.values()) >= MAX_IN_FLIGHT_BYTES:
            return False
        return not on_their_way or self._is_due or self._waiting_bytes >= policy.max_bytes

    def _next_cut(self) -> _Cut:
        """Take waiting frames for the next object, up to the policy's bytes, but at least one."""
        first = self._given - len(self._waiting) + 1
        last, size_bytes = first - 1, 0
        while self._waiting and (not size_bytes or size_bytes + self._waiting[0] <= self._policy.max_bytes):
            size_bytes += self._waiting.popleft()
            last += 1
        self._waiting_bytes -= size_bytes
        return _Cut(first, last, size_bytes, self._prefix)

    # -- answers -------------------------------------------------------------------------------------------------------

    def _confirm(self, number: int) -> list[ObjectAppendEffect]:
        cut = self._on_their_way.pop(number, None)
        if cut is None:
            return []
        self._confirmed[number] = cut.last
        before, self._watermark = self._watermark, self._counted()
        counted: list[ObjectAppendEffect] = [Ok(self._watermark)] if self._watermark > before else []
        return counted + self._cut()

    def _counted(self) -> FrameNumber:
        """Extend the prefix over confirmed objects without a gap, and return the number of its last frame."""
        watermark = self._watermark
        while self._prefix + 1 in self._confirmed:
            self._prefix += 1
            watermark = self._confirmed.pop(self._prefix)
        return watermark

    def _exists(self, number: int, token: str) -> list[ObjectAppendEffect]:
        if self._is_mine(token):
            return self._confirm(number)
        return self._lose(f"fenced: object {number} is another process's")

    def _is_mine(self, token: str) -> bool:
        """Return True if the token proves that this writer made the existing object."""
        return token == self._token

    def _again(self, number: int) -> list[ObjectAppendEffect]:
        """Put the same object again: an error leaves its outcome unknown, and the path's owner decides when to stop."""
        cut = self._on_their_way.get(number)
        return [] if cut is None else [PutObject(number, cut.first, cut.last, cut.confirmed)]

    def _lose(self, reason: str) -> list[ObjectAppendEffect]:
        self.is_lost = True
        self._ahead.clear()
        self._waiting.clear()
        self._on_their_way.clear()
        return [Lost(reason)]


# -- the recoverers' side ----------------------------------------------------------------------------------------------


class FenceResult(Enum):
    """The outcome of an attempt to create a fence."""

    DONE = "a fence has the number, of this process or another one"
    TAKEN = "a data object has the number"
    FAILED = "it is not known, or the object there cannot be parsed"


@dataclass(frozen=True, slots=True)
class BirthChecked:
    """Event: True if the store has this storage path, and the file's birth exists and is intact."""

    is_there: bool


@dataclass(frozen=True, slots=True)
class Looked:
    """Event: the outcome of `Look`, which lists the file's objects.

    Attributes:
        end: The first number that is absent or a fence; None if the file could not be listed.
        has_fence: True if a fence has that number.
        last: The highest number of an existing object.
    """

    end: int | None
    has_fence: bool
    last: int


@dataclass(frozen=True, slots=True)
class FencePut:
    """Event: the outcome of `PutFence`."""

    result: FenceResult


@dataclass(frozen=True, slots=True)
class ObjectsScanned:
    """Event: the content of the prefix.

    Attributes:
        first: Number of the file's first frame; None if the prefix is empty.
        frames: Good frames from the requested start on, without gap.
        end: The reason why the scan ended; never TORN, because an object is there as a whole or not at all.
        lac: The highest LAC in the prefix.
        lac_behind: The highest LAC in objects behind the prefix, whose frames do not count, but whose LACs are true.
        confirmed_behind: The highest `ObjectHead.confirmed` in objects behind the prefix; 0 if there are none.
    """

    first: FrameNumber | None
    frames: tuple[FrameFacts, ...]
    end: ScanEnd
    lac: FrameNumber = NO_FRAME
    lac_behind: FrameNumber = NO_FRAME
    confirmed_behind: int = BIRTH


@dataclass(frozen=True, slots=True)
class CheckBirth:
    """Effect: read the birth; if the store has none, check the path's identity."""


@dataclass(frozen=True, slots=True)
class Look:
    """Effect: list all of the file's objects."""


@dataclass(frozen=True, slots=True)
class PutFence:
    """Effect: create a fence with this number, if it is absent."""

    number: int


@dataclass(frozen=True, slots=True)
class ScanObjects:
    """Effect: read the data objects before `end`, check their frames and return up to `limit` of them from `start` on.

    With a `limit` of 0, return only the LACs, also from objects behind `end`.
    """

    start: FrameNumber
    limit: int
    end: int


ObjectReadEvent: TypeAlias = FenceFirst | ReadFrames | BirthChecked | Looked | FencePut | ObjectsScanned
ObjectReadEffect: TypeAlias = CheckBirth | Look | PutFence | ScanObjects | FenceAnswer | ReadAnswer

_ALL_FRAMES: Final = 1 << 62


class ObjectReader:
    """The state of a copy on an object store that a recovery fences and reads, with the requests of `CopyReader`."""

    def __init__(self) -> None:
        self._request: FenceFirst | ReadFrames | None = None
        self._is_fenced = False
        self._meets_fence = False
        self._end = BIRTH + 1
        self._looks = 0

    def handle(self, event: ObjectReadEvent) -> list[ObjectReadEffect]:
        """Handle a request, or the outcome of the previous effect."""
        match event:
            case FenceFirst() | ReadFrames():
                assert self._request is None, "one request at a time"
                self._request, self._looks = event, 0
                return [CheckBirth()]
            case BirthChecked(is_there):
                return self._born() if is_there else self._missing()
            case Looked():
                return self._looked(event)
            case FencePut(result):
                return self._fence_put(result)
            case ObjectsScanned():
                return self._answer(event)

    @property
    def _current(self) -> FenceFirst | ReadFrames:
        assert self._request is not None, "an outcome belongs to a request"
        return self._request

    def _born(self) -> list[ObjectReadEffect]:
        if self._meets_fence:  # now it is certain that the fence came before any deletion
            self._is_fenced = True
        return self._scan() if self._is_fenced else [Look()]

    def _missing(self) -> list[ObjectReadEffect]:
        """Answer for a file without birth. The record names the file, so it existed: its absence proves nothing."""
        return self._no_answer()

    def _looked(self, looked: Looked) -> list[ObjectReadEffect]:
        if looked.end is None:
            return self._no_answer()
        self._end = looked.end
        return self._fenced() if looked.has_fence else [PutFence(self._fence_at(looked))]

    def _fence_at(self, looked: Looked) -> int:
        """Return the first absent number: a fence at a later number would let objects before it still arrive."""
        assert looked.end is not None, "the file was listed"
        return looked.end

    def _fence_put(self, result: FenceResult) -> list[ObjectReadEffect]:
        if result is FenceResult.DONE:
            return self._fenced()
        self._looks += 1
        return [Look()] if result is FenceResult.TAKEN and self._looks < MAX_LOOKS else self._scan()

    def _fenced(self) -> list[ObjectReadEffect]:
        self._meets_fence = True
        return [CheckBirth()]

    def _scan(self) -> list[ObjectReadEffect]:
        request = self._current
        if isinstance(request, ReadFrames):
            return [ScanObjects(request.start, request.limit, self._end)]
        return [ScanObjects(_ALL_FRAMES, 0, self._end)]

    def _no_answer(self) -> list[ObjectReadEffect]:
        request, self._request = self._current, None
        if isinstance(request, ReadFrames):
            return [ReadAnswer(request.start, (), End.UNKNOWN)]
        return [FenceAnswer(fenced=False, first=None, lac=NO_FRAME)]

    def _answer(self, scanned: ObjectsScanned) -> list[ObjectReadEffect]:
        request, self._request = self._current, None
        if isinstance(request, FenceFirst):
            return [FenceAnswer(self._is_fenced, scanned.first, self._known_lac(scanned))]
        return [ReadAnswer(request.start, scanned.frames, self._statement(scanned, request.start))]

    def _known_lac(self, scanned: ObjectsScanned) -> FrameNumber:
        """Return the highest LAC, also from behind the prefix: a deleted object must not hide acknowledged frames."""
        return max(scanned.lac, scanned.lac_behind)

    def _statement(self, scanned: ObjectsScanned, start: FrameNumber) -> End:
        if scanned.end is ScanEnd.LIMIT:
            return End.MORE
        begins_later = scanned.first is not None and scanned.first > start
        return End.NO if self._may_say_no(scanned) and not begins_later else End.UNKNOWN

    def _may_say_no(self, scanned: ObjectsScanned) -> bool:
        """Return True if `NO` counts as an answer: the copy was fenced first, and its prefix was read to the end.

        `NO` does not count if an object behind the prefix proves that the first missing object existed.
        """
        is_whole = scanned.end is ScanEnd.CLEAN and scanned.confirmed_behind < self._end
        return self._is_fenced and is_whole
