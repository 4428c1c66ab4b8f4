"""Expiry of messages by their TTL, and of unused subscriptions.

The broker expires a message by acknowledging it in every subscription that it owns or can acquire. The backlog of a
subscription that a Spark query reads expires only after the query has ended and its lease has run out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable

from pulsar_on_spark.broker.reading.reader import EntryReader
from pulsar_on_spark.broker.runtime.unchanged import Unchanged
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.broker.topics import subscription_moves
from pulsar_on_spark.broker.topics.topic import BrokerTopic
from pulsar_on_spark.broker.topics.topics import Topics
from pulsar_on_spark.metadata.records import SubscriptionRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import ConsumerBusyError, PulsarpyError, SubscriptionNotFoundError
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.leases import LeaseWatcher
from pulsar_on_spark.topic.catalog.policies.effective import effective_policies
from pulsar_on_spark.topic.catalog.policies.policies import Policies
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.data_path.readers import SparkReaders
from pulsar_on_spark.topic.managed_ledger.quotas.ages import oldest_publish_ms
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions
from pulsar_on_spark.topic.managed_ledger.subscription.positions import mark_delete

log = logging.getLogger(__name__)


class MessageExpiry:
    """Acknowledgement of messages that are older than their topic's TTL.

    Args:
        root: The open root.
        views: The views of the root's metadata.
        topics: The broker's topics.
        reader: The reader that finds the first entry within the TTL.
        defaults: The broker's default policies.
    """

    def __init__(self, root: RootHandle, views: Views, topics: Topics, reader: EntryReader, defaults: Policies) -> None:
        self._root = root
        self._views = views
        self._topics = topics
        self._reader = reader
        self._defaults = defaults

    async def expire_messages(self) -> None:
        """Expire the messages older than their topic's TTL, in all topics that no other broker serves.

        Topics with such messages are loaded. A topic that fails does not affect the others.

        Raises:
            MetadataError: the metadata cannot be read.
        """
        now_ms = current_ms()
        view = await self._views.view()
        for name in await asyncio.to_thread(self._due, view, now_ms):
            try:
                topic = await self._topics.get(name)
                if isinstance(topic, BrokerTopic):
                    await self._expire(view, topic, now_ms)
            except PulsarpyError as error:
                log.warning("Messages of %s cannot be expired now: %s", name, error, extra={"topic": name})

    def _due(self, view: View, now_ms: int) -> list[TopicName]:
        """Return the topics with an unacknowledged message that is older than the TTL. Runs in a thread."""
        cursors = self._root.store.cursors()
        due = []
        for record in view.all(TopicRecord):
            if record.partitions is not None or not (records := view.all(SubscriptionRecord, record.topic_id)):
                continue
            name = TopicName.parse(record.name)
            if self._topics.is_elsewhere(view, name):
                continue
            ttl_s = effective_policies(view, name, self._defaults).message_ttl
            if ttl_s:
                slowest = min(
                    mark_delete(subscription, cursors.of(record.topic_id, subscription.name))
                    for subscription in records
                )
                oldest_ms = oldest_publish_ms(view, record.topic_id, slowest)
                if oldest_ms is None or oldest_ms < now_ms - ttl_s * 1000:
                    due.append(name)
        return due

    async def _expire(self, view: View, topic: BrokerTopic, now_ms: int) -> None:
        end = await self._reader.position_at(topic.part, topic.chain, now_ms - topic.policies.message_ttl * 1000)
        cursors = await asyncio.to_thread(self._root.store.cursors)
        records = view.all(SubscriptionRecord, topic.topic_id)
        due = [
            subscription
            for subscription in records
            if mark_delete(subscription, cursors.of(topic.topic_id, subscription.name)) < end
        ]
        await expire_before(topic, due, end)


async def expire_before(topic: BrokerTopic, records: Iterable[SubscriptionRecord], end: Position) -> None:
    """Acknowledge all messages before a position in these subscriptions; skip subscriptions that a Spark query owns.

    Raises:
        PulsarpyError: as `TopicSubscriptions.acquire_subscription`.
    """
    if topic.chain.entry_before(end) is None:
        return
    for record in records:
        try:
            await subscription_moves.expire(topic, record, end)
        except ConsumerBusyError as error:
            log.info(
                "Messages of subscription %r on %s are not expired: %s",
                record.name,
                topic.name,
                error,
                extra={"subscription": record.name, "topic": topic.name},
            )


class SubscriptionExpiry:
    """Deletion of subscriptions that had no consumer for their topic's expiration time.

    Time before the broker's start does not count. A running Spark query counts as a consumer.

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
        self._unchanged = Unchanged[str, SubscriptionRecord]()
        self._readers = SparkReaders(root)

    async def delete_expired(self, now_s: float | None = None) -> None:
        """Delete the subscriptions whose expiration time has passed.

        Args:
            now_s: The current time in seconds, on the monotonic clock; None to read the clock.

        Raises:
            MetadataError: the metadata cannot be read.
        """
        clock_s = time.monotonic() if now_s is None else now_s
        view = await self._views.view()
        in_use = {
            f"{topic.topic_id}/{subscription.name}"
            for topic in self._topics
            for subscription in topic.subscriptions.all
            if subscription.consumers
        }
        for topic, record in await asyncio.to_thread(self._due, view, clock_s, in_use):
            await self._delete(topic, record)

    def _due(self, view: View, now_s: float, in_use: set[str]) -> list[tuple[TopicRecord, SubscriptionRecord]]:
        """Return each subscription that had no consumer for its topic's expiration time, with the topic.

        Runs in a thread.
        """
        candidates = []
        for topic in view.all(TopicRecord):
            name = TopicName.parse(topic.name)
            minutes = effective_policies(view, name, self._defaults).subscription_expiration_time
            if topic.partitions is not None or not minutes or self._topics.is_elsewhere(view, name):
                continue
            candidates += [
                (topic, record, minutes * 60)
                for record in view.all(SubscriptionRecord, topic.topic_id)
                if record.record_id not in in_use
            ]
        self._readers.watch_only(record.name for _, record, _ in candidates)
        candidates = [candidate for candidate in candidates if not self._readers.read(candidate[1])]
        # A consumer that came and went between two scans has changed the owner's epoch, so the record differs.
        unchanged_s = self._unchanged.record_scan(now_s, {record.record_id: record for _, record, _ in candidates})
        return [(topic, record) for topic, record, limit_s in candidates if unchanged_s[record.record_id] >= limit_s]

    async def _delete(self, topic: TopicRecord, record: SubscriptionRecord) -> None:
        name = TopicName.parse(topic.name)
        labels = {"subscription": record.name, "topic": name}
        (part,) = catalog.parts(await self._views.view(), topic)
        consumers = LeaseWatcher(self._root.consumer_leases(record.name))
        brokers = LeaseWatcher(self._root.broker_leases())
        try:
            await asyncio.to_thread(
                subscriptions.delete_subscription, self._root.store, record.name, [part], consumers, brokers
            )
        except (ConsumerBusyError, SubscriptionNotFoundError) as error:
            log.info("Subscription %r of %s is not expired: %s", record.name, name, error, extra=labels)
        except PulsarpyError as error:
            log.warning("Subscription %r of %s cannot be expired now: %s", record.name, name, error, extra=labels)
        else:
            log.warning(
                "Subscription %r of %s is deleted: its expiration time has passed.", record.name, name, extra=labels
            )
