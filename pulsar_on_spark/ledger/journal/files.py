"""The journal file: its location on a storage path, its header and its creation.

    <storage path>/journal/<incarnation>/<file>/frames.open      written by its one writer
    <storage path>/journal/<incarnation>/<file>/frames.fenced    after the fence, a rename within the directory

A file has a directory of its own, so that syncing the fence's rename waits for no other file. It starts with a header
that names its log, itself and its position in the chain of frames; frames follow without gaps.
"""

from __future__ import annotations

import re
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from pulsar_on_spark.ledger.journal.codec_batch import padded
from pulsar_on_spark.ledger.journal.frame_header import ChainPoint, ScanPosition
from pulsar_on_spark.ledger.journal.journal_bytes import JournalBytes
from pulsar_on_spark.model.errors import CorruptJournalError, FormatVersionError, InvalidArgumentError
from pulsar_on_spark.model.ids import IncarnationId, JournalFileId
from pulsar_on_spark.storage.files import OS_FILES, FileOps, make_directory

JOURNAL_FORMAT = 1
JOURNAL = "journal"
"""The directory of all journal files on a storage path."""
OPEN_NAME = "frames.open"
FENCED_NAME = "frames.fenced"

_LEGAL_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,126}")
_MAGIC = b"PULSARPJ"
_HEADER = struct.Struct("<8sHHBBxxQII")
"""Magic, format version, lengths of the header, the incarnation's id and the file's id, number of the first frame, CRC
of the frame before it, CRC of the rest of the header. Both ids follow, and zeros up to a multiple of 8 bytes.

Magic, format version, header length and the position of the CRC stay in every version."""
_CRC_AT = _HEADER.size - 4
_MAX_HEADER_BYTES = 512


def file_directory(storage_path: Path, incarnation: IncarnationId, file: JournalFileId) -> Path:
    """Return the directory of a journal file on a storage path.

    Raises:
        InvalidArgumentError: an id is not fit for a file name.
    """
    return incarnation_directory(storage_path, incarnation) / legal_name(file)


def incarnation_directory(storage_path: Path, incarnation: IncarnationId) -> Path:
    """Return the directory of all files of an incarnation's log on a storage path (raises as `file_directory`)."""
    return storage_path / JOURNAL / legal_name(incarnation)


def open_name(directory: Path) -> Path:
    """Return the name that the file has in its directory while it may be written."""
    return directory / OPEN_NAME


def fenced_name(directory: Path) -> Path:
    """Return the name that the file has in its directory after the fence."""
    return directory / FENCED_NAME


def log_start(incarnation: IncarnationId) -> ChainPoint:
    """Return the start of the chain of an incarnation's log.

    Each log has another start, so frames of other logs do not continue it.
    """
    return ChainPoint(0, crc32c(incarnation.encode()))


@dataclass(frozen=True, slots=True)
class JournalFileHeader:
    """The header of a journal file: its log, its id, and the position in the chain of frames at which it begins."""

    incarnation: IncarnationId
    file: JournalFileId
    first: ChainPoint

    def encode(self) -> bytes:
        """Return the header's bytes (raises as `file_directory`)."""
        ids = (legal_name(self.incarnation).encode(), legal_name(self.file).encode())
        size_bytes = padded(_HEADER.size + sum(map(len, ids)))
        fixed = _HEADER.pack(
            *(_MAGIC, JOURNAL_FORMAT, size_bytes, *map(len, ids), self.first.next_number, self.first.crc, 0)
        )
        rest = b"".join(ids).ljust(size_bytes - _HEADER.size, b"\0")
        return fixed[:_CRC_AT] + _header_crc(fixed + rest).to_bytes(4, "little") + rest


