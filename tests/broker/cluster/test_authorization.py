"""Two brokers with authorization: rights are changed at one, and hold at the other."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import jwt
import pulsar
import pytest

from tests.kit.running_broker import RunningBroker
from tests.kit.token_settings import token_settings
from tests.kit.waiting import wait_until

SECRET = os.urandom(32)
STATED_S = 2.0
"""The time in which a revocation takes effect."""
SOON_S = STATED_S + 8.0
"""Brokers, clients and other tests share the CPUs."""
PARTITIONS = 8
Brokers = tuple[RunningBroker, RunningBroker]


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, "HS256")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    folder: Path = tmp_path_factory.mktemp("guarded")
    settings = token_settings(folder, SECRET)
    with RunningBroker(folder / "root", settings) as one, RunningBroker(folder / "root", settings) as two:
        yield one, two


def admin(broker: RunningBroker, role: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token(role)}"}
    return httpx.Client(base_url=f"{broker.web_url}/admin/v2", headers=headers, timeout=60)


def has_no_publishers(http: httpx.Client) -> bool:
    """True if the topics that this broker serves have no producers."""
    answers = [http.get(f"/persistent/public/default/t{number}/stats?authoritative=true") for number in range(8)]
    return all(not each.json()["publishers"] for each in answers if each.is_success)


def may_produce(client: pulsar.Client, topic: str) -> bool:
    try:
        client.create_producer(topic).close()
    except pulsar.AuthorizationError:
        return False
    return True


@pytest.mark.long
def test_a_revocation_at_one_broker_ends_producers_of_the_other(brokers: Brokers) -> None:
    one, two = brokers
    with admin(one, "root") as root:
        assert root.post("/namespaces/public/default/permissions/shop", json=["produce"]).is_success
        silent = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
        client = pulsar.Client(two.url, pulsar.AuthenticationToken(token("shop")), logger=silent)
        for number in range(8):
            wait_until(partial(may_produce, client, f"t{number}"), "its broker knows of the permission")
        producers = [client.create_producer(f"t{number}", send_timeout_millis=3000) for number in range(8)]
        for producer in producers:
            producer.send(b"allowed")
        assert root.delete("/namespaces/public/default/permissions/shop").is_success
        revoked_s = time.monotonic()
        for broker in brokers:
            with admin(broker, "root") as http:
                wait_until(partial(has_no_publishers, http), f"all producers at {broker.url} are closed")
        assert time.monotonic() - revoked_s < SOON_S
        client.shutdown()


def test_requests_that_several_brokers_answer_need_the_clients_own_rights(brokers: Brokers) -> None:
    one, _ = brokers
    base = "/persistent/public/default/parted"
    with admin(one, "root") as root, admin(one, "guest") as guest:
        assert root.put(f"{base}/partitions", json=PARTITIONS).is_success
        owners = {
            root.get(f"{one.web_url}/lookup/v2/topic{base}-partition-{number}").json()["httpUrl"]
            for number in range(PARTITIONS)
        }
        assert len(owners) == 2
        stats = root.get(f"{base}/partitioned-stats")
        assert len(stats.json()["partitions"]) == PARTITIONS
        assert guest.get(f"{base}/partitioned-stats").status_code in (401, 403)
        assert guest.delete(f"{base}/partitions?authoritative=true").status_code in (401, 403)
        assert root.put("/namespaces/public/default/unload").is_success
        assert guest.put("/namespaces/public/default/unload").status_code in (401, 403)
        assert root.delete(f"{base}/partitions").is_success
