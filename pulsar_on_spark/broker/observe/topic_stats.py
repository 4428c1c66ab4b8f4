"""The stats of a topic, from its broker's counters and one snapshot of metadata and journals. No IO."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from pulsar_on_spark.broker.cursors.open_cursor import OpenCursor
from pulsar_on_spark.broker.dispatch import values
from pulsar_on_spark.broker.observe.backlogs import Backlog, Contents
from pulsar_on_spark.broker.observe.meters import Metered
from pulsar_on_spark.broker.observe.models import (
    CompactionStats,
    ConsumerStats,
    PartitionedTopicMetadata,
    PartitionedTopicStats,
    PublisherStats,
    SubscriptionStats,
    TopicStats,
)
from pulsar_on_spark.broker.observe.rates import Rates
from pulsar_on_spark.broker.producing.producer import Producer
from pulsar_on_spark.broker.subscriptions.consumer import Consumer
from pulsar_on_spark.broker.subscriptions.subscription import Subscription
from pulsar_on_spark.broker.topics.topic import BrokerTopic
from pulsar_on_spark.metadata.records import (
    CompactionRecord,
    FileRecord,
    SegmentRecord,
    SubscriptionRecord,
    TopicRecord,
)
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.clock import current_ms

RatesOf = Callable[[Metered], Rates]

_ACCESS_MODES: Final = ("Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing")
_NOTHING_YET: Final = Rates(0.0, 0.0)


def topic_stats(
    record: TopicRecord, topic: BrokerTopic | None, contents: Contents, rates: RatesOf, url: str
) -> TopicStats:
    """Return the stats of a topic without partitions, or of a partition.

    Args:
        record: The topic or partition.
        topic: The same topic as loaded; None if it is not loaded.
        contents: The topic's contents, with the backlog of each subscription.
        rates: Returns the rates of a loaded object.
        url: The URL of the broker, which is reported as the topic's owner.
    """
    open_here = {} if topic is None else {subscription.name: subscription for subscription in topic.subscriptions.all}
    subscriptions = {
        subscription.name: _subscription(
            subscription, contents.backlogs[subscription.name], open_here.get(subscription.name), rates
        )
        for subscription in contents.view.all(SubscriptionRecord, record.topic_id)
    }
    subscriptions |= {
        name: _volatile(subscription, rates)
        for name, subscription in open_here.items()
        if name not in subscriptions and not isinstance(subscription.kept, OpenCursor)
    }
    oldest_ms = _earliest(stats.earliest_msg_publish_time_in_backlog for stats in subscriptions.values())
    offloaded = _offloaded(contents.view, record.topic_id)
    rates_in = _NOTHING_YET if topic is None else rates(topic.published)
    messages_in = 0 if topic is None else topic.published.messages
    bytes_in = 0 if topic is None else topic.published.bytes
    return TopicStats(
        msg_rate_in=rates_in.messages,
        msg_throughput_in=rates_in.bytes,
        msg_rate_out=sum(stats.msg_rate_out for stats in subscriptions.values()),
        msg_throughput_out=sum(stats.msg_throughput_out for stats in subscriptions.values()),
        msg_in_counter=messages_in,
        bytes_in_counter=bytes_in,
        msg_out_counter=sum(stats.msg_out_counter for stats in subscriptions.values()),
        bytes_out_counter=sum(stats.bytes_out_counter for stats in subscriptions.values()),
        average_msg_size=mean_bytes(rates_in),
        storage_size=contents.bytes,
        backlog_size=max((stats.backlog_size for stats in subscriptions.values()), default=0),
        offloaded_storage_size=sum(segment.bytes for segment, _ in offloaded),
        last_offload_ledger_id=max((segment.ledger_id for segment, _ in offloaded), default=0),
        last_offload_success_time_stamp=int(max((at_s for _, at_s in offloaded), default=0) * 1000),
        stored_messages=contents.messages,
        earliest_msg_publish_time_in_backlogs=oldest_ms,
        oldest_backlog_message_age_seconds=age_s(oldest_ms),
        non_contiguous_deleted_messages_ranges=sum(
            stats.non_contiguous_deleted_messages_ranges for stats in subscriptions.values()
        ),
        waiting_publishers=0 if topic is None else topic.producers.waiting,
        compaction=_compaction(contents.view.get(CompactionRecord, record.topic_id)),
        publishers=[]
        if topic is None
        else [publisher_stats(producer, rates) for producer in topic.producers.connected],
        subscriptions=subscriptions,
        deduplication_status="Disabled" if topic is None or topic.dedup is None else "Enabled",
        topic_epoch=record.topic_epoch,
        owner_broker=url,
        topic_creation_time_stamp=int(record.created_at.timestamp() * 1000),
        last_publish_time_stamp=0 if topic is None else topic.published.last_ms,
    )


def summed(partitions: dict[str, TopicStats], metadata: PartitionedTopicMetadata) -> PartitionedTopicStats:
    """Return the stats of a partitioned topic, which are mostly sums over its partitions.

    Args:
        partitions: The stats of each partition, by full name.
        metadata: The number of partitions.
    """
    all_stats = list(partitions.values())
    names = dict.fromkeys(name for stats in all_stats for name in stats.subscriptions)
    oldest_ms = _earliest(stats.earliest_msg_publish_time_in_backlogs for stats in all_stats)
    rate_in, throughput_in = (
        sum(getattr(stats, name) for stats in all_stats) for name in ("msg_rate_in", "msg_throughput_in")
    )
    return PartitionedTopicStats(
        msg_rate_in=rate_in,
        msg_throughput_in=throughput_in,
        average_msg_size=mean_bytes(Rates(rate_in, throughput_in)),
        **{name: sum(getattr(stats, name) for stats in all_stats) for name in _SUMMED},
        earliest_msg_publish_time_in_backlogs=oldest_ms,
        oldest_backlog_message_age_seconds=age_s(oldest_ms),
        # The oldest compaction: partitions are compacted in turn.
        compaction=min((stats.compaction for stats in all_stats), key=_succeeded_at, default=CompactionStats()),
        publishers=[publisher for stats in all_stats for publisher in stats.publishers],
        subscriptions={
            name: _joined([stats.subscriptions[name] for stats in all_stats if name in stats.subscriptions])
            for name in names
        },
        deduplication_status=all_stats[0].deduplication_status if all_stats else "Disabled",
        topic_epoch=None,
        owner_broker=all_stats[0].owner_broker if all_stats else "",
        last_offload_ledger_id=max((stats.last_offload_ledger_id for stats in all_stats), default=0),
        last_offload_success_time_stamp=max((stats.last_offload_success_time_stamp for stats in all_stats), default=0),
        topic_creation_time_stamp=min((stats.topic_creation_time_stamp for stats in all_stats), default=0),
        last_publish_time_stamp=max((stats.last_publish_time_stamp for stats in all_stats), default=0),
        metadata=metadata,
        partitions=partitions,
    )


_SUMMED: Final = (
    "msg_rate_out",
    "msg_throughput_out",
    "msg_in_counter",
    "bytes_in_counter",
    "msg_out_counter",
    "bytes_out_counter",
    "storage_size",
    "backlog_size",
    "offloaded_storage_size",
    "stored_messages",
    "non_contiguous_deleted_messages_ranges",
    "waiting_publishers",
)
_SUMMED_OF_SUBSCRIPTION: Final = (
    "msg_backlog",
    "backlog_size",
    "msg_backlog_no_delayed",
    "msg_delayed",
    "unacked_messages",
    "msg_rate_out",
    "msg_throughput_out",
    "msg_out_counter",
    "bytes_out_counter",
    "non_contiguous_deleted_messages_ranges",
    "entries_lost",
)
_FIRST_OF_SUBSCRIPTION: Final = ("owner", "blocked", "problem", "key_shared_mode")
"""Fields of a subscription whose value comes from the first partition that has one."""


def _offloaded(view: View, topic_id: str) -> list[tuple[SegmentRecord, float]]:
    """Return a topic's offloaded segments, each with the time of its offload in seconds since 1970."""
    return [
        (segment, file.offloaded_at.timestamp())
        for segment in view.all(SegmentRecord, topic_id)
        if (file := view.get(FileRecord, segment.file_id)) is not None and file.offloaded_at is not None
    ]


