"""Periodic lifecycle work on topics, each kind with its own interval: trimming, expiry, quotas, deletion.

The decisions are in `topic.maintenance.retention`. All work is based on committed metadata, so an interrupted run is
repeated by the next one, here or in another broker. `maintain` trims too, for roots without a broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from pulsar_on_spark.broker.background.backlog_quotas import BacklogQuotas
from pulsar_on_spark.broker.background.expiry import MessageExpiry, SubscriptionExpiry
from pulsar_on_spark.broker.background.inactive_topics import InactiveTopics
from pulsar_on_spark.broker.observe.overview import Overview
from pulsar_on_spark.broker.reading.reader import EntryReader
from pulsar_on_spark.broker.runtime.repeating import every
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.broker.topics.topic_policies import default_policies
from pulsar_on_spark.broker.topics.topics import Topics
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.retention.trim import trim_topics

log = logging.getLogger(__name__)


class Lifecycle:
    """Periodic lifecycle work on a broker's topics, run until `stop`.

    Args:
        root: The open root.
        views: The views of the root's metadata.
        topics: The broker's topics.
        reader: The reader that finds entries by their publish time.
        overview: The overview of topics' contents, which counts backlogs.
        settings: The broker's settings: the default policies and the intervals.
        leads: Returns True if trimming all topics is this broker's task.
    """

    def __init__(
        self,
        root: RootHandle,
        views: Views,
        topics: Topics,
        reader: EntryReader,
        overview: Overview,
        settings: BrokerSettings,
        leads: Callable[[], bool],
    ) -> None:
        self._root = root
        self._leads = leads
        self._defaults = default_policies(settings)
        messages = MessageExpiry(root, views, topics, reader, self._defaults)
        subscriptions = SubscriptionExpiry(root, views, topics, self._defaults)
        quotas = BacklogQuotas(views, topics, reader, overview)
        inactive = InactiveTopics(root, views, topics, self._defaults)
        retention_s = settings.retention_check_interval_in_seconds
        messages_s = settings.message_expiry_check_interval_in_minutes * 60
        subscriptions_s = settings.subscription_expiry_check_interval_in_minutes * 60
        quotas_s = settings.backlog_quota_check_interval_in_seconds
        inactive_s = settings.broker_delete_inactive_topics_frequency_seconds
        self._jobs: tuple[tuple[float, Callable[[], Awaitable[None]], str], ...] = (
            (retention_s, self._trim, "Topics cannot be trimmed now"),
            (messages_s, messages.expire_messages, "Messages cannot be expired now"),
            (subscriptions_s, subscriptions.delete_expired, "Expired subscriptions cannot be deleted now"),
            (quotas_s, quotas.check_backlogs, "Backlog quotas cannot be enforced now"),
            (inactive_s, inactive.delete_inactive, "Inactive topics cannot be deleted now"),
        )
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the periodic work."""
        self._tasks = [
            asyncio.create_task(every(interval_s, job, complaint)) for interval_s, job, complaint in self._jobs
        ]

    async def stop(self) -> None:
        """Stop the periodic work."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _trim(self) -> None:
        if not self._leads():
            return
        trimmed = await asyncio.to_thread(trim_topics, self._root, self._defaults)
        if trimmed.segments:
            log.info("Retention trimmed %d messages of %d topics.", trimmed.messages, trimmed.topics)
