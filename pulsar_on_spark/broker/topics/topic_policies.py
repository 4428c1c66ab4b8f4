"""Conversions of the broker's settings to default policies, and of policies to limits. Pure."""

from __future__ import annotations

from dataclasses import replace

from pulsar_on_spark.broker.dispatch.limits import DispatchLimits
from pulsar_on_spark.broker.reading.entry_look import is_encrypted, look_at
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.broker.subscriptions.subscription_limits import SubscriptionLimits
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog.policies.effective import effective_policies
from pulsar_on_spark.topic.catalog.policies.policies import (
    AutoSubscriptionCreation,
    AutoTopicCreation,
    BacklogQuota,
    BacklogQuotaPolicy,
    DelayedDelivery,
    InactiveTopicDeleteMode,
    InactiveTopicPolicies,
    OffloadPolicies,
    Policies,
    PublishRate,
    RetentionPolicies,
)
from pulsar_on_spark.topic.catalog.topic_limits import MAX_PARTITIONS, TopicLimits
from pulsar_on_spark.topic.entries.schemas.compatibility import Strategy
from pulsar_on_spark.topic.managed_ledger.incarnation.roll_over import RollOver


def default_policies(settings: BrokerSettings) -> Policies:
    """Return the policies that a broker's settings give topics that neither set nor inherit a policy."""
    quota_policy = BacklogQuotaPolicy(settings.backlog_quota_default_retention_policy)
    kept = settings.default_retention_time_in_minutes, settings.default_retention_size_in_mb
    minutes, mib = (0, 0) if 0 in kept else kept
    return Policies(
        retention=RetentionPolicies(retention_time_in_minutes=minutes, retention_size_in_mb=mib),
        message_ttl=settings.ttl_duration_default_in_seconds,
        backlog_quota_size=BacklogQuota(limit_size=settings.backlog_quota_default_limit_bytes, policy=quota_policy),
        backlog_quota_age=BacklogQuota(limit_time=settings.backlog_quota_default_limit_second, policy=quota_policy),
        subscription_expiration_time=settings.subscription_expiration_time_minutes,
        inactive_topic_policies=InactiveTopicPolicies(
            delete_while_inactive=settings.broker_delete_inactive_topics_enabled,
            inactive_topic_delete_mode=InactiveTopicDeleteMode(settings.broker_delete_inactive_topics_mode),
            max_inactive_duration_seconds=settings.broker_delete_inactive_topics_max_inactive_duration_seconds,
        ),
        offload_policies=OffloadPolicies(
            managed_ledger_offload_driver=settings.managed_ledger_offload_driver or None,
            managed_ledger_offload_threshold_in_bytes=settings.managed_ledger_offload_auto_trigger_size_threshold_bytes,
            managed_ledger_offload_threshold_in_seconds=settings.managed_ledger_offload_threshold_in_seconds,
            managed_ledger_offload_deletion_lag_in_millis=settings.managed_ledger_offload_deletion_lag_ms,
        ),
        compaction_threshold=settings.broker_service_compaction_threshold_in_bytes,
        deduplication=settings.broker_deduplication_enabled,
        deduplication_snapshot_interval=settings.broker_deduplication_snapshot_interval_seconds,
        delayed_delivery=DelayedDelivery(
            active=settings.delayed_delivery_enabled,
            tick_time=settings.delayed_delivery_tick_time_millis,
        ),
        publish_rate=PublishRate(
            publish_throttling_rate_in_msg=settings.max_publish_rate_per_topic_in_messages or -1,
            publish_throttling_rate_in_byte=settings.max_publish_rate_per_topic_in_bytes or -1,
        ),
        encryption_required=settings.encryption_require_on_producer,
        max_topics_per_namespace=settings.max_topics_per_namespace,
        max_producers_per_topic=settings.max_producers_per_topic,
        max_consumers_per_topic=settings.max_consumers_per_topic,
        max_consumers_per_subscription=settings.max_consumers_per_subscription,
        max_subscriptions_per_topic=settings.max_subscriptions_per_topic,
        max_unacked_messages_per_consumer=settings.max_unacked_messages_per_consumer,
        max_unacked_messages_per_subscription=settings.max_unacked_messages_per_subscription,
        auto_topic_creation=AutoTopicCreation(
            allow_auto_topic_creation=settings.allow_auto_topic_creation,
            topic_type=settings.allow_auto_topic_creation_type,
            default_num_partitions=settings.default_num_partitions,
        ),
        auto_subscription_creation=AutoSubscriptionCreation(
            allow_auto_subscription_creation=settings.allow_auto_subscription_creation
        ),
        schema_compatibility_strategy=Strategy(settings.schema_compatibility_strategy),
        schema_validation_enforced=settings.is_schema_validation_enforced,
        is_allow_auto_update_schema=settings.is_allow_auto_update_schema,
    )


