"""What administrative commands are about: a root, or the broker that serves one. Both do the same.

`--url`, else the root (its argument, `--root` or `PULSARPY_ROOT`), else `PULSARPY_URL`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import typer

from pulsar_on_spark.cli.arguments import open_root
from pulsar_on_spark.cli.broker_target import BrokerTarget
from pulsar_on_spark.cli.http_admin import HttpAdmin
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.root_path import ROOT_VARIABLE

if TYPE_CHECKING:
    from pulsar_on_spark.cli.root_target import RootTarget
    from pulsar_on_spark.topic.maintenance.status import TopicSubscription

URL_VARIABLE: Final = "PULSARPY_URL"
UrlOption = Annotated[
    str | None,
    typer.Option("--url", help=f"A broker's HTTP URL, instead of a root [{URL_VARIABLE}].", show_default=False),
]


class Target(Protocol):
    """What can be administered. Errors are those of `topic`, or `RequestRefusedError`."""

    def tenants(self) -> list[str]:
        """Names of all tenants."""

    def create_tenant(self, tenant: str, admin_roles: Sequence[str]) -> None:
        """Create a tenant."""

    def delete_tenant(self, tenant: str, *, force: bool) -> None:
        """Delete a tenant."""

    def namespaces(self, tenant: str) -> list[str]:
        """Names of a tenant's namespaces."""

    def create_namespace(self, namespace: str) -> None:
        """Create a namespace."""

    def delete_namespace(self, namespace: str, *, force: bool) -> None:
        """Delete a namespace."""

    def policies(self, of: str) -> dict[str, Any]:
        """The policies that a namespace or a topic sets, by field of `Policies`."""

    def set_policy(self, of: str, field: str, value: Any) -> None:
        """Set a policy of a namespace or a topic; None has it unset."""

    def topics(self, namespace: str | None = None) -> list[tuple[str, int | None]]:
        """The topics of a namespace, or all, by name, each with the number of its partitions; None for none."""

    def create_topic(self, topic: str, partitions: int | None, schema: str | None, schema_type: str) -> None:
        """Create a topic, of values by that Avro schema if one is given."""

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Let a partitioned topic grow."""

    def delete_topic(self, topic: str, *, force: bool) -> None:
        """Delete a topic with its partitions."""

    def stats(self, topic: str) -> Mapping[str, Any]:
        """A topic's stats, as the admin API has them; of one with partitions those of all together, and one by one."""

    def internal_stats(self, topic: str) -> Mapping[str, Any]:
        """A topic's ledgers and cursors, as the admin API has them; of one with partitions by partition."""

    def peek(self, topic: str, name: str, entries: int) -> list[dict[str, Any]]:
        """The first entries that a subscription has not acknowledged, at most so many; nothing moves."""

    def subscriptions(self) -> Sequence[TopicSubscription]:
        """All durable subscriptions, each with its cursors and its backlog."""

    def delete_subscription(self, topic: str, name: str, *, force: bool) -> None:
        """Delete a subscription of a topic and its partitions."""

    def schemas(self, topic: str) -> list[Mapping[str, Any]]:
        """All versions of a topic's schema."""

    def add_schema(self, topic: str, type_: str, text: str) -> int:
        """Register a schema; returns its version."""


def open_target(argument: str | None, option: str | None, url: str | None) -> RootTarget | BrokerTarget:
    """What a command is about: what is given with the command, else in the environment, there a root first.

    Raises:
        InvalidArgumentError: neither a root nor a URL is given, or both are.
        PulsarpyError: the root cannot be opened.
    """
    # Typer takes the option from the environment where it is not given.
    root_is_given = argument is not None or option not in (None, os.environ.get(ROOT_VARIABLE))
    if url is not None and root_is_given:
        raise InvalidArgumentError("Both a root and --url are given: give the one that the command is about.")
    if url is None and argument is None and option is None:
        url = os.environ.get(URL_VARIABLE)
        if url is None:
            raise InvalidArgumentError(
                f"Neither a root nor a broker is given: add --root or --url, or set {ROOT_VARIABLE} or {URL_VARIABLE}."
            )
    if url is not None:
        return BrokerTarget(HttpAdmin(url))
    from pulsar_on_spark.cli.root_target import RootTarget

    return RootTarget(open_root(argument, option))


def open_broker(url: str | None) -> HttpAdmin:
    """The broker of a command that only a broker can do.

    Raises:
        InvalidArgumentError: no URL is given.
    """
    given = url or os.environ.get(URL_VARIABLE)
    if given is None:
        raise InvalidArgumentError(f"This takes a broker: add its HTTP URL as --url, or set {URL_VARIABLE}.")
    return HttpAdmin(given)
