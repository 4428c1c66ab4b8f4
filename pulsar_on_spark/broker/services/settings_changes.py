"""Settings that are changed while a broker runs (Pulsar's dynamic configuration).

The changed values are stored in the root's metadata, apply to all brokers of the root, and override the settings with
which a broker is started later. Settings that concern topics are also stored as policies, so that
`topic.catalog.policies.effective` finds them; the broker itself uses `in_force`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from pydantic import ValidationError

from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.broker.topics.topic_policies import default_policies
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import SettingsRecord
from pulsar_on_spark.metadata.state import RecentView, View
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model import logs
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.text import reason_of
from pulsar_on_spark.topic.catalog.policies.effective import DEFAULTS

_BACKLOG_QUOTAS: Final = ("backlog_quota_size", "backlog_quota_age")
"""Policies that Spark's writes obey. A broker that is started with values other than the defaults also stores them."""
DYNAMIC: Final[Mapping[str, tuple[str, ...]]] = {
    "log_level": (),
    "expose_topic_level_metrics_in_prometheus": (),
    "expose_consumer_level_metrics_in_prometheus": (),
    "broker_max_connections": (),
    "broker_max_connections_per_ip": (),
    "max_pending_publish_requests_per_connection": (),
    "subscription_pattern_max_length": (),
    "dispatcher_max_read_batch_size": (),
    "dispatcher_max_read_size_bytes": (),
    "dispatcher_max_round_robin_batch_size": (),
    "allow_auto_topic_creation": ("auto_topic_creation",),
    "allow_auto_topic_creation_type": ("auto_topic_creation",),
    "default_num_partitions": ("auto_topic_creation",),
    "max_topics_per_namespace": ("max_topics_per_namespace",),
    "load_balancer_shedding_enabled": (),
    "max_namespaces_per_tenant": (),
    "max_tenants": (),
    "allow_auto_subscription_creation": ("auto_subscription_creation",),
    "max_producers_per_topic": ("max_producers_per_topic",),
    "max_publish_rate_per_topic_in_messages": ("publish_rate",),
    "max_publish_rate_per_topic_in_bytes": ("publish_rate",),
    "broker_publisher_throttling_max_message_rate": (),
    "broker_publisher_throttling_max_byte_rate": (),
    "max_consumers_per_topic": ("max_consumers_per_topic",),
    "max_consumers_per_subscription": ("max_consumers_per_subscription",),
    "max_subscriptions_per_topic": ("max_subscriptions_per_topic",),
    "max_unacked_messages_per_consumer": ("max_unacked_messages_per_consumer",),
    "max_unacked_messages_per_subscription": ("max_unacked_messages_per_subscription",),
    "delayed_delivery_enabled": ("delayed_delivery",),
    "delayed_delivery_tick_time_millis": ("delayed_delivery",),
    "default_retention_time_in_minutes": ("retention",),
    "default_retention_size_in_mb": ("retention",),
    "ttl_duration_default_in_seconds": ("message_ttl",),
    "backlog_quota_default_limit_bytes": _BACKLOG_QUOTAS,
    "backlog_quota_default_limit_second": _BACKLOG_QUOTAS,
    "backlog_quota_default_retention_policy": _BACKLOG_QUOTAS,
    "subscription_expiration_time_minutes": ("subscription_expiration_time",),
    "broker_delete_inactive_topics_enabled": ("inactive_topic_policies",),
    "broker_delete_inactive_topics_mode": ("inactive_topic_policies",),
    "broker_delete_inactive_topics_max_inactive_duration_seconds": ("inactive_topic_policies",),
    "broker_deduplication_enabled": ("deduplication",),
    "schema_compatibility_strategy": ("schema_compatibility_strategy",),
    "is_allow_auto_update_schema": ("is_allow_auto_update_schema",),
    "is_schema_validation_enforced": ("schema_validation_enforced",),
    "broker_service_compaction_threshold_in_bytes": ("compaction_threshold",),
}
"""The names of the settings that can be changed, each with the fields of `Policies` that it decides for topics."""


def changed_values(view: RecentView) -> dict[str, str]:
    """Return the values, as text, of the settings that were changed while brokers ran, by name."""
    record = view.get(SettingsRecord, "settings")
    return {} if record is None else dict(record.values)


def in_force(given: BrokerSettings, values: Mapping[str, str]) -> BrokerSettings:
    """Return the settings in force for a broker that was started with `given`.

    Args:
        given: The settings that the broker was started with.
        values: The changed values, as text, by the setting's name.

    Changes that another version of the broker stored are ignored if this version does not accept them.
    """
    settings = given
    for name, value in values.items():
        with suppress(InvalidArgumentError):
            settings = _with(settings, name, value)
    return settings


def change(store: MetadataStore, given: BrokerSettings, name: str, value: str | None) -> None:
    """Change a setting durably.

    Args:
        store: The root's metadata.
        given: The settings that the broker was started with.
        name: The setting, in snake case.
        value: The new value as text; None restores the value that the broker was started with.

    Raises:
        InvalidArgumentError: the setting cannot change while a broker runs, or the value is not valid.
        MetadataError: the commit failed.
    """
    _with(given, name, value)
    store.commit(lambda view: _change(view, given, {name: value}))


def follow_log_level(before: BrokerSettings, now: BrokerSettings) -> None:
    """Apply a changed log level to this process and the processes that it starts from now on."""
    if now.log_level != before.log_level:
        logs.configure(now.log_level, now.log_format)


def renew(store: MetadataStore, given: BrokerSettings) -> BrokerSettings:
    """Return the settings in force for a starting broker, and store the topic policies that follow from them.

    Raises:
        MetadataError: the commit failed.
    """
    return in_force(given, changed_values(store.commit(lambda view: _change(view, given, {}))))


def _change(view: View, given: BrokerSettings, changes: Mapping[str, str | None]) -> Change | None:
    known = view.get(SettingsRecord, "settings") or SettingsRecord()
    both = {**known.values, **changes}
    values = {name: value for name, value in both.items() if value is not None}
    policies = default_policies(in_force(given, values)).model_dump(mode="json", by_alias=True)
    unset = DEFAULTS.model_dump(mode="json", by_alias=True)
    decided = {field for name in values for field in DYNAMIC.get(name, ())}
    decided |= {field for field in _BACKLOG_QUOTAS if policies[field] != unset[field]}
    kept = {field: policies[field] for field in sorted(decided)}
    wanted = known.model_copy(update={"values": values, "policies": kept})
    return None if wanted == known else Change(puts=[wanted], keys={keys.SETTINGS: None})


def _with(settings: BrokerSettings, name: str, value: str | None) -> BrokerSettings:
    if name not in DYNAMIC:
        raise InvalidArgumentError(
            f"Setting {name} cannot be changed while the broker runs: change it in the broker's settings file or "
            "environment, and restart the broker."
        )
    if value is None:
        return settings
    try:
        return BrokerSettings.model_validate(settings.model_dump() | {name: value})
    except ValidationError as error:
        reason = reason_of(error.errors(include_url=False)[0]["msg"])
        raise InvalidArgumentError(f"Setting {name} cannot be {value!r} ({reason}): give a valid value.") from error
