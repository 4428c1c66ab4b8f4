"""Authentication and authorization of clients: their interface, and the rules bound to settings and metadata."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from typing_extensions import override

from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.metadata.records import PermissionsRecord, TenantRecord
from pulsar_on_spark.metadata.state import RecentView
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.security.authentication import NO_CLAIM, Authentication, Claimed
from pulsar_on_spark.security.evidence import Certificate, Evidence, Failure, NotAuthenticatedError
from pulsar_on_spark.security.grants import Authorities, Grants
from pulsar_on_spark.security.operations import Operation, Resource
from pulsar_on_spark.security.principal import ANONYMOUS, Principal
from pulsar_on_spark.security.rules import ALLOWED, Decision, NotAuthorizedError, decide

METHOD_HEADER: Final = "x-pulsar-auth-method-name"
ORIGINAL_PRINCIPAL_HEADER: Final = "x-original-principal"
_HTTP_METHODS: Final = ("token", "basic", "tls")
"""The methods whose credentials are in standard parts of an HTTP request."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """A challenge that a client must answer to authenticate (AUTH_CHALLENGE), as in SASL; tokens need none.

    Attributes:
        data: The bytes of the challenge, in the format of the authentication method.
    """

    data: bytes


@dataclass(frozen=True, slots=True)
class Hello:
    """The part of a CONNECT that authentication uses, without the credentials.

    Attributes:
        method: The authentication method (`auth_method_name`); "" if the client gives none.
        certificate: The client certificate that TLS has verified; None without one.
        claimed: The role and credentials of the client that a proxy speaks for; `NO_CLAIM` if it is not a proxy.
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
    """Authentication and authorization of clients."""

    def login(self, hello: Hello) -> Login:
        """Begin the authentication of a client, and return its state.

        Raises:
            AccessDeniedError: the client cannot be authenticated.
        """

    async def authenticate_http(self, headers: Mapping[str, str], certificate: Certificate | None) -> Principal:
        """Authenticate an HTTP request, and return the identity of its client.

        Args:
            headers: The request's headers, by names in lower case.
            certificate: The client certificate that TLS has verified; None without one.

        Raises:
            NotAuthenticatedError: the request's credentials are missing or invalid.
        """

    def decide(self, principal: Principal, operation: Operation, resource: Resource) -> Decision:
        """Decide if a client may do an operation on a resource; a refusal has the reason."""


def authorize(access: Access, principal: Principal, operation: Operation, resource: Resource) -> None:
    """Require that a client may do an operation on a resource.

    Raises:
        NotAuthorizedError: the client may not do it.
    """
    decision = access.decide(principal, operation, resource)
    if not decision.is_allowed:
        raise NotAuthorizedError(decision.reason, decision.status)


class OpenAccess(Access):
    """Access without authentication: every client is anonymous and may do everything, as in Pulsar by default."""

    @override
    def login(self, hello: Hello) -> Login:
        return self

    async def step(self, data: bytes) -> Principal | Challenge:
        """Accept any credentials, and return the anonymous identity."""
        return ANONYMOUS

    @override
    async def authenticate_http(self, headers: Mapping[str, str], certificate: Certificate | None) -> Principal:
        return ANONYMOUS

    @override
    def decide(self, principal: Principal, operation: Operation, resource: Resource) -> Decision:
        return ALLOWED


class AuthenticatedAccess(OpenAccess):
    """Access with authentication alone: every authenticated client may do everything.

    Args:
        authentication: The providers and their rules.
    """

    def __init__(self, authentication: Authentication) -> None:
        self._authentication = authentication

    @override
    def login(self, hello: Hello) -> Login:
        return _Login(self._authentication, hello)

    @override
    async def authenticate_http(self, headers: Mapping[str, str], certificate: Certificate | None) -> Principal:
        method = headers.get(METHOD_HEADER)
        evidences = http_evidence(method, headers, certificate)
        claimed = Claimed(headers.get(ORIGINAL_PRINCIPAL_HEADER, ""))
        principal = await self._authentication.authenticate_http(method, evidences, claimed)
        _require_valid(self._authentication, principal)
        return principal


class AuthorizedAccess(AuthenticatedAccess):
    """Access with authentication and authorization, which decides on the view that was read last.

    Args:
        authentication: The providers and their rules.
        authorities: The super users and other rules that the broker's settings give.
        views: The views of the root's metadata.
    """

    def __init__(self, authentication: Authentication, authorities: Authorities, views: Views) -> None:
        super().__init__(authentication)
        self._authorities = authorities
        self._views = views

    @override
    def decide(self, principal: Principal, operation: Operation, resource: Resource) -> Decision:
        return decide(grants_of(self._views.recent, self._authorities, resource), principal, operation, resource)


