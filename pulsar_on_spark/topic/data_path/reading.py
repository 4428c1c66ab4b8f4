"""Reading slices of a topic from any good copy, even if the entries were moved to other files meanwhile.

A plan names entries, not files. If a file is gone because its segments were merged or its entries were sealed, the
entries' new files are looked up; the messages and their ids are the same. Lost entries are an error or, if the caller
allows losses, are skipped, counted and reported. Unreachable entries are always an error (`storage/loss.py`). Rows that
are not messages are left out (`entries.hidden_rows`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from pulsar_on_spark.ledger.journal.frame_reader import JournalPlace
from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import (
    CopiesUnreachableError,
    CorruptJournalError,
    CorruptSegmentError,
    DataLossError,
    JournalGoneError,
    MetadataError,
    NotARootError,
    SegmentGoneError,
)
from pulsar_on_spark.model.ids import EntryId, FileId, LedgerId, PathId, Position
from pulsar_on_spark.storage.loss import LOOK_AGAIN
from pulsar_on_spark.storage.reports import Finding, LostBatches, ReportKind, write_report
from pulsar_on_spark.storage.root_place import RootPlace
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.path_records import journal_paths
from pulsar_on_spark.topic.catalog.present_copies import read_present, report_present
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.data_path.journal_read import read_entries
from pulsar_on_spark.topic.data_path.tail import Tail
from pulsar_on_spark.topic.entries.hidden_rows import HIDING_COLUMNS, UnreadableEntry, leave_out, message_rows_of
from pulsar_on_spark.topic.managed_ledger.chain.chain import RangePlan, plan_range
from pulsar_on_spark.topic.managed_ledger.chain.slices import SegmentSlice, SliceBatch

log = logging.getLogger(__name__)

_MAX_MOVES = 5
"""Maximum number of times that moved entries are looked up: a merge replaces a file once, and keeps it ten minutes."""


@dataclass(frozen=True, slots=True)
class SliceReader:
    """Reader of one root's slices. Picklable: tasks get it with the storage paths that the driver knew.

    Attributes:
        root: The root's folder or URL, for reports and for looking up the entries' new files.
        paths: The storage paths.
        columns: Columns of `SEGMENT_SCHEMA` to decode.
        fail_on_data_loss: True if a loss is an error; False to skip, count, log and report lost messages.
        remedy: The end of an error's sentence: how to read on without lost messages.
    """

    root: RootPlace
    paths: Mapping[PathId, StoragePath]
    columns: tuple[str, ...]
    fail_on_data_loss: bool = True
    remedy: str = "set option failOnDataLoss to false"

    def read(self, slice_: SegmentSlice) -> Iterator[tuple[SegmentSlice, pa.RecordBatch]]:
        """Yield the slice's messages in order, as (slice, batch with columns in the order of `SEGMENT_SCHEMA`).

        If the entries have been moved to other files, each yielded slice is the part in the file of its batch.

        Raises:
            DataLossError: some of the slice has no good copy, and `fail_on_data_loss` is set.
            CopiesUnreachableError: some of the slice has no copy that can be read now, which is no loss: retry later.
            UnreadableMessageError: a message cannot be converted to rows, and `fail_on_data_loss` is set.
        """
        findings = _Findings(self.root, self.fail_on_data_loss, self.remedy)
        try:
            yield from self._read(slice_, findings)
        finally:
            findings.close()

    def _read(
        self, slice_: SegmentSlice, findings: _Findings, moves: int = 0
    ) -> Iterator[tuple[SegmentSlice, pa.RecordBatch]]:
        reader, position, is_settled = self, slice_.first, False
        while True:
            try:
                for end, batch in reader._read_on(slice_.part(position, slice_.end), findings, is_settled=is_settled):
                    position = end
                    if batch is not None:
                        yield slice_, batch
                return
            except LOOK_AGAIN as error:
                rest = slice_.part(position, slice_.end)
                reader, plan = self._resolved(rest, error)
                if not plan.slices and isinstance(error, CopiesUnreachableError):
                    raise  # no other file has the entries, and the unreachable copies may have them
                if not plan.slices:
                    findings.lose(rest, rest.batches(), str(error))
                    return
                if moves == _MAX_MOVES or all(_is_same_place(piece.file, slice_.file) for piece in plan.slices):
                    if isinstance(error, CopiesUnreachableError):
                        raise
                    is_settled = True  # from here on, entries that are gone are lost
                    continue
                for piece in plan.slices:
                    yield from reader._read(piece, findings, moves + 1)
                if plan.losses:
                    findings.miss(rest, rest.rows - plan.rows, plan.losses[0].reason + ".")
                return

    def _read_on(
        self, slice_: SegmentSlice, findings: _Findings, *, is_settled: bool
    ) -> Iterator[tuple[int, pa.RecordBatch | None]]:
        """Yield (end of the entries that were read, their batch, or None if they are lost).

        If `is_settled`, no other file has the slice's entries, so the entries of a missing file are lost.
        """
        if isinstance(slice_.file, JournalPlace):
            return self._read_journal(slice_, slice_.file, findings, is_settled=is_settled)
        return self._read_file(slice_, slice_.file, findings, is_settled=is_settled)

    def _read_journal(
        self, slice_: SegmentSlice, place: JournalPlace, findings: _Findings, *, is_settled: bool
    ) -> Iterator[tuple[int, pa.RecordBatch | None]]:
        """Read like `_read_on`, a batch of None included.

        After an error, read frame by frame until a frame can be read.
        """
        position, alone = slice_.first, False
        while position < slice_.end:
            rest = slice_.part(position, slice_.end)
            wanted = slice_.part(position, rest.batches()[0].end) if alone else rest
            try:
                for count, batches in self._decoded_journal(wanted, place, findings):
                    yield from _ending(position, position + count, batches)
                    position += count
                alone = False
            except CorruptJournalError as error:
                if isinstance(error, JournalGoneError) and not is_settled:
                    raise
                if alone:
                    lost = slice_.part(position, wanted.end)
                    findings.miss(lost, lost.rows, str(error))
                    position = wanted.end
                alone = not alone

    def _decoded_journal(
        self, slice_: SegmentSlice, place: JournalPlace, findings: _Findings
    ) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
        """Yield (number of entries that were decoded together, batches of their messages)."""
        frames = replace(place, frames=tuple(place.frames[batch.number] for batch in slice_.batches()))
        ledger = LedgerId(slice_.segment.ledger_id)
        names = [name for name in SEGMENT_SCHEMA.names if name in self.columns]
        for decoded in read_entries(frames, ledger, slice_.first, slice_.end, lambda: journal_paths(self.paths)):
            messages = self._messages(slice_, decoded.batch)
            yield len(decoded.entry_rows), (batch.select(names) for batch in messages)

    def _read_file(
        self, slice_: SegmentSlice, file: FileRecord, findings: _Findings, *, is_settled: bool
    ) -> Iterator[tuple[int, pa.RecordBatch | None]]:
        """Read like `_read_on`, a batch of None included.

        After a bad batch, which is read again alone, the file is opened again for the rest.
        """
        todo = slice_.batches()
        position = slice_.first
        while todo:
            done = 0
            try:
                for batch in self._decoded(slice_, file, todo, findings):
                    cut = self._cut(slice_, todo[done], batch, findings)
                    yield from _ending(position, todo[done].end, cut)
                    position = todo[done].end
                    done += 1
                return
            except CorruptSegmentError as error:
                if isinstance(error, SegmentGoneError) and not is_settled:
                    raise
                # The error concerns a group of batches. A batch is lost only if it cannot be read alone either.
                bad, todo = todo[done], todo[done + 1 :]
                yield from self._read_alone(slice_, file, bad, findings, is_settled=is_settled)
                position = bad.end

    def _read_alone(
        self, slice_: SegmentSlice, file: FileRecord, where: SliceBatch, findings: _Findings, *, is_settled: bool
    ) -> Iterator[tuple[int, pa.RecordBatch | None]]:
        """Read one batch like `_read_on`; it is lost, and yielded as None, if no copy of it is good."""
        try:
            cut = self._cut(slice_, where, next(self._decoded(slice_, file, [where], findings)), findings)
            yield from _ending(where.first, where.end, cut)
        except CorruptSegmentError as error:
            if isinstance(error, SegmentGoneError) and not is_settled:
                raise
            findings.lose(slice_.part(where.first, where.end), [where], str(error))
            yield where.end, None

    def _decoded(
        self, slice_: SegmentSlice, file: FileRecord, batches: Sequence[SliceBatch], findings: _Findings
    ) -> Iterator[pa.RecordBatch]:
        needed = (*self.columns, *(HIDING_COLUMNS if slice_.by_broker else ()))
        wanted = slice_.part(batches[0].first, batches[-1].end)
        return read_present(
            partial(RootHandle.shared, self.root),
            file,
            lambda: self.paths,
            [where.number for where in batches],
            tuple(dict.fromkeys(needed)),
            findings.bad_copy,
            at_stake=f"{slice_.topic} {wanted.entries_in_words}",
        )

    def _cut(
        self, slice_: SegmentSlice, where: SliceBatch, batch: pa.RecordBatch, findings: _Findings
    ) -> Iterator[pa.RecordBatch]:
        batch = rows_of(where, batch)
        messages = self._messages(slice_, batch) if slice_.by_broker else iter((batch,))
        wanted = [name for name in batch.schema.names if name in self.columns]
        for messages_batch in messages:
            yield messages_batch if len(wanted) == len(messages_batch.schema.names) else messages_batch.select(wanted)

    def _messages(self, slice_: SegmentSlice, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are messages. An entry whose batch cannot be split is an error, or is left out."""

        def on_unreadable(unreadable: UnreadableEntry) -> None:
            entry_id = EntryId(unreadable.entry_id + slice_.segment.entry_offset)
            position = Position(LedgerId(slice_.segment.ledger_id), entry_id)
            is_error, remedy = self.fail_on_data_loss, self.remedy
            leave_out(position, slice_.topic, unreadable.reason, is_error=is_error, remedy=remedy)

        return message_rows_of(batch, LedgerId(slice_.segment.ledger_id), on_unreadable)

    def _resolved(self, slice_: SegmentSlice, cause: Exception) -> tuple[SliceReader, RangePlan]:
        """Return a reader with the current storage paths, and a plan with the current files of the slice's entries.

        Raises:
            CopiesUnreachableError: `cause`, if the metadata cannot be reached either.
        """
        start = slice_.start_position
        end = Position(start.ledger, EntryId(slice_.end))
        part = TopicPart(slice_.topic, slice_.topic_id, slice_.partition)
        try:
            root = RootHandle(self.root)
            with closing(Tail(root, fail_on_data_loss=self.fail_on_data_loss)) as tail:
                view = tail.read_view([part], reach={slice_.topic_id: end})
        except (NotARootError, MetadataError, OSError):
            if isinstance(cause, CopiesUnreachableError):
                raise cause from None
            raise
        reader = replace(self, paths=root.storage_paths(view))
        return reader, plan_range(view, slice_.topic, slice_.topic_id, slice_.partition, start, end)


