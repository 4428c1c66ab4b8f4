"""The split of a read into tasks, and the work of a task, which turns slices into Arrow batches in Spark's columns."""

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
from pulsar_on_spark.datasource.worker_process import keep_modules
from pulsar_on_spark.model.ids import LedgerId, PathId
from pulsar_on_spark.storage.root_place import RootPlace
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.data_path.reading import SliceReader
from pulsar_on_spark.topic.data_path.slot_filter import SlotFilter
from pulsar_on_spark.topic.data_path.tail import Tail
from pulsar_on_spark.topic.maintenance.compaction.messages import CompactedReader
from pulsar_on_spark.topic.maintenance.compaction.reading import CompactedSlice
from pulsar_on_spark.topic.managed_ledger.chain.slices import SegmentSlice
from pulsar_on_spark.topic.managed_ledger.cursor.handover import unacked_rows
from pulsar_on_spark.topic.managed_ledger.cursor.holes import AckHoles
from pulsar_on_spark.topic.managed_ledger.cursor.record import decode_holes

MIN_SPLIT_BYTES = 1 << 20
"""Smallest size of a task that is worth its overhead."""
MAX_SPLIT_BYTES = 256 << 20
"""Largest size of a task, because short tasks can be spread evenly over the cores."""
MESSAGE_COST_BYTES = 64
"""Assumed cost of each message in addition to its stored bytes, so that reads of many small messages are split, too."""
_ID_COLUMNS = ("entry_id", "batch_index")


@dataclass(frozen=True, slots=True)
class ScanPiece:
    """A slice to read, and the messages in it that are requested.

    Attributes:
        slice: The slice of the topic's ledgers, or of its compacted ledger.
        slots: The slots whose messages are requested; None for all.
        left_out: The encoded ack holes, whose messages are left out because clients of a broker had acknowledged them;
            empty for none.
    """

    slice: SegmentSlice | CompactedSlice
    slots: frozenset[int] | None = None
    left_out: bytes = b""


Paths = Mapping[PathId, StoragePath]


class ScanPartition(InputPartition):
    """The pieces that one task reads, in order, with the storage paths by id."""

    def __init__(self, pieces: Sequence[ScanPiece], paths: Paths) -> None:
        super().__init__(None)
        self.pieces = tuple(pieces)
        self.paths = paths


def split(
    pieces: Sequence[ScanPiece], paths: Paths, min_partitions: int | None, max_records: int | None
) -> list[ScanPartition]:
    """Return the pieces, split among tasks of about equal size. Together, the tasks read each entry once, in order.

    Args:
        pieces: The pieces to read, in order.
        paths: The storage paths by id.
        min_partitions: Minimum number of tasks, if there are enough record batches. None for the number of this
            machine's cores or, for a large read, a multiple of it; less for a small read.
        max_records: Maximum number of messages of a task; None for no limit. But a task has at least one entry, and an
            entry (up to 1,000 messages) is never split.
    """
    grains = [grain for piece in pieces for grain in _grains(piece, max_records)]
    size = sum(grain.size for grain in grains)
    tasks = _wanted_tasks(size, min_partitions)
    return [ScanPartition(_joined(group), paths) for group in _groups(grains, size, tasks, max_records)]


