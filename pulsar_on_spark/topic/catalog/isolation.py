"""Namespace isolation policies of a root: which brokers may serve which namespaces.

They are stored for Pulsar's tools and for roots with several brokers. One broker serves all namespaces, so it does not
heed them.
"""

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
    """All policies by name."""
    return {each.name: each.policy for each in view.all(IsolationRecord)}


def set_isolation_policy(store: MetadataStore, name: str, policy: Mapping[str, JsonValue]) -> None:
    """Store a policy, in place of one with its name.

    Args:
        store: the root's metadata.
        name: its name.
        policy: the policy in the JSON of Pulsar's admin API.

    Raises:
        InvalidArgumentError: the name is not acceptable, or there are too many policies.
    """
    new = IsolationRecord(name=check_new_name("Name of an isolation policy", name), policy=dict(policy))

    def decide(view: View) -> Change | None:
        known = view.get(IsolationRecord, name)
        if known is None and len(view.all(IsolationRecord)) >= MAX_POLICIES:
            raise InvalidArgumentError(f"There are {MAX_POLICIES} isolation policies, the limit: delete one first.")
        return None if known == new else Change(puts=[new], keys={keys.ISOLATION: None})

    store.commit(decide)


def delete_isolation_policy(store: MetadataStore, name: str) -> None:
    """Delete a policy; nothing happens if it is missing."""

    def decide(view: View) -> Change | None:
        known = view.get(IsolationRecord, name)
        return None if known is None else Change(deletes=[known], keys={keys.ISOLATION: None})

    store.commit(decide)
