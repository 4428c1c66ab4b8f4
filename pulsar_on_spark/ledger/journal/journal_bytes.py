"""The bytes of a journal file that is open for reading: its header, and the frames written so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pulsar_on_spark.ledger.journal.frame_header import ScanPosition
from pulsar_on_spark.ledger.journal.log import FrameNumber
from pulsar_on_spark.storage.files import OS_FILES, FileOps


class JournalBytes(Protocol):
    """An open journal file. Not thread-safe.

    Methods raise `OSError`, or `StorageError` for a file on an object store.
    """

    @property
    def identity(self) -> tuple[int, int]:
        """The file's id, which no other file has while this one exists."""

    def size(self) -> int:
        """Return the number of bytes that can be read now; a file that is written grows."""

    def position_before(self, number: FrameNumber) -> ScanPosition | None:
        """Return a position at or before this frame; None if only a scan from the file's start finds one."""

    def read_into(self, offset: int, target: memoryview) -> int:
        """Fill `target` with the bytes from `offset` on.

        Return their number, which is less than requested only at the end.
        """

    def drop_cached_bytes(self, end: int) -> None:
        """Drop the bytes before `end` from caches, because they will not be read again."""

    def close(self) -> None:
        """Close the file."""


@dataclass(frozen=True, slots=True)
class FileBytes:
    """The bytes of a file on a disk.

    Attributes:
        fd: Its descriptor.
        files: The file operations of the operating system.
    """

    fd: int
    files: FileOps = OS_FILES

    @property
    def identity(self) -> tuple[int, int]:
        """The file's device and inode."""
        return self.files.identity(self.fd)

    def size(self) -> int:
        """Return the file's length in bytes."""
        return self.files.size(self.fd)

    def position_before(self, number: FrameNumber) -> None:
        """Return None: scanning heads from the start is fast enough."""

    def read_into(self, offset: int, target: memoryview) -> int:
        """Fill `target` with the file's bytes from `offset` on, and return their number."""
        return self.files.read_into(self.fd, offset, target)

    def drop_cached_bytes(self, end: int) -> None:
        """Drop the bytes before `end` from the page cache."""
        self.files.drop_cached_bytes(self.fd, end)

    def close(self) -> None:
        """Close the descriptor."""
        self.files.close(self.fd)


class BytesInMemory:
    """Bytes in memory, such as an object that was read as a whole."""

    def __init__(self, content: memoryview) -> None:
        self._content = content

    @property
    def identity(self) -> tuple[int, int]:
        """Zero, and the address of the bytes in memory."""
        return 0, id(self._content)

    def size(self) -> int:
        """Return the number of bytes."""
        return len(self._content)

    def position_before(self, number: FrameNumber) -> None:
        """Return None: a scan from the start costs nothing in memory."""

    def read_into(self, offset: int, target: memoryview) -> int:
        """Copy bytes from `offset` on to `target`, and return their number."""
        part = self._content[offset : offset + len(target)]
        target[: len(part)] = part
        return len(part)

    def drop_cached_bytes(self, end: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
