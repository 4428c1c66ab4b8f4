"""Authentication with the official Python client, raw sockets and HTTP: tokens, passwords, certificates, renewals."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bcrypt
import httpx
import jwt
import pulsar
import pytest
from passlib.hash import apr_md5_crypt

from pulsar_on_spark.protocol.commands import (
    AuthData,
    BaseCommand,
    CommandAuthResponse,
    CommandConnect,
    CommandLookupTopic,
    FeatureFlags,
    ServerError,
)
from tests.kit.running_broker import RunningBroker
from tests.kit.tls_files import TlsFiles
from tests.kit.waiting import wait_until

from .raw import answer, command

LIMIT_S = 60
SECRET = os.urandom(32)
_hosts = itertools.cycle(range(2, 255))
SILENT = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)


def token(role: str, lives_s: float | None = None, secret: bytes = SECRET) -> str:
    end = {} if lives_s is None else {"exp": time.time() + lives_s}
    return jwt.encode({"sub": role, **end}, secret, "HS256")


def another_host() -> str:
    """A loopback address that has failed at nothing: the broker delays answers to an address that failed 20 times."""
    return f"127.0.0.{next(_hosts)}"


@dataclass
class Secured:
    """A broker with all providers, which looks for expired credentials each half second."""

    broker: RunningBroker
    files: TlsFiles
    users: Path

    def client(
        self,
        authentication: pulsar.Authentication | None = None,
        *,
        tls: bool = False,
        operation_timeout_seconds: int = LIMIT_S // 2,
    ) -> pulsar.Client:
        return pulsar.Client(
            self.broker.tls_url if tls else self.broker.url,
            authentication=authentication,
            operation_timeout_seconds=operation_timeout_seconds,
            logger=SILENT,
            tls_trust_certs_file_path=self.files.trust,
            tls_validate_hostname=True,
        )


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    secret, users, files = folder / "secret.key", folder / ".htpasswd", TlsFiles(folder / "tls")
    secret.write_bytes(SECRET)
    alice = bcrypt.hashpw(b"secret", bcrypt.gensalt(10)).decode()
    users.write_text(f"alice:{alice}\nbob:{apr_md5_crypt.hash('hunter2')}\n")
    for each in (secret, users):
        each.chmod(0o600)
    settings = files.settings(
        authentication_enabled="true",
        authentication_providers="org.apache.pulsar.broker.authentication.AuthenticationProviderToken,basic,tls",
        authentication_refresh_check_seconds=0.5,
        token_secret_key=f"file://{secret}",
        basic_auth_conf=users,
        tls_trust_certs_file_path=files.trust,
        proxy_roles="proxy",
    )
    with RunningBroker(folder / "root", settings) as running:
        yield Secured(running, files, users)


def send_and_receive(client: pulsar.Client, topic: str) -> None:
    try:
        consumer = client.subscribe(topic, "s")
        client.create_producer(topic).send(b"content")
        assert consumer.receive(LIMIT_S * 1000).data() == b"content"
    finally:
        client.close()


def test_a_token_opens_the_broker(secured: Secured) -> None:
    send_and_receive(secured.client(pulsar.AuthenticationToken(token("orders", 600))), "by-token")
    send_and_receive(secured.client(pulsar.AuthenticationToken(lambda: token("orders"))), "by-supplier")


def test_user_and_password_open_the_broker(secured: Secured) -> None:
    for user, password in (("alice", "secret"), ("bob", "hunter2")):
        send_and_receive(secured.client(pulsar.AuthenticationBasic(user, password)), f"by-{user}")


def test_a_certificate_opens_the_broker(secured: Secured) -> None:
    role = secured.files.ca.issue_role("orders")
    shown = pulsar.AuthenticationTLS(str(role.certificate), str(role.key))
    send_and_receive(secured.client(shown, tls=True), "by-certificate")


OTHERS = {
    "nothing": lambda: None,
    "another-key": lambda: pulsar.AuthenticationToken(token("admin", secret=os.urandom(32))),
    "expired": lambda: pulsar.AuthenticationToken(token("admin", -1)),
    "unsigned": lambda: pulsar.AuthenticationToken(jwt.encode({"sub": "admin"}, None, "none")),
    "wrong-password": lambda: pulsar.AuthenticationBasic("alice", "wrong"),
    "unknown-user": lambda: pulsar.AuthenticationBasic("mallory", "secret"),
}


@pytest.mark.parametrize("which", OTHERS)
def test_other_clients_are_refused(secured: Secured, which: str) -> None:
    require_refusal(secured, OTHERS[which](), tls=False)


def test_without_a_client_certificate_tls_proves_nothing(secured: Secured) -> None:
    require_refusal(secured, None, tls=True)


def require_refusal(secured: Secured, authentication: pulsar.Authentication | None, *, tls: bool) -> None:
    """The C++ client takes any answer but CONNECTED for a lost connection, and tries again until its time is over."""
    before = secured.broker.said.count("is not authenticated")
    client = secured.client(authentication, tls=tls, operation_timeout_seconds=1)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("refused")
    client.close()
    assert secured.broker.said.count("is not authenticated") > before


def test_a_token_that_expires_is_renewed_on_the_connection(secured: Secured) -> None:
    """Each token lives for a second; the connection lives on, and nothing that was sent is lost."""
    asked = 0

    def supply() -> str:
        nonlocal asked
        asked += 1
        return token("orders", 1.0)

    client = secured.client(pulsar.AuthenticationToken(supply))
    consumer = client.subscribe("renewed", "s")
    producer = client.create_producer("renewed", batching_enabled=False)
    before = connections(secured)
    begun = time.monotonic()
    number = 0
    while time.monotonic() - begun < 5:
        producer.send(b"%d" % number)
        number += 1
        time.sleep(0.02)
    assert asked >= 4, "once at the start, then about once each second"
    assert connections(secured) == before, "no new connection"
    assert [int(consumer.receive(LIMIT_S * 1000).data()) for _ in range(number)] == list(range(number))
    client.close()


def connections(secured: Secured) -> float:
    text = httpx.get(f"{secured.broker.web_url}/metrics", timeout=LIMIT_S).text
    lines = [line for line in text.splitlines() if line.startswith("pulsar_connection_created_total_count")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_a_client_with_an_expired_token_is_disconnected(secured: Secured) -> None:
    client = secured.client(pulsar.AuthenticationToken(token("orders", 2.0)))
    producer = client.create_producer("expires", send_timeout_millis=3000)
    producer.send(b"in time")

    def is_refused() -> bool:
        try:
            producer.send(b"late")
        except pulsar.PulsarException:
            return True
        return False

    wait_until(is_refused)
    client.close()


# -- raw sockets -------------------------------------------------------------------------------------------------------


def connecting(data: str, method: str = "token", *, refreshes: bool = True, original: str = "") -> bytes:
    flags = FeatureFlags(supports_auth_refresh=refreshes)
    others = {"original_principal": original} if original else {}
    body = CommandConnect(
        client_version="raw",
        protocol_version=21,
        auth_method_name=method,
        auth_data=data.encode(),
        feature_flags=flags,
        **others,
    )
    return command("CONNECT", connect=body)


def responding(data: str) -> bytes:
    response = AuthData(auth_method_name="token", auth_data=data.encode())
    return command("AUTH_RESPONSE", authResponse=CommandAuthResponse(response=response))


LOOKING_UP = command("LOOKUP", lookupTopic=CommandLookupTopic(topic="t", request_id=1))


async def connect(secured: Secured) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = secured.broker.url.removeprefix("pulsar://").partition(":")
    return await asyncio.open_connection(host, int(port), local_addr=(another_host(), 0))


def conversation(secured: Secured, *said: bytes) -> list[BaseCommand]:
    """The broker's answers to each, up to the end of the connection; b"" only listens."""

    async def scene() -> list[BaseCommand]:
        reader, writer = await connect(secured)
        heard = []
        try:
            for each in said:
                writer.write(each)
                heard.append(await answer(reader))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()
        return heard

    return asyncio.run(asyncio.wait_for(scene(), LIMIT_S))


