"""Authentication of clients: the choice of the provider that checks their credentials, the anonymous role, and proxies.

| method of the client's credentials | outcome |
|---|---|
| has providers | the first provider that accepts them decides; if none does, the client is refused |
| has no provider | over HTTP the client is refused, as in Pulsar; else it gets the anonymous role, if there is one |
| is not named, over HTTP | each provider is tried; only a client without credentials gets the anonymous role |

If several providers refuse a client, the last refusal is reported. But a refusal with `Failure.ISSUER`, which only says
that the token is for another provider, is reported only if no provider gives another reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final

from pulsar_on_spark.security.evidence import Evidence, Failure, NotAuthenticatedError, Provider, mark_of
from pulsar_on_spark.security.meter import AuthenticationMeter
from pulsar_on_spark.security.principal import UNKNOWN_METHOD, Principal, is_role

REFRESH: Final = b"PulsarAuthRefresh"
"""The data of the AUTH_CHALLENGE that asks a client for new credentials; clients recognise it."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The client that a proxy forwards, as the proxy describes it.

    Attributes:
        role: The client's role (`original_principal`); "" without a proxy.
        method: The method of the client's credentials; "" if they are not forwarded.
        data: The client's credentials; empty if they are not forwarded.
    """

    role: str = ""
    method: str = ""
    data: bytes = field(default=b"", repr=False)


NO_CLAIM: Final = Claimed()
"""The claim of a client that does not act for another one."""


@dataclass(frozen=True, slots=True)
class Proxies:
    """The proxies, which may act for other clients.

    Attributes:
        roles: The roles of proxies.
        verifies: True if proxies forward the credentials of their clients, which are then checked, too.
    """

    roles: frozenset[str] = frozenset()
    verifies: bool = False

    def principal_of(self, connected: Principal, original_role: str) -> Principal:
        """Return the identity of the client that a connection acts for: with the original role behind a proxy.

        Args:
            connected: The identity of the client that holds the connection.
            original_role: The role that this client acts for; "" for none.

        Raises:
            NotAuthenticatedError: a proxy acts for no client, for another proxy or for an invalid role; or a client
                that is not a proxy acts for another role.
        """
        if connected.role in self.roles:
            if not original_role or original_role in self.roles:
                raise NotAuthenticatedError(
                    Failure.PROXY, f"the proxy {connected.role!r} acts for no client, or for another proxy"
                )
            if not is_role(original_role):
                raise NotAuthenticatedError(
                    Failure.PROXY, f"the proxy {connected.role!r} acts for a client whose role is invalid"
                )
            return replace(connected, original_role=original_role)
        if original_role and original_role != connected.role:
            raise NotAuthenticatedError(
                Failure.PROXY, f"{connected.role!r} acts for another role, and proxy_roles does not list it"
            )
        return connected


_NO_PROXIES: Final = Proxies()


@dataclass(frozen=True, slots=True)
class Authentication:
    """The authentication of a broker's clients by its providers.

    Attributes:
        providers: The providers, in the order in which they are tried.
        anonymous_role: The role of clients without credentials; None if they are refused.
        strict: True if HTTP clients must name their method.
        proxies: The roles that may act for other clients.
        meter: The counts of outcomes, for metrics.
    """

    providers: Sequence[Provider]
    anonymous_role: str | None = None
    strict: bool = False
    proxies: Proxies = _NO_PROXIES
    meter: AuthenticationMeter = field(default_factory=AuthenticationMeter)

    async def authenticate(self, method: str, evidence: Evidence, claimed: Claimed) -> Principal:
        """Return the identity of a client and, if it is a proxy, of the client that it forwards.

        Args:
            method: The method of the credentials; "" if the client gives none.
            evidence: The credentials.
            claimed: The client that a proxy forwards; `NO_CLAIM` without a proxy.

        Raises:
            NotAuthenticatedError: the credentials are missing or invalid.
        """
        try:
            connected = await self._by_method(method or UNKNOWN_METHOD, evidence)
            return await self._with_original(connected, claimed)
        except NotAuthenticatedError as refusal:
            self.meter.note_failure(refusal)
            raise

    async def authenticate_http(
        self, method: str | None, evidences: Mapping[str, Evidence], claimed: Claimed
    ) -> Principal:
        """Return the identity of an HTTP client and, if it is a proxy, of the client that it forwards.

        Args:
            method: The method that the client names (`X-Pulsar-Auth-Method-Name`); None if it names none.
            evidences: The credentials that the client sends, by method.
            claimed: The client that a proxy forwards; `NO_CLAIM` without a proxy.

        Raises:
            NotAuthenticatedError: the credentials are missing or invalid.
        """
        try:
            if method is not None and not any(provider.method == method for provider in self.providers):
                raise _no_provider(method)
            if method is not None:
                connected = await self._by_method(method, evidences.get(method, Evidence()))
            elif self.strict:
                raise NotAuthenticatedError(Failure.METHOD, "the request does not name its authentication method")
            else:
                connected = await self._by_any(evidences)
            return await self._with_original(connected, claimed)
        except NotAuthenticatedError as refusal:
            self.meter.note_failure(refusal)
            raise

    async def _by_any(self, evidences: Mapping[str, Evidence]) -> Principal:
        asked = [(provider, evidences[provider.method]) for provider in self.providers if provider.method in evidences]
        return await self._by(asked, NotAuthenticatedError(Failure.MISSING, "the request has no credentials"))

    async def _by_method(self, method: str, evidence: Evidence) -> Principal:
        asked = [(provider, evidence) for provider in self.providers if provider.method == method]
        return await self._by(asked, _no_provider(method))

    async def _by(self, asked: Sequence[tuple[Provider, Evidence]], nothing: NotAuthenticatedError) -> Principal:
        """Return the client's identity from the first provider that accepts its credentials, or the anonymous role.

        Args:
            asked: The providers to ask in turn, each with its credentials.
            nothing: The refusal if there is no provider to ask and no anonymous role.

        Raises:
            NotAuthenticatedError: all providers refuse the credentials, or `nothing`.
        """
        refusal: NotAuthenticatedError | None = None
        for provider, evidence in asked:
            mark = mark_of(provider.method, evidence.data)
            try:
                principal = await provider.authenticate(evidence)
            except NotAuthenticatedError as error:
                error.provider, error.method, error.credential = provider.name, provider.method, mark
                if refusal is None or error.failure is not Failure.ISSUER:
                    refusal = error
            else:
                self.meter.note_success(provider.name, provider.method)
                return replace(principal, method=provider.method, credential=mark)
        if refusal is not None:
            raise refusal
        if self.anonymous_role is None:
            raise nothing
        return Principal(self.anonymous_role)

    async def _with_original(self, connected: Principal, claimed: Claimed) -> Principal:
        if not self.proxies.verifies or connected.role not in self.proxies.roles:
            return self.proxies.principal_of(connected, claimed.role)
        original = await self._by_method(claimed.method or UNKNOWN_METHOD, Evidence(claimed.data))
        if claimed.role and claimed.role != original.role:
            raise NotAuthenticatedError(Failure.PROXY, "the proxy's client has another role than the proxy says")
        principal = self.proxies.principal_of(connected, original.role)
        ends = [client.expires_at_s for client in (connected, original) if client.expires_at_s is not None]
        return replace(principal, expires_at_s=min(ends, default=None))


def _no_provider(method: str) -> NotAuthenticatedError:
    return NotAuthenticatedError(Failure.METHOD, f"there is no provider of the method {method[:64]!r}")


class Renewal(Enum):
    """The step to take with a connection whose credentials may have expired: none, ask for new ones, or close it."""

    NONE = auto()
    CHALLENGE = auto()
    CLOSE = auto()


def next_renewal(principal: Principal | None, now_s: float, *, can_renew: bool, is_challenged: bool) -> Renewal:
    """Return the step to take with a connection at a regular check of its credentials.

    Args:
        principal: The connection's client; None before it is authenticated.
        now_s: The current time, in seconds since 1970.
        can_renew: True if the client can send new credentials.
        is_challenged: True if the client was asked for new credentials and has not answered.
    """
    if principal is None or not principal.is_expired(now_s):
        return Renewal.NONE
    return Renewal.CHALLENGE if can_renew and not is_challenged else Renewal.CLOSE
