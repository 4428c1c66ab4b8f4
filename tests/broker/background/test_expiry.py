"""Expiry of unused subscriptions: the time counts while the broker sees them unused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

from pulsar_on_spark.broker.background.expiry import SubscriptionExpiry
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.broker.topics.topics import Topics
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import SubscriptionRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.ids import EARLIEST
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.policies.change import set_namespace_policies
from pulsar_on_spark.topic.catalog.policies.effective import DEFAULTS
from pulsar_on_spark.topic.data_path.consumer import SubscriptionConsumer
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions
from pulsar_on_spark.topic.managed_ledger.subscription.offsets import StreamOffset
from tests.kit import messages


class NoneLoaded(tuple[object, ...]):
    """The topics of a root's only broker, which has loaded none."""

    def is_elsewhere(self, view: View, name: TopicName) -> bool:
        return False


NO_TOPICS = cast(Topics, NoneLoaded())


def test_unused_subscriptions_expire(tmp_path: Path) -> None:
    root = Root.create(tmp_path / "root")
    for name in ("public/default/a", "public/other/b"):
        topic = root.create_topic(name)
        part = TopicPart(topic.name, topic.topic_id, -1)
        for subscription in ("used", "unused"):
            subscriptions.create_subscriptions(root.store, subscription, "Shared", {part: EARLIEST})
    set_namespace_policies(root, "public/default", {"subscription_expiration_time": 2})

    def left() -> set[tuple[str, str]]:
        names = {topic.topic_id: topic.name.rpartition("/")[2] for topic in root.topics()}
        return {(names[record.topic_id], record.name) for record in root.store.view().all(SubscriptionRecord)}

    def use() -> None:
        """Simulate a consumer that connected and left: the subscription has a new epoch."""
        topic_id = next(topic.topic_id for topic in root.topics() if topic.name.endswith("/a"))
        record = root.store.view().get(SubscriptionRecord, f"{topic_id}/used")
        assert record is not None
        changed = record.model_copy(update={"start_epoch": record.start_epoch + 1})
        root.store.commit(lambda _: Change(puts=[changed], keys={keys.subscription(topic_id, "used"): None}))

    async def go() -> None:
        expiry = SubscriptionExpiry(root, Views(root), NO_TOPICS, DEFAULTS)
        await expiry.delete_expired(0)
        use()
        await expiry.delete_expired(119)
        assert len(left()) == 4
        await expiry.delete_expired(120)
        assert left() == {("a", "used"), ("b", "used"), ("b", "unused")}
        await expiry.delete_expired(119 + 120)
        assert left() == {("b", "used"), ("b", "unused")}

    asyncio.run(go())


def test_the_expiration_time_begins_when_a_query_of_spark_ends(tmp_path: Path) -> None:
    root = Root.create(tmp_path / "root")
    root.create_topic("t")
    set_namespace_policies(root, "public/default", {"subscription_expiration_time": 2})
    parts = messages.target(root, "t").parts
    subscriptions.create_subscriptions(root.store, "s", "Exclusive", dict.fromkeys(parts, EARLIEST))
    query = SubscriptionConsumer(root, "s", "Exclusive", "query", lease_s=600)
    query.decide_turn(root.store.view(durable=True), parts, StreamOffset("query", {}))

    async def go() -> None:
        expiry = SubscriptionExpiry(root, Views(root), NO_TOPICS, DEFAULTS)
        for now_s in (0, 1_000):
            await expiry.delete_expired(now_s)
        query.stop((), None)  # the lease ends; the subscription is not released
        for now_s in (1_001, 1_120):
            await expiry.delete_expired(now_s)
            assert root.store.view().all(SubscriptionRecord), "it was in use up to now"
        await expiry.delete_expired(1_121)
        assert not root.store.view().all(SubscriptionRecord)

    asyncio.run(go())
