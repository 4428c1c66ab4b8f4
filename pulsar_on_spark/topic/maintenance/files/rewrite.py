"""Rewriting runs of segments into a new file: the same entries in larger batches, with all columns."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.ledger.segments.segment_reader import read_batches
from pulsar_on_spark.ledger.segments.segment_writer import SegmentFileWriter
from pulsar_on_spark.metadata.records import FileRecord, SegmentRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import CopiesUnreachableError, CorruptSegmentError
from pulsar_on_spark.model.ids import FileId
from pulsar_on_spark.storage.reports import Finding, ReportKind, write_report
from pulsar_on_spark.topic.catalog.present_copies import report_present, with_present_copies
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.data_path.reading import rows_of
from pulsar_on_spark.topic.entries.cutting import RECORD_BATCH_BYTES
from pulsar_on_spark.topic.entries.packing import BatchPacker, OwnedRows, SegmentPlaces
from pulsar_on_spark.topic.managed_ledger.chain.slices import SegmentSlice, SliceBatch

log = logging.getLogger(__name__)

STRETCH_BYTES = 8 << 20
"""Maximum bytes of small segments of a file that are read together."""
MAX_BUFFER_BYTES = 160 << 20
"""Size of buffers above which the complete parts of runs are written early: estimates do not include properties."""


@dataclass(frozen=True, slots=True)
class Run:
    """Adjacent segments in one ledger of a topic, in order."""

    topic: str
    topic_id: str
    segments: tuple[SegmentRecord, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a run in the new file.

    Attributes:
        topic: The topic's full name.
        sources: The segments that the piece replaces.
        places: The batches of the new file that contain the piece.
    """

    topic: str
    sources: tuple[SegmentRecord, ...]
    places: SegmentPlaces

    def segment_record(self, file_id: str) -> SegmentRecord:
        """Make the record of the merged segment; entry ids in the file are absolute."""
        first = self.sources[0]
        entries = sum(source.entries for source in self.sources)
        places = self.places.fields()
        assert sum(places["batch_entries"]) == entries
        return first.model_copy(
            update={
                "entries": entries,
                "rows": sum(source.rows for source in self.sources),
                "bytes": sum(source.bytes for source in self.sources),
                "file_id": file_id,
                **places,
                "entry_rows": _joined_runs(run for source in self.sources for run in source.entry_rows),
                "entry_offset": 0,
                "publish_min_ms": min(source.publish_min_ms for source in self.sources),
                "publish_max_ms": max(source.publish_max_ms for source in self.sources),
            }
        )


def rewrite(root: RootHandle, view: View, runs: Sequence[Run], writer: SegmentFileWriter) -> list[Piece]:
    """Read the runs, append them to the file, each in as few pieces as memory allows, and return the pieces.

    If a segment cannot be read from any copy, its run is left out and logged; rows of the run that are in the file
    already belong to no piece. The segment is reported if it is lost, not if its copies are only unreachable.

    Raises:
        NotEnoughCopiesError: the new file has too few good copies.
    """
    return _Rewriting(root, runs, writer).go(view)


@dataclass
class _Buffer:
    """A run's decoded batches, each with its number of entries, by the segment's index in the run."""

    run: Run
    read: dict[int, list[tuple[pa.RecordBatch, int]]] = field(default_factory=dict)
    written: int = 0
    failed: bool = False


@dataclass(frozen=True)
class _Wanted:
    """A segment to read: its record, the buffer that gets it, and its index in the buffer's run."""

    segment: SegmentRecord
    buffer: _Buffer
    place: int

    @property
    def at(self) -> tuple[int, int]:
        """The number of the batch in the file, and of the row in the batch, at which the segment begins."""
        segment = self.segment
        return segment.places[0] if segment.places else (segment.first_batch, 0)

    def batches(self, file: FileRecord) -> list[SliceBatch]:
        """Return the batches of the file that contain the segment."""
        run, segment = self.buffer.run, self.segment
        end = segment.first_entry + segment.entries
        return SegmentSlice(run.topic, run.topic_id, -1, segment, file, segment.first_entry, end).batches()