def _is_same_place(now: FileRecord | JournalPlace, before: FileRecord | JournalPlace) -> bool:
    """Return True if the file or journal frames are the same, ignoring that a journal's files grow."""
    if isinstance(now, JournalPlace) and isinstance(before, JournalPlace):
        return now.incarnation == before.incarnation and set(now.copies) == set(before.copies)
    return now == before


def _ending(before: int, end: int, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Pair each batch of some entries with the next position to read: `end` for the last batch, `before` for others."""
    previous = next(batches)
    for batch in batches:
        yield before, previous
        previous = batch
    yield end, previous


def rows_of(where: SliceBatch, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a slice's rows in one of its batches, including rows that are not messages, without copying them.

    Args:
        where: The batch's number, and the position of the slice's rows in it.
        batch: The batch from the file, with any columns.

    Raises:
        CorruptSegmentError: the batch has fewer rows than its segment's record.
    """
    if where.rows is None:
        return batch
    first, end = where.rows
    if end > batch.num_rows:
        raise CorruptSegmentError(
            f"Batch {where.number} of a segment file has {batch.num_rows} rows, but the metadata name rows up to {end} "
            "of it: restore the metadata of this root."
        )
    return batch.slice(first, end - first)


class _Findings:
    """Problems of one read. Each bad copy is reported once; adjacent lost batches are reported together."""

    def __init__(self, root: RootPlace, fail_on_data_loss: bool, remedy: str) -> None:
        self._root = root
        self._fail_on_data_loss = fail_on_data_loss
        self._remedy = remedy
        self._bad_copies: set[tuple[str, PathId]] = set()
        self._loss: _Loss | None = None

    def bad_copy(self, file: FileRecord, path: PathId, reason: str) -> None:
        """Report a bad or missing copy, even if another copy is good."""
        if (file.file_id, path) in self._bad_copies:
            return
        self._bad_copies.add((file.file_id, path))
        report_present(partial(RootHandle.shared, self._root), file, path, reason)

    def lose(self, wanted: SegmentSlice, batches: Sequence[SliceBatch], reason: str) -> None:
        """Report batches that no copy has.

        Raises:
            DataLossError: losses are not allowed.
        """
        if self._fail_on_data_loss:
            raise self._error(wanted, wanted.rows, reason)
        # Report the whole batch even if only a part was requested, so that the reports of different reads are equal.
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
        """Log lost messages that were in no segment file, and so cannot be reported, because a report names a file.

        Raises:
            DataLossError: losses are not allowed.
        """
        if self._fail_on_data_loss:
            raise self._error(wanted, rows, reason)
        _log_skipped(rows, wanted.topic, wanted.start_position, reason)

    def _error(self, wanted: SegmentSlice, rows: int, reason: str) -> DataLossError:
        are, them = ("is", "it") if rows == 1 else ("are", "them")
        return DataLossError(
            f"{_counted(rows)} of {wanted.topic} ({wanted.entries_in_words}) {are} lost: {reason} To read on without "
            f"{them}, {self._remedy}.",
            position=wanted.start_position,
        )

    def close(self) -> None:
        """Log and report the loss found so far."""
        loss, self._loss = self._loss, None
        if loss is not None:
            _log_skipped(loss.skipped, loss.lost.topic, loss.start, loss.reason)
            report = Finding(ReportKind.LOSS, loss.file_id, None, loss.reason, current_ms(), loss.lost)
            write_report(self._root, report)


@dataclass(slots=True)
class _Loss:
    """Adjacent lost batches, the reason of the first loss, and the number of requested messages in them."""

    file_id: FileId
    lost: LostBatches
    start: Position
    reason: str
    skipped: int

    def is_followed_by(self, file_id: FileId, topic: str, batch: int) -> bool:
        """Return True if a batch of a file directly follows these lost batches."""
        return (self.file_id, self.lost.topic, self.lost.end) == (file_id, topic, batch)


def _counted(rows: int) -> str:
    return "1 message" if rows == 1 else f"{rows} messages"


def _log_skipped(rows: int, topic: str, start: Position, reason: str) -> None:
    were = "was" if rows == 1 else "were"
    log.warning(
        "%s of %s from %s on %s skipped: %s", _counted(rows), topic, start, were, reason, extra={"topic": topic}
    )
