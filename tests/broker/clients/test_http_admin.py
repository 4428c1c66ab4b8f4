"""Clusters, brokers, tenants, namespaces and policies over the admin API; and what it does not do."""

from __future__ import annotations

import json
import re
import time
import zlib
from contextlib import closing
from typing import Any
from urllib.parse import unquote

import httpx
import pulsar
import pytest

from pulsar_on_spark.broker.web.admin.not_there import BRANCHES, UNDER_NAMESPACE, UNDER_TOPIC
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.policies.policies import FIELDS
from tests.kit import messages
from tests.kit.running_broker import RunningBroker

from .conftest import WAIT_MS, new_client
from .test_http_topics import answered, done, path, refused, send, stats

VALUES: dict[str, object] = {
    "retention": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 100},
    "inactive_topic_policies": {
        "deleteWhileInactive": False,
        "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
        "maxInactiveDurationSeconds": 600,
    },
    "history": {"enabled": True, "retentionTimeInMinutes": 10, "retentionSizeInMB": -1},
    "delayed_delivery": {"active": True, "tickTime": 500, "maxDeliveryDelayInMillis": 60000},
    "persistence": {
        "bookkeeperEnsemble": 3,
        "bookkeeperWriteQuorum": 2,
        "bookkeeperAckQuorum": 1,
        "managedLedgerMaxMarkDeleteRate": 10.0,
    },
    "offload_policies": {
        "managedLedgerOffloadThresholdInBytes": 1000,
        "managedLedgerOffloadThresholdInSeconds": -1,
        "managedLedgerOffloadDeletionLagInMillis": 0,
    },
    "publish_rate": {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": -1},
    "subscribe_rate": {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 10},
    "subscription_types_enabled": ["Exclusive", "Shared"],
    "auto_topic_creation": {
        "allowAutoTopicCreation": True,
        "topicType": "partitioned",
        "defaultNumPartitions": 2,
    },
    "auto_subscription_creation": {"allowAutoSubscriptionCreation": False},
    "schema_compatibility_strategy": "BACKWARD",
}
for _name in ("dispatch_rate", "subscription_dispatch_rate"):
    VALUES[_name] = {
        "dispatchThrottlingRateInMsg": 7,
        "dispatchThrottlingRateInByte": -1,
        "ratePeriodInSecond": 1,
        "relativeToPublishRate": True,
    }
for _name in ("deduplication", "schema_validation_enforced", "is_allow_auto_update_schema", "encryption_required"):
    VALUES[_name] = True
QUOTA = {"limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}


@pytest.fixture
def namespace(admin: httpx.Client, topic: str) -> str:
    """A namespace of its own."""
    done(admin.put("/tenants/acme", json={"adminRoles": ["a"]})) if admin.get("/tenants/acme").is_error else None
    done(admin.put(f"/namespaces/acme/{topic}"))
    return f"acme/{topic}"


def test_the_cluster_and_its_broker(admin: httpx.Client) -> None:
    assert answered(admin.get("/clusters")) == ["standalone"]
    cluster = answered(admin.get("/clusters/standalone"))
    here = cluster["serviceUrl"].removeprefix("http://")
    assert cluster["brokerServiceUrl"].startswith("pulsar://")
    refused(admin.get("/clusters/other"), 404, "the only one is standalone")
    refused(admin.put("/clusters/other", json={}), 501, "geo-replication")
    refused(admin.put("/clusters/standalone", json={}), 409, "exists already")
    assert answered(admin.get("/brokers")) == answered(admin.get("/brokers/standalone")) == [here]
    assert answered(admin.get("/brokers/leaderBroker"))["brokerId"] == here
    refused(admin.get("/brokers/standalone/other:1/ownedNamespaces"), 404, "list the brokers first")
    assert answered(admin.get("/brokers/configuration/runtime"))["maxMessageSize"] == "5242880"
    assert "metadataStoreUrl" in answered(admin.get("/brokers/internal-configuration"))


def test_settings_that_are_changed_while_the_broker_runs(
    admin: httpx.Client, client: pulsar.Client, topic: str
) -> None:
    settings = "/brokers/configuration"
    done(admin.put(f"/persistent/public/default/{topic}"))
    producer = client.create_producer(topic)
    assert {"ttlDurationDefaultInSeconds", "logLevel"} <= set(answered(admin.get(settings)))
    for name, value in (("ttlDurationDefaultInSeconds", 77), ("maxProducersPerTopic", 1)):
        changed(admin.post(f"{settings}/{name}/{value}"))
        assert answered(admin.get(f"{settings}/values"))[name] == answered(admin.get(f"{settings}/runtime"))[name]
    assert answered(admin.get(f"/persistent/public/default/{topic}/messageTTL", params={"applied": True})) == 77
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic)
    for name in ("ttlDurationDefaultInSeconds", "maxProducersPerTopic"):
        changed(admin.delete(f"{settings}/{name}"))
    assert answered(admin.get(f"{settings}/values")) == {}
    assert answered(admin.get(f"/persistent/public/default/{topic}/messageTTL", params={"applied": True})) == 0
    client.create_producer(topic).close()
    producer.close()
    refused(admin.post(f"{settings}/maxMessageSize/7000"), 412, "restart the broker")
    refused(admin.delete(f"{settings}/noSuchSetting"), 412, "cannot be changed")
    refused(admin.post(f"{settings}/brokerMaxConnections/many"), 412, "a valid value")


