"""Tokens of OpenID issuers (Pulsar's AuthenticationProviderOpenID): the decisions, without the requests to issuers.

An issuer publishes its metadata at a well-known URL; the metadata has the URL of its keys (JWKS). A token names its
issuer and one of these keys (`kid`). Only issuers in the settings are asked, so no token can make the broker request
another URL.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final
from urllib.parse import urlsplit

from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.security.evidence import Failure, NotAuthenticatedError
from pulsar_on_spark.security.keys import TokenKey, issuer_key
from pulsar_on_spark.security.principal import Principal
from pulsar_on_spark.security.providers.token import (
    AUDIENCE_CLAIM,
    TokenRules,
    key_name_of,
    principal_of,
    verified_claims,
)

REFRESH_S: Final = 18 * 3600.0
"""Age at which keys are fetched again while logins still use the known keys."""
EXPIRY_S: Final = 24 * 3600.0
"""Age at which keys are no longer used."""
UNKNOWN_KEY_S: Final = 300.0
"""Age at which keys are fetched again for a token that names an unknown key, because issuers rotate their keys."""
RETRY_S: Final = 5.0
"""Pause after a failed fetch, during which logins without keys are refused at once."""
MAX_KEYS: Final = 100
"""Limit of an issuer's keys; further keys are ignored. Issuers have a few."""
_WELL_KNOWN: Final = "/.well-known/openid-configuration"


class IssuerError(PulsarpyError):
    """An issuer gave no usable answer."""


@dataclass(frozen=True, slots=True)
class OpenIdRules:
    """The rules for accepted tokens of OpenID issuers.

    Attributes:
        issuers: The issuers, as their tokens name them (`iss`).
        claims: The claims that tokens must have.
        requires_https: True if issuers and the URLs of their keys must have the scheme https.
    """

    issuers: frozenset[str]
    claims: TokenRules
    requires_https: bool = True

    @classmethod
    def of(
        cls,
        issuers: frozenset[str],
        audiences: frozenset[str],
        *,
        role_claim: str = "sub",
        leeway_s: float = 0,
        requires_https: bool = True,
    ) -> OpenIdRules:
        """Create the rules.

        Args:
            issuers: The issuers, as their tokens name them (`iss`).
            audiences: The broker's audiences, of which a token must name one.
            role_claim: The claim of the role.
            leeway_s: Seconds by which the clocks of issuer and broker may differ.
            requires_https: True if issuers and the URLs of their keys must have the scheme https.
        """
        claims = TokenRules(role_claim, AUDIENCE_CLAIM, audiences, leeway_s)
        return cls(issuers, claims, requires_https)

    def principal_of(self, token: bytes, keys: Mapping[str, TokenKey], now_s: float) -> Principal:
        """Check a token with the keys of its issuer, and return the client's identity.

        Args:
            token: The token in its compact form.
            keys: The issuer's keys, by name (`kid`).
            now_s: The current time, in seconds since 1970.

        Raises:
            NotAuthenticatedError: the token is invalid.
        """
        key = keys.get(key_name_of(token))
        if key is None:
            raise NotAuthenticatedError(Failure.SIGNATURE, "the token names no key of its issuer")
        claims = verified_claims(token, key)
        if claims.get("exp") is None:
            raise NotAuthenticatedError(Failure.MALFORMED, "the token of an issuer has no expiry (exp)")
        return principal_of(claims, self.claims, now_s)


def metadata_url(issuer: str) -> str:
    """Return the URL of an issuer's metadata."""
    return issuer.removesuffix("/") + _WELL_KNOWN


def is_usable(url: str, *, requires_https: bool) -> bool:
    """Return True if this is an absolute URL with a scheme that may be requested."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in (("https",) if requires_https else ("https", "http")) and bool(parts.hostname)


def keys_url_of(metadata: bytes, issuer: str, *, requires_https: bool) -> str:
    """Return the URL of an issuer's keys.

    Args:
        metadata: The issuer's metadata, a JSON object.
        issuer: The issuer, as the settings name it.
        requires_https: True if the URL must have the scheme https.

    Raises:
        IssuerError: the content is not the metadata of this issuer, or the URL is missing or has another scheme.
    """
    answer = _object(metadata, "metadata")
    if answer.get("issuer") != issuer:
        raise IssuerError("its metadata names another issuer: list the issuer as the metadata spells it")
    url = answer.get("jwks_uri")
    if not isinstance(url, str) or not is_usable(url, requires_https=requires_https):
        raise IssuerError("its metadata has no usable jwks_uri")
    return url


def keys_of(content: bytes) -> dict[str, TokenKey]:
    """Return the keys in an issuer's JWKS by name (`kid`); keys of unknown kinds, or for other uses, are left out.

    Raises:
        IssuerError: the content is not a set of keys.
    """
    listed = _object(content, "keys").get("keys")
    if not isinstance(listed, list):
        raise IssuerError("its keys are not a JWKS")
    keys: dict[str, TokenKey] = {}
    for jwk in listed[:MAX_KEYS]:
        name = jwk.get("kid") if isinstance(jwk, dict) else None
        key = issuer_key(jwk) if isinstance(name, str) and name else None
        if key is not None:
            keys.setdefault(str(name), key)
    return keys


def _object(content: bytes, what: str) -> Mapping[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise IssuerError(f"the answer for its {what} is not JSON") from None
    if not isinstance(value, dict):
        raise IssuerError(f"the answer for its {what} is not a JSON object")
    return value


@dataclass(frozen=True, slots=True)
class KnownKeys:
    """The keys of an issuer.

    Attributes:
        keys: The keys, by name (`kid`).
        fetched_s: The time of the answer, in seconds on the monotonic clock.
    """

    keys: Mapping[str, TokenKey]
    fetched_s: float


class Fetch(Enum):
    """The decision to request the keys of an issuer, or not."""

    NONE = auto()
    BESIDE = auto()
    """Request the keys, but check the token with the known keys meanwhile."""
    FIRST = auto()
    """Request the keys, and check the token after the answer."""


def next_fetch(known: KnownKeys | None, key_name: str, now_s: float) -> Fetch:
    """Decide if the keys of an issuer must be requested before a token is checked.

    Args:
        known: The issuer's keys; None before the first answer.
        key_name: The name of the key that the token names (`kid`).
        now_s: The current time in seconds, on the clock of `fetched_s`.
    """
    if known is None:
        return Fetch.FIRST
    age_s = now_s - known.fetched_s
    if age_s >= EXPIRY_S or (key_name not in known.keys and age_s >= UNKNOWN_KEY_S):
        return Fetch.FIRST
    return Fetch.BESIDE if age_s >= REFRESH_S else Fetch.NONE