def types(heard: list[BaseCommand]) -> list[str]:
    return [BaseCommand.Type.Name(each.type) for each in heard]


def test_a_refusal_has_pulsars_code_and_words_and_no_reason(secured: Secured) -> None:
    for method in ("token", "basic", "tls", "none", "", "kerberos"):
        (refused,) = conversation(secured, connecting("wrong", method), b"")
        assert (refused.error.request_id, refused.error.error) == (2**64 - 1, ServerError.AuthenticationError)
        assert refused.error.message == "Failed to authenticate"


def test_commands_behind_a_connect_wait_for_it(secured: Secured) -> None:
    """A password is hashed in 50 ms, in which its client's connection is not read."""

    async def scene(password: str) -> list[BaseCommand]:
        reader, writer = await connect(secured)
        writer.write(connecting(f"alice:{password}", "basic"))
        await asyncio.sleep(0.01)
        writer.write(LOOKING_UP)
        heard = [await answer(reader)]
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            heard.append(await answer(reader))
        writer.close()
        return heard

    assert types(asyncio.run(asyncio.wait_for(scene("wrong"), LIMIT_S))) == ["ERROR"]
    assert types(asyncio.run(asyncio.wait_for(scene("secret"), LIMIT_S))) == ["CONNECTED", "LOOKUP_RESPONSE"]


def test_nothing_but_a_connect_comes_first(secured: Secured) -> None:
    assert conversation(secured, connecting(token("a")) + LOOKING_UP, b"") == []
    assert conversation(secured, LOOKING_UP) == []
    assert conversation(secured, responding(token("a"))) == []
    assert types(conversation(secured, connecting(token("a")) + connecting(token("b")), b"")) == ["CONNECTED"]


def test_a_client_is_challenged_when_its_token_expires(secured: Secured) -> None:
    connected, asked, looked_up = conversation(
        secured, connecting(token("a", 0.3)), b"", responding(token("a", 60)) + LOOKING_UP
    )
    assert connected.type == BaseCommand.CONNECTED
    assert asked.type == BaseCommand.AUTH_CHALLENGE
    assert asked.authChallenge.challenge.auth_data == b"PulsarAuthRefresh"
    assert asked.authChallenge.challenge.auth_method_name == "token"
    assert looked_up.type == BaseCommand.LOOKUP_RESPONSE