@pytest.mark.parametrize(
    "value", ["%7B%22key%2F123%22%3A%22https%3A%2F%2Fexample.com%2F%22%7D", "..%2F..%2Fclusters", "a%2Fb/%22c%22"]
)
def test_a_setting_is_refused_for_its_value_however_that_is_written(admin: httpx.Client, value: str) -> None:
    setting = "/brokers/configuration/allowAutoSubscriptionCreation"
    answer = sent_as_written(admin, "POST", f"{setting}/{value}")
    refused(answer, 412, f"allow_auto_subscription_creation cannot be {unquote(value)!r} ")
    refused(sent_as_written(admin, "GET", f"{setting}/{value}"), 400, "percent-escapes")
    refused(sent_as_written(admin, "DELETE", f"{setting}/{value}"), 400, "percent-escapes")
    assert "allowAutoSubscriptionCreation" not in answered(admin.get("/brokers/configuration/values"))


def test_a_setting_is_changed_to_a_value_in_escapes(admin: httpx.Client) -> None:
    setting = "/brokers/configuration/maxTenants"
    changed(sent_as_written(admin, "POST", f"{setting}/%31%30%30"))
    assert answered(admin.get("/brokers/configuration/values"))["maxTenants"] == "100"
    changed(sent_as_written(admin, "DELETE", setting))
    assert "maxTenants" not in answered(admin.get("/brokers/configuration/values"))


def changed(answer: httpx.Response) -> None:
    """As Pulsar answers a change of a setting: 200 and nothing, where other changes have 204."""
    assert (answer.status_code, answer.content) == (200, b""), answer.text


def sent_as_written(admin: httpx.Client, method: str, path: str) -> httpx.Response:
    """The answer to a path whose escapes are the caller's: httpx writes many of them as plain characters."""
    url = admin.base_url.copy_with(raw_path=admin.base_url.raw_path.rstrip(b"/") + path.encode())
    assert url.raw_path.endswith(path.encode())
    return admin.request(method, url)


def test_reads_follow_the_present_size_settings(admin: httpx.Client, client: pulsar.Client, topic: str) -> None:
    """A read is let through as a whole, whatever the rate: one of 100 entries would bring all at once."""
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic)
    for number in range(30):
        producer.send(b"%d" % number)
    done(admin.post(f"/persistent/public/default/{topic}/dispatchRate", json={"dispatchThrottlingRateInMsg": 10}))
    size = "/brokers/configuration/dispatcherMaxReadBatchSize"
    changed(admin.post(f"{size}/1"))
    consumer = client.subscribe(topic, "s")
    came_s = []
    for number in range(30):
        assert consumer.receive(WAIT_MS).data() == b"%d" % number
        came_s.append(time.monotonic())
    assert came_s[-1] - came_s[0] > 1.5, "10 at once, 20 at 10 a second"
    changed(admin.delete(size))


def test_tenants(admin: httpx.Client, topic: str) -> None:
    tenant = f"/tenants/{topic}"
    refused(admin.get(tenant), 404)
    done(admin.put(tenant, json={"adminRoles": ["a"], "allowedClusters": ["standalone"]}))
    refused(admin.put(tenant, json={}), 409)
    assert topic in answered(admin.get("/tenants"))
    assert answered(admin.get(tenant)) == {"adminRoles": ["a"], "allowedClusters": ["standalone"]}
    done(admin.post(tenant, json={"adminRoles": ["b"]}))
    assert answered(admin.get(tenant))["adminRoles"] == ["b"]
    done(admin.put(f"/namespaces/{topic}/n"))
    assert answered(admin.get(f"/namespaces/{topic}")) == [f"{topic}/n"]
    refused(admin.delete(tenant), 409, f"{topic}/n")
    done(admin.delete(tenant, params={"force": True}))
    refused(admin.get(f"/namespaces/{topic}"), 404)
    refused(admin.put("/tenants/a b"), 412, "not valid")
    refused(admin.put(tenant, json={"allowedClusters": ["east"]}), 412, "Cluster east does not exist")
    done(admin.put(tenant))
    refused(admin.post(tenant, json={"allowedClusters": ["standalone", "east"]}), 412, "Cluster east does not exist")


