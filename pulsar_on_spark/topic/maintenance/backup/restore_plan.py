"""The plan of a restore: the segments that hold the entries which a root had at an earlier moment. Pure.

    the topic then     [0,10) [10,20)          [20,30) in a broker's journal, not sealed yet
    the topic now      [0,                20)  [20,30) [30,40)
    restored           [0,                20)  [20,30)

Since that moment, segments may have been merged and the merged files deleted. Entries keep their ids. So the current
segments are used for all entries that they contain. For other entries the earlier segments are used, whose files may
still exist or are lost. Entries that a broker had acknowledged but not sealed are in segments that were sealed later;
such a segment is used if its oldest message is not newer than the moment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pulsar_on_spark.metadata.cursors import CursorRow
from pulsar_on_spark.metadata.past import Past
from pulsar_on_spark.metadata.records import (
    CompactionRecord,
    FileRecord,
    IncarnationRecord,
    LedgerRecord,
    LostEntries,
    SegmentRecord,
    TopicRecord,
)
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position
from pulsar_on_spark.topic.managed_ledger.chain.chain import readable_end, trimmed_before
from pulsar_on_spark.topic.managed_ledger.chain.slices import clipped, segment_end


@dataclass(frozen=True, slots=True)
class Missing:
    """A file without any copy, and one of the topics that have messages in it.

    Attributes:
        file_id: The file.
        topic: The topic's full name.
        messages: Number of the topic's messages in the file.
    """

    file_id: str
    topic: str
    messages: int


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The planned records of a restored root; all other records are copied unchanged.

    Attributes:
        segments: All segments.
        files: The files that the segments and the compacted ledgers name.
        ledgers: All ledgers; brokers' ledgers are closed.
        compactions: The compacted ledgers.
        unsealed: Full names of topics whose last messages may have been only in a broker's journal, and were not sealed
            since.
    """

    segments: tuple[SegmentRecord, ...]
    files: tuple[FileRecord, ...]
    ledgers: tuple[LedgerRecord, ...]
    compactions: tuple[CompactionRecord, ...]
    unsealed: tuple[str, ...]

    def without_files(self, gone: Collection[str], view: View) -> RestorePlan:
        """Return the plan without compacted ledgers that lack a file, if their topic's log still has all messages.

        Args:
            gone: The ids of the files that have no copy left.
            view: The metadata at the restored moment.
        """
        lossy = {segment.topic_id for segment in self.segments if segment.file_id in gone}
        left_out = {
            record.topic_id
            for record in self.compactions
            if any(file.file_id in gone for file in record.files)
            and record.topic_id not in lossy
            and trimmed_before(view, record.topic_id) == EARLIEST
        }
        compactions = tuple(record for record in self.compactions if record.topic_id not in left_out)
        named = {segment.file_id for segment in self.segments} | _compacted_files(compactions)
        files = tuple(file for file in self.files if file.file_id in named)
        return RestorePlan(self.segments, files, self.ledgers, compactions, self.unsealed)

    def missing(self, gone: Collection[str], view: View) -> list[Missing]:
        """List the messages that topics lack without these files."""
        names = {topic.topic_id: topic.name for topic in view.all(TopicRecord)}
        messages: dict[tuple[str, str], int] = defaultdict(int)
        for segment in self.segments:
            messages[segment.topic_id, segment.file_id] += segment.rows
        for record in self.compactions:
            for file in record.files:
                messages[record.topic_id, file.file_id] += sum(rows for _, _, _, rows in file.batches)
        return [
            Missing(file_id, names.get(topic_id, topic_id), count)
            for (topic_id, file_id), count in sorted(messages.items())
            if file_id in gone
        ]


def plan_restore(past: Past, now: View) -> RestorePlan:
    """Plan the restore of a root.

    Args:
        past: The metadata at the restored moment.
        now: The current metadata.
    """
    until_ms = int(past.at.timestamp() * 1000)
    tails, settled = _tails(past, until_ms), _settled(past, until_ms)
    later = {ledger.record_id: ledger for ledger in past.later_records(LedgerRecord)}
    names = {topic.topic_id: topic.name for topic in past.view.all(TopicRecord)}
    segments: list[SegmentRecord] = []
    ledgers: list[LedgerRecord] = []
    unsealed: set[str] = set()
    for topic_id in sorted({ledger.topic_id for ledger in past.view.all(LedgerRecord)}):
        then, today = _by_ledger(past.view, topic_id), _by_ledger(now, topic_id)
        for ledger in past.view.all(LedgerRecord, topic_id):
            known = [*then.get(ledger.ledger_id, ()), *tails.get(ledger.record_id, ())]
            end = segment_end(known[-1]) if known else _trimmed_end(past.view, ledger)
            segments += _chosen(known, today.get(ledger.ledger_id, ()), end)
            ledgers.append(_closed(ledger, end))
            is_known = ledger.entries is not None or later.get(ledger.record_id, ledger).entries == end
            if not (ledger.incarnation is None or is_known or ledger.incarnation in settled):
                unsealed.add(names.get(topic_id, topic_id))
    compactions = tuple(past.view.all(CompactionRecord))
    named = {segment.file_id for segment in segments} | _compacted_files(compactions)
    files = tuple(_files(named, past, now))
    return RestorePlan(tuple(segments), files, tuple(ledgers), compactions, tuple(sorted(unsealed)))


