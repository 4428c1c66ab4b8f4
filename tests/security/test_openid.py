"""Tokens of OpenID issuers, against an issuer that runs here: good ones, bad ones, and bad answers of issuers."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from pulsar_on_spark.security.authentication import NO_CLAIM, Authentication
from pulsar_on_spark.security.evidence import Evidence, Failure, NotAuthenticatedError, Provider
from pulsar_on_spark.security.keys import secret_key
from pulsar_on_spark.security.principal import Principal
from pulsar_on_spark.security.providers import issuers
from pulsar_on_spark.security.providers.issuers import MAX_ANSWER_BYTES, HttpGet, OpenIdProvider
from pulsar_on_spark.security.providers.openid import (
    EXPIRY_S,
    MAX_KEYS,
    REFRESH_S,
    RETRY_S,
    UNKNOWN_KEY_S,
    Fetch,
    IssuerError,
    KnownKeys,
    OpenIdRules,
    is_usable,
    keys_of,
    keys_url_of,
    next_fetch,
)
from pulsar_on_spark.security.providers.token import TokenProvider, TokenRules
from tests.kit.issuer import AUDIENCE, KEYS, METADATA, Issuer, jwk, new_ec_key, say, signed
from tests.kit.tls_files import TlsFiles

SECRET = bytes(range(64))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def context(files: TlsFiles) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(files.host.certificate, files.host.key)
    return made


@pytest.fixture
def issuer(context: ssl.SSLContext) -> Iterator[Issuer]:
    with Issuer(context) as running:
        yield running


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def provider(files: TlsFiles, *names: str, growing: Clock | None = None, **rules: Any) -> OpenIdProvider:
    of = OpenIdRules.of(frozenset(names), frozenset({AUDIENCE, "other"}), **rules)
    return OpenIdProvider(of, HttpGet(files.context()), growing=growing or Clock())


def ask(asked: Provider, *tokens: str) -> list[Principal | Failure]:
    """The outcome of each token, all of them at the same time."""

    async def one(token: str) -> Principal | Failure:
        try:
            return await asked.authenticate(Evidence(token.encode()))
        except NotAuthenticatedError as error:
            return error.failure

    async def all_() -> list[Principal | Failure]:
        return list(await asyncio.gather(*map(one, tokens)))

    return asyncio.run(all_())


def test_a_token_of_a_listed_issuer_has_its_role(files: TlsFiles, issuer: Issuer) -> None:
    issuer.published["curve"] = new_ec_key()
    of_two = issuer.token("orders", aud=["x", "other"])
    by_ec = issuer.token("billing", "curve", nbf=time.time() - 1)
    found = ask(provider(files, issuer.url), issuer.token(), of_two, by_ec)
    assert [each.role for each in found] == ["orders", "orders", "billing"]  # type: ignore[union-attr]
    assert found[0].expires_at_s == pytest.approx(time.time() + 600, abs=60)  # type: ignore[union-attr]
    assert issuer.requests == [METADATA, KEYS], "three logins at a time share one fetch"


def test_another_claim_may_hold_the_role(files: TlsFiles, issuer: Issuer) -> None:
    by_claim = provider(files, issuer.url, role_claim="client")
    (found,) = ask(by_claim, issuer.token("no", client="billing"))
    assert isinstance(found, Principal)
    assert found.role == "billing"
    assert ask(by_claim, issuer.token("no")) == [Failure.ROLE]


def test_other_tokens_are_refused(files: TlsFiles, issuer: Issuer) -> None:
    now_s = time.time()
    attackers = rsa.generate_private_key(65537, 2048)
    own = jwk("first", attackers)
    published = issuer.published["first"]
    asked = provider(files, issuer.url)
    for token, failure in (
        (issuer.token(iss="https://attacker.example.com"), Failure.ISSUER),
        (issuer.token(iss=issuer.url + "/"), Failure.ISSUER),
        (issuer.token(iss=None), Failure.ISSUER),
        (issuer.token(aud="else"), Failure.AUDIENCE),
        (issuer.token(aud=None), Failure.AUDIENCE),
        (issuer.token(exp=now_s - 1), Failure.EXPIRED),
        (issuer.token(exp=None), Failure.MALFORMED),
        (issuer.token(nbf=now_s + 60), Failure.NOT_YET_VALID),
        (issuer.token(sub=None), Failure.ROLE),
        (signed({"iss": issuer.url, "sub": "a"}, attackers, kid="first"), Failure.SIGNATURE),
        (signed({"iss": issuer.url, "sub": "a"}, attackers, kid="../../../dev/null"), Failure.SIGNATURE),
        (
            signed({"iss": issuer.url, "sub": "a"}, attackers, kid="first", jwk=own),
            Failure.SIGNATURE,
        ),
        (signed({"iss": issuer.url, "sub": "a"}, published), Failure.SIGNATURE),
        (signed({"iss": issuer.url, "sub": "a"}, published, kid="first", crit=["b64"]), Failure.MALFORMED),
        ("x" * 20_000, Failure.TOO_LONG),
        ("a.b.c", Failure.MALFORMED),
        ("", Failure.MISSING),
    ):
        assert ask(asked, token) == [failure]


def test_the_algorithm_is_that_of_the_published_key(files: TlsFiles, issuer: Issuer) -> None:
    public = json.dumps(jwk("first", issuer.published["first"]))
    claims = {"iss": issuer.url, "sub": "admin", "aud": AUDIENCE, "exp": time.time() + 60}
    confused = jwt.encode(claims, base64.b64encode(public.encode()), "HS256", headers={"kid": "first"})
    padded = jwt.encode(claims, issuer.published["first"], "PS256", headers={"kid": "first"})
    unsigned = jwt.encode(claims, None, "none", headers={"kid": "first"})
    assert ask(provider(files, issuer.url), confused, padded, unsigned) == [Failure.SIGNATURE] * 3


def test_a_leeway_forgives_clocks(files: TlsFiles, issuer: Issuer) -> None:
    late = issuer.token(exp=time.time() - 5)
    (found,) = ask(provider(files, issuer.url, leeway_s=60), late)
    assert isinstance(found, Principal)


def test_a_rotated_key_is_found_and_unknown_ones_do_not_flood_the_issuer(files: TlsFiles, issuer: Issuer) -> None:
    clock = Clock()
    asked = provider(files, issuer.url, growing=clock)
    assert isinstance(ask(asked, issuer.token())[0], Principal)
    issuer.published = {"second": rsa.generate_private_key(65537, 2048)}
    rotated = issuer.token("orders", "second")
    assert ask(asked, rotated, rotated) == [Failure.SIGNATURE] * 2, "the keys are known since just now"
    assert len(issuer.requests) == 2
    clock.now_s += UNKNOWN_KEY_S
    assert isinstance(ask(asked, rotated)[0], Principal)
    assert len(issuer.requests) == 4
    stranger = signed({"iss": issuer.url, "sub": "a"}, new_ec_key(), kid="strange")
    assert ask(asked, stranger, stranger) == [Failure.SIGNATURE] * 2
    assert len(issuer.requests) == 4


def slow(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    for _ in range(30):
        request.wfile.write(b" ")
        request.wfile.flush()
        time.sleep(0.1)


def giant(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    for _ in range(1000):
        request.wfile.write(b" " * (MAX_ANSWER_BYTES // 10))


def redirect(request: BaseHTTPRequestHandler) -> None:
    say(request, {}, 302, Location=f"https://{request.headers['Host']}/elsewhere")


def failing(request: BaseHTTPRequestHandler) -> None:
    say(request, {}, 500)


def not_json(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    request.wfile.write(b"<html>")


@pytest.mark.parametrize("path", [METADATA, KEYS])
@pytest.mark.parametrize("answer", [slow, giant, redirect, failing, not_json], ids=lambda each: each.__name__)
def test_bad_answers_refuse_logins(
    files: TlsFiles, issuer: Issuer, path: str, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuers, "ANSWER_S", 0.5)
    issuer.answers[path] = answer
    clock = Clock()
    asked = provider(files, issuer.url, growing=clock)
    begun = time.monotonic()
    assert ask(asked, issuer.token(), issuer.token()) == [Failure.UNAVAILABLE] * 2
    assert time.monotonic() - begun < 3
    assert "/elsewhere" not in issuer.requests
    asked_before = len(issuer.requests)
    assert ask(asked, issuer.token()) == [Failure.UNAVAILABLE]
    assert len(issuer.requests) == asked_before, "no request in the pause after a failure"
    issuer.answers.clear()
    clock.now_s += RETRY_S
    assert isinstance(ask(asked, issuer.token())[0], Principal)


@pytest.mark.parametrize(
    "others",
    [
        {"issuer": "https://attacker.example.com"},
        {"issuer": None},
        {"jwks_uri": "http://localhost/keys"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": "https://"},
        {"jwks_uri": 7},
    ],
)
def test_metadata_must_be_of_the_issuer_and_its_keys_safe(
    files: TlsFiles, issuer: Issuer, others: dict[str, Any]
) -> None:
    issuer.answers[METADATA] = lambda request: say(request, issuer.metadata(**others))
    assert ask(provider(files, issuer.url), issuer.token()) == [Failure.UNAVAILABLE]
    assert issuer.requests == [METADATA]


def test_an_issuer_that_is_down_or_whose_certificate_is_not_trusted(files: TlsFiles, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"https://localhost:{free.getsockname()[1]}"
        token = signed({"iss": url, "sub": "a"}, new_ec_key(), kid="first")
        assert ask(provider(files, url), token) == [Failure.UNAVAILABLE]
    strange = TlsFiles(tmp_path)
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(strange.host.certificate, strange.host.key)
    with Issuer(made) as running:
        assert ask(provider(files, running.url), running.token()) == [Failure.UNAVAILABLE]
        assert running.requests == []


def test_known_keys_serve_while_the_issuer_is_down_for_a_day(files: TlsFiles, issuer: Issuer) -> None:
    clock = Clock()
    asked = provider(files, issuer.url, growing=clock)
    token = issuer.token()
    assert isinstance(ask(asked, token)[0], Principal)
    issuer.answers[METADATA] = failing
    clock.now_s += REFRESH_S
    assert isinstance(ask(asked, token)[0], Principal)
    clock.now_s += EXPIRY_S - REFRESH_S
    assert ask(asked, token) == [Failure.UNAVAILABLE]


def test_when_issuers_are_asked() -> None:
    known = KnownKeys(keys_of(json.dumps({"keys": [jwk("a", new_ec_key())]}).encode()), 100.0)
    for age_s, name, fetch in (
        (0, "a", Fetch.NONE),
        (0, "b", Fetch.NONE),
        (UNKNOWN_KEY_S, "b", Fetch.FIRST),
        (REFRESH_S - 1, "a", Fetch.NONE),
        (REFRESH_S, "a", Fetch.BESIDE),
        (EXPIRY_S, "a", Fetch.FIRST),
    ):
        assert next_fetch(known, name, 100.0 + age_s) is fetch
    assert next_fetch(None, "a", 0.0) is Fetch.FIRST


def test_keys_that_do_not_sign_tokens_are_left_out() -> None:
    good = jwk("good", new_ec_key())
    private = jwt.algorithms.ECAlgorithm.to_jwk(new_ec_key(), as_dict=True)
    listed = [
        good,
        jwk("good", new_ec_key()),
        jwk("encrypts", new_ec_key(), use="enc"),
        jwk("another", new_ec_key(), alg="RS256"),
        jwk("weak", rsa.generate_private_key(65537, 1024)),
        {"kid": "secret", "kty": "oct", "k": "YWFhYQ"},
        {**private, "kid": "private"},
        {"kid": "broken", "kty": "RSA", "n": 7, "e": "AQAB"},
        {"kid": "broken2", "kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {**good, "kid": 7},
        {**good, "kid": ""},
        "key",
        None,
        *(jwk(f"late{number}", new_ec_key()) for number in range(MAX_KEYS)),
    ]
    found = keys_of(json.dumps({"keys": listed}).encode())
    assert [name for name in found if not name.startswith("late")] == ["good"]
    assert len(found) == 1 + MAX_KEYS - 13
    assert found["good"].algorithms == ("ES256",)
    of_rsa = keys_of(json.dumps({"keys": [jwk("a", rsa.generate_private_key(65537, 2048), alg="RS512")]}).encode())
    assert of_rsa["a"].algorithms == ("RS512",)
    for content in (b"", b"[]", b"{}", b'{"keys": {}}', b"[" * 100_000):
        with pytest.raises(IssuerError):
            keys_of(content)


def test_urls_need_a_host_and_a_scheme() -> None:
    assert is_usable("https://a.example.com/x", requires_https=True)
    assert is_usable("http://localhost:1", requires_https=False)
    for url in ("http://a", "file:///etc/passwd", "https://", "a.example.com", "https://[", ""):
        assert not is_usable(url, requires_https=True)
    assert not is_usable("ftp://a", requires_https=False)
    metadata = b'{"issuer": "http://a", "jwks_uri": "http://a/keys"}'
    assert keys_url_of(metadata, "http://a", requires_https=False) == "http://a/keys"


@pytest.mark.parametrize("is_token_first", [True, False])
def test_token_and_openid_in_any_order(files: TlsFiles, issuer: Issuer, is_token_first: bool) -> None:
    by_key = TokenProvider(secret_key(SECRET, "it"), TokenRules(), time.time, frozenset({issuer.url}))
    by_issuer = provider(files, issuer.url)
    chain = Authentication([by_key, by_issuer] if is_token_first else [by_issuer, by_key])

    def ask_both(token: str) -> Principal | Failure:
        try:
            return asyncio.run(chain.authenticate("token", Evidence(token.encode()), NO_CLAIM))
        except NotAuthenticatedError as error:
            return error.failure

    own = jwt.encode({"sub": "own", "iss": "someone"}, SECRET, "HS256")
    assert ask_both(own) == Principal("own")
    assert isinstance(ask_both(issuer.token()), Principal)
    assert ask_both(issuer.token(exp=1)) is Failure.EXPIRED
    assert ask_both(jwt.encode({"sub": "own", "exp": 1}, SECRET, "HS256")) is Failure.EXPIRED
    disguised = jwt.encode({"sub": "admin", "iss": issuer.url}, SECRET, "HS256", headers={"kid": "first"})
    assert ask_both(disguised) is Failure.SIGNATURE
    assert chain.meter.successes == {(by_key.name, "token"): 1, (by_issuer.name, "token"): 1}
    assert chain.meter.failures == {
        (by_issuer.name, "token", Failure.EXPIRED): 1,
        (by_key.name, "token", Failure.EXPIRED): 1,
        (by_issuer.name, "token", Failure.SIGNATURE): 1,
    }
