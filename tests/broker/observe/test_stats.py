"""Stats of one snapshot: missing copies, and the sums of partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_on_spark.broker.observe import backlogs
from pulsar_on_spark.broker.observe.backlogs import BacklogCounter, Contents
from pulsar_on_spark.broker.observe.internal_stats import internal_stats
from pulsar_on_spark.broker.observe.models import (
    CompactionStats,
    PartitionedTopicMetadata,
    SubscriptionStats,
    TopicStats,
)
from pulsar_on_spark.broker.observe.topic_stats import summed
from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.maintenance.repair.storage_paths import drain, give_up
from tests.kit import messages
from tests.kit.open_files import open_files_under
from tests.kit.running_incarnation import RunningIncarnation

SAYS_NOTHING = dict.fromkeys(("active_consumer_name", "owner", "blocked", "problem", "key_shared_mode"))


def subscription(**said: object) -> SubscriptionStats:
    plain = {"type": "Shared", "consumers": [], "subscription_properties": {}}
    plain |= {"consumers_after_mark_delete_position": {}}
    return SubscriptionStats.model_validate(
        dict.fromkeys(SubscriptionStats.model_fields, 1) | SAYS_NOTHING | plain | said
    )


def topic(of: SubscriptionStats, **said: object) -> TopicStats:
    plain = {"deduplication_status": "Disabled", "owner_broker": "b", "publishers": [], "replication": {}}
    plain |= {"compaction": CompactionStats(), "subscriptions": {"s": of}}
    return TopicStats.model_validate(dict.fromkeys(TopicStats.model_fields, 1) | plain | said)


def test_problems_of_a_partition_show_in_the_partitioned_topic() -> None:
    parts = {
        "t-partition-0": topic(subscription()),
        "t-partition-1": topic(
            subscription(entries_lost=2, problem="no copy", owner="Spark: a", blocked="permits"),
            compaction=CompactionStats(last_compaction_succeed_timestamp=7),
        ),
        "t-partition-2": topic(subscription(entries_lost=3)),
    }
    stats = summed(parts, PartitionedTopicMetadata(partitions=3))
    joined = stats.subscriptions["s"]
    assert (joined.msg_backlog, joined.entries_lost) == (3, 6)
    assert (joined.problem, joined.owner, joined.blocked) == ("no copy", "Spark: a", "permits")
    assert (stats.waiting_publishers, stats.non_contiguous_deleted_messages_ranges) == (3, 3)
    assert stats.compaction.last_compaction_succeed_timestamp == 0


@pytest.mark.parametrize("leave", [give_up, drain])
def test_ledgers_with_too_few_copies_are_under_replicated(tmp_path: Path, leave: Callable[[Root, int], object]) -> None:
    root = Root.create(tmp_path / "root")
    root.create_topic("t")
    messages.write(root, "t", [b"1"])
    (record,) = root.store.view().all(TopicRecord)

    async def read_contents() -> Contents:
        counter = BacklogCounter(root)
        contents = await counter.read_contents([TopicPart(record.name, record.topic_id, -1)], {}, {})
        await counter.close()
        return contents[record.topic_id]

    def is_under_replicated() -> bool:
        (ledger,) = internal_stats(record, None, asyncio.run(read_contents()), 3).ledgers
        return ledger.under_replicated

    assert not is_under_replicated()
    leave(root, 1)
    assert is_under_replicated()


def test_idle_journal_files_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlogs, "IDLE_S", 0.05)
    root = Root.create(tmp_path / "root")
    root.create_topic("t")
    with RunningIncarnation(root) as broker:
        for value in (b"1", b"2"):
            broker.send("t", [value])
        part = broker.part("t")

    async def until_closed() -> None:
        async with asyncio.timeout(30):
            while open_files_under(root.path / "storage"):
                await asyncio.sleep(0.01)

    async def read_twice() -> None:
        await until_closed()  # the killed broker's files
        counter = BacklogCounter(root)
        for _ in range(2):
            assert (await counter.read_contents([part], {}, {}))[part.topic_id].messages
            assert open_files_under(root.path / "storage")
            await until_closed()
        await counter.close()

    asyncio.run(read_twice())
