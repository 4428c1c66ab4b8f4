"""The interface by which administrative commands use a root or a broker."""

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
        """Create a tenant with the roles of its administrators."""

    def update_tenant(self, tenant: str, admin_roles: Sequence[str]) -> None:
        """Set the roles of a tenant's administrators, which replace the former roles."""

    def delete_tenant(self, tenant: str, *, force: bool) -> None:
        """Delete a tenant; with `force`, with its namespaces and topics."""

    def namespaces(self, tenant: str) -> list[str]:
        """Return the names of a tenant's namespaces."""

    def create_namespace(self, namespace: str) -> None:
        """Create a namespace, `tenant/namespace`."""

    def delete_namespace(self, namespace: str, *, force: bool) -> None:
        """Delete a namespace; with `force`, with its topics."""

    def policies(self, of: str) -> dict[str, Any]:
        """Return the policies that are set on a namespace or a topic, by field of `Policies`."""

    def set_policy(self, of: str, field: str, value: Any) -> None:
        """Set a policy of a namespace or a topic; None removes it."""

    def permissions(self, of: str) -> Mapping[str, Sequence[str]]:
        """Return the actions of each role on a namespace or a topic."""

    def grant_permission(self, of: str, role: str, actions: Sequence[str]) -> None:
        """Give a role actions on a namespace or a topic, which replace its former actions there."""

    def revoke_permission(self, of: str, role: str) -> None:
        """Take all actions on a namespace or a topic from a role."""

    def subscription_permissions(self, namespace: str) -> Mapping[str, Sequence[str]]:
        """Return, by the name of subscriptions, the only roles that may use them; unrestricted names are absent."""

    def grant_subscription_permission(self, namespace: str, subscription: str, roles: Sequence[str]) -> None:
        """Let only these roles use the subscriptions with this name."""

    def revoke_subscription_permission(self, namespace: str, subscription: str, role: str) -> None:
        """Stop a role from using the subscriptions with this name."""

    def topics(self, namespace: str | None = None) -> list[tuple[str, int | None]]:
        """Return (name, number of partitions) of the topics of a namespace, or of all topics for None, sorted by name.

        The number is None for a topic without partitions.
        """

    def create_topic(self, topic: str, partitions: int | None, schema: str | None, schema_type: str) -> None:
        """Create a topic with a number of partitions (None for no partitions) and an Avro schema (None for no schema).

        `schema_type` is the encoding of the values, JSON or AVRO.
        """

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Increase the number of partitions of a partitioned topic to `partitions`."""

    def delete_topic(self, topic: str, *, force: bool) -> None:
        """Delete a topic with its partitions; with `force`, even if it has subscriptions."""

    def stats(self, topic: str) -> Mapping[str, Any]:
        """Return a topic's stats in the form of the admin API; for a partitioned topic, with each partition's stats."""

    def internal_stats(self, topic: str) -> Mapping[str, Any]:
        """Return a topic's ledgers and cursors in the form of the admin API; for a partitioned topic, by partition."""

    def peek(self, topic: str, name: str, entries: int) -> list[dict[str, Any]]:
        """Return the first `entries` entries that a subscription has not acknowledged, without moving its cursor.

        Each has `id`, `published`, `producer`, `key`, `properties`, `messages` (their number) and `payload`.
        """

    def subscriptions(self) -> Sequence[TopicSubscription]:
        """Return all durable subscriptions, each with its cursors and backlog."""

    def delete_subscription(self, topic: str, name: str, *, force: bool) -> None:
        """Delete a subscription of a topic and its partitions; with `force`, even if a consumer is reading it."""

    def schemas(self, topic: str) -> list[Mapping[str, Any]]:
        """Return every version of a topic's schema, with `version`, `type`, `data` and `properties`."""

    def add_schema(self, topic: str, type_: str, text: str) -> int:
        """Register a schema for a topic, and return its version."""
