"""Rewriting runs of segments into a new file: the same entries in larger batches, nothing of any column lost."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_on_spark.ledger.reports import Report, ReportKind, write_report
from pulsar_on_spark.ledger.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.ledger.segment_reader import read_batches
from pulsar_on_spark.ledger.segment_writer import SegmentFileWriter
from pulsar_on_spark.ledger.storage_path import StoragePath
from pulsar_on_spark.metadata.records import FileRecord, SegmentRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import CorruptSegmentError
from pulsar_on_spark.model.ids import FileId, PathId

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pulsar_on_spark.topic.root import Root

log = logging.getLogger(__name__)

BATCH_BYTES = 2 << 20
"""Decoded bytes of the batches that are written."""
STRETCH_BYTES = 8 << 20
"""Small segments that lie side by side in a file are read together up to so many bytes."""
MAX_BUFFER_BYTES = 160 << 20
"""Above this, what is complete is written out although its run is not: large properties defeat every estimate."""


@dataclass(frozen=True, slots=True)
class Run:
    """Segments that follow each other in one ledger of a topic."""

    topic: str
    topic_id: str
    segments: tuple[SegmentRecord, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a run as it lies in the new file.

    Attributes:
        topic: Full name.
        sources: The segments that it replaces.
        first_batch: In the new file.
        batch_entries: Entries of each batch.
    """

    topic: str
    sources: tuple[SegmentRecord, ...]
    first_batch: int
    batch_entries: tuple[int, ...]

    def record(self, file_id: str) -> SegmentRecord:
        """The record of the merged segment; entry ids in the file are absolute."""
        first = self.sources[0]
        entries = sum(source.entries for source in self.sources)
        assert sum(self.batch_entries) == entries
        return first.model_copy(
            update={
                "entries": entries,
                "rows": sum(source.rows for source in self.sources),
                "bytes": sum(source.bytes for source in self.sources),
                "file_id": file_id,
                "first_batch": self.first_batch,
                "batch_entries": self.batch_entries,
                "entry_rows": _joined_runs(run for source in self.sources for run in source.entry_rows),
                "entry_offset": 0,
                "publish_min_ms": min(source.publish_min_ms for source in self.sources),
                "publish_max_ms": max(source.publish_max_ms for source in self.sources),
            }
        )


def rewrite(root: Root, view: View, runs: Sequence[Run], writer: SegmentFileWriter) -> list[Piece]:
    """Read the runs and append them to the file, each in as few pieces as memory allows.

    A run with a segment that no copy gives is left out (what of it was written before is in no piece), logged and
    reported.

    Raises:
        NotEnoughCopiesError: the new file has too few good copies.
    """
    return _Rewriting(root, root.storage_paths(view), runs, writer).go(view)


@dataclass
class _Buffer:
    """What was read of a run: decoded batches and their entries by place of the segment in the run."""

    run: Run
    read: dict[int, list[tuple[pa.RecordBatch, int]]] = field(default_factory=dict)
    written: int = 0
    failed: bool = False


@dataclass(frozen=True)
class _Wanted:
    """A segment that a file holds, and where it belongs: its place in the run of a buffer."""

    segment: SegmentRecord
    buffer: _Buffer
    place: int

    @property
    def end_batch(self) -> int:
        """Number of the batch after the segment's last."""
        return self.segment.first_batch + len(self.segment.batch_entries)