def test_a_topic_of_a_deleted_tenant_can_be_made_again_at_once(admin: httpx.Client, topic: str) -> None:
    """The deleted one was loaded: it must not answer for the new one."""
    place = f"/persistent/{topic}/n/t"
    for _ in range(3):
        done(admin.put(f"/tenants/{topic}"))
        done(admin.put(f"/namespaces/{topic}/n"))
        done(admin.put(place))
        done(admin.put(f"{place}/subscription/s", json={"ledgerId": -1, "entryId": -1}))
        done(admin.post(f"{place}/subscription/s/skip_all"))
        done(admin.delete(f"/tenants/{topic}", params={"force": True}))


def test_a_namespace_with_topics_is_deleted_by_force_only(
    admin: httpx.Client, client: pulsar.Client, namespace: str
) -> None:
    client.create_producer(f"{namespace}/t").send(b"1")
    refused(admin.put(f"/namespaces/{namespace}"), 409)
    refused(admin.delete(f"/namespaces/{namespace}"), 409, f"{namespace}/t")
    assert answered(admin.get(f"/persistent/{namespace}")) == [f"persistent://{namespace}/t"]


def test_bundles_are_listed_unloaded_and_split(admin: httpx.Client, client: pulsar.Client, namespace: str) -> None:
    base = f"/namespaces/{namespace}"
    halves = ["0x00000000", "0x7fffffff", "0xffffffff"]
    assert answered(admin.get(f"{base}/bundles"))["numBundles"] == 4
    done(admin.put(f"{base}b", json={"bundles": {"numBundles": 2}}))
    assert answered(admin.get(f"{base}b/bundles")) == {"boundaries": halves, "numBundles": 2}
    assert answered(admin.get(f"{base}b"))["bundles"]["boundaries"] == halves
    done(admin.put(f"{base}c", json={"bundles": {"boundaries": ["0x0", "0x9", "0xffffffff"]}}))
    for body in ({"numBundles": 9999}, {"boundaries": ["0x9", "0xffffffff"]}, {"boundaries": [1]}):
        refused(admin.put(f"{base}d", json={"bundles": body}), 412, "bundles")

    producer = client.create_producer(f"{namespace}b/t")
    producer.send(b"1")
    (hashes,) = [
        answered(admin.get(f"{base}b/{bundle}/topicHashPositions"))["topicHashPositions"]
        for bundle in ("_".join(halves[:2]), "_".join(halves[1:]))
        if answered(admin.get(f"{base}b/{bundle}/topicHashPositions"))["topicHashPositions"]
    ]
    assert hashes == {f"persistent://{namespace}b/t": zlib.crc32(f"persistent://{namespace}b/t".encode())}
    here = answered(admin.get("/brokers"))[0]
    owned = answered(admin.get(f"/brokers/standalone/{here}/ownedNamespaces"))
    assert {f"{namespace}b/{'_'.join(halves[:2])}", f"{namespace}b/{'_'.join(halves[1:])}"} <= owned.keys()
    done(admin.put(f"{base}b/0x00000000_0x7fffffff/unload"))
    done(admin.put(f"{base}b/0x7fffffff_0xffffffff/unload"))
    done(admin.put(f"{base}b/unload"))
    refused(admin.put(f"{base}b/0x00000000_0x7fffffff/unload", params={"destinationBroker": "x:1"}), 409, "x:1")
    refused(admin.put(f"{base}b/0x0_0x1/unload"), 412, "has no bundle 0x0_0x1")
    producer.send(b"2")

    done(admin.put(f"{base}b/0x00000000_0x7fffffff/split"))
    done(admin.put(f"{base}b/0x7fffffff_0xffffffff/split?splitAlgorithmName=topic_count_equally_divide"))
    done(admin.put(f"{base}b/0x7fffffff_0xffffffff/split?splitAlgorithmName=specified_positions_divide", json=[2**31]))
    refused(admin.put(f"{base}b/0x00000000_0x7fffffff/split"), 412, "has no bundle")
    refused(admin.put(f"{base}b/0x00000000_0x3fffffff/split?splitAlgorithmName=x"), 412, "range_equally_divide")
    assert answered(admin.get(f"{base}b/bundles"))["boundaries"] == [
        "0x00000000",
        "0x3fffffff",
        "0x7fffffff",
        "0x80000000",
        "0xffffffff",
    ]
    producer.send(b"3")


