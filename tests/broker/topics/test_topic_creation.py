"""Topics that are made by their first use: all that are wanted at once in one commit, and shared with subscriptions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pulsar_on_spark.broker.commits import GroupedCommits
from pulsar_on_spark.broker.settings import BrokerSettings
from pulsar_on_spark.broker.topics.topic_creation import TopicCreation
from pulsar_on_spark.broker.topics.topic_policies import default_policies
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.cursors import Cursors
from pulsar_on_spark.metadata.records import NamespaceRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import TopicNotFoundError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.policies.policies import Policies
from pulsar_on_spark.topic.root import Root


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root.create(tmp_path / "root")


def creation(root: Root, commits: GroupedCommits | None = None, defaults: Policies | None = None) -> TopicCreation:
    policies = default_policies(BrokerSettings()) if defaults is None else defaults
    return TopicCreation(commits or GroupedCommits(root.store), policies)


def test_topics_that_are_wanted_at_once_share_a_commit_with_each_other_and_with_other_changes(root: Root) -> None:
    for number in range(3):
        root.create_topic(f"shop/n{number}/first")

    async def scenario() -> None:
        commits = GroupedCommits(root.store)
        made, view = creation(root, commits), root.store.view()

        def other(_: View, __: Cursors) -> tuple[Change, str]:
            return Change(puts=[NamespaceRecord(namespace="a/b")], keys={keys.namespace("a/b"): None}), "done"

        names = [TopicName.parse(f"shop/n{number % 3}/t{number}") for number in range(30)]
        found = await asyncio.gather(commits.commit(other), *(made.create(view, name) for name in (*names, *names[:5])))
        after = root.store.view()
        assert after.version - view.version <= 2, "the first that asks does not wait for the others"
        assert found[0] == "done"
        assert list(found[1:31]) == [after.get(TopicRecord, name.full) for name in names]
        assert found[31:] == found[1:6]

    asyncio.run(scenario())


def test_a_topic_that_somebody_else_made_meanwhile_is_taken_as_it_is(root: Root) -> None:
    async def scenario() -> None:
        view = root.store.view()
        there = root.create_topic("t", 7)
        assert await creation(root).create(view, TopicName.parse("t")) == there

    asyncio.run(scenario())


def test_what_may_not_be_made_is_refused_and_commits_nothing(root: Root) -> None:
    async def scenario() -> None:
        view = root.store.view()
        with pytest.raises(TopicNotFoundError, match="named like a partition"):
            await creation(root).create(view, TopicName.parse("t-partition-3"))
        off = default_policies(BrokerSettings(allow_auto_topic_creation=False))
        with pytest.raises(TopicNotFoundError, match="pulsarpy topics create"):
            await creation(root, defaults=off).create(view, TopicName.parse("t"))
        assert root.store.view().version == view.version

    asyncio.run(scenario())
