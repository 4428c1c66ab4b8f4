"""The logins of clients behind a proxy: renewals are checked together with the proxy's own credentials."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import cast

import jwt
import pytest

from pulsar_on_spark.broker.runtime.access import AuthenticatedAccess, Hello, Login, access_of
from pulsar_on_spark.broker.runtime.authentication import authentication_of
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.security.authentication import Authentication, Claimed
from pulsar_on_spark.security.evidence import Failure, NotAuthenticatedError
from pulsar_on_spark.security.principal import Principal
from pulsar_on_spark.security.providers.certificate import CertificateProvider

SECRET = b"s" * 32


def token(role: str, lives_s: float = 60) -> bytes:
    return jwt.encode({"sub": role, "exp": time.time() + lives_s}, SECRET, "HS256").encode()


def login(claimed: Claimed) -> Login:
    settings = BrokerSettings(
        authentication_enabled=True,
        authentication_providers=("token",),
        token_secret_key="data:;base64," + base64.b64encode(SECRET).decode(),
        proxy_roles=("proxy",),
        authenticate_original_auth_data=True,
    )
    return access_of(settings, authentication_of(settings))(cast(Views, None)).login(Hello("token", None, claimed))


def step(of: Login, data: bytes) -> Principal:
    found = asyncio.run(of.step(data))
    assert isinstance(found, Principal)
    return found


def test_a_client_behind_a_proxy_renews_its_own_token() -> None:
    proxied = login(Claimed("alice", "token", token("alice", 30)))
    first = step(proxied, token("proxy", 90))
    assert (first.role, first.original_role) == ("proxy", "alice")
    again = step(proxied, token("alice", 60))
    assert again.is_same_client(first)
    assert (again.expires_at_s or 0) > (first.expires_at_s or 0)
    assert step(proxied, token("alice", 120)).expires_at_s == pytest.approx(time.time() + 90, abs=5), "the proxy's end"


@pytest.mark.parametrize(
    ("role", "lives_s", "failure"),
    [
        ("bob", 60, Failure.PROXY),
        ("proxy", 60, Failure.PROXY),
        ("alice", -1, Failure.EXPIRED),
        (None, 0, Failure.MISSING),
    ],
)
def test_no_other_token_renews_it(role: str | None, lives_s: float, failure: Failure) -> None:
    """Neither another client's nor the proxy's, which a client may have seen."""
    renewed = b"" if role is None else token(role, lives_s)
    proxied = login(Claimed("alice", "token", token("alice")))
    step(proxied, token("proxy"))
    with pytest.raises(NotAuthenticatedError) as refused:
        step(proxied, renewed)
    assert refused.value.failure is failure


def test_credentials_that_a_proxy_sent_are_not_a_login_of_a_client() -> None:
    """Replayed by a client with its own token, with the proxy's principal, or without the forwarded credentials."""
    forwarded = Claimed("alice", "token", token("alice"))
    for claimed, data in (
        (forwarded, token("mallory")),
        (Claimed("proxy", "token", token("proxy")), token("mallory")),
        (Claimed("alice"), token("proxy")),
        (Claimed("alice", "token", token("mallory")), token("proxy")),
    ):
        with pytest.raises(NotAuthenticatedError):
            step(login(claimed), data)


@pytest.mark.parametrize("lives_s", [60, -1])
def test_a_certificate_is_refused_from_its_end_also_on_a_connection_that_is_kept(lives_s: float) -> None:
    access = AuthenticatedAccess(Authentication([CertificateProvider()]))
    ends = time.strftime("%b %d %H:%M:%S %Y GMT", time.gmtime(time.time() + lives_s))
    certificate = {"subject": ((("commonName", "alice"),),), "notAfter": ends}
    if lives_s > 0:
        assert asyncio.run(access.authenticate_http({}, certificate)).role == "alice"
    else:
        with pytest.raises(NotAuthenticatedError) as refused:
            asyncio.run(access.authenticate_http({}, certificate))
        assert refused.value.failure is Failure.EXPIRED
