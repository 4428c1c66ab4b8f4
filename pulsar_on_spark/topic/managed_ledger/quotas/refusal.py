"""Refusal of Spark's writes to topics whose backlog exceeds its quota, as a broker refuses producers.

Only quotas that are set on the topic or its namespace count, and only the backlog in sealed segments. A quota with the
eviction policy refuses no write.
"""

from __future__ import annotations

from collections.abc import Iterable

from pulsar_on_spark.metadata.records import SubscriptionRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import MetadataStore
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import BacklogQuotaExceededError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.policies.effective import effective_policies
from pulsar_on_spark.topic.catalog.policies.policies import BacklogQuotaPolicy
from pulsar_on_spark.topic.managed_ledger.quotas.ages import oldest_publish_ms
from pulsar_on_spark.topic.managed_ledger.quotas.quotas import BacklogMeasure, exceeded, has_quota
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions


def require_room(store: MetadataStore, view: View, topics: Iterable[str]) -> None:
    """Check that no subscription of the topics has a backlog above its quota.

    Args:
        store: The root's metadata.
        view: The view on which the write is decided.
        topics: Full names of topics without partitions, or of partitions; deleted ones are skipped.

    Raises:
        BacklogQuotaExceededError: a backlog exceeds its quota, and the quota's policy is not to evict.
    """
    limited = [
        (record, policies)
        for record in (view.get(TopicRecord, name) for name in topics)
        if record is not None and has_quota(policies := effective_policies(view, TopicName.parse(record.name)))
    ]
    if not limited:
        return
    cursors, now_ms = store.cursors(), current_ms()
    for record, policies in limited:
        (part,) = catalog.parts(view, record)
        measures = []
        for subscription in view.all(SubscriptionRecord, record.topic_id):
            status = subscriptions.status(view, cursors, part, subscription)
            oldest_ms = oldest_publish_ms(view, record.topic_id, status.mark_delete)
            measures.append(BacklogMeasure(status.backlog_bytes, oldest_ms or 0))
        over = exceeded(policies, measures, now_ms)
        if over is not None and over.policy is not BacklogQuotaPolicy.EVICTION:
            raise BacklogQuotaExceededError(
                f"The backlog of {record.name} is {over}, so nothing was written: consume the backlog or raise the "
                "quota."
            )
