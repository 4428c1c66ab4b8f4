"""Tokens (JWT): signature, times, audience and role (Pulsar's AuthenticationProviderToken).

The kind of the key determines the accepted algorithms, whatever the token's header says. So a token with algorithm
`none`, or a token that uses a public key as an HMAC secret, is refused. Headers that name a key (`kid`, `jku`, `jwk`,
`x5u`, `x5c`) are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import jwt

from pulsar_on_spark.security.evidence import Evidence, Failure, NotAuthenticatedError
from pulsar_on_spark.security.keys import TokenKey
from pulsar_on_spark.security.principal import Principal, is_role

MAX_TOKEN_BYTES: Final = 16 << 10
"""Limit of the length of a token that is decoded, because decoding takes time in proportion to the length."""
AUDIENCE_CLAIM: Final = "aud"
"""The claim of the audience in tokens of OpenID issuers."""
# `principal_of` checks times by the caller's clock, and the audience as Pulsar does.
_SIGNATURE_ONLY: Final[Any] = {
    "verify_signature": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}
_NOTHING: Final[Any] = {**_SIGNATURE_ONLY, "verify_signature": False}


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The claims that a token must have.

    Attributes:
        role_claim: The claim of the role: a text, or a list of texts, of which the first one counts.
        audience_claim: The claim of the audience; "" if it is not checked.
        audiences: The broker's audiences; the claim must be one of them, or a list with one of them.
        skew_s: Seconds by which the clocks of issuer and broker may differ.
    """

    role_claim: str = "sub"
    audience_claim: str = ""
    audiences: frozenset[str] = frozenset()
    skew_s: float = 0


def verify(token: bytes, key: TokenKey, rules: TokenRules, now_s: float) -> Principal:
    """Check a token, and return the identity of its client.

    Args:
        token: The token in its compact form.
        key: The key that verifies the token.
        rules: The claims that the token must have.
        now_s: The time, in seconds since 1970.

    Raises:
        NotAuthenticatedError: the token is invalid.
    """
    return principal_of(verified_claims(token, key), rules, now_s)


def issuer_of(token: bytes) -> str:
    """Return the issuer that a token names (`iss`), "" if it names none. The signature is not checked.

    Raises:
        NotAuthenticatedError: there is no token, or it is malformed.
    """
    token = _trimmed(token)
    try:
        claims = jwt.decode(token, options=_NOTHING)
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise _no_token() from None
    issuer = claims.get("iss")
    return issuer if isinstance(issuer, str) else ""


def key_name_of(token: bytes) -> str:
    """Return the name of the key that a token names (`kid`), "" if it names none. The signature is not checked.

    Raises:
        NotAuthenticatedError: there is no token, or it is malformed.
    """
    token = _trimmed(token)
    try:
        name = jwt.get_unverified_header(token).get("kid")
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise _no_token() from None
    return name if isinstance(name, str) else ""


def verified_claims(token: bytes, key: TokenKey) -> Mapping[str, Any]:
    """Check a token's signature, and return its claims by name.

    Raises:
        NotAuthenticatedError: the token is malformed, or not signed by the key.
    """
    token = _trimmed(token)
    try:
        parts = jwt.decode_complete(
            token, cast(Any, key.material), algorithms=list(key.algorithms), options=_SIGNATURE_ONLY
        )
    except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError, jwt.InvalidKeyError):
        raise NotAuthenticatedError(Failure.SIGNATURE, "the token is not signed by the expected key") from None
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise _no_token() from None
    if "crit" in parts["header"]:
        raise NotAuthenticatedError(Failure.MALFORMED, "the token has critical headers, which are not understood")
    claims: Mapping[str, Any] = parts["payload"]
    return claims


def _trimmed(token: bytes) -> bytes:
    """Return a token without surrounding white space, because clients send the line break at the end of its file."""
    if len(token) > MAX_TOKEN_BYTES:
        raise NotAuthenticatedError(Failure.TOO_LONG, f"the token has more than {MAX_TOKEN_BYTES} bytes")
    if not (trimmed := token.strip()):
        raise NotAuthenticatedError(Failure.MISSING, "there is no token")
    return trimmed


def _no_token() -> NotAuthenticatedError:
    """Return the refusal of a malformed token. The library's error is not its cause, because it may quote the token."""
    return NotAuthenticatedError(Failure.MALFORMED, "the token is not a JWT")


def principal_of(claims: Mapping[str, Any], rules: TokenRules, now_s: float) -> Principal:
    """Check the claims of a verified token, and return the identity of its client.

    Args:
        claims: The token's claims, by name.
        rules: The claims that the token must have.
        now_s: The current time, in seconds since 1970.

    Raises:
        NotAuthenticatedError: the token is not valid now, is not for this broker, or has no role.
    """
    expires_s = _time(claims, "exp")
    if expires_s is not None and now_s >= expires_s + rules.skew_s:
        raise NotAuthenticatedError(Failure.EXPIRED, "the token is expired")
    begins_s = _time(claims, "nbf")
    if begins_s is not None and now_s < begins_s - rules.skew_s:
        raise NotAuthenticatedError(Failure.NOT_YET_VALID, "the token is not valid yet")
    if rules.audience_claim and rules.audiences.isdisjoint(_texts(claims.get(rules.audience_claim))):
        raise NotAuthenticatedError(Failure.AUDIENCE, "the token is for another audience")
    role = next(iter(_texts(claims.get(rules.role_claim))), "")
    if not is_role(role):
        raise NotAuthenticatedError(Failure.ROLE, f"the token's claim {rules.role_claim!r} is not a role")
    return Principal(role, expires_at_s=None if expires_s is None else expires_s + rules.skew_s)


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    time_s = claims.get(name)
    if time_s is None:
        if name in claims:
            raise NotAuthenticatedError(Failure.MALFORMED, f"the token's claim {name!r} is not a time")
        return None
    # The range also excludes NaN, which is neither earlier nor later than any time.
    if isinstance(time_s, bool) or not isinstance(time_s, int | float) or not 0 <= time_s < 2**53:
        raise NotAuthenticatedError(Failure.MALFORMED, f"the token's claim {name!r} is not a time")
    return float(time_s)


def _texts(claim: object) -> list[str]:
    """Return the texts of a claim that is a text or a list of texts; empty for any other claim."""
    items = claim if isinstance(claim, list) else [claim]
    return [item for item in items if isinstance(item, str)] if all(isinstance(item, str) for item in items) else []


class TokenProvider:
    """Authentication by tokens that a key in the settings verifies.

    Args:
        key: The key that verifies the tokens.
        rules: The claims that tokens must have.
        clock: Returns the time, in seconds since 1970.
        others: Issuers whose tokens the OpenID provider checks, whichever of the two providers is asked first.
    """

    name = "AuthenticationProviderToken"
    method = "token"

    def __init__(
        self, key: TokenKey, rules: TokenRules, clock: Callable[[], float], others: frozenset[str] = frozenset()
    ) -> None:
        self._key = key
        self._rules = rules
        self._clock = clock
        self._others = others

    async def authenticate(self, evidence: Evidence) -> Principal:
        """Check the token, and return the identity of its client (errors as `verify`)."""
        if self._others and issuer_of(evidence.data) in self._others:
            raise NotAuthenticatedError(Failure.ISSUER, "another provider checks the tokens of this issuer")
        return verify(evidence.data, self._key, self._rules, self._clock())
