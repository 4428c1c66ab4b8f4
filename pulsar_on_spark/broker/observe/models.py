"""Stats with the fields and units of Pulsar's admin API (`TopicStats` and others).

Fields that this broker does not measure are left out instead of reported as 0; docs/admin.md lists them. Two fields are
exact here, unlike in Pulsar: `msgBacklog` counts messages, not entries, and `backlogSize` is the size of the
unacknowledged messages. `storedMessages` (not in Pulsar) counts the stored messages.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Stats(BaseModel):
    """A model that is serialized with Pulsar's field names."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)


class PublisherStats(Stats):
    """A connected producer. Rates are messages per second, and throughput is bytes per second."""

    access_mode: str
    producer_id: int
    producer_name: str
    msg_rate_in: float
    msg_throughput_in: float
    average_msg_size: float
    address: str
    connected_since: str
    client_version: str
    metadata: dict[str, str]


class ConsumerStats(Stats):
    """A connected consumer. `blocked` (not in Pulsar) is the reason why it gets no messages now; None if it gets some.

    `last_consumed_flow_timestamp` is the time of the consumer's last FLOW, in milliseconds since 1970; 0 for never.
    """

    consumer_name: str
    msg_rate_out: float
    msg_throughput_out: float
    msg_out_counter: int
    bytes_out_counter: int
    available_permits: int
    unacked_messages: int
    blocked_consumer_on_unacked_msgs: bool
    blocked: str | None = None
    address: str
    connected_since: str
    client_version: str
    metadata: dict[str, str]
    last_consumed_flow_timestamp: int


class SubscriptionStats(Stats):
    """A subscription.

    `msg_backlog` is exact, in messages. `owner` (not in Pulsar) names the owner if this broker is not the owner: Spark
    consumers, or another broker. `blocked` and `problem` (not in Pulsar) are reasons why deliveries pause, None if they
    do not, and `entries_lost` (not in Pulsar) counts the entries that were skipped because they have no readable copy.
    `owner` is None if this broker or no one owns the subscription, `key_shared_mode` for other types than Key_Shared,
    `active_consumer_name` without an active consumer, and `msg_drop_rate` for persistent topics.
    `consumers_after_mark_delete_position` is empty, as in Pulsar since 4.0.
    """

    type: str
    is_durable: bool
    msg_backlog: int
    backlog_size: int
    msg_backlog_no_delayed: int
    msg_delayed: int
    unacked_messages: int
    is_replicated: bool = False
    key_shared_mode: str | None = None
    msg_rate_out: float
    msg_throughput_out: float
    msg_out_counter: int
    bytes_out_counter: int
    blocked_subscription_on_unacked_msgs: bool
    active_consumer_name: str | None = None
    msg_drop_rate: float | None = None
    consumers: list[ConsumerStats]
    consumers_after_mark_delete_position: dict[str, str] = {}
    subscription_properties: dict[str, str]
    non_contiguous_deleted_messages_ranges: int = 0
    earliest_msg_publish_time_in_backlog: int
    owner: str | None = None
    blocked: str | None = None
    problem: str | None = None
    entries_lost: int = 0


class CompactionStats(Stats):
    """The time of a topic's last compaction, in milliseconds since 1970; 0 for never."""

    last_compaction_succeed_timestamp: int = 0


