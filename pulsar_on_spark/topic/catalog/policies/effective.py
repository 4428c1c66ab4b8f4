"""What is set, and what holds: a topic's policies over its namespace's over the broker's settings. Pure.

Of these settings those count first that were changed while it ran.

Records keep policies as JSON, by the fields of `Policies`: whatever a newer version sets there survives this one, which
does not know it.
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
"""What holds where nothing is set, and no broker was told otherwise."""


def given(stored: Mapping[str, JsonValue]) -> dict[str, Any]:
    """The policies that a record sets, by field of `Policies`; those only."""
    known = {name: value for name, value in stored.items() if name in FIELDS}
    parsed = Policies.model_validate(known)
    return {name: getattr(parsed, name) for name in known}


def namespace_policies(view: View, namespace: str) -> dict[str, Any]:
    """The policies that a namespace sets, by field of `Policies`."""
    record = view.get(NamespaceRecord, namespace)
    return {} if record is None else given(record.policies)


def topic_policies(view: View, name: TopicName) -> dict[str, Any]:
    """The policies that a topic sets; a partition has those of its partitioned topic."""
    record = policy_topic(view, name)
    return {} if record is None else given(record.policies)


def settings_policies(view: View) -> dict[str, Any]:
    """What the broker's settings say for all topics since they were changed, by field of `Policies`."""
    record = view.get(SettingsRecord, "settings")
    return {} if record is None else given(record.policies)


def effective(view: View, name: TopicName, defaults: Policies = DEFAULTS) -> Policies:
    """What holds for a topic, or would hold for one that is not there.

    Args:
        view: the metadata.
        name: the topic, or a partition of one.
        defaults: what holds where neither topic nor namespace say anything.
    """
    set_there = settings_policies(view) | namespace_policies(view, name.namespace) | topic_policies(view, name)
    return defaults.model_copy(update=set_there) if set_there else defaults


def policy_topic(view: View, name: TopicName) -> TopicRecord | None:
    """The record that holds a topic's policies: that of the partitioned topic for a partition."""
    record = view.get(TopicRecord, name.full)
    if record is None or record.partition_of is None:
        return record
    return view.get(TopicRecord, record.partition_of)
