"""Unused topics are deleted; a live query of Spark counts as a user even if it has caught up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from pulsar_on_spark.broker.background.inactive_topics import InactiveTopics
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.broker.topics.topics import Topics
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.ids import EARLIEST
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.policies.change import set_topic_policies
from pulsar_on_spark.topic.catalog.policies.effective import DEFAULTS
from pulsar_on_spark.topic.data_path.consumer import SubscriptionConsumer
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions
from pulsar_on_spark.topic.managed_ledger.subscription.offsets import StreamOffset
from tests.kit import messages

T = TopicName.parse("t")
AFTER_A_MINUTE = {"deleteWhileInactive": True, "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up"}


class NoneLoaded:
    """A broker without loaded topics."""

    def __init__(self, root: Root) -> None:
        self._root = root

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def is_elsewhere(self, view: View, name: TopicName) -> bool:
        return False

    async def delete_inactive(self, name: TopicName, check: Callable[[View], None]) -> None:
        catalog.delete_topic(self._root.store, name, force=True, check=check)


def test_a_query_of_spark_that_has_caught_up_keeps_its_topic(tmp_path: Path) -> None:
    root = Root.create(tmp_path / "root")
    root.create_topic("t")
    set_topic_policies(root, T, {"inactive_topic_policies": AFTER_A_MINUTE})
    parts = messages.target(root, "t").parts
    subscriptions.create_subscriptions(root.store, "s", "Exclusive", dict.fromkeys(parts, EARLIEST))
    query = SubscriptionConsumer(root, "s", "Exclusive", "query", lease_s=600)
    query.decide_turn(root.store.view(durable=True), parts, StreamOffset("query", {}))

    async def go() -> None:
        inactive = InactiveTopics(root, Views(root), cast(Topics, NoneLoaded(root)), DEFAULTS)
        for now_s in (0, 100, 200):
            await inactive.delete_inactive(now_s)
            assert root.topics()
        query.stop((), None)  # the lease ends; the subscription is not released
        await inactive.delete_inactive(300)
        assert root.topics()
        await inactive.delete_inactive(360)
        assert root.topics() == []

    asyncio.run(go())


def test_a_topic_with_a_history_stays(tmp_path: Path) -> None:
    root = Root.create(tmp_path / "root")
    for name in ("t", "built", "wanted"):
        root.create_topic(name)
        messages.write(root, name, [b"a"])
        set_topic_policies(root, TopicName.parse(name), {"inactive_topic_policies": AFTER_A_MINUTE})
    set_topic_policies(root, TopicName.parse("wanted"), {"history": {"enabled": True}})
    root.build_history("built")

    async def go() -> None:
        inactive = InactiveTopics(root, Views(root), cast(Topics, NoneLoaded(root)), DEFAULTS)
        for now_s in (0, 100):
            await inactive.delete_inactive(now_s)

    asyncio.run(go())
    assert [TopicName.parse(topic.name).local for topic in root.topics()] == ["built", "wanted"]
