"""Stats out of one look: copies that are missing, partitions put together."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pulsar_on_spark.broker.stats.internal_stats import internal_stats
from pulsar_on_spark.broker.stats.models import (
    CompactionStats,
    PartitionedTopicMetadata,
    SubscriptionStats,
    TopicStats,
)
from pulsar_on_spark.broker.stats.sight import Contents, Sight
from pulsar_on_spark.broker.stats.topic_stats import summed
from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.testing import messages
from pulsar_on_spark.topic.catalog import TopicPart
from pulsar_on_spark.topic.repair.storage_paths import give_up
from pulsar_on_spark.topic.root import Root

SAYS_NOTHING = dict.fromkeys(("active_consumer_name", "owner", "blocked", "problem", "key_shared_mode"))


def subscription(**said: object) -> SubscriptionStats:
    plain = {"type": "Shared", "consumers": [], "subscription_properties": {}}
    return SubscriptionStats.model_validate(
        dict.fromkeys(SubscriptionStats.model_fields, 1) | SAYS_NOTHING | plain | said
    )


def topic(of: SubscriptionStats, **said: object) -> TopicStats:
    plain = {"deduplication_status": "Disabled", "owner_broker": "b", "publishers": [], "replication": {}}
    plain |= {"compaction": CompactionStats(), "subscriptions": {"s": of}}
    return TopicStats.model_validate(dict.fromkeys(TopicStats.model_fields, 1) | plain | said)


def test_a_partitioned_topic_hides_no_partitions_trouble() -> None:
    parts = {
        "t-partition-0": topic(subscription()),
        "t-partition-1": topic(
            subscription(entries_lost=2, problem="no copy", owner="Spark: a", blocked="permits"),
            compaction=CompactionStats(last_compaction_succeed_timestamp=7),
        ),
        "t-partition-2": topic(subscription(entries_lost=3)),
    }
    found = summed(parts, PartitionedTopicMetadata(partitions=3))
    joined = found.subscriptions["s"]
    assert (joined.msg_backlog, joined.entries_lost) == (3, 6)
    assert (joined.problem, joined.owner, joined.blocked) == ("no copy", "Spark: a", "permits")
    assert (found.waiting_publishers, found.non_contiguous_deleted_messages_ranges) == (3, 3)
    assert found.compaction.last_compaction_succeed_timestamp == 0


def test_ledgers_with_too_few_copies(tmp_path: Path) -> None:
    root = Root.create(tmp_path / "root")
    root.create_topic("t")
    messages.write(root, "t", [b"1"])
    (record,) = root.store.view().all(TopicRecord)

    async def look() -> Contents:
        sight = Sight(root)
        found = await sight.look([TopicPart(record.name, record.topic_id, -1)], {}, {})
        await sight.close()
        return found[record.topic_id]

    def is_under_replicated() -> bool:
        (ledger,) = internal_stats(record, None, asyncio.run(look()), 3).ledgers
        return ledger.under_replicated

    assert not is_under_replicated()
    give_up(root, 1)
    assert is_under_replicated()