def test_a_namespace_is_created_with_policies(admin: httpx.Client, namespace: str) -> None:
    base = f"/namespaces/{namespace}x"
    limit = VALUES["dispatch_rate"]
    said: dict[str, object] = {
        "message_ttl_in_seconds": 5,
        "encryption_required": True,
        "topicDispatchRate": {"standalone": limit},
        "deleted": False,
    }
    quotas = {
        "backlog_quota_map": {"destination_storage": QUOTA},
        "offload_threshold": -1,
        "bundles": {"numBundles": 1},
        "replication_clusters": ["standalone"],
        "auth_policies": {"namespace_auth": {"anonymous": ["produce", "consume"]}, "destination_auth": {}},
    }
    for key, value, named in (
        ("namespaceAntiAffinityGroup", "group", "namespaceAntiAffinityGroup"),
        ("replication_clusters", ["standalone", "east"], "replication_clusters"),
        ("auth_policies", {"namespace_auth": {"a": ["produce"]}}, "auth_policies"),
        ("auth_policies", {"namespace_auth": {"anonymous": ["functions"]}}, "auth_policies"),
        ("backlog_quota_map", {"some_other": QUOTA}, "backlog_quota_map.some_other"),
        ("topicDispatchRate", {"standalone": limit, "east": limit}, "topicDispatchRate of cluster east"),
    ):
        refused(admin.put(base, json=said | {key: value}), 501, named)
        refused(admin.get(base), 404)
    refused(admin.put(base, json={"message_ttl_in_seconds": -5}), 412, "Invalid value for message TTL")
    refused(admin.get(base), 404)
    done(admin.put(base, json=said | quotas | {"properties": {"a": "b"}}))
    found = answered(admin.get(base))
    assert (found["message_ttl_in_seconds"], found["topicDispatchRate"]) == (5, {"standalone": limit})
    assert (found["backlog_quota_map"], found["properties"]) == ({"destination_storage": QUOTA}, {"a": "b"})


def test_properties_of_a_namespace(admin: httpx.Client, namespace: str) -> None:
    base = f"/namespaces/{namespace}"
    done(admin.put(f"{base}/properties", json={"a": "1", "b": "2"}))
    done(admin.put(f"{base}/property/c/3"))
    assert admin.get(f"{base}/property/c").text == "3"
    assert admin.delete(f"{base}/property/b").text == "2"
    done(admin.get(f"{base}/property/b"))
    assert answered(admin.get(f"{base}/properties")) == answered(admin.get(base))["properties"] == {"a": "1", "c": "3"}
    done(admin.delete(f"{base}/properties"))
    assert answered(admin.get(f"{base}/properties")) == {}
    done(admin.delete(base))


@pytest.mark.parametrize("field", [field for field in FIELDS if not field.startswith("backlog_quota")])
def test_each_policy_is_set_and_unset(admin: httpx.Client, namespace: str, field: str) -> None:
    value = VALUES.get(field, 17)
    policy = FIELDS[field]
    done(admin.put(f"/persistent/{namespace}/t"))
    for base, segment in ((f"/namespaces/{namespace}", policy.namespace), (f"/persistent/{namespace}/t", policy.topic)):
        if segment is None:
            continue
        place = f"{base}/{segment}"
        unset(admin, place, field)
        done(admin.post(place, json=value))
        assert answered(admin.get(place)) == value
        refused(admin.post(place, json={"no": "such"}), 412, "not acceptable")
        if base.startswith("/namespaces"):
            shown = answered(admin.get(base))[policy.key]
            assert value in (shown, shown.get("standalone") if isinstance(shown, dict) else None)
        else:
            if policy.namespace is not None:
                done(admin.delete(f"/namespaces/{namespace}/{policy.namespace}"))
            assert answered(admin.get(place, params={"applied": True})) == value
        done(admin.put(place, json=value))
        if segment == "messageTTL" and base.startswith("/persistent"):
            done(admin.post(place, params={"messageTTL": 3}))
            assert answered(admin.get(place)) == 3
        done(admin.delete(place))
        unset(admin, place, field)
        assert answered(admin.get(place, params={"applied": True})) is not None


def test_thresholds_and_the_lag_of_offloading(admin: httpx.Client, namespace: str) -> None:
    base = f"/namespaces/{namespace}"
    for name, unset in (("offloadThreshold", -1), ("offloadThresholdInSeconds", -1), ("offloadDeletionLagMs", None)):
        answer = admin.get(f"{base}/{name}")
        assert (answer.json() if answer.content else None) == unset
        done(admin.put(f"{base}/{name}", json=1000))
        assert answered(admin.get(f"{base}/{name}")) == 1000
        in_seconds = "Invalid value for offloadThresholdInSecond"
        reason = in_seconds if name == "offloadThresholdInSeconds" else "not acceptable"
        refused(admin.put(f"{base}/{name}", json=-2), 412, reason)
    assert answered(admin.get(f"{base}/offloadPolicies")) == {
        "managedLedgerOffloadThresholdInBytes": 1000,
        "managedLedgerOffloadThresholdInSeconds": 1000,
        "managedLedgerOffloadDeletionLagInMillis": 1000,
    }
    done(admin.delete(f"{base}/offloadDeletionLagMs"))
    assert "managedLedgerOffloadDeletionLagInMillis" not in answered(admin.get(f"{base}/offloadPolicies"))
    refused(admin.post(f"{base}/offloadPolicies", json={"managedLedgerOffloadDriver": "aws-s3"}), 412, "not supported")
    endpoint = {"managedLedgerOffloadServiceEndpoint": "http://attacker.example"}
    refused(admin.post(f"{base}/offloadPolicies", json=endpoint), 412, "names a place")
    done(admin.delete(f"{base}/removeOffloadPolicies"))
    done(admin.get(f"{base}/offloadPolicies"))
    assert answered(admin.get(f"{base}/offloadThreshold")) == -1