def _joined(parts: Sequence[SubscriptionStats]) -> SubscriptionStats:
    sums = {name: sum(getattr(part, name) for part in parts) for name in _SUMMED_OF_SUBSCRIPTION}
    first_values = {
        name: next(filter(None, (getattr(part, name) for part in parts)), None) for name in _FIRST_OF_SUBSCRIPTION
    }
    return parts[0].model_copy(
        update={
            **sums,
            **first_values,
            "consumers": [consumer for part in parts for consumer in part.consumers],
            "blocked_subscription_on_unacked_msgs": any(part.blocked_subscription_on_unacked_msgs for part in parts),
            "active_consumer_name": None,
            "earliest_msg_publish_time_in_backlog": _earliest(p.earliest_msg_publish_time_in_backlog for p in parts),
        }
    )


def _subscription(
    record: SubscriptionRecord, backlog: Backlog, here: Subscription | None, rates: RatesOf
) -> SubscriptionStats:
    """Return the stats of a durable subscription; `here` is None unless this broker has loaded the subscription."""
    live = here if here is not None and isinstance(here.kept, OpenCursor) else None
    numbers = None if live is None else live.stats
    rates_out = _NOTHING_YET if live is None else rates(live)
    delayed = 0 if numbers is None else numbers.delayed
    return SubscriptionStats(
        type=record.type if live is None else live.type,
        is_durable=True,
        msg_backlog=backlog.messages,
        backlog_size=backlog.bytes,
        msg_backlog_no_delayed=max(backlog.messages - delayed, 0),
        msg_delayed=delayed,
        unacked_messages=0 if numbers is None else numbers.unacked,
        key_shared_mode=None if live is None else _key_shared_mode(live),
        msg_rate_out=rates_out.messages,
        msg_throughput_out=rates_out.bytes,
        msg_out_counter=0 if live is None else live.messages_out,
        bytes_out_counter=0 if live is None else live.bytes_out,
        blocked_subscription_on_unacked_msgs=numbers is not None
        and numbers.blocked is not None
        and numbers.unacked > 0,
        active_consumer_name=None if live is None else _active(live),
        consumers=[] if live is None else _consumers(live, rates),
        subscription_properties=record.properties,
        non_contiguous_deleted_messages_ranges=sum(1 for _ in backlog.holes.runs()),
        earliest_msg_publish_time_in_backlog=backlog.oldest_publish_ms if backlog.messages else 0,
        owner=None if live is not None else _owner(record),
        blocked=None if numbers is None else numbers.blocked,
        problem=None if live is None else live.problem,
        entries_lost=0 if live is None else live.entries_lost,
    )


