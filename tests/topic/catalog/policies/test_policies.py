"""Policies: their rules, where they are kept, and what holds in the end."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import NamespaceRecord
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import InvalidArgumentError, NamespaceNotFoundError, TopicNotFoundError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.policies.change import (
    set_namespace_policies,
    set_offload_fields,
    set_topic_policies,
)
from pulsar_on_spark.topic.catalog.policies.effective import effective_policies, namespace_policies, topic_policies
from pulsar_on_spark.topic.catalog.policies.policies import (
    FIELDS,
    BacklogQuota,
    BacklogQuotaPolicy,
    OffloadPolicies,
    Policies,
    RetentionPolicies,
)
from pulsar_on_spark.topic.maintenance.repair import storage_paths

DAY = RetentionPolicies(retention_time_in_minutes=1440, retention_size_in_mb=-1)


def test_every_policy_documents_its_levels_and_its_enforcement() -> None:
    assert set(FIELDS) == set(Policies.model_fields)
    assert all(field.namespace or field.topic for field in FIELDS.values())
    enforcing = {f"pulsar_on_spark.{field.enforced_by}" for field in FIELDS.values()}
    assert [name for name in sorted(enforcing) if find_spec(name) is None] == []


def test_a_topic_over_its_namespace_over_the_broker(root: Root) -> None:
    root.create_topic("t", 2)
    name = TopicName.parse("t")
    told = Policies(message_ttl=7, max_producers_per_topic=3)
    assert effective_policies(root.store.view(), name, told) == told

    set_namespace_policies(root, "public/default", {"retention": DAY, "message_ttl": 60})
    set_topic_policies(root, name, {"message_ttl": 5})

    view = root.store.view()
    for each in (name, name.partition(1)):
        found = effective_policies(view, each, told)
        assert (found.retention, found.message_ttl, found.max_producers_per_topic) == (DAY, 5, 3)
    assert effective_policies(view, TopicName.parse("other"), told).message_ttl == 60
    assert namespace_policies(view, "public/default") == {"retention": DAY, "message_ttl": 60}
    assert topic_policies(view, name.partition(0)) == {"message_ttl": 5}


def test_what_was_set_stays_when_its_storage_paths_are_gone(root: Root, memory_path: Path) -> None:
    """Then other policies can be set, and other fields of the same one; the label cannot be set again elsewhere."""
    name = TopicName.parse("t")
    root.create_topic("t")
    cold = storage_paths.add(root, memory_path / "cold", "archive", role="cold").path_id
    hot = storage_paths.add(root, memory_path / "hot").path_id
    driver = {"managedLedgerOffloadDriver": "archive"}
    quorum = {"bookkeeperEnsemble": 4, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2}
    both = {"offload_policies": driver, "persistence": quorum}
    set_namespace_policies(root, "public/default", both)
    set_topic_policies(root, name, both)
    for gone in (cold, hot):
        storage_paths.give_up(root, gone)
    set_namespace_policies(root, "public/default", {"message_ttl": 60, **both})
    set_topic_policies(root, name, {"message_ttl": 60})
    set_offload_fields(root, "public/default", {"managedLedgerOffloadThresholdInBytes": 1})
    set_topic_policies(root, name, {"offload_policies": driver | {"managedLedgerOffloadThresholdInBytes": 1}})
    assert effective_policies(root.store.view(), name).offload_policies.threshold_bytes == 1
    root.create_topic("u")
    for policy, value in both.items():
        with pytest.raises(InvalidArgumentError, match=r"label of a cold storage path|add some with"):
            set_topic_policies(root, TopicName.parse("u"), {policy: value})


def test_each_field_of_offload_policies_overrides_by_itself(root: Root) -> None:
    root.create_topic("t")
    name = TopicName.parse("t")
    of_namespace = {
        "managedLedgerOffloadThresholdInBytes": 10,
        "managedLedgerOffloadDeletionLagInMillis": 7,
        # what Pulsar's clients always send
        "offloadersDirectory": "./offloaders",
        "managedLedgerOffloadMaxThreads": 2,
        "managedLedgerOffloadedReadPriority": "tiered-storage-first",
        "managedLedgerOffloadBucket": None,
        "s3Driver": False,
    }
    set_namespace_policies(root, "public/default", {"offload_policies": of_namespace})
    set_topic_policies(root, name, {"offload_policies": {"managedLedgerOffloadThresholdInBytes": 20}})
    found = effective_policies(root.store.view(), name).offload_policies
    assert (found.threshold_bytes, found.threshold_s, found.deletion_lag_ms, found.driver) == (20, -1, 7, "")
    other = effective_policies(root.store.view(), TopicName.parse("other")).offload_policies
    assert (other.threshold_bytes, other.deletion_lag_ms) == (10, 7)
    assert OffloadPolicies().deletion_lag_ms == 4 * 3_600_000

    set_offload_fields(root, "public/default", {"managedLedgerOffloadThresholdInSeconds": 5})
    set_offload_fields(root, "public/default", {"managedLedgerOffloadDeletionLagInMillis": None})
    stored = namespace_policies(root.store.view(), "public/default")["offload_policies"].model_dump(by_alias=True)
    assert stored == {"managedLedgerOffloadThresholdInBytes": 10, "managedLedgerOffloadThresholdInSeconds": 5}
    set_namespace_policies(root, "public/default", {"offload_policies": {}})
    assert namespace_policies(root.store.view(), "public/default") == {}


def test_a_policy_is_unset_by_none(root: Root) -> None:
    root.create_topic("t")
    name = TopicName.parse("t")
    set_topic_policies(root, name, {"message_ttl": 5, "deduplication": True})
    set_topic_policies(root, name, {"message_ttl": None})
    assert topic_policies(root.store.view(), name) == {"deduplication": True}


def test_no_type_of_subscription_means_any(root: Root) -> None:
    set_namespace_policies(root, "public/default", {"subscription_types_enabled": ["Shared"]})
    set_namespace_policies(root, "public/default", {"subscription_types_enabled": []})
    assert namespace_policies(root.store.view(), "public/default") == {}


def test_values_have_pulsars_names_in_json(root: Root) -> None:
    quota = {"limitSize": 1024, "limitTime": -1, "policy": "producer_exception"}
    set_namespace_policies(
        root,
        "public/default",
        {
            "retention": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 100},
            "backlog_quota_size": quota,
            "subscription_types_enabled": ["Shared", "Exclusive"],
            "schema_compatibility_strategy": "BACKWARD",
        },
    )
    view = root.store.view()
    record = view.get(NamespaceRecord, "public/default")
    assert record is not None
    assert record.policies == {
        "retention": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 100},
        "backlog_quota_size": quota,
        "subscription_types_enabled": ["Exclusive", "Shared"],
        "schema_compatibility_strategy": "BACKWARD",
    }
    found = effective_policies(view, TopicName.parse("t"))
    assert found.backlog_quota_size == BacklogQuota(limit_size=1024, policy=BacklogQuotaPolicy.EXCEPTION)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"retention": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 5}}, "both, or neither"),
        ({"retention": {"retentionTimeInMinutes": -2, "retentionSizeInMB": -1}}, "greater than or equal to -1"),
        ({"retention": {"retentionTimeInMinutes": 1}}, "retentionSizeInMB"),
        ({"retention": 5}, "an object with retentionTimeInMinutes, retentionSizeInMB"),
        ({"persistence": 3}, "an object with bookkeeperEnsemble, "),
        ({"message_ttl": -1}, "greater than or equal to 0"),
        ({"message_ttl": "soon"}, "valid integer"),
        ({"no_such_policy": 1}, "not known"),
        ({"offload_policies": {"managedLedgerOffloadDeletionLagInMillis": -1}}, "greater than or equal to 0"),
        ({"offload_policies": {"managedLedgerOffloadThresholdInBytes": 2**63}}, "less than or equal to"),
        ({"offload_policies": {"managedLedgerOffloadDriver": "d" * 256}}, "at most 255 characters"),
        ({"offload_policies": {"managedLedgerOffloadDriver": "aws-s3"}}, "'aws-s3' .* is not supported: .*none: add"),
        ({"offload_policies": {"managedLedgerOffloadServiceEndpoint": "http://evil"}}, "only the operator .* places"),
        ({"offload_policies": {"s3ManagedLedgerOffloadBucket": "mine"}}, r"\(s3ManagedLedgerOffloadBucket names"),
        ({"offload_policies": {"s3ManagedLedgerOffloadCredentialSecret": "k"}}, "CredentialSecret names a place"),
        ({"offload_policies": {"fileSystemURI": "hdfs://x"}}, "fileSystemURI names a place"),
        ({"subscription_types_enabled": ["Broadcast"]}, "'Exclusive', 'Failover'"),
        (
            {
                "retention": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 1},
                "backlog_quota_size": {"limitSize": 1 << 20},
            },
            "must be less than its retention",
        ),
        (
            {
                "retention": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 1},
                "backlog_quota_age": {"limitTime": 600},
            },
            "must be less than its retention",
        ),
    ],
)
def test_an_invalid_policy_changes_nothing(root: Root, changes: dict[str, Any], message: str) -> None:
    set_namespace_policies(root, "public/default", {"message_ttl": 9})
    with pytest.raises(InvalidArgumentError, match=message):
        set_namespace_policies(root, "public/default", changes)
    assert namespace_policies(root.store.view(), "public/default") == {"message_ttl": 9}


def test_policies_of_missing_topics_and_namespaces(root: Root) -> None:
    with pytest.raises(NamespaceNotFoundError, match="no/such does not exist"):
        set_namespace_policies(root, "no/such", {"message_ttl": 9})
    with pytest.raises(TopicNotFoundError, match="t does not exist"):
        set_topic_policies(root, TopicName.parse("t"), {"message_ttl": 9})
    root.create_topic("t")
    with pytest.raises(InvalidArgumentError, match="for namespaces only"):
        set_topic_policies(root, TopicName.parse("t"), {"max_topics_per_namespace": 9})


def test_policies_of_a_newer_version_are_kept(root: Root) -> None:
    def newer(view: Any) -> Change:
        record = view.get(NamespaceRecord, "public/default")
        changed = record.model_copy(update={"policies": {"teleport": True}})
        return Change(puts=[changed], keys={keys.namespace("public/default"): None})

    root.store.commit(newer)
    set_namespace_policies(root, "public/default", {"message_ttl": 9})
    record = root.store.view().get(NamespaceRecord, "public/default")
    assert record is not None
    assert record.policies == {"teleport": True, "message_ttl": 9}
    assert namespace_policies(root.store.view(), "public/default") == {"message_ttl": 9}
