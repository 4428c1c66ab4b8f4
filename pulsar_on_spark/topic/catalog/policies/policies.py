"""The policies of namespaces and topics: names, units and rules are Pulsar's. Pure data.

Only policies that are enforced are listed; `FIELDS` has the levels at which each may be set, and its enforcing module.
Names in JSON (the aliases) are those of Pulsar's admin API. Defaults are Pulsar's, too, with two exceptions for the
sake of topics that are written first and read later: retention deletes nothing, and inactive topics stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel

from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.topic.entries.schemas.compatibility import Strategy

Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""0 means no limit."""
Limit = Annotated[int, Field(ge=-1, le=2**63 - 1)]
"""-1 means no limit."""
Copies = Annotated[int, Field(ge=1, le=255)]
Some = Annotated[int, Field(ge=1, le=2**31 - 1)]
SubscriptionTypeName = Literal["Exclusive", "Failover", "Shared", "Key_Shared"]


def _pulsar_name(field: str) -> str:
    return to_camel(field).replace("InMb", "InMB")


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, alias_generator=_pulsar_name)


class RetentionPolicies(_Value):
    """Retention of entries that every subscription has acknowledged; those beyond either limit may be deleted.

    Attributes:
        retention_time_in_minutes: Age in minutes; -1 for no limit.
        retention_size_in_mb: Size of the topic in MiB; -1 for no limit. If both are 0, nothing is kept.
    """

    retention_time_in_minutes: Limit
    retention_size_in_mb: Limit

    @model_validator(mode="after")
    def _check(self) -> RetentionPolicies:
        if (self.retention_time_in_minutes == 0) != (self.retention_size_in_mb == 0):
            raise ValueError("retentionTimeInMinutes and retentionSizeInMB must be 0 both, or neither")
        return self


class PersistencePolicies(_Value):
    """Quorum of a topic's entries.

    Attributes:
        bookkeeper_ensemble: Minimum number of storage paths of the root; each file is on `bookkeeper_write_quorum` of
            them.
        bookkeeper_write_quorum: Number of copies.
        bookkeeper_ack_quorum: Number of durable copies before an entry is acknowledged.
        managed_ledger_max_mark_delete_rate: Stored without effect: all cursors of a broker are saved together.
    """

    bookkeeper_ensemble: Copies
    bookkeeper_write_quorum: Copies
    bookkeeper_ack_quorum: Copies
    managed_ledger_max_mark_delete_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0

    @model_validator(mode="after")
    def _check(self) -> PersistencePolicies:
        if not self.bookkeeper_ensemble >= self.bookkeeper_write_quorum >= self.bookkeeper_ack_quorum:
            raise ValueError("bookkeeperEnsemble >= bookkeeperWriteQuorum >= bookkeeperAckQuorum must hold")
        return self

    @property
    def quorum(self) -> Quorum:
        """The quorum of a ledger under this policy."""
        return Quorum(self.bookkeeper_ensemble, self.bookkeeper_write_quorum, self.bookkeeper_ack_quorum)

    @classmethod
    def of(cls, quorum: Quorum) -> PersistencePolicies:
        """Return the policy for a quorum."""
        return cls(
            bookkeeper_ensemble=quorum.ensemble,
            bookkeeper_write_quorum=quorum.write,
            bookkeeper_ack_quorum=quorum.ack,
        )


class BacklogQuotaPolicy(Enum):
    """Action of the broker if a topic's backlog exceeds its quota."""

    HOLD = "producer_request_hold"
    EXCEPTION = "producer_exception"
    EVICTION = "consumer_backlog_eviction"


class BacklogQuota(_Value):
    """Limit for the largest backlog of a topic's subscriptions.

    Attributes:
        limit_size: Bytes, for a quota by size; -1 for no limit.
        limit_time: Seconds since the oldest entry of the backlog was published, for a quota by time; -1 for no limit.
        policy: Action above the limit.
    """

    limit_size: Limit = -1
    limit_time: Limit = -1
    policy: BacklogQuotaPolicy = BacklogQuotaPolicy.HOLD


class DispatchRate(_Value):
    """The rate of entries to consumers; -1 for no limit. A relative rate is added to the publish rate."""

    dispatch_throttling_rate_in_msg: Limit = -1
    dispatch_throttling_rate_in_byte: Limit = -1
    rate_period_in_second: Some = 1
    relative_to_publish_rate: bool = False


