"""Reading the frames of one log in order from any good copy: the IO for the decisions of `LogWalk`."""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from typing import Generic, TypeVar

from pulsar_on_spark.ledger.journal.codec_scan import BadFrame, FrameScanner, ScanEnd
from pulsar_on_spark.ledger.journal.files import read_file_header
from pulsar_on_spark.ledger.journal.frame_header import ChainPoint, ScanPosition
from pulsar_on_spark.ledger.journal.frames import Frame, FrameHead
from pulsar_on_spark.ledger.journal.journal_paths import file_name, open_bytes
from pulsar_on_spark.ledger.journal.log import Copy, FrameNumber, LogRecord, spread_of
from pulsar_on_spark.ledger.journal.page_cache import STEP_BYTES
from pulsar_on_spark.ledger.journal.places import JournalPath, JournalPathTable
from pulsar_on_spark.ledger.journal.tail import LogWalk
from pulsar_on_spark.model.errors import CorruptJournalError, InvalidArgumentError, StorageError
from pulsar_on_spark.model.ids import IncarnationId, JournalFileId
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.storage.loss import CopyVerdict, unknown_path, verdict_on

log = logging.getLogger(__name__)

F = TypeVar("F", bound=FrameHead)
_KEPT_PROBLEMS = 8


class OpenJournalFile:
    """A journal file open for reading, on a path whose identity was checked."""

    def __init__(
        self, path: JournalPath, incarnation: IncarnationId, file: JournalFileId, files: FileOps = OS_FILES
    ) -> None:
        """Open the file.

        Raises:
            StoragePathError: the path cannot be reached, or its directory belongs to another path.
            FileNotFoundError: the file is missing although the path is intact.
            OSError: it cannot be opened.
        """
        self.source = open_bytes(path, incarnation, file, files)
        self.name = file_name(path, incarnation, file)
        self._expected = (incarnation, file)
        self._start: ScanPosition | None = None
        self._sought: ScanPosition | None = None
        self._forgotten = 0

    def start(self) -> ScanPosition:
        """Read the position of the file's first frame.

        Raises:
            CorruptJournalError: the file has no header yet, a damaged header, or the header of another file.
            FormatVersionError: a newer version wrote the header.
            StorageError, OSError: the file cannot be read.
        """
        if self._start is None:
            header, start = read_file_header(self.source, self.name)
            if (header.incarnation, header.file) != self._expected:
                raise CorruptJournalError(f"{self.name} has the header of another file ({header}): read another copy.")
            self._start = start
        return self._start

    def scanner_at(
        self, number: FrameNumber, hint: ScanPosition | None = None, *, heads_only: bool = True
    ) -> FrameScanner | None:
        """Return a scanner whose next frame is `number`; None if the file begins after it or ends before it.

        Args:
            number: The frame's number.
            hint: The position of this frame, or of an earlier one, in the file.
            heads_only: True to read heads only; contents are then not verified.

        Raises:
            StorageError, OSError: the file is damaged, or cannot be read.
        """
        # A poll of a growing file resumes where the last one stopped instead of at the file's start.
        positions = [
            position
            for position in (hint, self._sought)
            if position is not None and position.chain.next_number <= number
        ]
        if not positions and (nearer := self.source.position_before(number)) is not None:
            positions = [nearer]
        start = max(positions, key=lambda position: position.offset) if positions else self.start()
        if start.chain.next_number > number:
            return None
        scanner = FrameScanner(self.source, start, self.name, checked_before=heads_only)
        end = scanner.seek(number)
        self._sought = scanner.position
        return scanner if end is None else None

    def size_bytes(self) -> int:
        """Return the file's current length in bytes."""
        return self.source.size()

    def drop_cached_bytes(self, end: int) -> None:
        """Release the bytes up to `end`, which are not read again, from the page cache, in large steps."""
        if end - self._forgotten >= STEP_BYTES:
            self._forgotten = end
            with suppress(OSError):  # the call is only advice to the kernel
                self.source.drop_cached_bytes(end)

    def close(self) -> None:
        """Close the file."""
        self.source.close()


def position_of(head: FrameHead) -> ScanPosition:
    """Return the frame's position in its file."""
    return ScanPosition(head.offset, ChainPoint(head.header.number, head.header.previous_crc))


