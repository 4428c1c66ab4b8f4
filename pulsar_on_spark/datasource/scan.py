"""Splitting a read over tasks, and what a task does: slices in, Arrow batches in Spark's columns out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pulsar_on_spark.datasource.columns import build
from pulsar_on_spark.datasource.typed import ReadSchema
from pulsar_on_spark.ledger.storage_path import StoragePath
from pulsar_on_spark.model.ids import LedgerId, PathId
from pulsar_on_spark.topic.chain import SegmentSlice
from pulsar_on_spark.topic.reading import SliceReader
from pulsar_on_spark.topic.slot_filter import SlotFilter

MIN_SPLIT_BYTES = 1 << 20
"""Less than this isn't split further: a task costs more than it saves."""
MAX_SPLIT_BYTES = 64 << 20
"""More than this is split, so that tasks stay short enough to be spread evenly."""


@dataclass(frozen=True, slots=True)
class ScanPiece:
    """A slice, and the slots whose messages are wanted (None: all)."""

    slice: SegmentSlice
    slots: frozenset[int] | None = None


Paths = Mapping[PathId, StoragePath]


class ScanPartition(InputPartition):
    """One task's share of a read, in order, and the storage paths as the driver knows them."""

    def __init__(self, pieces: Sequence[ScanPiece], paths: Paths) -> None:
        super().__init__(None)
        self.pieces = tuple(pieces)
        self.paths = paths


def split(
    pieces: Sequence[ScanPiece], paths: Paths, min_partitions: int | None, max_records: int | None
) -> list[ScanPartition]:
    """Cut the pieces into tasks at batch boundaries.

    Args:
        pieces: what to read, in order.
        paths: the storage paths.
        min_partitions: at least so many tasks, if there are so many batches; by default the machine's cores.
        max_records: at most so many messages a task, to the nearest batch.
    """
    size = sum(piece.slice.bytes for piece in pieces)
    wanted = min_partitions or os.cpu_count() or 1
    target = max(-(-size // wanted), 1)
    if min_partitions is None:
        target = min(max(target, MIN_SPLIT_BYTES), MAX_SPLIT_BYTES)
    partitions: list[ScanPartition] = []
    current: list[ScanPiece] = []
    size_bytes = rows = 0
    for piece in _batchwise(pieces, target, max_records):
        if current and (
            size_bytes + piece.slice.bytes // 2 > target or (max_records and rows + piece.slice.rows > max_records)
        ):
            partitions.append(ScanPartition(_joined(current), paths))
            current, size_bytes, rows = [], 0, 0
        current.append(piece)
        size_bytes += piece.slice.bytes
        rows += piece.slice.rows
    if current:
        partitions.append(ScanPartition(_joined(current), paths))
    return partitions


def _batchwise(pieces: Sequence[ScanPiece], target: int, max_records: int | None) -> Iterator[ScanPiece]:
    for piece in pieces:
        if piece.slice.bytes <= target // 2 and (max_records is None or piece.slice.rows <= max_records):
            yield piece
            continue
        for batch in piece.slice.batches():
            yield ScanPiece(piece.slice.part(batch.first, batch.end), piece.slots)


def _joined(pieces: Sequence[ScanPiece]) -> list[ScanPiece]:
    """Adjacent pieces of one segment as one piece again, so that a task opens its file once."""
    joined: list[ScanPiece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.slots == piece.slots
            and last.slice.segment is piece.slice.segment
            and last.slice.end == piece.slice.first
        ):
            joined[-1] = ScanPiece(replace(last.slice, end=piece.slice.end), piece.slots)
        else:
            joined.append(piece)
    return joined


@dataclass(frozen=True)
class Scan:
    """What every task of a read needs to know besides its partition. Picklable."""

    root: Path
    schema: ReadSchema
    fail_on_data_loss: bool
    slot_filter: SlotFilter | None = None

    def run(self, partition: ScanPartition) -> Iterator[pa.RecordBatch]:
        """The partition's messages as batches in Spark's columns."""
        needed = (
            *self.schema.selection.segment_columns,
            *(self.slot_filter.segment_columns if self.slot_filter else ()),
        )
        reader = SliceReader(self.root, partition.paths, tuple(dict.fromkeys(needed)), self.fail_on_data_loss)
        for piece in partition.pieces:
            for slice_, batch in reader.read(piece.slice):
                kept = batch
                if piece.slots is not None and self.slot_filter is not None:
                    kept = self.slot_filter.keep(batch, slice_, piece.slots)
                if kept.num_rows:
                    yield self._to_spark(slice_, kept)

    def _to_spark(self, slice_: SegmentSlice, batch: pa.RecordBatch) -> pa.RecordBatch:
        selection, typed = self.schema.selection, self.schema.typed
        values = None
        if typed is not None and selection.needs_values:
            values = typed.decode(batch.column("value"), lambda row: _name(slice_, batch, row))
        ledger = LedgerId(slice_.segment.ledger_id)
        return build(batch, ledger, slice_.segment.entry_offset, slice_.topic, slice_.partition, selection, values)


def _name(slice_: SegmentSlice, batch: pa.RecordBatch, row: int) -> str:
    """A message's id, as far as the batch has it, and its topic."""
    segment = slice_.segment
    if "entry_id" not in batch.schema.names:
        return f"a message in ledger {segment.ledger_id} of {slice_.topic}"
    entry = batch.column("entry_id")[row].as_py() + segment.entry_offset
    return f"message {segment.ledger_id}:{entry} of {slice_.topic}"
