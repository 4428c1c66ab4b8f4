"""Splitting a read over tasks, and what a task does: slices in, Arrow batches in Spark's columns out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
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
MAX_SPLIT_BYTES = 256 << 20
"""More than this is split, so that tasks stay short enough to be spread evenly."""
MESSAGE_COST_BYTES = 64
"""What a message costs beside its key and value, so that many small ones are split too."""


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
    """Cut the pieces into tasks of about equal size; together they are the pieces, in order, each entry once.

    Args:
        pieces: what to read, in order.
        paths: the storage paths.
        min_partitions: at least so many tasks, if there are so many record batches; by default the machine's cores.
        max_records: at most so many messages a task, or a single entry (up to 1,000 messages), which is never split.
    """
    grains = [grain for piece in pieces for grain in _grains(piece, max_records)]
    size = sum(grain.size for grain in grains)
    wanted = min_partitions or min(os.cpu_count() or 1, -(-size // MIN_SPLIT_BYTES))
    tasks = max(wanted, -(-size // MAX_SPLIT_BYTES))
    return [ScanPartition(_joined(group), paths) for group in _groups(grains, size, tasks, max_records)]


@dataclass(frozen=True, slots=True)
class _Grain:
    """What is never split over tasks: the entries [first, end) of a piece, those of one record batch or fewer."""

    piece: ScanPiece
    first: int
    end: int
    rows: int
    size: int


def _grains(piece: ScanPiece, max_records: int | None) -> Iterator[_Grain]:
    slice_ = piece.slice
    segment = slice_.segment
    runs = np.array(segment.entry_rows, np.int64).reshape(-1, 2)
    ends = np.concatenate(([0], np.cumsum(np.repeat(runs[:, 1], runs[:, 0]))))
    bytes_a_row = segment.bytes / max(segment.rows, 1) + MESSAGE_COST_BYTES
    for batch in slice_.batches():
        bounds = [max(batch.first, slice_.first), min(batch.end, slice_.end)]
        if max_records is not None:
            bounds = _cut(
                ends[bounds[0] - segment.first_entry : bounds[1] - segment.first_entry + 1], max_records, bounds
            )
        for first, end in pairwise(bounds):
            rows = int(ends[end - segment.first_entry] - ends[first - segment.first_entry])
            yield _Grain(piece, first, end, rows, round(rows * bytes_a_row))


def _cut(row_ends: npt.NDArray[np.int64], max_records: int, bounds: Sequence[int]) -> list[int]:
    """Bounds of runs of entries with at most `max_records` messages each, or a single entry."""
    first, end = bounds
    cuts = [first]
    while cuts[-1] < end:
        at = cuts[-1] - first
        fitting = int(np.searchsorted(row_ends, row_ends[at] + max_records, side="right")) - 1
        cuts.append(first + max(fitting, at + 1))
    return cuts


def _groups(grains: Sequence[_Grain], size: int, tasks: int, max_records: int | None) -> Iterator[list[_Grain]]:
    """The grains as `tasks` groups of about equal size, fewer if there are fewer grains, more to keep `max_records`."""
    group: list[_Grain] = []
    group_size = rows = 0
    left, tasks_left = size, tasks
    for position, grain in enumerate(grains):
        enough = tasks_left > 1 and (
            group_size + grain.size / 2 > left / tasks_left or len(grains) - position < tasks_left
        )
        if group and (enough or (max_records is not None and rows + grain.rows > max_records)):
            yield group
            left, tasks_left = left - group_size, max(tasks_left - 1, 1)
            group, group_size, rows = [], 0, 0
        group.append(grain)
        group_size += grain.size
        rows += grain.rows
    if group:
        yield group


def _joined(grains: Sequence[_Grain]) -> list[ScanPiece]:
    """Adjacent grains of one piece as one again, so that a task opens its file once."""
    joined: list[_Grain] = []
    for grain in grains:
        if joined and joined[-1].piece is grain.piece and joined[-1].end == grain.first:
            joined[-1] = replace(joined[-1], end=grain.end)
        else:
            joined.append(grain)
    return [ScanPiece(grain.piece.slice.part(grain.first, grain.end), grain.piece.slots) for grain in joined]


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
