"""Writer of one task: it takes rows of any number of topic partitions and writes durable staged files.

Rows are buffered by partition. They are written as record batches of whole entries, those of a partition one after
another, into one file; a new file begins at 256 MiB. Memory is bounded by the buffers and the batches in flight.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_on_spark.ledger.segments.segment_writer import SegmentFileWriter
from pulsar_on_spark.model.ids import FileId, WriteId
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.storage.storage_path import PathFailure, StoragePath
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.data_path.attach import StagedFile, StagedSegment, TaskOutput
from pulsar_on_spark.topic.data_path.routing import HashingScheme, RoundRobin, route, split_rows
from pulsar_on_spark.topic.entries.cutting import CutRows, cut_entries, run_lengths

MAX_FILE_BYTES = 256 << 20
MAX_BUFFER_BYTES = 64 << 20
"""Limit for the bytes of all batches whose rows a task still buffers; at the limit, the largest buffers are written."""
LEFT_SHARE = 8
"""Divisor of `MAX_BUFFER_BYTES`: one eighth may stay buffered after such a write, copied so that batches are freed."""
RUN_BYTES = 8 << 20
"""Number of buffered bytes at which a task with a single partition writes them."""


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """A topic to write to: its partitions when the driver began the write, or the topic itself if it has none."""

    parts: tuple[TopicPart, ...]


class TaskWriter:
    """Writer of one task's rows. Not thread-safe; call `finish` once, or `abort`."""

    def __init__(
        self, write_id: WriteId, task: int, paths: Sequence[StoragePath], quorum: Quorum, scheme: HashingScheme
    ) -> None:
        self._write_id = write_id
        self._task = task
        self._paths = tuple(paths)
        self._quorum = quorum
        self._scheme = scheme
        self._buffers: dict[TopicPart, _Buffer] = {}
        self._held_bytes = 0
        self._turns: dict[str, RoundRobin] = {}
        self._file: _OpenFile | None = None
        self._files: list[StagedFile] = []
        self._failures: list[PathFailure] = []

    def add(self, target: WriteTarget, rows: pa.RecordBatch) -> None:
        """Add rows (in `ROW_SCHEMA`) of a topic.

        Raises:
            InvalidArgumentError: a row is above maxMessageSize.
            NotEnoughCopiesError: fewer storage paths than the ack quorum can be written.
        """
        if rows.num_rows == 0:
            return
        parts = target.parts
        if len(parts) == 1:
            self._buffer(parts[0]).add(rows)
        else:
            base = parts[0].name
            turn = self._turns.setdefault(base, RoundRobin(self._task % len(parts)))
            chosen, self._turns[base] = route(
                rows.column("key"), rows.num_rows, len(parts), self._scheme, turn, rows.column("key_b64")
            )
            for index, piece in split_rows(rows, chosen):
                self._buffer(parts[index]).add(piece)
        # A buffered slice keeps its whole batch in memory.
        self._held_bytes += rows.nbytes
        self._write_out()

    def finish(self) -> TaskOutput:
        """Write the remaining rows, make the last file durable, and return the description of all files.

        Raises:
            InvalidArgumentError, NotEnoughCopiesError: as `add`.
        """
        for part in sorted(self._buffers, key=lambda part: part.name):
            self._flush(part)
        self._close_file()
        return TaskOutput(self._task, tuple(self._files), tuple(self._failures))

    def abort(self) -> None:
        """Abort the open file. Finished files are left to garbage collection."""
        if self._file is not None:
            self._file.writer.abort()
            self._file = None

    def _buffer(self, part: TopicPart) -> _Buffer:
        return self._buffers.setdefault(part, _Buffer())

    def _write_out(self) -> None:
        if len(self._buffers) == 1:
            (part,) = self._buffers
            if self._buffers[part].size_bytes >= RUN_BYTES:
                self._flush(part)
                self._held_bytes = 0
            return
        if self._held_bytes < MAX_BUFFER_BYTES:
            return
        left_bytes = sum(buffer.size_bytes for buffer in self._buffers.values())
        for part in sorted(self._buffers, key=lambda part: self._buffers[part].size_bytes, reverse=True):
            if left_bytes <= MAX_BUFFER_BYTES // LEFT_SHARE:
                break
            left_bytes -= self._buffers[part].size_bytes
            self._flush(part)
        for buffer in self._buffers.values():
            buffer.let_go()
        self._held_bytes = left_bytes

    def _flush(self, part: TopicPart) -> None:
        rows = self._buffers[part].take()
        if rows is None:
            return
        if self._file is None:
            file_id = FileId(f"{self._write_id}-{secrets.token_hex(6)}")
            self._file = _OpenFile(SegmentFileWriter(file_id, self._paths, self._quorum))
        self._file.append(part, rows)
        if self._file.writer.size_bytes >= MAX_FILE_BYTES:
            self._close_file()

    def _close_file(self) -> None:
        if self._file is None:
            return
        staged = self._file.close()
        self._file = None
        self._files.append(staged)
        self._failures += staged.written.failures


