"""Statistics of topics from the root alone, without a running broker.

These functions only read, as a Spark query does. Fields that only a broker knows are empty: rates, counters and
connections. The acknowledgements of a running broker's clients may be some seconds old.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Final

from pulsar_on_spark.broker.observe.backlogs import Contents, contents
from pulsar_on_spark.broker.observe.internal_stats import internal_stats, with_reasons
from pulsar_on_spark.broker.observe.meters import Metered
from pulsar_on_spark.broker.observe.models import (
    InternalStats,
    PartitionedInternalStats,
    PartitionedTopicMetadata,
    PartitionedTopicStats,
    TopicStats,
)
from pulsar_on_spark.broker.observe.rates import Rates
from pulsar_on_spark.broker.observe.topic_stats import summed, topic_stats
from pulsar_on_spark.broker.reading.catch_up import CatchUp
from pulsar_on_spark.broker.reading.extents import chain_shape
from pulsar_on_spark.broker.reading.jobs import EntrySource
from pulsar_on_spark.ledger.journal.groups import JournalLimits
from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.model.errors import InvalidArgumentError, SubscriptionNotFoundError
from pulsar_on_spark.model.ids import TopicId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.data_path.tail import Tail
from pulsar_on_spark.topic.entries.rows import StoredEntry
from pulsar_on_spark.topic.maintenance.retention.trim import kept_segments
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import Cursor
from pulsar_on_spark.topic.managed_ledger.cursor.record import NO_RECORD, CursorRecord, encode_holes

_LARGEST_BYTES: Final = JournalLimits().entry_bytes
"""The size of the largest entry that a broker accepts, in bytes."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A topic with the contents of each partition, or with the topic's contents if it has no partitions."""

    record: TopicRecord
    parts: Mapping[TopicPart, Contents]

    @property
    def partitions(self) -> PartitionedTopicMetadata:
        return PartitionedTopicMetadata(partitions=self.record.partitions or 0)


def stats_of_root(root: RootHandle, name: TopicName) -> TopicStats | PartitionedTopicStats:
    """Return the stats of a topic; for a partitioned topic, the sums over the partitions and each partition's stats.

    Raises:
        TopicNotFoundError: the topic does not exist.
        MetadataError, StorageError: the root cannot be read.
    """
    snapshot = _snapshot(root, name)
    stats = {part.name: _stats(part, contents) for part, contents in snapshot.parts.items()}
    return stats[name.full] if snapshot.record.partitions is None else summed(stats, snapshot.partitions)


def internal_stats_of_root(root: RootHandle, name: TopicName) -> InternalStats | PartitionedInternalStats:
    """Return the stats of a topic's ledgers and cursors, with the reasons why segments are kept.

    Raises the errors of `stats_of_root`.
    """
    snapshot = _snapshot(root, name)
    stats = {part.name: _internal_stats(root, part, contents) for part, contents in snapshot.parts.items()}
    if snapshot.record.partitions is None:
        return stats[name.full]
    return PartitionedInternalStats(metadata=snapshot.partitions, partitions=stats)


def peek_of_root(root: RootHandle, name: TopicName, subscription: str, entries: int) -> list[StoredEntry]:
    """Return the first entries that a subscription has not acknowledged, at most `entries` of them.

    Raises:
        InvalidArgumentError: the topic has partitions.
        SubscriptionNotFoundError: the topic has no such subscription.
        TopicNotFoundError, MetadataError, StorageError: as `stats_of_root`.
        UnbuildableEntryError: an entry that Spark wrote is larger than clients accept.
    """
    snapshot = _snapshot(root, name)
    if snapshot.record.partitions is not None:
        raise InvalidArgumentError(
            f"Topic {name} has {snapshot.record.partitions} partitions: name one of them to peek at."
        )
    ((part, contents),) = snapshot.parts.items()
    backlog = contents.backlogs.get(subscription)
    if backlog is None:
        raise SubscriptionNotFoundError(f"Subscription {subscription!r} on {name} does not exist: check both names.")
    topic_id, at = TopicId(part.topic_id), backlog.mark_delete
    record = CursorRecord("snapshot", topic_id, subscription, 1, NO_RECORD, at, encode_holes(backlog.holes))
    cursor = Cursor(LedgerChain(chain_shape(contents.view, topic_id).extents), record)
    ranges = cursor.deliverable(at, entries).ranges
    if not ranges:
        return []
    with closing(CatchUp(root, _LARGEST_BYTES)) as reader:
        # The reader may read beyond the ranges.
        return list(islice(reader.read(EntrySource(part), ranges), sum(range_.end - range_.first for range_ in ranges)))


def _snapshot(root: RootHandle, name: TopicName) -> _Snapshot:
    durable = root.store.view(durable=True)
    record = catalog.require_topic(durable, name)
    parts = catalog.parts(durable, record)
    with closing(Tail(root, fail_on_data_loss=False)) as tail:
        view = tail.read_view(parts, durable)
    cursors = root.store.cursors()
    return _Snapshot(record, {part: contents(view, cursors, part, {}) for part in parts})


def _stats(part: TopicPart, contents: Contents) -> TopicStats:
    return topic_stats(catalog.require_topic(contents.view, TopicName.parse(part.name)), None, contents, _no_rates, "")


def _internal_stats(root: RootHandle, part: TopicPart, contents: Contents) -> InternalStats:
    name = TopicName.parse(part.name)
    stats = internal_stats(catalog.require_topic(contents.view, name), None, contents, root.quorum.write)
    return with_reasons(stats, kept_segments(root.store, name))


def _no_rates(_: Metered) -> Rates:
    return Rates(0.0, 0.0)
