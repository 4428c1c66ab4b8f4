"""The admin API of two brokers: each of them answers for the topics of both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pulsar
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.forked_pulsarpy import run_pulsarpy
from tests.kit.running_broker import RunningBroker
from tests.kit.waiting import wait_until

PARTITIONS = 8


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBroker, RunningBroker]]:
    root: Path = tmp_path_factory.mktemp("brokers") / "root"
    with RunningBroker(root) as one, RunningBroker(root) as two:
        yield one, two


@pytest.fixture(scope="module")
def client(brokers: tuple[RunningBroker, RunningBroker]) -> Iterator[pulsar.Client]:
    made = pulsar.Client(brokers[0].url)
    yield made
    made.close()


def admin(broker: RunningBroker) -> httpx.Client:
    return httpx.Client(base_url=f"{broker.web_url}/admin/v2", timeout=60)


def owner_of(broker: RunningBroker, topic: str) -> str:
    found = httpx.get(f"{broker.web_url}/lookup/v2/topic/persistent/{topic}", timeout=30).json()
    return str(found["httpUrl"])


def is_owner(broker: RunningBroker, topic: str, owner: RunningBroker) -> bool:
    return owner_of(broker, f"public/default/{topic}") == owner.web_url


def topics_of_each(brokers: tuple[RunningBroker, RunningBroker], prefix: str) -> tuple[str, str]:
    """A topic of the first broker, and one of the second."""
    owners = {owner_of(brokers[0], f"public/default/{prefix}{number}"): f"{prefix}{number}" for number in range(40)}
    return owners[brokers[0].web_url], owners[brokers[1].web_url]


def test_both_list_the_brokers_and_agree_on_the_leader(brokers: tuple[RunningBroker, RunningBroker]) -> None:
    ids = sorted(broker.web_url.removeprefix("http://") for broker in brokers)
    owned = []
    for broker in brokers:
        with admin(broker) as http:
            assert http.get("/brokers").json() == ids
            assert http.get("/brokers/leaderBroker").json()["brokerId"] == ids[0]
            topics_of_each(brokers, "any-")
            owned.append([http.get(f"/brokers/standalone/{each}/ownedNamespaces").json() for each in ids])
    assert owned[0] == owned[1]
    assert sorted({**owned[0][0], **owned[0][1]}) == [
        f"public/default/{bundle}"
        for bundle in (
            "0x00000000_0x3fffffff",
            "0x3fffffff_0x7ffffffe",
            "0x7ffffffe_0xbffffffd",
            "0xbffffffd_0xffffffff",
        )
    ]


def test_a_request_about_one_topic_is_redirected_to_its_broker_once(
    brokers: tuple[RunningBroker, RunningBroker], client: pulsar.Client
) -> None:
    here, there = topics_of_each(brokers, "one-")
    for topic in (here, there):
        client.create_producer(topic).send(b"1")
    with admin(brokers[0]) as http:
        assert http.get(f"/persistent/public/default/{here}/stats").json()["msgInCounter"] == 1
        redirected = http.get(f"/persistent/public/default/{there}/stats?excludePublishers=true")
        assert redirected.status_code == 307
        assert redirected.headers["location"] == (
            f"{brokers[1].web_url}/admin/v2/persistent/public/default/{there}/stats"
            "?excludePublishers=true&authoritative=true"
        )
        assert http.get(redirected.headers["location"]).json()["msgInCounter"] == 1
        refused = http.get(f"/persistent/public/default/{there}/stats?authoritative=true")
        assert (refused.status_code, "not served by this broker" in refused.json()["reason"]) == (412, True)
        assert http.put(f"/persistent/public/default/{there}/subscription/s", follow_redirects=True).is_success
        assert http.get(f"/persistent/public/default/{there}/subscriptions").json() == ["s"]
        # What is in the metadata is any broker's to answer and to change.
        assert http.get(f"/persistent/public/default/{there}/properties").is_success


def test_requests_about_a_partitioned_topic_reach_all_of_its_brokers(
    brokers: tuple[RunningBroker, RunningBroker], client: pulsar.Client
) -> None:
    base = "/persistent/public/default/parted"
    with admin(brokers[0]) as http:
        assert http.put(f"{base}/partitions", json=PARTITIONS).is_success
        owners = {owner_of(brokers[0], f"public/default/parted-partition-{number}") for number in range(PARTITIONS)}
        assert owners == {broker.web_url for broker in brokers}
        producer = client.create_producer(
            "parted", message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
        )
        for number in range(4 * PARTITIONS):
            producer.send(b"%d" % number)
        answer = http.get(f"{base}/partitioned-stats")
        assert answer.is_success, answer.text
        stats = answer.json()
        assert stats["msgInCounter"] == 4 * PARTITIONS
        assert len(stats["partitions"]) == PARTITIONS
        assert http.get(f"{base}/partitioned-stats?perPartition=false").json()["partitions"] == {}
        assert len(http.get(f"{base}/partitioned-internalStats").json()["partitions"]) == PARTITIONS
        assert http.put(f"{base}/subscription/s", json={"ledgerId": -1, "entryId": -1}).is_success
        assert http.get(f"{base}/partitioned-stats").json()["subscriptions"]["s"]["msgBacklog"] == 4 * PARTITIONS
        assert http.post(f"{base}/subscription/s/skip_all").is_success
        assert http.get(f"{base}/partitioned-stats").json()["subscriptions"]["s"]["msgBacklog"] == 0
        assert http.post(f"{base}/subscription/missing/skip_all").status_code == 404
        assert http.put(f"{base}/unload").is_success
        producer.send(b"again")
        refused = http.delete(f"{base}/partitions")
        assert refused.status_code == 412
        producer.close()
        assert http.delete(f"{base}/subscription/s").is_success
        assert len(http.post(f"{base}/terminate/partitions").json()) == PARTITIONS
        assert http.delete(f"{base}/partitions").is_success
        assert "persistent://public/default/parted" not in http.get("/persistent/public/default/partitioned").json()


def test_a_partitioned_topic_with_a_producer_at_another_broker_is_not_deleted(
    brokers: tuple[RunningBroker, RunningBroker], client: pulsar.Client
) -> None:
    base = "/persistent/public/default/kept"
    with admin(brokers[0]) as http:
        assert http.put(f"{base}/partitions", json=PARTITIONS).is_success
        elsewhere = next(
            f"kept-partition-{number}"
            for number in range(PARTITIONS)
            if owner_of(brokers[0], f"public/default/kept-partition-{number}") == brokers[1].web_url
        )
        producer = client.create_producer(elsewhere)
        refused = http.delete(f"{base}/partitions")
        assert (refused.status_code, "producers" in refused.json()["reason"]) == (412, True)
        assert http.delete(f"{base}/partitions?authoritative=true").status_code == 412
        producer.close()
        reader = client.create_reader(elsewhere, pulsar.MessageId.earliest)
        assert http.delete(f"{base}/partitions").status_code == 412
        assert http.delete(f"{base}/partitions", params={"force": True}).is_success
        reader.close()


def test_a_namespace_is_unloaded_and_its_backlog_cleared_at_all_brokers(
    brokers: tuple[RunningBroker, RunningBroker], client: pulsar.Client
) -> None:
    with admin(brokers[0]) as http:
        assert http.put("/namespaces/public/both").is_success
        topics = [f"public/both/t{number}" for number in range(16)]
        assert len({owner_of(brokers[0], topic) for topic in topics}) == 2
        for topic in topics:
            client.subscribe(topic, "s").close()
            producer = client.create_producer(topic)
            producer.send(b"1")
        assert http.post("/namespaces/public/both/clearBacklog").is_success
        for topic in topics:
            stats = http.get(f"/persistent/{topic}/stats", follow_redirects=True).json()
            assert stats["subscriptions"]["s"]["msgBacklog"] == 0
        for _ in range(10):
            assert http.put("/namespaces/public/both/unload").is_success
            answer = http.post("/namespaces/public/both/clearBacklog")
            assert answer.is_success, answer.text
        producer.send(b"2")
        answer = http.post("/namespaces/public/both/unsubscribe/s")
        assert answer.is_success, answer.text
        assert http.get(f"/persistent/{topics[0]}/subscriptions").json() == []


def test_a_bundle_is_transferred_to_a_named_broker(
    brokers: tuple[RunningBroker, RunningBroker], client: pulsar.Client
) -> None:
    here, _ = topics_of_each(brokers, "moved-")
    producer, consumer = client.create_producer(here), client.subscribe(here, "s")
    producer.send(b"1")
    bundle = httpx.get(f"{brokers[0].web_url}/lookup/v2/topic/persistent/public/default/{here}/bundle").text
    for to in (brokers[1], brokers[0]):
        with admin(brokers[1]) as http:
            destination = to.web_url.removeprefix("http://")
            where = f"/namespaces/public/default/{bundle}/unload?destinationBroker={destination}"
            assert http.put(where, follow_redirects=True).is_success
        wait_until(partial(is_owner, brokers[0], here, to), f"{to.web_url} has the bundle")
        producer.send(b"2")
    assert [consumer.receive(20_000).data() for _ in range(3)] == [b"1", b"2", b"2"]


@pytest.mark.long
def test_the_command_line_follows_redirections(brokers: tuple[RunningBroker, RunningBroker]) -> None:
    for topic in topics_of_each(brokers, "cli-"):
        with admin(brokers[0]) as http:
            assert http.put(f"/persistent/public/default/{topic}").is_success
        done = run_pulsarpy("subscriptions", "create", topic, "s", "--url", brokers[0].web_url)
        assert done.returncode == 0, done.stderr


def test_a_setting_that_is_changed_at_one_broker_holds_at_the_other(
    brokers: tuple[RunningBroker, RunningBroker],
) -> None:
    def value_at(http: httpx.Client) -> str:
        return str(http.get("/brokers/configuration/runtime").json()["subscriptionPatternMaxLength"])

    with admin(brokers[0]) as one, admin(brokers[1]) as two:
        before = value_at(two)
        assert one.post("/brokers/configuration/subscriptionPatternMaxLength/49").is_success
        assert value_at(one) == "49"
        wait_until(lambda: value_at(two) == "49", lambda: value_at(two), limit_s=20)
        assert two.delete("/brokers/configuration/subscriptionPatternMaxLength").is_success
        assert value_at(two) == before
        wait_until(lambda: value_at(one) == before, lambda: value_at(one), limit_s=20)


def test_a_broker_that_starts_uses_the_changed_settings(brokers: tuple[RunningBroker, RunningBroker]) -> None:
    with admin(brokers[0]) as http:
        assert http.post("/brokers/configuration/maxTenants/77").is_success
    with RunningBroker(brokers[0].root) as third, admin(third) as http:
        assert http.get("/brokers/configuration/runtime").json()["maxTenants"] == "77"
        assert http.delete("/brokers/configuration/maxTenants").is_success


def test_load_metrics_and_status_tell_what_each_broker_has(
    brokers: tuple[RunningBroker, RunningBroker], client: pulsar.Client
) -> None:
    topics = topics_of_each(brokers, "load-")
    producers = [client.create_producer(topic) for topic in topics]
    consumers = [client.subscribe(topic, "s") for topic in topics]
    reported: list[str] = []
    for broker, topic in zip(brokers, topics, strict=True):
        with admin(broker) as http:
            report = http.get("/broker-stats/load-report").json()
        path = f"{broker.web_url}/lookup/v2/topic/persistent/public/default/{topic}/bundle"
        load = report["lastStats"][f"public/default/{httpx.get(path).text}"]
        assert min(load["topics"], load["producerCount"], load["consumerCount"]) >= 1
        assert (report["webServiceUrl"], report["pulsarServiceUrl"]) == (broker.web_url, broker.url)
        assert report["loadReportType"] == "LocalBrokerData"
        assert sorted(report["lastStats"]) == sorted(report["bundles"])
        assert 0 < report["memory"]["usage"] < report["memory"]["limit"]
        assert report["cpu"]["usage"] >= 0
        assert metric_of(broker, "pulsarpy_owned_bundles") == report["numBundles"] == len(report["bundles"])
        assert metric_of(broker, "pulsarpy_brokers") == 2
        reported += report["bundles"]
    shown = json.loads(run_pulsarpy("status", brokers[0].root, "--json").stdout)["brokers"]
    assert {each["service_url"] for each in shown} == {broker.url for broker in brokers}
    assert sorted(bundle for each in shown for bundle in each["bundles"]) == sorted(reported)
    assert len(set(reported)) == len(reported)
    for each in (*producers, *consumers):
        each.close()


def metric_of(broker: RunningBroker, name: str) -> float:
    text = httpx.get(f"{broker.web_url}/metrics", timeout=60).text
    families = text_string_to_metric_families(text)
    (value,) = [sample.value for family in families for sample in family.samples if sample.name == name]
    return float(value)
