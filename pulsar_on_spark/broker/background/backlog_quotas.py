"""Enforcement of backlog quotas on loaded topics. A quota's policy says what happens when a topic exceeds the quota.

producer_request_hold        disconnect producers and refuse new ones; their clients retry
producer_exception           disconnect producers and refuse new ones; their clients raise an error to the application
consumer_backlog_eviction    acknowledge the oldest messages of each subscription that exceeds the quota
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
    """Enforcement of the backlog quotas of loaded topics.

    Args:
        views: The views of the root's metadata.
        topics: The broker's topics.
        reader: The reader that finds entries by their publish time.
        overview: The overview of topics' contents, which counts backlogs.
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
                await self._check_backlog(topic, record)
            except PulsarpyError as error:
                log.warning(
                    "The backlog of %s cannot be checked now: %s", topic.name, error, extra={"topic": topic.name}
                )

    async def _check_backlog(self, topic: BrokerTopic, record: TopicRecord) -> None:
        contents = await self._overview.contents(record)
        now_ms = current_ms()
        measures = [BacklogMeasure(backlog.bytes, backlog.oldest_publish_ms) for backlog in contents.backlogs.values()]
        violation = exceeded(topic.policies, measures, now_ms)
        if violation is not None and violation.policy is BacklogQuotaPolicy.EVICTION:
            await self._evict(topic, contents, violation, now_ms)
            violation = None
        if violation is not None and topic not in self._refusing:
            log.warning(
                "The backlog of %s is %s: its producers are refused.",
                topic.name,
                violation,
                extra={"topic": topic.name},
            )
            self._refusing.add(topic)
            await topic.refuse_producers(
                ServerRefusalError(
                    _REFUSALS[violation.policy],
                    f"The backlog of {topic.name} is {violation}: consume it, or raise the quota.",
                )
            )
        elif violation is None and topic in self._refusing:
            log.warning("The backlog of %s is below its quota again.", topic.name, extra={"topic": topic.name})
            self._refusing.discard(topic)
            topic.admit_producers()

    async def _evict(self, topic: BrokerTopic, contents: Contents, violation: QuotaExceeded, now_ms: int) -> None:
        ends: dict[str, Position] = {}
        if violation.by_age:
            oldest_kept = await self._reader.position_at(
                topic.part, topic.chain, now_ms - violation.quota.limit_time * 1000
            )
            ends = {
                name: oldest_kept for name, backlog in contents.backlogs.items() if backlog.mark_delete < oldest_kept
            }
        else:
            end = chain.read_limit(contents.view, topic.topic_id)
            for name, backlog in contents.backlogs.items():
                excess, start = backlog.bytes - int(violation.quota.limit_size * EVICTED_TO), backlog.mark_delete
                if excess > 0:
                    plan = chain.plan_range(
                        contents.view, topic.part.name, topic.topic_id, topic.part.partition, start, end
                    )
                    ends[name] = advance(plan.slices, start, end, None, excess, at_least_one=True)
        for record in contents.view.all(SubscriptionRecord, topic.topic_id):
            if record.name in ends:
                log.warning(
                    "The oldest messages of subscription %r on %s are acknowledged: the topic's backlog is %s.",
                    record.name,
                    topic.name,
                    violation,
                    extra={"subscription": record.name, "topic": topic.name},
                )
                await expire_before(topic, [record], ends[record.name])
