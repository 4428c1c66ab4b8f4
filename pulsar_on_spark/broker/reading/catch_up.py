"""Reading entries that are not in memory: raw from journals, or rebuilt from segments. All calls block.

A read is planned from the current metadata. If a file is gone when it is read (merged, sealed, trimmed after sealing),
the rest is planned again from the position that the read has reached; ids and messages stay the same.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain, groupby

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_on_spark.broker.reading.breaker import Breaker
from pulsar_on_spark.broker.reading.entry_look import look_at
from pulsar_on_spark.broker.reading.jobs import EntrySource, InLaneError, Lane
from pulsar_on_spark.ledger.journal.frame_reader import JournalPlace
from pulsar_on_spark.metadata.records import CompactionRecord, FileRecord, PathRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import (
    CopiesUnreachableError,
    CorruptSegmentError,
    DataLossError,
    JournalGoneError,
    PulsarpyError,
    SegmentGoneError,
    StoragePathError,
)
from pulsar_on_spark.model.ids import EntryId, FileId, LedgerId, PathId, Position
from pulsar_on_spark.storage.storage_path import PathTable
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.path_records import journal_paths
from pulsar_on_spark.topic.catalog.present_copies import read_present, report_present
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.data_path.journal_read import stored_entries
from pulsar_on_spark.topic.data_path.reading import rows_of
from pulsar_on_spark.topic.data_path.tail import Tail
from pulsar_on_spark.topic.entries.rebuild import rebuild_entries
from pulsar_on_spark.topic.entries.rows import StoredEntry
from pulsar_on_spark.topic.maintenance.compaction.reading import compacted_slices
from pulsar_on_spark.topic.managed_ledger.chain.chain import Loss, readable_end, walk_range
from pulsar_on_spark.topic.managed_ledger.chain.compaction_record import log_start
from pulsar_on_spark.topic.managed_ledger.chain.slices import SegmentSlice
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import EntryRange

log = logging.getLogger(__name__)

_PLANS = 5
"""Maximum number of consecutive plans that yield no entry."""
_TOPICS_IN_JOURNALS = 64
"""Maximum number of topics whose entries in journals stay indexed; reads of other topics scan the journals again."""
_MAX_REPORTED = 1_000
"""Maximum number of bad copies that are remembered as reported."""


class CatchUp:
    """A reader of the entries of any topic of one root. Thread-safe only for `Lane.COLD`.

    Args:
        root: The open root.
        max_message_size_bytes: The broker's `maxMessageSize`, the limit of rebuilt entries.
        lane: The lane whose entries are read; entries of another lane raise `InLaneError`. None to read all entries.
    """

    def __init__(self, root: RootHandle, max_message_size_bytes: int, lane: Lane | None = None) -> None:
        self._root = root
        self._max_message_size_bytes = max_message_size_bytes
        self._tail = Tail(root) if lane in (None, Lane.JOURNALS) else None
        self._reads_cold = lane in (None, Lane.COLD)
        self._breaker = Breaker(self._answers)
        self._lately: OrderedDict[str, TopicPart] = OrderedDict()
        self._reported: set[tuple[str, PathId]] = set()

    def close(self) -> None:
        """Close the journal files; a later read opens them again."""
        self._lately.clear()
        if self._tail is not None:
            self._tail.close()

    def read(self, source: EntrySource, ranges: Sequence[EntryRange]) -> Generator[StoredEntry]:
        """Yield the entries of the ranges, and then the readable entries that follow the last range in its ledger.

        From a compacted ledger, yields all entries from the beginning of the first range.

        Args:
            source: The topic's log, or its compacted ledger.
            ranges: At least one range, of acknowledged entries.

        Raises:
            InLaneError: another lane can read the entry.
            DataLossError: an entry is in no segment and in no journal file.
            CorruptSegmentError, CorruptJournalError: no good copy of an entry is left.
            UnbuildableEntryError: an entry cannot be rebuilt within `maxMessageSize`.
            MetadataError, StorageError: the root cannot be read.
        """
        if source.compaction is not None:
            first = Position(ranges[0].ledger, EntryId(ranges[0].first))
            return self._compacted_entries(source.part, source.compaction, first)
        return self._log_entries(source.part, ranges)

    def _log_entries(self, part: TopicPart, ranges: Sequence[EntryRange]) -> Generator[StoredEntry]:
        for number, wanted in enumerate(ranges):
            is_last = number == len(ranges) - 1
            position, plans = wanted.first, 0
            while position < wanted.end:
                plans += 1
                try:
                    for entry in self._planned(part, wanted._replace(first=position), past_end=is_last):
                        yield entry
                        position, plans = entry.entry_id + 1, 0
                except (SegmentGoneError, JournalGoneError) as error:
                    if plans == _PLANS:
                        raise
                    log.info(
                        "Reading entry %d:%d of %s is planned again: %s",
                        wanted.ledger,
                        position,
                        part.name,
                        error,
                        extra={"topic": part.name, "ledger": wanted.ledger},
                    )
                except PulsarpyError:
                    if position < wanted.end:
                        raise

    def _compacted_entries(
        self, part: TopicPart, compaction: CompactionRecord, first: Position
    ) -> Generator[StoredEntry]:
        view = self._root.store.view(durable=True)
        paths = partial(self._root.storage_paths, view)
        entries = (
            entry
            for slice_ in compacted_slices(view, part, compaction, first)
            for ledger, rows in slice_.read(paths, None, self._report)
            for entry in rebuild_entries(
                rows, ledger, max_message_size_bytes=self._max_message_size_bytes, compacted=True
            )
        )
        entry = next(entries, None)
        if entry is None or (entry.ledger_id, entry.entry_id) != (first.ledger, first.entry):
            raise DataLossError(
                f"Entry {first} of {part.name} is in the index of its compacted ledger {compaction.compaction_id} but "
                "not in the ledger: compact the topic again."
            )
        yield entry
        yield from entries

    def position_at(self, source: EntrySource, start: Position, end: Position, publish_ms: int) -> Position:
        """Return the position of the first entry of [start, end) published at `publish_ms` or later; else `end`.

        Sealed entries are scanned in order. In journals, times are assumed to grow from entry to entry, as in Pulsar
        (`PersistentMessageFinder`).

        Args:
            source: The topic's log, or its compacted ledger and the log after it.
            start: The first entry to consider.
            end: The position after the last entry, at most the end of the topic's chain.
            publish_ms: The publish time, in milliseconds since 1970.

        Raises:
            InLaneError: only another lane can continue the search.
            DataLossError, StorageError, MetadataError: as `read`.
        """
        part = source.part
        if source.compaction is not None:
            early = self._first_compacted(part, source.compaction, start, publish_ms)
            if early is not None:
                return min(early, end)
        view: View = self._root.store.view(durable=True)
        if self._tail is not None:
            view = self._journal_view(part, view, end)
        if source.compaction is not None:
            start = max(start, log_start(view, part.topic_id, source.compaction))
        slices = self._known_slices(_walk(view, part, start, end), start)
        for is_raw, group in groupby(slices, lambda slice_: isinstance(slice_.file, JournalPlace)):
            if is_raw:
                position = self._first_raw(part, list(group), publish_ms)
            else:
                position = self._first_sealed(group, publish_ms, view)
            if position is not None:
                return position
        return end

    def _known_slices(self, pieces: Iterable[SegmentSlice | Loss], start: Position) -> Iterator[SegmentSlice]:
        """Yield the slices without losses, which have no publish time.

        Raises:
            InLaneError: entries are in no segment, and this lane does not read the journals that may contain them.
        """
        for piece in pieces:
            if isinstance(piece, SegmentSlice):
                yield piece
                start = Position(piece.start_position.ledger, EntryId(piece.end))
            elif self._tail is None:
                raise InLaneError(Lane.JOURNALS, start)

    def _first_compacted(
        self, part: TopicPart, compaction: CompactionRecord, start: Position, publish_ms: int
    ) -> Position | None:
        view = self._root.store.view(durable=True)
        paths = partial(self._root.storage_paths, view)
        for slice_ in compacted_slices(view, part, compaction, start):
            for ledger, rows in slice_.read(paths, ("entry_id", "publish_time"), self._report):
                first = pc.index(_is_late(rows, publish_ms), True).as_py()
                if first >= 0:
                    return Position(ledger, EntryId(rows.column("entry_id")[first].as_py()))
        return None

    def _first_sealed(self, slices: Iterable[SegmentSlice], publish_ms: int, view: View) -> Position | None:
        for slice_ in slices:
            if slice_.segment.publish_max_ms >= publish_ms:
                for rows in self._rows(slice_, view, ("entry_id", "publish_time")):
                    first = pc.index(_is_late(rows, publish_ms), True).as_py()
                    if first >= 0:
                        entry = rows.column("entry_id")[first].as_py() + slice_.segment.entry_offset
                        return Position(LedgerId(slice_.segment.ledger_id), EntryId(entry))
        return None

    def _first_raw(self, part: TopicPart, slices: Sequence[SegmentSlice], publish_ms: int) -> Position | None:
        """Return the position of the first entry in journals published at `publish_ms` or later, by binary search.

        None if all entries of the slices were published earlier.
        """
        counts = list(accumulate((slice_.end - slice_.first for slice_ in slices), initial=0))

        def position(number: int) -> Position:
            index = bisect_right(counts, number) - 1
            return Position(slices[index].start_position.ledger, EntryId(slices[index].first + number - counts[index]))

        def is_late(number: int) -> bool:
            ledger, entry = position(number).ledger, position(number).entry
            with closing(self._log_entries(part, [EntryRange(ledger, entry, entry + 1)])) as entries:
                return look_at(next(entries).data).publish_ms >= publish_ms

        try:
            first = bisect_left(range(counts[-1]), True, key=is_late)
        except InLaneError as error:  # they were sealed and offloaded meanwhile, and the search was not in their order
            raise InLaneError(error.lane, slices[0].start_position) from error
        return position(first) if first < counts[-1] else None

    def _planned(self, part: TopicPart, wanted: EntryRange, *, past_end: bool) -> Iterator[StoredEntry]:
        """Yield consecutive entries from the range's first entry on, at least that entry, up to the first gap.

        Reads only segments if the first entry is sealed, and then ends at the first entry that is not sealed. Otherwise
        reads journals too.
        """
        end = Position(wanted.ledger, EntryId(wanted.end))
        view = self._root.store.view(durable=True)
        slices = _slices(view, part, wanted, past_end=past_end)
        first = next(slices, None)
        if first is None:
            slices = _slices(self._journal_view(part, view, end), part, wanted, past_end=past_end)
            first = next(slices, None)
        if first is None:
            raise DataLossError(
                f"Entry {wanted.ledger}:{wanted.first} of {part.name} cannot be read, because it is in no segment and "
                "in no journal file: bring back unreachable storage paths, or move the subscription past it."
            )
        for slice_ in chain((first,), slices):
            if isinstance(slice_.file, JournalPlace):
                yield from _raw(slice_, slice_.file, self._root.current_storage_paths)
            else:
                yield from self._rebuilt(slice_, view)

    def _journal_view(self, part: TopicPart, view: View, end: Position) -> View:
        """Return the view, extended by the topic's entries in journals.

        Recently read topics are updated together, so that the journals are not scanned from their beginning for each
        topic; a topic with a gap does not affect the others.
        """
        if self._tail is None:
            raise InLaneError(Lane.JOURNALS)
        others = [other for topic_id, other in self._lately.items() if topic_id != part.topic_id]
        try:
            seen = self._tail.read_view([part, *others], view, reach={part.topic_id: end})
        except (DataLossError, CopiesUnreachableError):
            if not others:
                raise
            self._lately.clear()
            seen = self._tail.read_view([part], view, reach={part.topic_id: end})
        self._lately[part.topic_id] = part
        self._lately.move_to_end(part.topic_id)
        if len(self._lately) > _TOPICS_IN_JOURNALS:
            self._lately.popitem(last=False)
        return seen

    def _rebuilt(self, slice_: SegmentSlice, view: View) -> Iterator[StoredEntry]:
        ledger, offset = LedgerId(slice_.segment.ledger_id), slice_.segment.entry_offset
        for rows in self._rows(slice_, view, None):
            yield from rebuild_entries(rows, ledger, offset, max_message_size_bytes=self._max_message_size_bytes)

    def _rows(self, slice_: SegmentSlice, view: View, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a sealed slice, including rows that are not messages.

        Args:
            slice_: The slice.
            view: The metadata, which have the storage paths.
            columns: The names of the columns to read; None for all.

        Raises:
            InLaneError: only copies on cold paths may be good, and this reader is not in `Lane.COLD`.
        """
        file, wanted = slice_.file, slice_.batches()
        assert isinstance(file, FileRecord)
        cold = {PathId(record.path_id) for record in view.all(PathRecord) if record.role == "cold"} & {*file.copies}
        deferred = InLaneError(Lane.COLD, slice_.start_position)
        at_stake = f"{slice_.topic} {slice_.entries_in_words}"
        if cold and not self._reads_cold:
            file = file.with_names({path_id: name for path_id, name in file.names.items() if path_id not in cold})
            if not file.copies:
                raise deferred
        read_from = cold if self._reads_cold else ()
        file_id = FileId(file.file_id)
        batches = read_present(
            lambda: self._root,
            file,
            partial(self._root.storage_paths, view),
            [where.number for where in wanted],
            columns,
            self._report,
            at_stake=at_stake,
        )
        with closing(batches):
            for where in wanted:
                try:
                    with self._breaker.reading(file_id, read_from, f"Segment file {file_id} with {at_stake}"):
                        batch = next(batches)
                except (CopiesUnreachableError, CorruptSegmentError) as error:
                    if cold and not self._reads_cold:
                        raise deferred from error
                    raise
                yield rows_of(where, batch)

    def _answers(self, path_id: PathId) -> bool:
        """Return True if a storage path can be reached."""
        path = self._root.current_storage_paths().get(path_id)
        try:
            if path is not None:
                path.check()
        except StoragePathError:
            return False
        return path is not None

    def _report(self, file: FileRecord, path: PathId, reason: str) -> None:
        """Report a bad or missing copy, once per copy; other copies may be good."""
        if (file.file_id, path) in self._reported:
            return
        if len(self._reported) >= _MAX_REPORTED:
            self._reported.clear()
        self._reported.add((file.file_id, path))
        report_present(lambda: self._root, file, path, reason)


