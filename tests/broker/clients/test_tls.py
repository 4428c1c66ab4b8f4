"""TLS with official clients and raw sockets: verified names, both ports, listeners, and clients at the wrong port."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pulsar
import pytest

from pulsar_on_spark.protocol.commands import BaseCommand, CommandConnect, CommandLookupTopic
from pulsar_on_spark.security.certificates import LocalCa
from tests.kit.free_ports import free_port
from tests.kit.running_broker import RunningBroker
from tests.kit.tls_files import TlsFiles
from tests.kit.waiting import wait_until

from .raw import answer_of, command

WAIT_MS = 60_000
SILENT = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def both(files: TlsFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker with and without TLS, whose handshakes time out soon."""
    settings = files.settings(connection_handshake_timeout_seconds=2, tls_trust_certs_file_path=files.trust)
    with RunningBroker(tmp_path_factory.mktemp("both") / "root", settings) as running:
        yield running


@pytest.fixture(scope="module")
def only_tls(files: TlsFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker that serves nothing without TLS, under names for two networks."""
    port = free_port()
    settings = files.settings(
        broker_service_port="",
        web_service_port="",
        broker_service_port_tls=port,
        advertised_listeners=f"inside:pulsar+ssl://localhost:{port},outside:pulsar+ssl://127.0.0.1:{port}",
    )
    with RunningBroker(tmp_path_factory.mktemp("only") / "root", settings) as running:
        yield running


def new_client(url: str, trust: str, **options: object) -> pulsar.Client:
    options = {"tls_validate_hostname": True, "operation_timeout_seconds": 30, "logger": SILENT, **options}
    return pulsar.Client(url, tls_trust_certs_file_path=trust, **options)  # type: ignore[arg-type]


def send_and_receive(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    # Some are larger than a TLS record, and together more than is read at once.
    sent = [os.urandom(size) for size in (1, 100, 20_000, 1_000_000, 3_000_000)] * 3
    for content in sent:
        producer.send_async(content, lambda result, _: None)
    producer.flush()
    received = [consumer.receive(WAIT_MS) for _ in sent]
    for message in received:
        consumer.acknowledge(message)
    assert [message.data() for message in received] == sent


@pytest.mark.parametrize("scheme", ["binary", "web"])
def test_messages_by_a_client_that_verifies(both: RunningBroker, files: TlsFiles, scheme: str) -> None:
    url = both.tls_url if scheme == "binary" else both.web_tls_url
    client = new_client(url, files.trust)
    send_and_receive(client, f"over-{scheme}")
    client.close()


def test_both_ports_serve_the_same_topics(both: RunningBroker, files: TlsFiles) -> None:
    plain, safe = pulsar.Client(both.url, logger=SILENT), new_client(both.tls_url, files.trust)
    consumer = plain.subscribe("shared", "s")
    safe.create_producer("shared").send(b"from TLS")
    assert consumer.receive(WAIT_MS).data() == b"from TLS"
    plain.close()
    safe.close()


def test_a_broker_that_serves_only_tls(only_tls: RunningBroker, files: TlsFiles) -> None:
    assert only_tls.url.startswith("pulsar+ssl://")
    assert only_tls.web_url.startswith("https://")
    client = new_client(only_tls.url, files.trust)
    send_and_receive(client, "only")
    client.close()
    web = new_client(only_tls.web_url, files.trust)
    assert len(web.get_topic_partitions("only")) == 1
    web.close()


def test_partitions_and_patterns_over_tls(both: RunningBroker, files: TlsFiles) -> None:
    httpx.put(
        f"{both.web_tls_url}/admin/v2/persistent/public/default/parts/partitions", json=3, verify=files.context()
    ).raise_for_status()
    client = new_client(both.tls_url, files.trust)
    assert len(client.get_topic_partitions("parts")) == 3
    client.close()


@pytest.mark.parametrize("trusted", ["another", "own"])
def test_a_verifying_client_refuses_another_ca_or_name(files: TlsFiles, tmp_path: Path, trusted: str) -> None:
    """The broker's certificate is of another name, or of a CA that the client does not trust."""
    other = TlsFiles(tmp_path / "other")
    host_files = other.ca.issue_host(["broker.example.com"]) if trusted == "own" else other.host
    trust = other.trust if trusted == "own" else files.trust
    settings = other.settings(tls_certificate_file_path=host_files.certificate, tls_key_file_path=host_files.key)
    with RunningBroker(tmp_path / "root", settings) as running:
        client = new_client(running.tls_url, trust, operation_timeout_seconds=3)
        with pytest.raises(pulsar.PulsarException):
            client.create_producer("refused")
        client.close()
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{running.web_tls_url}/metrics", verify=ssl.create_default_context(cafile=trust))


def test_lookups_answer_both_urls(both: RunningBroker, files: TlsFiles) -> None:
    found = httpx.get(f"{both.web_url}/lookup/v2/topic/persistent/public/default/any").json()
    assert found == {
        "brokerUrl": both.url,
        "brokerUrlTls": both.tls_url,
        "brokerUrlSsl": both.tls_url,
        "nativeUrl": both.url,
        "httpUrl": both.web_url,
        "httpUrlTls": both.web_tls_url,
    }
    cluster = httpx.get(f"{both.web_tls_url}/admin/v2/clusters/standalone", verify=files.context()).json()
    assert cluster == {
        "serviceUrl": both.web_url,
        "serviceUrlTls": both.web_tls_url,
        "brokerServiceUrl": both.url,
        "brokerServiceUrlTls": both.tls_url,
    }


@pytest.mark.parametrize(
    ("listener", "host"), [("", "localhost"), ("inside", "localhost"), ("outside", "127.0.0.1"), ("unknown", None)]
)
def test_a_lookup_answers_the_urls_of_the_clients_listener(
    only_tls: RunningBroker, files: TlsFiles, listener: str, host: str | None
) -> None:
    async def scene() -> BaseCommand:
        reader, writer = await connect(only_tls.url, files.context())
        look = CommandLookupTopic(topic="any", request_id=1, advertised_listener_name=listener)
        writer.write(command("LOOKUP", lookupTopic=look))
        found = await answer_of(reader, "LOOKUP_RESPONSE")
        writer.close()
        return found

    found = asyncio.run(scene()).lookupTopicResponse
    by_http = httpx.get(
        f"{only_tls.web_url}/lookup/v2/topic/persistent/public/default/any",
        params={"listenerName": listener},
        verify=files.context(),
    )
    if host is None:
        assert found.response == found.Failed
        assert "no advertised listener 'unknown'" in found.message
        assert by_http.status_code == 503
    else:
        port = urlsplit(only_tls.url).port
        assert found.response == found.Connect
        assert not found.HasField("brokerServiceUrl")
        assert found.brokerServiceUrlTls == f"pulsar+ssl://{host}:{port}"
        assert by_http.json()["brokerUrlTls"] == found.brokerServiceUrlTls
        assert by_http.json()["brokerUrl"] == ""
        assert by_http.json()["httpUrlTls"] == only_tls.web_url


def test_a_client_gets_through_by_its_listener(only_tls: RunningBroker, files: TlsFiles) -> None:
    client = pulsar.Client(
        only_tls.url,
        tls_trust_certs_file_path=files.trust,
        tls_validate_hostname=True,
        listener_name="outside",
        logger=SILENT,
    )
    send_and_receive(client, "by-listener")
    client.close()


@pytest.mark.parametrize("kind", ["binary", "web"])
def test_tls_at_the_plain_port_ends_at_once(both: RunningBroker, files: TlsFiles, kind: str) -> None:
    plain, safe = (both.url, both.tls_url) if kind == "binary" else (both.web_url, both.web_tls_url)
    client = socket.create_connection(address(plain), WAIT_MS / 1000)
    own = client.getsockname()[1]
    with client, pytest.raises((ssl.SSLError, ConnectionError)):
        files.context().wrap_socket(client, server_hostname="localhost")
    wait_until(lambda: f":{own}: it began a TLS handshake" in both.said)
    (line,) = [each for each in both.said.splitlines() if f":{own}: it began" in each]
    assert line.endswith(f"the port with TLS is {urlsplit(safe).port}")


@pytest.mark.parametrize("kind", ["binary", "web"])
def test_plain_text_at_the_tls_port_ends_at_once(both: RunningBroker, kind: str) -> None:
    plain, safe = (both.url, both.tls_url) if kind == "binary" else (both.web_url, both.web_tls_url)
    connect = CommandConnect(client_version="raw", protocol_version=21)
    said = command("CONNECT", connect=connect) if kind == "binary" else b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(address(safe), WAIT_MS / 1000) as client:
        own = client.getsockname()[1]
        client.sendall(said)
        while client.recv(1000):
            pass
    wait_until(lambda: f":{own} at port" in both.said)
    (line,) = [each for each in both.said.splitlines() if f":{own} at port" in each]
    assert line.endswith(f"failed: it sent plain text, and the port without TLS is {urlsplit(plain).port}.")


@pytest.mark.parametrize("how", ["silent", "a byte a second", "silent after its ClientHello"])
def test_a_slow_handshake_ends_with_its_timeout(both: RunningBroker, files: TlsFiles, how: str) -> None:
    hello = client_hello(files.context())
    begun_s = time.monotonic()
    with socket.create_connection(address(both.tls_url)) as client:
        client.settimeout(0.5)
        own = client.getsockname()[1]
        if how == "silent after its ClientHello":
            client.sendall(hello)
        while time.monotonic() - begun_s < 30:
            try:
                if how == "a byte a second":
                    client.sendall(hello[:1])
                    hello = hello[1:]
                if not client.recv(10_000):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
    assert time.monotonic() - begun_s > 1.5
    wait_until(lambda: f":{own} at port" in both.said)
    (line,) = [each for each in both.said.splitlines() if f":{own} at port" in each]
    assert line.endswith("failed: it took longer than 2 s.")


def test_a_flood_of_handshakes_does_not_block_other_clients(both: RunningBroker, files: TlsFiles) -> None:
    """Hundreds of clients say nothing; others get in, and messages flow."""
    client = new_client(both.tls_url, files.trust)
    producer = client.create_producer("during-a-flood")
    silent = [socket.create_connection(address(both.tls_url)) for _ in range(300)]
    for number in range(20):
        producer.send(str(number).encode())
    other = new_client(both.tls_url, files.trust)
    other.create_producer("during-a-flood").send(b"x")
    for each in silent:
        each.close()
    client.close()
    other.close()


async def connect(url: str, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = address(url)
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    connecting = CommandConnect(client_version="raw", protocol_version=21)
    writer.write(command("CONNECT", connect=connecting))
    await answer_of(reader, "CONNECTED")
    return reader, writer


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname, url
    assert parts.port, url
    return parts.hostname, parts.port


def client_hello(context: ssl.SSLContext) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


@pytest.fixture(scope="module")
def strict(files: TlsFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker that takes only clients with a certificate."""
    settings = files.settings(tls_trust_certs_file_path=files.trust, tls_require_trusted_client_cert_on_connect="true")
    with RunningBroker(tmp_path_factory.mktemp("strict") / "root", settings) as running:
        yield running


def test_a_client_with_a_trusted_certificate_is_served(strict: RunningBroker, files: TlsFiles) -> None:
    role = files.ca.issue_role("somebody")
    authentication = pulsar.AuthenticationTLS(str(role.certificate), str(role.key))
    client = new_client(strict.tls_url, files.trust, authentication=authentication)
    send_and_receive(client, "with-certificate")
    client.close()
    assert httpx.get(f"{strict.web_tls_url}/metrics", verify=files.context(role)).status_code == 200


@pytest.mark.parametrize("kind", ["none", "untrusted", "of a server", "expired"])
def test_clients_without_a_trusted_certificate_are_refused(
    strict: RunningBroker, files: TlsFiles, tmp_path: Path, kind: str
) -> None:
    """With TLS 1.3 a client learns that it was refused when it reads."""
    given = {
        "none": None,
        "untrusted": LocalCa.open(tmp_path).issue_role("stranger"),
        "of a server": files.host,
        "expired": files.ca.issue_role("expired", days=-1),
    }[kind]
    context = files.context(given)
    reason = "failed: peer did not return a certificate" if given is None else "failed: certificate verify failed"
    before = strict.said.count(reason)
    with pytest.raises((ssl.SSLError, OSError, EOFError)):
        asyncio.run(connect(strict.tls_url, context))
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{strict.web_tls_url}/metrics", verify=context)
    wait_until(lambda: strict.said.count(reason) == before + 2)
