"""Backlog quotas of loaded topics, enforced above a quota by its policy.

producer_request_hold        disconnect producers and refuse new ones; their clients retry
producer_exception           the same, with an error that clients raise to the application
consumer_backlog_eviction    acknowledge the oldest messages of each subscription above the quota
"""

from __future__ import annotations

import logging
from typing import Final

from pulsar_on_spark.broker.background.expiry import expire_before
from pulsar_on_spark.broker.observe.backlogs import Contents
from pulsar_on_spark.broker.observe.overview import Overview
from pulsar_on_spark.broker.reading.reader import EntryReader
from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.broker.topics.topic import BrokerTopic
from pulsar_on_spark.broker.topics.topics import Topics
from pulsar_on_spark.metadata.records import SubscriptionRecord, TopicRecord
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.protocol.commands import ServerError
from pulsar_on_spark.topic.catalog.policies.policies import BacklogQuotaPolicy
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.chain.steps import advance
from pulsar_on_spark.topic.managed_ledger.quotas.quotas import (
    EVICTED_TO,
    BacklogMeasure,
    QuotaExceeded,
    exceeded,
    has_quota,
)

log = logging.getLogger(__name__)

_REFUSALS: Final = {
    BacklogQuotaPolicy.HOLD: ServerError.ProducerBlockedQuotaExceededError,
    BacklogQuotaPolicy.EXCEPTION: ServerError.ProducerBlockedQuotaExceededException,
}


class BacklogQuotas:
    """Enforces the backlog quotas of loaded topics.

    Args:
        views: The root's metadata.
        topics: The broker's topics.
        reader: Finds entries by their time.
        overview: Counts backlogs.
    """

    def __init__(self, views: Views, topics: Topics, reader: EntryReader, overview: Overview) -> None:
        self._views = views
        self._topics = topics
        self._reader = reader
        self._overview = overview
        self._refusing: set[BrokerTopic] = set()

    async def check_backlogs(self) -> None:
        """Check the backlogs of all loaded topics; a topic that fails does not affect the others.

        Raises:
            MetadataError: the metadata cannot be read.
        """
        view = await self._views.view()
        loaded = list(self._topics)
        self._refusing.intersection_update(loaded)
        for topic in loaded:
            record = view.get(TopicRecord, topic.name.full)
            if record is None or not (has_quota(topic.policies) or topic in self._refusing):
                continue
            try:
                await self._look_at(topic, record)
            except PulsarpyError as error:
                log.warning(
                    "The backlog of %s cannot be checked now: %s", topic.name, error, extra={"topic": topic.name}
                )

    async def _look_at(self, topic: BrokerTopic, record: TopicRecord) -> None:
        seen = await self._overview.contents(record)
        now_ms = current_ms()
        measures = [BacklogMeasure(each.bytes, each.oldest_publish_ms) for each in seen.backlogs.values()]
        found = exceeded(topic.policies, measures, now_ms)
        if found is not None and found.policy is BacklogQuotaPolicy.EVICTION:
            await self._evict(topic, seen, found, now_ms)
            found = None
        if found is not None and topic not in self._refusing:
            log.warning(
                "The backlog of %s is %s: its producers are refused.", topic.name, found, extra={"topic": topic.name}
            )
            self._refusing.add(topic)
            await topic.refuse_producers(
                ServerRefusalError(
                    _REFUSALS[found.policy], f"The backlog of {topic.name} is {found}: consume it, or raise the quota."
                )
            )
        elif found is None and topic in self._refusing:
            log.warning("The backlog of %s is below its quota again.", topic.name, extra={"topic": topic.name})
            self._refusing.discard(topic)
            topic.admit_producers()

    async def _evict(self, topic: BrokerTopic, seen: Contents, found: QuotaExceeded, now_ms: int) -> None:
        behind: dict[str, Position] = {}
        if found.by_age:
            young = await self._reader.position_at(topic.part, topic.chain, now_ms - found.quota.limit_time * 1000)
            behind = {name: young for name, each in seen.backlogs.items() if each.mark_delete < young}
        else:
            end = chain.read_limit(seen.view, topic.topic_id)
            for name, backlog in seen.backlogs.items():
                excess, start = backlog.bytes - int(found.quota.limit_size * EVICTED_TO), backlog.mark_delete
                if excess > 0:
                    plan = chain.plan_range(
                        seen.view, topic.part.name, topic.topic_id, topic.part.partition, start, end
                    )
                    behind[name] = advance(plan.slices, start, end, None, excess, at_least_one=True)
        for record in seen.view.all(SubscriptionRecord, topic.topic_id):
            if record.name in behind:
                log.warning(
                    "Subscription %r of %s is evicted from its backlog, which is %s.",
                    record.name,
                    topic.name,
                    found,
                    extra={"subscription": record.name, "topic": topic.name},
                )
                await expire_before(topic, [record], behind[record.name])
