"""Official clients through a proxy in front of two brokers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import jwt
import psutil
import pulsar
import pytest

from pulsar_on_spark.protocol.commands import BaseCommand, CommandConnect, CommandLookupTopic, ServerError
from tests.broker.clients.conftest import WAIT_MS, new_client
from tests.broker.clients.raw import answer, command, connect
from tests.kit.running_broker import RunningBroker
from tests.kit.tls_files import TlsFiles
from tests.kit.token_settings import token_settings
from tests.kit.waiting import wait_until

TOPICS = 12
SECRET = os.urandom(32)


def running_proxy(root: Path | str, *options: str) -> RunningBroker:
    return RunningBroker(root, command="proxy", options=["--service-port", "0", *options])


@pytest.fixture(scope="module")
def brokers(memory_folder: Path) -> Iterator[tuple[RunningBroker, RunningBroker]]:
    root = memory_folder / "behind-a-proxy"
    with RunningBroker(root) as one, RunningBroker(root) as two:
        yield one, two


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def proxy(brokers: tuple[RunningBroker, RunningBroker], tls: TlsFiles) -> Iterator[RunningBroker]:
    files = ["--tls-certificate", str(tls.host.certificate), "--tls-key", str(tls.host.key)]
    with running_proxy(brokers[0].root, "--service-port-tls", "0", *files) as running:
        yield running


def peers_of(process: psutil.Process) -> set[int]:
    return {each.raddr.port for each in process.net_connections("tcp") if each.raddr and each.status == "ESTABLISHED"}


@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "TLS"])
def test_clients_reach_the_topics_of_all_brokers_through_the_proxy_alone(
    brokers: tuple[RunningBroker, RunningBroker], proxy: RunningBroker, tls: TlsFiles, with_tls: bool
) -> None:
    client = new_client(proxy.tls_url.replace("127.0.0.1", "localhost") if with_tls else proxy.url, tls.trust)
    for number in range(TOPICS):
        topic = f"through-{with_tls}-{number}"
        consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
        producer = client.create_producer(topic)
        for sent in range(10):
            producer.send(b"%d" % sent)
        for sent in range(10):
            message = consumer.receive(WAIT_MS)
            assert message.data() == b"%d" % sent
            consumer.acknowledge(message)
    assert client.get_topic_partitions("through-parts") == ["persistent://public/default/through-parts"]
    ports = {int(broker.url.rpartition(":")[2]) for broker in brokers}
    assert peers_of(psutil.Process()) & ports == set()
    assert ports <= peers_of(psutil.Process(proxy.pid)), "topics of both brokers were used"
    client.close()


async def refused(url: str, target: str) -> BaseCommand:
    host, _, port = url.removeprefix("pulsar://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = CommandConnect(client_version="raw", protocol_version=21, proxy_to_broker_url=target)
    writer.write(command("CONNECT", connect=body))
    said = await answer(reader)
    assert await reader.read() == b"", "the connection is closed"
    writer.close()
    return said


@pytest.mark.parametrize("target", ["127.0.0.1:22", "localhost:1", "example.com:6650", "nonsense", "a" * 1000])
def test_a_target_that_is_no_broker_is_refused(proxy: RunningBroker, target: str) -> None:
    said = asyncio.run(refused(proxy.url, target))
    assert (said.type, said.error.error) == (BaseCommand.ERROR, ServerError.ServiceNotReady)
    assert "not a registered broker" in said.error.message


def test_a_lookup_names_the_broker_and_the_way_through_the_proxy(
    brokers: tuple[RunningBroker, RunningBroker], proxy: RunningBroker
) -> None:
    async def looked_up() -> BaseCommand:
        reader, writer = await connect(proxy.url)
        writer.write(command("LOOKUP", lookupTopic=CommandLookupTopic(topic="looked-up", request_id=5)))
        said = await answer(reader)
        writer.close()
        return said

    found = asyncio.run(looked_up()).lookupTopicResponse
    assert found.proxy_through_service_url
    assert found.brokerServiceUrl in {broker.url for broker in brokers}


def test_a_client_that_says_nothing_is_closed_and_others_are_served(proxy: RunningBroker) -> None:
    async def silent() -> bytes:
        host, _, port = proxy.url.removeprefix("pulsar://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        said = await reader.read()
        writer.close()
        return said

    assert asyncio.run(silent()) == b""
    wait_until(lambda: "is disconnected" in proxy.said, lambda: proxy.said)
    client = new_client(proxy.url)
    client.create_producer("after-it").send(b"x")
    client.close()


def test_credentials_are_the_clients_own(memory_path: Path, tmp_path: Path) -> None:
    settings = token_settings(tmp_path, SECRET)
    with RunningBroker(memory_path / "root", settings) as broker, running_proxy(broker.root) as proxy:
        token = jwt.encode({"sub": "root"}, SECRET, "HS256")
        client = pulsar.Client(proxy.url, authentication=pulsar.AuthenticationToken(token))
        client.create_producer("allowed").send(b"x")
        client.close()
        stranger = pulsar.Client(proxy.url, operation_timeout_seconds=5)
        with pytest.raises(pulsar.PulsarException):
            stranger.create_producer("refused")
        stranger.close()


def test_listed_brokers_need_no_root(brokers: tuple[RunningBroker, RunningBroker], tmp_path: Path) -> None:
    listed = ",".join(broker.url for broker in brokers)
    with running_proxy("", "--brokers", listed) as proxy:
        client = new_client(proxy.url)
        client.create_producer("listed").send(b"x")
        client.close()


@pytest.mark.long
def test_clients_continue_after_the_end_of_a_broker_and_of_a_proxy(memory_path: Path) -> None:
    root = memory_path / "root"
    with RunningBroker(root) as one, RunningBroker(root) as two, running_proxy(root) as proxy:
        with running_proxy(root) as other_proxy:
            client = new_client(f"{proxy.url},{other_proxy.url.removeprefix('pulsar://')}", timeout_s=60)
            producers = [client.create_producer(f"t-{number}") for number in range(TOPICS)]
            consumers = [client.subscribe(f"t-{number}", "s") for number in range(TOPICS)]
            for producer in producers:
                producer.send(b"before")
            one.kill()
            for producer in producers:
                producer.send(b"after the broker")
        for producer in producers:
            producer.send(b"after the proxy")
        for consumer in consumers:
            got: set[bytes] = set()
            while len(got) < 3:
                message = consumer.receive(WAIT_MS)
                got.add(message.data())
                consumer.acknowledge(message)
        client.close()
        wait_until(lambda: len(peers_of(psutil.Process(proxy.pid))) == 0, "the proxy holds no connection")
        assert two.stop() == 0
