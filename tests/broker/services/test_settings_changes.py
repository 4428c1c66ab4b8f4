"""Settings that were changed while a broker ran hold for the next broker, whatever it is started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.broker.services.settings_changes import DYNAMIC, change, changed_values, in_force, renew
from pulsar_on_spark.broker.topics.topic_policies import default_policies
from pulsar_on_spark.metadata.store import MetadataStore
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.policies.change import set_namespace_policies
from pulsar_on_spark.topic.catalog.policies.effective import effective_policies
from pulsar_on_spark.topic.catalog.policies.policies import Policies, RetentionPolicies

GIVEN = BrokerSettings(default_retention_time_in_minutes=5, max_producers_per_topic=3)
TOPIC = TopicName.parse("t")


@pytest.fixture
def root(tmp_path: Path) -> Root:
    made = Root.create(tmp_path / "root")
    made.create_topic("t")
    return made


def policies(store: MetadataStore, given: BrokerSettings) -> Policies:
    return effective_policies(store.view(), TOPIC, default_policies(given))


def retention(minutes: int, mib: int) -> RetentionPolicies:
    return RetentionPolicies(retention_time_in_minutes=minutes, retention_size_in_mb=mib)


def test_a_change_holds_under_the_namespace_and_for_the_next_broker(root: Root) -> None:
    store = root.store
    assert renew(store, GIVEN) == GIVEN
    change(store, GIVEN, "default_retention_size_in_mb", "10")
    change(store, GIVEN, "max_producers_per_topic", "1")
    change(store, GIVEN, "log_level", "DEBUG")
    now = in_force(GIVEN, changed_values(store.view()))
    assert (now.default_retention_size_in_mb, now.max_producers_per_topic, now.log_level) == (10, 1, "DEBUG")
    assert policies(store, GIVEN).retention == retention(5, 10)
    set_namespace_policies(root, "public/default", {"max_producers_per_topic": 7})
    assert policies(store, GIVEN).max_producers_per_topic == 7
    next_one = BrokerSettings(default_retention_time_in_minutes=8)
    assert renew(store, next_one).max_producers_per_topic == 1
    assert policies(store, next_one).retention == retention(8, 10)
    change(store, next_one, "default_retention_size_in_mb", None)
    assert policies(store, next_one).retention == retention(8, -1)


def test_an_invalid_change_changes_nothing(root: Root) -> None:
    for name, value in (("bind_address", "0.0.0.0"), ("no_such", "1"), ("no_such", None), ("log_level", "LOUD")):
        with pytest.raises(InvalidArgumentError, match=name):
            change(root.store, GIVEN, name, value)
    assert changed_values(root.store.view()) == {}
    assert in_force(GIVEN, {"of_a_newer_version": "1", "log_level": "LOUD", "default_num_partitions": "2"}) == (
        GIVEN.model_copy(update={"default_num_partitions": 2})
    )


@pytest.mark.parametrize("name", [name for name, decided in DYNAMIC.items() if decided])
def test_a_changed_setting_changes_only_its_own_policies(name: str) -> None:
    """Another value, of whatever type, changes these policies and no others."""
    before = getattr(GIVEN, name)
    other = _OTHER.get(name, not before if isinstance(before, bool) else 6)
    changed = default_policies(GIVEN.model_copy(update={name: other})).model_dump()
    assert {field for field, value in default_policies(GIVEN).model_dump().items() if changed[field] != value} <= set(
        DYNAMIC[name]
    )
    assert changed != default_policies(GIVEN).model_dump()


_OTHER = {
    "allow_auto_topic_creation_type": "partitioned",
    "backlog_quota_default_retention_policy": "producer_exception",
    "broker_delete_inactive_topics_mode": "delete_when_subscriptions_caught_up",
    "schema_compatibility_strategy": "BACKWARD",
}


def test_spark_follows_the_backlog_quotas_that_a_broker_was_started_with(root: Root) -> None:
    """A quota from the broker's own file: Spark must know it without that file."""
    store = root.store
    renew(store, BrokerSettings(backlog_quota_default_limit_bytes=10))
    assert effective_policies(store.view(), TOPIC).backlog_quota_size.limit_size == 10
    assert effective_policies(store.view(), TOPIC).backlog_quota_age.limit_time == -1
    set_namespace_policies(root, "public/default", {"backlog_quota_size": {"limitSize": 20}})
    assert effective_policies(store.view(), TOPIC).backlog_quota_size.limit_size == 20
    set_namespace_policies(root, "public/default", {"backlog_quota_size": None})
    renew(store, BrokerSettings())
    assert effective_policies(store.view(), TOPIC).backlog_quota_size.limit_size == -1, "the next broker was given none"