UNSET: dict[str, object] = {
    "schema_validation_enforced": False,
    "is_allow_auto_update_schema": True,
    "encryption_required": False,
}
UNSET_IN_NAMESPACE: dict[str, object] = {"schema_compatibility_strategy": "UNDEFINED", "subscription_types_enabled": []}


def unset(admin: httpx.Client, place: str, field: str) -> None:
    """Return the response for an unset policy: empty, except for policies with a value for that in Pulsar."""
    answer = admin.get(place)
    values = UNSET | (UNSET_IN_NAMESPACE if place.startswith("/namespaces") else {})
    if field in values:
        assert answered(answer) == values[field]
    else:
        done(answer)


WRONG_PARTITIONS = "Invalid configuration for autoTopicCreationOverride. the detail is [defaultNumPartitions]"


@pytest.mark.parametrize(
    ("policy", "value", "reason"),
    [
        ("subscriptionExpirationTime", -60, "Invalid value for subscription expiration time"),
        ("messageTTL", -1, "Invalid value for message TTL"),
        ("maxTopicsPerNamespace", -1, "maxTopicsPerNamespace must be 0 or more"),
        ("maxProducersPerTopic", -1, "maxProducersPerTopic must be 0 or more"),
        (
            "autoTopicCreation",
            (True, "partitioned", None),
            f"{WRONG_PARTITIONS} cannot be null when the type is partitioned.",
        ),
        (
            "autoTopicCreation",
            (True, "partitioned", -1),
            f"{WRONG_PARTITIONS} cannot be less than 1 for partition type.",
        ),
        (
            "autoTopicCreation",
            (True, "non-partitioned", 3),
            f"{WRONG_PARTITIONS} is not allowed to be set when the type is non-partition.",
        ),
    ],
)
def test_values_are_refused_in_pulsars_words(
    admin: httpx.Client, namespace: str, policy: str, value: object, reason: str
) -> None:
    """Pulsar's clients compare error texts."""
    answer = admin.post(f"/namespaces/{namespace}/{policy}", json=_creation(value))
    assert (answer.status_code, answer.json()) == (412, {"reason": reason})
    done(admin.get(f"/namespaces/{namespace}/{policy}"))


def _creation(value: object) -> object:
    names = ("allowAutoTopicCreation", "topicType", "defaultNumPartitions")
    return dict(zip(names, value, strict=True)) if isinstance(value, tuple) else value


def test_missing_objects_are_reported_in_pulsars_words(admin: httpx.Client, namespace: str) -> None:
    assert namespace.startswith("acme/")
    for missing, reason in (("acme/none", "Namespace does not exist"), ("none/none", "Tenant does not exist")):
        for answer in (
            admin.post(f"/namespaces/{missing}/schemaCompatibilityStrategy", json="FULL"),
            admin.get(f"/namespaces/{missing}/schemaCompatibilityStrategy"),
        ):
            assert (answer.status_code, answer.json()) == (404, {"reason": reason})


def test_bodies_are_accepted_as_clients_fill_them(admin: httpx.Client, namespace: str) -> None:
    place = f"/namespaces/{namespace}/autoTopicCreation"
    for given in ((True, "non-partitioned", None), (False, "", None), (False, "partitioned", 0)):
        done(admin.post(place, json=_creation(given)))
    done(admin.post(place, json=_creation((True, "non-partitioned", None))))
    assert answered(admin.get(place)) == _creation((True, "non-partitioned", None))
    strategy = f"/namespaces/{namespace}/schemaCompatibilityStrategy"
    done(admin.post(strategy, json="BACKWARD"))
    done(admin.post(strategy, json="UNDEFINED"))
    assert answered(admin.get(strategy)) == "UNDEFINED"
    done(admin.put(f"/persistent/{namespace}/t"))
    delayed = f"/persistent/{namespace}/t/delayedDelivery"
    done(admin.post(delayed, json={"active": True, "tickTime": 1000.0, "maxDelayInMillis": 60_000}))
    assert answered(admin.get(delayed)) == {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 60_000}
    schema = {"type": "STRING", "schema": "", "properties": None}
    assert answered(admin.post(f"/schemas/{namespace}/t/schema", json=schema)) == {"version": {"version": 0}}
    assert answered(admin.get(f"/schemas/{namespace}/t/schema"))["properties"] == {}