def _is_late(rows: pa.RecordBatch, publish_ms: int) -> pa.BooleanArray:
    return pc.greater_equal(rows.column("publish_time").view(pa.int64()), publish_ms)


def _walk(view: View, part: TopicPart, start: Position, end: Position) -> Iterator[SegmentSlice | Loss]:
    return walk_range(view, part.name, part.topic_id, part.partition, start, end)


def _slices(view: View, part: TopicPart, wanted: EntryRange, *, past_end: bool) -> Iterator[SegmentSlice]:
    """Yield a range's slices up to the first gap or the range's end; with `past_end`, up to the end of its ledger."""
    start, end = Position(wanted.ledger, EntryId(wanted.first)), wanted.end
    if past_end:
        end = max(end, readable_end(view, part.topic_id, wanted.ledger))
    for piece in _walk(view, part, start, Position(wanted.ledger, EntryId(end))):
        if isinstance(piece, Loss) or piece.start_position != start:
            return
        yield piece
        start = Position(wanted.ledger, EntryId(piece.end))


def _raw(slice_: SegmentSlice, place: JournalPlace, paths: PathTable) -> Iterator[StoredEntry]:
    frames = replace(place, frames=tuple(place.frames[batch.number] for batch in slice_.batches()))
    return stored_entries(
        frames, LedgerId(slice_.segment.ledger_id), slice_.first, slice_.end, lambda: journal_paths(paths())
    )