def grants_of(view: RecentView, authorities: Authorities, resource: Resource) -> Grants:
    """Return the grants that decide on a resource: two look-ups in the view, without copies.

    Args:
        view: The metadata, which contain tenants and permissions.
        authorities: The super users and other rules that the broker's settings give.
        resource: The tenant, namespace, topic or subscription.
    """
    tenant = view.get(TenantRecord, resource.tenant)
    admins = () if tenant is None else tenant.admin_roles
    permissions = view.get(PermissionsRecord, resource.namespace)
    if permissions is None:
        return Grants(authorities, admins)
    is_prefixed = permissions.subscription_auth_mode == "Prefix"
    return Grants(
        authorities,
        admins,
        permissions.namespace_auth,
        permissions.topic_auth,
        permissions.subscription_auth,
        is_prefixed=is_prefixed,
    )


def access_of(settings: BrokerSettings, authentication: Authentication | None) -> Callable[[Views], Access]:
    """Return a function that creates the broker's `Access` from the views of its root.

    Args:
        settings: The broker's settings.
        authentication: The broker's authentication; None if it is off.

    Raises:
        InvalidArgumentError: authorization is enabled without authentication.
    """
    authorities = _authorities_of(settings)
    if authentication is None:
        return lambda views: OpenAccess()
    if authorities is None:
        return lambda views: AuthenticatedAccess(authentication)
    return partial(AuthorizedAccess, authentication, authorities)


def _authorities_of(settings: BrokerSettings) -> Authorities | None:
    """Return the super users and other rules that a broker's settings give; None if authorization is off.

    Raises:
        InvalidArgumentError: authorization is enabled without authentication.
    """
    if not settings.authorization_enabled:
        return None
    if not settings.authentication_enabled:
        raise InvalidArgumentError(
            "Setting authorization_enabled needs authentication_enabled, because rights belong to roles that clients "
            "have proved: set both, or neither."
        )
    super_users = frozenset(filter(None, settings.super_user_roles))
    return Authorities(super_users, settings.authorization_allow_wildcards_matching)


class _Login(Login):
    """The authentication of one client in one step, and the renewals of its credentials."""

    def __init__(self, authentication: Authentication, hello: Hello) -> None:
        self._authentication = authentication
        self._hello = hello
        self._connected_by: bytes | None = None
        """The proxy's own credentials, with which a renewal by its client is checked; None before a proxy's CONNECT."""

    @override
    async def step(self, data: bytes) -> Principal | Challenge:
        claimed = self._hello.claimed
        if self._connected_by is not None:
            # The answer to a challenge comes from the proxy's client.
            claimed, data = Claimed(claimed.role, claimed.method, data), self._connected_by
        evidence = Evidence(data, self._hello.certificate)
        principal = await self._authentication.authenticate(self._hello.method, evidence, claimed)
        _require_valid(self._authentication, principal)
        if principal.original_role is not None and self._authentication.proxies.verifies:
            self._connected_by = data
        return principal


def _require_valid(authentication: Authentication, principal: Principal) -> None:
    """Require that credentials are not expired: TLS verifies a certificate only when its client connects.

    Raises:
        NotAuthenticatedError: the credentials are expired.
    """
    if principal.is_expired(time.time()):
        refusal = NotAuthenticatedError(Failure.EXPIRED, "the credentials are expired")
        authentication.meter.note_failure(refusal)
        raise refusal


def http_evidence(
    method: str | None, headers: Mapping[str, str], certificate: Certificate | None
) -> dict[str, Evidence]:
    """Return the credentials of a request by method: `Authorization: Bearer` or `Basic`, and the client certificate.

    Only plug-ins have other methods. They find their credentials themselves, if the request names their method.

    Args:
        method: The method that the request names; None if it names none.
        headers: The request's headers, by names in lower case.
        certificate: The client certificate that TLS has verified; None without one.

    Raises:
        NotAuthenticatedError: the header `Authorization` is malformed.
    """
    request = Evidence(certificate=certificate, headers=headers)
    if method is not None and method not in _HTTP_METHODS:
        return {method: request}
    evidences: dict[str, Evidence] = {}
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        evidences["token"] = replace(request, data=value.strip().encode("utf-8", "surrogateescape"))
    elif scheme.lower() == "basic":
        try:
            evidences["basic"] = replace(request, data=base64.b64decode(value.strip(), validate=True))
        except (binascii.Error, ValueError):
            raise NotAuthenticatedError(Failure.MALFORMED, "the header Authorization is not base64") from None
    elif scheme:
        raise NotAuthenticatedError(Failure.METHOD, "the header Authorization is neither Bearer nor Basic")
    if certificate:
        evidences["tls"] = request
    return evidences
