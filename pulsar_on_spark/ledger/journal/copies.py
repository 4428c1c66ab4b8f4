"""Writing journal files: one thread for each storage path, which serves the `CopyAppender` of every file on that path.

A disk that hangs blocks only its own thread. Frames that were queued meanwhile are written and synced together, so a
path that lags behind catches up with fewer, larger writes.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from typing_extensions import override

from pulsar_on_spark.ledger.journal.codec_encode import Payload
from pulsar_on_spark.ledger.journal.copy_protocol import (
    AppendEvent,
    AppendFrames,
    Check,
    Checked,
    CopyAppender,
    IoFailed,
    Lost,
    Ok,
    Sync,
    Synced,
    Write,
    Written,
)
from pulsar_on_spark.ledger.journal.files import create_journal_file, file_directory, open_name
from pulsar_on_spark.ledger.journal.log import Copy, FrameNumber
from pulsar_on_spark.ledger.journal.messages import CopyAcked, CopyFailed
from pulsar_on_spark.ledger.journal.page_cache import PageCache
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.model.ids import IncarnationId, JournalFileId
from pulsar_on_spark.model.latencies import Latencies
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.storage.local_path import LocalPath
from pulsar_on_spark.storage.storage_path import StoragePath

WRITE_BYTES = 8 * 1024 * 1024
"""Approximate limit of one write. It bounds the memory for frames that are read just before they are written."""
ROUND_BYTES = 8 * 1024 * 1024
"""Approximate limit of one round of write and sync; small enough that a busy slow disk still shows progress."""
_MAX_WRITTEN = 1024
"""Limit of one write's buffers (IOV_MAX on Linux)."""
_LOGGER = logging.getLogger(__name__)


class FrameBytes(Protocol):
    """A frame that can be appended: an `EncodedFrame`, or a frame whose bytes are read just before they are written."""

    @property
    def buffers(self) -> Sequence[Payload]:
        """The frame's bytes, in fewer buffers than the limit of one write; the first one has the whole header."""

    @property
    def size_bytes(self) -> int:
        """The frame's size in bytes."""


class NewFile(Protocol):
    """A created journal file that no path's thread has taken over yet."""

    def close(self) -> None:
        """Close a file that will not be written (raises `OSError`)."""


class PathWriter(Protocol):
    """The files that this process writes on one storage path. The methods never block; only one thread may call them.

    Attributes:
        syncs: Durations until a write was durable.
    """

    syncs: Latencies

    @property
    def path(self) -> StoragePath:
        """The storage path of the files."""

    def begin_file(
        self, copy: Copy, new: NewFile, first: FrameNumber, header: bytes, *, stays_cached: bool = True
    ) -> None:
        """Take over a created file.

        Args:
            copy: The file.
            new: The created file.
            first: The number of its first frame.
            header: The file's encoded header, which is written before this frame.
            stays_cached: True if the newest bytes may stay in the page cache, because readers read this copy.
        """

    def append(
        self, copy: Copy, first: FrameNumber, frames: Sequence[FrameBytes], size_bytes: int, *, sync: bool
    ) -> None:
        """Append frames.

        Args:
            copy: The file.
            first: The number of the first frame.
            frames: The frames, in order.
            size_bytes: The approximate total size of the frames.
            sync: False if the frames may wait for a sync that other frames need.
        """

    def release_file(self, copy: Copy) -> None:
        """Close the file after the writes that are queued for it; nothing is reported about the file afterwards."""

    def stop(self) -> None:
        """Let the thread end after its queued work. Return at once, because the disk or the store may hang."""

    def abandon(self) -> None:
        """Let the thread end without its queued writes, because the path was given up. Return at once."""


@dataclass(frozen=True, slots=True)
class OpenFile(NewFile):
    """A new file on a disk.

    Attributes:
        fd: Its descriptor.
        files: The file operations of the operating system.
    """

    fd: int
    files: FileOps

    @override
    def close(self) -> None:
        """Close the descriptor."""
        self.files.close(self.fd)


