"""Small journal files for the tests of the byte format."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pulsar_on_spark.ledger.journal.codec_encode import (
    EncodedFrame,
    EntryGroup,
    encode_cursor,
    encode_entries,
    encode_lac,
    encode_roll,
)
from pulsar_on_spark.ledger.journal.codec_scan import FrameScanner, ScanEnd
from pulsar_on_spark.ledger.journal.files import (
    JournalFileHeader,
    log_start,
    read_file_header,
)
from pulsar_on_spark.ledger.journal.frame_header import ChainPoint
from pulsar_on_spark.ledger.journal.frames import Frame
from pulsar_on_spark.ledger.journal.journal_bytes import FileBytes
from pulsar_on_spark.model.ids import EntryId, IncarnationId, JournalFileId, LedgerId
from pulsar_on_spark.storage.files import OS_FILES, OsFiles

INCARNATION = IncarnationId("0123456789abcdef0123456789abcdef")
HEADER = JournalFileHeader(INCARNATION, JournalFileId("w00000000"), log_start(INCARNATION))
NAME = "Journal file f"


class Read(NamedTuple):
    """The frames that were asked for."""

    fd: int
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class CountingFiles(OsFiles):
    """Notes each read."""

    reads: list[Read] = field(default_factory=list)

    def read_into(self, fd: int, offset: int, target: memoryview) -> int:
        self.reads.append(Read(fd, offset, len(target)))
        return OS_FILES.read_into(fd, offset, target)


def group(*entries: tuple[int, int, bytes]) -> EntryGroup:
    """Entries (ledger, entry, payload); message count and time follow from the ids."""
    made = EntryGroup()
    for ledger, entry, payload in entries:
        made.add(LedgerId(ledger), EntryId(entry), entry % 3 + 1, 1_700_000_000_000 + entry, [payload])
    return made


def content(frame: EncodedFrame) -> bytes:
    return b"".join(frame.buffers)


def small_frames(at: ChainPoint) -> list[EncodedFrame]:
    """Return a frame of each kind that can be written; the entries frame has two ledgers and an empty payload."""
    entries = encode_entries(group((7, 0, b"first"), (9, 41, b"another"), (7, 1, b""), (7, 2, b"third")), at, -1)
    cursor = encode_cursor([(b"topic/sub", b"record"), (b"", b"\0")], entries.header.after, 0)
    lac = encode_lac(cursor.header.after, 1)
    roll = encode_roll(3, lac.header.after, 2)
    return [entries, cursor, lac, roll]


def small_file() -> bytes:
    return HEADER.encode() + b"".join(map(content, small_frames(HEADER.first)))


def store(directory: Path, data: bytes) -> Path:
    path = directory / "frames"
    path.unlink(missing_ok=True)  # what is cut to nothing and written again waits for the disk (ext4, auto_da_alloc)
    path.write_bytes(data)
    return path


def scan(path: Path) -> tuple[list[Frame], ScanEnd]:
    """All frames of a file and how it ends; raises if its header is bad."""
    fd = OS_FILES.open(path)
    try:
        _, position = read_file_header(FileBytes(fd), NAME)
        scanner = FrameScanner(FileBytes(fd), position, NAME)
        frames = []
        while isinstance(found := scanner.next_frame(), Frame):
            frames.append(found)
        return frames, found
    finally:
        OS_FILES.close(fd)
