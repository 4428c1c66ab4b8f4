"""Interfaces of authentication and authorization. The only implementation allows everything to every client."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from pulsar_on_spark.model.errors import AccessDeniedError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.security.principal import ANONYMOUS, Principal


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


class Authentication(Protocol):
    """The state of one client's authentication; it lasts as long as its connection."""

    def step(self, data: bytes) -> Principal | Challenge:
        """Check the data of a CONNECT or AUTH_RESPONSE; return the client's identity, or the next challenge.

        An AUTH_RESPONSE of an authenticated client renews its credentials; the identity must stay the same.

        Raises:
            AccessDeniedError: the credentials are invalid.
        """


class Access(Protocol):
    """Authentication and authorization of clients. Methods may raise `AccessDeniedError`."""

    def authentication(self, method: str) -> Authentication:
        """Begin the authentication of a client by a method (`auth_method_name`)."""

    def authorize(self, principal: Principal, operation: Operation, topic: TopicName) -> None:
        """Refuse a client that may not do an operation on a topic."""

    def authorize_list(self, principal: Principal, namespace: str) -> None:
        """Refuse a client that may not list the topics of a namespace."""

    def administer(self, principal: Principal) -> None:
        """Refuse a client that may not administer the broker."""


def authenticate_at_once(access: Access, method: str, data: bytes) -> Principal:
    """Authenticate a client in one step, as over HTTP.

    Raises:
        AccessDeniedError: the credentials are invalid, or the method needs more steps.
    """
    outcome = access.authentication(method).step(data)
    if isinstance(outcome, Challenge):
        raise AccessDeniedError(f"Authentication {method!r} takes more than one step: use the binary protocol.")
    return outcome


class OpenAccess:
    """Access without authentication: every client is anonymous and may do everything, as in Pulsar by default."""

    def authentication(self, method: str) -> Authentication:
        """Accept any method."""
        return self

    def step(self, data: bytes) -> Principal | Challenge:
        """Accept any credentials."""
        return ANONYMOUS

    def authorize(self, principal: Principal, operation: Operation, topic: TopicName) -> None:
        """Allow every operation."""

    def administer(self, principal: Principal) -> None:
        """Allow every client to administer."""

    def authorize_list(self, principal: Principal, namespace: str) -> None:
        """Allow every client to list topics."""