@dataclass(frozen=True, slots=True)
class _Begin:
    copy: Copy
    fd: int
    first: FrameNumber
    header: bytes
    stays_cached: bool


@dataclass(frozen=True, slots=True)
class _Append:
    copy: Copy
    first: FrameNumber
    frames: Sequence[FrameBytes]
    size_bytes: int
    sync: bool


@dataclass(frozen=True, slots=True)
class _Release:
    copy: Copy


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


_Order: TypeAlias = _Begin | _Append | _Release | _Stop


@dataclass(slots=True)
class _OpenFile:
    """A file that is being written.

    `identity` is its device and inode, None until it is first checked. `wanted` is the next event for `appender`,
    merged from queued appends; None if there are none.
    """

    copy: Copy
    fd: int
    name: Path
    appender: CopyAppender
    header: bytes
    page_cache: PageCache
    unsynced_bytes: int = 0
    identity: tuple[int, int] | None = None
    wanted: AppendFrames | None = None
    frames: dict[FrameNumber, FrameBytes] = field(default_factory=dict)
    error: str = ""


def create_copy(path: LocalPath, incarnation: IncarnationId, copy: Copy, files: FileOps = OS_FILES) -> OpenFile:
    """Check the path's identity, and create the file.

    Raises:
        StoragePathError: the directory does not belong to this path.
        OSError: the file cannot be made.
    """
    path.check(files)
    return OpenFile(create_journal_file(path.directory, incarnation, JournalFileId(copy.file), files), files)


