"""Reading one copy of a journal file for a recovery: the shell around `CopyReader`, in the thread of its path."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pulsar_on_spark.ledger.journal.codec_encode import Payload
from pulsar_on_spark.ledger.journal.codec_scan import BadFrame, CleanEnd, FrameScanner, TornEnd
from pulsar_on_spark.ledger.journal.codec_scan import ScanEnd as FileEnd
from pulsar_on_spark.ledger.journal.copy_protocol import (
    CheckIdentity,
    CopyReader,
    DirectorySynced,
    FenceAnswer,
    FenceFirst,
    FileRenamed,
    IdentityChecked,
    ReadAnswer,
    ReadEffect,
    ReadEvent,
    ReadFrames,
    Rename,
    Renamed,
    Scan,
    ScanEnd,
    Scanned,
    SyncDirectory,
)
from pulsar_on_spark.ledger.journal.files import (
    JournalFileHeader,
    fenced_name,
    file_directory,
    open_journal_file,
    open_name,
    read_file_header,
)
from pulsar_on_spark.ledger.journal.frame_header import ChainPoint, ScanPosition
from pulsar_on_spark.ledger.journal.frames import FrameHead
from pulsar_on_spark.ledger.journal.journal_bytes import FileBytes
from pulsar_on_spark.ledger.journal.log import NO_FRAME, Copy, FrameFacts, FrameNumber
from pulsar_on_spark.model.errors import CorruptJournalError, FormatVersionError, PulsarpyError, StoragePathError
from pulsar_on_spark.model.ids import IncarnationId, JournalFileId
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.storage.local_disk import require_local
from pulsar_on_spark.storage.local_path import LocalPath

READ_BYTES = 8 * 1024 * 1024
"""Approximate limit of the bytes of the frames that one answer covers."""
_MARK_BYTES = 4 * 1024 * 1024
"""Distance in bytes of the positions that a scan remembers, so that later scans need not begin at the file's start."""


@dataclass(frozen=True, slots=True)
class PlacedFrame:
    """A frame at a known position in a file. Its bytes are read, and verified again, on each access. Thread-safe."""

    file: CopyFile
    position: ScanPosition
    size_bytes: int

    @property
    def buffers(self) -> Sequence[Payload]:
        """The frame's bytes.

        Raises:
            CorruptJournalError: the bytes have changed since they were checked.
            StoragePathError: the file cannot be read, or was closed because the recovery is over.
        """
        return (self.file.frame_at(self.position, self.size_bytes),)


