"""Isolation policies: which brokers may serve a namespace, and that brokers heed them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from pulsar_on_spark.broker.cluster.isolation import Isolation, allowed_brokers, check_patterns
from pulsar_on_spark.metadata.records import BrokerRecord, ListenerUrls
from pulsar_on_spark.model.errors import InvalidArgumentError
from tests.kit.running_broker import RunningBroker
from tests.kit.waiting import wait_until

LOOKUP = "/lookup/v2/topic/persistent"


def broker(host: str, port: int = 8080) -> BrokerRecord:
    return BrokerRecord(
        broker=f"{host}:{port}",
        incarnation=f"of-{host}-{port}",
        default_listener=ListenerUrls(service_url=f"pulsar://{host}:6650"),
        host=host,
        version="1",
        features=(),
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


A, B, C = broker("a-1"), broker("b-1"), broker("c-1")
POLICY = Isolation("p", ["acme/.*"], ["a-.*"], ["b-.*"], 1)


def allowed(policies: Sequence[Isolation], namespace: str, *brokers: BrokerRecord) -> str:
    return "".join(each.host[0] for each in allowed_brokers(policies, namespace, brokers))


def test_primary_brokers_serve_the_namespace_and_secondary_ones_while_they_are_too_few() -> None:
    assert allowed([POLICY], "acme/sales", A, B, C) == "a"
    assert allowed([POLICY], "acme/sales", B, C) == "b"
    assert allowed([POLICY], "acme/sales", C) == ""
    assert allowed([POLICY._replace(min_limit=2)], "acme/sales", A, B, C) == "ab"


def test_other_namespaces_are_served_by_brokers_that_are_primary_nowhere() -> None:
    assert allowed([POLICY], "public/default", A, B, C) == "bc"
    assert allowed([POLICY], "public/default", A) == ""
    assert allowed([], "public/default", A, B, C) == "abc"


def test_patterns_match_whole_names_of_namespaces_and_of_hosts_or_ids() -> None:
    other = broker("a-1", 8081)
    assert allowed([POLICY._replace(namespaces=["acme/s"])], "acme/sales", A, B) == "b"
    by_id = POLICY._replace(primary=["a-1:8080"])
    assert allowed_brokers([by_id], "acme/sales", [A, other]) == [A]
    by_host = POLICY._replace(primary=["a-1"])
    assert allowed_brokers([by_host], "acme/sales", [A, other]) == [A, other]


@pytest.mark.parametrize("pattern", ["(", "a)|(b", "(?=x)"])
def test_what_is_no_regular_expression_is_refused_and_matches_nothing(pattern: str) -> None:
    with pytest.raises(InvalidArgumentError, match="regular expression"):
        check_patterns([pattern])
    assert allowed([POLICY._replace(primary=[pattern])], "acme/sales", A, B) == "b"


def test_a_pattern_that_takes_others_hours_is_matched_at_once() -> None:
    policy = POLICY._replace(namespaces=["(a+)+b/x"])
    assert allowed([policy], "a" * 60 + "/x", A, B) == "b"


def test_namespaces_move_to_the_brokers_of_their_policy_and_back(memory_path: Path) -> None:
    root = memory_path / "root"
    with RunningBroker(root) as one, RunningBroker(root) as two:
        admin = f"{one.web_url}/admin/v2"
        policies = f"{admin}/clusters/standalone/namespaceIsolationPolicies"

        def owners() -> set[str]:
            names = [f"{one.web_url}{LOOKUP}/public/default/t-{number}" for number in range(16)]
            return {httpx.get(name, timeout=30).raise_for_status().json()["httpUrl"] for name in names}

        assert owners() == {one.web_url, two.web_url}
        name = two.web_url.removeprefix("http://")
        policy = {
            "namespaces": ["public/default"],
            "primary": [name],
            "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1"}},
        }
        httpx.post(f"{policies}/only-two", json=policy).raise_for_status()
        wait_until(lambda: owners() == {two.web_url}, "the second broker has all topics", limit_s=30)
        entry = {
            "brokerName": name,
            "policyName": "only-two",
            "isPrimary": True,
            "namespaceRegex": ["public/default"],
        }
        other = {"brokerName": one.web_url.removeprefix("http://"), "isPrimary": False}
        listed = httpx.get(f"{policies}/brokers").raise_for_status().json()
        assert sorted(listed, key=str) == sorted([entry, other], key=str)
        assert httpx.get(f"{policies}/brokers/{name}").json() == entry
        bundle = f"{admin}/namespaces/public/default/0x00000000_0x3fffffff"
        refused = httpx.put(f"{bundle}/unload", params={"destinationBroker": other["brokerName"]})
        assert (refused.status_code, "name another destination" in refused.text) == (412, True)

        gone = policy | {"primary": ["missing"]}
        httpx.post(f"{policies}/only-two", json=gone).raise_for_status()
        httpx.put(f"{admin}/namespaces/public/default/unload", timeout=30).raise_for_status()
        lookup = httpx.get(f"{two.web_url}{LOOKUP}/public/default/t-1", timeout=30)
        assert lookup.status_code == 503
        assert "No broker that may serve namespace public/default is alive" in lookup.text
        httpx.delete(f"{policies}/only-two").raise_for_status()
        wait_until(lambda: owners() <= {one.web_url, two.web_url}, "any broker serves the topics", limit_s=30)
