"""Reading a compacted ledger: its rows between two positions, and its index.

The files of a compacted ledger stay for ten minutes after the ledger was replaced or its topic was deleted, so that
active reads can finish. Then they are deleted. A reader of newer metadata gets the files that replaced them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.ledger.segments.segment_reader import read_batches
from pulsar_on_spark.metadata.records import CompactedFile, CompactionRecord, FileRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import MetadataError
from pulsar_on_spark.model.ids import EARLIEST, LedgerId, Position
from pulsar_on_spark.storage.storage_path import PathTable
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.present_copies import OnBadCopy
from pulsar_on_spark.topic.managed_ledger.chain.compaction_record import horizon_of

Index = dict[LedgerId, BitMap64]
"""The ids of the entries that have remaining messages, by ledger."""


@dataclass(frozen=True, slots=True)
class CompactedSlice:
    """Part of a compacted ledger: the entries in [start, stop) that are in batches [first, end) of one file.

    Attributes:
        topic: The topic's full name.
        partition: The topic's partition index; -1 if it is not a partition.
        file: The file.
        compacted: The contents of the file's batches.
        bytes_a_row: Mean key and value bytes of a message.
        first: The number of the first batch.
        end: The number after the last batch.
        start: The first position to read.
        stop: The first position not to read.
    """

    topic: str
    partition: int
    file: FileRecord
    compacted: CompactedFile
    bytes_a_row: float
    first: int
    end: int
    start: Position
    stop: Position

    @property
    def batch_rows(self) -> tuple[int, ...]:
        """The number of messages of each batch, even if only a part of the batch is read."""
        return tuple(rows for _, _, _, rows in self.compacted.batches[self.first : self.end])

    def part(self, first: int, end: int) -> CompactedSlice:
        """Return the part of the slice in batches [first, end) of its file."""
        return replace(self, first=max(first, self.first), end=min(end, self.end))

    def read(
        self, paths: PathTable, columns: Sequence[str] | None, on_bad_copy: OnBadCopy
    ) -> Iterator[tuple[LedgerId, pa.RecordBatch]]:
        """Yield (ledger, rows) for each batch, with entry ids in the column `entry_id`.

        Args:
            paths: Returns the root's storage paths.
            columns: Columns of `SEGMENT_SCHEMA`, including `entry_id`; None for all.
            on_bad_copy: Called for copies that are bad or missing.

        Raises:
            SegmentGoneError: the file was deleted, because the topic was compacted again or deleted.
            CorruptSegmentError: no good copy is left.
        """
        batches = read_batches(
            self.file,
            paths,
            range(self.first, self.end),
            columns,
            partial(on_bad_copy, self.file),
            at_stake=f"compacted entries of {self.topic} before {self.stop}",
        )
        for (ledger, first, last, _), batch in zip(self.compacted.batches[self.first : self.end], batches, strict=True):
            yield LedgerId(ledger), self._cut(ledger, first, last, batch)

    def _cut(self, ledger: int, first: int, last: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        after = self.start.entry if ledger == self.start.ledger else 0
        if first < after:
            batch = batch.filter(pc.greater_equal(batch.column("entry_id"), after))
        if ledger == self.stop.ledger and last >= self.stop.entry:
            batch = batch.filter(pc.less(batch.column("entry_id"), self.stop.entry))
        return batch


def compacted_slices(
    view: View, part: TopicPart, record: CompactionRecord, start: Position = EARLIEST, end: Position | None = None
) -> list[CompactedSlice]:
    """Return the slices of a compacted ledger in [start, end), in order: at most one for each file.

    Args:
        view: The metadata.
        part: The topic.
        record: The compaction in this view.
        start: The first position to read.
        end: The first position not to read; None for the horizon.

    Raises:
        MetadataError: a file of the compacted ledger has no record.
    """
    stop = min(end or horizon_of(record), horizon_of(record))
    slices = []
    for compacted in record.files:
        wanted = [
            number
            for number, (ledger, first, last, _) in enumerate(compacted.batches)
            if (ledger, last) >= (start.ledger, start.entry) and (ledger, first) < (stop.ledger, stop.entry)
        ]
        if wanted:
            file = _file(view, part, compacted.file_id)
            bytes_a_row = record.bytes / max(record.rows, 1)
            bounds = (wanted[0], wanted[-1] + 1, start, stop)
            slices.append(CompactedSlice(part.name, part.partition, file, compacted, bytes_a_row, *bounds))
    return slices


def read_index(
    view: View,
    part: TopicPart,
    record: CompactionRecord,
    paths: PathTable,
    on_bad_copy: OnBadCopy,
) -> Index:
    """Return the index of the remaining entries; empty if no message remains.

    Arguments and errors are those of `compacted_slices` and `CompactedSlice.read`.
    """
    if not record.files:
        return {}
    last = record.files[-1]
    file = _file(view, part, last.file_id)
    columns = ("ledger_id", "raw")
    batches = read_batches(
        file,
        paths,
        [len(last.batches)],
        columns,
        partial(on_bad_copy, file),
        at_stake=f"the index of the compacted ledger of {part.name}",
    )
    index: Index = {}
    for batch in batches:
        for ledger, bitmap in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
            index[LedgerId(ledger)] = BitMap64.deserialize(bitmap)
    return index


def index_batch(index: Index) -> pa.RecordBatch:
    """Make the batch, in `SEGMENT_SCHEMA`, from which `read_index` reads the index."""
    arrays = {
        "ledger_id": pa.array(list(index), pa.int64()),
        "raw": pa.array([entries.serialize() for entries in index.values()], pa.binary()),
    }
    columns = [arrays.get(field.name, pa.nulls(len(index), field.type)) for field in SEGMENT_SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=SEGMENT_SCHEMA)


def _file(view: View, part: TopicPart, file_id: str) -> FileRecord:
    file = view.get(FileRecord, file_id)
    if file is None:
        raise MetadataError(
            f"The compacted ledger of {part.name} names file {file_id}, which has no record: compact the topic again."
        )
    return file
