"""Reader of the frames of one incarnation's log, in order, for sealers and trimmers. It verifies every byte.

If a copy of a file has a damaged frame or lacks an acknowledged one, another copy is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeAlias

from pulsar_on_spark.ledger.journal.frames import Frame
from pulsar_on_spark.ledger.journal.log import Copy, FrameNumber, LogRecord
from pulsar_on_spark.ledger.journal.log_reader import LogReader, OpenJournalFile
from pulsar_on_spark.ledger.journal.places import JournalPath, JournalPathTable
from pulsar_on_spark.ledger.journal.sealing import ended_spans
from pulsar_on_spark.model.errors import JournalUndecidedError, StorageError
from pulsar_on_spark.model.ids import IncarnationId, JournalFileId, PathId
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.topic.managed_ledger.sealing.seals import SealedLog

FrameRange: TypeAlias = tuple[FrameNumber, FrameNumber]
"""Frames [begin, end)."""


@dataclass(frozen=True, slots=True)
class JournalLag:
    """The size of the unread part of a log.

    Attributes:
        bytes: Size of the unread part of the log's files, counting one copy of each.
        unknown_files: Number of further unread files whose size is unknown, because no copy can be opened.
    """

    bytes: int = 0
    unknown_files: int = 0


class JournalFrames:
    """Reader of a log's frames from one frame on. If the next frame does not exist yet, a later call may return it.

    Args:
        incarnation: The log's incarnation.
        paths: Returns the root's storage paths.
        begin: The first frame.
        files: The file operations of the operating system.
        given_up: Ranges, in order, of frames without a good copy, which an operator has given up.
    """

    def __init__(
        self,
        incarnation: IncarnationId,
        paths: JournalPathTable,
        begin: FrameNumber,
        files: FileOps = OS_FILES,
        given_up: Sequence[FrameRange] = (),
    ) -> None:
        self._given_up = tuple(given_up)
        self._incarnation = incarnation
        self._paths = paths
        self._files = files
        self._reader = LogReader(incarnation, paths, Frame, begin, files)
        self._record: LogRecord | None = None
        self._failing: set[PathId] = set()
        """Paths on which a file's size could not be read. They are tried last: an object store may fail slowly."""

    @property
    def next(self) -> FrameNumber:
        """The number of the frame that `read` returns next."""
        return self._reader.walk.next

    @property
    def lac(self) -> FrameNumber:
        """The highest last-add-confirmed (LAC), as a frame number, in the frames that were read."""
        return self._reader.walk.lac

    def begin_pass(self) -> None:
        """Begin a pass, which reads each file up to its length when first used (see `LogReader.begin_pass`)."""
        self._reader.begin_pass()

    def read_ahead(self, size_bytes: int) -> None:
        """Read the next bytes, up to `size_bytes`, at once: the frames in them share one window."""
        self._reader.read_ahead(size_bytes)

    def read(self, record: LogRecord) -> Frame | None:
        """Return the next frame; None if it does not exist yet, or if the record lacks its fragment's first frame.

        Raises:
            JournalUndecidedError: the frame is acknowledged, but cannot be read from any copy.
            FormatVersionError: the frame has a newer format version than this reader knows.
        """
        reader = self._reader
        self._see(record)
        frame = reader.next()
        if frame is not None:
            _, file = reader.source
            file.drop_cached_bytes(reader.offset)  # its entries are sealed next, and then read from segments
        if frame is None and reader.walk.is_stuck:
            causes = "; ".join(reader.problems[-3:]) or "no file that the record names has it"
            self.close()
            raise JournalUndecidedError(
                f"Frame {self.next} of incarnation {self._incarnation} is acknowledged, but no copy of it can be read "
                f"now ({causes}): make its storage paths reachable again, or give the frame up with `pulsarpy recover`."
            )
        return frame

    @property
    def given_up(self) -> FrameRange | None:
        """The given-up range that contains the next frame; None if the next frame is not given up."""
        return next(((begin, end) for begin, end in self._given_up if begin <= self.next < end), None)

    def pass_given_up(self) -> None:
        """Skip the given-up range of frames that contains the next frame, if there is one."""
        while (lost := self.given_up) is not None:
            self.pass_over(lost[1])

    def pass_over(self, end: FrameNumber) -> None:
        """Make `end` the next frame, skipping the frames before it."""
        self._reader.close()
        self._reader.walk.rewind(end)

    def rewind(self, frame: Frame) -> None:
        """Go back to a frame that was read: `read` returns it again."""
        self._reader.rewind(frame)

    def lag(self, record: LogRecord) -> JournalLag:
        """Return the size of the log from the next frame on. The reader continues with `record`."""
        self._see(record)
        return self.unread(self._reader.walk.resolved)

    def unread(self, record: LogRecord) -> JournalLag:
        """Return the size of the log in `record` from the next frame on, without an effect on a running pass."""
        size_bytes = unknown = 0
        counted: set[Copy] = set()
        in_use = self._reader.walk.copy
        ends = dict(ended_spans(record))
        paths = self._paths()
        for fragment in record.fragments:
            is_behind = fragment.first is not None and ends.get(fragment.first, self.next + 1) <= self.next
            if is_behind or not counted.isdisjoint(fragment.copies):
                continue
            in_order = sorted(fragment.copies, key=lambda copy: (copy != in_use, copy.path in self._failing))
            copy, size = self._first_size(in_order, paths)
            if copy is None:
                counted.update(fragment.copies)
                unknown += 1
            else:
                counted.add(copy)
                size_bytes += max(size - (self._reader.offset if copy == in_use else 0), 0)
        return JournalLag(size_bytes, unknown)

    def close(self) -> None:
        """Close all files; further reading opens them again."""
        self._reader.close()

    def _see(self, record: LogRecord) -> None:
        if record is not self._record:
            self._reader.main_read(record, self.next)
            self._reader.walk.forget_failures()
            self._record = record

    def _first_size(self, copies: Sequence[Copy], paths: Mapping[PathId, JournalPath]) -> tuple[Copy | None, int]:
        """Return (copy, size) of the first copy with bytes, else of an empty copy; (None, 0) if no size is known."""
        empty: Copy | None = None
        for copy in copies:
            if empty is not None and copy.path in self._failing:
                continue
            size = self._size_bytes(copy, paths.get(copy.path))
            if size is None:
                self._failing.add(copy.path)
                continue
            self._failing.discard(copy.path)
            if size:
                return copy, size
            empty = empty or copy
        return empty, 0

    def _size_bytes(self, copy: Copy, path: JournalPath | None) -> int | None:
        """Return the length of a copy in bytes; None if it cannot be opened or read."""
        if path is None:
            return None
        try:
            file = OpenJournalFile(path, self._incarnation, JournalFileId(copy.file), self._files)
        except (StorageError, OSError):
            return None
        try:
            return file.size_bytes()
        except (StorageError, OSError):
            return None
        finally:
            file.close()


def frames_of(
    found: SealedLog,
    paths: JournalPathTable,
    begin: FrameNumber,
    end: FrameNumber,
    files: FileOps = OS_FILES,
) -> Iterator[Frame]:
    """Yield the frames [begin, end) of a log, without given-up frames (errors as `JournalFrames.read`)."""
    incarnation = IncarnationId(found.row.incarnation)
    with closing(JournalFrames(incarnation, paths, begin, files, found.given_up)) as frames:
        frames.pass_given_up()
        while frames.next < end and (frame := frames.read(found.record)) is not None:
            yield frame
            frames.pass_given_up()