class CopyFile:
    """A copy that a recovery fences and reads. One thread uses and closes it; its `PlacedFrame`s serve any thread.

    Args:
        path: The storage path.
        incarnation: The log's incarnation.
        copy: The file.
        progress: Called with the number of bytes scanned since the last call.
        files: The file operations of the operating system.
    """

    def __init__(
        self,
        path: LocalPath,
        incarnation: IncarnationId,
        copy: Copy,
        progress: Callable[[int], None],
        files: FileOps = OS_FILES,
    ) -> None:
        self._path = path
        self._incarnation = incarnation
        self._copy = copy
        self._directory = file_directory(path.directory, incarnation, JournalFileId(copy.file))
        self._name = f"Journal file {self._directory}"
        self._progress = progress
        self._files = files
        self._core = CopyReader()
        self._source: FileBytes | None = None
        self._closing = threading.Lock()
        self._marks: list[ScanPosition] = []
        self.placed: dict[FrameNumber, PlacedFrame] = {}
        self.problem = ""
        """The reason why the last request got no complete answer; a text for operators."""

    def answer(self, request: FenceFirst | ReadFrames) -> FenceAnswer | ReadAnswer:
        """Serve a request and return its answer."""
        event: ReadEvent = request
        while True:
            (effect,) = self._core.handle(event)
            if isinstance(effect, FenceAnswer | ReadAnswer):
                return effect
            event = self._serve(effect)

    def close(self) -> None:
        """Close the descriptor. Frames in `placed` cannot be read afterwards."""
        with self._closing:
            source, self._source = self._source, None
        if source is not None:
            with suppress(OSError):
                source.close()

    def frame_at(self, position: ScanPosition, size_bytes: int) -> memoryview:
        """Read the frame of this size at a position, and verify it again (raises as `PlacedFrame.buffers`).

        The lock keeps the descriptor open meanwhile, because a closed descriptor's number may be given to another file.
        """
        with self._closing:
            if self._source is None:
                raise StoragePathError(f"{self._name} is closed: the recovery that read it is over.")
            found = FrameScanner(self._source, position, self._name, window_bytes=size_bytes).next_frame()
        if isinstance(found, FrameHead):
            return found.data
        raise CorruptJournalError(f"{self._name} has changed at byte {position.offset}: check its disk.")

    def _serve(self, effect: ReadEffect) -> ReadEvent:
        match effect:
            case CheckIdentity():
                return IdentityChecked(self._is_path())
            case Rename():
                return FileRenamed(self._renamed())
            case SyncDirectory():
                return DirectorySynced(self._is_fence_durable())
            case Scan(start, limit):
                try:
                    return self._scan(start, limit)
                except (OSError, PulsarpyError) as error:
                    return Scanned(None, (), self._unreadable(error))
            case _:
                raise AssertionError(f"no branch serves {effect}")

    def _is_path(self) -> bool:
        try:
            require_local(self._path.directory)
            self._path.check(self._files)
        except StoragePathError as error:
            self.problem = str(error)
            return False
        return True

    def _renamed(self) -> Renamed:
        try:
            self._files.rename(open_name(self._directory), fenced_name(self._directory))
        except FileNotFoundError:
            try:
                self._files.identity(fenced_name(self._directory))
            except FileNotFoundError:
                self.problem = f"{self._name} is not there"
                return Renamed.MISSING
            except OSError as error:
                self.problem = f"{self._name} cannot be fenced: {error}"
                return Renamed.FAILED
            return Renamed.ALREADY
        except OSError as error:
            self.problem = f"{self._name} cannot be fenced: {error}"
            return Renamed.FAILED
        return Renamed.DONE

    def _is_fence_durable(self) -> bool:
        try:
            self._files.fsync_directory(self._directory)
            self._files.identity(fenced_name(self._directory))
        except OSError as error:
            self.problem = f"{self._name} cannot be fenced durably: {error}"
            return False
        return True

    # -- scanning ------------------------------------------------------------------------------------------------------

    def _scan(self, start: FrameNumber, limit: int) -> Scanned:
        if self._source is None:
            self._source = FileBytes(open_journal_file(self._directory, self._files), self._files)
        if not self._marks:
            begun = self._first_position()
            if isinstance(begun, Scanned):
                return begun
            self._marks.append(begun)
        if limit == 0:
            return self._scan_heads()
        return self._scan_frames(start, limit)

    def _first_position(self) -> ScanPosition | Scanned:
        """Return the position after the file's header; for a file without an intact header, the result of the scan."""
        assert self._source is not None
        if self._source.size() == 0:
            return Scanned(None, (), ScanEnd.CLEAN)
        try:
            header, position = read_file_header(self._source, self._name)
        except FormatVersionError:
            raise
        except CorruptJournalError as error:
            # The header was cut short before its first sync, or damaged: the frames after it decide.
            self.problem = str(error)
            nowhere = ScanPosition(0, ChainPoint(0, 0))
            found = FrameScanner(self._source, nowhere, self._name).next_frame()
            is_torn = isinstance(found, TornEnd) or (isinstance(found, BadFrame) and found.is_last)
            return Scanned(None, (), ScanEnd.TORN if is_torn else ScanEnd.DAMAGED)
        wanted = JournalFileHeader(self._incarnation, JournalFileId(self._copy.file), header.first)
        if header != wanted:
            self.problem = f"{self._name} is file {header.file} of {header.incarnation}"
            return Scanned(None, (), ScanEnd.DAMAGED)
        return position

    @property
    def _first(self) -> FrameNumber:
        return self._marks[0].chain.next_number

    def _scan_heads(self) -> Scanned:
        """Scan all headers for the highest LAC, without checking contents, which are checked when frames are read."""
        assert self._source is not None
        scanner = FrameScanner(self._source, self._marks[0], self._name, checked_before=True)
        lac, reported_to = NO_FRAME, self._marks[0].offset
        while True:
            before = scanner.position
            try:
                lac = max(lac, scanner.follow())
                found = scanner.next_head() if scanner.position == before else None
            except (OSError, PulsarpyError) as error:
                end = self._unreadable(error)
                break
            if isinstance(found, FrameHead):
                lac = max(lac, found.header.lac)  # the file has grown meanwhile
            elif found is not None:
                end = self._end(found)
                break
            if scanner.position.offset - reported_to >= _MARK_BYTES:
                self._marks.append(scanner.position)
                self._progress(scanner.position.offset - reported_to)
                reported_to = scanner.position.offset
        self._progress(scanner.position.offset - reported_to)
        return Scanned(self._first, (), end, lac)

    def _scan_frames(self, start: FrameNumber, limit: int) -> Scanned:
        if start < self._first:
            return Scanned(self._first, (), ScanEnd.CLEAN)
        assert self._source is not None
        mark = max((m for m in self._marks if m.chain.next_number <= start), key=lambda m: m.offset)
        skipper = FrameScanner(self._source, mark, self._name, checked_before=True)
        ended = skipper.seek(start)
        if ended is not None:
            return Scanned(self._first, (), self._end(ended))
        scanner = FrameScanner(self._source, skipper.position, self._name)
        facts: list[FrameFacts] = []
        first_offset = scanner.position.offset
        while len(facts) < limit and scanner.position.offset - first_offset < READ_BYTES:
            position = scanner.position
            try:
                found = scanner.next_frame()
            except (OSError, PulsarpyError) as error:
                end = self._unreadable(error)
                break
            if not isinstance(found, FrameHead):
                end = self._end(found)
                break
            header = found.header
            facts.append(FrameFacts(header.number, header.kind, header.lac))
            self.placed[header.number] = PlacedFrame(self, position, header.size_bytes)
        else:
            self._marks.append(scanner.position)
            end = ScanEnd.LIMIT
        self._progress(scanner.position.offset - first_offset)
        return Scanned(self._first, tuple(facts), end)

    def _unreadable(self, error: Exception) -> ScanEnd:
        """Return the end of a scan that met an error: the frames before it count, and nothing is known of others."""
        self.problem = str(error)
        return ScanEnd.DAMAGED

    def _end(self, found: FileEnd) -> ScanEnd:
        match found:
            case CleanEnd():
                return ScanEnd.CLEAN
            case TornEnd(_, reason):
                self.problem = reason
                return ScanEnd.TORN
            case BadFrame(_, reason, is_last, is_written):
                self.problem = reason
                return ScanEnd.TORN if is_last and not is_written else ScanEnd.DAMAGED
