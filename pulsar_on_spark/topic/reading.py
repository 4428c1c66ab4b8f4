"""Reading slices of a topic: from any good copy, after merges, with losses as errors or as counted, reported skips.

A plan names entries, not files. Where a file is gone because its segments were merged, or its entries sealed, the place
is resolved again; the messages and their ids are the same. What no copy can give is an error, or is skipped if the
caller allows losses. Rows that are no messages are left out (`hidden_rows.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from pulsar_on_spark.ledger.reports import LostBatches, Report, ReportKind, report_bad_copy, write_report
from pulsar_on_spark.ledger.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.ledger.segment_reader import read_batches
from pulsar_on_spark.ledger.storage_path import StoragePath
from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import (
    CorruptJournalError,
    CorruptSegmentError,
    DataLossError,
    JournalGoneError,
    SegmentGoneError,
)
from pulsar_on_spark.model.ids import EntryId, FileId, LedgerId, PathId, Position
from pulsar_on_spark.topic.catalog import TopicPart
from pulsar_on_spark.topic.chain import Loss, SegmentSlice, SliceBatch, plan_range
from pulsar_on_spark.topic.entry.hidden_rows import HIDING_COLUMNS, hidden_rows
from pulsar_on_spark.topic.root import Root
from pulsar_on_spark.topic.tail.journal_read import read_entries
from pulsar_on_spark.topic.tail.tail import Tail
from pulsar_on_spark.topic.tail.view import JournalPlace

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
            except (SegmentGoneError, JournalGoneError) as error:
                rest = slice_.part(position, slice_.end)
                pieces, losses = self._resolve(rest)
                moved = any(piece.file != slice_.file for piece in pieces)
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
        """(end of what is read, batch; None where it is lost)."""
        if isinstance(slice_.file, JournalPlace):
            return self._read_journal(slice_, slice_.file, findings)
        return self._read_file(slice_, slice_.file, findings)

    def _read_journal(
        self, slice_: SegmentSlice, place: JournalPlace, findings: _Findings
    ) -> Iterator[tuple[int, pa.RecordBatch | None]]:
        """As `_read_on`; after a frame that cannot be read, the next one is read alone."""
        position, alone = slice_.first, False
        while position < slice_.end:
            rest = slice_.part(position, slice_.end)
            wanted = slice_.part(position, rest.batches()[0].end) if alone else rest
            try:
                for count, batch in self._decoded_journal(wanted, place, findings):
                    position += count
                    yield position, batch
                alone = False
            except JournalGoneError:
                raise
            except CorruptJournalError as error:
                if alone:
                    left = slice_.part(position, wanted.end)
                    findings.miss(left, left.rows, str(error))
                    position = wanted.end
                alone = not alone

    def _decoded_journal(
        self, slice_: SegmentSlice, place: JournalPlace, findings: _Findings
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """(entries in the batch, their messages)."""
        frames = replace(place, frames=tuple(place.frames[batch.number] for batch in slice_.batches()))
        ledger = LedgerId(slice_.segment.ledger_id)
        names = [name for name in SEGMENT_SCHEMA.names if name in self.columns]
        for decoded in read_entries(frames, ledger, slice_.first, slice_.end, self.paths):
            yield len(decoded.entry_rows), self._messages(slice_, decoded.batch, findings).select(names)

    def _read_file(
        self, slice_: SegmentSlice, file: FileRecord, findings: _Findings
    ) -> Iterator[tuple[int, pa.RecordBatch | None]]:
        """As `_read_on`, all batches from one open file while they are good."""
        todo = slice_.batches()
        while todo:
            done = 0
            try:
                for batch in self._decoded(slice_, file, todo, findings):
                    yield todo[done].end, self._cut(slice_, todo[done], batch, findings)
                    done += 1
                return
            except SegmentGoneError:
                raise
            except CorruptSegmentError:
                # The error is about a group of batches: only the one that can't be read alone either is lost.
                bad, todo = todo[done], todo[done + 1 :]
                yield bad.end, self._read_alone(slice_, file, bad, findings)

    def _read_alone(
        self, slice_: SegmentSlice, file: FileRecord, where: SliceBatch, findings: _Findings
    ) -> pa.RecordBatch | None:
        try:
            return self._cut(slice_, where, next(self._decoded(slice_, file, [where], findings)), findings)
        except CorruptSegmentError as error:
            findings.lose(slice_.part(where.first, where.end), [where], str(error))
            return None

    def _decoded(
        self, slice_: SegmentSlice, file: FileRecord, batches: Sequence[SliceBatch], findings: _Findings
    ) -> Iterator[pa.RecordBatch]:
        needed = (*self.columns, *(HIDING_COLUMNS if slice_.by_broker else ()))
        ledger, first, end = slice_.segment.ledger_id, batches[0].first, batches[-1].end
        return read_batches(
            file,
            self.paths,
            [where.number for where in batches],
            tuple(dict.fromkeys(needed)),
            lambda path, reason: findings.bad_copy(FileId(file.file_id), path, reason),
            at_stake=f"{slice_.topic} entries {ledger}:{first} to {end - 1}",
        )

    def _cut(
        self, slice_: SegmentSlice, where: SliceBatch, batch: pa.RecordBatch, findings: _Findings
    ) -> pa.RecordBatch:
        batch = rows_of(where, batch)
        if slice_.by_broker:
            batch = self._messages(slice_, batch, findings)
        wanted = [name for name in batch.schema.names if name in self.columns]
        return batch if len(wanted) == len(batch.schema.names) else batch.select(wanted)

    def _messages(self, slice_: SegmentSlice, batch: pa.RecordBatch, findings: _Findings) -> pa.RecordBatch:
        """The rows that are messages; one that cannot be read is a loss."""
        hidden = hidden_rows(batch)
        if hidden is None:
            return batch
        for unreadable in hidden.unreadable:
            entry = unreadable.entry_id + slice_.segment.entry_offset
            findings.miss(slice_.part(entry, entry + 1), 1, f"It is {unreadable.reason}.")
        return batch.filter(hidden.messages)

    def _resolve(self, slice_: SegmentSlice) -> tuple[Sequence[SegmentSlice], Sequence[Loss]]:
        start = slice_.start_position
        end = Position(start.ledger, EntryId(slice_.end))
        root = Root(self.root)
        part = TopicPart(slice_.topic, slice_.topic_id, slice_.partition)
        with closing(Tail(root, fail_on_data_loss=self.fail_on_data_loss)) as tail:
            view = tail.look([part], reach={slice_.topic_id: end})
            plan = plan_range(view, slice_.topic, slice_.topic_id, slice_.partition, start, end)
        return plan.slices, plan.losses


def rows_of(where: SliceBatch, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a slice in one of its batches, those that are no messages included; nothing is copied.

    Args:
        where: Which of the slice's batches.
        batch: The batch as the file has it, in any columns.

    Raises:
        CorruptSegmentError: the batch has fewer rows than its segment's record says.
    """
    if where.rows is None:
        return batch
    first, end = where.rows
    if end > batch.num_rows:
        raise CorruptSegmentError(
            f"Batch {where.number} has {batch.num_rows} rows where the metadata say that rows up to {end} are in it: "
            "restore the metadata of this root."
        )
    return batch.slice(first, end - first)


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
        report_bad_copy(self._root, file_id, path, reason)

    def lose(self, wanted: SegmentSlice, batches: Sequence[SliceBatch], reason: str) -> None:
        """No copy gives these batches.

        Raises:
            DataLossError: losses are not allowed.
        """
        if self._fail_on_data_loss:
            raise _loss_error(wanted, wanted.rows, reason)
        # Of a batch that is read in part all is lost: a report says the same wherever a read was cut.
        rows = tuple(replace(wanted, first=batch.first, end=batch.end).rows for batch in batches)
        if isinstance(wanted.file, JournalPlace):
            _log_skipped(wanted.rows, wanted.topic, wanted.start_position, reason)
            return
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
            report = Report(ReportKind.LOSS, loss.file_id, None, loss.reason, current_ms(), loss.lost)
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
    log.warning("%d messages of %s from %s on were skipped: %s", rows, topic, start, reason, extra={"topic": topic})