class TopicStats(Stats):
    """A topic without partitions, or one partition. Counters start when the topic is loaded.

    `oldest_backlog_message_age_seconds` is the age of the oldest segment in a backlog; -1 if there is no backlog. Times
    are in milliseconds since 1970. `last_publish_time_stamp` is 0 if nothing was published since the topic was loaded.
    `offloaded_storage_size` has the key and value bytes of offloaded segments, and `last_offload_ledger_id` the ledger
    of the newest one; both are 0 if no segment is offloaded. `msg_drop_rate` is None for persistent topics, and
    `topic_epoch` if no producer was ever exclusive.
    """

    msg_rate_in: float
    msg_throughput_in: float
    msg_rate_out: float
    msg_throughput_out: float
    msg_in_counter: int
    bytes_in_counter: int
    msg_out_counter: int
    bytes_out_counter: int
    average_msg_size: float
    storage_size: int
    backlog_size: int
    offloaded_storage_size: int = 0
    last_offload_ledger_id: int = 0
    last_offload_success_time_stamp: int = 0
    stored_messages: int
    earliest_msg_publish_time_in_backlogs: int
    oldest_backlog_message_age_seconds: int
    non_contiguous_deleted_messages_ranges: int
    msg_drop_rate: float | None = None
    waiting_publishers: int
    compaction: CompactionStats
    publishers: list[PublisherStats]
    subscriptions: dict[str, SubscriptionStats]
    replication: dict[str, object] = {}
    deduplication_status: str
    topic_epoch: int | None = None
    owner_broker: str
    topic_creation_time_stamp: int
    last_publish_time_stamp: int

    def without(self, *, publishers: bool, consumers: bool) -> TopicStats:
        """Return a copy without publishers, without the subscriptions' consumers, or without both.

        Args:
            publishers: True to leave out the publishers.
            consumers: True to leave out the consumers.
        """
        left_out: dict[str, object] = {"publishers": []} if publishers else {}
        if consumers:
            left_out["subscriptions"] = {
                name: stats.model_copy(update={"consumers": []}) for name, stats in self.subscriptions.items()
            }
        return self.model_copy(update=left_out) if left_out else self


class PartitionedTopicMetadata(Stats):
    """The number of partitions of a topic, 0 if it has none; `properties` are None because they are not reported."""

    partitions: int
    properties: dict[str, str] | None = None


class PartitionedTopicStats(TopicStats):
    """A partitioned topic: the sums over its partitions and, if requested, the stats of each partition."""

    metadata: PartitionedTopicMetadata
    partitions: dict[str, TopicStats]


class SegmentStats(Stats):
    """A sealed segment of a ledger (not in Pulsar): first entry, number of entries, bytes, and why it is still kept."""

    first: int
    entries: int
    size: int
    why_kept: str


class LedgerStats(Stats):
    """A ledger of a topic. `under_replicated` is True if the metadata list too few copies of a file of the ledger.

    `state` (not in Pulsar) is open, attached (written by Spark) or closed; `segments` (not in Pulsar) lists its
    sealed segments.
    """

    ledger_id: int
    entries: int
    size: int
    offloaded: bool = False
    under_replicated: bool
    state: str
    messages: int
    segments: list[SegmentStats] = []


class CompactedLedgerStats(Stats):
    """The compacted ledger of a topic. Unlike in Pulsar, it has no ledger id, so `ledger_id` is -1."""

    ledger_id: int = -1
    entries: int
    size: int
    offloaded: bool = False
    under_replicated: bool = False
    messages: int


class CursorStats(Stats):
    """A subscription's cursor. Positions are `ledger:entry`; the mark-delete position is the last acknowledged entry.

    `number_of_entries_since_first_not_acked_message` counts the unacknowledged entries up to the topic's end; in
    Pulsar, up to the last entry that was read.
    """

    mark_delete_position: str
    individually_deleted_messages: str
    messages_consumed_counter: int
    state: str
    number_of_entries_since_first_not_acked_message: int
    total_non_contiguous_deleted_messages_range: int
    properties: dict[str, int] = {}


class InternalStats(Stats):
    """A topic's ledgers and cursors (Pulsar's `PersistentTopicInternalStats`).

    `compacted_ledger` is None if the topic was never compacted.
    """

    entries_added_counter: int
    number_of_entries: int
    total_size: int
    current_ledger_entries: int
    current_ledger_size: int
    last_ledger_created_timestamp: str
    waiting_cursors_count: int
    pending_add_entries_count: int
    last_confirmed_entry: str
    state: str
    ledgers: list[LedgerStats]
    compacted_ledger: CompactedLedgerStats | None = None
    cursors: dict[str, CursorStats]


class PartitionedInternalStats(Stats):
    """The internal stats of each partition of a topic."""

    metadata: PartitionedTopicMetadata
    partitions: dict[str, InternalStats]