def reachable_cursors(past: Past, plan: RestorePlan) -> list[CursorRow]:
    """Return the cursor rows, with positions after the end of a topic moved back to that end.

    A cursor beyond the end would skip messages that are written later. It can occur if clocks differ, so that the
    restored moment includes a cursor's move but not the messages that it passed.
    """
    ends: dict[str, Position] = {}
    for ledger in plan.ledgers:
        end = readable_end(past.view, ledger.topic_id, ledger.ledger_id) if ledger.entries is None else ledger.entries
        ends[ledger.topic_id] = Position(LedgerId(ledger.ledger_id), EntryId(end))
    rows = []
    for row in past.cursors:
        end_of_topic = max(ends.get(row.topic_id, EARLIEST), trimmed_before(past.view, row.topic_id))
        if Position(LedgerId(row.ledger), EntryId(row.entry)) > end_of_topic:
            row = replace(row, ledger=end_of_topic.ledger, entry=end_of_topic.entry, ack_holes=None)
        rows.append(row)
    return rows


def _tails(past: Past, until_ms: int) -> Mapping[str, Sequence[SegmentRecord]]:
    """Return, by ledger, the segments that were sealed after the moment and have messages from before it."""
    ends = {
        ledger.record_id: _Tail(readable_end(past.view, ledger.topic_id, ledger.ledger_id))
        for ledger in past.view.all(LedgerRecord)
        if ledger.incarnation is not None
    }
    for segment in past.later_records(SegmentRecord):
        tail = ends.get(_ledger_of(segment))
        if tail is not None:
            tail.take(segment, until_ms)
    return {record_id: tail.segments for record_id, tail in ends.items()}


@dataclass
class _Tail:
    """The end of a ledger, and its segments after the moment in the order of their sealing.

    A segment of a merge is ignored, because it begins before the end.
    """

    end: int
    segments: list[SegmentRecord] = field(default_factory=list)
    is_over: bool = False

    def take(self, segment: SegmentRecord, until_ms: int) -> None:
        if self.is_over or segment.first_entry < self.end:
            return
        if segment.publish_min_ms > until_ms:
            self.is_over = True
        else:
            self.segments.append(segment)
            self.end = segment_end(segment)


def _settled(past: Past, until_ms: int) -> set[str]:
    """Return the incarnations whose entries from before the moment are all sealed in the current metadata.

    Frames are sealed in order, so a later message in a segment shows that all earlier messages are in segments, too.
    """
    owners = {
        ledger.record_id: ledger.incarnation
        for ledger in (*past.view.all(LedgerRecord), *past.later_records(LedgerRecord))
    }
    newer = {
        owner
        for segment in past.later_records(SegmentRecord)
        if segment.publish_min_ms > until_ms and (owner := owners.get(_ledger_of(segment))) is not None
    }
    known = {record.incarnation for record in past.view.all(IncarnationRecord)}
    return newer | {owner for owner in owners.values() if owner is not None and owner not in known}


def _trimmed_end(view: View, ledger: LedgerRecord) -> int:
    """Return the end of a ledger without segments: the end of its trimmed entries."""
    trimmed = trimmed_before(view, ledger.topic_id)
    if trimmed.ledger > ledger.ledger_id:
        return ledger.entries or 0
    return trimmed.entry if trimmed.ledger == ledger.ledger_id else 0


def _chosen(known: Sequence[SegmentRecord], today: Sequence[SegmentRecord], end: int) -> Iterable[SegmentRecord]:
    """Yield the segments of a ledger up to `end`: current segments, and `known` ones for entries that these lack."""
    present = [clipped(segment, end) for segment in today if segment.first_entry < end]
    rest = [segment for segment in known if not any(_overlap(segment, each) for each in present)]
    return sorted([*present, *rest], key=lambda segment: segment.first_entry)


def _overlap(one: SegmentRecord, other: SegmentRecord) -> bool:
    return one.first_entry < segment_end(other) and other.first_entry < segment_end(one)


def _closed(ledger: LedgerRecord, end: int) -> LedgerRecord:
    """Close a broker's ledger at the end of its segments; acknowledged entries after that end are lost."""
    if ledger.incarnation is None:
        return ledger
    lost = ledger.lost
    if ledger.entries is not None and ledger.entries > end:
        lost = (*lost, LostEntries(ledger_id=ledger.ledger_id, first=end, end=ledger.entries))
    return ledger.model_copy(update={"closed": True, "entries": end, "lost": lost})


def _files(named: Collection[str], past: Past, now: View) -> Iterable[FileRecord]:
    """Return the newest record of each file, which names its current copies."""
    later = {file.file_id: file for file in past.later_records(FileRecord)}
    for file_id in sorted(named):
        file = now.get(FileRecord, file_id) or later.get(file_id) or past.view.get(FileRecord, file_id)
        if file is not None:
            yield file


def _by_ledger(view: View, topic_id: str) -> Mapping[int, Sequence[SegmentRecord]]:
    found: dict[int, list[SegmentRecord]] = defaultdict(list)
    for segment in view.all(SegmentRecord, topic_id):
        found[segment.ledger_id].append(segment)
    return found


def _ledger_of(segment: SegmentRecord) -> str:
    return f"{segment.topic_id}/{segment.ledger_id:020d}"


def _compacted_files(compactions: Iterable[CompactionRecord]) -> set[str]:
    return {file.file_id for record in compactions for file in record.files}