def _wanted_tasks(size: int, min_partitions: int | None) -> int:
    needed = -(-size // MAX_SPLIT_BYTES)
    if min_partitions is not None:
        return max(min_partitions, needed)
    cores = os.cpu_count() or 1
    return max(min(cores, -(-size // MIN_SPLIT_BYTES)), -(-needed // cores) * cores if needed > 1 else 1)


@dataclass(frozen=True, slots=True)
class _Grain:
    """The smallest unit of a split: entries [first, end) of a piece, all of one record batch.

    In a compacted ledger, the unit is a whole record batch, and [first, end) are the numbers of record batches.
    """

    piece: ScanPiece
    first: int
    end: int
    rows: int
    size: int


def _grains(piece: ScanPiece, max_records: int | None) -> Iterator[_Grain]:
    slice_ = piece.slice
    if isinstance(slice_, CompactedSlice):
        for number, rows in enumerate(slice_.batch_rows, slice_.first):
            yield _Grain(piece, number, number + 1, rows, round(rows * (slice_.bytes_a_row + MESSAGE_COST_BYTES)))
        return
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
    """Divide the entries [first, end) into runs of at most `max_records` messages, or of a single entry.

    Args:
        row_ends: The number of messages before each entry and, last, before `end`.
        max_records: The maximum number of messages of a run.
        bounds: `first` and `end`.

    Returns:
        The bounds of the runs, from `first` to `end`.
    """
    first, end = bounds
    cuts = [first]
    while cuts[-1] < end:
        at = cuts[-1] - first
        fitting = int(np.searchsorted(row_ends, row_ends[at] + max_records, side="right")) - 1
        cuts.append(first + max(fitting, at + 1))
    return cuts


def _groups(grains: Sequence[_Grain], size: int, tasks: int, max_records: int | None) -> Iterator[list[_Grain]]:
    """Yield the grains in `tasks` groups of about equal size, given their total `size` in bytes.

    There are fewer groups if there are not enough grains, and more if `max_records` (None for no limit) requires it.
    """
    group: list[_Grain] = []
    group_size = rows = 0
    size_left, tasks_left = size, tasks
    for position, grain in enumerate(grains):
        enough = tasks_left > 1 and (
            group_size + grain.size / 2 > size_left / tasks_left or len(grains) - position < tasks_left
        )
        if group and (enough or (max_records is not None and rows + grain.rows > max_records)):
            yield group
            size_left, tasks_left = size_left - group_size, max(tasks_left - 1, 1)
            group, group_size, rows = [], 0, 0
        group.append(grain)
        group_size += grain.size
        rows += grain.rows
    if group:
        yield group


def _joined(grains: Sequence[_Grain]) -> list[ScanPiece]:
    """Return the pieces of a task, with adjacent grains of one piece joined, so that the task opens its file once."""
    joined: list[_Grain] = []
    for grain in grains:
        if joined and joined[-1].piece is grain.piece and joined[-1].end == grain.first:
            joined[-1] = replace(joined[-1], end=grain.end)
        else:
            joined.append(grain)
    return [replace(grain.piece, slice=grain.piece.slice.part(grain.first, grain.end)) for grain in joined]


@dataclass(frozen=True, slots=True)
class Origin:
    """The topic, partition index (-1 for no partition) and ledger of rows.

    A row's entry id is `entry_offset` plus its column `entry_id`.
    """

    topic: str
    partition: int
    ledger: LedgerId
    entry_offset: int

    def name(self, batch: pa.RecordBatch, row: int) -> str:
        """Return a message's id and topic, for use in an error. The batch must have the column `entry_id`."""
        entry = batch.column("entry_id")[row].as_py() + self.entry_offset
        return f"message {self.ledger}:{entry} of {self.topic}"


@dataclass(frozen=True)
class Scan:
    """The part of a read's plan that all its tasks share. Picklable.

    Attributes:
        root: The root's folder or URL.
        schema: The columns, and the decoder of values.
        fail_on_data_loss: True if lost messages are an error.
        slot_filter: The filter for pieces with some of the slots; None if all pieces have all slots.
    """

    root: RootPlace
    schema: ReadSchema
    fail_on_data_loss: bool
    slot_filter: SlotFilter | None = None

    def run(self, partition: ScanPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a task as batches in Spark's columns.

        Raises:
            DataLossError: messages are lost, and `fail_on_data_loss` is true.
        """
        decoder = self.schema.decoder
        needed = (
            *self.schema.selection.segment_columns,
            *(decoder.segment_columns if decoder is not None else ()),
            *(self.slot_filter.segment_columns if self.slot_filter else ()),
            *(_ID_COLUMNS if any(piece.left_out for piece in partition.pieces) else ()),
        )
        columns = tuple(dict.fromkeys(needed))
        reader = SliceReader(self.root, partition.paths, columns, self.fail_on_data_loss)
        compacted = CompactedReader(self.root, partition.paths, columns, self.fail_on_data_loss)
        for piece in partition.pieces:
            if isinstance(piece.slice, CompactedSlice):
                for ledger, batch in compacted.read(piece.slice):
                    if batch.num_rows:
                        yield self._to_spark(Origin(piece.slice.topic, piece.slice.partition, ledger, 0), batch)
                continue
            left_out = decode_holes(piece.left_out)
            for slice_, batch in reader.read(piece.slice):
                kept = batch
                if piece.slots is not None and self.slot_filter is not None:
                    kept = self.slot_filter.select_rows(batch, slice_, piece.slots)
                if left_out:
                    kept = _unacked(kept, slice_, left_out)
                if kept.num_rows:
                    ledger, offset = LedgerId(slice_.segment.ledger_id), slice_.segment.entry_offset
                    yield self._to_spark(Origin(slice_.topic, slice_.partition, ledger, offset), kept)
        keep_modules()

    def _to_spark(self, origin: Origin, batch: pa.RecordBatch) -> pa.RecordBatch:
        selection, decoder = self.schema.selection, self.schema.decoder
        values = None
        if decoder is not None:
            values = decoder.decode(batch, origin.topic, lambda row: origin.name(batch, row))
        return build(batch, origin.ledger, origin.entry_offset, origin.topic, origin.partition, selection, values)


def _unacked(batch: pa.RecordBatch, slice_: SegmentSlice, left_out: AckHoles) -> pa.RecordBatch:
    entries = batch.column("entry_id").to_numpy() + slice_.segment.entry_offset
    indexes = batch.column("batch_index").fill_null(-1).to_numpy()
    keep = unacked_rows(left_out, LedgerId(slice_.segment.ledger_id), entries, indexes)
    return batch if keep.all() else batch.filter(pa.array(keep))


def spark_tail(root: RootHandle, fail_on_data_loss: bool) -> Tail:
    """Return the reader of acknowledged entries in journals, for Spark.

    For a root on an object store, whose tasks may run on any host, the reader has sealed ledgers only.
    """
    return Tail(root, fail_on_data_loss=fail_on_data_loss, sealed_only=not isinstance(root.place, Path))