class _Rewriting:
    """One group of runs on its way through memory."""

    def __init__(
        self, root: Root, paths: Mapping[PathId, StoragePath], runs: Sequence[Run], writer: SegmentFileWriter
    ) -> None:
        self._root = root
        self._paths = paths
        self._writer = writer
        self._buffers = [_Buffer(run) for run in runs]
        self._buffered_bytes = 0
        self._pieces: list[tuple[_Buffer, Piece]] = []

    def go(self, view: View) -> list[Piece]:
        by_file: dict[str, list[_Wanted]] = defaultdict(list)
        for buffer in self._buffers:
            for place, segment in enumerate(buffer.run.segments):
                by_file[segment.file_id].append(_Wanted(segment, buffer, place))
        for file_id, wanted in by_file.items():
            file = view.get(FileRecord, file_id)
            if file is None:
                for each in wanted:
                    self._fail(each.buffer, f"file {file_id} is not known any more")
                continue
            for stretch in _stretches(wanted):
                self._read_or_fail(file, stretch)
            if self._buffered_bytes > MAX_BUFFER_BYTES:
                self._write_complete()
        self._write_complete()
        assert all(buffer.failed or buffer.written == len(buffer.run.segments) for buffer in self._buffers)
        return [piece for buffer, piece in self._pieces if not buffer.failed]

    def _read_or_fail(self, file: FileRecord, stretch: Sequence[_Wanted]) -> None:
        """Read a stretch at once, or each of its segments by itself where a part is unreadable."""
        try:
            self._read(file, stretch)
        except CorruptSegmentError as error:
            if len(stretch) > 1:
                for each in stretch:
                    self._read_or_fail(file, [each])
                return
            report = Report(ReportKind.LOSS, FileId(file.file_id), None, str(error), time.time_ns() // 1_000_000)
            write_report(self._root.path, report)
            self._fail(stretch[0].buffer, str(error))

    def _read(self, file: FileRecord, stretch: Sequence[_Wanted]) -> None:
        first, last = stretch[0], stretch[-1]
        stake = f"{first.buffer.run.topic} from entry {first.segment.ledger_id}:{first.segment.first_entry} on"
        count = last.end_batch - first.segment.first_batch
        report = _Reporting(self._root, FileId(file.file_id))
        batches = read_batches(file, self._paths, first.segment.first_batch, count, None, report, at_stake=stake)
        read = []
        for each in stretch:
            own = [_with_ids(batch, each.segment) for batch in islice(batches, len(each.segment.batch_entries))]
            _check(own, each.segment, stake)
            read.append(own)
        for each, own in zip(stretch, read, strict=True):
            if not each.buffer.failed:
                each.buffer.read[each.place] = list(zip(own, each.segment.batch_entries, strict=True))
                self._buffered_bytes += sum(batch.nbytes for batch in own)

    def _fail(self, buffer: _Buffer, reason: str) -> None:
        if not buffer.failed:
            log.warning("%d segments of %s are not merged: %s", len(buffer.run.segments), buffer.run.topic, reason)
        buffer.failed = True
        self._buffered_bytes -= sum(batch.nbytes for batches in buffer.read.values() for batch, _ in batches)
        buffer.read.clear()

    def _write_complete(self) -> None:
        """Write each run's segments as far as they were read without a gap."""
        for buffer in self._buffers:
            first = buffer.written
            batches: list[tuple[pa.RecordBatch, int]] = []
            while buffer.written in buffer.read:
                batches += buffer.read.pop(buffer.written)
                buffer.written += 1
            if not batches:
                continue
            self._buffered_bytes -= sum(batch.nbytes for batch, _ in batches)
            first_batch, batch_entries = self._append(batches)
            sources = buffer.run.segments[first : buffer.written]
            self._pieces.append((buffer, Piece(buffer.run.topic, sources, first_batch, batch_entries)))

    def _append(self, batches: list[tuple[pa.RecordBatch, int]]) -> tuple[int, tuple[int, ...]]:
        """Number of the first batch written, and the entries of each."""
        first_batch = -1
        batch_entries: list[int] = []
        for group in _grouped(batches):
            together = [batch for batch, _ in group]
            number = self._writer.write_batch(together[0] if len(together) == 1 else pa.concat_batches(together))
            first_batch = number if first_batch < 0 else first_batch
            assert number == first_batch + len(batch_entries), "the batches of a segment are adjacent"
            batch_entries.append(sum(entries for _, entries in group))
        return first_batch, tuple(batch_entries)


@dataclass(frozen=True)
class _Reporting:
    """Reports bad copies of a file as reading tasks do."""

    root: Root
    file_id: FileId

    def __call__(self, path: PathId, reason: str) -> None:
        now_ms = time.time_ns() // 1_000_000
        write_report(self.root.path, Report(ReportKind.BAD_COPY, self.file_id, path, reason, now_ms))


def _stretches(wanted: Sequence[_Wanted]) -> Iterator[list[_Wanted]]:
    """Segments that lie side by side in a file, up to a bound on what is decoded at once."""
    stretch: list[_Wanted] = []
    for each in sorted(wanted, key=lambda each: each.segment.first_batch):
        beside = bool(stretch) and each.segment.first_batch == stretch[-1].end_batch
        if stretch and not (beside and sum(other.segment.bytes for other in stretch) < STRETCH_BYTES):
            yield stretch
            stretch = []
        stretch.append(each)
    if stretch:
        yield stretch


def _grouped(batches: Sequence[tuple[pa.RecordBatch, int]]) -> Iterator[list[tuple[pa.RecordBatch, int]]]:
    group: list[tuple[pa.RecordBatch, int]] = []
    size_bytes = 0
    for batch, entries in batches:
        if group and size_bytes + batch.nbytes > BATCH_BYTES:
            yield group
            group, size_bytes = [], 0
        group.append((batch, entries))
        size_bytes += batch.nbytes
    if group:
        yield group


def _with_ids(batch: pa.RecordBatch, segment: SegmentRecord) -> pa.RecordBatch:
    """The batch with its ledger id, and with entry ids that need no offset."""
    columns = batch.columns
    columns[0] = pa.array(np.full(batch.num_rows, segment.ledger_id, np.int64))
    if segment.entry_offset:
        columns[1] = pc.add(columns[1], segment.entry_offset)
    return pa.RecordBatch.from_arrays(columns, schema=SEGMENT_SCHEMA)


def _check(batches: Sequence[pa.RecordBatch], segment: SegmentRecord, what: str) -> None:
    """What was read must be what the record says, before anything replaces it."""
    first = segment.first_entry
    for batch, entries in zip(batches, segment.batch_entries, strict=True):
        ids = batch.column("entry_id").to_numpy()
        if len(ids) == 0 or ids[0] != first or ids[-1] != first + entries - 1:
            raise CorruptSegmentError(f"The segment of {what} does not hold the entries that its record names.")
        first += entries
    if sum(batch.num_rows for batch in batches) != segment.rows:
        raise CorruptSegmentError(f"The segment of {what} does not hold the {segment.rows} messages of its record.")


def _joined_runs(runs: Iterator[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Run lengths (entries, messages of each) with equal neighbours joined."""
    return tuple((sum(count for count, _ in group), rows) for rows, group in groupby(runs, key=lambda run: run[1]))
