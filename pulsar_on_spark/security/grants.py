"""Grants of a namespace, by which the rules decide: super users, the tenant's administrators, permissions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from pulsar_on_spark.security.operations import Action, Resource

Permissions = Mapping[str, Sequence[str]]
"""The actions that are granted, by role."""
_NO_PERMISSIONS: Final[Permissions] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Authorities:
    """The rights that the broker's settings give to roles.

    Attributes:
        super_users: The roles that may do everything.
        allows_wildcards: True if a `*` at the beginning or end of a role in a permission matches any text.
    """

    super_users: frozenset[str] = frozenset()
    allows_wildcards: bool = False


@dataclass(frozen=True, slots=True)
class Grants:
    """The rights that roles have in a namespace and its tenant.

    Attributes:
        authorities: The rights that the broker's settings give.
        admins: The roles of the tenant's administrators; empty if there is no such tenant.
        namespace: The permissions on the namespace.
        topics: The permissions on topics, by full name.
        subscriptions: By subscription name, the only roles that may use the subscription; without an entry, any role
            may.
        is_prefixed: True if a subscription's name must begin with its consumers' role (mode `Prefix`).
    """

    authorities: Authorities
    admins: Sequence[str] = ()
    namespace: Permissions = field(default_factory=dict)
    topics: Mapping[str, Permissions] = field(default_factory=dict)
    subscriptions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    is_prefixed: bool = False

    def may(self, role: str, action: Action, resource: Resource) -> bool:
        """Return True if a permission on the namespace, topic or partitioned topic grants the action to the role."""
        return any(self._has(granted, role, action) for granted in self._permissions(resource))

    def may_use_subscription(self, role: str, subscription: str) -> bool:
        """Return True if a role that may consume a topic may use a subscription; always for "", no subscription."""
        if not subscription:
            return True
        roles = self.subscriptions.get(subscription)
        return (not roles or role in roles) and (not self.is_prefixed or subscription.startswith(role))

    def _permissions(self, resource: Resource) -> Iterator[Permissions]:
        yield self.namespace
        if resource.topic is not None:
            for name in dict.fromkeys((resource.topic.full, resource.topic.partitioned_base.full)):
                yield self.topics.get(name, _NO_PERMISSIONS)

    def _has(self, granted: Permissions, role: str, action: Action) -> bool:
        if action in granted.get(role, ()):
            return True
        return self.authorities.allows_wildcards and any(
            action in actions and _matches(pattern, role) for pattern, actions in granted.items()
        )


def _matches(pattern: str, role: str) -> bool:
    """Return True if a pattern `x*` is the beginning of the role, or a pattern `*x` its end."""
    return (pattern.endswith("*") and role.startswith(pattern[:-1])) or (
        pattern.startswith("*") and role.endswith(pattern[1:])
    )
