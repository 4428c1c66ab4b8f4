"""The rules between providers: methods, the anonymous role, proxies, certificates, and renewals."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from pulsar_on_spark.security.authentication import (
    NO_CLAIM,
    Authentication,
    Claimed,
    Proxies,
    Renewal,
    next_renewal,
)
from pulsar_on_spark.security.evidence import Evidence, Failure, NotAuthenticatedError, mark_of
from pulsar_on_spark.security.principal import Principal
from pulsar_on_spark.security.providers import certificate
from pulsar_on_spark.security.providers.certificate import CertificateProvider


class Named:
    """A provider that accepts `NAME:END` for the names that it knows."""

    def __init__(self, method: str, *names: str) -> None:
        self.name = self.method = method
        self._names = names

    async def authenticate(self, evidence: Evidence) -> Principal:
        name, _, end = evidence.data.decode().partition(":")
        if name not in self._names:
            raise NotAuthenticatedError(Failure.SIGNATURE, f"{self.method} does not know it")
        return Principal(name, expires_at_s=float(end) if end else None)


TOKEN, BASIC = Named("token", "alice", "proxy"), Named("basic", "bob")


def by(authentication: Authentication, method: str, data: str, claimed: Claimed = NO_CLAIM) -> Principal:
    return asyncio.run(authentication.authenticate(method, Evidence(data.encode()), claimed))


def by_http(authentication: Authentication, method: str | None, **data: str) -> Principal:
    evidences = {name: Evidence(value.encode()) for name, value in data.items()}
    return asyncio.run(authentication.authenticate_http(method, evidences, NO_CLAIM))


def failure(call: Any, *given: Any, **named: Any) -> Failure:
    with pytest.raises(NotAuthenticatedError) as refused:
        call(*given, **named)
    return refused.value.failure


def test_the_method_decides_which_providers_are_asked() -> None:
    both = Authentication([TOKEN, BASIC])
    assert by(both, "token", "alice").role == "alice"
    assert by(both, "basic", "bob").role == "bob"
    assert failure(by, both, "basic", "alice") is Failure.SIGNATURE
    for method in ("", "none", "Token", "token ", "tls", "x" * 10_000):
        assert failure(by, both, method, "alice") is Failure.METHOD


def test_tokens_are_identified_by_the_start_of_their_digest_and_other_credentials_are_not() -> None:
    assert mark_of("token", b" eyJ\n") == hashlib.sha256(b"eyJ").hexdigest()[:8]
    assert mark_of("token", b" ") == mark_of("basic", b"alice:secret") == mark_of("tls", b"x") == ""
    both = Authentication([TOKEN, BASIC])
    assert by(both, "token", "alice").credential == mark_of("token", b"alice")
    assert by(both, "basic", "bob").credential == ""
    with pytest.raises(NotAuthenticatedError) as refused:
        by_http(both, None, token="mallory")
    assert refused.value.credential == mark_of("token", b"mallory")


def test_providers_of_one_method_are_tried_in_order() -> None:
    chain = Authentication([Named("token", "first"), Named("token", "second")])
    assert by(chain, "token", "second").role == "second"
    assert failure(by, chain, "token", "third") is Failure.SIGNATURE


def test_the_anonymous_role_is_for_clients_without_credentials_only() -> None:
    open_ = Authentication([TOKEN], "guest")
    assert by(open_, "", "").role == "guest"
    assert by(open_, "none", "").role == "guest"
    assert by(open_, "basic", "bob").role == "guest", "no provider has this method, as in Pulsar"
    assert failure(by, open_, "token", "mallory") is Failure.SIGNATURE
    assert failure(by, open_, "token", "") is Failure.SIGNATURE
    assert by_http(open_, None).role == "guest"
    assert failure(by_http, open_, None, token="mallory") is Failure.SIGNATURE
    assert failure(by_http, open_, "token") is Failure.SIGNATURE
    assert failure(by_http, open_, "basic", basic="bob") is Failure.METHOD, "Pulsar answers 401"


def test_over_http_each_provider_is_tried_unless_methods_are_strict() -> None:
    both = Authentication([TOKEN, BASIC])
    assert by_http(both, None, basic="bob").role == "bob"
    assert by_http(both, None, token="mallory", basic="bob").role == "bob"
    assert by_http(both, "token", token="alice", basic="bob").role == "alice"
    assert failure(by_http, both, None) is Failure.MISSING
    assert failure(by_http, both, "tls", token="alice") is Failure.METHOD
    strict = Authentication([TOKEN], "guest", strict=True)
    assert failure(by_http, strict, None, token="alice") is Failure.METHOD
    assert by_http(strict, "token", token="alice").role == "alice"


def test_only_proxies_speak_for_others() -> None:
    proxied = Authentication([TOKEN, BASIC], proxies=Proxies(frozenset({"proxy", "proxy-2"})))
    assert by(proxied, "token", "proxy", Claimed("carol")) == Principal("proxy", "carol")
    assert by(proxied, "token", "alice", Claimed("alice")) == Principal("alice")
    for claimed in ("", "proxy", "proxy-2", "x" * 1_025, "a\nb"):
        assert failure(by, proxied, "token", "proxy", Claimed(claimed)) is Failure.PROXY
    assert failure(by, proxied, "token", "alice", Claimed("carol")) is Failure.PROXY
    assert failure(by, Authentication([TOKEN]), "token", "alice", Claimed("carol")) is Failure.PROXY


def test_the_credentials_that_a_proxy_forwards_are_checked() -> None:
    proxied = Authentication([TOKEN, BASIC], proxies=Proxies(frozenset({"proxy"}), verifies=True))
    assert by(proxied, "token", "proxy", Claimed("bob", "basic", b"bob")) == Principal("proxy", "bob")
    assert by(proxied, "token", "proxy", Claimed("", "basic", b"bob")).original_role == "bob"
    assert failure(by, proxied, "token", "proxy", Claimed("bob")) is Failure.METHOD, "replayed without them"
    assert failure(by, proxied, "token", "proxy", Claimed("bob", "basic", b"carol")) is Failure.SIGNATURE
    assert failure(by, proxied, "token", "proxy", Claimed("carol", "basic", b"bob")) is Failure.PROXY
    assert failure(by, proxied, "token", "proxy", Claimed("proxy", "token", b"proxy")) is Failure.PROXY
    both = by(proxied, "token", "proxy:70", Claimed("alice", "token", b"alice:50"))
    assert both.expires_at_s == 50, "the first end of both"
    assert by(proxied, "token", "proxy:30", Claimed("alice", "token", b"alice:50")).expires_at_s == 30


def certified(*subject: tuple[str, str], **others: str) -> dict[str, Any]:
    return {"subject": tuple((each,) for each in subject), **others}


def test_the_common_name_of_a_certificate_is_the_role() -> None:
    found = certified(("organizationName", "o"), ("commonName", "a,b=c"), notAfter="Jan  5 09:34:43 2030 GMT")
    assert certificate.principal_of(found) == Principal("a,b=c", expires_at_s=1_893_836_083)
    evidence = Evidence(b"admin", certified(("commonName", "a")))
    assert asyncio.run(CertificateProvider().authenticate(evidence)).role == "a"


def test_other_certificates_have_no_role() -> None:
    for two in (
        certified(("commonName", "user"), ("commonName", "admin")),
        {"subject": ((("commonName", "user"), ("commonName", "admin")),)},
        certified(("organizationName", "admin")),
        certified(("commonName", "")),
        certified(("commonName", "x" * 1_025)),
        certified(("commonName", "admin\0")),
        certified(("commonName", "nimda\u202e")),
    ):
        assert failure(certificate.principal_of, two) is Failure.ROLE
    for none in (None, {}):
        assert failure(certificate.principal_of, none) is Failure.MISSING


def test_expired_credentials_are_asked_for_once() -> None:
    client = Principal("a", expires_at_s=100)
    assert next_renewal(client, 99.9, can_renew=True, is_challenged=False) is Renewal.NONE
    assert next_renewal(client, 100, can_renew=True, is_challenged=False) is Renewal.CHALLENGE
    assert next_renewal(client, 100, can_renew=True, is_challenged=True) is Renewal.CLOSE
    assert next_renewal(client, 100, can_renew=False, is_challenged=False) is Renewal.CLOSE
    for forever in (None, Principal("a")):
        assert next_renewal(forever, 1e12, can_renew=False, is_challenged=True) is Renewal.NONE


def test_credentials_are_not_shown() -> None:
    shown = repr((Evidence(b"private", {"subject": "private"}), Claimed("role", "token", b"private")))
    assert "private" not in shown
