"""Trimming topics: the front of each chain is removed, up to the first segment that retention or a reader keeps.

    read the main table, then the cursors  ->  decide  ->  one commit under the topics' keys  ->  garbage collection

The commit removes segments and ledgers from the chain and records the chain's new beginning. Creating a subscription,
moving a cursor back, merging and attaching use the same key, so the later of two commits is decided again on the result
of the earlier. Files are not touched here. Garbage collection retires the files that no segment names, and keeps them
for active readers as after a merge. So a trimmer may be killed anywhere, and several trimmers may run at the same time.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import CompactionRecord, IdsRecord, LedgerRecord, Record, TopicRecord, TrimRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.ids import EARLIEST, Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.policies.effective import DEFAULTS, effective_policies
from pulsar_on_spark.topic.catalog.policies.policies import Policies
from pulsar_on_spark.topic.catalog.progress import Progress, silent
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.retention.holders import (
    HISTORY_WAITS,
    count_unbuilt,
    history_mark,
    holders,
    marked,
)
from pulsar_on_spark.topic.maintenance.retention.retention import (
    KeptSegment,
    Trim,
    decide_trim,
    is_limited,
    truncated_before,
    why_kept,
)

log = logging.getLogger(__name__)

_TOPICS_AT_ONCE: Final = 32
"""Maximum number of topics in a commit: each row names all keys, and a commit with many keys conflicts more often."""
_SEGMENTS_AT_ONCE: Final = 1_000
_MAX_ROUNDS: Final = 10_000


@dataclass(frozen=True, slots=True)
class TrimmedTopics:
    """Numbers of trimmed segments, of their messages, of their key and value bytes, and of the topics that had them."""

    topics: int = 0
    segments: int = 0
    messages: int = 0
    bytes: int = 0

    def __add__(self, other: TrimmedTopics) -> TrimmedTopics:
        return TrimmedTopics(
            self.topics + other.topics,
            self.segments + other.segments,
            self.messages + other.messages,
            self.bytes + other.bytes,
        )


def trim_topics(
    root: RootHandle, defaults: Policies = DEFAULTS, progress: Progress = silent, now: datetime | None = None
) -> TrimmedTopics:
    """Trim every topic whose retention has a limit.

    Args:
        root: The root.
        defaults: The policies for fields that neither a topic nor its namespace sets.
        progress: Called as the trimming proceeds.
        now: The time by which ages are computed; None for this host's clock.

    Raises:
        MetadataError: the metadata cannot be read or written.
    """
    view = root.store.view()
    due = [topic.name for topic in _stored(view) if _may_go(view, topic, defaults)]
    done = TrimmedTopics()
    for start in range(0, len(due), _TOPICS_AT_ONCE):
        progress("trim topics", start, len(due))
        done += trim_some(root.store, due[start : start + _TOPICS_AT_ONCE], defaults, now)
    return done


def trim_some(
    store: MetadataStore, names: Sequence[str], defaults: Policies = DEFAULTS, now: datetime | None = None
) -> TrimmedTopics:
    """Trim the topics and partitions with these full names, in as many commits as needed (errors as `trim_topics`).

    Deleted topics are skipped. `now` is the time by which ages are computed; None for this host's clock.
    """
    done = TrimmedTopics()
    topics: set[str] = set()
    unbuilt: Counter[str] = Counter()
    for _ in range(_MAX_ROUNDS):
        trims = _commit(store, names, defaults, now or datetime.now(UTC))
        segments = [segment for trim in trims.values() for segment in trim.segments]
        if not segments:
            break
        done += TrimmedTopics(
            segments=len(segments),
            messages=sum(each.rows for each in segments),
            bytes=sum(each.bytes for each in segments),
        )
        topics.update(each.topic_id for each in segments)
        unbuilt.update({name: trim.unbuilt for name, trim in trims.items() if trim.unbuilt})
    for name, count in unbuilt.items():
        log.warning(
            "%d messages of %s were trimmed that its history does not have, because no build has advanced it for %d "
            "days: see why its builds fail.",
            count,
            name,
            HISTORY_WAITS.days,
            extra={"topic": name},
        )
    return replace(done, topics=len(topics))


def truncate(store: MetadataStore, name: TopicName, before: Position) -> None:
    """Let all entries before a position be trimmed when no cursor needs them, regardless of the retention.

    The topic's compacted ledger is deleted at once. Entries in an open ledger are trimmed when it is closed and sealed.

    Args:
        store: The root's metadata.
        name: A topic without partitions, or a partition.
        before: The first entry to keep.

    Raises:
        TopicNotFoundError: there is no such topic.
    """

    def decide(view: View) -> Change:
        topic = catalog.require_topic(view, name)
        known = view.get(TrimRecord, topic.topic_id) or TrimRecord(topic_id=topic.topic_id)
        until = max((known.truncated_ledger, known.truncated_entry), (int(before.ledger), int(before.entry)))
        changed = known.model_copy(update={"truncated_ledger": until[0], "truncated_entry": until[1]})
        return Change(
            puts=[changed], deletes=view.all(CompactionRecord, topic.topic_id), keys={keys.topic(name.full): None}
        )

    store.commit(decide)


def kept_segments(
    store: MetadataStore, name: TopicName, defaults: Policies = DEFAULTS, now: datetime | None = None
) -> list[KeptSegment]:
    """Return each sealed segment of a topic without partitions, or of a partition, and the reason to keep the segment.

    The list is empty if there is no such topic. `now` is the time by which ages are computed; None for this host's
    clock.

    Raises:
        MetadataError: the metadata cannot be read.
    """
    view = store.view()
    topic = view.get(TopicRecord, name.full)
    if topic is None:
        return []
    clock = now or datetime.now(UTC)
    policies = _policies(view, topic, defaults)
    holding = holders(view, store.cursors(), topic.topic_id, policies, clock)
    return why_kept(view, topic.topic_id, policies.retention, holding, clock, keeps_end=_is_terminated(topic))


def _commit(store: MetadataStore, names: Sequence[str], defaults: Policies, now: datetime) -> dict[str, Trim]:
    """Decide and commit the trims of some topics together. Return the trims by the topics' names."""
    trims: dict[str, Trim] = {}

    def decide(view: View) -> Change | None:
        nonlocal trims
        trims = {}
        # Read the cursors after the view: no cursor moves back without a commit to one of the keys below.
        cursors = store.cursors(durable=True)
        puts: list[Record] = []
        deletes: list[Record] = []
        moved: dict[str, int | None] = {}
        ids = _Ids(view)
        for name in names:
            topic = view.get(TopicRecord, name)
            if topic is None:
                continue
            policies = _policies(view, topic, defaults)
            holding = holders(view, cursors, topic.topic_id, policies, now)
            trim = decide_trim(
                view,
                topic.topic_id,
                policies.retention,
                holding,
                now,
                keeps_end=_is_terminated(topic),
                most=_SEGMENTS_AT_ONCE - sum(len(trim.segments) for trim in trims.values()),
            )
            trims[name] = replace(trim, unbuilt=count_unbuilt(view, topic.topic_id, policies, trim.before))
            known = view.get(TrimRecord, topic.topic_id) or TrimRecord(topic_id=topic.topic_id)
            marks = {
                "marks": marked(view, cursors, topic.topic_id, now),
                "history": history_mark(view, topic.topic_id, policies, now),
            }
            changed = known.model_copy(update=marks)
            deletes += [*trim.segments, *trim.ledgers]
            if trim.before != EARLIEST:
                changed = changed.model_copy(
                    update={"trimmed_ledger": int(trim.before.ledger), "trimmed_entry": int(trim.before.entry)}
                )
            if trim.takes_all:
                puts.append(LedgerRecord(topic_id=topic.topic_id, ledger_id=ids.take(), created_at=now))
            if changed != known:
                puts.append(changed)
            if changed != known or trim.ledgers:
                moved[keys.topic(name)] = None
        if not moved:
            return None
        if ids.record is not None:
            puts.append(ids.record)
            moved[keys.IDS] = None
        return Change(puts=puts, deletes=deletes, keys=moved)

    store.commit(decide)
    return trims


class _Ids:
    """Allocator of ledger ids, each greater than all earlier ones."""

    def __init__(self, view: View) -> None:
        stored = view.get(IdsRecord, "ledger")
        self._next = 1 if stored is None else stored.next_ledger_id
        self.record: IdsRecord | None = None

    def take(self) -> int:
        taken, self._next = self._next, self._next + 1
        self.record = IdsRecord(next_ledger_id=self._next)
        return taken


def _may_go(view: View, topic: TopicRecord, defaults: Policies) -> bool:
    is_truncated = truncated_before(view, topic.topic_id) != EARLIEST
    return is_truncated or is_limited(_policies(view, topic, defaults).retention)


def _stored(view: View) -> list[TopicRecord]:
    """Return the topics that store entries: partitions, and topics without partitions."""
    return [topic for topic in view.all(TopicRecord) if topic.partitions is None]


def _policies(view: View, topic: TopicRecord, defaults: Policies) -> Policies:
    return effective_policies(view, TopicName.parse(topic.name), defaults)


def _is_terminated(topic: TopicRecord) -> bool:
    return topic.terminated is not None
