"""Writing a compacted ledger into segment files: batches of kept rows, each of one ledger, then the index."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from pulsar_on_spark.ledger.segments.segment_writer import SegmentFileWriter, WrittenFile
from pulsar_on_spark.metadata.records import CompactedFile
from pulsar_on_spark.model.ids import FileId, LedgerId, WriteId
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.storage.storage_path import PathFailure, StoragePath
from pulsar_on_spark.topic.entries.cutting import RECORD_BATCH_BYTES
from pulsar_on_spark.topic.maintenance.compaction.reading import Index, index_batch
from pulsar_on_spark.topic.maintenance.compaction.survivors import Kept

MAX_FILE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class WrittenLedger:
    """A durable compacted ledger that no record names yet; `CompactionRecord` explains the fields."""

    files: tuple[CompactedFile, ...]
    written: tuple[WrittenFile, ...]
    failures: tuple[PathFailure, ...]
    entries: int
    rows: int
    bytes: int
    last_batch_index: int


class CompactedLedgerWriter:
    """Writer of one compacted ledger. For one thread; as a context manager it deletes unfinished files.

    Args:
        write_id: An unused write id.
        paths: The storage paths that copies may be written to.
        quorum: The number of copies, and how many of them must become durable.
    """

    def __init__(self, write_id: WriteId, paths: Sequence[StoragePath], quorum: Quorum) -> None:
        self._write_id = write_id
        self._paths = tuple(paths)
        self._quorum = quorum
        self._index: Index = {}
        self._ledger: LedgerId | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._writer: SegmentFileWriter | None = None
        self._batches: list[tuple[int, int, int, int]] = []
        self._files: list[CompactedFile] = []
        self._written: list[WrittenFile] = []
        self._entries = self._rows = self._bytes = 0
        self._last_batch_index = -1

    def add(self, ledger: LedgerId, kept: Kept) -> None:
        """Append rows; the caller adds them in the order of the chain.

        Raises:
            NotEnoughCopiesError: fewer than ack-quorum copies are left.
        """
        if ledger != self._ledger:
            self._flush()
            self._ledger = ledger
        self._index.setdefault(ledger, BitMap64()).update(BitMap64(kept.entries.astype(np.uint64)))
        self._waiting.append(kept.rows)
        self._waiting_bytes += kept.rows.nbytes
        self._entries += len(kept.entries)
        self._rows += kept.rows.num_rows
        for name in ("key", "value", "raw"):
            self._bytes += pc.sum(pc.binary_length(kept.rows.column(name))).as_py() or 0
        last = kept.rows.column("batch_index")[-1].as_py()
        self._last_batch_index = -1 if last is None else last
        if self._waiting_bytes >= RECORD_BATCH_BYTES:
            self._flush()

    def finish(self) -> WrittenLedger:
        """Write the index and make the ledger durable.

        Raises:
            NotEnoughCopiesError: fewer than ack-quorum copies became durable.
        """
        self._flush()
        if self._writer is not None:
            self._writer.write_batch(index_batch(self._index))
            self._close_file()
        failures = tuple(failure for written in self._written for failure in written.failures)
        counts = (self._entries, self._rows, self._bytes, self._last_batch_index)
        return WrittenLedger(tuple(self._files), tuple(self._written), failures, *counts)

    def __enter__(self) -> CompactedLedgerWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.abort()

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_batches(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        if self._writer is not None and self._writer.size_bytes >= MAX_FILE_BYTES:
            self._close_file()
        if self._writer is None:
            file_id = FileId(f"{self._write_id}-{secrets.token_hex(6)}")
            self._writer = SegmentFileWriter(file_id, self._paths, self._quorum)
        self._writer.write_batch(rows)
        assert self._ledger is not None, "what waits has a ledger"
        entries = rows.column("entry_id")
        self._batches.append((self._ledger, entries[0].as_py(), entries[-1].as_py(), rows.num_rows))

    def _close_file(self) -> None:
        assert self._writer is not None, "a file is open"
        written = self._writer.close()
        self._writer = None
        self._written.append(written)
        self._files.append(CompactedFile(file_id=written.file_id, batches=tuple(self._batches)))
        self._batches = []
