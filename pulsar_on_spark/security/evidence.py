"""The credentials that a client presents, the interface of providers that check them, and the refusal of bad ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

from pulsar_on_spark.model.errors import AccessDeniedError
from pulsar_on_spark.security.principal import UNKNOWN_METHOD, Principal

TOKEN_METHOD: Final = "token"
_MARK_DIGITS: Final = 8
Certificate = Mapping[str, Any]
"""A verified certificate, as `ssl.SSLObject.getpeercert` returns it."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The credentials of a client.

    Attributes:
        data: The token, or user and password; not in the `repr`, because logs must not contain it.
        certificate: The client certificate that TLS has verified; None without one.
        headers: The headers of an HTTP request, by names in lower case; empty over Pulsar's protocol.
    """

    data: bytes = field(default=b"", repr=False)
    certificate: Certificate | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


def mark_of(method: str, data: bytes) -> str:
    """Return a token's mark, by which operators find its uses: 8 hex digits of its SHA-256.

    Args:
        method: Pulsar's name of the authentication method; other methods than tokens have the mark "".
        data: The authentication data from the client: for the token method, the token itself.
    """
    token = data.strip() if method == TOKEN_METHOD else b""
    return hashlib.sha256(token).hexdigest()[:_MARK_DIGITS] if token else ""


class Failure(StrEnum):
    """The reason for a refusal. There are few values, because they are labels of metrics."""

    MISSING = "missing"
    MALFORMED = "malformed"
    TOO_LONG = "too_long"
    SIGNATURE = "invalid_signature"
    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    AUDIENCE = "wrong_audience"
    ISSUER = "unknown_issuer"
    ROLE = "no_role"
    PASSWORD = "wrong_password"
    METHOD = "unknown_method"
    PROXY = "invalid_proxy"
    UNAVAILABLE = "issuer_unavailable"
    PLUGIN = "plugin_failed"


class NotAuthenticatedError(AccessDeniedError):
    """The client's credentials are missing or invalid.

    Args:
        failure: The kind of the reason, for metrics.
        reason: The reason in words, for the log; clients do not get it. It must not contain a part of the credentials.

    Attributes:
        provider: The name of the provider that refused the client; `none` if no provider was asked.
        method: The method of that provider; `none` if no provider was asked.
        credential: The mark of the refused token; "" for other credentials.
    """

    def __init__(self, failure: Failure, reason: str) -> None:
        super().__init__(reason)
        self.failure = failure
        self.provider = self.method = UNKNOWN_METHOD
        self.credential = ""


class Provider(Protocol):
    """A check of credentials of one method.

    Attributes:
        name: The name of the provider, for metrics: Pulsar's class name.
        method: The authentication method, such as `token`.
    """

    name: str
    method: str

    async def authenticate(self, evidence: Evidence) -> Principal:
        """Check the credentials of a client, and return the client's identity.

        Raises:
            NotAuthenticatedError: the credentials are missing or invalid.
        """