class PathThread(PathWriter):
    """The files that this process writes on a storage path in a directory.

    Args:
        path: The storage path of the files.
        incarnation: The log's incarnation.
        report: Called in the path's thread, once for each round of writes of a file.
        files: The file operations of the operating system.

    Attributes:
        path: The storage path of the files.
        syncs: Durations of `fdatasync`.
    """

    def __init__(
        self,
        path: LocalPath,
        incarnation: IncarnationId,
        report: Callable[[CopyAcked | CopyFailed], None],
        files: FileOps = OS_FILES,
    ) -> None:
        self._path = path
        self._incarnation = incarnation
        self._report = report
        self._files = files
        self.syncs = Latencies()
        self._orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
        self._read_files = PageCache(files)
        self._unread_files = PageCache(files, kept_bytes=0)
        self._open: dict[Copy, _OpenFile] = {}
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name=f"journal-path-{path.path_id}", daemon=True)
        self._thread.start()

    @property
    @override
    def path(self) -> LocalPath:
        return self._path

    @override
    def begin_file(
        self, copy: Copy, new: NewFile, first: FrameNumber, header: bytes, *, stays_cached: bool = True
    ) -> None:
        assert isinstance(new, OpenFile), "`create_copy` made it"
        self._orders.put(_Begin(copy, new.fd, first, header, stays_cached))

    @override
    def append(
        self, copy: Copy, first: FrameNumber, frames: Sequence[FrameBytes], size_bytes: int, *, sync: bool
    ) -> None:
        self._orders.put(_Append(copy, first, frames, size_bytes, sync))

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

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._serve(self._waiting()):
                pass
        except Exception as error:  # a bug here must not look like a slow disk
            _LOGGER.exception("The journal's thread of %s has failed", self._path, extra={"path": self._path.path_id})
            for file in self._open.values():
                self._report(CopyFailed(file.copy, f"the journal's thread has failed: {error!r}"))
            self._abandoned = True
            while self._serve(self._waiting()):
                pass
        finally:
            for file in self._open.values():
                self._close(file)

    def _waiting(self) -> list[_Order]:
        """Wait for orders, and return those that are queued, up to the bytes of one round."""
        orders: list[_Order] = []
        size_bytes = 0
        while not orders or (size_bytes < ROUND_BYTES and not self._orders.empty()):
            order = self._orders.get()
            orders.append(order)
            if isinstance(order, _Append):
                size_bytes += order.size_bytes
        return orders

    def _serve(self, orders: Sequence[_Order]) -> bool:
        """Execute orders; all appends to one file become one write. Return True, or False if the thread must end.

        An abandoned thread still handles its orders until `_Stop`, because it must close the files of `_Begin`.
        """
        for order in orders:
            match order:
                case _Append():
                    self._gather(order)
                case _Begin():
                    self._begin(order)
                case _Release(copy):
                    self._flush()
                    file = self._open.pop(copy, None)
                    if file is not None:
                        self._close(file)
                case _Stop():
                    self._flush()
                    return False
        self._flush()
        return True

    def _begin(self, order: _Begin) -> None:
        name = open_name(file_directory(self._path.directory, self._incarnation, JournalFileId(order.copy.file)))
        page_cache = self._read_files if order.stays_cached else self._unread_files
        file = _OpenFile(order.copy, order.fd, name, CopyAppender(order.first), order.header, page_cache)
        self._open[order.copy] = file

    def _gather(self, order: _Append) -> None:
        file = self._open.get(order.copy)
        if file is None or file.appender.is_lost or self._abandoned:
            return
        last = order.first + len(order.frames) - 1
        file.frames.update(enumerate(order.frames, order.first))
        if file.wanted is None:
            file.wanted = AppendFrames(order.first, last, order.sync)
        else:
            assert order.first == file.wanted.last + 1, "frames are given in order"
            file.wanted = AppendFrames(file.wanted.first, last, file.wanted.sync or order.sync)

    def _flush(self) -> None:
        for file in self._open.values():
            if file.wanted is not None and not self._abandoned:
                event, file.wanted = file.wanted, None
                self._drive(file, event)

    def _drive(self, file: _OpenFile, event: AppendEvent) -> None:
        effects = deque(file.appender.handle(event))
        while effects:
            match effects.popleft():
                case Ok(watermark):
                    self._report(CopyAcked(file.copy, watermark))
                    continue
                case Lost(reason):
                    file.frames.clear()
                    self._report(CopyFailed(file.copy, file.error or reason, is_fenced=not file.error))
                    return
                case Write(first, last):
                    outcome = self._write(file, first, last)
                case Sync():
                    outcome = self._sync(file)
                case Check():
                    outcome = self._check(file)
            effects.extend(file.appender.handle(outcome))

    def _write(self, file: _OpenFile, first: FrameNumber, last: FrameNumber) -> AppendEvent:
        buffers: list[Payload] = [file.header] if file.header else []
        size_bytes = 0
        try:
            for number in range(first, last + 1):
                frame = file.frames.pop(number).buffers
                if buffers and (len(buffers) + len(frame) > _MAX_WRITTEN or size_bytes >= WRITE_BYTES):
                    self._append(file, buffers)
                    buffers, size_bytes = [], 0
                buffers += frame
                size_bytes += sum(map(len, frame))
            self._append(file, buffers)
        except (OSError, PulsarpyError) as error:
            file.error = f"{file.name} cannot be written: {error}"
            return IoFailed()
        file.header = b""
        return Written()

    def _append(self, file: _OpenFile, buffers: Sequence[Payload]) -> None:
        self._files.write_buffers(file.fd, buffers)
        file.unsynced_bytes += sum(map(len, buffers))

    def _sync(self, file: _OpenFile) -> AppendEvent:
        try:
            with self.syncs.timed():
                self._files.fdatasync(file.fd)
            file.page_cache.wrote(file.name.parent, file.unsynced_bytes)
            file.unsynced_bytes = 0
        except OSError as error:
            file.error = f"{file.name} cannot be synced: {error}"
            return IoFailed()
        return Synced()

    def _check(self, file: _OpenFile) -> AppendEvent:
        """Check that `frames.open` is still the file that is being written.

        An error counts as "no", because frames need positive proof.
        """
        try:
            if file.identity is None:  # it cannot change while the file is open
                file.identity = self._files.identity(file.fd)
            return Checked(self._files.identity(file.name) == file.identity)
        except OSError:
            return Checked(is_my_file=False)

    def _close(self, file: _OpenFile) -> None:
        with suppress(OSError):
            self._files.close(file.fd)
