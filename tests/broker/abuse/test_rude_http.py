"""The web port among clients that misbehave, and web pages of others."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest

from tests.broker.clients.conftest import WAIT_MS
from tests.kit.running_broker import RunningBroker

SLOW_CLIENTS = 2_000
FOREIGN = {"Origin": "http://evil.example"}
TOPICS = "/admin/v2/namespaces/public/default/topics"
AUTO_CREATION = "/admin/v2/persistent/public/default/made/partitions?checkAllowAutoCreation=true"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with RunningBroker(tmp_path_factory.mktemp("rude") / "root") as running:
        yield running


def request(broker: RunningBroker, method: str, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    return httpx.request(method, broker.web_url + path, headers=headers, timeout=WAIT_MS / 1000)


@pytest.mark.long
def test_clients_that_never_finish_their_headers_do_not_block_others(broker: RunningBroker) -> None:
    to = urlsplit(broker.web_url)
    assert to.hostname is not None
    with ExitStack() as held:
        for number in range(SLOW_CLIENTS):
            slow = held.enter_context(socket.create_connection((to.hostname, to.port), WAIT_MS / 1000))
            slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
            if number % 100 == 0:
                for path in ("/admin/v2/brokers/ready", "/status.html", "/admin/v2/clusters"):
                    assert request(broker, "GET", path).status_code == 200
        assert request(broker, "GET", "/metrics").status_code == 200
        assert request(broker, "GET", "/admin/v2/brokers/health").status_code == 200


@pytest.mark.parametrize("headers", [FOREIGN, {"Host": "rebind.evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_foreign_web_pages_cannot_use_the_admin_api(broker: RunningBroker, headers: dict[str, str]) -> None:
    setting = "/admin/v2/brokers/configuration/defaultRetentionTimeInMinutes/0"
    assert request(broker, "POST", setting, headers).status_code == 403
    assert (
        "defaultRetentionTimeInMinutes" not in request(broker, "GET", "/admin/v2/brokers/configuration/values").json()
    )
    for method in ("GET", "HEAD"):
        assert request(broker, method, AUTO_CREATION, headers).status_code == 403
    assert "persistent://public/default/made" not in request(broker, "GET", TOPICS).json()
    refused = request(broker, "GET", "/admin/v2/clusters", headers).json()["reason"]
    assert "web_service_allowed_" in refused


@pytest.mark.parametrize("path", ["/%61dmin/v2/clusters", "/admin%2Fv2/clusters", "/admin/v2%2fclusters"])
def test_a_route_with_another_spelling_is_not_found(broker: RunningBroker, path: str) -> None:
    assert request(broker, "GET", path).status_code == 400


def test_a_redundant_slash_is_not_redirected_to_the_host_header(broker: RunningBroker) -> None:
    assert request(broker, "GET", "/admin/v2/clusters/").status_code == 404


def test_no_page_loads_foreign_scripts(broker: RunningBroker) -> None:
    assert request(broker, "GET", "/docs").status_code == 404
    assert request(broker, "GET", "/openapi.json").status_code == 200


def test_answers_do_not_name_local_files(broker: RunningBroker) -> None:
    found = request(broker, "GET", "/admin/v2/brokers/internal-configuration")
    assert found.json()["metadataStoreUrl"]
    assert str(broker.root) not in found.text


def test_health_writes_at_most_a_message_a_second(broker: RunningBroker) -> None:
    stats = f"/admin/v2/persistent/pulsar/{broker.web_url.removeprefix('http://')}/healthcheck/stats"
    assert request(broker, "GET", "/admin/v2/brokers/health").status_code == 200
    before = request(broker, "GET", stats).json()["msgInCounter"]
    with httpx.Client(base_url=broker.web_url, timeout=WAIT_MS / 1000) as client:
        first = client.get("/admin/v2/brokers/health").elapsed
        took_s = first.total_seconds() + sum(
            client.get("/admin/v2/brokers/health").elapsed.total_seconds() for _ in range(100)
        )
    assert request(broker, "GET", stats).json()["msgInCounter"] - before <= took_s + 2