def test_no_answer_to_the_challenge_ends_the_connection(secured: Secured) -> None:
    assert types(conversation(secured, connecting(token("a", 0.3)), b"", b"")) == ["CONNECTED", "AUTH_CHALLENGE"]


def test_a_client_that_cannot_renew_is_disconnected(secured: Secured) -> None:
    assert types(conversation(secured, connecting(token("a", 0.3), refreshes=False), b"")) == ["CONNECTED"]
    proxied = connecting(token("proxy", 0.3), original="a")
    assert types(conversation(secured, proxied, b"")) == ["CONNECTED"]


@pytest.mark.parametrize("lives_s", [None, -1])
def test_a_renewal_must_be_valid_and_of_the_same_role(secured: Secured, lives_s: float | None) -> None:
    role = "b" if lives_s is None else "a"
    *_, refused = conversation(secured, connecting(token("a", 0.3)), b"", responding(token(role, lives_s)))
    assert refused.error.error == ServerError.AuthenticationError


def test_only_a_proxy_speaks_for_another_client(secured: Secured) -> None:
    assert types(conversation(secured, connecting(token("proxy"), original="a"))) == ["CONNECTED"]
    for role, original in (("proxy", ""), ("proxy", "proxy"), ("a", "b")):
        (refused,) = conversation(secured, connecting(token(role), original=original))
        assert (refused.error.error, refused.error.message) == (ServerError.AuthorizationError, "Invalid roles.")


# -- HTTP --------------------------------------------------------------------------------------------------------------


def get(secured: Secured, path: str = "/admin/v2/tenants", **options: Any) -> httpx.Response:
    with httpx.Client(transport=httpx.HTTPTransport(local_address=another_host()), timeout=LIMIT_S) as client:
        return client.get(f"{secured.broker.web_url}{path}", **options)


def bearer(content: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {content}"}


def test_requests_are_authenticated(secured: Secured) -> None:
    assert get(secured, headers=bearer(token("a"))).json() == ["public"]
    assert get(secured, headers=bearer(token("a")) | {"X-Pulsar-Auth-Method-Name": "token"}).status_code == 200
    assert get(secured, auth=("bob", "hunter2")).status_code == 200
    assert get(secured, auth=("alice", "secret")).status_code == 200
    role = secured.files.ca.issue_role("admin")
    url = f"{secured.broker.web_tls_url}/admin/v2/tenants"
    assert httpx.get(url, timeout=LIMIT_S, verify=secured.files.context(role)).status_code == 200
    assert httpx.get(url, timeout=LIMIT_S, verify=secured.files.context()).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("x"),
        bearer(token("a", -1)),
        bearer(token("a", secret=b"x" * 32)),
        {"Authorization": "Basic YWxpY2U6d3Jvbmc="},
        {"Authorization": "Basic \x7f"},
        {"Authorization": "Negotiate abc"},
        {"Authorization": "token x"},
        bearer(token("a")) | {"X-Pulsar-Auth-Method-Name": "basic"},
        bearer(token("a")) | {"X-Original-Principal": "b"},
        bearer(token("proxy")),
    ],
)
def test_other_requests_get_401_whatever_they_ask_for(secured: Secured, headers: dict[str, str]) -> None:
    lookup = "/lookup/v2/topic/persistent/public/default/t"
    for path in ("/admin/v2/tenants", lookup, "/openapi.json", "/nothing", "/admin/v2/brokers/health"):
        refused = get(secured, path, headers=headers)
        assert (refused.status_code, refused.json()) == (401, {"reason": "Authentication required"})
        assert refused.headers["WWW-Authenticate"] == 'Bearer, Basic realm="pulsar"'


def test_probes_and_metrics_are_open(secured: Secured) -> None:
    for path in ("/status.html", "/admin/v2/brokers/ready", "/metrics"):
        assert get(secured, path).status_code == 200


def test_a_refused_request_changes_nothing_and_its_body_is_not_read(secured: Secured) -> None:
    url = f"{secured.broker.web_url}/admin/v2/tenants/stolen"
    assert httpx.put(url, content=b"{" * 100, timeout=LIMIT_S).status_code == 401
    assert "stolen" not in get(secured, headers=bearer(token("a"))).json()


def test_users_are_read_again_when_their_file_was_replaced(secured: Secured) -> None:
    before = secured.users.read_text()
    carol = bcrypt.hashpw(b"new", bcrypt.gensalt(4)).decode()
    try:
        secured.users.write_text(f"{before}carol:{carol}\n")
        assert get(secured, auth=("carol", "new")).status_code == 200
        secured.users.write_text("broken")
        assert get(secured, auth=("carol", "new")).status_code == 200, "the former ones stay"
        assert "basic_auth_conf was replaced and cannot be used" in secured.broker.said
    finally:
        secured.users.write_text(before)
    assert get(secured, auth=("carol", "new")).status_code == 401