class _Rewriting:
    """The rewriting of a group of runs that fit into memory."""

    def __init__(self, root: RootHandle, runs: Sequence[Run], writer: SegmentFileWriter) -> None:
        self._root = root
        self._packer = BatchPacker(writer.write_batch)
        self._buffers = [_Buffer(run) for run in runs]
        self._buffered_bytes = 0
        self._pieces: list[tuple[_Buffer, Piece]] = []

    def go(self, view: View) -> list[Piece]:
        by_file: dict[str, list[_Wanted]] = defaultdict(list)
        for buffer in self._buffers:
            for index, segment in enumerate(buffer.run.segments):
                by_file[segment.file_id].append(_Wanted(segment, buffer, index))
        for file_id, wanted in by_file.items():
            file = view.get(FileRecord, file_id)
            if file is None:
                for segment_wanted in wanted:
                    self._fail(segment_wanted.buffer, f"file {file_id} is no longer known")
                continue
            for stretch in _stretches(wanted):
                self._read_or_fail(file, stretch)
            if self._buffered_bytes > MAX_BUFFER_BYTES:
                self._write_complete()
        self._write_complete()
        assert all(buffer.failed or buffer.written == len(buffer.run.segments) for buffer in self._buffers)
        return [piece for buffer, piece in self._pieces if not buffer.failed]

    def _read_or_fail(self, file: FileRecord, stretch: Sequence[_Wanted]) -> None:
        """Read the segments of a stretch together or, if some of it cannot be read, each segment by itself."""
        try:
            with_present_copies(self._root, file, partial(self._read, stretch))
        except CopiesUnreachableError as error:
            for segment_wanted in stretch:
                self._fail(segment_wanted.buffer, str(error))
        except CorruptSegmentError as error:
            if len(stretch) > 1:
                for segment_wanted in stretch:
                    self._read_or_fail(file, [segment_wanted])
                return
            report = Finding(ReportKind.LOSS, FileId(file.file_id), None, str(error), current_ms())
            write_report(self._root.place, report)
            self._fail(stretch[0].buffer, str(error))

    def _read(self, stretch: Sequence[_Wanted], file: FileRecord) -> None:
        first = stretch[0]
        stake = f"{first.buffer.run.topic} from entry {first.segment.ledger_id}:{first.segment.first_entry} on"
        by_number: dict[int, list[tuple[int, SliceBatch]]] = defaultdict(list)
        for number, segment_wanted in enumerate(stretch):
            for where in segment_wanted.batches(file):
                by_number[where.number].append((number, where))
        report = partial(report_present, lambda: self._root, file)
        numbers = sorted(by_number)
        read: list[list[pa.RecordBatch]] = [[] for _ in stretch]
        for at, batch in zip(
            numbers,
            read_batches(file, self._root.current_storage_paths, numbers, None, report, at_stake=stake),
            strict=True,
        ):
            for number, where in by_number[at]:
                read[number].append(_with_ids(_own_rows(where, batch), stretch[number].segment))
        for segment_wanted, batches_of_segment in zip(stretch, read, strict=True):
            _check(batches_of_segment, segment_wanted.segment, stake)
        for segment_wanted, batches_of_segment in zip(stretch, read, strict=True):
            if not segment_wanted.buffer.failed:
                segment_wanted.buffer.read[segment_wanted.place] = list(
                    zip(batches_of_segment, segment_wanted.segment.batch_entries, strict=True)
                )
                self._buffered_bytes += sum(batch.nbytes for batch in batches_of_segment)

    def _fail(self, buffer: _Buffer, reason: str) -> None:
        if not buffer.failed:
            log.warning(
                "%d segments of %s are not merged: %s",
                len(buffer.run.segments),
                buffer.run.topic,
                reason,
                extra={"topic": buffer.run.topic},
            )
        buffer.failed = True
        self._buffered_bytes -= sum(batch.nbytes for batches in buffer.read.values() for batch, _ in batches)
        buffer.read.clear()

    def _write_complete(self) -> None:
        """Write each run's segments up to the first one that has not been read yet."""
        for buffer in self._buffers:
            first = buffer.written
            batches: list[tuple[pa.RecordBatch, int]] = []
            while buffer.written in buffer.read:
                batches += buffer.read.pop(buffer.written)
                buffer.written += 1
            if not batches:
                continue
            self._buffered_bytes -= sum(batch.nbytes for batch, _ in batches)
            places = SegmentPlaces()
            for group in _grouped(batches):
                together = [batch for batch, _ in group]
                whole = together[0] if len(together) == 1 else pa.concat_batches(together)
                entries = sum(entries for _, entries in group)
                self._packer.add(whole, [OwnedRows(places, entries, whole.num_rows, whole.nbytes)])
            sources = buffer.run.segments[first : buffer.written]
            self._pieces.append((buffer, Piece(buffer.run.topic, sources, places)))
        self._packer.flush()


