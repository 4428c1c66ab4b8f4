"""Writes of Spark into topics whose backlog exceeds its quota."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_on_spark.model.errors import BacklogQuotaExceededError
from pulsar_on_spark.model.ids import EARLIEST
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.policies.change import set_namespace_policies, set_topic_policies
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions
from tests.kit import messages

T = TopicName.parse("t")


@pytest.fixture
def slow(root: Root) -> Root:
    """A topic with a subscription that has read nothing of its 300 bytes."""
    root.create_topic("t")
    messages.write(root, "t", [b"x" * 100] * 3)
    parts = messages.target(root, "t").parts
    subscriptions.create_subscriptions(root.store, "s", "Shared", dict.fromkeys(parts, EARLIEST))
    return root


def quota(policy: str, **limit: int) -> dict[str, Any]:
    return {("backlog_quota_size" if "limitSize" in limit else "backlog_quota_age"): {**limit, "policy": policy}}


@pytest.mark.parametrize("policy", ["producer_request_hold", "producer_exception"])
def test_a_write_above_the_quota_is_refused_completely(slow: Root, policy: str) -> None:
    set_namespace_policies(slow, "public/default", quota(policy, limitSize=200))
    before = messages.values(slow, "t")
    with pytest.raises(BacklogQuotaExceededError, match=r"default/t is above 200 bytes .*destination_storage"):
        messages.write(slow, "t", [b"more"])
    assert messages.values(slow, "t") == before
    set_topic_policies(slow, T, quota(policy, limitSize=1000))
    messages.write(slow, "t", [b"more"])
    slow.delete_subscription("t", "s")
    set_topic_policies(slow, T, quota(policy, limitSize=1))
    messages.write(slow, "t", [b"no producer waits"])


def test_a_backlog_that_is_too_old_refuses_too(slow: Root) -> None:
    set_topic_policies(slow, T, quota("producer_exception", limitTime=0))
    with pytest.raises(BacklogQuotaExceededError, match="older than 0 s"):
        messages.write(slow, "t", [b"more"])


def test_a_quota_with_eviction_refuses_no_write(slow: Root) -> None:
    set_topic_policies(slow, T, quota("consumer_backlog_eviction", limitSize=1))
    messages.write(slow, "t", [b"more"])
