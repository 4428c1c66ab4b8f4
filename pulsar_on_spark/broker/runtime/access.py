"""Who may do what: where authentication and authorization are plugged in. So far everybody may do everything."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

from pulsar_on_spark.model.errors import AccessDeniedError
from pulsar_on_spark.model.names import TopicName

ANONYMOUS: Final = "anonymous"


class Operation(Enum):
    """What a client asks to do with a topic."""

    LOOKUP = auto()
    PRODUCE = auto()
    REPLICATE = auto()
    CONSUME = auto()


@dataclass(frozen=True, slots=True)
class Challenge:
    """What a client is to answer before it is known (AUTH_CHALLENGE), as in SASL; a token needs none."""

    data: bytes


class Authentication(Protocol):
    """One client's proof of who it is; it lasts as long as its connection."""

    def step(self, data: bytes) -> str | Challenge:
        """What the client presents, at CONNECT or in an AUTH_RESPONSE: its role, or what it is asked next.

        An AUTH_RESPONSE of a client that is known proves it anew; it must be the same role.

        Raises:
            AccessDeniedError: it is not who it must be.
        """


class Access(Protocol):
    """Decides on clients. Methods may raise `AccessDeniedError`."""

    def authentication(self, method: str) -> Authentication:
        """Begin to find out who somebody is who names this method (`auth_method_name`)."""

    def authorize(self, role: str, operation: Operation, topic: TopicName) -> None:
        """Refuse a role that may not do so."""

    def authorize_list(self, role: str, namespace: str) -> None:
        """Refuse a role that may not know which topics a namespace has."""

    def administer(self, role: str) -> None:
        """Refuse a role that is no administrator."""


def role_at_once(access: Access, method: str, data: bytes) -> str:
    """The role of who has but one step, as over HTTP.

    Raises:
        AccessDeniedError: it is not who it must be, or its method needs more steps.
    """
    outcome = access.authentication(method).step(data)
    if isinstance(outcome, Challenge):
        raise AccessDeniedError(f"Authentication {method!r} takes more than one step: use the binary protocol.")
    return outcome


class OpenAccess:
    """Everybody is anonymous, whatever they present, and may do everything: Pulsar without authentication."""

    def authentication(self, method: str) -> Authentication:
        """See `Access`."""
        return self

    def step(self, data: bytes) -> str | Challenge:
        """See `Authentication`."""
        return ANONYMOUS

    def authorize(self, role: str, operation: Operation, topic: TopicName) -> None:
        """See `Access`."""

    def administer(self, role: str) -> None:
        """See `Access`."""

    def authorize_list(self, role: str, namespace: str) -> None:
        """See `Access`."""
