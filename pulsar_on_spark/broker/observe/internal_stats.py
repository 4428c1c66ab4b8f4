"""The ledgers and cursors of a topic (Pulsar's `internalStats`), from one snapshot of the topic's contents. No IO."""

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
"""Maximum number of runs of acknowledged entries, beyond the mark-delete position, that are listed for a cursor."""


def internal_stats(
    record: TopicRecord, topic: BrokerTopic | None, contents: Contents, write_quorum: int
) -> InternalStats:
    """Return the stats of a topic's ledgers and cursors.

    Args:
        record: The topic or partition.
        topic: The same topic as loaded; None if it is not loaded.
        contents: The topic's contents, with the backlog of each subscription.
        write_quorum: The root's write quorum: required copies of a file whose record does not have this number.
    """
    view = contents.view
    holding = {path.path_id for path in view.all(PathRecord) if keeps_copies(path.state)}
    segments: dict[int, list[SegmentRecord]] = defaultdict(list)
    for segment in view.all(SegmentRecord, record.topic_id):
        segments[segment.ledger_id].append(segment)
    ledgers = [
        _ledger(view, ledger, segments[ledger.ledger_id], write_quorum, holding)
        for ledger in view.all(LedgerRecord, record.topic_id)
    ]
    newest = view.newest(LedgerRecord, record.topic_id)
    created_s = record.created_at.timestamp() if newest is None else newest.created_at.timestamp()
    entries = sum(ledger.entries for ledger in ledgers)
    is_open = bool(ledgers) and ledgers[-1].state == "open"
    open_here = {} if topic is None else {subscription.name: subscription for subscription in topic.subscriptions.all}
    return InternalStats(
        entries_added_counter=entries,
        number_of_entries=entries,
        total_size=contents.bytes,
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
            subscription.name: _cursor(contents, subscription, open_here.get(subscription.name))
            for subscription in view.all(SubscriptionRecord, record.topic_id)
        },
    )


def with_reasons(stats: InternalStats, kept: Iterable[KeptSegment]) -> InternalStats:
    """Return a copy of stats in which each ledger has its sealed segments, with the reasons why they are kept."""
    segments: dict[int, list[SegmentStats]] = defaultdict(list)
    for kept_segment in kept:
        segment = kept_segment.segment
        segments[segment.ledger_id].append(
            SegmentStats(
                first=segment.first_entry, entries=segment.entries, size=segment.bytes, why_kept=kept_segment.reason
            )
        )
    ledgers = [ledger.model_copy(update={"segments": segments[ledger.ledger_id]}) for ledger in stats.ledgers]
    return stats.model_copy(update={"ledgers": ledgers})


def _ledger(
    view: View, ledger: LedgerRecord, own_segments: Sequence[SegmentRecord], write_quorum: int, holding: Collection[int]
) -> LedgerStats:
    # Entries that are only in the journal have no file: the journal keeps their copies.
    files = [view.get(FileRecord, segment.file_id) for segment in own_segments]
    state = "attached" if ledger.incarnation is None else "open" if chain.is_open(view, ledger) else "closed"
    return LedgerStats(
        ledger_id=ledger.ledger_id,
        entries=sum(segment.entries for segment in own_segments),
        size=sum(segment.bytes for segment in own_segments),
        under_replicated=any(file is not None and file.missing_copies(write_quorum, holding) > 0 for file in files),
        offloaded=state != "open" and bool(files) and all(file is not None and file.is_cold for file in files),
        state=state,
        messages=sum(segment.rows for segment in own_segments),
    )


def _compacted(record: CompactionRecord | None) -> CompactedLedgerStats | None:
    if record is None:
        return None
    return CompactedLedgerStats(entries=record.entries, size=record.bytes, messages=record.rows)


def _cursor(contents: Contents, record: SubscriptionRecord, here: Subscription | None) -> CursorStats:
    live = here if here is not None and isinstance(here.kept, OpenCursor) else None
    backlog = contents.backlogs[record.name]
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
    """Return the entry before a position as `ledger:entry`, as Pulsar does; entry -1 before a ledger's first entry."""
    return f"{next_.ledger}:{next_.entry - 1}"
