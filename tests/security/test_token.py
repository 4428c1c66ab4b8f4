"""Tokens: valid ones, and known attacks on other implementations. Pure: the time is given."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.security.evidence import Failure, NotAuthenticatedError
from pulsar_on_spark.security.keys import HMAC_ALGORITHMS, RSA_ALGORITHMS, TokenKey, private_key, public_key, secret_key
from pulsar_on_spark.security.principal import Principal
from pulsar_on_spark.security.providers.token import MAX_TOKEN_BYTES, TokenRules, verify

NOW_S = 2_000_000_000
SECRET = bytes(range(64))
RULES = TokenRules()
RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
EC_384 = ec.generate_private_key(ec.SECP384R1())
PKCS8 = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def public(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, form: str = "DER") -> bytes:
    return key.public_key().public_bytes(
        getattr(serialization.Encoding, form), serialization.PublicFormat.SubjectPublicKeyInfo
    )


HMAC_KEY = secret_key(SECRET, "it")
RSA_KEY = public_key(public(RSA), "it")
EC_KEY = public_key(public(EC, "PEM"), "it")


def signed(claims: dict[str, Any], algorithm: str = "HS256", key: Any = SECRET, **headers: Any) -> bytes:
    return jwt.encode(claims, key, algorithm, headers=headers).encode()


def part(content: object) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=")


def forged(header: dict[str, Any], claims: object, secret: bytes = SECRET) -> bytes:
    """A token whose parts no library has looked at, signed by HS256."""
    signing = part(header) + b"." + (claims if isinstance(claims, bytes) else part(claims))
    signature = hmac.digest(secret, signing, hashlib.sha256)
    return signing + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")


def refusal(token: bytes, key: TokenKey = HMAC_KEY, rules: TokenRules = RULES) -> Failure:
    with pytest.raises(NotAuthenticatedError) as refused:
        verify(token, key, rules, NOW_S)
    return refused.value.failure


@pytest.mark.parametrize("algorithm", HMAC_ALGORITHMS)
def test_a_token_of_the_secret_key_has_its_role(algorithm: str) -> None:
    assert verify(signed({"sub": "orders"}, algorithm), HMAC_KEY, RULES, NOW_S) == Principal("orders")


@pytest.mark.parametrize("algorithm", RSA_ALGORITHMS)
def test_a_token_of_an_rsa_key_has_its_role(algorithm: str) -> None:
    assert verify(signed({"sub": "orders"}, algorithm, RSA), RSA_KEY, RULES, NOW_S).role == "orders"


def test_a_token_may_end_with_the_line_of_its_file() -> None:
    assert verify(signed({"sub": "orders"}) + b"\r\n", HMAC_KEY, RULES, NOW_S).role == "orders"
    assert refusal(b" \n") is Failure.MISSING


def test_a_token_of_an_ec_key_has_its_role() -> None:
    assert verify(signed({"sub": "orders"}, "ES256", EC), EC_KEY, RULES, NOW_S).role == "orders"
    of_384 = public_key(public(EC_384), "it")
    assert verify(signed({"sub": "orders"}, "ES384", EC_384), of_384, RULES, NOW_S).role == "orders"


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", "", "HS1", "dir"])
def test_no_token_chooses_to_be_unsigned(algorithm: str) -> None:
    unsigned = part({"alg": algorithm, "typ": "JWT"}) + b"." + part({"sub": "admin"}) + b"."
    for key in (HMAC_KEY, RSA_KEY, EC_KEY):
        assert refusal(unsigned, key) in (Failure.SIGNATURE, Failure.MALFORMED)
        assert refusal(forged({"alg": algorithm}, {"sub": "admin"}), key) in (Failure.SIGNATURE, Failure.MALFORMED)


@pytest.mark.parametrize("form", ["DER", "PEM"])
def test_a_public_key_does_not_verify_as_a_secret(form: str) -> None:
    for pair, key in ((RSA, RSA_KEY), (EC, EC_KEY)):
        for secret in (public(pair, form), public(pair, form).strip()):
            assert refusal(forged({"alg": "HS256"}, {"sub": "admin"}, secret), key) is Failure.SIGNATURE


def test_a_token_of_another_key_is_refused() -> None:
    others = rsa.generate_private_key(65537, 2048)
    assert refusal(signed({"sub": "admin"}, key=b"x" * 32)) is Failure.SIGNATURE
    assert refusal(signed({"sub": "admin"}, "RS256", others), RSA_KEY) is Failure.SIGNATURE
    assert refusal(signed({"sub": "admin"}, "ES256", EC), RSA_KEY) is Failure.SIGNATURE
    assert refusal(signed({"sub": "admin"}, "RS256", RSA), EC_KEY) is Failure.SIGNATURE
    assert refusal(signed({"sub": "admin"}, "ES384", EC_384), EC_KEY) is Failure.SIGNATURE
    assert refusal(signed({"sub": "admin"}, "RS256", RSA), HMAC_KEY) is Failure.SIGNATURE


@pytest.mark.parametrize(
    "headers",
    [
        {"kid": "../../../../dev/null"},
        {"kid": "x' UNION SELECT 'aaaa' --"},
        {"kid": ""},
        {"jku": "https://attacker.example.com/keys"},
        {"x5u": "https://attacker.example.com/cert"},
        {"jwk": {"kty": "oct", "k": "YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE"}},
        {"x5c": ["MIIB"]},
    ],
)
def test_a_header_does_not_choose_the_key(headers: dict[str, Any]) -> None:
    attackers = b"a" * 32
    assert refusal(forged({"alg": "HS256", **headers}, {"sub": "admin"}, attackers)) is Failure.SIGNATURE
    assert refusal(forged({"alg": "HS256", **headers}, {"sub": "admin"}, b"")) is Failure.SIGNATURE
    assert verify(forged({"alg": "HS256", **headers}, {"sub": "own"}), HMAC_KEY, RULES, NOW_S).role == "own"


def test_critical_headers_are_refused() -> None:
    assert refusal(forged({"alg": "HS256", "crit": ["exp"], "exp": 1}, {"sub": "a"})) is Failure.MALFORMED
    assert refusal(forged({"alg": "HS256", "crit": []}, {"sub": "a"})) is Failure.MALFORMED
    assert refusal(forged({"alg": "HS256", "b64": False, "crit": ["b64"]}, {"sub": "a"})) is Failure.MALFORMED


def test_a_huge_token_is_refused_before_it_is_decoded() -> None:
    huge = signed({"sub": "a", "pad": "x" * 5_000_000})
    begun = time.perf_counter()
    assert refusal(huge) is Failure.TOO_LONG
    assert time.perf_counter() - begun < 0.01
    assert refusal(b"." * (MAX_TOKEN_BYTES + 1)) is Failure.TOO_LONG


@pytest.mark.parametrize(
    ("token", "failure"),
    [
        (b"", Failure.MISSING),
        (b"a", Failure.MALFORMED),
        (b"a.b", Failure.MALFORMED),
        (b"a.b.c", Failure.MALFORMED),
        (b"a.b.c.d.e", Failure.MALFORMED),
        (b"..", Failure.MALFORMED),
        (b"\xff\xfe.\x00.\x00", Failure.MALFORMED),
        (forged({"alg": "HS256"}, b""), Failure.MALFORMED),
        (forged({"alg": "HS256"}, []), Failure.MALFORMED),
        (forged({"alg": "HS256"}, "admin"), Failure.MALFORMED),
        (forged({"alg": "HS256"}, base64.urlsafe_b64encode(b"[" * 9_000)), Failure.MALFORMED),
        (forged({"alg": ["HS256"]}, {"sub": "a"}), Failure.MALFORMED),
        (forged({"alg": {"HS256": 1}}, {"sub": "a"}), Failure.MALFORMED),
        (forged({}, {"sub": "a"}), Failure.MALFORMED),
    ],
)
def test_bytes_that_are_not_a_token_are_refused(token: bytes, failure: Failure) -> None:
    assert refusal(token) in (failure, Failure.SIGNATURE)


@given(st.binary(max_size=400))
def test_any_bytes_are_refused_and_nothing_else_is_raised(token: bytes) -> None:
    refusal(token)
    refusal(token + b"." + token + b"." + token)


@pytest.mark.parametrize("claim", [None, "", [], {}, 7, True, [7], [None], [""], ["a", 7], "x" * 1_025, "ü" * 513])
def test_a_token_without_a_role_is_refused(claim: object) -> None:
    assert refusal(forged({"alg": "HS256"}, {"sub": claim})) is Failure.ROLE
    assert refusal(forged({"alg": "HS256"}, {})) is Failure.ROLE


@pytest.mark.parametrize("role", ["a\nb", "a\0", "\ud800", "admin\u202e", "admin\u200f", "a\u2028b", "\x1b[31mroot"])
def test_a_role_that_lists_and_logs_cannot_show_is_refused(role: str) -> None:
    assert refusal(forged({"alg": "HS256"}, {"sub": role})) is Failure.ROLE


def test_the_first_role_of_a_list_counts_and_another_claim_may_hold_it() -> None:
    rules = TokenRules(role_claim="roles")
    token = forged({"alg": "HS256"}, {"sub": "no", "roles": ["first", "second"]})
    assert verify(token, HMAC_KEY, rules, NOW_S).role == "first"


def test_a_token_is_valid_between_its_times() -> None:
    for claims in ({"exp": NOW_S + 1}, {"exp": NOW_S + 0.5}, {"nbf": NOW_S}, {"nbf": NOW_S - 1, "exp": NOW_S + 1}):
        found = verify(signed({"sub": "a", **claims}), HMAC_KEY, RULES, NOW_S)
        assert found.expires_at_s == claims.get("exp")
        assert not found.is_expired(NOW_S)
    assert refusal(signed({"sub": "a", "exp": NOW_S})) is Failure.EXPIRED
    assert refusal(signed({"sub": "a", "exp": 0})) is Failure.EXPIRED
    assert refusal(signed({"sub": "a", "nbf": NOW_S + 1})) is Failure.NOT_YET_VALID
    assert verify(signed({"sub": "a", "iat": NOW_S + 9e6}), HMAC_KEY, RULES, NOW_S).expires_at_s is None
    assert verify(signed({"sub": "a", "exp": 95_617_584_000}), HMAC_KEY, RULES, NOW_S).role == "a"


@pytest.mark.parametrize("name", ["exp", "nbf"])
def test_a_time_of_the_year_3e9_is_refused(name: str) -> None:
    assert refusal(forged({"alg": "HS256"}, {"sub": "a", name: 3_000_000_000 * 31_556_952})) is Failure.MALFORMED


def test_the_last_one_of_two_equal_claims_or_headers_counts() -> None:
    """RFC 7519, 4: refuse it, or take the last one, as all that look at the token after its signature do."""
    twice = base64.urlsafe_b64encode(b'{"sub": "admin", "exp": 9999999999, "sub": "own", "exp": 1}').rstrip(b"=")
    assert refusal(forged({"alg": "HS256"}, twice)) is Failure.EXPIRED
    roles = base64.urlsafe_b64encode(b'{"sub": "admin", "sub": "own"}').rstrip(b"=")
    assert verify(forged({"alg": "HS256"}, roles), HMAC_KEY, RULES, NOW_S).role == "own"
    for first, last, is_signed in (("none", "HS256", True), ("HS256", "none", False)):
        head = base64.urlsafe_b64encode(f'{{"alg": "{first}", "alg": "{last}"}}'.encode()).rstrip(b"=")
        signing = head + b"." + part({"sub": "own"})
        signature = base64.urlsafe_b64encode(hmac.digest(SECRET, signing, hashlib.sha256)).rstrip(b"=")
        if is_signed:
            assert verify(signing + b"." + signature, HMAC_KEY, RULES, NOW_S).role == "own"
        else:
            assert refusal(signing + b"." + signature) is Failure.SIGNATURE
            assert refusal(signing + b".") is Failure.SIGNATURE


def test_clocks_may_differ_by_the_skew() -> None:
    rules = TokenRules(skew_s=10)
    found = verify(signed({"sub": "a", "exp": NOW_S - 9, "nbf": NOW_S + 10}), HMAC_KEY, rules, NOW_S)
    assert found.expires_at_s == NOW_S + 1
    assert refusal(signed({"sub": "a", "exp": NOW_S - 10}), rules=rules) is Failure.EXPIRED
    assert refusal(signed({"sub": "a", "nbf": NOW_S + 11}), rules=rules) is Failure.NOT_YET_VALID


@pytest.mark.parametrize("name", ["exp", "nbf"])
@pytest.mark.parametrize("value", ["9999999999", None, True, [], {}, -1, float("nan"), float("inf"), 1e300, 10**30])
def test_claims_that_are_not_times_are_refused(name: str, value: object) -> None:
    assert refusal(forged({"alg": "HS256"}, {"sub": "a", name: value})) is Failure.MALFORMED


def test_the_audience_must_be_the_broker() -> None:
    rules = TokenRules(audience_claim="aud", audiences=frozenset({"here"}))
    for audience in ("here", ["there", "here"]):
        assert verify(signed({"sub": "a", "aud": audience}), HMAC_KEY, rules, NOW_S).role == "a"
    for claims in (
        {},
        {"aud": "there"},
        {"aud": []},
        {"aud": "HERE"},
        {"aud": "her"},
        {"aud": None},
        {"aud": {"here": 1}},
    ):
        assert refusal(forged({"alg": "HS256"}, {"sub": "a", **claims}), rules=rules) is Failure.AUDIENCE
    assert verify(signed({"sub": "a", "aud": "anything"}), HMAC_KEY, RULES, NOW_S).role == "a"


def test_refusals_and_keys_do_not_show_secrets() -> None:
    token = signed({"sub": "a", "exp": 1, "jti": "private"})
    with pytest.raises(NotAuthenticatedError) as refused:
        verify(token, HMAC_KEY, RULES, NOW_S)
    assert token.decode() not in str(refused.value)
    assert "private" not in str(refused.value)
    assert repr(SECRET) not in repr(HMAC_KEY)


def test_weak_and_strange_keys_are_refused() -> None:
    small = rsa.generate_private_key(65537, 1024)
    for content, said in (
        (public(small), "1024 bits"),
        (b"not a key", "not a public key"),
        (public(ec.generate_private_key(ec.SECP256K1())), "neither an RSA key nor an EC key"),
        (EC.private_bytes(serialization.Encoding.DER, *PKCS8), "not a public key"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            public_key(content, "Setting token_public_key")
    with pytest.raises(InvalidArgumentError, match="31 bytes"):
        secret_key(b"x" * 31, "Setting token_secret_key")
    with pytest.raises(InvalidArgumentError, match="is a PEM file"):
        secret_key(public(RSA, "PEM"), "Setting token_secret_key")
    with pytest.raises(InvalidArgumentError, match="not a private key"):
        private_key(public(RSA), "Option --private-key")
