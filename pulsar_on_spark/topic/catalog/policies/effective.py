"""Policies in force: a topic's override its namespace's, and these override the broker's settings. Pure.

The fields of offload policies override one by one, as in Pulsar. Broker settings that were changed at run time override
those that the broker started with.

Records keep policies as JSON, by the fields of `Policies`. Fields that only later versions know stay in the records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import JsonValue

from pulsar_on_spark.metadata.records import NamespaceRecord, SettingsRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog.policies.policies import FIELDS, Policies

DEFAULTS: Final = Policies()
"""Policies in force if nothing is set, neither in records nor in a broker's settings."""
_OFFLOAD: Final = "offload_policies"


def given(stored: Mapping[str, JsonValue]) -> dict[str, Any]:
    """Return the parsed policies of a record, by field of `Policies`. Policies that it does not set are left out."""
    policies = {name: value for name, value in stored.items() if name in FIELDS}
    parsed = Policies.model_validate(policies)
    return {name: getattr(parsed, name) for name in policies}


def namespace_policies(view: View, namespace: str) -> dict[str, Any]:
    """Return the policies that a namespace sets, by field of `Policies`."""
    record = view.get(NamespaceRecord, namespace)
    return {} if record is None else given(record.policies)


def topic_policies(view: View, name: TopicName) -> dict[str, Any]:
    """Return the policies that a topic (for a partition, its partitioned topic) sets, by field of `Policies`."""
    record = policy_topic(view, name)
    return {} if record is None else given(record.policies)


def settings_policies(view: View) -> dict[str, Any]:
    """Return the policies from broker settings that were changed at run time, by field of `Policies`."""
    record = view.get(SettingsRecord, "settings")
    return {} if record is None else given(record.policies)


def effective_policies(view: View, name: TopicName, defaults: Policies = DEFAULTS) -> Policies:
    """Return the policies in force for a topic, which need not exist.

    Args:
        view: The metadata.
        name: The topic, or a partition of one.
        defaults: The policies for fields that neither topic nor namespace nor changed settings set.
    """
    of_namespace, of_topic = namespace_policies(view, name.namespace), topic_policies(view, name)
    set_there = settings_policies(view) | of_namespace | of_topic
    if _OFFLOAD in of_namespace and _OFFLOAD in of_topic:
        set_there[_OFFLOAD] = of_topic[_OFFLOAD].over(of_namespace[_OFFLOAD])
    return defaults.model_copy(update=set_there) if set_there else defaults


def policy_topic(view: View, name: TopicName) -> TopicRecord | None:
    """Return the record with a topic's policies; None if there is no such topic.

    A partition's policies are in the record of its partitioned topic.
    """
    record = view.get(TopicRecord, name.full)
    if record is None or record.partition_of is None:
        return record
    return view.get(TopicRecord, record.partition_of)