def _stretches(wanted: Sequence[_Wanted]) -> Iterator[list[_Wanted]]:
    """Group segments in file order, because neighbours may share batches. The bytes of a group are limited."""
    stretch: list[_Wanted] = []
    size_bytes = 0
    for segment_wanted in sorted(wanted, key=lambda segment_wanted: segment_wanted.at):
        if stretch and size_bytes >= STRETCH_BYTES:
            yield stretch
            stretch, size_bytes = [], 0
        stretch.append(segment_wanted)
        size_bytes += segment_wanted.segment.bytes
    if stretch:
        yield stretch


def _grouped(batches: Sequence[tuple[pa.RecordBatch, int]]) -> Iterator[list[tuple[pa.RecordBatch, int]]]:
    group: list[tuple[pa.RecordBatch, int]] = []
    size_bytes = 0
    for batch, entries in batches:
        if group and size_bytes + batch.nbytes > RECORD_BATCH_BYTES:
            yield group
            group, size_bytes = [], 0
        group.append((batch, entries))
        size_bytes += batch.nbytes
    if group:
        yield group


def _own_rows(where: SliceBatch, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a segment's rows of a batch; they are copied if the batch has other rows, so that it can be freed."""
    rows = rows_of(where, batch)
    return rows if where.rows is None else rows.take(pa.array(np.arange(rows.num_rows)))


def _with_ids(batch: pa.RecordBatch, segment: SegmentRecord) -> pa.RecordBatch:
    """Return the batch with the ledger's id, and with absolute entry ids: the segment's offset is added.

    Raises:
        CorruptSegmentError: the rows belong to another ledger.
    """
    columns = batch.columns
    if pc.any(pc.not_equal(columns[0], segment.ledger_id)).as_py():
        raise CorruptSegmentError(
            f"The segment {segment.record_id} has rows of another ledger: restore the metadata of this root."
        )
    columns[0] = pa.array(np.full(batch.num_rows, segment.ledger_id, np.int64))
    if segment.entry_offset:
        columns[1] = pc.add(columns[1], segment.entry_offset)
    return pa.RecordBatch.from_arrays(columns, schema=SEGMENT_SCHEMA)


def _check(batches: Sequence[pa.RecordBatch], segment: SegmentRecord, what: str) -> None:
    """Check that the data match the segment's record, before the record is replaced.

    `what` names its topic and entries in errors.
    """
    first = segment.first_entry
    for batch, entries in zip(batches, segment.batch_entries, strict=True):
        ids = batch.column("entry_id").to_numpy()
        if len(ids) == 0 or ids[0] != first or ids[-1] != first + entries - 1:
            raise CorruptSegmentError(
                f"The segment of {what} lacks entries that its record names: restore this root from a backup."
            )
        first += entries
    if sum(batch.num_rows for batch in batches) != segment.rows:
        raise CorruptSegmentError(
            f"The segment of {what} does not have the {segment.rows} messages of its record: restore this root from a "
            "backup."
        )


def _joined_runs(runs: Iterator[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Join adjacent runs (number of entries, messages in each entry) that have equally many messages in an entry."""
    return tuple((sum(count for count, _ in group), rows) for rows, group in groupby(runs, key=lambda run: run[1]))
