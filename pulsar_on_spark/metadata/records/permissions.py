"""Permissions: the rights of roles in a namespace."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Literal

from pydantic import Field

from pulsar_on_spark.metadata.records.record import Record
from pulsar_on_spark.model.names import TopicName

RoleActions = dict[str, tuple[str, ...]]
"""The actions that each role may take, such as "produce", by role."""
SubscriptionAuthMode = Literal["None", "Prefix"]


class PermissionsRecord(Record):
    """The rights of roles in a namespace; committed under a key of their own, so that grants conflict only with grants.

    Attributes:
        namespace: The namespace, `tenant/namespace`.
        namespace_auth: The actions of roles on all topics of the namespace.
        topic_auth: The actions of roles on single topics, by the topic's full name. Actions on a partitioned topic
            apply to its partitions, too.
        subscription_auth: By subscription name, the only roles that may use the subscription.
        subscription_auth_mode: `Prefix` if a subscription's name must begin with its consumers' role.
    """

    kind: ClassVar[str] = "permissions"
    namespace: str
    namespace_auth: RoleActions = Field(default_factory=dict)
    topic_auth: dict[str, RoleActions] = Field(default_factory=dict)
    subscription_auth: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    subscription_auth_mode: SubscriptionAuthMode = "None"

    @property
    def record_id(self) -> str:
        """`tenant/namespace`."""
        return self.namespace

    @property
    def grants(self) -> int:
        """The number of grants: a role counts once for the namespace, for each topic and for each subscription."""
        granted = (self.namespace_auth, *self.topic_auth.values(), *self.subscription_auth.values())
        return sum(map(len, granted))

    def without_topics(self, names: Collection[str]) -> PermissionsRecord:
        """Return the record without the permissions on these topics, given by full name, and on their partitions."""
        remaining = {
            name: granted
            for name, granted in self.topic_auth.items()
            if name not in names and TopicName.parse_any(name).partitioned_base.full not in names
        }
        return self if len(remaining) == len(self.topic_auth) else self.model_copy(update={"topic_auth": remaining})
