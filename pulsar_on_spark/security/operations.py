"""The operations that authorization distinguishes, under Pulsar's names, and the objects that they act on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Literal, get_args

from pulsar_on_spark.model.names import SYSTEM_NAMESPACE, TopicName

Action = Literal["produce", "consume", "functions", "sources", "sinks", "packages"]
"""A right that is granted to a role on a namespace or a topic. Only `produce` and `consume` have an effect here."""
ACTIONS: Final[tuple[Action, ...]] = get_args(Action)


class SuperUserOperation(Enum):
    """An operation that only super users may do: on the whole cluster, or publishing as a replicator."""

    ADMINISTER = auto()
    REPLICATE = auto()
    """Publish as another cluster's replicator."""


class TenantOperation(Enum):
    """An operation on a tenant, or on its set of namespaces."""

    GET_TENANT = auto()
    UPDATE_TENANT = auto()
    DELETE_TENANT = auto()
    LIST_NAMESPACES = auto()
    CREATE_NAMESPACE = auto()
    DELETE_NAMESPACE = auto()


class NamespaceOperation(Enum):
    """An operation on a namespace, or on its set of topics."""

    GET_TOPICS = auto()
    GET_BUNDLE = auto()
    CREATE_TOPIC = auto()
    DELETE_TOPIC = auto()
    CLEAR_BACKLOG = auto()
    UNSUBSCRIBE = auto()
    GRANT_PERMISSION = auto()
    REVOKE_PERMISSION = auto()
    GET_PERMISSION = auto()


class PolicyOperation(Enum):
    """An operation on a policy of a namespace or a topic, or on a namespace's properties."""

    READ = auto()
    WRITE = auto()


class TopicOperation(Enum):
    """An operation on a topic."""

    LOOKUP = auto()
    PRODUCE = auto()
    CONSUME = auto()
    SUBSCRIBE = auto()
    UNSUBSCRIBE = auto()
    GET_SUBSCRIPTIONS = auto()
    SKIP = auto()
    EXPIRE_MESSAGES = auto()
    PEEK_MESSAGES = auto()
    RESET_CURSOR = auto()
    GET_BACKLOG_SIZE = auto()
    SET_REPLICATED_SUBSCRIPTION_STATUS = auto()
    GET_REPLICATED_SUBSCRIPTION_STATUS = auto()
    GET_STATS = auto()
    GET_METADATA = auto()
    UPDATE_METADATA = auto()
    DELETE_METADATA = auto()
    TERMINATE = auto()
    COMPACT = auto()
    OFFLOAD = auto()
    UNLOAD = auto()
    TRIM_TOPIC = auto()
    ADMINISTER = auto()
    """Any other operation of the tenant's administrators on the topic."""


Operation = SuperUserOperation | TenantOperation | NamespaceOperation | PolicyOperation | TopicOperation


@dataclass(frozen=True, slots=True)
class Resource:
    """The object of an operation; the cluster if no attribute is set.

    Attributes:
        tenant: The tenant, or the tenant of the object.
        namespace: The namespace, or the namespace of the object, as `tenant/namespace`; "" for a tenant.
        topic: The topic; None for a namespace.
        subscription: The subscription of the topic, or the name of subscriptions in the namespace; "" if the operation
            is on neither.
    """

    tenant: str = ""
    namespace: str = ""
    topic: TopicName | None = None
    subscription: str = ""

    @classmethod
    def of_namespace(cls, namespace: str, subscription: str = "") -> Resource:
        """Return a namespace as a resource, or its subscriptions with one name.

        Args:
            namespace: The namespace, `tenant/namespace`.
            subscription: The name of subscriptions in the namespace; "" for the namespace itself.
        """
        return cls(namespace.partition("/")[0], namespace, subscription=subscription)

    @classmethod
    def of_topic(cls, topic: TopicName, subscription: str = "") -> Resource:
        """Return a topic as a resource, or a subscription of it if `subscription` is not ""."""
        return cls(topic.tenant, topic.namespace, topic, subscription)

    @property
    def is_system(self) -> bool:
        """True for a system topic, and for the namespace of such topics."""
        return self.namespace == SYSTEM_NAMESPACE if self.topic is None else self.topic.is_system

    def __str__(self) -> str:
        if self.subscription:
            return f"subscription {self.subscription!r} of {self.topic or self.namespace}"
        return str(self.topic or self.namespace or self.tenant or "the cluster")


CLUSTER: Final = Resource()
"""The cluster as a whole."""