class PublishRate(_Value):
    """Limit of producers' publish rate, per second; -1 for no limit."""

    publish_throttling_rate_in_msg: Limit = -1
    publish_throttling_rate_in_byte: Limit = -1


class SubscribeRate(_Value):
    """Limit of one consumer's subscribe requests in a period; -1 for no limit."""

    subscribe_throttling_rate_per_consumer: Limit = -1
    rate_period_in_second: Some = 30


class AutoTopicCreation(_Value):
    """The policy for topics that clients use before they exist.

    Attributes:
        allow_auto_topic_creation: True to create such topics; if False, the other fields have no meaning.
        topic_type: The type of created topics.
        default_num_partitions: Number of partitions of created topics; None for topics without partitions.
    """

    allow_auto_topic_creation: bool = True
    topic_type: Literal["non-partitioned", "partitioned"] = "non-partitioned"
    default_num_partitions: Annotated[int, Field(le=10_000)] | None = None

    @field_validator("topic_type", mode="before")
    @classmethod
    def _not_given(cls, value: Any) -> Any:
        return value or "non-partitioned"

    @property
    def refusal(self) -> str | None:
        """The error in the words of Pulsar's `validateOverride`, which clients compare; None for a valid value."""
        is_partitioned, partitions = self.topic_type == "partitioned", self.default_num_partitions
        if not self.allow_auto_topic_creation:
            return None
        if not is_partitioned and partitions is not None:
            wrong = "is not allowed to be set when the type is non-partition."
        elif is_partitioned and partitions is None:
            wrong = "cannot be null when the type is partitioned."
        elif is_partitioned and partitions is not None and partitions < 1:
            wrong = "cannot be less than 1 for partition type."
        else:
            return None
        return f"Invalid configuration for autoTopicCreationOverride. the detail is [defaultNumPartitions] {wrong}"


class AutoSubscriptionCreation(_Value):
    """Permission for consumers to create their subscriptions."""

    allow_auto_subscription_creation: bool = True


class InactiveTopicDeleteMode(Enum):
    """Condition under which a topic without producers and consumers is inactive."""

    NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"
    CAUGHT_UP = "delete_when_subscriptions_caught_up"


class InactiveTopicPolicies(_Value):
    """Deletion of unused topics.

    Attributes:
        delete_while_inactive: True if inactive topics are deleted.
        inactive_topic_delete_mode: Condition for a topic to be inactive.
        max_inactive_duration_seconds: Time of inactivity after which a topic is deleted.
    """

    delete_while_inactive: bool = False
    inactive_topic_delete_mode: InactiveTopicDeleteMode = InactiveTopicDeleteMode.NO_SUBSCRIPTIONS
    max_inactive_duration_seconds: Some = 60


class DelayedDelivery(_Value):
    """Delivery at a time that the producer names, to Shared and Key_Shared consumers.

    Attributes:
        active: True to wait until the time; False to deliver at once.
        tick_time: Length in milliseconds of the intervals whose entries become due together.
        max_delivery_delay_in_millis: Messages with a later time are refused; 0 for no limit.
    """

    active: bool = True
    tick_time: Some = 1000
    max_delivery_delay_in_millis: Annotated[
        int,
        Field(
            ge=0,
            le=2**63 - 1,
            # Pulsar's name, and the name that its Go client sends.
            validation_alias=AliasChoices("maxDeliveryDelayInMillis", "maxDelayInMillis"),
        ),
    ] = 0


