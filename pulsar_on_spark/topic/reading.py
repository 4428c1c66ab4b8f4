"""Reading slices of a topic: from any good copy, after merges, with losses as errors or as counted, reported skips.

A plan names entries, not files. Where a file is gone because its segments were merged, the place is resolved again; the
messages and their ids are the same. What no copy can give is an error, or is skipped if the caller allows losses.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_on_spark.ledger.reports import LostBatches, Report, ReportKind, write_report
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
        findings = _Findings(self.root, self.fail_on_data_loss)
        try:
            yield from self._read(slice_, findings)
        finally:
            findings.close()

    def _read(self, slice_: SegmentSlice, findings: _Findings) -> Iterator[tuple[SegmentSlice, pa.RecordBatch]]:
        position = slice_.first
        for attempt in range(_RESOLVE_ATTEMPTS):
            try:
                for end, batch in self._read_on(slice_.part(position, slice_.end), findings):
                    position = end
                    if batch is not None:
                        yield slice_, batch
                return
            except SegmentGoneError as error:
                rest = slice_.part(position, slice_.end)
                pieces, losses = self._resolve(rest)
                moved = any(piece.file.file_id != slice_.file.file_id for piece in pieces)
                if len(pieces) == 1 and moved and not losses and attempt + 1 < _RESOLVE_ATTEMPTS:
                    slice_ = pieces[0]
                    continue
                if not moved:
                    findings.lose(rest, rest.batches(), str(error))
                    return
                for piece in pieces:
                    yield from self._read(piece, findings)
                if losses:
                    findings.miss(rest, rest.rows - sum(piece.rows for piece in pieces), losses[0].reason + ".")
                return

    def _read_on(self, slice_: SegmentSlice, findings: _Findings) -> Iterator[tuple[int, pa.RecordBatch | None]]:
        """(end of what is read, batch; None where it is lost), all batches from one open file while they are good."""
        todo = slice_.batches()
        while todo:
            done = 0
            try:
                for batch in self._decoded(slice_, todo, findings):
                    yield todo[done].end, self._cut(slice_, todo[done], batch)
                    done += 1
                return
            except SegmentGoneError:
                raise
            except CorruptSegmentError:
                # The error is about a group of batches: only the one that can't be read alone either is lost.
                bad, todo = todo[done], todo[done + 1 :]
                yield bad.end, self._read_alone(slice_, bad, findings)

    def _read_alone(self, slice_: SegmentSlice, where: SliceBatch, findings: _Findings) -> pa.RecordBatch | None:
        try:
            return self._cut(slice_, where, next(self._decoded(slice_, [where], findings)))
        except CorruptSegmentError as error:
            findings.lose(slice_.part(where.first, where.end), [where], str(error))
            return None

    def _decoded(
        self, slice_: SegmentSlice, batches: Sequence[SliceBatch], findings: _Findings
    ) -> Iterator[pa.RecordBatch]:
        columns = self.columns if "entry_id" in self.columns else (*self.columns, "entry_id")
        cut = any(where.first < slice_.first or where.end > slice_.end for where in batches)
        first = batches[0]
        return read_batches(
            slice_.file,
            self.paths,
            first.number,
            len(batches),
            columns if cut else self.columns,
            lambda path, reason: findings.bad_copy(FileId(slice_.file.file_id), path, reason),
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


class _Findings:
    """What is wrong with what one read needs: each bad copy is said once, and adjacent lost batches together."""

    def __init__(self, root: Path, fail_on_data_loss: bool) -> None:
        self._root = root
        self._fail_on_data_loss = fail_on_data_loss
        self._bad_copies: set[tuple[FileId, PathId]] = set()
        self._loss: _Loss | None = None

    def bad_copy(self, file_id: FileId, path: PathId, reason: str) -> None:
        """A copy is bad or missing; others may be good or not."""
        if (file_id, path) in self._bad_copies:
            return
        self._bad_copies.add((file_id, path))
        log.warning("Copy of file %s on storage path %d is bad: %s", file_id, path, reason)
        write_report(self._root, Report(ReportKind.BAD_COPY, file_id, path, reason, _now_ms()))

    def lose(self, wanted: SegmentSlice, batches: Sequence[SliceBatch], reason: str) -> None:
        """No copy gives these batches.

        Raises:
            DataLossError: losses are not allowed.
        """
        if self._fail_on_data_loss:
            raise _loss_error(wanted, wanted.rows, reason)
        # Of a batch that is read in part all is lost: a report says the same wherever a read was cut.
        rows = tuple(replace(wanted, first=batch.first, end=batch.end).rows for batch in batches)
        file_id, first = FileId(wanted.file.file_id), batches[0].number
        before = self._loss
        if before is not None and before.is_followed_by(file_id, wanted.topic, first):
            before.lost = replace(before.lost, rows=before.lost.rows + rows)
            before.skipped += wanted.rows
        else:
            self.close()
            lost = LostBatches(wanted.topic, first, rows)
            self._loss = _Loss(file_id, lost, wanted.start_position, reason, wanted.rows)

    def miss(self, wanted: SegmentSlice, rows: int, reason: str) -> None:
        """So many messages of a range are in no file that the metadata knows, hence in no file's report.

        Raises:
            DataLossError: losses are not allowed.
        """
        if self._fail_on_data_loss:
            raise _loss_error(wanted, rows, reason)
        _log_skipped(rows, wanted.topic, wanted.start_position, reason)

    def close(self) -> None:
        """Say and report what is lost up to here."""
        loss, self._loss = self._loss, None
        if loss is not None:
            _log_skipped(loss.skipped, loss.lost.topic, loss.start, loss.reason)
            report = Report(ReportKind.LOSS, loss.file_id, None, loss.reason, _now_ms(), loss.lost)
            write_report(self._root, report)


@dataclass(slots=True)
class _Loss:
    """Adjacent batches that are lost, why the first one is, and how many of their messages were wanted."""

    file_id: FileId
    lost: LostBatches
    start: Position
    reason: str
    skipped: int

    def is_followed_by(self, file_id: FileId, topic: str, batch: int) -> bool:
        """Whether a batch lies right behind these."""
        return (self.file_id, self.lost.topic, self.lost.end) == (file_id, topic, batch)


def _loss_error(wanted: SegmentSlice, rows: int, reason: str) -> DataLossError:
    return DataLossError(
        f"{rows} messages of {wanted.topic} (entries {wanted.start_position} to {wanted.end - 1}) are lost: {reason} "
        "To read on without them, set option failOnDataLoss to false."
    )


def _log_skipped(rows: int, topic: str, start: Position, reason: str) -> None:
    log.warning("%d messages of %s from %s on were skipped: %s", rows, topic, start, reason)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
