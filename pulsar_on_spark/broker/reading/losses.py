"""The extent of a loss: entries without a readable copy, which a subscription may skip."""

from __future__ import annotations

from typing import Final, NamedTuple

from pulsar_on_spark.metadata.records import FileRecord, LedgerRecord
from pulsar_on_spark.metadata.state import DurableView, View
from pulsar_on_spark.model.errors import (
    CorruptJournalError,
    CorruptSegmentError,
    DataLossError,
    PulsarpyError,
    UnbuildableEntryError,
)
from pulsar_on_spark.model.ids import EntryId, FileId, LedgerId, Position
from pulsar_on_spark.storage.reports import Finding, LostBatches, ReportKind
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.managed_ledger.chain.chain import walk_range
from pulsar_on_spark.topic.managed_ledger.chain.slices import SegmentSlice

LOSSES: Final = (DataLossError, CorruptSegmentError, CorruptJournalError, UnbuildableEntryError)
"""Errors of a read that mean that entries have no readable copy now."""


class LostEntries(NamedTuple):
    """The lost entries of a ledger, from an unreadable one on.

    Attributes:
        end: The entry id after the last lost entry.
        report: The report of the loss to write; None if there is nothing to report.
    """

    end: int
    report: Finding | None


def lost_entries(
    view: DurableView, part: TopicPart, first: Position, end: int, error: PulsarpyError, now_ms: int
) -> LostEntries:
    """Return the entries that are lost together with an entry: the rest of its batch, or all up to the next segment.

    Args:
        view: The metadata.
        part: The topic.
        first: The position of the entry that cannot be read.
        end: The entry id after the last entry that the read requested of this ledger.
        error: The error of the read.
        now_ms: The current time in milliseconds since 1970, for the report.
    """
    alone = LostEntries(first.entry + 1, None)
    if isinstance(error, UnbuildableEntryError):
        return alone
    pieces = walk_range(view, part.name, part.topic_id, part.partition, first, Position(first.ledger, EntryId(end)))
    slice_ = next((piece for piece in pieces if isinstance(piece, SegmentSlice)), None)
    if slice_ is None:
        return alone  # the entry is in a journal, where each frame is lost by itself
    if slice_.start_position != first:
        return LostEntries(slice_.first, None)
    batch = slice_.batches()[0]
    stop = min(batch.end, end)
    if not isinstance(slice_.file, FileRecord):
        return alone
    rows = sum(rows for _, rows in slice_.part(batch.first, batch.end).entry_runs())
    lost = LostBatches(part.name, batch.number, (rows,))
    report = Finding(ReportKind.LOSS, FileId(slice_.file.file_id), None, str(error), now_ms, lost)
    return LostEntries(stop, report)


def given_up_until(view: View, part: TopicPart, first: Position) -> int | None:
    """Return the entry id after the entries that an operator gave up together with `first`; None without these.

    Consumers pass these entries over, because the operator has decided that they are lost for good.
    """
    ledger = view.get(LedgerRecord, f"{part.topic_id}/{first.ledger:020d}")
    lost = () if ledger is None else ledger.lost
    return next((each.end for each in lost if each.first <= first.entry < each.end), None)


def lost_range(first: Position, end: int) -> str:
    """Return the entries from `first` to the one before id `end` as text, such as `5:0 to 5:9`, for log messages."""
    last = end - 1
    return f"{first}" if last == first.entry else f"{first} to {Position(LedgerId(first.ledger), EntryId(last))}"