_OFFLOAD_TUNING: Final = (
    "offloadersDirectory",
    "managedLedgerOffloadMaxThreads",
    "managedLedgerOffloadReadThreads",
    "managedLedgerOffloadPrefetchRounds",
    "managedLedgerOffloadedReadPriority",
    "managedLedgerOffloadMaxBlockSizeInBytes",
    "managedLedgerOffloadReadBufferSizeInBytes",
    "managedLedgerExtraConfigurations",
    "s3ManagedLedgerOffloadMaxBlockSizeInBytes",
    "s3ManagedLedgerOffloadReadBufferSizeInBytes",
    "s3ManagedLedgerOffloadRoleSessionName",
    "gcsManagedLedgerOffloadMaxBlockSizeInBytes",
    "gcsManagedLedgerOffloadReadBufferSizeInBytes",
    "s3Driver",
    "gcsDriver",
    "fileSystemDriver",
)
"""Settings of Pulsar's offloaders without a meaning here, and what Java's client computes from the driver.

Clients always send their defaults, so they are ignored.
"""
_OFFLOAD_PLACES: Final = (
    *(f"{store}anagedLedgerOffload{part}" for store in ("m", "s3M", "gcsM") for part in ("Region", "Bucket")),
    "managedLedgerOffloadServiceEndpoint",
    "s3ManagedLedgerOffloadServiceEndpoint",
    "s3ManagedLedgerOffloadRole",
    "s3ManagedLedgerOffloadCredentialId",
    "s3ManagedLedgerOffloadCredentialSecret",
    "gcsManagedLedgerOffloadServiceAccountKeyFile",
    "fileSystemProfilePath",
    "fileSystemURI",
)
"""Pulsar's settings of the storage for offloaded ledgers. In this project, only operators choose it."""
DELETION_LAG_MS: Final = 4 * 3_600_000
"""Pulsar's default deletion lag, in milliseconds."""


