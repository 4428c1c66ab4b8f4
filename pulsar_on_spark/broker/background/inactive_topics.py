"""Deletion of inactive topics, if their policy asks for it.

A topic is in use while it has producers or consumers, while a Spark query reads one of its subscriptions, and whenever
its chain of ledgers grows, for example by a write of Spark. A subscription with a backlog keeps a topic in use; in the
mode `delete_when_no_subscriptions`, any subscription does. Time before the broker's start does not count as inactive.
A topic with a history is never deleted here, because its history would be deleted with it.

The deletion checks the committed metadata again: a client that connects meanwhile either prevents the deletion or
creates a new topic. A partitioned topic whose partitions are served by several brokers is not deleted.
"""

from __future__ import annotations

import asyncio
import logging
import time

from pulsar_on_spark.broker.runtime.unchanged import Unchanged
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.broker.topics.topics import Topics
from pulsar_on_spark.metadata.cursors import Cursors
from pulsar_on_spark.metadata.records import HistoryTableRecord, SubscriptionRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import PulsarpyError, TopicBusyError
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.policies.effective import effective_policies
from pulsar_on_spark.topic.catalog.policies.policies import InactiveTopicDeleteMode, Policies
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.data_path.readers import SparkReaders
from pulsar_on_spark.topic.managed_ledger.chain.chain import read_limit
from pulsar_on_spark.topic.managed_ledger.quotas.ages import NOTHING_MS, oldest_publish_ms
from pulsar_on_spark.topic.managed_ledger.subscription.positions import mark_delete

log = logging.getLogger(__name__)

Unused = tuple[Position, ...]
"""The ends of an unused topic's chains of ledgers, one for each partition."""


class InactiveTopics:
    """Deletion of inactive topics.

    Args:
        root: The open root.
        views: The views of the root's metadata.
        topics: The broker's topics.
        defaults: The broker's default policies.
    """

    def __init__(self, root: RootHandle, views: Views, topics: Topics, defaults: Policies) -> None:
        self._root = root
        self._views = views
        self._topics = topics
        self._defaults = defaults
        self._unchanged = Unchanged[str, Unused]()
        self._readers = SparkReaders(root)

    async def delete_inactive(self, now_s: float | None = None) -> None:
        """Delete the topics that have been inactive for `max_inactive_duration_seconds` of their policy.

        Args:
            now_s: The current time in seconds, on the monotonic clock; None to read the clock.

        Raises:
            MetadataError: the metadata cannot be read.
        """
        clock_s = time.monotonic() if now_s is None else now_s
        view = await self._views.view()
        in_use: set[str] = {topic.topic_id for topic in self._topics if topic.has_clients}
        for record, unused in await asyncio.to_thread(self._due, view, clock_s, in_use):
            await self._delete(record, unused)

    def _due(self, view: View, now_s: float, in_use: set[str]) -> list[tuple[TopicRecord, Unused]]:
        """Return each topic that has been unused for `max_inactive_duration_seconds`, with its ends.

        Runs in a thread.
        """
        policies = (
            (record, effective_policies(view, TopicName.parse(record.name), self._defaults).inactive_topic_policies)
            for record in catalog.topics(view)
        )
        candidates = [(record, policy) for record, policy in policies if policy.delete_while_inactive]
        unused: dict[str, Unused] = {}
        if candidates:
            cursors = self._root.store.cursors()
            self._readers.watch_only(name for record, _ in candidates for name in _subscriptions(view, record))
            for record, policy in candidates:
                ends = self._unused(view, cursors, record, policy.inactive_topic_delete_mode, in_use)
                if ends is not None:
                    unused[record.topic_id] = ends
        unused_s = self._unchanged.record_scan(now_s, unused)
        return [
            (record, unused[record.topic_id])
            for record, policy in candidates
            if unused_s.get(record.topic_id, -1.0) >= policy.max_inactive_duration_seconds
        ]

    async def _delete(self, record: TopicRecord, unused: Unused) -> None:
        name = TopicName.parse(record.name)

        def check(view: View) -> None:
            mode = effective_policies(view, name, self._defaults).inactive_topic_policies.inactive_topic_delete_mode
            self._readers.watch_subscriptions(_subscriptions(view, record))
            if self._unused(view, self._root.store.cursors(), record, mode, set()) != unused:
                raise TopicBusyError(f"Topic {name} is in use again: it is not deleted.")

        try:
            await self._topics.delete_inactive(name, check)
        except TopicBusyError as error:
            log.info("%s", error, extra={"topic": name})
        except PulsarpyError as error:
            log.warning("The inactive topic %s cannot be deleted now: %s", name, error, extra={"topic": name})
        else:
            log.warning("Topic %s is deleted: it was inactive for its policy's time.", name, extra={"topic": name})

    def _unused(
        self, view: View, cursors: Cursors, record: TopicRecord, mode: InactiveTopicDeleteMode, in_use: set[str]
    ) -> Unused | None:
        """Return the chain ends of an unused topic's partitions; None if the topic is in use."""
        if self._has_history(view, record):
            return None
        ends = []
        for part in catalog.parts(view, record):
            if self._topics.is_elsewhere(view, TopicName.parse(part.name)):
                return None  # another broker knows whether clients use it
            subscriptions = view.all(SubscriptionRecord, part.topic_id)
            if part.topic_id in in_use or (subscriptions and mode is InactiveTopicDeleteMode.NO_SUBSCRIPTIONS):
                return None
            if any(self._readers.read(subscription) for subscription in subscriptions):
                return None
            marks = [
                mark_delete(subscription, cursors.of(part.topic_id, subscription.name))
                for subscription in subscriptions
            ]
            if any(oldest_publish_ms(view, part.topic_id, mark) != NOTHING_MS for mark in marks):
                return None
            ends.append(read_limit(view, part.topic_id))
        return tuple(ends)

    def _has_history(self, view: View, record: TopicRecord) -> bool:
        """Return True if a topic has a history table, or a policy asks for one."""
        policies = effective_policies(view, TopicName.parse(record.name), self._defaults)
        return policies.history.enabled or view.get(HistoryTableRecord, record.topic_id) is not None


def _subscriptions(view: View, record: TopicRecord) -> list[str]:
    """Return the names of the subscriptions of a topic's partitions, or of the topic if it has none."""
    parts = catalog.parts(view, record)
    return [subscription.name for part in parts for subscription in view.all(SubscriptionRecord, part.topic_id)]
