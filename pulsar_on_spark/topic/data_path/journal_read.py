"""Reading the messages of entries that are in a journal: any good copy, checked, and taken apart as sealing does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from pulsar_on_spark.ledger.journal.codec_scan import FrameScanner, part_crcs, read_run
from pulsar_on_spark.ledger.journal.files import ScanPosition
from pulsar_on_spark.ledger.journal.frames import FrameHead, payload_views
from pulsar_on_spark.ledger.journal.log import Copy, FrameNumber
from pulsar_on_spark.ledger.journal.log_reader import OpenJournalFile
from pulsar_on_spark.model.errors import CorruptJournalError, JournalGoneError, StorageError
from pulsar_on_spark.model.ids import EntryId, JournalFileId, LedgerId
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.storage.loss import CopyVerdict, in_words, summary, unknown_path, unreachable, verdict_on
from pulsar_on_spark.storage.storage_path import PathTable
from pulsar_on_spark.topic.data_path.checked_frames import CheckedFrames, FileKey
from pulsar_on_spark.topic.entries.rows import DecodedEntries, StoredEntry, decode_entries
from pulsar_on_spark.topic.managed_ledger.chain.tail_view import JournalPlace

_checked = CheckedFrames()


def read_entries(
    where: JournalPlace,
    ledger: LedgerId,
    first: int,
    end: int,
    paths: PathTable,
    files: FileOps = OS_FILES,
) -> Iterator[DecodedEntries]:
    """The rows of entries [first, end) of a ledger, in batches of whole entries.

    Args:
        where: The frames that hold them.
        ledger: The ledger.
        first: The first entry.
        end: Behind the last entry.
        paths: Gives the root's storage paths.
        files: The operating system.

    Raises:
        JournalGoneError: copies are gone, and the others are bad: they may be sealed and deleted by now, so resolve the
            place again.
        CopiesUnreachableError: no good copy can be reached now, and one that cannot may be good (`storage/loss.py`).
        CorruptJournalError: every copy is there, and has a frame not in good order.
        FormatVersionError: a newer version wrote it.
    """
    return decode_entries(stored_entries(where, ledger, first, end, paths, files))


def stored_entries(
    where: JournalPlace,
    ledger: LedgerId,
    first: int,
    end: int,
    paths: PathTable,
    files: FileOps = OS_FILES,
) -> Iterator[StoredEntry]:
    """Entries [first, end) of a ledger with their bytes as received (arguments and errors as `read_entries`)."""
    position = first
    with closing(_Copies(where, paths, files)) as copies:
        for number in where.frames:
            batch = copies.read(number, ledger)
            first_entry = batch.column("entry_id")[0].as_py()
            payloads = payload_views(batch)[max(position - first_entry, 0) : max(end - first_entry, 0)]
            if not payloads:
                continue
            if first_entry > position:
                raise CorruptJournalError(
                    f"Frame {number} of {where.incarnation} begins after entry {ledger}:{position}."
                )
            for entry, payload in enumerate(payloads, position):
                yield StoredEntry(ledger, EntryId(entry), bytes(payload))
            position += len(payloads)
    if position < end:
        raise CorruptJournalError(f"The frames of {where.incarnation} end before entry {ledger}:{end}.")


class _Copies:
    """The copies of frames in the order of trying, and what was wrong with those given up."""

    def __init__(self, where: JournalPlace, paths: PathTable, files: FileOps) -> None:
        self._where = where
        self._paths = paths
        self._files = files
        self._untried = _spread(where)
        self._copy: Copy | None = None
        self._file: OpenJournalFile | None = None
        self._scanner: FrameScanner | None = None
        self._causes: dict[Copy, Exception] = {}

    def read(self, number: FrameNumber, ledger: LedgerId) -> pa.RecordBatch:
        """The ledger's rows of a frame, in the journal's schema; frames are asked for in order."""
        while self._file is not None or self._untried:
            try:
                if self._file is None:
                    self._open_next()
                return self._read(number, ledger)
            except (StorageError, OSError) as error:
                self._give_up(error)
        raise self._loss(number)

    def close(self) -> None:
        """Close the copy in use."""
        if self._file is not None:
            self._file.close()
            self._file = self._scanner = None

    def _open_next(self) -> None:
        self._copy = self._untried.pop(0)
        path = self._paths().get(self._copy.path)
        if path is None:
            raise unknown_path(self._copy.path)
        self._file = OpenJournalFile(path, self._where.incarnation, JournalFileId(self._copy.file), self._files)

    def _read(self, number: FrameNumber, ledger: LedgerId) -> pa.RecordBatch:
        file = self._file
        assert file is not None
        scanner = self._scanner
        if scanner is None:
            scanner = self._scanner = file.scanner_at(number, self._hint())
        elif scanner.seek(number) is not None:
            scanner = None
        if scanner is None:
            raise CorruptJournalError(f"{file.name} has no frame {number}: read another copy.")
        head = scanner.next_head()
        if not isinstance(head, FrameHead):
            raise CorruptJournalError(f"{file.name} ends before frame {number}: read another copy.")
        found = next(((index, run) for index, run in enumerate(head.runs()) if run.ledger_id == ledger), None)
        if found is None:
            raise CorruptJournalError(f"{head.name} has no entries of ledger {ledger}: report this as a defect.")
        index, run = found
        key = self._key_of(file)
        crcs = _checked.get(key, number)
        if crcs is not None:
            return read_run(file.fd, head, index, crcs, self._files)
        data = self._checked_bytes(file, head)
        _checked.add(key, number, part_crcs(head, data))
        payloads = data[run.payload_offset : run.payload_offset + run.payload_bytes]
        return head.batch_of(run, data[head.header.head_bytes : head.columns_end], payloads)

    def _checked_bytes(self, file: OpenJournalFile, head: FrameHead) -> memoryview:
        """The whole frame; header and directory were checked, and the content is against the header."""
        data = np.empty(head.header.size_bytes, np.uint8).data
        count = self._files.read_into(file.fd, head.offset, data)
        if count < len(data) or crc32c(data[head.header.head_bytes :]) != head.header.content_crc:
            raise CorruptJournalError(f"{head.name} fails its checksum: read another copy.")
        return data.toreadonly()

    def _hint(self) -> ScanPosition | None:
        copy, position = self._where.scanned
        return position if copy == self._copy else None

    def _key_of(self, file: OpenJournalFile) -> FileKey:
        copy = self._copy
        assert copy is not None
        return self._where.incarnation, f"{copy.path}/{copy.file}", self._files.identity(file.fd)

    def _give_up(self, error: Exception) -> None:
        self.close()
        if self._copy is not None:
            self._causes[self._copy] = error

    def _loss(self, number: FrameNumber) -> StorageError:
        causes = in_words({copy.path: error for copy, error in self._causes.items()})
        what = f"Frame {number} of the journal of {self._where.incarnation}"
        paths = self._paths()
        verdict = summary(verdict_on(error, paths.get(copy.path)) for copy, error in self._causes.items())
        if verdict is CopyVerdict.UNREACHABLE:
            return unreachable(what, causes)
        if verdict is CopyVerdict.GONE:
            return JournalGoneError(f"{what} has no good copy left, look up where its entries are now: {causes}")
        return CorruptJournalError(f"{what} has no good copy left: {causes}")


def _spread(where: JournalPlace) -> list[Copy]:
    """The copy that was looked at first: its pages are cached, and where the frame is in it is known."""
    others = [copy for copy in where.copies if copy != where.scanned[0]]
    start = crc32c(where.incarnation.encode()) % max(len(others), 1)
    first = [where.scanned[0]] if where.scanned[0] in where.copies else []
    return [*first, *others[start:], *others[:start]]
