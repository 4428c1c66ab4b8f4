"""The records of a root's namespace isolation policies, which restrict the brokers that serve a namespace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import IsolationRecord
from pulsar_on_spark.metadata.state import RecentView, View
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.names import check_new_name

MAX_POLICIES: Final = 1_000


def isolation_policies(view: RecentView) -> dict[str, Mapping[str, JsonValue]]:
    """Return all isolation policies by name, in the JSON of Pulsar's admin API."""
    return {record.name: record.policy for record in view.all(IsolationRecord)}


def set_isolation_policy(store: MetadataStore, name: str, policy: Mapping[str, JsonValue]) -> None:
    """Store a policy, replacing an earlier policy of that name.

    Args:
        store: The root's metadata.
        name: The policy's name.
        policy: The policy in the JSON of Pulsar's admin API.

    Raises:
        InvalidArgumentError: the name is not acceptable, or there are too many policies.
    """
    new = IsolationRecord(name=check_new_name("Name of an isolation policy", name), policy=dict(policy))

    def decide(view: View) -> Change | None:
        previous = view.get(IsolationRecord, name)
        if previous is None and len(view.all(IsolationRecord)) >= MAX_POLICIES:
            raise InvalidArgumentError(f"There are {MAX_POLICIES} isolation policies, the limit: delete one first.")
        return None if previous == new else Change(puts=[new], keys={keys.ISOLATION: None})

    store.commit(decide)


def delete_isolation_policy(store: MetadataStore, name: str) -> None:
    """Delete a policy; nothing happens if it is missing."""

    def decide(view: View) -> Change | None:
        record = view.get(IsolationRecord, name)
        return None if record is None else Change(deletes=[record], keys={keys.ISOLATION: None})

    store.commit(decide)
