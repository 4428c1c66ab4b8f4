"""The ledgers and cursors of a topic (Pulsar's `internalStats`). Pure, on one snapshot of its contents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from pulsar_on_spark.broker.cursors.open_cursor import OpenCursor
from pulsar_on_spark.broker.observe.backlogs import Contents
from pulsar_on_spark.broker.observe.models import (
    CompactedLedgerStats,
    CursorStats,
    InternalStats,
    LedgerStats,
    SegmentStats,
)
from pulsar_on_spark.broker.observe.topic_stats import iso
from pulsar_on_spark.broker.subscriptions.subscription import Subscription
from pulsar_on_spark.broker.topics.topic import BrokerTopic
from pulsar_on_spark.metadata.records import (
    CompactionRecord,
    FileRecord,
    LedgerRecord,
    PathRecord,
    SegmentRecord,
    SubscriptionRecord,
    TopicRecord,
)
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.storage.health import keeps_copies
from pulsar_on_spark.topic.maintenance.retention.retention import KeptSegment
from pulsar_on_spark.topic.managed_ledger.chain import chain

MAX_SHOWN_RUNS: Final = 1_000
"""Runs of acknowledged entries beyond the mark-delete position that are shown for a cursor, from the first one on."""


def internal_stats(record: TopicRecord, topic: BrokerTopic | None, seen: Contents, write_quorum: int) -> InternalStats:
    """Return a topic's ledgers and cursors.

    Args:
        record: The topic or partition.
        topic: The same topic as loaded; None if it is not loaded.
        seen: The topic's contents.
        write_quorum: Copies of a file that does not state its own number.
    """
    view = seen.view
    holding = {each.path_id for each in view.all(PathRecord) if keeps_copies(each.state)}
    segments: dict[int, list[SegmentRecord]] = defaultdict(list)
    for segment in view.all(SegmentRecord, record.topic_id):
        segments[segment.ledger_id].append(segment)
    ledgers = [
        _ledger(view, each, segments[each.ledger_id], write_quorum, holding)
        for each in view.all(LedgerRecord, record.topic_id)
    ]
    newest = view.newest(LedgerRecord, record.topic_id)
    created_s = record.created_at.timestamp() if newest is None else newest.created_at.timestamp()
    entries = sum(each.entries for each in ledgers)
    is_open = bool(ledgers) and ledgers[-1].state == "open"
    open_here = {} if topic is None else {each.name: each for each in topic.subscriptions.all}
    return InternalStats(
        entries_added_counter=entries,
        number_of_entries=entries,
        total_size=seen.bytes,
        current_ledger_entries=ledgers[-1].entries if is_open else 0,
        current_ledger_size=ledgers[-1].size if is_open else 0,
        last_ledger_created_timestamp=iso(created_s),
        waiting_cursors_count=0,
        pending_add_entries_count=0 if topic is None else len(topic.waiting),
        last_confirmed_entry=_before(chain.read_limit(view, record.topic_id)),
        state="LedgerOpened" if is_open else "ClosedLedger",
        ledgers=ledgers,
        compacted_ledger=_compacted(view.get(CompactionRecord, record.topic_id)),
        cursors={
            each.name: _cursor(seen, each, open_here.get(each.name))
            for each in view.all(SubscriptionRecord, record.topic_id)
        },
    )


def with_reasons(found: InternalStats, kept: Iterable[KeptSegment]) -> InternalStats:
    """Add each ledger's sealed segments, and the reasons why they are still kept."""
    segments: dict[int, list[SegmentStats]] = defaultdict(list)
    for each in kept:
        one = each.segment
        segments[one.ledger_id].append(
            SegmentStats(first=one.first_entry, entries=one.entries, size=one.bytes, why_kept=each.reason)
        )
    ledgers = [each.model_copy(update={"segments": segments[each.ledger_id]}) for each in found.ledgers]
    return found.model_copy(update={"ledgers": ledgers})


def _ledger(
    view: View, ledger: LedgerRecord, of_it: Sequence[SegmentRecord], write_quorum: int, holding: Collection[int]
) -> LedgerStats:
    # The journal keeps the copies of entries that are only there.
    files = (view.get(FileRecord, each.file_id) for each in of_it)
    state = "attached" if ledger.incarnation is None else "open" if chain.is_open(view, ledger) else "closed"
    return LedgerStats(
        ledger_id=ledger.ledger_id,
        entries=sum(each.entries for each in of_it),
        size=sum(each.bytes for each in of_it),
        under_replicated=any(each is not None and each.missing_copies(write_quorum, holding) > 0 for each in files),
        state=state,
        messages=sum(each.rows for each in of_it),
    )


def _compacted(record: CompactionRecord | None) -> CompactedLedgerStats | None:
    if record is None:
        return None
    return CompactedLedgerStats(entries=record.entries, size=record.bytes, messages=record.rows)


def _cursor(seen: Contents, record: SubscriptionRecord, here: Subscription | None) -> CursorStats:
    live = here if here is not None and isinstance(here.kept, OpenCursor) else None
    backlog = seen.backlogs[record.name]
    runs = list(backlog.holes.runs())
    shown = ",".join(f"({ledger}:{first - 1}..{ledger}:{end - 1}]" for ledger, first, end in runs[:MAX_SHOWN_RUNS])
    return CursorStats(
        mark_delete_position=_before(backlog.mark_delete),
        individually_deleted_messages=f"[{shown}]",
        messages_consumed_counter=0 if live is None else live.messages_out,
        state="NoLedger" if live is None else "Open",
        number_of_entries_since_first_not_acked_message=backlog.entries,
        total_non_contiguous_deleted_messages_range=len(runs),
    )


def _before(next_: Position) -> str:
    """Return the last entry before a position, as Pulsar writes it; entry -1 is before a ledger's first entry."""
    return f"{next_.ledger}:{next_.entry - 1}"
