"""The limits of topics in a namespace, and of partitions in a topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog.policies.effective import namespace_policies, settings_policies

MAX_PARTITIONS: Final = 10_000


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """The limits of new topics.

    Attributes:
        partitions: Maximum number of partitions of one topic.
        topics: Maximum number of topics of a namespace without `max_topics_per_namespace`; each partition counts as a
            topic; 0 for no limit.
    """

    partitions: int = MAX_PARTITIONS
    topics: int = 0


NO_LIMITS: Final = TopicLimits()


def check_topic_limit(view: View, name: TopicName, added: int, limits: TopicLimits) -> None:
    """Refuse topics above the namespace's `max_topics_per_namespace`; each partition counts as a topic, as in Pulsar.

    Args:
        view: The metadata.
        name: The first topic that is added.
        added: Number of topics to add.
        limits: The limits if neither the namespace nor settings changed at run time have one.

    Raises:
        InvalidArgumentError: there would be more topics than the limit allows.
    """
    namespace = name.namespace
    policies = settings_policies(view) | namespace_policies(view, namespace)
    limit = policies.get("max_topics_per_namespace", limits.topics)
    if not limit:
        return
    prefix = f"persistent://{namespace}/"
    existing = sum(topic.partitions is None and topic.name.startswith(prefix) for topic in view.all(TopicRecord))
    if existing + added > limit:
        raise InvalidArgumentError(
            f"Namespace {namespace} has {existing} of at most {limit} topics (max_topics_per_namespace): delete some, "
            f"or raise the limit, before {name.full} is created."
        )
