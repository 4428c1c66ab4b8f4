"""The scanner of a journal file's frames, which reports why a scan ended.

The outcomes let the protocol distinguish "no such frame" from "unknown": if a file ends between or within frames,
perhaps nothing more was ever written to it, but a bad frame with later frames after it certainly existed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from pulsar_on_spark.ledger.journal.frame_header import (
    HEADER_BYTES,
    MAGIC,
    FrameHeader,
    ScanPosition,
    follow_headers,
    is_intact,
    number_in,
    parse_header,
)
from pulsar_on_spark.ledger.journal.frames import Frame, FrameHead, LedgerRun
from pulsar_on_spark.ledger.journal.journal_bytes import JournalBytes
from pulsar_on_spark.ledger.journal.log import NO_FRAME, FrameNumber
from pulsar_on_spark.model.errors import CorruptJournalError, InvalidArgumentError, StoragePathError
from pulsar_on_spark.storage.files import PartialReadError

WINDOW_BYTES = 1024 * 1024
"""Bytes of one read where contents are read; a longer frame is read in one piece."""
HEADS_WINDOW_BYTES = 16 * 1024
"""Bytes of one read where contents are skipped."""
SECTOR_BYTES = 512
"""Size of the unit that a disk writes completely or not at all."""
_NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class CleanEnd:
    """The file ends between two frames."""

    position: ScanPosition


@dataclass(frozen=True, slots=True)
class TornEnd:
    """The file ends within a frame: its writer has not written the rest yet, or was stopped there."""

    position: ScanPosition
    reason: str


@dataclass(frozen=True, slots=True)
class BadFrame:
    """The bytes at the position are not the next frame.

    Attributes:
        position: The position at which the next frame was expected.
        reason: The problem, for errors.
        is_last: True if no intact header of the expected frame or of a later one follows: a crash may have lost the end
            of the file before it was synced. False means that a frame certainly was here, so a reader must never answer
            "no such frame".
        is_written: True if the frame certainly was written: its header is intact and the file is long enough, or the
            bytes in place of the header are not a hole. Blocks that a crash kept from the disk read as zeros; other
            bytes were written, then damaged. Then, too, a reader must never answer "no such frame".
    """

    position: ScanPosition
    reason: str
    is_last: bool
    is_written: bool = False


ScanEnd: TypeAlias = CleanEnd | TornEnd | BadFrame


class FrameScanner:
    """Sequential reader of one file's frames. It may be called again after an end, because the file may have grown.

    Bytes are read once, except for those of a torn or bad frame, and of a frame at the end of a window. The scanner
    holds one window of bytes, or one frame if the frame is longer; returned frames are views of the window and keep it
    alive. A header is used only if its checksum, its number and its link to the frame before are right. Nothing is
    allocated for bytes that the file does not have.

    Args:
        source: The open file.
        position: The start of the scan, from `read_file_header` or another scanner's `position`.
        name: The file's name in errors: "Journal file <path>".
        checked_before: True if all checksums of the part to be scanned were verified since it was written; only then
            may contents be skipped.
        window_bytes: The bytes of one read; None for `WINDOW_BYTES`, or `HEADS_WINDOW_BYTES` with `checked_before`.
    """

    def __init__(
        self,
        source: JournalBytes,
        position: ScanPosition,
        name: str,
        *,
        checked_before: bool = False,
        window_bytes: int | None = None,
    ) -> None:
        self._source = source
        self._position = position
        self._name = name
        self._checked_before = checked_before
        self._window_bytes = window_bytes or (HEADS_WINDOW_BYTES if checked_before else WINDOW_BYTES)
        self._window = _NOTHING
        self._window_start = 0
        self._size_bytes = 0
        self._cut: StoragePathError | None = None
        """The error because of which the window ends before the end of the bytes that were to be read."""
        self._has_held = False
        """True if the window begins with bytes that were read earlier, when their frame was perhaps half written."""

    @property
    def position(self) -> ScanPosition:
        """The position after the last frame that was returned."""
        return self._position

    def next_frame(self) -> Frame | ScanEnd:
        """Read the next frame and verify all of it.

        Raises:
            FormatVersionError: a newer version wrote the frame.
            StoragePathError: the file cannot be read.
        """
        found = self._next_frame()
        if isinstance(found, BadFrame) and self._has_held:
            self._has_held = False
            found = self._next_frame()  # from the file, because a bad frame empties the window
        return found

    def _next_frame(self) -> Frame | ScanEnd:
        found = self._header()
        if not isinstance(found, FrameHeader):
            return found
        offset = self._position.offset
        data = self._read(offset, found.size_bytes)
        if data is None:
            return self._torn()
        directory = data[HEADER_BYTES : found.head_bytes]
        if crc32c(directory) != found.directory_crc or crc32c(data[found.head_bytes :]) != found.content_crc:
            return self._bad(f"frame {found.number} fails its checksum", offset + found.size_bytes, is_written=True)
        self._advance(found)
        return Frame(found, self._name, offset, directory, self._window, offset - self._window_start)

    def next_head(self) -> FrameHead | ScanEnd:
        """Read and verify the header and directory of the next frame, without its content.

        Raises:
            InvalidArgumentError: the scanner was not made with `checked_before`.
            FormatVersionError: a newer version wrote the frame.
            StoragePathError: the file cannot be read.
        """
        if not self._checked_before:
            raise InvalidArgumentError(f"{self._name} must be checked before contents are skipped: use next_frame.")
        found = self._header()
        if not isinstance(found, FrameHeader):
            return found
        offset = self._position.offset
        head = self._read(offset, found.head_bytes)
        if offset + found.size_bytes > self._size_bytes:
            self._refresh_size()
        if head is None or offset + found.size_bytes > self._size_bytes:
            return self._torn()
        if crc32c(head[HEADER_BYTES:]) != found.directory_crc:
            problem = f"frame {found.number} has a directory that fails its checksum"
            return self._bad(problem, offset + found.size_bytes, is_written=True)
        self._advance(found)
        return FrameHead(found, self._name, offset, head[HEADER_BYTES:])

    def follow(self) -> FrameNumber:
        """Skip whole frames by their headers alone, up to one window of bytes. Return the highest LAC in them, or -1.

        If no frame was skipped, `next_head` returns the reason.

        Raises:
            InvalidArgumentError: the scanner was not made with `checked_before`.
            StoragePathError: the file cannot be read.
        """
        if not self._checked_before:
            raise InvalidArgumentError(f"{self._name} must be checked before contents are skipped: use next_frame.")
        offset, chain = self._position.offset, self._position.chain
        if self._read(offset, HEADER_BYTES) is None:
            return NO_FRAME
        window = self._window[offset - self._window_start :]
        passed, chain, lac = follow_headers(window, chain, self._size_bytes - offset)
        self._position = ScanPosition(offset + passed, chain)
        return lac

    def read_ahead(self, size_bytes: int) -> None:
        """Read the next bytes of the file, up to `size_bytes`, so that the frames in them share one window.

        Raises:
            StoragePathError: the file cannot be read.
        """
        offset = self._position.offset
        if offset + size_bytes > self._size_bytes:
            self._refresh_size()
        size_bytes = min(size_bytes, self._size_bytes - offset)
        held = self._window[offset - self._window_start :] if offset >= self._window_start else _NOTHING
        if size_bytes > len(held):
            self._load(offset, size_bytes, held)

    def rewind(self, position: ScanPosition) -> None:
        """Go back to a position that this scanner had."""
        self._position = position

    def seek(self, number: FrameNumber) -> ScanEnd | None:
        """Advance to frame `number`. Return None on success, else the reason why the scan ended before the frame.

        Raises:
            InvalidArgumentError: the frame is before the position.
            FormatVersionError: a newer version wrote a frame.
            StoragePathError: the file cannot be read.
        """
        next_number = self._position.chain.next_number
        if number < next_number:
            raise InvalidArgumentError(f"{self._name} is at frame {next_number}: scan again for frame {number}.")
        for _ in range(number - next_number):
            found = self.next_head() if self._checked_before else self.next_frame()
            if not isinstance(found, FrameHead):
                return found
        return None

    def _header(self) -> FrameHeader | ScanEnd:
        offset, chain = self._position.offset, self._position.chain
        data = self._read(offset, HEADER_BYTES)
        if data is None:
            rest = self._size_bytes - offset
            if rest < 0:
                return BadFrame(self._position, f"{self._name} has shrunk to {self._size_bytes} bytes", is_last=False)
            return self._torn() if rest else CleanEnd(self._position)
        try:
            header = parse_header(data, f"{self._name}, byte {offset}")
        except CorruptJournalError:
            return self._bad("no frame starts", offset + 8, is_written=not _has_hole(data, offset))
        if header.number != chain.next_number:
            what = f"frame {header.number} is in the place of frame {chain.next_number}"
            return self._bad(what, offset, is_written=True)
        if header.previous_crc != chain.crc:
            what = f"frame {header.number} does not continue the frame before it"
            return self._bad(what, offset + 8, is_written=True)
        return header

    def _advance(self, header: FrameHeader) -> None:
        self._position = ScanPosition(self._position.offset + header.size_bytes, header.after)

    def _torn(self) -> TornEnd:
        return TornEnd(
            self._position,
            f"{self._name} ends at byte {self._size_bytes}, within the frame that starts at {self._position.offset}",
        )

    def _bad(self, what: str, search_from: int, *, is_written: bool = False) -> BadFrame:
        is_last = not self._later_frame_from(search_from)
        # Drop the window, which may hold half of a write, so that the next attempt reads from the file.
        self._window = _NOTHING
        reason = f"{self._name}: {what} at byte {self._position.offset}"
        return BadFrame(self._position, reason, is_last, is_written)

    def _later_frame_from(self, start: int) -> bool:
        """Return True if an intact header of the missing frame or a later one is anywhere after `start`.

        The header may be part of a payload: then a recovery gets "unknown" instead of "no", which is safe.
        """
        while self._read(start, HEADER_BYTES) is not None:
            window = bytes(self._window)[start - self._window_start :]
            at = window.find(MAGIC)
            while 0 <= at <= len(window) - HEADER_BYTES:
                header = memoryview(window)[at : at + HEADER_BYTES]
                if is_intact(header) and number_in(header) >= self._position.chain.next_number:
                    return True
                at = window.find(MAGIC, at + 1)
            start += len(window) - HEADER_BYTES + 1
        return False

    def _refresh_size(self) -> None:
        with _reading(self._name):
            self._size_bytes = self._source.size()

    def _read(self, offset: int, length: int) -> memoryview | None:
        """Read bytes of the file; None if the file has fewer."""
        start = offset - self._window_start
        if start >= 0 and start + length <= len(self._window):
            return self._window[start : start + length]
        if offset + length > self._size_bytes:  # a file on an object store is asked for its size by a request
            self._refresh_size()
        if offset + length > self._size_bytes:
            return None
        self._load(offset, max(length, min(self._window_bytes, self._size_bytes - offset)))
        if len(self._window) < length:
            if self._cut is not None:
                raise self._cut
            self._size_bytes = offset + len(self._window)
            return None
        return self._window[:length]

    def _load(self, offset: int, size_bytes: int, held: memoryview = _NOTHING) -> None:
        """Fill a new window from `offset` on: with the bytes `held`, which were read before, then from the file.

        If only its first bytes can be read, as before a bad sector, the frames in these are used, and only a frame
        behind them is an error.
        """
        self._has_held = len(held) > 0
        window = np.empty(size_bytes, np.uint8).data
        window[: len(held)] = held
        self._cut = None
        with _reading(self._name):
            try:
                count = self._source.read_into(offset + len(held), window[len(held) :])
            except PartialReadError as error:
                count, self._cut = error.done, _unreadable(self._name, error)
        self._window, self._window_start = window[: len(held) + count].toreadonly(), offset


def _has_hole(header: memoryview, offset: int) -> bool:
    """Return True if the part of a frame's header in one sector is all zeros; an intact header has no such part."""
    border = SECTOR_BYTES - offset % SECTOR_BYTES
    return any(part and not any(part) for part in (header[:border], header[border:]))


