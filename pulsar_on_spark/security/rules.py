"""The rules of authorization: which role may do which operation. Pure.

Super users may do everything. A tenant's administrators may do everything in the tenant except operations on the
cluster. All other roles may do only what `_RIGHTS` lists for their permissions. System topics belong to super users,
because their content decides about other topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from pulsar_on_spark.model.errors import AccessDeniedError
from pulsar_on_spark.model.names import SYSTEM_NAMESPACE
from pulsar_on_spark.security.grants import Grants
from pulsar_on_spark.security.operations import (
    NamespaceOperation,
    Operation,
    PolicyOperation,
    Resource,
    SuperUserOperation,
    TopicOperation,
)
from pulsar_on_spark.security.principal import Principal

_COORDINATOR: Final = "transaction_coordinator_assign"
"""The system topic of transaction coordinators, which every client looks up."""


class NotAuthorizedError(AccessDeniedError):
    """The client may not do the operation.

    Args:
        reason: The reason, one sentence that the client may get.
        status: The HTTP status, as Pulsar's: 401 or 403.
    """

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of the rules.

    Attributes:
        is_allowed: True if the client may do the operation.
        reason: One sentence for a refused client; "" if the operation is allowed.
        status: The HTTP status of the refusal; 200 if the operation is allowed.
    """

    is_allowed: bool
    reason: str = ""
    status: int = 200


ALLOWED: Final = Decision(True)


class _Right(Enum):
    """The permissions that suffice for an operation."""

    EITHER = auto()
    PRODUCE = auto()
    CONSUME = auto()


_RIGHTS: Final[Mapping[Operation, _Right]] = {
    NamespaceOperation.GET_TOPICS: _Right.EITHER,
    NamespaceOperation.GET_BUNDLE: _Right.EITHER,
    NamespaceOperation.CLEAR_BACKLOG: _Right.CONSUME,
    NamespaceOperation.UNSUBSCRIBE: _Right.CONSUME,
    TopicOperation.LOOKUP: _Right.EITHER,
    TopicOperation.GET_STATS: _Right.EITHER,
    TopicOperation.GET_METADATA: _Right.EITHER,
    TopicOperation.PRODUCE: _Right.PRODUCE,
    TopicOperation.CONSUME: _Right.CONSUME,
    TopicOperation.SUBSCRIBE: _Right.CONSUME,
    TopicOperation.UNSUBSCRIBE: _Right.CONSUME,
    TopicOperation.GET_SUBSCRIPTIONS: _Right.CONSUME,
    TopicOperation.SKIP: _Right.CONSUME,
    TopicOperation.EXPIRE_MESSAGES: _Right.CONSUME,
    TopicOperation.PEEK_MESSAGES: _Right.CONSUME,
    TopicOperation.RESET_CURSOR: _Right.CONSUME,
    TopicOperation.GET_BACKLOG_SIZE: _Right.CONSUME,
    TopicOperation.SET_REPLICATED_SUBSCRIPTION_STATUS: _Right.CONSUME,
    TopicOperation.GET_REPLICATED_SUBSCRIPTION_STATUS: _Right.CONSUME,
}
"""Operations that permissions allow; all other operations are for the tenant's administrators, or for super users."""


def decide(grants: Grants, principal: Principal, operation: Operation, resource: Resource) -> Decision:
    """Decide if a client may do an operation. A proxy and the client that it forwards must both be allowed.

    Args:
        grants: The grants in the resource's namespace and tenant.
        principal: The client's identity.
        operation: The operation.
        resource: The object of the operation.
    """
    for role in principal.roles:
        if not _may(grants, role, operation, resource):
            return Decision(False, _reason(role, operation, resource), _status(operation))
    return ALLOWED


def _may(grants: Grants, role: str, operation: Operation, resource: Resource) -> bool:
    if role in grants.authorities.super_users:
        return True
    if isinstance(operation, SuperUserOperation):
        return False
    if resource.is_system:
        return operation is TopicOperation.LOOKUP and _is_coordinator(resource)
    if role in grants.admins:
        return True
    match _RIGHTS.get(operation):
        case _Right.PRODUCE:
            return grants.may(role, "produce", resource)
        case _Right.CONSUME:
            return _may_consume(grants, role, resource)
        case _Right.EITHER:
            return grants.may(role, "produce", resource) or _may_consume(grants, role, resource)
        case None:
            return False


def _may_consume(grants: Grants, role: str, resource: Resource) -> bool:
    return grants.may_use_subscription(role, resource.subscription) and grants.may(role, "consume", resource)


def _is_coordinator(resource: Resource) -> bool:
    topic = resource.topic
    return topic is not None and (topic.namespace, topic.partitioned_base.local) == (SYSTEM_NAMESPACE, _COORDINATOR)


def _status(operation: Operation) -> int:
    """Return the HTTP status of the refusal of an operation, which is that of Pulsar's web server."""
    return 403 if isinstance(operation, NamespaceOperation | PolicyOperation) else 401


def _reason(role: str, operation: Operation, resource: Resource) -> str:
    if operation is SuperUserOperation.REPLICATE:
        return (
            f"Role {role!r} may not publish to {resource} as a replicator, which must be a super user: choose a "
            "producer name that does not begin with 'pulsar.repl.'."
        )
    if isinstance(operation, SuperUserOperation):
        return f"Role {role!r} is not a super user of this broker: ask one of its super users (super_user_roles)."
    if resource.is_system:
        return f"Role {role!r} may not use {resource}, which belongs to super users: use another topic or namespace."
    kind = "policy " if isinstance(operation, PolicyOperation) else ""
    return (
        f"Role {role!r} may not do the {kind}operation {operation.name} on {resource}: ask an administrator of the "
        f"tenant {resource.tenant}."
    )