def _volatile(live: Subscription, rates: RatesOf) -> SubscriptionStats:
    """Return the stats of a reader's non-durable subscription, whose backlog is counted in entries."""
    numbers, rates_out = live.stats, rates(live)
    backlog = live.kept.cursor.backlog_entries
    return SubscriptionStats(
        type=live.type,
        is_durable=False,
        msg_backlog=backlog,
        backlog_size=0,
        msg_backlog_no_delayed=backlog,
        msg_delayed=numbers.delayed,
        unacked_messages=numbers.unacked,
        key_shared_mode=_key_shared_mode(live),
        msg_rate_out=rates_out.messages,
        msg_throughput_out=rates_out.bytes,
        msg_out_counter=live.messages_out,
        bytes_out_counter=live.bytes_out,
        blocked_subscription_on_unacked_msgs=numbers.blocked is not None and numbers.unacked > 0,
        active_consumer_name=_active(live),
        consumers=_consumers(live, rates),
        subscription_properties={},
        earliest_msg_publish_time_in_backlog=0,
        blocked=numbers.blocked,
        problem=live.problem,
    )


def _key_shared_mode(live: Subscription) -> str | None:
    return live.key_shared.mode if live.type == "Key_Shared" else None


def _owner(record: SubscriptionRecord) -> str | None:
    owners = sorted({owner.consumer for owner in record.owners if owner.consumer is not None})
    if not owners:
        return None
    return f"broker {owners[0]}" if record.face == "broker" else f"Spark: {', '.join(owners)}"


