"""The identity of a client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pulsar_on_spark.model.names import MAX_NAME_BYTES, is_showable

MAX_ROLE_BYTES: Final = MAX_NAME_BYTES
"""Limit of a role's length in UTF-8, for clients and in permissions; the same as for any other name."""
UNKNOWN_METHOD: Final = "none"
"""Pulsar's name for the authentication method of a client that gives none."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The identity of a client, which authentication returns and on which authorization decides.

    Attributes:
        role: The name to which permissions are granted, as in Pulsar; the proxy's role if a proxy forwards the client.
        original_role: The role of the client that a proxy forwards; None without a proxy.
        expires_at_s: End of the credentials' validity, in seconds since 1970; None if they do not expire.
        method: The authentication method of the credentials.
        credential: The mark of the token, for the audit; "" for other credentials.

    Two clients that differ by method and credential only are equal.
    """

    role: str
    original_role: str | None = None
    expires_at_s: float | None = None
    method: str = field(default=UNKNOWN_METHOD, compare=False)
    credential: str = field(default="", compare=False)

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that must all have a right: the client's role, or the roles of the proxy and of its client."""
        return (self.role,) if self.original_role is None else (self.role, self.original_role)

    def is_expired(self, now_s: float) -> bool:
        """Return True if the credentials are no longer valid at `now_s`, in seconds since 1970."""
        return self.expires_at_s is not None and now_s >= self.expires_at_s

    def is_same_client(self, other: Principal) -> bool:
        """Return True if both have the same roles; their credentials may expire at different times."""
        return (self.role, self.original_role) == (other.role, other.original_role)


ANONYMOUS: Final = Principal("anonymous")
"""The identity of every client if authentication is off."""


def is_role(text: str) -> bool:
    """Return True if a text may be a role: 1 to `MAX_ROLE_BYTES` bytes, without characters that logs cannot show."""
    return 1 <= len(text.encode("utf-8", "surrogatepass")) <= MAX_ROLE_BYTES and is_showable(text)