class _Buffer:
    """Rows of one topic partition that are not written yet."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self.size_bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._batches.append(rows)
        self.size_bytes += rows.nbytes

    def let_go(self) -> None:
        """Copy the buffered rows, so that the batches from which they were sliced can be freed."""
        if self._batches:
            self._batches = [pa.concat_batches(self._batches)]

    def take(self) -> pa.RecordBatch | None:
        """Remove the buffered rows and return them as one batch; None if there are none."""
        batches, self._batches, self.size_bytes = self._batches, [], 0
        if not batches:
            return None
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


class _OpenFile:
    """The file being written and the segments in it so far."""

    def __init__(self, writer: SegmentFileWriter) -> None:
        self.writer = writer
        self._segments: list[_OpenSegment] = []

    def append(self, part: TopicPart, rows: pa.RecordBatch) -> None:
        if not self._segments or self._segments[-1].part != part:
            self._segments.append(_OpenSegment(part))
        segment = self._segments[-1]
        cut = cut_entries(rows, segment.entries, part.name)
        for batch, entries in cut.record_batches():
            segment.add_batch(self.writer.write_batch(batch), entries)
        segment.add_rows(cut)

    def close(self) -> StagedFile:
        written = self.writer.close()
        return StagedFile(written, tuple(segment.staged() for segment in self._segments))


class _OpenSegment:
    """The adjacent batches of one topic partition in the file being written."""

    def __init__(self, part: TopicPart) -> None:
        self.part = part
        self.entries = 0
        self._first_batch = -1
        self._batch_entries: list[int] = []
        self._entry_rows: list[npt.NDArray[np.int64]] = []
        self._bytes = 0
        self._publish: list[int] = []

    def add_batch(self, number: int, entries: int) -> None:
        if self._first_batch < 0:
            self._first_batch = number
        assert number == self._first_batch + len(self._batch_entries), "the batches of a segment are adjacent"
        self._batch_entries.append(entries)

    def add_rows(self, cut: CutRows) -> None:
        self.entries += len(cut.entry_rows)
        self._entry_rows.append(cut.entry_rows)
        self._bytes += cut.bytes
        times = pc.min_max(cut.batch.column("publish_time").view(pa.int64())).as_py()
        self._publish += [times["min"], times["max"]]

    def staged(self) -> StagedSegment:
        rows = np.concatenate(self._entry_rows)
        assert len(rows) == self.entries == sum(self._batch_entries)
        return StagedSegment(
            topic=self.part.name,
            topic_id=self.part.topic_id,
            first_batch=self._first_batch,
            batch_entries=tuple(self._batch_entries),
            entry_rows=run_lengths(rows),
            entries=self.entries,
            rows=int(rows.sum()),
            bytes=self._bytes,
            publish_min_ms=min(self._publish),
            publish_max_ms=max(self._publish),
        )
