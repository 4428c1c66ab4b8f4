"""Apache Pulsar's own proxy in front of two brokers, with tokens and `proxy_roles`: needs Java and Maven.

The proxy has a role of its own, and names the client's role to the broker; both must be allowed to do what is asked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import jwt
import pulsar
import pytest

from tests.broker.clients.conftest import WAIT_MS
from tests.kit.free_ports import free_port
from tests.kit.running_broker import RunningBroker
from tests.kit.token_settings import token_settings
from tests.kit.waiting import wait_until

HOUSE = Path(__file__).parents[2]
WORK = HOUSE / "conformance-work" / "pulsar-proxy"
SECRET = os.urandom(32)
TOPICS = 12
START_S = 900
"""The first start resolves the JARs."""
NAMESPACE = "public/default"
TOKENS = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
BY_TOKEN = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"

pytestmark = pytest.mark.peer


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, "HS256")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBroker, RunningBroker]]:
    settings = {**token_settings(tmp_path_factory.mktemp("secret"), SECRET), "proxy_roles": "proxy"}
    root = tmp_path_factory.mktemp("proxied") / "root"
    with RunningBroker(root, settings) as one, RunningBroker(root, settings) as two:
        headers = {"Authorization": f"Bearer {token('root')}"}
        with httpx.Client(base_url=f"{one.web_url}/admin/v2", headers=headers, timeout=60) as admin:
            for role in ("proxy", "allowed"):
                granted = admin.post(f"/namespaces/{NAMESPACE}/permissions/{role}", json=["produce", "consume"])
                granted.raise_for_status()
        yield one, two


@pytest.fixture(scope="module")
def proxy_url(brokers: tuple[RunningBroker, RunningBroker], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    WORK.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("pom.xml"), WORK)
    if not (WORK / "lib").is_dir():
        resolve = ["mvn", "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib"]
        subprocess.run(resolve, cwd=WORK, check=True, timeout=START_S)
    folder = tmp_path_factory.mktemp("pulsar-proxy")
    key, log = folder / "secret.key", folder / "log"
    key.touch(0o600)
    key.write_bytes(SECRET)
    port = free_port()
    given = {
        "brokerServiceURL": brokers[0].url,
        "brokerWebServiceURL": brokers[0].web_url,
        "brokerProxyAllowedTargetPorts": ",".join(broker.url.rpartition(":")[2] for broker in brokers),
        "servicePort": port,
        "webServicePort": free_port(),
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "127.0.0.1",
        "authenticationEnabled": "true",
        "authenticationProviders": BY_TOKEN,
        "tokenSecretKey": f"file://{key}",
        "brokerClientAuthenticationPlugin": TOKENS,
        "brokerClientAuthenticationParameters": f"token:{token('proxy')}",
    }
    settings = folder / "proxy.conf"
    settings.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    command = [
        "java",
        "-cp",
        f"{WORK}/lib/*",
        "org.apache.pulsar.proxy.server.ProxyServiceStarter",
        "-c",
        str(settings),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_until(lambda: "Server started at" in log.read_text(), log.read_text)
        yield f"pulsar://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def test_a_client_with_a_role_reaches_the_topics_of_both_brokers(
    brokers: tuple[RunningBroker, RunningBroker], proxy_url: str
) -> None:
    client = pulsar.Client(proxy_url, authentication=pulsar.AuthenticationToken(token("allowed")))
    for number in range(TOPICS):
        consumer = client.subscribe(f"t-{number}", "s")
        producer = client.create_producer(f"t-{number}")
        producer.send(b"%d" % number)
        assert consumer.receive(WAIT_MS).data() == b"%d" % number
    client.close()
    headers = {"Authorization": f"Bearer {token('root')}"}
    found = [
        httpx.get(f"{broker.web_url}/admin/v2/brokers/standalone/{broker.web_url[7:]}/ownedNamespaces", headers=headers)
        for broker in brokers
    ]
    assert all(answer.is_success and answer.json() for answer in found), "both brokers have bundles of the namespace"


def test_a_client_without_permissions_is_refused_whatever_the_proxy_may_do(proxy_url: str) -> None:
    client = pulsar.Client(
        proxy_url, authentication=pulsar.AuthenticationToken(token("stranger")), operation_timeout_seconds=10
    )
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("t-0")
    client.close()


def test_a_client_without_a_token_is_refused(proxy_url: str) -> None:
    client = pulsar.Client(proxy_url, operation_timeout_seconds=5)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("t-0")
    client.close()