def _active(live: Subscription) -> str | None:
    active = live.stats.active
    return next((consumer.name for consumer in live.consumers if consumer.id == active), None)


def consumer_stats(live: Subscription, consumer: Consumer, rates: RatesOf) -> ConsumerStats:
    """Return the stats of a connected consumer.

    Args:
        live: The consumer's subscription.
        consumer: The consumer.
        rates: Returns the rates of a loaded object.
    """
    (numbers,) = (candidate for candidate in live.stats.consumers if candidate.id == consumer.id)
    return stats_of_consumer(consumer, numbers, rates(consumer))


def _consumers(live: Subscription, rates: RatesOf) -> list[ConsumerStats]:
    numbers = {consumer_numbers.id: consumer_numbers for consumer_numbers in live.stats.consumers}
    return [stats_of_consumer(consumer, numbers[consumer.id], rates(consumer)) for consumer in live.consumers]


def stats_of_consumer(consumer: Consumer, numbers: values.ConsumerStats, rates_out: Rates) -> ConsumerStats:
    """Return the stats of a consumer from its dispatcher's numbers and its rates."""
    return ConsumerStats(
        consumer_name=consumer.name,
        msg_rate_out=rates_out.messages,
        msg_throughput_out=rates_out.bytes,
        msg_out_counter=consumer.messages_out,
        bytes_out_counter=consumer.bytes_out,
        available_permits=numbers.permits,
        unacked_messages=numbers.unacked or 0,
        blocked_consumer_on_unacked_msgs=numbers.blocked is not None and bool(numbers.unacked),
        blocked=numbers.blocked,
        address=consumer.peer.address,
        connected_since=iso(consumer.connected_at),
        client_version=consumer.peer.client_version,
        metadata=dict(consumer.metadata),
        last_consumed_flow_timestamp=consumer.flowed_ms,
    )


def publisher_stats(producer: Producer, rates: RatesOf) -> PublisherStats:
    """Return the stats of a connected producer; `rates` returns the rates of a loaded object."""
    rates_in = rates(producer.published)
    return PublisherStats(
        access_mode=_ACCESS_MODES[producer.info.access_mode],
        producer_id=producer.info.producer_id,
        producer_name=producer.info.name,
        msg_rate_in=rates_in.messages,
        msg_throughput_in=rates_in.bytes,
        average_msg_size=mean_bytes(rates_in),
        address=producer.peer.address,
        connected_since=iso(producer.connected_at),
        client_version=producer.peer.client_version,
        metadata=dict(producer.metadata),
    )


def iso(at_s: float) -> str:
    """Return a time, in seconds since 1970, as text in Pulsar's format, such as `2026-11-27T10:30:00.000Z`."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def mean_bytes(rates: Rates) -> float:
    """Return the mean size of a message in bytes; 0 if no message was counted."""
    return rates.bytes / rates.messages if rates.messages else 0.0


def age_s(at_ms: int) -> int:
    """Return the seconds since a time in milliseconds since 1970; -1 if this time is 0 (none), as in Pulsar."""
    return max((current_ms() - at_ms) // 1000, 0) if at_ms else -1


def _compaction(record: CompactionRecord | None) -> CompactionStats:
    if record is None:
        return CompactionStats()
    return CompactionStats(last_compaction_succeed_timestamp=int(record.compacted_at.timestamp() * 1000))


def _succeeded_at(stats: CompactionStats) -> int:
    return stats.last_compaction_succeed_timestamp


def _earliest(times_ms: Iterable[int]) -> int:
    return min((time_ms for time_ms in times_ms if time_ms > 0), default=0)