def policies_of(view: View, name: TopicName, defaults: Policies) -> Policies:
    """Return the effective policies of a topic. If the settings require encryption, no policy can switch it off.

    Args:
        view: The current metadata.
        name: The topic.
        defaults: The broker's default policies.
    """
    policies = effective_policies(view, name, defaults)
    if defaults.encryption_required and not policies.encryption_required:
        return policies.model_copy(update={"encryption_required": True})
    return policies


def topic_limits(settings: BrokerSettings) -> TopicLimits:
    """Return the limits of new topics: the partitions of a topic, and the topics of a namespace."""
    return TopicLimits(
        settings.max_num_partitions_per_partitioned_topic or MAX_PARTITIONS, settings.max_topics_per_namespace
    )


def may_refuse_entries(policies: Policies) -> bool:
    """Return False if `publish_refusal` accepts every entry under these policies."""
    return policies.max_message_size > 0 or _longest_delay_ms(policies) != 0 or policies.encryption_required


def publish_refusal(policies: Policies, entry: bytes, now_ms: int) -> str | None:
    """Return the reason why a topic's policies refuse an entry, one sentence; None if they accept it.

    Args:
        policies: The topic's policies.
        entry: The entry as its producer sent it.
        now_ms: The current time, in milliseconds since 1970.
    """
    largest, longest_ms = policies.max_message_size, _longest_delay_ms(policies)
    if 0 < largest < len(entry):
        return f"The entry has {len(entry)} bytes, the topic allows {largest} (maxMessageSize): send smaller entries."
    if longest_ms:
        deliver_at_ms = look_at(entry).deliver_at_ms
        if deliver_at_ms is not None and deliver_at_ms > now_ms + longest_ms:
            return (
                f"The message is delayed by more than {longest_ms} ms, the topic's limit (maxDeliveryDelayInMillis): "
                "shorten the delay."
            )
    return encryption_refusal(policies, entry)


def _longest_delay_ms(policies: Policies) -> int:
    """Return the limit of a message's delay in milliseconds; 0 for no limit."""
    delays = policies.delayed_delivery
    return delays.max_delivery_delay_in_millis if delays.active else 0


def encryption_refusal(policies: Policies, entry: bytes) -> str | None:
    """Return the reason why a topic's policies refuse an entry that is not encrypted; None if they accept it."""
    if policies.encryption_required and not is_encrypted(entry):
        return "Messages must be encrypted (encryptionRequired): give the producer a key to encrypt with."
    return None


def dispatch_limits(settings: BrokerSettings) -> DispatchLimits:
    """Return the limits of dispatching that only the settings define, such as the sizes of reads."""
    return DispatchLimits(
        dispatcher_max_read_batch_size=settings.dispatcher_max_read_batch_size,
        dispatcher_max_read_size_bytes=settings.dispatcher_max_read_size_bytes,
        dispatcher_max_round_robin_batch_size=settings.dispatcher_max_round_robin_batch_size,
        active_consumer_failover_delay_time_millis=settings.active_consumer_failover_delay_time_millis,
        auto_skip_non_recoverable_data=settings.auto_skip_non_recoverable_data,
    )


def broker_publish_rate(settings: BrokerSettings) -> tuple[int, int]:
    """Return the publish rate of the whole broker: messages and bytes a second, 0 for no limit."""
    return (
        settings.broker_publisher_throttling_max_message_rate,
        settings.broker_publisher_throttling_max_byte_rate,
    )


def roll_over(settings: BrokerSettings) -> RollOver:
    """Return the limits at which a topic continues in a new ledger."""
    return RollOver(
        max_entries=settings.managed_ledger_max_entries_per_ledger,
        max_bytes=settings.managed_ledger_max_size_per_ledger_mbytes << 20,
        max_age_s=settings.managed_ledger_max_ledger_rollover_time_minutes * 60,
        min_age_s=settings.managed_ledger_min_ledger_rollover_time_minutes * 60,
    )


def subscription_limits(policies: Policies, dispatch: DispatchLimits) -> SubscriptionLimits:
    """Return the limits of a topic's subscriptions from its policies, and from the limits that no policy defines."""
    return SubscriptionLimits(
        subscriptions=policies.max_subscriptions_per_topic,
        consumers=policies.max_consumers_per_topic,
        consumers_each=policies.max_consumers_per_subscription,
        types=policies.subscription_types_enabled,
        topic_rate=policies.dispatch_rate,
        subscription_rate=policies.subscription_dispatch_rate,
        subscribe_rate=policies.subscribe_rate,
        dispatch=replace(
            dispatch,
            max_unacked_messages_per_consumer=policies.max_unacked_messages_per_consumer,
            max_unacked_messages_per_subscription=policies.max_unacked_messages_per_subscription,
            delayed_delivery_enabled=policies.delayed_delivery.active,
            delayed_delivery_tick_time_millis=policies.delayed_delivery.tick_time,
        ),
    )