def read_file_header(source: JournalBytes, name: str) -> tuple[JournalFileHeader, ScanPosition]:
    """Read the header of a journal file and the position of its first frame; `name` is the file's name in errors.

    Raises:
        CorruptJournalError: the header is cut short or fails its checksum; the file may have intact frames.
        FormatVersionError: a newer version wrote the header.
        OSError, StorageError: the file cannot be read.
    """
    content = bytearray(_MAX_HEADER_BYTES)
    content = content[: source.read_into(0, memoryview(content))]
    if content[: len(_MAGIC)] != _MAGIC[: len(content)]:
        raise CorruptJournalError(f"{name} is not a journal file: read another copy.")
    size_bytes = int.from_bytes(content[10:12], "little")
    if len(content) < _HEADER.size or not _HEADER.size <= size_bytes <= len(content):
        raise CorruptJournalError(f"{name} is cut short in its header: read another copy.")
    header = bytes(content[:size_bytes])
    if _header_crc(header) != int.from_bytes(header[_CRC_AT : _HEADER.size], "little"):
        raise CorruptJournalError(f"{name} has a header that fails its checksum: read another copy.")
    _, version, _, incarnation_bytes, file_bytes, first_frame, seed, _ = _HEADER.unpack_from(header)
    if version > JOURNAL_FORMAT:
        raise FormatVersionError(
            f"{name} has journal format {version}, this pulsar_on_spark reads up to {JOURNAL_FORMAT}: upgrade it."
        )
    ids = header[_HEADER.size :]
    incarnation = IncarnationId(ids[:incarnation_bytes].decode("latin-1"))
    file = JournalFileId(ids[incarnation_bytes : incarnation_bytes + file_bytes].decode("latin-1"))
    if padded(_HEADER.size + incarnation_bytes + file_bytes) != size_bytes or not (
        _LEGAL_NAME.fullmatch(incarnation) and _LEGAL_NAME.fullmatch(file)
    ):
        raise CorruptJournalError(f"{name} has a header that no writer makes: read another copy.")
    first = ChainPoint(first_frame, seed)
    return JournalFileHeader(incarnation, file, first), ScanPosition(size_bytes, first)


def create_journal_file(
    storage_path: Path, incarnation: IncarnationId, file: JournalFileId, files: FileOps = OS_FILES
) -> int:
    """Create an empty journal file durably and return its descriptor; its header is written with its first frames.

    A file may be created long before its first frame is known. The caller has checked that the directory is the
    storage path (`StoragePath.check`).

    Raises:
        FileExistsError: the file exists; no file ever has a second writer.
        OSError: the file cannot be created; at most an empty directory is left.
    """
    directory = file_directory(storage_path, incarnation, file)
    make_directory(files, directory.parent)
    # An existing directory is an error: it belongs to a writer, even if its file was fenced or deleted.
    files.mkdir(directory)
    try:
        files.fsync_directory(directory.parent)
        return _create_durably(open_name(directory), files)
    except OSError:
        with suppress(OSError):  # an empty directory does no harm
            directory.rmdir()
        raise


def _create_durably(name: Path, files: FileOps) -> int:
    fd = files.create(name)
    try:
        files.fsync_directory(name.parent)
    except OSError:
        files.close(fd)
        with suppress(OSError):
            files.unlink(name)
        raise
    return fd


def open_journal_file(directory: Path, files: FileOps = OS_FILES) -> int:
    """Open a file for reading under either name.

    Raises:
        FileNotFoundError: the file has neither name. The caller must check whether the storage path is there.
    """
    try:
        return files.open(open_name(directory))
    except FileNotFoundError:
        # The fence only renames from the open to the fenced name, so a file that has lost the first has the second.
        return files.open(fenced_name(directory))


def _header_crc(header: bytes) -> int:
    return crc32c(header[_HEADER.size :], crc32c(header[:_CRC_AT]))


def legal_name(name: str) -> str:
    """Return the id of an incarnation or a journal file unchanged, if it may be part of a file name or a key.

    Raises:
        InvalidArgumentError: the id may not be part of a name.
    """
    if not _LEGAL_NAME.fullmatch(name):
        raise InvalidArgumentError(f"{name!r} is not fit for a file name: use up to 127 letters, digits, _ and -.")
    return name
