"""The official client with OAuth 2.0 (client credentials): an issuer of this host gives it tokens for the broker."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import jwt
import pulsar
import pytest

from tests.kit.issuer import AUDIENCE, Issuer
from tests.kit.running_broker import RunningBroker
from tests.kit.tls_files import TlsFiles

LIMIT_S = 20
CLASS = "org.apache.pulsar.broker.authentication.oidc.AuthenticationProviderOpenID"
SECRET = os.urandom(32)


@dataclass
class Trusting:
    """A broker that trusts an issuer, and tokens of a secret key."""

    broker: RunningBroker
    issuer: Issuer
    files: TlsFiles

    def client(self, secret: str, timeout_s: int = LIMIT_S) -> pulsar.Client:
        given = {
            "type": "client_credentials",
            "issuer_url": self.issuer.url,
            "client_id": "orders",
            "client_secret": secret,
            "audience": AUDIENCE,
        }
        return pulsar.Client(
            self.broker.url,
            authentication=pulsar.AuthenticationOauth2(json.dumps(given)),
            tls_trust_certs_file_path=self.files.trust,
            operation_timeout_seconds=timeout_s,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trusting]:
    folder = tmp_path_factory.mktemp("openid")
    files = TlsFiles(folder / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.host.certificate, files.host.key)
    secret = folder / "secret.key"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    with Issuer(context) as issuer:
        settings = {
            "authentication_enabled": "true",
            "authentication_providers": f"token,{CLASS}",
            "token_secret_key": secret,
            "open_id_allowed_token_issuers": issuer.url,
            "open_id_allowed_audiences": AUDIENCE,
            "open_id_token_issuer_trust_certs_file_path": files.trust,
        }
        with RunningBroker(folder / "root", settings) as running:
            yield Trusting(running, issuer, files)


def test_a_client_gets_its_token_from_the_issuer(trusting: Trusting) -> None:
    client = trusting.client("secret")
    consumer = client.subscribe("by-issuer", "s")
    client.create_producer("by-issuer").send(b"content")
    assert consumer.receive(LIMIT_S * 1000).data() == b"content"
    client.close()


def test_a_client_without_a_token_is_refused(trusting: Trusting) -> None:
    client = trusting.client("wrong", timeout_s=2)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("refused")
    client.close()


def test_tokens_of_the_issuer_and_of_the_key_count_over_http(trusting: Trusting) -> None:
    def get(token: str) -> int:
        url = f"{trusting.broker.web_url}/admin/v2/tenants"
        return httpx.get(url, headers={"Authorization": f"Bearer {token}"}, timeout=LIMIT_S).status_code

    assert get(trusting.issuer.token()) == 200
    assert get(jwt.encode({"sub": "own"}, SECRET, "HS256")) == 200
    assert get(trusting.issuer.token(exp=1)) == 401
    assert get(trusting.issuer.token(aud="else")) == 401