def part_crcs(head: FrameHead, data: memoryview) -> npt.NDArray[np.uint32]:
    """Compute the checksums of a frame's columns and of each run's payloads, for `read_run`.

    Args:
        head: The head of an ENTRIES frame.
        data: All bytes of the frame, verified by its header.
    """
    parts = [_columns_of(head), *map(_payloads_of, head.runs())]
    return np.fromiter((crc32c(data[start:end]) for start, end in parts), np.uint32, len(parts))


def read_run(source: JournalBytes, head: FrameHead, number: int, crcs: npt.NDArray[np.uint32]) -> pa.RecordBatch:
    """Read the rows of one ledger in a frame, in `ENTRIES_SCHEMA`, without the payloads of other ledgers.

    Args:
        source: The open file.
        head: The frame's head.
        number: The index of the ledger's run in `head.runs()`.
        crcs: The frame's `part_crcs`, because the frame's own checksum covers the frame as a whole only.

    Raises:
        CorruptJournalError: the bytes have changed since `crcs` were computed.
        StoragePathError: the file cannot be read.
    """
    run = head.runs()[number]
    parts = []
    for (start, end), crc in ((_columns_of(head), crcs[0]), (_payloads_of(run), crcs[number + 1])):
        part = np.empty(end - start, np.uint8).data
        with _reading(head.file):
            count = source.read_into(head.offset + start, part)
        if count < len(part):
            raise CorruptJournalError(f"{head.name} is cut short: read another copy.")
        if crc32c(part) != crc:
            raise CorruptJournalError(f"{head.name} has changed since it was first read: read another copy.")
        parts.append(part.toreadonly())
    return head.batch_of(run, *parts)


def _columns_of(head: FrameHead) -> tuple[int, int]:
    return head.header.head_bytes, head.columns_end


def _payloads_of(run: LedgerRun) -> tuple[int, int]:
    return run.payload_offset, run.payload_offset + run.payload_bytes


@contextmanager
def _reading(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: OSError) -> StoragePathError:
    return StoragePathError(f"{name} cannot be read ({error}): check its disk, or read another copy.")
