"""Reading slices of a topic: from any good copy, after merges, with losses as errors or as counted, reported skips.

A plan names entries, not files. Where a file is gone because its segments were merged, the place is resolved again; the
messages and their ids are the same. What no copy can give is an error, or is skipped if the caller allows losses.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_on_spark.ledger.reports import Report, ReportKind, write_report
from pulsar_on_spark.ledger.segment_reader import read_batches
from pulsar_on_spark.ledger.storage_path import StoragePath
from pulsar_on_spark.model.errors import CorruptSegmentError, DataLossError, SegmentGoneError
from pulsar_on_spark.model.ids import EntryId, FileId, PathId, Position
from pulsar_on_spark.topic.chain import Loss, SegmentSlice, SliceBatch, plan_range
from pulsar_on_spark.topic.root import Root

log = logging.getLogger(__name__)

_RESOLVE_ATTEMPTS = 5
"""A place is resolved again at most so often: merges replace a file once, and it stays for ten minutes."""


@dataclass(frozen=True, slots=True)
class SliceReader:
    """Reads slices of one root. Picklable: tasks get it with the paths as the driver saw them.

    Attributes:
        root: The root's path, for reports and for resolving a place again.
        paths: The storage paths.
        columns: Columns of `SEGMENT_SCHEMA` to decode.
        fail_on_data_loss: Whether a loss is an error; if not, it is skipped, counted, logged and reported.
    """

    root: Path
    paths: Mapping[PathId, StoragePath]
    columns: tuple[str, ...]
    fail_on_data_loss: bool = True

    def read(self, slice_: SegmentSlice) -> Iterator[tuple[SegmentSlice, pa.RecordBatch]]:
        """The slice's messages in order, as (slice that the batch is of, batch in the order of `SEGMENT_SCHEMA`).

        The slice given back differs from the one asked for where the place was resolved again.

        Raises:
            DataLossError: no copy of a part is good, and `fail_on_data_loss` is set.
        """
        position = slice_.first
        for attempt in range(_RESOLVE_ATTEMPTS):
            try:
                for end, batch in self._read_on(slice_.part(position, slice_.end)):
                    position = end
                    if batch is not None:
                        yield slice_, batch
                return
            except SegmentGoneError as error:
                pieces, losses = self._resolve(slice_.part(position, slice_.end))
                moved = any(piece.file.file_id != slice_.file.file_id for piece in pieces)
                if len(pieces) == 1 and moved and not losses and attempt + 1 < _RESOLVE_ATTEMPTS:
                    slice_ = pieces[0]
                    continue
                if moved:
                    for piece in pieces:
                        yield from self.read(piece)
                    if losses:
                        self._lose(slice_.part(position, slice_.end), losses[0].reason + ".")
                    return
                self._lose(slice_.part(position, slice_.end), str(error))
                return

    def _read_on(self, slice_: SegmentSlice) -> Iterator[tuple[int, pa.RecordBatch | None]]:
        """(end of what is read, batch; None where it is lost), all batches from one open file while they are good."""
        todo = slice_.batches()
        while todo:
            done = 0
            try:
                for batch in self._decoded(slice_, todo):
                    yield todo[done].end, self._cut(slice_, todo[done], batch)
                    done += 1
                return
            except SegmentGoneError:
                raise
            except CorruptSegmentError as error:
                # The error is about a group of batches: only the one that can't be read alone either is lost.
                bad, todo = todo[done], todo[done + 1 :]
                yield bad.end, self._read_alone(slice_, bad, error)

    def _read_alone(self, slice_: SegmentSlice, where: SliceBatch, error: CorruptSegmentError) -> pa.RecordBatch | None:
        try:
            return self._cut(slice_, where, next(self._decoded(slice_, [where])))
        except CorruptSegmentError:
            self._lose(slice_.part(where.first, where.end), str(error))
            return None

    def _decoded(self, slice_: SegmentSlice, batches: Sequence[SliceBatch]) -> Iterator[pa.RecordBatch]:
        columns = self.columns if "entry_id" in self.columns else (*self.columns, "entry_id")
        cut = any(where.first < slice_.first or where.end > slice_.end for where in batches)
        first = batches[0]
        return read_batches(
            slice_.file,
            self.paths,
            first.number,
            len(batches),
            columns if cut else self.columns,
            lambda path, reason: self._report(slice_.file.file_id, path, reason),
            at_stake=f"{slice_.topic} entries {slice_.segment.ledger_id}:{first.first} to {batches[-1].end - 1}",
        )

    def _cut(self, slice_: SegmentSlice, where: SliceBatch, batch: pa.RecordBatch) -> pa.RecordBatch:
        if where.first < slice_.first or where.end > slice_.end:
            offset = slice_.segment.entry_offset
            entries = batch.column("entry_id")
            above = pc.greater_equal(entries, slice_.first - offset)
            batch = batch.filter(pc.and_(above, pc.less(entries, slice_.end - offset)))
        wanted = set(self.columns)
        return batch if set(batch.schema.names) <= wanted else batch.drop_columns(["entry_id"])

    def _resolve(self, slice_: SegmentSlice) -> tuple[Sequence[SegmentSlice], Sequence[Loss]]:
        start = slice_.start_position
        end = Position(start.ledger, EntryId(slice_.end))
        view = Root(self.root).store.view(durable=True)
        plan = plan_range(view, slice_.topic, slice_.topic_id, slice_.partition, start, end)
        return plan.slices, plan.losses

    def _lose(self, slice_: SegmentSlice, reason: str) -> None:
        if self.fail_on_data_loss:
            raise DataLossError(
                f"{slice_.rows} messages of {slice_.topic} (entries {slice_.start_position} to {slice_.end - 1}) are "
                f"lost: {reason} To read on without them, set option failOnDataLoss to false."
            )
        text = f"{slice_.rows} messages of {slice_.topic} from {slice_.start_position} on were skipped: {reason}"
        log.warning("%s", text)
        write_report(self.root, Report(ReportKind.LOSS, FileId(slice_.file.file_id), None, text, _now_ms()))

    def _report(self, file_id: str, path: PathId, reason: str) -> None:
        log.warning("Copy of file %s on storage path %d is bad, another one is used: %s", file_id, path, reason)
        write_report(self.root, Report(ReportKind.BAD_COPY, FileId(file_id), path, reason, _now_ms()))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
