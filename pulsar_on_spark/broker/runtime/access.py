"""Interfaces of authentication and authorization. There is no authorization yet: a known client may do everything."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

from typing_extensions import override

from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.security.authentication import NO_CLAIM, Authentication, Claimed
from pulsar_on_spark.security.evidence import Certificate, Evidence, Failure, NotAuthenticatedError
from pulsar_on_spark.security.principal import ANONYMOUS, Principal

METHOD_HEADER: Final = "x-pulsar-auth-method-name"
ORIGINAL_PRINCIPAL_HEADER: Final = "x-original-principal"


class Operation(Enum):
    """An operation of a client on a topic."""

    LOOKUP = auto()
    PRODUCE = auto()
    REPLICATE = auto()
    CONSUME = auto()


@dataclass(frozen=True, slots=True)
class Challenge:
    """A challenge that a client must answer to authenticate (AUTH_CHALLENGE), as in SASL; tokens need none."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Hello:
    """The part of a CONNECT that authentication uses, without the credentials.

    Attributes:
        method: The authentication method (`auth_method_name`); "" if the client gives none.
        certificate: The client certificate that TLS has verified; None without one.
        claimed: The client that a proxy speaks for.
    """

    method: str
    certificate: Certificate | None = None
    claimed: Claimed = NO_CLAIM


class Login(Protocol):
    """The state of one client's authentication; it lasts as long as its connection."""

    async def step(self, data: bytes) -> Principal | Challenge:
        """Check the data of a CONNECT or AUTH_RESPONSE; return the client's identity, or the next challenge.

        An AUTH_RESPONSE of an authenticated client renews its credentials; the identity must stay the same.

        Raises:
            AccessDeniedError: the credentials are invalid.
        """


class Access(Protocol):
    """Authentication and authorization of clients. Methods may raise `AccessDeniedError`."""

    def login(self, hello: Hello) -> Login:
        """Begin the authentication of a client."""

    async def authenticate_http(self, headers: Mapping[str, str], certificate: Certificate | None) -> Principal:
        """Authenticate a request by its headers (names in lower case) and its connection's client certificate."""

    def authorize(self, principal: Principal, operation: Operation, topic: TopicName) -> None:
        """Refuse a client that may not do an operation on a topic."""

    def authorize_list(self, principal: Principal, namespace: str) -> None:
        """Refuse a client that may not list the topics of a namespace."""

    def administer(self, principal: Principal) -> None:
        """Refuse a client that may not administer the broker."""


class OpenAccess:
    """Access without authentication: every client is anonymous and may do everything, as in Pulsar by default."""

    def login(self, hello: Hello) -> Login:
        """Accept any method."""
        return self

    async def step(self, data: bytes) -> Principal | Challenge:
        """Accept any credentials."""
        return ANONYMOUS

    async def authenticate_http(self, headers: Mapping[str, str], certificate: Certificate | None) -> Principal:
        """Accept any request."""
        return ANONYMOUS

    def authorize(self, principal: Principal, operation: Operation, topic: TopicName) -> None:
        """Allow every operation."""

    def administer(self, principal: Principal) -> None:
        """Allow every client to administer."""

    def authorize_list(self, principal: Principal, namespace: str) -> None:
        """Allow every client to list topics."""


class AuthenticatedAccess(OpenAccess):
    """Access with authentication: every client that is known may do everything.

    Args:
        authentication: The providers and their rules.
    """

    def __init__(self, authentication: Authentication) -> None:
        self._authentication = authentication

    def login(self, hello: Hello) -> Login:
        """Begin the authentication of a client."""
        return _Login(self._authentication, hello)

    async def authenticate_http(self, headers: Mapping[str, str], certificate: Certificate | None) -> Principal:
        """Authenticate a request.

        Raises:
            NotAuthenticatedError: its credentials are missing or invalid.
        """
        return await self._authentication.authenticate_http(
            headers.get(METHOD_HEADER),
            http_evidence(headers, certificate),
            Claimed(headers.get(ORIGINAL_PRINCIPAL_HEADER, "")),
        )


class _Login(Login):
    """The authentication of one client in one step, and the renewals of its credentials."""

    def __init__(self, authentication: Authentication, hello: Hello) -> None:
        self._authentication = authentication
        self._hello = hello
        self._connected_by: bytes | None = None
        """The credentials of a proxy, which its clients' renewals are checked together with."""

    @override
    async def step(self, data: bytes) -> Principal | Challenge:
        claimed = self._hello.claimed
        if self._connected_by is not None:
            # The answer to a challenge comes from the proxy's client.
            claimed, data = Claimed(claimed.role, claimed.method, data), self._connected_by
        evidence = Evidence(data, self._hello.certificate)
        found = await self._authentication.authenticate(self._hello.method, evidence, claimed)
        if found.is_expired(time.time()):
            raise NotAuthenticatedError(Failure.EXPIRED, "the credentials are expired")
        if found.original_role is not None and self._authentication.proxies.verifies:
            self._connected_by = data
        return found


def http_evidence(headers: Mapping[str, str], certificate: Certificate | None) -> dict[str, Evidence]:
    """Return the credentials of a request by method: `Authorization: Bearer` or `Basic`, and the client certificate.

    Raises:
        NotAuthenticatedError: the header is malformed.
    """
    found: dict[str, Evidence] = {}
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        found["token"] = Evidence(value.strip().encode("utf-8", "surrogateescape"))
    elif scheme.lower() == "basic":
        try:
            found["basic"] = Evidence(base64.b64decode(value.strip(), validate=True))
        except (binascii.Error, ValueError):
            raise NotAuthenticatedError(Failure.MALFORMED, "the header Authorization is not base64") from None
    elif scheme:
        raise NotAuthenticatedError(Failure.METHOD, "the header Authorization is neither Bearer nor Basic")
    if certificate:
        found["tls"] = Evidence(certificate=certificate)
    return found