class OffloadPolicies(_Value):
    """The rule for moving a topic's old segments to a cold storage path. A field that is None is not set.

    Attributes:
        managed_ledger_offload_driver: Label of the cold paths to use; if it is not set, any cold path is used.
        managed_ledger_offload_threshold_in_bytes: Key and value bytes of the topic's newest segments, which are not
            offloaded; older segments are. -1 to offload no segment because of the topic's size.
        managed_ledger_offload_threshold_in_seconds: Seconds since a segment's last message was published, after which
            the segment is offloaded. -1 to offload no segment because of its age.
        managed_ledger_offload_deletion_lag_in_millis: Milliseconds for which the copies on other paths are kept after
            the offload.
    """

    managed_ledger_offload_driver: Annotated[str, Field(max_length=255)] | None = None
    managed_ledger_offload_threshold_in_bytes: Limit | None = None
    managed_ledger_offload_threshold_in_seconds: Limit | None = None
    managed_ledger_offload_deletion_lag_in_millis: Annotated[int, Field(ge=0, le=2**53)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_places(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if places := sorted(name for name in _OFFLOAD_PLACES if given.get(name) not in (None, "")):
            raise ValueError(
                f"{places[0]} names a place, and only the operator of the root chooses places: leave it out, and give "
                "the label of a cold storage path as managedLedgerOffloadDriver"
            )
        return {name: value for name, value in given.items() if name not in (*_OFFLOAD_TUNING, *_OFFLOAD_PLACES)}

    @model_serializer(mode="wrap")
    def _without_unset(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        dumped: dict[str, Any] = handler(self)
        return {name: value for name, value in dumped.items() if value is not None}

    def over(self, inherited: OffloadPolicies) -> OffloadPolicies:
        """Return these policies, with the inherited values of the fields that they do not set."""
        return inherited.model_copy(update=self.model_dump())

    @property
    def driver(self) -> str:
        """The label of the cold paths to use; "" for any."""
        return self.managed_ledger_offload_driver or ""

    @property
    def threshold_bytes(self) -> int:
        """Key and value bytes that are not offloaded; -1 to offload no segment because of the topic's size."""
        limit = self.managed_ledger_offload_threshold_in_bytes
        return -1 if limit is None else limit

    @property
    def threshold_s(self) -> int:
        """Age in seconds at which segments are offloaded; -1 to offload no segment because of its age."""
        limit = self.managed_ledger_offload_threshold_in_seconds
        return -1 if limit is None else limit

    @property
    def deletion_lag_ms(self) -> int:
        """Milliseconds for which the copies on other paths are kept after the offload."""
        lag_ms = self.managed_ledger_offload_deletion_lag_in_millis
        return DELETION_LAG_MS if lag_ms is None else lag_ms


class HistoryPolicies(_Value):
    """The history of a topic: a Delta table with a row for each message (`history_table`).

    Attributes:
        enabled: True to build the history in the background.
        retention_time_in_minutes: Age of messages in the table in minutes; -1 for no limit.
        retention_size_in_mb: Size of the table in MiB; -1 for no limit.
    """

    enabled: bool = True
    retention_time_in_minutes: Limit = -1
    retention_size_in_mb: Limit = -1


class Policies(BaseModel):
    """All policies. The policies in force for a topic have a value in every field; see `effective_policies`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    retention: RetentionPolicies = RetentionPolicies(retention_time_in_minutes=-1, retention_size_in_mb=-1)
    message_ttl: Count = 0
    """Seconds after which entries count as acknowledged in every subscription; 0 for never."""
    backlog_quota_size: BacklogQuota = BacklogQuota()
    """The quota `destination_storage`."""
    backlog_quota_age: BacklogQuota = BacklogQuota()
    """The quota `message_age`."""
    subscription_expiration_time: Count = 0
    """Minutes after which a subscription without consumers is deleted; 0 for never."""
    inactive_topic_policies: InactiveTopicPolicies = InactiveTopicPolicies()
    compaction_threshold: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    """Bytes not compacted yet that start a compaction; 0 for never."""
    offload_policies: OffloadPolicies = OffloadPolicies()
    history: HistoryPolicies = HistoryPolicies(enabled=False)
    persistence: PersistencePolicies | None = None
    """None for the root's quorum."""

    deduplication: bool = False
    deduplication_snapshot_interval: Count = 120
    """Seconds after which the deduplication state is saved, if anything was published; 0 to never save it by time."""
    delayed_delivery: DelayedDelivery = DelayedDelivery()
    publish_rate: PublishRate = PublishRate()
    dispatch_rate: DispatchRate = DispatchRate()
    """Rate of all subscriptions of a topic together."""
    subscription_dispatch_rate: DispatchRate = DispatchRate()
    """Rate of each subscription."""
    subscribe_rate: SubscribeRate = SubscribeRate()

    max_message_size: Count = 0
    """Bytes of a client's entry as sent; 0 for the broker's limit."""
    max_producers_per_topic: Count = 0
    max_consumers_per_topic: Count = 0
    max_consumers_per_subscription: Count = 0
    max_subscriptions_per_topic: Count = 0
    max_topics_per_namespace: Count = 0
    max_unacked_messages_per_consumer: Count = 50_000
    max_unacked_messages_per_subscription: Count = 200_000
    subscription_types_enabled: frozenset[SubscriptionTypeName] = frozenset(
        ("Exclusive", "Failover", "Shared", "Key_Shared")
    )
    encryption_required: bool = False
    """True to refuse messages that their producer has not encrypted."""
    auto_topic_creation: AutoTopicCreation = AutoTopicCreation()
    auto_subscription_creation: AutoSubscriptionCreation = AutoSubscriptionCreation()

    schema_compatibility_strategy: Strategy = Strategy.FULL
    schema_validation_enforced: bool = False
    is_allow_auto_update_schema: bool = True


@dataclass(frozen=True, slots=True)
class PolicyField:
    """Names of a policy in the admin API, and the module that enforces it.

    Attributes:
        namespace: Name in `/admin/v2/namespaces/<namespace>/<name>`; None if the policy is set on topics only.
        topic: Name in `/admin/v2/persistent/<topic>/<name>`; None if the policy is set on namespaces only.
        key: Key in the JSON of a namespace's policies.
        enforced_by: The module that enforces the policy.
    """

    namespace: str | None
    topic: str | None
    key: str
    enforced_by: str


_PRODUCERS: Final = "broker.producing"
_SUBSCRIPTIONS: Final = "broker.subscriptions"
_SCHEMAS: Final = "broker.topics.schemas"
_LIFECYCLE: Final = "topic.maintenance.retention"

FIELDS: Final[dict[str, PolicyField]] = {
    "retention": PolicyField("retention", "retention", "retention_policies", _LIFECYCLE),
    "message_ttl": PolicyField("messageTTL", "messageTTL", "message_ttl_in_seconds", _LIFECYCLE),
    "backlog_quota_size": PolicyField("backlogQuota", "backlogQuota", "backlog_quota_map", _LIFECYCLE),
    "backlog_quota_age": PolicyField("backlogQuota", "backlogQuota", "backlog_quota_map", _LIFECYCLE),
    "subscription_expiration_time": PolicyField(
        "subscriptionExpirationTime", None, "subscription_expiration_time_minutes", _LIFECYCLE
    ),
    "inactive_topic_policies": PolicyField(
        "inactiveTopicPolicies", "inactiveTopicPolicies", "inactive_topic_policies", _LIFECYCLE
    ),
    "compaction_threshold": PolicyField(
        "compactionThreshold", "compactionThreshold", "compaction_threshold", "topic.maintenance.compaction"
    ),
    "offload_policies": PolicyField(
        "offloadPolicies", "offloadPolicies", "offload_policies", "topic.maintenance.offload"
    ),
    "history": PolicyField("history", "history", "history", "history_table"),
    "persistence": PolicyField("persistence", "persistence", "persistence", "broker.runtime.journals"),
    "deduplication": PolicyField("deduplication", "deduplicationEnabled", "deduplicationEnabled", _PRODUCERS),
    "deduplication_snapshot_interval": PolicyField(
        "deduplicationSnapshotInterval",
        "deduplicationSnapshotInterval",
        "deduplicationSnapshotIntervalSeconds",
        _PRODUCERS,
    ),
    "delayed_delivery": PolicyField(
        "delayedDelivery", "delayedDelivery", "delayed_delivery_policies", "broker.dispatch"
    ),
    "publish_rate": PolicyField("publishRate", "publishRate", "publishMaxMessageRate", _PRODUCERS),
    "dispatch_rate": PolicyField("dispatchRate", "dispatchRate", "topicDispatchRate", "broker.dispatch"),
    "subscription_dispatch_rate": PolicyField(
        "subscriptionDispatchRate", "subscriptionDispatchRate", "subscriptionDispatchRate", "broker.dispatch"
    ),
    "subscribe_rate": PolicyField("subscribeRate", "subscribeRate", "clusterSubscribeRate", _SUBSCRIPTIONS),
    "max_message_size": PolicyField(None, "maxMessageSize", "max_message_size", "broker.topics"),
    "max_producers_per_topic": PolicyField(
        "maxProducersPerTopic", "maxProducers", "max_producers_per_topic", _PRODUCERS
    ),
    "max_consumers_per_topic": PolicyField(
        "maxConsumersPerTopic", "maxConsumers", "max_consumers_per_topic", _SUBSCRIPTIONS
    ),
    "max_consumers_per_subscription": PolicyField(
        "maxConsumersPerSubscription", "maxConsumersPerSubscription", "max_consumers_per_subscription", _SUBSCRIPTIONS
    ),
    "max_subscriptions_per_topic": PolicyField(
        "maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic", "max_subscriptions_per_topic", _SUBSCRIPTIONS
    ),
    "max_topics_per_namespace": PolicyField(
        "maxTopicsPerNamespace", None, "max_topics_per_namespace", "topic.catalog.catalog"
    ),
    "max_unacked_messages_per_consumer": PolicyField(
        "maxUnackedMessagesPerConsumer",
        "maxUnackedMessagesOnConsumer",
        "max_unacked_messages_per_consumer",
        "broker.dispatch",
    ),
    "max_unacked_messages_per_subscription": PolicyField(
        "maxUnackedMessagesPerSubscription",
        "maxUnackedMessagesOnSubscription",
        "max_unacked_messages_per_subscription",
        "broker.dispatch",
    ),
    "subscription_types_enabled": PolicyField(
        "subscriptionTypesEnabled", "subscriptionTypesEnabled", "subscription_types_enabled", _SUBSCRIPTIONS
    ),
    "encryption_required": PolicyField("encryptionRequired", None, "encryption_required", _PRODUCERS),
    "auto_topic_creation": PolicyField("autoTopicCreation", None, "autoTopicCreationOverride", "broker.topics"),
    "auto_subscription_creation": PolicyField(
        "autoSubscriptionCreation", "autoSubscriptionCreation", "autoSubscriptionCreationOverride", _SUBSCRIPTIONS
    ),
    "schema_compatibility_strategy": PolicyField(
        "schemaCompatibilityStrategy", "schemaCompatibilityStrategy", "schema_compatibility_strategy", _SCHEMAS
    ),
    "schema_validation_enforced": PolicyField(
        "schemaValidationEnforced", "schemaValidationEnforced", "schema_validation_enforced", _SCHEMAS
    ),
    "is_allow_auto_update_schema": PolicyField(
        "isAllowAutoUpdateSchema", None, "is_allow_auto_update_schema", _SCHEMAS
    ),
}
"""Every policy by its field of `Policies`."""
