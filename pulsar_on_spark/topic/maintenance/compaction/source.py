"""The source of a compaction: the former compacted ledger, then the log after its horizon, sealed or in journals.

Both passes read the same entries, even if some are sealed, merged or trimmed between them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from pulsar_on_spark.ledger.journal.frame_reader import JournalPlace
from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.metadata.records import CompactionRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import DataLossError, JournalGoneError, SegmentGoneError
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.present_copies import read_present, report_present
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.data_path.journal_read import read_entries
from pulsar_on_spark.topic.data_path.reading import rows_of
from pulsar_on_spark.topic.data_path.tail import Tail
from pulsar_on_spark.topic.maintenance.compaction.places import Places
from pulsar_on_spark.topic.maintenance.compaction.reading import CompactedSlice, compacted_slices
from pulsar_on_spark.topic.managed_ledger.chain.chain import Loss, read_limit, walk_range
from pulsar_on_spark.topic.managed_ledger.chain.compaction_record import log_start
from pulsar_on_spark.topic.managed_ledger.chain.slices import SegmentSlice

log = logging.getLogger(__name__)

_PLANS = 5
"""Maximum number of times that the file of an entry is looked up in the metadata, if each is deleted too soon."""


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Rows of some entries of a ledger; an entry's id is its column `entry_id` plus `entry_offset`."""

    ledger: LedgerId
    entry_offset: int
    rows: pa.RecordBatch


class Source:
    """The entries of one compaction.

    Args:
        root: The root.
        part: The topic.
        tail: The reader of the journals.
        view: The metadata with the journals' entries.

    Attributes:
        base: The compaction that this one continues; None for the first.
        start: The position from which the log is read.
        end: The new horizon.
        rows_total: The number of messages in the source.
        bytes_total: The key and value bytes of these messages.

    Raises:
        DataLossError: entries of the log are lost.
    """

    def __init__(self, root: RootHandle, part: TopicPart, tail: Tail, view: View) -> None:
        self._root = root
        self._part = part
        self._tail = tail
        self._report = partial(report_present, lambda: root)
        self.base = view.get(CompactionRecord, part.topic_id)
        self.start = log_start(view, part.topic_id, self.base)
        self.end = max(read_limit(view, part.topic_id), self.start)
        self._compacted: list[CompactedSlice] = []
        if self.base is not None:
            self._compacted = compacted_slices(view, part, self.base)
        self.rows_total = 0 if self.base is None else self.base.rows
        self.bytes_total = 0 if self.base is None else self.base.bytes
        self._ends: dict[LedgerId, int] = {}
        for file in () if self.base is None else self.base.files:
            for ledger, _, last, _ in file.batches:
                self._reach(LedgerId(ledger), last + 1)
        for slice_ in self._slices(view, self.start):
            self._reach(slice_.start_position.ledger, slice_.end)
            self.rows_total += slice_.rows
            self.bytes_total += slice_.bytes

    @property
    def name(self) -> str:
        """The topic's full name."""
        return self._part.name

    @property
    def places(self) -> Places:
        """The places of all entries."""
        return Places(self._ends)

    def rows(self, columns: Sequence[str]) -> Iterator[SourceRows]:
        """Yield all rows in order, including rows that are not messages.

        Args:
            columns: Columns of `SEGMENT_SCHEMA`, including `entry_id`.

        Raises:
            DataLossError: entries are lost.
            CorruptSegmentError, CorruptJournalError: no good copy of an entry is left.
            SegmentGoneError: the compacted ledger was replaced more than ten minutes ago.
            MetadataError, StorageError: the root cannot be read.
        """
        paths = self._root.current_storage_paths
        for compacted in self._compacted:
            for ledger, batch in compacted.read(paths, columns, self._report):
                yield SourceRows(ledger, 0, batch)
        position, plans = self.start, 0
        while position < self.end:
            plans += 1
            view = self._tail.read_view([self._part], reach={self._part.topic_id: self.end})
            try:
                for slice_ in self._slices(view, position):
                    for end, batch in self._read(slice_, columns):
                        yield SourceRows(slice_.start_position.ledger, slice_.segment.entry_offset, batch)
                        position, plans = Position(slice_.start_position.ledger, EntryId(end)), 0
                return
            except (SegmentGoneError, JournalGoneError) as error:
                if plans == _PLANS:
                    raise
                log.info(
                    "The file of entry %s of %s is looked up again: %s",
                    position,
                    self._part.name,
                    error,
                    extra={"topic": self._part.name},
                )

    def _slices(self, view: View, start: Position) -> Iterator[SegmentSlice]:
        part = self._part
        for piece in walk_range(view, part.name, part.topic_id, part.partition, start, self.end):
            if isinstance(piece, Loss):
                raise DataLossError(
                    f"{part.name} cannot be compacted, because messages that cannot be read now would be dropped "
                    f"({piece.reason}): bring back the storage paths that cannot be reached."
                )
            yield piece

    def _read(self, slice_: SegmentSlice, columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (id after the last entry read, rows of the entries) for each batch of a slice, in order."""
        file, wanted, ledger = slice_.file, slice_.batches(), slice_.start_position.ledger
        if isinstance(file, JournalPlace):
            frames = replace(file, frames=tuple(file.frames[where.number] for where in wanted))
            names = [name for name in SEGMENT_SCHEMA.names if name in columns]
            end = slice_.first
            for decoded in read_entries(frames, ledger, slice_.first, slice_.end, self._root.current_journal_paths):
                end += len(decoded.entry_rows)
                yield end, decoded.batch.select(names)
            return
        batches = read_present(
            lambda: self._root,
            file,
            self._root.current_storage_paths,
            [where.number for where in wanted],
            columns,
            self._report,
            at_stake=f"{slice_.topic} {slice_.entries_in_words}",
        )
        for where, batch in zip(wanted, batches, strict=True):
            yield min(where.end, slice_.end), rows_of(where, batch)

    def _reach(self, ledger: LedgerId, end: int) -> None:
        self._ends[ledger] = max(end, self._ends.get(ledger, 0))
