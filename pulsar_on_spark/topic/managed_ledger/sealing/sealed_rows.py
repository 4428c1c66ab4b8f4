"""Builder of a segment file from journal frames: entries of many ledgers, sorted by ledger and entry, become rows.

All rows of a ledger in a file are one segment. They are not adjacent if several chunks of frames have entries of the
ledger.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from pulsar_on_spark.ledger.segments.segment_writer import SegmentFileWriter
from pulsar_on_spark.metadata.records import LedgerRecord, SegmentRecord
from pulsar_on_spark.model.errors import CorruptJournalError
from pulsar_on_spark.model.ids import FileId, LedgerId, WriteId
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.protocol.field_walk import Int64s
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.entries.cutting import run_lengths
from pulsar_on_spark.topic.entries.packing import BatchPacker, OwnedRows, SegmentPlaces
from pulsar_on_spark.topic.entries.rows import DecodedEntries, decode_groups
from pulsar_on_spark.topic.managed_ledger.sealing.journal_entries import JournalEntries
from pulsar_on_spark.topic.managed_ledger.sealing.seals import SealedFile

MAX_FILE_BYTES = 256 << 20
MAX_FILE_SEGMENTS = 20_000
"""Number of segments at which a file ends, because one commit lists all of them. A file ends after a whole chunk."""
_NEVER_MS = 2**63 - 1


class SealedFileBuilder:
    """Builder of one segment file. For one thread at a time; call either `finish` or `abort`, once.

    Args:
        paths: The storage paths that copies may be written to.
        quorum: The number of copies, and how many of them must become durable.
        max_message_size_bytes: The broker's `maxMessageSize`.
        files: The file operations of the operating system.

    Raises:
        NotEnoughCopiesError: fewer than ack-quorum paths can be written.
    """

    def __init__(
        self, paths: Sequence[StoragePath], quorum: Quorum, max_message_size_bytes: int, files: FileOps = OS_FILES
    ) -> None:
        self.write_id = WriteId(uuid.uuid4().hex)
        self.file_id = FileId(f"{self.write_id}-{secrets.token_hex(6)}")
        self._max_message_size_bytes = max_message_size_bytes
        self._writer = SegmentFileWriter(self.file_id, paths, quorum, files)
        self._packer = BatchPacker(self._writer.write_batch)
        self._segments: dict[LedgerId, _Segment] = {}

    @property
    def is_full(self) -> bool:
        """True if the file has reached `MAX_FILE_BYTES` or `MAX_FILE_SEGMENTS`, so that the caller should finish it."""
        return self._writer.size_bytes >= MAX_FILE_BYTES or len(self._segments) >= MAX_FILE_SEGMENTS

    def add(self, entries: JournalEntries, ledgers: Mapping[LedgerId, LedgerRecord], pace: Callable[[], None]) -> None:
        """Append the entries of all ledgers in `ledgers`; `pace` is called between batches, to limit the speed.

        Raises:
            CorruptJournalError: the entries of a ledger do not follow its earlier entries.
            NotEnoughCopiesError: fewer than ack-quorum copies can still be written.
        """
        times_of_ledgers = zip(
            *(column.tolist() for column in (entries.ledgers, entries.taken_min_ms, entries.taken_max_ms)), strict=True
        )
        taken_ms = {ledger: (first_ms, last_ms) for ledger, first_ms, last_ms in times_of_ledgers}
        groups = entries.groups(ledgers.keys())
        for decoded in decode_groups(groups, max_message_size_bytes=self._max_message_size_bytes):
            self._packer.add(decoded.batch, self._runs(decoded, ledgers, taken_ms))
            pace()
        self._packer.flush()

    def finish(self) -> SealedFile:
        """Make the file durable, and return it with a segment record for each ledger.

        Raises:
            NotEnoughCopiesError: fewer than ack-quorum copies became durable.
        """
        written = self._writer.close()
        records = tuple(segment.record(self.file_id) for segment in self._segments.values())
        return SealedFile(written, self.write_id, records)

    def abort(self) -> None:
        """Delete the written files."""
        self._writer.abort()

    def _runs(
        self,
        decoded: DecodedEntries,
        ledgers: Mapping[LedgerId, LedgerRecord],
        taken_ms: Mapping[LedgerId, tuple[int, int]],
    ) -> Iterator[OwnedRows]:
        """Yield the rows of each ledger in a batch, and count them in the ledger's segment."""
        row_ledgers = decoded.batch.column("ledger_id").to_numpy()
        rows = np.flatnonzero(np.diff(row_ledgers, prepend=row_ledgers[0] - 1))
        entry_ends = np.cumsum(decoded.entry_rows)
        entries = np.searchsorted(entry_ends, np.append(rows, len(row_ledgers)), side="right")
        # Entries that are not in Pulsar's format have no publish time of their own.
        times = decoded.batch.column("publish_time").view(pa.int64())
        columns = (
            row_ledgers[rows],
            decoded.batch.column("entry_id").to_numpy()[rows],
            np.diff(rows, append=len(row_ledgers)),
            np.add.reduceat(decoded.row_bytes, rows),
            np.minimum.reduceat(times.fill_null(_NEVER_MS).to_numpy(), rows),
            np.maximum.reduceat(times.fill_null(-_NEVER_MS).to_numpy(), rows),
            entries[:-1],
            entries[1:],
        )
        for ledger, first_entry, row_count, size_bytes, min_ms, max_ms, first, end in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            segment = self._segments.get(ledger)
            if segment is None:
                segment = self._segments[ledger] = _Segment(ledgers[ledger], first_entry)
            elif first_entry != segment.end:
                raise CorruptJournalError(
                    f"The journal has entry {ledger}:{first_entry} where {ledger}:{segment.end} must follow, which no "
                    "broker writes: report this as a defect."
                )
            published_ms = taken_ms[ledger] if min_ms > max_ms else (min_ms, max_ms)
            segment.count(decoded.entry_rows[first:end], size_bytes, published_ms)
            yield OwnedRows(segment.places, end - first, row_count, size_bytes)


class _Segment:
    """The rows of one ledger in a file, counted for the segment's record."""

    def __init__(self, ledger: LedgerRecord, first_entry: int) -> None:
        self.places = SegmentPlaces()
        self._ledger = ledger
        self._first_entry = self.end = first_entry
        """The id after the last counted entry."""
        self._entry_rows: list[Int64s] = []
        self._bytes = 0
        self._publish_ms = (_NEVER_MS, -_NEVER_MS)

    def count(self, entry_rows: Int64s, size_bytes: int, published_ms: tuple[int, int]) -> None:
        """Count the next entries: the rows of each, the bytes of all, and their earliest and latest publish times."""
        self._entry_rows.append(entry_rows)
        self.end += len(entry_rows)
        self._bytes += size_bytes
        self._publish_ms = (min(self._publish_ms[0], published_ms[0]), max(self._publish_ms[1], published_ms[1]))

    def record(self, file_id: FileId) -> SegmentRecord:
        """Make the segment's record for the main table."""
        rows = np.concatenate(self._entry_rows)
        return SegmentRecord(
            topic_id=self._ledger.topic_id,
            ledger_id=self._ledger.ledger_id,
            first_entry=self._first_entry,
            entries=self.end - self._first_entry,
            rows=int(rows.sum()),
            bytes=self._bytes,
            file_id=file_id,
            entry_rows=run_lengths(rows),
            entry_offset=0,
            publish_min_ms=self._publish_ms[0],
            publish_max_ms=self._publish_ms[1],
            **self.places.fields(),
        )
