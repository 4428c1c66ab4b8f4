"""Topics that are created by their first use: concurrent creations share a commit, also with subscriptions."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from pulsar_on_spark.broker.runtime.commits import GroupedCommits
from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.broker.topics.creation_rate import CreationRate
from pulsar_on_spark.broker.topics.topic_creation import TopicCreation
from pulsar_on_spark.broker.topics.topic_policies import default_policies
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.cursors import Cursors
from pulsar_on_spark.metadata.records import NamespaceRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import InvalidArgumentError, TopicNotFoundError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.policies.change import set_namespace_policies
from pulsar_on_spark.topic.catalog.policies.policies import Policies
from pulsar_on_spark.topic.catalog.topic_limits import NO_LIMITS, TopicLimits


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root.create(tmp_path / "root")


def creation(
    root: Root,
    commits: GroupedCommits | None = None,
    defaults: Policies | None = None,
    limits: TopicLimits = NO_LIMITS,
) -> TopicCreation:
    policies = default_policies(BrokerSettings()) if defaults is None else defaults
    return TopicCreation(commits or GroupedCommits(root.store), policies, limits)


def test_concurrent_creations_share_a_commit_with_each_other_and_with_other_changes(root: Root) -> None:
    for number in range(3):
        root.create_topic(f"shop/n{number}/first")

    async def scenario() -> None:
        commits = GroupedCommits(root.store)
        made, view = creation(root, commits), root.store.view()

        def other(_: View, __: Cursors) -> tuple[Change, str]:
            return Change(puts=[NamespaceRecord(namespace="a/b")], keys={keys.namespace("a/b"): None}), "done"

        names = [TopicName.parse(f"shop/n{number % 3}/t{number}") for number in range(30)]
        found = await asyncio.gather(
            commits.commit(other), *(made.create(view, name, CreationRate()) for name in (*names, *names[:5]))
        )
        after = root.store.view()
        assert after.version - view.version <= 2, "the first that asks does not wait for the others"
        assert found[0] == "done"
        assert list(found[1:31]) == [after.get(TopicRecord, name.full) for name in names]
        assert found[31:] == found[1:6]

    asyncio.run(scenario())


def test_a_topic_that_another_client_just_created_is_used(root: Root) -> None:
    async def scenario() -> None:
        view = root.store.view()
        there = root.create_topic("t", 7)
        assert await creation(root).create(view, TopicName.parse("t"), CreationRate()) == there

    asyncio.run(scenario())


def test_a_forbidden_creation_is_refused_and_commits_nothing(root: Root) -> None:
    async def scenario() -> None:
        view = root.store.view()
        with pytest.raises(TopicNotFoundError, match="named like a partition"):
            await creation(root).create(view, TopicName.parse("t-partition-3"), CreationRate())
        off = default_policies(BrokerSettings(allow_auto_topic_creation=False))
        with pytest.raises(TopicNotFoundError, match="pulsarpy topics create"):
            await creation(root, defaults=off).create(view, TopicName.parse("t"), CreationRate())
        assert root.store.view().version == view.version

    asyncio.run(scenario())


def test_a_request_for_partitions_creates_only_partitioned_topics(root: Root) -> None:
    async def scenario() -> None:
        view, name = root.store.view(), TopicName.parse("t")
        assert await creation(root).create_partitioned(view, name, CreationRate()) is None
        assert root.store.view().version == view.version
        settings = BrokerSettings(allow_auto_topic_creation_type="partitioned", default_num_partitions=3)
        made = await creation(root, defaults=default_policies(settings)).create_partitioned(view, name, CreationRate())
        assert made is not None
        assert made == root.store.view().get(TopicRecord, name.full)
        assert made.partitions == 3

    asyncio.run(scenario())


def test_a_refused_topic_does_not_fail_others_of_its_commit(root: Root) -> None:
    """Concurrent creations share a commit."""
    root.create_topic("shop/full/first")

    async def scenario() -> None:
        made, view = creation(root, limits=TopicLimits(topics=3)), root.store.view()
        names = ["shop/full/a", "shop/full/b", "shop/full/c", "x" * 1_100, "other"]
        asked = (made.create(view, TopicName.parse(name), CreationRate()) for name in names)
        first, second, third, long, other = await asyncio.gather(*asked, return_exceptions=True)
        assert [each.name for each in (first, second, other) if isinstance(each, TopicRecord)] == [
            TopicName.parse(name).full for name in (*names[:2], "other")
        ]
        for refused, why in ((third, "has 1 of at most 3 topics"), (long, "bytes and may have 1024")):
            assert isinstance(refused, InvalidArgumentError)
            assert why in str(refused)

    asyncio.run(scenario())


@pytest.mark.parametrize(("of_broker", "of_namespace", "most"), [(2, None, 2), (2, 4, 4), (0, None, 6), (2, 0, 6)])
def test_a_namespaces_own_limit_overrides_the_brokers(
    root: Root, of_broker: int, of_namespace: int | None, most: int
) -> None:
    if of_namespace is not None:
        set_namespace_policies(root, "public/default", {"max_topics_per_namespace": of_namespace})

    async def scenario() -> None:
        made, view = creation(root, limits=TopicLimits(topics=of_broker)), root.store.view()
        asked = (made.create(view, TopicName.parse(f"t{number}"), CreationRate()) for number in range(6))
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(each, TopicRecord) for each in found) == most

    asyncio.run(scenario())


def test_clients_that_create_too_fast_wait_and_are_then_refused() -> None:
    async def scenario() -> None:
        rate = CreationRate(10)
        began_s = time.monotonic()
        for _ in range(20):
            await rate.wait_for_turn()
        assert time.monotonic() - began_s < 1, "an application that starts creates its topics at once"
        waiting = [asyncio.create_task(rate.wait_for_turn()) for _ in range(200)]
        await asyncio.sleep(0)
        refused = [task for task in waiting if task.done()]
        assert 80 < len(refused) < 120
        assert all(isinstance(task.exception(), ServerRefusalError) for task in refused)
        for task in waiting:
            task.cancel()

    asyncio.run(scenario())
