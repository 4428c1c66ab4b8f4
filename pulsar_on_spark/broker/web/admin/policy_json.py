"""Policies in the JSON of Pulsar's admin API. Pure.

`FIELDS` (`topic.catalog.policies`) gives each policy's name in that JSON. Two kinds of policies differ in shape: quotas
are a map by type, and rates in a namespace's policies are maps by cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import JsonValue, TypeAdapter

from pulsar_on_spark.security.principal import ANONYMOUS
from pulsar_on_spark.topic.catalog.policies.policies import FIELDS

QUOTAS: Final = {"destination_storage": "backlog_quota_size", "message_age": "backlog_quota_age"}
"""Fields of the two quotas in `FIELDS`, by Pulsar's `BacklogQuotaType`."""
_BY_CLUSTER: Final = ("publish_rate", "dispatch_rate", "subscription_dispatch_rate", "subscribe_rate")
_ANY: Final = TypeAdapter(Any)


def value_json(value: object) -> JsonValue:
    """Convert a policy's value to the JSON that clients read; a set becomes a sorted list."""
    dumped: JsonValue = _ANY.dump_python(value, mode="json", by_alias=True)
    return sorted(dumped, key=str) if isinstance(value, set | frozenset) and isinstance(dumped, list) else dumped


def quota_map(values: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Return the backlog quotas among policies by field, as JSON by Pulsar's type; without those that are not set."""
    return {type_: value_json(values[field]) for type_, field in QUOTAS.items() if values.get(field) is not None}


def policies_json(stored: Mapping[str, JsonValue], cluster: str) -> dict[str, JsonValue]:
    """Convert the policies of a namespace's record, by field, to the shape of Pulsar's `Policies`.

    Args:
        stored: The policies by field.
        cluster: The cluster's name, the key of rates in Pulsar's JSON.
    """
    shown: dict[str, JsonValue] = {}
    for field, value in stored.items():
        if field not in FIELDS or field in QUOTAS.values():
            continue
        shown[FIELDS[field].key] = {cluster: value} if field in _BY_CLUSTER else value
    quotas = quota_map(stored)
    return shown | ({"backlog_quota_map": quotas} if quotas else {})


def given_fields(body: Mapping[str, JsonValue], cluster: str) -> tuple[dict[str, JsonValue], list[str]]:
    """Parse a body with the JSON of Pulsar's `Policies`; return the policies by field, and the unsupported keys.

    Clients send every key that they know. So a key is ignored if its value is null or empty, or what every namespace
    has anyway. An unsupported key is also ignored if its value means "not set" (`_SAYS_NOTHING`).
    """
    fields: dict[str, JsonValue] = {}
    unsupported: list[str] = []
    for key, value in body.items():
        if value is None or value in ({}, []) or _holds_anyway(key, value, cluster):
            continue
        if key == "backlog_quota_map" and isinstance(value, dict):
            fields |= {QUOTAS[type_]: quota for type_, quota in value.items() if type_ in QUOTAS}
            unsupported += [f"{key}.{type_}" for type_ in value if type_ not in QUOTAS]
        elif key in _BY_KEY and _BY_KEY[key] in _BY_CLUSTER and isinstance(value, dict):
            fields[_BY_KEY[key]] = value.get(cluster)
            unsupported += [f"{key} of cluster {other}" for other in value if other != cluster]
        elif key in _BY_KEY:
            fields[_BY_KEY[key]] = value
        elif not any(value == nothing and type(value) is type(nothing) for nothing in _SAYS_NOTHING):
            unsupported.append(key)
    return {field: value for field, value in fields.items() if not _is_undefined(value)}, unsupported


_BY_KEY: Final = {policy.key: field for field, policy in FIELDS.items() if field not in QUOTAS.values()}
_OPEN: Final = frozenset({"produce", "consume"})
_SAYS_NOTHING: Final = (False, -1, 0, "", "None", "Full", "UNDEFINED")


def _holds_anyway(key: str, value: JsonValue, cluster: str) -> bool:
    """Return True if a policy only states the defaults of every namespace: one cluster, open permissions."""
    match key, value:
        case "replication_clusters" | "allowed_clusters", list():
            return value == [cluster]
        case "auth_policies", dict():
            return all(not grants or _is_open(grants) for grants in value.values())
    return False


def _is_open(grants: JsonValue) -> bool:
    """Return True if grants are only to the role of unauthenticated clients, which may produce and consume anyway."""
    return (
        isinstance(grants, dict)
        and set(grants) <= {ANONYMOUS.role}
        and all(isinstance(actions, list) and set(map(str, actions)) <= _OPEN for actions in grants.values())
    )


def _is_undefined(value: JsonValue) -> bool:
    """Return True for null and for UNDEFINED, which clients send for an unset strategy."""
    return value is None or value == "UNDEFINED"
