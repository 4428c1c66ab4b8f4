"""Pieces of a build: ranges of a topic, which this process or Spark's tasks write as data files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from pulsar_on_spark.history_table.columns import SEGMENT_COLUMNS, SYSTEM, system_columns
from pulsar_on_spark.history_table.plan import grouped
from pulsar_on_spark.history_table.table import HistoryTable
from pulsar_on_spark.history_table.values import ValueColumns
from pulsar_on_spark.metadata.log.entry import DataFile
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.root_place import RootPlace
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.data_path.reading import SliceReader
from pulsar_on_spark.topic.managed_ledger.chain.slices import SegmentSlice

SKIP_LOST: Final = "use --skip-lost of `pulsarpy history build`"
"""The remedy in the error about messages that cannot be read."""
_DECODED_BYTES: Final = 16 << 20
"""Approximate bytes of the rows that are decoded together, at 8 bytes for each field, even an absent one."""


@dataclass(frozen=True)
class Piece:
    """A range of one topic or partition that is to be written as data files. Picklable.

    Attributes:
        root: The root.
        table: The history table's folder, relative to the root or the storage path.
        path: The history table's storage path; None for the root itself.
        generation: The generation of the files.
        slices: The slices of the range.
        paths: The storage paths by id.
        values: The columns of the values.
        file_bytes: Bytes in memory at which the rows of one data file are complete.
        fail_on_data_loss: True if lost or unreadable messages are an error.
    """

    root: RootPlace
    table: str
    path: StoragePath | None
    generation: int
    slices: tuple[SegmentSlice, ...]
    paths: Mapping[PathId, StoragePath]
    values: ValueColumns
    file_bytes: int
    fail_on_data_loss: bool

    def write(self) -> list[DataFile]:
        """Write the piece's data files, and return them. No version of the table names them yet.

        Raises:
            HistoryTableError: a file cannot be written.
            DataLossError, UnreadableMessageError: a message cannot be read, and `fail_on_data_loss` is true.
            CopiesUnreachableError: the messages cannot be read now.
        """
        table = HistoryTable(self.root, self.table, self.path)
        needed = tuple(dict.fromkeys((*SEGMENT_COLUMNS, *self.values.segment_columns)))
        reader = SliceReader(self.root, self.paths, needed, self.fail_on_data_loss, SKIP_LOST)
        batches = (batch for slice_ in self.slices for batch in self._rows(reader, slice_))
        files = []
        for group in grouped(batches, lambda batch: batch.nbytes, self.file_bytes):
            rows = pa.Table.from_batches(group)
            if rows.num_rows:
                files.append(table.write_file(f"g{self.generation}", self.slices[0].partition, rows.schema, [rows]))
        return files

    def _rows(self, reader: SliceReader, slice_: SegmentSlice) -> Iterator[pa.RecordBatch]:
        """Yield a slice's messages as rows of the history table."""
        columns = all_columns(self.values)
        at_once = max(_DECODED_BYTES // (8 * sum(_leaves(field.type) for field in columns)), 1)
        for read, batch in reader.read(slice_):
            segment = read.segment
            for first in range(0, batch.num_rows, at_once):
                part = batch.slice(first, at_once)
                system = system_columns(part, read.partition, segment.ledger_id, segment.entry_offset)
                yield pa.RecordBatch.from_arrays([*self.values.arrays(part, read.topic), *system], schema=columns)


def _leaves(kind: pa.DataType) -> int:
    """Return the number of leaf columns that a type has in an Arrow batch."""
    return sum(_leaves(kind.field(number).type) for number in range(kind.num_fields)) or 1


def all_columns(values: ValueColumns) -> pa.Schema:
    """Return all columns of a history table: the columns of the values, and then `SYSTEM`."""
    return pa.schema([*values.columns, *SYSTEM])


def write_here(pieces: list[Piece]) -> list[DataFile]:
    """Write pieces in this process, one after another, and return their data files (errors as `Piece.write`)."""
    return [file for piece in pieces for file in piece.write()]