class LogReader(Generic[F]):
    """Reader of the frames of a growing log; `next` returns None while there is no next frame. Not thread-safe.

    Attributes:
        walk: The next frame, and the frames that are proved to be acknowledged.
        problems: The reasons why copies could not be used, newest last; for errors.
    """

    def __init__(
        self,
        incarnation: IncarnationId,
        paths: JournalPathTable,
        frames: type[F],
        begin: FrameNumber = 0,
        files: FileOps = OS_FILES,
    ) -> None:
        """Create a reader with no open file.

        Args:
            incarnation: The log's incarnation.
            paths: Returns the root's storage paths; called for each file that is opened.
            frames: `Frame` to verify every byte; `FrameHead` to verify headers and directories, and read no contents.
            begin: The first frame.
            files: The file operations of the operating system.
        """
        self.incarnation = incarnation
        self.walk = LogWalk(begin, spread_of(incarnation))
        self._paths = paths
        self.problems: list[str] = []
        self._frames = frames
        self._heads_only = frames is not Frame
        self._files = files
        self._open: dict[Copy, OpenJournalFile] = {}
        self._unreachable: dict[Copy, str] = {}
        self._scanner: FrameScanner | None = None
        self._source: tuple[Copy, OpenJournalFile] | None = None
        self._pass_ends: dict[Copy, int] | None = None
        self._ahead_bytes = 0

    @property
    def offset(self) -> int:
        """The offset in bytes of the next frame in the copy in use; 0 if no copy is in use."""
        return 0 if self._scanner is None or self.walk.copy is None else self._scanner.position.offset

    def main_read(self, record: LogRecord, begin: FrameNumber) -> None:
        """Apply the main table's current record, and close unneeded files (arguments as of `LogWalk.main_read`)."""
        self.walk.main_read(record, begin)
        self._close_passed()

    def open_files(self) -> None:
        """Open the remaining files; afterwards, `LogWalk.is_ready` is False if the main table must be read again."""
        while (copy := self.walk.to_open()) is not None:
            self._file(copy)

    def begin_pass(self) -> None:
        """Begin a pass, which reads each file only up to the length that it had when the pass first used it.

        Without passes, a reader that is no faster than the writer would follow it and never find an end.
        """
        self._pass_ends = {}

    def read_ahead(self, size_bytes: int) -> None:
        """Read the next bytes of the copy in use, and of each copy that is used later, up to `size_bytes` at once.

        The frames in them share one window. Errors are left to `next`, because the next frame may be readable.
        """
        self._ahead_bytes = size_bytes
        if self.walk.copy is not None:
            self._read_ahead()

    def next(self, *, every: bool = False) -> F | None:
        """Read the next frame; None if no copy has it.

        If the frame need not exist yet, only the copy in use is read. During a pass, frames that are appended to a copy
        after its first read are not seen.

        Args:
            every: True to try each copy, even if the frame need not exist.

        Raises:
            FormatVersionError: a newer version wrote the frame.
        """
        walk, found = self.walk, None
        if self._source is not None and walk.copy != self._source[0]:
            self._close_passed()
        if walk.copy is not None:
            found = self._read(walk.copy)
            if isinstance(found, self._frames):
                return self._taken(found)
        # A bad frame may be a damaged good one: other copies may have it, and the frames after it.
        for copy in walk.others(every=every or isinstance(found, BadFrame)):
            if self._enter(copy):
                found = self._read(copy)
                if isinstance(found, self._frames):
                    return self._taken(found)
        walk.found_none()
        return None

    @property
    def source(self) -> tuple[Copy, OpenJournalFile]:
        """The copy that the last frame was read from, and its open file; valid until the next call of `next`."""
        assert self._source is not None, "a frame was read"
        return self._source

    def unreachable(self) -> list[str]:
        """Describe the copies that may have the next frame but cannot be reached.

        A missing frame does not count as lost while such a copy exists (`storage/loss.py`).
        """
        copies = [copy for copy in (self.walk.copy, *self.walk.others(every=True)) if copy is not None]
        return [f"[path {copy.path}] {self._unreachable[copy]}" for copy in copies if copy in self._unreachable]

    def rewind(self, frame: F) -> None:
        """Go back to a frame that was read, so that `next` returns it again."""
        copy = self.walk.copy
        self.walk.rewind(frame.header.number)
        file = self._open.get(copy) if copy is not None and copy == self.walk.copy else None
        if file is not None and file.name == frame.file and self._scanner is not None:
            self._scanner.rewind(position_of(frame))
        else:
            self.close()

    def close(self) -> None:
        """Close all files; further reading opens them again."""
        for file in self._open.values():
            file.close()
        self._open.clear()
        self._scanner = self._source = None
        self.walk.all_closed()

    # -- copies --------------------------------------------------------------------------------------------------------

    def _taken(self, found: F) -> F:
        walk, header = self.walk, found.header
        assert walk.copy is not None, "it was read from a copy"
        self._source = walk.copy, self._open[walk.copy]
        walk.took(header.number, header.lac)
        return found

    def _read(self, copy: Copy) -> FrameHead | ScanEnd | None:
        """Read the next frame of the copy in use; None if the pass ends before it, or the copy cannot be read.

        If the copy has no such frame, return the reason.
        """
        scanner = self._scanner
        assert scanner is not None, "the copy was entered"
        try:
            # A frame that is acknowledged must be found in one of the copies, however long this one was.
            if scanner.position.offset >= self._pass_end(copy) and not self.walk.is_due:
                return None
            found = scanner.next_head() if self._heads_only else scanner.next_frame()
        except (StorageError, OSError) as error:
            self._note(copy, error)
            self._open.pop(copy).close()  # a file that fails is dead: the path may have been mounted again
            self.walk.on_copy_lost(copy)
            return None
        if isinstance(found, BadFrame):
            self._note(copy, found.reason)
        return found

    def _pass_end(self, copy: Copy) -> float:
        """Return the offset at which the pass ends in an open copy; infinite without passes."""
        if self._pass_ends is None:
            return math.inf
        if copy not in self._pass_ends:
            self._pass_ends[copy] = self._open[copy].size_bytes()
        return self._pass_ends[copy]

    def _enter(self, copy: Copy) -> bool:
        """Use this copy from the next frame on. Return True, or False if the copy cannot be read or lacks the frame."""
        file = self._file(copy)
        if file is None:
            return False
        try:
            # Earlier frames are skipped by their heads alone: one may be damaged here and was read from another copy.
            scanner = file.scanner_at(self.walk.next)
            if scanner is not None and not self._heads_only:
                scanner = file.scanner_at(self.walk.next, scanner.position, heads_only=False)
            first = file.start().chain.next_number
        except (StorageError, OSError) as error:
            self._note(copy, error)
            return False
        if scanner is None:
            self._note(copy, f"frame {self.walk.next} is not in it")
            return False
        self._scanner = scanner
        self._unreachable.pop(copy, None)
        self.walk.use(copy, first)
        self._read_ahead()
        return True

    def _read_ahead(self) -> None:
        if self._scanner is not None and self._ahead_bytes:
            with suppress(StorageError, OSError):  # bytes of later frames, perhaps
                self._scanner.read_ahead(self._ahead_bytes)

    def _file(self, copy: Copy) -> OpenJournalFile | None:
        """Return the open file of a copy, which is opened at the first call; None if it could not be opened."""
        if not self.walk.has_tried(copy):
            path = self._paths().get(copy.path)
            try:
                if path is None:
                    raise unknown_path(copy.path)
                self._open[copy] = OpenJournalFile(path, self.incarnation, JournalFileId(copy.file), self._files)
                self._unreachable.pop(copy, None)
            except (StorageError, OSError, InvalidArgumentError) as error:
                self._note(copy, error)
            self.walk.opened(copy, copy in self._open)
        return self._open.get(copy)

    def _close_passed(self) -> None:
        self._source = None
        for copy in self.walk.passed_files():
            self._open.pop(copy).close()

    def _note(self, copy: Copy, problem: Exception | str) -> None:
        log.debug(
            "Copy %s of the journal of %s is not used: %s",
            copy,
            self.incarnation,
            problem,
            extra={"incarnation": self.incarnation, "path": copy.path},
        )
        if (
            isinstance(problem, Exception)
            and verdict_on(problem, self._paths().get(copy.path)) is CopyVerdict.UNREACHABLE
        ):
            self._unreachable[copy] = str(problem)
        else:
            self._unreachable.pop(copy, None)
        self.problems.append(f"path {copy.path}: {str(problem).rstrip('.')}")
        del self.problems[:-_KEPT_PROBLEMS]
