"""Writing journal files on an object store: a thread for each storage path, and threads that send the requests.

The path's thread serves the `ObjectAppender` of every file on the path. A failed request does not end its file: it is
repeated until the path is given up. Each attempt may take as long as the store's timeout.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from typing_extensions import override

from pulsar_on_spark.ledger.journal.copies import FrameBytes, NewFile, PathWriter
from pulsar_on_spark.ledger.journal.copy_protocol import Lost, Ok
from pulsar_on_spark.ledger.journal.frame_header import HEADER_BYTES, ChainPoint, FrameHeader, parse_header
from pulsar_on_spark.ledger.journal.log import Copy, FrameNumber
from pulsar_on_spark.ledger.journal.messages import CopyAcked, CopyFailed
from pulsar_on_spark.ledger.journal.object_file import ObjectFile
from pulsar_on_spark.ledger.journal.object_format import TOKEN_BYTES, ObjectHead, ObjectKind, parse_head
from pulsar_on_spark.ledger.journal.object_protocol import (
    AwaitInterval,
    CommitPolicy,
    GiveFrames,
    IntervalPassed,
    ObjectAppender,
    ObjectAppendEvent,
    ObjectConfirmed,
    ObjectExists,
    PutFailed,
    PutObject,
)
from pulsar_on_spark.model.errors import CorruptJournalError, FormatVersionError, PulsarpyError, StorageError
from pulsar_on_spark.model.ids import IncarnationId, JournalFileId
from pulsar_on_spark.model.latencies import Latencies
from pulsar_on_spark.storage.object_path import ObjectPath
from pulsar_on_spark.storage.objects.contract import Created

PAUSE_S: Final = 0.2
"""Pause before an object is put again, after the store gave no certain answer within its timeout."""
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BornFile(NewFile):
    """A new file on an object store, which has only its first object, the birth.

    Attributes:
        file: The file.
        token: The token of its objects.
    """

    file: ObjectFile
    token: str

    @override
    def close(self) -> None:
        """Do nothing: the birth stays until the log is removed."""


def create_objects(path: ObjectPath, incarnation: IncarnationId, copy: Copy) -> BornFile:
    """Check the path's identity, and create the file by its birth.

    Raises:
        StoragePathError: the store belongs to another path, or cannot be reached.
        FileExistsError: the file exists.
    """
    path.check()
    born = BornFile(ObjectFile(path, incarnation, JournalFileId(copy.file)), secrets.token_hex(TOKEN_BYTES))
    born.file.create_birth(born.token)
    return born


@dataclass(frozen=True, slots=True)
class _Begin:
    copy: Copy
    born: BornFile
    first: FrameNumber
    header: bytes


@dataclass(frozen=True, slots=True)
class _Append:
    copy: Copy
    first: FrameNumber
    frames: Sequence[FrameBytes]

    def is_continued_by(self, later: _Append) -> bool:
        return (later.copy, later.first) == (self.copy, self.first + len(self.frames))


@dataclass(frozen=True, slots=True)
class _Release:
    copy: Copy


@dataclass(frozen=True, slots=True)
class _Answered:
    copy: Copy
    event: ObjectConfirmed | ObjectExists | PutFailed
    took_s: float


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


_Order: TypeAlias = _Begin | _Append | _Release | _Answered | _Stop


@dataclass(slots=True)
class _OpenFile:
    """A file that is being written.

    `contents` are the unconfirmed objects by number. `due_s` is the end of the commit policy's interval on the
    monotonic clock; None while no interval runs.
    """

    copy: Copy
    born: BornFile
    appender: ObjectAppender
    header: bytes
    frames: dict[FrameNumber, FrameBytes] = field(default_factory=dict)
    contents: dict[int, bytes] = field(default_factory=dict)
    due_s: float | None = None
    is_released: bool = False


@dataclass(frozen=True, slots=True)
class _Request:
    copy: Copy
    file: ObjectFile
    number: int
    content: bytes


class ObjectPathThread(PathWriter):
    """The files that this process writes on a storage path on an object store.

    Args:
        path: The storage path of the files.
        incarnation: The log's incarnation.
        report: Called in the path's thread.
        policy: The rule for cutting objects.
    """

    def __init__(
        self,
        path: ObjectPath,
        incarnation: IncarnationId,
        report: Callable[[CopyAcked | CopyFailed], None],
        policy: CommitPolicy,
    ) -> None:
        self._path = path
        self._incarnation = incarnation
        self._report = report
        self._policy = policy
        self.syncs = Latencies()
        self._orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._senders = 0
        self._open: dict[Copy, _OpenFile] = {}
        self._is_stopping = False
        self._abandoned = False
        threading.Thread(target=self._run, name=f"journal-path-{path.path_id}", daemon=True).start()

    @property
    @override
    def path(self) -> ObjectPath:
        return self._path

    @override
    def begin_file(
        self, copy: Copy, new: NewFile, first: FrameNumber, header: bytes, *, stays_cached: bool = True
    ) -> None:
        assert isinstance(new, BornFile), "`create_objects` made it"
        self._orders.put(_Begin(copy, new, first, header))

    @override
    def append(
        self, copy: Copy, first: FrameNumber, frames: Sequence[FrameBytes], size_bytes: int, *, sync: bool
    ) -> None:
        self._orders.put(_Append(copy, first, frames))

    @override
    def release_file(self, copy: Copy) -> None:
        self._orders.put(_Release(copy))

    @override
    def stop(self) -> None:
        self._orders.put(_Stop())

    @override
    def abandon(self) -> None:
        self._abandoned = True
        self.stop()

    # -- in the path's thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_over:
                for order in self._next_orders():
                    self._serve(order)
                self._end_intervals()
                self._close_done()
        except Exception as error:  # a bug here must not look like a slow store
            _LOGGER.exception("The journal's thread of %s has failed", self._path, extra={"path": self._path.path_id})
            for copy in self._open:
                self._report(CopyFailed(copy, f"the journal's thread has failed: {error!r}"))
        finally:
            self._abandoned = True
            for _ in range(self._senders):
                self._requests.put(None)

    @property
    def _is_over(self) -> bool:
        return self._abandoned or (self._is_stopping and not self._open)

    def _next_orders(self) -> list[_Order]:
        """Wait for orders or the end of an interval. Consecutive appends to a file are merged into one order."""
        due_s = min((file.due_s for file in self._open.values() if file.due_s is not None), default=None)
        orders: list[_Order] = []
        try:
            orders.append(self._orders.get(timeout=None if due_s is None else max(due_s - time.monotonic(), 0)))
            while True:
                order = self._orders.get_nowait()
                before = orders[-1]
                if isinstance(order, _Append) and isinstance(before, _Append) and before.is_continued_by(order):
                    orders[-1] = _Append(order.copy, before.first, (*before.frames, *order.frames))
                else:
                    orders.append(order)
        except queue.Empty:
            return orders

    def _serve(self, order: _Order) -> None:
        match order:
            case _Begin(copy, born, first, header):
                appender = ObjectAppender(first, born.token, self._policy)
                self._open[copy] = _OpenFile(copy, born, appender, header)
            case _Append(copy, first, frames):
                if (file := self._open.get(copy)) is not None:
                    file.frames.update(enumerate(frames, first))
                    self._drive(file, GiveFrames(first, tuple(frame.size_bytes for frame in frames)))
            case _Answered(copy, event, took_s):
                if (file := self._open.get(copy)) is not None:
                    self._answered(file, event, took_s)
            case _Release(copy):
                if (file := self._open.get(copy)) is not None:
                    file.is_released = True
            case _Stop():
                self._is_stopping = True

    def _close_done(self) -> None:
        for copy in [copy for copy, file in self._open.items() if self._is_done(file)]:
            del self._open[copy]

    def _is_done(self, file: _OpenFile) -> bool:
        return file.appender.is_lost or ((file.is_released or self._is_stopping) and file.appender.is_drained)

    def _end_intervals(self) -> None:
        now_s = time.monotonic()
        for file in list(self._open.values()):
            if file.due_s is not None and file.due_s <= now_s:
                file.due_s = None
                self._drive(file, IntervalPassed())

    def _answered(self, file: _OpenFile, event: ObjectAppendEvent, took_s: float) -> None:
        if isinstance(event, PutFailed):
            if self._is_stopping:  # no caller waits for the object
                del self._open[file.copy]
                return
        elif isinstance(event, ObjectConfirmed | ObjectExists):
            self.syncs.observe(took_s)
            file.contents.pop(event.number, None)
        self._drive(file, event)

    def _drive(self, file: _OpenFile, event: ObjectAppendEvent) -> None:
        for effect in file.appender.handle(event):
            match effect:
                case PutObject():
                    if not self._put(file, effect):
                        return
                case AwaitInterval():
                    file.due_s = time.monotonic() + self._policy.interval_s
                case Ok(watermark):
                    self._report(CopyAcked(file.copy, watermark))
                case Lost(reason):
                    self._report(CopyFailed(file.copy, reason, is_fenced=True))

    def _put(self, file: _OpenFile, effect: PutObject) -> bool:
        content = file.contents.get(effect.number)
        if content is None:
            try:
                content = file.contents[effect.number] = self._encoded(file, effect)
            except (OSError, PulsarpyError) as error:  # of a frame that a recovery writes back
                del self._open[file.copy]
                self._report(CopyFailed(file.copy, f"frames of {file.born.file.name} cannot be read: {error}"))
                return False
        if self._senders < self._policy.in_flight:
            self._senders += 1
            threading.Thread(target=self._send, name=f"journal-put-{self._path.path_id}", daemon=True).start()
        self._requests.put(_Request(file.copy, file.born.file, effect.number, content))
        return True

    def _encoded(self, file: _OpenFile, effect: PutObject) -> bytes:
        frames = [file.frames.pop(number).buffers for number in range(effect.first, effect.last + 1)]
        first, last = _header_of(frames[0][0]), _header_of(frames[-1][0])
        header, file.header = file.header, b""
        head = ObjectHead(
            ObjectKind.DATA,
            self._incarnation,
            file.born.file.file,
            effect.number,
            file.born.token,
            ChainPoint(first.number, first.previous_crc),
            last.lac,
            effect.confirmed,
        )
        return head.encode(header, *(buffer for frame in frames for buffer in frame))

    # -- in the threads that send --------------------------------------------------------------------------------------

    def _send(self) -> None:
        while (request := self._requests.get()) is not None:
            if not self._abandoned:
                began_s = time.monotonic()
                event = _outcome(request)
                self._orders.put(_Answered(request.copy, event, time.monotonic() - began_s))


def _outcome(request: _Request) -> ObjectConfirmed | ObjectExists | PutFailed:
    """Create an object; after an error of the store, pause and return that the outcome is unknown."""
    try:
        written = request.file.create(request.number, request.content)
    except StorageError as error:
        _LOGGER.warning("%s is put again: %s", request.file.object_name(request.number), error)
        time.sleep(PAUSE_S)
        return PutFailed(request.number)
    if isinstance(written, Created):
        return ObjectConfirmed(request.number)
    try:
        head, _, _ = parse_head(written.content, request.file.object_name(request.number))
    except (CorruptJournalError, FormatVersionError):
        return ObjectExists(request.number, "")
    return ObjectExists(request.number, head.token)


def _header_of(start: bytes | bytearray | memoryview) -> FrameHeader:
    return parse_header(memoryview(start)[:HEADER_BYTES], "A frame of this process")