def test_stats_have_connected_clients_and_times_of_activity(
    admin: httpx.Client, client: pulsar.Client, topic: str
) -> None:
    began_ms = int(time.time() * 1000)
    stats = f"/persistent/public/default/{topic}/stats"
    done(admin.put(f"/persistent/public/default/{topic}"))
    found = answered(admin.get(stats))
    assert began_ms <= found["topicCreationTimeStamp"] <= int(time.time() * 1000)
    assert found["lastPublishTimeStamp"] == 0
    consumer = client.subscribe(topic, "s", properties={"team": "a"})
    producer = client.create_producer(topic, properties={"team": "b"})
    producer.send(b"v")
    consumer.receive(WAIT_MS)
    found = answered(admin.get(stats))
    assert found["lastPublishTimeStamp"] >= found["topicCreationTimeStamp"]
    assert found["publishers"][0]["metadata"] == {"team": "b"}
    (here,) = found["subscriptions"]["s"]["consumers"]
    assert here["metadata"] == {"team": "a"}
    assert here["lastConsumedFlowTimestamp"] >= began_ms
    short = answered(admin.get(stats, params={"excludePublishers": True, "excludeConsumers": True}))
    assert (short["publishers"], short["subscriptions"]["s"]["consumers"]) == ([], [])
    assert short["msgInCounter"] == 1


def test_peeking_without_a_subscription_begins_at_the_first_message(
    admin: httpx.Client, client: pulsar.Client, topic: str
) -> None:
    send(client, topic, 2, batch=1)
    place = f"/persistent/public/default/{topic}/subscription/none/position"
    assert admin.get(f"{place}/2").status_code == httpx.codes.OK
    refused(admin.get(f"{place}/3"), 404)
    assert answered(admin.get(f"/persistent/public/default/{topic}/subscriptions")) == []


def test_quotas_by_their_type(admin: httpx.Client, namespace: str) -> None:
    done(admin.put(f"/persistent/{namespace}/t"))
    for base in (f"/namespaces/{namespace}", f"/persistent/{namespace}/t"):
        age = {"limitSize": -1, "limitTime": 60, "policy": "consumer_backlog_eviction"}
        done(admin.post(f"{base}/backlogQuota", json=QUOTA))
        done(admin.post(f"{base}/backlogQuota", json=age, params={"backlogQuotaType": "message_age"}))
        found = {"destination_storage": QUOTA, "message_age": age}
        assert answered(admin.get(f"{base}/backlogQuotaMap")) == found
        done(admin.delete(f"{base}/backlogQuota", params={"backlogQuotaType": "message_age"}))
        assert answered(admin.get(f"{base}/backlogQuotaMap")) == {"destination_storage": QUOTA}
    assert set(answered(admin.get(f"/persistent/{namespace}/t/backlogQuotaMap", params={"applied": True}))) == set(
        found
    )
    assert answered(admin.get(f"/namespaces/{namespace}"))["backlog_quota_map"] == {"destination_storage": QUOTA}


def test_pulsars_rules_for_retention(admin: httpx.Client, namespace: str) -> None:
    place = f"/namespaces/{namespace}/retention"
    refused(admin.post(place, json={"retentionTimeInMinutes": 0, "retentionSizeInMB": 5}), 412, "0 both")
    refused(admin.get("/namespaces/acme/missing/retention"), 404)
    done(admin.put(f"/persistent/{namespace}/t"))
    refused(admin.post(f"/persistent/{namespace}/t/maxMessageSize", json=6 << 20), 412, "at most 5242880")
    refused(admin.get("/persistent/public/default/missing/retention"), 404)


def test_unsupported_requests_are_refused_with_a_reason(admin: httpx.Client, namespace: str) -> None:
    places = [f"/namespaces/{namespace}/{each}" for each in UNDER_NAMESPACE]
    places += [f"/persistent/{namespace}/t/{each}" for each in UNDER_TOPIC]
    places += [each.removeprefix("/admin/v2") for each in BRANCHES if each.startswith("/admin/v2")]
    for place in places:
        refused(admin.post(re.sub(r"\{[^}]*\}", "x", place), json={}), 501, "is not supported: ")
    refused(admin.post("/resource-quotas", json={}), 501, "is not supported: The load of bundles is measured")
    of_bundle = f"/namespaces/{namespace}/0x00000000_0xffffffff"
    for place in ("clearBacklog", "clearBacklog/s", "unsubscribe/s"):
        refused(admin.post(f"{of_bundle}/{place}"), 501, "without a bundle")
    answer = httpx.get(str(admin.base_url).removesuffix("v2/") + "v3/functions/public/default")
    refused(answer, 501, "Spark")


