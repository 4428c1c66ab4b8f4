"""Reader of the frames that hold a ledger's entries, from any good copy; every byte is verified before it is used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from pulsar_on_spark.ledger.journal.checked_frames import CheckedFrames
from pulsar_on_spark.ledger.journal.codec_scan import FrameScanner, part_crcs, read_run
from pulsar_on_spark.ledger.journal.frame_header import ScanPosition
from pulsar_on_spark.ledger.journal.frames import FrameHead
from pulsar_on_spark.ledger.journal.log import Copy, FrameNumber, in_reading_order, spread_of
from pulsar_on_spark.ledger.journal.log_reader import OpenJournalFile
from pulsar_on_spark.ledger.journal.places import JournalPath, JournalPathTable
from pulsar_on_spark.model.errors import CorruptJournalError, JournalGoneError, StorageError
from pulsar_on_spark.model.ids import IncarnationId, JournalFileId, LedgerId, PathId
from pulsar_on_spark.storage.copies import CopiesInTurn, NoGoodCopyError
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.storage.loss import CopyVerdict, unreachable

_checked = CheckedFrames()


@dataclass(frozen=True, slots=True)
class JournalPlace:
    """The frames of a journal that hold certain entries, and the files that hold the frames.

    Attributes:
        incarnation: The journal's incarnation.
        copies: The files that hold all of the frames, each a copy of the others.
        frames: Numbers of the frames, ascending.
        scanned: The copy whose heads were read, and the position of the first of the frames in that copy.
    """

    incarnation: IncarnationId
    copies: tuple[Copy, ...]
    frames: tuple[FrameNumber, ...]
    scanned: tuple[Copy, ScanPosition]


class FrameReader:
    """Reader of the frames of one `JournalPlace`, in ascending order. Not thread-safe.

    Args:
        place: The frames and their copies.
        paths: Returns the root's storage paths.
        files: The file operations of the operating system.
    """

    def __init__(self, place: JournalPlace, paths: JournalPathTable, files: FileOps = OS_FILES) -> None:
        self._place = place
        self._files = files
        self._files_of_paths = {PathId(copy.path): copy for copy in _in_order(place)}
        self._copies = CopiesInTurn(list(self._files_of_paths), paths, self._open)

    def read(self, number: FrameNumber, ledger: LedgerId) -> pa.RecordBatch:
        """Read the ledger's rows of a frame, in the journal's schema.

        Raises:
            JournalGoneError: some copies are gone and the others bad. The entries may be sealed by now: look up where
                they are.
            CopiesUnreachableError: no good copy can be reached now, but an unreachable one may be good
                (`storage/loss.py`).
            CorruptJournalError: every copy is damaged.
            FormatVersionError: a newer version wrote the file.
        """
        try:
            return self._copies.read(lambda copy: copy.read(number, ledger))
        except NoGoodCopyError:
            raise self._loss(number) from None

    def close(self) -> None:
        """Close the copy in use."""
        self._copies.close()

    def _open(self, path: JournalPath) -> _FrameCopy:
        return _FrameCopy(self._place, self._files_of_paths[path.path_id], path, self._files)

    def _loss(self, number: FrameNumber) -> StorageError:
        causes = self._copies.in_words()
        what = f"Frame {number} of the journal of {self._place.incarnation}"
        verdict = self._copies.summary()
        if verdict is CopyVerdict.UNREACHABLE:
            return unreachable(what, causes)
        if verdict is CopyVerdict.GONE:
            return JournalGoneError(f"{what} has no good copy left: look up where its entries are now. {causes}")
        return CorruptJournalError(
            f"{what} has no good copy left: restore one from a backup, or give the frame up with `pulsarpy recover "
            f"--give-up-frames`. {causes}"
        )


class _FrameCopy:
    """An open journal file that has the frames of a `JournalPlace`."""

    def __init__(self, place: JournalPlace, copy: Copy, path: JournalPath, files: FileOps) -> None:
        self._file = OpenJournalFile(path, place.incarnation, JournalFileId(copy.file), files)
        try:
            self._key = (place.incarnation, f"{copy.path}/{copy.file}", self._file.source.identity)
        except BaseException:
            self.close()
            raise
        self._hint = place.scanned[1] if place.scanned[0] == copy else None
        self._scanner: FrameScanner | None = None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, number: FrameNumber, ledger: LedgerId) -> pa.RecordBatch:
        """Read the ledger's rows of a frame, and check them (raises `CorruptJournalError`)."""
        head = self._head(number)
        indexed_run = next(((index, run) for index, run in enumerate(head.runs()) if run.ledger_id == ledger), None)
        if indexed_run is None:
            raise CorruptJournalError(f"{head.name} has no entries of ledger {ledger}: report this as a defect.")
        index, run = indexed_run
        crcs = _checked.get(self._key, number)
        if crcs is not None:
            return read_run(self._file.source, head, index, crcs)
        data = self._checked_bytes(head)
        _checked.add(self._key, number, part_crcs(head, data))
        payloads = data[run.payload_offset : run.payload_offset + run.payload_bytes]
        return head.batch_of(run, data[head.header.head_bytes : head.columns_end], payloads)

    def _head(self, number: FrameNumber) -> FrameHead:
        """Read header and directory of a frame."""
        scanner = self._scanner
        if scanner is None:
            scanner = self._scanner = self._file.scanner_at(number, self._hint)
        elif scanner.seek(number) is not None:
            scanner = None
        if scanner is None:
            raise CorruptJournalError(f"{self._file.name} has no frame {number}: read another copy.")
        head = scanner.next_head()
        if not isinstance(head, FrameHead):
            raise CorruptJournalError(f"{self._file.name} ends before frame {number}: read another copy.")
        return head

    def _checked_bytes(self, head: FrameHead) -> memoryview:
        """Read the whole frame and check its content; its header and directory were checked with the head."""
        data = np.empty(head.header.size_bytes, np.uint8).data
        count = self._file.source.read_into(head.offset, data)
        if count < len(data) or crc32c(data[head.header.head_bytes :]) != head.header.content_crc:
            raise CorruptJournalError(f"{head.name} fails its checksum: read another copy.")
        return data.toreadonly()


def _in_order(place: JournalPlace) -> list[Copy]:
    """Return the copies in the order to try: first the one whose heads were read, because its pages are cached."""
    in_order = in_reading_order(place.copies, spread_of(place.incarnation))
    return sorted(in_order, key=lambda copy: copy != place.scanned[0])
