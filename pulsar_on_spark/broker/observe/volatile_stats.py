"""The stats of a non-persistent topic, which has only connected clients and no stored messages."""

from __future__ import annotations

from pulsar_on_spark.broker.dispatch import values
from pulsar_on_spark.broker.observe.models import CompactionStats, SubscriptionStats, TopicStats
from pulsar_on_spark.broker.observe.topic_stats import RatesOf, mean_bytes, publisher_stats, stats_of_consumer
from pulsar_on_spark.broker.topics.non_persistent import NonPersistentSubscription, NonPersistentTopic


def volatile_stats(topic: NonPersistentTopic, rates: RatesOf, url: str) -> TopicStats:
    """Return the stats of a non-persistent topic.

    Args:
        topic: The topic.
        rates: Returns the rates of a loaded object.
        url: The URL of the broker, which is reported as the topic's owner.
    """
    subscriptions = {subscription.name: _subscription(subscription, rates) for subscription in topic.subscriptions.all}
    rates_in = rates(topic.published)
    return TopicStats(
        msg_rate_in=rates_in.messages,
        msg_throughput_in=rates_in.bytes,
        msg_rate_out=sum(stats.msg_rate_out for stats in subscriptions.values()),
        msg_drop_rate=sum(stats.msg_drop_rate or 0.0 for stats in subscriptions.values()),
        msg_throughput_out=sum(stats.msg_throughput_out for stats in subscriptions.values()),
        msg_in_counter=topic.published.messages,
        bytes_in_counter=topic.published.bytes,
        msg_out_counter=sum(stats.msg_out_counter for stats in subscriptions.values()),
        bytes_out_counter=sum(stats.bytes_out_counter for stats in subscriptions.values()),
        average_msg_size=mean_bytes(rates_in),
        storage_size=0,
        backlog_size=0,
        stored_messages=0,
        earliest_msg_publish_time_in_backlogs=0,
        oldest_backlog_message_age_seconds=-1,
        non_contiguous_deleted_messages_ranges=0,
        waiting_publishers=topic.producers.waiting,
        compaction=CompactionStats(),
        publishers=[publisher_stats(producer, rates) for producer in topic.producers.connected],
        subscriptions=subscriptions,
        deduplication_status="Disabled",
        topic_epoch=None,
        owner_broker=url,
        topic_creation_time_stamp=topic.created_ms,
        last_publish_time_stamp=topic.published.last_ms,
    )


def _subscription(subscription: NonPersistentSubscription, rates: RatesOf) -> SubscriptionStats:
    consumers = [
        stats_of_consumer(
            consumer, values.ConsumerStats(consumer.id, subscription.permits(consumer), None, None), rates(consumer)
        )
        for consumer in subscription.consumers
    ]
    return SubscriptionStats(
        type=subscription.type,
        is_durable=False,
        msg_backlog=0,
        backlog_size=0,
        msg_backlog_no_delayed=0,
        msg_delayed=0,
        unacked_messages=0,
        msg_rate_out=sum(stats.msg_rate_out for stats in consumers),
        msg_throughput_out=sum(stats.msg_throughput_out for stats in consumers),
        msg_out_counter=sum(stats.msg_out_counter for stats in consumers),
        bytes_out_counter=sum(stats.bytes_out_counter for stats in consumers),
        msg_drop_rate=rates(subscription.dropped).messages,
        blocked_subscription_on_unacked_msgs=False,
        active_consumer_name=None if subscription.active is None else subscription.active.name,
        consumers=consumers,
        subscription_properties={},
        earliest_msg_publish_time_in_backlog=0,
    )
