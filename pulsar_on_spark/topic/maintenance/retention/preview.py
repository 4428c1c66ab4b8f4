"""A preview of the entries that a change of retention would delete, without any change."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import MetadataStore
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import catalog, tenants
from pulsar_on_spark.topic.catalog.policies.change import parsed
from pulsar_on_spark.topic.catalog.policies.effective import (
    DEFAULTS,
    effective_policies,
    namespace_policies,
    policy_topic,
    settings_policies,
    topic_policies,
)
from pulsar_on_spark.topic.catalog.policies.policies import Policies, RetentionPolicies
from pulsar_on_spark.topic.maintenance.retention.holders import holders
from pulsar_on_spark.topic.maintenance.retention.retention import decide_trim
from pulsar_on_spark.topic.maintenance.retention.trim import TrimmedTopics

_ALL: Final = 2**63


def retention_preview(
    store: MetadataStore, of: str | TopicName, value: Any, defaults: Policies = DEFAULTS, now: datetime | None = None
) -> TrimmedTopics:
    """Count the segments that housekeeping would trim now under another retention, but not under the current one.

    Args:
        store: The root's metadata.
        of: A namespace, or a topic.
        value: The retention, or its JSON with Pulsar's names; None to unset it.
        defaults: The policies for fields that neither a topic nor its namespace sets.
        now: The time by which ages are computed; None for this host's clock.

    Raises:
        InvalidArgumentError: the retention is not acceptable.
        NamespaceNotFoundError, TopicNotFoundError: there is no such namespace or topic.
        MetadataError: the metadata cannot be read.
    """
    wanted = parsed({"retention": value}, f"{of}", on_topic=isinstance(of, TopicName))["retention"]
    view = store.view(durable=True)
    cursors = store.cursors(durable=True)
    clock = now or datetime.now(UTC)
    done = TrimmedTopics()
    for topic in _concerned(view, of):
        name = TopicName.parse(topic.name)
        policies = effective_policies(view, name, defaults)
        holding = holders(view, cursors, topic.topic_id, policies, clock)
        ends = topic.terminated is not None
        before, after = (
            decide_trim(view, topic.topic_id, retention, holding, clock, keeps_end=ends, most=_ALL).segments
            for retention in (policies.retention, wanted or _inherited(view, of, name, defaults))
        )
        more = after[len(before) :]
        if more:
            done += TrimmedTopics(1, len(more), sum(each.rows for each in more), sum(each.bytes for each in more))
    return done


def _concerned(view: View, of: str | TopicName) -> list[TopicRecord]:
    """Return the topics and partitions whose retention the change affects."""
    if isinstance(of, TopicName):
        topic = policy_topic(view, of) or catalog.require_topic(view, of)
        return [view.get(TopicRecord, part.name) or topic for part in catalog.parts(view, topic)]
    tenants.require_namespace(view, of)
    return [
        topic
        for topic in view.all(TopicRecord)
        if topic.partitions is None
        and (name := TopicName.parse(topic.name)).namespace == of
        and "retention" not in topic_policies(view, name)
    ]


def _inherited(view: View, of: str | TopicName, name: TopicName, defaults: Policies) -> RetentionPolicies:
    """Return the retention that is in force if the namespace or topic of the change sets none."""
    above = settings_policies(view)
    if isinstance(of, TopicName):
        above |= namespace_policies(view, name.namespace)
    found: RetentionPolicies = above.get("retention", defaults.retention)
    return found