def test_isolation_policies_are_stored_and_served(admin: httpx.Client) -> None:
    base = "/clusters/standalone/namespaceIsolationPolicies"
    policy = {
        "namespaces": ["isolated/.*"],
        "primary": ["broker-1:8080"],
        "secondary": [],
        "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1"}},
    }
    assert answered(admin.get(base)) == {}
    done(admin.post(f"{base}/first", json=policy))
    done(admin.post(f"{base}/first", json=policy | {"primary": ["broker-2:8080"], "unload_scope": "none"}))
    done(admin.post(f"{base}/second", json=policy))
    assert answered(admin.get(f"{base}/second")) == policy
    assert answered(admin.get(base))["first"]["primary"] == ["broker-2:8080"]
    refused(admin.get(f"{base}/third"), 404, "create it first")
    refused(admin.get("/clusters/other/namespaceIsolationPolicies"), 404, "the only one is standalone")
    for wrong in (
        {},
        policy | {"namespaces": []},
        policy | {"primary": "x"},
        policy | {"more": 1},
        policy | {"auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "some"}}},
    ):
        refused(admin.post(f"{base}/wrong", json=wrong), 400)
    refused(admin.post(f"{base}/wrong", json=policy | {"primary": ["("]}), 412, "regular expression")
    for _ in range(2):
        done(admin.delete(f"{base}/first"))
    assert list(answered(admin.get(base))) == ["second"]
    done(admin.delete(f"{base}/second"))


def test_permissions_are_those_of_a_pulsar_without_authorization(admin: httpx.Client, namespace: str) -> None:
    done(admin.put(f"/persistent/{namespace}/t"))
    for base in (f"/namespaces/{namespace}", f"/persistent/{namespace}/t"):
        assert answered(admin.get(f"{base}/permissions")) == {}
        for answer in (admin.post(f"{base}/permissions/r", json=["produce"]), admin.delete(f"{base}/permissions/r")):
            reason = "Permissions cannot be changed without authorization: set authorization_enabled."
            assert (answer.status_code, answer.json()) == (501, {"reason": reason})
    assert answered(admin.get(f"/namespaces/{namespace}/permissions/subscription")) == {}
    refused(admin.post(f"/namespaces/{namespace}/permissions/subscription/s", json=["r"]), 501, "set authorization")
    refused(admin.post(f"/namespaces/{namespace}/subscriptionAuthMode", json="Prefix"), 501, "set authorization")
    refused(admin.get("/namespaces/acme/missing/permissions"), 404)


def test_stats_count_exactly(admin: httpx.Client, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, consumer_name="c")
    producer = client.create_producer(topic, producer_name=f"p-{topic}")
    producer.send(b"first")
    send(client, topic, 40, batch=20)
    consumer.acknowledge(consumer.receive(WAIT_MS))
    deadline_s = time.monotonic() + WAIT_MS / 1000
    found = stats(admin, topic)
    while (found["subscriptions"]["s"]["msgBacklog"], found["msgOutCounter"]) != (40, 41):  # both take their time
        assert time.monotonic() < deadline_s
        found = stats(admin, topic)
    subscription = found["subscriptions"]["s"]
    assert (found["msgInCounter"], found["storedMessages"], found["msgOutCounter"]) == (41, 41, 41)
    assert (subscription["msgBacklog"], subscription["unackedMessages"], subscription["type"]) == (40, 40, "Shared")
    assert found["msgRateIn"] > 0
    assert found["averageMsgSize"] == pytest.approx(found["msgThroughputIn"] / found["msgRateIn"])
    (publisher,) = found["publishers"]
    assert (publisher["producerName"], publisher["accessMode"]) == (f"p-{topic}", "Shared")
    (seen,) = subscription["consumers"]
    assert (seen["consumerName"], seen["msgOutCounter"], seen["unackedMessages"]) == ("c", 41, 40)
    assert seen["clientVersion"].startswith("Pulsar-CPP")
    internal = answered(admin.get(path(topic, "internalStats")))
    assert (internal["numberOfEntries"], internal["state"]) == (3, "LedgerOpened")
    (ledger,) = internal["ledgers"]
    assert (ledger["messages"], ledger["state"]) == (41, "open")
    assert internal["lastConfirmedEntry"] == f"{ledger['ledgerId']}:2"
    assert internal["cursors"]["s"]["state"] == "Open"
    assert answered(admin.get(path(topic, "backlog")))["messageBacklog"] == 40
    nothing_read = {"ledgerId": -1, "entryId": -1}
    assert answered(admin.put(path(topic, "backlogSize"), json=nothing_read)) == found["storageSize"]
    assert answered(admin.get(path(topic, "internal-info")))["ledgers"][0]["entries"] == 3
    done(admin.post(path(topic, "trim")))


def test_internal_stats_of_a_cursor_without_owner(admin: httpx.Client, broker: RunningBroker, topic: str) -> None:
    with closing(new_client(broker.url)) as client:
        consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
        send(client, topic, 6)
        received = [consumer.receive(WAIT_MS) for _ in range(6)]
        for number in (1, 2, 4):
            consumer.acknowledge(received[number])
        ledger = received[0].message_id().ledger_id()
        expected = (f"{ledger}:-1", f"[({ledger}:0..{ledger}:2],({ledger}:3..{ledger}:4]]", 3, 2)

        def cursor() -> dict[str, Any]:
            found: dict[str, Any] = answered(admin.get(path(topic, "internalStats")))["cursors"]["s"]
            return found

        def said(found: dict[str, Any]) -> tuple[object, ...]:
            return (
                found["markDeletePosition"],
                found["individuallyDeletedMessages"],
                found["numberOfEntriesSinceFirstNotAckedMessage"],
                found["totalNonContiguousDeletedMessagesRange"],
            )

        deadline_s = time.monotonic() + WAIT_MS / 1000
        while said(cursor()) != expected:
            assert time.monotonic() < deadline_s, cursor()
        assert cursor()["state"] == "Open"
    done(admin.put(path(topic, "unload")))
    assert cursor()["state"] == "NoLedger"
    assert said(cursor()) == expected


def test_internal_stats_name_the_reason_why_each_segment_is_kept(
    admin: httpx.Client, broker: RunningBroker, topic: str
) -> None:
    root = Root.open(broker.root)
    root.create_topic(topic)
    for value in (b"1", b"2"):
        messages.write(root, topic, [value])
    (ledger,) = answered(admin.get(path(topic, "internalStats")))["ledgers"]
    assert (ledger["state"], ledger["underReplicated"]) == ("attached", False)
    assert [(each["first"], each["entries"]) for each in ledger["segments"]] == [(0, 1), (1, 1)]
    assert all(each["whyKept"].startswith("Kept ") for each in ledger["segments"])


def test_stats_of_a_topic_that_is_not_stored(admin: httpx.Client, client: pulsar.Client, topic: str) -> None:
    full = f"non-persistent://public/default/{topic}"
    consumer = client.subscribe(full, "s")
    client.create_producer(full).send(b"1")
    consumer.receive(WAIT_MS)
    found = answered(admin.get(f"/non-persistent/public/default/{topic}/stats"))
    assert (found["msgInCounter"], found["subscriptions"]["s"]["msgOutCounter"]) == (1, 1)
    assert full in answered(admin.get("/non-persistent/public/default"))
    refused(admin.get(f"/non-persistent/public/default/{topic}/internalStats"), 405)


def test_messages_are_looked_at(admin: httpx.Client, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic, compression_type=pulsar.CompressionType.ZSTD)
    ids = [
        producer.send(b"one", properties={"k": "v", "bad header": "ä\n"}, partition_key="key", event_timestamp=1000),
        producer.send(b"two"),
    ]
    send(client, topic, 3, batch=3)
    first = admin.get(path(topic, "subscription", "s", "position", "1"))
    assert (first.status_code, first.content) == (200, b"one")
    said = first.headers
    assert said["X-Pulsar-Message-ID"] == f"{ids[0].ledger_id()}:{ids[0].entry_id()}"
    assert json.loads(said["X-Pulsar-PROPERTY"]) == {"bad header": "ä\n", "k": "v"}
    assert (said["X-Pulsar-PROPERTY-k"], said["X-Pulsar-partition-key"]) == ("v", "key")
    assert said["X-Pulsar-event-time"] == "1970-01-01T00:00:01.000Z"
    assert "X-Pulsar-num-batch-message" not in said
    by_id = path(topic, "ledger", str(ids[1].ledger_id()), "entry", str(ids[1].entry_id()))
    assert admin.get(by_id).content == b"two"
    refused(admin.get(path(topic, "ledger", "1", "entry", "99999")), 404)
    batch = admin.get(path(topic, "examinemessage"), params={"initialPosition": "latest", "messagePosition": 1})
    assert batch.headers["X-Pulsar-num-batch-message"] == "3"
    earliest = admin.get(path(topic, "examinemessage"), params={"initialPosition": "earliest", "messagePosition": 2})
    assert earliest.content == b"two"
    refused(admin.get(path(topic, "examinemessage"), params={"messagePosition": 4}), 404, "3 entries")
    refused(admin.get(path(topic, "subscription", "s", "position", "4")), 404)
    last = answered(admin.get(path(topic, "lastMessageId")))
    assert (last["batchIndex"], last["partitionIndex"]) == (2, -1)
    assert answered(admin.get(path(topic, "messageid", "0")))["entryId"] == ids[0].entry_id()
    assert answered(admin.get(path(topic, "messageid", str(2**53))))["entryId"] == last["entryId"]
    assert stats(admin, topic)["subscriptions"]["s"]["msgBacklog"] == 5


def test_a_message_that_is_large_once_decompressed_is_not_answered(
    client: pulsar.Client, admin: httpx.Client, topic: str
) -> None:
    largest = 3 * 5 * 1024 * 1024
    producer = client.create_producer(topic, compression_type=pulsar.CompressionType.ZSTD, batching_enabled=False)
    for size in (largest, largest + 1):
        producer.send(bytes(size))
    assert admin.get(path(topic, "examinemessage"), params={"messagePosition": 2}).content == bytes(largest)
    refused(admin.get(path(topic, "examinemessage")), 413, "15,728,641 bytes once decompressed")
