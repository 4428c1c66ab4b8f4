"""The interface of the roots and brokers that administrative commands work on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pulsar_on_spark.topic.managed_ledger.subscription.subscription_status import TopicSubscription


class Target(Protocol):
    """A root or a broker. Methods raise the errors of `topic` for a root, and `RequestRefusedError` for a broker."""

    def tenants(self) -> list[str]:
        """Return the names of all tenants."""

    def create_tenant(self, tenant: str, admin_roles: Sequence[str]) -> None:
        """Create a tenant."""

    def update_tenant(self, tenant: str, admin_roles: Sequence[str]) -> None:
        """Set the roles of a tenant's administrators."""

    def delete_tenant(self, tenant: str, *, force: bool) -> None:
        """Delete a tenant."""

    def namespaces(self, tenant: str) -> list[str]:
        """Return the names of a tenant's namespaces."""

    def create_namespace(self, namespace: str) -> None:
        """Create a namespace."""

    def delete_namespace(self, namespace: str, *, force: bool) -> None:
        """Delete a namespace."""

    def policies(self, of: str) -> dict[str, Any]:
        """Return the policies that are set on a namespace or a topic, by field of `Policies`."""

    def set_policy(self, of: str, field: str, value: Any) -> None:
        """Set a policy of a namespace or a topic; None removes it."""

    def permissions(self, of: str) -> Mapping[str, Sequence[str]]:
        """Return the actions of each role on a namespace or a topic."""

    def grant_permission(self, of: str, role: str, actions: Sequence[str]) -> None:
        """Give a role these actions on a namespace or a topic."""

    def revoke_permission(self, of: str, role: str) -> None:
        """Take all actions on a namespace or a topic from a role."""

    def subscription_permissions(self, namespace: str) -> Mapping[str, Sequence[str]]:
        """Return, by name of subscriptions, the only roles that may use them."""

    def grant_subscription_permission(self, namespace: str, subscription: str, roles: Sequence[str]) -> None:
        """Let only these roles use the subscriptions with this name."""

    def revoke_subscription_permission(self, namespace: str, subscription: str, role: str) -> None:
        """Stop a role from using the subscriptions with this name."""

    def topics(self, namespace: str | None = None) -> list[tuple[str, int | None]]:
        """Return (name, number of partitions or None) of the topics of a namespace, or of all topics, by name."""

    def create_topic(self, topic: str, partitions: int | None, schema: str | None, schema_type: str) -> None:
        """Create a topic, with values of this Avro schema if given."""

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Add partitions to a partitioned topic."""

    def delete_topic(self, topic: str, *, force: bool) -> None:
        """Delete a topic with its partitions."""

    def stats(self, topic: str) -> Mapping[str, Any]:
        """Return a topic's stats in the form of the admin API; for a partitioned topic, the sum and each partition."""

    def internal_stats(self, topic: str) -> Mapping[str, Any]:
        """Return a topic's ledgers and cursors in the form of the admin API; by partition, for a partitioned topic."""

    def peek(self, topic: str, name: str, entries: int) -> list[dict[str, Any]]:
        """Return up to `entries` entries that a subscription has not acknowledged, without moving its cursor."""

    def subscriptions(self) -> Sequence[TopicSubscription]:
        """Return all durable subscriptions, each with its cursors and backlog."""

    def delete_subscription(self, topic: str, name: str, *, force: bool) -> None:
        """Delete a subscription of a topic and its partitions."""

    def schemas(self, topic: str) -> list[Mapping[str, Any]]:
        """Return every version of a topic's schema."""

    def add_schema(self, topic: str, type_: str, text: str) -> int:
        """Register a schema; returns its version."""
